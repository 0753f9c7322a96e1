"""Entry logs: append-only files of blocks (docs/reference/formats/entry-log.md).

Invariants: a block is handed out only after ledger, checksum and lengths were found right; a block says where it was
written, so that bytes like a block in an entry's payload are none; a log is appended to only by the process that began
it; its directory is synced before anything refers to it (S4).
"""

from __future__ import annotations

import errno
import struct
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from bkpy.errors import CorruptDataError
from bkpy.protocol.wire.frame import KEEP_INTERPRETER
from bkpy.storage.file_names import number_of, numbered_name
from bkpy.storage.index.ids import Ids, decode_bitmap, encode_bitmap

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bkpy.buffers import Bytes
    from bkpy.runtime.interfaces import File, Files

LOG_MAGIC: Final = b"bkpyelog"
BLOCK_MAGIC: Final = b"bkBL"
FOOTER_MAGIC: Final = b"bkFT"
VERSION: Final = 1
CODEC_STORED: Final = 0
LOG_HEADER_BYTES: Final = 64
BLOCK_HEADER_BYTES: Final = 52
SUFFIX: Final = ".log"
KEPT: Final = 1 << 63  # in the id of a journal file that is kept as a log
KEPT_SUFFIX: Final = ".txn"
_FILE_ID_BITS: Final = 48
_JOURNALS_MAX: Final = 1 << 15
_PARTS_MAX: Final = 1024  # the buffers that one system call takes
_PART_BYTES_MIN: Final = 8 << 10  # smaller parts, on average, are joined before they are written

_PLACED: Final = 1  # flag of a log whose blocks say where they were written

_LOG = struct.Struct("<8sHB5xQ16s")
_LOG_ID = struct.Struct("<Q")
_BLOCK = struct.Struct("<4sBBHQQIIIIII")
_CRC = struct.Struct("<I")
_FOOTER_BLOCK = struct.Struct("<QQIIQII")
_FOOTER_LEDGER = struct.Struct("<QQ")
_TRAILER = struct.Struct("<QII")
TRAILER_BYTES: Final = _TRAILER.size + _CRC.size + len(FOOTER_MAGIC)


class Place(NamedTuple):
    """Where a block is."""

    log_id: int
    offset: int
    length: int


class StoredBlock(NamedTuple):
    """A decoded block: its ids, its data, and the places in them where a walk may begin."""

    ids: Ids
    runs: list[tuple[int, int]]
    data: memoryview


def log_name(log_id: int) -> str:
    return numbered_name(log_id, KEPT_SUFFIX if log_id & KEPT else SUFFIX)


def log_id_of(name: str) -> int | None:
    """The id of a log's file name, None if it isn't one."""
    kept = number_of(name, KEPT_SUFFIX)
    if kept is not None:
        return kept if kept & KEPT else None
    return number_of(name, SUFFIX)


def kept_log_id(journal: int, file_id: int) -> int | None:
    """The id that a journal's file has as a log, None for one that is too large for that."""
    if journal >= _JOURNALS_MAX or file_id >> _FILE_ID_BITS:
        return None
    return KEPT | journal << _FILE_ID_BITS | file_id


def kept_in(log_id: int) -> tuple[int, int]:
    """(number of the journal, file id) of a journal file that is kept as a log."""
    return (log_id ^ KEPT) >> _FILE_ID_BITS, log_id & ((1 << _FILE_ID_BITS) - 1)


def encode_log_header(log_id: int, uuid: bytes) -> bytes:
    packed = _LOG.pack(LOG_MAGIC, VERSION, _PLACED, log_id, uuid)
    return (packed + _CRC.pack(crc32c(packed))).ljust(LOG_HEADER_BYTES, b"\0")


def tag_seed(uuid: bytes, log_id: int) -> int:
    """What is the same in the tags of all blocks of a log."""
    return crc32c(_LOG_ID.pack(log_id), crc32c(uuid))


def place_tag(seed: int, offset: int) -> int:
    """What a block at this offset of a log says of its place: 1 to 65,535."""
    return crc32c(offset.to_bytes(8, "little"), seed) % 0xFFFF + 1


