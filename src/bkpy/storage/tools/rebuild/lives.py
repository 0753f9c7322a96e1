"""Brings a ledger that several indexes have into one of them, with all that each has of it.

A ledger that was deleted and stored again, while ledger directories were added, has blocks of each life in another one.
Files don't tell which life was the last; but an entry is the same in all of them, so all are kept.

Invariant: a ledger is taken out of an index only after the one that keeps it has, durably, every entry of it that can
be read, and is in limbo if one can't. Everything here blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bkpy.errors import CorruptDataError
from bkpy.protocol.wire.messages import AddColumns
from bkpy.protocol.wire.records import walk
from bkpy.storage.index.index import U64_END, decode_block_row, first_of_block, scan_blocks
from bkpy.storage.ledgers.info import take_explicit_lac
from bkpy.storage.tools.rebuild.settle import ledger_ids_after

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from bkpy.storage.index.index import BlockRow
    from bkpy.storage.journal.format import Mark
    from bkpy.storage.ledgers.ledgers import Ledgers
    from bkpy.storage.shard import Shard


async def join_lives(
    ledgers: Ledgers, shard: Shard, rebuilt: Collection[int], ends: Sequence[Mark], rows_max: int
) -> None:
    """Join all ledgers of a rebuilt `shard` that another one has as well. Nothing is in memory before, nor after.

    `rebuilt`: the numbers of shards with a new index. `rows_max` are looked at at a time.
    """
    after = -1
    while ids := ledger_ids_after(shard.store, after, rows_max):
        after = ids[-1]
        holders: dict[int, list[Shard]] = {}
        for one in ledgers.shards:
            for ledger_id in one.load_now(ids).rows:
                holders.setdefault(ledger_id, []).append(one)
        for ledger_id, shards in holders.items():
            if len(shards) > 1:
                await _join(ledgers, ledger_id, shards, rebuilt, ends, rows_max)
        ledgers.trim()


async def _join(
    ledgers: Ledgers,
    ledger_id: int,
    shards: Sequence[Shard],
    rebuilt: Collection[int],
    ends: Sequence[Mark],
    rows_max: int,
) -> None:
    """Keep the ledger in an index that wasn't lost, if one has it, or else in that of its id."""
    home, *others = sorted(
        shards, key=lambda one: (one.number in rebuilt, (one.number - ledger_id) % len(ledgers.shards))
    )
    unread = False
    for other in others:
        after = -1
        while (rows := _blocks_after(other, ledger_id, after, rows_max)).keys:
            after = rows.keys[-1]
            unread = unread or rows.damaged
            for row in rows.sound:
                unread = not await _copy(other, home, ledger_id, row) or unread
                if home.memory_bytes >= ledgers.generation_bytes_max:
                    await ledgers.checkpoint(home, lambda: ends)
    states = [one.load_now((ledger_id,)).rows[ledger_id] for one in others]
    for other in others:
        ledgers.forget(ledger_id, other)
    info = ledgers.load_now(ledger_id)
    assert info is not None
    for state in states:
        asked = any(one.fenced and not one.fence_of_limbo for one in (info, state))
        info.fenced = info.fenced or state.fenced
        info.fence_of_limbo = info.fenced and not asked
        info.key = info.key or state.key
        take_explicit_lac(info, state.explicit_lac)
    if info.fenced:
        ledgers.fenced.add(ledger_id)
    info.limbo = info.limbo or unread
    ledgers.touch(info)
    await ledgers.checkpoint(home, lambda: ends)
    for other in others:
        await other.write_tombstones()
        while other.deleted.trash:
            await other.purge(other.deleted.trash)


class _Rows(NamedTuple):
    """Some block rows of a ledger: the lowest ids of all, the readable rows, and whether there is a damaged one."""

    keys: list[int]
    sound: list[BlockRow]
    damaged: bool


def _blocks_after(shard: Shard, ledger_id: int, after: int, count: int) -> _Rows:
    rows = _Rows([], [], False)
    with shard.store.read() as txn:
        for key, value in scan_blocks(txn, ledger_id, after + 1, U64_END - 1):
            rows.keys.append(first_of_block(key))
            try:
                rows.sound.append(decode_block_row(key, value))
            except CorruptDataError:
                rows = rows._replace(damaged=True)
            if len(rows.keys) == count:
                break
    return rows


async def _copy(source: Shard, target: Shard, ledger_id: int, row: BlockRow) -> bool:
    """Add the entries that a row names to the memtable of another shard; whether all could be read."""
    block = (await source.load_blocks(ledger_id, [row]))[row.place]
    if isinstance(block, Exception):
        return False
    try:
        found = {
            header.entry_id: block.data[header.offset : header.end]
            for header in walk(block.data)
            if row.ids.first <= header.entry_id <= row.ids.last and row.ids.bits(header.entry_id, header.entry_id)
        }
    except CorruptDataError:
        return False
    ids, parts = list(found), list(found.values())
    if found:
        columns = AddColumns(0, [ledger_id] * len(ids), ids, [1] * len(ids), 1, list(map(len, parts)))
        target.active.add(columns, b"".join(parts))
    return len(ids) == row.ids.count
