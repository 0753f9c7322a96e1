"""The index of a ledger directory: which block holds which exact ids, and the state of each ledger.

Rows are described in docs/reference/formats/bookie-index.md. Invariants: a row is decoded only after its checksum was
found right; living ids of two rows of a ledger are disjoint (S7); counts and XORs of checksums always fit the rows.
"""

from __future__ import annotations

import struct
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from bkpy.errors import CorruptDataError
from bkpy.storage.entry_log.entry_log import KEPT, Place
from bkpy.storage.index.ids import SPAN_MAX, Ids, decode_bitmap, encode_bitmap
from bkpy.storage.journal.format import START, Mark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bkpy.runtime.interfaces import OrderedStore, ReadTransaction

VERSION: Final = 1
VERSION_WITH_KEPT: Final = 2  # of the shard's row, as soon as batches stay in journal files
VERSION_AT_RISK: Final = 3  # of the shard's row: what it says more must not be overlooked
VERSION_IN_DOUBT: Final = 4  # the same
BOOT_ID_BYTES: Final = 16
SHARD_KEY: Final = b"m"
FENCED: Final = 1
LIMBO: Final = 2
FENCE_OF_LIMBO: Final = 4
UNKNOWN_IN_LIMBO: Final = 1
KEEPS: Final = 2  # of a row of version 3 or 4: what version 2 alone says of others
UNASKED: Final = 4
HAS_FOOTER: Final = 1

_SHARD = struct.Struct("<BBH16sQQI")
_MARK = struct.Struct("<QQQ")
_DOUBT = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_LEDGER = struct.Struct("<BBHIqqIII")
_BLOCK = struct.Struct("<QQII")
_KEPT = struct.Struct("<QII")
_LOG = struct.Struct("<QII")
_LIVING = struct.Struct("<Q")  # behind the others, where it is known
_LEDGER_KEY = struct.Struct(">cQ")
_BLOCK_KEY = struct.Struct(">cQQ")
U64_END: Final = 1 << 64


class ShardRow(NamedTuple):
    """The shard's own row. `checksum` is the XOR over all ledger rows. `at_risk`: see `bkpy.storage.at_risk`."""

    uuid: bytes
    unknown_in_limbo: bool  # ledgers without a row may have been lost: never deny them
    next_log_id: int
    ledgers: int
    checksum: int
    marks: tuple[Mark, ...]
    keeps: bool = False  # batches stayed in journal files; software that can't know of that must not start here
    at_risk: bytes = b""
    unasked: bool = False  # ledgers without a row are in limbo only because no metadata said which there are
    limbo_to: int = -1  # ledgers without a row up to this id are in limbo: later ones were created after the loss


class LedgerRow(NamedTuple):
    """The state of a ledger. `checksum` is the XOR over its `blocks` block rows."""

    key: bytes
    fenced: bool
    limbo: bool
    explicit_lac: bytes = b""
    last_entry: int = -1
    lac: int = -1
    span_max: int = 0
    blocks: int = 0
    checksum: int = 0
    fence_of_limbo: bool = False  # it is fenced only because it is in limbo: no client asked for a fence


class KeptBatch(NamedTuple):
    """What a batch that stayed in a journal file has no block header for: its ids, and the checksum of its bytes."""

    first: int
    entries: int
    checksum: int


class BlockRow(NamedTuple):
    """The ids that live in a block, or in a batch that stayed in a journal file."""

    ids: Ids
    place: Place
    kept: KeptBatch | None = None


class LogRow(NamedTuple):
    """A complete log."""

    bytes: int
    blocks: int  # 0 if not known
    footer: bool
    living: int | None = None  # bytes of the blocks that rows name; None until they have been counted


def ledger_key(ledger_id: int) -> bytes:
    return _LEDGER_KEY.pack(b"l", ledger_id)


def block_key(ledger_id: int, first: int) -> bytes:
    return _BLOCK_KEY.pack(b"b", ledger_id, first)


def ledger_of_block(key: bytes) -> int:
    """The ledger id in the key of a block row."""
    ledger_id: int = _BLOCK_KEY.unpack(key)[1]
    return ledger_id


def first_of_block(key: bytes) -> int:
    """The lowest entry id in the key of a block row."""
    first: int = _BLOCK_KEY.unpack(key)[2]
    return first


def log_key(log_id: int) -> bytes:
    return _LEDGER_KEY.pack(b"g", log_id)


def trash_key(ledger_id: int) -> bytes:
    return _LEDGER_KEY.pack(b"d", ledger_id)


