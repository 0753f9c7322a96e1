"""Ranges are asked for ahead, within bounds, and handed on in order."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from tests.in_process import runtime_here

from bkpy.client.read.range_pipeline import RangePipeline, RangeScan

Range = tuple[int, int]


class Source:
    """Answers up to `cut` entries of a range, when it is told to."""

    def __init__(self, cut: int = 1 << 30, *, rest_ahead: bool = True, entries_max: int = 10) -> None:
        self.cut = cut
        self.asked: list[Range] = []
        self.cancelled: list[Range] = []
        self.open = asyncio.Event()
        self.open.set()
        self.pipeline = RangePipeline(
            self.fetch,
            name="test",
            at_once=3,
            rest_ahead=rest_ahead,
            first_entries=2,
            range_entries_max=entries_max,
            range_bytes=1000,
            runtime=runtime_here(),
        )

    async def fetch(self, first: int, last: int) -> tuple[Range, int]:
        self.asked.append((first, last))
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled.append((first, last))
            raise
        if first > 100:
            raise ValueError(f"nothing at {first}")
        self.pipeline.record_bytes = 200.0
        answered_to = min(last, first + self.cut - 1)
        return (first, answered_to), answered_to


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_no_range_has_more_entries_than_any_may_have() -> None:
    source = Source(entries_max=1)
    async with aclosing(source.pipeline.run(0, 3)) as results:
        assert [result async for result in results] == [(n, n) for n in range(4)]


async def test_one_short_range_goes_ahead_until_the_size_of_records_is_known() -> None:
    source = Source()
    async with aclosing(source.pipeline.run(0, 30)) as results:
        assert await anext(results) == (0, 1)
        assert source.asked == [(0, 1)]
        assert await anext(results) == (2, 6)  # five records of 200 bytes
        assert source.asked == [(0, 1), (2, 6), (7, 11), (12, 16)]


@pytest.mark.parametrize("rest_ahead", [True, False])
async def test_a_range_that_is_cut_short_is_continued_first(rest_ahead: bool) -> None:
    source = Source(cut=3, rest_ahead=rest_ahead)
    source.pipeline.record_bytes = 200.0
    results = [result async for result in source.pipeline.run(10, 24)]
    assert results == [(10, 12), (13, 14), (15, 17), (18, 19), (20, 22), (23, 24)]
    assert sorted(source.asked) == [(10, 14), (13, 14), (15, 19), (18, 19), (20, 24), (23, 24)]


@pytest.mark.parametrize(("rest_ahead", "held"), [(True, 4), (False, 3)])
async def test_the_rest_of_a_range_may_wait_until_what_came_of_it_is_used(rest_ahead: bool, held: int) -> None:
    source = Source(cut=3, rest_ahead=rest_ahead)
    source.pipeline.record_bytes = 200.0
    async with aclosing(source.pipeline.run(10, 90)) as results:
        assert await anext(results) == (10, 12)
        await settle()
        assert source.asked == [(10, 14), (15, 19), (20, 24), (13, 14)][:held]
        assert await anext(results) == (13, 14)


@pytest.mark.parametrize(("record_bytes", "entries"), [(1.0, 10), (400.0, 2), (5000.0, 1)])
async def test_a_range_is_bounded_in_entries_and_bytes_and_never_empty(record_bytes: float, entries: int) -> None:
    source = Source()
    source.pipeline.record_bytes = record_bytes
    async with aclosing(source.pipeline.run(0, 90)) as results:
        assert await anext(results) == (0, entries - 1)


async def cancelled_scan(source: Source) -> RangeScan[Range]:
    """A scan whose first result was awaited by a task that was cancelled."""
    source.pipeline.record_bytes = 200.0
    source.open.clear()
    results = source.pipeline.run(0, 90)
    scan = asyncio.ensure_future(anext(results))
    await settle()
    scan.cancel()
    with pytest.raises(asyncio.CancelledError):
        await scan
    await settle()
    return results


async def test_a_cancelled_call_leaves_its_range_to_the_next_one() -> None:
    source = Source()
    results = await cancelled_scan(source)
    assert source.cancelled == []
    source.open.set()
    assert [result async for result in results][:3] == source.asked[:3] == [(0, 4), (5, 9), (10, 14)]


async def test_nothing_goes_on_when_a_scan_is_closed() -> None:
    source = Source()
    results = await cancelled_scan(source)
    await results.aclose()
    await settle()
    assert source.cancelled == source.asked == [(0, 4), (5, 9), (10, 14)]


async def test_nothing_goes_on_when_a_scan_is_dropped() -> None:
    source = Source()
    results = await cancelled_scan(source)
    del results
    await settle()
    assert source.cancelled == source.asked == [(0, 4), (5, 9), (10, 14)]


async def test_an_error_is_raised_where_its_range_would_come() -> None:
    source = Source()
    source.pipeline.record_bytes = 200.0
    async with aclosing(source.pipeline.run(91, 200)) as results:
        assert await anext(results) == (91, 95)
        assert await anext(results) == (96, 100)
        with pytest.raises(ValueError, match="nothing at 101"):
            await anext(results)
