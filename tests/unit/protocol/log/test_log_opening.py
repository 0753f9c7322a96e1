"""Decisions of a log's writer: every case of the tables, and lists in all the states that a writer may leave."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkpy.errors import ConfigError, CorruptDataError
from bkpy.protocol.ledger.ledger_metadata import LEDGER_ID_MAX
from bkpy.protocol.log.log_list import LogList, Segment
from bkpy.protocol.log.log_opening import (
    AFTER_OPENING,
    AFTER_ROLLING,
    LABEL_CHARS_MAX,
    LEDGER_ENTRIES_MAX,
    TIME_MAX_MS,
    TOKEN_CHARS,
    ListState,
    ListWrite,
    OpeningStep,
    SegmentEnd,
    begun,
    ended,
    list_state,
    longest,
    longest_opened,
    sealed,
    settled,
    without_deleted,
)
from bkpy.protocol.log.log_producers import SEQUENCE_MAX, Numbering, NumberRun, Producer, Producers
from bkpy.protocol.log.log_reading import ranges_of, segment_for
from bkpy.protocol.log.log_sinks import BatchPart, with_batch
from bkpy.protocol.wire.records import NUMBERED

EMPTY = LogList("u", 3, 3, 2, "crc32c", b"k")
SEALED = Segment(1, 0, 1000, entries=10, length=100, last_ms=1500)


def log_list(*segments: Segment, **changes: object) -> LogList:
    return dataclasses.replace(EMPTY, segments=segments, **changes)  # type: ignore[arg-type]


def places(found: LogList) -> list[tuple[int, int, int]]:
    return [(segment.ledger_id, segment.first_position, segment.entries) for segment in found.segments]


# --- settling -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [(), (SEALED,)], ids=["first", "behind others"])
@pytest.mark.parametrize("appended", [0, 1, 5])
@pytest.mark.parametrize("survived", [0, 1, 4, 5])
@pytest.mark.parametrize("behind", [0, 3])
def test_what_survives_of_two_ledgers_is_a_prefix(
    before: tuple[Segment, ...], appended: int, survived: int, behind: int
) -> None:
    """A dead writer appended `appended` entries to ledger 7 and `behind` to ledger 8."""
    if survived > appended:
        return
    begin = 10 if before else 0
    first, second = Segment(7, begin, 2000), Segment(8, begin + appended, 3000)
    ends = {7: SegmentEnd(survived, survived, 2500), 8: SegmentEnd(behind, behind, 3500)}
    found = settled(log_list(*before, first, second), ends)
    whole = [(segment.ledger_id, segment.first_position, segment.entries) for segment in before]
    if survived:
        whole.append((7, begin, survived))
    if survived == appended and behind:
        whole.append((8, begin + appended, behind))
    assert places(found) == whole
    assert not found.open_segments
    assert found.sealed_end == begin + survived + (behind if survived == appended else 0)
    assert set(found.pending_delete) == {7, 8} - {segment.ledger_id for segment in found.segments}
    kept = {segment.ledger_id: segment for segment in found.segments}
    assert all(kept[i].last_ms == ends[i].last_ms and kept[i].length == ends[i].length for i in (7, 8) if i in kept)


@pytest.mark.parametrize("before", [(), (SEALED,)], ids=["first", "behind others"])
@pytest.mark.parametrize("truncated", [0, 3])
@pytest.mark.parametrize("survived", [0, 2, 5])
@pytest.mark.parametrize(
    ("behind", "lost"),
    [(None, {7}), (0, {7}), (3, {7}), (0, {8}), (3, {8}), (0, {7, 8}), (3, {7, 8})],
)
def test_behind_an_accepted_loss_no_position_is_used_again(
    before: tuple[Segment, ...], truncated: int, survived: int, behind: int | None, lost: set[int]
) -> None:
    """Five entries of ledger 7 were told of, and of ledger 8, if there is one, nobody knows how many."""
    if 7 not in lost and survived < 5:
        return  # then ledger 8 is dropped: see above
    begin = 10 if before else 0
    segments, ends = [Segment(7, begin, 2000)], {7: SegmentEnd(survived, survived, 2500, 7 in lost)}
    if behind is not None:
        segments.append(Segment(8, begin + 5, 3000))
        ends[8] = SegmentEnd(behind, behind, 3500, 8 in lost)
    found = settled(log_list(*before, *segments, first_position=truncated), ends)
    goes_on = segments[-1].first_position
    goes_on += LEDGER_ENTRIES_MAX if segments[-1].ledger_id in lost else ends[segments[-1].ledger_id].entries
    whole = [(1, 0, 10)] if before else []
    whole += [(7, begin, survived)] if survived else []
    whole += [(8, begin + 5, behind)] if behind else []
    if whole and whole[-1][1] + whole[-1][2] < truncated:
        whole = []
    assert places(found) == whole
    assert set(found.pending_delete) == {s.ledger_id for s in (*before, *segments)} - {place[0] for place in whole}
    assert found.sealed_end == goes_on
    assert found.first_position == max(truncated, whole[0][1] if whole else goes_on)
    after = begun(found, 9, found.sealed_end, 4000, "w", "")
    assert after.segments[-1].first_position == goes_on
    assert LogList.decode("orders", after.encode()) == after
    ranges = ranges_of(after, after.first_position, goes_on - 1)
    readable = [
        position for part in ranges for position in range(part.first_position, part.first_position + part.entries)
    ]
    assert readable == [p for _, at, entries in whole for p in range(at, at + entries) if p >= after.first_position]
    following = segment_for(after, goes_on, {})
    assert following is not None
    assert following.ledger_id == 9
    # A second writer that finds the new ledger empty, or not, changes nothing of that.
    assert settled(after, {9: SegmentEnd(0, 0, 0)}).sealed_end == goes_on
    again = settled(after, {9: SegmentEnd(4, 4, 5000)})
    assert (again.sealed_end, again.gaps) == (goes_on + 4, after.gaps)
    for position in (after.first_position + 1, goes_on - 1, goes_on, goes_on + 2):
        left = again.truncated(position)
        assert LogList.decode("orders", left.encode()) == left
        assert left.first_position >= position
        assert left.sealed_end == goes_on + 4
        assert left.segments[0].first_position <= left.first_position


@pytest.mark.parametrize("gaps", [((5, 5),), ((5, 4),), ((3, 9), (8, 12)), ((3, 9), (9, 12))])
def test_gaps_ascend(gaps: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ConfigError, match="gaps"):
        dataclasses.replace(EMPTY, gaps=gaps)


@pytest.mark.parametrize("entries", [0, 6])
def test_one_open_ledger_is_sealed_or_dropped(entries: int) -> None:
    found = settled(log_list(SEALED, Segment(7, 10, 2000), pending_delete=(3,)), {7: SegmentEnd(entries, 60, 2500)})
    assert places(found) == ([(1, 0, 10), (7, 10, 6)] if entries else [(1, 0, 10)])
    assert found.pending_delete == ((3,) if entries else (3, 7))


@pytest.mark.parametrize("entries", [0, 2, 4, 5])
def test_nobody_appends_below_what_is_truncated(entries: int) -> None:
    """Position 14 was acknowledged, and truncated; then the loss of the ledger's end was accepted."""
    truncated = log_list(SEALED, Segment(7, 10, 2000), first_position=14)
    found = settled(truncated, {7: SegmentEnd(entries, 60, 2500)})
    assert found.first_position == 14
    assert found.sealed_end >= 14
    if entries < 4:
        assert not found.segments
        assert set(found.pending_delete) == {1, 7}
    else:
        assert places(found) == [(1, 0, 10), (7, 10, entries)]
    assert begun(found, 8, found.sealed_end, 0, "t", "").segments[-1].first_position == found.sealed_end


