"""Many small ledgers at once, on bookies that keep few of them in memory."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from bkpy.errors import BookieUnavailableError

from .cluster import Cluster
from .runs import play_all, seeds_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bkpy.client.read.reader import LedgerReader


@pytest.mark.thorough
@pytest.mark.parametrize("seeds", seeds_of("crowd", block=10, blocks=20))
def test_nothing_is_lost_in_the_crowd(seeds: Sequence[int]) -> None:
    for cluster in play_all("crowd", seeds):
        assert sum(len(bookie.promises) for bookie in cluster.bookies) > 10


def test_a_read_has_its_time_however_seconds_are_rounded() -> None:
    """These are beyond 1024 seconds when the time of a read is up, and were not when it began.

    Where time stands still while a program runs, one that takes the end of a wait for a moment before it spins.
    """
    cluster = Cluster(0, bookies=1, calm=True)
    host = cluster.client_host

    async def a_read(reader: LedgerReader, at: float) -> None:
        await asyncio.sleep(at - cluster.world.loop.time())
        with pytest.raises(BookieUnavailableError, match=r"no answer within 0\.7 s"):
            await anext(reader.read())

    async def reads() -> None:
        async with cluster.client(read_timeout_s=0.7) as client:
            with pytest.warns(match="ack quorum of 1"):
                writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
            await writer.append(b"")
            await writer.close()
            reader = await client.open_ledger(writer.ledger_id)
            cluster.world.net.block(cluster.bookies[0].host.address, host.address)
            await asyncio.gather(*(a_read(reader, 1023.4 + 0.0123 * i) for i in range(30)))

    async def run() -> None:
        await cluster.start()
        await host.start(reads())

    cluster.run(run())
