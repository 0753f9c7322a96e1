"""Logs with more ledgers than their lists have, in pages of two: what clients write, read and follow."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING

import pytest
from tests.examples import stride
from tests.in_process import DEADLINE_S, InProcess
from tests.stepping import Stepped
from tests.unit.log.support import contents
from tests.unit.log.test_takeovers import FAST
from tests.unit.log.test_writer_ends import reopened_without_bookies

import bkpy
from bkpy.client.client import log_parts
from bkpy.errors import BookKeeperError, DiskError, NoSuchLedgerError, NoSuchLogError, TruncatedError
from bkpy.log.snapshot import LogSnapshot
from bkpy.metadata.logs.pages import PageMissingError
from bkpy.metadata.store.store import Delete

if TYPE_CHECKING:
    from bkpy.client.client import Client
    from bkpy.log.entries import LogEntry
    from bkpy.log.reader import LogReader
    from bkpy.protocol.log.log_list import LogList

NAME = "orders"
PAGED = {**FAST, "log_page_rows": 2}
ENTRIES = 60  # of two to a ledger


def entry(position: int) -> bytes:
    return b"%d" % position


async def list_of(client: Client) -> LogList:
    return (await log_parts(client).logs.read(NAME, fresh=True))[0]


async def written(client: Client, count: int = ENTRIES) -> None:
    """Entries 0 to `count`, two to a ledger."""
    for first in range(0, count, 2):
        async with await client.open_log(NAME, create=True) as log:
            assert await log.append_batch([entry(first), entry(first + 1)]) == range(first, first + 2)


def pages(cluster: InProcess) -> list[str]:
    """The nodes of all pages."""
    return [path for path in cluster.tree.paths if "/pages/" in path]


async def all_of(reader: LogReader, first: int | None = None, last: int | None = None) -> list[LogEntry]:
    return [found async for found in reader.read(first, last)]


@pytest.mark.thorough
async def test_a_log_that_rolls_for_long_is_read_from_anywhere(cluster: InProcess) -> None:
    client, other = await cluster.client(**PAGED), await cluster.client(log_pages_cached_max=1)
    log = await client.open_log(NAME, create=True, roll_entries=2)
    for position in range(ENTRIES):
        assert await log.append(entry(position)) == position
        await asyncio.sleep(0.01)
    await log.close()
    log_list = await list_of(client)
    assert log_list.ledgers > 20
    assert len(log_list.segments) <= 6
    assert log_list.pages[0].level >= 3
    assert await contents(client, NAME) == [entry(position) for position in range(ENTRIES)]
    reader = await other.read_log(NAME)
    assert (reader.first_position, reader.next_position) == (0, ENTRIES)
    for first in range(0, ENTRIES, 7):
        found = await all_of(reader, first)
        assert [(one.position, one.data) for one in found] == [(p, entry(p)) for p in range(first, ENTRIES)]
        assert await reader.position_at(found[0].time) <= first
        assert await reader.position_at(found[-1].time + 1) == ENTRIES
    times = [one.time for one in await all_of(reader)]
    for time in sorted({*times, *(time - 0.001 for time in times), *(time + 0.001 for time in times)}):
        assert await reader.position_at(time) == sum(one < time for one in times)
    with pytest.raises(bkpy.ConfigError, match="use list_ranges"):
        reader.ranges()
    assert len(reader.ranges(ENTRIES - 2)) == 1
    parts = [part async for part in reader.list_ranges(5, 50)]
    assert [p for part in parts for p in range(part.first_position, part.first_position + part.entries)] == list(
        range(5, 51)
    )


@pytest.mark.thorough
async def test_a_list_of_ranges_that_is_cancelled_goes_on_where_it_was(cluster: InProcess) -> None:
    client, other = await cluster.client(**PAGED), await cluster.client(**PAGED)
    await written(client)
    reader = await other.read_log(NAME)
    wanted = [part async for part in reader.list_ranges()]
    cancelled, found = 0, []
    async with aclosing(reader.list_ranges()) as parts:
        while True:
            try:
                async with asyncio.timeout(0):
                    found.append(await anext(parts))
            except TimeoutError:
                cancelled += 1
            except StopAsyncIteration:
                break
    assert cancelled > 3
    assert found == wanted


@pytest.mark.thorough
async def test_a_tail_goes_from_pages_into_what_is_written(cluster: InProcess) -> None:
    client, other = await cluster.client(**PAGED), await cluster.client(**PAGED)
    await written(client, 30)
    seen: list[int] = []

    async def follow() -> None:
        reader = await other.read_log(NAME)
        async for found in reader.tail(3):
            assert (found.position, found.data) == (3 + len(seen), entry(found.position))
            seen.append(found.position)
            if found.position == ENTRIES - 1:
                return

    following = asyncio.create_task(follow())
    async with await client.open_log(NAME, roll_entries=1) as log:
        for position in range(30, ENTRIES):
            await log.append(entry(position))
            await asyncio.sleep(0.003)
        async with asyncio.timeout(DEADLINE_S):
            await following


@pytest.mark.thorough
async def test_a_ledger_whose_page_was_deleted_with_it_is_not_missed(cluster: InProcess) -> None:
    """A truncation first moves the begin of the log, then deletes pages, and then has the list do without them."""
    client, other = await cluster.client(**PAGED), await cluster.client(**PAGED)
    await written(client)
    before = await list_of(client)
    (part,) = [part async for part in (await client.read_log(NAME)).list_ranges(0, 0)]
    for page in pages(cluster):
        cluster.tree.apply(Delete(page), 0)
    begun = dataclasses.replace(before, first_position=before.pages[-1].end_position)
    gone = NoSuchLedgerError("there is no such ledger", ledger_id=part.ledger_id)
    assert not await LogSnapshot(NAME, begun, 1).misses(gone, log_parts(other).logs.pages)
    with pytest.raises(PageMissingError):
        await LogSnapshot(NAME, before, 1).misses(gone, log_parts(other).logs.pages)


@pytest.mark.thorough
async def test_a_reader_that_knows_an_old_list_says_what_is_gone(cluster: InProcess) -> None:
    client, other = await cluster.client(**PAGED), await cluster.client(**PAGED)
    await written(client)
    readers = [await other.read_log(NAME) for _ in range(3)]
    async with await client.open_log(NAME) as log:
        before = len(pages(cluster))
        await log.truncate(41)
        assert len(pages(cluster)) < before - 10
        with pytest.raises(TruncatedError):
            await all_of(readers[0], 0)
        with pytest.raises(TruncatedError):
            await anext(aiter(readers[1].tail(5)))
        with pytest.raises(TruncatedError):
            _ = [part async for part in readers[2].list_ranges(0, 50)]
        assert await readers[0].position_at(0.0) == 41
        assert [one.position for one in await all_of(readers[0])] == list(range(41, ENTRIES))
        with pytest.raises(TruncatedError):
            await readers[0].consumer("late", create=True, position=40)
    await client.delete_log(NAME)
    assert not pages(cluster)
    for reader in readers:
        with pytest.raises(NoSuchLogError):
            await reader.position_at(1.0)
    assert [ledger_id async for ledger_id in client.list_ledgers()] == []


@pytest.mark.thorough
async def test_the_ledgers_of_a_log_are_listed_though_it_is_truncated_meanwhile(cluster: InProcess) -> None:
    """Also twice. A page that was lost is an error all the same."""
    client, other = await cluster.client(**PAGED), await cluster.client(**PAGED, log_pages_cached_max=1)
    await written(client)
    admin = bkpy.AdminClient(other)
    async with await client.open_log(NAME) as log, aclosing(admin.log_segments(NAME)) as segments:
        assert [(await anext(segments)).first_position for _ in range(2)] == [0, 2]
        await log.truncate(21)
        assert [(await anext(segments)).first_position for _ in range(2)] == [20, 22]
        await log.truncate(40)
        assert [segment.first_position async for segment in segments] == [*range(40, ENTRIES, 2), ENTRIES]
        for path in pages(cluster):
            cluster.tree.apply(Delete(path), 0)
        with pytest.raises(DiskError, match="of the list of log orders is missing"):
            await anext(admin.log_segments(NAME))


@pytest.mark.thorough
async def test_a_lost_page_is_an_error_of_what_it_has_alone(cluster: InProcess) -> None:
    client, other = await cluster.client(**PAGED), await cluster.client(**PAGED)
    await written(client)
    log_list = await list_of(client)
    lost = log_list.pages[-1]
    path = next(path for path in pages(cluster) if path.endswith(f"/pages/{lost.number}"))
    cluster.tree.apply(Delete(path), 0)
    reader = await other.read_log(NAME)
    assert len(await all_of(reader, 0, lost.first_position - 1)) == lost.first_position
    for attempt in (
        all_of(reader),
        all_of(reader, lost.first_position),
        anext(aiter(reader.tail(lost.first_position))),
    ):
        with pytest.raises(DiskError, match=f"page {lost.number} of the list of log orders is missing"):
            async with asyncio.timeout(DEADLINE_S):
                await attempt
    with pytest.raises(DiskError):
        await reader.position_at(lost.begun_ms / 1000 + 0.0001)
    assert len(await all_of(reader, lost.end_position)) == ENTRIES - lost.end_position
    async with await other.open_log(NAME) as log:
        assert await log.append(entry(ENTRIES)) == ENTRIES


@pytest.mark.thorough
async def test_a_log_is_truncated_up_to_the_end_of_a_lost_page(cluster: InProcess) -> None:
    """As that of a truncation which a backup has half of. How late its last segment was matters to consumers alone."""
    client, other = await cluster.client(**PAGED), await cluster.client(**PAGED)
    await written(client)
    lost = (await list_of(client)).pages[0]
    path = next(path for path in pages(cluster) if path.endswith(f"/pages/{lost.number}"))
    cluster.tree.apply(Delete(path), 0)
    admin = bkpy.AdminClient(other)
    reader = await other.read_log(NAME)
    await reader.consumer("billing", create=True)
    last = lost.end_position - 1
    with pytest.raises(DiskError, match=f"is missing; it has positions {lost.first_position} to {last}"):
        await admin.truncate_log(NAME, lost.end_position)
    await admin.truncate_log(NAME, lost.end_position, ignore_consumers=True)
    reader = await other.read_log(NAME)
    found = await all_of(reader)
    assert [one.position for one in found] == list(range(lost.end_position, ENTRIES))


@pytest.mark.thorough
async def test_a_ledger_that_was_lost_with_a_page_naming_it_is_named(cluster: InProcess) -> None:
    client, other = await cluster.client(**PAGED), await cluster.client(**PAGED)
    await written(client)
    log_list = await list_of(client)
    segment = await log_parts(client).logs.pages.segment_at(NAME, log_list, 10)
    assert segment is not None
    assert segment not in log_list.segments
    reader = await other.read_log(NAME)
    cluster.tree.apply(Delete(log_parts(client).catalog.path_of(segment.ledger_id)), 0)
    with pytest.raises(NoSuchLedgerError):
        await all_of(reader, 10, 11)
    with pytest.raises(NoSuchLedgerError):
        await anext(aiter(reader.tail(10)))


@pytest.mark.thorough
@pytest.mark.parametrize("blocks", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("late", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
async def test_iterators_over_pages_are_cancelled_and_go_on(cluster: InProcess, late: bool, blocks: bool) -> None:
    """Wherever a call of theirs is cancelled, the next one gives what comes next."""
    client = await cluster.client(**PAGED)
    await written(client, 40)
    for at in itertools.count(0, stride()):
        reader = await (await cluster.client(**PAGED, log_pages_cached_max=1)).read_log(NAME)
        iterator = reader.read_blocks(0, 39) if blocks else reader.read(0, 39)
        positions: list[int] = []
        cut = False

        async def read_all(iterator=iterator, positions: list[int] = positions) -> None:  # type: ignore[no-untyped-def]
            async for found in iterator:
                positions += found.positions if blocks else [found.position]

        async with aclosing(iterator):
            while True:
                stepped = Stepped(read_all(), at if not cut else -1, late, lambda: task.cancel())  # noqa: B023
                task = asyncio.ensure_future(stepped_run(stepped))
                async with asyncio.timeout(DEADLINE_S):
                    await asyncio.wait([task])
                cut = cut or stepped.reached
                if not task.cancelled():
                    task.result()
                    break
        assert positions == list(range(40)), at
        if not cut:
            break
    assert at > 20


async def stepped_run(stepped: Stepped) -> None:
    await stepped


@pytest.mark.thorough
async def test_retention_and_consumers_reach_into_pages(cluster: InProcess) -> None:
    client = await cluster.client(**PAGED, log_retention_interval_s=0.05)
    await written(client)
    reader = await client.read_log(NAME)
    consumer = await reader.consumer("billing", create=True, position=7)
    async with await client.open_log(NAME) as log:
        with pytest.raises(bkpy.ConfigError, match="billing"):
            await log.truncate(20)
        await consumer.commit(33)
        await log.truncate(33)
        with pytest.raises(TruncatedError):
            await consumer.commit(12)
        await consumer.commit(50)
    log_list = await list_of(client)
    assert log_list.first_position == 33
    assert not log_list.pages_pending


@pytest.mark.thorough
async def test_the_other_client_keeps_what_it_finds(cluster: InProcess) -> None:
    """Clients with pages of other sizes write one log."""
    clients = [await cluster.client(**FAST, log_page_rows=rows) for rows in (2, 5, 128, 3)]
    for first in range(0, 120, 2):
        async with await clients[first // 2 % 4].open_log(NAME, create=True) as log:
            await log.append_batch([entry(first), entry(first + 1)])
    assert await contents(clients[2], NAME) == [entry(position) for position in range(120)]


# --- who can't get room, and who comes too often ----------------------------------------------------------------------


@pytest.mark.parametrize("away", ["bookies", "room", "store"])
async def test_an_opener_that_gets_nowhere_fences_nobody(cluster: InProcess, away: str) -> None:
    client = await cluster.client(**FAST)
    other = await cluster.client(
        **FAST,
        no_bookies_timeout_s=0.1,
        metadata_timeout_s=0.5,
        **({"log_write_bytes_max": 300} if away == "room" else {}),
    )
    log = await client.open_log(NAME, create=True, ensemble_size=3, write_quorum=3, ack_quorum=2)
    await log.append(b"0")
    if away == "store":
        await log_parts(other).logs.store.close()
    with pytest.raises(BookKeeperError):
        await (reopened_without_bookies(cluster, NAME) if away == "bookies" else other.open_log(NAME))
    assert await log.append(b"1") == 1
    assert log.usable
    await log.close()


async def test_ledgers_of_takeovers_go_with_the_next_openings(cluster: InProcess) -> None:
    """Also if no writer lives long enough to delete what its opening has dropped."""
    client = await cluster.client(**FAST, log_retention_interval_s=1000.0)
    log = await client.open_log(NAME, create=True)
    await log.append(b"0")
    log.abandon()
    for _ in range(10):
        (await client.open_log(NAME)).abandon()
    log_list = await list_of(client)
    assert len(log_list.segments) == 2
    assert len(log_list.pending_delete) <= 1
    assert len([ledger_id async for ledger_id in client.list_ledgers()]) <= 3


@pytest.mark.thorough
async def test_two_writers_that_take_turns_slow_down_and_say_so(
    cluster: InProcess, caplog: pytest.LogCaptureFixture
) -> None:
    clients = [await cluster.client(**FAST) for _ in range(2)]
    await (await clients[0].open_log(NAME, create=True)).close()
    openings: list[float] = []
    errors: list[bkpy.LogFencedError] = []
    loop = asyncio.get_running_loop()
    begun = loop.time()

    async def insist(client: Client) -> None:
        while loop.time() < begun + 40:
            log = await client.open_log(NAME)
            openings.append(loop.time() - begun)
            try:
                while True:
                    await log.append(b"x")
                    await asyncio.sleep(0.1)
                    if loop.time() > begun + 40:
                        break
            except bkpy.LogFencedError as error:
                errors.append(error)
            log.abandon()

    async with asyncio.timeout(DEADLINE_S + 100):
        await asyncio.gather(*map(insist, clients))
    assert sum(at < 20 for at in openings) < 25  # it was 190
    assert sum(at >= 20 for at in openings) < 25
    assert "Two writers take turns" in str(errors[-1])
    assert "take turns" not in str(errors[0])
    assert any("two writers take turns" in message for message in caplog.messages)
    async with await clients[0].open_log(NAME) as log:
        assert await log.append(b"y") == log.next_position - 1


async def test_a_takeover_now_and_then_waits_for_nothing(cluster: InProcess) -> None:
    clients = [await cluster.client(**FAST) for _ in range(2)]
    loop = asyncio.get_running_loop()
    waited = 0.0
    for turn in range(6):
        begun = loop.time()
        log = await clients[turn % 2].open_log(NAME, create=True)
        waited = max(waited, loop.time() - begun)
        await log.append(b"x")
        await asyncio.sleep(1.5)
    assert waited < 0.2
    with suppress(BookKeeperError):
        await log.close()
