"""All hands copy while no client appends; beside clients few of them do, and never none. On simulated time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from tests.sim.loop import SimLoop

from bkpy.config.recovery import RecoverySettings
from bkpy.replication.worker.pacing import CopyTurns, no_clients

HANDS, FEW, GONE_S = 8, 2, 1.0
COPY_S = 0.25


class Hands:
    """Work for some seconds: each copies one ledger after the other, each in a turn."""

    def __init__(self) -> None:
        self.appended = 0
        self.at_once = 0
        self.copied: list[tuple[float, int]] = []  # when each has begun, and how many there were then

    async def run(self, seconds: float, clients: tuple[float, float] | None = None, **settings: Any) -> Hands:
        """Clients append from one time to another one."""
        loop = asyncio.get_running_loop()
        runtime: Any = SimpleNamespace(clock=SimpleNamespace(monotonic=loop.time))
        given = {"copies_at_once": HANDS, "copies_max_under_load": FEW, "foreground_idle_s": GONE_S, **settings}
        self.turns = CopyTurns(RecoverySettings(**given), runtime, lambda: self.appended)
        began = loop.time()

        async def hand() -> None:
            while True:
                async with self.turns.turn():
                    self.at_once += 1
                    self.copied.append((loop.time() - began, self.at_once))
                    await asyncio.sleep(COPY_S)
                    self.at_once -= 1

        async def append() -> None:
            assert clients is not None
            await asyncio.sleep(clients[0])
            while loop.time() - began < clients[1]:
                self.appended += 1
                await asyncio.sleep(0.01)

        tasks = [asyncio.ensure_future(hand()) for _ in range(HANDS)]
        if clients is not None:
            tasks.append(asyncio.ensure_future(append()))
        await asyncio.sleep(seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return self

    def most(self, first: float, last: float) -> int:
        return max(count for at, count in self.copied if first <= at <= last)

    def count(self, first: float, last: float) -> int:
        return sum(first <= at < last for at, _ in self.copied)


def simulated(hands: Hands, seconds: float, clients: tuple[float, float] | None = None, **settings: Any) -> Hands:
    loop = SimLoop()
    try:
        return loop.run_until_complete(hands.run(seconds, clients, **settings))
    finally:
        loop.close()


def test_without_clients_all_hands_copy() -> None:
    hands = simulated(Hands(), 10.0)
    assert hands.most(0.0, 10.0) == HANDS
    assert hands.count(0.0, 10.0) >= HANDS * 9.5 / COPY_S


def test_beside_clients_few_do_and_when_they_have_gone_all_again() -> None:
    hands = simulated(Hands(), 20.0, (5.0, 10.0))
    assert hands.most(0.0, 5.0) == HANDS
    assert hands.most(5.0 + 2 * COPY_S, 10.0) == FEW
    assert hands.count(6.0, 10.0) >= FEW * 3.5 / COPY_S, "it has to go on"
    assert hands.most(10.0 + 2 * GONE_S + COPY_S, 20.0) == HANDS
    assert hands.count(13.0, 20.0) >= HANDS * 6.5 / COPY_S


def test_more_turns_beside_clients_than_without_them_are_not_given() -> None:
    hands = simulated(Hands(), 4.0, (0.0, 4.0), copies_at_once=1, copies_max_under_load=4)
    assert hands.most(0.0, 4.0) == 1


def test_a_turn_ends_with_what_was_done_in_it_whatever_that_was() -> None:
    async def run() -> None:
        runtime: Any = SimpleNamespace(clock=SimpleNamespace(monotonic=asyncio.get_running_loop().time))
        turns = CopyTurns(RecoverySettings(copies_at_once=1), runtime, no_clients)
        for _ in range(3):
            try:
                async with turns.turn():
                    raise ValueError
            except ValueError:
                pass
        async with turns.turn():
            waiting = asyncio.ensure_future(turns.turn().__aenter__())
            await asyncio.sleep(5.0)
            assert not waiting.done()
            waiting.cancel()
        async with turns.turn():
            pass

    loop = SimLoop()
    try:
        loop.run_until_complete(run())
    finally:
        loop.close()
