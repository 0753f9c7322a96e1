"""Which of a ledger's last entries exist: the decision on one entry against its definition, for all counts of answers,
and the decisions on a range against the truth, for random answers in random order."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from bkpy.protocol.ledger.quorum import write_set
from bkpy.protocol.ledger.recovery import EntryAnswer, EntryStatus, Forward, Reply, entry_status

QUORUMS = [(qw, qa) for qw in range(1, 8) for qa in range(1, qw + 1)]


# --- one entry --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("write_quorum", "ack_quorum"), QUORUMS)
def test_the_fate_of_an_entry_is_what_its_definition_says(write_quorum: int, ack_quorum: int) -> None:
    for present, denied, unknown in itertools.product(range(write_quorum + 1), repeat=3):
        if present + denied + unknown > write_quorum:
            continue
        deniers = set(range(denied))
        may_be_acknowledged = any(
            deniers.isdisjoint(quorum) for quorum in itertools.combinations(range(write_quorum), ack_quorum)
        )
        if present:
            expected = EntryStatus.PRESENT
        elif not may_be_acknowledged:
            expected = EntryStatus.MISSING
        elif present + denied + unknown == write_quorum:
            expected = EntryStatus.UNDECIDABLE
        else:
            expected = EntryStatus.OPEN
        assert entry_status(present, denied, unknown, write_quorum, ack_quorum) is expected, (present, denied, unknown)


@pytest.mark.parametrize(("write_quorum", "ack_quorum"), QUORUMS)
def test_an_open_decision_can_still_become_present(write_quorum: int, ack_quorum: int) -> None:
    """Whoever waits for an answer waits for something: each further answer may decide, and the last one does."""
    for denied, unknown in itertools.product(range(write_quorum + 1), repeat=2):
        if (
            denied + unknown <= write_quorum
            and entry_status(0, denied, unknown, write_quorum, ack_quorum) is EntryStatus.OPEN
        ):
            assert entry_status(1, denied, unknown, write_quorum, ack_quorum) is EntryStatus.PRESENT
            left = write_quorum - denied - unknown
            ends = {entry_status(0, denied + k, unknown + left - k, write_quorum, ack_quorum) for k in range(left + 1)}
            assert ends <= {EntryStatus.MISSING, EntryStatus.UNDECIDABLE}


# --- a hung bookie ----------------------------------------------------------------------------------------------


def sizes_up_to(limit: int) -> list[tuple[int, int, int]]:
    return [(e, qw, qa) for e in range(1, limit + 1) for qw in range(1, e + 1) for qa in range(1, qw + 1)]


@pytest.mark.parametrize("sizes", sizes_up_to(5), ids=str)
@pytest.mark.scenario(5)
def test_a_hung_bookie_delays_no_decision_that_is_possible(sizes: tuple[int, int, int]) -> None:
    size, write_quorum, ack_quorum = sizes
    needed = write_quorum - ack_quorum + 1
    for entry_id in range(size):
        members = write_set(entry_id, size, write_quorum)
        for deniers in itertools.permutations(members, needed):
            forward = Forward(entry_id, entry_id + 9, *sizes)
            for index in deniers:
                assert forward.decide() is EntryStatus.OPEN
                forward.answer(index, Reply(entry_id, entry_id + 9, ()))
            assert forward.decide() is EntryStatus.MISSING  # with Qa - 1 bookies that have never answered
            assert forward.next == entry_id
        for index in members:
            forward = Forward(entry_id, entry_id, *sizes)
            forward.answer(index, Reply(entry_id, entry_id, {entry_id}))
            assert forward.decide() is EntryStatus.PRESENT


@pytest.mark.parametrize("sizes", sizes_up_to(5), ids=str)
def test_failures_alone_decide_nothing(sizes: tuple[int, int, int]) -> None:
    _, write_quorum, ack_quorum = sizes
    forward = Forward(0, 3, *sizes)
    for index in range(write_quorum):
        assert forward.decide() is EntryStatus.OPEN
        forward.fail(index)
    assert forward.decide() is EntryStatus.UNDECIDABLE
    forward = Forward(0, 3, *sizes)
    for index in range(write_quorum - ack_quorum):  # one denial less than it takes
        forward.answer(index, Reply(0, 3, ()))
    for index in range(write_quorum - ack_quorum, write_quorum):
        assert forward.decide() is EntryStatus.OPEN
        forward.fail(index)
    assert forward.decide() is EntryStatus.UNDECIDABLE


# --- one bookie's words -----------------------------------------------------------------------------------------


def test_a_word_is_given_only_for_what_was_examined() -> None:
    forward = Forward(5, 20, 3, 3, 2)
    forward.answer(1, Reply(5, 9, {5, 6, 8}, [(7, 7)]))
    assert [forward.word(1, n) for n in range(4, 11)] == [
        EntryAnswer.NONE,
        EntryAnswer.HAS,
        EntryAnswer.HAS,
        EntryAnswer.UNKNOWN,
        EntryAnswer.HAS,
        EntryAnswer.DENIES,
        EntryAnswer.NONE,
    ]
    assert forward.word(0, 5) is EntryAnswer.NONE


def test_what_a_bookie_said_stays_true_when_it_fails_later() -> None:
    forward = Forward(0, 9, 3, 3, 2)
    forward.answer(0, Reply(0, 4, {0}))
    forward.fail(0)
    assert [forward.word(0, n) for n in (0, 1, 4, 5)] == [
        EntryAnswer.HAS,
        EntryAnswer.DENIES,
        EntryAnswer.DENIES,
        EntryAnswer.UNKNOWN,
    ]
    assert forward.is_failed(0)
    assert not forward.is_failed(1)


def test_a_copy_counts_whatever_the_bookie_said_of_it_at_another_time() -> None:
    for replies in itertools.permutations([Reply(0, 3, {2}), Reply(2, 2, (), [(2, 2)]), Reply(2, 3, ())]):
        forward = Forward(0, 3, 3, 3, 2)
        for reply in replies:
            forward.answer(0, reply)
        assert forward.word(0, 2) is EntryAnswer.HAS


def test_a_damaged_copy_is_no_denial() -> None:
    forward = Forward(0, 0, 3, 3, 2)
    forward.answer(0, Reply(0, 0, (), [(0, 0)]))
    forward.answer(1, Reply(0, 0, ()))
    assert forward.decide() is EntryStatus.OPEN
    forward.answer(2, Reply(0, 0, (), [(0, 5)]))
    assert forward.decide() is EntryStatus.UNDECIDABLE


@pytest.mark.scenario(15)
def test_the_first_missing_entry_ends_the_ledger_whatever_follows() -> None:
    forward = Forward(0, 9, 3, 3, 2)
    for index in range(3):
        forward.answer(index, Reply(0, 9, {0, 1, 3, 4}))
    assert forward.decide() is EntryStatus.MISSING
    assert forward.next == 2
    assert forward.decide() is EntryStatus.MISSING
    assert forward.next == 2


# --- ranges against the truth -----------------------------------------------------------------------------------


@dataclass
class Truth:
    """Which bookie holds which entry. All up to `acknowledged` are on Qa bookies; what follows is on any or none."""

    sizes: tuple[int, int, int]
    acknowledged: int
    holders: list[set[int]]

    def holds(self, index: int, first: int, last: int) -> set[int]:
        return {n for n in range(first, last + 1) if n < len(self.holders) and index in self.holders[n]}


@st.composite
def truths(draw: st.DrawFn) -> Truth:
    size = draw(st.integers(1, 5))
    write_quorum = draw(st.integers(1, size))
    ack_quorum = draw(st.integers(1, write_quorum))
    count = draw(st.integers(0, 8))
    acknowledged = draw(st.integers(0, count)) - 1
    holders = []
    for n in range(count):
        members = write_set(n, size, write_quorum)
        at_least = ack_quorum if n <= acknowledged else 0
        holders.append(draw(st.sets(st.sampled_from(members), min_size=at_least)))
    return Truth((size, write_quorum, ack_quorum), acknowledged, holders)


@dataclass
class Naive:
    """All that was said, and what follows from it, by looking at every possible ack quorum."""

    truth: Truth
    said: dict[tuple[int, int], EntryAnswer]

    def word(self, index: int, entry_id: int) -> EntryAnswer:
        return self.said.get((index, entry_id), EntryAnswer.NONE)

    def say(self, index: int, entry_id: int, word: EntryAnswer) -> None:
        if self.word(index, entry_id) is not EntryAnswer.HAS:
            self.said[index, entry_id] = word

    def decide(self, first: int, last: int) -> tuple[EntryStatus, int]:
        size, write_quorum, ack_quorum = self.truth.sizes
        for n in range(first, last + 1):
            words = {index: self.word(index, n) for index in write_set(n, size, write_quorum)}
            if EntryAnswer.HAS in words.values():
                continue
            believable = any(
                all(words[index] is not EntryAnswer.DENIES for index in quorum)
                for quorum in itertools.combinations(words, ack_quorum)
            )
            if not believable:
                return EntryStatus.MISSING, n
            return (EntryStatus.OPEN if EntryAnswer.NONE in words.values() else EntryStatus.UNDECIDABLE), n
        return EntryStatus.PRESENT, last + 1


@pytest.mark.thorough
@given(truth=truths(), data=st.data())
@examples(400)
def test_decisions_are_true_in_order_and_as_early_as_possible(truth: Truth, data: st.DataObject) -> None:
    size = truth.sizes[0]
    first = data.draw(st.integers(0, 3), label="first")
    last = first + data.draw(st.integers(0, 8), label="count - 1")
    forward = Forward(first, last, *truth.sizes)
    naive = Naive(truth, {})
    failed: set[int] = set()
    before = first
    for _ in range(data.draw(st.integers(0, 12), label="answers")):
        index = data.draw(st.integers(0, size - 1), label="bookie")
        if data.draw(st.integers(0, 3), label="fails if 0") == 0:
            forward.fail(index)
            failed.add(index)
        else:
            start = data.draw(st.integers(first, last), label="asked from")
            examined = data.draw(st.integers(start, last), label="examined to")
            doubtful = data.draw(
                st.lists(st.tuples(st.integers(start, examined), st.integers(0, 2)), max_size=2), label="unknown"
            )
            unknown = [(low, low + more) for low, more in doubtful]
            lost = {n for low, high in unknown for n in range(low, high + 1)}
            present = truth.holds(index, start, examined) - lost
            forward.answer(index, Reply(start, examined, present, unknown))
            for n in range(start, examined + 1):
                naive.say(
                    index,
                    n,
                    EntryAnswer.HAS if n in present else EntryAnswer.UNKNOWN if n in lost else EntryAnswer.DENIES,
                )
        for index in failed:  # of what they haven't spoken about, they won't
            for n in range(first, last + 1):
                if naive.word(index, n) is EntryAnswer.NONE:
                    naive.say(index, n, EntryAnswer.UNKNOWN)
        verdict = forward.decide()
        assert (verdict, forward.next) == naive.decide(first, last)
        assert before <= forward.next <= last + 1
        before = forward.next
        assert all(n < len(truth.holders) and truth.holders[n] for n in range(first, forward.next))
        if verdict is EntryStatus.MISSING:
            assert forward.next > truth.acknowledged


@pytest.mark.thorough
@given(truth=truths(), data=st.data())
@examples(200)
def test_when_all_have_answered_everything_the_end_is_the_first_entry_that_nobody_has(
    truth: Truth, data: st.DataObject
) -> None:
    last = len(truth.holders)  # one more than was ever written
    forward = Forward(0, last, *truth.sizes)
    end = next((n for n, holders in enumerate(truth.holders) if not holders), len(truth.holders))
    for index in data.draw(st.permutations(range(truth.sizes[0]))):
        at = 0
        while at <= last:  # in pieces, as many as the bookie likes
            examined = data.draw(st.integers(at, last))
            forward.answer(index, Reply(at, examined, truth.holds(index, at, examined)))
            at = examined + 1
    assert forward.decide() is EntryStatus.MISSING
    assert forward.next == end > truth.acknowledged
