"""Which ledgers a list is to have. It is asked of one ledger at a time: a list needs no memory for the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bkpy.protocol.ledger.ledger_metadata import LedgerState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata

STATES = tuple(state.value for state in LedgerState)


class LedgerFilter(NamedTuple):
    """What a ledger has to be; None and nothing want all.

    `since_ms`: created since then; `bookie`: one that any of its fragments names; `custom`: custom metadata that it
    has, with these values; `missing_copies`: it has an under-replication record.
    """

    state: str | None = None
    since_ms: int | None = None
    bookie: str | None = None
    custom: Mapping[str, bytes] = {}
    missing_copies: bool = False

    def wants(self, metadata: LedgerMetadata, *, missing_copies: bool) -> bool:
        """Whether the ledger is wanted."""
        return (
            (self.state is None or metadata.state.value == self.state)
            and (self.since_ms is None or metadata.created_ms >= self.since_ms)
            and (self.bookie is None or any(self.bookie in fragment.bookies for fragment in metadata.fragments))
            and all(metadata.custom_metadata.get(key) == value for key, value in self.custom.items())
            and (missing_copies or not self.missing_copies)
        )
