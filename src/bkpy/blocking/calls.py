"""The blocking client's objects, one for each of the asynchronous client's. Made by `make settings`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bkpy.admin.client import AdminClient
from bkpy.blocking.base import Blocking, BlockingContext, BlockingOwner
from bkpy.blocking.poll import BlockingPoll
from bkpy.client.arguments import payload_of
from bkpy.client.read.reader import LedgerReader
from bkpy.client.write.writer import LedgerWriter
from bkpy.log.consumer import LogConsumer
from bkpy.log.writer import LogWriter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from concurrent.futures import Future
    from datetime import datetime
    from typing import Any

    from pyarrow import RecordBatch

    from bkpy.admin.bookie_recovery import BookieRecoveryReport, RecoveryProgress
    from bkpy.admin.client import LedgerReplication, LogDescription
    from bkpy.admin.cluster_health import ClusterHealth
    from bkpy.admin.drain import DrainProgress
    from bkpy.admin.rebalance import RebalanceReport
    from bkpy.client.read.block import Block, Entry
    from bkpy.config.recovery import RecoverySettings
    from bkpy.errors import BookKeeperError, ClientInfo
    from bkpy.log.consumer import ConsumerLag, ConsumerStatus
    from bkpy.log.entries import LogBlock, LogEntry
    from bkpy.metadata.audit_trail import RecordedAct
    from bkpy.metadata.bookies.naming import ReferencingLedgers
    from bkpy.metadata.bookies.registration import BookieInfo
    from bkpy.metadata.logs.consumers import ConsumerState
    from bkpy.metadata.replication.locks import HeldLock
    from bkpy.metadata.replication.underreplication import UnderreplicationRecord
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.log.log_list import LogList, Segment
    from bkpy.protocol.log.log_position import LogPosition
    from bkpy.protocol.log.log_producers import Producers
    from bkpy.protocol.log.log_reading import SegmentRange
    from bkpy.protocol.repair.rereplication import Copy
    from bkpy.recovery.ledger_recovery import Survey
    from bkpy.runtime.threadsafe import BlockingIterator
    from bkpy.runtime.tls import TlsContext


class BlockingClient(BlockingOwner):
    """What `Client` is, with calls that wait, from any thread."""

    __slots__ = ()

    @property
    def instance_id(self) -> str:
        """The cluster's own id, which no other cluster has."""
        return self._of.instance_id

    @property
    def layout(self) -> str:
        """The name of the layout in which the cluster keeps ledger metadata."""
        return self._of.layout

    @property
    def bookies(self) -> Mapping[str, BookieInfo]:
        """The bookies that are registered now and take entries, by id."""
        return self._of.bookies

    @property
    def read_only_bookies(self) -> Mapping[str, BookieInfo]:
        """The bookies that are registered now and take no entries, by id."""
        return self._of.read_only_bookies

    def create_ledger(
        self,
        *,
        ensemble_size: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        password: bytes = b"",
        digest: str = "crc32c",
        custom_metadata: Mapping[str, bytes] | None = None,
        caller_ids: bool = False,
        deferred_sync: bool = False,
        allow_absent_bookies: bool | None = None,
    ) -> BlockingLedgerWriter:
        """Create a ledger and return its writer.

        Each entry goes to `write_quorum` of `ensemble_size` bookies and is acknowledged when `ack_quorum` of them have
        it on disk. `password` has at most 65536 bytes. `digest` is "crc32c" or "hmac-sha256", the latter keyed by
        `password`; in a cluster of Apache BookKeeper "crc32c", "crc32", "hmac-sha1" or "dummy". With `caller_ids`,
        every append names its entry's id; with `deferred_sync`, appends are acknowledged before they are on disk, and
        `force` makes them durable. Where too few bookies are there, the ledger has known ones that are absent, which
        get its entries when they are back, unless `allow_absent_bookies` (in place of the setting) is False:
        `writer.absent` names them.

        Raises `ConfigError` for sizes without
        E >= Qw >= Qa >= 1 and for custom metadata whose name begins with "bkpy.", `NotEnoughBookiesError`,
        `MetadataUnavailableError`; with `outcome_unknown`, the error's `ledger_id` is that of the ledger that may have
        been made. If the call is cancelled, what it has made is deleted again.
        """
        return BlockingLedgerWriter(
            self._make(
                self._of.create_ledger,
                ensemble_size=ensemble_size,
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                password=password,
                digest=digest,
                custom_metadata=custom_metadata,
                caller_ids=caller_ids,
                deferred_sync=deferred_sync,
                allow_absent_bookies=allow_absent_bookies,
            ),
            self._thread,
        )

    def open_ledger(self, ledger_id: int, *, password: bytes = b"") -> BlockingLedgerReader:
        """Open a ledger for reading up to last add confirmed. Never disturbs its writer.

        Raises `NoSuchLedgerError`, `UnauthorizedError` for a wrong password, `BookieUnavailableError` if the ledger is
        open and too few of its bookies can tell how far it may be read.
        """
        return BlockingLedgerReader(self._make(self._of.open_ledger, ledger_id, password=password), self._thread)

    def recover_ledger(self, ledger_id: int, *, password: bytes = b"") -> BlockingLedgerReader:
        """Fence the ledger, find out where it ends, close it there, and open it for reading.

        Its writer, if there still is one, can't append any more. No acknowledged entry is lost. A CLOSED ledger is only
        opened. Raises `NoSuchLedgerError`, `UnauthorizedError` for a wrong password, or if too many bookies don't
        allow this to the client, and `LedgerRecoveryError` if too few could say where it ends: then it stays
        IN_RECOVERY, and a later call may succeed. A cancelled call may have fenced the ledger, and a later one goes on.
        """
        return BlockingLedgerReader(self._make(self._of.recover_ledger, ledger_id, password=password), self._thread)

    def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        """The metadata that the store keeps about a ledger. Raises `NoSuchLedgerError`."""
        return self._call(self._of.ledger_metadata, ledger_id)

    def delete_ledger(self, ledger_id: int) -> None:
        """Delete a ledger, whatever its state.

        A cancelled call may have deleted it. Raises `NoSuchLedgerError`, and `ConfigError` for a ledger that is a part
        of a log.
        """
        self._call(self._of.delete_ledger, ledger_id)

    def list_logs(self) -> BlockingIterator[str]:
        """The names of all logs, sorted; those created or deleted meanwhile may be among them or not."""
        return self._iterate(self._of.list_logs)

    def delete_log(self, name: str) -> None:
        """Delete a log, with all its entries and consumers. Its writer and its readers fail. Raises `NoSuchLogError`.

        When it returns, the log's last ledgers are fenced: no append of its writer is acknowledged any more. Where too
        few of their bookies can be reached, it logs a warning, and the writer ends when it is notified of the deletion.

        If it is cancelled, or fails as when the metadata store is away, the log may be deleted or not, and its writer
        may not be fenced. A second call completes it, or raises `NoSuchLogError` if nothing is left to do.
        """
        self._call(self._of.delete_log, name)

    def list_ledgers(self) -> BlockingIterator[int]:
        """The ids of all ledgers, ascending; those created or deleted meanwhile may be in it or not."""
        return self._iterate(self._of.list_ledgers)

    def read_log(self, name: str, *, password: bytes = b"") -> BlockingLogReader:
        """Open a named log for reading; never disturbs its writer. Raises `NoSuchLogError`, `UnauthorizedError`."""
        return BlockingLogReader(self._make(self._of.read_log, name, password=password), self._thread)

    def open_log(
        self,
        name: str,
        *,
        create: bool = False,
        wait: bool = True,
        producer: str | None = None,
        new_producer: bool = False,
        password: bytes = b"",
        ensemble_size: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        digest: str = "crc32c",
        retention_s: float | None = None,
        retention_bytes: int | None = None,
        consumer_lag_max_s: float | None = None,
        consumer_expiry_s: float | None = None,
        roll_bytes: int | None = None,
        roll_entries: int | None = None,
        roll_s: float | None = None,
        allow_absent_bookies: bool | None = None,
    ) -> BlockingLogWriter:
        """Become the writer of a log, fencing any previous writer.

        With `create`, the log is made if there is none: its ledgers have these sizes, as in `create_ledger`. Retention
        deletes entries that are older than `retention_s` seconds and lie before the last `retention_bytes` bytes (with
        one limit, by that alone). It waits for consumers, for at most `consumer_lag_max_s` seconds, and for none that
        has committed nothing for `consumer_expiry_s` seconds though there was something to read. `roll_*`: in place of
        the settings `log_roll_bytes`, `log_roll_entries` and `log_roll_s`; `allow_absent_bookies` as in
        `create_ledger`, for all ledgers that this writer makes. Without `wait`, raises `LogLockedError` if another
        client has the log open, and fences no writer.

        With `producer`, a name that stays the same over restarts, each append has a number and can be repeated: see
        `LogWriter.append`; `LogWriter.last_sequence` tells where to go on. A producer that was idle for
        `log_producer_idle_s` is forgotten: then this raises `ForgottenProducerError` before it fences a writer, unless
        the caller says with `new_producer` that it has no append whose outcome it doesn't know.

        If the call fails, it removes a log that it created; if it is cancelled, it may have fenced the previous writer.
        Raises `NoSuchLogError`, `UnauthorizedError` for a wrong password, `LedgerRecoveryError` if too few
        bookies can say where the log ends, and what `create_ledger` raises; `ConfigError`, before it fences a writer,
        if the log's list has no room for another ledger.
        """
        return BlockingLogWriter(
            self._make(
                self._of.open_log,
                name,
                create=create,
                wait=wait,
                producer=producer,
                new_producer=new_producer,
                password=password,
                ensemble_size=ensemble_size,
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                digest=digest,
                retention_s=retention_s,
                retention_bytes=retention_bytes,
                consumer_lag_max_s=consumer_lag_max_s,
                consumer_expiry_s=consumer_expiry_s,
                roll_bytes=roll_bytes,
                roll_entries=roll_entries,
                roll_s=roll_s,
                allow_absent_bookies=allow_absent_bookies,
            ),
            self._thread,
        )


