"""A cluster whose parts are on hosts of their own: nothing acknowledged is lost by delay, loss or any way to part them.

Needs root, `/dev/net/tun`, and the commands `ip` and `nsenter`; says so where they are missing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import bkpy

from .load import Load
from .machines import CLIENT, DEADLINE_S, RACKS, WRITER, ZOOKEEPER, Machines
from .oracle import check, check_replicas
from .writing import WritingProcess

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .network import Network

pytestmark = [pytest.mark.privileged, pytest.mark.exhaustive]

SIZES = {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2}
CLIENT_SETTINGS = {"add_timeout_s": 2.0, "connect_timeout_s": 2.0, "session_timeout_s": 6.0}
LASTS_S = 6.0  # a fault: longer than the bookies' sessions with ZooKeeper
ENTRIES = 200


def slow_and_lossy(network: Network, bookie: str) -> None:
    network.worsen(delay_s=0.01, jitter_s=0.03, loss=0.02)


def off_the_network(network: Network, bookie: str) -> None:
    network.isolate(bookie)


def unseen_by_the_client(network: Network, bookie: str) -> None:
    network.part([CLIENT], [bookie])


def unheard_by_the_client(network: Network, bookie: str) -> None:
    network.part([bookie], [CLIENT], both_ways=False)


def without_zookeeper(network: Network, bookie: str) -> None:
    network.part([bookie], [ZOOKEEPER])


def zookeeper_off_the_network(network: Network, bookie: str) -> None:
    network.isolate(ZOOKEEPER)


def its_rack_off_the_network(network: Network, bookie: str) -> None:
    network.isolate(*(other for other, rack in RACKS.items() if rack == RACKS[bookie]))


# After these the bookie that they befell is one of the writer's no more.
REPLACED = (off_the_network, unseen_by_the_client, unheard_by_the_client, its_rack_off_the_network)
FAULTS = (slow_and_lossy, *REPLACED, without_zookeeper, zookeeper_off_the_network)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
async def test_writing_goes_on_and_nothing_is_lost(tmp_path: Path, fault: Callable[[Network, str], None]) -> None:
    async with Machines(tmp_path) as cluster, bkpy.connect(cluster.uri, **CLIENT_SETTINGS) as client:
        await cluster.registered(client)
        writer = await client.create_ledger(**SIZES)
        assert cluster.racks_of(writer.metadata.fragments[0].bookies) == set(RACKS.values())
        async with Load(writer, outstanding=20, pause_s=0.05) as load:
            following = asyncio.create_task(load.follow(await client.open_ledger(writer.ledger_id)))
            await load.more(ENTRIES)
            victim = writer.metadata.fragments[-1].bookies[0]
            fault(cluster.network, victim)
            await asyncio.sleep(LASTS_S)
            await load.more(ENTRIES)
            last = writer.metadata.fragments[-1].bookies
            cluster.network.heal()
            await load.more(ENTRIES)
        if load.error is not None:
            raise load.error
        await writer.close()
        async with asyncio.timeout(DEADLINE_S):
            await following

        if fault in REPLACED:
            assert victim not in last, "an ensemble change puts another in its place"
            lost = {RACKS[victim]} if fault is its_rack_off_the_network else set()
            assert cluster.racks_of(last) == set(RACKS.values()) - lost, "of the same rack, if there is one"
        await cluster.registered(client)
        async with bkpy.connect(cluster.uri) as fresh:
            assert (await check(fresh, load.promises)).last_entry + 1 == load.acknowledged
            await check_replicas(fresh, writer.ledger_id)


async def test_a_writer_that_is_cut_off_is_succeeded_and_ends(tmp_path: Path) -> None:
    """It reaches one bookie and nobody else; another client closes its ledger meanwhile; then it comes back."""
    async with Machines(tmp_path) as cluster, bkpy.connect(cluster.uri, **CLIENT_SETTINGS) as client:
        await cluster.registered(client)
        writing = WritingProcess(tmp_path, cluster.uri, prefix=cluster.host(WRITER).command, **SIZES)
        writing.start()
        try:
            await writing.acknowledged(ENTRIES)
            ledger_id = writing.promises().ledger_id
            reached = (await client.ledger_metadata(ledger_id)).fragments[-1].bookies[0]
            cluster.network.part([WRITER], set(cluster.network.hosts) - {WRITER, reached})
            async with asyncio.timeout(DEADLINE_S):
                await (await client.recover_ledger(ledger_id)).close()
            cluster.network.heal()
            assert await writing.failed() in ("LedgerFencedError", "LedgerClosedError")  # whichever it hears of first
        finally:
            await writing.process.kill()
        promises = writing.promises()
        assert len(promises.acknowledged) >= ENTRIES
        async with bkpy.connect(cluster.uri) as fresh:
            await check(fresh, promises)
            await check_replicas(fresh, ledger_id)


async def test_ensembles_are_spread_over_the_racks(tmp_path: Path) -> None:
    async with Machines(tmp_path) as cluster, bkpy.connect(cluster.uri, **CLIENT_SETTINGS) as client:
        await cluster.registered(client)
        for _ in range(10):
            async with await client.create_ledger(**SIZES) as writer:
                await writer.append(b"spread")
            (fragment,) = (await client.ledger_metadata(writer.ledger_id)).fragments
            assert cluster.racks_of(fragment.bookies) == set(RACKS.values())
        assert all(link.frames for (a, b), link in cluster.network.links.items() if a == CLIENT and b in RACKS)
