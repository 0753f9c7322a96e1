"""What is taken out of a log while it is written and read, with real bookies in one process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.in_process import DEADLINE_S, InProcess
from tests.unit.log.support import positions_of
from tests.waiting import eventually

from bkpy.client.client import log_parts, replication_context
from bkpy.errors import BookKeeperError, ConfigError, NoSuchLogError, TruncatedError
from bkpy.metadata.logs.maintenance import LogMaintenance
from bkpy.metadata.store.outcome import Done

if TYPE_CHECKING:
    from bkpy.client.client import Client
    from bkpy.protocol.log.log_list import LogList

NAME = "orders"


def entry(position: int) -> bytes:
    return b"entry %d" % position


async def lst_of(client: Client) -> LogList:
    return (await log_parts(client).logs.read(NAME, fresh=True))[0]


async def ledgers(client: Client) -> set[int]:
    return {ledger_id async for ledger_id in client.list_ledgers()}


async def looked_after(client: Client) -> LogList:
    """The list when the auditor has finished what a writer that was closed in the midst of it has left."""
    await LogMaintenance(log_parts(client).logs, replication_context(client).cluster.catalog).maintain(
        NAME, replication_context(client).fence
    )
    return await lst_of(client)


async def written(client: Client, count: int, *, per_ledger: int = 5) -> None:
    """A log of so many entries, closed."""
    async with await client.open_log(NAME, create=True, roll_entries=per_ledger) as log:
        for position in range(count):
            assert await log.append(entry(position)) == position


@pytest.mark.thorough
@pytest.mark.scenario(66)
async def test_readers_see_what_there_is_or_that_it_is_truncated(cluster: InProcess) -> None:
    """A writer that rolls and truncates, and readers that begin and follow anywhere: entries, or `TruncatedError`."""
    client, other = await cluster.client(), await cluster.client()
    stop = asyncio.Event()
    seen = {"read": 0, "truncated": 0}

    async def read(reader_of: Client) -> None:
        async with await reader_of.read_log(NAME) as reader:
            while not stop.is_set():
                await reader.refresh()
                first, expected = reader.first_position, reader.first_position
                try:
                    async for found in reader.read(first=first):
                        assert (found.position, found.data) == (expected, entry(expected))
                        expected += 1
                        seen["read"] += 1
                except TruncatedError:
                    seen["truncated"] += 1
                with pytest.raises(TruncatedError):
                    await anext(aiter(reader.read(first=0, last=0)))

    async def tail() -> None:
        expected = 0
        async with await other.read_log(NAME) as reader:
            while expected < 200:
                try:
                    async for found in reader.tail(first=expected):
                        assert (found.position, found.data) == (expected, entry(expected))
                        expected += 1
                        if expected == 200:
                            break
                except TruncatedError:
                    await reader.refresh()
                    expected = reader.first_position

    async with await client.open_log(NAME, create=True, roll_entries=5) as log:
        await log.append(entry(0))
        await log.append(entry(1))
        await log.truncate(1)
        readers = [asyncio.create_task(read(of)) for of in (client, other)]
        tailing = asyncio.create_task(tail())
        for position in range(2, 200):
            assert await log.append(entry(position)) == position
            if position % 7 == 0:
                await log.truncate(position - 3)
            await asyncio.sleep(0)
        async with asyncio.timeout(DEADLINE_S):
            await tailing
        stop.set()
        await asyncio.gather(*readers)
        assert seen["read"]
        with pytest.raises(ConfigError, match="known to reach up to position 200"):
            await log.truncate(201)
        await log.truncate(200)
        assert await log.append(entry(200)) == 200
    log_list = await looked_after(client)
    assert log_list.first_position == 200
    assert await ledgers(client) == {segment.ledger_id for segment in log_list.segments}


@pytest.mark.thorough
async def test_the_writer_keeps_retention_while_it_rolls(cluster: InProcess) -> None:
    client = await cluster.client()
    async with await client.open_log(NAME, create=True, roll_entries=1, retention_bytes=1) as log:
        for position in range(30):
            await log.append(entry(position))
            await asyncio.sleep(0.005)
        async with asyncio.timeout(DEADLINE_S):
            while (await lst_of(client)).first_position == 0:
                await asyncio.sleep(0.005)
        assert log.next_position == 30
    log_list = await looked_after(client)
    assert log_list.pending_delete == ()
    assert await ledgers(client) == {segment.ledger_id for segment in log_list.segments}


async def test_a_consumer_holds_back_the_writer(cluster: InProcess) -> None:
    client = await cluster.client()
    await written(client, 4, per_ledger=100)
    async with await client.read_log(NAME) as reader:
        consumer = await reader.consumer("billing", create=True)
        await consumer.commit(2)
        async with await client.open_log(NAME) as log:
            await log.append(entry(4))
            await log.truncate(2)
            with pytest.raises(ConfigError, match=r"from 2 on: billing\."):
                await log.truncate(4)
            await log.truncate(4, ignore_consumers=True)
        await reader.refresh()
        assert reader.first_position == 4


async def test_what_a_dead_writer_doomed_is_finished_and_the_next_one_goes_on(cluster: InProcess) -> None:
    client = await cluster.client()
    await written(client, 3, per_ledger=100)
    log = await client.open_log(NAME)
    await log.append(entry(3))
    log_list, version = await log_parts(client).logs.read(NAME, fresh=True)
    assert isinstance(await log_parts(client).logs.write_anyway(NAME, log_list.truncated(3), version), Done)
    log.abandon()  # before it has deleted anything
    pending_delete = (await lst_of(client)).pending_delete
    assert set(pending_delete) <= await ledgers(client)
    await log_parts(client).logs.drop_lease(NAME, log_list.uid, log_list.writer)
    await looked_after(client)
    assert not set(pending_delete) & await ledgers(client)
    async with await client.open_log(NAME) as successor:
        assert await successor.append(entry(4)) == 4
    async with await client.read_log(NAME) as reader:
        assert [found.data async for found in reader.read()] == [entry(3), entry(4)]


async def test_a_log_is_deleted_under_its_writer_and_made_anew(cluster: InProcess) -> None:
    client, other = await cluster.client(), await cluster.client()
    log = await client.open_log(NAME, create=True, roll_entries=3)
    for position in range(2):
        await log.append(entry(position))
    await other.delete_log(NAME)
    assert await ledgers(other) == set()
    assert not [path for path in cluster.tree.paths if "/logs/" in path]
    await written(other, 2, per_ledger=100)
    # The old writer knows of nothing yet: it can't touch the new log.
    with pytest.raises(NoSuchLogError):
        await log.truncate(2)
    for position in range(2, 20):  # until it has to roll, nobody tells it
        try:
            await log.append(entry(position))
        except BookKeeperError:
            break
    await eventually(lambda: not log.usable)
    log.abandon()
    log_list = await lst_of(other)
    assert positions_of(log_list) == [(0, 2)]
    async with await other.read_log(NAME) as reader:
        assert [found.data async for found in reader.read()] == [entry(0), entry(1)]


async def test_a_segment_is_refused_to_delete_ledger(cluster: InProcess) -> None:
    client = await cluster.client()
    await written(client, 3)
    (ledger_id,) = await ledgers(client)
    with pytest.raises(ConfigError, match="a part of log orders"):
        await client.delete_ledger(ledger_id)
    await client.delete_log(NAME)
    assert await ledgers(client) == set()


async def test_what_meets_no_conflict_is_done_at_the_first_try(cluster: InProcess) -> None:
    client = await cluster.client(log_conflicts_max=1)
    async with await client.open_log(NAME, create=True, roll_entries=2) as log:
        for position in range(10):
            await log.append(entry(position))
            await asyncio.sleep(1.0)
        await log.truncate(6)
    reader = await client.read_log(NAME)
    assert reader.first_position == 6
    await reader.close()
    await client.delete_log(NAME)
    assert await ledgers(client) == set()
    with pytest.raises(NoSuchLogError):
        await client.read_log(NAME)