class BlockingAdminClient(Blocking[AdminClient]):
    """What `AdminClient` is, with calls that wait, from any thread."""

    __slots__ = ()

    def __init__(self, client: BlockingClient, settings: RecoverySettings | None = None) -> None:
        """Administer the cluster of `client`. Callbacks of calls run in the client's thread, and must not call it."""
        super().__init__(client._act(AdminClient, client._of, settings), client._thread)

    @property
    def client(self) -> BlockingClient:
        """The client whose session and connections this uses."""
        return BlockingClient(self._of.client, self._thread)

    @property
    def registered_bookies(self) -> frozenset[str]:
        """The ids of the bookies that are registered now, whether they take entries or not."""
        return self._of.registered_bookies

    def replication_status(self) -> dict[str, Any]:
        """The state of re-replication in the whole cluster, as `bkpy autorecovery status --json` prints it.

        Reads all under-replication records and the metadata of their ledgers. The values are not of one moment.
        """
        return self._call(self._of.replication_status)

    def health(self, *, tls: TlsContext | None = None) -> ClusterHealth:
        """Whether all is well with the cluster, or what isn't, worst first, as `bkpy cluster health` reports it.

        Reads what `replication_status` reads, the lists of logs, and the metrics pages of all bookies as far as this
        machine reaches them; `tls` is for pages that have TLS. What can't be seen is among the findings.
        """
        return self._call(self._of.health, tls=tls)

    def auditor(self) -> dict[str, Any] | None:
        """The `name` of the process that is the auditor, and since when (`since_ms`, of the epoch); None for none."""
        return self._call(self._of.auditor)

    def set_auto_recovery(self, enabled: bool) -> None:
        """Enable or disable re-replication in the whole cluster, until the next call.

        While it is disabled, the auditor records nothing and workers copy nothing; `recover_bookie`, `wait_for_drain`
        and `rebalance` work all the same. If it is cancelled, or fails with `outcome_unknown`, call it
        again.
        """
        self._call(self._of.set_auto_recovery, enabled)

    def list_under_replicated(self) -> BlockingIterator[int]:
        """The ids of the ledgers that have an under-replication record, ascending."""
        return self._iterate(self._of.list_under_replicated)

    def under_replication(self, ledger_id: int) -> UnderreplicationRecord | None:
        """The ledger's under-replication record: which bookies it misses, since when and why. None if it has none."""
        return self._call(self._of.under_replication, ledger_id)

    def list_locks(self) -> list[HeldLock]:
        """The re-replication locks that are held now, by ledger id; each names its holder."""
        return self._call(self._of.list_locks)

    def describe_replication(self, ledger_id: int) -> LedgerReplication:
        """Which copies of a ledger are missing, and what is in the way. Raises `NoSuchLedgerError`.

        This is what the metadata say. `unreadable_entries` asks the bookies.
        """
        return self._call(self._of.describe_replication, ledger_id)

    def unreadable_entries(
        self, metadata: LedgerMetadata, copy: Copy, *, ranges_max: int, on_read: Callable[[int], None] | None = None
    ) -> list[tuple[int, int]]:
        """The first `ranges_max` ranges of entries that a planned copy needs and that no bookie returns intact.

        Reads all of the copy's share; `on_read` is called with the highest entry id so far. Raises
        `BookieUnavailableError` if a bookie gives no answer, and no other one returns what it should have.
        """
        return self._call(self._of.unreadable_entries, metadata, copy, ranges_max=ranges_max, on_read=on_read)

    def last_entries(self, metadata: LedgerMetadata) -> Mapping[str, int | BookKeeperError]:
        """By bookie of any of the ledger's fragments, the last entry of the ledger that it reports (-1: none).

        In place of that, the error for a bookie that doesn't answer within `read_timeout_s` or can't say. A bookie may
        miss entries below its last one.
        """
        return self._call(self._of.last_entries, metadata)

    def close_ledger(self, ledger_id: int) -> LedgerMetadata:
        """Recover a ledger without its password, and return its CLOSED metadata.

        As `Client.recover_ledger`, also when cancelled, but entries are verified by their checksums alone.
        """
        return self._call(self._of.close_ledger, ledger_id)

    def survey_ledger(self, ledger_id: int, *, password: bytes = b"") -> Survey:
        """What `accept_loss` would keep of a ledger that `Client.recover_ledger` can't close.

        Fences the ledger, perhaps also when cancelled, and closes nothing. Raises `NoSuchLedgerError`,
        `UnauthorizedError` for a wrong password.
        """
        return self._call(self._of.survey_ledger, ledger_id, password=password)

    def accept_loss(self, ledger_id: int, last_entry: int, *, password: bytes = b"") -> LedgerMetadata:
        """Close a ledger without the bookies that are not registered now, and return its CLOSED metadata.

        Acknowledged entries that only those bookies hold are lost, for good: ask `survey_ledger` first, and pass its
        `last_entry`. The ledger keeps at least the entries up to there. A cancelled call may have closed it. Raises
        `LedgerRecoveryError` if they can't be read any more.
        """
        return self._call(self._of.accept_loss, ledger_id, last_entry, password=password)

    def find_ledgers(
        self,
        *,
        state: str | None = None,
        since: float | None = None,
        bookie: str | None = None,
        custom: Mapping[str, bytes] | None = None,
        missing_copies: bool = False,
    ) -> BlockingIterator[LedgerMetadata]:
        """The metadata of the ledgers that are all of this, by id; without an argument, of all.

        `state` is "OPEN", "IN_RECOVERY" or "CLOSED"; `since`: created since then, in seconds of the epoch; `bookie` is
        one that any fragment names; `custom`: custom metadata; `missing_copies`: with an under-replication record.
        Reads one ledger after another: the list may be longer than memory. Ledgers with unreadable metadata raise
        `CorruptDataError`.
        """
        return self._iterate(
            self._of.find_ledgers, state=state, since=since, bookie=bookie, custom=custom, missing_copies=missing_copies
        )

    def is_reachable(self, bookie_id: str) -> bool:
        """Whether the bookie answers at the address that it registered last, even if it is not registered now.

        Waits at most `2 * connect_timeout_s`. Raises `TlsError` or `UnauthorizedError` if this client is refused there:
        the bookie may run, and serve others.
        """
        return self._call(self._of.is_reachable, bookie_id)

    def recover_bookie(
        self,
        bookie_id: str,
        *,
        target: str | None = None,
        dry_run: bool = False,
        on_scanned: Callable[[int], None] | None = None,
        on_progress: Callable[[RecoveryProgress], None] | None = None,
    ) -> BookieRecoveryReport:
        """Re-replicate the ledgers of a bookie that is gone for good; with `target`, to that bookie alone.

        Returns when each ledger is repaired or stuck; with `dry_run`, only says what would be copied. May be cancelled
        and called again: then it continues. `on_scanned` gets the number of ledgers scanned. Raises `ConfigError` if
        the bookie is registered or comes back, or a restore of the cluster isn't confirmed, `BookieUnavailableError`
        for a target that takes no entries.
        """
        return self._call(
            self._of.recover_bookie,
            bookie_id,
            target=target,
            dry_run=dry_run,
            on_scanned=on_scanned,
            on_progress=on_progress,
        )

    def start_drain(self, bookie_id: str) -> None:
        """Begin to drain a bookie, unless it is draining: it refuses new entries, and its ledgers are re-replicated.

        Returns at once. The cluster's workers do the work, if there are any; else see `wait_for_drain`. A cancelled
        call may have begun it. Raises `BookieUnavailableError` for a bookie that the cluster doesn't know.
        """
        self._call(self._of.start_drain, bookie_id)

    def cancel_drain(self, bookie_id: str) -> bool:
        """End the draining; returns whether the bookie was draining. Copies that were moved stay where they are.

        A cancelled call may have ended it.
        """
        return self._call(self._of.cancel_drain, bookie_id)

    def drain_progress(self, bookie_id: str, *, on_scanned: Callable[[int], None] | None = None) -> DrainProgress:
        """How many ledgers and bytes are left on a bookie, and what blocks them. Reads the metadata of all ledgers."""
        return self._call(self._of.drain_progress, bookie_id, on_scanned=on_scanned)

    def wait_for_drain(
        self, bookie_id: str, *, on_progress: Callable[[DrainProgress], None] | None = None
    ) -> DrainProgress:
        """Return when no ledger names the draining bookie, or the draining was cancelled.

        Where the cluster has no workers, or they are disabled, this call re-replicates. Cancelling the call doesn't end
        the draining. Raises `ConfigError` if a restore of the cluster isn't confirmed.
        """
        return self._call(self._of.wait_for_drain, bookie_id, on_progress=on_progress)

    def decommission(
        self,
        bookie_id: str,
        *,
        lost: bool = False,
        confirm: Callable[[ReferencingLedgers], Awaitable[None] | None] | None = None,
        on_scanned: Callable[[int], None] | None = None,
    ) -> ReferencingLedgers:
        """Remove a drained bookie from the cluster for good, if no ledger needs it.

        The bookie is removed exactly if the result's `scan.clear` is true; else nothing was changed. `lost`: the bookie
        is not running and never will be. `confirm` is called before the removal, awaited if it is asynchronous, and may
        raise to prevent it. A cancelled call may have removed the bookie. Raises `ConfigError` for a bookie that isn't
        drained, or that is `lost` and answers, and what `is_reachable` raises; `MetadataConflictError` if the bookie
        changes meanwhile.
        """
        return self._call(self._of.decommission, bookie_id, lost=lost, confirm=confirm, on_scanned=on_scanned)

    def rebalance(
        self,
        *,
        dry_run: bool = False,
        on_scanned: Callable[[int], None] | None = None,
        on_moved: Callable[[int, int], None] | None = None,
    ) -> RebalanceReport:
        """Move copies of closed ledgers to bookies that hold less than their share; with `dry_run`, only plan that.

        `on_scanned` gets the number of ledgers scanned, `on_moved` the bytes moved and those planned. Copies are
        verified before they replace others. A cancelled call leaves each ledger as it was, or moved. Raises
        `ConfigError` if a restore of the cluster isn't confirmed.
        """
        return self._call(self._of.rebalance, dry_run=dry_run, on_scanned=on_scanned, on_moved=on_moved)

    def audit_trail(self, *, since: float = 0.0) -> list[RecordedAct]:
        """Who did what to the cluster, the oldest first: acts since then (seconds of the epoch), some 100 of each kind.

        What a record says of its actor is what that process said: no proof.
        """
        return self._call(self._of.audit_trail, since=since)

    def create_log(
        self,
        name: str,
        *,
        password: bytes = b"",
        ensemble_size: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        digest: str = "crc32c",
        retention_s: float | None = None,
        retention_bytes: int | None = None,
        consumer_lag_max_s: float | None = None,
        consumer_expiry_s: float | None = None,
    ) -> bool:
        """Create a log without opening it. Returns False if there is a log of that name, which stays as it is.

        The arguments are those of `Client.open_log`. A cancelled call may have created it. Raises `ConfigError` for bad
        arguments.
        """
        return self._call(
            self._of.create_log,
            name,
            password=password,
            ensemble_size=ensemble_size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            digest=digest,
            retention_s=retention_s,
            retention_bytes=retention_bytes,
            consumer_lag_max_s=consumer_lag_max_s,
            consumer_expiry_s=consumer_expiry_s,
        )

    def log_names(self) -> list[str]:
        """The names of all logs, sorted, with logs that are being deleted: one read, unlike `Client.list_logs`."""
        return self._call(self._of.log_names)

    def describe_log(self, name: str, *, fresh: bool = True) -> LogDescription:
        """A log's ledgers and attributes, and its writer. Needs no password. Raises `NoSuchLogError`.

        Without `fresh`, the answer may lag behind the latest change, and costs less.
        """
        return self._call(self._of.describe_log, name, fresh=fresh)

    def log_segments(self, name: str) -> BlockingIterator[Segment]:
        """A log's ledgers in order, those in pages of its list included. Raises `NoSuchLogError`."""
        return self._iterate(self._of.log_segments, name)

    def truncate_log(self, name: str, before: int, *, password: bytes = b"", ignore_consumers: bool = False) -> LogList:
        """Delete the entries below position `before`, and return the log's list after that.

        A cancelled call may have deleted them. Raises `NoSuchLogError`, `UnauthorizedError`, and `ConfigError` for a
        position past the end, or that a consumer has yet to read unless `ignore_consumers`.
        """
        return self._call(self._of.truncate_log, name, before, password=password, ignore_consumers=ignore_consumers)

    def log_consumers(self, name: str) -> Mapping[str, ConsumerState]:
        """The consumers of a log by name, each with the position that it reads next. Raises `NoSuchLogError`."""
        return self._call(self._of.log_consumers, name)

    def delete_log_consumer(self, name: str, consumer: str) -> bool:
        """Delete a consumer; retention doesn't wait for it any more. Returns False if there is none of that name.

        A cancelled call may have deleted it. Raises `NoSuchLogError`.
        """
        return self._call(self._of.delete_log_consumer, name, consumer)

    def log_sinks(self, name: str) -> dict[str, int]:
        """By writer id of a sink, the number of the last batch that it committed to a log. Raises `NoSuchLogError`."""
        return self._call(self._of.log_sinks, name)

    def delete_log_sink(self, name: str, writer_id: str) -> bool:
        """Forget a sink's last batch: one that the sink repeats is then written twice. Returns False if it is unknown.

        A cancelled call may have done it. Raises `NoSuchLogError`.
        """
        return self._call(self._of.delete_log_sink, name, writer_id)

    def log_producers(self, name: str) -> Producers:
        """The producers of a log, and the writer ids of sinks. Raises `NoSuchLogError`."""
        return self._call(self._of.log_producers, name)

    def delete_log_producer(self, name: str, producer: str) -> bool:
        """Forget a producer, which then has to be opened as a new one. Returns False if it is unknown.

        A cancelled call may have done it. Raises `NoSuchLogError`.
        """
        return self._call(self._of.delete_log_producer, name, producer)


