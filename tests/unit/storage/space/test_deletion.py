"""Ledgers that are deleted: hidden first, then gone for good and fenced, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import errno
from itertools import pairwise
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples, stride
from tests.hooks import journal_worker, log_reader_of, open_logs
from tests.sim.disk import SimDisk, SimulatedCrash
from tests.sim.store import SimStores
from tests.unit.storage.acknowledged_writes import copy_of
from tests.unit.storage.support import KEY, Batch, Host, Stall, add, check_living_bytes, read_all, reclaim
from tests.unit.storage.support import settings as bookie_settings
from tests.waiting import turns

from bkpy.errors import CorruptDataError, StorageFailedError
from bkpy.storage import open as opening
from bkpy.storage.entry_log.entry_log import Place
from bkpy.storage.index.index import (
    block_key,
    block_rows,
    decode_log,
    encode_log,
    ledger_rows,
    log_key,
    log_rows,
    put_all_in_limbo,
    trash_rows,
)
from bkpy.storage.index.tombstones import (
    add_tombstone,
    decode_tombstone,
    has_tombstone,
    replace_damaged_tombstones,
    tombstone_key,
)
from bkpy.storage.shard import Shard
from bkpy.storage.space.deletion import hide

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bkpy.runtime.interfaces import OrderedStore
    from bkpy.storage.engine import LedgerStorage

OLD, NEW, OTHER = b"first life", b"second life", b"another ledger"


async def put(storage: LedgerStorage, *batches: Batch) -> None:
    await storage.states({batch.ledger_id for batch in batches})
    await add(storage, *batches)


async def delete(storage: LedgerStorage, ledger_id: int) -> None:
    hidden = await hide(storage, ledger_id)
    assert hidden is not None
    assert await hidden.delete()


async def known(storage: LedgerStorage, ledger_id: int) -> bool:
    return (await storage.states((ledger_id,)))[ledger_id] is not None


def in_index(storage: LedgerStorage) -> tuple[set[int], int]:
    """(ledgers with a row, number of block rows) over all directories."""
    ledgers, blocks = set[int](), 0
    for shard in storage.shards:
        with shard.store.read() as txn:
            ledgers.update(ledger_id for ledger_id, _, _ in ledger_rows(txn))
            blocks += len(list(block_rows(txn)))
    return ledgers, blocks


def logs(host: Host) -> list[str]:
    return [name for d in host.settings.ledger_directories for name in host.disk.listdir(d) if name.endswith(".log")]


# --- hiding -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpointed", [False, True])
async def test_what_is_hidden_is_unknown_and_comes_back(checkpointed: bool) -> None:
    storage = await Host().boot()
    await put(storage, Batch(1, 0, 5, payload=OLD), Batch(2, 0))
    if checkpointed:
        await storage.checkpoint()
    hidden = await hide(storage, 1)
    assert hidden is not None
    assert await hide(storage, 1) is None, "one at a time"
    assert await hide(storage, 99) is None
    assert await read_all(storage, 1, 0, 9) == ({}, set(range(10)))
    assert (await storage.last_entry(1)).limbo
    assert await read_all(storage, 2, 0, 0) == ({0: b"data"}, set())
    hidden.unhide()
    assert await read_all(storage, 1, 0, 9) == (dict.fromkeys(range(5), OLD), set())
    assert not (await storage.last_entry(1)).limbo
    storage.check_invariants()


@pytest.mark.parametrize("flushed", [False, True])
async def test_what_arrives_after_the_hiding_is_seen_and_nothing_is_deleted(flushed: bool) -> None:
    """A worker copies the ledger here: what it stored, and what it relied on before, must stay."""
    host = Host()
    storage = await host.boot()
    await put(storage, Batch(1, 0, 5, payload=OLD))
    hidden = await hide(storage, 1)
    assert hidden is not None
    await put(storage, Batch(1, 3, 4, payload=NEW))
    have, unknown = await read_all(storage, 1, 0, 9)
    assert have == dict.fromkeys(range(3, 7), NEW)
    assert unknown >= {0, 1, 2}
    if flushed:
        await storage.checkpoint()
        have, unknown = await read_all(storage, 1, 0, 9)
        assert have.keys() | unknown >= set(range(7))
    assert not await hidden.delete()
    wanted = {i: OLD if i < 3 else NEW for i in range(7)}
    for _ in range(2):
        assert await read_all(storage, 1, 0, 9) == (wanted, set())
        state = (await storage.states((1,)))[1]
        assert state is not None
        assert state.fenced, "or a writer that doesn't know of the deletion would put it off for ever"
        host.disk.power_cut()
        storage = await host.boot()
    await delete(storage, 1)
    assert await read_all(storage, 1, 0, 9) == ({}, set())


async def test_a_fence_or_a_confirmation_puts_the_deletion_off_as_well() -> None:
    storage = await Host().boot()
    await put(storage, Batch(1, 0, 5))
    hidden = await hide(storage, 1)
    assert hidden is not None
    await storage.fence(1, KEY)
    assert not await hidden.delete()
    assert len((await read_all(storage, 1, 0, 9))[0]) == 5


async def test_a_crash_between_hiding_and_deletion_unhides() -> None:
    host = Host()
    storage = await host.boot()
    await put(storage, Batch(1, 0, 5))
    assert await hide(storage, 1) is not None
    host.disk.power_cut()
    assert len((await read_all(await host.boot(), 1, 0, 9))[0]) == 5


# --- deletion ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["run on", "checkpoint", "reclaim", "power cut", "close"])
async def test_a_deleted_ledger_is_gone_and_fenced_for_good(end: str) -> None:
    host = Host(settings=bookie_settings(journals=2, ledgers=2))
    storage = await host.boot()
    await put(storage, Batch(1, 0, 5, payload=OLD), Batch(2, 0, 3, payload=OTHER), Batch(3, 0))
    await storage.checkpoint()
    await put(storage, Batch(1, 5, 5, payload=OLD))
    assert await storage.held_ledgers(-1, 10) == [1, 2, 3]
    await delete(storage, 1)
    for _ in range(2):
        assert await read_all(storage, 1, 0, 20) == ({}, set())
        assert not (await storage.last_entry(1)).known
        assert await storage.held_ledgers(-1, 10) == [2, 3]
        assert not await known(storage, 1)
        assert storage.was_deleted(1)
        assert not await known(storage, 77)
        assert not storage.was_deleted(77)
        assert await read_all(storage, 2, 0, 9) == (dict.fromkeys(range(3), OTHER), set())
        storage.check_invariants()
        check_living_bytes(storage)
        if end == "checkpoint":
            await storage.checkpoint()
        elif end == "reclaim":
            await reclaim(storage)
            assert in_index(storage) == ({2, 3}, 2)
        elif end == "power cut":
            host.disk.power_cut()
            storage = await host.boot()
        elif end == "close":
            await storage.close()
            storage = await host.boot()
    assert not host.reports.damages


@pytest.mark.parametrize("directory", [0, 1])
async def test_a_ledger_that_is_deleted_and_buried_while_ledgers_are_listed_is_not_listed(
    monkeypatch: pytest.MonkeyPatch, directory: int
) -> None:
    """Its row was there when the index was read, and nothing says any more that it was to go."""
    storage = await Host(settings=bookie_settings(ledgers=2)).boot()
    await put(storage, Batch(2, 0), Batch(4, 0), Batch(5, 0))
    await storage.checkpoint()
    held, pending_delete = Shard.held, [4]

    async def read_first(shard: Shard, after: int, limit: int) -> list[int]:
        found = await held(shard, after, limit)
        if shard.number == directory and pending_delete:  # behind the read of its own index, or of the other one
            await delete(storage, pending_delete.pop())
            await storage.checkpoint()
        return found

    monkeypatch.setattr(Shard, "held", read_first)
    assert await storage.held_ledgers(-1, 10) == [2, 5]
    assert in_index(storage)[0] == {2, 5}


async def test_no_mark_passes_a_deletion_that_is_not_in_the_index() -> None:
    host = Host()
    storage = await host.boot()
    await put(storage, Batch(1, 0, 5), Batch(2, 0))
    await storage.checkpoint()
    storage.reclaimers[0].wake = lambda: None  # type: ignore[method-assign]
    await delete(storage, 1)
    await storage.checkpoint()
    host.disk.power_cut()
    storage = await host.boot()
    assert not await known(storage, 1)
    assert storage.was_deleted(1)
    assert await storage.held_ledgers(-1, 10) == [2]


@pytest.mark.scenario(21)
@pytest.mark.parametrize("tombstones_written", [False, True])
async def test_what_recovery_stores_again_is_of_a_second_life_and_fenced(tombstones_written: bool) -> None:
    host = Host(settings=bookie_settings(block_bytes=100, index_step_rows=1))
    storage = await host.boot()
    await put(storage, Batch(1, 0, 50, payload=OLD))
    await storage.checkpoint()
    await delete(storage, 1)
    if tombstones_written:
        await storage.checkpoint()
    await put(storage, Batch(1, 7, 2, payload=NEW))
    for step in range(6):
        assert await read_all(storage, 1, 0, 60) == ({7: NEW, 8: NEW}, set())
        assert await storage.held_ledgers(-1, 10) == [1]
        state = (await storage.states((1,)))[1]
        assert state is not None
        assert (state.fenced, state.key, 1 in storage.fenced) == (True, KEY, True)
        check_living_bytes(storage)
        if step in (0, 3):
            await storage.checkpoint()
        elif step == 1:
            await reclaim(storage)
        else:
            host.disk.power_cut()
            storage = await host.boot()
    await delete(storage, 1)
    assert await read_all(storage, 1, 0, 60) == ({}, set())
    await reclaim(storage)
    assert in_index(storage) == (set(), 0)
    assert not host.reports.damages


async def test_ledgers_of_an_older_number_of_directories_stay_deleted() -> None:
    host = Host(settings=bookie_settings(ledgers=1))
    storage = await host.boot()
    await put(storage, *(Batch(i, 0, 5, payload=OLD) for i in range(6)))
    await storage.close()
    host.settings = bookie_settings(ledgers=3)
    storage = await host.boot()
    for i in range(6):
        await delete(storage, i)
    await put(storage, Batch(4, 9, payload=NEW), Batch(5, 9, payload=NEW))
    await storage.checkpoint_shard(storage.shards[1])  # where 4 lives now, but didn't
    host.disk.power_cut()
    storage = await host.boot()
    for i in range(6):
        assert await read_all(storage, i, 0, 9) == ({9: NEW} if i in (4, 5) else {}, set())
    for i in (4, 5):
        await delete(storage, i)
    await reclaim(storage)
    assert in_index(storage) == (set(), 0)
    for i in range(6):
        assert not await known(storage, i)
        assert storage.was_deleted(i)


async def test_who_asks_for_several_ledgers_learns_of_one_that_is_deleted_meanwhile() -> None:
    """Its state was in memory when the question came, and another's had to be looked up."""
    storage = await Host().boot()
    await put(storage, Batch(1, 0, 5, payload=OLD))
    hidden = await hide(storage, 1)
    assert hidden is not None
    asking = asyncio.ensure_future(storage.states((1, 99)))
    await asyncio.sleep(0)
    assert not asking.done()
    assert await hidden.delete()
    assert await asking == {1: None, 99: None}
    assert storage.was_deleted(1), "a writer that was cut off for long would be let in"
    assert not storage.was_deleted(99)
    assert storage.create(1, KEY).fenced
    assert not storage.create(99, KEY).fenced


