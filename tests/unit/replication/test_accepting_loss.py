"""Closing a ledger whose missing bookies never come back: behind all that can be seen, and never without being told."""

from __future__ import annotations

import asyncio
import dataclasses
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import cluster_of
from tests.in_process import DEADLINE_S, InProcess, contents, rewrite
from tests.unit.client.support import check_closed, payload, put, write
from tests.unit.replication.repairing import held
from tests.unit.replication.worker.test_ledger_repair import damage
from tests.unit.replication.worker.test_worker import Healer
from tests.waiting import eventually

import bkpy
from bkpy.admin.decommission import Decommission
from bkpy.client.bookies.channel import BookieChannel
from bkpy.client.client import replication_context
from bkpy.config.recovery import RecoverySettings
from bkpy.errors import CorruptDataError
from bkpy.metadata import paths
from bkpy.metadata.store.store import Delete
from bkpy.protocol.ledger.ledger_metadata import LedgerState
from bkpy.protocol.wire.messages import Op

if TYPE_CHECKING:
    from collections.abc import Collection

    from bkpy.client.client import Client
    from bkpy.client.write.writer import LedgerWriter
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.recovery.ledger_recovery import LedgerRecovery
    from bkpy.storage.ledgers.info import LedgerInfo


async def written(client: Client, count: int) -> LedgerWriter:
    """A ledger whose bookies have all so many entries, and whose writer has gone."""
    writer = await write(client, count)
    async with asyncio.timeout(DEADLINE_S):
        while set((await bkpy.AdminClient(client).last_entries(writer.metadata)).values()) != {count - 1}:
            await asyncio.sleep(0.005)
    return writer


async def gone(cluster: InProcess, client: Client, *names: str) -> None:
    """The bookies end, and so do their registrations."""
    for name in names:
        await cluster.node(name).stop()
    await eventually(lambda: not replication_context(client).bookies().readable & set(names))


async def giving_up(client: Client, ledger_id: int, at_least: int = -1) -> LedgerRecovery:
    return await replication_context(client).recovery_giving_up(ledger_id, b"", at_least)


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
    five.lose_disks(lost)
    await five.start_node(lost, rebuild=True)
    await eventually(lambda: lost in replication_context(client).bookies().readable)
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


# --- entries that nobody has any more ---------------------------------------------------------------------------------


async def with_a_lost_entry(cluster: InProcess, client: Client) -> tuple[LedgerMetadata, tuple[str, str, str]]:
    """A ledger closed at 50 though nobody has that one; and its bookies, of which the third alone is left."""
    writer = await written(client, 50)
    a, b, c = writer.ensemble
    await put(client, writer, c, [52], lac=50)  # which proves that 50 was acknowledged
    await gone(cluster, client, a, b)
    survey = await (await giving_up(client, writer.ledger_id)).survey()
    closed = await (await giving_up(client, writer.ledger_id, survey.last_entry)).run()
    assert closed.last_entry == 50
    return closed, (a, b, c)


async def repaired(client: Client, metadata: LedgerMetadata, *lost: str) -> LedgerMetadata:
    """What is stored when a worker has taken the mark away that names these."""
    one = Healer(client, "worker")
    await one.mark(metadata.ledger_id, *lost)
    one.start()
    await one.unmarked()
    await one.stop()
    return await client.ledger_metadata(metadata.ledger_id)


async def decommissioned(client: Client, name: str) -> bool:
    settings = RecoverySettings(decommission_patience_s=1.0, drain_look_interval_s=0.01)
    looked = await Decommission(replication_context(client), name, settings, lost=True).run(lambda found: None)
    return looked.scan.clear


