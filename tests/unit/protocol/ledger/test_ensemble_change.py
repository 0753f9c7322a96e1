"""What a writer does about bookies that fail: the tables, the order of acknowledgements across a change, and a writer
under random schedules of answers, failures and changes."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples, stride
from tests.unit.protocol.ledger.protocol_model import Writer
from tests.unit.protocol.ledger.protocol_world import Safeguards, World

from bkpy.protocol.ledger.acks import BareBatch, Batch, Flight, LedgerAcks, ReassignedBatch
from bkpy.protocol.ledger.ensemble_change import REACTIONS, Case, Conflict, Reaction, members_of, on_conflict
from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bkpy.protocol.wire.messages import Status

# --- the tables -------------------------------------------------------------------------------------------------


def test_the_table_of_reactions_is_total() -> None:
    assert set(REACTIONS) == {Case(*flags) for flags in itertools.product((False, True), repeat=4)}


@pytest.mark.scenario(29)
def test_where_changes_are_not_allowed_the_same_bookies_are_tried_again() -> None:
    assert {REACTIONS[case] for case in REACTIONS if not case.allowed} == {Reaction.RETRY}


@pytest.mark.scenario(28)
def test_a_delayed_change_waits_until_the_ack_quorum_is_in_danger_or_a_bookie_is_full() -> None:
    delayed = {case for case in REACTIONS if case.allowed and case.delay}
    assert {case for case in delayed if REACTIONS[case] is Reaction.NOTHING} == {Case(True, True, False, False)}
    assert {REACTIONS[case] for case in delayed - {Case(True, True, False, False)}} == {Reaction.CHANGE}


def test_otherwise_a_bookie_that_fails_is_replaced_though_it_is_not_needed() -> None:
    assert {REACTIONS[case] for case in REACTIONS if case.allowed and not case.delay} == {Reaction.CHANGE}


ENSEMBLE = ("b1", "b2", "b3")
VALUE = LedgerMetadata(
    ledger_id=1,
    state=LedgerState.OPEN,
    ensemble_size=3,
    write_quorum=3,
    ack_quorum=2,
    digest="crc32c",
    ledger_key=bytes(32),
    fragments=(Fragment(0, ("b7", "b8", "b9")), Fragment(5, ENSEMBLE)),
)
FAILED = [set(chosen) for count in (1, 2, 3) for chosen in itertools.combinations((*ENSEMBLE, "b8", "other"), count)]


@pytest.mark.scenario(27)
@pytest.mark.parametrize("state", list(LedgerState))
@pytest.mark.parametrize("failed", FAILED, ids=lambda names: "+".join(sorted(names)))
def test_what_a_writer_does_when_somebody_else_wrote_first(state: LedgerState, failed: set[str]) -> None:
    fresh = {
        LedgerState.OPEN: VALUE,
        LedgerState.IN_RECOVERY: VALUE.in_recovery(),
        LedgerState.CLOSED: VALUE.closed(9, 9),
    }[state]
    still_named = bool(failed & set(ENSEMBLE))  # in the last fragment: the first one is of no account
    expected = {
        LedgerState.OPEN: Conflict.TRY_AGAIN if still_named else Conflict.ADOPT,
        LedgerState.IN_RECOVERY: Conflict.FENCED,
        LedgerState.CLOSED: Conflict.CLOSED,
    }[state]
    assert on_conflict(fresh, failed) is expected


def test_members_are_named_in_the_order_of_the_ensemble_from_the_entry_on() -> None:
    assert members_of(0, ("a", "b", "c", "d"), 2) == ("a", "b")
    assert members_of(7, ("a", "b", "c", "d"), 2) == ("d", "a")
    assert members_of(7, ("a", "b", "c"), 3) == ("b", "c", "a")


# --- the order of one ledger's batches across a change ----------------------------------------------------------


def sent(acks: LedgerAcks, *ranges: tuple[int, int]) -> list[Batch]:
    batches = [BareBatch(1, first, last, None) for first, last in ranges]
    for batch in batches:
        acks.sent(batch)
    return batches


@pytest.mark.scenario(25)
def test_nothing_is_acknowledged_while_the_ensemble_changes_and_all_of_it_after() -> None:
    acks = LedgerAcks()
    first, second, third = sent(acks, (0, 3), (4, 5), (6, 9))
    acks.done(first)
    acks.freeze()
    assert acks.frozen
    assert acks.done(second) == 3
    assert acks.done(third) == 3
    acks.check_invariants()
    assert acks.above() == [second, third]
    assert acks.thaw() == 9
    assert acks.pending == 0
    assert not acks.frozen
    acks.check_invariants()


@pytest.mark.scenario(25)
def test_a_batch_that_keeps_its_bookies_completes_after_the_change() -> None:
    acks = LedgerAcks()
    untouched, changed = sent(acks, (0, 0), (1, 1))
    acks.freeze()
    acks.done(untouched)
    acks.reopen([changed])
    assert acks.thaw() == 0
    assert acks.done(changed) == 1


def test_a_batch_that_was_done_is_undone_when_its_bookie_was_replaced() -> None:
    acks = LedgerAcks()
    first, second = sent(acks, (0, 0), (1, 1))
    acks.done(second)  # but the first is not, so nobody was told
    acks.freeze()
    acks.reopen([second])
    assert acks.done(first) == -1
    assert acks.thaw() == 0
    assert acks.done(second) == 1


def test_batches_of_striped_ledgers_that_straddle_what_is_confirmed_are_still_above_it() -> None:
    """E = 4: ids 0 to 11 leave as four batches, and last add confirmed is in the middle of those that are done."""
    acks = LedgerAcks()
    a, b, c, d = sent(acks, (0, 8), (1, 9), (2, 10), (3, 11))
    assert acks.done(a) == 0
    assert acks.done(b) == 1
    assert acks.above() == [a, b, c, d]
    acks.check_invariants()
    acks.freeze()
    acks.reopen([b])
    assert acks.above() == [a, b, c, d]
    assert acks.thaw() == 1  # never back, though its batch is undone
    acks.check_invariants()
    assert acks.done(c) == 1
    assert acks.done(d) == 1
    assert acks.done(b) == 11
    assert acks.above() == []
    acks.check_invariants()


def test_several_straddling_batches_are_undone_in_order() -> None:
    acks = LedgerAcks()
    a, b, c, d = sent(acks, (0, 8), (1, 9), (2, 10), (3, 11))
    for batch in (a, b, c):
        acks.done(batch)
    acks.freeze()
    acks.reopen([c, a])
    assert acks.above() == [a, b, c, d]
    assert acks.thaw() == 2
    acks.check_invariants()
    assert acks.done(d) == 2
    assert acks.done(c) == 2
    assert acks.done(a) == 11
    assert acks.pending == 0


def test_straddling_batches_that_are_undone_one_after_the_other_stay_in_order() -> None:
    acks = LedgerAcks()
    a, b, c, d = sent(acks, (0, 8), (1, 9), (2, 10), (3, 11))
    for batch in (a, b):
        acks.done(batch)
    acks.freeze()
    acks.reopen([a])
    acks.reopen([b])
    assert acks.above() == [a, b, c, d]
    acks.check_invariants()
    assert acks.thaw() == 1
    for batch in (b, c, d):
        assert acks.done(batch) == 1
        acks.check_invariants()
    assert acks.done(a) == 11


def test_straddling_batches_are_forgotten_once_all_of_them_is_confirmed() -> None:
    acks = LedgerAcks()
    a, b, c = sent(acks, (0, 6), (1, 7), (2, 5))
    (later,) = sent(acks, (8, 8))
    acks.done(a)
    acks.done(b)
    assert acks.above() == [a, b, c, later]
    assert acks.done(c) == 7
    assert acks.above() == [later]


def test_a_second_change_can_undo_what_the_first_one_kept() -> None:
    acks = LedgerAcks(4)
    first, second = sent(acks, (5, 6), (7, 7))
    acks.freeze()
    acks.done(first)
    acks.done(second)
    acks.reopen([first])
    acks.reopen([second])
    assert acks.thaw() == 4
    acks.freeze()
    assert acks.done(first) == 4
    acks.reopen([first])
    assert acks.thaw() == 4
    acks.done(second)
    assert acks.done(first) == 7


@given(seed=st.integers(0, 2**32), stripes=st.integers(1, 5), turns=st.lists(st.integers(1, 9), max_size=6))
@examples(300)
def test_last_add_confirmed_across_changes(seed: int, stripes: int, turns: list[int]) -> None:
    """It never goes back, stands still while frozen, and otherwise is where the first undone entry begins, or beyond if
    it was there before that entry's batch was undone."""
    rng = random.Random(seed)
    acks = LedgerAcks()
    ids_of: dict[Batch, set[int]] = {}
    following = expected = 0
    for count in turns:
        for k in range(min(stripes, count)):
            ids = set(range(following + k, following + count, stripes))
            batch = BareBatch(1, min(ids), max(ids), None)
            ids_of[batch] = ids
            acks.sent(batch)
        following += count
        for _ in range(rng.randrange(6)):
            undone = [batch for batch in ids_of if not batch.done]
            above = acks.above()
            step = rng.choice(("done", "done", "done", "freeze", "thaw", "reopen"))
            if step == "done" and undone:
                acks.done(rng.choice(undone))
            elif step == "freeze":
                acks.freeze()
            elif step == "thaw":
                acks.thaw()
            elif step == "reopen" and acks.frozen:
                acks.reopen([batch for batch in above if batch.done and rng.random() < 0.5])
            if not acks.frozen:
                firsts = [batch.first_id for batch in ids_of if not batch.done]
                expected = max(expected, min(firsts, default=following))
            assert acks.last_add_confirmed == expected - 1
            assert set(acks.above()) >= {batch for batch in ids_of if batch.last_id > acks.last_add_confirmed}
            acks.check_invariants()


