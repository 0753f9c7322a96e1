"""The index: exact ids, take-over, checksums and counts, against a dictionary of which block holds which id."""

from __future__ import annotations

import gc
import tracemalloc
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.sim.disk import SimDisk
from tests.sim.store import SimStores
from tests.unit.storage.support import KEY

from bkpy.errors import CorruptDataError
from bkpy.storage.entry_log.entry_log import Place
from bkpy.storage.index import index
from bkpy.storage.index.changes import Changes
from bkpy.storage.index.ids import SPAN_MAX, Ids, decode_bitmap, encode_bitmap
from bkpy.storage.index.index import BlockRow, LedgerRow, ShardRow
from bkpy.storage.index.living import LivingBytes

if TYPE_CHECKING:
    from bkpy.runtime.interfaces import OrderedStore

LEDGER = 7
progressions = st.builds(Ids, st.integers(0, 150), st.integers(1, 25), st.integers(1, 4))
sets = progressions | st.sets(st.integers(0, 200), min_size=1).map(lambda ids: of(ids))


def of(ids: set[int]) -> Ids:
    return Ids.from_bits(0, sum(1 << i for i in ids))


def members(ids: Ids) -> list[int]:
    return list(ids.from_rank(0))


def fresh() -> tuple[OrderedStore, ShardRow]:
    disk = SimDisk()
    disk.make_dirs("/d")
    store = SimStores(disk).open("/d/index", create=True)
    return store, index.initialise(store, b"u" * 16, 1)


def insert(store: OrderedStore, shard: ShardRow, strong: list[BlockRow], weak: list[BlockRow]) -> ShardRow:
    changes = Changes(shard, LivingBytes(), 1)
    with store.read() as txn:
        row = index.get_ledger(txn, LEDGER) or LedgerRow(KEY, False, False)
        changes.ledger(txn, LEDGER, row, strong, weak)
    changes.commit(store)
    return changes.shard


def stored(store: OrderedStore) -> dict[int, int]:
    """Log id by entry id, over all block rows; no id may be in two."""
    found: dict[int, int] = {}
    with store.read() as txn:
        for key, value in index.scan_blocks(txn, LEDGER, 0, 1 << 40):
            row = index.decode_block_row(key, value)
            for entry_id in members(row.ids):
                assert entry_id not in found, f"{entry_id} lives in two blocks"
                found[entry_id] = row.place.log_id
    return found


@pytest.mark.thorough
@given(st.lists(st.tuples(sets, st.booleans()), min_size=1, max_size=12), st.integers(0, 200), st.integers(0, 60))
@examples(300)
def test_a_block_takes_over_exactly_its_ids(blocks: list[tuple[Ids, bool]], first: int, length: int) -> None:
    store, shard = fresh()
    model: dict[int, int] = {}
    for number, (ids, weak) in enumerate(blocks, 1):
        rows = [BlockRow(ids, Place(number, 64, 100))]
        shard = insert(store, shard, [], rows) if weak else insert(store, shard, rows, [])
        for entry_id in members(ids):
            model[entry_id] = model.get(entry_id, number) if weak else number
        assert stored(store) == model
    with store.read() as txn:
        row = index.get_ledger(txn, LEDGER)
        assert row is not None
        assert index.blocks_fit(txn, LEDGER, row)
        assert index.ledgers_fit(txn, shard)
        assert row.last_entry == max(model)
        found, complete_to, damaged = index.find_blocks(txn, LEDGER, row.span_max, first, first + length, 1 << 30)
        assert (complete_to, damaged) == (first + length, False)
        some, limit, _ = index.find_blocks(txn, LEDGER, row.span_max, first, first + length, 150)
    wanted = {i: n for i, n in model.items() if first <= i <= first + length}
    assert {i: b.place.log_id for b in found for i in members(b.ids) if first <= i <= first + length} == wanted
    assert first <= limit <= first + length
    assert {i: b.place.log_id for b in some for i in members(b.ids) if first <= i <= limit} == {
        i: n for i, n in wanted.items() if i <= limit
    }


