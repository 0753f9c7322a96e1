"""The runtime of every real process: clocks, randomness and tasks. A client needs no more; there is no disk."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import pwd
import random
import resource
import socket
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from bkpy.runtime.interfaces import Clock, Faults, Rng, Runtime, Spawn


class RealClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def time(self) -> float:
        return time.time()


class NoFaults:
    def sometimes(self, point: str) -> bool:
        return False


@dataclass
class TaskSpawner:
    """Holds tasks strongly, names them, and reports a death to the task's owner."""

    tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    def __call__(
        self, coro: Coroutine[Any, Any, Any], *, name: str, on_death: Callable[[BaseException], None] | None = None
    ) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(coro, name=name)
        self.tasks.add(task)

        def ended(done: asyncio.Task[Any]) -> None:
            self.tasks.discard(done)
            if done.cancelled():
                return
            error = done.exception()
            if error is None:
                return
            if on_death is not None:
                on_death(error)
            else:
                done.get_loop().call_exception_handler(
                    {"message": f"task {done.get_name()} died", "exception": error, "task": done}
                )

        task.add_done_callback(ended)
        return task


def release_free_memory() -> None:
    """Return unused memory to the system: garbage, and the freed memory that the C library keeps.

    The GNU library keeps nearly all of it. Blocks, for about 50 ms where there are 100,000 ledgers' states.
    """
    gc.collect()
    if _MALLOC_TRIM is not None:
        _MALLOC_TRIM(0)


def find_malloc_trim() -> Callable[[int], int] | None:
    """The GNU C library's function; None of another library, and of an interpreter that can't call it."""
    try:
        function = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None
    function.argtypes, function.restype = [ctypes.c_size_t], ctypes.c_int
    return cast("Callable[[int], int]", function)


_HOST_CHARS_MAX = 64  # Linux has no longer ones
_MALLOC_TRIM = find_malloc_trim()


def descriptors_max() -> int:
    """How many files, sockets among them, this process may have open at once."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def this_process() -> str:
    """The host and the number of this process, for people."""
    return f"{socket.gethostname()[:_HOST_CHARS_MAX]}, pid {os.getpid()}"


def this_user() -> str:
    """The name of the operating system's user, whose number it is where there is no name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


@dataclass(frozen=True)
class _ProcessRuntime:
    clock: Clock
    rng: Rng
    spawn: Spawn
    faults: Faults
    process: str = field(default_factory=this_process)


def process_runtime() -> Runtime:
    """The runtime of a production process that keeps nothing on disk."""
    return _ProcessRuntime(clock=RealClock(), rng=random.SystemRandom(), spawn=TaskSpawner(), faults=NoFaults())