def test_what_is_sealed_stays() -> None:
    assert settled(log_list(SEALED), {}) == log_list(SEALED)
    assert settled(EMPTY, {}) == EMPTY
    other = Segment(2, 10, 2000, entries=5, length=50, last_ms=2500)
    assert settled(log_list(SEALED, other), {}) == log_list(SEALED, other)


def test_a_ledger_that_holds_more_than_lies_before_the_next_is_an_error() -> None:
    unknown = log_list(Segment(7, 0, 0), Segment(8, 4, 0))
    with pytest.raises(CorruptDataError, match="position 4"):
        settled(unknown, {7: SegmentEnd(5, 5, 1), 8: SegmentEnd(1, 1, 1)})


# --- any history ----------------------------------------------------------------------------------------------------


class History:
    """A log whose writers come one after the other; each of their ledgers may lose its last entries for good."""

    def __init__(self) -> None:
        self.log_list = EMPTY
        self.held: dict[int, int] = {}  # entries of the ledgers that may be open
        self.entries: dict[int, tuple[int, int]] = {}  # ledger and entry at each position that was acknowledged
        self.acknowledged: set[int] = set()  # positions, also those whose entries are lost
        self.ids = itertools.count()

    def open(self, losses: list[int | None]) -> None:
        """The next writer finds that of each open ledger so many entries at most are left; None: no loss."""
        ends = {}
        for segment, left in zip(self.log_list.open_segments, losses, strict=False):
            entries = self.held[segment.ledger_id]
            kept = entries if left is None else min(entries, left)
            ends[segment.ledger_id] = SegmentEnd(kept, kept * 9, 1500 if kept else 0, left is not None)
            for entry in range(kept, entries):
                self.entries.pop(segment.first_position + entry, None)
        bound = longest_opened(self.log_list, 1000)
        self.log_list = settled(self.log_list, ends)
        self.add(self.log_list.sealed_end)
        assert len(self.log_list.encode()) <= len(bound.encode())
        assert not self.acknowledged & set(range(self.log_list.sealed_end, self.log_list.sealed_end + 100)), (
            "a position twice"
        )

    def add(self, position: int) -> None:
        ledger_id = next(self.ids)
        self.held[ledger_id] = 0
        self.log_list = begun(self.log_list, ledger_id, position, 1000, "token", "label")

    def append(self, count: int) -> None:
        segment = self.log_list.segments[-1]
        for entry in range(self.held[segment.ledger_id], self.held[segment.ledger_id] + count):
            position = segment.first_position + entry
            self.entries[position] = segment.ledger_id, entry
            self.acknowledged.add(position)
        self.held[segment.ledger_id] += count

    def roll(self, *, closes: bool) -> None:
        former, entries = self.log_list.segments[-1], self.held[self.log_list.segments[-1].ledger_id]
        if entries and len(self.log_list.open_segments) == 1:
            self.add(former.first_position + entries)
            if closes:
                self.log_list = sealed(self.log_list, former.ledger_id, SegmentEnd(entries, entries * 9, 1400))

    @property
    def end(self) -> int:
        return max(self.acknowledged, default=-1) + 1

    def truncate(self, share: float) -> None:
        self.log_list = self.log_list.truncated(
            self.log_list.first_position + int((self.end - self.log_list.first_position) * share)
        )

    def check(self) -> None:
        log_list = self.log_list
        assert LogList.decode("orders", log_list.encode()) == log_list
        parts = (
            ranges_of(log_list, log_list.first_position, log_list.sealed_end - 1)
            if log_list.sealed_end > log_list.first_position
            else ()
        )
        found = {
            part.first_position + i: (part.ledger_id, part.first_entry + i)
            for part in parts
            for i in range(part.entries)
        }
        assert found == {
            p: place for p, place in self.entries.items() if log_list.first_position <= p < log_list.sealed_end
        }
        assert log_list.behind(self.end) >= log_list.first_position, (
            "a consumer that has read everything is taken for late"
        )