class BlockingLogWriter(BlockingContext[LogWriter]):
    """What `LogWriter` is, with calls that wait, from any thread."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """The log's name."""
        return self._of.name

    @property
    def ledger_id(self) -> int:
        """The ledger that appends go to now; it changes when the log rolls."""
        return self._of.ledger_id

    @property
    def first_position(self) -> int:
        """Entries below it are gone, as far as this writer knows."""
        return self._of.first_position

    @property
    def next_position(self) -> int:
        """The position that the next append gets."""
        return self._of.next_position

    @property
    def last_acknowledged(self) -> LogPosition | None:
        """The last entry of this writer that is acknowledged, as `append` returned it; None if there is none yet."""
        return self._of.last_acknowledged

    @property
    def producer(self) -> str | None:
        """The producer of this writer's appends, None if they have no numbers."""
        return self._of.producer

    @property
    def last_sequence(self) -> int:
        """The highest number of this writer's producer that the log has: append the next one. -1 if it has none.

        What is on its way is not counted. Always -1 for a writer without a producer.
        """
        return self._of.last_sequence

    @property
    def usable(self) -> bool:
        """Whether appends can go on: it was neither closed nor abandoned, and has not failed."""
        return self._of.usable

    @property
    def writer_info(self) -> ClientInfo | None:
        """The client that writes the log: this one, and once it was fenced the next one, None while that is unknown."""
        return self._of.writer_info

    def append(self, data: bytes, *, sequence: int | None = None) -> LogPosition:
        """Append one entry; returns its position when it and all before it are durable on the ack quorum.

        The position is an int, and proves to `LogReader.refresh` that the entry was acknowledged.

        Waits for room in the window first, and while the log rolls. Cancelling the call doesn't withdraw an entry that
        has been assigned its position.

        With a producer (`Client.open_log`), `sequence` is the entry's number: each append has one, and they ascend by
        one. An append whose number is known to be in the log writes nothing, and returns the position that the entry
        has there; one whose number is on its way waits for that outcome. Other numbers raise `SequenceError`. Such an
        append goes on when its call is cancelled: repeat it.

        Raises `FrameTooLargeError` or `ClientClosedError` with nothing written, `LogFencedError` if somebody else has
        become the log's writer, and `BookieUnavailableError`, `QuorumTimeoutError` or `MetadataUnavailableError`, all
        of which end the writer: whatever was appended behind has failed, too. Their outcome is unknown once the entry
        was sent to any bookie, as `outcome_unknown` says.
        """
        return self._call(self._of.append, data, sequence=sequence)

    def append_nowait(self, data: bytes, *, sequence: int | None = None) -> Future[LogPosition]:
        """Like `append`, but returns the future of the entry's position; cancelling that withdraws nothing.

        Raises `WouldBlock` if the window is full or the log is rolling.

        The future has the outcome, `WouldBlock` too. Cancelling it withdraws nothing that was sent.
        """
        return self._begin(self._of.append_nowait, payload_of(data), sequence=sequence)

    def append_batch(self, entries: Sequence[bytes], *, first_sequence: int | None = None) -> range:
        """Append many entries, with consecutive positions; returns the range of them. The guarantee is `append`'s.

        An empty sequence is an empty range. The batch is admitted to the window as a whole, and never lies in two
        ledgers. Cancelling the call withdraws nothing. `last_acknowledged` proves to `LogReader.refresh` that they were
        acknowledged.

        With a producer, `first_sequence` is the number of the first entry. What a repeated batch finds in the log is
        not appended again: then it may lie in several ledgers. Raises `SequenceError`, with nothing written, if the
        others wouldn't lie behind that.
        """
        return self._call(self._of.append_batch, entries, first_sequence=first_sequence)

    def truncate(self, before: int, *, ignore_consumers: bool = False) -> None:
        """Delete the entries below the position `before`. Entries that share a ledger with later ones go with these.

        A cancelled call may have deleted them. Raises `ConfigError`, with nothing deleted, for a position past what is
        acknowledged, or one that a consumer has yet to reach unless they are ignored; `MetadataUnavailableError`.
        """
        self._call(self._of.truncate, before, ignore_consumers=ignore_consumers)

    def consumer(
        self, name: str, *, position: int | str | datetime | None = None, create: bool = False, lease: bool = False
    ) -> BlockingLogConsumer:
        """The consumer of that name, as `LogReader.consumer`. A cancelled call may have registered it."""
        return BlockingLogConsumer(
            self._make(self._of.consumer, name, position=position, create=create, lease=lease), self._thread
        )

    def flush(self) -> None:
        """Return when every entry that has its place so far is durable on the ack quorum; raises the writer's error.

        Without a producer it doesn't wait for an `append` that still waits for room in the window, or for the log to
        roll: that call ends by itself. Cancelling the call withdraws nothing.
        """
        self._call(self._of.flush)

    def close(self) -> None:
        """Wait for what is pending, then close the log's last ledger. Closing twice is once.

        After a cancelled call, call it again: nothing can be appended any more. Raises the writer's error if it has
        failed. If the metadata store can't be reached, it may be tried again.
        """
        self._call(self._of.close)

    def abandon(self) -> None:
        """Stop without closing anything: what is pending fails, and the next writer finds out where the log ends."""
        self._act(self._of.abandon)


