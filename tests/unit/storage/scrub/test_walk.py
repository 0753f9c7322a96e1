"""The scrub's walk: rows that move between its steps are no damage, whatever their checksums add up to."""

from __future__ import annotations

from functools import reduce
from operator import xor

from tests.sim.disk import SimDisk
from tests.sim.store import SimStore, SimStores

from bkpy.storage.entry_log.entry_log import Place
from bkpy.storage.index.ids import Ids
from bkpy.storage.index.index import (
    BlockRow,
    LedgerRow,
    block_key,
    checksum_of,
    encode_block_row,
    encode_ledger,
    ledger_key,
    trash_key,
)
from bkpy.storage.scrub.damages import DamageList
from bkpy.storage.scrub.walk import START, RowWalk, as_it_is_now
from bkpy.storage.tools.check.defects import Defect

LEDGER, ROWS = 7, 4


def rows_in(log_id: int) -> dict[bytes, bytes]:
    """The block rows of the ledger if all of its blocks are in that log."""
    return dict(encode_block_row(LEDGER, BlockRow(Ids(n, 1), Place(log_id, 64 + 100 * n, 100))) for n in range(ROWS))


def store(index: SimStore, rows: dict[bytes, bytes], *, blocks: int = ROWS) -> bytes:
    """Let the index have these rows; returns the ledger's own."""
    checksum = reduce(xor, map(checksum_of, rows.values()))
    ledger = encode_ledger(LEDGER, LedgerRow(b"k", False, False, last_entry=ROWS - 1, blocks=blocks, checksum=checksum))
    with index.write() as txn:
        txn.put(ledger_key(LEDGER), ledger)
        for key, value in rows.items():
            txn.put(key, value)
    return ledger


def walk_with(index: SimStore, moved: dict[bytes, bytes] | None, *, blocks: int = ROWS) -> list[Defect]:
    """What a walk in small steps finds; after the first one the rows are other ones."""
    walk = RowWalk(index, "/b", START, lambda ledger_id: False, rows_max=1, bytes_max=1, doubts_max=10)
    defects: list[Defect] = []
    while True:
        gathered = walk.gather()
        defects += gathered.defects
        if gathered.cursor is None:
            return defects
        if moved is not None:
            store(index, moved, blocks=blocks)
            moved = None


def opened() -> SimStore:
    disk = SimDisk()
    disk.make_dirs("/b")
    return SimStores(disk).open("/b/index", create=True)


def test_rows_that_compaction_moves_together_leave_the_ledgers_row_and_are_no_damage() -> None:
    index = opened()
    before = store(index, rows_in(10))
    # Each checksum changes by the same bits, as only the log's number differs: those of an even number cancel out.
    assert store(opened(), rows_in(11)) == before
    assert walk_with(index, rows_in(11)) == []


def test_rows_that_are_missing_are_damage_though_others_move() -> None:
    index = opened()
    store(index, rows_in(10), blocks=ROWS + 1)
    assert [defect.ledger_id for defect in walk_with(index, rows_in(11), blocks=ROWS + 1)] == [LEDGER]


def test_no_more_doubts_of_one_ledger_are_kept_than_there_is_room_for() -> None:
    index = opened()
    rows = dict(encode_block_row(LEDGER, BlockRow(Ids(n, 5), Place(10, 64 + n, 100))) for n in range(ROWS))
    store(index, rows)  # each shares ids with the ones before
    walk = RowWalk(index, "/b", START, lambda ledger_id: False, rows_max=100, bytes_max=1000, doubts_max=2)
    assert [defect.what for defect in walk.gather().defects] == [
        f"two blocks are said to hold entry {n}" for n in (1, 2)
    ]


def test_a_row_that_ends_before_its_blocks_do_is_told() -> None:
    index = opened()
    store(index, dict([encode_block_row(LEDGER, BlockRow(Ids(0, 9), Place(10, 64, 100)))]), blocks=1)
    (defect,) = walk_with(index, None)
    assert defect.what == f"the ledger's row ends at entry {ROWS - 1}, and a block holds entry 8"
    assert (defect.first, defect.last) == (ROWS, 8)


def test_what_an_index_still_has_of_a_damage() -> None:
    index = opened()
    store(index, rows_in(10))
    block = Defect(f"/b/{10:016x}.log", 164, LEDGER, "rotten", "", 0, 3)
    row = Defect("/b/index", None, LEDGER, "rotten", "", 0, 3)
    others = [
        Defect("/b/index", None, 99, "rotten", "", 0, 3),
        block._replace(offset=165),
        row._replace(ledger_id=None),
        block._replace(last=None),
    ]
    here = block._replace(first=1, last=1)
    assert as_it_is_now(index, [block, row, *others]) == [here, row, *[None] * len(others)]
    with index.write() as txn:
        txn.put(block_key(LEDGER, 1), b"no row")
    assert as_it_is_now(index, [block]) == [None]
    store(index, rows_in(10))
    with index.write() as txn:
        txn.put(block_key(LEDGER, 0), b"no row")
        txn.put(trash_key(8), b"")
    assert as_it_is_now(index, [block]) == [here]
    with index.write() as txn:
        txn.delete(ledger_key(LEDGER))
    assert as_it_is_now(index, [block, row]) == [here, row], "its blocks have rows"
    with index.write() as txn:
        txn.put(trash_key(LEDGER), b"")
    assert as_it_is_now(index, [block, row]) == [None, None], "it was deleted"


def test_damages_that_a_round_has_forgotten_meanwhile_do_not_come_back() -> None:
    one, other = (Defect("/b/1.log", offset, LEDGER, "rotten", "", 0, 3) for offset in (64, 164))
    damages = DamageList((), 0, 10)
    damages.add(one, 1)
    damages.add(other, 2)
    before = list(damages.defects)
    assert damages.end_round(2) == [one]
    assert damages.update(before, [one._replace(last=2), other._replace(last=2)]) == []
    assert list(damages.defects) == [other._replace(last=2)]
    assert damages.update(before, [None, None]) == [other._replace(last=2)]
    assert list(damages.defects) == []
