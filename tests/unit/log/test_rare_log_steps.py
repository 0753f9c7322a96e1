"""What seldom happens to writers, readers and keepers of logs ends in an error that says so, or harms nobody."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from tests.in_process import lag_behind, runtime_here
from tests.unit.log.test_between_steps import before_the_list_is_written, opened_without_news
from tests.unit.log.test_log_keeper import ORPHAN_S, Keeping, keeping
from tests.unit.log.test_paged_log import ENTRIES, NAME, PAGED, pages, written
from tests.unit.log.test_takeovers import FAST, faulty_client
from tests.unit.metadata.logs.log_world import LIST, OLD_UID
from tests.waiting import eventually

from bkpy.client.client import log_parts
from bkpy.client.write.batcher import AppendBatcher
from bkpy.config.client import client_settings
from bkpy.errors import (
    BookKeeperError,
    ClientClosedError,
    LogLockedError,
    NoSuchLogError,
    TruncatedError,
)
from bkpy.log.turns import WriterTurns
from bkpy.metadata.logs.maintenance import LogMaintenance
from bkpy.metadata.store.store import Delete

if TYPE_CHECKING:
    from tests.in_process import InProcess

__all__ = ["keeping"]  # the fixture


# --- writers ----------------------------------------------------------------------------------------------------------


async def test_a_client_remembers_the_fencing_of_so_many_logs() -> None:
    turns = WriterTurns(client_settings(log_turns_remembered_max=1), runtime_here())
    assert [turns.fenced(name, 0.0) for name in ("orders", "orders", "bills", "bills", "orders")] == [1, 2, 1, 2, 1]


@pytest.mark.parametrize("at", range(1, 14))
async def test_an_opening_that_does_not_wait_and_is_cancelled_leaves_no_lease(cluster: InProcess, at: int) -> None:
    client, session = await faulty_client(cluster)
    other = await cluster.client(**FAST)
    async with await other.open_log("orders", create=True) as log:
        await log.append(b"0")
    opening = asyncio.create_task(client.open_log("orders", wait=False))

    async def cancel() -> None:
        opening.cancel()
        await asyncio.sleep(0)

    session.count(at, cancel)
    (ended,) = await asyncio.gather(opening, return_exceptions=True)
    if isinstance(ended, asyncio.CancelledError):
        session.count(0, "")

        async def opened() -> bool:
            async with await other.open_log("orders", wait=False) as log:
                return await log.append(b"1") == 1

        assert await eventually(opened, "the lease is dropped", meanwhile=LogLockedError)
    else:
        assert not isinstance(ended, BaseException)
        await ended.close()


async def test_a_writer_that_was_cut_off_hears_of_another_log_of_its_name(cluster: InProcess) -> None:
    client, session = await faulty_client(cluster)
    other = await cluster.client(**FAST)
    log = await client.open_log("orders", create=True)
    await log.append(b"0")
    session.suspend()
    await other.delete_log("orders")
    async with await other.open_log("orders", create=True) as another:
        await another.append(b"another")
    session.resume()
    await eventually(lambda: not log.usable)
    with pytest.raises(NoSuchLogError, match="was deleted, and there is another one of that name"):
        await log.append(b"1")
    log.abandon()


async def test_a_writer_that_closes_finds_its_log_deleted(cluster: InProcess, caplog: pytest.LogCaptureFixture) -> None:
    """All that it was to do is done."""
    client, session = await faulty_client(cluster)
    other = await cluster.client(**FAST)
    log = await opened_without_news(client, session)
    await log.append(b"0")
    with caplog.at_level(logging.INFO), before_the_list_is_written(session, lambda: other.delete_log("orders")):
        await log.close()
    assert "failed to write the list of log orders: log orders was deleted" in caplog.text
    with pytest.raises(NoSuchLogError):
        await other.read_log("orders")


@pytest.mark.parametrize("error", [MemoryError("no memory"), BookKeeperError("refused")])
async def test_an_append_that_fails_where_it_gets_its_room_ends_the_writer_and_nobody_waits_for_ever(
    cluster: InProcess, error: Exception
) -> None:
    """It has its number, and others lie behind."""
    client = await cluster.client(write_window_entries=1)
    log = await client.open_log("orders", create=True, producer="shop")
    add = AppendBatcher.add

    def failing(batcher: AppendBatcher, payload: bytes, size: int) -> Any:
        if payload == b"1":
            raise error
        return add(batcher, payload, size)

    with patch.object(AppendBatcher, "add", failing):
        appending = [asyncio.create_task(log.append(b"%d" % n, sequence=n)) for n in range(3)]
        async with asyncio.timeout(60):
            first, *others = await asyncio.gather(*appending, return_exceptions=True)
    assert first == 0
    for one in others:
        assert isinstance(one, BookKeeperError)
        assert "no memory" in str(one) or "refused" in str(one)
    assert not log.usable
    log.abandon()
    async with await client.open_log("orders", producer="shop") as after:
        assert await after.append(b"1", sequence=1) == 1


async def test_a_repeat_of_an_append_that_waits_for_room_waits_as_well(cluster: InProcess) -> None:
    client = await cluster.client(write_window_entries=1)
    async with await client.open_log("orders", create=True, producer="shop") as log:
        appending = [asyncio.create_task(log.append(b"%d" % n, sequence=n)) for n in range(4)]
        await asyncio.sleep(0)

        async def repeated(number: int) -> None:
            assert await log.append(b"%d" % number, sequence=number) == number
            assert log.last_sequence >= number

        await asyncio.gather(*appending, repeated(3), repeated(1))
        assert [one.result() for one in appending] == [0, 1, 2, 3]


async def test_a_writer_that_closes_adds_what_waits_and_nothing_more(cluster: InProcess) -> None:
    client = await cluster.client(write_window_entries=1)
    log = await client.open_log("orders", create=True, producer="shop")
    appending = [asyncio.create_task(log.append(b"%d" % n, sequence=n)) for n in range(3)]
    await asyncio.sleep(0)
    closing = asyncio.create_task(log.close())
    await asyncio.sleep(0)
    with pytest.raises(ClientClosedError, match="writer of log orders is closed"):
        await log.append(b"3", sequence=3)
    await closing
    assert await asyncio.gather(*appending) == [0, 1, 2]


# --- readers ----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
async def test_ranges_of_a_log_that_has_lost_a_page_are_no_ranges_of_another(cluster: InProcess) -> None:
    client, other = await cluster.client(**PAGED), await cluster.client(**PAGED)
    await written(client)
    reader = await other.read_log(NAME)
    lost = max(pages(cluster), key=len)
    for path in sorted(pages(cluster), key=len, reverse=True):
        if path.startswith(lost.rpartition("/")[0]):
            cluster.tree.apply(Delete(path), 0)
    with pytest.raises(BookKeeperError, match="page") as missing:
        _ = [part async for part in reader.list_ranges(0, ENTRIES - 1)]
    assert not isinstance(missing.value, TruncatedError)
    with pytest.raises(BookKeeperError, match="page"):
        await reader.lag_at(0)


async def test_a_log_that_was_made_again_is_not_taken_for_the_one_before(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader's server lags behind: it still has the list of the deleted log, which had another password."""
    client, session = await faulty_client(cluster)
    other = await cluster.client(**FAST)
    await (await other.open_log("orders", create=True, password=b"former")).close()
    await lag_behind(session, LIST, monkeypatch)
    await other.delete_log("orders")
    async with await other.open_log("orders", create=True, password=b"new") as log:
        await log.append(b"0")
    async with await client.read_log("orders", password=b"new") as reader:
        assert [entry.data async for entry in reader.read()] == [b"0"]


