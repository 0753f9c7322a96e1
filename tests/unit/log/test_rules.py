"""The rules of a log, each with a schedule that needs it: with the rule all is well, and without it that shows."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import former_of, present_of, roller_of
from tests.sim.ablations.switches import (
    keeping_what_lies_behind_a_hole,
    recovering_the_last_ledger_alone,
    serving_before_the_list_is_written,
    telling_at_once,
)
from tests.unit.log.stories import Tale, check
from tests.unit.log.support import contents
from tests.unit.log.test_rolling import Dropped
from tests.unit.log.test_takeovers import FAST
from tests.waiting import eventually

from bkpy.errors import BookKeeperError, LogFencedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from tests.in_process import InProcess

    from bkpy.log.writer import LogWriter


async def the_last_entry_is_stuck_while_the_next_ledger_gets_on(cluster: InProcess, monkeypatch: Any) -> None:
    writing, reading, taking = [await cluster.client(**FAST) for _ in range(3)]
    tale, after = Tale("dead"), Tale("next")
    log = await writing.open_log("orders", create=True)
    await tale.append(log, 3)
    before = present_of(log)
    for name in before.ensemble:
        Dropped(cluster, name, before.ledger_id, 3, monkeypatch)
    told = appended_nowait(tale, log, 1)
    await asyncio.sleep(0)
    await roller_of(log).roll()
    told += appended_nowait(tale, log, 5)
    following = present_of(log)
    await eventually(lambda: following.pending.replication.confirmed == 4)
    await asyncio.sleep(0.3)  # an idle writer publishes what is confirmed
    assert former_of(log) is before
    delivered: list[bytes] = []
    reader = await reading.read_log("orders")
    delivered = [entry.data async for entry in reader.read()]

    log.abandon()
    last = await taking.open_log("orders")
    await after.append(last, 2)
    await last.close()
    found = await contents(taking, "orders")
    check([tale, after], found)
    assert found[: len(delivered)] == delivered
    await asyncio.gather(*told, return_exceptions=True)


async def a_roll_is_overtaken(cluster: InProcess, monkeypatch: Any) -> None:
    """Somebody takes the log over while its writer rolls."""
    writing, taking = [await cluster.client(**FAST) for _ in range(2)]
    tale, after = Tale("fenced"), Tale("next")
    log = await writing.open_log("orders", create=True)
    await tale.append(log, 3)
    await roller_of(log).roll()
    with contextlib.suppress(LogFencedError):
        await tale.append(log, 3)
    last = await taking.open_log("orders")
    with contextlib.suppress(BookKeeperError):
        await tale.append(log, 1)
    await after.append(last, 2)
    await last.close()
    log.abandon()
    check([tale, after], await contents(taking, "orders"))


def appended_nowait(tale: Tale, log: LogWriter, count: int) -> list[asyncio.Future[int]]:
    def tell(data: bytes) -> Callable[[asyncio.Future[int]], None]:
        def told(future: asyncio.Future[int]) -> None:
            if future.exception() is None:
                tale.acknowledged[data] = future.result()

        return told

    futures = []
    for _ in range(count):
        data = f"{tale.name}-{len(tale.appended)}".encode()
        tale.appended.append(data)
        futures.append(log.append_nowait(data))
        futures[-1].add_done_callback(tell(data))
    return futures


STUCK, SUPERSEDED = the_last_entry_is_stuck_while_the_next_ledger_gets_on, a_roll_is_overtaken


@pytest.mark.parametrize("schedule", [STUCK, SUPERSEDED])
async def test_with_its_rules_a_log_is_what_its_writers_were_told(
    cluster: InProcess, schedule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await schedule(cluster, monkeypatch)


@pytest.mark.parametrize(
    ("without", "schedule"),
    [
        (telling_at_once, STUCK),
        (keeping_what_lies_behind_a_hole, STUCK),
        (recovering_the_last_ledger_alone, STUCK),
        (serving_before_the_list_is_written, SUPERSEDED),
    ],
)
async def test_without_one_of_its_rules_that_shows(
    cluster: InProcess,
    without: Callable[[], AbstractContextManager[None]],
    schedule: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with without(), pytest.raises((AssertionError, BookKeeperError)):
        await schedule(cluster, monkeypatch)
