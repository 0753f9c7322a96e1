"""What a reader knows of its ledger: the metadata, and how far it may be read.

Invariants: last add confirmed rises only by what a digest proves or the metadata says; metadata is never replaced by
an older version; once the ledger is CLOSED, its last entry and length are those of the metadata.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bkpy.errors import CorruptDataError
from bkpy.protocol import frame as wire
from bkpy.protocol import messages as m
from bkpy.protocol.ledger_metadata import LedgerMetadata, LedgerState
from bkpy.protocol.messages import Status
from bkpy.protocol.records import EXPLICIT_LAC_ENTRY, RecordCodec, walk

if TYPE_CHECKING:
    from bkpy.metadata.ledgers import LedgerCatalog


class LastAddConfirmed(NamedTuple):
    """What a bookie proved. `length` is None where it isn't known exactly; -1 and 0 where it has no record at all."""

    entry_id: int
    length: int | None
    fenced: bool


class LedgerSnapshot:
    """Shared by what reads and what follows one ledger."""

    def __init__(self, metadata: LedgerMetadata) -> None:
        self.metadata = metadata
        self.confirmed = metadata.last_entry if metadata.state is LedgerState.CLOSED else -1
        self.length = metadata.length
        self._version = -1  # that of `metadata`, once it was read here

    @property
    def ledger_id(self) -> int:
        return self.metadata.ledger_id

    @property
    def closed(self) -> bool:
        return self.metadata.state is LedgerState.CLOSED

    async def refresh(self, catalog: LedgerCatalog, *, fresh: bool = False) -> None:
        """Read the metadata again, `fresh` if no earlier write may be missed.

        Raises `NoSuchLedgerError`, `MetadataUnavailableError`.
        """
        metadata, version = await catalog.read(self.ledger_id, fresh=fresh)
        if version < self._version:  # from a server that lags behind
            return
        self.metadata, self._version = metadata, version
        if self.closed:
            self.confirmed, self.length = metadata.last_entry, metadata.length
        else:  # a fragment begins right behind an acknowledged entry
            self.confirmed = max(self.confirmed, metadata.fragments[-1].first_entry - 1)

    def advance(self, told: LastAddConfirmed) -> None:
        """Take over what a bookie proved. The end of a closed ledger is what the metadata says, and nothing else."""
        if told.entry_id > self.confirmed and not self.closed:
            self.confirmed = told.entry_id
            if told.length is not None:
                self.length = told.length


def proven(codec: RecordCodec, reply: wire.Frame, ledger_id: int, bookie_id: str) -> LastAddConfirmed:
    """The last add confirmed that a reply to READ_LAC or WAIT_LAC proves.

    Raises the error that stands for the reply's status, and `DigestMismatchError` or `CorruptDataError` for records
    that don't verify or a bookie that can't tell.
    """
    status = m.reply_status(reply.head)
    if status not in (Status.OK, Status.UNKNOWN, Status.NO_SUCH_LEDGER):
        raise m.error_of(status, m.decode_error(reply.head).message, ledger_id=ledger_id, bookie=bookie_id)
    if status == Status.UNKNOWN and not len(reply.body):
        raise CorruptDataError("the bookie can't tell", ledger_id=ledger_id, bookie=bookie_id)
    fenced = m.decode_read_lac_reply(reply.head).fenced
    best: LastAddConfirmed | None = None
    for header in walk(reply.body):
        codec.check(reply.body, header.offset, header.end)
        if best is None or header.last_add_confirmed > best.entry_id:
            # An entry carries the length up to itself; what its last add confirmed had is at most that.
            exact = header.entry_id == EXPLICIT_LAC_ENTRY
            best = LastAddConfirmed(header.last_add_confirmed, header.length if exact else None, fenced)
    return best or LastAddConfirmed(-1, 0, fenced)
