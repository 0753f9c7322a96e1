"""What the comparison fills of the machine's memory before a round."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from types import ModuleType

PEERS = Path(__file__).parents[3] / "benchmarks" / "peers"
PIECE_BYTES = 1 << 20


@pytest.fixture
def idle_memory(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """benchmarks/peers/idle_memory.py with small pieces."""
    monkeypatch.syspath_prepend(str(PEERS))
    module = __import__("idle_memory")
    monkeypatch.setattr(module, "PIECE_BYTES", PIECE_BYTES)
    monkeypatch.setattr(module, "ADVICE_BYTES", PIECE_BYTES)
    return module


class Machine:
    """So many pieces of memory are free, and the kernel reclaims pages when there are no more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pieces: int) -> None:
        self.pieces = pieces
        self.read: list[tuple[int, int]] = []
        monkeypatch.setattr(os, "posix_fadvise", self.advised)

    def advised(self, fd: int, at: int, size: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_WILLNEED
        self.read.append((at, size))
        self.pieces -= 1

    def free(self) -> int:
        return max(0, self.pieces) * PIECE_BYTES

    def reclaimed(self) -> int:
        return max(0, -self.pieces)


def test_idle_memory_is_filled_until_the_kernel_reclaims_pages(
    idle_memory: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine = Machine(monkeypatch, 10)
    with contextlib.closing(idle_memory.IdleMemory(str(tmp_path / "it"), machine.free, machine.reclaimed)) as memory:
        filled = asyncio.run(memory.fill())
        assert machine.read == [(i * PIECE_BYTES, PIECE_BYTES) for i in range(11)]
        assert filled.figures()["memory_filled_mb"] == 10
        machine.read.clear()
        assert asyncio.run(memory.fill()).filled_mb == 0
        assert len(machine.read) == 1


def test_filling_ends_in_time_and_with_the_machines_memory(
    idle_memory: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine = Machine(monkeypatch, 1 << 40)
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    monkeypatch.setattr(idle_memory, "PIECE_BYTES", size // 4)
    monkeypatch.setattr(idle_memory, "ADVICE_BYTES", size // 4)
    with contextlib.closing(idle_memory.IdleMemory(str(tmp_path / "it"), machine.free, machine.reclaimed)) as memory:
        asyncio.run(memory.fill(0.0))
        assert machine.read == []
        asyncio.run(memory.fill())
        assert len(machine.read) in (4, 5)


def resident(path: Path, size: int) -> float:
    """The part of the file's first `size` bytes that is in the page cache."""
    pages = size // mmap.PAGESIZE
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size) as mapped:
        seen = (ctypes.c_ubyte * pages)()
        view = ctypes.c_char.from_buffer(mapped)
        assert ctypes.CDLL(None).mincore(ctypes.c_void_p(ctypes.addressof(view)), ctypes.c_size_t(size), seen) == 0
        del view
    return sum(page & 1 for page in seen) / pages


def test_all_of_the_file_is_in_memory_and_not_on_the_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(PEERS))
    idle_memory, path = __import__("idle_memory"), tmp_path / "it"
    calls = iter([0, 0, 0])  # two pieces, each more than the kernel reads for one advice
    with contextlib.closing(
        idle_memory.IdleMemory(str(path), idle_memory.free_memory, lambda: next(calls, 1))
    ) as memory:
        asyncio.run(memory.fill())
        assert resident(path, 2 * idle_memory.PIECE_BYTES) > 0.9
        assert path.stat().st_blocks == 0
        assert path.stat().st_size == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < idle_memory.free_memory() < path.stat().st_size
    assert idle_memory.reclaimed_pages() >= 0


def test_memory_is_filled_before_the_disk_is_waited_for_and_again_behind_it(
    idle_memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest, order = __import__("rest"), []

    class Memory:
        async def fill(self) -> Any:
            order.append("memory")
            return idle_memory.Filled(0.5, 3)

    async def settle(directory: str, idle_s: float) -> Any:
        order.append("disk")
        return __import__("disk").Settled(idle_s, 0.0, idle=True)

    monkeypatch.setattr(rest, "settle", settle)
    figures = asyncio.run(rest.Rest(".", Memory()).until_idle(2.0))
    assert order == ["memory", "disk", "memory"]
    expected = {"disk_waited_s": 2.0, "memory_took_s": 1.0, "memory_filled_mb": 6}
    assert figures.items() >= expected.items()
