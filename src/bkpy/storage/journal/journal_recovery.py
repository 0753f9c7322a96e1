"""Decides about a break in the chain of journal frames: a pure table from the findings there to the action.

Invariant: bytes that may have been acknowledged are never cut. At most one frame that is not synced is in flight, so a
valid frame after a bad one proves that the bad one had been acknowledged; only a bad frame with nothing after it can be
torn. The table is total and unambiguous: exactly one row matches every case.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple


class AtBreak(enum.Enum):
    """What is at the place where the next frame should begin."""

    BLANK = "nothing of this file"  # neither magic nor nonce: stale bytes, zeros, or the end of the file
    BROKEN = "a broken frame"  # a frame of this file by magic and nonce, with a wrong checksum, sequence or chain
    MISSING = "no file"  # the file itself is gone
    CUT_OFF = "the file is cut off"  # it ends before the place from which it is read, which was synced once


class NextFile(enum.Enum):
    """How the next file with a valid header relates to the chain."""

    NONE = "none"  # there is no later file, or none that was ever finished
    CONTINUES = "continues"  # its header carries exactly the sequence and checksum at which the chain broke
    AHEAD = "ahead"  # its header carries others, or can't be read although later frames are in the file


class BreakAction(enum.Enum):
    """What a start does about a break."""

    END_OF_FILE = "end of file"  # go on with the next file
    END_OF_JOURNAL = "end of journal"
    TORN = "torn"  # never acknowledged: cut it, keep a copy
    DAMAGED = "damaged"  # acknowledged data may be lost: never cut


class Break(NamedTuple):
    """Everything that the decision depends on."""

    found: AtBreak
    later_in_file: bool  # a valid frame header with a later sequence, further on in the same file
    next_file: NextFile
    clean_stop: bool  # the last frame before the break says that the journal was ended in order


ANY: Final = None


class Row(NamedTuple):
    """A row of the table; `ANY` matches everything, a set its members."""

    found: frozenset[AtBreak] | None
    later_in_file: bool | None
    next_file: NextFile | None
    clean_stop: bool | None
    action: BreakAction

    def matches(self, at: Break) -> bool:
        return (
            (self.found is ANY or at.found in self.found)
            and (self.later_in_file is ANY or at.later_in_file is self.later_in_file)
            and (self.next_file is ANY or at.next_file is self.next_file)
            and (self.clean_stop is ANY or at.clean_stop is self.clean_stop)
        )


_BLANK: Final = frozenset({AtBreak.BLANK})
_BROKEN: Final = frozenset({AtBreak.BROKEN})
_GONE: Final = frozenset({AtBreak.MISSING, AtBreak.CUT_OFF})

TABLE: Final = (
    Row(ANY, True, ANY, ANY, BreakAction.DAMAGED),
    Row(ANY, False, NextFile.AHEAD, ANY, BreakAction.DAMAGED),
    Row(ANY, False, NextFile.CONTINUES, ANY, BreakAction.END_OF_FILE),
    Row(_GONE, False, NextFile.NONE, ANY, BreakAction.DAMAGED),
    Row(_BLANK, False, NextFile.NONE, ANY, BreakAction.END_OF_JOURNAL),
    Row(_BROKEN, False, NextFile.NONE, True, BreakAction.DAMAGED),
    Row(_BROKEN, False, NextFile.NONE, False, BreakAction.TORN),
)


def decide(at: Break) -> BreakAction:
    """What the break means. Total."""
    return next(row.action for row in TABLE if row.matches(at))
