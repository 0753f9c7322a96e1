"""The life of a ledger's writer: a pure table from what it is and what happens to what it is then.

    OPEN <-> CHANGING          both may fail, be closed and be abandoned
    CLOSING <-> CLOSING_CHANGING, CLOSING_FAILED -> CLOSED

A recovery, which closes its ledger itself, goes through the states without CLOSING.

Invariants: the table is total; a writer that has failed acknowledges nothing any more; once it was closed or abandoned,
or somebody began to close it, it never takes entries again; one that was abandoned begins to close nothing.
"""

from __future__ import annotations

import enum
from itertools import product
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class WriterState(enum.Enum):
    OPEN = "entries are taken and acknowledged"
    CHANGING = "entries are taken, and none is acknowledged until the new ensemble is stored"
    FAILED = "no entry is taken or acknowledged; the ledger can be closed behind the last one that was"
    CLOSING = "no entry is taken; those that were taken before end"
    CLOSING_CHANGING = "no entry is taken, and none is acknowledged until the new ensemble is stored"
    CLOSING_FAILED = "no entry is taken or acknowledged; the ledger is being closed"
    CLOSED = "the ledger is closed"
    ABANDONED = "the ledger was left open, for somebody else to recover"
    GIVEN_UP = "somebody began to close the ledger, and the writer was abandoned: it may be closed or not"

    @property
    def takes_entries(self) -> bool:
        return self in _TAKES_ENTRIES

    @property
    def close_was_called(self) -> bool:
        return self in _CLOSE_WAS_CALLED

    @property
    def over(self) -> bool:
        """Whether the writer needs its client no longer."""
        return self in _OVER


class Event(enum.Enum):
    CHANGE = "another ensemble was chosen"
    CHANGED = "it is stored, or will not be"
    FAIL = "an error ended what was pending"
    CLOSE = "the application closes the writer"
    STORED = "the metadata say that the ledger is closed"
    ABANDON = "nobody will use the writer any more"


_TAKES_ENTRIES: Final = frozenset((WriterState.OPEN, WriterState.CHANGING))
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

# What can't happen: whoever does it has lost sight of the writer's life.
IMPOSSIBLE: Final = frozenset(
    {
        # A change is begun by a writer that has not failed and does not change already.
        *((state, Event.CHANGE) for state in WriterState if state not in (WriterState.OPEN, WriterState.CLOSING)),
        # It is done once, and a failure ends it.
        *(
            (state, Event.CHANGED)
            for state in WriterState
            if state not in (WriterState.CHANGING, WriterState.CLOSING_CHANGING)
        ),
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
