"""Ranges over batches and blocks: sound, striped, overlapping, rotten and meaningless ones."""

from __future__ import annotations

import asyncio
import errno
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.sim.disk import SimDisk
from tests.unit.storage.support import KEY, Batch, Host, add, found_ids, payloads, read_all, records
from tests.unit.storage.support import settings as bookie_settings

from bkpy.errors import CorruptDataError
from bkpy.storage.checkpoint.flush import Sizes, contiguous, drafts, joined
from bkpy.storage.entry_log.entry_log import BlockReader, BlockWriter, decode_block, encode_block, log_name
from bkpy.storage.index.ids import SPAN_MAX, Ids
from bkpy.storage.index.index import BlockRow, block_key
from bkpy.storage.memtable.generation import Batch as Stored
from bkpy.storage.memtable.generation import Generation
from bkpy.storage.reads.blocks import verify_block


def stored(ledger_id: int, ids: range, body: bytes | None = None) -> Stored:
    data = records(ledger_id, ids) if body is None else body
    return (ids.start, len(ids), ids.step, data, 0, len(data))


def test_contiguous_batches_are_joined_and_cut_into_blocks() -> None:
    batches = [stored(1, range(i, i + 10)) for i in range(0, 1000, 10)]
    made = list(drafts(1, batches, -1, Sizes(4000)))
    assert [i for draft in made for i in draft.ids.from_rank(0)] == list(range(1000))
    assert all(draft.ids.full and sum(map(len, draft.data)) <= 4000 for draft in made)


def test_batches_with_gaps_share_a_block_and_none_spans_too_much() -> None:
    batches = [stored(1, range(i, i + 2)) for i in (0, 10, 50, SPAN_MAX - 2, SPAN_MAX, 3 * SPAN_MAX)]
    made = list(drafts(1, batches, -1, Sizes(1 << 20)))
    assert [list(draft.ids.from_rank(0)) for draft in made] == [
        [0, 1, 10, 11, 50, 51, SPAN_MAX - 2, SPAN_MAX - 1],
        [SPAN_MAX, SPAN_MAX + 1],
        [3 * SPAN_MAX, 3 * SPAN_MAX + 1],
    ]


def test_a_run_begins_every_few_thousand_bytes() -> None:
    batches = [stored(1, range(i, i + 1)) for i in range(2000)]
    (draft,) = drafts(1, batches, -1, Sizes(1 << 20))
    block = decode_block(b"".join(encode_block(1, draft.ids, draft.runs, draft.data, tag=0)[0]), 1)
    assert block.runs[0] == (0, 0)
    assert all(4096 <= b[1] - a[1] <= 4096 + 36 for a, b in zip(block.runs, block.runs[1:], strict=False))


@examples(200)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5000)), min_size=1, max_size=60),
    block_bytes=st.integers(100, 20_000),
)
def test_batches_without_gaps_make_the_same_pieces_as_any_others(
    sizes: list[tuple[int, int]], block_bytes: int
) -> None:
    first, batches = 7, []
    for count, size in sizes:
        batches.append((first, count, bytes(size)))
        first += count
    quick = contiguous(7, [b[1] for b in batches], [b[2] for b in batches], Sizes(block_bytes))
    plain = joined(iter(batches), Sizes(block_bytes))
    assert [(list(p.ids.from_rank(0)), p.runs, p.data) for p in quick] == [
        (list(p.ids.from_rank(0)), p.runs, p.data) for p in plain
    ]


def test_every_flipped_bit_of_a_block_is_noticed() -> None:
    raw = b"".join(encode_block(1, Ids.from_bits(0, 0b1011), [(0, 0)], [records(1, (0, 1, 3))], tag=0)[0])
    decode_block(raw, 1)
    for bit in range(8 * len(raw)):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << (bit % 8)
        with pytest.raises(CorruptDataError):
            decode_block(bytes(flipped), 1)
    for length in range(len(raw)):
        with pytest.raises(CorruptDataError):
            decode_block(raw[:length], 1)
    with pytest.raises(CorruptDataError):
        decode_block(raw, 2)


GARBAGE = st.sampled_from(("short", "shifted", "noise", "doubled", "rotten"))


def spoil(kind: str, batch: Batch) -> bytes:
    """A body that does not hold what the batch's columns claim."""
    body = batch.body()
    if kind == "short":
        return body[:-1]
    if kind == "shifted":
        return records(batch.ledger_id, [i + 1 for i in batch.ids], batch.payload)
    if kind == "noise":
        return random.Random(batch.first).randbytes(len(body))
    if kind == "doubled":
        return records(batch.ledger_id, [batch.first] * batch.count, batch.payload)
    return body[:-1] + bytes([body[-1] ^ 1])  # walks, but the last record's checksum is wrong


