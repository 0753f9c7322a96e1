"""What an append has returned proves to readers that its entry may be read, and an idle writer publishes at once."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
from contextlib import aclosing
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
from tests.hooks import roller_of
from tests.unit.log.test_given_up import give_up
from tests.waiting import eventually

import bkpy
from bkpy.client.write.explicit_lac import ExplicitLac
from bkpy.errors import (
    BookieUnavailableError,
    ConfigError,
    NoSuchEntryError,
    NoSuchLogError,
    TruncatedError,
)

if TYPE_CHECKING:
    from tests.in_process import InProcess

    from bkpy.client.client import Client
    from bkpy.log.writer import LogWriter

SILENT = {"explicit_lac_interval_s": 0}  # a writer whose last entries no bookie knows to be acknowledged
FEW = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}


async def entries_of(reader: bkpy.LogReader) -> list[bytes]:
    return [entry.data async for entry in reader.read()]


async def silent(cluster: InProcess) -> tuple[Client, LogWriter]:
    client = await cluster.client(**SILENT)
    return client, await client.open_log("orders", create=True)


async def test_an_append_returns_a_position_that_says_where_it_is(cluster: InProcess) -> None:
    client, log = await silent(cluster)
    assert log.last_acknowledged is None
    first = await log.append(b"0")
    assert await log.append_batch([b"1", b"2"]) == range(1, 3)
    second = log.last_acknowledged
    await roller_of(log).roll()
    await eventually(lambda: log.last_acknowledged == 2)  # of the ledger before
    third = await log.append_nowait(b"3")
    uid = roller_of(log).log_list.uid
    ledgers = [segment.ledger_id for segment in roller_of(log).log_list.segments]
    for found, position, ledger, entry_id in zip(
        (first, second, third), (0, 2, 3), (*ledgers[:1], *ledgers), (0, 2, 0), strict=True
    ):
        assert isinstance(found, bkpy.LogPosition)
        assert (found, hash(found), repr(found)) == (position, hash(position), json.dumps(found))
        made = bkpy.LogPosition.of(position, log_uid=uid, ledger_id=ledger, entry_id=entry_id)
        for same in (found, pickle.loads(pickle.dumps(found)), copy.copy(found), made):
            assert (same, same.log_uid, same.ledger_id, same.entry_id) == (position, uid, ledger, entry_id)
    await log.close()
    assert log.last_acknowledged == 3
    await client.close()


async def test_a_position_proves_nothing_of_another_ledger_that_has_it_now(cluster: InProcess) -> None:
    """As after a restore of the metadata: others have written there since. In the list, and in a page."""
    client = await cluster.client(log_page_rows=2)
    async with await client.open_log("orders", create=True, roll_entries=1) as log:
        appended = []
        for n in range(12):
            appended.append(await log.append(b"%d" % n))
            await asyncio.sleep(0.02)
        assert roller_of(log).log_list.pages
        reader = await client.read_log("orders")
        for position in appended:
            await reader.refresh(confirmed=position)
            parts = {"log_uid": position.log_uid, "ledger_id": position.ledger_id, "entry_id": position.entry_id}
            for wrong in ({"ledger_id": 1000}, {"entry_id": position.entry_id + 1}):
                with pytest.raises(NoSuchEntryError, match="no such entry at position"):
                    await reader.refresh(confirmed=bkpy.LogPosition.of(position, **parts | wrong))


@pytest.mark.parametrize("rolled", [False, True])
async def test_what_was_acknowledged_is_readable_at_once(cluster: InProcess, rolled: bool) -> None:
    """Though no bookie knows it, and none can be asked."""
    _, log = await silent(cluster)
    await log.append(b"0")
    if rolled:
        await roller_of(log).roll()
    position = await log.append(b"1")
    reader = await (await cluster.client(**SILENT)).read_log("orders")
    assert reader.next_position < 2
    await reader.refresh(confirmed=position)
    assert reader.next_position == 2
    assert await entries_of(reader) == [b"0", b"1"]
    again = await (await cluster.client(**SILENT)).read_log("orders")
    for name in "abc":
        cluster.kill(name)
    await again.refresh(confirmed=position)
    assert again.next_position == 2
    with pytest.raises(BookieUnavailableError):
        await again.refresh()
    log.abandon()


async def test_a_consumer_commits_what_is_proved_and_no_more(cluster: InProcess) -> None:
    _, log = await silent(cluster)
    position = await log.append_nowait(b"0")
    reader = await (await cluster.client(**SILENT)).read_log("orders")
    billing = await reader.consumer("billing", create=True)
    await reader.refresh(confirmed=1)  # what a caller says is good for reading alone
    assert reader.next_position == 1
    with pytest.raises(ConfigError, match="reach up to position 0, so no consumer can be at 1"):
        await billing.commit(1)
    await reader.refresh(confirmed=position)
    await billing.commit(position + 1)
    with pytest.raises(ConfigError, match="no consumer can be at 2"):
        await billing.commit(2)
    await log.close()


async def test_a_position_of_another_log_or_ledger_is_refused(cluster: InProcess) -> None:
    client, log = await silent(cluster)
    other = await client.open_log("others", create=True)
    mine, theirs = await log.append(b"0"), await other.append(b"0")
    reader = await client.read_log("orders")
    known = reader.next_position
    with pytest.raises(ConfigError, match="position 0 is one of the log with uid"):
        await reader.refresh(confirmed=theirs)
    parts = {"log_uid": mine.log_uid, "ledger_id": mine.ledger_id, "entry_id": 7}
    for wrong in (
        bkpy.LogPosition.of(7, **parts | {"ledger_id": theirs.ledger_id}),
        bkpy.LogPosition.of(8, **parts),
    ):
        with pytest.raises(NoSuchEntryError, match="log orders has no such entry at position"):
            await reader.refresh(confirmed=wrong)
    for bad in (-1, True, "1", None):
        with pytest.raises(ConfigError, match="confirmed"):
            await reader.refresh(confirmed=bad)  # type: ignore[arg-type]
    assert reader.next_position == known
    await log.append(b"1")
    await log.close()
    async with await client.open_log("orders") as log:
        await log.append(b"2")
        await log.truncate(2)
        with pytest.raises(TruncatedError):
            await reader.refresh(confirmed=mine)
        await reader.refresh(confirmed=log.last_acknowledged or 0)
        assert reader.next_position == 3
    await client.delete_log("orders")
    with pytest.raises(NoSuchLogError):
        await reader.refresh(confirmed=mine)
    await other.close()


async def test_an_entry_whose_loss_was_accepted_is_refused(cluster: InProcess) -> None:
    """Before the next writer knows it, and afterwards."""
    client, log = await silent(cluster)
    kept, lost = await log.append(b"0"), await log.append(b"1")
    log.abandon()
    reader = await client.read_log("orders")
    await give_up(client, lost.ledger_id, 1)
    for opened in (False, True):
        if opened:
            await (await client.open_log("orders")).close()
        with pytest.raises(NoSuchEntryError, match="its loss was accepted"):
            await reader.refresh(confirmed=lost)
        await reader.refresh(confirmed=kept)
        assert await entries_of(reader) == [b"0"]


# --- publishing -------------------------------------------------------------------------------------------------------


async def test_an_idle_writer_publishes_at_once(cluster: InProcess) -> None:
    """And what comes soon afterwards when the interval is over."""
    interval_s = 50.0
    client, reading = await cluster.client(explicit_lac_interval_s=interval_s), await cluster.client(long_poll_s=1000.0)
    log = await client.open_log("orders", create=True)
    reader = await reading.read_log("orders")
    clock = asyncio.get_running_loop().time
    async with aclosing(reader.tail()) as tail:
        for data, soon in ((b"0", True), (b"1", False)):
            begun = clock()
            await log.append(data)
            assert (await anext(tail)).data == data
            assert (clock() - begun < 1.0) is soon
        await asyncio.sleep(2 * interval_s)
        begun = clock()
        await log.append(b"2")
        assert (await anext(tail)).data == b"2"
        assert clock() - begun < 1.0
    await log.close()


async def test_a_writer_that_goes_on_at_once_publishes_nothing(cluster: InProcess) -> None:
    client = await cluster.client()
    log = await client.open_log("orders", create=True, **FEW)
    published = 0
    publish = ExplicitLac.publish

    def counted(lac: ExplicitLac) -> None:
        nonlocal published
        published += 1
        publish(lac)

    with patch.object(ExplicitLac, "publish", counted):
        for _ in range(50):
            await log.append(b"x")
        assert published == 0
        await eventually(lambda: published == 1)
    await log.close()
