"""Checkpoints on a simulated disk: nothing is denied while they run, and what they wrote stands without the journal."""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, Any

import pytest
from crc32c import crc32c
from tests.examples import stride
from tests.hooks import LOOK_UP, READ_STEPS, flush_worker
from tests.sim.disk import SimulatedCrash
from tests.sim.platter import Dirty, EntryStatus
from tests.sim.store import SimStores
from tests.unit.storage.support import KEY, Batch, Host, Stall, add, found_ids, payloads, read_all
from tests.unit.storage.support import settings as bookie_settings
from tests.waiting import turns

from bkpy.errors import StorageFailedError
from bkpy.protocol.wire.records import RecordCodec
from bkpy.storage.index.index import block_key, ledger_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.storage.engine import LedgerStorage

MIB = 1 << 20


def dropped(item: Dirty) -> EntryStatus:
    return EntryStatus.DROPPED


async def put(storage: LedgerStorage, *batches: Batch) -> None:
    await storage.states({batch.ledger_id for batch in batches})
    await add(storage, *batches)


def logs(host: Host) -> list[str]:
    directory = host.settings.ledger_directories[0]
    return [f"{directory}/{name}" for name in host.disk.listdir(directory) if name.endswith(".log")]


# --- reading meanwhile ------------------------------------------------------------------------------------------------


async def test_nothing_is_denied_at_any_moment_of_a_checkpoint() -> None:
    storage = await Host(settings=bookie_settings(block_bytes=4096)).boot()
    wanted: dict[int, bytes] = {}

    async def look(expected: dict[int, bytes]) -> None:
        assert await read_all(storage, 1, 0, 399, 3000) == (expected, set())
        assert found_ids([(await storage.last_entry(1)).entry]) == [max(expected)]

    for turn in range(4):
        await put(storage, *[Batch(1, 100 * turn + 10 * i, 10, payload=b"%d" % turn) for i in range(10)])
        await put(storage, Batch(2, turn))
        wanted = wanted | dict.fromkeys(range(100 * turn, 100 * turn + 100), b"%d" % turn)
        checkpoint = asyncio.ensure_future(storage.checkpoint())
        readers = []
        while not checkpoint.done():  # a reader starts at every turn of the loop, and all of them overlap
            readers.append(asyncio.ensure_future(look(wanted)))
            await asyncio.sleep(0)
        assert len(readers) > 3
        await asyncio.gather(checkpoint, *readers)


@pytest.mark.scenario(47)
async def test_what_arrives_during_a_checkpoint_is_readable_and_survives() -> None:
    host = Host()
    storage = await host.boot()
    await put(storage, Batch(1, 0, 5))
    host.disk.stall()
    checkpoint = asyncio.ensure_future(storage.checkpoint())
    for _ in range(10):
        await asyncio.sleep(0)
    late = [add(storage, Batch(1, 5, 5)), add(storage, Batch(2, 0))]
    assert found_ids((await storage.read(1, 5, 9, MIB)).segments) == [5, 6, 7, 8, 9]
    host.disk.unstall()
    await asyncio.gather(checkpoint, *late)
    host.disk.power_cut(dropped)
    storage = await host.boot()
    assert set((await read_all(storage, 1, 0, 9))[0]) == set(range(10))
    assert set((await read_all(storage, 2, 0, 0))[0]) == {0}


@pytest.mark.parametrize("at", READ_STEPS)
async def test_a_checkpoint_in_the_middle_of_a_read_hides_nothing_from_it(at: str) -> None:
    storage = await Host(settings=bookie_settings(block_bytes=1000)).boot()
    await put(storage, Batch(1, 0, 5), Batch(1, 10, 5))
    await storage.checkpoint()
    await put(storage, Batch(1, 5, 5))
    shard = storage.shards[0]
    step = getattr(shard, at)

    async def slow(*arguments: Any, **more: Any) -> Any:
        setattr(shard, at, step)  # only this once
        if at == LOOK_UP:
            found = await step(*arguments, **more)
            await storage.checkpoint()
            return found
        await storage.checkpoint()
        return await step(*arguments, **more)

    setattr(shard, at, slow)
    result = await storage.read(1, 0, 20, MIB)
    assert getattr(shard, at) == step, "it was in the middle"
    assert found_ids(result.segments) == list(range(15))
    assert not result.unknown


