"""The storage engine on a real file system and a real LMDB, from first start to replay."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.storage.support import INSTANCE, KEY, Batch, Host, Reports, add, found_ids, read_all
from tests.unit.storage.support import settings as bookie_settings
from tests.waiting import eventually

from bkpy.errors import IdentityError, StorageFailedError
from bkpy.protocol.wire.records import RecordCodec
from bkpy.runtime.lmdb_pages import look_through
from bkpy.runtime.system import real_runtime
from bkpy.storage.entry_log.entry_log import log_id_of
from bkpy.storage.open import open_storage

if TYPE_CHECKING:
    from pathlib import Path

    from bkpy.storage.engine import LedgerStorage

DEADLINE_S = 60


class Bookie:
    """A bookie's storage in a directory of the test."""

    def __init__(self, root: Path, **values: Any) -> None:
        self.settings = bookie_settings(str(root), **values)
        self.cookie: bytes | None = None
        self.reports = Reports()

    async def boot(self) -> LedgerStorage:
        self.reports = Reports()
        storage = await open_storage(
            self.settings,
            real_runtime(),
            instance_id=INSTANCE,
            expected_cookie=self.cookie,
            observer=self.reports,
        )
        self.cookie = storage.cookie
        return storage


@pytest.mark.thorough
@pytest.mark.parametrize(("journals", "ledgers"), [(1, 1), (2, 3)])
async def test_what_was_acknowledged_is_there_again(tmp_path: Path, journals: int, ledgers: int) -> None:
    bookie = Bookie(tmp_path, journals=journals, ledgers=ledgers)
    storage = await bookie.boot()
    assert await storage.states(range(3)) == {0: None, 1: None, 2: None}
    assert await storage.read(5, 0, 99, 1000) == ([], 99, [], -1)
    assert await storage.last_entry(5) == (b"", b"", False, False, False)
    for number in range(5):
        await add(storage, *(Batch(ledger_id, number * 10, 10, payload=b"%d" % number) for ledger_id in range(7)))
        if number == 2:
            await storage.checkpoint()
    await storage.fence(3, KEY)
    await storage.fence(100, KEY)
    explicit = RecordCodec(4).explicit_lac(42, 0)
    await storage.set_explicit_lac(4, explicit)
    await storage.set_explicit_lac(4, RecordCodec(4).explicit_lac(41, 0))
    storage.check_invariants()
    for end in ("release", "close", "close"):
        if end == "release":
            storage.release()
        else:
            await storage.close()
        storage = await bookie.boot()
        storage.check_invariants()
        for ledger_id in range(7):
            have, unknown = await read_all(storage, ledger_id, 0, 99, 700)
            assert (have, unknown) == ({i: b"%d" % (i // 10) for i in range(50)}, set())
            last = await storage.last_entry(ledger_id)
            assert found_ids([last.entry]) == [49]
            assert (last.fenced, last.known, last.limbo) == (ledger_id == 3, True, False)
            assert last.explicit_lac == (explicit if ledger_id == 4 else b"")
        assert await storage.last_entry(100) == (b"", b"", True, True, False)
        states = await storage.states((3, 4, 100, 101))
        assert storage.fenced == {3, 100}
        assert [state.key if state else None for state in states.values()] == [KEY, KEY, KEY, None]
        assert bookie.reports.replayed_frames > journals if end == "release" else True
    assert bookie.reports.replayed_frames == journals, "after a clean stop only the frames that say so are read"
    assert not bookie.reports.damages
    await storage.close()


async def test_two_processes_do_not_share_a_directory(tmp_path: Path) -> None:
    bookie = Bookie(tmp_path)
    storage = await bookie.boot()
    with pytest.raises(IdentityError, match="another process"):
        await bookie.boot()
    await storage.close()
    await (await bookie.boot()).close()


async def test_frames_that_arrive_during_a_sync_share_the_next(tmp_path: Path) -> None:
    bookie = Bookie(tmp_path)
    storage = await bookie.boot()
    await add(storage, Batch(1, 0))
    order: list[int] = []
    futures = [add(storage, Batch(1, i)) for i in range(1, 200)]
    for i, future in enumerate(futures):
        future.add_done_callback(lambda _, i=i: order.append(i))
    await asyncio.gather(*futures)
    assert order == list(range(199))
    assert max(bookie.reports.groups) > 50
    await storage.close()


async def test_a_group_is_bounded(tmp_path: Path) -> None:
    bookie = Bookie(tmp_path, journal_group_bytes_max=50_000)
    storage = await bookie.boot()
    await asyncio.gather(*(add(storage, Batch(1, i, payload=b"x" * 9000)) for i in range(30)))
    assert max(bookie.reports.groups) <= 7
    await storage.close()


@pytest.mark.thorough
async def test_journals_and_entry_logs_roll_and_old_journals_go(tmp_path: Path) -> None:
    bookie = Bookie(tmp_path, entry_log_max_size_mb=1, memtable_bytes_max=1 << 20, journal_max_backups=1)
    storage = await bookie.boot()
    body = b"x" * 60_000
    for i in range(100):
        while storage.full:
            space = asyncio.Event()
            storage.on_space[:] = [space.set]
            await asyncio.wait_for(space.wait(), DEADLINE_S)
        await add(storage, Batch(1, i, payload=body))
    await storage.checkpoint()
    journals = [path for path in (tmp_path / "journal0").iterdir() if path.suffix == ".txn"]
    assert len(journals) <= 1 + 1 + 2, "the one in use, one backup, and two to recycle"
    logs = [path for path in (tmp_path / "ledgers0").iterdir() if log_id_of(path.name) is not None]
    assert len(logs) >= 4
    for _ in range(2):
        have, unknown = await read_all(storage, 1, 0, 200)
        assert (have, unknown) == (dict.fromkeys(range(100), body), set())
        storage.check_invariants()
        await storage.close()
        storage = await bookie.boot()
    await storage.close()


async def test_memtables_are_flushed_at_different_fills_between_a_half_and_all() -> None:
    host = Host(settings=bookie_settings(memtable_bytes_max=100_000))
    storage = await host.boot()
    for i in range(500):
        await add(storage, Batch(1, i, payload=b"x" * 3000))
    flushed = host.reports.flushed[1:]  # the first is that of the start, which has nothing to write
    assert len(flushed) > 10
    assert all(50_000 <= size <= 100_000 + 2 * 3300 for size in flushed), flushed
    assert max(flushed) - min(flushed) > 10_000
    await storage.close()


@pytest.mark.thorough
async def test_reads_during_a_checkpoint_see_everything(tmp_path: Path) -> None:
    bookie = Bookie(tmp_path, block_bytes=4096)
    storage = await bookie.boot()
    total = 0
    finished = False

    async def read_on() -> int:
        reads = 0
        while not finished:
            upto = total
            have, unknown = await read_all(storage, 1, 0, upto + 5)
            assert have.keys() >= set(range(upto))
            assert not unknown
            reads += 1
            await asyncio.sleep(0.001)  # a loop that never rests would keep the storage's threads from the interpreter
        return reads

    reader = asyncio.ensure_future(read_on())
    for _ in range(10):
        for _ in range(10):
            await add(storage, Batch(1, total, 20))
            total += 20
        await storage.checkpoint()
    finished = True
    assert await asyncio.wait_for(reader, DEADLINE_S) > 1
    await storage.close()


async def test_a_cancelled_checkpoint_goes_on(tmp_path: Path) -> None:
    bookie = Bookie(tmp_path)
    storage = await bookie.boot()
    await add(storage, Batch(1, 0, 10))
    task = asyncio.ensure_future(storage.checkpoint())
    await asyncio.sleep(0)
    task.cancel()
    await add(storage, Batch(1, 10, 10))
    await storage.checkpoint()
    assert storage.memory_bytes == 0
    assert (await read_all(storage, 1, 0, 99))[0].keys() == set(range(20))
    await storage.close()


async def test_checkpoints_come_by_themselves(tmp_path: Path) -> None:
    bookie = Bookie(tmp_path, checkpoint_interval_s=0.01)
    storage = await bookie.boot()
    await add(storage, Batch(1, 0, 10))
    await eventually(lambda: not storage.memory_bytes, "a checkpoint has all of it")
    await storage.close()


@pytest.mark.thorough
async def test_what_checkpoints_write_to_the_index_is_looked_through_before_the_next_start(tmp_path: Path) -> None:
    bookie = Bookie(tmp_path, checkpoint_interval_s=0.01)
    storage = await bookie.boot()
    index = tmp_path / "ledgers0" / "index"
    for ledger_id in range(3):
        await add(storage, *(Batch(300 * ledger_id + i, 0) for i in range(300)))
        await eventually(lambda: not storage.memory_bytes and is_known(index), "it was looked through")
    await storage.close()


def is_known(index: Path) -> bool:
    """Whether nothing in the index would have to be looked into."""
    return not look_through(str(index)).looked_into


async def test_an_idle_bookie_does_not_write() -> None:
    host = Host()
    storage = await host.boot()
    await add(storage, Batch(1, 0, 10))
    await storage.checkpoint()
    before = host.disk.operations
    for _ in range(5):
        await storage.checkpoint()
    assert host.disk.operations == before


async def test_a_fence_is_effective_at_once_and_waited_for_by_all() -> None:
    host = Host()
    storage = await host.boot()
    await add(storage, Batch(1, 0))
    host.disk.stall()
    waiting = [asyncio.ensure_future(storage.fence(1, KEY)) for _ in range(3)]
    await asyncio.sleep(0)
    assert 1 in storage.fenced
    for _ in range(20):
        await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    host.disk.unstall()
    await asyncio.gather(*waiting)
    host.disk.power_cut()
    storage = await host.boot()
    await storage.states((1,))
    assert storage.fenced == {1}


async def test_states_with_changes_stay_and_fences_stay_known() -> None:
    host = Host(settings=bookie_settings(ledger_states_max=5))
    storage = await host.boot()
    await add(storage, *(Batch(ledger_id, 0) for ledger_id in range(20)))
    await storage.fence(3, KEY)
    await storage.states(range(100, 110))
    assert len(storage.ledgers) == 20, "none of them is written yet"
    storage.check_invariants()
    await storage.checkpoint()
    await storage.states(range(100, 110))
    assert len(storage.ledgers) == 5
    assert storage.fenced == {3}
    storage.ledgers.writable = lambda ledger_ids: ledger_ids & {3}
    for ledger_id in range(200):
        await storage.fence(ledger_id, KEY)
        await storage.checkpoint()
        await storage.states((1000 + ledger_id,))
    assert len(storage.fenced) <= 20, "it doesn't grow for ever"
    assert 3 in storage.fenced, "somebody may write to it without asking"
    for ledger_id in range(200):
        await storage.states((ledger_id,))
        assert ledger_id in storage.fenced
    states = await storage.states(range(20))
    assert all(state is not None and state.key == KEY for state in states.values())
    assert len(states) == 20
    for ledger_id in range(20):
        await storage.states((ledger_id,))
        await add(storage, Batch(ledger_id, 1))
        assert (await read_all(storage, ledger_id, 0, 5))[0].keys() == {0, 1}
    storage.check_invariants()


async def test_a_state_that_is_loaded_while_a_checkpoint_commits_knows_what_it_wrote() -> None:
    """Its row was read before the commit and arrives behind it; what lies past its last entry must not be denied."""
    host = Host(settings=bookie_settings(ledger_states_max=1))
    storage = await host.boot()
    await add(storage, Batch(7, 0, 5), Batch(8, 0))
    await storage.checkpoint()
    await add(storage, Batch(7, 5, 5))
    for other in (9, 8, 9):
        await storage.states((other,))
    assert storage.ledgers.get(7) is None
    shard = storage.shards[0]
    load = shard.load

    async def slow(ledger_ids: Any) -> Any:
        shard.load = load  # type: ignore[method-assign] - only this once
        rows = await load(ledger_ids)
        await storage.checkpoint()
        return rows

    shard.load = slow  # type: ignore[method-assign]
    await storage.states((7,))
    assert (await read_all(storage, 7, 8, 9))[0].keys() == {8, 9}
    storage.check_invariants()


async def test_a_failure_that_is_no_error_of_a_disk_is_named_by_its_class() -> None:
    storage = await Host().boot()
    storage.fail(KeyError(1))
    with pytest.raises(StorageFailedError, match=r"from now on: KeyError\(1\)"):
        await storage.checkpoint()
    storage.release()


async def test_a_refused_second_create_keeps_the_key() -> None:
    host = Host()
    storage = await host.boot()
    await storage.states((1,))
    first = storage.create(1, KEY)
    assert storage.create(1, b"x" * 32) is first
    assert first.key == KEY


async def test_a_long_replay_does_not_need_the_memory_for_all_of_it() -> None:
    host = Host(settings=bookie_settings(memtable_bytes_max=1 << 30))
    storage = await host.boot()
    for i in range(40):
        await add(storage, Batch(i % 3, i, payload=b"x" * 50_000))
    host.disk.power_cut()
    host.settings = bookie_settings(memtable_bytes_max=200_000)
    storage = await host.boot()
    assert host.reports.checkpoints > 5
    for ledger_id in range(3):
        assert (await read_all(storage, ledger_id, 0, 99))[0].keys() == set(range(ledger_id, 40, 3))