def encode_block(
    ledger_id: int, ids: Ids, runs: Sequence[tuple[int, int]], data: Sequence[Bytes], *, tag: int
) -> tuple[list[Bytes], int, int]:
    """(the block's buffers, its bytes, its checksum). `data` are the records of `ids`, ascending, in any parts.

    `tag`: that of its place.
    """
    bitmap = encode_bitmap(ids)
    stored = sum(map(len, data))
    parts = data if stored >= _PART_BYTES_MIN * len(data) else [b"".join(data)]
    table = struct.pack(f"<{2 * len(runs)}I", *[number for run in runs for number in run])
    head = _BLOCK.pack(
        BLOCK_MAGIC, VERSION, CODEC_STORED, tag, ledger_id, ids.first, ids.last - ids.first, ids.count, len(runs),
        len(bitmap), stored, stored,
    )  # fmt: skip
    checksum = crc32c(bitmap, crc32c(table, crc32c(head)))
    for part in parts:
        checksum = crc32c(part, checksum, KEEP_INTERPRETER)
    before = b"".join((head, _CRC.pack(checksum), table, bitmap))
    return [before, *parts], len(before) + stored, checksum


def decode_block(raw: Bytes, ledger_id: int) -> StoredBlock:
    """The block that `raw` is, all of it; `CorruptDataError` if it isn't a sound block of that ledger."""
    if len(raw) < BLOCK_HEADER_BYTES:
        raise CorruptDataError("an entry log ends inside a block", ledger_id=ledger_id)
    magic, version, codec, _, its_ledger, first, span, count, n, bitmap_bytes, stored, plain = _BLOCK.unpack_from(raw)
    if magic != BLOCK_MAGIC or its_ledger != ledger_id:
        raise CorruptDataError("the index points at bytes that are no block of this ledger", ledger_id=ledger_id)
    view = memoryview(raw)
    checksum = crc32c(view[BLOCK_HEADER_BYTES:], crc32c(view[: _BLOCK.size]))
    if checksum != _CRC.unpack_from(raw, _BLOCK.size)[0]:
        raise CorruptDataError("a block's checksum doesn't match its bytes", ledger_id=ledger_id)
    if version != VERSION or codec != CODEC_STORED:
        raise CorruptDataError(f"a block of version {version} with codec {codec} can't be read by this version")
    table_end = BLOCK_HEADER_BYTES + 8 * n
    data_start = table_end + bitmap_bytes
    if data_start + stored != len(raw) or stored != plain:
        raise CorruptDataError("a block's lengths don't add up", ledger_id=ledger_id)
    ids = decode_bitmap(first, span + 1, bytes(view[table_end:data_start]))
    numbers = struct.unpack_from(f"<{2 * n}I", raw, BLOCK_HEADER_BYTES)
    runs = list(zip(numbers[::2], numbers[1::2], strict=True))
    if ids.count != count or not runs or runs[0] != (0, 0):
        raise CorruptDataError("a block's ids don't fit its count", ledger_id=ledger_id)
    return StoredBlock(ids, runs, view[data_start:])


class BlockHead(NamedTuple):
    """The head of a block. Nothing of it is certain before the block's checksum is verified."""

    ledger_id: int
    first: int
    span: int  # last id minus first id
    entries: int
    runs: int
    bitmap_bytes: int
    stored: int
    checksum: int
    tag: int  # of its place, 0 in logs of software before there was one

    @property
    def table_bytes(self) -> int:
        """Bytes before the data."""
        return BLOCK_HEADER_BYTES + 8 * self.runs + self.bitmap_bytes

    @property
    def length(self) -> int:
        return self.table_bytes + self.stored


def decode_block_head(raw: Bytes) -> BlockHead | None:
    """The head of the block that `raw` begins with, None if no block of this version begins there."""
    if len(raw) < BLOCK_HEADER_BYTES:
        return None
    magic, version, codec, tag, ledger_id, first, span, count, n, bitmap_bytes, stored, _ = _BLOCK.unpack_from(raw)
    if (magic, version, codec) != (BLOCK_MAGIC, VERSION, CODEC_STORED):
        return None
    checksum = _CRC.unpack_from(raw, _BLOCK.size)[0]
    return BlockHead(ledger_id, first, span, count, n, bitmap_bytes, stored, checksum, tag)


