"""Reading a log across its ledgers: what may be read, what must not be, positions, times, and what is truncated."""

from __future__ import annotations

import dataclasses
import pickle
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import cluster_of, codec_of, tasks_of
from tests.unit.log.stepwise_log import StepwiseLog, all_of, check, numbers, stamped

import bkpy
from bkpy.client.client import log_parts
from bkpy.log.client import open_segment
from bkpy.protocol.log.log_list import LogList, Segment

if TYPE_CHECKING:
    from tests.in_process import InProcess

    from bkpy.client.client import Client


@pytest.fixture
async def client(cluster: InProcess) -> Client:
    return await cluster.client()


async def several(client: Client, *counts: int, **kind: Any) -> StepwiseLog:
    """A log of sealed segments with so many entries each."""
    log = await StepwiseLog(client, **kind).make()
    for count in counts:
        await log.segment(count)
    return log


def readings(client: Client) -> list[str]:
    return [task.get_name() for task in tasks_of(client) if task.get_name().startswith(("read of", "watch of"))]


# --- ranges ---------------------------------------------------------------------------------------------------------


async def test_a_log_that_has_nothing_yet(client: Client) -> None:
    log = await StepwiseLog(client).make()
    async with await client.read_log("orders") as reader:
        assert (reader.first_position, reader.next_position) == (0, 0)
        assert await all_of(reader.read()) == []
        assert reader.ranges() == []
        assert await reader.position_at(5.0) == 0
        with pytest.raises(bkpy.NoSuchEntryError, match="no entries yet, and so no position 0"):
            await all_of(reader.read(last=0))
        await log.begin()
        await reader.refresh()
        assert reader.next_position == 0
        assert await all_of(reader.read()) == []


@pytest.mark.thorough
@pytest.mark.scenario(66)
async def test_every_range_crosses_segments(client: Client) -> None:
    await several(client, 3, 1, 5, 2)
    reader = await client.read_log("orders")
    assert (reader.name, reader.first_position, reader.next_position) == ("orders", 0, 11)
    for first in range(12):
        for last in range(11):
            check(await all_of(reader.read(first, last)), first, max(first, last + 1))
        check(await all_of(reader.read(first)), first, 11)
    assert [e.entry_id for e in await all_of(reader.read(2, 5))] == [2, 0, 0, 1]
    assert len({e.ledger_id for e in await all_of(reader.read(2, 5))}) == 3
    assert readings(client) == []


async def test_what_an_open_ledger_has_goes_by_the_entries_themselves(cluster: InProcess) -> None:
    """By a length that was published long before, a bound in bytes would let many times as many entries through."""
    client = await cluster.client(explicit_lac_interval_s=0)
    log = await StepwiseLog(client).make()
    writer = await log.begin()
    await log.append(2)
    for bookie in "abc":
        await cluster.storage(bookie).set_explicit_lac(writer.ledger_id, codec_of(writer).explicit_lac(1, 18))
    async with await client.read_log("orders") as reader:
        for _ in range(8):
            await log.append(1)
        await reader.refresh()
        (part,) = reader.ranges()
        assert (part.entries, part.payload_bytes) == (9, 81)


async def test_what_a_ledger_has_is_known_until_the_list_says_it(client: Client) -> None:
    """It is closed and its writer dies before the list says so: bounds in bytes would let all of it through."""
    log = await several(client, 2)
    former = await log.begin()
    await log.append(3)
    await log.begin()
    await log.append(4)
    await log.end(former)
    async with await client.read_log("orders") as reader:
        for _ in range(3):
            assert [(part.entries, part.payload_bytes) for part in reader.ranges()][:2] == [(2, 18), (3, 27)]
            await reader.refresh()


async def test_blocks_have_positions_times_and_payloads_without_stamps(client: Client) -> None:
    await several(client, 3, 2)
    reader = await client.read_log("orders")
    blocks = [block async for block in reader.read_blocks(1)]
    assert [block.positions for block in blocks] == [range(1, 3), range(3, 5)]
    assert [list(block.times()) for block in blocks] == [[1.0, 2.0], [3.0, 4.0]]
    assert [block.payloads() for block in blocks] == [numbers(1, 3), numbers(3, 5)]
    assert [(len(b), b.first_entry, b.payload_bytes) for b in blocks] == [(2, 1, 2), (2, 0, 2)]
    assert [block.ledger_id for block in blocks] == [r.ledger_id for r in reader.ranges(1)]
    assert bytes(blocks[0].block.payload(1)) == b"2"
    assert blocks[0].block.joined()[1] == b"12"
    check([entry for block in blocks for entry in block], 1, 5)
    assert next(iter(blocks[0])).length == 1


