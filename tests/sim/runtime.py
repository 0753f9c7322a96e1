"""A `DiskRuntime` for one boot of a simulated host: virtual time, its disk, and a random stream of its own."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from bkpy.runtime.process import TaskSpawner
from bkpy.runtime.system import SystemRuntime

from .loop import CURRENT, Incarnation, SimLoop
from .store import SimStores

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine

    from .disk import SimDisk

EPOCH_S = 1_700_000_000.0  # the wall clock's time when the loop's is 0


class SimClock:
    """Virtual time as the host counts it, and a wall clock that a test may set wrong by `skew_s`."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.skew_s = 0.0

    def monotonic(self) -> float:
        return self._loop.time()

    def time(self) -> float:
        return EPOCH_S + self._loop.time() + self.skew_s


class TrueClock(SimClock):
    """The same whoever asks: of what belongs to no host."""

    def monotonic(self) -> float:
        return self._loop.now

    def time(self) -> float:
        return EPOCH_S + self._loop.now


class SimFaults:
    """Named fault points: `chances` holds the probability of those that are on, `hits` counts all that were passed."""

    def __init__(self, seed: int | str = 0) -> None:
        self.rng = random.Random(f"faults-{seed}")
        self.chances: dict[str, float] = {}
        self.hits: dict[str, int] = {}

    def sometimes(self, point: str) -> bool:
        self.hits[point] = self.hits.get(point, 0) + 1
        chance = self.chances.get(point, 0.0)
        return chance > 0.0 and self.rng.random() < chance


class SimSpawner(TaskSpawner):
    """Starts tasks of one incarnation only: one started for it from elsewhere would outlive it."""

    def __init__(self, incarnation: Incarnation | None) -> None:
        super().__init__()
        self._incarnation = incarnation

    def __call__(
        self, coro: Coroutine[Any, Any, Any], *, name: str, on_death: Callable[[BaseException], None] | None = None
    ) -> asyncio.Task[Any]:
        if CURRENT.get() is not self._incarnation:
            coro.close()  # a coroutine that nothing awaits would warn
            raise AssertionError(f"task {name} was started outside of its host")
        return super().__call__(coro, name=name, on_death=on_death)


def sim_runtime(
    loop: SimLoop,
    disk: SimDisk,
    seed: int | str = 0,
    *,
    incarnation: Incarnation | None = None,
    clock: SimClock | None = None,
    faults: SimFaults | None = None,
) -> SystemRuntime:
    """All that the code of one incarnation takes from outside; without one, of code that belongs to no host."""
    return SystemRuntime(
        clock=clock or SimClock(loop),
        files=disk,
        store=SimStores(disk),
        rng=random.Random(f"runtime-{seed}"),
        spawn=SimSpawner(incarnation),
        faults=faults or SimFaults(seed),
        process=f"process {seed}",
    )