def decode_block_ids(raw: Bytes, head: BlockHead) -> Ids:
    """The ids of the block that begins with `raw`, its first `table_bytes`; `CorruptDataError` if they make no sense.

    Its checksum is not looked at.
    """
    bitmap = bytes(raw[head.table_bytes - head.bitmap_bytes : head.table_bytes])
    ids = decode_bitmap(head.first, head.span + 1, bitmap)
    if ids.count != head.entries:
        raise CorruptDataError("a block's ids don't fit its count", ledger_id=head.ledger_id)
    return ids


class FooterBlock(NamedTuple):
    ledger_id: int
    first: int
    span: int  # last id minus first id
    entries: int
    offset: int
    length: int
    checksum: int


def encode_footer(table: Bytes, offset: int) -> bytes:
    """The footer of a log whose last block ends at `offset`. `table`: its blocks, each as FooterBlock's bytes."""
    ledgers: dict[int, int] = {}
    for block in _FOOTER_BLOCK.iter_unpack(table):
        ledgers[block[0]] = ledgers.get(block[0], 0) + block[5]
    packed = b"".join(
        (
            table,
            *(_FOOTER_LEDGER.pack(*item) for item in sorted(ledgers.items())),
            _TRAILER.pack(offset, len(table) // _FOOTER_BLOCK.size, len(ledgers)),
        )
    )
    return packed + _CRC.pack(crc32c(packed)) + FOOTER_MAGIC


class Footer(NamedTuple):
    """A footer whose checksum was right. `table` has its blocks, in the order in which they lie in the log."""

    offset: int
    table: bytes  # no view: CPython crashes if it collects a cycle with an unfinished `iter_unpack` of one

    def blocks(self) -> Iterator[FooterBlock]:
        return map(FooterBlock._make, _FOOTER_BLOCK.iter_unpack(self.table))


def footer_bytes(blocks: int, ledgers: int) -> int:
    """How long a footer is."""
    return blocks * _FOOTER_BLOCK.size + ledgers * _FOOTER_LEDGER.size + TRAILER_BYTES


def read_footer(file: File) -> Footer | None:
    """The log's footer, None if it has no sound one. Blocks."""
    size = file.size()
    if size < LOG_HEADER_BYTES + TRAILER_BYTES:
        return None
    trailer = file.pread(TRAILER_BYTES, size - TRAILER_BYTES)
    offset, blocks, ledgers = _TRAILER.unpack_from(trailer)
    if not trailer.endswith(FOOTER_MAGIC) or offset + footer_bytes(blocks, ledgers) != size:
        return None
    packed = memoryview(file.pread(size - offset, offset))
    end = len(packed) - _CRC.size - len(FOOTER_MAGIC)
    if crc32c(packed[:end]) != _CRC.unpack_from(packed, end)[0]:
        return None
    return Footer(offset, bytes(packed[: blocks * _FOOTER_BLOCK.size]))


def readable_footer(file: File) -> Footer | None:
    """The same; None also if the disk can't read it, which hides no block in front of it. Blocks."""
    try:
        return read_footer(file)
    except OSError:
        return None


def dead_bytes(row_bytes: int, blocks: int, living: int, *, footer: bool) -> int:
    """How many bytes of a log are of dead blocks, or a little less: its header and footer don't count."""
    around = LOG_HEADER_BYTES + (footer_bytes(blocks, blocks) if footer else 0)  # as if each were of another ledger
    return row_bytes - around - living


class LogHeader(NamedTuple):
    log_id: int
    uuid: bytes  # of the index that the log belongs to
    placed: bool  # whether its blocks say where they were written


def decode_log_header(raw: Bytes) -> LogHeader:
    """The header that a log begins with; `CorruptDataError` if it isn't a sound one."""
    if len(raw) < LOG_HEADER_BYTES or crc32c(raw[: _LOG.size]) != _CRC.unpack_from(raw, _LOG.size)[0]:
        raise CorruptDataError("the header of an entry log doesn't match its checksum")
    magic, version, flags, log_id, uuid = _LOG.unpack_from(raw)
    if magic != LOG_MAGIC or version != VERSION:
        raise CorruptDataError(f"an entry log of version {version}; this software reads version {VERSION}")
    return LogHeader(log_id, uuid, bool(flags & _PLACED))


class BlockWriter:
    """The log that is being filled. Everything here blocks and runs on the directory's flush worker."""

    def __init__(self, files: Files, directory: str, log_id: int, uuid: bytes, *, write_bytes: int = 1 << 20) -> None:
        self.log_id = log_id
        self._tag_seed = tag_seed(uuid, log_id)
        self._write_bytes = write_bytes  # written and synced at a time, in one system call
        self._files = files
        self._directory = directory
        self._file: File = files.open(f"{directory}/{log_name(log_id)}", create=True)
        try:
            self._file.write_durably([encode_log_header(log_id, uuid)], 0)
        except OSError:
            self.remove()
            raise
        self._directory_synced = False
        self._table = bytearray()  # of blocks, as the footer will have it: there may be hundreds of thousands
        self._parts: list[Bytes] = []  # not written yet
        self._written = LOG_HEADER_BYTES
        self._failed = False
        self.size = LOG_HEADER_BYTES

    def append(self, ledger_id: int, ids: Ids, runs: Sequence[tuple[int, int]], data: Sequence[Bytes]) -> Place:
        """Take a block; written in a while, and durable only after `sync`."""
        buffers, size, checksum = encode_block(ledger_id, ids, runs, data, tag=place_tag(self._tag_seed, self.size))
        place = Place(self.log_id, self.size, size)
        self._parts += buffers
        self.size += size
        span = ids.last - ids.first
        self._table += _FOOTER_BLOCK.pack(ledger_id, ids.first, span, ids.count, place.offset, place.length, checksum)
        if self.size - self._written >= self._write_bytes:
            self._write()
        return place

    @property
    def path(self) -> str:
        return self._file.path

    @property
    def written(self) -> int:
        """Bytes that are certainly in the file; after an error, some of the following ones may be, too."""
        return self._written

    @property
    def blocks(self) -> int:
        """How many blocks it has."""
        return len(self._table) // _FOOTER_BLOCK.size

    def _write(self) -> None:
        if self._failed:
            raise OSError(errno.EIO, "an earlier write to this log failed", self._file.path)
        parts, self._parts = self._parts, []
        if parts:
            self._failed = True  # unless it succeeds: else nobody knows what is on disk, and nobody retries it
            self._file.write_durably(parts if len(parts) <= _PARTS_MAX else [b"".join(parts)], self._written)
            self._failed = False
            self._written = self.size

    def sync(self) -> None:
        """Return when every block is on disk, and the directory's entry of this log, too."""
        self._write()
        if not self._directory_synced:
            self._files.sync_dir(self._directory)
            self._directory_synced = True

    def finish(self) -> int:
        """Write the footer, sync and close; returns the number of blocks.

        Its blocks are synced before it is written: of a log with a sound footer none is torn.
        """
        self._write()
        footer = encode_footer(self._table, self.size)
        self._parts.append(footer)
        self.size += len(footer)
        self.sync()
        self.close()
        return self.blocks

    def remove(self) -> None:
        """Remove a log that no row refers to."""
        self.close()
        self._files.unlink(self._file.path)

    def close(self) -> None:
        self._file.close()


class BlockReader:
    """Reads blocks, keeping some logs open. Blocks; runs on the directory's read worker."""

    def __init__(self, files: Files, directory: str, *, open_max: int = 128) -> None:
        self._files = files
        self._open_max = open_max
        self._directory = directory
        self._open: OrderedDict[int, File] = OrderedDict()

    def read(self, place: Place) -> bytes:
        """The bytes at `place`, fewer at the end of the log; `FileNotFoundError` if the log is gone."""
        file = self._open.get(place.log_id)
        if file is None:
            file = self._files.open(f"{self._directory}/{log_name(place.log_id)}", read_only=True)
            self._open[place.log_id] = file
            if len(self._open) > self._open_max:
                self._open.popitem(last=False)[1].close()
        else:
            self._open.move_to_end(place.log_id)
        return file.pread(place.length, place.offset)

    def check_there(self, log_id: int) -> None:
        """`FileNotFoundError` if the log is gone by now, although it may be open here."""
        path = f"{self._directory}/{log_name(log_id)}"
        if not self._files.exists(path):
            self.forget(log_id)
            raise FileNotFoundError(errno.ENOENT, "the log is gone", path)

    def forget(self, log_id: int) -> None:
        """Close the log if it is open: its file is gone."""
        file = self._open.pop(log_id, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()