@pytest.mark.thorough
@pytest.mark.scenario(39)
@given(
    st.lists(
        st.tuples(st.integers(0, 60), st.integers(1, 20), st.sampled_from((1, 1, 2, 3)), st.none() | GARBAGE),
        min_size=1,
        max_size=8,
    ),
    st.sets(st.integers(0, 7)),
    st.integers(1, 3000),
    st.sampled_from((1, 1 << 16)),
)
@examples(120)
def test_garbage_is_never_a_negative_and_leaves_what_is_before_it_alone(
    script: list[tuple[int, int, int, str | None]], checkpoints: set[int], bytes_max: int, in_place_from: int
) -> None:
    async def run() -> None:
        host = Host(settings=bookie_settings(block_bytes=2000, journal_run_bytes_min=in_place_from))
        storage = await host.boot()
        sound: dict[int, set[bytes]] = {}
        sent: set[int] = set()
        for number, (first, count, stride, garbage) in enumerate(script):
            batch = Batch(1, first, count, stride, b"%03d" % number)
            await add(storage, batch, bodies=[batch.body() if garbage is None else spoil(garbage, batch)])
            sent.update(batch.ids)
            if garbage is None:
                for entry_id in batch.ids:
                    sound.setdefault(entry_id, set()).add(batch.payload)
            if number in checkpoints:
                await storage.checkpoint()
            at = 0
            denied: set[int] = set()
            while at <= 130:
                result = await storage.read(1, at, 130, bytes_max)
                unknown = {i for low, high in result.unknown for i in range(low, high + 1)}
                try:
                    have = set(found_ids(result.segments))
                except CorruptDataError:
                    have = set(range(at, result.examined_to + 1))  # the receiver sees that it isn't sound: no negative
                denied |= set(range(at, result.examined_to + 1)) - have - unknown
                at = result.examined_to + 1
            # What walks but carries other ids deep inside a run is the sender's own lie; all else is never denied.
            liars = {
                i for f, c, s, g in script[: number + 1] if g in ("shifted", "doubled") for i in range(f, f + c * s, s)
            }
            assert not denied & (sent - liars)
            # Small batches share a run: behind one without meaning, its sound neighbours may be unknown as well.
            spoiled = [f for f, _, _, g in script[: number + 1] if g is not None]
            for entry_id in (i for i in sound if not spoiled or i < min(spoiled)):
                (entry,) = payloads((await storage.read(1, entry_id, entry_id, 1)).segments).items()
                assert entry[0] == entry_id
                assert entry[1] in sound[entry_id]
        storage.release()

    asyncio.run(run())


async def test_a_later_copy_counts_only_if_it_is_sound() -> None:
    for checkpoint in (False, True):
        host = Host()
        storage = await host.boot()
        await add(storage, Batch(1, 0, 10, payload=b"good"))
        if checkpoint:
            await storage.checkpoint()
        bad = Batch(1, 5, 3, payload=b"bad!")
        await add(storage, bad, bodies=[spoil("rotten", bad)])
        for _ in range(2):
            have, unknown = await read_all(storage, 1, 0, 9)
            assert have == {i: b"bad!" if i in (5, 6) else b"good" for i in range(10)}
            assert not unknown
            await storage.checkpoint()
        storage.release()


async def test_a_rotten_block_is_unknown_and_the_others_are_read() -> None:
    host = Host(settings=bookie_settings(block_bytes=1000))
    storage = await host.boot()
    await add(storage, *(Batch(1, i, 5) for i in range(0, 100, 5)))
    await storage.close()
    log = f"{host.settings.ledger_directories[0]}/{log_name(1)}"
    host.disk.flip(log, 64 + 600)
    storage = await host.boot()
    have, unknown = await read_all(storage, 1, 0, 120)
    assert have.keys() | unknown == set(range(100))
    assert unknown == set(range(25))
    assert "checksum" in host.reports.damages[0][0]
    last = await storage.last_entry(1)
    assert (found_ids([last.entry]), last.limbo) == ([99], False)


async def test_a_read_error_is_unknown_and_passes() -> None:
    host = Host()
    storage = await host.boot()
    await add(storage, Batch(1, 0, 5))
    await storage.checkpoint()
    host.disk.fail_at(1, errno.EIO, operation="pread", path=".log")
    assert await read_all(storage, 1, 0, 9) == ({}, {0, 1, 2, 3, 4})
    last = await storage.last_entry(1)
    assert found_ids([last.entry]) == [4]
    assert await read_all(storage, 1, 0, 9) == (dict.fromkeys(range(5), b"data"), set())


