"""What of a log may be read: every small list, against what its ledgers can be."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from bkpy.protocol.log.log_list import LogList, Segment
from bkpy.protocol.log.log_pages import index_before
from bkpy.protocol.log.log_reading import SegmentRange, ranges_of, segment_for

if TYPE_CHECKING:
    from collections.abc import Iterator


def a_list(*segments: Segment, first_position: int | None = None) -> LogList:
    first = first_position if first_position is not None else (segments[0].first_position if segments else 0)
    return LogList(
        uid="u",
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        digest="crc32c",
        ledger_key=b"k",
        first_position=first,
        segments=segments,
    )


SEALED = Segment(1, 0, 1000, entries=5, length=500, last_ms=2000)
FORMER = Segment(2, 5, 3000)
LAST = Segment(3, 8, 4000)

# --- which segment is to be followed --------------------------------------------------------------------------------

CLOSED_TO: list[int | None] = [None, 0, 2, 3]  # entries of a ledger that is CLOSED; None: it is open


def readable_end(former: int | None, last: int | None) -> int:
    """Said once more in other words: where what can be proven to be the log's own ends, if open ledgers have none."""
    if former is None:
        return FORMER.first_position
    end = FORMER.first_position + former
    if end == LAST.first_position and last is not None:
        return end + last
    return end


@pytest.mark.parametrize(("former", "last"), list(itertools.product(CLOSED_TO, CLOSED_TO)))
def test_a_segment_is_followed_only_if_the_one_before_ends_where_it_begins(
    former: int | None, last: int | None
) -> None:
    log_list = a_list(SEALED, FORMER, LAST)
    closed = {s.ledger_id: n for s, n in ((FORMER, former), (LAST, last)) if n is not None}
    for position in range(15):
        found = segment_for(log_list, position, closed)
        if position < 5:
            assert found == SEALED
        elif former is None:
            assert found == FORMER  # though the position may lie behind it: that is to be seen
        elif position < 5 + former:
            assert found == FORMER
        elif former != 3:
            assert found is None  # LAST will be dropped, whatever it has
        elif last is None or position < 8 + last:
            assert found == LAST
        else:
            assert found is None
        if found is not None and position >= readable_end(former, last):
            assert found.ledger_id not in closed  # else whoever follows would turn in a circle


def test_a_log_without_segments_has_nothing_to_follow() -> None:
    assert segment_for(a_list(), 0, {}) is None
    assert segment_for(a_list(first_position=7), 7, {}) is None


def test_behind_sealed_segments_alone_only_the_list_tells_more() -> None:
    log_list = a_list(SEALED)
    assert segment_for(log_list, 4, {}) == SEALED
    assert segment_for(log_list, 5, {}) is None
    assert segment_for(log_list, 99, {}) is None


def test_of_two_that_begin_at_the_same_position_the_last_one_is_followed_once_the_other_is_closed() -> None:
    empty, last = Segment(2, 5, 0), Segment(3, 5, 0)
    log_list = a_list(SEALED, empty, last)
    assert segment_for(log_list, 5, {}) == empty
    assert segment_for(log_list, 5, {2: 0}) == last
    assert segment_for(log_list, 5, {2: 0, 3: 0}) is None
    assert segment_for(log_list, 5, {3: 4}) == empty
    assert segment_for(log_list, 5, {2: 1}) == empty  # it ends behind where the next one begins: that one is none of it


def test_a_truncated_log_begins_within_a_segment() -> None:
    log_list = a_list(FORMER, LAST, first_position=6)
    assert segment_for(log_list, 6, {}) == FORMER
    assert segment_for(log_list, 8, {2: 3}) == LAST


# --- where entries are ----------------------------------------------------------------------------------------------


def positions_of(ranges: Iterator[SegmentRange]) -> list[tuple[int, int, int]]:
    """(position, ledger, entry) of all."""
    return [(r.first_position + i, r.ledger_id, r.first_entry + i) for r in ranges for i in range(r.entries)]


def test_ranges_are_dense_for_every_pair_of_bounds() -> None:
    sizes = [3, 1, 4, 2]
    starts = [10, 13, 14, 18]
    segments = [Segment(i, s, 0, entries=n) for i, (s, n) in enumerate(zip(starts, sizes, strict=True))]
    everything = [(s + k, i, k) for i, (s, n) in enumerate(zip(starts, sizes, strict=True)) for k in range(n)]
    for open_from in (4, 3, 2):
        mixed = [s if i < open_from else Segment(s.ledger_id, s.first_position, 0) for i, s in enumerate(segments)]
        log_list = a_list(*mixed)
        for first, last in itertools.product(range(10, 20), range(9, 20)):
            expected = [row for row in everything if first <= row[0] <= last]
            assert positions_of(ranges_of(log_list, first, last)) == expected
    assert list(ranges_of(a_list(), 0, -1)) == []


def test_a_range_knows_about_how_many_bytes_it_has() -> None:
    log_list = a_list(Segment(1, 0, 7, entries=10, length=1000), Segment(2, 10, 8))
    assert list(ranges_of(log_list, 5, 12)) == [SegmentRange(1, 5, 9, 5, 7, 500), SegmentRange(2, 0, 2, 10, 8, 0)]


def test_an_empty_segment_has_no_range() -> None:
    log_list = a_list(Segment(1, 0, 0, entries=2), Segment(2, 2, 0), Segment(3, 2, 0))
    assert positions_of(ranges_of(log_list, 0, 3)) == [(0, 1, 0), (1, 1, 1), (2, 3, 0), (3, 3, 1)]


# --- times ----------------------------------------------------------------------------------------------------------


def test_the_segment_of_a_time() -> None:
    log_list = a_list(*(Segment(i, i, ms, entries=1) for i, ms in enumerate([1000, 2000, 2000, 3000])))
    assert [index_before(log_list.segments, time) for time in (0.5, 1.0, 1.5, 2.0, 2.001, 3.0, 9.0)] == [
        -1,
        -1,
        0,
        0,
        2,
        2,
        3,
    ]
    assert index_before(a_list().segments, 1.0) == -1
