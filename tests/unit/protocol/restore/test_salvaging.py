"""What is said of an entry that is found without a cluster: acknowledged only where a record proves it."""

from __future__ import annotations

import pytest

from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bkpy.protocol.restore.salvaging import Certainty, certainty, end_in


def _metadata(state: LedgerState) -> bytes:
    last = 9 if state is LedgerState.CLOSED else -1
    parts = (Fragment(0, ("a", "b", "c")),)
    return LedgerMetadata(7, state, 3, 3, 2, "crc32c", b"k" * 32, parts, last_entry=last).encode()


@pytest.mark.parametrize(
    ("state", "found"),
    [
        (LedgerState.CLOSED, [Certainty.ACKNOWLEDGED, Certainty.IN_THE_LEDGER, Certainty.BEHIND_THE_END]),
        (LedgerState.OPEN, [Certainty.ACKNOWLEDGED, Certainty.UNPROVED, Certainty.UNPROVED]),
        (None, [Certainty.ACKNOWLEDGED, Certainty.UNPROVED, Certainty.UNPROVED]),
    ],
)
def test_only_what_a_record_proves_is_called_acknowledged(state: LedgerState | None, found: list[Certainty]) -> None:
    end = None if state is None else end_in(7, _metadata(state))
    assert (end is None) == (state is None)
    assert [certainty(entry_id, 4, end) for entry_id in (4, 9, 10)] == found


def test_metadata_that_can_not_be_read_prove_no_end() -> None:
    assert end_in(7, b"damaged") is None