async def test_an_unreadable_last_entry_is_no_promise() -> None:
    host = Host()
    storage = await host.boot()
    await add(storage, Batch(1, 0, 5))
    await storage.checkpoint()
    host.disk.fail_at(1, errno.EIO, operation="pread", path=".log", repeat=True)
    last = await storage.last_entry(1)
    assert (last.entry, last.known, last.limbo) == (b"", True, True)


async def test_an_entry_log_that_is_gone_is_unknown() -> None:
    host = Host()
    storage = await host.boot()
    await add(storage, Batch(1, 0, 5))
    await storage.close()
    host.disk.unlink(f"{host.settings.ledger_directories[0]}/{log_name(1)}")
    storage = await host.boot()
    assert await read_all(storage, 1, 0, 9) == ({}, {0, 1, 2, 3, 4})


async def test_of_the_logs_of_one_read_only_the_one_that_is_gone_is_unknown() -> None:
    host = Host(settings=bookie_settings(block_bytes=1))
    for first in (0, 2, 4):
        storage = await host.boot()
        await storage.states((1,))
        await add(storage, *(Batch(1, first + i) for i in range(2)))
        await storage.close()
    host.disk.unlink(f"{host.settings.ledger_directories[0]}/{log_name(2)}")
    storage = await host.boot()
    result = await storage.read(1, 0, 5, 1 << 20)
    assert (found_ids(result.segments), result.unknown, result.examined_to) == ([0, 1, 4, 5], [(2, 2), (3, 3)], 5)
    assert len(host.reports.damages) == 1
    await storage.close()


@pytest.mark.scenario(39)
async def test_one_entry_comes_back_even_if_it_is_larger_than_was_asked_for() -> None:
    for checkpoint in (False, True):
        host = Host()
        storage = await host.boot()
        await add(storage, *(Batch(1, i, payload=b"x" * 5000) for i in range(4)))
        if checkpoint:
            await storage.checkpoint()
        result = await storage.read(1, 1, 3, 10)
        assert found_ids(result.segments) == [1]
        assert result.examined_to == 1
        storage.release()


async def test_whole_batches_are_handed_on_without_a_copy() -> None:
    host = Host()
    storage = await host.boot()
    await add(storage, *(Batch(1, i, 10) for i in range(0, 100, 10)))
    result = await storage.read(1, 0, 99, 1 << 20)
    assert all(isinstance(segment, memoryview) for segment in result.segments)
    frame_body = storage.shards[0].active.frames[0][1]
    assert isinstance(frame_body, memoryview)
    assert result.segments[0].obj is frame_body.obj


async def test_the_last_add_confirmed_is_the_highest_that_was_seen() -> None:
    host = Host()
    storage = await host.boot()
    await add(storage, Batch(1, 0, 5, lac=-1))
    await add(storage, Batch(1, 5, 5, lac=4))
    assert (await storage.read(1, 0, 3, 1000)).lac == 4
    await storage.checkpoint()
    assert (await storage.read(1, 0, 3, 1000)).lac == 4
    await storage.close()
    storage = await host.boot()
    assert (await storage.read(1, 0, 3, 1000)).lac == 4
    assert (await storage.read(1, 50, 60, 1000)).lac == 4


def test_the_bytes_of_a_generation_are_accounted_for() -> None:
    generation = Generation()
    generation.check_invariants()
    assert generation.empty
    assert generation.batches_of(1) is None


async def test_a_damaged_block_row_puts_the_ledger_in_limbo_and_that_lasts() -> None:
    host = Host(settings=bookie_settings(block_bytes=1000))
    storage = await host.boot()
    await add(storage, *(Batch(1, i, 5) for i in range(0, 100, 5)))
    await add(storage, Batch(2, 0, 5))
    await storage.close()
    await corrupt_row(host, b"b" + (1).to_bytes(8, "big") + (25).to_bytes(8, "big"))
    storage = await host.boot()
    for _ in range(2):
        have, unknown = await read_all(storage, 1, 0, 120)
        assert have == dict.fromkeys([*range(25), *range(50, 100)], b"data")
        assert set(range(25, 50)) <= unknown
        assert await read_all(storage, 2, 0, 9) == (dict.fromkeys(range(5), b"data"), set())
        assert (await storage.last_entry(1)).limbo
        await storage.checkpoint()
        await storage.close()
        storage = await host.boot()


