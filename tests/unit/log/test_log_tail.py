"""Following a log: across rolls and takeovers, past what is dropped, until it is truncated or deleted; what is left."""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import aclosing
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from tests.hooks import cluster_of, tasks_of
from tests.in_process import DEADLINE_S, InProcess
from tests.unit.log.stepwise_log import NEVER_S, PATIENT, Follower, StepwiseLog, check, stamped
from tests.waiting import eventually

import bkpy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from bkpy.client.client import Client
    from bkpy.protocol.log.log_list import LogList

LIST = "/ledgers/logs/orders"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[InProcess]:
    local = InProcess(tmp_path)
    await local.start("abc", long_poll_max_s=NEVER_S)
    yield local
    await local.stop()


async def patient(cluster: InProcess) -> Client:
    """A client whose tails poll nobody."""
    return await cluster.client(**PATIENT)


def tailing(client: Client) -> list[str]:
    names = [task.get_name() for task in tasks_of(client)]
    return [name for name in names if name.startswith(("long poll", "watch of", "read of", "end of following"))]


async def waiting_for_the_list(cluster: InProcess, client: Client) -> None:
    """Until a tail has nothing to do but to wait for the list to change."""
    await eventually(lambda: tailing(client) == ["watch of log orders"] and cluster.tree.watched(LIST))


async def waiting_for_entries(cluster: InProcess, log: StepwiseLog) -> None:
    """Until a tail waits at the bookies for the entries of the last segment."""
    assert log.writer is not None
    ledger_id = log.writer.ledger_id
    await eventually(lambda: all(ledger_id in cluster.service(name).waiters.by_ledger for name in "abc"))


def sealing(writer: bkpy.LedgerWriter, entries: int, *pending_delete: int) -> Callable[[LogList], LogList]:
    """The list as a takeover leaves it: the segment of `writer` sealed, those that are dropped not there any more."""

    def change(log_list: LogList) -> LogList:
        kept = [s for s in log_list.segments if s.ledger_id not in pending_delete]
        segments = tuple(s.seal(entries, 0, 0) if s.ledger_id == writer.ledger_id else s for s in kept)
        return dataclasses.replace(
            log_list, segments=segments, pending_delete=(*log_list.pending_delete, *pending_delete)
        )

    return change


# --- across ledgers -------------------------------------------------------------------------------------------------


@pytest.mark.scenario(66)
async def test_a_tail_goes_through_history_and_on_as_the_log_grows(cluster: InProcess) -> None:
    client, reading = await cluster.client(), await patient(cluster)
    log = await StepwiseLog(client).make()
    for count in (3, 1, 2):
        await log.segment(count)
    reader = await reading.read_log("orders")
    follower = Follower(reader)
    await follower.until(6)
    await waiting_for_the_list(cluster, reading)
    await log.begin()
    await log.append(2)
    await follower.until(8)
    await waiting_for_entries(cluster, log)
    await log.append(1)
    await follower.until(9)
    assert reader.next_position == 9
    await log.seal()
    await waiting_for_the_list(cluster, reading)
    await log.segment(2)
    await follower.until(11)
    assert reader.next_position == 11
    await follower.cancel()
    assert tailing(reading) == []


async def test_a_roll_as_a_writer_does_it(cluster: InProcess) -> None:
    """The next segment is in the list, with entries, before the former is closed; that is sealed afterwards."""
    client, reading = await cluster.client(), await patient(cluster)
    log = await StepwiseLog(client).make()
    former = await log.begin()
    await log.append(3)
    follower = Follower(await reading.read_log("orders"))
    await follower.until(3)
    following = await log.begin()
    await following.append_batch([stamped(b"%d" % p, p * 1000) for p in (3, 4)])
    log.position = 5
    await log.end(former)
    await follower.until(5)
    await log.seal(former)
    await log.append(1)
    await follower.until(6)
    await follower.cancel()