def seal(key: bytes, value: bytes) -> bytes:
    """A row's value as it is stored: with the checksum of key and value behind it."""
    return value + _CRC.pack(crc32c(value, crc32c(key)))


def unseal(key: bytes, value: bytes) -> bytes:
    """The value of a stored row; `CorruptDataError` if its checksum isn't right."""
    end = len(value) - _CRC.size
    content = value[:end]
    if end < 0 or _CRC.unpack_from(value, end)[0] != crc32c(content, crc32c(key)):
        raise CorruptDataError(f"the index row {key.hex()} doesn't match its checksum")
    return content


def checksum_of(value: bytes) -> int:
    """The checksum that a stored row ends with."""
    checksum: int = _CRC.unpack_from(value, len(value) - _CRC.size)[0]
    return checksum


def encode_shard(row: ShardRow) -> bytes:
    in_doubt = row.limbo_to >= 0
    version = VERSION_WITH_KEPT if row.keeps else VERSION
    if row.at_risk or in_doubt:
        version = VERSION_IN_DOUBT if in_doubt else VERSION_AT_RISK
    parts = [
        _SHARD.pack(
            version,
            (UNKNOWN_IN_LIMBO if row.unknown_in_limbo else 0)
            | (KEEPS if row.keeps and version >= VERSION_AT_RISK else 0)
            | (UNASKED if row.unasked else 0),
            len(row.marks),
            row.uuid,
            row.next_log_id,
            row.ledgers,
            row.checksum,
        ),
        *(_MARK.pack(mark.file_id, mark.offset, mark.sequence) for mark in row.marks),
        *(_CRC.pack(mark.chain) for mark in row.marks),
        _DOUBT.pack(row.limbo_to) if in_doubt else b"",
        row.at_risk,
    ]
    return seal(SHARD_KEY, b"".join(parts))


def decode_shard(value: bytes) -> ShardRow:
    content = unseal(SHARD_KEY, value)
    version, flags, n, uuid, next_log_id, ledgers, checksum = _SHARD.unpack_from(content)
    if version not in (VERSION_WITH_KEPT, VERSION_AT_RISK, VERSION_IN_DOUBT):
        _check_version(version)
    chains_at = _SHARD.size + n * _MARK.size
    end = chains_at + n * _CRC.size
    more = content[end:]
    begin = _DOUBT.size if version == VERSION_IN_DOUBT else 0
    at_risk = more[begin:]
    lengths = {VERSION_AT_RISK: (BOOT_ID_BYTES,), VERSION_IN_DOUBT: (0, BOOT_ID_BYTES)}.get(version, (0,))
    if len(more) < begin or len(at_risk) not in lengths:
        raise CorruptDataError("the index's own row has a wrong length")
    limbo_to = _DOUBT.unpack_from(more)[0] if begin else -1
    places = _MARK.iter_unpack(content[_SHARD.size : chains_at])
    chains = _CRC.iter_unpack(content[chains_at:end])
    marks = tuple(Mark(*place, *chain) for place, chain in zip(places, chains, strict=True))
    in_limbo = bool(flags & UNKNOWN_IN_LIMBO)
    keeps = version == VERSION_WITH_KEPT or (version >= VERSION_AT_RISK and bool(flags & KEEPS))
    unasked = bool(flags & UNASKED)
    return ShardRow(uuid, in_limbo, next_log_id, ledgers, checksum, marks, keeps, at_risk, unasked, limbo_to)


def encode_ledger(ledger_id: int, row: LedgerRow) -> bytes:
    flags = (FENCED if row.fenced else 0) | (LIMBO if row.limbo else 0) | (FENCE_OF_LIMBO if row.fence_of_limbo else 0)
    head = _LEDGER.pack(
        VERSION, flags, len(row.key), len(row.explicit_lac), row.last_entry, row.lac, row.span_max, row.blocks,
        row.checksum,
    )  # fmt: skip
    return seal(ledger_key(ledger_id), head + row.key + row.explicit_lac)


def decode_ledger(key: bytes, value: bytes) -> LedgerRow:
    content = unseal(key, value)
    version, flags, key_bytes, lac_bytes, last_entry, lac, span_max, blocks, checksum = _LEDGER.unpack_from(content)
    _check_version(version)
    middle = _LEDGER.size + key_bytes
    if middle + lac_bytes != len(content):
        raise CorruptDataError("a ledger's index row has a wrong length")
    return LedgerRow(
        content[_LEDGER.size : middle], bool(flags & FENCED), bool(flags & LIMBO), content[middle:], last_entry, lac,
        span_max, blocks, checksum, bool(flags & FENCE_OF_LIMBO),
    )  # fmt: skip


