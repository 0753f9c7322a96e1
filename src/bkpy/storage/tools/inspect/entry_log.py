"""Looks into an entry log: header, blocks with all their checksums, footer, and what lies between sound blocks.

Invariant: a place without a sound block is damage only if something says that there was one: the footer, or a row of
the index; if there is no index, a sound block behind it. What a crash left at the end of a log was never committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bkpy.errors import CorruptDataError
from bkpy.storage.entry_log.entry_log import (
    FOOTER_MAGIC,
    LOG_HEADER_BYTES,
    decode_log_header,
    log_id_of,
    read_footer,
)
from bkpy.storage.entry_log.scan import LogScan
from bkpy.storage.tools.inspect.finding import COPIES, Finding, damage, note, some

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bkpy.runtime.interfaces import File, Files
    from bkpy.storage.entry_log.entry_log import FooterBlock
    from bkpy.storage.entry_log.scan import ScannedBlock

    # (log id, from, to) -> what rows of the index say to live there: (ledger, first id, last id)
    Living = Callable[[int, int, int], list[tuple[int, int, int]]]


_EVERYWHERE: Final = 1 << 63  # behind the end of any file


class LogInspection:
    """One look at an entry log. `ledger`: show only its blocks. Blocks before `offset` are skipped."""

    def __init__(
        self,
        files: Files,
        path: str,
        living: Living | None,
        *,
        read_bytes: int,
        ledger: int | None = None,
        offset: int = 0,
    ) -> None:
        self._files = files
        self._path = path
        self._living = living
        self._read_bytes = read_bytes
        self._ledger = ledger
        self._offset = max(offset, LOG_HEADER_BYTES)
        self._footer: dict[int, FooterBlock] | None = None  # by offset

    def run(self) -> Iterator[Finding]:
        try:
            file = self._files.open(self._path, read_only=True)
        except FileNotFoundError:
            yield note(self._path, None, "this file was let go meanwhile")
            return
        except OSError as e:
            yield damage(self._path, None, f"can't be read: {e.strerror}", COPIES)
            return
        try:
            size = file.size()
            end = size
            for finding in self._begin(file, size):
                yield finding
                if finding.kind == "footer":
                    assert finding.offset is not None
                    end = finding.offset
            yield from self._blocks(file, end)
        except OSError as e:
            yield damage(self._path, None, f"can't be read: {e.strerror}", COPIES)
        finally:
            file.close()

    def _begin(self, file: File, size: int) -> Iterator[Finding]:
        """The header, and the footer if there is a sound one."""
        facts: dict[str, object] = {"bytes": size}
        try:
            header = decode_log_header(file.pread(LOG_HEADER_BYTES, 0))
            facts |= {"log": header.log_id, "index": header.uuid.hex()}
            yield Finding("file", self._path, 0, facts)
            if header.log_id != log_id_of(self._path.rpartition("/")[2]):
                yield damage(self._path, 0, f"the header is that of log {header.log_id}", "restore the file's name")
        except CorruptDataError as e:
            yield Finding("file", self._path, 0, facts)
            yield damage(self._path, 0, e.message, "a start doesn't need it; the blocks have checksums of their own")
        footer = read_footer(file)
        if footer is not None:
            self._footer = {block.offset: block for block in footer.blocks()}
            ledgers = {block.ledger_id for block in self._footer.values()}
            counts: dict[str, object] = {"blocks": len(self._footer), "ledgers": len(ledgers)}
            yield Finding("footer", self._path, footer.offset, counts)
        elif file.pread(len(FOOTER_MAGIC), max(0, size - len(FOOTER_MAGIC))) == FOOTER_MAGIC:
            what = "the footer of an entry log doesn't match its checksum"
            yield damage(self._path, size - len(FOOTER_MAGIC), what, "nothing is lost: only tools read the footer")
        else:
            yield note(self._path, size, "no footer: the log is being filled, or was when the bookie stopped")

    def _blocks(self, file: File, end: int) -> Iterator[Finding]:
        at = self._offset
        if self._offset > LOG_HEADER_BYTES:
            at = end if self._footer is None else min((offset for offset in self._footer if offset >= at), default=end)
        scan = LogScan(file, read_bytes=self._read_bytes, start=self._offset)
        for block in scan:
            if block.offset > at:
                yield self._gap(at, block.offset, followed=True)
            yield from self._findings(block)
            at = block.offset + block.length
            end = max(at, end)  # it is being filled
        if self._footer is not None:
            if at < end:
                yield self._gap(at, end, followed=False)
        else:
            yield from self._tail(file, at, end)
        if scan.error:
            yield damage(self._path, None, f"can't be read everywhere: {scan.error}", COPIES)

    def _tail(self, file: File, start: int, end: int) -> Iterator[Finding]:
        """What lies behind the last sound block of a log without a footer, or was there before the file was cut off."""
        log_id = log_id_of(self._path.rpartition("/")[2])
        if self._living is None or log_id is None or not self._living(log_id, start, _EVERYWHERE):
            if start < end:
                yield self._nothing_lost(start, end)
            return
        beyond = self._living(log_id, end, _EVERYWHERE)
        # Rows are committed after their blocks: what they name by now is in the file, even if it wasn't a moment ago.
        size = file.size()
        if LogScan(file, read_bytes=self._read_bytes).block_at(start) is not None:
            yield note(self._path, start, "the log is being filled: what follows came while it was looked at")
        else:
            yield self._gap(start, _EVERYWHERE if beyond and size <= end else size, followed=False)

    def _findings(self, block: ScannedBlock) -> Iterator[Finding]:
        if self._ledger in (None, block.ledger_id):
            ids = block.block.ids
            facts: dict[str, object] = {"ledger": block.ledger_id, "first": ids.first, "last": ids.last}
            yield Finding("block", self._path, block.offset, facts | {"entries": ids.count, "bytes": block.length})

    def _gap(self, start: int, end: int, *, followed: bool) -> Finding:
        """What it means that there is no sound block between two offsets."""
        log_id = log_id_of(self._path.rpartition("/")[2])
        living = None if self._living is None or log_id is None else self._living(log_id, start, end)
        listed = [] if self._footer is None else [b for o, b in self._footer.items() if start <= o < end]
        lost = living or sorted({(b.ledger_id, b.first, b.first + b.span) for b in listed} if living is None else ())
        entries = [f"ledger {ledger_id}: {first}-{last}" for ledger_id, first, last in lost]
        what = self._no_block(end)
        if living or listed or (followed and living is None):
            advice = f"{COPIES}; reads of these entries are answered *unknown* here"
            if living == []:
                advice = "no row of the index names this place, so nothing is lost"
            return damage(self._path, start, what, advice, **some("entries", entries))
        return self._nothing_lost(start, end)

    def _nothing_lost(self, start: int, end: int) -> Finding:
        what = f"{self._no_block(end)}, and nothing says that there was one: a crash or a write under way"
        return note(self._path, start, what)

    def _no_block(self, end: int) -> str:
        there = "the end, and the file is cut off" if end == _EVERYWHERE else f"offset {end}"
        return f"no sound block from here to {there}"
