"""Looks into the index of a ledger directory: every row with its checksum, and whether counts and sums fit the rows.

Invariant: everything is of one snapshot, so that what doesn't fit is damage also while the bookie writes. Rows whose
checksum is right and whose form isn't known are a later version's, not damage.
"""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from bkpy.errors import CorruptDataError
from bkpy.storage.entry_log.entry_log import log_name
from bkpy.storage.file_names import INDEX_NAME
from bkpy.storage.index import index
from bkpy.storage.index.tombstones import decode_tombstone
from bkpy.storage.ledgers.info import lac_of
from bkpy.storage.tools.inspect.finding import COPIES, Finding, damage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bkpy.runtime.interfaces import ReadTransaction
    from bkpy.storage.index.index import BlockRow, LedgerRow, LogRow, ShardRow
    from bkpy.storage.journal.format import Mark

NOT_READABLE: Final = (CorruptDataError, ValueError, struct.error)  # what comes of a row that isn't as it should be
_ALL: Final = (b"\0", b"\xff" * 32)
_LIMBO = "the next start puts what it can't trust into limbo: it is answered *unknown*, never denied"
_NAMES = {b"b": "block", b"d": "deleted ledger", b"g": "log", b"l": "ledger", b"m": "shard", b"t": "tombstones"}


def fingerprint(key: bytes) -> str:
    """A text that distinguishes ledger keys and grants nothing."""
    return hashlib.sha256(key).hexdigest()[:16] if key else ""


def mark_facts(mark: Mark) -> dict[str, object]:
    return {"file": f"{mark.file_id:016x}.txn", "offset": mark.offset, "sequence": mark.sequence}


def is_sound(key: bytes, value: bytes) -> bool:
    """Whether the checksum that a stored row ends with is right."""
    return len(value) >= 4 and index.checksum_of(value) == crc32c(value[:-4], crc32c(key))


def shard_facts(row: ShardRow) -> dict[str, object]:
    return {
        "uuid": row.uuid.hex(),
        "ledgers": row.ledgers,
        "next_log": row.next_log_id,
        "unknown_in_limbo": row.unknown_in_limbo,
        "limbo_to": row.limbo_to if row.limbo_to >= 0 else None,
        "marks": [mark_facts(mark) for mark in row.marks],
    }


def ledger_facts(ledger_id: int, row: LedgerRow) -> dict[str, object]:
    return {
        "ledger": ledger_id,
        "key": fingerprint(row.key),
        "fenced": row.fenced,
        "limbo": row.limbo,
        "last_entry": row.last_entry,
        "lac": row.lac,
        "explicit_lac": lac_of(row.explicit_lac) if row.explicit_lac else None,
        "blocks": row.blocks,
    }


def block_facts(ledger_id: int, row: BlockRow) -> dict[str, object]:
    return {
        "ledger": ledger_id,
        "first": row.ids.first,
        "last": row.ids.last,
        "entries": row.ids.count,
        "log": log_name(row.place.log_id),
        "log_offset": row.place.offset,
        "bytes": row.place.length,
    }


