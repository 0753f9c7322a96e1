"""Memory of a bookie whose disks are slower than its clients: that it is full is told, flushes go on, and it ends."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest
from tests.hooks import flush_worker, journal_worker
from tests.unit.storage.support import INSTANCE, KEY, SMALLEST, Batch, Host, Stall, add, read_all, records
from tests.unit.storage.support import settings as bookie_settings
from tests.waiting import turns

from bkpy.bookie.connection.chunks import BookieChunks
from bkpy.protocol.wire.messages import AddColumns, pack
from bkpy.protocol.wire.records import RecordCodec
from bkpy.runtime.system import real_runtime
from bkpy.storage.open import open_storage

if TYPE_CHECKING:
    from pathlib import Path

    from bkpy.storage.engine import LedgerStorage

PAYLOAD = b"x" * 2000


async def known(storage: LedgerStorage, ledger_id: int = 1) -> None:
    await storage.states((ledger_id,))
    await add(storage, Batch(ledger_id, 0))
    await storage.checkpoint()
    await turns()


def check_full(storage: LedgerStorage, host: Host) -> None:
    """`full` says what is."""
    used = any(shard.memory_bytes >= 2 * storage.generation_bytes_max for shard in storage.shards)
    assert not storage.memory.full
    queued = any(journal.queued_bytes >= host.settings.journal_queue_bytes_max for journal in storage.journals)
    assert storage.full == (used or queued)


@pytest.mark.parametrize("journals", [1, 2])
async def test_a_stalled_journal_is_told_and_holds_up_no_flush(journals: int) -> None:
    host = Host(settings=bookie_settings(journals=journals, memtable_bytes_max=100_000, journal_queue_bytes_max=50_000))
    storage = await host.boot()
    await known(storage)
    stall = Stall(journal_worker(storage.journals[-1]))
    ledger_id = 2 * journals - 1  # of the last journal
    told: list[bool] = []
    storage.on_space.append(lambda: told.append(storage.full))
    stall.begin()
    futures, highest, full_at = [], 0, -1
    for i in range(1, 300):
        futures.append(add(storage, Batch(ledger_id, i, payload=PAYLOAD)))
        check_full(storage, host)
        if storage.full and full_at < 0:
            full_at = storage.unsynced_bytes
        await turns(50)  # a flush is done in this, and nobody who comes again and again is kept from it
        highest = max(highest, storage.memory_bytes)
    assert 50_000 <= full_at < 50_000 + 2200, "at the first add that was too much"
    assert storage.full
    assert highest < 2 * 100_000, "flushes go on"
    assert host.reports.checkpoints > 5
    assert not told
    assert not any(future.done() for future in futures)
    stall.end()
    await asyncio.gather(*futures)
    assert told == [False]
    assert not storage.full
    await storage.checkpoint()
    host.disk.power_cut()
    storage = await host.boot()
    first = 0 if ledger_id == 1 else 1
    assert set((await read_all(storage, ledger_id, 0, 299))[0]) == set(range(first, 300))


async def test_a_checkpoint_does_not_wait_for_a_stalled_journal_and_its_files_go_later() -> None:
    host = Host(settings=bookie_settings(journal_max_backups=0, journal_recycled_files_max=0))
    storage = await host.boot()
    for i in range(6):
        await add(storage, Batch(1, i, payload=b"x" * 900_000))
    assert len(host.journal_files()) == 6
    stall = Stall(journal_worker(storage.journals[0]))
    stall.begin()
    late = add(storage, Batch(1, 6))
    for _ in range(3):
        checkpoint = asyncio.ensure_future(storage.checkpoint())
        await turns()
        assert checkpoint.done()
    assert len(host.journal_files()) == 6
    stall.end()
    await late
    await turns()
    assert len(host.journal_files()) == 1
    await storage.checkpoint()
    assert set((await read_all(storage, 1, 0, 9))[0]) == set(range(7))
    await storage.close()


async def test_full_memtables_are_told_and_end() -> None:
    host = Host(settings=bookie_settings(ledgers=2, memtable_bytes_max=200_000))
    storage = await host.boot()
    await known(storage)
    told: list[bool] = []
    storage.on_space.append(lambda: told.append(storage.full))
    stall = Stall(flush_worker(storage.shards[1]))
    stall.begin()
    for i in range(1, 300):
        await add(storage, Batch(1, i, payload=PAYLOAD))
        check_full(storage, host)
        if storage.full:
            break
    assert 200_000 <= storage.shards[1].memory_bytes < 200_000 + 3100, "both generations of that shard"
    assert not told
    stall.end()
    await turns()
    assert told == [False]
    assert not storage.full
    assert set((await read_all(storage, 1, 0, 299))[0]) == set(range(i + 1))


async def test_fences_and_published_confirmations_are_flushed_before_they_fill_memory() -> None:
    host = Host(settings=bookie_settings(memtable_bytes_max=20_000))
    storage = await host.boot()
    before = host.reports.checkpoints
    for ledger_id in range(200):
        await storage.fence(ledger_id, KEY)
        assert storage.memory_bytes < 2 * 20_000
    assert host.reports.checkpoints > before + 2


async def test_fences_count_as_queued() -> None:
    host = Host(settings=bookie_settings(journal_queue_bytes_max=2000))
    storage = await host.boot()
    await known(storage)
    stall = Stall(journal_worker(storage.journals[0]))
    stall.begin()
    fences = [asyncio.ensure_future(storage.fence(i, KEY)) for i in range(2, 200)]
    await turns()
    assert storage.full
    publishing = asyncio.ensure_future(storage.set_explicit_lac(1, RecordCodec(1).explicit_lac(0, 1)))
    await turns()
    check_full(storage, host)
    stall.end()
    await asyncio.gather(*fences, publishing)
    assert not storage.full


async def test_a_failed_journal_queues_nothing() -> None:
    host = Host(settings=bookie_settings(journal_queue_bytes_max=1))
    storage = await host.boot()
    await known(storage)
    host.disk.fail_at(1, 5, operation="pwritev", path="journal")
    add(storage, Batch(1, 1, payload=PAYLOAD))
    assert storage.full
    await asyncio.wait([storage.failed])
    assert storage.unsynced_bytes == 0
    storage.release()


async def test_the_smallest_bounds_make_room_again_and_again() -> None:
    host = Host(settings=bookie_settings(journals=2, ledgers=2, **SMALLEST))
    storage = await host.boot()
    for i in range(20):
        await storage.states((i % 3,))
        space = asyncio.Event()
        storage.on_space[:] = [space.set]
        future = add(storage, Batch(i % 3, i, payload=PAYLOAD))
        assert storage.full
        await future
        if storage.full:
            await space.wait()
        assert not storage.full
    await storage.close()


class Received:
    """Memory that entries were received into, which counts as long as a memtable keeps a slice of it."""

    def __init__(self, storage: LedgerStorage) -> None:
        self.chunks = BookieChunks(storage.memory, free_max=2, bytes_min=1000, bytes_max=50_000, room_bytes_min=1000)

    def batch(self, storage: LedgerStorage, batch: Batch) -> asyncio.Future[None]:
        """Add the batch out of a piece of memory of which it is a small part."""
        body = records(batch.ledger_id, [batch.first], batch.payload)
        chunk = self.chunks.take(50_000)
        chunk[: len(body)] = body
        columns = AddColumns(0, [batch.ledger_id], [batch.first], [1], 1, [len(body)])
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        storage.add(columns, pack(list(columns)), memoryview(chunk)[: len(body)], lambda: done.set_result(None))
        return done


async def test_small_entries_that_keep_much_memory_are_flushed_before_it_is_used_up() -> None:
    host = Host(settings=bookie_settings(memory_bytes_max=1_000_000, answers_bytes_max=200_000))
    storage = await host.boot()
    await known(storage)
    storage.memory.part("answers", set_aside=host.settings.answers_bytes_max)
    received = Received(storage)
    space: list[bool] = []
    storage.on_space.append(lambda: space.append(storage.full))
    highest = 0
    for i in range(1, 200):
        await received.batch(storage, Batch(1, i, payload=b"x" * 100))
        highest = max(highest, storage.memory.used)
        assert storage.memory_bytes < host.settings.memtable_bytes_max / 2, "its own bytes are few"
        while storage.full:  # as a connection does
            await asyncio.sleep(0)
        storage.memory.check_invariants()
        received.chunks.check_invariants()
    assert highest <= 1_000_000
    assert len(space) > 5
    assert host.reports.checkpoints > 5
    assert set((await read_all(storage, 1, 0, 299))[0]) == set(range(200))
    await storage.close()


async def test_a_budget_that_others_have_used_up_lets_entries_in_one_by_one() -> None:
    host = Host(settings=bookie_settings(memory_bytes_max=100_000, answers_bytes_max=1))
    storage = await host.boot()
    await known(storage)
    storage.memory.part("others").set(1 << 40)  # and they never let go of it
    for i in range(1, 20):
        await add(storage, Batch(1, i, payload=PAYLOAD))
        await turns()
        assert not storage.full  # flushed, and written: nothing is gained by waiting
        assert storage.memory_bytes == 0
    assert len(storage.shards[0].cache) == 0
    assert set((await read_all(storage, 1, 0, 299))[0]) == set(range(20))
    assert len(storage.shards[0].cache) == 0  # reads go on without it
    await storage.close()


async def test_memory_that_is_used_up_while_a_journal_stalls_is_made_room_in_when_it_goes_on() -> None:
    host = Host(settings=bookie_settings(memory_bytes_max=1_000_000, journal_queue_bytes_max=1000))
    storage = await host.boot()
    await known(storage)
    stall = Stall(journal_worker(storage.journals[0]))
    stall.begin()
    future = add(storage, Batch(1, 1, payload=PAYLOAD))
    assert storage.full  # of the journal's queue
    others = storage.memory.part("others")
    others.set(2_000_000)  # and meanwhile of everything
    stall.end()
    await future
    await turns()
    assert not storage.full
    assert storage.memory_bytes == 0  # what was in the memtable was flushed for it
    await storage.close()


async def test_memory_that_others_free_before_the_flush_for_it_begins_ends_the_wait() -> None:
    host = Host(settings=bookie_settings(memory_bytes_max=1_000_000, journal_queue_bytes_max=1000))
    storage = await host.boot()
    await known(storage)
    space: list[bool] = []
    storage.on_space.append(lambda: space.append(storage.full))
    future = add(storage, Batch(1, 1, payload=PAYLOAD))
    assert storage.full  # of the journal's queue
    others = storage.memory.part("others")
    others.set(2_000_000)
    freed_at: list[tuple[bool, bool]] = []

    def free(_: object) -> None:
        freed_at.append((storage.memory.full, storage.full))
        others.set(0)

    future.add_done_callback(free)  # after the journal has asked for a flush, and before that takes its first step
    await future
    await turns()
    assert freed_at == [(True, True)]
    assert storage.memory_bytes > 0, "no flush was needed"
    assert space == [False]
    assert not storage.full
    await storage.close()


async def test_memory_that_a_journal_alone_can_free_is_waited_for_without_a_flush() -> None:
    host = Host(settings=bookie_settings(memory_bytes_max=1_000_000))
    storage = await host.boot()
    await known(storage)
    stall = Stall(journal_worker(storage.journals[0]))
    stall.begin()
    storage.memory.part("others").set(2_000_000)
    future = add(storage, Batch(1, 1, payload=PAYLOAD))
    await turns()
    assert storage.memory_bytes == 0
    assert storage.full
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("flush of")]
    stall.end()
    await future
    await turns()
    assert not storage.full
    await storage.close()


async def test_a_memtable_that_nothing_is_added_to_is_flushed() -> None:
    host = Host(settings=bookie_settings(memtable_rest_bytes_min=5000))
    storage = await host.boot()
    await known(storage)
    await add(storage, Batch(1, 1, payload=b"x"))
    for _ in range(3):
        storage.release_idle()
        await turns()
    assert storage.memory_bytes > 0  # too little to bother
    await add(storage, Batch(1, 2, payload=PAYLOAD))
    assert not storage.release_idle()  # there was something
    await add(storage, Batch(1, 3, payload=PAYLOAD))
    assert not storage.release_idle()
    assert storage.release_idle()
    await turns()
    assert storage.memory_bytes == 0
    assert not storage.release_idle()
    await storage.close()


async def test_what_a_checkpoint_lets_go_of_bit_by_bit_is_freed_before_memory_is_at_rest() -> None:
    host = Host()
    storage = await host.boot()
    await known(storage)
    await add(storage, Batch(1, 1, payload=PAYLOAD))
    shard = storage.shards[0]
    clearing: list[bool] = []
    generation = shard.active
    generation.clear = lambda: clearing.append(storage.release_idle())  # type: ignore[method-assign]
    await storage.checkpoint()
    await turns()
    assert clearing == [True]
    assert not storage.release_idle()
    await storage.close()


async def test_full_memory_on_real_threads(tmp_path: Path) -> None:
    settings = bookie_settings(str(tmp_path), memtable_bytes_max=100_000)
    storage = await open_storage(settings, real_runtime(), instance_id=INSTANCE, expected_cookie=None)
    space = asyncio.Event()
    storage.on_space.append(space.set)
    let_go = threading.Event()
    flush_worker(storage.shards[0]).run(let_go.wait)
    futures = []
    while not storage.full:
        futures.append(add(storage, Batch(1, len(futures), payload=b"x" * 20_000)))
    assert 200_000 <= storage.memory_bytes < 200_000 + 21_000
    await asyncio.gather(*futures)
    assert storage.full
    let_go.set()
    await space.wait()
    assert not storage.full
    await storage.checkpoint()
    assert storage.memory_bytes == 0
    await storage.close()
