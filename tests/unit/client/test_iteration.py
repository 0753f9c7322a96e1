"""Every asynchronous iterator of the public API, cancelled at each point at which it waits, and called again."""

from __future__ import annotations

import asyncio
import gc
from contextlib import aclosing, suppress
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import roller_of, tasks_of
from tests.in_process import DEADLINE_S, runtime_here
from tests.stepping import Stepped
from tests.waiting import eventually

import bkpy
from bkpy.client.iteration import ResumableIterator, Stepwise, alone
from bkpy.client.read.range_pipeline import RangePipeline
from bkpy.config.client import ClientSettings
from bkpy.errors import ClientClosedError, NoSuchEntryError, TruncatedError
from bkpy.log.scan import SegmentScan
from bkpy.metadata.logs.pages import LogPages, RangeWalk
from bkpy.metadata.store.memory import MemoryStore
from bkpy.protocol.log.log_list import LogList, Segment
from bkpy.protocol.log.log_reading import SegmentRange

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from tests.in_process import InProcess

    from bkpy.client.client import Client
    from bkpy.client.iteration import BatchSource

ONE = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}
SMALL = {"read_bytes": 1, "read_entries_first": 1, "read_entries_max": 2, "tail_poll_s": 0.01}
ENTRIES = 7

# By name: what it makes of the readers of a ledger and of a log, and how many elements are there.
ITERATORS: dict[str, Callable[[Client, bkpy.LedgerReader, bkpy.LogReader], AsyncGenerator[Any, None]]] = {
    "read": lambda _, ledger, log: ledger.read(),
    "read_blocks": lambda _, ledger, log: ledger.read_blocks(),
    "read_unconfirmed": lambda _, ledger, log: ledger.read_unconfirmed(0, ENTRIES - 1),
    "tail": lambda _, ledger, log: ledger.tail(),
    "tail_blocks": lambda _, ledger, log: ledger.tail_blocks(),
    "log read": lambda _, ledger, log: log.read(),
    "log read_blocks": lambda _, ledger, log: log.read_blocks(),
    "log tail": lambda _, ledger, log: log.tail(),
    "log tail_blocks": lambda _, ledger, log: log.tail_blocks(),
    "log list_ranges": lambda _, ledger, log: log.list_ranges(),
    "list_ledgers": lambda client, ledger, log: client.list_ledgers(),
    "find_ledgers": lambda client, ledger, log: bkpy.AdminClient(client).find_ledgers(),
    "log_segments": lambda client, ledger, log: bkpy.AdminClient(client).log_segments("orders"),
    "list_logs": lambda client, ledger, log: client.list_logs(),
}


def ids_of(element: Any) -> list[Any]:
    """What tells the element from others: entries' ids or positions, or the element itself."""
    if isinstance(element, bkpy.LogBlock):
        return list(element.positions)
    if isinstance(element, bkpy.Block):
        return [entry.entry_id for entry in element]
    if isinstance(element, SegmentRange):
        return list(range(element.first_position, element.first_position + element.entries))
    if isinstance(element, Segment):
        return list(range(element.first_position, element.end_position))
    if isinstance(element, bkpy.LedgerMetadata):
        return [element.ledger_id]
    if isinstance(element, bkpy.LogEntry):
        return [element.position]
    return [element.entry_id if isinstance(element, bkpy.Entry) else element]


async def _awaited(stepped: Stepped) -> Any:
    return await stepped


async def consume(elements: AsyncGenerator[Any, None], wanted: int, at: int, late: bool) -> tuple[list[Any], bool]:
    """The first `wanted` ids, with the call that waits for the `at`-th time cancelled; and whether there was one."""
    found: list[Any] = []
    waited, interrupted = 0, False
    while len(found) < wanted:
        tasks: list[asyncio.Task[Any]] = []
        stepped = Stepped(anext(elements), -1 if interrupted else at - waited, late, lambda t=tasks: t[0].cancel())
        tasks.append(asyncio.create_task(_awaited(stepped)))
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.wait(tasks)
        waited += stepped.waits
        interrupted = interrupted or stepped.reached
        if not tasks[0].cancelled():
            found += ids_of(tasks[0].result())
    return found, interrupted