async def test_a_deletion_that_is_replayed_leaves_the_fence_of_a_second_life_in_another_directory() -> None:
    """Of the first life a batch is replayed as well, so that the second one's state is in memory by then."""
    host = Host(settings=bookie_settings(ledgers=1))
    storage = await host.boot()
    await put(storage, Batch(3, 0, 5, payload=OLD))
    await storage.close()
    host.settings = bookie_settings(ledgers=2)
    storage = await host.boot()
    await storage.states((3,))
    added = add(storage, Batch(3, 5, payload=OLD))  # not synced yet when it is written to the index
    hidden = await hide(storage, 3)
    await added
    assert hidden is not None
    for reclaimer in storage.reclaimers:
        reclaimer.stop()  # it is not buried before the crash
    await turns()
    assert await hidden.delete()
    await put(storage, Batch(3, 7, payload=NEW))
    await storage.checkpoint_shard(storage.shards[1])  # where it lives now, but didn't
    host.disk.power_cut()
    storage = await host.boot()
    state = (await storage.states((3,)))[3]
    assert state is not None
    assert (state.fenced, 3 in storage.fenced) == (True, True)
    assert await read_all(storage, 3, 0, 9) == ({7: NEW}, set())


@pytest.mark.parametrize("directories", [2, 3])
@pytest.mark.parametrize("fence", [False, True])
async def test_a_deletion_that_one_directory_has_behind_it_is_not_undone_by_another_that_is_late(
    directories: int, fence: bool
) -> None:
    """The replay begins where the latter is, and meets the ledger's records, but not the end of them.

    With three directories one was added meanwhile, and the ledger is in another than one would now look in first.
    """
    host = Host(settings=bookie_settings(ledgers=2))
    storage = await host.boot()
    await put(storage, Batch(2, 0, payload=OTHER), Batch(3, 0, payload=OTHER))
    await storage.close()
    host.settings = bookie_settings(ledgers=directories)
    storage = await host.boot()
    await put(storage, Batch(2, 1, payload=OLD), Batch(3, 1, payload=OTHER), Batch(8, 0, payload=OLD))
    await put(storage, Batch(5, 0, payload=OTHER))
    if fence:
        await storage.fence(2, KEY)
        await storage.fence(8, KEY)
    for ledger_id in (2, 8):
        await delete(storage, ledger_id)
    await reclaim(storage)
    for number in (0, 2)[: directories - 1]:  # where they were and where they would be, but not where 3 and 5 are
        await storage.checkpoint_shard(storage.shards[number])
    host.disk.power_cut()
    storage = await host.boot()
    assert host.reports.replayed_frames
    for ledger_id in (2, 8):
        assert not await known(storage, ledger_id)
        assert storage.create(ledger_id, KEY).fenced
    assert (await read_all(storage, 3, 0, 9))[0] == {0: OTHER, 1: OTHER}
    assert (await read_all(storage, 5, 0, 9))[0] == {0: OTHER}
    await storage.close()


