"""Coverage of quorums against its definition, for every ensemble of up to seven bookies and every set of answers.

The definition lists the possible ack quorums: every choice of Qa bookies out of every write set. Nothing here counts
what a formula would count.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bkpy.protocol.ledger.ensemble_change import ack_quorum_at_risk
from bkpy.protocol.ledger.quorum import covered, write_set
from bkpy.protocol.ledger.recovery import EntryStatus, Fencing, entry_status

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZES = [(e, qw, qa) for e in range(1, 8) for qw in range(1, e + 1) for qa in range(1, qw + 1)]


def write_sets(ensemble_size: int, write_quorum: int) -> list[tuple[int, ...]]:
    """Those of as many consecutive entries as it takes to see that they repeat."""
    return [write_set(entry_id, ensemble_size, write_quorum) for entry_id in range(2 * ensemble_size)]


def ack_quorums(ensemble_size: int, write_quorum: int, ack_quorum: int) -> set[frozenset[int]]:
    return {
        frozenset(chosen)
        for members in write_sets(ensemble_size, write_quorum)
        for chosen in itertools.combinations(members, ack_quorum)
    }


def subsets(size: int) -> Iterator[frozenset[int]]:
    for count in range(size + 1):
        for chosen in itertools.combinations(range(size), count):
            yield frozenset(chosen)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_covered_means_that_every_ack_quorum_holds_one(sizes: tuple[int, int, int]) -> None:
    quorums = ack_quorums(*sizes)
    for answered in subsets(sizes[0]):
        assert covered(answered, *sizes) == all(quorum & answered for quorum in quorums), set(answered)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_an_ack_quorum_is_at_risk_when_a_write_set_has_no_whole_one_left(sizes: tuple[int, int, int]) -> None:
    size, write_quorum, ack_quorum = sizes
    for failed in subsets(size):
        stuck = [
            members
            for members in write_sets(size, write_quorum)
            if not any(failed.isdisjoint(chosen) for chosen in itertools.combinations(members, ack_quorum))
        ]
        assert ack_quorum_at_risk(failed, *sizes) == bool(stuck), set(failed)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_ledger_is_fenced_when_every_ack_quorum_holds_a_fenced_bookie(sizes: tuple[int, int, int]) -> None:
    """For every set of bookies that are fenced and every set, of the others, that failed: 3^E answers."""
    size = sizes[0]
    quorums = ack_quorums(*sizes)
    hit = {members: all(quorum & members for quorum in quorums) for members in subsets(size)}
    everybody = frozenset(range(size))
    for fenced in hit:
        for failed in hit:
            if fenced & failed:
                continue
            fencing = Fencing(*sizes)
            for index in failed:
                fencing.failed(index)
            for index in fenced:
                fencing.fenced(index)
            assert fencing.complete == hit[fenced], (set(fenced), set(failed))
            assert fencing.impossible == (not hit[everybody - failed]), (set(fenced), set(failed))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_order_of_answers_does_not_matter_and_the_last_one_decides(sizes: tuple[int, int, int]) -> None:
    size = sizes[0]
    quorums = ack_quorums(*sizes)
    for start in range(size):
        for step in (1, -1):
            fencing, fenced = Fencing(*sizes), set[int]()
            assert not fencing.complete
            for k in range(size):
                fenced.add((start + step * k) % size)
                fencing.fenced((start + step * k) % size)
                assert fencing.complete == all(quorum & fenced for quorum in quorums)
                assert not fencing.impossible
            assert fencing.complete


def test_where_all_bookies_hold_all_entries_so_many_are_enough() -> None:
    """The published numbers for E = Qw: (E - Qa) + 1 fenced bookies, whichever they are."""
    for size, write_quorum, ack_quorum in SIZES:
        if size == write_quorum:
            for answered in subsets(size):
                assert covered(answered, size, write_quorum, ack_quorum) == (len(answered) >= size - ack_quorum + 1)


def test_where_ledgers_are_striped_no_number_alone_decides() -> None:
    """E = 4, Qw = 2, Qa = 2: two opposite bookies cover every pair of neighbours, two neighbours don't."""
    assert covered({0, 2}, 4, 2, 2)
    assert not covered({0, 1}, 4, 2, 2)


# --- the tables of docs/explanation/protocol.md
# -----------------------------------------------------------------------------

PAGE = (Path(__file__).parents[4] / "docs" / "explanation" / "protocol.md").read_text(encoding="utf-8")


def rows(sizes: int, numbers: int) -> list[tuple[list[int], list[int]]]:
    """Those whose first column has `sizes` numbers, followed by `numbers` columns of one number."""
    pattern = rf"^\| (\d+(?:, \d+){{{sizes - 1}}}) \|((?: \d+ \|){{{numbers}}})$"
    found = re.findall(pattern, PAGE, re.MULTILINE)
    return [([int(n) for n in one.split(",")], [int(n) for n in re.findall(r"\d+", rest)]) for one, rest in found]


def test_the_documented_tolerances_are_right() -> None:
    table = rows(2, 4)
    assert len(table) == 9
    for (write_quorum, ack_quorum), (down, denials, silent, lost) in table:
        sizes = (write_quorum, write_quorum, ack_quorum)
        assert down == max(len(s) for s in subsets(write_quorum) if not ack_quorum_at_risk(s, *sizes))
        counts = range(write_quorum + 1)
        assert denials == min(
            n for n in counts if entry_status(0, n, 0, write_quorum, ack_quorum) is EntryStatus.MISSING
        )
        assert silent == write_quorum - denials
        assert lost == ack_quorum - 1


def test_the_documented_numbers_of_fenced_bookies_are_right() -> None:
    table = rows(3, 2)
    assert len(table) == 14
    for (size, write_quorum, ack_quorum), (can_be, always) in table:
        sizes = (size, write_quorum, ack_quorum)
        enough = [covered(chosen, *sizes) for chosen in subsets(size)]
        lengths = [len(chosen) for chosen in subsets(size)]
        assert can_be == min(n for n, yes in zip(lengths, enough, strict=True) if yes)
        assert always == max(n for n, yes in zip(lengths, enough, strict=True) if not yes) + 1
