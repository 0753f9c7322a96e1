"""Polls return what an iterator does, as lists, whatever is cancelled, times out or fails on the way."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import weakref
from contextlib import aclosing
from itertools import count
from typing import TYPE_CHECKING

import pytest
from tests.hooks import roller_of
from tests.stepping import naming, run_to
from tests.unit.log.stepwise_log import StepwiseLog
from tests.unit.log.support import left_running
from tests.unit.log.test_interrupted import HOW, ending, with_entries
from tests.unit.log.test_takeovers import FAST
from tests.waiting import eventually

from bkpy.errors import (
    BookKeeperError,
    ClientClosedError,
    ConfigError,
    LogFencedError,
    NoSuchLogError,
    TruncatedError,
)

if TYPE_CHECKING:
    from tests.in_process import InProcess

    from bkpy.client.client import Client
    from bkpy.log.entries import LogEntry
    from bkpy.log.reader import LogReader

SEEDS = [*range(3), *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(3, 100))]


def numbers(entries: list[LogEntry]) -> list[int]:
    assert [entry.position for entry in entries] == [int(entry.data) for entry in entries]
    return [entry.position for entry in entries]


async def test_a_poll_returns_what_there_is_and_waits_for_more(cluster: InProcess) -> None:
    client = await cluster.client(**FAST)
    async with await client.open_log("orders", create=True) as log, await client.read_log("orders") as reader:
        assert await reader.poll(timeout=1.0) == []
        await log.append_batch([b"%d" % i for i in range(5)])
        assert numbers(await reader.poll(max_entries=2)) == [0, 1]
        assert numbers(await reader.poll(max_entries=2, timeout=0)) == [2, 3]
        assert numbers(await reader.poll(timeout=1.0)) == [4]
        assert await reader.poll(timeout=0) == []
        waiting = asyncio.create_task(reader.poll())
        await asyncio.sleep(1.0)
        for act in (lambda: reader.poll(), lambda: seek(reader, 0)):
            with pytest.raises(RuntimeError, match="another task polls this reader already"):
                await act()
        await log.append(b"5")
        assert numbers(await waiting) == [5]
        reader.seek(3)
        assert numbers(await reader.poll(max_entries=2)) == [3, 4]
        reader.seek(0)
        reader.seek(1)
        assert numbers(await reader.poll(max_entries=1)) == [1]
    with pytest.raises(ClientClosedError):
        await reader.poll()
    with pytest.raises(ClientClosedError):
        reader.seek(0)


@pytest.mark.parametrize("closed", [True, False])
async def test_a_reader_that_was_polled_leaves_nothing_behind(cluster: InProcess, closed: bool) -> None:
    """Closed, or just forgotten while its tail waits for more."""
    client = await cluster.client(**FAST)
    async with await client.open_log("orders", create=True) as log:
        await log.append(b"0")
        idle = set(left_running(client))
        reader = await client.read_log("orders")
        assert numbers(await reader.poll()) == [0]
        await eventually(lambda: any(name.startswith("long poll") for name in left_running(client)))
        gone = weakref.ref(reader)
        if closed:
            await reader.close()
        del reader
        gc.collect()
        assert gone() is None
        await eventually(lambda: set(left_running(client)) <= idle)


async def test_polls_that_wait_for_nothing_find_what_came_since_the_last_one(cluster: InProcess) -> None:
    client = await cluster.client(**FAST)
    async with await client.open_log("orders", create=True) as log, await client.read_log("orders") as reader:
        await log.append(b"0")
        assert numbers(await reader.poll()) == [0]
        for number in range(1, 6):
            await log.append(b"%d" % number)
            await asyncio.sleep(1.0)
            assert numbers(await reader.poll(timeout=0)) == [number]


@pytest.mark.parametrize("late", [False, True])
async def test_a_poll_whose_reader_is_closed_says_so(cluster: InProcess, late: bool) -> None:
    """At each wait. `StopAsyncIteration` would be the log's end to an iterator that polls, and a log has none."""
    client = await cluster.client(**FAST)
    log = await with_entries(client, "orders")
    for at in count():
        reader = await client.read_log("orders")
        closing: list[asyncio.Task[None]] = []

        async def poll(reader: LogReader = reader) -> None:
            while await reader.poll(timeout=1.0):
                pass

        def close(reader: LogReader = reader, closing: list[asyncio.Task[None]] = closing) -> None:
            closing.append(asyncio.create_task(reader.close()))

        with naming("poll", at, late):
            reached = await run_to(poll(), at, late, close)  # which takes no error but those of bkpy
        await asyncio.gather(*closing)
        if not reached:
            break
    assert at > 1
    polling = asyncio.create_task(reader.poll())
    await asyncio.sleep(1.0)
    await reader.close()
    with pytest.raises(ClientClosedError, match="the reader of log orders is closed"):
        await polling
    await log.close()


async def seek(reader: LogReader, position: int) -> None:
    reader.seek(position)