async def test_an_ended_life_leaves_no_row_without_a_key_where_all_is_in_limbo() -> None:
    """A recovery's entries and copies are taken for a ledger that was never seen, but not for one without a key."""
    host = Host(settings=bookie_settings(ledgers=2))
    storage = await host.boot()
    await put(storage, Batch(2, 0, payload=OLD), Batch(3, 0, payload=OTHER))
    await storage.close()
    storage = await host.boot()
    await put(storage, Batch(2, 1, payload=OLD), Batch(3, 1, payload=OTHER))
    await delete(storage, 2)
    await reclaim(storage)
    await storage.checkpoint_shard(storage.shards[0])
    for shard in storage.shards:  # as when the directories join a restored cluster
        put_all_in_limbo(shard.store, shard.row)
    host.disk.power_cut()
    storage = await host.boot()
    assert host.reports.replayed_frames
    assert storage.untrusted
    assert not await known(storage, 2)
    assert (await read_all(storage, 2, 0, 9)) == ({}, set(range(10)))
    state = storage.create(2, KEY)
    assert (state.key, state.limbo, state.fenced) == (KEY, True, True)
    await add(storage, Batch(2, 1, payload=NEW))
    assert (await read_all(storage, 2, 0, 1)) == ({1: NEW}, {0})
    assert (await read_all(storage, 3, 0, 1))[0] == {0: OTHER, 1: OTHER}
    await storage.close()