# --- batches whose bookies have changed -------------------------------------------------------------------------


def test_a_replaced_bookie_counts_no_more() -> None:
    reopened = ReassignedBatch(BareBatch(1, 0, 0, None), ENSEMBLE, {"b1", "b3"}, 2)
    assert reopened.complete
    reopened.members = frozenset(("b1", "b2", "b4"))
    assert not reopened.complete
    reopened.accepted.add("b3")  # its late answer
    assert not reopened.complete
    reopened.accepted.add("b4")
    assert reopened.complete


def test_a_bookie_that_returns_to_the_ensemble_counts_again() -> None:
    reopened = ReassignedBatch(BareBatch(1, 0, 0, None), ENSEMBLE, {"b1", "b3"}, 2)
    reopened.members = frozenset(("b1", "b2", "b4"))
    reopened.members = frozenset(("b1", "b3", "b4"))
    assert reopened.complete


def test_what_came_after_the_ack_quorum_is_known_when_a_bookie_is_replaced() -> None:
    batch = BareBatch(1, 0, 0, None)
    flight = Flight([batch], 3, 2)
    for index in range(3):
        flight.reply(index, Status.OK)
    accepted = {name for i, name in enumerate(ENSEMBLE) if flight.accepted(batch) >> i & 1}
    assert ReassignedBatch(batch, ("b1", "b2", "b4"), accepted, 2).complete  # nothing has to be waited for


