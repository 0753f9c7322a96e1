"""Which ledgers a bookie stores most of: rates since the last look, whatever left memory meanwhile, in bounded time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.hooks import added_to

from bkpy.storage.busiest import BusiestLedgers

if TYPE_CHECKING:
    from tests.in_process import InProcess

    import bkpy

ENTRY = b"x" * 1000


def looking(cluster: InProcess, **settings: int) -> BusiestLedgers:
    runtime, node = cluster.runtime("a"), cluster.node("a")
    changed = node.settings.model_copy(update=settings)
    return BusiestLedgers(cluster.storage("a").shards, changed, runtime.clock, runtime.rng, added_to(node))


async def writers(cluster: InProcess, count: int) -> list[bkpy.LedgerWriter]:
    client = await cluster.client()
    return [await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1) for _ in range(count)]


async def append(writer: bkpy.LedgerWriter, entries: int) -> None:
    for _ in range(entries):
        await writer.append(ENTRY)


async def test_rates_are_those_since_the_last_look_most_bytes_first(cluster: InProcess) -> None:
    quiet, busy = await writers(cluster, 2)
    await append(quiet, 30)
    found = looking(cluster)
    assert found.look() == []  # since when is unknown
    await append(quiet, 5)
    await append(busy, 20)
    await asyncio.sleep(10.0)
    first, second = found.look()
    assert (first.ledger_id, second.ledger_id) == (busy.ledger_id, quiet.ledger_id)
    assert first.entries == pytest.approx(2.0, rel=0.1)
    assert second.entries == pytest.approx(0.5, rel=0.1)
    assert first.bytes == pytest.approx(4 * second.bytes)
    assert found.look() == [first, second]  # another one asks at the same time
    await asyncio.sleep(cluster.node("a").settings.activity_fresh_s)
    assert found.look() == []


async def test_after_a_time_without_questions_it_begins_anew(cluster: InProcess) -> None:
    (writer,) = await writers(cluster, 1)
    found = looking(cluster)
    found.look()
    await append(writer, 5)
    await asyncio.sleep(cluster.node("a").settings.activity_stale_s + 1)
    assert found.look() == []
    await append(writer, 5)
    await asyncio.sleep(2.0)
    assert [rate.ledger_id for rate in found.look()] == [writer.ledger_id]


async def test_what_a_checkpoint_took_out_of_memory_counts_in_the_rates(cluster: InProcess) -> None:
    before, after = await writers(cluster, 2)
    found = looking(cluster)
    found.look()
    await append(before, 10)
    await cluster.storage("a").checkpoint()
    await append(after, 10)
    await asyncio.sleep(10.0)
    (rate,) = found.look()  # of the other nothing is left to look at
    assert rate.ledger_id == after.ledger_id
    assert rate.entries == pytest.approx(2.0, rel=0.1)


async def test_a_look_goes_on_where_the_last_one_ended_during_a_checkpoint(cluster: InProcess) -> None:
    old, new = await writers(cluster, 2)
    found = looking(cluster)
    await append(old, 10)
    found.look()
    shard = cluster.storage("a").shards[0]
    await append(new, 10)
    await asyncio.sleep(10.0)
    checkpoint = asyncio.create_task(cluster.storage("a").checkpoint())
    while shard.sealed is None:
        await asyncio.sleep(0)
    (rate,) = found.look()
    await checkpoint
    assert rate.ledger_id == new.ledger_id
    assert rate.entries == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("bound", ["activity_frames_max", "activity_batches_max"])
async def test_a_look_at_much_is_at_a_part_of_it(cluster: InProcess, bound: str) -> None:
    quiet, busy = await writers(cluster, 2)
    found = looking(cluster, **{bound: 40})
    found.look()
    for _ in range(50):
        await append(busy, 3)
        await append(quiet, 1)
    await asyncio.sleep(10.0)
    rates = found.look()
    assert rates[0].ledger_id == busy.ledger_id
    assert sum(rate.entries for rate in rates) == pytest.approx(20.0, rel=0.1)
    assert 9.0 < rates[0].entries < 20.0


async def test_an_answer_has_so_many_ledgers_at_most(cluster: InProcess) -> None:
    found = looking(cluster, activity_ledgers_max=3)
    found.look()
    for writer in await writers(cluster, 5):
        await append(writer, 1)
    await asyncio.sleep(2.0)
    assert len(found.look()) == 3


async def test_with_bounds_of_one_a_look_is_at_one_frame(cluster: InProcess) -> None:
    found = looking(cluster, activity_ledgers_max=1, activity_frames_max=1, activity_batches_max=1)
    found.look()
    for writer in await writers(cluster, 3):
        await append(writer, 1)
    await asyncio.sleep(2.0)
    (rate,) = found.look()
    assert rate.entries == pytest.approx(1.5, rel=0.1)


async def test_fences_are_kept_with_their_times_each_once(cluster: InProcess) -> None:
    (writer,) = await writers(cluster, 1)
    client = await cluster.client()
    await append(writer, 1)
    for _ in range(2):
        await client.recover_ledger(writer.ledger_id)
    ((ledger_id, time_s),) = cluster.storage("a").fences
    assert ledger_id == writer.ledger_id
    assert time_s == pytest.approx(cluster.runtime("a").clock.time(), abs=60)
