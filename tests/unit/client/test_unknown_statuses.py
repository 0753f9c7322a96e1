"""Answers with a status that this client doesn't know, as a newer bookie may give them: that bookie has not done it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import channels_of, pool_of
from tests.in_process import DEADLINE_S, InProcess, contents
from tests.unit.client.support import check_closed, payload, write
from tests.waiting import eventually

import bkpy
from bkpy.bookie.connection.connection import Connection
from bkpy.client.client import replication_context
from bkpy.protocol.ledger.ledger_metadata import LedgerState
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Op, Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.client.client import Client

NEWER = 57
NEVER_S = 2.0 * DEADLINE_S  # whoever waits for such a timeout fails

TO_ADDS = {
    "one for all batches": m.pack(NEWER),
    "one for each batch": m.pack([NEWER]),
    "with a message": m.pack([NEWER, "what a newer side calls it"]),
    "below zero": m.pack(-1),
    "a bad request": m.pack([int(Status.BAD_REQUEST), "not a request"]),
}
TO_OTHERS = m.pack([NEWER, "what a newer side calls it"])


def answering(monkeypatch: pytest.MonkeyPatch, ops: dict[Op, bytes], names: str) -> Callable[[], None]:
    """These bookies answer such requests with these heads, whatever they do. Returns what ends that."""
    reply = Connection.reply

    def newer(self: Connection, op: int, correlation_id: int, head: bytes, body: Any = ()) -> None:
        if op in ops and self.service.bookie_id in names:
            head, body = ops[Op(op)], ()
        reply(self, op, correlation_id, head, body)

    monkeypatch.setattr(Connection, "reply", newer)
    return lambda: monkeypatch.setattr(Connection, "reply", reply)


def generations(client: Client) -> dict[str, int]:
    return {name: channel.generation for name, channel in channels_of(client).items()}


async def patient(cluster: InProcess, **settings: Any) -> Client:
    return await cluster.client(add_timeout_s=NEVER_S, add_quorum_timeout_s=NEVER_S, read_timeout_s=NEVER_S, **settings)


@pytest.mark.parametrize("head", TO_ADDS.values(), ids=TO_ADDS)
async def test_a_bookie_that_answers_an_append_so_is_replaced_at_once(
    five: InProcess, monkeypatch: pytest.MonkeyPatch, head: bytes
) -> None:
    client = await patient(five)
    writer = await client.create_ledger(ack_quorum=3)
    other = await client.create_ledger(ack_quorum=3)  # of the same flights, perhaps
    await asyncio.gather(writer.append(b"0"), other.append(b"0"))
    newer = writer.ensemble[0]
    before = generations(client)
    answering(monkeypatch, {Op.ADD: head}, newer)
    async with asyncio.timeout(DEADLINE_S):
        assert await writer.append(b"1") == 1
        assert await other.append(b"1") == 1
    assert newer not in writer.ensemble
    assert {name: generation for name, generation in generations(client).items() if name in before} == before
    await writer.close()
    assert await contents(client, writer.ledger_id) == [b"0", b"1"]


async def test_a_batch_that_is_sent_once_more_and_answered_so_finds_another_bookie(
    five: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await patient(five)
    writer = await client.create_ledger(ack_quorum=3)
    await writer.append(b"0")
    unused = set("abcde") - set(writer.ensemble)
    first = min(unused)
    for name in unused:
        await pool_of(client).channel(name).connect()
    replication_context(client).parts.ensembles.failed(max(unused))  # so that the other one is chosen first
    answering(monkeypatch, {Op.ADD: TO_ADDS["one for each batch"]}, first)
    five.kill(writer.ensemble[0])
    async with asyncio.timeout(DEADLINE_S):
        assert await writer.append(b"1") == 1
    assert first not in writer.ensemble
    assert pool_of(client).channel(first).generation == 1
    await writer.close()


async def test_without_another_bookie_the_append_fails_and_says_why(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await patient(cluster, no_bookies_timeout_s=0.2)
    writer = await client.create_ledger()
    await writer.append(b"0")
    answering(monkeypatch, {Op.ADD: TO_ADDS["one for all batches"]}, "abc")
    with pytest.raises(bkpy.BookieUnavailableError, match="status 57") as failure:
        async with asyncio.timeout(DEADLINE_S):
            await writer.append(b"1")
    assert failure.value.outcome_unknown
    assert set(generations(client).values()) == {1}
    await writer.close()


@pytest.mark.parametrize("sizes", [(3, 3, 2), (3, 2, 2)])
async def test_a_read_that_is_answered_so_goes_to_another_bookie(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int, int]
) -> None:
    client = await patient(cluster)
    writer = await write(client, 20, ensemble_size=sizes[0], write_quorum=sizes[1], ack_quorum=sizes[2])
    await client.recover_ledger(writer.ledger_id)
    for newer in "abc":
        end = answering(monkeypatch, {Op.READ: TO_OTHERS}, newer)
        async with asyncio.timeout(DEADLINE_S):
            assert await contents(client, writer.ledger_id) == [payload(i) for i in range(20)]
        end()
    assert set(generations(client).values()) == {1}


@pytest.mark.parametrize("head", [TO_OTHERS, m.pack([int(Status.BAD_REQUEST), "not a request"])])
async def test_a_read_that_all_bookies_refuse_is_asked_of_each_once(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch, head: bytes
) -> None:
    client = await patient(cluster)
    writer = await write(client, 3)
    await client.recover_ledger(writer.ledger_id)
    asked: list[str] = []
    request = pool_of(client).channel("a").__class__.request

    def counted(self: Any, op: Op, head: bytes) -> Any:
        asked.append(self.bookie_id)
        return request(self, op, head)

    monkeypatch.setattr(pool_of(client).channel("a").__class__, "request", counted)
    answering(monkeypatch, {Op.READ: head}, "abc")
    with pytest.raises(bkpy.ProtocolError, match=r"a: .*; b: .*; c: ") as failure:
        async with asyncio.timeout(DEADLINE_S):
            await contents(client, writer.ledger_id)
    assert failure.value.entry_id == 0
    assert sorted(asked) == ["a", "b", "c"]
    assert set(generations(client).values()) == {1}


async def test_last_add_confirmed_and_tails_go_on_with_the_others(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await patient(cluster, tail_poll_s=0.01)
    writer = await client.create_ledger()
    for i in range(3):
        await writer.append(payload(i))
    answering(monkeypatch, dict.fromkeys((Op.READ_LAC, Op.WAIT_LAC, Op.WRITE_LAC), TO_OTHERS), "a")
    reader = await client.open_ledger(writer.ledger_id)
    async with asyncio.timeout(DEADLINE_S):
        found = []
        async for entry in reader.tail():
            found.append(entry.data)
            if len(found) == 3:
                break
    await writer.close()
    assert found == [payload(i) for i in range(3)]


async def test_a_bookie_that_answers_a_fence_so_has_not_fenced(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await patient(cluster)
    writer = await write(client, 3)
    end = answering(monkeypatch, {Op.READ_LAC: m.pack([NEWER, 0, True])}, "ab")
    with pytest.raises(bkpy.LedgerRecoveryError, match="status 57"):
        async with asyncio.timeout(DEADLINE_S):
            await client.recover_ledger(writer.ledger_id)
    assert (await client.ledger_metadata(writer.ledger_id)).state is LedgerState.IN_RECOVERY
    end()
    await client.recover_ledger(writer.ledger_id)
    await check_closed(client, writer.ledger_id, 3)


async def test_a_bookie_that_greets_so_is_not_used(five: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = m.pack([NEWER, "what a newer side calls it", "a", 1 << 20, 1 << 20])
    answering(monkeypatch, {Op.HELLO: newer}, "a")
    client = await patient(five)
    for _ in range(5):
        writer = await client.create_ledger()
        await writer.append(b"x")
        assert "a" not in writer.ensemble
    await eventually(lambda: not pool_of(client).channel("a").up)