# --- a writer ---------------------------------------------------------------------------------------------------

SIZES = [(e, qw, qa) for e in range(1, 6) for qw in range(1, e + 1) for qa in range(1, qw + 1)]


class WriterRun:
    """A writer, its bookies and its metadata under a schedule, looked at after every step."""

    def __init__(self, sizes: tuple[int, int, int], schedule: bytes) -> None:
        self.world = World(sizes, spares=2, safeguards=Safeguards())
        self.writer = Writer(self.world)
        self.schedule = schedule
        self.frozen_at: int | None = None

    def __call__(self) -> None:
        for kind, choice in zip(self.schedule[::2], self.schedule[1::2], strict=False):
            self.step(kind % 32, choice)
            self.check()
        for bookie in self.world.bookies.values():
            bookie.up = True
        while self.world.requests or self.world.replies or self.repaired_in_place():
            self.step(0, 0)
            self.step(12, 0)
            self.check()
        assert self.writer.confirmed == self.writer.next_id - 1, "an append hangs"

    def step(self, kind: int, choice: int) -> None:
        world = self.world
        waiting = [call for call in (*world.requests, *world.replies) if not call.settled]
        if kind < 12 and world.requests:
            world.deliver(world.requests[choice % len(world.requests)])
        elif 12 <= kind < 20 and world.replies:
            world.answer(world.replies[choice % len(world.replies)])
        elif 20 <= kind < 24:
            self.writer.append(1 + choice % 4)
        elif 24 <= kind < 27:
            self.writer.mend()
        elif kind == 27 and waiting:
            world.give_up(waiting[choice % len(waiting)])
        elif kind >= 28:
            bookie = list(world.bookies.values())[choice % len(world.bookies)]
            bookie.up = kind != 28

    def repaired_in_place(self) -> bool:
        self.writer.mend()
        return bool(self.world.requests)

    def check(self) -> None:
        self.world.check()
        fragments = self.world.value.fragments
        firsts = [fragment.first_entry for fragment in fragments]
        assert firsts == sorted(set(firsts))
        assert all(len(set(fragment.bookies)) == len(fragment.bookies) for fragment in fragments)
        if self.writer.acks.frozen:
            self.frozen_at = self.writer.confirmed if self.frozen_at is None else self.frozen_at
            assert self.writer.confirmed == self.frozen_at, "acknowledged while the ensemble changed"
        else:
            self.frozen_at = None