async def test_a_read_during_which_its_ledger_could_be_evicted_says_what_it_found_out() -> None:
    host = Host(settings=bookie_settings(ledger_states_max=1))
    storage = await host.boot()
    await put(storage, Batch(1, 0, 5), Batch(2, 0), Batch(3, 0))
    await storage.checkpoint()
    shard = storage.shards[0]
    look_up = getattr(shard, LOOK_UP)

    async def slow(*arguments: Any) -> Any:
        found, blocks = await look_up(*arguments)
        for other in (2, 3, 2, 3):
            await storage.states((other,))
        return found._replace(damaged=True), blocks

    setattr(shard, LOOK_UP, slow)
    result = await storage.read(1, 0, 20, MIB)
    assert (found_ids(result.segments), result.unknown) == (list(range(5)), [(0, 20), (0, 20)])
    storage.check_invariants()
    await storage.checkpoint()
    host.disk.power_cut()
    storage = await host.boot()
    assert (await storage.last_entry(1)).limbo


async def test_what_is_added_while_a_checkpoint_commits_is_not_taken_for_written() -> None:
    host = Host()
    storage = await host.boot()
    await put(storage, Batch(1, 0, 5))
    stall = Stall(flush_worker(storage.shards[0]))
    stall.begin()
    checkpoint = asyncio.ensure_future(storage.checkpoint())
    await turns()
    await put(storage, Batch(1, 5, 5), Batch(2, 0))
    await storage.fence(3, KEY)
    stall.end()
    await checkpoint
    host.disk.power_cut(dropped)
    storage = await host.boot()
    assert set((await read_all(storage, 1, 0, 9))[0]) == set(range(10))
    assert set((await read_all(storage, 2, 0, 0))[0]) == {0}
    assert (await storage.last_entry(3)).fenced


@pytest.mark.parametrize("first", [0, 1])
async def test_a_journal_keeps_what_only_one_of_two_directories_has_written(first: int) -> None:
    host = Host(settings=bookie_settings(ledgers=2, journal_max_backups=0, journal_recycled_files_max=1))
    storage = await host.boot()
    payload = b"x" * 400_000
    for i in range(6):  # three journal files
        await put(storage, Batch(0, i, payload=payload), Batch(1, i, payload=payload))
    await storage.checkpoint_shard(storage.shards[first])
    await turns()
    for i in range(6, 12):  # which would take the files that were let go
        await put(storage, Batch(0, i, payload=payload), Batch(1, i, payload=payload))
    host.disk.power_cut(dropped)
    storage = await host.boot()
    for ledger_id in range(2):
        assert await read_all(storage, ledger_id, 0, 11) == (dict.fromkeys(range(12), payload), set())
    assert not host.reports.damages


@pytest.mark.scenario(39)
@pytest.mark.parametrize("where", ["memory", "index", "both"])
@pytest.mark.parametrize("stride", [1, 3])
async def test_a_read_fits_its_limit_and_says_how_far_it_looked(where: str, stride: int) -> None:
    storage = await Host(settings=bookie_settings(block_bytes=4096)).boot()
    batches = [Batch(1, 10 * stride * i, 10, stride, payload=b"p" * 168) for i in range(20)]  # 200 bytes an entry
    await put(storage, *batches[:10])
    if where != "memory":
        await storage.checkpoint()
    await put(storage, *batches[10:])
    if where == "index":
        await storage.checkpoint()
    end = 200 * stride - 1
    for first in range(0, end, 7):
        expected = [i for i in range(first, end + 1) if i % stride == 0]
        for bytes_max in (1, 199, 200, 401, 1999, 2001, 9000, MIB):
            result = await storage.read(1, first, end, bytes_max)
            ids = found_ids(result.segments)
            assert not result.unknown
            assert ids == expected[: len(ids)]
            assert ids or not expected, "at least one entry"
            assert len(ids) <= 1 or 200 * len(ids) <= bytes_max
            following = expected[len(ids)] if len(ids) < len(expected) else end + 1
            assert max(ids, default=first) <= result.examined_to < following


