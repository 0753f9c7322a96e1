"""The life of a log's writer: a pure table of its states, what happens to it, and the states that follow.

    SERVING -> SWITCHING -> HOLDING -> ENDING_FORMER -> SERVING      a roll, once round
                   |___________________________________^             a roll that is not possible now

The application may close the writer in each of these: CLOSING, CLOSING_SWITCHING, CLOSING_HOLDING and CLOSING_FORMER
go the same way, and end CLOSED. A roll that was creating its ledger goes on, and no other is begun.

Invariants: the table is total; a roll begins only after the former ledger is CLOSED, so that at most two ledgers are
open; between SWITCHING and the release nothing of the next ledger is confirmed; unless an error has ended the writer,
the log is closed only after its former ledger; a writer that was closed or has failed never takes appends again.
"""

from __future__ import annotations

import enum
from itertools import product
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class LogWriterState(enum.Enum):
    SERVING = "appends go to the last ledger, all others are CLOSED"
    SWITCHING = "appends wait while the list is written, which is to name the next ledger"
    HOLDING = "appends go to the next ledger, and none is confirmed before all of the former one"
    ENDING_FORMER = "appends go to the last ledger, and the former one is being closed"
    FAILED = "an error ended all appends"
    CLOSING = "no append is taken; appends that were taken before end, then the last ledger is closed"
    CLOSING_SWITCHING = "no append is taken; appends that wait do so until the list is written"
    CLOSING_HOLDING = "no append is taken, and none is confirmed before all of the former ledger"
    CLOSING_FORMER = "no append is taken, and the former ledger is being closed"
    CLOSING_FAILED = "no append is taken, and an error ended all appends"
    CLOSED = "the last ledger is closed, and the log has no writer"

    @property
    def takes_appends(self) -> bool:
        return self in _TAKES_APPENDS

    @property
    def enters_at_once(self) -> bool:
        """Whether an append that finds room need not wait."""
        return self in _TAKES_APPENDS and self not in _SWITCHING

    @property
    def admits(self) -> bool:
        """Whether appends that wait for room may get it."""
        return self in _ADMITS

    @property
    def switching(self) -> bool:
        return self in _SWITCHING

    @property
    def close_was_called(self) -> bool:
        return self in _CLOSE_WAS_CALLED

    @property
    def failed(self) -> bool:
        return self in _FAILED

    @property
    def over(self) -> bool:
        """Whether the log is closed."""
        return self is LogWriterState.CLOSED


class LogEvent(enum.Enum):
    SWITCH = "the next ledger is there: the list is to name it"
    RESUME = "the list will certainly not name it"
    SWITCHED = "the list names it"
    RELEASE = "all entries of the former ledger are confirmed"
    FORMER_CLOSED = "the former ledger is CLOSED"
    FAIL = "an error ended all appends, or the application abandoned the writer"
    CLOSE = "the application closes the writer"
    ENDED = "the last ledger is CLOSED, and this writer does not write the list again"


_S, _E = LogWriterState, LogEvent

_TAKES_APPENDS: Final = frozenset((_S.SERVING, _S.SWITCHING, _S.HOLDING, _S.ENDING_FORMER))
_FAILED: Final = frozenset((_S.FAILED, _S.CLOSING_FAILED))
_SWITCHING: Final = frozenset((_S.SWITCHING, _S.CLOSING_SWITCHING))
_CLOSE_WAS_CALLED: Final = frozenset(set(_S) - _TAKES_APPENDS - {_S.FAILED})
_ADMITS: Final = frozenset(set(_S) - _FAILED - _SWITCHING - {_S.CLOSED})

_MOVES: Final[Mapping[tuple[LogWriterState, LogEvent], LogWriterState]] = {
    (_S.SERVING, _E.SWITCH): _S.SWITCHING,
    (_S.SERVING, _E.FAIL): _S.FAILED,
    (_S.SERVING, _E.CLOSE): _S.CLOSING,
    (_S.SWITCHING, _E.RESUME): _S.SERVING,
    (_S.SWITCHING, _E.SWITCHED): _S.HOLDING,
    (_S.SWITCHING, _E.FAIL): _S.FAILED,
    (_S.SWITCHING, _E.CLOSE): _S.CLOSING_SWITCHING,
    (_S.HOLDING, _E.RELEASE): _S.ENDING_FORMER,
    (_S.HOLDING, _E.FAIL): _S.FAILED,
    (_S.HOLDING, _E.CLOSE): _S.CLOSING_HOLDING,
    (_S.ENDING_FORMER, _E.FORMER_CLOSED): _S.SERVING,
    (_S.ENDING_FORMER, _E.FAIL): _S.FAILED,
    (_S.ENDING_FORMER, _E.CLOSE): _S.CLOSING_FORMER,
    (_S.FAILED, _E.CLOSE): _S.CLOSING_FAILED,
    (_S.CLOSING, _E.SWITCH): _S.CLOSING_SWITCHING,
    (_S.CLOSING, _E.FAIL): _S.CLOSING_FAILED,
    (_S.CLOSING, _E.ENDED): _S.CLOSED,
    (_S.CLOSING_SWITCHING, _E.RESUME): _S.CLOSING,
    (_S.CLOSING_SWITCHING, _E.SWITCHED): _S.CLOSING_HOLDING,
    (_S.CLOSING_SWITCHING, _E.FAIL): _S.CLOSING_FAILED,
    (_S.CLOSING_HOLDING, _E.RELEASE): _S.CLOSING_FORMER,
    (_S.CLOSING_HOLDING, _E.FAIL): _S.CLOSING_FAILED,
    (_S.CLOSING_FORMER, _E.FORMER_CLOSED): _S.CLOSING,
    (_S.CLOSING_FORMER, _E.FAIL): _S.CLOSING_FAILED,
    # Another client has become the writer between the close of the last ledger and the write of the list.
    (_S.CLOSING_FAILED, _E.ENDED): _S.CLOSED,
}

# What can't happen: a caller that does it has lost sight of the writer's life. The application may do its part at any
# time, and so may an error.
IMPOSSIBLE: Final = frozenset(
    (state, event)
    for state, event in product(LogWriterState, LogEvent)
    if (state, event) not in _MOVES and event not in (LogEvent.FAIL, LogEvent.CLOSE)
)

TRANSITIONS: Final[Mapping[tuple[LogWriterState, LogEvent], LogWriterState]] = {
    (state, event): _MOVES.get((state, event), state)
    for state, event in product(LogWriterState, LogEvent)
    if (state, event) not in IMPOSSIBLE
}
