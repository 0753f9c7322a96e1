"""The list of a named log: what it may say, how it is stored, what a truncation leaves of it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from bkpy.errors import ConfigError, CorruptDataError, UnsupportedVersionError
from bkpy.protocol.log.log_list import LogList, PageRef, Segment, checked_name
from bkpy.protocol.log.log_producers import NumberRun, Producer, Producers, SinkWriter
from bkpy.protocol.wire.records import NUMBERED

KEY = bytes(range(16))
GOLDEN = Path(__file__).parents[3] / "golden" / "metadata" / "log.json"
FORMER = GOLDEN.with_name("log-1.json")  # as 0.2.0 has written it


def sealed(ledger_id: int, first: int, entries: int, *, begun_ms: int = 1000, last_ms: int = 2000) -> Segment:
    return Segment(ledger_id, first, begun_ms).seal(entries, entries * 10, last_ms)


def a_list(*segments: Segment, **fields: Any) -> LogList:
    return LogList("u", 3, 3, 2, "crc32c", KEY, segments=segments, **fields)


PAGES = PageRef(2, 2, 0, 8, 10, 900, 60, 8, 4, 30, 35), PageRef(1, 3, 8, 10, 900, 1000, 20, 2, 2, 2, 4)


def full(**fields: Any) -> LogList:
    return a_list(
        sealed(5, 10, 7),
        sealed(4, 17, 3),
        Segment(8, 20, 3000),
        Segment(9, 25, 4000),
        created_ms=1,
        write_token="t",
        writer="w",
        writer_label="host",
        first_position=12,
        pending_delete=(1, 2),
        retention_s=3.5,
        retention_bytes=1000,
        consumer_lag_max_s=60,
        producers=Producers(
            {
                "job": SinkWriter(4),
                "shop": Producer(2, 3000, (NumberRun(0, 3, 9), NumberRun(11, 17, 3))),
                "new": Producer(0, 1),
            },
            next_index=3,
            forgotten=("old",),
            others_forgotten=True,
        ),
        unknown={"later": [1], "another": None},
        **fields,
    )


def paged() -> LogList:
    return full(pages=PAGES, next_page=4, reclaimed=8)


@pytest.mark.parametrize(
    "log_list",
    [
        a_list(),
        full(),
        paged(),
        a_list(deleted=True, pending_delete=(3,)),
        a_list(Segment(1, 0, 0)),
        a_list(sealed(1, 0, 0)),
    ],
)
def test_what_is_stored_is_read(log_list: LogList) -> None:
    data = log_list.encode()
    assert LogList.decode("orders", data) == log_list
    assert LogList.decode("orders", data).encode() == data


def test_the_stored_form_is_the_golden_one() -> None:
    stored = GOLDEN.read_bytes()
    assert paged().encode() == stored
    assert LogList.decode("orders", stored) == paged()


def test_a_list_of_the_former_format_is_read_and_written_in_the_present_one() -> None:
    read = LogList.decode("orders", FORMER.read_bytes())
    writers = {"job": SinkWriter(4), "älter": SinkWriter(2)}
    assert read == dataclasses.replace(full(), producers=Producers(writers))
    assert list(read.producers.batches.items()) == [("job", 4), ("älter", 2)]
    fields = json.loads(read.encode())
    assert (fields["version"], fields["pages"], fields["next_page"], fields["reclaimed"]) == (2, [], 0, 0)


def test_unknown_fields_survive() -> None:
    fields = {**json.loads(full().encode()), "newer": {"b": 1, "a": 2}}
    read = LogList.decode("orders", json.dumps(fields).encode())
    assert read.unknown == {"later": [1], "another": None, "newer": {"b": 1, "a": 2}}
    assert json.loads(read.truncated(20).encode())["newer"] == {"b": 1, "a": 2}


def test_the_key_is_not_shown() -> None:
    assert KEY.hex() not in repr(full())
    assert repr(KEY) not in repr(full())


@pytest.mark.parametrize(
    ("segments", "fields", "message"),
    [
        ((sealed(1, 0, 5), Segment(2, 6, 0)), {}, "can't begin at position 6"),
        ((sealed(1, 0, 5), Segment(2, 4, 0)), {}, "can't begin at position 4"),
        ((Segment(1, 5, 0), Segment(2, 4, 0)), {}, "can't begin at position 4"),
        ((Segment(1, 0, 0), sealed(2, 5, 1), Segment(3, 6, 0)), {}, "more than 2 segments are open"),
        ((Segment(1, 0, 0), Segment(2, 5, 0), Segment(3, 6, 0)), {}, "more than 2 segments are open"),
        ((sealed(1, 5, 5),), {"first_position": 4}, "no segment for position 4"),
        ((sealed(1, 0, 5), Segment(1, 5, 0)), {}, "in the list twice"),
        ((sealed(1, 0, 5),), {"pending_delete": (1,)}, "in the list twice"),
        ((), {"first_position": -1}, "can't begin at position -1"),
        ((sealed(1, 10, 5),), {"pages": PAGES, "next_page": 3, "first_position": 9}, "number from 3 on"),
        (
            (sealed(1, 10, 5),),
            {"pages": PAGES[::-1], "next_page": 4, "first_position": 9},
            "page 2 can't follow page 3",
        ),
        (
            (sealed(1, 11, 5),),
            {"pages": PAGES, "next_page": 4, "first_position": 9},
            "no segment begins at position 10",
        ),
        (
            (sealed(1, 9, 5),),
            {"pages": PAGES, "next_page": 4, "first_position": 12},
            "no segment begins at position 10",
        ),
        ((), {"pages": PAGES, "next_page": 4, "first_position": 9}, "no segment begins at position 10"),
        ((sealed(1, 8, 5),), {"pages": PAGES[1:], "next_page": 4, "first_position": 7}, "no segment"),
    ],
)
def test_what_can_not_be_is_refused(segments: tuple[Segment, ...], fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        a_list(*segments, **fields)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 0},
        {"version": True},
        {"version": "1"},
        {"uid": 3},
        {"ledger_key": "xyz"},
        {"first_position": "0"},
        {"deleted": 0},
        {"retention_s": "1"},
        {"retention_s": True},
        {"retention_bytes": 1.5},
        {"segments": [[1, 2]]},
        {"segments": [[1, 2, 3, 4, 5, 6, 7]]},
        {"segments": [[1, 2, "3", 4, 5, 6]]},
        {"segments": 3},
        {"doomed": ["1"]},
        {"doomed": None},
        {"producers": []},
        {"producers": {"known": {"a": {"index": 0, "active_ms": 0, "runs": []}}}},
        {"producers": {"known": {"a": {"batch": "1"}}, "next_index": 0}},
        {"producers": {"known": {"a": {"index": 1, "active_ms": 0, "runs": []}}, "next_index": 1}},
        {"producers": {"known": {"a": {"index": 0, "active_ms": 0, "runs": [[0, 0, 0]]}}, "next_index": 1}},
        {"producers": {"known": {"a": {"index": 0, "active_ms": 0, "runs": [[4, 0, 2], [5, 9, 1]]}}, "next_index": 1}},
        {"producers": {"known": {}, "next_index": 0, "forgotten": [1]}},
        {"segments": [[1, 0, 0, -1, 0, 0]] * 2},
        {"pages": [[1, 2]]},
        {"pages": [[1, 0, 4, 4, 0, 0, 0, 0, 0, 0, 0]]},
        {"pages": [[0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]]},
        {"next_page": None},
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, Any]) -> None:
    fields = {**json.loads(full().encode()), **change}
    with pytest.raises(CorruptDataError, match="the list of log orders is unreadable"):
        LogList.decode("orders", json.dumps(fields).encode())


@pytest.mark.parametrize("key", sorted(json.loads(paged().encode()).keys() - {"later", "another"}))
def test_what_is_missing_is_noticed(key: str) -> None:
    fields = json.loads(paged().encode())
    del fields[key]
    with pytest.raises(CorruptDataError):
        LogList.decode("orders", json.dumps(fields).encode())


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b"3", b"{", b"[" * 100_000])
def test_what_is_no_list_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        LogList.decode("orders", data)


def test_a_newer_format_is_not_guessed_at() -> None:
    fields = {**json.loads(full().encode()), "version": 3}
    with pytest.raises(UnsupportedVersionError, match="upgrade it"):
        LogList.decode("orders", json.dumps(fields).encode())


@pytest.mark.parametrize(
    ("before", "first", "left", "pending_delete"),
    [
        (0, 12, (5, 4, 8, 9), (1, 2)),  # back: never
        (12, 12, (5, 4, 8, 9), (1, 2)),
        (13, 13, (5, 4, 8, 9), (1, 2)),  # within a segment: its ledger stays
        (16, 16, (5, 4, 8, 9), (1, 2)),
        (17, 17, (4, 8, 9), (1, 2, 5)),
        (19, 19, (4, 8, 9), (1, 2, 5)),
        (20, 20, (8, 9), (1, 2, 5, 4)),
        (24, 24, (8, 9), (1, 2, 5, 4)),
        (1000, 1000, (8, 9), (1, 2, 5, 4)),  # an open segment is never doomed
    ],
)
def test_a_truncation_dooms_whole_sealed_segments(
    before: int, first: int, left: tuple[int, ...], pending_delete: tuple[int, ...]
) -> None:
    log_list = full().truncated(before)
    assert log_list.first_position == first
    assert tuple(segment.ledger_id for segment in log_list.segments) == left
    assert log_list.pending_delete == pending_delete


def test_the_last_segment_stays_though_it_is_sealed() -> None:
    log_list = a_list(sealed(1, 0, 5), sealed(2, 5, 5))
    assert log_list.truncated(10).segments == (sealed(2, 5, 5),)
    with pytest.raises(ConfigError, match="position 11 is past the end of the log, 10"):
        log_list.truncated(11)
    with pytest.raises(ConfigError, match="past the end"):
        a_list().truncated(1)


def test_what_was_deleted_is_doomed_no_more() -> None:
    assert full().without_pending_delete((2, 77)).pending_delete == (1,)


def test_where_it_ends_and_what_is_open() -> None:
    assert [segment.ledger_id for segment in full().open_segments] == [8, 9]
    assert full().sealed_end == 20
    assert full().last_ms == 4000
    assert a_list(sealed(1, 0, 5, last_ms=3000), Segment(2, 5, 1000)).last_ms == 3000
    assert a_list().sealed_end == 0
    assert a_list(first_position=7).sealed_end == 7
    assert a_list(Segment(1, 0, 5)).sealed_end == 0
    assert a_list(sealed(1, 3, 5), first_position=3).sealed_end == 8
    assert [full().index_of(position) for position in (9, 10, 16, 17, 24, 25, 99)] == [-1, 0, 0, 1, 2, 3, 3]


def test_the_end_of_what_is_open_is_not_known() -> None:
    with pytest.raises(ConfigError, match="nobody knows yet"):
        Segment(1, 0, 0).end_position  # noqa: B018
    assert sealed(1, 4, 3).end_position == 7


def test_times_never_go_back_within_a_segment() -> None:
    assert Segment(1, 0, 500).seal(1, 10, 400).last_ms == 500


@pytest.mark.parametrize("name", ["orders", "a", "0", "_x", "A.b-c_d", "a" * 255])
def test_a_name(name: str) -> None:
    assert checked_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", ".a", "-a", "a/b", "ä", "a b", "a\n", "a" * 256, None, 3])
def test_no_name(name: Any) -> None:
    with pytest.raises(ConfigError, match="can't be the name of a log"):
        checked_name(name)


def test_equal_values_are_equally_stored() -> None:
    log_list = dataclasses.replace(full(), unknown={"another": None, "later": [1]})
    assert log_list.encode() == full().encode()


def test_fields_that_may_be_absent_are_stored_where_they_say_something() -> None:
    log_list = full(writer_since_ms=5, consumer_expiry_s=60)
    assert LogList.decode("orders", log_list.encode()) == log_list
    assert json.loads(log_list.encode()) == json.loads(full().encode()) | {
        "writer_since_ms": 5,
        "consumer_expiry_s": 60.0,
    }


def test_a_row_says_which_stamps_its_entries_have_if_they_are_longer() -> None:
    for segment, row in (
        (Segment(1, 2, 3), [1, 2, 3, -1, 0, 0]),
        (Segment(1, 2, 3, stamp=NUMBERED).seal(10, 1000, 9), [1, 2, 3, 10, 1000, 9, 2]),
    ):
        assert segment.row() == row
        assert Segment.of_row(row) == segment
    assert Segment.of_row([1, 2, 3, 10, 1000, 9, 2]).payload_bytes == 800
    assert Segment.of_row([1, 2, 3, 10, 1000, 9]).payload_bytes == 920
    with pytest.raises(ValueError, match="stamps of ledger 1 have the unknown format 3"):
        Segment.of_row([1, 2, 3, 10, 1000, 9, 3])