class BlockingLogReader(BlockingPoll):
    """What `LogReader` is, with calls that wait, from any thread."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """The log's name."""
        return self._of.name

    @property
    def uid(self) -> str:
        """What tells the log from every other one, also from one that has had its name."""
        return self._of.uid

    @property
    def first_position(self) -> int:
        """The lowest position that isn't truncated, as of the last look; where nothing is, `next_position`."""
        return self._of.first_position

    @property
    def next_position(self) -> int:
        """The position behind the last entry that may be read, as of the last look."""
        return self._of.next_position

    @property
    def writer_info(self) -> ClientInfo | None:
        """The client that has opened the log for writing, as of the last look; None if no client has it open.

        A writer that was killed is named until the next one has come.
        """
        return self._of.writer_info

    def refresh(self, *, confirmed: int = 0) -> None:
        """Look how far the log may be read by now, and where it begins.

        With `confirmed`, the position that an append has returned, or the writer's `last_acknowledged`, the entry may
        be read when the call returns: no bookie is asked, and none need know yet that it was acknowledged. If
        `confirmed` is another integer, what lies below that position may be read, as a caller knows that has read it;
        no consumer can be committed by that.

        Raises `NoSuchLogError` once the log is deleted, `BookieUnavailableError` if it has an open ledger and too few
        of its bookies can tell how far that may be read; with the position of an append, `ConfigError` if it was one to
        another log, `NoSuchEntryError` if the log has that entry no more since its loss was accepted, `TruncatedError`.
        """
        self._call(self._of.refresh, confirmed=confirmed)

    def close(self) -> None:
        """The reader can't be used any more, and what tails with it ends. The log isn't touched."""
        self._call(self._of.close)

    def ranges(self, first: int | None = None, last: int | None = None) -> list[SegmentRange]:
        """The ledgers that the entries first..last are in, for programs that read them with several processes.

        Raises `TruncatedError`, `NoSuchEntryError` as `read` does, and `ConfigError` if the list of the log has pages
        there: `list_ranges` reads them.
        """
        return self._of.ranges(first, last)

    def list_ranges(self, first: int | None = None, last: int | None = None) -> BlockingIterator[SegmentRange]:
        """The same one by one, of a log with any number of ledgers. Raises `MetadataUnavailableError`, too."""
        return self._iterate(self._of.list_ranges, first, last)

    def behind(self, position: int) -> int:
        """The same position, or the one behind the gap that it lies in.

        For programs that read with several processes: `ranges` has nothing between the two.
        """
        return self._of.behind(position)

    def read(self, first: int | None = None, last: int | None = None) -> BlockingIterator[LogEntry]:
        """The entries at positions first..last in order; all of them without bounds.

        What there is, is what this reader knows: call `refresh` before, or use `tail`. Iterating raises
        `TruncatedError` for a position that is gone, before or while it is read, `NoSuchEntryError` for a `last` past
        the end, `NoSuchLogError` for a log that was deleted meanwhile, and else what `LedgerReader.read` does.
        """
        return self._iterate(self._of.read, first, last)

    def read_blocks(self, first: int | None = None, last: int | None = None) -> BlockingIterator[LogBlock]:
        """Like `read`, many entries at once, with no object per entry."""
        return self._iterate(self._of.read_blocks, first, last)

    def read_batches(self, first: int | None = None, last: int | None = None) -> BlockingIterator[RecordBatch]:
        """Like `read_blocks`, as Arrow's record batches, each of one ledger.

        The columns are `position`, `ledger_id`, `entry_id`, `time` (with UTC as its zone), `producer` and `sequence`,
        both null where nobody has numbered the entries, and `payload`. Raises `ConfigError` at the call where pyarrow
        isn't installed.
        """
        return self._iterate(self._of.read_batches, first, last)

    def tail(self, first: int | None = None) -> BlockingIterator[LogEntry]:
        """Entries from `first` on as they are confirmed, from one ledger, and one writer, to the next.

        Without `first` from the log's beginning. Ends by errors alone: `TruncatedError` when what would come next is
        truncated, `NoSuchLogError` once the log is deleted, `ClientClosedError`; else as `read`. Goes on while some
        bookies, or the metadata store, are away.
        """
        return self._iterate(self._of.tail, first)

    def tail_blocks(self, first: int | None = None) -> BlockingIterator[LogBlock]:
        """Like `tail`, as many entries at once as have come, with no object per entry."""
        return self._iterate(self._of.tail_blocks, first)

    def poll(self, *, max_entries: int = 1000, timeout: float | None = None) -> list[LogEntry]:
        """The next entries: at most `max_entries`, as soon as there is one; an empty list after `timeout` seconds.

        The first call begins where the log does, or at the position of `seek`; each further one behind what the former
        returned. A call that is cancelled, times out or fails loses nothing: the next one returns those entries. With
        `timeout=0` it returns what has arrived; None waits. Raises what `tail` does, and `RuntimeError` if another task
        polls.
        """
        return self._poll(max_entries, timeout)

    def seek(self, position: int) -> None:
        """The next `poll` begins at this position. Raises `RuntimeError` while another task polls."""
        self._seek(position)

    def consumer(
        self, name: str, *, position: int | str | datetime | None = None, create: bool = False, lease: bool = False
    ) -> BlockingLogConsumer:
        """The consumer of that name. Raises `NoSuchConsumerError` if there is none, unless it is to `create` one.

        A new one begins at `position`: "earliest", as without it, "latest", a position, or a time with a time zone.
        What it has yet to read is kept from then on. With `lease`, no other client can commit, or take the lease, until
        it is closed or this client's session ends; `ConsumerLockedError` says who has it. A cancelled call may have
        registered the consumer, and leaves no lease. Raises `TruncatedError` for a position that is gone, `ConfigError`
        for one past the end, `NoSuchLogError`, `MetadataUnavailableError`.
        """
        return BlockingLogConsumer(
            self._make(self._of.consumer, name, position=position, create=create, lease=lease), self._thread
        )

    def consumers(self) -> list[ConsumerStatus]:
        """All consumers of the log by name, with their lag. Raises what `refresh` and `read` do."""
        return self._call(self._of.consumers)

    def lag_at(self, position: int) -> ConsumerLag:
        """What lies from the position on, as a consumer there has yet to read it. Raises what `refresh` does."""
        return self._call(self._of.lag_at, position)

    def position_at(self, time: float | datetime) -> int:
        """The first position whose entry's time isn't earlier than `time`; `next_position` if there is none.

        `time` is in seconds since the epoch, or a `datetime` with a time zone. Looks how far the log may be read, and
        reads single entries of one ledger: as many as its entries can be halved. Raises what `refresh` and `read` do.
        """
        return self._call(self._of.position_at, time)


