"""Cuts ranges of entries out of batches and blocks, and merges overlapping ones.

Invariants: an id of a stored range ends up in a segment or is reported as unknown, never silently missing; of two
copies of an id the later one counts only if its checksum is right. Records are walked at the two ends of a range only,
so what is inside a run (a batch, or a few small ones) is handed on as it was stored.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from bkpy.errors import CorruptDataError, DigestMismatchError
from bkpy.protocol.wire.records import HEADER_BYTES, EntryHeader, RecordCodec, entry_id_at, walk
from bkpy.storage.index.ids import SPAN_MAX, Ids

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bkpy.storage.entry_log.entry_log import StoredBlock
    from bkpy.storage.memtable.overlaps import Batch

_WHOLE: Final = [(0, 0)]
_NOTHING: Final = memoryview(b"")
_SIZE: Final = struct.Struct("<I")  # what a record's header begins with


class StoredRange(NamedTuple):
    """Entries that lie one after the other. `live` are those of `ids` that count; of copies the highest `age` does."""

    ids: Ids
    live: Ids
    runs: Sequence[tuple[int, int]]  # (rank, offset) where a walk may begin
    data: memoryview
    age: int


class Slice(NamedTuple):
    """What a range yielded. `examined_to`: everything up to it is in the segments, unknown, or not stored."""

    segments: list[memoryview]
    bytes: int
    examined_to: int
    unknown: list[tuple[int, int]]


def of_batch(batch: Batch, age: int) -> StoredRange:
    first, count, stride, body, start, end = batch
    ids = Ids(first, count, stride)
    return StoredRange(ids, ids, _WHOLE, memoryview(body)[start:end], age)


def of_block(live: Ids, block: StoredBlock | None) -> StoredRange:
    """Without the block (it could not be read) every id in it turns out to be unknown."""
    if block is None:
        return StoredRange(live, live, _WHOLE, _NOTHING, -1)
    return StoredRange(block.ids, live, block.runs, block.data, -1)


def contiguous(stored: StoredRange, first: int, last: int) -> bool:
    """Whether the living ids from first to last are all ids of the stored range there."""
    if stored.live is stored.ids or stored.live.count == stored.ids.count:
        return True
    return stored.live.bits(first, last) == stored.ids.bits(first, last)


def slice_range(stored: StoredRange, first: int, last: int, bytes_max: int, at_least_one: bool) -> Slice:
    """The entries from first to last of one stored range where all of them live, as many as fit."""
    ids, runs, data = stored.ids, stored.runs, stored.data
    low, high = ids.rank(first), ids.rank(last + 1)
    spans: list[list[int]] = []
    used = 0
    unknown: list[tuple[int, int]] = []
    for i in range(bisect_right(runs, (low, 1 << 62)) - 1, len(runs)):
        run_rank, run_end = runs[i][0], runs[i + 1][0] if i + 1 < len(runs) else ids.count
        begin, end = max(low, run_rank), min(high, run_end)
        if begin >= end:
            break
        try:
            start, stop, reached = _within_run(stored, i, begin, end, bytes_max - used, at_least_one and not used)
        except CorruptDataError:
            unknown += _ranges(ids, begin, end)
            continue
        if stop > start:
            if spans and spans[-1][1] == start:
                spans[-1][1] = stop
            else:
                spans.append([start, stop])
            used += stop - start
        if reached < end:
            segments = [data[a:b] for a, b in spans]
            return Slice(segments, used, next(ids.from_rank(reached)) - 1, unknown)
    return Slice([data[a:b] for a, b in spans], used, last, unknown)


def _within_run(
    stored: StoredRange, i: int, begin: int, end: int, bytes_max: int, at_least_one: bool
) -> tuple[int, int, int]:
    """(start, stop, rank reached) in the data for the ranks from begin to end (exclusive) of run i."""
    runs, data = stored.runs, stored.data
    run_rank, run_start = runs[i]
    run_stop = runs[i + 1][1] if i + 1 < len(runs) else len(data)
    run_end = runs[i + 1][0] if i + 1 < len(runs) else stored.ids.count
    if begin == run_rank and end == run_end and (run_stop - run_start <= bytes_max or not at_least_one):
        if run_stop - run_start < HEADER_BYTES * (run_end - run_rank):
            raise CorruptDataError("a run is too short for its entries")
        if entry_id_at(data, run_start) != next(stored.ids.from_rank(run_rank)):
            raise CorruptDataError("a run doesn't begin with its first entry")
        if run_stop - run_start > bytes_max:
            return run_start, run_start, begin
        return run_start, run_stop, end
    same = _of_one_size(data, run_start, run_stop, run_end - run_rank, end - run_rank)
    if same is not None:
        count = min(end - begin, max(bytes_max // same, int(at_least_one)))
        start = run_start + (begin - run_rank) * same
        for rank in {begin, begin + count - 1} if count else ():
            if entry_id_at(data, run_start + (rank - run_rank) * same) != next(stored.ids.from_rank(rank)):
                raise CorruptDataError("a run holds other entries than its ids say")
        return start, start + count * same, begin + count
    start = stop = run_start
    reached = run_rank
    for header in _walk_run(stored, i):
        if reached >= begin:
            if header.end - start > bytes_max and (reached > begin or not at_least_one):
                break
            stop = header.end
        else:
            start = stop = header.end
        reached += 1
        if reached == end:
            break  # what follows may be meaningless, and doesn't matter here
    return start, stop, reached


def _of_one_size(data: memoryview, start: int, stop: int, count: int, wanted: int) -> int | None:
    """The size of each record of a run, if the first `wanted` of its `count` say that they all have the same.

    That is as much as a walk finds out of where they begin, in four steps of machine code.
    """
    size, rest = divmod(stop - start, count)
    if rest or size < HEADER_BYTES:
        return None
    encoded_length = _SIZE.pack(size - HEADER_BYTES)
    end = start + wanted * size
    if all(data[start + i : end : size].tobytes() == encoded_length[i : i + 1] * wanted for i in range(_SIZE.size)):
        return size
    return None


def _walk_run(stored: StoredRange, i: int) -> Iterator[EntryHeader]:
    """The records of run i, each with the id that it should have; `CorruptDataError` where that ends."""
    runs, data = stored.runs, stored.data
    rank, start = runs[i]
    end_rank, stop = runs[i + 1] if i + 1 < len(runs) else (stored.ids.count, len(data))
    expected = stored.ids.from_rank(rank)
    for header in walk(data[:stop], start):
        rank += 1
        if rank > end_rank or header.entry_id != next(expected):
            raise CorruptDataError("a run holds other entries than its ids say", entry_id=header.entry_id)
        yield header
    if rank < end_rank:
        raise CorruptDataError("a run ends before its last entry")


def _ranges(ids: Ids, begin: int, end: int) -> list[tuple[int, int]]:
    """The ids with ranks from begin to end (exclusive) as inclusive ranges."""
    found: list[tuple[int, int]] = []
    for _, entry_id in zip(range(begin, end), ids.from_rank(begin), strict=False):
        if found and found[-1][1] == entry_id - 1:
            found[-1] = (found[-1][0], entry_id)
        else:
            found.append((entry_id, entry_id))
    return found


def living_records(stored: StoredRange, first: int, last: int) -> Iterator[tuple[int, EntryHeader]]:
    """(id, header) of the living entries from first to last that can be identified; the others are left out."""
    ids, live = stored.ids, stored.live
    low, high = ids.rank(first), ids.rank(last + 1)
    wanted = None if live is ids else live.bits(first, last)
    for i in range(bisect_right(stored.runs, (low, 1 << 62)) - 1, len(stored.runs)):
        if stored.runs[i][0] >= high:
            return
        try:
            for header in _walk_run(stored, i):
                entry_id = header.entry_id
                if first <= entry_id <= last and (wanted is None or wanted >> (entry_id - first) & 1):
                    yield entry_id, header
        except CorruptDataError:
            continue


def merge(
    ranges: Sequence[StoredRange], ledger_id: int, first: int, last: int, bytes_max: int, at_least_one: bool
) -> Slice:
    """The entries from first to last of stored ranges that overlap, record by record; at most 65,536 ids at once."""
    end = min(last, first + SPAN_MAX - 1)
    codec = RecordCodec(ledger_id)
    claimed = 0
    found: dict[int, memoryview] = {}
    for stored in sorted(ranges, key=lambda s: s.age):
        bits = stored.live.bits(first, end)
        doubled, claimed = claimed & bits, claimed | bits
        for entry_id, header in living_records(stored, first, end):
            if doubled >> (entry_id - first) & 1 and not verifies(codec, stored.data, header):
                continue
            found[entry_id] = stored.data[header.offset : header.end]
    return _take(found, claimed, first, end, bytes_max, at_least_one)


def verifies(codec: RecordCodec, data: memoryview, header: EntryHeader) -> bool:
    """Whether the record's checksum is right for this ledger."""
    try:
        codec.check(data, header.offset, header.end)
    except DigestMismatchError:
        return False
    return True


