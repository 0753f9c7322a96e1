"""A bookie whose first lives are of an earlier version: its code runs, and today's has all that it has acknowledged."""

from __future__ import annotations

import asyncio

import pytest

from tests.compat.in_process import Earlier

from .cluster import Cluster, held_by
from .earlier import EarlierBookies
from .world import UnhandledError


@pytest.mark.thorough
@pytest.mark.parametrize(
    "end", ["power cut", *(pytest.param(it, marks=pytest.mark.exhaustive) for it in ("stop", "crash"))]
)
def test_todays_code_takes_over_what_an_earlier_version_has_left(end: str) -> None:
    cluster = Cluster(7, bookies=3, calm=True)
    victim = cluster.bookies[0]
    victim.begin_with(EarlierBookies.of("0.2.0"), 2)
    codes: list[str] = []

    async def write() -> None:
        async with cluster.client() as client:
            await cluster.write_ledger(client, 200, (3, 3, 3), password=b"secret")

    async def main() -> None:
        await cluster.start()
        for _ in range(3):
            codes.append(type(victim.node).__module__)
            await cluster.client_host.start(write())
            if end == "stop":
                await victim.stop()
            elif end == "crash":
                victim.host.crash()
            else:
                victim.host.power_cut()
            await victim.start()
            await asyncio.sleep(1.0)
        await cluster.client_host.start(cluster.check())

    cluster.run(main())
    assert codes == ["bkpy_0_2_0.bookie.node", "bkpy_0_2_0.bookie.node", "bkpy.bookie.node"]
    assert sum(map(len, victim.promises.values())) >= 600


def test_what_the_code_of_an_earlier_version_did_not_expect_fails_the_run() -> None:
    cluster = Cluster(7, bookies=1, calm=True)
    cluster.bookies[0].begin_with(EarlierBookies.of("0.2.0"), 1)
    log = Earlier.of("0.2.0").module("metadata.logs.maintenance").log

    async def main() -> None:
        log.error("a list is lost", exc_info=KeyError("list"))

    with pytest.raises(UnhandledError, match="a list is lost"):
        cluster.run(main())


def test_todays_code_knows_the_fences_and_the_losses_of_an_earlier_version() -> None:
    cluster = Cluster(7, bookies=3, calm=True)
    fenced, emptied, _ = cluster.bookies
    for bookie in (fenced, emptied):
        bookie.begin_with(EarlierBookies.of("0.2.0"), 2)

    async def write() -> int:
        async with cluster.client() as client:
            return await cluster.write_ledger(client, 20, (3, 3, 2), password=b"secret")

    async def recover() -> None:
        async with cluster.client() as client:
            writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2, password=b"secret")
            await writer.append(b"data")
            await client.recover_ledger(writer.ledger_id, password=b"secret")
            writer.abandon()

    async def ask(ledger_id: int) -> None:
        async with cluster.client() as client:
            reader = await client.open_ledger(ledger_id, password=b"secret")
            assert await held_by(reader, {}, emptied, reader.last_add_confirmed) is None  # it can't tell

    async def main() -> None:
        await cluster.start()
        ledger_id = await cluster.client_host.start(write())
        await cluster.client_host.start(recover())
        await emptied.stop()
        emptied.host.disk.swap_out()
        emptied.rebuilds = True
        await emptied.start()
        for bookie in (fenced, emptied):
            await bookie.stop()
            bookie.earlier_lives = 0
            await bookie.start()
            assert bookie.code is None
        assert fenced.fenced
        assert await fenced.forgotten_fences() == []
        await cluster.client_host.start(ask(ledger_id))

    cluster.run(main())
