"""Where the periodic checks look, and what follows from what they find."""

from __future__ import annotations

import itertools
import random

import pytest

from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bkpy.protocol.ledger.quorum import write_set
from bkpy.protocol.repair.checks import misplaced, missing, wanted, windows
from bkpy.protocol.repair.holdings import holdings

SIZES = [(e, qw) for e in range(1, 5) for qw in range(1, e + 1)]


def ledger(size: int, quorum: int, *fragments: tuple[int, str], last: int = 19) -> LedgerMetadata:
    parts = tuple(Fragment(first, tuple(bookies)) for first, bookies in fragments)
    return LedgerMetadata(
        7,
        LedgerState.CLOSED,
        size,
        quorum,
        1,
        "crc32c",
        bytes(32),
        parts,
        last_entry=last,
        length=100 if last >= 0 else 0,
    )


def test_windows_are_both_ends_and_some_between_without_an_id_twice() -> None:
    rng = random.Random(1)
    for first, length, size, count in itertools.product((0, 7), range(60), (1, 2, 5), (2, 3, 6)):
        for extreme in (0.0, 0.999999, None):
            last = first + length - 1
            chances = [rng.random() if extreme is None else extreme for _ in range(count - 2)]
            found = windows(first, last, size, count, chances)
            ids = [entry_id for window in found for entry_id in range(window.first, window.last + 1)]
            assert ids == sorted(set(ids))
            assert all(window.first <= window.last for window in found)
            if length <= size * count:
                assert ids == list(range(first, last + 1))
            else:
                assert len(found) <= count
                assert len(ids) <= size * count
                assert {*range(first, first + size), *range(last - size + 1, last + 1)} <= set(ids)
                assert set(ids) <= set(range(first, last + 1))


def test_in_time_every_entry_is_in_a_window() -> None:
    rng = random.Random(2)
    seen = {
        entry_id
        for _ in range(200)
        for window in windows(10, 49, 4, 4, [rng.random(), rng.random()])
        for entry_id in range(window.first, window.last + 1)
    }
    assert seen == set(range(10, 50))


@pytest.mark.parametrize(("size", "quorum"), SIZES)
def test_missing_is_what_belongs_there_was_examined_and_was_not_returned(size: int, quorum: int) -> None:
    names = "abcdefgh"
    metadata = ledger(size, quorum, (0, names[:size]), (5, names[1 : size + 1]))
    rng = random.Random(3)
    for held in holdings(metadata):
        assert held.last_entry is not None
        for place, share in enumerate(held.shares):
            for first in range(held.first_entry, held.last_entry + 1):
                for last in range(first - 1, held.last_entry + 1):
                    own = [i for i in range(first, last + 1) if place in write_set(i, size, quorum)]
                    assert list(wanted(share, first, last)) == own
                    intact = {i for i in range(30) if rng.random() < 0.7}
                    assert missing(share, first, last, intact) == [i for i in own if i not in intact]


@pytest.mark.parametrize(("size", "quorum"), SIZES)
@pytest.mark.scenario(61)
def test_a_bookie_is_out_of_place_only_if_a_better_one_is_there(size: int, quorum: int) -> None:
    names = "abcdef"
    metadata = ledger(size, quorum, (0, names[:size]))
    sets = [write_set(i, size, quorum) for i in range(size)]
    for ranks in itertools.product("123", repeat=size + 1):
        racks = dict(zip(names, ranks, strict=False))
        spare = names[size]
        for writable in ({spare}, set()):
            found = misplaced(metadata, racks, writable)
            near = {
                name: {racks[names[i]] for members in sets if place in members for i in members if i != place}
                for place, name in enumerate(names[:size])
            }
            better = [n for n in names[:size] if racks[n] in near[n] and writable and racks[spare] not in near[n]]
            assert found == (better[0] if better else None)


def test_bookies_of_no_known_rack_and_ledgers_that_may_grow_are_left_alone() -> None:
    racks = {"a": "1", "b": "1", "c": "2", "d": "3"}
    metadata = ledger(3, 3, (0, "abc"))
    assert misplaced(metadata, racks, {"d"}) == "a"
    assert misplaced(metadata, {"a": "1", "d": "3"}, {"d"}) is None
    assert misplaced(ledger(3, 3, (0, "abc"), last=-1), racks, {"d"}) is None
    open_ = LedgerMetadata(7, LedgerState.OPEN, 3, 3, 1, "crc32c", bytes(32), metadata.fragments)
    assert misplaced(open_, racks, {"d"}) is None
    assert misplaced(ledger(3, 3, (0, "acd"), (10, "abc")), {**racks, "e": "4"}, {"e"}) == "a"