STEPS = st.one_of(
    st.tuples(st.just("open"), st.lists(st.none() | st.integers(0, 3), min_size=2, max_size=2)),
    st.tuples(st.just("append"), st.integers(1, 3)),
    st.tuples(st.just("roll"), st.booleans()),
    st.tuples(st.just("truncate"), st.floats(0, 1)),
)


@given(st.lists(STEPS, max_size=14))
def test_whatever_is_lost_the_log_can_be_opened_and_keeps_the_rest(steps: list[tuple[str, object]]) -> None:
    """Accepted losses in a row, of empty ledgers too, of both open ledgers, and below what is truncated."""
    history = History()
    history.open([])
    for what, argument in steps:
        if what == "open":
            history.open(argument)  # type: ignore[arg-type]
        elif what == "append":
            history.append(argument)  # type: ignore[arg-type]
        elif what == "roll":
            history.roll(closes=bool(argument))
        else:
            history.truncate(argument)  # type: ignore[arg-type]
        history.check()


@pytest.mark.parametrize(
    "end",
    [
        SegmentEnd(0, 0, 0),
        SegmentEnd(5, 900, 2500),
        SegmentEnd(LEDGER_ENTRIES_MAX - 1, 2**63 - 1, 2**63 - 1),
        SegmentEnd(LEDGER_ENTRIES_MAX - 2, 2**63 - 1, 2**63 - 1, lost=True),
        SegmentEnd(0, 0, 0, lost=True),
    ],
)
@pytest.mark.parametrize("others", [(), (SEALED,)])
def test_an_opener_never_stores_a_longer_list_than_was_foreseen(others: tuple[Segment, ...], end: SegmentEnd) -> None:
    written = log_list(*others, Segment(7, 10 if others else 0, 2000))
    after = settled(written, {7: end})
    after = begun(after, 8, after.sealed_end, 3000, "f" * TOKEN_CHARS, "x" * LABEL_CHARS_MAX)
    assert len(after.encode()) <= len(longest_opened(written, 3000).encode())


