"""Which bookies are lost: every case of the tables, and every short history of three bookies."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

import pytest

from bkpy.protocol.repair.lost_bookies import (
    STEPS,
    Absence,
    AbsenceBefore,
    AuditRecord,
    BookieStatus,
    Findings,
    Presence,
    audit,
    covers,
    with_marked,
    with_worked_off,
    without_gone,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

SETTLE, DELAY = 10, 100
NOW = 1000
HERE, LIMBO, ABSENT = Presence.HERE, Presence.LIMBO, Presence.ABSENT
FIVE = "abcde"
GONE = BookieStatus(ABSENT, "", has_cookie=False)


def look(
    record: AuditRecord, now: int = NOW, *, bookies: str = FIVE, delay: int = DELAY, **seen: Presence | BookieStatus
) -> Findings:
    """An audit of five bookies that are here, with the storage 1, but for those of which something else is said."""
    all_seen = {bookie: seen.get(bookie, HERE) for bookie in bookies}
    given = {bookie: BookieStatus(is_, "1") if isinstance(is_, Presence) else is_ for bookie, is_ in all_seen.items()}
    return audit(record, given, now, settle_ms=SETTLE, delay_ms=delay)


def record(suspended: bool = False, **absences: Absence) -> AuditRecord:
    return AuditRecord(dict.fromkeys(FIVE, "1"), absences, suspended)


def since(age: int, **fields: bool) -> Absence:
    return Absence(NOW - age, "1", **fields)


# --- one bookie -----------------------------------------------------------------------------------------------------


def test_the_table_is_total() -> None:
    assert STEPS.keys() == set(AbsenceBefore)
    assert all(row.keys() == set(Presence) for row in STEPS.values())


UNMARKED, SOME_MARKED, MARKED = since(5), since(200, begun=True), since(500, begun=True, marked=True)
REPLACED, REPLACED_MARKED = since(5, replaced=True), since(500, replaced=True, marked=True)
BEGUN = Absence(NOW, "1")
RESTART = Absence(NOW, "1", replaced=True)


@pytest.mark.scenario(57)
@pytest.mark.parametrize(
    ("was", "presence", "instance", "becomes", "returned"),
    [
        # Nothing was amiss.
        (None, HERE, "1", None, False),
        (None, LIMBO, "1", BEGUN, False),
        (None, ABSENT, "1", BEGUN, False),
        (None, HERE, "2", RESTART, False),
        (None, LIMBO, "2", BEGUN, False),
        (None, ABSENT, "2", BEGUN, False),
        # It was absent, not for long enough.
        (UNMARKED, HERE, "1", None, False),
        (UNMARKED, LIMBO, "1", UNMARKED, False),
        (UNMARKED, ABSENT, "1", UNMARKED, False),
        (UNMARKED, HERE, "2", RESTART, False),
        (UNMARKED, LIMBO, "2", UNMARKED, False),
        (UNMARKED, ABSENT, "2", UNMARKED, False),
        # Some of its ledgers may have been marked.
        (SOME_MARKED, HERE, "1", None, True),
        (SOME_MARKED, LIMBO, "1", SOME_MARKED, False),
        (SOME_MARKED, ABSENT, "1", SOME_MARKED, False),
        (SOME_MARKED, HERE, "2", RESTART, False),
        (SOME_MARKED, LIMBO, "2", SOME_MARKED, False),
        (SOME_MARKED, ABSENT, "2", SOME_MARKED, False),
        # All were.
        (MARKED, HERE, "1", None, True),
        (MARKED, LIMBO, "1", MARKED, False),
        (MARKED, ABSENT, "1", MARKED, False),
        (MARKED, HERE, "2", RESTART, False),
        (MARKED, LIMBO, "2", MARKED, False),
        (MARKED, ABSENT, "2", MARKED, False),
        # It has another storage, and what the former one had isn't marked yet.
        *((REPLACED, presence, instance, REPLACED, False) for presence in Presence for instance in "12"),
        # That is marked now.
        (REPLACED_MARKED, HERE, "1", None, False),
        (REPLACED_MARKED, LIMBO, "1", BEGUN, False),
        (REPLACED_MARKED, ABSENT, "1", BEGUN, False),
        (REPLACED_MARKED, HERE, "2", RESTART, False),
        (REPLACED_MARKED, LIMBO, "2", BEGUN, False),
        (REPLACED_MARKED, ABSENT, "2", BEGUN, False),
    ],
)
def test_what_becomes_of_a_bookies_absence(
    was: Absence | None, presence: Presence, instance: str, becomes: Absence | None, returned: bool
) -> None:
    before = record() if was is None else record(a=was)
    found = look(before, a=BookieStatus(presence, instance))
    assert found.record.absences == ({} if becomes is None else {"a": becomes})
    assert found.returned == ({"a": instance} if returned else {})


@pytest.mark.parametrize(
    ("now", "before", "expected"),
    [("1", "1", True), ("1 2", "1", True), ("2 1", "1 2", True), ("1", "1 2", False), ("2", "1", False)]
    + [(one, other, True) for one, other in (("", "1"), ("1", ""), ("", ""))],
)
def test_a_storage_that_has_got_directories_is_the_same(now: str, before: str, expected: bool) -> None:
    assert covers(now, before) is expected


def test_directories_that_were_added_while_it_was_away_do_not_matter() -> None:
    found = look(record(a=MARKED), a=BookieStatus(HERE, "1 2"))
    assert found.returned == {"a": "1 2"}
    assert found.record.instances["a"] == "1 2"
    assert look(found.record, a=BookieStatus(HERE, "1")).record.absences == {
        "a": dataclasses.replace(RESTART, instance="1 2")
    }


@pytest.mark.scenario(57)
@pytest.mark.parametrize(("absent_for", "rebuilt_after", "due_at"), [(0, 99, None), (50, 49, None), (50, 200, 50)])
def test_a_bookie_that_rebuilds_itself_has_as_long_as_an_absent_one(
    absent_for: int, rebuilt_after: int, due_at: int | None
) -> None:
    state, now = look(record(), a=ABSENT).record, NOW + absent_for
    state = look(state, now, a=BookieStatus(ABSENT, "2")).record  # its cookie comes first
    found = look(state, now, a=BookieStatus(LIMBO, "2"))
    assert not found.due
    assert found.record.absences == {"a": BEGUN}, "what is lost is the former storage, since it was away"
    assert found.look_at_ms == NOW + DELAY
    if due_at is not None:
        found = look(found.record, now + due_at, a=BookieStatus(LIMBO, "2"))
        assert found.due == {"a": BEGUN}
        found = look(with_marked(found.record, "a"), now + due_at + 1, a=BookieStatus(LIMBO, "2"))
        assert not found.due
    found = look(found.record, now + rebuilt_after, a=BookieStatus(HERE, "2"))
    assert not found.due
    assert not found.record.absences
    assert found.returned == ({} if due_at is None else {"a": "2"})  # marks are of the former storage, and stay


def test_one_that_dies_while_it_rebuilds_itself_is_lost_and_what_it_had_is_not_back_with_it() -> None:
    state = look(record(), a=BookieStatus(LIMBO, "2")).record
    found = look(state, NOW + DELAY, a=BookieStatus(ABSENT, "2"))
    assert found.due == {"a": BEGUN}
    state = with_marked(found.record, "a")
    # Empty again, and not told to get anything back.
    assert look(state, NOW + DELAY, a=BookieStatus(HERE, "3")).due == {"a": Absence(NOW + DELAY, "2", replaced=True)}


def test_one_that_comes_back_empty_and_says_nothing_of_it_is_lost_at_once() -> None:
    state = look(record(), a=BookieStatus(ABSENT, "2")).record
    assert look(state, NOW + 1, a=BookieStatus(HERE, "2")).due == {"a": Absence(NOW + 1, "1", replaced=True)}


def test_two_that_rebuild_themselves_only_settle() -> None:
    state = look(record(), a=BookieStatus(LIMBO, "2"), b=BookieStatus(LIMBO, "2")).record
    assert set(look(state, NOW + SETTLE, a=BookieStatus(LIMBO, "2"), b=BookieStatus(LIMBO, "2")).due) == {"a", "b"}


def test_a_storage_that_is_replaced_twice_is_lost_twice() -> None:
    first = look(record(), a=BookieStatus(HERE, "2"))
    assert first.due == {"a": RESTART}
    second = look(first.record, a=BookieStatus(HERE, "3"))  # before the first loss was marked
    assert second.due == {"a": RESTART}
    third = look(with_marked(second.record, ["a"]), a=BookieStatus(HERE, "3"))
    assert third.due == {"a": dataclasses.replace(RESTART, instance="2")}
    last = look(with_marked(third.record, ["a"]), a=BookieStatus(HERE, "3"))
    assert not last.due
    assert not last.record.absences


def test_a_storage_that_is_not_known_is_neither_lost_nor_taken_for_another() -> None:
    found = look(record(), a=BookieStatus(HERE, ""))
    assert not found.record.absences
    assert found.record.instances["a"] == "1"


def test_a_new_bookie_is_no_loss() -> None:
    found = look(record(), bookies="abcdef")
    assert found == Findings(dataclasses.replace(record(), instances=dict.fromkeys("abcdef", "1")), {}, {}, None)


def test_a_bookie_whose_cookie_was_removed_is_lost_when_it_goes() -> None:
    """It only settles: nobody expects it back."""
    here, gone = BookieStatus(HERE, "", has_cookie=False), GONE
    found = look(record(), a=here)
    assert found == Findings(record(), {}, {}, None)
    assert look(record(a=since(99)), a=here).record == record()
    found = look(found.record, a=gone)
    assert found.record == record(a=BEGUN)
    assert found.look_at_ms == NOW + SETTLE
    assert look(found.record, NOW + SETTLE, a=gone).due == {"a": BEGUN}
    # One that is made anew under its name has lost what it had, as with a cookie.
    assert look(found.record, a=BookieStatus(HERE, "2")).due == {"a": RESTART}
    assert not look(found.record, a=BookieStatus(HERE, "1")).record.absences


def test_only_what_is_gone_with_its_cookie_is_forgotten() -> None:
    off = {bookie: since(500, marked=True, worked_off=True) for bookie in "abcd"}
    before = record(**off, e=since(500, marked=True))
    seen = {
        "a": GONE,
        "b": BookieStatus(ABSENT, "1"),
        "c": BookieStatus(LIMBO, "", has_cookie=False),
        "d": GONE,
        "e": GONE,
    }
    after = without_gone(before, seen, but={"d"})
    assert before.bookies == set(FIVE)
    assert after == AuditRecord(dict.fromkeys("bcde", "1"), {b: before.absences[b] for b in "bcde"})
    assert without_gone(before, {}, but=()) == before


@pytest.mark.parametrize(("known", "suspended"), [(True, False), (False, True)])
def test_bookies_without_a_cookie_count_among_the_half_that_is_absent_unless_they_had_one(
    known: bool, suspended: bool
) -> None:
    """They were removed on purpose; the ones that never had any may be those of a cluster that is restored."""
    before = AuditRecord(dict.fromkeys(FIVE, "1") if known else {"d": "1", "e": "1"})
    gone = dict.fromkeys("abc", GONE)
    found = look(before, **gone)
    assert found.record.suspended is suspended
    assert found.record.absences == {bookie: Absence(NOW, "1" if known else "") for bookie in "abc"}
    found = look(found.record, NOW + SETTLE, **gone)
    assert set(found.due) == (set() if suspended else set("abc"))
    # Those that are left are a cluster of their own: of two, one may be absent.
    assert look(before, **gone, d=ABSENT).record.suspended is suspended
    assert look(before, **gone, d=ABSENT, e=ABSENT).record.suspended


def test_registered_bookies_without_a_cookie_are_not_absent_and_if_all_are_gone_nobody_is_lost() -> None:
    here = dict.fromkeys("abcd", BookieStatus(HERE, "", has_cookie=False))
    found = look(record(), **here, e=ABSENT)
    assert not found.record.suspended
    assert set(look(found.record, NOW + DELAY, **here, e=ABSENT).due) == {"e"}
    assert look(record(), **dict.fromkeys(FIVE, GONE)).record.suspended


# --- when -----------------------------------------------------------------------------------------------------------


@pytest.mark.scenario(57)
@pytest.mark.parametrize(
    ("ages", "due", "look_at"),
    [
        ([0], "", 100),
        ([9], "", 91),
        ([10], "", 90),
        ([99], "", 1),
        ([100], "a", None),
        ([1000], "a", None),
        ([0, 0], "", 10),
        ([9, 9], "", 1),
        ([10, 9], "", 1),
        ([10, 10], "ab", None),
        ([99, 9], "", 1),
        ([100, 9], "a", 1),
        ([100, 0], "a", 10),
        ([100, 10], "ab", None),
        ([1000, 9], "a", 1),
    ],
)
def test_one_waits_for_the_delay_and_two_only_settle(ages: list[int], due: str, look_at: int | None) -> None:
    absences = {bookie: since(age) for bookie, age in zip("ab", ages, strict=False)}
    found = look(record(**absences), **dict.fromkeys(absences, ABSENT))
    assert set(found.due) == set(due)
    assert found.look_at_ms == (None if look_at is None else NOW + look_at)
    assert found.record.absences == absences
    if look_at is not None:
        assert len(look(found.record, NOW + look_at, **dict.fromkeys(absences, ABSENT)).due) > len(due)


@pytest.mark.parametrize("delay", [0, 5, 10])
def test_none_is_lost_before_it_has_settled(delay: int) -> None:
    assert not look(record(a=since(9)), delay=delay, a=ABSENT).due
    assert look(record(a=since(10)), delay=delay, a=ABSENT).due


@pytest.mark.parametrize(("worked_off", "due"), [(False, True), (True, False)])
def test_one_that_was_lost_before_counts_until_nothing_misses_it(worked_off: bool, due: bool) -> None:
    old = since(5000, marked=True, worked_off=worked_off)
    found = look(record(a=old, b=since(10)), a=ABSENT, b=ABSENT)
    assert set(found.due) == ({"b"} if due else set())


@pytest.mark.scenario(57)
def test_what_is_marked_is_not_due_again() -> None:
    found = look(record(a=since(100), b=since(100)), a=ABSENT, b=ABSENT)
    marked = with_marked(found.record, ["a"])
    assert marked.absences == {"a": since(100, marked=True), "b": since(100)}
    assert set(look(marked, a=ABSENT, b=ABSENT).due) == {"b"}
    done = with_worked_off(with_marked(marked, ["b"]))
    assert all(absence.worked_off for absence in done.absences.values())
    assert not look(done, a=ABSENT, b=ABSENT).due
    assert not with_worked_off(record(a=since(5))).absences["a"].worked_off


@pytest.mark.scenario(57)
def test_a_rolling_restart_marks_nothing() -> None:
    """One after the other is away for nearly the delay, and the next one goes when it is back."""
    state, now = record(), NOW
    for bookie in FIVE:
        for age in range(0, DELAY, 5):
            found = look(state, now + age, **{bookie: ABSENT})
            assert not found.due
            state = found.record
        now += DELAY
        state = look(state, now).record
        assert not state.absences


@pytest.mark.scenario(57)
def test_a_fast_rolling_restart_in_which_two_are_away_for_a_moment_marks_nothing() -> None:
    state = record()
    for now in range(NOW, NOW + 200):
        away = {FIVE[i % 5]: ABSENT for i in range((now - NOW) // 8, (now - NOW) // 8 + 2) if (now - NOW) % 8 < 4}
        found = look(state, now, **away)
        assert not found.due
        state = found.record


def test_a_new_auditor_goes_on_with_the_clock_of_the_one_before() -> None:
    first = look(record(), a=ABSENT)
    assert first.look_at_ms == NOW + DELAY
    second = look(first.record, NOW + 60, a=ABSENT)
    assert second.look_at_ms == NOW + DELAY
    assert look(second.record, NOW + DELAY, a=ABSENT).due


def test_a_clock_that_was_ahead_holds_up_nobody_for_longer_than_the_delay() -> None:
    found = look(record(a=Absence(NOW + 10_000, "1")), a=ABSENT)
    assert found.record.absences == {"a": BEGUN}
    assert found.look_at_ms == NOW + DELAY


# --- most of them ---------------------------------------------------------------------------------------------------


@pytest.mark.scenario(57)
@pytest.mark.parametrize(("count", "absent"), [(count, absent) for count in range(1, 6) for absent in range(count + 1)])
def test_while_most_are_absent_nothing_is_marked(count: int, absent: int) -> None:
    bookies = FIVE[:count]
    away = bookies[:absent]
    found = look(record(**{bookie: since(1000) for bookie in away}), bookies=bookies, **dict.fromkeys(away, ABSENT))
    assert found.record.suspended is (2 * absent > count)
    assert set(found.due) == (set() if 2 * absent > count else set(away))
    if found.record.suspended:
        assert found.look_at_ms is None


def test_when_most_are_back_the_clocks_of_the_others_begin_again() -> None:
    marked, replaced = since(1000, marked=True), since(1000, replaced=True)
    before = record(True, a=since(1000), b=since(1000), c=marked, d=replaced)
    found = look(before, bookies="abcdefgh", a=ABSENT, b=ABSENT, c=ABSENT, d=HERE)
    assert not found.record.suspended
    again = dataclasses.replace(BEGUN, began_ms=NOW - 1000)
    assert found.record.absences == {"a": again, "b": again, "c": marked, "d": replaced}
    assert again.missing_since_ms == NOW - 1000
    assert set(found.due) == {"d"}
    assert found.look_at_ms == NOW + SETTLE


def test_those_that_nothing_misses_any_more_do_not_count() -> None:
    old = {bookie: since(5000, marked=True, worked_off=True) for bookie in "ab"}
    found = look(record(**old, c=since(100)), a=ABSENT, b=ABSENT, c=ABSENT)
    assert not found.record.suspended  # one of three
    assert set(found.due) == {"c"}
    found = look(record(**old, c=since(100), d=since(100)), a=ABSENT, b=ABSENT, c=ABSENT, d=ABSENT)
    assert found.record.suspended  # two of three


# --- every short history --------------------------------------------------------------------------------------------

STATES = [
    BookieStatus(HERE, "1"),
    BookieStatus(LIMBO, "1"),
    BookieStatus(ABSENT, "1"),
    BookieStatus(HERE, "2"),
    BookieStatus(LIMBO, "2"),
]
WITHOUT_COOKIE = [*(BookieStatus(is_, "", has_cookie=False) for is_ in (HERE, LIMBO)), GONE]


def check(before: AuditRecord, seen: Mapping[str, BookieStatus], found: Findings, now: int) -> None:
    after = found.record
    for bookie, is_ in seen.items():
        absence = after.absences.get(bookie)
        as_it_was = is_.presence is HERE and covers(is_.instance, before.instances.get(bookie, ""))
        if as_it_was and not (bookie in before.absences and before.absences[bookie].replaced):
            assert absence is None, "it is here, as it was"
            assert bookie not in found.due
        if is_.presence is not HERE:
            assert absence is not None
        if bookie in found.returned:
            assert as_it_was
            assert before.absences[bookie].begun or before.absences[bookie].marked
        if absence is not None:
            assert absence.since_ms <= now
            assert not absence.worked_off or absence.marked
    for bookie, absence in before.absences.items():
        if absence.replaced and not absence.marked:
            assert after.absences[bookie].replaced, "the loss of a storage was forgotten"
    for bookie, absence in found.due.items():
        assert not absence.marked
        assert absence.replaced or now - absence.since_ms >= SETTLE
        alone = sum(now - other.since_ms >= SETTLE for other in after.absences.values() if not other.worked_off) < 2
        removed = not seen[bookie].has_cookie and after.instances[bookie] != ""
        assert absence.replaced or removed or not alone or now - absence.since_ms >= DELAY
    if after.suspended:
        assert not found.due
    assert found.look_at_ms is None or found.look_at_ms > now
    assert audit(after, seen, now, settle_ms=SETTLE, delay_ms=DELAY).record == after, "looking twice changes nothing"


@pytest.mark.exhaustive
def test_every_history_of_three_bookies_and_two_looks() -> None:
    count = 0
    start = AuditRecord(dict.fromkeys("abc", "1"))
    for one in itertools.product(STATES, repeat=3):
        seen = dict(zip("abc", one, strict=True))
        first = audit(start, seen, NOW, settle_ms=SETTLE, delay_ms=DELAY)
        check(start, seen, first, NOW)
        for marked in ([], list(first.due)):
            state = with_marked(first.record, marked)
            for two in itertools.product(STATES, repeat=3):
                again = dict(zip("abc", two, strict=True))
                for later in (1, SETTLE, DELAY):
                    found = audit(state, again, NOW + later, settle_ms=SETTLE, delay_ms=DELAY)
                    check(state, again, found, NOW + later)
                    count += 1
    assert count > 20_000


@pytest.mark.parametrize("looks", [2, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_every_history_of_one_bookie(looks: int) -> None:
    """Of one among others that are here, with every one of its losses marked at once or never."""
    for history in itertools.product(
        [*STATES, BookieStatus(ABSENT, "2"), *WITHOUT_COOKIE], (1, SETTLE, DELAY), repeat=looks
    ):
        for marking in (False, True):
            state, now = record(), NOW
            for is_, later in zip(history[::2], history[1::2], strict=True):
                assert isinstance(is_, BookieStatus)
                assert isinstance(later, int)
                now += later
                seen = {**dict.fromkeys("bcde", BookieStatus(HERE, "1")), "a": is_}
                found = audit(state, seen, now, settle_ms=SETTLE, delay_ms=DELAY)
                check(state, seen, found, now)
                state = with_marked(found.record, found.due if marking else [])