def encode_block_row(ledger_id: int, row: BlockRow) -> tuple[bytes, bytes]:
    """(key, value) of a row."""
    key = block_key(ledger_id, row.ids.first)
    head = _BLOCK.pack(row.place.log_id, row.place.offset, row.place.length, row.ids.last - row.ids.first)
    if (row.kept is not None) != bool(row.place.log_id & KEPT):
        raise AssertionError(f"the row of a block at {row.place} is of another kind than its file")
    if row.kept is not None:
        head += _KEPT.pack(*row.kept)
    return key, seal(key, head + encode_bitmap(row.ids))


def decode_block_row(key: bytes, value: bytes) -> BlockRow:
    content = unseal(key, value)
    log_id, offset, length, span = _BLOCK.unpack_from(content)
    first = first_of_block(key)
    kept, end = None, _BLOCK.size
    if log_id & KEPT:
        kept, end = KeptBatch(*_KEPT.unpack_from(content, end)), end + _KEPT.size
    return BlockRow(decode_bitmap(first, span + 1, content[end:]), Place(log_id, offset, length), kept)


def encode_log(log_id: int, row: LogRow) -> bytes:
    content = _LOG.pack(row.bytes, row.blocks, HAS_FOOTER if row.footer else 0)
    return seal(log_key(log_id), content if row.living is None else content + _LIVING.pack(row.living))


def decode_log(key: bytes, value: bytes) -> LogRow:
    content = unseal(key, value)
    size, blocks, flags = _LOG.unpack_from(content)
    living = _LIVING.unpack_from(content, _LOG.size)[0] if len(content) > _LOG.size else None
    return LogRow(size, blocks, bool(flags & HAS_FOOTER), living)


def _check_version(version: int) -> None:
    if version != VERSION:
        raise CorruptDataError(f"an index row of version {version}; this software reads version {VERSION}")


# --- reading ----------------------------------------------------------------------------------------------------------


def get_ledger(txn: ReadTransaction, ledger_id: int) -> LedgerRow | None:
    """The ledger's row, None if there is none; `CorruptDataError` if it is damaged."""
    key = ledger_key(ledger_id)
    value = txn.get(key)
    return None if value is None else decode_ledger(key, value)


def scan_blocks(txn: ReadTransaction, ledger_id: int, low: int, high: int) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of the ledger's block rows with low <= lowest id <= high."""
    return txn.scan(block_key(ledger_id, max(0, low)), after(block_key(ledger_id, high)))


def after(key: bytes) -> bytes:
    return key + b"\0"


def find_blocks(
    txn: ReadTransaction, ledger_id: int, span_max: int, first: int, last: int, bytes_max: int
) -> tuple[list[BlockRow], int, bool]:
    """(rows that may hold ids from first to last, the id up to which these are all, whether a row was damaged).

    Stops after about `bytes_max` bytes of blocks, but never before all that may hold `first`.
    """
    rows: list[BlockRow] = []
    total, damaged = 0, False
    for key, value in scan_blocks(txn, ledger_id, first - span_max, last):
        try:
            row = decode_block_row(key, value)
        except CorruptDataError:
            damaged = True
            continue
        if row.ids.last < first:
            continue
        if total >= bytes_max and row.ids.first > first:
            return rows, row.ids.first - 1, damaged
        rows.append(row)
        wanted = row.ids.count - row.ids.rank(first)  # what it has before `first` makes no answer longer
        total += row.place.length * wanted // row.ids.count
    return rows, last, damaged


def blocks_fit(txn: ReadTransaction, ledger_id: int, row: LedgerRow) -> bool:
    """Whether the ledger's block rows fit the count and checksum in its row, and each has a right checksum."""
    count, checksum = 0, 0
    try:
        for key, value in scan_blocks(txn, ledger_id, 0, U64_END - 1):
            unseal(key, value)
            count += 1
            checksum ^= checksum_of(value)
    except CorruptDataError:
        return False
    return (count, checksum) == (row.blocks, row.checksum)


def ledger_rows(txn: ReadTransaction, first: int = 0) -> Iterator[tuple[int, bytes, bytes]]:
    """(ledger id, key, value) of all ledger rows from the id `first` on."""
    for key, value in txn.scan(ledger_key(first), b"m"):
        yield _LEDGER_KEY.unpack(key)[1], key, value


