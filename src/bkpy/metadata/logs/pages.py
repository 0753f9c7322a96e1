"""The pages of logs' lists: reads them as they are needed, and finds segments in them.

    logs/<name>/<uid>/pages             there from the first page on
    logs/<name>/<uid>/pages/<number>    a page, see `bkpy.protocol.log.log_pages`

A search reads one page of each level, unless the page is one of the last `log_pages_cached_max` that were read.

Invariants: a page is used only as what its reference says; one that is missing or unreadable is an error, and never
taken for one without segments; a walk that was cancelled goes on where it was.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from bkpy.errors import DiskError
from bkpy.metadata import paths
from bkpy.metadata.store.resolve import read_certainly
from bkpy.protocol.log.log_list import PageRef, Segment
from bkpy.protocol.log.log_pages import decoded, index_at, index_before, index_ending_behind, may_have
from bkpy.protocol.log.log_reading import range_in

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from bkpy.config.shared import MetadataSettings
    from bkpy.metadata.store.store import MetadataStore
    from bkpy.protocol.log.log_list import LogList
    from bkpy.protocol.log.log_pages import Page, Row
    from bkpy.protocol.log.log_reading import SegmentRange


class PageMissingError(DiskError):
    """There is no such page: its part of the log was truncated, the log was deleted, or the page was lost."""

    end_position = 0  # of the page


def pages_path(root: str, name: str, uid: str) -> str:
    """The node above all pages of a log."""
    return f"{paths.log(root, name)}/{uid}/pages"


class LogPages:
    """The pages of all logs under `root`. Calls raise `PageMissingError`, `CorruptDataError`,
    `UnsupportedVersionError`, `MetadataUnavailableError`.
    """

    def __init__(self, store: MetadataStore, root: str, settings: MetadataSettings) -> None:
        self._store = store
        self._root = root
        self._cached_max = settings.log_pages_cached_max
        self._cached: OrderedDict[tuple[str, PageRef], Page] = OrderedDict()  # the one used last at the end

    async def read(self, name: str, uid: str, ref: PageRef) -> Page:
        """The page of the log `name` with this `uid`."""
        key = uid, ref
        page = self._cached.get(key)
        if page is None:
            found = await read_certainly(self._store, f"{pages_path(self._root, name, uid)}/{ref.number}")
            if found is None:
                missing = PageMissingError(
                    f"page {ref.number} of the list of log {name} is missing; it has positions {ref.first_position} to "
                    f"{ref.end_position - 1}"
                )
                missing.end_position = ref.end_position
                raise missing
            page = self._cached[key] = decoded(name, uid, ref, found[0])
        self._cached.move_to_end(key)
        while len(self._cached) > self._cached_max:
            self._cached.popitem(last=False)
        return page

    def cached(self, uid: str, ref: PageRef) -> Page | None:
        """The page if it was read lately."""
        return self._cached.get((uid, ref))

    async def segment_at(self, name: str, log_list: LogList, position: int) -> Segment | None:
        """The segment that `position` lies in, or would lie in; None if it is below all."""
        rows: Sequence[Row] = log_list.rows
        while (index := index_at(rows, position)) >= 0:
            row = rows[index]
            if isinstance(row, Segment):
                return row
            rows = (await self.read(name, log_list.uid, row)).rows
        return None

    async def segment_before(self, name: str, log_list: LogList, time: float) -> tuple[Segment, Segment | None] | None:
        """The last segment that began before `time`, in seconds since the epoch, and the one behind it.

        None if none did that isn't truncated. A sealed segment, behind which none is needed, may come with None.
        """
        rows: Sequence[Row] = log_list.rows
        while (index := index_before(rows, time)) >= 0:
            row = rows[index]
            if row.sealed and row.end_position <= log_list.first_position:
                return None
            if isinstance(row, Segment):
                following = rows[index + 1] if index + 1 < len(rows) else None
                return row, following if isinstance(following, Segment) else None
            rows = (await self.read(name, log_list.uid, row)).rows
        return None

    async def segment_of(self, name: str, log_list: LogList, ledger_id: int) -> Segment | None:
        """The segment that is this ledger; None if it is certain that there is none."""
        for segment in log_list.segments:
            if segment.ledger_id == ledger_id:
                return segment
        return await self._segment_in(name, log_list, log_list.pages, ledger_id)

    async def _segment_in(self, name: str, log_list: LogList, rows: Sequence[Row], ledger_id: int) -> Segment | None:
        for row in rows:
            if isinstance(row, Segment):
                if row.ledger_id == ledger_id:
                    return row
            elif row.end_position > log_list.reclaimed and may_have(row, ledger_id):
                page = await self.read(name, log_list.uid, row)
                if (found := await self._segment_in(name, log_list, page.rows, ledger_id)) is not None:
                    return found
        return None

    async def sealed_from(self, name: str, log_list: LogList, position: int) -> tuple[int, int]:
        """How many entries the sealed segments have from `position` on, and about how many bytes.

        References tell of pages that lie behind it, so one page of each level is read.
        """
        entries = size = 0
        rows: Sequence[Row] = log_list.rows
        while rows:
            index = index_ending_behind(rows, position)
            edge = rows[index] if index < len(rows) and rows[index].first_position < position else None
            for row in rows[index + (edge is not None) :]:
                if row.sealed:
                    entries += row.entries
                    size += row.payload_bytes
            rows = ()
            if isinstance(edge, PageRef):
                rows = (await self.read(name, log_list.uid, edge)).rows
            elif edge is not None and edge.sealed:
                left = edge.end_position - position
                entries += left
                size += edge.payload_bytes * left // edge.entries
        return entries, size

    async def segments(self, name: str, log_list: LogList, position: int = 0) -> AsyncGenerator[Segment, None]:
        """All segments from `position` on in order, without the ones below the list's first position."""
        walk = SegmentWalk(self, name, log_list, max(position, log_list.first_position))
        while True:
            await walk.load()
            if (segment := walk.following) is None:
                return
            walk.advance()
            yield segment


