"""Clients whose metadata server lags behind: plain reads give what was there before somebody else's write."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import cluster_of
from tests.in_process import DEADLINE_S, ROOT, InProcess, contents, lag_behind, stored
from tests.unit.client.support import check_closed, payload

import bkpy
from bkpy.metadata.bookies.cookies import read_cookie
from bkpy.metadata.cluster import open_cluster
from bkpy.metadata.store.store import MetadataStore, NoNode

if TYPE_CHECKING:
    from bkpy.client.client import Client
    from bkpy.client.write.writer import LedgerWriter


async def behind(client: Client, writer: LedgerWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    await lag_behind(cluster_of(client).store, cluster_of(client).catalog.path_of(writer.ledger_id), monkeypatch)


@pytest.mark.scenario(11)
async def test_a_recovery_finds_the_fragment_that_was_added_last(
    five: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, other = await five.client(explicit_lac_interval_s=0), await five.client()
    writer = await client.create_ledger(ack_quorum=3)
    await writer.append(payload(0))
    await behind(other, writer, monkeypatch)
    five.kill(writer.ensemble[0])
    await writer.append(payload(1))
    async with asyncio.timeout(DEADLINE_S):
        await other.recover_ledger(writer.ledger_id)
    await check_closed(client, writer.ledger_id, 2)
    assert len((await client.ledger_metadata(writer.ledger_id)).fragments) == 2


@pytest.mark.scenario(33)
async def test_a_writer_closes_a_ledger_that_somebody_else_has_changed(
    five: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, other = await five.client(), await five.client()
    writer = await client.create_ledger()
    await writer.append(payload(0))
    await behind(client, writer, monkeypatch)
    metadata, version = await cluster_of(other).catalog.read(writer.ledger_id)
    stored(
        await cluster_of(other).catalog.write(dataclasses.replace(metadata, custom_metadata={"by": b"other"}), version)
    )
    async with asyncio.timeout(DEADLINE_S):
        await writer.close()
    await check_closed(other, writer.ledger_id, 1)


@pytest.mark.scenario(27)
async def test_a_writer_adopts_the_ensemble_that_somebody_else_has_stored(
    five: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, other = await five.client(), await five.client()
    writer = await client.create_ledger(ack_quorum=3)
    await writer.append(b"0")
    first = writer.ensemble
    spare = sorted(set("abcde") - set(first))[0]
    await behind(client, writer, monkeypatch)
    metadata, version = await cluster_of(other).catalog.read(writer.ledger_id)
    stored(await cluster_of(other).catalog.write(metadata.new_fragment(1, (spare, *first[1:])), version))
    five.kill(first[0])
    async with asyncio.timeout(DEADLINE_S):
        assert await writer.append(b"1") == 1
        await writer.close()
    assert writer.ensemble == (spare, *first[1:])
    assert await contents(other, writer.ledger_id) == [b"0", b"1"]


@pytest.mark.parametrize("act", ["open", "metadata", "recover", "delete", "refresh", "tail", "list"])
async def test_a_ledger_that_a_lagging_server_does_not_know_of_is_there(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    client, other = await cluster.client(), await cluster.client()
    writer = await client.create_ledger()
    await writer.append(b"0")
    reader = await other.open_ledger(writer.ledger_id)
    await writer.close()
    store = cluster_of(other).store
    lagging = await never_heard_of(store, cluster_of(other).catalog.path_of(writer.ledger_id), monkeypatch)
    async with asyncio.timeout(DEADLINE_S):
        match act:
            case "open":
                assert (await other.open_ledger(writer.ledger_id)).last_add_confirmed == 0
            case "metadata":
                assert (await other.ledger_metadata(writer.ledger_id)).last_entry == 0
            case "recover":
                assert (await other.recover_ledger(writer.ledger_id)).last_add_confirmed == 0
            case "delete":
                await other.delete_ledger(writer.ledger_id)
            case "refresh":
                assert await reader.read_last_add_confirmed() == 0
            case "tail":
                assert [entry.data async for entry in reader.tail()] == [b"0"]
            case "list":
                assert [ledger_id async for ledger_id in other.list_ledgers()] == [writer.ledger_id]
    if act != "delete":  # which is a write, and so not answered by the server alone
        assert lagging.caught_up == 1


async def test_a_ledger_that_is_there_costs_a_single_call(cluster: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await cluster.client()
    writer = await client.create_ledger()
    await writer.close()
    store, calls = cluster_of(client).store, list[str]()
    for name in ("get", "sync"):
        call = getattr(store, name)

        async def counted(path: str, name: str = name, call: Any = call) -> Any:
            calls.append(name)
            return await call(path)

        monkeypatch.setattr(store, name, counted)
    await client.ledger_metadata(writer.ledger_id)
    assert calls == ["get"]
    with pytest.raises(bkpy.NoSuchLedgerError):
        await client.ledger_metadata(writer.ledger_id + 1)
    assert calls == ["get", "get", "sync", "get"]


async def test_a_cluster_and_a_cookie_that_a_lagging_server_does_not_know_of_are_there(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = cluster.tree.session()
    for path in (f"{ROOT}/LAYOUT", f"{ROOT}/cookies/a"):
        await never_heard_of(store, path, monkeypatch)
    assert (await open_cluster(store, ROOT)).instance_id == (await cluster.client()).instance_id
    assert await read_cookie(store, ROOT, "a") is not None


class Lag:
    """`caught_up` counts the requests to catch up."""

    caught_up = 0


async def never_heard_of(store: MetadataStore, path: str, monkeypatch: pytest.MonkeyPatch) -> Lag:
    """The store's server knows of no node at `path` until it is told to catch up."""
    get, children, sync, lag = store.get, store.children, store.sync, Lag()

    async def get_old(wanted: str) -> tuple[bytes, int]:
        if not lag.caught_up and wanted == path:
            raise NoNode(path)
        return await get(wanted)

    async def children_old(wanted: str) -> list[str]:
        names = await children(wanted)
        return [name for name in names if lag.caught_up or f"{wanted}/{name}" != path]

    async def catch_up(wanted: str) -> None:
        lag.caught_up += 1
        await sync(wanted)

    monkeypatch.setattr(store, "get", get_old)
    monkeypatch.setattr(store, "children", children_old)
    monkeypatch.setattr(store, "sync", catch_up)
    return lag
