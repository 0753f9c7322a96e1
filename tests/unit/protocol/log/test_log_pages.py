"""Pages of a log's list: logs of any length in pages of two, against the plain sequence of their segments."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest

from bkpy.errors import ConfigError, CorruptDataError, UnsupportedVersionError
from bkpy.protocol.log.log_list import LogList, PageRef, Segment
from bkpy.protocol.log.log_opening import SegmentEnd, begun, ended, sealed, settled
from bkpy.protocol.log.log_pages import (
    Page,
    Row,
    decoded,
    index_at,
    index_before,
    index_ending_behind,
    may_have,
    paged,
)
from bkpy.protocol.log.log_retention import retained_from, retained_in

GOLDEN = Path(__file__).parents[3] / "golden" / "metadata"


def segment(n: int, *, entries: int = 3, gap: int = 0) -> Segment:
    """The nth of a log in which each segment has three entries of 10 bytes, within a second."""
    return Segment(100 + n, n * 3 + gap, n * 1000).seal(entries, entries * 18, n * 1000 + 900)


def a_list(*segments: Segment, **fields: Any) -> LogList:
    return LogList("u", 3, 3, 2, "crc32c", bytes(16), segments=segments, **fields)


class Grown:
    """A log that was written again and again, in pages of `rows_max`."""

    def __init__(self, rows_max: int) -> None:
        self.rows_max = rows_max
        self.list = a_list()
        self.pages: dict[int, Page] = {}

    def write(self, log_list: LogList) -> None:
        self.list, pages = paged(log_list, self.rows_max)
        for page in pages:
            assert page.number not in self.pages
            self.pages[page.number] = page

    def flat(self, rows: tuple[Row, ...] | None = None) -> list[Segment]:
        """All segments, the pages' first."""
        found: list[Segment] = []
        for row in self.list.rows if rows is None else rows:
            if isinstance(row, Segment):
                found.append(row)
            else:
                assert self.pages[row.number].reference() == row
                found += self.flat(self.pages[row.number].rows)
        return found


def grown(count: int, rows_max: int = 2) -> Grown:
    log = Grown(rows_max)
    for n in range(count):
        log.write(dataclasses.replace(log.list, segments=(*log.list.segments, segment(n))))
    return log


@pytest.mark.parametrize("rows_max", [2, 3, 10])
def test_a_log_of_any_length_keeps_a_short_list_and_all_segments(rows_max: int) -> None:
    log = Grown(rows_max)
    written = 0
    for n in range(150):
        before = len(log.pages)
        log.write(dataclasses.replace(log.list, segments=(*log.list.segments, segment(n))))
        written = max(written, len(log.pages) - before)
        assert len(log.list.segments) <= 2 * rows_max + 2
        levels = [ref.level for ref in log.list.pages]
        assert levels == sorted(levels, reverse=True)
        assert all(levels.count(level) <= rows_max for level in levels)
        assert log.list.ledgers == n + 1
        assert log.list.payload_bytes == (n + 1) * 30
    assert log.flat() == [segment(n) for n in range(150)]
    assert all(len(page.rows) == rows_max for page in log.pages.values())
    assert max(page.level for page in log.pages.values()) >= {2: 6, 3: 4, 10: 2}[rows_max]
    assert written <= max(page.level for page in log.pages.values())


def test_writing_it_all_at_once_makes_the_same_segments() -> None:
    at_once = Grown(2)
    at_once.write(a_list(*(segment(n) for n in range(50))))
    assert at_once.flat() == grown(50).flat()
    assert len(at_once.list.segments) <= 6
    assert paged(at_once.list, 2) == (at_once.list, ())


def test_open_segments_stay_in_the_list() -> None:
    log = grown(6)
    log.write(dataclasses.replace(log.list, segments=(*log.list.segments, Segment(7, 18, 7000), Segment(8, 20, 7001))))
    assert [found.ledger_id for found in log.list.open_segments] == [7, 8]
    assert all(isinstance(row, Segment) and row.sealed for page in log.pages.values() for row in page.rows)


