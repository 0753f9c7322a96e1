"""Notices writers whose quorums don't answer. It looks at busy writers only.

Invariant: it remembers only writers that were busy at the last look, so a writer that has long been idle starts afresh.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable


class Watched(Protocol):
    """What there is to watch of a writer, or of a recovery."""

    @property
    def confirmed(self) -> int:
        """The highest id that is on its ack quorum."""

    def busy(self) -> bool:
        """Whether something is pending, or nothing is acknowledged until an ensemble is stored."""

    def stalled(self, seconds: float) -> None:
        """Nothing was confirmed for so long although it is busy."""


class Progress:
    """Since when each busy writer has made no progress."""

    def __init__(self) -> None:
        self._since: dict[Watched, tuple[float, int]] = {}  # when it was first seen with that id confirmed

    def look(self, now: float, writers: Iterable[Watched]) -> None:
        """Call `stalled` of each busy writer, with the time since its last progress.

        Called periodically with all writers that may be busy.
        """
        since = {}
        for writer in writers:
            if writer.busy():
                confirmed = writer.confirmed
                began, at = self._since.get(writer, (now, confirmed))
                since[writer] = (began if at == confirmed else now, confirmed)
        self._since = since
        for writer, (began, _) in since.items():
            writer.stalled(now - began)
