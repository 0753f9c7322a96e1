"""What is given up of a ledger whose bookies are gone: never an entry that can still be seen."""

from __future__ import annotations

import itertools

import pytest

from bkpy.protocol.ledger.giving_up import LostEntries, length_candidates, unreadable
from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bkpy.protocol.ledger.quorum import covered, write_set
from bkpy.protocol.ledger.recovery import EntryStatus, Fencing, Forward, Reply, entry_status

SIZES = [(e, qw, qa) for e in range(1, 4) for qw in range(1, e + 1) for qa in range(1, qw + 1)]


def ledger(sizes: tuple[int, int, int], *fragments: tuple[int, str]) -> LedgerMetadata:
    key = bytes(32)
    parts = tuple(Fragment(first, tuple(bookies)) for first, bookies in fragments)
    return LedgerMetadata(7, LedgerState.IN_RECOVERY, *sizes, "crc32c", key, parts)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_an_entry_is_given_up_only_when_all_have_been_heard_and_those_that_can_not_tell_never_will(
    sizes: tuple[int, int, int],
) -> None:
    _, write_quorum, ack_quorum = sizes
    for present, denied, unknown in itertools.product(range(write_quorum + 1), repeat=3):
        if present + denied + unknown > write_quorum:
            continue
        without = entry_status(present, denied, unknown, write_quorum, ack_quorum)
        for given_up in range(unknown + 1):
            told = entry_status(present, denied, unknown, write_quorum, ack_quorum, given_up=given_up)
            if without is EntryStatus.UNDECIDABLE and given_up == unknown:
                assert told is EntryStatus.GIVEN_UP
            else:
                assert told is without  # nothing else is decided in another way


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_of_all_ways_to_answer_one_copy_is_enough_and_none_that_may_answer_is_passed_over(
    sizes: tuple[int, int, int],
) -> None:
    """Each bookie has it, denies it, can't tell, has failed, or hasn't answered; each is given up, or registered."""
    size, write_quorum, _ = sizes
    for answers in itertools.product("HDUFN", repeat=write_quorum):
        for gone in itertools.product([True, False], repeat=write_quorum):
            members = write_set(0, size, write_quorum)
            given_up = {index for index, is_gone in zip(members, gone, strict=True) if is_gone}
            forward = Forward(0, 0, *sizes, given_up)
            for index, answer in zip(members, answers, strict=True):
                if answer == "F":
                    forward.fail(index)
                elif answer != "N":
                    unknown = [(0, 0)] if answer == "U" else []
                    forward.answer(index, Reply(0, 0, {0} if answer == "H" else (), unknown))
            told = forward.decide()
            if "H" in answers:
                assert told is EntryStatus.PRESENT
            if told is EntryStatus.GIVEN_UP:
                assert set(answers) <= set("DUF")
                failed = {index for index, answer in zip(members, answers, strict=True) if answer == "F"}
                assert failed <= given_up


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_fence_is_complete_without_those_that_are_given_up_and_that_is_told(sizes: tuple[int, int, int]) -> None:
    size = sizes[0]
    for said in itertools.product(["fenced", "failed", "given_up", ""], repeat=size):
        fencing = Fencing(*sizes)
        for index, what in enumerate(said):
            if what:
                getattr(fencing, what)(index)
        fenced = {index for index, what in enumerate(said) if what == "fenced"}
        given_up = {index for index, what in enumerate(said) if what == "given_up"}
        assert fencing.complete == covered(fenced | given_up, *sizes)
        assert fencing.gave_up == (not covered(fenced, *sizes))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_unreadable_is_exactly_what_no_readable_bookie_is_named_for(sizes: tuple[int, int, int]) -> None:
    size, write_quorum, _ = sizes
    names = "abcdefgh"[: 2 * size]
    metadata = ledger(sizes, (0, names[:size]), (3, names[size : 2 * size]), (8, names[:size]))
    for last in (7, 9, 12):
        for count in range(len(names) + 1):
            for readable in itertools.combinations(names, count):
                expected = set()
                for entry_id in range(last + 1):
                    bookies = metadata.fragment_of(entry_id).bookies
                    members = {bookies[index] for index in write_set(entry_id, size, write_quorum)}
                    if members.isdisjoint(readable):
                        expected.add(entry_id)
                found = unreadable(metadata, last, readable)
                assert sum(one.entries for one in found) == len(expected)
                for one in found:
                    inside = {entry_id for entry_id in expected if one.first <= entry_id <= one.last}
                    assert (min(inside), max(inside), len(inside)) == (one.first, one.last, one.entries)
                    assert not set(one.bookies) & set(readable)


def test_what_is_unreadable_is_told_with_those_that_would_have_to_come_back() -> None:
    metadata = ledger((3, 2, 2), (0, "abc"), (5, "abd"))
    assert unreadable(metadata, 9, "cd") == [
        LostEntries(0, 3, 2, ("a", "b")),
        LostEntries(6, 9, 2, ("a", "b")),
    ]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_length_is_looked_for_in_every_write_set_of_every_fragment_from_the_end(
    sizes: tuple[int, int, int],
) -> None:
    size = sizes[0]
    names = "abcdefgh"
    metadata = ledger(sizes, (0, names[:size]), (9, names[1 : size + 1]), (20, names[2 : size + 2]))
    for last in range(19, 30):
        asked = list(length_candidates(metadata, last))
        assert asked == sorted(set(asked), reverse=True)
        assert asked[0] == last
        for first, end in ((0, 8), (9, 19), (20, last)):
            some = {entry_id % size for entry_id in asked if first <= entry_id <= end}
            assert len(some) == min(size, end - first + 1)
    assert list(length_candidates(ledger((1, 1, 1), (0, "a")), -1)) == []
