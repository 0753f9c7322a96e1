"""Ranges that are cut out of stored runs, beside what a list of the records says."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from tests.unit.storage.support import records

from bkpy.protocol.wire.records import walk
from bkpy.storage.index.ids import Ids
from bkpy.storage.reads.ranges import StoredRange, slice_range

if TYPE_CHECKING:
    from collections.abc import Sequence

LEDGER = 3


def stored_of(sizes: Sequence[int], ids: Ids, runs: Sequence[int]) -> tuple[StoredRange, list[bytes]]:
    """A stored range with payloads of these sizes, and a run that begins at each of these ranks."""
    found = [records(LEDGER, [i], bytes(size)) for i, size in zip(ids.from_rank(0), sizes, strict=True)]
    offsets = [(rank, sum(len(record) for record in found[:rank])) for rank in runs]
    return StoredRange(ids, ids, offsets, memoryview(b"".join(found)), 0), found


def expected(found: Sequence[bytes], ids: Ids, runs: Sequence[int], low: int, high: int, bytes_max: int) -> list[int]:
    """The ids of what fits, at least one; of a run that is asked for as a whole, behind others, all or nothing."""
    taken: list[int] = []
    used = 0
    members = list(ids.from_rank(0))
    for rank in range(low, high):
        run_end = min((end for end in (*runs, ids.count) if end > rank), default=ids.count)
        whole = sum(map(len, found[rank:run_end])) if rank in runs and run_end <= high else len(found[rank])
        if taken and used + whole > bytes_max:
            break
        taken.append(members[rank])
        used += len(found[rank])
    return taken


@pytest.mark.parametrize("seed", range(40))
def test_a_slice_is_as_many_of_the_records_as_fit(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randrange(1, 12)
    ids = rng.choice([Ids(5, count), Ids(5, count, 3), Ids.from_bits(5, rng.getrandbits(30) | 1)])
    sizes = [rng.choice([0, 4, 100])] * ids.count
    if seed % 2:
        sizes[rng.randrange(ids.count)] = 7
    runs = [0, *sorted(rng.sample(range(1, ids.count), rng.randrange(min(3, ids.count))))] if ids.count > 3 else [0]
    stored, found = stored_of(sizes, ids, runs)
    members = list(ids.from_rank(0))
    for low in range(ids.count):
        for high in range(low + 1, ids.count + 1):
            bytes_max = rng.randrange(1, len(stored.data) + 2)
            part = slice_range(stored, members[low], members[high - 1], bytes_max, at_least_one=True)
            got = [header.entry_id for segment in part.segments for header in walk(segment)]
            assert got == expected(found, ids, runs, low, high, bytes_max)
            assert part.bytes == sum(len(segment) for segment in part.segments)
            assert part.unknown == []
            assert part.examined_to == (members[high - 1] if len(got) == high - low else members[low + len(got)] - 1)


def test_without_at_least_one_a_record_that_does_not_fit_is_left() -> None:
    stored, found = stored_of([100] * 5, Ids(0, 5), [0])
    part = slice_range(stored, 2, 4, len(found[0]) - 1, at_least_one=False)
    assert (part.segments, part.bytes, part.examined_to) == ([], 0, 1)


@pytest.mark.parametrize("size", [100, 7])
def test_the_end_of_a_run_is_unknown_where_another_record_is_than_should_be(size: int) -> None:
    """Records of one size are not walked through: those at the ends of what is asked for are looked at."""
    for wrong in (2, 4):
        stored, found = stored_of([100, 100, 100, 100, size], Ids(0, 5), [0])
        found[wrong] = records(LEDGER, [9], bytes(len(found[wrong]) - 32))
        damaged = stored._replace(data=memoryview(b"".join(found)))
        part = slice_range(damaged, 2, 4, 1 << 20, at_least_one=True)
        assert part.segments == []
        assert part.unknown == [(2, 4)]


@pytest.mark.parametrize(("first", "known"), [(0, [0, 1, 2]), (3, []), (4, [])])
def test_what_a_run_has_too_few_records_for_is_unknown(first: int, known: list[int]) -> None:
    stored, found = stored_of([100, 90, 110, 80, 70], Ids(0, 5), [0])
    short = stored._replace(data=memoryview(b"".join(found[:3])))
    got: list[int] = []
    unknown: list[tuple[int, int]] = []
    while first <= 4:
        part = slice_range(short, first, 4, 1 << 20, at_least_one=True)
        got += [header.entry_id for segment in part.segments for header in walk(segment)]
        unknown += part.unknown
        first = part.examined_to + 1
    assert got == known
    assert unknown == [(max(first for first in (3, *known[-1:]) if first not in known), 4)] or first == 5


def test_sizes_that_only_begin_alike_are_walked() -> None:
    """The run's length is a multiple of the first record's, and yet its records have two sizes."""
    stored, found = stored_of([100, 90, 110, 100], Ids(0, 4), [0])
    part = slice_range(stored, 2, 3, 1 << 20, at_least_one=True)
    assert b"".join(part.segments) == found[2] + found[3]