class BlockingLogConsumer(BlockingContext[LogConsumer]):
    """What `LogConsumer` is, with calls that wait, from any thread."""

    __slots__ = ()

    @property
    def log(self) -> str:
        """The name of the log."""
        return self._of.log

    @property
    def name(self) -> str:
        """Its name, which no other consumer of the log has."""
        return self._of.name

    @property
    def position(self) -> int:
        """The next position that it has to read: all below have been dealt with."""
        return self._of.position

    def commit(self, position: int) -> None:
        """Say that everything below `position` has been dealt with. It may lie before the present one, to read again.

        A cancelled call may have recorded it, and another call may follow. Raises `MetadataConflictError` if another
        process uses the name, `ConsumerLockedError` if another client has its lease or if this one has lost it with its
        session, `TruncatedError` for a step back to what is not there any more, `ConfigError` for a position past what
        is proved to be acknowledged, `NoSuchLogError`, `MetadataUnavailableError`, `NoSuchConsumerError` after
        `delete`. What its reader doesn't know yet costs a `refresh`, with the errors of that.
        """
        self._call(self._of.commit, position)

    def lag(self) -> ConsumerLag:
        """What it has yet to read by now. Raises what `LogReader.refresh` and `read` do."""
        return self._call(self._of.lag)

    def delete(self) -> None:
        """Forget the consumer: nothing is kept for it any more. A cancelled call may have done it.

        Raises `NoSuchLogError`, `MetadataUnavailableError`.
        """
        self._call(self._of.delete)

    def close(self) -> None:
        """Give up the lease, if it has one; the consumer stays. Raises `MetadataUnavailableError`, and can be repeated.

        A call that fails or is cancelled goes on in the background until the lease has ended. Without this it ends with
        the client's session.
        """
        self._call(self._of.close)