@pytest.mark.thorough
@given(sizes=st.sampled_from(SIZES), schedule=st.binary(min_size=100, max_size=400))
@examples(200)
def test_what_a_writer_acknowledges_is_on_the_bookies_that_the_metadata_name(
    sizes: tuple[int, int, int], schedule: bytes
) -> None:
    WriterRun(sizes, schedule)()


@pytest.mark.scenario(24)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_writer_acknowledges_everything_once_bookies_are_there(sizes: tuple[int, int, int]) -> None:
    for seed in range(0, 8, stride()):
        WriterRun(sizes, random.Random(seed).randbytes(400))()


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_writer_under_very_many_schedules(sizes: tuple[int, int, int]) -> None:
    for seed in range(1_000, 1_150):
        WriterRun(sizes, random.Random(seed).randbytes(600))()


def writer(sizes: tuple[int, int, int] = (3, 3, 2), spares: int = 2) -> tuple[World, Writer]:
    world = World(sizes, spares=spares, safeguards=Safeguards())
    return world, Writer(world)


def deliver(world: World, *names: str) -> None:
    """What is on its way to these bookies arrives, and their answers are heard."""
    for call in [call for call in world.requests if call.bookie in [world.bookies[name] for name in names]]:
        world.deliver(call)
        if call in world.replies:
            world.answer(call)


def store(world: World) -> None:
    """The metadata write on its way is done, and its outcome known."""
    (call,) = (call for call in world.requests if call.bookie is None)
    world.deliver(call)
    world.answer(call)


def test_an_acknowledgement_that_arrives_during_a_change_waits_for_it() -> None:
    world, w = writer()
    w.append(1)
    world.bookies["b2"].up = False
    deliver(world, "b2", "b0")
    w.mend()
    deliver(world, "b1")
    assert (w.confirmed, world.holders(0)) == (-1, 2)
    store(world)
    assert (w.confirmed, w.ensemble) == (0, ("b0", "b1", "b3"))
    world.check()