def held_ledgers(txn: ReadTransaction, after: int, limit: int) -> list[int]:
    """The lowest ids above `after` that have a row, `limit` at most."""
    rows = txn.scan(ledger_key(after + 1), b"m")
    return [_LEDGER_KEY.unpack(key)[1] for key, _ in islice(rows, limit)]


def block_rows(txn: ReadTransaction) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of all block rows, those of deleted ledgers included."""
    return txn.scan(block_key(0, 0), b"c")


def trash_rows(txn: ReadTransaction) -> list[int]:
    """The ids of deleted ledgers that still have block rows. The keys say all that there is to say."""
    return [_LEDGER_KEY.unpack(key)[1] for key, _ in txn.scan(trash_key(0), b"e")]


def log_rows(txn: ReadTransaction) -> dict[int, LogRow | None]:
    """The rows of all logs that have one, None for one that is damaged."""
    rows: dict[int, LogRow | None] = {}
    for key, value in txn.scan(log_key(0), b"h"):
        try:
            rows[_LEDGER_KEY.unpack(key)[1]] = decode_log(key, value)
        except CorruptDataError:
            rows[_LEDGER_KEY.unpack(key)[1]] = None
    return rows


def ledgers_fit(txn: ReadTransaction, shard: ShardRow) -> bool:
    """Whether the ledger rows fit the count and checksum in the shard's row, and each has a right checksum."""
    count, checksum = 0, 0
    for _, key, value in ledger_rows(txn):
        try:
            unseal(key, value)
        except CorruptDataError:
            return False
        count += 1
        checksum ^= checksum_of(value)
    return (count, checksum) == (shard.ledgers, shard.checksum)


def is_whole(txn: ReadTransaction, uuid: bytes) -> bool:
    """Whether this is the index of that uuid, with the ledger rows that its own row counts."""
    value = txn.get(SHARD_KEY)
    if value is None:
        return False
    try:
        shard = decode_shard(value)
    except CorruptDataError:
        return False
    return shard.uuid == uuid and ledgers_fit(txn, shard)


def load_shard(store: OrderedStore) -> ShardRow | None:
    """The shard's row, None in an environment that was never initialised."""
    with store.read() as txn:
        value = txn.get(SHARD_KEY)
    return None if value is None else decode_shard(value)


def initialise(store: OrderedStore, uuid: bytes, journals: int) -> ShardRow:
    """Give a new environment its row."""
    row = ShardRow(uuid, False, 1, 0, 0, (START,) * journals)
    put_shard(store, row)
    return row


def put_shard(store: OrderedStore, row: ShardRow) -> None:
    """Store the shard's own row. Blocks."""
    with store.write() as txn:
        txn.put(SHARD_KEY, encode_shard(row))


def doubt_up_to(store: OrderedStore, row: ShardRow, limbo_to: int) -> ShardRow:
    """Put ledgers without a row up to this id in limbo, if they aren't. Blocks."""
    if limbo_to > row.limbo_to:
        row = row._replace(limbo_to=limbo_to)
        put_shard(store, row)
    return row


def put_all_in_limbo(store: OrderedStore, shard: ShardRow) -> ShardRow:
    """Fence every ledger, with or without a row, and put it in limbo; replace damaged rows.

    One transaction. A row that replaces a damaged one has no key, so nobody is authorised for its ledger.
    """
    count, checksum = 0, 0
    with store.write() as txn:
        for ledger_id, key, value in list(ledger_rows(txn)):
            try:
                row = decode_ledger(key, value)
                of_limbo = row.fence_of_limbo or not row.fenced
                row = row._replace(fenced=True, limbo=True, fence_of_limbo=of_limbo)
            except CorruptDataError:
                row = _row_from_blocks(txn, ledger_id)
            value = encode_ledger(ledger_id, row)
            txn.put(key, value)
            count += 1
            checksum ^= checksum_of(value)
        shard = shard._replace(unknown_in_limbo=True, unasked=False, ledgers=count, checksum=checksum)
        txn.put(SHARD_KEY, encode_shard(shard))
    return shard


def _row_from_blocks(txn: ReadTransaction, ledger_id: int) -> LedgerRow:
    last_entry, count, checksum = -1, 0, 0
    for key, value in scan_blocks(txn, ledger_id, 0, U64_END - 1):
        count += 1
        checksum ^= checksum_of(value)
        try:
            last_entry = max(last_entry, decode_block_row(key, value).ids.last)
        except CorruptDataError:
            last_entry = max(last_entry, first_of_block(key) + SPAN_MAX - 1)
    return LedgerRow(b"", True, True, b"", last_entry, -1, SPAN_MAX - 1, count, checksum)