@pytest.mark.parametrize("stride", [65_535, 65_536, 1 << 24, 1 << 60])
async def test_strides_of_any_width_are_stored(stride: int) -> None:
    host = Host()
    storage = await host.boot()
    await put(storage, Batch(1, 3, 4, stride), Batch(1, 4, 2))
    wanted = sorted([3 + k * stride for k in range(4)] + [4, 5])
    for step in range(3):
        for entry_id in wanted:
            assert found_ids((await storage.read(1, entry_id, entry_id, 1)).segments) == [entry_id]
        have, unknown = await read_all(storage, 1, 0, 70_000)
        assert sorted(have) == [i for i in wanted if i <= 70_000]
        assert not unknown
        assert payloads([(await storage.last_entry(1)).entry]) == {wanted[-1]: b"data"}
        if step == 0:
            await storage.checkpoint()
        else:
            host.disk.power_cut()
            storage = await host.boot()


# --- what a checkpoint leaves -----------------------------------------------------------------------------------------


@pytest.mark.scenario(47)
async def test_a_checkpoint_without_entries_writes_states() -> None:
    host = Host()
    storage = await host.boot()
    await storage.fence(7, KEY)
    await put(storage, Batch(8, 0))
    await storage.set_explicit_lac(8, RecordCodec(8).explicit_lac(0, 4))
    await storage.checkpoint()
    await storage.set_explicit_lac(8, RecordCodec(8).explicit_lac(3, 9))
    await storage.fence(9, KEY)
    await storage.checkpoint()
    host.disk.power_cut()
    storage = await host.boot()
    assert host.reports.replayed_frames == 0, "only the index can know"
    states = await storage.states((7, 8, 9))
    told = {i: (state.fenced, state.key) for i, state in states.items() if state is not None}
    assert told == {7: (True, KEY), 8: (False, KEY), 9: (True, KEY)}
    assert (await storage.last_entry(8)).explicit_lac == RecordCodec(8).explicit_lac(3, 9)
    assert storage.fenced == {7, 9}


async def test_a_clean_stop_leaves_nothing_to_replay() -> None:
    host = Host(settings=bookie_settings(journals=2, ledgers=2))
    storage = await host.boot()
    await put(storage, Batch(1, 0, 5), Batch(2, 0, 5))
    await storage.fence(3, KEY)
    await storage.close()
    await storage.close()
    storage = await host.boot()
    assert host.reports.replayed_frames == 2, "the frames that say so"
    assert [set((await read_all(storage, i, 0, 4))[0]) for i in (1, 2)] == [set(range(5))] * 2
    assert (await storage.last_entry(3)).fenced


async def test_closed_logs_have_a_footer_that_describes_their_blocks() -> None:
    host = Host(settings=bookie_settings(entry_log_max_size_mb=1, block_bytes=100_000, journal_as_entry_log=False))
    storage = await host.boot()
    for i in range(30):
        await put(storage, Batch(1 + i % 2, i, payload=bytes([i]) * 100_000))
    await storage.close()
    assert len(logs(host)) >= 3
    for path in logs(host):
        check_footer(host.disk.contents(path))


def check_footer(data: bytes) -> None:
    offset, blocks, ledgers, checksum, magic = struct.unpack_from("<QIII4s", data, len(data) - 24)
    assert magic == b"bkFT"
    assert checksum == crc32c(data[offset:-8])
    assert len(data) == offset + 40 * blocks + 16 * ledgers + 24
    at, sizes = 64, 0
    for i in range(blocks):
        row = struct.unpack_from("<QQIIQII", data, offset + 40 * i)
        ledger_id, first, span, entries, begin, length, block_checksum = row
        assert begin == at, "no gaps between blocks"
        tag = crc32c(data[24:40] + data[16:24] + struct.pack("<Q", begin)) % 0xFFFF + 1
        assert struct.unpack_from("<4sBBHQQII", data, begin) == (b"bkBL", 1, 0, tag, ledger_id, first, span, entries)
        assert struct.unpack_from("<I", data, begin + 48)[0] == block_checksum
        at, sizes = begin + length, sizes + length
    assert at == offset
    assert sum(struct.unpack_from("<QQ", data, offset + 40 * blocks + 16 * i)[1] for i in range(ledgers)) == sizes


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("end", ["crash", "power cut", "close"])
@pytest.mark.parametrize("known", [False, True])
async def test_a_fence_survives(checkpointed: bool, end: str, known: bool) -> None:
    host = Host(settings=bookie_settings(journals=2, ledgers=2))
    storage = await host.boot()
    if known:
        await put(storage, Batch(5, 0, 3))
    await storage.fence(5, KEY)
    assert 5 in storage.fenced
    if known:
        await put(storage, Batch(5, 3, 1))  # a recovery writes on
    if checkpointed:
        await storage.checkpoint()
    for _ in range(3):
        if end == "close":
            await storage.close()
        elif end == "crash":
            host.disk.crash()
        else:
            host.disk.power_cut(dropped)
        storage = await host.boot()
        state = (await storage.states((5,)))[5]
        assert state is not None
        assert (state.fenced, state.key, 5 in storage.fenced) == (True, KEY, True)
        assert (await storage.last_entry(5)).fenced
    assert len((await read_all(storage, 5, 0, 9))[0]) == (4 if known else 0)