@pytest.mark.parametrize("runs", [(), (NumberRun(0, 0, 10),) * 4])
def test_an_opener_foresees_the_numbers_of_producers(runs: tuple[NumberRun, ...]) -> None:
    """Two ledgers have some that nobody has sealed, and its own gets some, too."""
    known = Producers({"shop": Producer(0, 1000, runs)}, next_index=1)
    two = (Segment(7, 10, 2000, stamp=NUMBERED), Segment(8, 10**12, 3000, stamp=NUMBERED))
    written = log_list(SEALED, *two, producers=known)
    ends = {
        7: SegmentEnd(10**12 - 10, 2**63 - 1, TIME_MAX_MS, numbering=Numbering(0, SEQUENCE_MAX - 10**13)),
        8: SegmentEnd(10**12, 2**63 - 1, TIME_MAX_MS, numbering=Numbering(0, SEQUENCE_MAX - 10**12)),
    }
    after = settled(written, ends)
    token, label = "f" * TOKEN_CHARS, "x" * LABEL_CHARS_MAX
    after = begun(after, LEDGER_ID_MAX, after.sealed_end, TIME_MAX_MS, token, label, numbered=True)
    assert len(after.encode()) <= len(longest_opened(written, 3000).encode())
    committed = with_batch(settled(written, ends), "job", 1, [BatchPart(9, 1, 9, 1)], TIME_MAX_MS, 10)
    foreseen = with_batch(longest(written), "job", 1, [BatchPart(9, 1, 9, 1)], TIME_MAX_MS, 10)
    assert len(committed.encode()) <= len(foreseen.encode())


def test_two_losses_in_a_row_leave_one_gap() -> None:
    first = settled(log_list(Segment(7, 0, 2000)), {7: SegmentEnd(2, 2, 2500, lost=True)})
    second = begun(first, 8, first.sealed_end, 3000, "t", "l")
    found = settled(second, {8: SegmentEnd(0, 0, 0, lost=True)})
    assert found.gaps == ((2, 2 * LEDGER_ENTRIES_MAX),)
    assert (places(found), found.sealed_end) == ([(7, 0, 2)], 2 * LEDGER_ENTRIES_MAX)


def test_a_loss_below_what_is_truncated_leaves_the_ledger_behind_it() -> None:
    """Ledger 7 has one entry left of two, ledger 8 has positions 2 to 4, and what lies below 3 is truncated."""
    truncated = log_list(Segment(7, 0, 2000), Segment(8, 2, 3000), first_position=3)
    found = settled(truncated, {7: SegmentEnd(1, 1, 2500, lost=True), 8: SegmentEnd(3, 3, 3500)})
    assert (places(found), found.first_position, found.sealed_end) == ([(7, 0, 1), (8, 2, 3)], 3, 5)


def test_a_log_of_which_nothing_is_left_tells_the_lost_positions_from_truncated_ones() -> None:
    found = settled(log_list(Segment(7, 0, 2000)), {7: SegmentEnd(0, 0, 0, lost=True)})
    assert found.gaps == ((0, LEDGER_ENTRIES_MAX),)
    assert (found.segments, found.first_position, found.behind(5)) == ((), LEDGER_ENTRIES_MAX, LEDGER_ENTRIES_MAX)


# --- beginning and ending -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("now_ms", "begun_ms"), [(100, 1500), (1500, 1500), (9000, 9000)])
def test_times_never_fall_from_one_ledger_to_the_next(now_ms: int, begun_ms: int) -> None:
    found = begun(log_list(SEALED), 9, 10, now_ms, "token", "label")
    assert found.segments == (SEALED, Segment(9, 10, begun_ms))
    assert (found.writer, found.writer_label) == ("token", "label")


