"""What a client has for the deletion of logs, and of their ledgers."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from tests.unit.metadata.logs.log_world import LIST

from bkpy.client.client import log_parts
from bkpy.errors import ClientClosedError, ConfigError, NoSuchLedgerError, NoSuchLogError
from bkpy.log.client import create_segment
from bkpy.metadata.store.outcome import Done
from bkpy.metadata.store.store import Create, Put
from bkpy.protocol.log.log_list import LogList, Segment
from bkpy.protocol.wire.records import ledger_key

if TYPE_CHECKING:
    from tests.in_process import InProcess

    from bkpy.client.client import Client


async def ledger(client: Client) -> int:
    log_list = LogList("u1", 3, 3, 2, "crc32c", ledger_key(b""))
    writer = await create_segment(log_parts(client), "orders", log_list, b"")
    await writer.append(b"an entry")
    await writer.close()
    return writer.ledger_id


async def made(client: Client, name: str, *segments: Segment) -> None:
    log_list = LogList("u1", 3, 3, 2, "crc32c", bytes(16), segments=segments)
    assert isinstance(await log_parts(client).logs.create(name, log_list), Done)


async def test_a_log_is_listed_until_it_is_deleted(cluster: InProcess) -> None:
    client = await cluster.client()
    assert [name async for name in client.list_logs()] == []
    named, unnamed = await ledger(client), await ledger(client)
    await made(client, "orders", Segment(named, 0, 0).seal(1, 8, 0))
    await made(client, "bills")
    cluster.tree.apply(Create(LIST.replace("orders", "damaged"), b"?"), 0)
    assert [name async for name in client.list_logs()] == ["bills", "damaged", "orders"]
    log_list, version = await log_parts(client).logs.read("bills")
    cluster.tree.apply(Put(LIST.replace("orders", "bills"), log_list.encode().replace(b"false", b"true"), version), 0)
    assert [name async for name in client.list_logs()] == ["damaged", "orders"]
    await client.delete_log("orders")
    assert [name async for name in client.list_logs()] == ["damaged"]
    with pytest.raises(NoSuchLogError):
        await client.delete_log("orders")
    with pytest.raises(NoSuchLedgerError):
        await client.ledger_metadata(named)
    await client.delete_ledger(unnamed)


async def test_a_ledger_that_a_log_has_is_refused_to_those_who_delete_it(cluster: InProcess) -> None:
    client = await cluster.client()
    ledger_id, other = await ledger(client), await ledger(client)
    await made(client, "orders", Segment(ledger_id, 0, 0))
    with pytest.raises(ConfigError, match=rf"a part of log orders: truncate that.*\[ledger {ledger_id}\]"):
        await client.delete_ledger(ledger_id)
    await client.delete_ledger(other)
    with pytest.raises(NoSuchLedgerError):
        await client.delete_ledger(other)


async def test_a_ledger_that_can_not_be_read_can_be_deleted(cluster: InProcess) -> None:
    client = await cluster.client()
    ledger_id = await ledger(client)
    path = log_parts(client).logs.ledger_check(ledger_id, 0).path
    cluster.tree.apply(Put(path, b"?", cluster.tree.node(path).version), 0)
    await client.delete_ledger(ledger_id)
    assert path not in cluster.tree.paths


async def test_a_closed_client_deletes_nothing(cluster: InProcess) -> None:
    client = await cluster.client()
    await made(client, "orders")
    await client.close()
    with pytest.raises(ClientClosedError):
        await client.delete_log("orders")
    with pytest.raises(ClientClosedError):
        async with contextlib.aclosing(client.list_logs()) as names:
            await anext(names)
    assert LIST in cluster.tree.paths
