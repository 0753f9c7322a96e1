"""Log lines about requests that took longer than `slow_request_ms`, at a client and at a bookie.

A request's id is that of its client, which HELLO tells the bookie, and the correlation id of its frame: the same in the
lines of both, and of every bookie that the frame went to. Invariant: the lines are bounded, whatever is slow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bkpy.runtime.logs import with_fields

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterable

    from bkpy.runtime.interfaces import Clock

LINES_MAX: Final = 20
INTERVAL_S: Final = 10.0
LEDGERS_MAX: Final = 5
CLIENT_ID_CHARS_MAX: Final = 16


class SlowRequests:
    """`over_s`: what takes so long is slow. At most `LINES_MAX` are logged in `INTERVAL_S`, the first ones."""

    def __init__(self, log: logging.Logger, clock: Clock, threshold_ms: int) -> None:
        self.limit(threshold_ms)
        self._log = log
        self._clock = clock
        self._interval_ends = float("-inf")
        self._lines = 0
        self._unlogged = 0

    def limit(self, threshold_ms: int) -> None:
        """What takes longer from now on is slow; with 0, nothing is."""
        self.over_s = threshold_ms / 1000 if threshold_ms else float("inf")

    def note(
        self, request: str, operation: str, seconds: float, ledgers: Iterable[int], parts: dict[str, float], **who: str
    ) -> None:
        """Log one. `parts`: the seconds of what it has waited for; `who`: the other side."""
        now = self._clock.monotonic()
        if now >= self._interval_ends:
            self._interval_ends, self._lines = now + INTERVAL_S, 0
        if self._lines >= LINES_MAX:
            self._unlogged += 1
            return
        self._lines += 1
        unlogged, self._unlogged = self._unlogged, 0
        some = sorted(ledgers)[:LEDGERS_MAX]
        times = {f"{name}_ms": round(part * 1000, 1) for name, part in {"took": seconds, **parts}.items()}
        more = f"; {unlogged} slow requests before it were not logged" if unlogged else ""
        self._log.warning(
            "slow request %s: %s%s, %s: %s%s",
            request,
            operation,
            f" of ledgers {', '.join(map(str, some))}" if some else "",
            ", ".join(f"{name} {value}" for name, value in who.items()),
            ", ".join(f"{name} {value:g}" for name, value in times.items()),
            more,
            extra=with_fields(request=request, operation=operation, ledgers=some, **who, **times),
        )


def client_id_in(software: str) -> str:
    """The client's id behind the name of its software, as HELLO has them; empty if it has none that can be logged."""
    _, _, last = software.partition(" ")
    return last if last.isalnum() and last.isascii() and len(last) <= CLIENT_ID_CHARS_MAX else ""
