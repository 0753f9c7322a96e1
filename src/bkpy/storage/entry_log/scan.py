"""Goes through an entry log without an index, whatever state it is in: for a new index, and to check the old one.

Invariants: it yields only blocks with right checksums; it reports bytes between two blocks, or behind the last one, as
damage, unless they are the footer that fits the blocks. Everything here blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bkpy.errors import CorruptDataError
from bkpy.storage.entry_log.entry_log import (
    BLOCK_HEADER_BYTES,
    BLOCK_MAGIC,
    LOG_HEADER_BYTES,
    BlockHead,
    StoredBlock,
    decode_block,
    decode_block_head,
    footer_bytes,
    readable_footer,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bkpy.runtime.interfaces import File


class LogDamage(NamedTuple):
    """Bytes of a log that can't be read as what they should be."""

    offset: int
    length: int
    what: str


class ScannedBlock(NamedTuple):
    """A sound block and where it is."""

    offset: int
    length: int
    ledger_id: int
    block: StoredBlock
    checksum: int


class LogScan:
    """Iterates over the sound blocks of a log, from its first byte on.

    `damages` and `footer` (whether there is one; a damaged one is a damage too, but hides no entries) are final when
    the iteration has ended, `lost` says whether a damage may be that of a block.
    """

    def __init__(self, file: File, *, read_bytes: int) -> None:
        self._file = file
        self._read_bytes = read_bytes
        self._ledgers: set[int] = set()
        self.blocks = 0
        self.damages: list[LogDamage] = []
        self.footer = False
        self.lost = False

    def __iter__(self) -> Iterator[ScannedBlock]:
        size = self._file.size()
        footer = readable_footer(self._file)
        self.footer = footer is not None
        end = size if footer is None else footer.offset
        offset = LOG_HEADER_BYTES
        while offset < end:
            found = self._block(offset, end)
            if found is None:
                start, offset = offset, self._next(offset + 1, end)
                self._damaged(start, offset, size)
                continue
            self.blocks += 1
            self._ledgers.add(found.ledger_id)
            offset += found.length
            yield found

    def _block(self, offset: int, end: int) -> ScannedBlock | None:
        head = self._head(offset, end)
        if head is None:
            return None
        try:
            block = decode_block(self._file.pread(head.length, offset), head.ledger_id)
        except (CorruptDataError, OSError):
            return None
        return ScannedBlock(offset, head.length, head.ledger_id, block, head.checksum)

    def _head(self, offset: int, end: int) -> BlockHead | None:
        try:
            head = decode_block_head(self._file.pread(BLOCK_HEADER_BYTES, offset))
        except OSError:
            return None
        return head if head is not None and offset + head.length <= end else None

    def _next(self, offset: int, end: int) -> int:
        """Where the next sound block begins, `end` if there is none."""
        overlap = len(BLOCK_MAGIC) - 1
        while offset < end:
            try:
                chunk = self._file.pread(min(self._read_bytes + overlap, end - offset), offset)
            except OSError:
                chunk = bytes(min(self._read_bytes, end - offset))  # what is behind them may be readable
            at = chunk.find(BLOCK_MAGIC)
            while at >= 0:
                if self._block(offset + at, end) is not None:
                    return offset + at
                at = chunk.find(BLOCK_MAGIC, at + 1)
            offset += max(1, len(chunk) - overlap)
        return end

    def _damaged(self, start: int, end: int, size: int) -> None:
        if end == size and not self.lost and size - start == footer_bytes(self.blocks, len(self._ledgers)):
            # As long as the footer of exactly the blocks before it: no block can be in there.
            self.damages.append(LogDamage(start, end - start, "the footer is damaged; no entry is lost by that"))
            return
        self.lost = True
        self.damages.append(LogDamage(start, end - start, "no sound block is here"))
