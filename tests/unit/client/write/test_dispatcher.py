"""The turn that feeds the queues of write sets, with writers that only count."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from bkpy.client.write.dispatcher import AddDispatcher
from bkpy.config.client import client_settings
from bkpy.runtime.loop_guard import LoopGuard

if TYPE_CHECKING:
    from collections.abc import Callable


class Pool:
    congested = True

    def __init__(self) -> None:
        self.guard = LoopGuard()

    def next_id(self) -> int:
        return 1

    def on_relief(self, relieved: Callable[[], None]) -> None:
        self.relieve = relieved


class Writer:
    def __init__(self) -> None:
        self.held = True
        self.drained = 0
        self.source = self

    def blocked(self) -> bool:
        return self.held

    def drain(self) -> None:
        self.drained += 1

    def busy(self) -> bool:
        return False


async def test_a_writer_that_a_send_in_the_middle_of_a_turn_held_goes_on_when_the_last_answer_comes() -> None:
    pool, writer = Pool(), Writer()
    dispatcher = AddDispatcher(cast("Any", pool), client_settings(explicit_lac_interval_s=0))
    dispatcher.schedule(cast("Any", writer))
    dispatcher.send()
    assert writer.drained == 0
    pool.congested = writer.held = False
    pool.relieve()  # before the turn that was scheduled by the append
    await asyncio.sleep(0)
    assert writer.drained == 1
