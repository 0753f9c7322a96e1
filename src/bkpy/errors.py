"""Every error that bkpy raises: one root, three families (the caller's fault, the cluster's state, a disk's).

An error says which ledger, entry, bookie and file it is about, whether trying again can help (`retriable`), and whether
the operation may have happened all the same (`outcome_unknown`). The class carries the defaults, the instance the
truth.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple, Self


class ClientInfo(NamedTuple):
    """A client that writes a log, or holds a consumer's lease."""

    host: str
    """Its host."""
    pid: int
    """Its process; 0 where that is unknown."""
    name: str
    """Its `client_name`; "" without one."""
    since: float
    """Since when, in seconds since the epoch; 0 where that is unknown."""

    def __str__(self) -> str:
        who = f"{self.host}, pid {self.pid}" if self.pid else self.host
        who = f"client {self.name} on {who}" if self.name else who
        if not self.since:
            return who
        return f"{who}, since {datetime.fromtimestamp(self.since, UTC).isoformat(timespec='seconds')}"


class BookKeeperError(Exception):
    """Root of all bkpy errors.

    `retriable`: the same call may succeed later without anything being changed by the caller.
    `outcome_unknown`: the operation may or may not have taken effect, and only a later read can tell.
    """

    retriable: bool = False
    outcome_unknown: bool = False

    def __init__(
        self,
        message: str,
        *,
        ledger_id: int | None = None,
        entry_id: int | None = None,
        bookie: str | None = None,
        path: str | None = None,
        retriable: bool | None = None,
        outcome_unknown: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.bookie = bookie
        self.path = path
        if retriable is not None:
            self.retriable = retriable
        if outcome_unknown is not None:
            self.outcome_unknown = outcome_unknown

    def renewed(self, **fields: Any) -> Self:
        """A new error that says the same but for these fields: tracebacks pile up on an error that is raised twice."""
        made = type(self)(self.message)
        made.__dict__.update(self.__dict__, **fields)
        return made

    def __str__(self) -> str:
        where = [
            f"{name} {value}"
            for name, value in (
                ("ledger", self.ledger_id),
                ("entry", self.entry_id),
                ("bookie", self.bookie),
                ("file", self.path),
            )
            if value is not None
        ]
        unknown = "; the outcome is unknown" if self.outcome_unknown else ""
        return f"{self.message}{unknown} [{', '.join(where)}]" if where else f"{self.message}{unknown}"


# --- the caller's fault ---------------------------------------------------------------------------------------------


class CallerError(BookKeeperError):
    """The call can't be carried out as it was made."""


class ConfigError(CallerError, ValueError):
    """A setting or argument is unknown, missing or out of its range."""


class UnauthorizedError(CallerError):
    """The password or digest type isn't the ledger's, or a bookie's file of rights doesn't allow this to the client."""


class NoSuchLedgerError(CallerError):
    """The metadata store has no such ledger."""


class NoSuchEntryError(CallerError):
    """The entry was never acknowledged, or lies past the end of what may be read."""


class NoSuchLogError(CallerError):
    """There is no log of that name."""


class NoSuchConsumerError(CallerError):
    """The log has no consumer of that name, and the call was not to create it."""


class TruncatedError(CallerError):
    """The log's entries at that position were deleted, by truncation or retention."""


class NoSuchClusterError(CallerError):
    """No cluster has been initialised under that root."""


class UnsupportedVersionError(CallerError):
    """A stored value was written by a newer bkpy, in a format that this one can't read; upgrade this one."""


class DuplicateEntryError(CallerError):
    """An entry with that id was already appended."""


class SequenceError(CallerError):
    """An append's number is neither the producer's next one nor known to be in the log. Nothing was written."""


class ForgottenProducerError(SequenceError):
    """The log has forgotten the producer, so it can't tell which of its numbers it has. Nothing was written."""


class FrameTooLargeError(CallerError):
    """An entry or a request is larger than its limit."""


class ClientClosedError(CallerError):
    """The client, writer or reader was closed before or during the call."""


class WrongEventLoopError(CallerError, RuntimeError):
    """The call came from another thread, event loop or process than the client's, and has done nothing."""


class LedgerClosedError(CallerError):
    """The ledger is closed: it is read-only."""


class WouldBlock(CallerError):  # noqa: N818 - the name is part of the public interface
    """The writer's window is full; `append` would have waited."""

    retriable = True


# --- the cluster's state --------------------------------------------------------------------------------------------


class ClusterError(BookKeeperError):
    """The cluster can't do this now."""

    retriable = True


class BookieUnavailableError(ClusterError):
    """A bookie can't be reached, or did not answer in time."""


class TlsError(BookieUnavailableError):
    """A bookie and this client could not agree on TLS: their certificates, or whether to speak it at all.

    The message says which. Somebody has to change a file or a setting; those are read again for each connection.
    """

    retriable = False


class NotEnoughBookiesError(ClusterError):
    """Fewer bookies are available than the ensemble needs."""


class QuorumTimeoutError(ClusterError, TimeoutError):
    """The ack quorum did not answer in time."""

    outcome_unknown = True


class LedgerFencedError(ClusterError):
    """Somebody else has fenced the ledger; this writer can never write again."""

    retriable = False
    outcome_unknown = True


class LogFencedError(LedgerFencedError):
    """Somebody else has become the log's writer; this one can never write again. `Client.open_log` takes it back.

    `writer` is that client, None as long as it is unknown.
    """

    writer: ClientInfo | None = None


class LogLockedError(ClusterError):
    """Another client has the log open for writing, and the call was not to fence it. `writer` is that client."""

    writer: ClientInfo | None = None


class ConsumerLockedError(ClusterError):
    """Another client holds the consumer's lease, or this one has lost it. `holder` has it now, None if nobody has."""

    holder: ClientInfo | None = None


class LedgerRecoveryError(ClusterError):
    """Recovery could not decide where the ledger ends; the ledger stays in recovery and a later try may succeed."""


class MetadataConflictError(ClusterError):
    """Somebody else changed the metadata at the same time."""


class MetadataUnavailableError(ClusterError):
    """The metadata store can't be reached, or did not answer in time."""


class ReadOnlyBookieError(ClusterError):
    """The bookie takes no new entries at present."""


class TooManyRequestsError(ClusterError):
    """A bound on pending work was reached."""


class ProtocolError(ClusterError):
    """A peer broke the wire protocol, refused a request as malformed, or gave an answer that this side doesn't know.

    The same request would be refused again. What was no frame at all ends the connection as well.
    """

    retriable = False


# --- data and disks -------------------------------------------------------------------------------------------------


class DiskError(BookKeeperError):
    """Stored data or a disk is damaged or unusable."""


class DigestMismatchError(DiskError):
    """No replica of the entry has bytes that match its digest."""


class CorruptDataError(DiskError):
    """Stored bytes don't match their checksum, or are not in their format."""


class StorageFailedError(DiskError):
    """A write or sync failed, so this bookie can't promise anything any more and stops."""


class IdentityError(DiskError):
    """The directories, the bookie's id and the cluster don't belong together."""
