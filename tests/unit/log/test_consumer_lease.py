"""Consumers that are created, begin somewhere, are behind, and are leased to one client at a time."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import cluster_of
from tests.stepping import naming, run_to
from tests.unit.log.stepwise_log import StepwiseLog
from tests.unit.log.support import left_running
from tests.unit.log.test_interrupted import HOW, ending
from tests.unit.log.test_takeovers import FAST
from tests.waiting import eventually

from bkpy.errors import (
    ClientClosedError,
    ConfigError,
    ConsumerLockedError,
    LedgerFencedError,
    MetadataUnavailableError,
    NoSuchConsumerError,
)
from bkpy.metadata.store.memory import MemorySession

if TYPE_CHECKING:
    from tests.in_process import InProcess

    from bkpy.client.client import Client
    from bkpy.log.reader import LogReader


def session_of(client: Client) -> MemorySession:
    session = cluster_of(client).store
    assert isinstance(session, MemorySession)
    return session


async def with_log(client: Client) -> LogReader:
    """Two segments, positions 0 to 5, of the times 0 s to 5 s."""
    log = await StepwiseLog(client).make()
    await log.segment(3)
    await log.segment(3)
    return await client.read_log("orders")


# --- creation ---------------------------------------------------------------------------------------------------------


async def test_a_mistyped_name_keeps_nothing(cluster: InProcess) -> None:
    reader = await with_log(await cluster.client())
    with pytest.raises(
        NoSuchConsumerError, match=r"log orders has no consumer biling: check the name, or .* create=True"
    ):
        await reader.consumer("biling", position=2, lease=True)
    assert await reader.consumers() == []
    await reader.consumer("billing", create=True)
    assert [status.name for status in await reader.consumers()] == ["billing"]


@pytest.mark.parametrize(
    ("begin", "position"),
    [
        (None, 0),
        ("earliest", 0),
        ("latest", 6),
        (2, 2),
        (datetime.fromtimestamp(3.5, UTC), 4),
        (datetime.fromtimestamp(99, UTC), 6),
        (datetime.fromtimestamp(-1, UTC), 0),
    ],
)
async def test_a_consumer_begins_where_it_is_wanted(
    cluster: InProcess, begin: int | str | datetime | None, position: int
) -> None:
    client = await cluster.client()
    reader = await with_log(client)
    assert (await reader.consumer("billing", position=begin, create=True)).position == position
    assert (await reader.consumer("billing", position=1, create=True)).position == position  # that is for new ones
    async with await client.open_log("orders") as log:
        assert (await log.consumer("another", position=begin, create=True)).position == position
        end = await log.append(b"x")
        assert (await log.consumer("last", position="latest", create=True)).position == end + 1


async def test_a_consumer_of_a_writer_that_another_one_follows_goes_on_to_what_that_appends(cluster: InProcess) -> None:
    first, second = await cluster.client(), await cluster.client()
    log = await first.open_log("orders", create=True)
    await log.append(b"0")
    billing = await log.consumer("billing", create=True)
    async with await second.open_log("orders") as another:
        await another.append_batch([b"1", b"2"])
    with pytest.raises(LedgerFencedError):
        await log.append(b"3")
    with pytest.raises(ConfigError, match="up to position 3, so no consumer can be at 4"):
        await billing.commit(4)
    await billing.commit(3)
    assert (await log.consumer("last", position="latest", create=True)).position == 3


async def test_latest_is_what_can_be_read_at_that_moment(cluster: InProcess) -> None:
    client = await cluster.client()
    log = await StepwiseLog(client).make()
    reader = await client.read_log("orders")
    await log.segment(3)
    assert reader.next_position == 0
    assert (await reader.consumer("billing", position="latest", create=True)).position == 3


@pytest.mark.parametrize("wrong", ["last", "", -1, True, 1.5, datetime(2026, 1, 1)])
async def test_where_no_consumer_can_begin(cluster: InProcess, wrong: int) -> None:
    reader = await with_log(await cluster.client())
    with pytest.raises(ConfigError, match=r"position|time zone"):
        await reader.consumer("billing", position=wrong, create=True)
    assert await reader.consumers() == []


# --- lag --------------------------------------------------------------------------------------------------------------


async def test_a_consumer_tells_how_far_behind_it_is(cluster: InProcess) -> None:
    """In sealed ledgers and an open one."""
    client, reading = await cluster.client(), await cluster.client()
    log = await client.open_log("orders", create=True, roll_entries=4)
    reader = await reading.read_log("orders")
    clock = asyncio.get_running_loop().time
    mine = await log.consumer("mine", create=True)
    billing = await reader.consumer("billing", create=True)
    assert await billing.lag() == await mine.lag() == (0, 0, 0.0)
    begun = clock()
    for i in range(10):
        await log.append(b"%d" % i * 10)
        await asyncio.sleep(1.0)
    await log.flush()
    lag = await mine.lag()
    assert (lag.entries, lag.bytes) == (10, 100)
    assert lag.seconds == pytest.approx(clock() - begun, abs=0.5)
    await mine.commit(3)
    lag = await mine.lag()
    assert (lag.entries, lag.bytes) == (7, 70)
    assert lag.seconds == pytest.approx(clock() - begun - 3, abs=0.5)
    assert (await billing.lag()).entries == 10
    await log.truncate(9, ignore_consumers=True)
    assert (await mine.lag()).entries == (await billing.lag()).entries == 1
    await log.close()
    await mine.commit(10)
    assert await mine.lag() == (0, 0, 0.0)


@pytest.mark.parametrize("producer", [None, "shop"])
async def test_what_no_bookie_knows_to_be_acknowledged_has_its_bytes(cluster: InProcess, producer: str | None) -> None:
    """The writer that appended it, or a reader that was told so, counts it. With numbers in the stamps as well."""
    client, reading = await cluster.client(explicit_lac_interval_s=0), await cluster.client()
    log = await client.open_log("orders", create=True, producer=producer)
    mine = await log.consumer("mine", create=True)
    reader = await reading.read_log("orders")
    for appended in (1, 5):
        first = log.next_position
        numbers = [None if producer is None else first + i for i in range(appended)]
        position = [await log.append_nowait(b"x" * 10, sequence=number) for number in numbers][-1]
        await reader.refresh(confirmed=position)
        for at in (0, first):
            expected = (position + 1 - at, 10 * (position + 1 - at))
            assert (await reader.lag_at(at))[:2] == expected
        assert (await mine.lag())[:2] == (position + 1, 10 * (position + 1))
    log.abandon()


async def test_one_whose_entries_are_gone_is_behind_by_what_is_left(cluster: InProcess) -> None:
    client = await cluster.client()
    reader = await with_log(client)
    billing = await reader.consumer("billing", create=True)
    async with await client.open_log("orders") as log:
        await log.truncate(5, ignore_consumers=True)
    assert (await billing.lag()).entries == 1


async def test_the_consumers_of_a_log_are_listed(cluster: InProcess) -> None:
    client = await cluster.client(client_name="billing-1")
    log = await client.open_log("orders", create=True)
    for i in range(4):
        await log.append(b"%d" % i)
    reader = await client.read_log("orders")
    await reader.refresh(confirmed=log.last_acknowledged or 0)
    idle = await reader.consumer("idle", create=True)
    done = await reader.consumer("done", create=True)
    leased = await reader.consumer("leased", create=True, lease=True)
    await asyncio.sleep(100.0)
    await leased.commit(2)
    await done.commit(4)
    await asyncio.sleep(10.0)
    found = {status.name: status for status in await reader.consumers()}
    assert list(found) == ["done", "idle", "leased"]
    assert [status.position for status in found.values()] == [4, 0, 2]
    assert [status.lag.entries for status in found.values()] == [0, 4, 2]
    assert [round(status.idle_s) for status in found.values()] == [0, 110, 10]
    assert [round(status.lag.seconds) for status in found.values()] == [0, 110, 110]
    assert [status.holder and status.holder.name for status in found.values()] == [None, None, "billing-1"]
    assert found["leased"].since == pytest.approx(found["done"].since, abs=1)
    assert idle.position == 0
    await leased.close()
    assert [status.holder for status in await reader.consumers()] == [None] * 3
    await log.close()


# --- leases -----------------------------------------------------------------------------------------------------------


async def test_a_lease_is_for_one_client_until_it_is_closed(cluster: InProcess) -> None:
    first, second = await cluster.client(client_name="billing-1"), await cluster.client(client_name="billing-2")
    reader, other = await with_log(first), await second.read_log("orders")
    async with await reader.consumer("billing", create=True, lease=True) as billing:
        for lease in (True, False):
            with pytest.raises(ConsumerLockedError, match=r"is leased to client billing-1 on .*, since 2") as locked:
                await (await other.consumer("billing", lease=lease)).commit(1)
            assert locked.value.retriable
            assert locked.value.holder is not None
            assert locked.value.holder.name == "billing-1"
        await billing.commit(3)
    await billing.close()
    for call in (billing.commit(4), billing.lag()):
        with pytest.raises(ClientClosedError, match="consumer billing of log orders is closed"):
            await call
    again = await other.consumer("billing", lease=True)
    assert again.position == 3
    await again.commit(5)
    await again.delete()
    assert await reader.consumers() == []


@pytest.mark.parametrize("how", ["fails", "is cancelled"])
async def test_an_end_of_a_lease_that_does_not_come_through_is_tried_again(cluster: InProcess, how: str) -> None:
    """Else the process locks itself out for as long as its session lives."""
    client = await cluster.client(**FAST)
    reader = await with_log(client)
    billing = await reader.consumer("billing", create=True, lease=True)
    session_of(client).suspend()
    closing = asyncio.ensure_future(billing.close())
    if how == "fails":
        with pytest.raises(MetadataUnavailableError):
            await closing
    else:
        await asyncio.sleep(0.1)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
    await asyncio.sleep(5.0)
    session_of(client).resume()
    await eventually(lambda: not [task for task in left_running(client) if task.startswith("end of")])
    async with await reader.consumer("billing", lease=True) as again:
        await again.commit(1)


async def test_an_end_of_a_lease_is_not_tried_when_its_session_is_closed(cluster: InProcess) -> None:
    client = await cluster.client(**FAST)
    reader = await with_log(client)
    billing = await reader.consumer("billing", create=True, lease=True)
    session_of(client).suspend()
    with pytest.raises(MetadataUnavailableError):
        await billing.close()
    await session_of(client).close()
    await eventually(lambda: not [task for task in left_running(client) if task.startswith("end of")])


async def test_a_lost_session_ends_the_lease_and_the_commits(cluster: InProcess) -> None:
    first, second = await cluster.client(), await cluster.client(client_name="billing-2")
    reader, other = await with_log(first), await second.read_log("orders")
    billing = await reader.consumer("billing", create=True, lease=True)
    await billing.commit(1)
    session_of(first).expire()
    with pytest.raises(ConsumerLockedError, match="has ended, and nobody holds it now") as lost:
        await billing.commit(2)
    assert (lost.value.retriable, lost.value.holder) == (False, None)
    successor = await other.consumer("billing", lease=True)
    assert successor.position == 1
    with pytest.raises(ConsumerLockedError, match="has ended, and it is leased to client billing-2") as lost:
        await billing.commit(2)
    assert lost.value.holder is not None
    await successor.commit(4)
    await billing.close()  # which is not the lease's end
    await successor.commit(5)
    await successor.close()


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("how", HOW)
async def test_taking_a_lease_ended_at_each_wait_leaves_none(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch, how: str, late: bool
) -> None:
    client, other = await cluster.client(**FAST), await cluster.client(**FAST)
    reader, another = await with_log(client), await other.read_log("orders")
    multi = session_of(client).multi

    async def answered_later(operations: Any) -> Any:
        result = await multi(operations)
        await asyncio.sleep(0)  # it is done, and the caller doesn't know yet
        return result

    monkeypatch.setattr(session_of(client), "multi", answered_later)
    for at in count():
        name = f"c{at}"
        taken = False

        async def take(name: str = name) -> None:
            nonlocal taken
            await reader.consumer(name, create=True, lease=True)
            taken = True

        with naming(name, at, late):
            reached = await run_to(take(), at, late, ending(client, how))
            if not taken or how == "session lost":
                await eventually(lambda: not [task for task in left_running(client) if task.startswith("end of")])
                if taken:  # its session may have been a later one
                    with contextlib.suppress(ConsumerLockedError):
                        await (await another.consumer(name, create=True, lease=True)).close()
                else:
                    async with await another.consumer(name, create=True, lease=True) as consumer:
                        await consumer.commit(1)
        if not reached:
            break
    assert at > 6


@pytest.mark.parametrize("taken", [False, True], ids=["free", "taken"])
@pytest.mark.parametrize("late", [False, True])
async def test_a_commit_whose_session_is_lost_at_each_wait(cluster: InProcess, late: bool, taken: bool) -> None:
    """It was done before, or it is not done at all; and none is done after the lease was."""
    client, other = await cluster.client(**FAST), await cluster.client(**FAST)
    reader, another = await with_log(client), await other.read_log("orders")
    for at in count():
        name = f"c{at}"
        billing = await reader.consumer(name, create=True, lease=True)
        successors = []

        async def succeed(name: str = name, successors: list[asyncio.Task[None]] = successors) -> None:
            async with await another.consumer(name, lease=True) as successor:
                position = successor.position
                await asyncio.sleep(1.0)
                assert (await another.consumer(name)).position == position  # nobody else has moved it
                await successor.commit(5)

        def lose(successors: list[asyncio.Task[None]] = successors) -> None:
            session_of(client).expire()
            if taken:
                successors.append(asyncio.create_task(succeed()))

        with naming(name, at, late):
            reached = await run_to(billing.commit(2), at, late, lose)
            if reached:
                with pytest.raises((ConsumerLockedError, MetadataUnavailableError)):
                    await billing.commit(3)
                await asyncio.gather(*successors)
                assert (await another.consumer(name)).position in ((5,) if taken else (0, 2))
        if not reached:
            break
    assert at > 2
