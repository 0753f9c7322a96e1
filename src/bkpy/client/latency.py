"""When a read counts as late: a percentile of what this client's recent reads took.

Pure: it is told what happened and never looks at a clock. Invariants: the memory is bounded; only reads that were
answered count as samples, because what is given up would raise the percentile by which it was given up.
"""

from __future__ import annotations

from collections import deque
from typing import Final

_SAMPLES_MAX: Final = 256  # recent ones: a bookie that becomes slower or faster is noticed within that many reads
_SAMPLES_MIN: Final = 20  # with fewer there is no percentile to speak of
_SAMPLES_PER_LOOK: Final = 16  # sorting them for each read would cost more than it tells
_LATE_IN_A_ROW: Final = 3  # reads, after which a bookie is slow and not only unlucky


class ReadLatency:
    """The recent reads of one client, and how many were asked of a second replica.

    `speculative` counts replicas that were asked because an earlier one was late, `won` those that answered first.
    """

    def __init__(self, *, percentile: float, late_min_s: float, late_default_s: float) -> None:
        self.speculative = 0
        self.won = 0
        self.late_s = max(late_min_s, late_default_s)
        self._share = percentile / 100
        self._late_min_s = late_min_s
        self._samples: deque[float] = deque(maxlen=_SAMPLES_MAX)
        self._until_look = _SAMPLES_MIN
        self._late_in_a_row: dict[str, int] = {}

    def answered(self, bookie_id: str, seconds: float) -> None:
        """The bookie answered a read first, within that time."""
        self._late_in_a_row.pop(bookie_id, None)
        self._samples.append(seconds)
        self._until_look -= 1
        if self._until_look <= 0:
            self._until_look = _SAMPLES_PER_LOOK
            ordered = sorted(self._samples)
            place = min(len(ordered) - 1, int(self._share * len(ordered)))
            self.late_s = max(self._late_min_s, ordered[place])

    def overtaken(self, bookie_id: str) -> bool:
        """Another replica was asked later and answered first; whether this bookie is to be avoided for a while."""
        late = self._late_in_a_row[bookie_id] = self._late_in_a_row.get(bookie_id, 0) + 1
        if late < _LATE_IN_A_ROW:
            return False
        del self._late_in_a_row[bookie_id]
        return True
