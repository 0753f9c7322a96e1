"""When a read counts as late: a percentile of what this client's recent reads took.

Pure: callers report events with their times; there is no clock. Invariants: the memory is bounded; only answered reads
are samples, because abandoned ones would raise the percentile by which they were abandoned.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bkpy.config.client import ClientSettings


class ReadLatency:
    """The recent reads of one client, and its speculative reads.

    `speculative` counts requests to another replica because an earlier one was late, `won` counts how many of them were
    answered first.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self.speculative = 0
        self.won = 0
        self.late_s = max(settings.read_late_min_s, settings.read_late_default_s)
        self._share = settings.read_late_percentile / 100
        self._late_min_s = settings.read_late_min_s
        self._samples: deque[float] = deque(maxlen=settings.read_samples_max)
        self._until_look = settings.read_samples_min
        self._samples_per_look = settings.read_samples_per_look
        self._late_in_a_row_max = settings.read_late_in_a_row
        self._late_in_a_row: dict[str, int] = {}

    def answered(self, bookie_id: str, seconds: float) -> None:
        """The bookie answered a read first, within that time."""
        self._late_in_a_row.pop(bookie_id, None)
        self._samples.append(seconds)
        self._until_look -= 1
        if self._until_look <= 0:
            self._until_look = self._samples_per_look
            ordered = sorted(self._samples)
            place = min(len(ordered) - 1, int(self._share * len(ordered)))
            self.late_s = max(self._late_min_s, ordered[place])

    def superseded(self, bookie_id: str) -> bool:
        """Another replica was asked later and answered first. Returns whether to avoid this bookie for a while."""
        late = self._late_in_a_row[bookie_id] = self._late_in_a_row.get(bookie_id, 0) + 1
        if late < self._late_in_a_row_max:
            return False
        del self._late_in_a_row[bookie_id]
        return True