async def test_entries_beside_one_that_nobody_has_are_copied_and_its_bookies_can_go(five: InProcess) -> None:
    await five.start_node("f")
    client = await five.client(read_timeout_s=1.0)
    closed, (a, b, c) = await with_a_lost_entry(five, client)
    metadata = await repaired(client, closed, a, b)
    assert [fragment.first_entry for fragment in metadata.fragments] == [0, 50]
    beside, hole = (set(fragment.bookies) for fragment in metadata.fragments)
    assert not {a, b} & beside
    assert hole == {a, b, c}
    assert metadata.accepted_loss is not None
    assert metadata.accepted_loss.holes == ((50, 50),)
    for name in beside:
        assert sorted(await held(client, metadata.ledger_id, name, 49)) == list(range(50))
    assert await decommissioned(client, a)
    assert await decommissioned(client, b)
    reader = await client.open_ledger(metadata.ledger_id)
    assert [entry.data async for entry in reader.read(0, 49)] == [payload(i) for i in range(50)]
    with pytest.raises(bkpy.BookieUnavailableError):
        [entry async for entry in reader.read(50, 50)]


async def test_an_accepted_loss_never_reads_as_no_such_entry(five: InProcess) -> None:
    """Also where each of its bookies is here and denies it: two of them are new ones of the same names."""
    client = await five.client(read_timeout_s=1.0)
    closed, (a, b, _) = await with_a_lost_entry(five, client)
    for name in (a, b):
        five.lose_disks(name)
        five.tree.apply(Delete(f"{cluster_of(client).root}/{paths.COOKIES}/{name}"), 0)
        await five.start_node(name)
    await eventually(lambda: {a, b} <= client.bookies.keys())
    reader = await client.open_ledger(closed.ledger_id)
    with pytest.raises(CorruptDataError, match="its loss was accepted"):
        [entry async for entry in reader.read(50, 50)]


@pytest.mark.parametrize("why", ["it hangs", "it is not given up", "the loss is not accepted"])
async def test_an_entry_that_somebody_may_have_is_no_hole(five: InProcess, why: str) -> None:
    await five.start_node("f")
    client = await five.client(read_timeout_s=0.3)
    closed, (a, b, c) = await with_a_lost_entry(five, client)
    assert closed.accepted_loss is not None
    if why == "it hangs":
        await five.start_node(b)
        await eventually(lambda: b in client.bookies)
        five.hang(b)
    elif why == "it is not given up":
        loss = dataclasses.replace(closed.accepted_loss, bookies={a: "it is gone"})
        await rewrite(client, closed.ledger_id, accepted_loss=loss)
    else:
        await rewrite(client, closed.ledger_id, accepted_loss=None)
    one = Healer(client, "worker", repair_attempts_max=2)
    await one.mark(closed.ledger_id, a)
    one.start()
    await eventually(lambda: one.worker.status()["stuck"] == 1)
    await one.stop()
    metadata = await client.ledger_metadata(closed.ledger_id)
    assert [set(fragment.bookies) for fragment in metadata.fragments] == [{a, b, c}]
    assert metadata.accepted_loss is None or not metadata.accepted_loss.holes


async def test_a_whole_fragment_whose_bookies_were_given_up_is_a_hole(five: InProcess) -> None:
    await five.start_node("f")
    client = await five.client(read_timeout_s=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what an ack quorum of one means
        writer = await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=1)
    for i in range(3):
        await writer.append(payload(i))
    first = set(writer.ensemble)
    for name in sorted(first):
        await five.node(name).stop()
        while name in writer.ensemble:
            await writer.append(payload(len(writer.metadata.fragments)))
    writer.abandon()
    last = writer.ensemble[0]
    await gone(five, client, *first, last)
    survey = await (await giving_up(client, writer.ledger_id)).survey()
    closed = await (await giving_up(client, writer.ledger_id, survey.last_entry)).run()
    assert closed.accepted_loss is not None
    assert first | {last} == set(closed.accepted_loss.bookies)
    metadata = await repaired(client, closed, *first, last)
    assert metadata.accepted_loss is not None
    assert metadata.accepted_loss.holes[0][0] == 0
    assert metadata.is_hole(0)
    assert not (first | {last}) & metadata.needed_bookies
    assert set(metadata.fragments[0].bookies) == first
    for name in sorted(first):
        assert await decommissioned(client, name)
