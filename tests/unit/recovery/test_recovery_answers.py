"""Recovery from bookies whose answers are damaged or say nothing, and what it leaves behind."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import channels_of, keys_of, pool_of, presented_to, unanswered_calls
from tests.in_process import DEADLINE_S, InProcess, contents
from tests.unit.client.support import check_closed, fail_adds, put, write
from tests.waiting import eventually

import bkpy
from bkpy.client.bookies.channel import BookieChannel
from bkpy.protocol.access import Right
from bkpy.protocol.ledger.ledger_metadata import LedgerState
from bkpy.protocol.wire.lac_reply import parse_lac_reply
from bkpy.protocol.wire.messages import Op
from bkpy.protocol.wire.records import walk
from bkpy.recovery import ledger_recovery
from bkpy.storage.engine import ReadResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.client.client import Client
    from bkpy.client.write.writer import LedgerWriter

DAMAGED = 3  # the entry
# Where a bit of its record is flipped: (byte, bit).
FLIPS = {
    "size, by 4": (0, 2),  # then the zeros of the payload seem to be records of other entries
    "size, by 32": (0, 5),
    "size, a lot": (3, 6),
    "checksum": (4, 0),
    "id, to the one before": (8, 0),
    "id, far away": (13, 0),
    "id, negative": (15, 7),
    "last add confirmed": (16, 0),
    "length": (24, 0),
    "payload": (40, 3),
}


def unconfirmed() -> list[bytes]:
    return [b"first", *(b"%02d" % i + bytes(98) for i in range(1, 11))]


async def unconfirmed_ledger(client: Client) -> LedgerWriter:
    """A ledger of which three bookies have all entries and know that the first was acknowledged."""
    writer = await client.create_ledger(ack_quorum=3)
    entries = unconfirmed()
    await writer.append(entries[0])
    await writer.append_batch(entries[1:])
    writer.abandon()
    return writer


def answer(cluster: InProcess, name: str, monkeypatch: pytest.MonkeyPatch, then: Callable[[ReadResult], Any]) -> None:
    """Do `then` to what the bookie's reads result in."""
    storage = cluster.storage(name)
    original = storage.read

    async def read(*args: Any) -> ReadResult:
        result: ReadResult = then(await original(*args))
        return result

    monkeypatch.setattr(storage, "read", read)


def flipping(byte: int, bit: int) -> Callable[[ReadResult], ReadResult]:
    """A bit of the damaged entry's record is flipped, wherever it is read."""

    def flip(result: ReadResult) -> ReadResult:
        data = bytearray(b"".join(result.segments))
        for header in walk(bytes(data)):
            if header.entry_id == DAMAGED:
                data[header.offset + byte] ^= 1 << bit
        return result._replace(segments=[data])

    return flip


@pytest.mark.scenario(37)
@pytest.mark.parametrize("flip", FLIPS.values(), ids=FLIPS)
async def test_one_damaged_copy_denies_no_entry_of_a_ledger_that_is_recovered(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch, flip: tuple[int, int]
) -> None:
    """A single denial would do to end the ledger, because all three bookies had to acknowledge; none is there."""
    client = await cluster.client(explicit_lac_interval_s=0)
    writer = await unconfirmed_ledger(client)
    damaged = pool_of(client).channel("a")
    answered = asyncio.Event()

    def flip_and_tell(result: ReadResult) -> ReadResult:
        answered.set()
        return flipping(*flip)(result)

    answer(cluster, "a", monkeypatch, flip_and_tell)
    for name in "bc":  # these are heard only after the damaged answer, and tell of one entry at a time
        storage = cluster.storage(name)

        async def later(ledger_id: int, first: int, last: int, bytes_max: int, read: Any = storage.read) -> Any:
            await answered.wait()
            await eventually(lambda: not unanswered_calls(damaged))
            return await read(ledger_id, first, last, 1)

        monkeypatch.setattr(storage, "read", later)
    reader = await client.recover_ledger(writer.ledger_id)
    assert reader.last_add_confirmed == 10
    monkeypatch.undo()
    assert await contents(client, writer.ledger_id) == unconfirmed()


@pytest.mark.scenario(4)
@pytest.mark.scenario(37)
@pytest.mark.parametrize("flip", FLIPS.values(), ids=FLIPS)
async def test_a_ledger_whose_copies_are_all_damaged_is_closed_nowhere(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch, flip: tuple[int, int]
) -> None:
    client = await cluster.client(explicit_lac_interval_s=0)
    writer = await unconfirmed_ledger(client)
    for name in "abc":
        answer(cluster, name, monkeypatch, flipping(*flip))
    with pytest.raises(bkpy.LedgerRecoveryError):
        async with asyncio.timeout(DEADLINE_S):
            await client.recover_ledger(writer.ledger_id)
    assert (await client.ledger_metadata(writer.ledger_id)).state is LedgerState.IN_RECOVERY
    monkeypatch.undo()
    await client.recover_ledger(writer.ledger_id)
    assert await contents(client, writer.ledger_id) == unconfirmed()


