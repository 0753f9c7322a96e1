"""Memory of processes: what they allocated themselves (RssAnon), and beside it their pages of mapped files (RssFile).

A bookie's pages of files are those of its indexes that it looked at, and of libraries. The kernel takes them back when
it needs them, so they are no part of any budget.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

SAMPLE_INTERVAL_S: Final = 0.25
COURSE: Final = (0.1, 0.5, 1.0)  # shares of a run at which memory is noted
REST_S: Final = 10.0  # and so long after it


class Peak:
    """The most that any of the processes had at one of the looks, in MB (10^6 bytes); None before there was a look."""

    def __init__(self) -> None:
        self.mb: float | None = None

    def look(self, pids: Iterable[int | None]) -> None:
        for pid in pids:
            now = None if pid is None else rss_anon_mb(pid)
            if now is not None and (self.mb is None or now > self.mb):
                self.mb = now


class MemoryProfile:
    """What the largest of the processes had in the course of a run, in MB, by `10 %` and so on; and `after 10 s`.

    `files_mb`: the most pages of files that any had.
    """

    def __init__(self, pids: Callable[[], Iterable[int | None]]) -> None:
        self.mb: dict[str, float | None] = {}
        self.files_mb: dict[str, float | None] = {}
        self._pids = pids
        self._left = list(COURSE)

    def at(self, share: float) -> None:
        """The run has got so far."""
        while self._left and share >= self._left[0]:
            self._note(f"{self._left.pop(0):.0%}".replace("%", " %"))

    async def rest(self) -> None:
        """Wait, and note what is left of it."""
        await asyncio.sleep(REST_S)
        self._note(f"after {REST_S:.0f} s")

    def _note(self, when: str) -> None:
        now = Peak()
        now.look(self._pids())
        self.mb[when] = now.mb
        files = [mb for pid in self._pids() if pid is not None and (mb := rss_file_mb(pid)) is not None]
        self.files_mb[when] = max(files, default=None)


def rss_anon_mb(pid: int) -> float | None:
    """MB of anonymous memory of a process; None where the system doesn't tell, or the process is gone."""
    return _status_mb(pid, "RssAnon:")


def rss_file_mb(pid: int) -> float | None:
    """The same of pages of mapped files."""
    return _status_mb(pid, "RssFile:")


def _status_mb(pid: int, name: str) -> float | None:
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith(name):
                    return round(int(line.split()[1]) * 1024 / 1e6, 1)
    except OSError:
        pass
    return None


@contextlib.asynccontextmanager
async def watched(*groups: Callable[[], Iterable[int | None]]) -> AsyncIterator[list[Peak]]:
    """A `Peak` for each group of process ids, which is asked for at every look, kept current until the block ends."""
    looked_at = [(Peak(), pids) for pids in groups]

    def look() -> None:
        for peak, pids in looked_at:
            peak.look(pids())

    async def watch() -> None:
        while True:
            look()
            await asyncio.sleep(SAMPLE_INTERVAL_S)

    task = asyncio.create_task(watch())
    try:
        yield [peak for peak, _ in looked_at]
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        look()
