"""Makes the rows of a new index from the entry logs of one ledger directory.

Invariants: logs are gone through in the order in which they were written, so that of two copies of an entry the later
one counts (S7), if its checksum is right: compaction copies blocks whole, with what was replaced; and journal files
that are kept before all others, in any order: a batch stays there only if none of its ids is stored yet, so that any
other copy is a later one, is in a log and takes the ids over; every ledger that is found is fenced and in limbo; logs
are synced before their blocks are named; blocks that a sound footer names get rows though they can't be read, so that
their entries are unknown and not missing. Everything here blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bkpy.errors import CorruptDataError
from bkpy.protocol.wire.records import RecordCodec
from bkpy.storage.entry_log.entry_log import (
    BLOCK_HEADER_BYTES,
    KEPT,
    Place,
    decode_block,
    decode_block_head,
    decode_block_ids,
    log_id_of,
    log_name,
    readable_footer,
)
from bkpy.storage.entry_log.scan import LogScan
from bkpy.storage.index.changes import Changes
from bkpy.storage.index.ids import SPAN_MAX, Ids
from bkpy.storage.index.index import BlockRow, LedgerRow, LogRow, find_blocks, get_ledger
from bkpy.storage.index.living import LivingBytes
from bkpy.storage.reads.ranges import living_records, of_block, verifies
from bkpy.storage.tools.rebuild.kept_file import KeptFileScan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bkpy.config.bookie import BookieSettings
    from bkpy.runtime.interfaces import File, Files, OrderedStore
    from bkpy.storage.entry_log.entry_log import Footer, FooterBlock
    from bkpy.storage.index.index import ShardRow


class _Pending:
    """Blocks of a ledger that are not in the index yet; disjoint."""

    def __init__(self) -> None:
        self.rows: list[BlockRow] = []
        self.last = -1


class IndexBuilder:
    """Fills the new index of one directory. Call `step` until it returns False.

    `row` is the shard's own row as it was stored last, `damages` are (path, what), `lost` says whether entries may be
    missing because of them. `blocks` and `logs` count what was found, in
    `done_bytes` of logs.
    """

    def __init__(
        self, files: Files, directory: str, store: OrderedStore, row: ShardRow, settings: BookieSettings
    ) -> None:
        self.row = row
        self.damages: list[tuple[str, str]] = []
        self.lost = False
        self.blocks = 0
        self.logs = 0
        self.done_bytes = 0
        self._files = files
        self._directory = directory
        self._store = store
        self._settings = settings
        self._living = LivingBytes()
        self._pending: dict[int, _Pending] = {}
        self._pending_blocks = 0
        self._steps = self._run()

    def step(self) -> bool:
        """Do a little; False when all logs are done."""
        return next(self._steps, False)

    def _run(self) -> Iterator[bool]:
        found = [i for i in map(log_id_of, self._files.listdir(self._directory)) if i is not None]
        for log_id in sorted(found, key=lambda i: (not i & KEPT, i)):
            path = f"{self._directory}/{log_name(log_id)}"
            file = self._files.open(path)
            try:
                # The process before may have died between writing and syncing it, when nothing referred to it.
                file.fdatasync()
                yield from self._log(log_id, path, file)
            finally:
                file.close()
        self._files.sync_dir(self._directory)

    def _log(self, log_id: int, path: str, file: File) -> Iterator[bool]:
        began, size, before = self.done_bytes, file.size(), self.blocks
        footer = None if log_id & KEPT else readable_footer(file)
        if log_id & KEPT:
            found = self._kept(log_id, path, file)
        else:
            found = self._scanned(log_id, path, file) if footer is None else self._listed(log_id, path, file, footer)
        for ledger_id, row, takes_over in found:
            self.blocks += 1
            counting = self._counting(file, ledger_id, row, takes_over=takes_over)
            if counting is not None:
                self._take(ledger_id, counting)
            if self._pending_blocks >= self._settings.rebuild_step_blocks:
                self._commit()
                self.done_bytes = began + row.place.offset
                yield True
        self.logs += 1
        if log_id & KEPT:
            self.row = self.row._replace(keeps=True)
        else:
            self.row = self.row._replace(next_log_id=max(self.row.next_log_id, log_id + 1))
        self._commit(log_id, LogRow(size, self.blocks - before, footer is not None))
        self.done_bytes = began + size
        yield True

    def _scanned(self, log_id: int, path: str, file: File) -> Iterator[tuple[int, BlockRow, bool]]:
        """(ledger, row, whether it may take ids over) of the blocks of a log without a footer."""
        scan = LogScan(file, read_bytes=self._settings.journal_read_bytes)
        for found in scan:
            place = Place(log_id, found.offset, found.length)
            yield found.ledger_id, BlockRow(found.block.ids, place), found.certain
        self.lost = self.lost or scan.lost
        self.damages += [
            (path, f"{damage.length} bytes at offset {damage.offset}: {damage.what}") for damage in scan.damages
        ]

    def _kept(self, log_id: int, path: str, file: File) -> Iterator[tuple[int, BlockRow, bool]]:
        """The same of a journal file, for the batches in it that an index can name.

        Of ids that were found in another one the first copy counts. Some batches were written to a log as well, which
        comes later and takes them over.
        """
        scan = KeptFileScan(file, read_bytes=self._settings.journal_read_bytes)
        for ledger_id, batch, offset, length in scan:
            if batch.entries <= SPAN_MAX:
                place = Place(log_id, offset, length)
                yield ledger_id, BlockRow(Ids(batch.first, batch.entries), place, batch), False
        self.lost = self.lost or bool(scan.damages)
        self.damages += [(path, f"at offset {offset}: {what}") for offset, what in scan.damages]

    def _listed(self, log_id: int, path: str, file: File, footer: Footer) -> Iterator[tuple[int, BlockRow, bool]]:
        """The same of a log with a footer."""
        for listed in footer.blocks():
            if listed.entries == listed.span + 1:
                ids: Ids | None = Ids(listed.first, listed.entries)
            else:  # it has gaps between its ids, which the footer doesn't tell
                ids = self._ids(file, listed)
            if ids is None:
                self.lost = True
                self.damages.append(
                    (path, f"the block at offset {listed.offset} of ledger {listed.ledger_id} doesn't tell its entries")
                )
                continue
            yield listed.ledger_id, BlockRow(ids, Place(log_id, listed.offset, listed.length)), True

    def _ids(self, file: File, listed: FooterBlock) -> Ids | None:
        try:
            head = decode_block_head(file.pread(BLOCK_HEADER_BYTES, listed.offset))
            if head is None or head[:4] != listed[:4] or head.length != listed.length:
                return None
            return decode_block_ids(file.pread(head.table_bytes, listed.offset), head)
        except (CorruptDataError, OSError):
            return None

    def _counting(self, file: File, ledger_id: int, row: BlockRow, *, takes_over: bool) -> BlockRow | None:
        """The row with the ids for which its block counts: ids that were not found before, or that it takes over.

        Those are the ones that are right in it. None if there are none.
        """
        first, last = row.ids.first, row.ids.last
        pending = self._pending.get(ledger_id)
        if pending is not None and first <= pending.last:
            self._commit()  # so that the index alone tells
        with self._store.read() as txn:
            stored = get_ledger(txn, ledger_id)
            if stored is None or first > stored.last_entry:
                return row
            others, _, _ = find_blocks(txn, ledger_id, stored.span_max, first, last, 1 << 62)
        found = 0
        for other in others:
            found |= other.ids.bits(first, last)
        ids = row.ids.bits(first, last)
        if not ids & found:
            return row
        counting = ids & ~found
        if takes_over:
            counting |= _right(file, ledger_id, row)
        return row._replace(ids=Ids.from_bits(first, counting)) if counting else None

    def _take(self, ledger_id: int, row: BlockRow) -> None:
        pending = self._pending.setdefault(ledger_id, _Pending())
        pending.rows.append(row)
        pending.last = row.ids.last
        self._pending_blocks += 1

    def _commit(self, log_id: int = -1, log: LogRow | None = None) -> None:
        changes = Changes(self.row, self._living, max(1, len(self._pending)))
        with self._store.read() as txn:
            for ledger_id, pending in self._pending.items():
                row = get_ledger(txn, ledger_id) or LedgerRow(b"", fenced=True, limbo=True, fence_of_limbo=True)
                changes.ledger(txn, ledger_id, row, pending.rows)
        if log is not None:
            changes.finished_log(log_id, log)
        changes.commit(self._store)
        self.row = changes.shard
        self._pending, self._pending_blocks = {}, 0


def _right(file: File, ledger_id: int, row: BlockRow) -> int:
    """The row's ids of which the block has a record with a right checksum, as a bitmap relative to the first."""
    codec = RecordCodec(ledger_id)
    try:
        block = decode_block(file.pread(row.place.length, row.place.offset), ledger_id)
    except (CorruptDataError, OSError):
        return 0
    right, first = 0, row.ids.first
    for entry_id, header in living_records(of_block(row.ids, block), first, row.ids.last):
        if verifies(codec, block.data, header):
            right |= 1 << (entry_id - first)
    return right