@pytest.mark.thorough
@pytest.mark.scenario(66)
async def test_a_hundred_rolls_leave_nothing_behind(cluster: InProcess) -> None:
    client, reading = await cluster.client(), await patient(cluster)
    log = await StepwiseLog(client).make()
    reader = await reading.read_log("orders")
    follower = Follower(reader)
    watched = set()
    for turn in range(100):
        former = log.writer
        await log.begin()
        if former is not None:
            await log.seal(former)
        await log.append(1 + turn % 2)
        if turn % 10 == 0:
            await follower.until(log.position)
            watched.add(len(tailing(reading)))
    await follower.until(log.position)
    await waiting_for_entries(cluster, log)
    assert len(tailing(reading)) == 5  # a watch on the list and one on a ledger, and three long polls
    assert max(watched) <= 10
    layout = cluster_of(client).catalog
    last = log.writer
    assert last is not None
    assert [i async for i in client.list_ledgers() if cluster.tree.watched(layout.path_of(i))] == [last.ledger_id]
    await follower.cancel()
    assert tailing(reading) == []
    assert not cluster.tree.watched(LIST)


async def test_idle_tails_ask_the_metadata_store_nothing(cluster: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    client, reading = await cluster.client(), await patient(cluster)
    log = await StepwiseLog(client).make()
    await log.segment(2)
    await log.begin()
    await log.append(1)
    follower = Follower(await reading.read_log("orders"))
    await follower.until(3)
    await waiting_for_entries(cluster, log)
    store = cluster_of(reading).store
    asked = []
    get = store.get

    async def noted(path: str) -> tuple[bytes, int]:
        asked.append(path)
        return await get(path)

    monkeypatch.setattr(store, "get", noted)
    for end in range(4, 7):
        await log.append(1)
        await follower.until(end)
    assert asked == []
    await follower.cancel()


@pytest.mark.thorough
async def test_a_tail_from_anywhere(cluster: InProcess) -> None:
    client = await cluster.client()
    log = await StepwiseLog(client).make()
    for _ in range(3):
        await log.segment(2)
    await log.begin()
    await log.append(2)
    followers = {first: Follower(await client.read_log("orders"), first) for first in range(12)}
    for first in range(8):
        await followers[first].until(8, first)
    await log.append(2)
    await log.seal()
    await log.begin()
    await log.append(4)
    for first, follower in followers.items():
        await follower.until(14, first)
        await follower.cancel()


async def test_blocks_of_a_tail_are_dense(cluster: InProcess) -> None:
    client = await cluster.client()
    log = await StepwiseLog(client).make()
    for _ in range(4):
        await log.segment(3)
    reader = await client.read_log("orders")
    position = 1
    async for block in reader.tail_blocks(1):
        assert block.first_position == position
        position = block.positions.stop
        if position == 12:
            break
    assert position == 12


async def test_a_log_of_mac_and_password_is_followed(cluster: InProcess) -> None:
    client = await cluster.client()
    log = await StepwiseLog(client, password=b"secret", digest="hmac-sha256").make()
    follower = Follower(await client.read_log("orders", password=b"secret"))
    for _ in range(3):
        await log.begin()
        await log.append(2)
        await follower.until(log.position)
        await log.seal()
    await follower.cancel()


@pytest.mark.parametrize("bytes_", [1, 4096])
async def test_a_tail_with_the_smallest_settings(cluster: InProcess, bytes_: int) -> None:
    client = await cluster.client()
    reading = await cluster.client(
        prefetch_depth=1, read_bytes=bytes_, read_entries_first=1, read_entries_max=1, calls_in_flight_max=8
    )
    log = await StepwiseLog(client).make()
    await log.segment(5)
    await log.segment(5)
    follower = Follower(await reading.read_log("orders"))
    await log.begin()
    await log.append(5)
    await follower.until(15)
    await follower.cancel()


# --- takeovers ------------------------------------------------------------------------------------------------------


@pytest.mark.scenario(65)
async def test_a_takeover_while_tailing(cluster: InProcess) -> None:
    """The writer has died: somebody else recovers its ledger, seals it, and goes on in one of his own."""
    first, second, reading = await cluster.client(), await cluster.client(), await patient(cluster)
    log = await StepwiseLog(first).make()
    dead = await log.begin()
    await log.append(5)
    follower = Follower(await reading.read_log("orders"))
    await follower.until(5)
    await waiting_for_entries(cluster, log)
    dead.abandon()
    recovered = await second.recover_ledger(dead.ledger_id)
    assert recovered.last_add_confirmed == 4
    log.client = second
    await log.change(sealing(dead, 5))
    await log.begin()
    await log.append(3)
    await follower.until(8)
    await follower.cancel()


@pytest.mark.scenario(65)
@pytest.mark.parametrize("closed_first", [True, False], ids=["dropped is closed first", "former is closed first"])
@pytest.mark.parametrize("told_of_it", [True, False], ids=["follows", "comes later"])
async def test_a_tail_skips_what_is_dropped_and_no_position(
    cluster: InProcess, closed_first: bool, told_of_it: bool
) -> None:
    """Rolling, the writer died with its last entries unconfirmed: the former closes short, the next one is dropped."""
    client, reading = await cluster.client(), await patient(cluster)
    log = await StepwiseLog(client).make()
    former = await log.begin()
    await log.append(3)
    follower = None
    if told_of_it:
        follower = Follower(await reading.read_log("orders"))
        await follower.until(3)
    dropped = await log.begin(at=5)
    await dropped.append_batch([stamped(b"none of the log's", 1)] * 5)
    for writer in (dropped, former) if closed_first else (former, dropped):
        await log.end(writer)
    if follower is None:
        follower = Follower(await reading.read_log("orders"))
    await follower.until(3)
    await waiting_for_the_list(cluster, reading)
    await log.change(sealing(former, 3, dropped.ledger_id))
    await log.begin()
    await log.append(4)
    await follower.until(7)
    await client.delete_ledger(dropped.ledger_id)
    await log.seal()
    await log.segment(2)
    await follower.until(9)
    await follower.cancel()


async def test_an_empty_segment_that_is_followed_is_dropped(cluster: InProcess) -> None:
    """A writer opened the log and died before its first entry; the tail waits in its ledger for that."""
    client, reading = await cluster.client(), await patient(cluster)
    log = await StepwiseLog(client).make()
    await log.segment(2)
    empty = await log.begin()
    follower = Follower(await reading.read_log("orders"))
    await follower.until(2)
    await waiting_for_entries(cluster, log)
    await log.end(empty)
    await log.change(sealing(empty, 0, empty.ledger_id))
    await client.delete_ledger(empty.ledger_id)
    await log.begin()
    await log.append(2)
    await follower.until(4)
    await follower.cancel()


async def test_a_segment_that_is_dropped_while_it_is_followed_is_left_at_once(cluster: InProcess) -> None:
    """Its ledger stays open, and nobody will ever close it."""
    client, reading = await cluster.client(), await patient(cluster)
    log = await StepwiseLog(client).make()
    await log.segment(2)
    empty = await log.begin()
    follower = Follower(await reading.read_log("orders"))
    await waiting_for_entries(cluster, log)
    await log.change(sealing(empty, 0, empty.ledger_id))
    await log.begin()
    await log.append(2)
    await follower.until(4)
    assert not [name for name in tailing(reading) if f"ledger {empty.ledger_id}" in name]
    await follower.cancel()


# --- truncation and deletion ----------------------------------------------------------------------------------------


@pytest.mark.scenario(66)
@pytest.mark.parametrize("delete", [True, False])
async def test_truncation_past_a_tail(cluster: InProcess, delete: bool) -> None:
    """It waits for an entry that nobody will see any more."""
    client, reading = await cluster.client(), await patient(cluster)
    log = await StepwiseLog(client).make()
    former = await log.begin()
    await log.append(2)
    follower = Follower(await reading.read_log("orders"))
    await follower.until(2)
    await waiting_for_entries(cluster, log)
    await log.change(lambda log_list: dataclasses.replace(log_list, first_position=4))
    with pytest.raises(bkpy.TruncatedError, match="begins at position 4, 2 is gone"):
        await follower.ended()
    assert tailing(reading) == []
    assert former.usable
    if delete:
        await log.append(2)
        await log.seal()
        await log.segment(1)
        late = Follower(await reading.read_log("orders"), 4)
        await late.until(5, 4)
        await late.cancel()


async def test_truncation_past_a_tail_that_is_about_to_follow_a_ledger(cluster: InProcess) -> None:
    client, reading = await cluster.client(), await patient(cluster)
    log = await StepwiseLog(client).make()
    former = await log.begin()
    await log.append(2)
    reader = await reading.read_log("orders")
    session, path = cluster_of(reading).store, cluster_of(reading).catalog.path_of(former.ledger_id)
    get, truncated = session.get, False

    async def truncate_meanwhile(wanted: str) -> tuple[bytes, int]:
        nonlocal truncated
        if wanted == path and not truncated:
            truncated = True
            await log.change(lambda log_list: dataclasses.replace(log_list, first_position=4))
            await eventually(lambda: reader.first_position == 4)
        return await get(wanted)

    with patch.object(session, "get", truncate_meanwhile):
        follower = Follower(reader, 2)
        with pytest.raises(bkpy.TruncatedError, match="begins at position 4, 2 is gone"):
            await follower.ended()
    assert truncated
    assert former.usable


async def test_what_was_read_ahead_is_not_given_out_when_it_is_truncated(cluster: InProcess) -> None:
    client, reading = await cluster.client(), await patient(cluster)
    log = await StepwiseLog(client).make()
    for _ in range(4):
        await log.segment(2)
    reader = await reading.read_log("orders")
    async with aclosing(reader.tail_blocks()) as blocks, asyncio.timeout(DEADLINE_S):
        assert (await anext(blocks)).positions == range(2)
        await log.truncate(6, delete=False)
        await eventually(lambda: reader.first_position == 6)
        with pytest.raises(bkpy.TruncatedError, match="begins at position 6, 2 is gone"):
            await anext(blocks)


async def test_truncation_of_what_a_consumer_still_works_on_does_not_disturb_its_tail(cluster: InProcess) -> None:
    client, reading = await cluster.client(), await patient(cluster)
    log = await StepwiseLog(client).make()
    await log.begin()
    await log.append(4)
    reader = await reading.read_log("orders")
    async with aclosing(reader.tail_blocks()) as blocks, asyncio.timeout(DEADLINE_S):
        following = (await anext(blocks)).positions.stop
        await log.truncate(1)
        await eventually(lambda: reader.first_position == 1)
        while following < 4:
            following = (await anext(blocks)).positions.stop
        await log.append(1)
        assert (await anext(blocks)).positions == range(4, 5)


async def test_truncation_up_to_a_tail_does_not_disturb_it(cluster: InProcess) -> None:
    client, reading = await cluster.client(), await patient(cluster)
    log = await StepwiseLog(client).make()
    await log.segment(3)
    await log.segment(3)
    follower = Follower(await reading.read_log("orders"))
    await follower.until(6)
    await log.truncate(6)
    await log.begin()
    await log.append(1)
    await follower.until(7)
    await log.seal()
    await log.begin()
    await log.truncate(7)
    await log.append(1)
    await follower.until(8)
    await follower.cancel()


@pytest.mark.thorough
@pytest.mark.scenario(66)
async def test_truncation_under_a_tail_at_every_step(cluster: InProcess) -> None:
    """Whoever is behind is told at the next look; whoever isn't goes on. Nobody is given anything else instead."""
    client = await cluster.client()
    for taken in range(1, 9):
        log = await StepwiseLog(client, name=f"log-{taken}").make()
        for _ in range(4):
            await log.segment(2)
        await log.begin()
        await log.append(2)
        reader = await client.read_log(log.name)
        found = []

        async def follow(reader: bkpy.LogReader, found: list[Any], taken: int, log: StepwiseLog) -> None:
            async for entry in reader.tail():
                found.append(entry)
                if len(found) == taken:
                    await log.truncate(6)
                if entry.position == 9:
                    return

        async with asyncio.timeout(DEADLINE_S):
            try:
                await follow(reader, found, taken, log)
            except bkpy.TruncatedError:
                assert len(found) < 6
            else:
                assert len(found) == 10
        check(found, 0, len(found))
        await eventually(lambda: tailing(client) == [])


@pytest.mark.scenario(66)
@pytest.mark.parametrize("mark", [True, False], ids=["marked", "at once"])
@pytest.mark.parametrize("is_open", [True, False])
async def test_deletion_ends_a_tail(cluster: InProcess, mark: bool, is_open: bool) -> None:
    client, reading = await cluster.client(), await patient(cluster)
    log = await StepwiseLog(client).make()
    await log.segment(2)
    if is_open:
        await log.begin()
    follower = Follower(await reading.read_log("orders"))
    await follower.until(2)
    if is_open:
        await waiting_for_entries(cluster, log)
    else:
        await waiting_for_the_list(cluster, reading)
    await log.delete(cluster, mark=mark)
    await StepwiseLog(client).make()
    with pytest.raises(bkpy.NoSuchLogError):
        await follower.ended()
    assert tailing(reading) == []


# --- what else ends it, and what does not ---------------------------------------------------------------------------


async def test_a_tail_ends_with_its_reader_and_with_its_client(cluster: InProcess) -> None:
    client, reading = await cluster.client(), await patient(cluster)
    log = await StepwiseLog(client).make()
    await log.segment(2)
    reader = await reading.read_log("orders")
    waits_for_list = Follower(reader)
    await waits_for_list.until(2)
    await log.begin()
    waits_for_entries = Follower(await reading.read_log("orders"))
    await waits_for_entries.until(2)
    await waiting_for_entries(cluster, log)
    await reader.close()
    with pytest.raises(bkpy.ClientClosedError, match="the reader of log orders is closed"):
        await waits_for_list.ended()
    await reading.close()
    await cluster_of(reading).store.close()
    with pytest.raises(bkpy.ClientClosedError):
        await waits_for_entries.ended()
    assert tailing(reading) == []


async def test_an_iteration_that_is_given_up_leaves_nothing_behind(cluster: InProcess) -> None:
    client = await cluster.client()
    log = await StepwiseLog(client).make()
    for _ in range(10):
        await log.segment(3)
    reader = await client.read_log("orders")
    for taken in (1, 5, 30):
        found = []
        async for entry in reader.tail():
            found.append(entry)
            if len(found) == taken:
                break
        await eventually(lambda: tailing(client) == [])
    assert not cluster.tree.watched(LIST)


async def test_a_tail_goes_on_while_the_metadata_store_is_away(cluster: InProcess) -> None:
    client = await cluster.client()
    reading = await cluster.client(**PATIENT | {"tail_poll_s": 0.01})
    log = await StepwiseLog(client).make()
    await log.segment(2)
    await log.begin()
    follower = Follower(await reading.read_log("orders"))
    await follower.until(2)
    await waiting_for_entries(cluster, log)
    store: Any = cluster_of(reading).store
    store.call_timeout_s = 0.05  # so that what is asked meanwhile fails
    store.suspend()
    await log.append(2)
    await follower.until(4)
    await log.seal()
    await log.begin()
    await log.append(2)
    await asyncio.sleep(0.2)
    assert not follower.task.done()
    store.resume()
    await follower.until(6)
    await follower.cancel()


async def test_a_tail_begun_while_the_metadata_store_is_away_waits_for_it(cluster: InProcess) -> None:
    client = await cluster.client()
    reading = await cluster.client(tail_poll_s=0.01)
    log = await StepwiseLog(client).make()
    await log.segment(2)
    reader = await reading.read_log("orders")
    store: Any = cluster_of(reading).store
    store.call_timeout_s = 0.05
    store.suspend()
    follower = Follower(reader)
    await asyncio.sleep(0.2)
    assert not follower.task.done()
    store.resume()
    await follower.until(2)
    await follower.cancel()


async def test_a_lost_session_loses_no_news(cluster: InProcess) -> None:
    client, reading = await cluster.client(), await patient(cluster)
    log = await StepwiseLog(client).make()
    await log.segment(2)
    follower = Follower(await reading.read_log("orders"))
    await follower.until(2)
    await waiting_for_the_list(cluster, reading)
    store: Any = cluster_of(reading).store
    store.suspend()
    await log.segment(2)
    store.expire()
    store.resume()
    await follower.until(4)
    await follower.cancel()


async def test_a_tail_goes_on_without_a_bookie(cluster: InProcess) -> None:
    client = await cluster.client()
    reading = await cluster.client(read_timeout_s=1.0)
    log = await StepwiseLog(client).make()
    await log.segment(20)
    await log.begin()
    await log.append(5)
    follower = Follower(await reading.read_log("orders"))
    await follower.until(25)
    cluster.kill("b")
    await log.append(5)
    await follower.until(30)
    await log.end()
    follower_of_all = Follower(await reading.read_log("orders"))
    await follower_of_all.until(30)
    await follower.cancel()
    await follower_of_all.cancel()
