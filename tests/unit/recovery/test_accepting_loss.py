"""Closing a ledger whose missing bookies never come back: behind all that can be seen, and never without being told."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from tests.in_process import DEADLINE_S, InProcess, contents, eventually
from tests.unit.client.support import check_closed, payload, put, write
from tests.unit.recovery.test_ledger_repair import damage

import bkpy
from bkpy.client.bookies.channel import BookieChannel
from bkpy.errors import CorruptDataError
from bkpy.protocol.ledger_metadata import LedgerState
from bkpy.protocol.messages import Op

if TYPE_CHECKING:
    from collections.abc import Collection

    from bkpy.client.client import Client
    from bkpy.client.write.writer import LedgerWriter
    from bkpy.recovery.ledger_recovery import LedgerRecovery
    from bkpy.storage.ledgers.info import LedgerInfo


async def written(client: Client, count: int) -> LedgerWriter:
    """A ledger whose bookies have all so many entries, and whose writer has gone."""
    writer = await write(client, count)
    async with asyncio.timeout(DEADLINE_S):
        while set((await client.last_entries(writer.metadata)).values()) != {count - 1}:
            await asyncio.sleep(0.005)
    return writer


async def gone(cluster: InProcess, client: Client, *names: str) -> None:
    """The bookies end, and so do their registrations."""
    for name in names:
        await cluster.node(name).stop()
    await eventually(lambda: not client.upkeep.bookies().readable & set(names))


async def giving_up(client: Client, ledger_id: int, at_least: int = -1) -> LedgerRecovery:
    return await client.upkeep.recovery_giving_up(ledger_id, b"", at_least)


async def test_a_ledger_is_closed_behind_all_that_the_last_bookie_has(five: InProcess) -> None:
    client = await five.client()
    writer = await written(client, 5)
    a, b, c = writer.ensemble
    await gone(five, client, a, b)
    with pytest.raises(bkpy.LedgerRecoveryError):
        await client.recover_ledger(writer.ledger_id)
    survey = await (await giving_up(client, writer.ledger_id)).survey()
    assert (survey.acknowledged, survey.last_entry) == (3, 4)  # what the last entry itself came to, nobody knows
    assert survey.length == sum(len(payload(i)) for i in range(5))
    assert survey.seen[c] == 4
    assert all(isinstance(survey.seen[name], str) for name in (a, b))
    assert not survey.decided
    assert (await client.ledger_metadata(writer.ledger_id)).state is LedgerState.IN_RECOVERY
    closed = await (await giving_up(client, writer.ledger_id, survey.last_entry)).run()
    await check_closed(client, writer.ledger_id, 5)
    loss = closed.accepted_loss
    assert loss is not None
    assert (loss.acknowledged, loss.seen, set(loss.bookies)) == (3, 4, {a, b})
    assert (await client.ledger_metadata(writer.ledger_id)).accepted_loss == loss


async def test_without_any_bookie_the_ledger_ends_where_its_last_fragment_begins(five: InProcess) -> None:
    client = await five.client()
    writer = await written(client, 3)
    await gone(five, client, *writer.ensemble)
    closed = await (await giving_up(client, writer.ledger_id)).run()
    assert (closed.last_entry, closed.length) == (-1, 0)
    assert closed.accepted_loss is not None
    assert closed.accepted_loss.seen == -1


async def test_a_bookie_that_is_registered_and_silent_is_not_given_up(five: InProcess) -> None:
    client = await five.client(read_timeout_s=0.3)
    writer = await written(client, 3)
    a, b, _ = writer.ensemble
    await gone(five, client, a)
    five.hang(b)
    recovery = await giving_up(client, writer.ledger_id)
    with pytest.raises(bkpy.LedgerRecoveryError, match="too few bookies"):
        async with asyncio.timeout(DEADLINE_S):
            await recovery.survey()
    assert (await client.ledger_metadata(writer.ledger_id)).state is LedgerState.IN_RECOVERY
    for connection in five.connections(b):
        connection.resume("hung")


@pytest.mark.parametrize(
    ("there", "lac", "end"),
    [
        ([6], 5, 6),  # it says that entry 5 was acknowledged: the end is behind it, and behind the entry that says it
        ([7, 8], 6, 8),
        ([7], 5, 5),  # entry 6 may have been or not; nobody who is there has it, and what follows is cut off
        ([5], 4, 5),
    ],
)
async def test_the_end_is_never_before_an_entry_that_was_certainly_acknowledged(
    five: InProcess, there: list[int], lac: int, end: int
) -> None:
    client = await five.client()
    writer = await written(client, 5)
    a, b, c = writer.ensemble
    await put(client, writer, c, there, lac=lac)
    await gone(five, client, a, b)
    survey = await (await giving_up(client, writer.ledger_id)).survey()
    assert (survey.acknowledged, survey.last_entry, survey.seen[c]) == (lac, end, there[-1])
    closed = await (await giving_up(client, writer.ledger_id, survey.last_entry)).run()
    last_readable = max([4, *(i for i in there if i <= end)])
    assert (closed.last_entry, closed.length) == (end, sum(len(payload(i)) for i in range(last_readable + 1)))
    assert closed.accepted_loss is not None
    assert closed.accepted_loss.seen == there[-1]
    reader = await client.open_ledger(writer.ledger_id)
    assert [entry.data async for entry in reader.read(0, 4)] == [payload(i) for i in range(5)]


async def test_the_slowest_bookie_is_heard_before_anything_is_given_up(
    five: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its word nobody would know that entry 5 was acknowledged, and the ledger would end before it."""
    client = await five.client()
    writer = await written(client, 5)
    a, b, c = writer.ensemble
    await put(client, writer, c, [7], lac=5)
    await gone(five, client, a, b)
    call = BookieChannel.call_as_owner

    async def slow(self: BookieChannel, opcode: int, *arguments: Any, **named: Any) -> Any:
        if self.bookie_id == c and opcode == Op.READ_LAC:
            await asyncio.sleep(0.3)
        return await call(self, opcode, *arguments, **named)

    monkeypatch.setattr(BookieChannel, "call_as_owner", slow)
    survey = await (await giving_up(client, writer.ledger_id)).survey()
    assert (survey.acknowledged, survey.last_entry) == (5, 5)


