"""A bookie whose first lives are of an earlier version: its code runs, and today's has all that it has acknowledged."""

from __future__ import annotations

import asyncio

import pytest

from tests.compat.in_process import Earlier

from .cluster import Cluster
from .earlier import EarlierBookies
from .world import UnhandledError


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


def test_what_the_code_of_an_earlier_version_did_not_expect_fails_the_run() -> None:
    cluster = Cluster(7, bookies=1, calm=True)
    cluster.bookies[0].begin_with(EarlierBookies.of("0.2.0"), 1)
    log = Earlier.of("0.2.0").module("metadata.logs.maintenance").log

    async def main() -> None:
        log.error("a list is lost", exc_info=KeyError("list"))

    with pytest.raises(UnhandledError, match="a list is lost"):
        cluster.run(main())
