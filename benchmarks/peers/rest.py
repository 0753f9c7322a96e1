"""What is waited for before each round: a disk that has nothing left to do, and memory that is the machine's own."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from disk import settle
from idle_memory import IdleMemory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

FIRST_MAX_S: Final = 600.0  # for memory that nobody has used since the machine started


class Rest:
    """Between the rounds of all systems with files in `directory`."""

    def __init__(self, directory: str, memory: IdleMemory) -> None:
        self.directory = directory
        self._memory = memory

    async def until_idle(self, idle_s: float) -> dict[str, Any]:
        """Return once the disk was idle for so long; the figures of how it came to that."""
        freed = await self._memory.fill()  # at once: the host takes it in two seconds
        settled = await settle(self.directory, idle_s)
        rest = await self._memory.fill()
        return {**settled.figures(), **(freed + rest).figures()}


@contextlib.asynccontextmanager
async def resting(directory: str) -> AsyncIterator[Rest]:
    """`Rest` that has filled all idle memory."""
    with contextlib.closing(IdleMemory(f"{directory}/idle-memory")) as memory:
        await memory.fill(FIRST_MAX_S)
        yield Rest(directory, memory)