async def test_what_comes_back_meanwhile_is_heard_and_nothing_is_given_up(five: InProcess) -> None:
    client = await five.client()
    writer = await written(client, 5)
    a, b, _ = writer.ensemble
    await gone(five, client, a, b)
    survey = await (await giving_up(client, writer.ledger_id)).survey()
    await five.start_node(a)
    await five.start_node(b)
    closed = await (await giving_up(client, writer.ledger_id, survey.last_entry)).run()
    assert closed.accepted_loss is None
    await check_closed(client, writer.ledger_id, 5)


async def test_nothing_less_is_kept_than_was_shown(five: InProcess) -> None:
    client = await five.client()
    writer = await written(client, 5)
    a, b, c = writer.ensemble
    await put(client, writer, c, [5, 6], lac=4)
    await gone(five, client, a, b)
    survey = await (await giving_up(client, writer.ledger_id)).survey()
    assert survey.last_entry == 6
    await gone(five, client, c)
    with pytest.raises(bkpy.LedgerRecoveryError, match="entries up to 6 could be read before"):
        await (await giving_up(client, writer.ledger_id, survey.last_entry)).run()
    assert (await client.ledger_metadata(writer.ledger_id)).state is LedgerState.IN_RECOVERY


async def test_a_damaged_copy_is_given_up_when_nobody_else_is_left(five: InProcess) -> None:
    client = await five.client()
    writer = await written(client, 5)
    a, b, c = writer.ensemble
    await gone(five, client, a, b)
    damage(five, c, writer.ledger_id, 4)
    closed = await (await giving_up(client, writer.ledger_id)).run()
    assert closed.last_entry == 3
    assert closed.accepted_loss is not None


async def test_of_two_at_once_the_first_end_is_the_end(five: InProcess) -> None:
    client, other = await five.client(), await five.client()
    writer = await written(client, 5)
    await gone(five, client, *writer.ensemble[:2])
    both: list[Any] = await asyncio.gather(*[(await giving_up(one, writer.ledger_id)).run() for one in (client, other)])
    assert {(one.last_entry, one.length) for one in both} == {(4, both[0].length)}
    assert await contents(client, writer.ledger_id) == [payload(i) for i in range(5)]


async def test_a_closed_ledger_has_nothing_to_give_up(five: InProcess) -> None:
    client = await five.client()
    writer = await written(client, 5)
    await client.recover_ledger(writer.ledger_id)
    with pytest.raises(bkpy.LedgerClosedError):
        await (await giving_up(client, writer.ledger_id)).survey()
    closed = await (await giving_up(client, writer.ledger_id)).run()
    assert closed.accepted_loss is None


@pytest.mark.parametrize("others_gone", [1, 2])
async def test_a_bookie_that_has_lost_its_disks_is_no_obstacle(five: InProcess, others_gone: int) -> None:
    client = await five.client()
    writer = await written(client, 5)
    lost = writer.ensemble[0]
    await gone(five, client, *writer.ensemble[: others_gone + 1])
    shutil.rmtree(five.directory / lost)
    await five.start_node(lost, rebuild=True)
    await eventually(lambda: lost in client.upkeep.bookies().readable)
    survey = await (await giving_up(client, writer.ledger_id)).survey()
    closed = await (await giving_up(client, writer.ledger_id, survey.last_entry)).run()
    assert closed.last_entry == (4 if others_gone == 1 else -1)


@pytest.mark.parametrize("trouble", ["in limbo without its key", "its state is damaged"])
async def test_nor_is_one_that_answers_that_it_can_not_tell_whose_ledger_it_is(five: InProcess, trouble: str) -> None:
    """It refuses to fence what it has no key of; and says so, as long as it is registered."""
    client = await five.client()
    writer = await written(client, 5)
    a, b, _ = writer.ensemble
    await gone(five, client, a)
    storage = five.storage(b)
    states = storage.states

    async def lost(ledger_ids: Collection[int]) -> dict[int, LedgerInfo | None]:
        if trouble == "its state is damaged":
            raise CorruptDataError("the state is damaged")
        found = await states(ledger_ids)
        return {one: None if info is None else dataclasses.replace(info, key=b"") for one, info in found.items()}

    storage.states = lost  # type: ignore[method-assign]
    with pytest.raises(bkpy.LedgerRecoveryError):
        await client.recover_ledger(writer.ledger_id)
    survey = await (await giving_up(client, writer.ledger_id)).survey()
    assert survey.last_entry == 4
    assert isinstance(survey.seen[b], str)
    closed = await (await giving_up(client, writer.ledger_id, survey.last_entry)).run()
    assert closed.last_entry == 4
    assert closed.accepted_loss is not None
    assert set(closed.accepted_loss.bookies) == {a, b}
