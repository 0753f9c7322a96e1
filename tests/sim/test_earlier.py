"""A bookie whose first lives are of an earlier version: its code runs, and today's has all that it has acknowledged."""

from __future__ import annotations

import asyncio

import pytest

from .cluster import Cluster
from .earlier import EarlierBookies


@pytest.mark.parametrize("end", ["stop", "crash", "power cut"])
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
