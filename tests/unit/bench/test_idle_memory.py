"""What the comparison holds of the machine's memory between two rounds, and who has it when."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from types import ModuleType

PEERS = Path(__file__).parents[3] / "benchmarks" / "peers"


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """benchmarks/peers/idle_memory.py with pieces of a page: ten have to be free, and less than five are too few."""
    monkeypatch.syspath_prepend(str(PEERS))
    module = __import__("idle_memory")
    for name, value in (("PIECE_BYTES", 4096), ("FREE_BYTES", 40960), ("LOW_BYTES", 20480), ("LOOK_S", 0.001)):
        monkeypatch.setattr(module, name, value)
    return module


class Machine:
    """So much memory that `idle` and others use some of."""

    def __init__(self, memory: Any, size: int) -> None:
        self.others = 0
        self._size = size
        self.idle = memory.IdleMemory(self.free)

    def free(self) -> int:
        return self._size - self.others - self.idle.held_bytes


def test_all_idle_memory_is_taken_but_for_what_others_need_at_once(memory: Any) -> None:
    machine = Machine(memory, 409600)
    held = asyncio.run(machine.idle.take())
    assert machine.idle.held_bytes == 409600 - 40960 - 4096
    assert machine.free() == 40960 + 4096
    assert held.taken_mb == machine.idle.held_bytes >> 20
    assert asyncio.run(machine.idle.take()).taken_mb == 0
    assert machine.free() == 40960 + 4096


def test_taking_ends_in_time(memory: Any) -> None:
    machine = Machine(memory, 409600)
    asyncio.run(machine.idle.take(0.0))
    assert machine.idle.held_bytes <= 4096


def test_memory_is_released_as_others_use_it_and_all_at_the_end(memory: Any) -> None:
    async def use() -> None:
        machine = Machine(memory, 409600)
        async with machine.idle.released_in_time():
            await machine.idle.take()
            for others in range(0, 409600, 10240):
                machine.others = others
                await asyncio.sleep(0.01)
                assert machine.idle.held_bytes == 0 or machine.free() >= 20480
            assert machine.idle.held_bytes == 0
            machine.others = 0
            await machine.idle.take()
            assert machine.idle.held_bytes > 0
        assert machine.idle.held_bytes == 0

    asyncio.run(use())


def test_memory_is_taken_before_the_disk_is_waited_for_and_what_was_freed_behind_it(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = __import__("rest")
    machine = Machine(memory, 819200)
    held: list[int] = []

    async def settle(directory: str, idle_s: float) -> Any:
        held.append(machine.idle.held_bytes)
        machine.others = 0
        return __import__("disk").Settled(idle_s, 0.0, idle=True)

    async def wait() -> dict[str, Any]:
        machine.others = 409600
        figures: dict[str, Any] = await rest.Rest(".", machine.idle).until_idle(2.0)
        held.append(machine.idle.held_bytes)
        return figures

    monkeypatch.setattr(rest, "settle", settle)
    figures = asyncio.run(wait())
    assert held == [409600 - 40960 - 4096, 819200 - 40960 - 4096]
    assert figures["disk_waited_s"] == 2.0
    assert {"memory_took_s", "memory_taken_mb", "disk_idle"} <= figures.keys()


def test_free_memory_is_that_of_the_machine(memory: Any) -> None:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < memory.free_memory() < total
