"""Completes the ledgers of a new index by the metadata: their keys, and which of them need no limbo.

Invariant: a ledger leaves limbo only if nothing was lost, it is CLOSED, and all that this bookie has to hold of it is
in the index (S14); of a ledger that the old index had in limbo, the bookie has to hold something. Everything here
blocks.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from bkpy.protocol.ledger.ledger_metadata import LedgerState
from bkpy.protocol.repair.holdings import holdings
from bkpy.storage.index.changes import Changes
from bkpy.storage.index.ids import SPAN_MAX, Ids
from bkpy.storage.index.index import LedgerRow, decode_block_row, decode_ledger, ledger_key, ledger_rows, scan_blocks
from bkpy.storage.index.living import LivingBytes

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.repair.holdings import Share
    from bkpy.runtime.interfaces import OrderedStore, ReadTransaction
    from bkpy.storage.index.index import ShardRow


class Settled(NamedTuple):
    """The shard's own row, and how many of the ledgers are in limbo, without a key, and not in the metadata."""

    shard: ShardRow
    limbo: int
    keyless: int
    unknown: int


def ledger_ids_after(store: OrderedStore, ledger_id: int, count: int) -> list[int]:
    """The next ids that have a row."""
    with store.read() as txn:
        return [i for i, _, _ in islice(ledger_rows(txn, ledger_id + 1), count)]


def settle(
    store: OrderedStore,
    shard: ShardRow,
    bookie_id: str,
    metadata: Mapping[int, LedgerMetadata | None],
    lost_to: int,
    in_limbo: Collection[int] = (),
) -> Settled:
    """Complete these ledgers by `metadata`, where None stands for a ledger that doesn't exist.

    A ledger is in limbo while entries may be missing. The metadata of a CLOSED ledger say which entries must be here,
    but not what a re-replication has just stored and is about to name the bookie for. So limbo of ledgers up to the id
    `lost_to`, of which anything may be lost, ends only under their lock (`bkpy.storage.losses`). The same holds for
    ledgers that the old index had in limbo and of which the metadata want nothing here: nothing proves that the lost
    entries are here again.
    """
    changes = Changes(shard, LivingBytes(), max(1, len(metadata)))
    limbo = keyless = unknown = 0
    with store.read() as txn:
        for ledger_id, found in metadata.items():
            key = ledger_key(ledger_id)
            value = txn.get(key)
            assert value is not None
            row = decode_ledger(key, value)
            if found is None:
                unknown += 1
            else:
                wanted = ledger_id not in in_limbo or _names(found, bookie_id)
                limbo_here = ledger_id <= lost_to or not wanted or not holds_all(txn, found, bookie_id)
                # Entries under another key than the ledger's are no entries of it: that key stays, and opens nothing.
                key = row.key if row.key and row.blocks else found.ledger_key
                limbo_here = limbo_here or key != found.ledger_key
                of_limbo = limbo_here and row.fence_of_limbo
                row = row._replace(key=key, limbo=limbo_here, fence_of_limbo=of_limbo)
            limbo += row.limbo
            keyless += not row.key
            changes.ledger(txn, ledger_id, row)
    changes.commit(store)
    return Settled(changes.shard, limbo, keyless, unknown)


def ledgers_without_row(stores: Sequence[OrderedStore], ledger_ids: Sequence[int]) -> list[int]:
    """Those of the ledgers that have a row in none of these indexes."""
    missing = list(ledger_ids)
    for store in stores:
        with store.read() as txn:
            missing = [i for i in missing if txn.get(ledger_key(i)) is None]
    return missing


def add_missing(
    store: OrderedStore,
    shard: ShardRow,
    bookie_id: str,
    metadata: Mapping[int, LedgerMetadata | None],
    in_limbo: Collection[int] = (),
) -> Settled:
    """Put those of these ledgers in limbo, without an entry, that this bookie may have held entries of.

    They are in the metadata store and in no index of the bookie; None stands for metadata that can't be read.
    `in_limbo`: ledgers that the old index had in limbo.
    """
    changes = Changes(shard, LivingBytes(), max(1, len(metadata)))
    limbo = keyless = 0
    with store.read() as txn:
        for ledger_id, found in metadata.items():
            if found is not None and (
                holds_all(txn, found, bookie_id) if _names(found, bookie_id) else ledger_id not in in_limbo
            ):
                continue
            row = LedgerRow(b"" if found is None else found.ledger_key, fenced=True, limbo=True, fence_of_limbo=True)
            changes.ledger(txn, ledger_id, row)
            limbo += 1
            keyless += not row.key
    if limbo:
        changes.commit(store)
    return Settled(changes.shard, limbo, keyless, 0)


def _names(metadata: LedgerMetadata, bookie_id: str) -> bool:
    return any(bookie_id in fragment.bookies for fragment in metadata.fragments)


def holds_all(txn: ReadTransaction, metadata: LedgerMetadata, bookie_id: str) -> bool:
    """Whether the ledger is CLOSED, and all entries that the bookie has to hold are in the index."""
    if metadata.state is not LedgerState.CLOSED:
        return False
    return all(
        _holds(txn, metadata.ledger_id, share, part.first_entry, part.last_entry)
        for part in holdings(metadata)
        for share in part.shares
        if share.bookie_id == bookie_id and share.entries and part.last_entry is not None
    )


def _holds(txn: ReadTransaction, ledger_id: int, share: Share, first: int, last: int) -> bool:
    found = 0
    for key, value in scan_blocks(txn, ledger_id, first - SPAN_MAX + 1, last):
        ids = decode_block_row(key, value).ids
        low, high = max(first, ids.first), min(last, ids.last)
        if low > high:
            continue
        bits = ids.bits(low, high)
        for start in share.starts:
            begin = start if start >= low else start + -((start - low) // share.step) * share.step
            if begin <= high:
                wanted = Ids(begin, (high - begin) // share.step + 1, share.step)
                found += (bits & wanted.bits(low, high)).bit_count()
    return found == share.entries
