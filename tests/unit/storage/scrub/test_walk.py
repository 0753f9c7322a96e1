"""The scrub's walk: rows that move between its steps are no damage, whatever their checksums add up to."""

from __future__ import annotations

from functools import reduce
from operator import xor
from typing import TYPE_CHECKING

from tests.sim.disk import SimDisk
from tests.sim.store import SimStore, SimStores

from bkpy.storage.entry_log.entry_log import Place
from bkpy.storage.index.ids import Ids
from bkpy.storage.index.index import BlockRow, LedgerRow, checksum_of, encode_block_row, encode_ledger, ledger_key
from bkpy.storage.scrub.walk import START, RowWalk

if TYPE_CHECKING:
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