class BlockingLedgerWriter(BlockingContext[LedgerWriter]):
    """What `LedgerWriter` is, with calls that wait, from any thread."""

    __slots__ = ()

    @property
    def ledger_id(self) -> int:
        """The id by which others open the ledger."""
        return self._of.ledger_id

    @property
    def last_add_confirmed(self) -> int:
        """The highest id such that it and all below are durable on their ack quorums; -1 for none yet.

        With deferred sync it moves by `force` alone.
        """
        return self._of.last_add_confirmed

    @property
    def length(self) -> int:
        """Payload bytes of the entries that were acknowledged."""
        return self._of.length

    @property
    def metadata(self) -> LedgerMetadata:
        """What the metadata store keeps about the ledger, as this writer last stored or found it."""
        return self._of.metadata

    @property
    def ensemble(self) -> tuple[str, ...]:
        """The bookies that entries go to now."""
        return self._of.ensemble

    @property
    def usable(self) -> bool:
        """Whether appends can go on: it was neither closed nor abandoned, and has not failed."""
        return self._of.usable

    @property
    def absent(self) -> frozenset[str]:
        """The bookies of the ensemble that were absent when the ledger was created, and have not come since.

        When one comes, the writer takes it in: it has all entries from then on, and a worker copies the others to it.
        """
        return self._of.absent

    @property
    def under_replicated(self) -> Mapping[str, int]:
        """The bookies that may miss acknowledged entries of theirs, each with the first of these.

        A bookie that could not take an entry (its disk is full, it died), and that none could replace in time, misses
        it until a worker copies it there. So does a bookie that is `absent`. A bookie that has not answered yet counts
        as one that will. `close` warns, but not of absent ones.
        """
        return self._of.under_replicated

    def append(self, data: bytes, *, entry_id: int | None = None) -> int:
        """Append one entry; returns its id when it and all before it are durable on the ack quorum.

        Waits for room in the window first. `entry_id` is given in ledgers created with `caller_ids=True`, and only
        there: ids may come in any order, each once, and an entry is acknowledged when all below it are. Cancelling the
        call doesn't withdraw an entry that has been assigned its id.

        Raises `FrameTooLargeError`, `LedgerClosedError` or `DuplicateEntryError` with nothing written, and
        `LedgerFencedError`, `BookieUnavailableError`, `QuorumTimeoutError` or `UnauthorizedError`, whose outcome is
        unknown once the entry was sent to any bookie, as `outcome_unknown` says.
        """
        return self._call(self._of.append, data, entry_id=entry_id)

    def append_nowait(self, data: bytes, *, entry_id: int | None = None) -> Future[int]:
        """Like `append`, but returns the future of the entry's id, and raises `WouldBlock` if the window is full.

        Cancelling the future withdraws nothing.

        The future has the outcome, `WouldBlock` too. Cancelling it withdraws nothing that was sent.
        """
        return self._begin(self._of.append_nowait, payload_of(data), entry_id=entry_id)

    def append_batch(self, entries: Sequence[bytes]) -> range:
        """Append many entries, with consecutive ids; returns the range of them. The guarantee is `append`'s, for all.

        An empty sequence is an empty range. The batch is admitted to the window as a whole. Cancelling the call
        withdraws nothing.
        """
        return self._call(self._of.append_batch, entries)

    def flush(self) -> None:
        """Return when every entry that has its place so far is durable on the ack quorum; raises the writer's error.

        It doesn't wait for an `append` that still waits for room in the window, nor, with `caller_ids`, for entries
        above an id that is missing: these calls and futures end by themselves. Cancelling the call withdraws nothing.
        """
        self._call(self._of.flush)

    def force(self) -> int:
        """Make durable what was acknowledged so far, on the whole ensemble; returns last add confirmed, which moves.

        For ledgers created with `deferred_sync=True`, where an append is acknowledged before it is on disk. Raises
        `BookieUnavailableError` if a bookie can't say so. If a connection was lost since the last call, what was sent
        meanwhile may be lost: then the writer has failed, and its ledger ends where the last call left it. After a
        cancelled call, call it again.
        """
        return self._call(self._of.force)

    def close(self) -> None:
        """Wait for what is pending, then close the ledger at last add confirmed. Closing twice is once.

        If appends have failed for want of bookies, the ledger is closed behind the last acknowledged one. With deferred
        sync, everything is forced before, which needs the whole ensemble. After a cancelled call, call it again. Raises
        `LedgerFencedError` if another client is recovering the ledger, `LedgerClosedError` if it was closed elsewhere
        at a different entry, `ClientClosedError` if the writer was abandoned before, or its client closed.
        """
        self._call(self._of.close)

    def abandon(self) -> None:
        """Stop without closing the ledger: it stays open, for another client to recover."""
        self._act(self._of.abandon)


