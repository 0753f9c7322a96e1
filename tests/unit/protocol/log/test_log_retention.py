"""What of a named log may go: total tables of small logs, against what the rules say one segment at a time."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from bkpy.errors import ConfigError
from bkpy.protocol.log.log_list import LogList, Segment
from bkpy.protocol.log.log_retention import Orphan, orphaned, retained_from, truncated

if TYPE_CHECKING:
    from collections.abc import Iterable

S = 1000
# Positions 0..9, 10..19, 20..29 of 100 bytes each beside their stamps, the last times 10 s, 20 s, 30 s; 30.. is open,
# since 30 s.
SEALED = tuple(Segment(n, n * 10, n * 10 * S).seal(10, 180, (n + 1) * 10 * S) for n in range(3))
OPEN = Segment(3, 30, 30 * S)


def kept_from(log_list: LogList, now_ms: int, consumers: Iterable[int]) -> int:
    """The position before which nothing is kept, of a list without pages."""
    found = retained_from(log_list, now_ms, consumers)
    assert found.edge is None
    return found.position


def cut(name: str, log_list: LogList, before: int, end: int, consumers: dict[str, int], now_ms: int) -> LogList:
    """A truncation of a list without pages."""
    index = log_list.index_of(before - 1)
    last_gone = log_list.segments[index] if log_list.segments and index >= 0 else None
    return truncated(name, log_list, before, end, consumers, now_ms, last_gone)


def a_list(
    *segments: Segment,
    first: int = 0,
    s: float | None = None,
    size: int | None = None,
    lag: float | None = None,
    pending_delete: tuple[int, ...] = (),
) -> LogList:
    return LogList(
        "u", 3, 3, 2, "crc32c", bytes(16), first_position=first, segments=segments, pending_delete=pending_delete,
        retention_s=s, retention_bytes=size, consumer_lag_max_s=lag,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("now_s", "s", "size", "lag", "consumers", "begin"),
    [
        (99, None, None, None, [], 0),  # for ever
        (19.999, 10, None, None, [], 0),
        (20, 10, None, None, [], 10),
        (39.999, 10, None, None, [], 20),
        (40, 10, None, None, [], 30),
        (10**6, 10, None, None, [], 30),  # never the last one
        (0, None, 301, None, [], 0),
        (0, None, 200, None, [], 10),  # what lies behind the first one is enough
        (0, None, 199, None, [], 10),
        (0, None, 100, None, [], 20),
        (0, None, 0, None, [], 30),
        (20, 10, 301, None, [], 0),  # what either limit keeps
        (0, 10, 100, None, [], 0),
        (20, 10, 100, None, [], 10),
        (99, 10, 100, None, [], 20),
        (99, 10, None, None, [0], 0),
        (99, 10, None, None, [9], 0),
        (99, 10, None, None, [10], 10),
        (99, 10, None, None, [25, 19, 30], 10),
        (99, 10, None, None, [30], 30),
        (99, 10, None, None, [77], 30),
        (24.999, 10, None, 5, [0], 0),  # longer than retention keeps it, by that
        (25, 10, None, 5, [0], 10),
        (35, 10, None, 5, [0], 20),
        (99, 10, None, 5, [0], 30),
        (14.999, None, 0, 5, [0], 0),
        (15, None, 0, 5, [0], 10),
        (20, 10, None, 0, [0], 10),
        (19, 10, None, 0, [0], 0),
    ],
)
def test_what_retention_keeps(
    now_s: float, s: float | None, size: int | None, lag: float | None, consumers: list[int], begin: int
) -> None:
    assert kept_from(a_list(*SEALED, OPEN, s=s, size=size, lag=lag), int(now_s * S), consumers) == begin


@pytest.mark.thorough
def test_retention_keeps_to_whole_segments_and_never_goes_back() -> None:
    """All small logs: what goes is a prefix of sealed segments that aren't the last, and each of it may go."""
    bounds = (None, 0, 5, 15), (None, 0, 100, 150, 250), (None, 0, 7)
    for count, is_open, first in itertools.product(range(4), (False, True), (0, 5, 10, 15)):
        segments = SEALED[:count] + ((Segment(3, count * 10, 0),) if is_open else ())
        if not segments or first > segments[-1].first_position:
            continue
        for s, size, lag in itertools.product(*bounds):
            log_list = a_list(*segments, first=first, s=s, size=size, lag=lag)
            for now_s, needed in itertools.product((0, 10, 15, 22, 30, 99), (None, 0, 10, 19, 20, 35)):
                begin = kept_from(log_list, now_s * S, [] if needed is None else [needed])
                assert begin >= first
                if begin == first:
                    continue
                assert begin in {segment.end_position for segment in segments[:-1] if segment.sealed}
                for n, segment in enumerate(segments):
                    if segment.sealed and segment.end_position <= begin:
                        age_s = now_s - segment.last_ms / S
                        behind = sum(later.payload_bytes for later in segments[n + 1 :])
                        assert (s, size) != (None, None)
                        assert s is None or age_s >= s
                        assert size is None or behind >= size
                        held = needed is not None and needed < segment.end_position
                        assert not held or (lag is not None and age_s >= (s or 0) + lag)


