"""Who reads in steps finds the next blocks loaded; nobody waits for that, and nothing is foretold of who doesn't."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import log_reader_of, read_worker
from tests.unit.storage.support import Batch, Host, Stall, add, read_all
from tests.unit.storage.support import settings as bookie_settings
from tests.waiting import turns

from bkpy.storage.memory_budget import MemoryBudget
from bkpy.storage.reads.block_cache import BlockCache
from bkpy.storage.reads.read_ahead import ReadAhead, Scans

if TYPE_CHECKING:
    from bkpy.storage.engine import LedgerStorage
    from bkpy.storage.index.index import BlockRow

KIB = 1024


def foretold(reads: list[tuple[int, int]]) -> list[tuple[int, int] | None]:
    """What is foretold after each of these reads, one after the other."""
    scans = Scans(10)
    found = []
    for first, last in reads:
        scans.began(1, first, last)
        found.append(scans.ended(1, first, last))
    return found


@pytest.mark.parametrize(
    ("reads", "expected"),
    [
        ([(0, 9), (10, 19), (20, 29), (30, 39)], [None, None, (30, 39), (40, 49)]),
        ([(0, 9), (10, 24), (25, 39), (40, 41)], [None, None, (40, 54), (55, 56)]),  # right behind, of any size
        ([(0, 9), (30, 39), (60, 69), (90, 99)], [None, None, None, (120, 129)]),  # of three bookies in turn
        ([(0, 9), (30, 39), (61, 70), (90, 99)], [None] * 4),
        ([(90, 99), (60, 69), (30, 39), (0, 9)], [None] * 4),  # backwards
        ([(5, 5), (5, 5), (5, 5), (5, 5)], [None] * 4),
        ([(0, 9), (10, 19), (10, 19), (20, 29)], [None, None, None, (30, 39)]),  # asked for once more
        ([(0, 9), (10, 19), (20, 29), (7, 9), (30, 39)], [None, None, (30, 39), None, None]),
    ],
)
def test_what_comes_next(reads: list[tuple[int, int]], expected: list[tuple[int, int] | None]) -> None:
    assert foretold(reads) == expected


def test_a_read_that_was_cut_short_is_gone_on_from_where_it_ended() -> None:
    scans = Scans(10)
    for first in (0, 10, 20):
        assert scans.began(1, first, 1 << 60) == (first > 0)
        following = scans.ended(1, first, first + 9)
    assert following == (30, 39)


def test_reads_of_others_change_nothing_and_few_are_remembered() -> None:
    scans = Scans(2)
    for first in (0, 10, 20):
        scans.began(1, first, first + 9)
        scans.began(2, first, first + 4)
        assert scans.ended(2, first, first + 4) is None
    assert scans.ended(1, 20, 29) == (30, 39)
    assert scans.ended(1, 10, 19) is None  # not the last one
    scans.began(3, 0, 0)
    assert len(scans) == 2


async def stored(host: Host, blocks: int = 12) -> LedgerStorage:
    """A ledger whose every entry is a block."""
    storage = await host.boot()
    await storage.states((1, 2))
    for ledger_id in (1, 2):
        await add(storage, *(Batch(ledger_id, i, payload=bytes([i]) * 10_000) for i in range(blocks)))
    await storage.checkpoint()
    return storage


def host_of(**values: int) -> Host:
    return Host(settings=bookie_settings(block_bytes=1, block_cache_bytes_max=1 << 20, **values))


async def test_the_next_blocks_are_there_before_they_are_asked_for() -> None:
    storage = await stored(host_of(read_ahead_bytes_max=25_000))
    cache, ahead = storage.shards[0].cache, storage.shards[0].ahead
    for i in range(3):
        await storage.read(1, 2 * i, 2 * i + 1, 1 << 20)
        await turns()
    assert ahead.blocks == 2
    misses = cache.misses
    for i in range(3, 6):
        assert len((await storage.read(1, 2 * i, 2 * i + 1, 1 << 20)).segments) == 2
        await turns()
    assert cache.misses == misses
    have, unknown = await read_all(storage, 1, 0, 20)
    assert (have, unknown) == ({i: bytes([i]) * 10_000 for i in range(12)}, set())
    await storage.close()


@pytest.mark.parametrize(("bound", "blocks"), [(0, 0), (9_000, 0), (10_500, 1), (21_000, 2), (1 << 20, 3)])
async def test_what_is_loaded_ahead_is_bounded(bound: int, blocks: int) -> None:
    storage = await stored(host_of(read_ahead_bytes_max=bound))
    for first in (0, 1, 5):  # three are left after the last
        await storage.read(1, first, first if first == 0 else first + 3, 1 << 20)
        await turns()
    assert storage.shards[0].ahead.blocks == blocks
    await storage.close()


async def test_a_read_waits_for_no_more_than_the_block_that_is_being_loaded() -> None:
    storage = await stored(host_of())
    shard = storage.shards[0]
    for first in (0, 1):
        await storage.read(1, first, first, 1 << 20)
    last = asyncio.ensure_future(storage.read(1, 2, 2, 1 << 20))
    other = asyncio.ensure_future(storage.read(2, 0, 5, 1 << 20))  # somebody else comes at the same time
    await asyncio.gather(last, other)
    await turns()
    assert shard.ahead.blocks == 0  # the read of the other came first, and the time has gone
    stall = Stall(read_worker(shard))
    await storage.read(1, 3, 3, 1 << 20)
    stall.begin()
    await turns()
    reading = asyncio.ensure_future(storage.read(2, 6, 6, 1 << 20))
    await turns()
    assert not reading.done()
    stall.end()
    await reading
    await turns()
    assert shard.ahead.blocks <= 1
    await storage.close()


async def test_blocks_that_cannot_be_read_ahead_are_told_when_they_are_asked_for() -> None:
    host = host_of()
    storage = await stored(host)
    for first in (0, 1):
        await storage.read(1, first, first, 1 << 20)
    log_reader_of(storage.shards[0]).close()
    host.disk.fail_at(3, 5, operation="pread", path=".log")
    await storage.read(1, 2, 2, 1 << 20)
    await turns()
    assert not host.reports.damages
    host.disk.fail_at(1, 5, operation="pread", path=".log")
    result = await storage.read(1, 3, 3, 1 << 20)
    assert result.segments or result.unknown == [(3, 3)]


async def test_of_more_ledgers_than_are_remembered_the_latest_are_loaded_ahead() -> None:
    loaded: list[int] = []
    tasks: list[asyncio.Task[None]] = []

    async def find(ledger_id: int, first: int, last: int, bytes_max: int) -> list[BlockRow]:
        loaded.append(ledger_id)
        return []

    async def load(ledger_id: int, row: BlockRow) -> None:
        raise AssertionError("there is none")

    def spawn(coro: Any, *, name: str, on_death: Any = None) -> asyncio.Task[None]:
        tasks.append(asyncio.get_running_loop().create_task(coro))
        return tasks[-1]

    cache = BlockCache(1 << 20, MemoryBudget(1 << 30))
    ahead = ReadAhead(cache, spawn, bytes_max=1000, ledgers_max=2, find=find, load=load)
    for ledger_id in range(4):
        for first in (0, 10, 20):
            ahead.began(ledger_id, first, first + 9)
            ahead.ended(ledger_id, first, first + 9)
    assert len(tasks) == 1, "one at a time"
    await tasks[0]
    assert loaded == [3, 2]