@pytest.mark.parametrize("again", [False, True])
async def test_what_the_journal_has_of_a_ledger_that_is_buried_makes_no_ledger_without_a_key(again: bool) -> None:
    """The burial was durable before the record of the deletion was; a batch that wasn't synced at the checkpoint is
    behind the mark."""
    host = Host()
    storage = await host.boot()
    await put(storage, Batch(1, 0, 5, payload=OLD), Batch(2, 0, payload=OTHER))
    await storage.checkpoint()
    journal = Stall(journal_worker(storage.journals[0]))
    journal.begin()
    await storage.states((1, 2))
    added = add(storage, Batch(1, 5, payload=OLD), Batch(2, 1, payload=OTHER))
    await storage.checkpoint()
    journal.end()
    await added
    hidden = await hide(storage, 1)
    assert hidden is not None
    journal.begin()
    deleting = asyncio.ensure_future(hidden.delete())
    await turns()
    assert not deleting.done()
    await storage.shards[0].write_tombstones()
    if again:  # a recovery stores it once more
        await storage.states((1,))
        journal.end()
        await deleting
        await add(storage, Batch(1, 7, payload=NEW))
    host.disk.power_cut()
    deleting.cancel()
    storage = await host.boot()
    state = (await storage.states((1,)))[1]
    if again:
        assert state is not None
        assert (state.key, state.fenced) == (KEY, True)
        assert await read_all(storage, 1, 0, 9) == ({7: NEW}, set())
    else:
        assert state is None, f"known with the key {state.key!r}"
        assert storage.was_deleted(1)
    assert await read_all(storage, 2, 0, 1) == ({0: OTHER, 1: OTHER}, set())
    await put(storage, Batch(1, 8, payload=NEW))
    await storage.checkpoint()
    assert (await read_all(storage, 1, 8, 9)) == ({8: NEW}, set())
    storage.check_invariants()


async def test_a_read_that_a_deletion_overtakes_denies_nothing() -> None:
    host = Host(settings=bookie_settings(block_bytes=100))
    storage = await host.boot()
    await put(storage, Batch(1, 0, 50, payload=OLD))
    await storage.close()
    outcomes = set()
    for turns_between in range(12):
        other = await copy_of(host).boot()
        reading = asyncio.ensure_future(other.read(1, 0, 49, 1 << 20))
        await turns(turns_between)
        await delete(other, 1)
        await reclaim(other)
        result = await reading
        outcomes.add((len(result.segments) > 0, bool(result.unknown)))
        other.check_invariants()
        await other.checkpoint()
        await other.close()
    assert outcomes <= {(True, False), (False, True)}
    assert not host.reports.damages


async def test_a_ledger_with_many_rows_leaves_in_short_steps() -> None:
    host = Host(settings=bookie_settings(block_bytes=1, block_run_bytes=1, index_step_rows=10))
    storage = await host.boot()
    await put(storage, *(Batch(1, 2 * i, 1) for i in range(300)), Batch(2, 0))
    await storage.checkpoint()
    assert in_index(storage) == ({1, 2}, 301)
    await delete(storage, 1)
    commits: list[int] = []
    host.disk.observer = lambda operation, path: commits.append(in_index(storage)[1])
    await reclaim(storage)
    assert all(before - after <= 10 for before, after in pairwise(commits))
    assert in_index(storage) == ({2}, 1)


async def test_a_start_goes_on_with_what_is_left_of_deleted_ledgers() -> None:
    host = Host(settings=bookie_settings(block_bytes=1, index_step_rows=3))
    storage = await host.boot()
    await put(storage, *(Batch(1, 2 * i, 1) for i in range(20)))
    await storage.checkpoint()
    await delete(storage, 1)
    await storage.shards[0].write_tombstones()
    await storage.shards[0].purge({1})
    host.disk.power_cut()
    storage = await host.boot()
    assert storage.shards[0].deleted.trash == {1}
    assert not await known(storage, 1)
    await reclaim(storage)
    assert in_index(storage) == (set(), 0)


# --- space ------------------------------------------------------------------------------------------------------------


