"""What is moved to bookies that have less than their share: never more than that, never into an ensemble twice."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bkpy.protocol.repair.rebalance import Balance, Move, moved, shares

NAMES = "abcdef"


def ledger(ledger_id: int, quorum: int, length: int, *fragments: tuple[int, str], last: int = 99) -> LedgerMetadata:
    parts = tuple(Fragment(first, tuple(bookies)) for first, bookies in fragments)
    size = len(parts[0].bookies)
    return LedgerMetadata(
        ledger_id, LedgerState.CLOSED, size, quorum, 1, "crc32c", bytes(32), parts, last_entry=last, length=length
    )


def loads_of(ledgers: list[LedgerMetadata], names: str) -> dict[str, int]:
    loads = dict.fromkeys(names, 0)
    for one in ledgers:
        for name, size in shares(one).items():
            loads[name] += size
    return loads


def test_a_share_is_counted_in_bytes_and_only_of_closed_ledgers() -> None:
    striped = ledger(1, 2, 1000, (0, "abc"), (60, "abd"))
    assert shares(striped) == {"a": 670, "b": 670, "c": 400, "d": 260}
    assert shares(dataclasses.replace(striped, state=LedgerState.IN_RECOVERY, last_entry=-1, length=0)) == {}
    assert shares(ledger(1, 3, 0, (0, "abc"), last=-1)) == {}


def test_a_new_bookie_is_given_its_share() -> None:
    ledgers = [ledger(i, 3, 1000, (0, "abc")) for i in range(40)]
    balance = Balance(loads_of(ledgers, "abcd"), "abcd", {})
    moves = [move for one in ledgers for move in balance.moves(one)]
    assert len(moves) == 30
    assert {move.target for move in moves} == {"d"}
    assert {name: sum(move.source == name for move in moves) for name in "abc"} == {"a": 10, "b": 10, "c": 10}
    assert balance.even


def test_only_those_that_take_entries_are_given_some() -> None:
    ledgers = [ledger(i, 3, 1000, (0, "abc")) for i in range(40)]
    balance = Balance(loads_of(ledgers, "abcd"), "abc", {})
    assert not [move for one in ledgers for move in balance.moves(one)]


@pytest.mark.parametrize(
    ("loads", "writable", "share"),
    [
        ({}, "", 0),
        ({"a": 9, "b": 3}, "ab", 6),
        ({"a": 9, "b": 3, "c": 0}, "ab", 6),  # c can't be given what it lacks
        ({"a": 9, "b": 0, "c": 9}, "ab", 6),  # c has more, and gives
        ({"a": 9, "b": 0, "c": 3, "d": 1}, "ab", 4),  # without d the mean is above c, too
        ({"a": 5, "b": 1}, "", 5),
    ],
)
def test_the_share_is_of_those_that_can_have_it(loads: dict[str, int], writable: str, share: int) -> None:
    balance = Balance(loads, writable, {})
    assert balance.share == share
    assert sum(balance.room.values()) <= sum(balance.surplus.values()) or not writable


@pytest.mark.parametrize(("rack_of_d", "sources"), [("1", {"a"}), ("2", {"b"}), ("4", {"a", "b", "c"})])
def test_racks_stay_apart(rack_of_d: str, sources: set[str]) -> None:
    ledgers = [ledger(i, 3, 1000, (0, "abc")) for i in range(40)]
    racks = {"a": "1", "b": "2", "c": "3", "d": rack_of_d}
    balance = Balance(loads_of(ledgers, "abcd"), "abcd", racks)
    assert {move.source for one in ledgers for move in balance.moves(one)} == sources


def test_a_ledger_that_is_larger_than_what_is_lacking_stays() -> None:
    balance = Balance({"a": 1000, "b": 1000, "c": 400}, "abc", {})
    assert list(balance.moves(ledger(1, 2, 600, (0, "ab")))) == []
    assert [(move.source, move.target) for move in balance.moves(ledger(2, 2, 150, (0, "ab")))] == [("a", "c")]


@st.composite
def clusters(draw: Any) -> tuple[list[LedgerMetadata], set[str], dict[str, str]]:
    racks = {name: draw(st.sampled_from("123")) for name in NAMES}
    writable = draw(st.sets(st.sampled_from(NAMES)))
    ledgers = []
    for number in range(draw(st.integers(0, 12))):
        size = draw(st.integers(1, 4))
        quorum = draw(st.integers(1, size))
        among = st.permutations(draw(st.sampled_from([NAMES, NAMES[:4]])))
        fragments = [(0, "".join(draw(among)[:size]))]
        if draw(st.booleans()):
            fragments.append((draw(st.integers(1, 100)), "".join(draw(among)[:size])))
        ledgers.append(ledger(number, quorum, draw(st.integers(0, 10_000)), *fragments))
    return ledgers, writable, racks


def nearest(bookies: tuple[str, ...], name: str, racks: dict[str, str]) -> int:
    """How far from the bookie the next one of its rack is, around the circle."""
    size, place = len(bookies), bookies.index(name)
    others = [i for i, other in enumerate(bookies) if other != name and racks[other] == racks[name]]
    return min((min((i - place) % size, (place - i) % size) for i in others), default=size)


@pytest.mark.thorough
@examples(300)
@given(clusters())
def test_every_move_is_needed_and_allowed(
    cluster: tuple[list[LedgerMetadata], set[str], dict[str, str]],
) -> None:
    ledgers, writable, racks = cluster
    loads = loads_of(ledgers, NAMES)
    balance = Balance(loads, writable, racks)
    share = balance.share
    assert share >= sum(loads.values()) // len(loads)
    before, now, last = dict(loads), dict(loads), []
    seen: list[Move] = []
    for one in ledgers:
        after = one
        for move in balance.moves(one):
            assert move.target in writable
            assert move.size == shares(after)[move.source] > 0
            next_ = moved(after, move)  # refuses a bookie that is there twice
            for old, new in zip(after.fragments, next_.fragments, strict=True):
                if move.source in old.bookies:
                    assert nearest(new.bookies, move.target, racks) >= nearest(old.bookies, move.source, racks)
                else:
                    assert new == old
            after = next_
            now[move.source] -= move.size
            now[move.target] += move.size
            seen.append(move)
        last.append(after)
    # Nobody gave below the share or was given beyond it; so nothing was moved that wasn't needed, and it ends.
    for name in NAMES:
        assert min(before[name], share) <= now[name] <= max(before[name], share)
    assert not {move.source for move in seen} & {move.target for move in seen}
    # Whoever looks again finds nothing more to move.
    again = Balance(loads_of(last, NAMES), writable, racks)
    assert again.share == share
    assert not [move for one in last for move in again.moves(one)]


def test_a_bookie_that_takes_entries_and_has_no_load_is_given_nothing() -> None:
    """A drain that begins during the scan takes a bookie out of the loads, and not yet of those that are writable."""
    ledgers = [ledger(i, 3, 1000, (0, "abc")) for i in range(40)]
    balance = Balance(loads_of(ledgers, "abcd"), "abcde", {})
    assert {move.target for one in ledgers for move in balance.moves(one)} == {"d"}
