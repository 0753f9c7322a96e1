"""A log of which a part was lost for good, and somebody has accepted that: no position comes twice."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.in_process import rewrite
from tests.unit.log.test_takeovers import FAST

from bkpy.errors import ConfigError, TruncatedError
from bkpy.protocol.ledger.accepted_loss import AcceptedLoss
from bkpy.protocol.ledger.ledger_metadata import LedgerState
from bkpy.protocol.log.log_opening import LEDGER_ENTRIES_MAX
from bkpy.protocol.wire.records import STAMP_BYTES

if TYPE_CHECKING:
    from tests.in_process import InProcess

    from bkpy.client.client import Client
    from bkpy.log.reader import LogEntry


async def give_up(client: Client, ledger_id: int, entries: int, length: int | None = None) -> None:
    """Its bookies are gone, and so many entries are left, of that length or of one byte each."""
    loss = AcceptedLoss(1000, entries - 1, entries - 1, {"a": "gone"})
    length = entries * (1 + STAMP_BYTES) if length is None else length
    await rewrite(
        client, ledger_id, state=LedgerState.CLOSED, last_entry=entries - 1, length=length, accepted_loss=loss
    )


@pytest.mark.parametrize("left", [0, 2])
async def test_a_log_goes_on_behind_all_that_was_told(
    cluster: InProcess, caplog: pytest.LogCaptureFixture, left: int
) -> None:
    client, other = await cluster.client(**FAST), await cluster.client(**FAST)
    log = await client.open_log("orders", create=True)
    for i in range(5):
        assert await log.append(b"%d" % i) == i
    reader = await other.read_log("orders")
    billing = await log.consumer("billing", create=True)  # which knows of what was acknowledged just now
    await billing.commit(5)
    log.abandon()
    await give_up(client, log.ledger_id, left)
    log = await client.open_log("orders")
    assert await log.append(b"n") == LEDGER_ENTRIES_MAX
    assert "given up with ledger" in caplog.text
    await log.close()
    await reader.refresh()
    entries = [(i, b"%d" % i) for i in range(left)] + [(LEDGER_ENTRIES_MAX, b"n")]
    assert [(entry.position, entry.data) async for entry in reader.read()] == entries
    times = [entry.time async for entry in reader.read()]
    assert [await reader.position_at(time) for time in times[-1:]] == [LEDGER_ENTRIES_MAX]
    assert await reader.position_at(0) == entries[0][0]
    assert [reader.behind(i) for i in range(5)] == [*range(left), *[LEDGER_ENTRIES_MAX] * (5 - left)]
    caplog.clear()
    if left:
        async with asyncio.timeout(30):
            tail = reader.tail(first=billing.position)
            assert (await anext(tail)).position == LEDGER_ENTRIES_MAX
            await tail.aclose()
        assert "positions 5 to 999999999999 of log orders were given up" in caplog.text
    async with await client.open_log("orders") as log:
        await log.truncate(LEDGER_ENTRIES_MAX, ignore_consumers=True)
    await reader.refresh()
    assert [entry.data async for entry in reader.read()] == [b"n"]
    async with await client.open_log("orders") as after:
        assert await after.append(b"m") == LEDGER_ENTRIES_MAX + 1


async def test_a_tail_passes_the_gap(cluster: InProcess) -> None:
    client, other = await cluster.client(**FAST), await cluster.client(**FAST)
    log = await client.open_log("orders", create=True)
    for i in range(3):
        await log.append(b"%d" % i)
    reader = await other.read_log("orders")
    found: list[LogEntry] = []

    async def follow() -> None:
        async for entry in reader.tail():
            found.append(entry)
            if entry.data == b"n":
                return

    following = asyncio.create_task(follow())
    log.abandon()
    await give_up(client, log.ledger_id, 1)
    log = await client.open_log("orders")
    assert await log.append(b"n") == LEDGER_ENTRIES_MAX
    async with asyncio.timeout(30):
        await following
    positions = [entry.position for entry in found]
    assert positions[-1] == LEDGER_ENTRIES_MAX
    assert positions[:-1] == list(range(len(positions) - 1))  # one to three, as fast as it was
    await log.close()


async def test_losses_in_a_row_leave_a_log_that_can_be_opened(cluster: InProcess) -> None:
    """The ledger behind the first one is lost before anything is in it, and the next one again."""
    client = await cluster.client(**FAST)
    log = await client.open_log("orders", create=True)
    for i in range(5):
        assert await log.append(b"%d" % i) == i
    for losses, left in enumerate((2, 0, 0), 1):
        log.abandon()
        await give_up(client, log.ledger_id, left)
        log = await client.open_log("orders")
        assert log.next_position == losses * LEDGER_ENTRIES_MAX
    assert await log.append(b"n") == 3 * LEDGER_ENTRIES_MAX
    await log.close()
    async with await client.read_log("orders") as reader:
        assert [entry.data async for entry in reader.read()] == [b"0", b"1", b"n"]


@pytest.mark.parametrize("left", [0, 2, 5])
async def test_a_consumer_that_has_read_everything_goes_on_behind_the_gap(cluster: InProcess, left: int) -> None:
    """It holds back no truncation, and nothing that it has yet to read was truncated."""
    client, other = await cluster.client(**FAST), await cluster.client(**FAST)
    log = await client.open_log("orders", create=True)
    for i in range(5):
        await log.append(b"%d" % i)
    billing = await log.consumer("billing", create=True)
    await billing.commit(5)
    late = await log.consumer("late", position=1, create=True)
    log.abandon()
    await give_up(client, log.ledger_id, left)
    log = await client.open_log("orders")
    assert await log.append(b"n") == LEDGER_ENTRIES_MAX
    if left:
        with pytest.raises(ConfigError, match="from 1 on: late"):
            await log.truncate(LEDGER_ENTRIES_MAX)
        await late.delete()
    await log.truncate(LEDGER_ENTRIES_MAX)
    reader = await other.read_log("orders")
    assert reader.first_position == LEDGER_ENTRIES_MAX
    billing = await reader.consumer("billing", create=True)
    async with asyncio.timeout(30):
        tail = reader.tail(first=billing.position)
        assert (await anext(tail)).data == b"n"
        await tail.aclose()
    await billing.commit(6)  # a step within the gap
    await billing.commit(5)
    if left:
        with pytest.raises(TruncatedError):
            await billing.commit(left - 1)
        with pytest.raises(TruncatedError):
            await anext(reader.tail(first=left - 1))
    await log.append(b"m")
    await log.truncate(LEDGER_ENTRIES_MAX + 1, ignore_consumers=True)
    await reader.refresh()
    with pytest.raises(TruncatedError):
        await anext(reader.tail(first=billing.position))
    await log.close()