async def log_of(client: Client) -> bkpy.LogWriter:
    """A log of seven entries in three ledgers."""
    log = await client.open_log("orders", create=True, **ONE)
    for position in range(ENTRIES):
        await log.append(b"%d" % position)
        if position in (1, 4):
            await roller_of(log).roll()
    return log


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", ITERATORS)
async def test_a_cancelled_call_loses_and_repeats_nothing(cluster: InProcess, name: str, late: bool) -> None:
    client = await cluster.client(**SMALL)
    writer = await client.create_ledger()
    await writer.append_batch([b"%d" % i for i in range(ENTRIES)])
    log = await log_of(client)
    if "tail" not in name:
        await writer.close()
        await log.close()
    whole = list(range(ENTRIES))
    if name == "list_logs":
        whole = ["orders"]
    if name in ("list_ledgers", "find_ledgers"):
        whole = [id async for id in client.list_ledgers()]
    for at in count():
        ledger, reader = await client.open_ledger(writer.ledger_id), await client.read_log("orders")
        async with ledger, reader, aclosing(ITERATORS[name](client, ledger, reader)) as elements:
            found, interrupted = await consume(elements, len(whole), at, late)
            assert found == whole, f"cancelled at wait number {at}"
        if not interrupted:
            break
    assert at > 0
    if "tail" in name:
        log.abandon()
        await writer.close()


async def test_a_tail_goes_on_after_a_time_out(cluster: InProcess) -> None:
    client = await cluster.client(**SMALL)
    writer = await client.create_ledger()
    reader = await client.open_ledger(writer.ledger_id)
    async with aclosing(reader.tail()) as entries:
        for entry_id in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await anext(entries)
            await writer.append(b"%d" % entry_id)
            async with asyncio.timeout(DEADLINE_S):
                assert (await anext(entries)).entry_id == entry_id
        await writer.close()
        with pytest.raises(StopAsyncIteration):
            await anext(entries)
        with pytest.raises(StopAsyncIteration):
            await anext(entries)


async def test_an_error_stays(cluster: InProcess) -> None:
    client = await cluster.client(**SMALL)
    writer = await client.create_ledger()
    await writer.append(b"0")
    async with await client.open_ledger(writer.ledger_id) as reader:
        past = reader.read(0, 5)
        tail = reader.tail(1)
        waiting = asyncio.create_task(anext(tail))  # type: ignore[arg-type]
        for _ in range(2):
            with pytest.raises(NoSuchEntryError):
                await anext(past)
        await asyncio.sleep(0)
    for tried in (waiting, anext(tail), anext(tail)):
        with pytest.raises(ClientClosedError):
            await tried
    log = await log_of(client)
    await log.truncate(3)
    async with await client.read_log("orders") as log_reader:
        gone = log_reader.read(0)
        for _ in range(2):
            with pytest.raises(TruncatedError):
                await anext(gone)
    log.abandon()
    await writer.close()


async def test_two_tasks_at_once_are_refused(cluster: InProcess) -> None:
    client = await cluster.client(**SMALL)
    writer = await client.create_ledger()
    tail = (await client.open_ledger(writer.ledger_id)).tail()
    first = asyncio.create_task(anext(tail))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="another task"):
        await anext(tail)
    await writer.append(b"0")
    assert (await first).data == b"0"
    with pytest.raises(TypeError, match="sent"):
        await tail.asend(1)  # type: ignore[arg-type]
    with pytest.raises(KeyError):
        await tail.athrow(KeyError("thrown"))
    with pytest.raises(StopAsyncIteration):
        await anext(tail)
    await writer.close()


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["tail", "log tail"])
async def test_a_tail_that_is_dropped_or_closed_while_it_waits_leaves_nothing_behind(
    cluster: InProcess, name: str
) -> None:
    client = await cluster.client(**SMALL)
    writer = await client.create_ledger()
    log = await log_of(client)
    await writer.append_batch([b"%d" % i for i in range(ENTRIES)])
    reader, log_reader = await client.open_ledger(writer.ledger_id), await client.read_log("orders")
    idle = {task.get_name() for task in tasks_of(client)}
    for closed in (True, False):
        elements = ITERATORS[name](client, reader, log_reader)
        await consume(elements, ENTRIES, -1, False)
        waiting = asyncio.create_task(anext(elements))  # type: ignore[arg-type]
        await eventually(lambda: any(t.get_name().startswith("long poll") for t in tasks_of(client)))
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        if closed:
            await elements.aclose()
        del elements, waiting
        gc.collect()
        await eventually(lambda: {task.get_name() for task in tasks_of(client)} <= idle)
    log.abandon()
    await writer.close()


async def test_a_call_that_waits_while_the_iterator_is_closed_ends() -> None:
    async def never() -> AsyncGenerator[int, None]:
        await asyncio.Event().wait()
        yield 0

    elements: ResumableIterator[int] = ResumableIterator(Stepwise(never(), runtime_here(), name="test"), alone)
    waiting = asyncio.create_task(anext(elements))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    await elements.aclose()
    with pytest.raises(StopAsyncIteration):
        await waiting


