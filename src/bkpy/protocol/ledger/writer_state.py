"""The life of a ledger's writer: a pure table of its states, what happens to it, and the states that follow.

    HELD <-> HELD_CHANGING     only the next ledger of a log begins here
      |          |
    OPEN <-> CHANGING          each of the four may fail and be abandoned, these two may be closed
      |          |
    CLOSING <-> CLOSING_CHANGING, CLOSING_FAILED -> CLOSED

A recovery, which closes its ledger itself, goes through the states without CLOSING.

Invariants: the table is total; nothing is confirmed to appenders or readers while the ledger is held, and a held ledger
is not closed; a writer that has failed confirms nothing any more; once it was closed or abandoned, or a call began to
close it, it never takes entries again; one that was abandoned begins to close nothing.
"""

from __future__ import annotations

import enum
from itertools import product
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class WriterState(enum.Enum):
    HELD = "entries are taken and replicated, and none is confirmed before the ledger in front has ended"
    HELD_CHANGING = "as HELD, and nothing counts as replicated until the new ensemble is stored"
    OPEN = "entries are taken and acknowledged"
    CHANGING = "entries are taken, and none is acknowledged until the new ensemble is stored"
    FAILED = "no entry is taken or acknowledged; the ledger can be closed behind the last one that was"
    CLOSING = "no entry is taken; entries that were taken before end"
    CLOSING_CHANGING = "no entry is taken, and none is acknowledged until the new ensemble is stored"
    CLOSING_FAILED = "no entry is taken or acknowledged; the ledger is being closed"
    CLOSED = "the ledger is closed"
    ABANDONED = "the ledger was left open, for another client to recover"
    GIVEN_UP = "the writer was abandoned while it closed the ledger, which may be closed or not"

    @property
    def takes_entries(self) -> bool:
        return self in _TAKES_ENTRIES

    @property
    def close_was_called(self) -> bool:
        return self in _CLOSE_WAS_CALLED

    @property
    def held(self) -> bool:
        return self in _HELD

    @property
    def over(self) -> bool:
        """Whether the writer needs its client no longer."""
        return self in _OVER


class Event(enum.Enum):
    RELEASE = "all entries of the ledger in front are confirmed"
    CHANGE = "another ensemble was chosen"
    CHANGED = "it is stored, or will not be"
    FAIL = "an error ended what was pending"
    CLOSE = "the application closes the writer"
    STORED = "the metadata say that the ledger is closed"
    ABANDON = "nobody will use the writer any more"


_TAKES_ENTRIES: Final = frozenset((WriterState.HELD, WriterState.HELD_CHANGING, WriterState.OPEN, WriterState.CHANGING))
_CLOSE_WAS_CALLED: Final = frozenset(
    (
        WriterState.CLOSING,
        WriterState.CLOSING_CHANGING,
        WriterState.CLOSING_FAILED,
        WriterState.CLOSED,
        WriterState.GIVEN_UP,
    )
)
_OVER: Final = frozenset((WriterState.CLOSED, WriterState.ABANDONED, WriterState.GIVEN_UP))

_MOVES: Final[Mapping[tuple[WriterState, Event], WriterState]] = {
    (WriterState.HELD, Event.RELEASE): WriterState.OPEN,
    (WriterState.HELD, Event.CHANGE): WriterState.HELD_CHANGING,
    (WriterState.HELD, Event.FAIL): WriterState.FAILED,
    (WriterState.HELD, Event.ABANDON): WriterState.ABANDONED,
    (WriterState.HELD_CHANGING, Event.RELEASE): WriterState.CHANGING,
    (WriterState.HELD_CHANGING, Event.CHANGED): WriterState.HELD,
    (WriterState.HELD_CHANGING, Event.FAIL): WriterState.FAILED,
    (WriterState.HELD_CHANGING, Event.ABANDON): WriterState.ABANDONED,
    (WriterState.OPEN, Event.CHANGE): WriterState.CHANGING,
    (WriterState.OPEN, Event.FAIL): WriterState.FAILED,
    (WriterState.OPEN, Event.CLOSE): WriterState.CLOSING,
    (WriterState.OPEN, Event.ABANDON): WriterState.ABANDONED,
    (WriterState.CHANGING, Event.CHANGED): WriterState.OPEN,
    (WriterState.CHANGING, Event.FAIL): WriterState.FAILED,
    (WriterState.CHANGING, Event.CLOSE): WriterState.CLOSING_CHANGING,
    (WriterState.CHANGING, Event.ABANDON): WriterState.ABANDONED,
    (WriterState.FAILED, Event.CLOSE): WriterState.CLOSING_FAILED,
    (WriterState.FAILED, Event.ABANDON): WriterState.ABANDONED,
    (WriterState.CLOSING, Event.CHANGE): WriterState.CLOSING_CHANGING,
    (WriterState.CLOSING, Event.FAIL): WriterState.CLOSING_FAILED,
    (WriterState.CLOSING, Event.STORED): WriterState.CLOSED,
    (WriterState.CLOSING, Event.ABANDON): WriterState.GIVEN_UP,
    (WriterState.CLOSING_CHANGING, Event.CHANGED): WriterState.CLOSING,
    (WriterState.CLOSING_CHANGING, Event.FAIL): WriterState.CLOSING_FAILED,
    (WriterState.CLOSING_CHANGING, Event.ABANDON): WriterState.GIVEN_UP,
    (WriterState.CLOSING_FAILED, Event.STORED): WriterState.CLOSED,
    (WriterState.CLOSING_FAILED, Event.ABANDON): WriterState.GIVEN_UP,
    # The write was on its way when the client was closed.
    (WriterState.GIVEN_UP, Event.STORED): WriterState.CLOSED,
}

_HELD: Final = frozenset((WriterState.HELD, WriterState.HELD_CHANGING))
_CHANGING: Final = frozenset((WriterState.HELD_CHANGING, WriterState.CHANGING, WriterState.CLOSING_CHANGING))
_MAY_CHANGE: Final = frozenset((WriterState.HELD, WriterState.OPEN, WriterState.CLOSING))

# What can't happen: a caller that does it has lost sight of the writer's life.
IMPOSSIBLE: Final = frozenset(
    {
        # A ledger is released once. One that was abandoned or has failed meanwhile has nothing to confirm.
        *((state, Event.RELEASE) for state in WriterState if state not in _HELD),
        # A log closes its last ledger after all entries are confirmed.
        *((state, Event.CLOSE) for state in _HELD),
        # A change is begun by a writer that has not failed and does not change already.
        *((state, Event.CHANGE) for state in WriterState if state not in _MAY_CHANGE),
        # It is done once, and a failure ends it.
        *((state, Event.CHANGED) for state in WriterState if state not in _CHANGING),
        # A closing write is made by a writer that is being closed, after changes have ended.
        *((state, Event.STORED) for state in WriterState if not state.close_was_called),
        (WriterState.CLOSING_CHANGING, Event.STORED),
        (WriterState.CLOSED, Event.STORED),
    }
)

TRANSITIONS: Final[Mapping[tuple[WriterState, Event], WriterState]] = {
    (state, event): _MOVES.get((state, event), state)
    for state, event in product(WriterState, Event)
    if (state, event) not in IMPOSSIBLE
}