async def test_an_open_segment_is_read_as_far_as_it_is_acknowledged(client: Client) -> None:
    log = await several(client, 4)
    await log.begin()
    await log.append(3)
    await log.append(2)  # tells bookies that those before are acknowledged
    reader = await client.read_log("orders")
    assert 7 <= reader.next_position <= 9
    check(await all_of(reader.read()), 0, reader.next_position)
    await log.end()
    await reader.refresh()
    assert reader.next_position == 9
    check(await all_of(reader.read()), 0, 9)
    assert [r.entries for r in reader.ranges()] == [4, 5]


async def test_a_segment_behind_an_open_one_is_not_read(client: Client) -> None:
    log = await several(client, 2)
    former = await log.begin()
    await log.append(3)
    last = await log.begin()
    await log.append(4)
    await log.end(last)
    reader = await client.read_log("orders")
    assert reader.next_position <= 5
    await log.end(former)
    await reader.refresh()
    assert reader.next_position == 9
    check(await all_of(reader.read()), 0, 9)


async def test_a_segment_that_is_to_be_dropped_is_not_read(client: Client) -> None:
    """The one before it is closed short of it. It is CLOSED, and has entries that nobody was told of."""
    log = await several(client, 2)
    former = await log.begin()
    await log.append(3)
    dropped = await log.begin(at=6)
    await dropped.append_batch([stamped(b"none of the log's", 1)] * 5)
    await log.end(former)
    await log.end(dropped)
    reader = await client.read_log("orders")
    assert reader.next_position == 5
    check(await all_of(reader.read()), 0, 5)
    with pytest.raises(bkpy.NoSuchEntryError):
        await all_of(reader.read(5, 5))
    assert await reader.position_at(6.5) == 5

    def replaced(log_list: LogList) -> LogList:
        sealed, former_one, _ = log_list.segments
        return dataclasses.replace(
            log_list,
            segments=(sealed, former_one.seal(3, 0, 4000)),
            pending_delete=(dropped.ledger_id,),
        )

    await log.change(replaced)
    await client.delete_ledger(dropped.ledger_id)
    await log.segment(2)
    await reader.refresh()
    assert reader.next_position == 7
    check(await all_of(reader.read()), 0, 7)


