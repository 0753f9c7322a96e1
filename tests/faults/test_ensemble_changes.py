"""With an ack quorum of all, writing goes on only if the failed bookie is replaced: every fault, and real processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

import bkpy
from bkpy.local import LocalBookie

from .clusters import ProxiedCluster, reached
from .load import Load
from .oracle import check, check_replicas
from .test_network_cuts import (
    OF_EACH_KIND,
    OF_OTHERS,
    Fault,
    each_fault,
    each_fault_of_a_writer,
    read_on,
    write_on,
)

if TYPE_CHECKING:
    from pathlib import Path

DEADLINE_S = 60.0
ADD_TIMEOUT_S = 1.0
LASTS_S = 2.0  # longer than the add timeout

# One loop for all, and with it one cluster, whose start takes longer than most of the tests.
pytestmark = [pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]

exhaustive = pytest.mark.exhaustive


@pytest.mark.parametrize("sizes", [(3, 3, 3), pytest.param((4, 2, 2), marks=exhaustive)], ids=str)
@each_fault_of_a_writer(OF_OTHERS[::2], OF_OTHERS[1::2])
async def test_a_bookie_that_the_ack_quorum_needs_is_replaced(
    tmp_path: Path, fault: Fault, pause_s: float, sizes: tuple[int, int, int]
) -> None:
    await write_on(tmp_path, fault, sizes, pause_s)


@pytest.mark.scenario(42)
@each_fault(OF_EACH_KIND[::2])
async def test_reading_a_striped_ledger_goes_on_without_one_bookie(tmp_path: Path, fault: Fault) -> None:
    await read_on(tmp_path, fault, (3, 2, 2))


# --- real processes -------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ProxiedCluster]:
    # Small files: journals roll and checkpoints happen within a test.
    config = {"journal_max_size_mb": 1, "memtable_bytes_max": 1 << 20, "checkpoint_interval_s": 0.5}
    async with ProxiedCluster(tmp_path_factory.mktemp("cluster"), bookies=4, config=config) as local:
        yield local


@pytest_asyncio.fixture(loop_scope="module")
async def cluster(shared: ProxiedCluster) -> ProxiedCluster:
    """The cluster, with nothing left of what was done to it before."""
    await shared.mend()
    return shared


async def killed(cluster: ProxiedCluster, victim: LocalBookie) -> None:
    await victim.kill()


async def stopped(cluster: ProxiedCluster, victim: LocalBookie) -> None:
    await victim.stop()


async def suspended(cluster: ProxiedCluster, victim: LocalBookie) -> None:
    victim.suspend()
    await asyncio.sleep(LASTS_S)


async def requests_cut(cluster: ProxiedCluster, victim: LocalBookie) -> None:
    cluster.proxies[victim.id].requests.stop()
    await asyncio.sleep(LASTS_S)


async def replies_cut(cluster: ProxiedCluster, victim: LocalBookie) -> None:
    cluster.proxies[victim.id].replies.stop()
    await asyncio.sleep(LASTS_S)


async def reset_in_a_request(cluster: ProxiedCluster, victim: LocalBookie) -> None:
    async with asyncio.timeout(DEADLINE_S):
        await cluster.proxies[victim.id].requests.cut_after(5001).wait()


async def reset_in_a_reply(cluster: ProxiedCluster, victim: LocalBookie) -> None:
    async with asyncio.timeout(DEADLINE_S):
        await cluster.proxies[victim.id].replies.cut_after(11).wait()


Misfortune = Callable[[ProxiedCluster, LocalBookie], Awaitable[None]]
MISFORTUNES: list[Misfortune] = [
    killed, stopped, suspended, requests_cut, replies_cut, reset_in_a_request, reset_in_a_reply,
]  # fmt: skip


async def everything_was_kept(cluster: ProxiedCluster, load: Load) -> None:
    """Read the closed ledger with a client that has seen nothing of all that."""
    async with bkpy.connect(cluster.connect_string) as fresh, asyncio.timeout(DEADLINE_S):
        await check(fresh, load.promises)
        await check_replicas(fresh, load.writer.ledger_id)


@pytest.mark.parametrize(
    ("misfortune", "ack_quorum"),
    [
        pytest.param(
            misfortune,
            ack_quorum,
            id=f"{misfortune.__name__}-{ack_quorum}",
            # What a silent bookie and a network do, other tests try on bookies that are no processes of their own.
            marks=() if (misfortune, ack_quorum) == (killed, 3) else exhaustive,
        )
        for misfortune in MISFORTUNES
        for ack_quorum in (2, 3)
    ],
)
async def test_a_bookie_of_four_fails_under_load_and_is_replaced(
    cluster: ProxiedCluster, misfortune: Misfortune, ack_quorum: int
) -> None:
    async with bkpy.connect(cluster.connect_string, add_timeout_s=ADD_TIMEOUT_S) as client:
        writer = await client.create_ledger(ack_quorum=ack_quorum)
        victim = writer.metadata.fragments[0].bookies[1]
        async with Load(writer, outstanding=100) as load:
            await load.more(1000)
            await misfortune(cluster, cluster.bookie(victim))
            await load.more(3000)
            await cluster.mend()
            await load.more(1000)
        await writer.close()
        fragments = (await client.ledger_metadata(writer.ledger_id)).fragments
        assert any(victim not in fragment.bookies for fragment in fragments), "it was never replaced"
    await everything_was_kept(cluster, load)


@pytest.mark.parametrize(
    "sizes", [(2, 2, 2), *(pytest.param(sizes, marks=exhaustive) for sizes in ((2, 2, 1), (3, 3, 2)))], ids=str
)
async def test_two_of_four_bookies_are_killed_one_after_the_other(
    cluster: ProxiedCluster, sizes: tuple[int, int, int]
) -> None:
    """The other two are enough for the ack quorum."""
    async with bkpy.connect(cluster.connect_string, add_timeout_s=ADD_TIMEOUT_S) as client:
        writer = await client.create_ledger(ensemble_size=sizes[0], write_quorum=sizes[1], ack_quorum=sizes[2])
        async with Load(writer) as load:
            for bookie_id in writer.metadata.fragments[0].bookies[:2]:
                await load.more(1000)
                await cluster.bookie(bookie_id).kill()
            await load.more(1000)
        await writer.close()
        await cluster.mend()
    await everything_was_kept(cluster, load)


@pytest.mark.scenario(26)
@pytest.mark.parametrize("ack_quorum", [pytest.param(1, marks=exhaustive), 2, pytest.param(3, marks=exhaustive)])
async def test_too_few_bookies_are_left_and_nothing_acknowledged_is_lost(
    cluster: ProxiedCluster, ack_quorum: int
) -> None:
    async with bkpy.connect(cluster.connect_string, add_timeout_s=ADD_TIMEOUT_S) as client:
        writer = await client.create_ledger(ack_quorum=ack_quorum)
        async with Load(writer) as load:
            await load.more(1000)
            await asyncio.gather(*(bookie.kill() for bookie in cluster.bookies[ack_quorum - 1 :]))
            error = await load.fails()
        assert error.retriable
        await cluster.mend()
        async with asyncio.timeout(DEADLINE_S):
            await writer.close()
        assert (await client.ledger_metadata(writer.ledger_id)).last_entry == writer.last_add_confirmed
    await everything_was_kept(cluster, load)


@exhaustive
@pytest.mark.parametrize("ack_quorum", [2, 3])
@pytest.mark.parametrize("how", [stopped, killed], ids=lambda how: how.__name__)
async def test_all_bookies_are_restarted_one_after_the_other_under_load(
    cluster: ProxiedCluster, how: Misfortune, ack_quorum: int
) -> None:
    async with bkpy.connect(cluster.connect_string, add_timeout_s=ADD_TIMEOUT_S) as client:
        writer = await client.create_ledger(ack_quorum=ack_quorum)
        async with Load(writer) as load:
            for bookie in cluster.bookies:
                await load.more(500)
                await how(cluster, bookie)
                await load.more(500)
                await bookie.start()
                await reached(client, bookie)  # before the next one goes, as an operator would
            await load.more(500)
        await writer.close()
    await everything_was_kept(cluster, load)
