"""What a restored cluster decides: how its states follow each other, ids, places of lost bookies, what holds it up."""

from __future__ import annotations

import itertools

import pytest

from bkpy.protocol.ledger.accepted_loss import AcceptedLoss
from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bkpy.protocol.restore.restoring import (
    HIGHS_SKIPPED,
    SEQUENCE_BITS,
    Adoption,
    BookieReport,
    Restore,
    RestoreState,
    adoption_of,
    copies_here,
    ids_after,
    is_confirmed,
    is_kept,
    obstacles,
    relocated,
    with_later_loss,
    written_back_to,
)

RESTORE = Restore(RestoreState.WRITING, "new", "old", "checksum", 10, 20)
LAST_HIGH = (1 << (63 - SEQUENCE_BITS)) - 1


def metadata(state: LedgerState = LedgerState.CLOSED, *fragments: tuple[int, str]) -> LedgerMetadata:
    parts = tuple(Fragment(first, tuple(names)) for first, names in fragments or ((0, "abc"),))
    last = 9 if state is LedgerState.CLOSED else -1
    return LedgerMetadata(7, state, 3, 3, 2, "crc32c", b"k" * 32, parts, last_entry=last)


def test_states_follow_each_other_once() -> None:
    restore = RESTORE
    seen = [restore.state]
    for _ in range(3):
        restore = restore.advanced()
        seen.append(restore.state)
    assert seen == list(RestoreState)
    with pytest.raises(ValueError, match="doesn't go on"):
        restore.advanced()


@pytest.mark.parametrize("state", RestoreState)
def test_only_a_restore_whose_ledgers_are_closed_goes_back(state: RestoreState) -> None:
    restore = Restore(state, "new", "old", "checksum", 10, 20)
    assert copies_here(restore) == (state is RestoreState.CLOSED)
    assert is_confirmed(restore) == (state is RestoreState.CONFIRMED)
    if state is RestoreState.CLOSED:
        assert restore.with_fewer().state is RestoreState.RESTORED
    else:
        with pytest.raises(ValueError, match=f"a restore that is {state} doesn't go back"):
            restore.with_fewer()


def test_ledgers_that_may_be_later_are_kept_until_an_operator_decides() -> None:
    assert [is_kept(RESTORE, ledger_id) for ledger_id in (9, 10, 20, 21)] == [False, True, True, False]
    decided = Restore(RestoreState.CONFIRMED, "new", "old", "checksum", 10, 20, collects_later=True)
    assert not is_kept(decided, 15)
    assert not is_kept(None, 15)
    assert is_confirmed(None)
    assert not copies_here(None)


def test_ids_go_on_behind_all_that_were_drawn_and_end() -> None:
    assert ids_after(5, 3, 0.9) == (5 + HIGHS_SKIPPED, 3, ((5 + HIGHS_SKIPPED) << SEQUENCE_BITS) - 1)
    assert ids_after(5, 3, -7) == ids_after(5, 3, 0)
    assert ids_after(5, 3, 60.5).high == 65 + HIGHS_SKIPPED
    assert ids_after(LAST_HIGH - HIGHS_SKIPPED, 3, 0).high == LAST_HIGH
    with pytest.raises(ValueError, match="no ledger ids left"):
        ids_after(LAST_HIGH - HIGHS_SKIPPED, 3, 1)


def test_directories_join_only_where_all_are_of_the_former_cluster_or_the_new_one() -> None:
    found = {
        instances: adoption_of(instances, RESTORE)
        for count in range(4)
        for instances in itertools.combinations(("old", "new", "other"), count)
    }
    assert found == {
        (): Adoption.STRANGER,
        ("old",): Adoption.JOIN,
        ("new",): Adoption.MEMBER,
        ("other",): Adoption.STRANGER,
        ("old", "new"): Adoption.JOIN,
        ("old", "other"): Adoption.STRANGER,
        ("new", "other"): Adoption.STRANGER,
        ("old", "new", "other"): Adoption.STRANGER,
    }
    assert adoption_of(("old",), None) is Adoption.STRANGER
    named = RESTORE.joined_from(("other", "new", "old", "other"))
    assert named.also_from == ("other",)
    assert {instances for instances in found if adoption_of(instances, named) is Adoption.JOIN} == set(found) - {
        (),
        ("new",),
    }


def test_a_log_leaves_a_gap_behind_a_closed_ledger_once() -> None:
    marked = with_later_loss(metadata(), 1000)
    assert marked.accepted_loss == AcceptedLoss(1000, 9, 9, {})
    assert with_later_loss(marked, 2000) is marked
    still_open = metadata(LedgerState.OPEN)
    assert with_later_loss(still_open, 1000) is still_open


def test_present_bookies_take_the_places_of_lost_ones_as_far_as_there_are_any() -> None:
    closed = metadata(LedgerState.CLOSED, (0, "abc"), (5, "abd"))
    moved = relocated(closed, "ab", "cdef")
    for before, after in zip(closed.fragments, moved.fragments, strict=True):
        assert len(set(after.bookies)) == 3
        assert set(after.bookies) <= set("cdef")
        assert after.bookies[2] == before.bookies[2]
    few = relocated(closed, "ab", "cd")
    assert [sorted(fragment.bookies) for fragment in few.fragments] in ([list("acd")] * 2, [list("bcd")] * 2)
    assert relocated(closed, "ab", "") == closed


def test_no_bookie_takes_a_place_among_entries_that_are_given_up() -> None:
    loss = AcceptedLoss(0, 9, 9, {}, ((0, 4),))
    parts = (Fragment(0, tuple("abc")), Fragment(5, tuple("abc")))
    closed = LedgerMetadata(
        7, LedgerState.CLOSED, 3, 3, 2, "crc32c", b"k" * 32, parts, last_entry=9, accepted_loss=loss
    )
    moved = relocated(closed, "a", "d")
    assert moved.fragments[0] == closed.fragments[0]
    assert set(moved.fragments[1].bookies) == set("bcd")


def test_entries_are_written_back_to_the_bookies_that_are_named_where_they_answer() -> None:
    assert written_back_to("abc", "abcd") == tuple("abc")
    assert written_back_to("abc", "acde") == tuple("adc")
    assert written_back_to("abc", "ac") is None


def test_what_is_missing_is_final_once_every_bookie_was_asked() -> None:
    assert BookieReport(0).is_final("ab")
    assert BookieReport(1).is_final("ab")
    assert BookieReport(1, asked=frozenset("abc")).is_final("ab")
    assert not BookieReport(1, asked=frozenset("a")).is_final("ab")
    assert not BookieReport(1, retried=1, asked=frozenset("ab")).is_final("ab")


def test_each_obstacle_is_said() -> None:
    assert obstacles("ab", "ab", "") == []
    assert obstacles("ab", "a", "b") == []
    assert obstacles("", "", "") == ["there is no bookie to ask"]
    assert obstacles("a", "a", "z") == ["bookie z: the cluster knows no such bookie"]
    assert obstacles("ab", "ab", "b") == ["bookie b is here: it can't be given up"]
    assert obstacles("ab", "a", "") == ["bookie b isn't here: start it, or go on without it"]
    reports = {"a": BookieReport(0), "b": BookieReport(3, (7, 8), retried=2), "c": BookieReport(1, (9,))}
    assert obstacles("abcd", "abcd", "", reports) == [
        "bookie b can't get all entries of 3 ledgers: 7, 8, ...; it tries 2 of them again",
        "bookie c can't get all entries of 1 ledgers: 9",
        "bookie d has not reported yet: it looks for what it misses",
    ]