def test_what_is_found_is_what_a_plain_list_has() -> None:
    log = grown(77)
    flat = log.flat()

    def descend(index_of: Any) -> Segment | None:
        rows: tuple[Row, ...] = log.list.rows
        while (index := index_of(rows)) >= 0:
            if index == len(rows):
                return None
            row = rows[index]
            if isinstance(row, Segment):
                return row
            rows = log.pages[row.number].rows
        return None

    for position in range(77 * 3 + 5):
        assert descend(lambda rows, p=position: index_at(rows, p)) == flat[min(position // 3, 76)]
        wanted = flat[position // 3] if position < 77 * 3 else None
        assert descend(lambda rows, p=position: index_ending_behind(rows, p)) == wanted
    assert descend(lambda rows: index_at(rows, -1)) is None
    for tenth in range(800):
        wanted = max((one for one in flat if one.begun_ms / 1000 < tenth / 10), key=lambda s: s.begun_ms, default=None)
        assert descend(lambda rows, t=tenth: index_before(rows, t / 10)) == wanted


def test_a_ledger_is_only_looked_for_where_it_may_be() -> None:
    log = grown(20)
    refs = log.list.pages
    assert [ref for ref in refs if may_have(ref, 100)] == [refs[0]]
    assert not any(may_have(ref, ledger_id) for ref in refs for ledger_id in (99, 120))


@pytest.mark.parametrize("seed", range(12))
def test_rolls_takeovers_losses_and_truncations_keep_what_is_there(seed: int) -> None:
    """Against a plain list of what should be there, whichever way it comes and goes."""
    rng = random.Random(seed)
    log, kept, ledger_id, now = Grown(rng.choice((2, 3))), list[Segment](), 0, 0
    for _ in range(150):
        ledger_id, now = ledger_id + 1, now + 10
        act = rng.choice(("roll", "roll", "open", "open", "end", "truncate"))
        log_list = log.list
        ends = {
            one.ledger_id: SegmentEnd(rng.choice((0, 2)), 36, now, rng.random() < 0.1) for one in log_list.open_segments
        }
        if act == "roll" and len(log_list.open_segments) == 1:
            last = log_list.open_segments[0]
            log_list = sealed(log_list, last.ledger_id, SegmentEnd(2, 36, now))
            log.write(begun(log_list, ledger_id, last.first_position + 2, now, "w", "label"))
        elif act == "open":
            log_list = settled(log_list, ends)
            log.write(begun(log_list, ledger_id, log_list.sealed_end, now, "w", "label"))
        elif act == "end" and len(log_list.open_segments) == 1:
            end = SegmentEnd(rng.choice((0, 3)), 54, now)
            log.write(ended(sealed(log_list, log_list.segments[-1].ledger_id, end), log_list.segments[-1].ledger_id))
        elif act == "truncate":
            log.write(log_list.truncated(rng.randrange(log_list.first_position, log_list.sealed_end + 1)))
            if rng.random() < 0.5:
                log.write(log.list.without_pending_pages())
                assert not log.list.pages_pending
        flat = log.flat()
        assert LogList.decode("x", log.list.encode()) == log.list
        known = {one.ledger_id: one for one in (*kept, *flat)}
        first = log.list.first_position
        kept = [one for one in known.values() if one.sealed and one.end_position > first]
        # What lies behind the first position is there, in order, and sealed segments are what they were.
        assert [one for one in flat if one.sealed and one.end_position > first] == sorted(
            kept, key=lambda one: one.first_position
        )
        for page in log.pages.values():
            assert decoded("x", "u", page.reference(), page.encode()) == page


# --- what retention keeps, page by page -------------------------------------------------------------------------------


def kept_from(log: Grown, now_ms: int, consumers: list[int]) -> tuple[int, int]:
    """Before which position nothing is kept, and how many pages were read for that."""
    found, read = retained_from(log.list, now_ms, consumers), 0
    while found.edge is not None:
        found = retained_in(log.list, log.pages[found.edge.number].rows, found, now_ms, consumers)
        read += 1
    return found.position, read


@pytest.mark.parametrize("first", [0, 62])
@pytest.mark.parametrize("lag", [None, 3.0])
@pytest.mark.parametrize(("s", "size"), [(10.0, None), (None, 400), (10.0, 400), (0.0, 2000), (None, None)])
def test_retention_in_pages_keeps_what_it_keeps_without(
    s: float | None, size: int | None, lag: float | None, first: int
) -> None:
    log, limits = grown(77), {"retention_s": s, "retention_bytes": size, "consumer_lag_max_s": lag}
    log.list = dataclasses.replace(log.list, **limits).truncated(first)
    plain = a_list(*(one for one in log.flat() if one.end_position > first), first_position=first, **limits)  # type: ignore[arg-type]
    for now_ms in range(0, 100_000, 9700):
        for consumers in ([], [7], [7, 100], [231]):
            wanted = retained_from(plain, now_ms, consumers)
            assert wanted.edge is None
            position, read = kept_from(log, now_ms, consumers)
            assert position == wanted.position
            assert read <= 7  # one of each level


# --- the stored form --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "name"), [(0, "log-page.json"), (3, "log-page-of-pages.json")])
def test_the_stored_form_is_the_golden_one(number: int, name: str) -> None:
    page, stored = grown(20).pages[number], (GOLDEN / name).read_bytes()
    assert page.encode() == stored
    assert decoded("orders", "u", page.reference(), stored) == page


LEAF = Page("u", 5, 1, (segment(0), segment(1)))
UPPER = Page("u", 6, 2, (LEAF.reference(), Page("u", 4, 1, (segment(2), segment(3))).reference()))


@pytest.mark.parametrize("page", [LEAF, UPPER])
@pytest.mark.parametrize(
    "change",
    [
        {"version": 0},
        {"version": True},
        {"uid": "other"},
        {"number": 7},
        {"level": 3},
        {"rows": []},
        {"rows": None},
        {"rows": [[1, 2]]},
        {"rows": LEAF.reference().row()},
    ],
)
def test_what_is_not_the_page_is_refused(page: Page, change: dict[str, Any]) -> None:
    data = json.dumps({**json.loads(page.encode()), **change}).encode()
    with pytest.raises(CorruptDataError, match=f"page {page.number} of the list of log orders is unreadable"):
        decoded("orders", "u", page.reference(), data)


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_page_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        decoded("orders", "u", LEAF.reference(), data)


def test_a_page_with_other_rows_is_refused() -> None:
    for rows in ((segment(1), segment(0)), (segment(0),), (segment(0), segment(1, entries=2))):
        with pytest.raises(CorruptDataError):
            decoded("orders", "u", LEAF.reference(), dataclasses.replace(LEAF, rows=rows).encode())
    wrong = dataclasses.replace(UPPER, level=3)
    with pytest.raises(CorruptDataError, match="another level"):
        decoded("orders", "u", wrong.reference(), wrong.encode())
    overlapping = dataclasses.replace(LEAF, rows=(segment(0, entries=4), segment(1)))
    with pytest.raises(CorruptDataError, match="ascend"):
        decoded("orders", "u", overlapping.reference(), overlapping.encode())


def test_a_newer_format_is_not_guessed_at() -> None:
    data = json.dumps({**json.loads(LEAF.encode()), "version": 2}).encode()
    with pytest.raises(
        UnsupportedVersionError, match=r"page 5 of the list of log orders has format version 2.*upgrade"
    ):
        decoded("orders", "u", LEAF.reference(), data)


# --- what is pending delete ------------------------------------------------------------------------------------------


def test_pages_below_the_first_position_are_pending_and_then_gone() -> None:
    log = grown(20)
    whole = log.list
    assert not whole.pages_pending
    inside = whole.pages[0].end_position + 1
    cut = whole.truncated(inside)
    assert cut.pages == whole.pages  # nothing but the position moves
    assert cut.pages_pending
    assert cut.is_pending(segment(0))
    assert not cut.is_pending(segment(19))
    left = cut.without_pending_pages()
    assert left.pages == whole.pages[1:]
    assert (left.reclaimed, left.pages_pending) == (inside, False)
    assert left.truncated(inside + 1).pages_pending
    deleted = dataclasses.replace(left, deleted=True, segments=())
    assert deleted.pages_pending
    assert deleted.is_pending(segment(12))
    assert deleted.without_pending_pages().pages == ()


def test_a_truncation_to_a_gap_goes_on_behind_it() -> None:
    rows = (segment(0), segment(1), segment(2, gap=5), segment(3, gap=5))
    log_list, pages = paged(a_list(*rows, *(segment(n, gap=5) for n in range(4, 8)), gaps=((6, 11),)), 2)
    assert [len(page.rows) for page in pages] == [2]
    assert log_list.truncated(7).first_position == 11
    assert log_list.truncated(6).first_position == 11
    assert log_list.truncated(5).first_position == 5
    with pytest.raises(ConfigError, match="no segment begins at position 6"):
        dataclasses.replace(log_list, gaps=())


def test_a_reference_needs_no_sums_of_what_is_below() -> None:
    assert UPPER.reference() == PageRef(2, 6, 0, 12, 0, 3900, 120, 12, 4, 100, 103)
