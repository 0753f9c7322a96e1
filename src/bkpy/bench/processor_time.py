"""Processor time of a run's processes by thread, and of everything else on the machine, from Linux's /proc.

The first thread of a process is its event loop. A bookie's other threads have names: journal, flush, read and so on.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_TICK_US: Final = 1e6 / os.sysconf("SC_CLK_TCK")
_WAITS: Final = re.compile(r"^voluntary_ctxt_switches:\s*(\d+)", re.MULTILINE)
_LOOP: Final = "event loop"
REST: Final = "everything else"


class _Use(NamedTuple):
    """Of a thread, or of several: microseconds, and how often it gave its processor up to wait."""

    user_us: float = 0.0
    system_us: float = 0.0
    waits: float = 0.0

    def plus(self, other: _Use, sign: int = 1) -> _Use:
        return _Use(*(one + sign * another for one, another in zip(self, other, strict=True)))


class _Look(NamedTuple):
    """Since the machine started: all that it used, and each thread by (what it is, its id)."""

    machine: _Use
    threads: dict[tuple[str, int], _Use]


class ProcessorTime:
    """What each group of processes uses while it is entered. `pids` names the groups."""

    def __init__(self, pids: Callable[[], Mapping[str, Iterable[int | None]]]) -> None:
        self._pids = pids
        self._first: _Look | None = None
        self._last: _Look | None = None

    def __enter__(self) -> None:
        self._first = self._look()

    def __exit__(self, *_: object) -> None:
        self._last = self._look()

    def rows(self, operations: float) -> list[dict[str, Any]]:
        """Of each kind of thread, by operation, the largest first; last, `everything else` that the machine used.

        `user_us`, `system_us`: processor time, which the kernel counts in hundredths of a second. `waits`: voluntary
        context switches. A thread that has ended meanwhile, and the kernel's own, are everything else.
        """
        assert self._first is not None
        assert self._last is not None
        used: dict[str, _Use] = defaultdict(_Use)
        for key, now in self._last.threads.items():
            used[key[0]] = used[key[0]].plus(now.plus(self._first.threads.get(key, _Use()), -1))
        rest = self._last.machine.plus(self._first.machine, -1)
        for use in used.values():
            rest = rest.plus(use, -1)
        rows = sorted(used.items(), key=lambda item: -(item[1].user_us + item[1].system_us))
        rows.append((REST, _Use(max(0.0, rest.user_us), max(0.0, rest.system_us))))
        return [
            {"of": name} | {field: round(value / operations, 3) for field, value in use._asdict().items()}
            for name, use in rows
            if name == REST or use.user_us + use.system_us > 0
        ]

    def _look(self) -> _Look:
        threads: dict[tuple[str, int], _Use] = {}
        for group, pids in self._pids().items():
            for pid in filter(None, pids):
                for thread in _threads_of(pid):
                    use = _use_of(pid, thread)
                    if use is not None:
                        threads[f"{group}: {_LOOP if thread == pid else _name_of(pid, thread)}", thread] = use
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, _, _, hardware, software = (int(n) * _TICK_US for n in file.readline().split()[1:8])
        return _Look(_Use(user + nice, system + hardware + software), threads)


def _threads_of(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def _name_of(pid: int, thread: int) -> str:
    """The kind of a thread: `journal` of `journal-0`."""
    try:
        return Path(f"/proc/{pid}/task/{thread}/comm").read_text(errors="replace").strip().rstrip("-0123456789")
    except OSError:
        return "a thread that ended"


def _use_of(pid: int, thread: int) -> _Use | None:
    """None of a thread that has ended."""
    task = Path(f"/proc/{pid}/task/{thread}")
    try:
        fields = task.joinpath("stat").read_text(errors="replace").rpartition(")")[2].split()
        waits = _WAITS.search(task.joinpath("status").read_text(errors="replace"))
    except OSError:
        return None
    return _Use(int(fields[11]) * _TICK_US, int(fields[12]) * _TICK_US, int(waits[1]) if waits else 0)
