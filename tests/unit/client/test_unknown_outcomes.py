"""Metadata writes whose outcome nobody told a client, while the metadata store goes away in the middle."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import cluster_of
from tests.in_process import DEADLINE_S, InProcess, contents, rewrite
from tests.waiting import eventually

import bkpy
from bkpy.errors import MetadataUnavailableError
from bkpy.metadata.store.store import SessionState
from bkpy.protocol.ledger.ledger_metadata import LedgerState

if TYPE_CHECKING:
    from bkpy.client.client import Client


class Vanishing:
    """A client's session with the metadata store, whose calls go wrong from a certain write on.

    `lose_reply`: the next put is applied, its reply is lost, and the store is away until `back` (`at_once`), or from
    when the next put is refused.
    """

    def __init__(self, client: Client) -> None:
        self._store = cluster_of(client).store
        self._put, self._get, self._sync = self._store.put, self._store.get, self._store.sync
        self._armed = self._at_once = self._refuses = False
        self.lost = self.away = False
        for name in ("put", "get", "sync"):
            setattr(self._store, name, getattr(self, f"_{name}_or_vanish"))

    def lose_reply(self, *, at_once: bool) -> None:
        self._armed, self._at_once = True, at_once

    def vanish(self) -> None:
        self.away = True
        self._store.session_events.emit(SessionState.SUSPENDED)

    def back(self) -> None:
        self.away = False
        self._store.session_events.emit(SessionState.CONNECTED)

    def _check(self) -> None:
        if self.away:
            raise MetadataUnavailableError("the store is away")

    async def _put_or_vanish(self, path: str, data: bytes, version: int) -> int:
        self._check()
        if self._armed:
            self._armed = False
            await self._put(path, data, version)
            self.lost, self._refuses = True, not self._at_once
            if self._at_once:
                self.vanish()
            raise MetadataUnavailableError("the connection was lost during a write", outcome_unknown=True)
        try:
            return await self._put(path, data, version)
        except bkpy.BookKeeperError:
            if self._refuses:
                self._refuses = False
                self.vanish()
            raise

    async def _get_or_vanish(self, path: str) -> tuple[bytes, int]:
        self._check()
        return await self._get(path)

    async def _sync_or_vanish(self, path: str) -> None:
        self._check()
        await self._sync(path)


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "after the second write was refused"])
async def test_nothing_is_acknowledged_on_bookies_that_the_stored_change_does_not_name(
    four: InProcess, at_once: bool
) -> None:
    client = await four.client(add_timeout_s=1)
    writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
    store = Vanishing(client)
    await writer.append(b"0")
    replaced, slow, fast = writer.ensemble
    store.lose_reply(at_once=at_once)
    four.kill(replaced)
    first = asyncio.create_task(writer.append(b"1"))
    await eventually(lambda: store.away)  # and the metadata name the fourth bookie instead

    # The replaced bookie returns, and another one goes.
    await four.node(replaced).stop()
    await four.start_node(replaced)
    four.kill(slow)
    second = asyncio.create_task(writer.append(b"2"))
    await asyncio.wait([second], timeout=3)  # it must not be acknowledged yet: the writer can't know by whom
    acknowledged = writer.last_add_confirmed
    if second.done():
        four.kill(fast)
        await four.node(slow).stop()
        await four.start_node(slow)
        writer.abandon()
    else:
        store.back()
        async with asyncio.timeout(DEADLINE_S):
            acknowledged = await second
        writer.abandon()
    await asyncio.wait([first])
    other = await four.client()
    reader = await other.recover_ledger(writer.ledger_id)
    assert reader.last_add_confirmed >= acknowledged


async def close_fails(writer: bkpy.LedgerWriter) -> bkpy.BookKeeperError:
    with pytest.raises(bkpy.BookKeeperError) as failure:
        async with asyncio.timeout(DEADLINE_S):
            await writer.close()
    assert failure.value.ledger_id == writer.ledger_id
    return failure.value


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "after the second write was refused"])
async def test_a_writer_whose_closing_write_is_in_doubt_says_so_until_it_is_known(
    cluster: InProcess, at_once: bool
) -> None:
    client, other = await cluster.client(), await cluster.client()
    writer = await client.create_ledger()
    await writer.append(b"0")
    store = Vanishing(client)
    store.lose_reply(at_once=at_once)
    for _ in range(2):  # the second call sends nothing, and knows no more
        error = await close_fails(writer)
        assert isinstance(error, MetadataUnavailableError)
        assert error.outcome_unknown
    store.back()
    await writer.close()
    assert (await other.ledger_metadata(writer.ledger_id)).state is LedgerState.CLOSED
    assert await contents(other, writer.ledger_id) == [b"0"]


async def test_a_writer_that_could_not_send_its_closing_write_knows_that(cluster: InProcess) -> None:
    client = await cluster.client()
    writer = await client.create_ledger()
    await writer.append(b"0")
    store = Vanishing(client)
    store.vanish()
    error = await close_fails(writer)
    assert (type(error), error.outcome_unknown) == (MetadataUnavailableError, False)
    store.back()
    await writer.close()
    assert await contents(client, writer.ledger_id) == [b"0"]


async def test_a_writer_that_was_in_doubt_learns_that_it_was_fenced(cluster: InProcess) -> None:
    """Its closing write had not been stored: a ledger that is closed never comes to be recovered."""
    client, other = await cluster.client(metadata_write_attempts_max=1), await cluster.client()
    writer = await client.create_ledger()
    await writer.append(b"0")
    store = cluster_of(client).store
    put = store.put

    async def lose_request(path: str, data: bytes, version: int) -> int:
        raise MetadataUnavailableError("the connection was lost during a write", outcome_unknown=True)

    store.put = lose_request  # type: ignore[method-assign]
    assert (await close_fails(writer)).outcome_unknown
    store.put = put  # type: ignore[method-assign]
    await rewrite(other, writer.ledger_id, state=LedgerState.IN_RECOVERY)
    error = await close_fails(writer)
    assert (type(error), error.outcome_unknown) == (bkpy.LedgerFencedError, False)


@pytest.mark.parametrize("write", [1, 2], ids=["mark", "closing write"])
@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "after the second write was refused"])
async def test_a_recovery_in_doubt_says_so_and_can_be_done_again(cluster: InProcess, write: int, at_once: bool) -> None:
    client, other = await cluster.client(), await cluster.client()
    writer = await client.create_ledger()
    await writer.append(b"0")
    writer.abandon()
    store = Vanishing(other)
    if write == 1:
        store.lose_reply(at_once=at_once)
    else:
        catalog = cluster_of(other).catalog
        original = catalog.write

        async def second(metadata: Any, version: int) -> Any:
            if metadata.state is LedgerState.CLOSED and not store.lost:
                store.lose_reply(at_once=at_once)
            return await original(metadata, version)

        catalog.write = second  # type: ignore[method-assign]
    with pytest.raises(MetadataUnavailableError) as failure:
        await other.recover_ledger(writer.ledger_id)
    assert failure.value.outcome_unknown
    assert failure.value.ledger_id == writer.ledger_id
    store.back()
    reader = await other.recover_ledger(writer.ledger_id)
    assert reader.last_add_confirmed == 0


# --- creating and deleting ------------------------------------------------------------------------------------------


class LosingMulti:
    """Lets the creation of a ledger go through once, and holds its answer back until `answer`, or loses it."""

    def __init__(self, client: Client, *, lose: bool = False) -> None:
        self._store = cluster_of(client).store
        self._multi = self._store.multi
        self._lose = lose
        self.applied = asyncio.Event()
        self.answer = asyncio.Event()
        self._store.multi = self._apply  # type: ignore[method-assign]

    async def _apply(self, operations: Any) -> Any:
        result = None
        if not self.applied.is_set():
            result = await self._multi(operations)
            self.applied.set()
        if self._lose:
            raise MetadataUnavailableError("the connection was lost during a write", outcome_unknown=True)
        await self.answer.wait()
        return result


async def listed(client: Client) -> list[int]:
    return [ledger_id async for ledger_id in client.list_ledgers()]


async def test_a_creation_in_doubt_names_the_ledger(cluster: InProcess) -> None:
    client, other = await cluster.client(), await cluster.client()
    await (await client.create_ledger()).close()
    LosingMulti(client, lose=True)
    with pytest.raises(MetadataUnavailableError) as failure:
        await client.create_ledger()
    assert failure.value.outcome_unknown
    assert failure.value.ledger_id == 1
    assert await listed(other) == [0, 1]
    reader = await other.recover_ledger(1)
    assert (reader.closed, reader.last_add_confirmed) == (True, -1)


async def test_a_creation_that_is_cancelled_leaves_no_ledger(cluster: InProcess) -> None:
    client, other = await cluster.client(), await cluster.client()
    await (await client.create_ledger()).close()
    losing = LosingMulti(client)
    creating = asyncio.create_task(client.create_ledger())
    await losing.applied.wait()
    assert await listed(other) == [0, 1]
    creating.cancel()
    await asyncio.wait([creating])
    assert creating.cancelled()
    async with asyncio.timeout(DEADLINE_S):
        while await listed(other) != [0]:
            await asyncio.sleep(0.005)


async def test_a_client_that_is_closed_while_it_creates_a_ledger_names_it(cluster: InProcess) -> None:
    client, other = await cluster.client(), await cluster.client()
    await (await client.create_ledger()).close()
    losing = LosingMulti(client)
    creating = asyncio.create_task(client.create_ledger())
    await losing.applied.wait()
    await client.close()  # its session is this test's, and goes on
    losing.answer.set()
    with pytest.raises(bkpy.ClientClosedError, match="is open and has no entries") as failure:
        await creating
    assert failure.value.ledger_id == 1
    assert await listed(other) == [0, 1]


@pytest.mark.parametrize("lost", [True, False])
async def test_a_deletion_says_whether_it_is_in_doubt(cluster: InProcess, lost: bool) -> None:
    client = await cluster.client()
    await (await client.create_ledger()).close()
    store = cluster_of(client).store
    delete = store.delete

    async def fail(path: str, expected_version: int | None = None) -> None:
        raise MetadataUnavailableError("the store is away", outcome_unknown=lost)

    store.delete = fail  # type: ignore[method-assign]
    with pytest.raises(MetadataUnavailableError) as failure:
        await client.delete_ledger(0)
    assert (failure.value.outcome_unknown, failure.value.ledger_id) == (lost, 0)
    store.delete = delete  # type: ignore[method-assign]
    await store.create(f"{cluster_of(client).catalog.path_of(0)}/below", b"")
    with pytest.raises(bkpy.MetadataConflictError, match="nodes below"):
        await client.delete_ledger(0)
    await store.delete(f"{cluster_of(client).catalog.path_of(0)}/below")
    await client.delete_ledger(0)
    with pytest.raises(bkpy.NoSuchLedgerError):
        await client.delete_ledger(0)