class IndexInspection:
    """One look at an index, through a transaction that is held until it ends. `ledger`: the only one looked at."""

    def __init__(self, directory: str, txn: ReadTransaction, *, ledger: int | None = None) -> None:
        self._path = f"{directory}/{INDEX_NAME}"
        self._txn = txn
        self._ledger = ledger
        self._rows = 0

    def run(self) -> Iterator[Finding]:
        if self._ledger is None:
            yield from self._shard()
        sums: tuple[int, int, int] | None = None  # ledger, rows and sum of the block rows that were just read
        ledgers, checksum = 0, 0
        before = b""
        for key, value in self._all():
            if key <= before:
                yield self._damage(key, "rows are out of order: the pages of the file are damaged")
                return
            before = key
            self._rows += 1
            block_of = _numbers(key)[0] if key[:1] == b"b" and len(key) == 17 else None
            if sums is not None and block_of != sums[0]:
                yield from self._check_blocks(*sums)
                sums = None
            if block_of is not None:
                _, count, of_blocks = sums or (block_of, 0, 0)
                sums = (block_of, count + 1, of_blocks ^ _sum(value))
            elif key[:1] == b"l":
                ledgers, checksum = ledgers + 1, checksum ^ _sum(value)
            yield from self._row(key, value)
        if sums is not None:
            yield from self._check_blocks(*sums)
        if self._ledger is None:
            yield from self._check_ledgers(ledgers, checksum)

    def _all(self) -> Iterator[tuple[bytes, bytes]]:
        if self._ledger is None:
            yield from self._txn.scan(*_ALL)
            return
        yield from index.scan_blocks(self._txn, self._ledger, 0, (1 << 64) - 1)
        key = index.ledger_key(self._ledger)
        for one in (index.trash_key(self._ledger), key):
            if (value := self._txn.get(one)) is not None:
                yield one, value

    def _shard(self) -> Iterator[Finding]:
        if self._txn.get(index.SHARD_KEY) is None:
            yield damage(self._path, None, "the index has no row of its own: it was never finished, or lost it", _LIMBO)

    def _row(self, key: bytes, value: bytes) -> Iterator[Finding]:
        """The row, and whatever is wrong with it."""
        kind = key[:1]
        name = _NAMES.get(kind, f"kind {key[:1]!r}")
        about = _numbers(key)[0] if kind in (b"b", b"l", b"d") and len(key) >= 9 else None
        if not is_sound(key, value):
            yield self._damage(key, f"a {name} row doesn't match its checksum", ledger=about)
            return
        try:
            yield Finding("row", self._path, None, {"row": name, **self._facts(key, value)})
        except NOT_READABLE:
            facts = {"row": name, "key": key.hex(), "bytes": len(value), "form": "not known to this version"}
            yield Finding("row", self._path, None, facts)
        if kind == b"l":
            yield from self._blocks_there(key, value)

    def _facts(self, key: bytes, value: bytes) -> dict[str, object]:
        kind, numbers = key[:1], _numbers(key)
        if key == index.SHARD_KEY:
            return shard_facts(index.decode_shard(value))
        if kind == b"l" and len(key) == 9:
            return ledger_facts(numbers[0], index.decode_ledger(key, value))
        if kind == b"b" and len(key) == 17:
            return block_facts(numbers[0], index.decode_block_row(key, value))
        if kind == b"g" and len(key) == 9:
            return _log_facts(numbers[0], index.decode_log(key, value))
        if kind == b"d" and len(key) == 9:
            return {"ledger": numbers[0]}
        if kind == b"t" and len(key) == 9:
            return dict(zip(("first", "last"), decode_tombstone(key, value), strict=True))
        return {"key": key.hex(), "bytes": len(value)}

    def _blocks_there(self, key: bytes, value: bytes) -> Iterator[Finding]:
        """Damage if a ledger's row counts block rows and there are none at all, so that no block row shows it."""
        ledger_id = _numbers(key)[0]
        row = _ledger_row(key, value)
        if (
            row is not None
            and row.blocks
            and next(index.scan_blocks(self._txn, ledger_id, 0, (1 << 64) - 1), None) is None
        ):
            yield self._damage(key, f"all {row.blocks} block rows are gone", ledger=ledger_id)

    def _check_blocks(self, ledger_id: int, count: int, checksum: int) -> Iterator[Finding]:
        key = index.ledger_key(ledger_id)
        value = self._txn.get(key)
        if value is None:
            if self._txn.get(index.trash_key(ledger_id)) is None:
                yield self._damage(key, f"there are {count} block rows, and no row of their ledger", ledger=ledger_id)
            return
        row = _ledger_row(key, value)  # the inspection of the row reports its damage
        if row is not None and (row.blocks, row.checksum) != (count, checksum):
            what = f"the ledger's row counts {row.blocks} block rows, and {count} are here, or one was changed"
            yield self._damage(key, what, ledger=ledger_id)

    def _check_ledgers(self, count: int, checksum: int) -> Iterator[Finding]:
        value = self._txn.get(index.SHARD_KEY)
        try:
            row = None if value is None else index.decode_shard(value)
        except NOT_READABLE:
            row = None
        if row is not None and (row.ledgers, row.checksum) != (count, checksum):
            what = f"the index counts {row.ledgers} ledger rows, and {count} are here, or one was changed"
            yield damage(self._path, None, what, _LIMBO)
        yield Finding("end", self._path, None, {"rows": self._rows, "ledgers": count})

    def _damage(self, key: bytes, what: str, *, ledger: int | None = None) -> Finding:
        ledgers = {} if ledger is None else {"ledger": ledger}
        return damage(self._path, None, what, f"{_LIMBO}; {COPIES}", **ledgers, key=key.hex())


def _ledger_row(key: bytes, value: bytes) -> LedgerRow | None:
    """The row, None if it is damaged or of a form that this version doesn't know."""
    try:
        return index.decode_ledger(key, value)
    except NOT_READABLE:
        return None


def _log_facts(log_id: int, row: LogRow) -> dict[str, object]:
    facts: dict[str, object] = {"log": log_name(log_id), "bytes": row.bytes, "blocks": row.blocks}
    return facts | {"footer": row.footer, "living_bytes": row.living}


def _numbers(key: bytes) -> list[int]:
    return [int.from_bytes(key[at : at + 8], "big") for at in range(1, len(key) - 7, 8)]


def _sum(value: bytes) -> int:
    return index.checksum_of(value) if len(value) >= 4 else 0


def living_at(txn: ReadTransaction, log_id: int, start: int, end: int) -> list[tuple[int, int, int]]:
    """(ledger, first, last) of the rows of blocks in that part of a log. Looks at all block rows."""
    found = []
    for key, value in txn.scan(b"b", b"c"):
        try:
            row = index.decode_block_row(key, value)
        except NOT_READABLE:
            continue
        place = row.place
        if place.log_id == log_id and place.offset < end and place.offset + place.length > start:
            found.append((_numbers(key)[0], row.ids.first, row.ids.last))
    return found
