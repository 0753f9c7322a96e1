"""Pages of a log's list: immutable parts that keep the list itself short, however many segments the log has.

    list     the newest segments; references to pages, each level in order, the highest level first
    level 1  a page of segments
    level 2  a page of references to pages of level 1, and so on

A list that is written and has too many rows of one kind moves the oldest of them into a new page. So a million segments
need two levels, and a search by position, time or ledger reads one page of each.

Invariants: a page has only sealed segments; equal lists make equal pages; a page says exactly what
its reference says.
"""

from __future__ import annotations

import dataclasses
import json
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from bkpy.errors import CorruptDataError, UnsupportedVersionError
from bkpy.protocol.log.log_list import OPEN_MAX, LogList, PageRef, Segment
from bkpy.stored_json import parsed

if TYPE_CHECKING:
    from collections.abc import Sequence

PAGE_VERSION: Final = 1

Row = PageRef | Segment


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the log with this `uid`. Its rows are segments on level 1, and references on each other one."""

    uid: str
    number: int
    level: int
    rows: tuple[Row, ...]

    def reference(self) -> PageRef:
        """What a list, or a page of the next level, says of it."""
        rows = self.rows
        return PageRef(
            self.level,
            self.number,
            rows[0].first_position,
            rows[-1].end_position,
            rows[0].begun_ms,
            max(row.last_ms for row in rows),
            sum(row.payload_bytes for row in rows),
            sum(row.entries for row in rows),
            sum(row.segments if isinstance(row, PageRef) else 1 for row in rows),
            min(row.lowest_ledger if isinstance(row, PageRef) else row.ledger_id for row in rows),
            max(row.highest_ledger if isinstance(row, PageRef) else row.ledger_id for row in rows),
        )

    def encode(self) -> bytes:
        """The stored value: JSON, equal bytes for equal values."""
        fields = {
            "version": PAGE_VERSION,
            "uid": self.uid,
            "number": self.number,
            "level": self.level,
            "rows": [row.row() for row in self.rows],
        }
        return json.dumps(fields, separators=(",", ":")).encode()


def decoded(name: str, uid: str, ref: PageRef, data: bytes) -> Page:
    """The page of log `name` that `ref` refers to.

    Raises `UnsupportedVersionError` for a newer format and `CorruptDataError` for anything that isn't this page.
    """
    what = f"page {ref.number} of the list of log {name}"
    try:
        fields = parsed(data)
        version = fields["version"]
        if type(version) is not int or version < 1:
            raise ValueError(f"{version!r} is no format version")
        if version > PAGE_VERSION:
            raise UnsupportedVersionError(
                f"{what} has format version {version}, this bkpy reads up to {PAGE_VERSION}: upgrade it"
            )
        kind = Segment if ref.level == 1 else PageRef
        page = Page(fields["uid"], fields["number"], fields["level"], tuple(map(kind.of_row, fields["rows"])))
        if page.uid != uid or not page.rows or page.reference() != ref:
            raise ValueError("it is not the page that the list refers to")
        if any(isinstance(row, PageRef) and row.level != ref.level - 1 for row in page.rows):
            raise ValueError("it refers to pages of another level")
        if any(before.end_position > after.first_position for before, after in pairwise(page.rows)):
            raise ValueError("its rows don't ascend")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptDataError(f"{what} is unreadable: {error!r}") from error
    return page


def paged(log_list: LogList, rows_max: int) -> tuple[LogList, tuple[Page, ...]]:
    """The list as it is written, and its new pages: as long as it has too many rows, the oldest go into pages.

    The list keeps up to twice `rows_max` sealed segments, and `rows_max` references of each level.
    """
    pages: list[Page] = []
    levels: dict[int, list[Row]] = {0: list(log_list.segments)}
    for ref in log_list.pages:
        levels.setdefault(ref.level, []).append(ref)
    level = 0
    while level <= max(levels):
        rows = levels.setdefault(level, [])
        most = 2 * rows_max + OPEN_MAX if level == 0 else rows_max
        begin = 0
        while len(rows) - begin > most:
            some = tuple(rows[begin : begin + rows_max])
            pages.append(Page(log_list.uid, log_list.next_page + len(pages), level + 1, some))
            levels.setdefault(level + 1, []).append(pages[-1].reference())
            begin += rows_max
        del rows[:begin]
        level += 1
    if not pages:
        return log_list, ()
    refs = tuple(row for level in sorted(levels, reverse=True) for row in levels[level] if isinstance(row, PageRef))
    segments = tuple(row for row in levels[0] if isinstance(row, Segment))
    next_page = log_list.next_page + len(pages)
    # What gets into the first page isn't pending delete: such segments leave the list at once.
    reclaimed = log_list.reclaimed if log_list.pages else max(log_list.reclaimed, log_list.first_position)
    head = dataclasses.replace(log_list, pages=refs, next_page=next_page, segments=segments, reclaimed=reclaimed)
    return head, tuple(pages)


# --- searches ---------------------------------------------------------------------------------------------------------


def index_at(rows: Sequence[Row], position: int) -> int:
    """The index of the row that `position` lies in, or would lie in; -1 if it is below all."""
    return bisect_right(rows, position, key=lambda row: row.first_position) - 1


def index_before(rows: Sequence[Row], time: float) -> int:
    """The index of the last row that began before `time`, in seconds since the epoch; -1 if none did.

    Times never go back: no row before it has an entry as late, and none behind it has an earlier one.
    """
    return bisect_left(rows, time, key=lambda row: row.begun_ms / 1000) - 1


def index_ending_behind(rows: Sequence[Row], position: int) -> int:
    """The index of the first row that has something at or behind `position`; their number if none has.

    A segment that isn't sealed may have.
    """
    index = max(0, index_at(rows, position))
    if index < len(rows) and rows[index].sealed and rows[index].end_position <= position:
        return index + 1
    return index


def may_have(row: PageRef, ledger_id: int) -> bool:
    """Whether the ledger may be one of the page's."""
    return row.lowest_ledger <= ledger_id <= row.highest_ledger
