"""Consumers as users have them: where they stand, two that go by one name, and what is gone."""

from __future__ import annotations

from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from tests.unit.log.stepwise_log import StepwiseLog

import bkpy

if TYPE_CHECKING:
    from tests.in_process import InProcess


async def test_a_consumer_goes_on_where_it_was(cluster: InProcess) -> None:
    client = await cluster.client()
    log = await StepwiseLog(client).make()
    await log.segment(5)
    async with await client.read_log("orders") as reader:
        billing = await reader.consumer("billing", create=True)
        assert (billing.name, billing.position) == ("billing", 0)
        await billing.commit(3)
        late = await reader.consumer("late", position=4, create=True)
        assert late.position == 4
    async with await client.read_log("orders") as reader:
        assert [(await reader.consumer(name, create=True)).position for name in ("billing", "late")] == [3, 4]
        again = await reader.consumer("billing", position=1, create=True)
        assert again.position == 3  # it is there: the position is for new ones
        await again.commit(2)
        assert repr(again) == "<LogConsumer log=orders name=billing position=2>"
        with pytest.raises(bkpy.MetadataConflictError, match="somebody else uses that name"):
            await billing.commit(4)
        assert billing.position == 3
        await again.delete()
        with pytest.raises(bkpy.NoSuchConsumerError, match="deleted by this object"):
            await again.commit(3)
        assert (await reader.consumer("billing", create=True)).position == 0
    with pytest.raises(bkpy.ClientClosedError):
        await reader.consumer("billing", create=True)


async def test_what_a_consumer_can_not_be(cluster: InProcess) -> None:
    client = await cluster.client()
    log = await StepwiseLog(client).make()
    await log.segment(3)
    await log.segment(3)
    reader = await client.read_log("orders")
    consumer = await reader.consumer("billing", position=5, create=True)
    await log.truncate(4)
    with pytest.raises(bkpy.TruncatedError):
        await reader.consumer("other", position=3, create=True)
    with pytest.raises(bkpy.TruncatedError):
        await consumer.commit(3)
    with pytest.raises(bkpy.ConfigError):
        await reader.consumer("other", position=7, create=True)
    with pytest.raises(bkpy.ConfigError, match="name of a consumer"):
        await reader.consumer("a/b", create=True)
    for bad in (-1, True, "1", None):
        with pytest.raises(bkpy.ConfigError, match="position"):
            await consumer.commit(bad)  # type: ignore[arg-type]
    assert consumer.position == 5
    await log.delete(cluster)
    with pytest.raises(bkpy.NoSuchLogError):
        await consumer.commit(6)


async def test_no_consumer_gets_past_what_is_there(cluster: InProcess) -> None:
    """Retention would delete what comes, and it would never have read that."""
    client = await cluster.client()
    log = await StepwiseLog(client).make()
    await log.segment(3)
    reader = await client.read_log("orders")
    consumer = await reader.consumer("billing", create=True)
    with pytest.raises(bkpy.ConfigError, match="reach up to position 3, so no consumer can be at 4"):
        await consumer.commit(4)
    assert consumer.position == 0
    await log.segment(3)
    assert reader.next_position == 3
    await consumer.commit(6)  # it looks again before it refuses
    assert consumer.position == reader.next_position == 6
    with pytest.raises(bkpy.ConfigError, match="reach up to position 6, so no consumer can be at 7"):
        await reader.consumer("other", position=7, create=True)
    assert (
        await reader.consumer("billing", position=7, create=True)
    ).position == 6  # it is there: that is for new ones


async def test_the_consumer_of_a_writer_gets_as_far_as_is_acknowledged(cluster: InProcess) -> None:
    client = await cluster.client()
    async with await client.open_log("orders", create=True) as log:
        consumer = await log.consumer("billing", create=True)
        for position in range(3):
            with pytest.raises(bkpy.ConfigError, match=f"position {position}, so no consumer can be at {position + 1}"):
                await consumer.commit(position + 1)
            await log.append(b"x")
            await consumer.commit(position + 1)


async def test_what_a_tail_has_given_is_committed_without_another_look(cluster: InProcess) -> None:
    """Committing needs no bookie: those that are away may be the only ones that tell."""
    client = await cluster.client()
    log = await client.open_log("orders", create=True)
    reader = await client.read_log("orders")
    consumer = await reader.consumer("billing", create=True)
    await log.append_batch([b"x"] * 5)
    await log.close()
    async with aclosing(reader.tail()) as tail:
        async for entry in tail:
            if entry.position == 4:
                break
    await reader.close()  # it can't look any more
    await consumer.commit(5)
    assert consumer.position == 5
    with pytest.raises(bkpy.ClientClosedError):
        await consumer.commit(6)


async def test_a_writer_has_the_same_consumers(cluster: InProcess) -> None:
    client = await cluster.client()
    async with await client.open_log("orders", create=True) as log:
        await log.append_batch([b"x"] * 5)
        consumer = await log.consumer("billing", position=3, create=True)
        with pytest.raises(bkpy.ConfigError, match="billing"):
            await log.truncate(5)
        await log.truncate(3)
        with pytest.raises(bkpy.TruncatedError):
            await log.consumer("late", position=2, create=True)
        with pytest.raises(bkpy.ConfigError, match="position"):
            await log.consumer("late", position=True, create=True)
    reader = await client.read_log("orders")
    assert (await reader.consumer("billing", create=True)).position == consumer.position == 3


async def test_a_writers_consumer_at_a_time_begins_behind_all_older_entries(cluster: InProcess) -> None:
    client = await cluster.client(explicit_lac_interval_s=0)
    async with await client.open_log("orders", create=True) as log:
        await log.append(b"0")
        await log.append(b"1")
        later = datetime.now(UTC) + timedelta(days=1)
        assert (await log.consumer("billing", position=later, create=True)).position == 2
