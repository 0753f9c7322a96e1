"""Batches of a sink in a log's list: committed once, behind everything, all of it or nothing."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkpy.errors import ConfigError
from bkpy.protocol.log.log_list import LogList, Segment
from bkpy.protocol.log.log_producers import Producers, SinkWriter
from bkpy.protocol.log.log_sinks import BatchPart, BatchStanding, standing, with_batch

EMPTY = LogList("uid", 3, 3, 2, "crc32c", b"k" * 32)
LOG = dataclasses.replace(
    EMPTY,
    writer="w",
    writer_label="somebody",
    segments=(Segment(1, 0, 500).seal(10, 1000, 900),),
    producers=Producers({"a": SinkWriter(3)}),
)


@pytest.mark.parametrize(
    ("writer_id", "batch", "expected"),
    [
        ("a", 4, BatchStanding.NEW),
        ("a", 9, BatchStanding.NEW),
        ("a", 3, BatchStanding.COMMITTED),
        ("a", 2, BatchStanding.OLDER),
        ("b", 0, BatchStanding.NEW),
    ],
)
def test_what_is_to_be_done_with_a_batch(writer_id: str, batch: int, expected: BatchStanding) -> None:
    assert standing(LOG, writer_id, batch) is expected


def test_a_batch_goes_behind_everything_and_has_the_time_of_its_commit() -> None:
    log_list = with_batch(LOG, "a", 4, [BatchPart(8, 5, 50, 700), BatchPart(7, 1, 9, 950)], 940, 10)
    assert log_list.segments == (
        *LOG.segments,
        Segment(8, 10, 950).seal(5, 50, 950),
        Segment(7, 15, 950).seal(1, 9, 950),
    )
    assert (log_list.sealed_end, log_list.producers.batches, log_list.writer, log_list.writer_label) == (
        16,
        {"a": 4},
        "",
        "",
    )
    assert standing(log_list, "a", 4) is BatchStanding.COMMITTED


def test_times_never_go_back() -> None:
    assert with_batch(LOG, "a", 4, [BatchPart(8, 5, 50, 3)], 100, 10).segments[-1].begun_ms == 900


def test_the_first_batch_of_a_log_that_begins_late() -> None:
    log_list = with_batch(dataclasses.replace(EMPTY, first_position=70), "a", 0, [BatchPart(8, 5, 50, 3)], 100, 10)
    assert log_list.segments == (Segment(8, 70, 100).seal(5, 50, 100),)


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 9)), max_size=20), st.integers(1, 4))
def test_no_batch_is_committed_twice_however_many_write(batches: list[tuple[str, int]], sinks_max: int) -> None:
    log_list = EMPTY
    committed: dict[str, int] = {}
    for i, (writer_id, batch) in enumerate(batches):
        if standing(log_list, writer_id, batch) is BatchStanding.NEW:
            if writer_id not in committed and len(committed) == sinks_max:
                with pytest.raises(ConfigError, match="bkpy log sinks NAME --delete"):
                    with_batch(log_list, writer_id, batch, [BatchPart(i, 1, 1, 0)], i, sinks_max)
                continue
            assert batch > committed.get(writer_id, -1), "the batch, or a later one, was committed before"
            log_list = with_batch(log_list, writer_id, batch, [BatchPart(i, 1, 1, 0)], i, sinks_max)
            committed.pop(writer_id, None)
            committed[writer_id] = batch
        assert list(log_list.producers.batches.items()) == list(committed.items())
        assert LogList.decode("log", log_list.encode()) == log_list