async def test_what_can_not_be_polled(cluster: InProcess) -> None:
    client = await cluster.client(**FAST)
    log = await StepwiseLog(client).make()
    reader = await client.read_log("orders")
    for wrong in (0, -1, True, 1.5, None):
        with pytest.raises(ConfigError, match="max_entries"):
            await reader.poll(max_entries=wrong)  # type: ignore[arg-type]
    for wrong in (-1, "1", float("nan")):
        with pytest.raises(ConfigError, match="timeout"):
            await reader.poll(timeout=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="position"):
        reader.seek(-1)
    await log.segment(3)
    await log.segment(3)
    await log.truncate(3)
    await reader.refresh()
    reader.seek(1)
    for _ in range(2):
        with pytest.raises(TruncatedError):
            await reader.poll()
    reader.seek(reader.first_position)
    assert numbers(await reader.poll()) == [3, 4, 5]
    await log.delete(cluster)
    with pytest.raises(NoSuchLogError):
        await reader.poll()
    assert not [name for name in left_running(client) if "tail" in name]


async def test_a_poll_that_failed_is_tried_again(cluster: InProcess) -> None:
    """As when too few bookies could be reached in time."""
    client, other = await cluster.client(**FAST), await cluster.client(**FAST | {"read_timeout_s": 0.5})
    log = await client.open_log("orders", create=True)
    await log.append_batch([b"%d" % i for i in range(3)])
    await log.close()
    reader = await other.read_log("orders")
    for name in "abc":
        cluster.hang(name)
    with pytest.raises(BookKeeperError):
        await reader.poll()
    for name in "abc":
        await cluster.restart(name)
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(BookKeeperError):
                assert numbers(await reader.poll()) == [0, 1, 2]
                break
    await reader.close()


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("how", HOW)
async def test_a_poll_ended_at_each_wait_loses_nothing(cluster: InProcess, how: str, late: bool) -> None:
    client = await cluster.client(**FAST, tail_poll_s=0.01)
    log = await with_entries(client, "orders")
    await eventually(lambda: len([s for s in roller_of(log).log_list.segments if s.sealed]) == 2)
    idle = left_running(client)
    for at in count():
        async with await client.read_log("orders") as reader:
            found: list[int] = []

            async def poll(found: list[int] = found, reader: LogReader = reader) -> None:
                while len(found) < 5:
                    found += numbers(await reader.poll(max_entries=2))

            with naming("poll", at, late):
                reached = await run_to(poll(), at, late, ending(client, how))
                await poll()
                assert found == [0, 1, 2, 3, 4]
        await eventually(lambda: left_running(client) == idle)
        if not reached:
            break
    assert at > 1
    await log.close()


@pytest.mark.thorough
@pytest.mark.parametrize("seed", SEEDS)
async def test_polls_return_what_the_iterator_does(cluster: InProcess, seed: int) -> None:
    """While the log grows, rolls, is truncated where both have read it, and changes hands; all is cancelled at will."""
    rng = random.Random(seed)
    clients = [await cluster.client(**FAST, explicit_lac_interval_s=0.01, long_poll_s=0.2) for _ in range(3)]
    reader = await _created(clients[2])
    total, polled, iterated, appended = 120, [], [], 0

    async def write() -> None:
        nonlocal appended
        while appended < total:
            log = await rng.choice(clients[:2]).open_log("orders", roll_entries=rng.choice((3, 10, 1000)))
            for _ in range(rng.randrange(6)):
                size = rng.randrange(8)
                with contextlib.suppress(LogFencedError):
                    appended += len(await log.append_batch([b"%d" % (appended + i) for i in range(size)]))
                if rng.random() < 0.2:
                    await log.truncate(min(len(polled), len(iterated), log.next_position))
                await asyncio.sleep(rng.random() ** 3)
            await log.close()

    async def cancelled(call: asyncio.Task[None]) -> None:
        await asyncio.wait([call], timeout=rng.choice((0, 0.001, 0.1, 10.0)))
        if rng.random() < 0.5:
            call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call

    async def poll() -> None:
        async def some() -> None:
            timeout_s = rng.choice((0, 0.001, 0.1, None))
            entries = await reader.poll(max_entries=rng.choice((1, 2, 7, 1000)), timeout=timeout_s)
            polled.extend(numbers(entries))

        while len(polled) < total:
            await cancelled(asyncio.create_task(some()))
            if rng.random() < 0.1:
                reader.seek(len(polled))

    async def iterate() -> None:
        async with aclosing(reader.tail()) as tail:

            async def one() -> None:
                iterated.extend(numbers([await anext(tail)]))

            while len(iterated) < total:
                await cancelled(asyncio.create_task(one()))

    async with asyncio.timeout(3600):
        await asyncio.gather(write(), poll(), iterate())
    assert polled == list(range(len(polled)))
    assert iterated == list(range(len(iterated)))
    await reader.close()


async def _created(client: Client) -> LogReader:
    await (await client.open_log("orders", create=True, ensemble_size=1, write_quorum=1, ack_quorum=1)).close()
    return await client.read_log("orders")