async def test_logs_in_which_nothing_lives_are_removed() -> None:
    host = Host(settings=bookie_settings(entry_log_max_size_mb=1, block_bytes=100_000, journal_as_entry_log=False))
    storage = await host.boot()
    payload = b"x" * 100_000
    for ledger_id in range(4):
        await put(storage, *(Batch(ledger_id, i, payload=payload) for i in range(12)))
        await storage.checkpoint()
    before = len(logs(host))
    assert before >= 4
    for ledger_id in range(3):
        await delete(storage, ledger_id)
    await reclaim(storage)
    assert len(logs(host)) <= before - 3
    assert sum(host.reports.removed) >= 3 << 20
    assert storage.space.living <= storage.space.bytes
    assert await read_all(storage, 3, 0, 11) == (dict.fromkeys(range(12), payload), set())
    check_living_bytes(storage)


async def test_what_lives_in_logs_of_an_unclean_stop_is_counted() -> None:
    host = Host(settings=bookie_settings(block_bytes=4096, index_step_rows=2))
    storage = await host.boot()
    for ledger_id in range(4):
        await put(storage, *(Batch(ledger_id, i, payload=b"x" * 4000) for i in range(5)))
        await storage.checkpoint()
    host.disk.power_cut()
    storage = await host.boot()
    counting = asyncio.ensure_future(reclaim(storage))
    await turns(5)
    await put(storage, Batch(1, 0, 3), Batch(2, 0, 5))  # what lives changes meanwhile
    await storage.checkpoint()
    await delete(storage, 3)
    await storage.checkpoint()
    await counting
    await reclaim(storage)
    check_living_bytes(storage)
    assert 0 < storage.space.living < storage.space.bytes
    for ledger_id in range(4):
        if ledger_id != 3:
            await delete(storage, ledger_id)
    await storage.close()
    storage = await host.boot()
    await reclaim(storage)
    assert logs(host) == []


async def test_a_log_that_is_not_counted_yet_is_not_dead() -> None:
    """A bookie that is stopped counts no more, and removes only what it knows to be dead."""
    host = Host(settings=bookie_settings(block_bytes=4096))
    storage = await host.boot()
    await put(storage, *(Batch(1, i, payload=b"x" * 4000) for i in range(5)))
    await storage.checkpoint()
    host.disk.power_cut()
    storage = await host.boot()
    before = logs(host)
    assert before
    storage.reclaimers[0].stop()
    await reclaim(storage)
    assert logs(host) == before
    await storage.close()
    storage = await host.boot()
    assert len((await read_all(storage, 1, 0, 9))[0]) == 5


async def test_a_log_that_was_removed_is_not_held_open() -> None:
    """Its space would not be given back before the bookie's end."""
    host = Host(settings=bookie_settings(block_bytes=4096))
    storage = await host.boot()
    await put(storage, *(Batch(i, 0, payload=b"x" * 4000) for i in (1, 2)))
    await storage.close()
    storage = await host.boot()
    await put(storage, Batch(3, 0, payload=b"x" * 4000))
    await storage.checkpoint()
    for ledger_id in (1, 2, 3):
        assert len((await read_all(storage, ledger_id, 0, 0))[0]) == 1
    assert open_logs(storage.shards[0]) == 2
    for ledger_id in (1, 2):
        await delete(storage, ledger_id)
    await reclaim(storage)
    assert len(logs(host)) == 1
    assert open_logs(storage.shards[0]) == 1


async def test_a_read_while_a_log_is_removed_does_not_hold_it_open() -> None:
    host = Host(settings=bookie_settings(block_bytes=4096))
    storage = await host.boot()
    await put(storage, Batch(1, 0, payload=b"x" * 4000))
    await storage.close()
    storage = await host.boot()
    await delete(storage, 1)
    shard, unlink = storage.shards[0], host.disk.unlink
    (name,) = logs(host)

    def read_and_unlink(path: str) -> None:
        """By a row that was looked up before the log died."""
        log_reader_of(shard).read(Place(int(name[:-4], 16), 0, 10))
        unlink(path)

    host.disk.unlink = read_and_unlink  # type: ignore[method-assign]
    await reclaim(storage)
    assert logs(host) == []
    assert open_logs(shard) == 0


async def test_yesterdays_rows_of_logs_are_counted() -> None:
    host = Host(settings=bookie_settings(block_bytes=4096))
    storage = await host.boot()
    await put(storage, *(Batch(1, i, payload=b"x" * 4000) for i in range(5)))
    await storage.close()
    store = SimStores(host.disk).open("/b/ledgers0/index")
    with store.write() as txn:
        ((key, value),) = list(txn.scan(b"g", b"h"))
        txn.put(key, old_log_row(key, value))
    store.close()
    storage = await host.boot()
    await reclaim(storage)
    check_living_bytes(storage)
    assert storage.space.living > 5 * 4000