def test_the_bytes_that_are_kept_are_those_of_entries() -> None:
    """A hundred ledgers of a thousand entries of one byte."""
    segments = [Segment(n, n * 1000, 0).seal(1000, 9000, 0) for n in range(100)]
    log_list = a_list(*segments, Segment(100, 100_000, 0), size=50_000)
    assert kept_from(log_list, 0, []) == 50_000


def test_a_consumer_before_a_gap_has_read_what_lies_below_it() -> None:
    """Positions 30 to 49 were given up; a consumer that has read all before them holds back nothing."""
    behind = Segment(4, 50, 40 * S).seal(10, 180, 50 * S)
    log_list = LogList(
        "u", 3, 3, 2, "crc32c", bytes(16), segments=(*SEALED, behind, Segment(5, 60, 60 * S)), gaps=((30, 50),),
        retention_s=10,
    )  # fmt: skip
    assert kept_from(log_list, 99 * S, [30]) == kept_from(log_list, 99 * S, [49]) == 30
    assert kept_from(log_list, 99 * S, [29]) == 20
    left = cut("x", log_list, 50, 60, {"billing": 30}, 0)
    assert (left.first_position, left.gaps) == (50, ((30, 50),)), "who has read all before the gap goes on behind it"
    with pytest.raises(ConfigError, match="billing"):
        cut("x", log_list, 51, 60, {"billing": 30}, 0)
    assert cut("x", left, 60, 60, {}, 0).gaps == ()


def test_an_open_segment_before_the_last_stays() -> None:
    log_list = a_list(SEALED[0], Segment(1, 10, 0), Segment(2, 20, 0), s=0)
    assert kept_from(log_list, 99 * S, []) == 10


def test_of_an_empty_log_nothing_goes() -> None:
    assert kept_from(a_list(s=0, size=0), 99 * S, []) == 0


@pytest.mark.parametrize(
    ("before", "end", "consumers", "message"),
    [
        (31, 30, {}, "log x is known to reach up to position 30"),
        (41, 40, {}, "known to reach up to position 40"),
        (20, 30, {"a": 19}, "have yet to read what lies before position 20, from 19 on: a. Let"),
        (35, 40, {"b": 34, "c": 35, "a": 7}, "from 7 on: a, b. Let"),
    ],
)
def test_what_can_not_be_truncated(before: int, end: int, consumers: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cut("x", a_list(*SEALED, OPEN), before, end, consumers, 0)


@pytest.mark.parametrize(
    ("before", "end", "consumers", "first", "pending_delete"),
    [
        (0, 0, {"a": 0}, 0, ()),
        (5, 0, {}, 5, ()),
        (10, 0, {"a": 10}, 10, (0,)),
        (30, 0, {}, 30, (0, 1, 2)),  # what is sealed is acknowledged, whatever the caller has seen
        (34, 40, {"a": 34}, 34, (0, 1, 2)),
        (40, 40, {}, 40, (0, 1, 2)),
    ],
)
def test_what_a_truncation_leaves(
    before: int, end: int, consumers: dict[str, int], first: int, pending_delete: tuple[int, ...]
) -> None:
    log_list = cut("x", a_list(*SEALED, OPEN), before, end, consumers, 0)
    assert (log_list.first_position, log_list.pending_delete) == (first, pending_delete)


def test_where_nothing_is_there_is_nothing_to_truncate() -> None:
    with pytest.raises(ConfigError, match="reach up to position 7"):
        cut("x", a_list(first=7), 8, 10, {}, 0)


def test_nothing_is_asked_of_those_who_lost_nothing() -> None:
    log_list = a_list(*SEALED, OPEN, first=15)
    assert cut("x", log_list, 15, 30, {"a": 0}, 0) is log_list


def test_who_lags_too_far_holds_back_nothing() -> None:
    log_list = a_list(*SEALED, OPEN, s=10, lag=5)
    with pytest.raises(ConfigError):
        cut("x", log_list, 20, 30, {"a": 0}, 35 * S - 1)
    assert cut("x", log_list, 20, 30, {"a": 0}, 35 * S).first_position == 20
    with pytest.raises(ConfigError):  # of what is open nobody knows how old it is
        cut("x", log_list, 31, 40, {"a": 0}, 10**9)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("deleted", [True, False])
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("age_s", [0, 9.999, 10, 99])
def test_which_ledgers_are_orphans(known: bool, same: bool, deleted: bool, named: bool, age_s: float) -> None:
    log_list = a_list(SEALED[1], first=10) if known else None
    found = orphaned("u" if same else "other", log_list, named, deleted, 5 * S, 5 * S + int(age_s * S), 10)
    if not known or not same:
        assert found is (Orphan.DELETE if deleted else Orphan.KEEP_FOR_LOST_LIST)
    elif not named and age_s >= 10:
        assert found is Orphan.DELETE_IF_UNCHANGED
    else:
        assert found is Orphan.KEEP