def _take(
    found: dict[int, memoryview], claimed: int, first: int, end: int, bytes_max: int, at_least_one: bool
) -> Slice:
    """As many of the records as fit, and the claimed ids among them that have none."""
    segments: list[memoryview] = []
    used = 0
    for entry_id in sorted(found):
        record = found[entry_id]
        if used + len(record) > bytes_max and (segments or not at_least_one):
            end = entry_id - 1
            break
        segments.append(record)
        used += len(record)
    lost = claimed & ((1 << (end - first + 1)) - 1)
    for entry_id in found:
        if entry_id <= end:
            lost &= ~(1 << (entry_id - first))
    if not lost:
        return Slice(segments, used, end, [])
    ids = Ids.from_bits(first, lost)
    return Slice(segments, used, end, _ranges(ids, 0, ids.count))


class Assembled(NamedTuple):
    """What a range yielded from several stored ranges; `gap`: some id up to `examined_to` is in none of them."""

    segments: list[memoryview]
    examined_to: int
    unknown: list[tuple[int, int]]
    gap: bool


def assemble(
    ranges: Sequence[StoredRange], ledger_id: int, first: int, last: int, bytes_max: int, *, stop_at_gap: bool = False
) -> Assembled:
    """The entries from first to last out of all stored ranges, in ascending order, as many as fit, at least one.

    `stop_at_gap`: end before the first id that may be in none of them, because it may be elsewhere.
    """
    segments: list[memoryview] = []
    unknown: list[tuple[int, int]] = []
    used, cursor, gap = 0, first, False
    for group, low, high in _groups(ranges, first, last):
        if stop_at_gap and (low > cursor or len(group) > 1 or not group[0].live.full):
            return Assembled(segments, cursor - 1, unknown, False)
        if low > cursor:
            gap = True
        if segments and used >= bytes_max:
            return Assembled(segments, low - 1, unknown, gap)
        if len(group) == 1 and contiguous(group[0], low, high):
            if not group[0].live.full:
                gap = True
            if segments and high == group[0].live.last and len(group[0].data) > bytes_max - used:
                return Assembled(segments, low - 1, unknown, gap)  # one more whole block: the next read begins with it
            part = slice_range(group[0], low, high, bytes_max - used, not segments)
        else:
            part = merge(group, ledger_id, low, high, bytes_max - used, not segments)
            gap = True  # maybe; then it is looked into, which is all that this decides
        segments += part.segments
        unknown += part.unknown
        used += part.bytes
        cursor = part.examined_to + 1
        if part.examined_to < high:
            return Assembled(segments, part.examined_to, unknown, gap)
    if cursor <= last:
        if stop_at_gap:
            return Assembled(segments, cursor - 1, unknown, False)
        gap = True
    return Assembled(segments, last, unknown, gap)


def _groups(ranges: Sequence[StoredRange], first: int, last: int) -> Iterator[tuple[list[StoredRange], int, int]]:
    """Stored ranges that overlap, with the part of the range that they take, ascending."""
    group: list[StoredRange] = []
    low = high = 0
    for stored in sorted(ranges, key=lambda s: s.live.first):
        start, stop = max(first, stored.live.first), min(last, stored.live.last)
        if start > stop:
            continue
        if group and start > high:
            yield group, low, high
            group = []
        if not group:
            low, high = start, stop
        group.append(stored)
        high = max(high, stop)
    if group:
        yield group, low, high
