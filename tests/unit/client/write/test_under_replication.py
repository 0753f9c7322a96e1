"""Acknowledged entries on fewer bookies than they should be on: the writer knows, and says so."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import failed_bookies, pool_of, unanswered_adds
from tests.in_process import DEADLINE_S, InProcess, contents
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from pathlib import Path

    from bkpy.client.write.writer import LedgerWriter


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[InProcess]:
    """Three bookies that stay read-only once they are made that, and no others to replace them by."""
    local = InProcess(tmp_path)
    await local.start("abc", disk_check_interval_s=600)
    yield local
    await local.stop()


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if "under-replicated" in r.getMessage()]


async def test_entries_on_all_their_bookies_are_no_shortfall(
    three: InProcess, caplog: pytest.LogCaptureFixture
) -> None:
    client = await three.client()
    writer = await client.create_ledger()
    for _ in range(5):
        await writer.append(b"x")
    await writer.close()
    assert writer.under_replicated == {}
    assert not told(caplog)


async def full_disk(cluster: InProcess, bookie_id: str) -> None:
    cluster.service(bookie_id).refuse_entries()


async def death(cluster: InProcess, bookie_id: str) -> None:
    cluster.kill(bookie_id)


@pytest.mark.parametrize("fault", [full_disk, death])
@pytest.mark.parametrize("quorum", [3, 2])
async def test_a_bookie_that_nobody_could_replace_is_named_with_the_first_entry_that_it_lacks(
    three: InProcess,
    caplog: pytest.LogCaptureFixture,
    quorum: int,
    fault: Callable[[InProcess, str], Coroutine[Any, Any, None]],
) -> None:
    client = await three.client()
    writer = await client.create_ledger(write_quorum=quorum, ack_quorum=quorum - 1)
    for i in range(6):
        await writer.append(b"%d" % i)
    lost = writer.ensemble[0]  # of a striped ledger, it has every entry but those that leave 1 when divided by 3
    await eventually(lambda: not unanswered_adds(pool_of(client).channel(lost)))
    await fault(three, lost)
    for i in range(6, 12):
        await writer.append(b"%d" % i)
    await eventually(lambda: lost in failed_bookies(writer))
    assert writer.under_replicated == {lost: 6}
    with caplog.at_level(logging.WARNING):
        await writer.close()
    assert writer.under_replicated == {lost: 6}
    (warning,) = told(caplog)
    assert f"ledger {writer.ledger_id}:" in warning
    assert f"bookies may miss theirs: {lost} from entry 6 on" in warning
    assert await contents(client, writer.ledger_id) == [b"%d" % i for i in range(12)]


async def test_what_was_acknowledged_without_a_bookie_stays_missing_when_it_takes_entries_again(
    three: InProcess,
) -> None:
    client = await three.client()
    writer = await client.create_ledger()
    await writer.append(b"0")
    await eventually(lambda: not unanswered_adds(pool_of(client).channel("a")))
    three.service("a").refuse_entries()
    await writer.append(b"1")
    await eventually(lambda: "a" in failed_bookies(writer))
    three.service("a").take_entries()
    await eventually(lambda: not failed_bookies(writer) and not writer.pending.replication.changing)
    for _ in range(3):
        await writer.append(b"2")
    await eventually(lambda: not unanswered_adds(pool_of(client).channel("a")))
    assert writer.under_replicated == {"a": 1}
    await writer.close()


async def test_what_waited_for_a_bookie_is_on_it(three: InProcess) -> None:
    client = await three.client(no_bookies_timeout_s=DEADLINE_S)
    writer = await client.create_ledger(ack_quorum=3)
    await writer.append(b"0")
    three.service("a").refuse_entries()
    pending = [writer.append_nowait(b"%d" % i) for i in (1, 2)]
    await eventually(lambda: "a" in failed_bookies(writer))
    three.service("a").take_entries()
    async with asyncio.timeout(DEADLINE_S):
        assert await asyncio.gather(*pending) == [1, 2]
    assert writer.under_replicated == {}
    await writer.close()


async def test_a_bookie_that_answers_late_lacks_nothing(three: InProcess) -> None:
    client = await three.client(add_timeout_s=2 * DEADLINE_S)
    writer = await client.create_ledger()
    await writer.append(b"0")
    three.hang("a")
    for _ in range(3):
        await writer.append(b"x")
    assert writer.under_replicated == {}
    for connection in three.connections("a"):
        connection.resume("hung")
    await eventually(lambda: not unanswered_adds(pool_of(client).channel("a")))
    assert writer.under_replicated == {}
    await writer.close()


async def hung_and_replaced(five: InProcess, writer: LedgerWriter, client: Any) -> str:
    """A bookie of the writer's that lacks entries 1 to 3 and has been replaced."""
    lost: str = writer.ensemble[0]
    await eventually(lambda: not unanswered_adds(pool_of(client).channel(lost)))
    five.hang(lost)
    for i in range(1, 4):
        await writer.append(b"%d" % i)
    five.kill(lost)
    await eventually(lambda: lost not in writer.ensemble)
    return lost


async def test_a_bookie_that_was_replaced_lacks_what_was_acknowledged_before(five: InProcess) -> None:
    client = await five.client(add_timeout_s=2 * DEADLINE_S)
    writer = await client.create_ledger()
    await writer.append(b"0")
    lost = await hung_and_replaced(five, writer, client)
    for i in range(4, 8):
        await writer.append(b"%d" % i)
    await writer.close()
    assert writer.metadata.fragments[1].first_entry == 4
    assert writer.under_replicated == {lost: 1}


async def test_what_was_sent_once_more_to_a_new_bookie_is_no_shortfall(five: InProcess) -> None:
    client = await five.client(add_timeout_s=2 * DEADLINE_S)
    writer = await client.create_ledger(ack_quorum=3)
    await writer.append(b"0")
    lost = writer.ensemble[0]
    five.hang(lost)
    pending = [writer.append_nowait(b"%d" % i) for i in range(1, 4)]
    await asyncio.sleep(0)
    five.kill(lost)
    async with asyncio.timeout(DEADLINE_S):
        assert await asyncio.gather(*pending) == [1, 2, 3]
    assert writer.under_replicated == {}
    await writer.close()