class BlockingLedgerReader(BlockingContext[LedgerReader]):
    """What `LedgerReader` is, with calls that wait, from any thread."""

    __slots__ = ()

    @property
    def ledger_id(self) -> int:
        """The ledger's id."""
        return self._of.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata, when they were read last."""
        return self._of.metadata

    @property
    def last_add_confirmed(self) -> int:
        """The highest id this reader may read, as far as it knows; the last entry, for a closed ledger."""
        return self._of.last_add_confirmed

    @property
    def length(self) -> int:
        """Payload bytes up to last add confirmed; while the ledger is open, as last published by its writer."""
        return self._of.length

    @property
    def closed(self) -> bool:
        """Whether the ledger was CLOSED when its metadata were read last: then it never grows again."""
        return self._of.closed

    def bytes_of(self, entries: int) -> int:
        """The approximate payload size of `entries` entries, from the average so far; 0 before any size is known."""
        return self._of.bytes_of(entries)

    def close(self) -> None:
        """End the reader and its tails. Doesn't touch the ledger."""
        self._call(self._of.close)

    def read_last_add_confirmed(self) -> int:
        """Ask the bookies and the metadata how far the ledger may be read. Returns that entry's id."""
        return self._call(self._of.read_last_add_confirmed)

    def read(self, first: int = 0, last: int | None = None) -> BlockingIterator[Entry]:
        """Entries first..last in order; `last=None` is last add confirmed, negative is *no entry*.

        Last add confirmed is what this reader knows at the call: of an open ledger, call `read_last_add_confirmed`
        before, or use `tail`. A writer that pauses tells bookies of its last entries after `explicit_lac_interval_s`.

        Raises `ConfigError` at the call for what is no id. Iterating raises `NoSuchEntryError` for a `last` past last
        add confirmed, `DigestMismatchError` if no replica of an entry verifies, `BookieUnavailableError` if the
        replicas can't be reached within `read_timeout_s`.
        """
        return self._iterate(self._of.read, first, last)

    def read_blocks(self, first: int = 0, last: int | None = None) -> BlockingIterator[Block]:
        """Like `read`, many entries at once, with no object per entry."""
        return self._iterate(self._of.read_blocks, first, last)

    def read_batches(self, first: int = 0, last: int | None = None) -> BlockingIterator[RecordBatch]:
        """Like `read_blocks`, as Arrow's record batches: columns `ledger_id`, `entry_id` and `payload`.

        About `read_bytes` of records in a batch, at least one. Raises `ConfigError` at the call where pyarrow isn't
        installed.
        """
        return self._iterate(self._of.read_batches, first, last)

    def read_unconfirmed(self, first: int, last: int) -> BlockingIterator[Entry]:
        """Entries first..last in order, also past last add confirmed: sent by the writer, perhaps never acknowledged.

        Whether such an entry becomes part of the ledger is open until it is confirmed or the ledger closed. Raises
        `NoSuchEntryError` at the first that no bookie of its write set has, or that lies past the end of a closed
        ledger; else as `read`.
        """
        return self._iterate(self._of.read_unconfirmed, first, last)

    def tail(self, first: int = 0) -> BlockingIterator[Entry]:
        """Entries from `first` on as they are confirmed. Ends after the last entry of a closed ledger.

        Waits at the bookies, and goes on while some of them, or the metadata store, are away. Raises
        `NoSuchLedgerError` once the ledger is deleted, else as `read`.
        """
        return self._iterate(self._of.tail, first)

    def tail_blocks(self, first: int = 0) -> BlockingIterator[Block]:
        """Like `tail`, as many entries at once as have come, with no object per entry."""
        return self._iterate(self._of.tail_blocks, first)
