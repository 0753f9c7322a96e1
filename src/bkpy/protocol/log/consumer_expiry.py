"""For how long the consumers of a log have been idle, as counted by what applies the log's retention.

A consumer is idle while there is something to read and it commits nothing. No clock says when: each pass adds the time
since the pass before, as a clock measures it that never jumps, and what one process has counted is stored for the next.

Invariants: only time between two passes of one process counts, if nothing else wrote the record between them; a commit
begins again at 0, and so does a consumer that had nothing to read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Idle(NamedTuple):
    """A consumer was seen in the state `mark`, which changes with each commit, for so many seconds."""

    mark: str
    seconds: float


def observed(before: Mapping[str, Idle], unread: Mapping[str, str], elapsed_s: float) -> dict[str, Idle]:
    """What is known after a pass: `unread` has the marks of the consumers with something to read, by name.

    `before` was known `elapsed_s` ago.
    """
    after = {}
    for consumer, mark in unread.items():
        known = before.get(consumer)
        same = known is not None and known.mark == mark
        after[consumer] = Idle(mark, known.seconds + elapsed_s) if known is not None and same else Idle(mark, 0.0)
    return after


def expired(idle: Mapping[str, Idle], expiry_s: float) -> frozenset[str]:
    """The consumers that have been idle for so long."""
    return frozenset(consumer for consumer, seen in idle.items() if seen.seconds >= expiry_s)