@pytest.mark.thorough
@pytest.mark.parametrize("key", [block_key(1, 4), ledger_key(2)], ids=["block", "ledger"])
def test_no_flipped_byte_of_a_row_denies_anything(key: bytes) -> None:
    host = Host(settings=bookie_settings(block_bytes=4096))

    async def fill() -> None:
        storage = await host.boot()
        await put(storage, *[Batch(1, i, payload=b"p" * 968) for i in range(8)], Batch(2, 0))
        await storage.close()

    async def look(other: Host) -> None:
        storage = await other.boot()
        for ledger_id, ids in ((1, set(range(8))), (2, {0})):
            have, unknown = await read_all(storage, ledger_id, 0, 9)
            assert ids <= have.keys() | unknown
        assert other.reports.damages
        storage.release()

    asyncio.run(fill())
    value = change_row(host, key, bytes)
    for at in range(len(value)):
        other = Host(host.disk.clone(), host.settings, host.cookie, boots=host.boots)
        change_row(other, key, lambda value, at=at: value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :])
        asyncio.run(look(other))


def change_row(host: Host, key: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """Change a row of a stopped bookie's index; returns what it was."""
    store = SimStores(host.disk).open(f"{host.settings.ledger_directories[0]}/index")
    with store.write() as txn:
        value = txn.get(key)
        assert value is not None
        txn.put(key, change(value))
    store.close()
    return value


# --- a directory more -------------------------------------------------------------------------------------------------


async def worn(host: Host) -> None:
    """A bookie with two directories that lost power. Its journals don't begin at the first frame any more."""
    for _ in range(3):
        storage = await host.boot()
        await put(storage, *[Batch(i, 0, 2, payload=b"old") for i in range(6)])
        await storage.checkpoint()
        host.disk.power_cut()
    storage = await host.boot()
    await storage.fence(4, KEY)
    await put(storage, *[Batch(i, 2, 1, payload=b"new") for i in range(6)])
    host.disk.power_cut()


async def check_grown(host: Host) -> LedgerStorage:
    storage = await host.boot()
    for i in range(6):
        assert await read_all(storage, i, 0, 5) == ({0: b"old", 1: b"old", 2: b"new"}, set())
        assert storage.ledgers.shard_of(i) == i % 2, "ledgers stay where they are"
    assert 4 in storage.fenced
    assert not storage.untrusted
    return storage


@pytest.mark.thorough
def test_a_crash_at_every_operation_of_adding_a_directory_to_a_used_bookie() -> None:
    host = Host(settings=bookie_settings(ledgers=2, journal_max_backups=0))
    asyncio.run(worn(host))

    async def crash(nth: int) -> int:
        """Crash at that operation, lose power, and come back; how many operations there were."""
        other = Host(host.disk.clone(), bookie_settings(ledgers=3, journal_max_backups=0), host.cookie, boots=nth)
        before = other.disk.operations
        other.disk.crash_at(nth)
        try:
            await other.boot()
        except (SimulatedCrash, StorageFailedError):
            assert other.disk.dead
        count = other.disk.operations - before
        other.disk.heal()
        other.disk.rng.seed(nth)
        other.disk.power_cut()
        storage = await check_grown(other)
        await put(storage, Batch(8, 0))
        await storage.close()
        storage = await check_grown(other)
        assert await read_all(storage, 8, 0, 1) == ({0: b"data"}, set())
        return count

    nth = 1
    while asyncio.run(crash(nth)) >= nth:
        nth += stride()
    assert nth > 10