@pytest.mark.parametrize("before", ["a start", "a round"])
async def test_no_log_goes_on_the_word_of_an_index_that_lost_its_rows(before: str) -> None:
    """As LMDB shows it by a lock file of another time: all rows are there, and none is to be seen."""
    host = Host(settings=bookie_settings(block_bytes=4096))
    storage = await host.boot()
    await put(storage, *(Batch(i, 0, 5, payload=b"x" * 1000) for i in range(1, 6)))
    await storage.close()
    data = host.disk.inode("/b/ledgers0/index/data.mdb")
    rows = data.rows
    if before == "a start":

        def lose_all(store: OrderedStore, *_: object) -> OrderedStore:
            data.rows = type(rows)()
            return store

        with patch.object(opening, "worth_shrinking", lambda *_: True), patch.object(opening, "shrink", lose_all):
            storage = await host.boot()
    else:
        storage = await host.boot()
        with storage.shards[0].store.write() as txn:
            for key, value in list(txn.scan(b"b", b"m")):
                if key.startswith(b"g"):
                    txn.put(key, encode_log(int.from_bytes(key[1:], "big"), decode_log(key, value)._replace(living=0)))
                else:
                    txn.delete(key)
    files = logs(host)
    assert files
    for _ in range(3):
        await reclaim(storage)
    assert logs(host) == files
    assert len([what for what, _ in host.reports.damages if "no entry log is removed" in what]) == 1
    storage.release()
    host.disk.crash()
    data.rows = rows
    storage = await host.boot()
    for i in range(1, 6):
        assert (await read_all(storage, i, 0, 4))[0].keys() == set(range(5))


async def test_a_damaged_row_of_a_log_that_is_gone_holds_up_nothing() -> None:
    host = Host(settings=bookie_settings(block_bytes=4096))
    storage = await host.boot()
    await put(storage, Batch(1, 0, payload=b"x" * 4000), Batch(2, 0))
    await storage.close()
    store = SimStores(host.disk).open("/b/ledgers0/index")
    with store.write() as txn:
        txn.put(log_key(77), b"no row")
    store.close()
    storage = await host.boot()
    await delete(storage, 1)
    await delete(storage, 2)
    await reclaim(storage)
    assert logs(host) == []
    with storage.shards[0].store.read() as txn:
        assert log_rows(txn) == {}


async def test_a_damaged_row_of_a_log_is_made_anew_with_the_size_of_its_file() -> None:
    host = Host(settings=bookie_settings(block_bytes=4096))
    storage = await host.boot()
    await put(storage, Batch(1, 0, payload=b"x" * 4000), Batch(2, 0))
    await storage.close()
    (log,) = logs(host)
    storage = await host.boot()
    store = storage.shards[0].store
    with store.write() as txn:
        (log_id,) = log_rows(txn)
        txn.put(log_key(log_id), b"no row")
    await reclaim(storage)
    with store.read() as txn:
        row = log_rows(txn)[log_id]
    assert row is not None
    assert row.bytes == len(host.disk.contents(f"/b/ledgers0/{log}"))
    check_living_bytes(storage)


async def test_a_damaged_row_of_a_deleted_ledger_goes_with_the_others_and_its_log_stays() -> None:
    host = Host(settings=bookie_settings(block_bytes=1))
    storage = await host.boot()
    await put(storage, Batch(1, 0), Batch(1, 1), Batch(2, 0))
    await storage.close()
    storage = await host.boot()
    store = storage.shards[0].store
    with store.write() as txn:
        txn.put(block_key(1, 0), b"no row")
    await delete(storage, 1)
    await delete(storage, 2)
    await reclaim(storage)
    assert in_index(storage) == (set(), 0)
    assert logs(host), "nobody knows any more that nothing of it lives"
    assert not storage.failed.done()


def damage_tombstone(host: Host, ledger_id: int) -> None:
    values = host.disk.inode("/b/ledgers0/index/data.mdb").rows.values
    key = tombstone_key(ledger_id)
    values[key] = bytes((values[key][0] ^ 1,)) + values[key][1:]


@pytest.mark.parametrize("clean", [True, False])
async def test_a_damaged_tombstone_refuses_no_start_and_forgets_no_fence(clean: bool) -> None:
    """Nobody knows which ledgers it covers, so new ones are fenced and in limbo, as for any damaged row."""
    host = Host()
    storage = await host.boot()
    for ledger_id in (5, 8):
        await put(storage, Batch(ledger_id, 0))
        await delete(storage, ledger_id)
    await storage.checkpoint()
    await put(storage, Batch(9, 0))  # in the journal alone
    if clean:
        await storage.close()
    else:
        host.disk.power_cut()
    damage_tombstone(host, 5)
    damage_tombstone(host, 8)
    for start in range(2):
        storage = await host.boot()
        assert len(host.reports.damages) == (start == 0)
        assert storage.untrusted
        assert (await read_all(storage, 9, 0, 0))[0].keys() == {0}
        with storage.shards[0].store.read() as txn:
            assert [has_tombstone(txn, i) for i in (4, 5, 8)] == [False, True, True]
        new = 1000 + start
        assert await storage.states((new,)) == {new: None}
        assert (await storage.last_entry(new)).limbo
        info = storage.create(new, KEY)
        assert (info.fenced, info.limbo) == (True, True)
        storage.release()
        host.disk.crash()


async def test_a_ledger_that_waits_for_its_tombstone_has_it_already_to_everybody() -> None:
    storage = await Host().boot()
    await put(storage, Batch(1, 0))
    await storage.checkpoint()
    await delete(storage, 1)
    (shard,) = storage.shards
    assert shard.deleted.pending_delete == {1}
    with shard.store.read() as txn:
        assert not has_tombstone(txn, 1)
    assert shard.has_tombstone_now(1)
    assert await shard.has_tombstone(1)
    assert not shard.has_tombstone_now(2)


