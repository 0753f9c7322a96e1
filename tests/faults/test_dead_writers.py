"""A writer's process dies or hangs, and another process recovers its ledger: everything acknowledged is in it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

import bkpy

from .clusters import ProxiedCluster, reached
from .oracle import Contents, Promises, check, check_replicas
from .writing import WritingProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

DEADLINE_S = 60.0

# One loop for all, and with it one cluster, whose start takes longer than most of the tests.
pytestmark = [pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]

exhaustive = pytest.mark.exhaustive


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ProxiedCluster]:
    async with ProxiedCluster(tmp_path_factory.mktemp("cluster"), bookies=4) as local:
        yield local


@pytest_asyncio.fixture(loop_scope="module")
async def cluster(shared: ProxiedCluster) -> ProxiedCluster:
    """The cluster, with nothing left of what was done to it before."""
    await shared.mend()
    return shared


@pytest_asyncio.fixture(loop_scope="module")
async def writing(cluster: ProxiedCluster, tmp_path: Path) -> AsyncIterator[WritingProcess]:
    process = WritingProcess(tmp_path, cluster.connect_string)
    process.start()
    yield process
    await process.process.kill()


async def recover(cluster: ProxiedCluster, promises: Promises) -> Contents:
    """Recover the ledger with one client, and read it with another one that knows nothing of that."""
    async with bkpy.connect(cluster.connect_string) as client, asyncio.timeout(DEADLINE_S):
        reader = await client.recover_ledger(promises.ledger_id)
        assert reader.closed
        last = reader.last_add_confirmed
    async with bkpy.connect(cluster.connect_string) as fresh, asyncio.timeout(DEADLINE_S):
        contents = await check(fresh, promises)
        assert contents.last_entry == last
    return contents


@pytest.mark.scenario(1)
@pytest.mark.parametrize(
    "sizes",
    [(3, 3, 2), (4, 3, 2), *(pytest.param(sizes, marks=exhaustive) for sizes in ((3, 3, 3), (3, 2, 2), (3, 3, 1)))],
    ids=str,
)
async def test_a_killed_writers_ledger_keeps_what_was_acknowledged(
    cluster: ProxiedCluster, tmp_path: Path, sizes: tuple[int, int, int]
) -> None:
    writing = WritingProcess(
        tmp_path, cluster.connect_string, ensemble_size=sizes[0], write_quorum=sizes[1], ack_quorum=sizes[2]
    )
    writing.start()
    await writing.acknowledged(2000)
    await writing.process.kill()
    promises = writing.promises()
    assert len(promises.acknowledged) >= 2000
    await recover(cluster, promises)
    async with bkpy.connect(cluster.connect_string) as fresh:
        await check_replicas(fresh, promises.ledger_id)


async def test_a_writer_and_one_of_its_bookies_are_killed_at_once(
    cluster: ProxiedCluster, writing: WritingProcess
) -> None:
    await writing.acknowledged(2000)
    promises = writing.promises()
    async with bkpy.connect(cluster.connect_string) as client:
        metadata = await client.ledger_metadata(promises.ledger_id)
    victim = cluster.bookie(metadata.fragments[-1].bookies[0])
    await asyncio.gather(writing.process.kill(), victim.kill())
    await recover(cluster, writing.promises())
    await victim.start()
    async with bkpy.connect(cluster.connect_string) as fresh:
        await check(fresh, writing.promises())


@pytest.mark.exhaustive
async def test_all_bookies_are_killed_and_started_between_the_writers_death_and_recovery(
    cluster: ProxiedCluster, writing: WritingProcess
) -> None:
    await writing.acknowledged(2000)
    await writing.process.kill()
    for bookie in cluster.bookies:
        await bookie.kill()
    for bookie in cluster.bookies:
        await bookie.start()
    await recover(cluster, writing.promises())


@pytest.mark.exhaustive
@pytest.mark.scenario(18)
async def test_bookies_are_killed_and_started_one_after_the_other_during_recovery(
    cluster: ProxiedCluster, writing: WritingProcess
) -> None:
    await writing.acknowledged(2000)
    await writing.process.kill()
    promises = writing.promises()
    for proxy in cluster.proxies.values():
        for flow in proxy.flows:
            flow.delay(0.2)  # so that recovery takes longer than the restart of a bookie
    over = False

    async def restart_bookies(client: bkpy.Client) -> None:
        while not over:
            for bookie in cluster.bookies:
                await bookie.kill()
                await bookie.start()
                await reached(client, bookie)  # before the next one goes: else no quorum is there for long

    async with bkpy.connect(cluster.connect_string, read_timeout_s=3.0, add_timeout_s=3.0) as client:
        restarting = asyncio.create_task(restart_bookies(client))
        async with asyncio.timeout(3 * DEADLINE_S):  # most tries meet a bookie that has just gone
            while not over:
                try:
                    await client.recover_ledger(promises.ledger_id)
                    over = True
                except bkpy.BookKeeperError as e:
                    if not e.retriable:
                        raise
        await restarting
    await cluster.heal()
    await recover(cluster, promises)


async def test_several_who_recover_at_once_agree(cluster: ProxiedCluster, writing: WritingProcess) -> None:
    await writing.acknowledged(2000)
    await writing.process.kill()
    contents = await asyncio.gather(*(recover(cluster, writing.promises()) for _ in range(4)))
    assert len({(found.last_entry, found.length) for found in contents}) == 1


async def test_a_writer_that_is_still_alive_is_fenced(cluster: ProxiedCluster, writing: WritingProcess) -> None:
    """Whatever it was told before and after is true, and nothing is added behind the end."""
    await writing.acknowledged(2000)
    contents = await recover(cluster, writing.promises())
    assert await writing.failed() in ("LedgerFencedError", "LedgerClosedError")
    async with bkpy.connect(cluster.connect_string) as fresh:
        assert (await check(fresh, writing.promises())).entries == contents.entries


async def test_a_writer_that_hung_during_recovery_wakes_up_and_is_fenced(
    cluster: ProxiedCluster, writing: WritingProcess
) -> None:
    await writing.acknowledged(2000)
    writing.process.suspend()
    contents = await recover(cluster, writing.promises())
    writing.process.resume()
    assert await writing.failed() in ("LedgerFencedError", "LedgerClosedError")
    async with bkpy.connect(cluster.connect_string) as fresh:
        assert (await check(fresh, writing.promises())).entries == contents.entries


@pytest.mark.scenario(4)
async def test_with_too_few_bookies_recovery_fails_and_a_later_try_succeeds(
    cluster: ProxiedCluster, writing: WritingProcess
) -> None:
    await writing.acknowledged(2000)
    await writing.process.kill()
    promises = writing.promises()
    async with bkpy.connect(cluster.connect_string, read_timeout_s=3.0, add_timeout_s=1.0) as client:
        metadata = await client.ledger_metadata(promises.ledger_id)
        dead = [cluster.bookie(bookie_id) for bookie_id in metadata.fragments[-1].bookies[:2]]
        for bookie in dead:
            await bookie.kill()
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises((bkpy.LedgerRecoveryError, bkpy.NotEnoughBookiesError)) as caught:
                await client.recover_ledger(promises.ledger_id)
        assert caught.value.retriable
        assert (await client.ledger_metadata(promises.ledger_id)).state == "IN_RECOVERY"
    for bookie in dead:
        await bookie.start()
    await recover(cluster, promises)


@pytest.mark.scenario(5)
async def test_a_bookie_that_hangs_does_not_hold_up_recovery(cluster: ProxiedCluster, writing: WritingProcess) -> None:
    """The time that a read may take is longer than the test: whoever waits for that bookie is too late."""
    await writing.acknowledged(2000)
    await writing.process.kill()
    promises = writing.promises()
    async with bkpy.connect(cluster.connect_string, read_timeout_s=10 * DEADLINE_S) as client:
        metadata = await client.ledger_metadata(promises.ledger_id)
        hung = cluster.bookie(metadata.fragments[-1].bookies[0])
        hung.suspend()
        async with asyncio.timeout(DEADLINE_S):
            await client.recover_ledger(promises.ledger_id)
    hung.resume()
    async with bkpy.connect(cluster.connect_string) as fresh:
        await check(fresh, promises)
