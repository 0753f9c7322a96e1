"""What a break in the chain of journal frames means: a pure table from what is found there to what must be done.

Invariant: bytes that may have been acknowledged are never cut. At most one frame that is not synced is in flight, so a
valid frame after a bad one proves that the bad one had been acknowledged; only a bad frame with nothing after it can be
torn. The table is total and unambiguous: exactly one row matches every case.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple


class Found(enum.Enum):
    """What is at the place where the next frame should begin."""

    BLANK = "nothing of this file"  # neither magic nor nonce: stale bytes, zeros, or the end of the file
    BROKEN = "a broken frame"  # a frame of this file by magic and nonce, with a wrong checksum, sequence or chain
    MISSING = "no file"  # the file itself is gone


class NextFile(enum.Enum):
    """How the next file with a valid header relates to the chain."""

    NONE = "none"  # there is no later file, or none that was ever finished
    CONTINUES = "continues"  # its header carries exactly the sequence and checksum at which the chain broke
    AHEAD = "ahead"  # its header carries others, or can't be read although later frames are in the file


class Verdict(enum.Enum):
    END_OF_FILE = "end of file"  # go on with the next file
    END_OF_JOURNAL = "end of journal"
    TORN = "torn"  # never acknowledged: cut it, keep a copy
    DAMAGED = "damaged"  # acknowledged data may be lost: never cut


class Break(NamedTuple):
    """Everything that the decision depends on."""

    found: Found
    later_in_file: bool  # a valid frame header with a later sequence, further on in the same file
    next_file: NextFile
    clean_stop: bool  # the last frame before the break says that the journal was ended in order


ANY: Final = None


class Row(NamedTuple):
    """A row of the table; `ANY` matches everything, a set its members."""

    found: frozenset[Found] | None
    later_in_file: bool | None
    next_file: NextFile | None
    clean_stop: bool | None
    verdict: Verdict

    def matches(self, at: Break) -> bool:
        return (
            (self.found is ANY or at.found in self.found)
            and (self.later_in_file is ANY or at.later_in_file is self.later_in_file)
            and (self.next_file is ANY or at.next_file is self.next_file)
            and (self.clean_stop is ANY or at.clean_stop is self.clean_stop)
        )


_BLANK: Final = frozenset({Found.BLANK})
_BROKEN: Final = frozenset({Found.BROKEN})
_MISSING: Final = frozenset({Found.MISSING})

TABLE: Final = (
    Row(ANY, True, ANY, ANY, Verdict.DAMAGED),
    Row(ANY, False, NextFile.AHEAD, ANY, Verdict.DAMAGED),
    Row(ANY, False, NextFile.CONTINUES, ANY, Verdict.END_OF_FILE),
    Row(_MISSING, False, NextFile.NONE, ANY, Verdict.DAMAGED),
    Row(_BLANK, False, NextFile.NONE, ANY, Verdict.END_OF_JOURNAL),
    Row(_BROKEN, False, NextFile.NONE, True, Verdict.DAMAGED),
    Row(_BROKEN, False, NextFile.NONE, False, Verdict.TORN),
)


def decide(at: Break) -> Verdict:
    """What the break means. Total."""
    return next(row.verdict for row in TABLE if row.matches(at))