async def test_what_is_hidden_is_shown_once() -> None:
    storage = await Host().boot()
    await put(storage, Batch(1, 0), Batch(2, 0))
    hidden = await hide(storage, 1)
    assert hidden is not None
    hidden.unhide()
    hidden.unhide()
    assert (await read_all(storage, 1, 0, 0))[0].keys() == {0}
    storage.check_invariants()
    again = await hide(storage, 1)
    assert again is not None
    assert await again.delete()


def old_log_row(key: bytes, value: bytes) -> bytes:
    """A log's row as it was written before living bytes were."""
    row = decode_log(key, value)
    return encode_log(int.from_bytes(key[1:], "big"), row._replace(living=None))


async def test_without_a_journal_the_deletion_of_an_earlier_life_never_strikes_a_later_one() -> None:
    """The deletion is journaled, and what is stored again is not: a replay must not meet the one behind the other."""
    host = Host(settings=bookie_settings(journal_write_data=False))
    storage = await host.boot()
    await put(storage, Batch(1, 0, payload=OLD), Batch(2, 0))
    hidden = await hide(storage, 1)
    assert hidden is not None
    stall = Stall(journal_worker(storage.journals[0]))
    stall.begin()
    deleting = asyncio.ensure_future(hidden.delete())
    await turns()
    await put(storage, Batch(1, 0, 3, payload=NEW))
    checkpoint = asyncio.ensure_future(storage.checkpoint())
    await turns()
    assert not checkpoint.done()
    stall.end()
    assert await deleting
    await checkpoint
    host.disk.crash()
    storage = await host.boot()
    assert (await read_all(storage, 1, 0, 2))[0] == dict.fromkeys(range(3), NEW)


async def test_without_a_journal_a_ledger_is_hidden_only_once_its_fence_is_durable() -> None:
    storage = await Host(settings=bookie_settings(journal_write_data=False)).boot()
    await put(storage, Batch(1, 0))
    stall = Stall(journal_worker(storage.journals[0]))
    stall.begin()
    fencing = asyncio.ensure_future(storage.fence(1, KEY))
    await turns()
    hiding = asyncio.ensure_future(hide(storage, 1))
    await turns()
    assert not hiding.done()
    stall.end()
    assert await fencing
    hidden = await hiding
    assert hidden is not None
    assert await hidden.delete()


async def test_fences_of_two_lives_are_each_answered_when_their_own_record_is_durable() -> None:
    """The second is under way before the first is durable; one record is in each of the journal's frames."""
    storage = await Host().boot()
    await put(storage, Batch(1, 0))
    stall = Stall(journal_worker(storage.journals[0]))
    stall.begin()
    fences = [asyncio.ensure_future(storage.fence(1, KEY))]
    await turns()
    storage.ledgers.forget(1, storage.shards[0])
    await storage.states((1,))
    storage.create(1, KEY)
    fences.append(asyncio.ensure_future(storage.fence(1, KEY)))
    await turns()
    stall.end()
    stall.begin()  # again once the first frame is on its way
    await turns()
    assert [fence.done() for fence in fences] == [True, False]
    stall.end()
    assert await asyncio.gather(*fences) == [True, True]
    assert not storage.failed.done()
    storage.release()


# --- crashes ----------------------------------------------------------------------------------------------------------


class Deleted:
    """What was deleted, and what lives, as far as anybody was told."""

    def __init__(self) -> None:
        self.lives: dict[int, dict[int, bytes]] = {}
        self.gone: set[int] = set()
        self.going: set[int] = set()

    async def live(self, host: Host) -> None:
        storage = await host.boot()
        for ledger_id in range(4):
            await self.put(storage, ledger_id, 0, OLD)
        await storage.checkpoint()
        await self.put(storage, 4, 0, OLD)
        await self.delete(storage, 0)
        await self.delete(storage, 4)
        await self.put(storage, 0, 20, NEW)  # again, as recovery does
        await storage.checkpoint()
        await self.delete(storage, 1)
        await reclaim(storage)
        await self.delete(storage, 0)
        await self.put(storage, 1, 30, NEW)
        await storage.close()
        if storage.failed.done():  # in the background
            raise StorageFailedError("failed") from storage.failed.exception()

    async def put(self, storage: LedgerStorage, ledger_id: int, first: int, payload: bytes) -> None:
        await storage.states((ledger_id,))
        future = add(storage, Batch(ledger_id, first, 10, payload=payload))
        await asyncio.wait({future, storage.failed}, return_when=asyncio.FIRST_COMPLETED)
        if not future.done():
            raise StorageFailedError("not acknowledged")
        self.lives.setdefault(ledger_id, {}).update(dict.fromkeys(range(first, first + 10), payload))

    async def delete(self, storage: LedgerStorage, ledger_id: int) -> None:
        hidden = await hide(storage, ledger_id)
        assert hidden is not None
        before = self.lives.pop(ledger_id)
        self.going.add(ledger_id)
        try:
            assert await hidden.delete()
        except BaseException:
            self.lives[ledger_id] = before
            raise
        self.going.discard(ledger_id)
        self.gone.add(ledger_id)

    async def check(self, storage: LedgerStorage) -> None:
        for ledger_id in range(5):
            wanted = self.lives.get(ledger_id, {})
            have, unknown = await read_all(storage, ledger_id, 0, 50)
            assert not unknown
            if ledger_id in self.going:
                assert have in ({}, wanted), f"ledger {ledger_id} is there in part"
            else:
                assert have.items() >= wanted.items(), f"ledger {ledger_id} lost entries"
                assert not (ledger_id in self.gone and OLD in have.values()), f"ledger {ledger_id} was revived"
            state = (await storage.states((ledger_id,)))[ledger_id]
            if ledger_id in self.gone:
                assert state.fenced if state is not None else storage.was_deleted(ledger_id)
        await reclaim(storage)
        check_living_bytes(storage)
        storage.check_invariants()


