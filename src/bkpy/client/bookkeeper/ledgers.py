"""The ledgers of a BookKeeper cluster that a client reads or writes: how to verify their entries.

The parts of a client know entries as records of bkpy, with a checksum that is made here. Connections verify what comes
from bookies by the ledger's own digest, and make such records of it. They find the digest by the ledger's id.

Invariant: a ledger is known exactly as long as somebody has its record codec.
"""

from __future__ import annotations

import weakref
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from bkpy.errors import ConfigError
from bkpy.protocol.bookkeeper.entries import EntryCodec
from bkpy.protocol.bookkeeper.ledger_metadata import DIGEST_TYPES
from bkpy.protocol.wire.records import RecordCodec

if TYPE_CHECKING:
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata

# What `create_ledger` takes besides the names that metadata have.
_SHORT_NAMES: Final = {name.removeprefix("bk-"): name for name in DIGEST_TYPES}


class VerifyingCodecs(NamedTuple):
    """Of one ledger: its entries as bookies have them, and as this client's parts have them; and its key.

    A bookie that has the ledger has one of any `stride` entries in a row, unless it misses some. Readers divide their
    time among `write_quorum` replicas.
    """

    entries: EntryCodec
    records: RecordCodec
    key: bytes
    stride: int
    write_quorum: int


class UsedLedgers:
    """The ledgers that one client uses now."""

    def __init__(self) -> None:
        self._codecs: dict[int, VerifyingCodecs] = {}
        self._users: Counter[int] = Counter()

    def codec(self, metadata: LedgerMetadata, password: bytes) -> RecordCodec:
        """The record codec of a ledger, for one that verifies entries. Raises `ConfigError` if nobody can."""
        ledger_id = metadata.ledger_id
        digest_type = DIGEST_TYPES.get(metadata.digest)
        if digest_type is None:
            raise ConfigError(
                "the ledger's metadata, of BookKeeper 4.1 or older, don't say by which digest its entries are verified",
                ledger_id=ledger_id,
            )
        striped = metadata.ensemble_size > metadata.write_quorum
        stride = metadata.ensemble_size if striped else 1
        self._codecs[ledger_id] = VerifyingCodecs(
            EntryCodec(ledger_id, digest_type, password),
            RecordCodec(ledger_id),
            metadata.ledger_key,
            stride,
            metadata.write_quorum,
        )
        self._users[ledger_id] += 1
        codec = RecordCodec(ledger_id)
        weakref.finalize(codec, self._forget, ledger_id).atexit = False
        return codec

    def _forget(self, ledger_id: int) -> None:
        self._users[ledger_id] -= 1
        if not self._users[ledger_id]:
            del self._users[ledger_id], self._codecs[ledger_id]

    def get(self, ledger_id: int) -> VerifyingCodecs | None:
        """What verifies the ledger's entries; None if nobody reads or writes it any more."""
        return self._codecs.get(ledger_id)


def digest_named(digest: str) -> str:
    """The digest as metadata name it. Raises `ConfigError`."""
    name = _SHORT_NAMES.get(digest, digest)
    if name not in DIGEST_TYPES:
        raise ConfigError(f"digest {digest!r} is not one of {', '.join(_SHORT_NAMES)}")
    return name