def test_the_late_answer_of_a_replaced_bookie_is_of_no_account() -> None:
    world, w = writer()
    w.append(1)
    w.append(1)
    first, second = (call for call in world.requests if call.bookie is world.bookies["b2"])
    world.give_up(first)  # it hangs
    w.mend()
    store(world)
    world.deliver(second)
    world.answer(second)
    deliver(world, "b0")
    assert w.confirmed == -1  # entry 1 is on b0 and b2, but the metadata name b0, b1 and b3
    deliver(world, "b3")
    assert w.confirmed == 1
    world.check()


@pytest.mark.scenario(24)
def test_a_second_failure_during_a_change_joins_it() -> None:
    world, w = writer()
    w.append(2)
    world.bookies["b2"].up = False
    deliver(world, "b2")
    w.mend()
    deliver(world, "b0")
    world.bookies["b1"].up = False
    deliver(world, "b1")
    store(world)
    assert w.acks.frozen  # b1 is to be replaced as well, before anything is acknowledged
    deliver(world, "b3")
    assert w.confirmed == -1
    store(world)
    assert (w.confirmed, w.ensemble) == (1, ("b0", "b4", "b3"))
    assert [fragment.first_entry for fragment in world.value.fragments] == [0]
    world.check()


def test_a_failure_after_the_ack_quorum_is_mended_too() -> None:
    world, w = writer()
    w.append(1)
    world.bookies["b2"].up = False
    deliver(world, "b0", "b1", "b2")
    assert w.confirmed == 0
    w.append(1)
    w.mend()
    store(world)
    assert [fragment.first_entry for fragment in world.value.fragments] == [0, 1]
    deliver(world, "b0", "b1", "b3")
    assert (w.confirmed, world.holders(1)) == (1, 3)


@pytest.mark.scenario(26)
def test_without_replacements_a_writer_goes_on_with_the_bookies_it_has() -> None:
    world, w = writer(spares=0)
    world.bookies["b2"].up = False
    w.append(1)
    deliver(world, "b0", "b1", "b2")
    w.mend()
    w.append(1)
    deliver(world, "b0", "b1")
    assert w.confirmed == 1
    world.bookies["b2"].up = True
    w.mend()
    deliver(world, "b2")
    assert world.holders(1) == 3


@pytest.mark.scenario(27)
def test_a_writer_that_finds_its_ledger_in_recovery_acknowledges_nothing_more() -> None:
    world, w = writer()
    w.append(1)
    world.bookies["b2"].up = False
    deliver(world, "b2", "b0")
    w.mend()
    world.value, world.version = world.value.in_recovery(), world.version + 1
    store(world)
    assert w.ended
    deliver(world, "b1")
    assert w.confirmed == -1


@pytest.mark.scenario(27)
def test_a_writer_takes_up_a_change_by_somebody_else_and_goes_on() -> None:
    world, w = writer()
    w.append(1)
    deliver(world, "b0", "b1", "b2")
    w.append(1)
    world.bookies["b2"].up = False
    deliver(world, "b2")
    w.mend()
    store(world)
    deliver(world, "b0")
    world.bookies["b1"].up = False
    deliver(world, "b1")
    w.mend()
    world.move_copies(0, 0, "b3")  # of the first fragment, before the writer's change is stored
    store(world)  # refused
    store(world)
    assert w.value.fragments == (Fragment(0, ("b3", "b1", "b2")), Fragment(1, ("b0", "b4", "b3")))
    deliver(world, "b3", "b4")
    assert w.confirmed == 1
    world.check()


def test_a_change_whose_outcome_is_unknown_is_found_out() -> None:
    world, w = writer()
    w.append(1)
    world.bookies["b2"].up = False
    deliver(world, "b0", "b1", "b2")
    w.append(1)
    w.mend()
    (call,) = (call for call in world.requests if call.bookie is None)
    world.deliver(call)
    world.give_up(call)  # stored, but the writer isn't told
    deliver(world, "b0", "b1")
    assert w.confirmed == 0
    store(world)  # refused: it is there already
    assert (w.confirmed, w.version) == (1, 1)
    assert w.value == world.value
    world.check()
