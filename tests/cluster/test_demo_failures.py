"""The part of the demonstration that kills processes: everything is accounted for. The whole of it is `make demo`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.waiting import eventually

import bkpy
from bkpy.demo import flights as demo
from bkpy.demo.healing import HEALS_SOON, HealingSample, count_copies, follow
from bkpy.local import LocalCluster

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path


@pytest.mark.exhaustive
async def test_a_bookie_and_a_writer_are_killed_and_nothing_is_lost(tmp_path: Path) -> None:
    flights = demo.load_flights()
    year = [line for month in flights.values() for line in month]
    some = {month: lines[:2000] for month, lines in flights.items()}
    async with LocalCluster(tmp_path / "cluster", bookies=demo.BOOKIES, config=HEALS_SOON) as cluster:
        advanced: list[int] = []
        kill = demo.killer(cluster)
        written = await demo.write_months(cluster.connect_string, some, advanced.append, kill)
        assert sum(advanced) == sum(month.entries for month in written.months) == 24_000
        assert [bookie.pid is None for bookie in cluster.bookies] == [b.id == written.killed for b in cluster.bookies]
        assert written.pauses.after_s > 0
        async with bkpy.connect(cluster.connect_string) as client:
            ledgers = [await client.ledger_metadata(month.ledger_id) for month in written.months]
        assert any(written.killed in fragment.bookies for ledger in ledgers for fragment in ledger.fragments)
        # A fragment in which nothing was acknowledged is replaced, so a change may have left no trace there.
        assert written.changes >= sum(len(ledger.fragments) - 1 for ledger in ledgers)
        looks: list[HealingSample] = []
        await follow(cluster.connect_string, written, looks.append)
        assert (looks[0].seconds, looks[0].ledgers) == (0.0, written.named_killed)
        assert looks[0].ledgers > 0 == looks[-1].ledgers
        copies = await count_copies(cluster.connect_string, written.months, some, lambda count: None)
        assert copies.flights == {3: 24_000}
        assert written.killed not in copies.bookies
        found, _ = await demo.read_months(cluster.connect_string, written.months, lambda count: None)
        assert found == {month: demo.digest(lines) for month, lines in some.items()}

        others = {month: [*lines[:-1], b"another"] for month, lines in some.items()}
        copies = await count_copies(cluster.connect_string, written.months, others, lambda count: None)
        assert copies.flights == {3: 24_000 - len(some), 0: len(some)}

        ledger_id, acknowledged = await demo.kill_writer(cluster.connect_string, len(year), tmp_path / "writer.log")
        assert acknowledged >= len(year) // 3
        account = await demo.recover(cluster.connect_string, ledger_id, acknowledged, year)
        assert account.recovered >= account.acknowledged == acknowledged
        assert (account.lost, account.different) == (0, 0)
        with pytest.raises(bkpy.BookKeeperError, match="has closed its ledger"):
            await demo.recover(cluster.connect_string, ledger_id, acknowledged, year)


@pytest.mark.exhaustive
async def test_a_writer_that_dies_by_itself_is_not_taken_for_a_killed_one(tmp_path: Path) -> None:
    with pytest.raises(bkpy.BookKeeperError, match="last words"):
        await demo.kill_writer("no cluster's URI", 10, tmp_path / "writer.log")


async def test_bookies_that_are_still_starting_are_waited_for(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    poll, waiting = demo.poll, asyncio.Event()

    async def polling(enough: Callable[[], Awaitable[bool]], timeout_s: float | None) -> bool:
        assert not await enough()
        waiting.set()
        return await poll(enough, timeout_s)

    monkeypatch.setattr(demo, "poll", polling)
    assert len(cluster.bookies) == demo.ENSEMBLE_SIZE
    await cluster.bookies[0].stop()
    writing = asyncio.create_task(demo.write_months(cluster.connect_string, {1: [b"a", b"b"]}, lambda count: None))
    try:
        await eventually(waiting.is_set, "the demonstration waits for a third bookie")
    finally:
        await cluster.bookies[0].start()
    (month,) = (await writing).months
    assert month.entries == 2