def a_range() -> RangeWalk:
    """One entry of one ledger."""
    log_list = LogList("u", 1, 1, 1, "crc32c", b"", segments=(Segment(0, 0, 0, 1, 10, 0),))
    return RangeWalk(
        LogPages(MemoryStore(runtime_here()).session(), "/ledgers", ClientSettings()), "log", log_list, 0, 0
    )


SOURCES: dict[str, Callable[[AsyncGenerator[int, None]], BatchSource[Any]]] = {
    "a generator": lambda elements: Stepwise(elements, runtime_here(), name="test"),
    "ranges": lambda elements: RangePipeline(
        lambda first, last: anext(elements),  # type: ignore[arg-type, return-value]
        name="test",
        at_once=1,
        rest_ahead=False,
        first_entries=1,
        range_entries_max=1,
        range_bytes=1,
        runtime=runtime_here(),
    ).source(0, 9),
    "segments": lambda elements: SegmentScan(
        a_range(),
        lambda _: anext(elements),  # type: ignore[arg-type, return-value]
        ClientSettings(),
        runtime_here(),
    ),
}


@pytest.mark.parametrize("name", SOURCES)
async def test_a_consumer_that_is_cancelled_as_its_iterator_is_closed_is_cancelled(name: str) -> None:
    """It takes the end that closing is for the end of what there was to read, otherwise."""

    async def never() -> AsyncGenerator[int, None]:
        await asyncio.Event().wait()
        yield 0

    elements: ResumableIterator[int] = ResumableIterator(SOURCES[name](never()), alone)
    waiting = asyncio.create_task(anext(elements))  # type: ignore[arg-type]
    for _ in range(3):
        await asyncio.sleep(0)
    waiting.cancel()
    await elements.aclose()
    await asyncio.wait((waiting,))
    assert waiting.cancelled()
    other: ResumableIterator[int] = ResumableIterator(SOURCES[name](never()), alone)
    waiting = asyncio.create_task(anext(other))  # type: ignore[arg-type]
    for _ in range(3):
        await asyncio.sleep(0)
    await other.aclose()
    with pytest.raises(StopAsyncIteration):
        await waiting


@pytest.mark.parametrize("consumer_too", [False, True])
@pytest.mark.parametrize("name", SOURCES)
async def test_a_consumer_whose_iterators_tasks_are_cancelled_takes_that_for_no_end(
    name: str, consumer_too: bool
) -> None:
    """As by a program that cancels all tasks at its end. What the task was to fetch would be left out."""

    async def elements_of() -> AsyncGenerator[int, None]:
        await asyncio.Event().wait()
        yield 0

    before = asyncio.all_tasks()
    elements: ResumableIterator[int] = ResumableIterator(SOURCES[name](elements_of()), alone)
    waiting = asyncio.create_task(anext(elements))  # type: ignore[arg-type]
    for _ in range(3):
        await asyncio.sleep(0)
    for task in asyncio.all_tasks() - before:
        if consumer_too or task is not waiting:
            task.cancel()
    await asyncio.wait((waiting,))
    assert waiting.cancelled() is consumer_too
    for tried in (*(() if consumer_too else (waiting,)), anext(elements), anext(elements)):
        with pytest.raises(ClientClosedError, match="was cancelled"):
            await tried
    await elements.aclose()


async def test_two_close_an_iterator_at_once() -> None:
    """As a consumer does at its end, while another task has begun to."""
    ended, may_end = False, asyncio.Event()

    async def slow_to_end() -> AsyncGenerator[int, None]:
        nonlocal ended
        try:
            yield 0
            yield 1
        finally:
            await may_end.wait()
            ended = True

    elements: ResumableIterator[int] = ResumableIterator(Stepwise(slow_to_end(), runtime_here(), name="test"), alone)
    assert await anext(elements) == 0
    closing = [asyncio.create_task(elements.aclose()) for _ in range(3)]
    await asyncio.sleep(0)
    closing[0].cancel()
    await asyncio.sleep(0)
    may_end.set()
    await asyncio.gather(*closing[1:])
    assert ended
    assert closing[0].cancelled()


async def test_an_error_that_stays_takes_no_more_memory_with_each_call() -> None:
    async def failing() -> AsyncGenerator[int, None]:
        raise NoSuchEntryError("there is none")
        yield 0

    elements: ResumableIterator[int] = ResumableIterator(Stepwise(failing(), runtime_here(), name="test"), alone)
    lengths = []
    for _ in range(4):
        with pytest.raises(NoSuchEntryError) as raised:
            await anext(elements)
        lengths.append(len(raised.traceback))
    assert lengths[1] == lengths[3]
