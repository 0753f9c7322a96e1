"""Everything that one bookie has of one ledger: state, blocks with their checksums, the journal behind the marks, gaps.

Gaps are no damage: a bookie of a larger ensemble has only every other entry. Memory is bounded by what the journal has
of the ledger behind the marks, and by one block.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from bkpy.errors import BookKeeperError, CorruptDataError
from bkpy.storage.entry_log.entry_log import BlockReader
from bkpy.storage.file_names import INDEX_NAME
from bkpy.storage.index import index
from bkpy.storage.index.ids import Ids
from bkpy.storage.index.tombstones import has_tombstone
from bkpy.storage.journal.format import RecordKind, split_records
from bkpy.storage.tools.inspect.finding import COPIES, Finding, damage, note
from bkpy.storage.tools.inspect.index import NOT_READABLE, IndexInspection
from bkpy.storage.tools.inspect.journal import JournalInspection
from bkpy.storage.tools.inspect.marks import lowest_mark, read_marks
from bkpy.storage.tools.inspect.stored import stored_block

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bkpy.runtime.interfaces import Files, OrderedStore, ReadTransaction
    from bkpy.storage.index.index import BlockRow, ShardRow

_ID_END = 1 << 64


class Gaps:
    """The ids that are in none of the sets it is given, in the order of their first ids. Keeps `ranges_max` ranges."""

    def __init__(self, ranges_max: int) -> None:
        self.ranges: list[tuple[int, int]] = []
        self.missing = 0
        self.present = 0
        self._ranges_max = ranges_max
        self._at = 0  # all before it is decided
        self._bits = 0  # of what is known from there on
        self._since = -1  # where a gap began that has not ended
        self._until = -1  # its last id so far

    def add(self, ids: Ids) -> None:
        self._decide(ids.first)
        self._bits |= ids.bits(self._at, ids.last)

    def end(self) -> None:
        """No more sets: what lies behind the highest id is no gap."""
        self._decide(self._at + self._bits.bit_length())

    def _decide(self, end: int) -> None:
        """Take everything before `end` as it is known now."""
        width = end - self._at
        if width <= 0:
            return
        if width >= self._bits.bit_length():  # may be far wider than anything that is there
            bits, self._bits = self._bits, 0
        else:
            bits = self._bits & ((1 << width) - 1)
            self._bits >>= width
        at, self._at = self._at, end
        while bits:
            zeros = (bits & -bits).bit_length() - 1
            bits >>= zeros
            ones = (~bits & (bits + 1)).bit_length() - 1
            self._absent(at, at + zeros)
            self._close()
            self.present += ones
            bits >>= ones
            at += zeros + ones
        self._absent(at, end)

    def _absent(self, first: int, end: int) -> None:
        if first < end:
            self._since = first if self._since < 0 else self._since
            self.missing += end - first
            self._until = end - 1

    def _close(self) -> None:
        if self._since >= 0:
            if len(self.ranges) < self._ranges_max:
                self.ranges.append((self._since, self._until))
            self._since = -1


class LedgerInspection:
    """One look at a ledger. `ranges_max`: gaps that are listed one by one. `unopened`: indexes that can't be opened."""

    def __init__(
        self,
        files: Files,
        indexes: Mapping[str, OrderedStore],
        journals: Sequence[str],
        ledger_id: int,
        *,
        read_bytes: int,
        ranges_max: int,
        unopened: int = 0,
    ) -> None:
        self._files = files
        self._indexes = indexes
        self._unopened = unopened
        self._journals = journals
        self._ledger_id = ledger_id
        self._read_bytes = read_bytes
        self._gaps = Gaps(ranges_max)
        self._waiting: list[Ids] = []  # sets of ids in the journal behind the marks
        self._known = False

    def run(self) -> Iterator[Finding]:
        rows, damaged = read_marks(self._indexes)
        yield from damaged
        home = [d for d, store in self._indexes.items() if self._is_in(store)]
        yield from self._journal(rows, home)
        for directory in home or list(self._indexes):
            with self._indexes[directory].read() as txn:
                yield from self._state(directory, txn)
                yield from self._blocks(directory, txn)
        self._gaps.end()
        if not self._known:
            what = "this bookie has nothing of the ledger"
            if self._unopened:
                what = "whether this bookie has anything of the ledger is not known: an index can't be opened"
            elif any(row.unknown_in_limbo or self._ledger_id <= row.limbo_to for row in rows.values()) or damaged:
                what += ", but it lost data: it answers *unknown*"
            yield note((self._indexes and next(iter(self._indexes))) or "", None, what, ledger=self._ledger_id)
        yield Finding("end", "", None, self._summary())

    def _summary(self) -> dict[str, object]:
        gaps = [f"{first}-{last}" for first, last in self._gaps.ranges]
        return {
            "ledger": self._ledger_id,
            "entries": self._gaps.present,
            "ids_missing": self._gaps.missing,
            "gaps": gaps,
        }

    def _is_in(self, store: OrderedStore) -> bool:
        with store.read() as txn:
            return txn.get(index.ledger_key(self._ledger_id)) is not None

    # --- index --------------------------------------------------------------------------------------------------------

    def _state(self, directory: str, txn: ReadTransaction) -> Iterator[Finding]:
        """The ledger's own row, and what is wrong with it and its block rows."""
        for finding in IndexInspection(directory, txn, ledger=self._ledger_id).run():
            if finding.damage or finding.facts.get("row") in ("ledger", "deleted ledger"):
                self._known = True
                yield finding
        try:
            deleted = has_tombstone(txn, self._ledger_id)
        except CorruptDataError as e:
            self._known = True
            yield damage(f"{directory}/{INDEX_NAME}", None, e.message, COPIES, ledger=self._ledger_id)
        else:
            if deleted:
                self._known = True
                facts: dict[str, object] = {"ledger": self._ledger_id, "deleted": True, "fenced": True}
                yield Finding("tombstone", f"{directory}/{INDEX_NAME}", None, facts)

    def _blocks(self, directory: str, txn: ReadTransaction) -> Iterator[Finding]:
        reader = BlockReader(self._files, directory)
        waiting = sorted(self._waiting, key=_first)
        self._waiting = []
        try:
            for ids, row in heapq.merge(
                ((ids, None) for ids in waiting), self._rows(txn), key=lambda item: item[0].first
            ):
                self._gaps.add(ids)
                if row is not None:
                    yield stored_block(directory, reader, self._ledger_id, row)
        finally:
            reader.close()

    def _rows(self, txn: ReadTransaction) -> Iterator[tuple[Ids, BlockRow | None]]:
        for key, value in index.scan_blocks(txn, self._ledger_id, 0, _ID_END - 1):
            self._known = True
            try:
                row = index.decode_block_row(key, value)
            except NOT_READABLE:
                continue  # reported with the state
            yield row.ids, row

    # --- journal ------------------------------------------------------------------------------------------------------

    def _journal(self, rows: Mapping[str, ShardRow], home: Sequence[str]) -> Iterator[Finding]:
        """The ledger's records behind the marks of the directory that it is in."""
        if not self._journals:
            return
        number = self._ledger_id % len(self._journals)
        mark = lowest_mark({d: row for d, row in rows.items() if d in home} or rows, number)
        if mark is None:
            return
        inspection = JournalInspection(
            self._files,
            self._journals[number],
            number,
            read_bytes=self._read_bytes,
            mark=mark,
            ledger=self._ledger_id,
        )
        try:
            for frame, finding in inspection.frames(mark):
                if frame is None:
                    if finding is not None and finding.damage:
                        yield finding
                    continue
                for record in split_records(frame.body, frame.records):
                    facts = inspection.record_facts(record)
                    if facts is None:
                        continue
                    self._known = True
                    if record.kind == RecordKind.ADD:
                        batches = inspection.batches(record)
                        self._waiting += [Ids(b.first, b.entries, b.stride) for b in batches]
                    yield Finding("record", self._journals[number], None, facts | {"sequence": frame.sequence})
        except (OSError, BookKeeperError) as e:
            yield damage(self._journals[number], None, f"the journal can't be read on: {e}", COPIES)


def _first(ids: Ids) -> int:
    return ids.first