class SegmentWalk:
    """The segments from `position` on, in order: the `following` one is known if it is `ready`, otherwise `load` it."""

    def __init__(self, pages: LogPages, name: str, log_list: LogList, position: int) -> None:
        self._pages = pages
        self._name = name
        self._list = log_list
        self.position = position  # from here on, when a page is loaded
        self._rows: Sequence[Row] = log_list.segments
        self._index = 0
        self.ready = not log_list.pages or position >= log_list.pages[-1].end_position
        if self.ready:
            self._index = index_ending_behind(self._rows, position)

    @property
    def following(self) -> Segment | None:
        """The next segment; None behind the last one."""
        return self._at(self._index)

    @property
    def behind_following(self) -> Segment | None:
        """The segment behind that, if it is known without another page."""
        return self._at(self._index + 1)

    def _at(self, index: int) -> Segment | None:
        row = self._rows[index] if index < len(self._rows) else None
        return row if isinstance(row, Segment) else None

    def advance(self) -> None:
        """Go on behind the following segment."""
        segment = self.following
        assert segment is not None
        self._index += 1
        if self._index == len(self._rows) and self._rows is not self._list.segments:
            self.position = segment.end_position
            self.ready = False

    async def load(self) -> None:
        """Get ready. May be cancelled and called again."""
        if self.ready:
            return
        rows = all_rows = self._list.rows
        index = index_ending_behind(rows, self.position)
        while index < len(rows) and isinstance(row := rows[index], PageRef):
            rows = (await self._pages.read(self._name, self._list.uid, row)).rows
            index = index_ending_behind(rows, self.position)
        if rows is all_rows:
            rows, index = self._list.segments, index - len(self._list.pages)
        self._rows, self._index, self.ready = rows, index, True


class RangeWalk:
    """Where the entries at positions first..last are, in order: all of them not truncated, and known to be readable."""

    def __init__(self, pages: LogPages, name: str, log_list: LogList, first: int, last: int) -> None:
        self._walk = SegmentWalk(pages, name, log_list, first)
        self._first = first
        self._last = last

    @property
    def ready(self) -> bool:
        """Whether `take` knows the next range, or that there is none."""
        return self._walk.ready or self._walk.position > self._last

    async def load(self) -> None:
        """Get ready. May be cancelled and called again."""
        if not self.ready:
            await self._walk.load()

    def take(self) -> SegmentRange | None:
        """The next range; None behind the last one, and as long as it is not ready."""
        walk = self._walk
        while walk.ready and (segment := walk.following) is not None and segment.first_position <= self._last:
            found = range_in(segment, walk.behind_following, self._first, self._last)
            walk.advance()
            if found is not None:
                return found
        return None
