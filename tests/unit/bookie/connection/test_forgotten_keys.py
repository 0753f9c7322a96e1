"""Keys that a bookie has forgotten while it was asked to fence their ledgers: nothing is answered without a fence."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import keys_of, pool_of, present_keys
from tests.in_process import DEADLINE_S, InProcess
from tests.waiting import eventually

from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Flags, Op, Status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from bkpy.bookie.connection.connection import Connection
    from bkpy.client.client import Client

RECOVERY = int(Flags.RECOVERY)
REQUESTS = {
    Op.READ: lambda ledger_id: m.pack([RECOVERY, ledger_id, 0, 10, 1000]),
    Op.READ_LAC: lambda ledger_id: m.pack([RECOVERY, ledger_id]),
}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[InProcess]:
    local = InProcess(tmp_path)
    await local.start()
    yield local
    await local.stop()


async def ledger_of_another(cluster: InProcess, client: Client) -> int:
    """A ledger that a client now gone has written to all bookies; `client` knows its key."""
    gone = await cluster.client()
    writer = await gone.create_ledger(ack_quorum=3)
    await writer.append(b"x")
    await gone.close()
    pool_of(client).add_key(writer.ledger_id, writer.metadata.ledger_key)
    return writer.ledger_id


async def connected(cluster: InProcess, client: Client) -> Connection:
    """Bookie a's side of the client's connection."""
    await eventually(lambda: not cluster.connections("a"))
    await pool_of(client).channel("a").connect()
    await eventually(lambda: [connection.greeted for connection in cluster.connections("a")] == [True])
    return cluster.connections("a")[0]


async def ask(client: Client, op: Op, ledger_id: int) -> Status:
    """What bookie a answers without being presented the key once more."""
    reply = await pool_of(client).channel("a").call(op, REQUESTS[op](ledger_id), timeout_s=DEADLINE_S)
    return m.reply_status(reply.head)


@pytest.mark.scenario(19)
@pytest.mark.parametrize("op", REQUESTS, ids=lambda op: op.name)
async def test_a_key_that_was_forgotten_while_it_was_checked_has_to_be_presented_again(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch, op: Op
) -> None:
    cluster.settings["presented_ledgers_max"] = 3
    await cluster.restart("a")
    client = await cluster.client()
    ledger_id = await ledger_of_another(cluster, client)
    key = keys_of(client)[ledger_id]
    for other in (901, 902, 903):
        pool_of(client).add_key(other, key)
    connection = await connected(cluster, client)
    channel, storage = pool_of(client).channel("a"), cluster.storage("a")
    looking, go_on = asyncio.Event(), asyncio.Event()
    states = storage.states

    async def held(ledger_ids: Any) -> Any:
        looking.set()
        await go_on.wait()
        return await states(ledger_ids)

    with monkeypatch.context() as patched:
        patched.setattr(storage, "states", held)
        present_keys(channel, {ledger_id})
        async with asyncio.timeout(DEADLINE_S):
            await looking.wait()
        present_keys(channel, {901, 902, 903})  # more than one connection may have: all before are forgotten
        await eventually(lambda: len(connection.adds.backlog) == 1)
        go_on.set()
        await eventually(lambda: not connection.adds.backlogged)
    assert await ask(client, op, ledger_id) == Status.KEY_REQUIRED
    assert ledger_id not in storage.fenced
    reply = await channel.call_as_owner(op, REQUESTS[op](ledger_id), ledger_id=ledger_id, timeout_s=DEADLINE_S)
    assert m.reply_status(reply.head) == Status.OK
    assert ledger_id in storage.fenced


@pytest.mark.scenario(19)
@pytest.mark.parametrize("op", REQUESTS, ids=lambda op: op.name)
async def test_a_client_that_is_still_authorised_fences_without_its_key(cluster: InProcess, op: Op) -> None:
    client = await cluster.client()
    ledger_id = await ledger_of_another(cluster, client)
    connection = await connected(cluster, client)
    present_keys(pool_of(client).channel("a"), {ledger_id})
    await eventually(lambda: ledger_id in connection.keys.authorised)
    assert await ask(client, op, ledger_id) == Status.OK
    assert ledger_id in cluster.storage("a").fenced


async def test_a_key_that_is_asked_for_is_presented_right_before_the_request(cluster: InProcess) -> None:
    """However long the second attempt waits for its turn, and whoever presents keys meanwhile."""
    cluster.settings["presented_ledgers_max"] = 1
    await cluster.restart("a")
    client = await cluster.client(calls_in_flight_max=1)
    ledger_ids = [await ledger_of_another(cluster, client) for _ in range(3)]
    await connected(cluster, client)
    channel = pool_of(client).channel("a")
    async with asyncio.timeout(DEADLINE_S):
        replies = await asyncio.gather(
            *(
                channel.call_as_owner(
                    Op.READ_LAC, REQUESTS[Op.READ_LAC](ledger_id), ledger_id=ledger_id, timeout_s=DEADLINE_S
                )
                for ledger_id in ledger_ids * 4
            )
        )
    assert {m.reply_status(reply.head) for reply in replies} == {Status.OK}
