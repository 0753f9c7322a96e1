"""Looks into a journal directory: files, commit frames, records, damage, and where the journal ends at present.

Invariant: what is found in the chain is judged as a start would judge it, by the same reader; a frame that is being
written at the moment looks like a torn one, and neither is damage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bkpy.errors import BookKeeperError, CorruptDataError, ProtocolError
from bkpy.protocol.wire.messages import decode_add
from bkpy.storage.journal.format import (
    FRAME_HEADER_BYTES,
    PAGE_BYTES,
    FileHeader,
    Mark,
    RecordKind,
    decode_file_header,
    decode_frame_header,
    decode_ledger,
    file_id_of,
    file_name,
    padded,
    split_records,
)
from bkpy.storage.journal.reader import JournalReader
from bkpy.storage.tools.inspect.finding import COPIES, Finding, damage, note, some

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bkpy.runtime.interfaces import Files
    from bkpy.storage.journal.format import Record
    from bkpy.storage.journal.reader import Damage, JournalFrame

# Later versions' kinds have names here as well, so that their journals can be looked into.
NAMES = {1: "KEY", 2: "ADD", 3: "FENCE", 4: "EXPLICIT_LAC", 5: "DELETED", 6: "HIDE", 7: "UNHIDE"}


class LedgerBatch(NamedTuple):
    """Entries first + i * stride, `entries` of them, of one ledger in an add record."""

    ledger_id: int
    first: int
    entries: int
    stride: int

    @property
    def last(self) -> int:
        return self.first + (self.entries - 1) * self.stride


class JournalInspection:
    """One look at a journal. `ledger`: show only its records; `only`: look only at this file.

    `mark` is the lowest of the ledger directories' marks, None if it isn't known: nobody needs frames before it.
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        number: int | None,
        *,
        read_bytes: int,
        mark: Mark | None = None,
        ledger: int | None = None,
        only: int | None = None,
        offset: int = 0,
    ) -> None:
        self._files = files
        self._directory = directory
        self._number = number
        self._read_bytes = read_bytes
        self._mark = mark
        self._ledger = ledger
        self._only = only
        self._offset = offset

    def run(self) -> Iterator[Finding]:
        """Everything from the first file, or the place that was asked for, to the end."""
        ids = [i for i in map(file_id_of, self._files.listdir(self._directory)) if i is not None]
        if self._only is not None:
            ids = [i for i in ids if i >= self._only]
        if not ids:
            yield note(self._directory, None, "there are no journal files here")
        while ids:
            reached = ids[0]
            try:
                for finding, file_id in self._from(ids[0]):
                    reached = max(reached, file_id)
                    yield finding
                return
            except FileNotFoundError as e:
                yield note(e.filename or self._directory, None, "this file was let go meanwhile")
            except (OSError, BookKeeperError) as e:
                what = e.message if isinstance(e, BookKeeperError) else f"can't be read: {e.strerror or e}"
                yield damage(self._path(reached), None, what, self._advice(reached, 0))
            if self._only is not None:
                return
            ids = [i for i in ids if i > reached]

    def frames(self, mark: Mark) -> Iterator[tuple[JournalFrame | None, Finding | None]]:
        """The frames from the mark on, or in their places damage: what a start would replay."""
        number = self._number if self._number is not None else 0
        there = self._files.exists(self._path(mark.file_id))
        journal = JournalReader(self._files, self._directory, number, mark, read_bytes=self._read_bytes)
        seen = 0
        for frame in journal:
            for found in journal.damages[seen:]:
                yield None, self._finding(found, there)
            seen = len(journal.damages)
            yield frame, None
        for found in journal.damages[seen:]:
            yield None, self._finding(found, there)
        if journal.torn is not None:
            path, at = journal.torn
            yield None, note(path, at, "a frame that is being written, or was never finished: the next start cuts it")
        for path in journal.unfinished:
            yield None, note(path, None, "a file that was never begun: the next start removes it")
        if journal.torn is None and not journal.damages:
            facts: dict[str, object] = {"sequence": journal.end.sequence, "clean_stop": journal.clean_stop}
            yield None, Finding("end", self._path(journal.end.file_id), journal.end.offset, facts)

    def _path(self, file_id: int) -> str:
        return f"{self._directory}/{file_name(file_id)}"

    def _from(self, file_id: int) -> Iterator[tuple[Finding, int]]:
        """Findings from a file on, each with the file that was reached."""
        header = self._header(file_id)
        if header is None:
            what = "the file's header can't be read, or is another file's"
            yield damage(self._path(file_id), 0, what, self._advice(file_id, 0)), file_id
            mark = Mark(file_id, PAGE_BYTES, 0, 0)
        else:
            if self._number is None:
                self._number = header.journal
            first = self._first_mark(file_id, header)
            if first is None:
                yield note(self._path(file_id), self._offset, "no commit frame follows this offset"), file_id
                return
            mark = first
        reported = -1
        for frame, finding in self.frames(mark):
            if frame is None:
                assert finding is not None
                if self._only is None or finding.path == self._path(self._only):
                    yield finding, file_id
                continue
            file_id = frame.end.file_id
            if self._only not in (None, file_id):
                return
            if file_id != reported:
                reported = file_id
                yield self._file(file_id), file_id
            for of_frame in self._frame(frame):
                yield of_frame, file_id

    def _header(self, file_id: int) -> FileHeader | None:
        file = self._files.open(self._path(file_id), read_only=True)
        try:
            header = decode_file_header(file.pread(PAGE_BYTES, 0))
        finally:
            file.close()
        return header if header is not None and header.file_id == file_id else None

    def _first_mark(self, file_id: int, header: FileHeader) -> Mark | None:
        """The first frame at or behind the offset that was asked for, None if there is none."""
        first = Mark(file_id, PAGE_BYTES, header.sequence, header.chain)
        if self._offset <= PAGE_BYTES:
            return first
        file = self._files.open(self._path(file_id), read_only=True)
        try:
            at = padded(self._offset)
            while page := file.pread(PAGE_BYTES, at):
                found = decode_frame_header(page, 0, header.nonce)
                if found is not None:
                    return Mark(file_id, at, found.sequence, found.chain)
                at += PAGE_BYTES
        finally:
            file.close()
        return None

    def _file(self, file_id: int) -> Finding:
        header = self._header(file_id)
        facts: dict[str, object] = {} if header is None else {"journal": header.journal, "sequence": header.sequence}
        return Finding("file", self._path(file_id), 0, facts)

    def _frame(self, frame: JournalFrame) -> Iterator[Finding]:
        path = self._path(frame.end.file_id)
        at = frame.end.offset - padded(FRAME_HEADER_BYTES + len(frame.body))
        records: list[dict[str, object]] = []
        broken = ""
        try:
            for record in split_records(frame.body, frame.records):
                facts = self.record_facts(record)
                if facts is not None:
                    records.append(facts)
        except (BookKeeperError, ValueError) as e:
            broken = str(e)
        if records or self._ledger is None:
            facts = {"sequence": frame.sequence, "records": frame.records, "bytes": len(frame.body)}
            yield Finding("frame" if frame.records else "clean stop", path, at, facts)
        for facts in records:
            yield Finding("record", path, at, facts)
        if broken:
            yield damage(path, at, f"the records of this frame make no sense: {broken}", COPIES)

    def record_facts(self, record: Record) -> dict[str, object] | None:
        """What a record says; None if it is about other ledgers than the one that was asked for."""
        name = NAMES.get(record.kind, f"kind {record.kind}")
        size = len(record.head) + len(record.body)
        if record.kind == RecordKind.ADD:
            batches = self.batches(record)
            if not batches:
                return None
            ledgers = sorted({batch.ledger_id for batch in batches})
            facts: dict[str, object] = {"record": name, "bytes": size, "entries": sum(b.entries for b in batches)}
            if len(ledgers) == 1:
                lowest, highest = min(b.first for b in batches), max(b.last for b in batches)
                return facts | {"ledger": ledgers[0], "first": lowest, "last": highest}
            return facts | some("ledgers", ledgers)
        ledger_id = decode_ledger(record.head) if len(record.head) == 8 else None
        if self._ledger not in (None, ledger_id):
            return None
        return {"record": name, "bytes": size, "ledger": ledger_id}

    def batches(self, record: Record) -> list[LedgerBatch]:
        """The batches of an add record, of the one ledger if one was asked for."""
        try:
            columns = decode_add(record.head, len(record.body))
        except ProtocolError as e:
            raise CorruptDataError(f"an add record can't be read: {e}") from e
        strides = columns.strides
        found = []
        for i, (ledger_id, first, count) in enumerate(
            zip(columns.ledger_ids, columns.first_ids, columns.counts, strict=True)
        ):
            stride = strides if isinstance(strides, int) else strides[i]
            if self._ledger in (None, ledger_id):
                found.append(LedgerBatch(ledger_id, first, count, stride))
        return found

    def _finding(self, found: Damage, there: bool) -> Finding:
        """The damage; none if the first file was there, and this one was let go while it was looked at."""
        if there and not self._files.exists(found.path):
            return note(found.path, found.offset, "this file was let go meanwhile")
        file_id = file_id_of(found.path.rpartition("/")[2])
        ledgers = some("ledgers", sorted(found.ledgers)) if found.ledgers else {}
        return damage(found.path, found.offset, found.what, self._advice(file_id or 0, found.offset), **ledgers)

    def _advice(self, file_id: int, offset: int) -> str:
        if self._mark is not None and (file_id, offset) < (self._mark.file_id, self._mark.offset):
            return "all before the marks is in the index, so nothing is lost; the file goes by itself"
        return (
            f"{COPIES}. A start refuses this, or, with journal_damage = 'limbo', answers *unknown* for what may be "
            "missing; restore the file if there is a sound copy"
        )
