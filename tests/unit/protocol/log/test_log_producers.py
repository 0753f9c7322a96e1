"""The producers of a log: what is appended, known to be there, and remembered, however writers change."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from bkpy.errors import ConfigError, CorruptDataError, ForgottenProducerError, SequenceError
from bkpy.protocol.log.log_producers import Numbering, NumberRun, Producer, Producers, Sequences, SinkWriter

IDLE_S = 10.0
NOW = 1_000_000
KNOWN_MAX = 3


def opened(producers: Producers, name: str, now_ms: int = NOW, *, new: bool = False) -> Producers:
    if name:
        producers.check("orders", name, now_ms, IDLE_S, KNOWN_MAX, new=new)
    return producers.opened(name, now_ms, IDLE_S, KNOWN_MAX)


def test_runs_that_touch_become_one_and_the_oldest_go() -> None:
    producer = Producer(0, 5)
    for run in (NumberRun(3, 10, 2), NumberRun(5, 12, 1), NumberRun(6, 20, 4), NumberRun(11, 24, 1)):
        producer = producer.with_run(run, 7, 2)
    assert producer == Producer(0, 7, (NumberRun(6, 20, 4), NumberRun(11, 24, 1)))
    assert producer.last_sequence == 11
    assert [producer.position_of(n) for n in (5, 6, 9, 10, 11, 12)] == [None, 20, 23, None, 24, None]
    assert Producer(0, 5).last_sequence == -1
    assert Producer(0, 5, (NumberRun(3, 10, 2),)).with_run(NumberRun(5, 12, 1), 4, 1) == Producer(
        0, 5, (NumberRun(3, 10, 3),)
    )


@examples(200)
@given(
    st.lists(st.tuples(st.sampled_from(("a", "b", "")), st.integers(0, 6), st.integers(0, 3)), max_size=12),
    st.integers(1, 3),
)
def test_whoever_writes_each_number_is_appended_once(writers: list[tuple[str, int, int]], runs_max: int) -> None:
    """Each writer repeats some numbers and appends others; what it was told of either is true."""
    producers, log = Producers(), list[tuple[str, int]]()
    for name, entries, repeated in writers:
        producers = opened(producers, name)
        begin = len(log)
        if not name:
            log += [("", -1)] * entries
            continue
        state = producers.numbered(name)
        assert state is not None
        sequences = Sequences("orders", name, state, begin)
        assert sequences.last(begin) == state.last_sequence == max((n for who, n in log if who == name), default=-1)
        for number in range(max(0, state.last_sequence + 1 - repeated), state.last_sequence + 1 + entries):
            try:
                position = sequences.position_of(number)
            except SequenceError:
                assert number < state.last_sequence
                assert len([1 for at, (who, _) in enumerate(log) if at and who == name != log[at - 1][0]]) >= runs_max
                continue
            if position is None:
                position = sequences.claim(number)
                log.append((name, number))
            assert log[position] == (name, number)
            assert sequences.position_of(number) == position
        assert sequences.last(len(log)) == max((n for who, n in log if who == name), default=-1)
        written = log[begin:]
        if written:
            numbering = Numbering(state.index, written[0][1])
            producers = producers.with_segment(1, numbering, begin, len(written), NOW, runs_max)
    numbered = [entry for entry in log if entry[0]]
    assert len(set(numbered)) == len(numbered)
    for name in ("a", "b"):
        assert [n for who, n in log if who == name] == list(range(len([1 for who, _ in log if who == name])))
    assert Producers.of(json.loads(json.dumps(producers.stored()))) == producers


def test_numbers_ascend_by_one_from_any_first_one() -> None:
    sequences = Sequences("orders", "shop", Producer(0, 0), 50)
    assert sequences.position_of(7) is None
    assert sequences.following(7) == 50
    assert sequences.claim(7, 3) == 50
    assert [sequences.position_of(n) for n in (7, 9, 10)] == [50, 52, None]
    with pytest.raises(SequenceError, match=r"has appended numbers up to 9, so the next one is 10, not 11"):
        sequences.position_of(11)
    with pytest.raises(SequenceError, match=r"number 6 of producer shop: its numbers before 10 are not known"):
        sequences.position_of(6)
    assert [sequences.last(acknowledged) for acknowledged in (50, 51, 53)] == [-1, 7, 9]


def test_a_number_that_the_log_has_is_not_taken_over_again() -> None:
    producers = opened(Producers(), "shop").with_segment(4, Numbering(0, 5), 0, 3, NOW, 4)
    with pytest.raises(CorruptDataError, match="begins with number 7 of producer shop, which has numbers up to 7"):
        producers.with_segment(5, Numbering(0, 7), 3, 1, NOW, 4)
    assert producers.with_segment(5, Numbering(9, 0), 3, 1, NOW, 4) == producers  # an operator has removed it


def test_a_producer_that_was_idle_is_forgotten_and_refused() -> None:
    producers = opened(opened(Producers(), "shop"), "mail", NOW + 5000).with_batch("job", 3)
    later = opened(producers, "", NOW + 10_001)
    assert list(later.known) == ["mail", "job"]
    assert later.forgotten == ("shop",)
    for others in (later, producers):
        with pytest.raises(ForgottenProducerError, match="log orders has forgotten producer shop"):
            opened(others, "shop", NOW + 10_001)
    again = opened(later, "shop", NOW + 10_001, new=True)
    assert again.numbered("shop") == Producer(2, NOW + 10_001)
    assert again.forgotten == ()
    assert opened(producers, "shop", NOW + 10_001, new=True).numbered("shop") == Producer(2, NOW + 10_001)
    assert opened(producers, "shop", NOW + 10_000).numbered("shop") == Producer(0, NOW + 10_000)


def test_names_that_were_forgotten_are_bounded_and_then_any_unknown_one_is_refused() -> None:
    producers = Producers()
    for n in range(KNOWN_MAX + 1):
        producers = opened(producers, f"p{n}", NOW + n * 20_000)
    assert (producers.forgotten, producers.others_forgotten) == (("p0", "p1", "p2"), False)
    producers = opened(producers, "p4", NOW + 80_000)
    assert (producers.forgotten, producers.others_forgotten) == (("p1", "p2", "p3"), True)
    with pytest.raises(ForgottenProducerError, match="doesn't know producer p0, and may have forgotten it"):
        opened(producers, "p0", NOW + 80_000)
    assert opened(producers, "p9", NOW + 80_000, new=True).numbered("p9") is not None


def test_so_many_producers_are_known_and_spark_writers_stay() -> None:
    producers = Producers({"job": SinkWriter(1)})
    producers = opened(opened(producers, "a"), "b")
    with pytest.raises(ConfigError, match="remembers 3 producers and Spark writers, as many as log_producers_max"):
        opened(producers, "c")
    assert opened(producers, "a").numbered("a") == Producer(0, NOW)
    with pytest.raises(ConfigError, match="job is the writerId of a Spark job"):
        opened(producers, "job")
    assert list(producers.opened("", NOW * 10, IDLE_S, KNOWN_MAX).known) == ["job"]
    assert producers.without("job", KNOWN_MAX).forgotten == ()
    assert producers.without("a", KNOWN_MAX).forgotten == ("a",)


def test_a_producer_that_has_the_log_open_is_not_idle() -> None:
    producers = opened(Producers(), "shop")
    assert producers.active("shop", NOW + 9000).numbered("shop") == Producer(0, NOW + 9000)
    assert producers.active("shop", NOW - 1) == producers
    assert producers.active("mail", NOW) == producers