async def test_a_ledger_that_was_dropped_while_it_was_looked_at(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the list and the ledger: the look goes on with the list as it is then."""
    log = await several(client, 2)
    empty = await log.begin()
    reader_list = (await log_parts(client).logs.read("orders"))[0]
    await log.change(
        lambda log_list: dataclasses.replace(
            log_list, segments=log_list.segments[:1], pending_delete=(empty.ledger_id,)
        )
    )
    await client.delete_ledger(empty.ledger_id)
    await log.segment(3)
    read = type(log_parts(client).logs).read
    answers = [(reader_list, 3)]

    async def old_first(self: Any, name: str, **how: Any) -> tuple[LogList, int]:
        return answers.pop() if answers else await read(self, name, **how)

    monkeypatch.setattr(type(log_parts(client).logs), "read", old_first)
    reader = await client.read_log("orders")
    check(await all_of(reader.read()), 0, 5)


async def test_a_ledger_that_is_lost_is_told_of(client: Client) -> None:
    await several(client, 2, 2)
    reader = await client.read_log("orders")
    lost = reader.ranges()[1].ledger_id
    await client.delete_ledger(lost)
    found = []
    with pytest.raises(bkpy.NoSuchLedgerError) as caught:  # noqa: PT012 - what was read before is part of it
        async for entry in reader.read():
            found.append(entry)
    assert caught.value.ledger_id == lost
    check(found, 0, 2)


@pytest.mark.thorough
@pytest.mark.parametrize("settings", [{}, {"prefetch_depth": 1, "read_bytes": 4096, "read_entries_first": 1}])
async def test_many_segments_are_read_ahead_of_and_leave_nothing_behind(
    cluster: InProcess, settings: dict[str, Any]
) -> None:
    client = await cluster.client(**settings)
    await several(client, *([3] * 40))
    reader = await client.read_log("orders")
    check(await all_of(reader.read()), 0, 120)
    found = []
    async for entry in reader.read():
        found.append(entry)
        if len(found) == 50:
            break
    check(found, 0, 50)
    blocks = reader.read_blocks()
    assert len(await anext(blocks)) >= 1
    await blocks.aclose()
    assert readings(client) == []


async def test_the_digest_of_hmac_and_a_password(client: Client) -> None:
    await several(client, 3, 2, digest="hmac-sha256", password=b"secret")
    with pytest.raises(bkpy.UnauthorizedError, match="log orders: the log has a password"):
        await client.read_log("orders")
    with pytest.raises(bkpy.UnauthorizedError, match="not the log's"):
        await client.read_log("orders", password=b"wrong")
    reader = await client.read_log("orders", password=b"secret")
    check(await all_of(reader.read()), 0, 5)
    assert await reader.position_at(3.0) == 3
    segment = await open_segment(log_parts(client), reader.ranges()[1].ledger_id, b"secret")
    assert [entry.data async for entry in segment.read()] == numbers(3, 5)


async def test_a_striped_log(cluster: InProcess) -> None:
    client = await cluster.client()
    log = await StepwiseLog(client).make()
    writer = await client.create_ledger(ensemble_size=3, write_quorum=2, ack_quorum=2)
    await writer.append_batch([stamped(b"%d" % p, p * 1000) for p in range(50)])
    await writer.close()
    segment = Segment(writer.ledger_id, 0, 0, entries=50, length=writer.length, last_ms=49_000)
    await log.change(lambda log_list: dataclasses.replace(log_list, segments=(segment,)))
    check(await all_of((await client.read_log("orders")).read()), 0, 50)


async def test_bad_arguments_and_what_is_not_there(client: Client) -> None:
    with pytest.raises(bkpy.NoSuchLogError, match="orders"):
        await client.read_log("orders")
    with pytest.raises(bkpy.ConfigError, match="name of a log"):
        await client.read_log("no/such")
    await several(client, 2)
    with pytest.raises(bkpy.ConfigError, match="password"):
        await client.read_log("orders", password="text")  # type: ignore[arg-type]
    reader = await client.read_log("orders")
    for bad in (-1, True, 1.0, "1", 1 << 63):
        with pytest.raises(bkpy.ConfigError, match="first"):
            reader.read(bad)  # type: ignore[arg-type]
        with pytest.raises(bkpy.ConfigError, match="first"):
            reader.tail_blocks(bad)  # type: ignore[arg-type]
        with pytest.raises(bkpy.ConfigError, match="last"):
            reader.read_blocks(0, bad)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        pickle.dumps(reader)
    await reader.close()
    for use in (reader.read(), reader.tail()):
        with pytest.raises(bkpy.ClientClosedError, match="log orders"):
            await anext(use)
    with pytest.raises(bkpy.ClientClosedError):
        await reader.refresh()
    await client.close()
    with pytest.raises(bkpy.ClientClosedError):
        await client.read_log("orders")


# --- truncation -----------------------------------------------------------------------------------------------------


async def test_below_the_first_position_everything_is_truncated(client: Client) -> None:
    log = await several(client, 3, 4, 3)
    reader = await client.read_log("orders")
    await log.truncate(5)
    await reader.refresh()
    assert (reader.first_position, reader.next_position) == (5, 10)
    check(await all_of(reader.read()), 5, 10)
    for first in range(5):
        with pytest.raises(bkpy.TruncatedError, match=f"begins at position 5, {first} is gone"):
            await all_of(reader.read(first))
        with pytest.raises(bkpy.TruncatedError):
            reader.ranges(first)
    await log.truncate(10)
    await reader.refresh()
    assert (reader.first_position, reader.next_position) == (10, 10)
    assert await all_of(reader.read()) == []


@pytest.mark.thorough
@pytest.mark.scenario(66)
async def test_truncation_under_a_reader_at_every_step(client: Client) -> None:
    """It is given what it could read, and then told; never anything else in the place of what is gone."""
    for entries_before in range(1, 9):
        name = f"log-{entries_before}"
        log = await several(client, 2, 2, 2, 2, name=name)
        reader = await client.read_log(name)
        found = []
        error = None
        try:
            async for entry in reader.read():
                found.append(entry)
                if len(found) == entries_before:
                    await log.truncate(6)
        except bkpy.TruncatedError as e:
            error = e
        check(found, 0, len(found))
        assert len(found) >= entries_before
        assert (error is None) == (len(found) == 8)
        assert readings(client) == []


@pytest.mark.parametrize("mark", [True, False])
async def test_deletion_under_a_reader(cluster: InProcess, client: Client, mark: bool) -> None:
    log = await several(client, *([2] * 20))
    reader = await client.read_log("orders")
    found = []
    with pytest.raises(bkpy.NoSuchLogError):  # noqa: PT012 - what was read before is part of it
        async for entry in reader.read():
            found.append(entry)
            if len(found) == 1:
                await log.delete(cluster, mark=mark)
    check(found, 0, len(found))
    assert len(found) < 40
    with pytest.raises(bkpy.NoSuchLogError):
        await reader.refresh()
    await several(client, 3)
    with pytest.raises(bkpy.NoSuchLogError, match="another one has its name"):
        await reader.refresh()


# --- times ----------------------------------------------------------------------------------------------------------


async def test_the_position_of_every_time(client: Client) -> None:
    log = await several(client, 3, 1, 4)
    await log.begin()
    await log.append(3)
    await log.end()
    reader = await client.read_log("orders")
    for position in range(11):
        assert await reader.position_at(float(position)) == position
        assert await reader.position_at(position + 0.001) == position + 1
        assert await reader.position_at(position - 0.5) == position
    assert await reader.position_at(-1) == 0
    assert await reader.position_at(float("inf")) == 11
    utc = datetime(1970, 1, 1, 0, 0, 7, tzinfo=timezone.utc)  # noqa: UP017
    assert await reader.position_at(utc) == 7
    assert await reader.position_at(utc.astimezone(timezone(timedelta(hours=5)))) == 7


async def test_each_entry_is_found_by_its_own_time(client: Client) -> None:
    log = await StepwiseLog(client).make()
    times = [1_700_000_000_000 + i for i in (0, 1, 7, 123, 456, 999, 1001)]
    writer = await log.begin(begun_ms=times[0])
    await writer.append_batch([stamped(b"x", ms) for ms in times])
    await log.end()
    reader = await client.read_log("orders")
    for entry in await all_of(reader.read()):
        assert await reader.position_at(entry.time) == entry.position
        moment = datetime.fromtimestamp(entry.time, tz=timezone.utc)  # noqa: UP017
        assert await reader.position_at(moment) == entry.position


async def test_times_that_are_equal_over_segments(client: Client) -> None:
    log = await StepwiseLog(client).make()
    for _ in range(3):
        writer = await log.begin(begun_ms=5000)
        await log.append(4, ms=5000)
        await log.end()
        entries, length = writer.last_add_confirmed + 1, writer.length

        def sealed(log_list: LogList, entries: int = entries, length: int = length) -> LogList:
            return dataclasses.replace(
                log_list, segments=(*log_list.segments[:-1], log_list.segments[-1].seal(entries, length, 5000))
            )

        await log.change(sealed)
    await log.begin(begun_ms=5000)
    await log.append(2, ms=7000)
    await log.end()
    reader = await client.read_log("orders")
    assert await reader.position_at(4.9) == 0
    assert await reader.position_at(5) == 0
    assert await reader.position_at(5.001) == 12
    assert await reader.position_at(7) == 12
    assert await reader.position_at(8) == 14


async def test_an_entry_has_no_time_before_its_segment_began(client: Client) -> None:
    """A sink's segment has the time of its commit; a writer's clock may be behind that of the one before it."""
    log = await StepwiseLog(client).make()
    await log.begin(begun_ms=9000)
    await log.append(3, ms=4000)
    await log.end()
    reader = await client.read_log("orders")
    assert [entry.time for entry in await all_of(reader.read())] == [9.0] * 3
    assert [await reader.position_at(time) for time in (4, 8.999, 9, 9.001)] == [0, 0, 0, 3]


async def test_a_search_reads_single_entries_of_one_ledger(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    await several(client, 300, 300, 300)
    reader = await client.read_log("orders")
    asked = []
    read_blocks = bkpy.LedgerReader.read_blocks

    def noted(self: bkpy.LedgerReader, first: int = 0, last: int | None = None) -> Any:
        asked.append((self.ledger_id, first, last))
        return read_blocks(self, first, last)

    monkeypatch.setattr(bkpy.LedgerReader, "read_blocks", noted)
    assert await reader.position_at(450.0) == 450
    assert len({ledger_id for ledger_id, _, _ in asked}) == 1
    assert all(first == last for _, first, last in asked)
    assert len(asked) <= 10
    asked.clear()
    assert await reader.position_at(299.5) == 300  # between two ledgers, as the list says
    assert not asked


async def test_the_position_of_a_time_that_is_truncated_is_the_first(client: Client) -> None:
    log = await several(client, 5, 5)
    await log.truncate(3)
    reader = await client.read_log("orders")
    assert [await reader.position_at(time) for time in (0, 2, 3, 3.5, 5)] == [3, 3, 3, 4, 5]


async def test_a_search_whose_ledger_is_truncated_meanwhile_begins_anew(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await several(client, 40, 40)
    reader = await client.read_log("orders")
    catalog = cluster_of(client).catalog
    read = catalog.read
    truncated = []

    async def after_truncation(ledger_id: int, **how: Any) -> Any:
        if not truncated:
            truncated.append(ledger_id)
            await log.truncate(60)
        return await read(ledger_id, **how)

    monkeypatch.setattr(catalog, "read", after_truncation)
    assert await reader.position_at(20.0) == 60
    assert len(truncated) == 1


@pytest.mark.parametrize("bad", [True, "1", None, float("nan"), datetime(2020, 1, 1)])
async def test_what_is_no_time(client: Client, bad: Any) -> None:
    await several(client, 1)
    reader = await client.read_log("orders")
    with pytest.raises(bkpy.ConfigError, match="time"):
        await reader.position_at(bad)
