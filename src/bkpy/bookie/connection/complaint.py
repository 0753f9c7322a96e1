"""Warnings that strangers can provoke: each kind is logged now and then, with how many there were."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging

    from bkpy.runtime.interfaces import Clock


class Complaint:
    """One kind of warning, logged once in `interval_s` seconds at most."""

    def __init__(self, log: logging.Logger, clock: Clock, interval_s: float) -> None:
        self._log = log
        self._clock = clock
        self._interval_s = interval_s
        self._said_at = float("-inf")
        self._unsaid = 0

    def __call__(self, text: str, *args: object) -> None:
        now = self._clock.monotonic()
        if now - self._said_at < self._interval_s:
            self._unsaid += 1
            return
        if self._unsaid:
            text, args = text + " (and %d more since the last such message)", (*args, self._unsaid)
        self._log.warning(text, *args)
        self._said_at = now
        self._unsaid = 0
