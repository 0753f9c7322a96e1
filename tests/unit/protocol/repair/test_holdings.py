"""What bookies have to hold is what the write sets of the entries say, for every ensemble up to five bookies."""

from __future__ import annotations

from itertools import pairwise

import pytest

from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bkpy.protocol.ledger.quorum import write_set
from bkpy.protocol.repair.holdings import Share, holdings

SIZES = [(size, quorum) for size in range(1, 6) for quorum in range(1, size + 1)]


def ledger(size: int, quorum: int, firsts: tuple[int, ...], last: int | None) -> LedgerMetadata:
    metadata = LedgerMetadata(
        ledger_id=7,
        state=LedgerState.OPEN,
        ensemble_size=size,
        write_quorum=quorum,
        ack_quorum=1,
        digest="crc32c",
        ledger_key=bytes(32),
        fragments=tuple(Fragment(f, tuple(f"b{k}{i}" for i in range(size))) for k, f in enumerate(firsts)),
    )
    return metadata if last is None else metadata.closed(last, 100 * (last + 1))


def entries(share: Share, last: int) -> list[int]:
    return sorted(entry_id for start in share.starts for entry_id in range(start, last + 1, share.step))


@pytest.mark.parametrize(("size", "quorum"), SIZES)
@pytest.mark.parametrize("last", [22, 23, 31])
def test_a_closed_ledgers_shares_are_its_write_sets(size: int, quorum: int, last: int) -> None:
    firsts = (0, 1, 4, 23)
    found = list(holdings(ledger(size, quorum, firsts, last)))
    assert [f.first_entry for f in found] == list(firsts)
    assert [f.last_entry for f in found] == [b - 1 for _, b in pairwise(firsts)] + [last]
    for fragment in found:
        assert fragment.last_entry is not None
        for index, share in enumerate(fragment.shares):
            expected = [
                entry_id
                for entry_id in range(fragment.first_entry, fragment.last_entry + 1)
                if index in write_set(entry_id, size, quorum)
            ]
            assert entries(share, fragment.last_entry) == expected
            assert share.entries == len(expected)


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
def test_the_last_fragment_of_a_ledger_that_is_not_closed_has_no_end(state: LedgerState) -> None:
    metadata = ledger(3, 2, (0, 10), None)
    first, last = holdings(metadata if state is LedgerState.OPEN else metadata.in_recovery())
    assert (first.last_entry, last.last_entry) == (9, None)
    assert [share.entries for share in first.shares] == [7, 7, 6]
    assert last.shares == (
        Share("b10", 3, (11, 12), None),
        Share("b11", 3, (10, 12), None),
        Share("b12", 3, (10, 11), None),
    )


def test_an_empty_ledger_holds_nothing() -> None:
    (only,) = holdings(ledger(2, 2, (0,), -1))
    assert (only.first_entry, only.last_entry) == (0, -1)
    assert only.shares == (Share("b00", 1, (), 0), Share("b01", 1, (), 0))


@pytest.mark.parametrize(("size", "quorum"), SIZES)
def test_the_next_entry_of_a_share_is_the_lowest_behind_the_given_one(size: int, quorum: int) -> None:
    for fragment in holdings(ledger(size, quorum, (0, 4), 31)):
        for share in fragment.shares:
            held = entries(share, 100)
            for given in range(-1, 40):
                assert share.following(given) == next((entry_id for entry_id in held if entry_id > given), None)
    assert all(share.following(-1) is None for f in holdings(ledger(3, 2, (0,), -1)) for share in f.shares)
