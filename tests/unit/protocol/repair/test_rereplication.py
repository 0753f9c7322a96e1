"""What becomes of a ledger whose bookies are lost: every ensemble of up to four, whoever is lost, in every state."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.protocol.repair.rereplication_model import Recovery, Rules, State, Worker, explore
from tests.unit.protocol.repair.rereplication_model import ledger as ledger_of

from bkpy.errors import ConfigError
from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bkpy.protocol.ledger.quorum import write_set
from bkpy.protocol.repair.rereplication import (
    AFTER_SWAP,
    Bookies,
    Copy,
    CopyBlocker,
    CopyMethod,
    NextStep,
    Plan,
    RecordUpdate,
    RepairedInPlace,
    RepairStep,
    Stuck,
    Swap,
    backoff_s,
    copies_left,
    copy_method,
    endangered,
    next_step,
    plan,
    record_update,
    swapped,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = "abcd"
OVER_REPLICATED = "s"
SIZES = [(e, w, a) for e in range(1, 5) for w in range(1, e + 1) for a in range(1, w + 1)]


def ledger(
    sizes: tuple[int, int, int], state: LedgerState = LedgerState.CLOSED, *, fragments: int = 2, last: int | None = None
) -> LedgerMetadata:
    """Fragments of seven entries each, the last one of five, on the first bookies, each time in another order."""
    size = sizes[0]
    ensembles = [tuple(NAMES[(i + number) % size] for i in range(size)) for number in range(fragments)]
    end = 7 * (fragments - 1) + 4 if last is None else last
    return LedgerMetadata(
        ledger_id=7,
        state=state,
        ensemble_size=size,
        write_quorum=sizes[1],
        ack_quorum=sizes[2],
        digest="crc32c",
        ledger_key=bytes(32),
        fragments=tuple(Fragment(7 * number, names) for number, names in enumerate(ensembles)),
        last_entry=end if state is LedgerState.CLOSED else -1,
        length=end + 1 if state is LedgerState.CLOSED else 0,
    )


def subsets(names: str) -> Iterator[frozenset[str]]:
    for count in range(len(names) + 1):
        yield from map(frozenset, itertools.combinations(names, count))


def living(lost: frozenset[str], *, spare: bool = True, size: int = 4) -> Bookies:
    readable = frozenset(NAMES[:size]) - lost | ({OVER_REPLICATED} if spare else set())
    return Bookies(readable, readable)


def ids(copy: Copy) -> list[int]:
    return sorted(entry for start in copy.share.starts for entry in range(start, copy.last + 1, copy.share.step))


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("state", LedgerState)
def test_every_lost_place_of_a_fragment_with_an_end_is_copied_or_it_is_said_what_is_missing(
    sizes: tuple[int, int, int], state: LedgerState
) -> None:
    metadata = ledger(sizes, state)
    ends = [6, metadata.last_entry if state is LedgerState.CLOSED else None]
    for lost in subsets(NAMES[: sizes[0]]):
        planned = plan(metadata, lost, living(lost, size=sizes[0]))
        expected = {
            (number, place)
            for number, fragment in enumerate(metadata.fragments)
            for place, name in enumerate(fragment.bookies)
            if name in lost and ends[number] is not None
        }
        copies = {(copy.fragment, copy.place): copy for copy in planned.copies}
        stuck: dict[tuple[int, int], list[Stuck]] = {}
        for one in planned.stuck:
            stuck.setdefault((one.fragment, one.place), []).append(one)
        assert copies.keys() | stuck.keys() == expected
        assert not copies.keys() & stuck.keys()
        for (number, place), copy in copies.items():
            fragment = metadata.fragments[number]
            assert copy.old == fragment.bookies[place]
            assert (copy.first, copy.last) == (fragment.first_entry, ends[number])
            # Exactly the ids whose write set has the place, each of which somebody still has.
            of_place = [n for n in range(copy.first, copy.last + 1) if place in write_set(n, *sizes[:2])]
            assert ids(copy) == of_place
            assert copy.share.entries == len(of_place)
            copies_of = [{fragment.bookies[i] for i in write_set(n, *sizes[:2])} - lost for n in of_place]
            assert copy.left == min(map(len, copies_of)) > 0
        for (number, place), some in stuck.items():
            fragment = metadata.fragments[number]
            last = ends[number]
            assert last is not None
            gone = {
                n: {fragment.bookies[i] for i in write_set(n, *sizes[:2])}
                for n in range(fragment.first_entry, last + 1)
                if place in write_set(n, *sizes[:2]) and {fragment.bookies[i] for i in write_set(n, *sizes[:2])} <= lost
            }
            assert {n: set(one.bookies) for one in some for n in range(one.first, one.last + 1, one.step)} == gone
            assert sum(one.entries for one in some) == len(gone)
            for one in some:
                assert one.blocker is CopyBlocker.NO_SOURCE
                assert one.description.endswith(f"{' or '.join(sorted(one.bookies))} has to come back")
        if state is not LedgerState.CLOSED:
            assert set(planned.unclosed) == lost & set(metadata.fragments[-1].bookies)
        else:
            assert not planned.unclosed
        assert [copy.left for copy in planned.copies] == sorted(copy.left for copy in planned.copies)


def test_which_entries_are_stuck_is_told_in_words() -> None:
    assert STUCK.description == "entries 0 to 6: no bookie that has a copy can be reached; a or b has to come back"
    striped = STUCK._replace(last=8, entries=3, step=4)
    assert striped.description.startswith("3 of entries 0 to 8, one in 4: no bookie")
    assert STUCK._replace(last=0, entries=1, step=4).description.startswith("entry 0: no bookie")


@pytest.mark.parametrize("sizes", SIZES)
def test_a_plan_that_is_carried_out_leaves_nothing_to_be_done(sizes: tuple[int, int, int]) -> None:
    """One copy after the other, onto a new bookie each time: the ensembles are whole, and none is left stuck by it."""
    for lost in subsets(NAMES[: sizes[0]]):
        metadata = ledger(sizes)
        before = plan(metadata, lost, living(lost, size=sizes[0]))
        for number in range(20):
            planned = plan(metadata, lost, living(lost, size=sizes[0]))
            if not planned.copies:
                break
            new = swapped(metadata, planned.copies[0], f"new-{number}")
            assert new is not None
            metadata = new
        assert {(one.fragment, one.place) for one in planned.stuck} == {
            (one.fragment, one.place) for one in before.stuck
        }
        for number, fragment in enumerate(metadata.fragments):
            stuck = {one.place for one in planned.stuck if one.fragment == number}
            assert {place for place, name in enumerate(fragment.bookies) if name in lost} == stuck


def test_a_bookie_that_is_to_leave_and_still_answers_is_a_source() -> None:
    metadata = ledger((2, 2, 2))
    everybody = living(frozenset(), size=2)
    planned = plan(metadata, "ab", everybody)
    assert not planned.stuck
    assert {copy.left for copy in planned.copies} == {2}
    assert {copy.old for copy in planned.copies} == {"a", "b"}


def test_without_a_bookie_outside_the_ensemble_there_is_nowhere_to_copy_to() -> None:
    metadata = ledger((3, 3, 2))
    for spare, leaving in ((False, "a"), (True, "as")):
        planned = plan(metadata, leaving, living(frozenset("a"), spare=spare, size=3))
        assert not planned.copies
        assert {one.blocker for one in planned.stuck} == {CopyBlocker.NO_TARGET}
        assert "to be copied from a's place" in planned.stuck[0].description
        assert planned.left is None
    readonly = Bookies(frozenset("bcs"), frozenset("bc"))
    assert not plan(metadata, "a", readonly).copies


@pytest.mark.parametrize("sizes", [size for size in SIZES if size[0] < 4])
def test_an_open_ledger_is_left_to_its_writer_if_nobody_could_take_the_place_of_the_lost_ones(
    sizes: tuple[int, int, int],
) -> None:
    size, write_quorum, ack_quorum = sizes
    names = NAMES[:size]
    metadata = ledger(sizes, LedgerState.OPEN, fragments=1)
    for lost in subsets(names):
        left = frozenset(names) - lost
        goes_on = all(
            sum(names[i] in left for i in write_set(n, size, write_quorum)) >= ack_quorum for n in range(size)
        )
        planned = plan(metadata, lost, Bookies(left, left))
        if lost and goes_on:
            assert {one.blocker for one in planned.stuck} == {CopyBlocker.NO_TARGET}
            assert [one.old for one in planned.stuck] == [name for name in names if name in lost]
            assert not planned.unclosed
        else:
            assert set(planned.unclosed) == lost
            assert not planned.stuck
        # With a bookie that could take the place the ledger is to be closed; so is one whose recovery has begun.
        assert set(plan(metadata, lost, Bookies(left | {OVER_REPLICATED}, left | {OVER_REPLICATED})).unclosed) == lost
        recovering = ledger(sizes, LedgerState.IN_RECOVERY, fragments=1)
        assert set(plan(recovering, lost, Bookies(left, left)).unclosed) == lost


def test_a_bookie_in_limbo_gets_its_ledgers_closed_though_nobody_could_take_its_place() -> None:
    metadata = ledger((3, 3, 2), LedgerState.OPEN, fragments=1)
    everybody = frozenset("abc")
    assert plan(metadata, "a", Bookies(everybody, everybody)).stuck
    assert plan(metadata, "a", Bookies(everybody, everybody, frozenset("a"))).unclosed == ("a",)
    assert plan(metadata, "a", Bookies(frozenset("bc"), frozenset("bc"))).stuck
    # What it has doesn't count for the others either.
    assert plan(metadata, "a", Bookies(frozenset("bc"), frozenset("bc"), frozenset("b"))).unclosed == ("a",)


def test_pauses_double_up_to_their_bound_for_ever() -> None:
    assert [backoff_s(failures, 0.5, 3.0) for failures in range(-1, 5)] == [0.5, 0.5, 1.0, 2.0, 3.0, 3.0]
    assert {backoff_s(failures, 1e-6, 300.0) for failures in (1023, 1024, 1025, 10**9)} == {300.0}


def test_a_fragment_without_entries_needs_no_source() -> None:
    for last, fragments in ((-1, 1), (6, 2)):
        metadata = ledger((2, 2, 1), fragments=fragments, last=last)
        nobody = Bookies(frozenset(OVER_REPLICATED), frozenset(OVER_REPLICATED))
        empty = [copy for copy in plan(metadata, "ab", nobody).copies if copy.last < copy.first]
        assert [(copy.place, copy.share.entries, ids(copy)) for copy in empty] == [(0, 0, []), (1, 0, [])]


def test_the_most_endangered_share_comes_first() -> None:
    metadata = ledger((4, 2, 1))
    # By write set: a b lost, b c one left, c d two, d a one.
    planned = plan(metadata, "ab", living(frozenset("ab"), size=4))
    assert planned.left == 0
    lefts = [copy.left for copy in planned.copies]
    assert lefts == sorted(lefts)
    whole = plan(metadata, "a", living(frozenset("a"), size=4))
    assert whole.left == 1


@pytest.mark.parametrize("sizes", SIZES)
def test_how_many_copies_are_left_is_known_from_the_write_sets_alone(sizes: tuple[int, int, int]) -> None:
    metadata = ledger(sizes)
    for lost in subsets(NAMES[: sizes[0]]):
        bookies = living(lost, size=sizes[0])
        assert copies_left(endangered(metadata, lost), bookies.readable) == plan(metadata, lost, bookies).left


# --- in place ---------------------------------------------------------------------------------------------------------


def test_where_a_share_is_copied_to() -> None:
    """Never without a source, never in place if another bookie can have it, and in place only where it is taken."""
    for sources, others, incomplete, takes in itertools.product((False, True), repeat=4):
        found = copy_method(sources=sources, others=others, incomplete=incomplete, takes=takes)
        assert (found is CopyBlocker.NO_SOURCE) is (not sources)
        assert (found is CopyMethod.ELSEWHERE) is (sources and others)
        assert (found is CopyMethod.IN_PLACE) is (sources and not others and incomplete and takes)
        assert (found is CopyBlocker.NO_TARGET) is (sources and not others and not (incomplete and takes))


@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 1, 1), (2, 2, 1), (3, 1, 1), (3, 2, 2), (3, 3, 2), (4, 3, 2)])
@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.CLOSED])
def test_what_lacks_entries_is_made_whole_where_it_is_if_nobody_else_is_there(
    sizes: tuple[int, int, int], state: LedgerState
) -> None:
    """Whoever lacks entries, whoever of these takes none, and whoever is lost beside them."""
    metadata, names = ledger(sizes, state), NAMES[: sizes[0]]
    for leaving, lost in itertools.product(subsets(names), repeat=2):
        if not lost <= leaving:
            continue
        for refusing in {frozenset[str](), leaving - lost, frozenset(sorted(leaving - lost)[:1])}:
            everybody = frozenset(names) - lost
            bookies, incomplete = Bookies(everybody, everybody - refusing), leaving - lost
            planned = plan(metadata, leaving, bookies, incomplete=incomplete)
            usual = plan(metadata, leaving, bookies)
            assert planned.unclosed == usual.unclosed
            assert not usual.copies  # there is nobody outside
            assert all(copy.in_place and copy.old in incomplete - refusing for copy in planned.copies)
            places = {(copy.fragment, copy.place) for copy in planned.copies}
            assert {(s.fragment, s.place) for s in usual.stuck} == places | {
                (s.fragment, s.place) for s in planned.stuck
            }
            for one in usual.stuck:
                healable = (
                    one.blocker is CopyBlocker.NO_TARGET
                    and one.old in incomplete - refusing
                    and not open_end(metadata, one)
                )
                assert ((one.fragment, one.place) in places) is healable
            # What was mended is done, and nothing else is.
            done = plan(
                metadata,
                leaving,
                bookies,
                incomplete=incomplete,
                repaired_in_place={copy.repaired_in_place for copy in planned.copies},
            )
            assert (done.copies, done.stuck, done.unclosed) == ((), planned.stuck, planned.unclosed)
            # With another bookie, or if it isn't said that they merely lack entries, it is as ever.
            more = living(lost, size=sizes[0])
            assert plan(metadata, leaving, more, incomplete=incomplete) == plan(metadata, leaving, more)


def open_end(metadata: LedgerMetadata, stuck: Stuck) -> bool:
    return metadata.state is not LedgerState.CLOSED and stuck.fragment == len(metadata.fragments) - 1


def test_what_was_mended_counts_for_that_fragment_and_that_bookie_alone() -> None:
    metadata = ledger((3, 3, 2))
    bookies = living(frozenset(), spare=False, size=3)
    first, second = plan(metadata, "a", bookies, incomplete="a").copies
    assert first.repaired_in_place == RepairedInPlace(0, 0, "a", 0, 6)
    assert second.repaired_in_place == RepairedInPlace(1, 2, "a", 7, 11)
    assert plan(metadata, "a", bookies, incomplete="a", repaired_in_place={first.repaired_in_place}).copies == (second,)
    for other in (
        metadata.replace_bookie(0, 0, "x").replace_bookie(0, 1, "a"),  # it has another place now
        ledger((3, 3, 2), LedgerState.OPEN, fragments=1).new_fragment(4, ("a", "b", "c")),  # with another end
    ):
        assert (
            plan(other, "a", bookies, incomplete="a", repaired_in_place={first.repaired_in_place}).copies[0].fragment
            == 0
        )
    gone = metadata.replace_bookie(0, 0, "x").replace_bookie(1, 2, "x")
    assert plan(gone, "a", bookies, incomplete="a", repaired_in_place={first.repaired_in_place}) == Plan()


def test_what_is_copied_in_place_is_never_swapped() -> None:
    metadata = ledger((3, 3, 2))
    copy = plan(metadata, "a", living(frozenset(), spare=False, size=3), incomplete="a").copies[0]
    assert swapped(metadata, copy, copy.old) is None


# --- what follows from a look -----------------------------------------------------------------------------------------

COPY = plan(ledger((3, 3, 2)), "a", living(frozenset("a"), size=3)).copies[0]
STUCK = Stuck(0, 0, "a", CopyBlocker.NO_SOURCE, 0, 6, 7, ("a", "b"))


@pytest.mark.scenario(22)
@pytest.mark.parametrize("recovered", [False, True])
@pytest.mark.parametrize("all_returned", [False, True])
@pytest.mark.parametrize("grace_over", [False, True])
def test_every_look_has_a_next_step(grace_over: bool, all_returned: bool, recovered: bool) -> None:
    def step(planned: Plan | None) -> RepairStep:
        return next_step(planned, grace_over=grace_over, all_returned=all_returned, recovered=recovered)

    assert step(None) is RepairStep.DONE
    for copies, stuck, unclosed in itertools.product(((), (COPY,)), ((), (STUCK,)), ((), ("a",))):
        following = step(Plan(copies, stuck, unclosed))
        if copies:
            assert following is RepairStep.COPY
        elif not unclosed:
            assert following is (RepairStep.STUCK if stuck else RepairStep.DONE)
        elif all_returned:
            assert following is RepairStep.KEEP_WRITER
        elif grace_over:
            assert following is (RepairStep.STUCK if recovered else RepairStep.RECOVER)
        else:
            assert following is RepairStep.WAIT


def test_a_record_goes_only_with_the_last_bookie_that_it_names() -> None:
    scope = frozenset("ab")
    for lost, repaired in itertools.product(("", "a", "ab", "abc"), ("", "a", "b", "ab")):
        update = record_update(lost, scope, frozenset(repaired))
        if lost and set(lost) <= set(repaired):
            assert update is RecordUpdate.REMOVE
        elif lost:
            assert update is (RecordUpdate.DROP_BOOKIES if repaired else RecordUpdate.KEEP)
        else:  # it is damaged
            assert update is (RecordUpdate.REMOVE if repaired == "ab" else RecordUpdate.KEEP)
    assert record_update("", frozenset(), frozenset()) is RecordUpdate.REMOVE


def test_what_follows_from_a_swap() -> None:
    assert AFTER_SWAP.keys() == set(Swap)
    assert AFTER_SWAP[Swap.LOCK_LOST] is NextStep.STOP
    assert AFTER_SWAP[Swap.UNCERTAIN] is NextStep.LATER
    assert {AFTER_SWAP[entry_status] for entry_status in (Swap.DONE, Swap.CONFLICT, Swap.DELETED)} == {NextStep.LOOK}


@pytest.mark.scenario(22)
@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
def test_the_last_fragment_of_a_ledger_that_is_not_closed_is_never_moved(state: LedgerState) -> None:
    metadata = ledger((3, 3, 2), state)
    planned = plan(metadata, "a", living(frozenset("a"), size=3))
    assert {copy.fragment for copy in planned.copies} == {0}
    assert planned.unclosed == ("a",)
    with pytest.raises(ConfigError, match="isn't closed"):
        metadata.replace_bookie(1, 0, OVER_REPLICATED)
    # Nor by a copy that was made when there was no later fragment.
    open_ended = ledger((3, 3, 2), state, fragments=1)
    assert swapped(open_ended, COPY, OVER_REPLICATED) is None


def test_a_copy_fits_metadata_that_others_have_changed_as_long_as_its_place_is_the_same() -> None:
    metadata = ledger((3, 3, 2), LedgerState.OPEN)
    copy = plan(metadata, "a", living(frozenset("a"), size=3)).copies[0]
    for other in (metadata.new_fragment(20, ("d", "b", "c")), metadata.in_recovery(), metadata.closed(19, 20)):
        new = swapped(other, copy, OVER_REPLICATED)
        assert new is not None
        assert new.fragments[0].bookies == (OVER_REPLICATED, "b", "c")
        assert new.fragments[1:] == other.fragments[1:]
    assert swapped(metadata.replace_bookie(0, 0, "x"), copy, OVER_REPLICATED) is None  # somebody else was quicker
    assert swapped(metadata.replace_bookie(0, 1, OVER_REPLICATED), copy, OVER_REPLICATED) is None  # it is there already
    assert swapped(metadata, copy._replace(last=5), OVER_REPLICATED) is None
    assert swapped(ledger((3, 3, 2), LedgerState.OPEN, fragments=1), copy._replace(fragment=1), OVER_REPLICATED) is None


# --- every order of everybody's steps ---------------------------------------------------------------------------------

A_IS_MARKED: dict[str, Any] = {"mark": frozenset("a"), "marked": frozenset("a")}
OPEN = State(ledger_of("abc"), writer=True, **A_IS_MARKED)
FULL = State(ledger_of("abc", last_entry=0), stored=frozenset("abc"), acknowledged=True, **A_IS_MARKED)
NARROW = FULL._replace(stored=frozenset("ab"))  # on its ack quorum alone
MOVED_ON = State(ledger_of("abc", "bce"), stored=frozenset("ab"), acknowledged=True, **A_IS_MARKED)

# A and d are here; a lacks entry 0. With b and c in both fragments, neither can take the other's place.
LACKING = State(
    ledger_of("abc", "dbc", last_entry=0),
    stored=frozenset("bc"),
    acknowledged=True,
    mark=frozenset("ad"),
    marked=frozenset("ad"),
    incomplete=frozenset("ad"),
)

STARTS = {
    "a writer and a worker": OPEN._replace(one=Worker(), losses=1),
    "a writer, a worker and a recovery": OPEN._replace(one=Worker(), recovery=Recovery("mark")),
    "two workers": FULL._replace(one=Worker(), two=Worker(), losses=1),
    "two workers and a narrow ledger": NARROW._replace(one=Worker(), two=Worker(), losses=1),
    "a second loss": FULL._replace(one=Worker(), two=Worker(), second_loss=True),
    "a second loss while it is written": OPEN._replace(one=Worker(), second_loss=True),
    "a deletion": FULL._replace(one=Worker(), two=Worker(), deleter=True, losses=1),
    "a deletion while it is written": OPEN._replace(one=Worker(), deleter=True, losses=1),
    "a collection": NARROW._replace(one=Worker(), collector="start", losses=1),
    "an earlier fragment": MOVED_ON._replace(one=Worker(), two=Worker(), losses=1),
    "an earlier fragment and a recovery": MOVED_ON._replace(one=Worker(), recovery=Recovery("mark"), losses=1),
    "two that lack entries": LACKING._replace(one=Worker(), two=Worker(), losses=1),
    "one that lacks it once more": LACKING._replace(one=Worker(), two=Worker(), relapse=True),
    "two that lack entries, and a loss": LACKING._replace(one=Worker(), second_loss=True, losses=1),
    "two that lack entries of a ledger that goes": LACKING._replace(one=Worker(), deleter=True, losses=1),
    "one that lacks entries, and a writer": OPEN._replace(incomplete=frozenset("a"), one=Worker(), losses=1),
    "an earlier fragment and a deletion": MOVED_ON._replace(one=Worker(), deleter=True, second_loss=True),
}


@pytest.mark.scenario(22)
@pytest.mark.parametrize("name", STARTS)
def test_nothing_is_lost_in_any_order_of_steps(name: str) -> None:
    seen, broken = explore(STARTS[name], Rules())
    assert not broken
    assert len(seen) > 20


@pytest.mark.parametrize("name", ["two workers", "a collection", "an earlier fragment", "a deletion"])
def test_workers_get_there(name: str) -> None:
    """In some order of steps nothing is left to be done."""
    seen, _ = explore(STARTS[name], Rules())
    there = [state.metadata for state in seen if not state.mark and state.metadata is not None]
    assert any("d" in metadata.fragments[0].bookies for metadata in there)


@pytest.mark.parametrize("name", ["two that lack entries", "one that lacks it once more"])
def test_those_that_lack_entries_get_them_where_they_are(name: str) -> None:
    seen, _ = explore(STARTS[name], Rules())
    ended = [state for state in seen if not state.mark]
    assert any("a" in state.stored and state.metadata == LACKING.metadata for state in ended)


@pytest.mark.parametrize(
    ("rule", "name", "broken"),
    [
        ("waits_for_the_writer", "a writer and a worker", "a writer was ended that still had time"),
        ("keeps_newer_marks", "a second loss", "a mark is lost: of b"),
        ("copies_before_the_swap", "two workers and a narrow ledger", "a copy was replaced by a worse one"),
        ("leaves_last_fragments", "a writer, a worker and a recovery", "the ledger was cut short"),
        ("checks_its_lock", "a collection", "a copy was replaced by a worse one"),
        ("copies_in_place", "two that lack entries", "a mark is lost: of a"),
        ("keeps_newer_marks", "one that lacks it once more", "a mark is lost: of a"),
    ],
)
def test_without_a_rule_something_is_lost(rule: str, name: str, broken: str) -> None:
    _, found = explore(STARTS[name], Rules()._replace(**{rule: False}))
    assert broken in found