@pytest.mark.thorough
async def test_a_lag_is_measured_again_behind_what_is_truncated_meanwhile(cluster: InProcess) -> None:
    client, other = await cluster.client(**PAGED), await cluster.client(**PAGED)
    await written(client)
    reader = await other.read_log(NAME)
    kind, truncated = type(log_parts(other).logs.pages), False
    sealed_from = kind.sealed_from

    async def truncated_first(pages_of: Any, name: str, *given: Any) -> Any:
        nonlocal truncated
        found = await sealed_from(pages_of, name, *given)
        if not truncated:
            truncated = True
            async with await client.open_log(NAME) as log:
                await log.truncate(41)
        return found

    with patch.object(kind, "sealed_from", truncated_first):
        lag = await reader.lag_at(0)
    assert truncated
    assert lag.entries == ENTRIES - 41


async def test_consumers_of_a_deleted_log_have_no_lag_in_its_successor(cluster: InProcess) -> None:
    client, other = await cluster.client(**FAST), await cluster.client(metrics_lag_interval_s=5.0)
    log = await client.open_log("orders", create=True)
    await log.append(b"0")
    consumer = await (await other.read_log("orders")).consumer("mail", create=True)
    _ = other.metrics
    log.abandon()
    await client.delete_log("orders")
    async with await client.open_log("orders", create=True) as log:
        await log.append(b"1")
    with pytest.raises(NoSuchLogError):
        await consumer.lag()


# --- the keeper -------------------------------------------------------------------------------------------------------


async def test_a_ledger_that_can_not_be_maintained_and_a_note_that_is_others_hold_up_nothing(
    keeping: Keeping, caplog: pytest.LogCaptureFixture
) -> None:
    world = keeping.world
    stuck, orphan = await world.ledger(OLD_UID), await world.ledger(OLD_UID)
    notes = [await world.note_deletion(uid) for uid in (OLD_UID, "2" * 32, "3" * 32)]
    sweep = LogMaintenance.sweep

    async def failing(maintenance: LogMaintenance, metadata: Any, grace_s: float) -> Any:
        if metadata.ledger_id == stuck:
            raise KeyError(stuck)
        return await sweep(maintenance, metadata, grace_s)

    with patch.object(LogMaintenance, "sweep", failing):
        await keeping.start(forbidden=[notes[1]])
        world.clock.now += ORPHAN_S
        await eventually(lambda: orphan not in world.ledgers() and notes[2] not in world.tree.paths)
    assert stuck in world.ledgers()
    assert f"failed to maintain ledger {stuck} of log" in caplog.text
    assert notes[0] in world.tree.paths
    assert LIST in world.tree.paths
