"""The metadata of new ledgers, for tests that store them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState

if TYPE_CHECKING:
    from collections.abc import Callable


def builder(token: str = "token") -> Callable[[int], LedgerMetadata]:
    """Makes the metadata of an OPEN ledger on the bookies a, b and c, given its id."""

    def build(ledger_id: int) -> LedgerMetadata:
        return LedgerMetadata(
            ledger_id=ledger_id,
            state=LedgerState.OPEN,
            ensemble_size=3,
            write_quorum=3,
            ack_quorum=2,
            digest="crc32c",
            ledger_key=bytes(32),
            fragments=(Fragment(0, ("a", "b", "c")),),
            created_ms=1_700_000_000_000,
            owner_token=token,
        )

    return build
