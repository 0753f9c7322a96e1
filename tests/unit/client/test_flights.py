"""The turn that feeds the routes, with writers that only count."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from bkpy.client.write.dispatcher import Flights
from bkpy.config.client import client_settings


class Pool:
    congested = True

    def next_id(self) -> int:
        return 1


class Writer:
    def __init__(self) -> None:
        self.held = True
        self.gathered = 0

    def blocked(self) -> bool:
        return self.held

    def gather(self) -> None:
        self.gathered += 1

    def busy(self) -> bool:
        return False


async def test_a_writer_that_a_launch_in_the_middle_of_a_turn_held_goes_on_when_the_last_answer_comes() -> None:
    pool, writer = Pool(), Writer()
    flights = Flights(cast("Any", pool), client_settings(explicit_lac_interval_s=0))
    flights.mark(cast("Any", writer))
    flights.launch()
    assert writer.gathered == 0
    pool.congested = writer.held = False
    flights.settle()  # before the turn that was scheduled by the append
    await asyncio.sleep(0)
    assert writer.gathered == 1