@pytest.mark.scenario(4)
async def test_bookies_that_examine_nothing_end_the_recovery(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are asked once each, and not for ever: the same question gets the same answer."""
    client = await cluster.client(explicit_lac_interval_s=0)
    writer = await unconfirmed_ledger(client)
    for name in "abc":
        answer(cluster, name, monkeypatch, lambda result: ReadResult([], 0, [], -1))
    with pytest.raises(bkpy.LedgerRecoveryError, match="examined nothing"):
        async with asyncio.timeout(DEADLINE_S):
            await client.recover_ledger(writer.ledger_id)
    assert (await client.ledger_metadata(writer.ledger_id)).state is LedgerState.IN_RECOVERY


async def test_an_answer_without_a_fence_counts_for_nothing(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were it counted, the writer could go on at that bookie."""
    client = await cluster.client(explicit_lac_interval_s=0)
    writer = await unconfirmed_ledger(client)

    def unfenced(*args: Any) -> Any:
        answer = parse_lac_reply(*args)
        return answer._replace(proven=answer.proven._replace(fenced=False))

    monkeypatch.setattr(ledger_recovery, "parse_lac_reply", unfenced)
    with pytest.raises(bkpy.LedgerRecoveryError, match=r"too few bookies could be fenced .*did not fence the ledger"):
        await client.recover_ledger(writer.ledger_id)
    monkeypatch.undo()
    await client.recover_ledger(writer.ledger_id)
    assert await contents(client, writer.ledger_id) == unconfirmed()


async def test_a_bookie_that_refuses_the_key_ends_the_recovery_as_unauthorised(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await cluster.client(explicit_lac_interval_s=0)
    writer = await unconfirmed_ledger(client)
    call = BookieChannel.call_as_owner

    async def refuse(channel: BookieChannel, op: Op, *args: Any, **more: Any) -> Any:
        if op is Op.READ:
            raise bkpy.UnauthorizedError("another key", bookie=channel.bookie_id)
        return await call(channel, op, *args, **more)

    monkeypatch.setattr(BookieChannel, "call_as_owner", refuse)
    with pytest.raises(bkpy.UnauthorizedError):
        async with asyncio.timeout(DEADLINE_S):
            await client.recover_ledger(writer.ledger_id)
    monkeypatch.undo()
    await client.recover_ledger(writer.ledger_id)
    assert await contents(client, writer.ledger_id) == unconfirmed()


@pytest.mark.parametrize("rights", [Right.READ, Right(0)], ids=["reads", "nothing"])
async def test_a_bookie_whose_file_of_rights_lacks_the_client_holds_up_no_recovery_while_others_are_enough(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch, rights: Right
) -> None:
    client = await cluster.client(explicit_lac_interval_s=0)
    writer = await client.create_ledger()
    await writer.append(b"0")
    await writer.append_batch([b"1", b"2"])
    writer.abandon()
    monkeypatch.setattr(cluster.server("a"), "rights_of", lambda names: rights)
    with monkeypatch.context() as also:
        also.setattr(cluster.server("b"), "rights_of", lambda names: rights)
        other = await cluster.client()
        with pytest.raises(bkpy.UnauthorizedError, match=r"too few.*bookie a .*bookie b "):
            await other.recover_ledger(writer.ledger_id)
    reader = await (await cluster.client()).recover_ledger(writer.ledger_id)
    assert reader.last_add_confirmed == 2
    assert await contents(client, writer.ledger_id) == [b"0", b"1", b"2"]


async def test_the_length_of_a_ledger_whose_last_acknowledged_entry_is_gone_is_not_guessed(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await cluster.client(explicit_lac_interval_s=0)
    writer = await client.create_ledger(ack_quorum=3)
    await writer.append(b"first")
    await writer.append(b"second")  # whose record says that the first one was acknowledged
    writer.abandon()
    for name in "abc":
        answer(cluster, name, monkeypatch, lambda result: ReadResult([], result.examined_to, [], -1))
    with pytest.raises(bkpy.LedgerRecoveryError, match="the last acknowledged entry is on none of its bookies") as lost:
        async with asyncio.timeout(DEADLINE_S):
            await client.recover_ledger(writer.ledger_id)
    assert lost.value.entry_id == 0
    assert (await client.ledger_metadata(writer.ledger_id)).state is LedgerState.IN_RECOVERY
    monkeypatch.undo()
    await client.recover_ledger(writer.ledger_id)
    assert await contents(client, writer.ledger_id) == [b"first", b"second"]


async def test_no_ledger_stays_presented_after_its_recovery(five: InProcess) -> None:
    """Not even at a bookie that was replaced meanwhile, nor at one that took its place."""
    client, other = await five.client(explicit_lac_interval_s=0), await five.client()
    writer = await write(client, 5, ack_quorum=3)
    for name in writer.ensemble:
        await put(client, writer, name, [5, 6], lac=4)
    fail_adds(five, writer.ensemble[0])
    await other.recover_ledger(writer.ledger_id)
    await check_closed(other, writer.ledger_id, 7)
    assert len((await other.ledger_metadata(writer.ledger_id)).fragments) == 2
    assert not any(presented_to(channel) for channel in channels_of(other).values())
    assert not keys_of(other)
