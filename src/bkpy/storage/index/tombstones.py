"""Tombstones: the ids of ledgers that were deleted here, as ranges. Such a ledger stays fenced for good (S12).

Invariants: ranges don't overlap and don't touch; a deleted id stays in a range; a damaged range never counts as none.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from bkpy.errors import CorruptDataError
from bkpy.storage.index.index import seal, unseal

if TYPE_CHECKING:
    from bkpy.runtime.interfaces import OrderedStore, ReadTransaction, WriteTransaction

_KEY: Final = struct.Struct(">cQ")
_LAST: Final = struct.Struct("<Q")


def tombstone_key(first: int) -> bytes:
    return _KEY.pack(b"t", first)


def encode_tombstone(first: int, last: int) -> bytes:
    """The value of the row of the ids from `first` to `last`."""
    return seal(tombstone_key(first), _LAST.pack(last))


def decode_tombstone(key: bytes, value: bytes) -> tuple[int, int]:
    """(first, last) of a row; `CorruptDataError` if it is damaged."""
    last: int = _LAST.unpack(unseal(key, value))[0]
    return _first(key), last


def has_tombstone(txn: ReadTransaction, ledger_id: int) -> bool:
    """Whether the ledger was deleted here; `CorruptDataError` if the range that would say so is damaged."""
    for key, value in txn.scan(tombstone_key(0), tombstone_key(ledger_id) + b"\0", reverse=True):
        try:
            return decode_tombstone(key, value)[1] >= ledger_id
        except CorruptDataError as e:
            raise CorruptDataError(
                f"whether the ledger was deleted here is not known, for a tombstone is damaged: {e}",
                ledger_id=ledger_id,
            ) from e
    return False


def add_tombstone(txn: WriteTransaction, ledger_id: int) -> None:
    """Add the id to the ranges, and join it with ranges that it touches.

    Not behind a damaged range: there nobody knows which ids were deleted, and no range may seem to say it.
    """
    first = last = ledger_id
    for key, value in txn.scan(tombstone_key(0), tombstone_key(ledger_id) + b"\0", reverse=True):
        below = _sound(key, value)
        if below is None or below[1] >= ledger_id:
            return
        if below[1] == ledger_id - 1:
            first = below[0]
        break
    key = tombstone_key(ledger_id + 1)
    value_above = txn.get(key)
    above = None if value_above is None else _sound(key, value_above)
    if above is not None:
        last = above[1]
        txn.delete(key)
    txn.put(tombstone_key(first), encode_tombstone(first, last))


def add_tombstones_up_to(txn: WriteTransaction, last: int) -> None:
    """Let one range, from 0 to `last`, take the place of all there are: for an index that doesn't know what it lost."""
    for key, _ in list(txn.scan(b"t", b"u")):
        txn.delete(key)
    txn.put(tombstone_key(0), encode_tombstone(0, last))


def damaged_tombstones(txn: ReadTransaction) -> list[int]:
    """The first id of each damaged range."""
    return [_first(key) for key, value in txn.scan(b"t", b"u") if _sound(key, value) is None]


def replace_damaged_tombstones(store: OrderedStore) -> None:
    """Let each damaged range be one that reaches to the next sound one, or to the last of them that can be read.

    Only where all ledgers are in limbo: what ended behind that is fenced for this, as every ledger that nobody knows.
    """
    with store.write() as txn:
        first = last = -1  # of damaged ranges in a row
        for key, value in list(txn.scan(b"t", b"u")):
            sound = _sound(key, value)
            if sound is None:
                last = _first(key)
                first = last if first < 0 else first
                txn.delete(key)
            elif first >= 0:
                txn.delete(key)
                txn.put(tombstone_key(first), encode_tombstone(first, sound[1]))
                first = -1
        if first >= 0:
            txn.put(tombstone_key(first), encode_tombstone(first, last))


def _first(key: bytes) -> int:
    first: int = _KEY.unpack(key)[1]
    return first


def _sound(key: bytes, value: bytes) -> tuple[int, int] | None:
    try:
        return decode_tombstone(key, value)
    except CorruptDataError:
        return None