def test_a_ledger_is_sealed_once() -> None:
    two = log_list(Segment(7, 0, 2000), Segment(8, 4, 3000))
    once = sealed(two, 7, SegmentEnd(4, 44, 2500))
    assert once.segments == (Segment(7, 0, 2000, 4, 44, 2500), Segment(8, 4, 3000))
    assert sealed(once, 7, SegmentEnd(4, 45, 2600)) == once
    assert sealed(once, 99, SegmentEnd(4, 45, 2600)) == once


def test_whoever_closes_the_log_leaves_no_empty_ledger() -> None:
    full = log_list(SEALED, writer="t", writer_label="l")
    assert ended(full, 1) == log_list(SEALED)
    empty = sealed(begun(full, 9, 10, 0, "t", "l"), 9, SegmentEnd(0, 0, 0))
    assert ended(empty, 9) == log_list(SEALED, pending_delete=(9,))
    assert ended(EMPTY, 9) == EMPTY
    assert places(ended(empty, 8)) == places(empty)  # somebody else's


# --- after a write --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("writer", "ledger_id", "says"),
    [
        ("me", 7, ListState.OURS),
        ("me", 8, ListState.WITHOUT),
        ("other", 7, ListState.OTHERS),
        ("other", 8, ListState.OTHERS),
        ("", 7, ListState.OTHERS),
    ],
)
def test_what_the_list_says(writer: str, ledger_id: int, says: ListState) -> None:
    assert list_state(log_list(Segment(7, 0, 0), writer=writer), "me", ledger_id) is says


@pytest.mark.parametrize("table", [AFTER_OPENING, AFTER_ROLLING], ids=["opening", "rolling"])
def test_the_tables_are_total(table: dict[tuple[ListWrite, ListState], OpeningStep]) -> None:
    """A look comes behind `LOOK` alone, and then whatever is seen has an answer, which isn't to look again."""
    for told in ListWrite:
        first = table[told, ListState.NOTHING]
        seen = [table.get((told, says)) for says in ListState if says is not ListState.NOTHING]
        if first is OpeningStep.LOOK:
            assert None not in seen
            assert OpeningStep.LOOK not in seen
        else:
            assert set(seen) == {None}


@pytest.mark.parametrize(("told", "says"), list(itertools.product(ListWrite, ListState)))
def test_nobody_serves_before_the_list_names_him_and_his_ledger(told: ListWrite, says: ListState) -> None:
    for table in (AFTER_OPENING, AFTER_ROLLING):
        serves = table.get((told, says)) is OpeningStep.SERVE
        assert not serves or told is ListWrite.DONE or says is ListState.OURS


@pytest.mark.parametrize(("told", "says"), AFTER_ROLLING)
def test_appends_go_back_to_the_former_ledger_only_when_nothing_can_name_the_next(
    told: ListWrite, says: ListState
) -> None:
    act = AFTER_ROLLING[told, says]
    assert (act is OpeningStep.BACK) == (told in (ListWrite.NOT_DONE, ListWrite.LEDGER_GONE))
    assert act not in (OpeningStep.RESTART, OpeningStep.FAIL)  # those are for who opens
    if says is ListState.OTHERS:
        assert act is OpeningStep.FENCED


@pytest.mark.parametrize(("told", "says"), AFTER_OPENING)
def test_a_ledger_is_used_again_only_if_no_list_has_named_it(told: ListWrite, says: ListState) -> None:
    act = AFTER_OPENING[told, says]
    assert (act is OpeningStep.AGAIN) == (told is ListWrite.CHANGED)
    assert act not in (OpeningStep.BACK, OpeningStep.WAIT, OpeningStep.FENCED)  # those are for who rolls


@pytest.mark.parametrize(
    ("deleted", "left"), [((), [1, 2, 3]), ((3,), [1, 2]), ((2,), [1]), ((2, 3), [1]), ((1,), [1, 2, 3])]
)
def test_a_list_whose_open_ledgers_were_deleted_ends_before_the_first_of_them(
    deleted: tuple[int, ...], left: list[int]
) -> None:
    """Nobody knows where the second one begins without the first."""
    found = without_deleted(log_list(SEALED, Segment(2, 10, 2000), Segment(3, 10, 2000)), deleted)
    assert [segment.ledger_id for segment in found.segments] == left