def small_host() -> Host:
    return Host(settings=bookie_settings(journals=2, ledgers=2, block_bytes=200, index_step_rows=2))


async def survive(fault: str, nth: int) -> bool:
    """Whether the fault struck."""
    host, deleted = small_host(), Deleted()
    if fault == "crash":
        host.disk.crash_at(nth)
    else:
        host.disk.fail_at(nth, errno.EIO)
    struck = False
    try:
        await deleted.live(host)
    except (SimulatedCrash, StorageFailedError, OSError):
        struck = True
    host.disk.heal()
    host.disk.rng.seed(nth)
    if nth % 2:
        host.disk.power_cut()
    else:
        host.disk.crash()
    storage = await host.boot()
    await deleted.check(storage)
    await storage.close()
    await deleted.check(await host.boot())
    return struck


@pytest.mark.thorough
@pytest.mark.scenario(46)
@pytest.mark.parametrize("fault", ["crash", pytest.param("EIO", marks=pytest.mark.exhaustive)])
def test_a_fault_at_every_operation_revives_nothing_and_loses_nothing(fault: str) -> None:
    host = small_host()
    asyncio.run(Deleted().live(host))
    for nth in range(1, host.disk.operations + 1, stride()):
        try:
            assert asyncio.run(survive(fault, nth))
        except AssertionError as e:
            raise AssertionError(f"{fault} at operation {nth}") from e


# --- tombstones -------------------------------------------------------------------------------------------------------


def fresh(ids: Iterable[int]) -> OrderedStore:
    disk = SimDisk()
    disk.make_dirs("/d")
    store = SimStores(disk).open("/d/index", create=True)
    with store.write() as txn:
        for ledger_id in ids:
            add_tombstone(txn, ledger_id)
    return store


@given(st.lists(st.integers(0, 40) | st.integers(2**63 - 5, 2**63 - 1)))
@examples(200)
def test_tombstones_are_the_ids_in_as_few_ranges_as_can_be(ids: list[int]) -> None:
    store = fresh(ids)
    edges = [i for i in set(ids) if i - 1 not in ids]
    with store.read() as txn:
        assert {i for i in [*range(42), *range(2**63 - 6, 2**63)] if has_tombstone(txn, i)} == set(ids)
        assert [key for key, _ in txn.scan(b"t", b"u")] == sorted(map(tombstone_key, edges))


def test_a_damaged_range_is_neither_taken_for_none_nor_for_all() -> None:
    store = fresh([3, 4, 5, 20, 30])
    with store.write() as txn:
        txn.put(tombstone_key(20), b"x" * 12)
        add_tombstone(txn, 19)
        add_tombstone(txn, 21)
    with store.read() as txn:
        assert [has_tombstone(txn, i) for i in (2, 3, 5, 6, 18, 19, 30, 31)] == [
            False, True, True, False, False, True, True, False
        ]  # fmt: skip
        for ledger_id in (20, 21, 29):
            with pytest.raises(CorruptDataError, match="is not known"):
                has_tombstone(txn, ledger_id)


def test_what_replaces_damaged_ranges_reaches_to_the_next_sound_one() -> None:
    store = fresh([3, 10, 20, 21, 30, 40, 50])
    with store.write() as txn:
        for first in (3, 10, 40, 50):
            txn.put(tombstone_key(first), b"x" * 12)
    replace_damaged_tombstones(store)
    with store.read() as txn:
        rows = [decode_tombstone(key, value) for key, value in txn.scan(b"t", b"u")]
    assert rows == [(3, 21), (30, 30), (40, 50)]


def test_no_state_of_a_deleted_ledger_is_left_in_memory() -> None:
    async def life() -> None:
        host = Host(settings=bookie_settings(memtable_bytes_max=1 << 20))
        storage = await host.boot()
        for ledger_id in range(0, 200, 2):
            await put(storage, Batch(ledger_id, 0))
            await storage.fence(ledger_id, KEY)
        for ledger_id in range(0, 200, 2):
            await delete(storage, ledger_id)
        await reclaim(storage)
        assert storage.fenced == set()
        assert len(storage.ledgers) == 0
        with storage.shards[0].store.read() as txn:
            assert trash_rows(txn) == []
        assert storage.shards[0].deleted.trash == set()

    asyncio.run(life())
