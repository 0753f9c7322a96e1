"""Readers while real writers roll, die and take the log from each other: nothing is lost, doubled, or out of order."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

import pytest
from tests.hooks import cluster_of
from tests.in_process import DEADLINE_S, lag_behind
from tests.unit.log.stepwise_log import NAME, Follower, StepwiseLog, all_of, check

import bkpy

if TYPE_CHECKING:
    from tests.in_process import InProcess

    from bkpy.log.entries import LogEntry


async def followed(reader: bkpy.LogReader, end: int) -> list[LogEntry]:
    """The entries up to the position before `end`, as a tail gives them."""
    found = []
    async with asyncio.timeout(DEADLINE_S):
        async for entry in reader.tail():
            found.append(entry)
            if entry.position == end - 1:
                break
    return found


@pytest.mark.thorough
@pytest.mark.scenario(65)
@pytest.mark.parametrize("rolls", [1, 3, 1000])
async def test_writers_that_die_one_after_the_other_are_followed(cluster: InProcess, rolls: int) -> None:
    """Each leaves appends behind of which nobody was told; the next one decides how many of those are the log's."""
    reading = await cluster.client()
    acknowledged: dict[int, bytes] = {}
    reader = None
    tail = None
    for generation in range(6):
        client = await cluster.client()
        writer = await client.open_log(NAME, create=True, roll_entries=rolls)
        if reader is None:
            reader = await reading.read_log(NAME)
            tail = Follower(reader)
        for i in range(4):
            data = b"%d/%d" % (generation, i)
            acknowledged[await writer.append(data)] = data
        for i in range(4, 7):
            writer.append_nowait(b"%d/%d" % (generation, i))
        await asyncio.sleep(0)
        writer.abandon()
    client = await cluster.client()
    async with await client.open_log(NAME, roll_entries=rolls) as writer:
        end = await writer.append(b"the end") + 1
    assert reader is not None
    assert tail is not None
    late = await followed(await reading.read_log(NAME), end)
    async with asyncio.timeout(DEADLINE_S):
        while not tail.found or tail.found[-1].position < end - 1:
            await asyncio.sleep(0.005)
    await tail.cancel()
    assert tail.found == late
    await reader.refresh()
    assert await all_of(reader.read()) == late
    assert [entry.position for entry in late] == list(range(end))
    assert all(late[position].data == data for position, data in acknowledged.items())
    parts = [tuple(map(int, entry.data.split(b"/"))) for entry in late[:-1]]
    assert parts == sorted(set(parts))  # of each writer a beginning of what it appended, one writer after the other
    for generation, own in itertools.groupby(parts, key=lambda part: part[0]):
        assert [i for _, i in own] == list(range(sum(part[0] == generation for part in parts)))
    assert [entry.time for entry in late] == sorted(entry.time for entry in late)
    for entry in late:
        assert (await reader.position_at(entry.time)) <= entry.position


@pytest.mark.thorough
@pytest.mark.scenario(65)
async def test_two_that_duel_are_followed(cluster: InProcess) -> None:
    reading = await cluster.client()
    acknowledged: dict[int, bytes] = {}

    async def duel(name: bytes, rounds: int) -> None:
        client = await cluster.client()
        for turn in range(rounds):
            try:
                writer = await client.open_log(NAME, create=True, roll_entries=2)
                for i in range(5):
                    data = b"%s/%d/%d" % (name, turn, i)
                    acknowledged[await writer.append(data)] = data
            except bkpy.LogFencedError:
                await asyncio.sleep(0.01)

    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(duel(b"a", 6), duel(b"b", 6))
    async with await (await cluster.client()).open_log(NAME) as writer:
        end = await writer.append(b"the end") + 1
    found = await followed(await reading.read_log(NAME), end)
    assert [entry.position for entry in found] == list(range(end))
    assert {position: found[position].data for position in acknowledged} == acknowledged
    assert len({entry.data for entry in found}) == end


async def test_a_reader_whose_server_lags_behind_is_given_what_the_list_says(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list says that a segment is sealed; of its ledger the server still says that it is open."""
    client, reading = await cluster.client(), await cluster.client()
    log = await StepwiseLog(client).make()
    writer = await log.begin()
    await log.append(5)
    await lag_behind(cluster_of(reading).store, cluster_of(reading).catalog.path_of(writer.ledger_id), monkeypatch)
    await log.seal()
    reader = await reading.read_log(NAME)
    assert reader.next_position == 5
    check(await all_of(reader.read()), 0, 5)
    assert await reader.position_at(4.0) == 4
