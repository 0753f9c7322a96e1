"""Waiting for a metadata store only as long as it is there."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from bkpy.metadata.store.store import SessionEvents, SessionState

GRACE_S = 0.01


async def given_up(events: SessionEvents, done: asyncio.Event) -> bool:
    try:
        async with events.while_there(GRACE_S):
            await done.wait()
    except TimeoutError:
        return True
    return False


@pytest.mark.parametrize("away", [SessionState.SUSPENDED, SessionState.EXPIRED])
async def test_who_waits_for_a_store_that_is_away_gives_up(away: SessionState) -> None:
    events, never = SessionEvents(), asyncio.Event()
    events.emit(away)
    assert await given_up(events, never)
    events.emit(SessionState.CONNECTED)
    waiting = asyncio.create_task(given_up(events, never))
    await asyncio.sleep(0)
    events.emit(away)
    assert await waiting
    events.emit(SessionState.CONNECTED)  # nobody is told any more


async def test_a_store_that_is_there_is_waited_for() -> None:
    events, done = SessionEvents(), asyncio.Event()
    waiting = asyncio.create_task(given_up(events, done))
    await asyncio.sleep(0)
    for state in (SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.EXPIRED, SessionState.CONNECTED):
        events.emit(state)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(waiting), 10 * GRACE_S)
    assert not waiting.done()
    done.set()
    assert not await waiting
