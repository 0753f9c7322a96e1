"""What a reader knows of its log: the list of its segments, and how far it may be read.

Invariants: the list is never replaced by an older one, nor by that of another log of the same name; `next_position`
never goes back; where a segment that isn't sealed ends is known only from metadata that say CLOSED; `proved` rises only
by the list, by what bookies show to be confirmed, and by what an append has returned.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from bkpy.errors import NoSuchLogError, TruncatedError
from bkpy.metadata.logs.pages import PageMissingError, RangeWalk
from bkpy.protocol.log.log_reading import segment_for

if TYPE_CHECKING:
    from bkpy.errors import NoSuchLedgerError
    from bkpy.metadata.logs.catalog import LogStore
    from bkpy.metadata.logs.pages import LogPages
    from bkpy.protocol.log.log_list import LogList, Segment

log = logging.getLogger("bkpy.client")


class LogSnapshot:
    """Shared by what reads and what follows one log."""

    def __init__(self, name: str, log_list: LogList, version: int) -> None:
        self.name = name
        self.list = log_list
        self.proved = max(log_list.sealed_end, log_list.first_position)
        self._claimed = 0  # a caller knows that what lies below may be read
        self._version = version
        self._closed: dict[int, int] = {}  # entries of ledgers that are CLOSED, though their segments aren't sealed

    async def refresh(self, logs: LogStore, *, fresh: bool = False) -> None:
        """Read the list again, `fresh` if no earlier write may be missed. Raises `NoSuchLogError`."""
        log_list, version = await logs.read(self.name, fresh=fresh)
        if log_list.uid != self.list.uid:
            raise NoSuchLogError(f"log {self.name} has been deleted, and another one has its name")
        if version <= self._version:  # perhaps from a server that lags behind
            return
        self.list, self._version = log_list, version
        self.advance(max(log_list.sealed_end, log_list.first_position))
        still_open = {segment.ledger_id for segment in log_list.open_segments}
        self._closed = {ledger: entries for ledger, entries in self._closed.items() if ledger in still_open}

    @property
    def next_position(self) -> int:
        """What lies below may be read."""
        return max(self.proved, self._claimed)

    def advance(self, position: int) -> None:
        """What lies below `position` is proved to be readable."""
        self.proved = max(self.proved, position)

    def claim(self, position: int) -> None:
        """A caller knows that what lies below `position` may be read. Nothing but reading goes by that."""
        self._claimed = max(self._claimed, position)

    def ended(self, segment: Segment, entries: int) -> None:
        """The segment's ledger is CLOSED, with so many entries."""
        if segment in self.list.open_segments:
            self._closed[segment.ledger_id] = entries

    def segment_for(self, position: int) -> Segment | None:
        """See `bkpy.protocol.log.log_reading.segment_for`."""
        return segment_for(self.list, position, self._closed)

    def behind(self, position: int) -> int:
        """The same position, or the one behind the gap that it lies in; a warning names the gap."""
        behind = self.list.behind(position)
        if behind != position:
            log.warning(
                "positions %d to %d of log %s were given up, and have no entries", position, behind - 1, self.name
            )
        return behind

    def ranges(self, pages: LogPages, first: int, last: int) -> RangeWalk:
        """Where the entries at positions first..last are, which must be readable."""
        return RangeWalk(pages, self.name, self.list, first, last)

    async def misses(self, error: NoSuchLedgerError | PageMissingError, pages: LogPages) -> bool:
        """Whether the log, as the list says now, should have the ledger or the page that isn't there.

        Raises `PageMissingError` if a page is missing that would tell.
        """
        if isinstance(error, PageMissingError):
            return error.end_position > self.list.first_position
        assert error.ledger_id is not None
        try:
            segment = await pages.segment_of(self.name, self.list, error.ledger_id)
        except PageMissingError as missing:
            if missing.end_position > self.list.first_position:
                raise
            return False  # the list refers to pages of what was truncated until those are deleted
        return segment is not None and not self.list.is_pending(segment)

    def names(self, segment: Segment) -> bool:
        """Whether the list itself still has the segment, sealed meanwhile or not."""
        index = self.list.index_of(segment.first_position)
        return index >= 0 and self.list.segments[index].ledger_id == segment.ledger_id

    def check(self, position: int) -> None:
        """Raise `TruncatedError` if entries from `position` on were truncated: a gap has none."""
        first = self.list.first_position
        if self.list.behind(position) < first:
            raise TruncatedError(f"log {self.name} begins at position {first}, {position} is gone")
