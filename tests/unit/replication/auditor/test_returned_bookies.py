"""A bookie that was away while ledgers were written has what it is named for soon after its return."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.hooks import cluster_of
from tests.unit.replication.repairing import held, whole
from tests.unit.replication.worker.test_ledger_repair import closed, lose
from tests.unit.replication.worker.test_worker import healer
from tests.waiting import eventually

from bkpy.metadata.replication.underreplication import LossReason, UnderreplicationQueue

if TYPE_CHECKING:
    from tests.in_process import InProcess

    from bkpy.client.client import Client


def marks_of(client: Client) -> UnderreplicationQueue:
    cluster = cluster_of(client)
    return UnderreplicationQueue(cluster.store, cluster.root, cluster.store.runtime)


async def test_a_writer_that_closes_without_a_bookie_marks_it_and_workers_bring_what_it_missed(
    cluster: InProcess,
) -> None:
    """Three bookies: nobody can take the place of the one that is away."""
    client = await cluster.client()
    writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
    away = writer.ensemble[0]
    await writer.append(b"before")
    await lose(cluster, client, away)
    for _ in range(5):
        await writer.append(b"without it")
    await cluster.start_node(away)
    await eventually(lambda: away in client.bookies)
    await writer.append(b"with it")
    await writer.close()
    mark = await marks_of(client).read(writer.ledger_id)
    assert mark is not None
    assert {bookie: loss.reason for bookie, loss in mark.lost.items()} == {away: LossReason.RETURNED}
    missed = set(range(7)) - (await held(client, writer.ledger_id, away, 6)).keys()
    assert set(range(1, 6)) <= missed
    async with healer(cluster) as one:
        one.start()
        await one.unmarked()
    assert (await whole(client, writer.ledger_id)).fragments[-1].bookies == writer.ensemble


async def test_one_that_missed_nothing_keeps_its_place_and_nothing_is_copied(four: InProcess) -> None:
    client = await four.client()
    writer = await closed(client, 20)
    async with healer(four) as one:
        await one.mark(writer.ledger_id, writer.ensemble[0], reason=LossReason.RETURNED)
        one.start()
        await one.unmarked()
        assert one.worker.count.entries == 0
    assert (await client.ledger_metadata(writer.ledger_id)).fragments[0].bookies == writer.ensemble


async def test_while_it_is_away_again_it_is_not_copied_before_it_counts_as_lost(four: InProcess) -> None:
    client = await four.client()
    writer = await closed(client, 20)
    away = writer.ensemble[0]
    await lose(four, client, away)
    async with healer(four) as one:
        await eventually(lambda: away not in one.bookies())
        await one.mark(writer.ledger_id, away, reason=LossReason.RETURNED)
        one.start()
        await eventually(lambda: "is away" in one.worker.status()["postponed_ledgers"].get(str(writer.ledger_id), ""))
        assert one.worker.count.entries == 0
        await one.mark(writer.ledger_id, away, reason=LossReason.LOST)
        await one.unmarked()
    assert away not in (await whole(client, writer.ledger_id)).fragments[0].bookies


async def test_a_writer_that_closes_after_the_lost_bookie_was_replaced_leaves_no_mark(four: InProcess) -> None:
    """It marks the bookie that missed entries; workers have copied these to another one by then, and it stays away."""
    client = await four.client()
    writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
    away = writer.ensemble[0]
    await writer.append(b"before")
    await lose(four, client, away)
    await writer.append(b"without it")
    await eventually(lambda: away not in writer.ensemble)
    async with healer(four) as one:
        await eventually(lambda: away not in one.bookies())
        await one.mark(writer.ledger_id, away, reason=LossReason.LOST)
        one.start()
        await one.unmarked()
        assert writer.under_replicated.keys() == {away}
        await writer.close()
        assert await marks_of(client).read(writer.ledger_id) is not None
        await one.unmarked()
    assert away not in {name for one in (await whole(client, writer.ledger_id)).fragments for name in one.bookies}


async def test_of_two_that_are_away_the_one_that_is_named_is_waited_for(four: InProcess) -> None:
    client = await four.client()
    writer = await closed(client, 20)
    named = writer.ensemble[0]
    (replaced,) = set(client.bookies) - set(writer.ensemble)
    await lose(four, client, named)
    await lose(four, client, replaced)
    async with healer(four) as one:
        await eventually(lambda: not {named, replaced} & set(one.bookies()))
        await one.mark(writer.ledger_id, named, reason=LossReason.RETURNED)
        await one.mark(writer.ledger_id, replaced, reason=LossReason.RETURNED)
        one.start()
        await eventually(lambda: "is away" in one.worker.status()["postponed_ledgers"].get(str(writer.ledger_id), ""))
        mark = await marks_of(client).read(writer.ledger_id)
        assert mark is not None
        assert set(mark.lost) == {named}


async def test_the_writer_of_an_open_ledger_goes_on_and_it_is_verified_when_that_is_closed(four: InProcess) -> None:
    client = await four.client()
    writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
    await writer.append(b"one")
    async with healer(four, open_ledger_grace_s=0.01) as one:
        await one.mark(writer.ledger_id, writer.ensemble[0], reason=LossReason.RETURNED)
        one.start()
        await eventually(lambda: bool(one.worker.status()["postponed_ledgers"]))
        await writer.append(b"two")
        await writer.close()
        await one.unmarked()
    assert (await whole(client, writer.ledger_id)).last_entry == 1


@pytest.mark.parametrize("reason", [None, LossReason.LOST])
async def test_what_it_missed_is_copied_though_draining_it_was_begun_and_cancelled(
    cluster: InProcess, reason: LossReason | None
) -> None:
    """Its mark says that it is to leave, and no more that it may miss something: that is so when it stays after all."""
    client = await cluster.client()
    writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
    away = writer.ensemble[0]
    await lose(cluster, client, away)
    for _ in range(5):
        await writer.append(b"without it")
    await writer.close()
    await cluster.start_node(away)
    await eventually(lambda: away in client.bookies)
    async with healer(cluster) as one:
        if reason is not None:
            await one.mark(writer.ledger_id, away, reason=reason)
        await one.mark(writer.ledger_id, away, reason=LossReason.DRAINING)  # and nobody drains it any more
        one.start()
        await one.unmarked()
    assert (await whole(client, writer.ledger_id)).fragments[-1].bookies == writer.ensemble
