"""Ledgers as their writers left them when they died, and bookies that fail while those are recovered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.hooks import pool_of
from tests.in_process import InProcess, add, contents

from bkpy.protocol.ledger.ledger_metadata import LedgerState
from bkpy.protocol.wire.messages import Flags, Status
from bkpy.protocol.wire.records import RecordCodec

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.client.client import Client
    from bkpy.client.write.writer import LedgerWriter


def payload(entry_id: int) -> bytes:
    return b"%d:" % entry_id + bytes(entry_id % 50)


async def write(client: Client, count: int, **ledger: Any) -> LedgerWriter:
    """A ledger with so many acknowledged entries, whose writer has gone."""
    writer = await client.create_ledger(**ledger)
    for i in range(count):
        await writer.append(payload(i))
    writer.abandon()
    return writer


async def put(client: Client, writer: LedgerWriter, bookie_id: str, entry_ids: list[int], lac: int = -1) -> None:
    """Entries on one bookie alone: what an append that got no further leaves behind."""
    codec = RecordCodec(writer.ledger_id)
    pool_of(client).add_key(writer.ledger_id, writer.metadata.ledger_key)
    for entry_id in entry_ids:
        parts: list[Any] = []
        length = sum(len(payload(i)) for i in range(entry_id + 1))
        codec.encode(parts, [payload(entry_id)], entry_id, 1, lac, [length])
        body = b"".join(parts)
        columns = [0, [writer.ledger_id], [entry_id], [1], 1, [len(body)]]
        assert await add(pool_of(client).channel(bookie_id), columns, body, pool_of(client)) == Status.OK


async def check_closed(client: Client, ledger_id: int, count: int) -> None:
    metadata = await client.ledger_metadata(ledger_id)
    assert metadata.state is LedgerState.CLOSED
    assert metadata.last_entry == count - 1
    assert metadata.length == sum(len(payload(i)) for i in range(count))
    assert await contents(client, ledger_id) == [payload(i) for i in range(count)]


def fail_adds(cluster: InProcess, name: str) -> Callable[[], None]:
    """The bookie drops the connection at every add that passes a fence, and answers everything else.

    Returns what ends that.
    """
    storage = cluster.storage(name)
    add_to_storage = storage.add

    def drop(columns: Any, *rest: Any) -> None:
        if columns.flags & Flags.RECOVERY:
            for connection in cluster.connections(name):
                connection.abort()
            return
        add_to_storage(columns, *rest)

    storage.add = drop  # type: ignore[method-assign]

    def restore() -> None:
        storage.add = add_to_storage  # type: ignore[method-assign]

    return restore
