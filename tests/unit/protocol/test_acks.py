"""Ack tracking: flights against counting batch by batch, and last add confirmed against its definition."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from bkpy.protocol.acks import Batch, Flight, LedgerAcks
from bkpy.protocol.messages import Status


def flight(size: int, quorum: int, batches: int = 2) -> tuple[Flight, list[Batch]]:
    made = [Batch(i, 0, 0, None) for i in range(batches)]
    return Flight(made, size, quorum), made


def test_completes_with_the_ack_quorum_and_once_only() -> None:
    f, batches = flight(3, 2)
    assert not f.reply(0, 0).completed
    assert f.reply(2, 0).completed == batches
    assert not f.reply(1, 0).completed
    assert f.settled


def test_a_bookie_counts_once() -> None:
    f, _ = flight(3, 2)
    f.reply(0, 0)
    assert not f.reply(0, 0).completed
    assert not f.settled


def test_hopeless_when_too_few_are_left() -> None:
    f, batches = flight(3, 2)
    assert not f.fail(0).hopeless
    assert f.fail(1).hopeless == batches
    assert not f.fail(2).hopeless


def test_a_failure_after_the_ack_quorum_changes_nothing() -> None:
    f, _ = flight(3, 2)
    f.reply(0, 0)
    f.reply(1, 0)
    verdict = f.fail(2)
    assert not verdict.hopeless
    assert f.settled


def test_refused_for_good_by_one_bookie() -> None:
    f, batches = flight(3, 2)
    verdict = f.reply(1, [Status.OK, Status.FENCED])
    assert verdict.refused == [(batches[1], Status.FENCED)]
    assert f.reply(0, 0).completed == [batches[0]]


def test_a_uniform_refusal_is_one_for_each_batch() -> None:
    f, batches = flight(3, 2)
    assert f.reply(0, Status.UNAUTHORIZED).refused == [(b, Status.UNAUTHORIZED) for b in batches]


OUTCOMES = st.sampled_from([Status.OK, Status.FENCED, Status.READ_ONLY, Status.UNKNOWN])


@given(
    data=st.data(),
    size=st.integers(1, 5),
    batches=st.integers(1, 4),
)
@settings(max_examples=300)
def test_a_flight_decides_like_its_batches_one_by_one(data: st.DataObject, size: int, batches: int) -> None:
    quorum = data.draw(st.integers(1, size))
    f, made = flight(size, quorum, batches)
    acks, failures = [0] * batches, [0] * batches
    completed: set[int] = set()
    hopeless: set[int] = set()
    for index in data.draw(st.permutations(range(size))):
        kind = data.draw(st.sampled_from(["ok", "fail", "uniform", "each"]))
        if kind == "fail":
            statuses = [Status.UNAVAILABLE] * batches
            verdict = f.fail(index)
        elif kind == "each":
            statuses = data.draw(st.lists(OUTCOMES, min_size=batches, max_size=batches))
            verdict = f.reply(index, statuses)
        else:
            status = Status.OK if kind == "ok" else data.draw(OUTCOMES)
            statuses = [status] * batches
            verdict = f.reply(index, int(status))
        expected_completed, expected_hopeless = [], []
        for i, status in enumerate(statuses):
            if status == Status.OK:
                acks[i] += 1
                if acks[i] == quorum:
                    expected_completed.append(made[i])
            else:
                failures[i] += 1
                fatal = status in (Status.FENCED, Status.UNAUTHORIZED)
                if not fatal and size - failures[i] == quorum - 1 and acks[i] < quorum:
                    expected_hopeless.append(made[i])
        assert list(verdict.completed) == expected_completed
        assert list(verdict.hopeless) == expected_hopeless
        completed |= {id(b) for b in verdict.completed}
        hopeless |= {id(b) for b in verdict.hopeless}
        assert not completed & hopeless
    assert f.settled


@given(seed=st.integers(0, 2**32), stripes=st.integers(1, 5), turns=st.lists(st.integers(1, 12), max_size=8))
@settings(max_examples=300)
def test_last_add_confirmed_is_the_longest_acknowledged_prefix(seed: int, stripes: int, turns: list[int]) -> None:
    rng = random.Random(seed)
    acks = LedgerAcks()
    batches: list[tuple[Batch, set[int]]] = []
    acked: set[int] = set()
    outstanding: list[tuple[Batch, set[int]]] = []
    first = 0

    def expected() -> int:
        lac = -1
        while lac + 1 in acked:
            lac += 1
        return lac

    def complete_some() -> None:
        rng.shuffle(outstanding)
        for _ in range(rng.randrange(len(outstanding) + 1)):
            batch, ids = outstanding.pop()
            acked.update(ids)
            before = acks.last_add_confirmed
            assert acks.done(batch) == expected()
            assert acks.last_add_confirmed >= before
            acks.check_invariants()

    for count in turns:
        for k in range(min(stripes, count)):
            ids = set(range(first + k, first + count, stripes))
            batch = Batch(1, min(ids), max(ids), None)
            acks.sent(batch)
            batches.append((batch, ids))
            outstanding.append((batch, ids))
        first += count
        complete_some()
    for batch, ids in list(outstanding):
        acked.update(ids)
        acks.done(batch)
    assert acks.last_add_confirmed == first - 1
    assert acks.pending == 0
