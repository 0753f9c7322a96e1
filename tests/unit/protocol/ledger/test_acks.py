"""Ack tracking: flights against counting batch by batch, and last add confirmed against its definition."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from bkpy.protocol.ledger.acks import BareBatch, Batch, Flight, LedgerAcks
from bkpy.protocol.wire.messages import Status


def flight(size: int, quorum: int, batches: int = 2) -> tuple[Flight, list[Batch]]:
    made = [BareBatch(i, 0, 0, None) for i in range(batches)]
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


def test_a_failure_is_reported_for_every_batch_also_after_the_ack_quorum() -> None:
    f, batches = flight(3, 2)
    f.reply(0, 0)
    f.reply(1, 0)
    assert f.fail(2).failed == batches
    assert f.settled
    assert f.accepted(batches[0]) == 0b011


def test_a_bookie_fails_once_and_not_after_its_answer() -> None:
    f, batches = flight(3, 2)
    f.reply(0, 0)
    assert not f.fail(0).failed
    assert f.fail(1).failed == batches
    assert not f.fail(1).failed
    assert not f.reply(1, 0).completed
    assert f.reply(2, 0).completed == batches


def test_acks_after_the_ack_quorum_are_recorded() -> None:
    f, batches = flight(3, 1)
    f.reply(0, 0)
    f.reply(2, [Status.OK, Status.READ_ONLY])
    assert [f.accepted(batch) for batch in batches] == [0b101, 0b001]


def test_refused_for_good_by_one_bookie() -> None:
    f, batches = flight(3, 2)
    verdict = f.reply(1, [Status.OK, Status.FENCED])
    assert verdict.refused == [(batches[1], Status.FENCED)]
    assert f.reply(0, 0).completed == [batches[0]]


def test_a_uniform_refusal_is_one_for_each_batch() -> None:
    f, batches = flight(3, 2)
    assert f.reply(0, Status.FORBIDDEN).refused == [(b, Status.FORBIDDEN) for b in batches]


OUTCOMES = st.sampled_from([Status.OK, Status.FENCED, Status.READ_ONLY, Status.UNKNOWN])


@pytest.mark.thorough
@given(
    data=st.data(),
    size=st.integers(1, 5),
    batches=st.integers(1, 4),
)
@examples(300)
def test_a_flight_decides_like_its_batches_one_by_one(data: st.DataObject, size: int, batches: int) -> None:
    quorum = data.draw(st.integers(1, size))
    f, made = flight(size, quorum, batches)
    acks = [0] * batches
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
        expected_completed, expected_failed, expected_refused = [], [], []
        for i, status in enumerate(statuses):
            if status == Status.OK:
                acks[i] |= 1 << index
                if acks[i].bit_count() == quorum:
                    expected_completed.append(made[i])
            elif status in (Status.FENCED, Status.FORBIDDEN):
                expected_refused.append((made[i], status))
            else:
                expected_failed.append(made[i])
        assert list(verdict.completed) == expected_completed
        assert list(verdict.failed) == expected_failed
        assert list(verdict.refused) == expected_refused
        assert [f.accepted(batch) for batch in made] == acks
    assert f.settled


@given(seed=st.integers(0, 2**32), stripes=st.integers(1, 5), turns=st.lists(st.integers(1, 12), max_size=8))
@examples(300)
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
            batch = BareBatch(1, min(ids), max(ids), None)
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
