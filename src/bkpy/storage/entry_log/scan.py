"""Goes through an entry log without an index, whatever state it is in: for a new index, and to check the old one.

Invariants: it yields only blocks with right checksums, and says which of them may be images of blocks in a payload; it
reports bytes between two blocks, or behind the last one, as damage, unless they are the footer that fits the blocks.
Everything here blocks.
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
    decode_log_header,
    footer_bytes,
    place_tag,
    readable_footer,
    tag_seed,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bkpy.runtime.interfaces import File
    from bkpy.storage.entry_log.entry_log import Footer


class LogDamage(NamedTuple):
    """Bytes of a log that can't be read as what they should be."""

    offset: int
    length: int
    what: str


class ScannedBlock(NamedTuple):
    """A sound block and where it is. Not `certain`: it may be the image of a block, in an entry's payload."""

    offset: int
    length: int
    ledger_id: int
    block: StoredBlock
    checksum: int
    certain: bool


class LogScan:
    """Iterates over the sound blocks of a log, from `start` on.

    `damages` and `footer` (whether there is one; a damaged one is a damage too, but hides no entries) are final when
    the iteration has ended, `lost` says whether a damage may be that of a block, `error` why bytes
    could not be read.
    """

    def __init__(self, file: File, *, read_bytes: int, start: int = LOG_HEADER_BYTES) -> None:
        self._file = file
        self._read_bytes = read_bytes
        self._start = start
        self._size = file.size()
        self.error = ""
        self._seed = self._tags()
        self._certain = True
        self._ledgers: set[int] = set()
        self.blocks = 0
        self.damages: list[LogDamage] = []
        self.footer = False
        self.lost = False

    def __iter__(self) -> Iterator[ScannedBlock]:
        footer = readable_footer(self._file)
        self.footer = footer is not None
        end = self._size if footer is None else footer.offset
        at = self._start
        for found in self._followed(end) if footer is None else self._listed(footer, end):
            if found.offset > at:
                self._damaged(at, found.offset)
            at = found.offset + found.length
            self.blocks += 1
            self._ledgers.add(found.ledger_id)
            yield found
        if at < end:
            self._damaged(at, end)

    def block_at(self, offset: int) -> ScannedBlock | None:
        """The block that begins there, if it is sound."""
        return self._block(offset, self._size)

    def _listed(self, footer: Footer, end: int) -> Iterator[ScannedBlock]:
        """The blocks where the footer says that there are some: whatever lies between them is none."""
        for listed in footer.blocks():
            if listed.offset >= self._start:
                found = self._block(listed.offset, end)
                if found is not None:
                    yield found

    def _followed(self, end: int) -> Iterator[ScannedBlock]:
        """The blocks of a log without a footer, each behind the one before it, as far as that can be said."""
        at = self._start if self._start == LOG_HEADER_BYTES else self._next(self._start, end)
        while at < end:
            found = self._block(at, end)
            if found is None:
                at = self._behind(at, end)
            else:
                yield found
                at += found.length

    def _behind(self, at: int, end: int) -> int:
        """Where the next block begins behind a damaged one."""
        head = self._head(at, end)
        if head is not None:
            behind = at + head.length
            if behind == end or self._block(behind, end) is not None:
                return behind
        return self._next(at + 1, end)

    def _block(self, offset: int, end: int) -> ScannedBlock | None:
        head = self._head(offset, end)
        if head is None:
            return None
        try:
            block = decode_block(self._file.pread(head.length, offset), head.ledger_id)
        except CorruptDataError:
            return None
        except OSError as e:
            self.error = _why(e)
            return None
        return ScannedBlock(offset, head.length, head.ledger_id, block, head.checksum, self._certain)

    def _head(self, offset: int, end: int) -> BlockHead | None:
        """The head of a block that belongs here, as far as it says so."""
        try:
            head = decode_block_head(self._file.pread(BLOCK_HEADER_BYTES, offset))
        except OSError as e:
            self.error = _why(e)
            return None
        if head is None or offset + head.length > end:
            return None
        return head if self._seed is None or head.tag == place_tag(self._seed, offset) else None

    def _next(self, offset: int, end: int) -> int:
        """Where the next sound block begins, `end` if there is none: also inside of a payload, if no tag forbids it."""
        self._certain = self._certain and self._seed is not None
        overlap = len(BLOCK_MAGIC) - 1
        while offset < end:
            try:
                chunk = self._file.pread(min(self._read_bytes + overlap, end - offset), offset)
            except OSError as e:
                self.error = _why(e)
                chunk = bytes(min(self._read_bytes, end - offset))  # what is behind them may be readable
            at = chunk.find(BLOCK_MAGIC)
            while at >= 0:
                if self._block(offset + at, end) is not None:
                    return offset + at
                at = chunk.find(BLOCK_MAGIC, at + 1)
            offset += max(1, len(chunk) - overlap)
        return end

    def _tags(self) -> int | None:
        """The seed of the tags of the log's blocks, None if they have none, or if the log's header is damaged."""
        try:
            header = decode_log_header(self._file.pread(LOG_HEADER_BYTES, 0))
        except CorruptDataError:
            return None
        except OSError as e:
            self.error = _why(e)
            return None
        return tag_seed(header.uuid, header.log_id) if header.placed else None

    def _damaged(self, start: int, end: int) -> None:
        size = self._size
        if end == size and not self.lost and size - start == footer_bytes(self.blocks, len(self._ledgers)):
            # As long as the footer of exactly the blocks before it: no block can be in there.
            self.damages.append(LogDamage(start, end - start, "the footer is damaged; no entry is lost by that"))
            return
        self.lost = True
        self.damages.append(LogDamage(start, end - start, "no sound block is here"))


def _why(error: OSError) -> str:
    return error.strerror or str(error)