async def test_of_a_ledger_in_limbo_what_is_damaged_is_named_beside_the_rest() -> None:
    host = Host(settings=bookie_settings(block_bytes=1000))
    storage = await host.boot()
    await add(storage, *(Batch(1, i, 5) for i in range(0, 100, 5)))
    await storage.close()
    host.disk.flip(f"{host.settings.ledger_directories[0]}/{log_name(1)}", 64 + 600)
    storage = await host.boot()
    info = (await storage.states([1]))[1]
    assert info is not None
    info.limbo = True
    assert (await storage.read(1, 0, 24, 1 << 20)).unknown == [(0, 24), (0, 24)]
    assert (await storage.read(1, 0, 120, 1 << 20)).unknown == [(0, 120), (0, 24)]
    assert (await storage.read(1, 30, 99, 1 << 20)).unknown == []
    assert (await storage.read(1, 30, 120, 1 << 20)).unknown == [(30, 120)]
    await storage.close()
    await corrupt_row(host, b"b" + (1).to_bytes(8, "big") + (25).to_bytes(8, "big"))
    storage = await host.boot()
    assert (await storage.read(1, 30, 49, 1 << 20)).unknown == [(30, 49), (30, 49)]
    await storage.close()


async def test_a_block_row_that_vanished_is_noticed_before_the_first_negative() -> None:
    host = Host(settings=bookie_settings(block_bytes=1000))
    storage = await host.boot()
    await add(storage, *(Batch(1, i, 5) for i in range(0, 100, 5)))
    await storage.close()
    await corrupt_row(host, b"b" + (1).to_bytes(8, "big") + (25).to_bytes(8, "big"), delete=True)
    storage = await host.boot()
    have, unknown = await read_all(storage, 1, 0, 99)
    assert set(range(25, 50)) <= unknown
    assert have.keys() == set(range(100)) - set(range(25, 50))
    assert host.reports.damages


async def test_a_ledger_row_that_vanished_puts_the_whole_directory_in_limbo() -> None:
    host = Host()
    storage = await host.boot()
    await add(storage, Batch(1, 0, 5))
    await add(storage, Batch(2, 0, 5))
    await storage.close()
    await corrupt_row(host, b"l" + (1).to_bytes(8, "big"), delete=True)
    for _ in range(2):
        storage = await host.boot()
        assert storage.untrusted
        assert (await storage.read(1, 0, 9, 1000)).unknown == [(0, 9)]
        assert (await storage.last_entry(1)).limbo
        assert (await storage.last_entry(3)).known, "a ledger never seen isn't denied"
        have, unknown = await read_all(storage, 2, 0, 9)
        assert (have.keys(), unknown) == ({0, 1, 2, 3, 4}, {5, 6, 7, 8, 9})
        assert (await storage.states([2]))[2] is not None
        assert 2 in storage.fenced
        await storage.fence(3, KEY)
        assert (await storage.last_entry(3)).limbo
        await storage.close()


async def corrupt_row(host: Host, key: bytes, delete: bool = False) -> None:
    """Damage one row of the first index behind the storage's back."""
    from tests.sim.store import SimStores

    store = SimStores(host.disk).open(f"{host.settings.ledger_directories[0]}/index")
    with store.write() as txn:
        value = bytearray(txn.get(key) or b"")
        assert value
        if delete:
            txn.delete(key)
        else:
            value[3] ^= 4
            txn.put(key, bytes(value))
    store.close()


async def test_a_row_that_rots_while_the_bookie_runs_puts_its_ledger_in_limbo_when_a_block_comes() -> None:
    host = Host()
    storage = await host.boot()
    await add(storage, Batch(1, 0, 5))
    await storage.checkpoint()
    with storage.shards[0].store.write() as txn:
        value = txn.get(block_key(1, 0))
        assert value is not None
        txn.put(block_key(1, 0), bytes((value[0] ^ 1,)) + value[1:])
    await add(storage, Batch(1, 3, 5, payload=b"later"))
    await storage.checkpoint()
    state = (await storage.states((1,)))[1]
    assert state is not None
    assert state.limbo
    assert ("ledger 1 is in limbo", storage.shards[0].directory) in host.reports.damages
    assert await read_all(storage, 1, 0, 9) == (dict.fromkeys(range(3, 8), b"later"), {0, 1, 2, 8, 9})
    await storage.close()


def test_a_block_that_lacks_ids_of_its_row_is_refused() -> None:
    disk = SimDisk()
    disk.make_dirs("/d")
    log = BlockWriter(disk, "/d", 1, b"u" * 16)
    place = log.append(1, Ids(0, 5, 2), [(0, 0)], [records(1, range(0, 10, 2))])
    log.sync()
    reader = BlockReader(disk, "/d")
    verify_block(reader, 1, BlockRow(Ids(2, 3, 2), place))
    for ids in (Ids(0, 2), Ids(0, 6, 2)):
        with pytest.raises(CorruptDataError, match="other entries than the index says"):
            verify_block(reader, 1, BlockRow(ids, place))
    reader.close()
    log.close()