def test_what_a_block_has_before_the_range_does_not_count() -> None:
    store, shard = fresh()
    insert(store, shard, [BlockRow(of(set(range(i * 100, i * 100 + 100))), Place(i + 1, 64, 1000)) for i in (0, 1)], [])
    with store.read() as txn:
        assert [index.find_blocks(txn, LEDGER, 100, first, 199, 500)[1] for first in (50, 90)] == [99, 199]


def test_a_row_that_lost_its_lowest_id_is_stored_under_the_next() -> None:
    store, shard = fresh()
    shard = insert(store, shard, [BlockRow(of({0, 3, 6}), Place(1, 64, 1))], [])
    shard = insert(store, shard, [BlockRow(of({0}), Place(2, 64, 1))], [])
    with store.read() as txn:
        rows = [index.decode_block_row(*item) for item in index.scan_blocks(txn, LEDGER, 0, 10)]
    assert [(members(row.ids), row.place.log_id) for row in rows] == [([0], 2), ([3, 6], 1)]


@given(sets, st.integers(0, 220), st.integers(0, 220))
def test_sets_of_ids(ids: Ids, a: int, b: int) -> None:
    everything = members(ids)
    assert everything == sorted(set(everything))
    assert (ids.first, ids.last, ids.count) == (everything[0], everything[-1], len(everything))
    assert ids.full == (everything == list(range(everything[0], everything[-1] + 1)))
    assert ids.rank(a) == sum(i < a for i in everything)
    assert ids.bits(a, b) == sum(1 << (i - a) for i in everything if a <= i <= b)
    assert list(ids.from_rank(len(everything) // 2)) == everything[len(everything) // 2 :]
    again = decode_bitmap(ids.first, ids.last - ids.first + 1, encode_bitmap(ids))
    assert members(again) == everything


@pytest.mark.parametrize(
    ("span", "stored_bitmap"),
    [(0, b""), (SPAN_MAX + 1, b""), (8, b"not zlib"), (9, encode_bitmap(of({0, 7}))), (8, encode_bitmap(of({0, 8})))],
)
def test_a_bitmap_that_does_not_fit_is_refused(span: int, stored_bitmap: bytes) -> None:
    with pytest.raises(CorruptDataError):
        decode_bitmap(0, span, stored_bitmap)


def test_every_flipped_bit_of_a_row_is_noticed() -> None:
    key, value = index.encode_block_row(LEDGER, BlockRow(of({1, 2, 5}), Place(3, 64, 99)))
    ledger_key, ledger_value = index.ledger_key(LEDGER), index.encode_ledger(LEDGER, LedgerRow(KEY, True, False, b"x"))
    shard = index.encode_shard(ShardRow(b"u" * 16, False, 1, 0, 0, (index.START,)))
    decoders = (
        (value, lambda v: index.decode_block_row(key, v)),
        (ledger_value, lambda v: index.decode_ledger(ledger_key, v)),
        (shard, index.decode_shard),
    )
    for whole, decode in decoders:
        decode(whole)
        for bit in range(8 * len(whole)):
            flipped = bytearray(whole)
            flipped[bit // 8] ^= 1 << (bit % 8)
            with pytest.raises(CorruptDataError):
                decode(bytes(flipped))
        for length in range(len(whole)):
            with pytest.raises(CorruptDataError):
                decode(whole[:length])
    with pytest.raises(CorruptDataError):
        index.decode_block_row(index.block_key(LEDGER, 2), value)  # the value of another key


@pytest.mark.parametrize("lost", ["block", "ledger"])
def test_a_row_that_vanished_is_missed(lost: str) -> None:
    store, shard = fresh()
    shard = insert(store, shard, [BlockRow(Ids(0, 5), Place(1, 64, 1)), BlockRow(Ids(5, 5), Place(1, 99, 1))], [])
    with store.write() as txn:
        assert txn.delete(index.block_key(LEDGER, 5) if lost == "block" else index.ledger_key(LEDGER))
    with store.read() as txn:
        row = index.get_ledger(txn, LEDGER)
        if lost == "block":
            assert row is not None
            assert index.ledgers_fit(txn, shard)
            assert not index.blocks_fit(txn, LEDGER, row)
        else:
            assert not index.ledgers_fit(txn, shard)


def resealed(key: bytes, value: bytes, at: int, byte: int, *, more: bytes = b"") -> bytes:
    """The row's value with another byte, whose checksum is right again."""
    content = bytearray(index.unseal(key, value))
    content[at] = byte
    return index.seal(key, bytes(content) + more)


def test_rows_of_another_version_or_length_are_refused_though_their_checksums_are_right() -> None:
    key, ledger = index.ledger_key(LEDGER), index.encode_ledger(LEDGER, LedgerRow(KEY, True, False))
    shard = index.encode_shard(ShardRow(b"u" * 16, False, 1, 0, 0, (index.START,)))
    in_doubt = index.encode_shard(ShardRow(b"u" * 16, False, 1, 0, 0, (index.START,), limbo_to=7))
    short = index.seal(index.SHARD_KEY, index.unseal(index.SHARD_KEY, in_doubt)[:-1])
    with pytest.raises(CorruptDataError, match="version 9"):
        index.decode_ledger(key, resealed(key, ledger, 0, 9))
    with pytest.raises(CorruptDataError, match="wrong length"):
        index.decode_ledger(key, resealed(key, ledger, 0, index.VERSION, more=b"!"))
    with pytest.raises(CorruptDataError, match="version 9"):
        index.decode_shard(resealed(index.SHARD_KEY, shard, 0, 9))
    for wrong in (resealed(index.SHARD_KEY, shard, 0, index.VERSION, more=b"!"), short):
        with pytest.raises(CorruptDataError, match="wrong length"):
            index.decode_shard(wrong)


def spoil(store: OrderedStore, key: bytes) -> None:
    with store.write() as txn:
        value = txn.get(key)
        assert value is not None
        txn.put(key, bytes((value[0] ^ 1,)) + value[1:])


def two_blocks() -> tuple[OrderedStore, ShardRow]:
    store, shard = fresh()
    rows = [BlockRow(Ids(0, 5), Place(1, 64, 100)), BlockRow(Ids(5, 5), Place(2, 64, 100))]
    return store, insert(store, shard, rows, [])


def test_a_damaged_row_in_the_way_of_a_block_puts_the_ledger_in_limbo_and_stays() -> None:
    store, shard = two_blocks()
    spoil(store, index.block_key(LEDGER, 5))
    shard = insert(store, shard, [BlockRow(Ids(3, 4), Place(3, 64, 100))], [])
    with store.read() as txn:
        row = index.get_ledger(txn, LEDGER)
        assert row is not None
        assert row.limbo
        assert not index.blocks_fit(txn, LEDGER, row)
        assert index.find_blocks(txn, LEDGER, row.span_max, 0, 9, 1 << 30)[2]
        found = [index.decode_block_row(*item) for item in index.scan_blocks(txn, LEDGER, 0, 4)]
    assert [(members(row.ids), row.place.log_id) for row in found] == [([0, 1, 2], 1), ([3, 4, 5, 6], 3)]


def test_a_weak_block_claims_nothing_where_a_damaged_row_may_have_it() -> None:
    store, shard = two_blocks()
    spoil(store, index.block_key(LEDGER, 5))
    insert(store, shard, [], [BlockRow(Ids(8, 4), Place(3, 64, 100))])
    with store.read() as txn:
        assert [key for key, _ in index.scan_blocks(txn, LEDGER, 6, 100)] == []


def test_blocks_do_not_fit_with_a_damaged_row_whatever_its_checksum_says() -> None:
    store, _ = two_blocks()
    spoil(store, index.block_key(LEDGER, 0))  # the checksum at its end stays as the ledger's row has it
    with store.read() as txn:
        row = index.get_ledger(txn, LEDGER)
        assert row is not None
        assert not index.blocks_fit(txn, LEDGER, row)


def test_an_index_without_a_sound_row_of_its_own_is_not_whole() -> None:
    store, shard = two_blocks()
    with store.read() as txn:
        assert index.is_whole(txn, shard.uuid)
        assert not index.is_whole(txn, b"v" * 16)
    spoil(store, index.SHARD_KEY)
    with store.read() as txn:
        assert not index.is_whole(txn, shard.uuid)
    with store.write() as txn:
        txn.delete(index.SHARD_KEY)
    with store.read() as txn:
        assert not index.is_whole(txn, shard.uuid)


def test_living_bytes_are_counted_past_a_damaged_row() -> None:
    store, shard = fresh()
    rows = [BlockRow(Ids(0, 5), Place(1, 64, 100)), BlockRow(Ids(5, 5), Place(2, 64, 70))]
    living = LivingBytes()
    insert(store, shard, [*rows, BlockRow(Ids(10, 5), Place(1, 164, 30))], [])
    with store.write() as txn:
        for log_id in (1, 2):
            living.reset(txn, log_id, index.LogRow(1000, 0, False))
    spoil(store, index.block_key(LEDGER, 0))
    assert list(living.count(store, 1, lambda _: 0)) == [True] * 3
    with store.read() as txn:
        assert {i: row and row.living for i, row in index.log_rows(txn).items()} == {1: 30, 2: 70}


def test_a_damaged_row_of_a_log_is_left_to_the_next_count_which_asks_for_the_size() -> None:
    store, _ = two_blocks()
    living = LivingBytes()
    with store.write() as txn:
        for log_id in (1, 2):
            txn.put(index.log_key(log_id), index.encode_log(log_id, index.LogRow(1000, 1, True, 100)))
    spoil(store, index.log_key(1))
    with store.write() as txn:
        living.change(txn, {1: 50, 2: 50})
    living.committed()
    with store.read() as txn:
        assert {i: row and row.living for i, row in index.log_rows(txn).items()} == {1: None, 2: 150}
    list(living.count(store, 10, lambda log_id: 5000 + log_id))
    with store.read() as txn:
        assert index.log_rows(txn)[1] == index.LogRow(5001, 0, False, 100)


def test_limbo_for_all_believes_a_damaged_row_of_a_block_to_be_as_long_as_one_can_be() -> None:
    store, shard = two_blocks()
    spoil(store, index.block_key(LEDGER, 5))
    spoil(store, index.ledger_key(LEDGER))
    index.put_all_in_limbo(store, shard)
    with store.read() as txn:
        row = index.get_ledger(txn, LEDGER)
        assert row is not None
        assert row.last_entry == 5 + SPAN_MAX - 1
        assert row.limbo


def test_limbo_for_all_makes_damaged_rows_anew() -> None:
    store, shard = fresh()
    shard = insert(store, shard, [BlockRow(Ids(0, 5), Place(1, 64, 1)), BlockRow(Ids(5, 5), Place(1, 99, 1))], [])
    with store.write() as txn:
        value = bytearray(txn.get(index.ledger_key(LEDGER)) or b"")
        value[40] ^= 1
        txn.put(index.ledger_key(LEDGER), bytes(value))
    shard = index.put_all_in_limbo(store, shard)
    assert index.load_shard(store) == shard
    with store.read() as txn:
        row = index.get_ledger(txn, LEDGER)
        assert row is not None
        assert (row.key, row.fenced, row.limbo, row.last_entry) == (b"", True, True, 9)
        assert index.blocks_fit(txn, LEDGER, row)
        assert index.ledgers_fit(txn, shard)
    assert shard.unknown_in_limbo


@pytest.mark.thorough
def test_what_waits_for_its_transaction_is_packed() -> None:
    """A checkpoint has the rows of all its ledgers at once, which may be a hundred thousand."""
    store, shard = fresh()
    changes, ledgers = Changes(shard, LivingBytes(), 500), 2000
    row = LedgerRow(KEY, False, False)
    gc.collect()
    tracemalloc.start()
    try:
        for ledger_id in range(ledgers):
            with store.read() as txn:
                changes.ledger(txn, ledger_id, row, [BlockRow(Ids(0, 5), Place(1, 64 + ledger_id, 100))])
        held = tracemalloc.get_traced_memory()[0] / ledgers
    finally:
        tracemalloc.stop()
    assert held < 300
    changes.commit(store)
    with store.read() as txn:
        assert index.ledgers_fit(txn, changes.shard)
        for ledger_id in range(ledgers):
            stored_row = index.get_ledger(txn, ledger_id)
            assert stored_row is not None
            assert (stored_row.last_entry, stored_row.blocks) == (4, 1)
            assert index.blocks_fit(txn, ledger_id, stored_row)
