"""What of a named log may be read, and where: decided from its list, and from where the ledgers of it end.

    segment           may be read
    sealed            to its end
    first unsealed    as far as its ledger says: last add confirmed, or its last entry
    the one behind    the same, once the former is CLOSED just where it begins; never, if that one ends short of it,
                      unless the list says that there is a gap

A segment behind a ledger that ended short is about to be dropped: it may have entries that were never confirmed, be
CLOSED with them, and they are no part of the log.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from bkpy.protocol.log.log_list import OPEN_MAX
from bkpy.protocol.wire.records import PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bkpy.protocol.log.log_list import LogList, Segment


class SegmentRange(NamedTuple):
    """Entries first_entry .. last_entry of a segment; the first of them has `first_position`.

    None has an earlier time than `begun_ms`. `payload_bytes` is about what they have; 0 while nobody knows. `stamp` is
    the format of their stamps.
    """

    ledger_id: int
    first_entry: int
    last_entry: int
    first_position: int
    begun_ms: int
    payload_bytes: int = 0
    stamp: int = PLAIN

    @property
    def entries(self) -> int:
        """How many they are."""
        return self.last_entry - self.first_entry + 1


def range_in(segment: Segment, following: Segment | None, first: int, last: int) -> SegmentRange | None:
    """Where those of the entries at positions first..last are that lie in the segment; None if none does.

    Such entries must be known to be readable. `following` is the segment behind it, which may be left out behind one
    that is sealed. In a gap are no entries.
    """
    end = last if following is None else min(last, following.first_position - 1)
    if segment.sealed:
        end = min(end, segment.end_position - 1)  # a gap may begin there
    begin = max(first, segment.first_position)
    if begin > end:
        return None
    entries = end - begin + 1
    payload_bytes = segment.length * entries // segment.entries if segment.sealed else 0
    offset = begin - segment.first_position
    last_entry = offset + entries - 1
    return SegmentRange(segment.ledger_id, offset, last_entry, begin, segment.begun_ms, payload_bytes, segment.stamp)


def ranges_of(log_list: LogList, first: int, last: int) -> Iterator[SegmentRange]:
    """The ranges of the list's own segments, without those of pages, in order."""
    start = max(0, log_list.index_of(first))
    for segment, following in zip_longest(log_list.segments[start:], log_list.segments[start + 1 :]):
        found = range_in(segment, following, first, last)
        if found is not None:
            yield found
        elif segment.first_position > last:
            return


def segment_for(log_list: LogList, position: int, closed: Mapping[int, int]) -> Segment | None:
    """The segment in whose ledger the entry at `position` is, or whose end is needed to know that.

    `closed`: how many entries the ledgers have that were seen to be CLOSED, of segments that aren't sealed. None:
    nothing more comes unless the list changes.
    """
    start = max(0, min(log_list.index_of(position), len(log_list.segments) - OPEN_MAX))
    for segment, following in zip_longest(log_list.segments[start:], log_list.segments[start + 1 :]):
        entries = segment.entries if segment.sealed else closed.get(segment.ledger_id)
        if entries is None:
            return segment
        end = segment.first_position + entries
        if position < end:
            return segment
        if following is None or following.first_position != log_list.behind(end):
            return None
    return None
