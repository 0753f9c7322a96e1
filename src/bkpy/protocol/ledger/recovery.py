"""The decisions of a recovery: when a ledger is fenced, and which of its last entries exist.

A bookie's word on an entry has three values: it has it, it never acknowledged it, or it can't tell. One verified copy
makes an entry present. Only explicit denials from so many of its write set that no ack quorum can be left make it
missing, and the first missing entry ends the ledger. Everything else decides nothing.

Invariants: an error, a timeout or a damaged copy never counts as a denial; an answer that can't change the decision any
more is not waited for; `fate` is total over all counts of answers.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

from bkpy.protocol.ledger.quorum import covered, write_set

if TYPE_CHECKING:
    from collections.abc import Container, Sequence


class EntryStatus(enum.Enum):
    """What is known of one entry."""

    PRESENT = "a bookie has it"
    MISSING = "it can't have been acknowledged"
    OPEN = "more answers are needed"
    UNDECIDABLE = "too few bookies can tell"
    GIVEN_UP = "no bookie that can tell has it, and the others are given up"


def entry_status(
    present: int, denied: int, unknown: int, write_quorum: int, ack_quorum: int, *, given_up: int | None = None
) -> EntryStatus:
    """By how many bookies of the entry's write set have answered what; the rest have yet to answer.

    `given_up`: how many of the unknown bookies never will answer, if an operator has decided so; otherwise None.
    """
    if present:
        return EntryStatus.PRESENT
    needed = write_quorum - ack_quorum + 1
    if denied >= needed:
        return EntryStatus.MISSING
    # A bookie that has not answered may still have a copy, or the denials may become enough.
    if present + denied + unknown < write_quorum:
        return EntryStatus.OPEN
    return EntryStatus.GIVEN_UP if given_up == unknown else EntryStatus.UNDECIDABLE


class Fencing:
    """Which bookies of the last ensemble are known to be fenced."""

    def __init__(self, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        self._sizes = (ensemble_size, write_quorum, ack_quorum)
        self._fenced: set[int] = set()
        self._failed: set[int] = set()
        self._given_up: set[int] = set()

    def fenced(self, index: int) -> None:
        """The bookie's fence is durable: it said so, with whatever else it could or couldn't tell."""
        self._fenced.add(index)

    def failed(self, index: int) -> None:
        """The bookie gave no answer from which a fence follows."""
        self._failed.add(index)

    def given_up(self, index: int) -> None:
        """The bookie gave no such answer and never will: an operator has decided to do without it."""
        self._given_up.add(index)

    @property
    def complete(self) -> bool:
        """Whether every possible ack quorum holds a fenced bookie: the writer can't have anything acknowledged.

        Bookies that were given up count as fenced.
        """
        return covered(self._fenced | self._given_up, *self._sizes)

    @property
    def gave_up(self) -> bool:
        """Whether it is complete only with bookies that were given up."""
        return not covered(self._fenced, *self._sizes)

    @property
    def impossible(self) -> bool:
        """Whether it can't become complete any more."""
        return not covered(set(range(self._sizes[0])) - self._failed, *self._sizes)


class Reply(NamedTuple):
    """What one bookie said of first..examined_to: it has `present`, can't tell `unknown`, and denies the rest."""

    first: int
    examined_to: int
    present: Container[int]
    unknown: Sequence[tuple[int, int]] = ()


class EntryAnswer(enum.Enum):
    """One bookie's word on one entry."""

    HAS = "has it"
    DENIES = "never acknowledged it"
    UNKNOWN = "can't tell"
    NONE = "has not answered"


class Forward:
    """The answers about entries first..last of one ensemble, and what follows from them, entry by entry in order."""

    def __init__(
        self,
        first: int,
        last: int,
        ensemble_size: int,
        write_quorum: int,
        ack_quorum: int,
        given_up: Container[int] | None = None,
    ) -> None:
        """`given_up`: the bookies that are gone for good, by decision. With one, who answers that it can't tell never
        will, either."""
        self.next = first  # the first entry that isn't known to be present
        self._given_up = given_up
        self.last = last
        self._sizes = (ensemble_size, write_quorum, ack_quorum)
        self._replies: list[list[Reply]] = [[] for _ in range(ensemble_size)]
        self._failed = [False] * ensemble_size

    def answer(self, index: int, reply: Reply) -> None:
        """Bookie `index` has answered. What it said before stays true: nothing is added to a fenced ledger."""
        self._replies[index].append(reply)

    def fail(self, index: int) -> None:
        """Bookie `index` can't be asked."""
        self._failed[index] = True

    def word(self, index: int, entry_id: int) -> EntryAnswer:
        said = EntryAnswer.NONE
        for reply in self._replies[index]:
            if not reply.first <= entry_id <= reply.examined_to:
                continue
            if entry_id in reply.present:
                return EntryAnswer.HAS
            doubtful = any(low <= entry_id <= high for low, high in reply.unknown)
            said = EntryAnswer.UNKNOWN if doubtful else EntryAnswer.DENIES
        return EntryAnswer.UNKNOWN if said is EntryAnswer.NONE and self._failed[index] else said

    def is_failed(self, index: int) -> bool:
        return self._failed[index]

    def members(self, entry_id: int) -> tuple[int, ...]:
        return write_set(entry_id, self._sizes[0], self._sizes[1])

    def _count_given_up(self, words: Sequence[EntryAnswer]) -> int | None:
        given_up = self._given_up
        if given_up is None:
            return None
        answers = zip(self.members(self.next), words, strict=True)
        return sum(
            word is EntryAnswer.UNKNOWN and (index in given_up or not self._failed[index]) for index, word in answers
        )

    def decide(self) -> EntryStatus:
        """The fate of entry `next`, after going past all that are present; PRESENT once `last` is."""
        while self.next <= self.last:
            words = [self.word(index, self.next) for index in self.members(self.next)]
            counts = words.count(EntryAnswer.HAS), words.count(EntryAnswer.DENIES), words.count(EntryAnswer.UNKNOWN)
            verdict = entry_status(*counts, *self._sizes[1:], given_up=self._count_given_up(words))
            if verdict is not EntryStatus.PRESENT:
                return verdict
            self.next += 1
        return EntryStatus.PRESENT
