"""The `Client`: one session with the metadata store and connections to the bookies it needs."""

from __future__ import annotations

import asyncio
import warnings
from functools import partial
from typing import TYPE_CHECKING, Final, assert_never

from bkpy._version import VERSION
from bkpy.client.arguments import check_ledger_id, check_password, check_size, checked_custom
from bkpy.client.bookies.dialling import Dialler
from bkpy.client.bookies.ensembles import Ensembles
from bkpy.client.bookies.placement import Placement, rack_aware_placement
from bkpy.client.bookies.pool import BookiePool
from bkpy.client.creation import NewLedger, create_ledger
from bkpy.client.dialect import NATIVE, ClientDialect
from bkpy.client.iteration import ResumableIterator, Stepwise, alone
from bkpy.client.lifetime import refuse_pickling, warn_unclosed
from bkpy.client.read.reader import LedgerReader
from bkpy.client.write.dispatcher import AddDispatcher
from bkpy.client.write.explicit_lac import Publisher
from bkpy.client.write.interfaces import ReplicationParts
from bkpy.client.write.leaving import Leaving
from bkpy.client.write.progress import Progress
from bkpy.client.write.stragglers import Stragglers
from bkpy.client.write.writer import LedgerWriter
from bkpy.errors import (
    BookKeeperError,
    ClientClosedError,
    ConfigError,
    CorruptDataError,
    MetadataConflictError,
    NoSuchLedgerError,
    UnsupportedVersionError,
)
from bkpy.log.client import NewLog, create_segment, open_log, open_segment, read_log, roll_limits
from bkpy.log.parts import LogParts
from bkpy.log.traffic import OpenLogs
from bkpy.log.turns import WriterTurns
from bkpy.metadata.audit_trail import ActKind, AuditTrail
from bkpy.metadata.bookies.registration import BookieDirectory, BookieInfo
from bkpy.metadata.cluster import Cluster, open_cluster
from bkpy.metadata.logs.catalog import LogStore
from bkpy.metadata.logs.maintenance import LogMaintenance
from bkpy.metadata.store.outcome import Changed, Gone, Missing, NotDone, Superseded, Unknown, to_error
from bkpy.protocol.ledger.quorum import check_sizes
from bkpy.protocol.log.log_list import checked_name
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.lac_reply import unverified_last_entry
from bkpy.protocol.wire.messages import Op
from bkpy.recovery.recoveries import Recoveries
from bkpy.replication.context import ReplicationContext

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from bkpy.client.metrics import ClientMetrics
    from bkpy.client.write.interfaces import AppendReceiver
    from bkpy.config.client import ClientSettings
    from bkpy.log.reader import LogReader
    from bkpy.log.writer import LogWriter
    from bkpy.metadata.audit_trail import Actor
    from bkpy.metadata.ledgers.catalog import Created, LedgerCatalog
    from bkpy.metadata.store.outcome import DeleteOutcome
    from bkpy.metadata.store.store import MetadataStore
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.log.log_list import LogList
    from bkpy.protocol.wire.records import RecordCodec
    from bkpy.recovery.write_back import WriteBack
    from bkpy.runtime.interfaces import Runtime
    from bkpy.runtime.loop_guard import LoopGuard
    from bkpy.runtime.tls import TlsContext

_SHOWN_MAX: Final = 10  # ledgers named in one warning

_ONE_ACK: Final = (
    "an ack quorum of 1 acknowledges entries that one bookie alone has: they are lost with it, and a recovery of the "
    "ledger has to wait for every single bookie of the write quorum"
)


class Client:
    """A client of one cluster. Made by `connect`; bound to the event loop that made it."""

    _closed = True  # nothing to close yet
    __reduce__ = refuse_pickling

    def __init__(
        self,
        cluster: Cluster,
        directory: BookieDirectory,
        dialler: Dialler,
        *,
        settings: ClientSettings,
        runtime: Runtime,
        placement: Placement | None = None,
        owns_store: bool = False,
        actor: Actor | None = None,
        dialect: ClientDialect = NATIVE,
    ) -> None:
        self._cluster = cluster
        self._dialect = dialect
        self._directory = directory
        self._settings = settings
        self._runtime = runtime
        self._owns_store = owns_store
        self._trail = AuditTrail(cluster.store, cluster.root, runtime, settings, actor)
        self._pool = BookiePool(
            directory,
            dialler,
            settings,
            runtime,
            instance_id=cluster.instance_id,
            software=f"bkpy/{VERSION}",
            new_connection=dialect.new_connection,
        )
        self._dispatcher = AddDispatcher(self._pool, settings)
        self._publisher = Publisher(settings, runtime)
        self._progress = Progress()
        self._turns = WriterTurns(settings, runtime)
        self._open_logs = OpenLogs(settings)
        self._metrics: ClientMetrics | None = None
        self._measuring: asyncio.Task[None] | None = None
        self._ensembles = Ensembles(
            directory, placement or rack_aware_placement(runtime.rng), self._pool, settings, runtime
        )
        self._stragglers = Stragglers(cluster.catalog, self._pool, settings, runtime)
        self._parts = ReplicationParts(
            self._ensembles, self._pool, self._dispatcher, self._stragglers, settings, runtime
        )
        self._recoveries = Recoveries(
            cluster.catalog,
            directory,
            self._parts,
            check_open=self._check_open,
            on_begun=self._begun,
            on_ended=self._ended,
            codec_of=dialect.codec,
        )
        self._writing: dict[LedgerWriter | WriteBack, None] = {}
        self._leaving = Leaving(directory, settings, runtime, lambda: self._writers)
        directory.in_use = self._bookies_in_use
        self._watching: asyncio.TimerHandle | None = None
        self._closed = False
        self._over = asyncio.Event()  # closing has ended

    @property
    def instance_id(self) -> str:
        """The cluster's own id, which no other cluster has."""
        return self._cluster.instance_id

    @property
    def layout(self) -> str:
        """The name of the layout in which the cluster keeps ledger metadata."""
        return self._cluster.layout_name

    @property
    def bookies(self) -> Mapping[str, BookieInfo]:
        """The bookies that are registered now and take entries, by id."""
        return self._directory.bookies

    @property
    def read_only_bookies(self) -> Mapping[str, BookieInfo]:
        """The bookies that are registered now and take no entries, by id."""
        return self._directory.read_only

    @property
    def metrics(self) -> ClientMetrics:
        """What this client does, as a collector for a registry of `prometheus_client`.

        `registry.register(client.metrics)`, one client a registry. It begins to observe latencies, and to measure the
        lags of consumers, when it is first asked for. See docs/how-to/watching.md.
        """
        if self._metrics is None:
            self._check_open()
            from bkpy.client.metrics import ClientMetrics
            from bkpy.log.metrics import WriterMetrics

            def writers() -> list[LedgerWriter]:
                return [writer for writer in list(self._writing) if isinstance(writer, LedgerWriter)]

            clock, logs = self._runtime.clock, WriterMetrics(writers, self._open_logs, self._settings)
            self._metrics = ClientMetrics(self._pool, self._dispatcher, clock, logs.collect)
            self._measuring = self._runtime.spawn(logs.measure_forever(), name="lags of consumers")
        return self._metrics

    @property
    def upkeep(self) -> ReplicationContext:
        """The former access to the parts of a client that re-replication uses. Deprecated: use `AdminClient`."""
        _warn_moved("upkeep")
        if self._cluster.of_bookkeeper:
            raise not_of_bookkeeper(NO_ADMINISTRATION)
        return self._replication_context

    @property
    def logs(self) -> LogStore:
        """The former access to the lists of named logs. Deprecated: use `AdminClient`."""
        _warn_moved("logs")
        self._check_has_logs()
        return self._logs

    @property
    def _replication_context(self) -> ReplicationContext:
        by = self._recoveries
        return ReplicationContext(
            self._cluster, self._directory, self._parts, by.ended_unread, by.fence, by.giving_up, by.everywhere
        )

    @property
    def _logs(self) -> LogStore:
        cluster = self._cluster
        return LogStore(cluster.store, cluster.root, cluster.catalog.layout, self._runtime, self._settings)

    # --- ledgers ----------------------------------------------------------------------------------------------------

    async def create_ledger(
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
    ) -> LedgerWriter:
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
        self._check_open()
        for name, size in (
            ("ensemble_size", ensemble_size),
            ("write_quorum", write_quorum),
            ("ack_quorum", ack_quorum),
        ):
            check_size(name, size)
        check_password(password)
        check_sizes(ensemble_size, write_quorum, ack_quorum)
        if self._cluster.of_bookkeeper and (caller_ids or deferred_sync):
            raise not_of_bookkeeper("ledgers of bkpy with caller_ids or deferred_sync")
        stored_as = self._dialect.new_format(digest, password)
        if ack_quorum == 1:
            warnings.warn(_ONE_ACK, stacklevel=2)
        new = NewLedger(
            ensemble_size,
            write_quorum,
            ack_quorum,
            stored_as.digest,
            stored_as.key,
            checked_custom(custom_metadata),
            caller_ids=caller_ids,
            deferred_sync=deferred_sync,
            metadata=stored_as.metadata,
        )
        created = await self._create(new, allow_absent=allow_absent_bookies)
        return self._writer(created, self._dialect.codec(created.metadata, password))

    async def _create(self, new: NewLedger, *, allow_absent: bool | None = None) -> Created:
        self._check_open()
        if allow_absent is None:
            allow_absent = self._settings.allow_absent_bookies
        return await create_ledger(
            new, self._cluster.catalog, self._ensembles, self._runtime, allow_absent=allow_absent
        )

    def _writer(self, created: Created, codec: RecordCodec, log: AppendReceiver | None = None) -> LedgerWriter:
        metadata = created.metadata
        if self._closed:
            raise ClientClosedError(
                "the client was closed while it created the ledger, which is open and has no entries",
                ledger_id=metadata.ledger_id,
            )
        self._pool.add_key(metadata.ledger_id, metadata.ledger_key)
        self._leaving.start(look=bool(created.absent))
        writer = LedgerWriter(
            metadata,
            created.version,
            codec=codec,
            catalog=self._cluster.catalog,
            publisher=self._publisher,
            parts=self._parts,
            on_closed=self._ended,
            log=log,
            absent=created.absent,
        )
        self._begun(writer)
        return writer

    def _begun(self, writing: LedgerWriter | WriteBack) -> None:
        self._writing[writing] = None
        if self._watching is None:
            self._watch_progress()

    def _ended(self, writing: LedgerWriter | WriteBack) -> None:
        if writing in self._writing:
            del self._writing[writing]
            if isinstance(writing, LedgerWriter):
                self._open_logs.end(writing)

    def _bookies_in_use(self) -> set[str]:
        """The bookies to which this client's writers and recoveries write."""
        return {name for writing in self._writing for name in writing.metadata.fragments[-1].bookies}

    def _watch_progress(self) -> None:
        """Look periodically for writers whose quorums don't answer. Not on the path of an append."""
        self._watching = None
        self._progress.look(self._runtime.clock.monotonic(), self._dispatcher.watched())
        if self._writing:
            interval = min(self._settings.progress_check_interval_s, self._settings.add_quorum_timeout_s / 4)
            self._watching = asyncio.get_running_loop().call_later(interval, self._watch_progress)

    async def open_ledger(self, ledger_id: int, *, password: bytes = b"") -> LedgerReader:
        """Open a ledger for reading up to last add confirmed. Never disturbs its writer.

        Raises `NoSuchLedgerError`, `UnauthorizedError` for a wrong password, `BookieUnavailableError` if the ledger is
        open and too few of its bookies can tell how far it may be read.
        """
        check_ledger_id(ledger_id)
        check_password(password)
        self._check_open()
        metadata, _ = await self._cluster.catalog.read(ledger_id)
        reader = self._reader(metadata.authorised(password), password)
        if not reader.closed:
            await reader.read_last_add_confirmed()
        return reader

    async def recover_ledger(self, ledger_id: int, *, password: bytes = b"") -> LedgerReader:
        """Fence the ledger, find out where it ends, close it there, and open it for reading.

        Its writer, if there still is one, can't append any more. No acknowledged entry is lost. A CLOSED ledger is only
        opened. Raises `NoSuchLedgerError`, `UnauthorizedError` for a wrong password, or if too many bookies don't
        allow this to the client, and `LedgerRecoveryError` if too few could say where it ends: then it stays
        IN_RECOVERY, and a later call may succeed. A cancelled call may have fenced the ledger, and a later one goes on.
        """
        check_ledger_id(ledger_id)
        check_password(password)
        self._check_open()
        metadata = await self._recoveries.ended(ledger_id, password)
        return self._reader(metadata, password)

    def _reader(self, metadata: LedgerMetadata, password: bytes) -> LedgerReader:
        return LedgerReader(
            metadata,
            codec=self._dialect.codec(metadata, password),
            catalog=self._cluster.catalog,
            pool=self._pool,
            settings=self._settings,
            runtime=self._runtime,
        )

    async def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        """The metadata that the store keeps about a ledger. Raises `NoSuchLedgerError`."""
        check_ledger_id(ledger_id)
        self._check_open()
        metadata, _ = await self._cluster.catalog.read(ledger_id)
        return metadata

    async def last_entries(self, metadata: LedgerMetadata) -> Mapping[str, int | BookKeeperError]:
        """Deprecated: use `AdminClient.last_entries`."""
        _warn_moved("last_entries")
        self._check_open()
        return await last_entries(self._replication_context, metadata)

    async def delete_ledger(self, ledger_id: int) -> None:
        """Delete a ledger, whatever its state.

        A cancelled call may have deleted it. Raises `NoSuchLedgerError`, and `ConfigError` for a ledger that is a part
        of a log.
        """
        check_ledger_id(ledger_id)
        self._check_open()
        if self._cluster.of_bookkeeper:  # whose ledgers are of no log of bkpy's
            _check_deleted(ledger_id, await self._cluster.catalog.delete(ledger_id))
            return
        _check_deleted(ledger_id, await _deletion(ledger_id, self._cluster.catalog, self._logs, self._trail))

    def list_logs(self) -> AsyncGenerator[str, None]:
        """The names of all logs, sorted; those created or deleted meanwhile may be among them or not."""
        self._check_has_logs()
        names = Stepwise(self._logs.living_names(), self._runtime, name="list of logs")
        return ResumableIterator(names, alone, self._pool.guard)

    async def delete_log(self, name: str) -> None:
        """Delete a log, with all its entries and consumers. Its writer and its readers fail. Raises `NoSuchLogError`.

        When it returns, the log's last ledgers are fenced: no append of its writer is acknowledged any more. Where too
        few of their bookies can be reached, it logs a warning, and the writer ends when it is notified of the deletion.

        If it is cancelled, or fails as when the metadata store is away, the log may be deleted or not, and its writer
        may not be fenced. A second call completes it, or raises `NoSuchLogError` if nothing is left to do.
        """
        self._check_has_logs()
        async with self._trail.recorded(ActKind.DELETE_LOG, checked_name(name)):
            await LogMaintenance(self._logs, self._cluster.catalog).delete(name, self._recoveries.fence)

    def list_ledgers(self) -> AsyncGenerator[int, None]:
        """The ids of all ledgers, ascending; those created or deleted meanwhile may be in it or not."""
        self._check_open()
        ids = Stepwise(self._cluster.catalog.partitions(), self._runtime, name="list of ledgers")
        return ResumableIterator(ids, guard=self._pool.guard)

    # --- named logs -------------------------------------------------------------------------------------------------

    async def read_log(self, name: str, *, password: bytes = b"") -> LogReader:
        """Open a named log for reading; never disturbs its writer. Raises `NoSuchLogError`, `UnauthorizedError`."""
        self._check_has_logs()
        return await read_log(self._log_parts, name, password)

    async def open_segment(self, ledger_id: int, password: bytes = b"", confirmed: int = -1) -> LedgerReader:
        """A reader of one of a log's ledgers. Deprecated: use `read_log`."""
        _warn_moved("open_segment")
        self._check_has_logs()
        return await open_segment(self._log_parts, ledger_id, password, confirmed)

    async def create_segment(self, name: str, log_list: LogList, password: bytes) -> LedgerWriter:
        """The writer of a new ledger of a log. Deprecated: use `open_log`."""
        _warn_moved("create_segment")
        self._check_has_logs()
        return await create_segment(self._log_parts, name, log_list, password)

    @property
    def _log_parts(self) -> LogParts:
        name, process = self._settings.client_name, self._runtime.process
        label = f"client {name} on {process}" if name else process
        return LogParts(
            label,
            self._logs,
            self._cluster.catalog,
            self._parts,
            self._create,
            self._writer,
            self._recoveries.ended,
            self._turns,
            self._open_logs,
        )

    async def open_log(
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
    ) -> LogWriter:
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
        self._check_has_logs()
        new = NewLog(
            ensemble_size,
            write_quorum,
            ack_quorum,
            digest,
            retention_s,
            retention_bytes,
            consumer_lag_max_s,
            consumer_expiry_s,
        )
        limits = roll_limits(self._settings, roll_bytes, roll_entries, roll_s)
        return await open_log(
            self._log_parts._replace(create=partial(self._create, allow_absent=allow_absent_bookies)),
            name,
            password,
            limits,
            create=new if create else None,
            wait=wait,
            producer=producer,
            new_producer=new_producer,
        )

    # --- the end ----------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        self._pool.guard.check()
        if self._closed:
            raise ClientClosedError("the client is closed")

    def _check_has_logs(self) -> None:
        self._check_open()
        if self._cluster.of_bookkeeper:
            raise not_of_bookkeeper(_NO_LOGS)

    async def close(self) -> None:
        """Close connections and session. Open writers fail what is pending; their ledgers stay open for recovery.

        Waits until it is recorded what slow bookies miss of ledgers that this client has closed or recovered, for
        `close_linger_s` and `metadata_close_timeout_s` at most, and until the ledgers of cancelled calls of
        `create_ledger` are gone, for `metadata_close_timeout_s`.

        A cancelled call has closed the client all the same; of several calls each returns when all is closed.
        Emits a `ResourceWarning` about writers that were neither closed nor abandoned and have not failed.
        """
        self._pool.guard.check()
        left_open = [writer.ledger_id for writer in self._writers]
        if left_open and not self._closed:
            ledgers = ", ".join(map(str, left_open[:_SHOWN_MAX])) + ", ..." * (len(left_open) > _SHOWN_MAX)
            warn_unclosed(f"writers of {len(left_open)} ledgers were not closed: {ledgers}", self, stacklevel=2)
        await self._close()

    @property
    def _writers(self) -> list[LedgerWriter]:
        """The open writers that can still append."""
        return [writer for writer in self._writing if isinstance(writer, LedgerWriter) and writer.usable]

    async def _close(self) -> None:
        self._pool.guard.check()
        if self._closed:
            await self._over.wait()
            return
        self._closed = True
        try:
            await self._close_all()
        finally:
            self._over.set()

    async def _close_all(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        if self._measuring is not None:
            self._measuring.cancel()
        self._leaving.close()
        for writing in list(self._writing):
            writing.abandon()
        try:  # also if this is cancelled: nothing else ends connections and session
            await self._stragglers.close()
            await self._cluster.catalog.close()
        finally:
            self._dispatcher.close()
            self._publisher.close()
            await self._pool.close()
            try:
                await self._directory.close()
            finally:
                if self._owns_store:
                    await self._cluster.store.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.close()
        else:
            await self._close()

    def __del__(self) -> None:
        if not self._closed:
            warn_unclosed(f"{self!r} was not closed", self)


def _warn_moved(name: str) -> None:
    warnings.warn(
        f"Client.{name} is deprecated and will be removed: see bkpy.AdminClient", DeprecationWarning, stacklevel=3
    )


# --- for other parts of bkpy ------------------------------------------------------------------------------------------


def replication_context(client: Client) -> ReplicationContext:
    """The parts of a client that re-replication and administration use, in the client's session.

    Raises `ConfigError` for a BookKeeper cluster, whose own processes do that.
    """
    if client._cluster.of_bookkeeper:
        raise not_of_bookkeeper(NO_ADMINISTRATION)
    return client._replication_context


def inspection_context(client: Client) -> ReplicationContext:
    """The same in any cluster, for what only looks."""
    return client._replication_context


def is_of_bookkeeper(client: Client) -> bool:
    """Whether the client's cluster is one of Apache BookKeeper."""
    return client._cluster.of_bookkeeper


def loop_guard(client: Client) -> LoopGuard:
    """What refuses calls that come from elsewhere than the client's event loop."""
    return client._pool.guard


def audit_trail(client: Client) -> AuditTrail:
    """Where the acts of a client and of its administrator are recorded."""
    return client._trail


def log_parts(client: Client) -> LogParts:
    """The parts of a client that its named logs use, in the client's session. Raises `ConfigError` if it has none."""
    if client._cluster.of_bookkeeper:
        raise not_of_bookkeeper(_NO_LOGS)
    return client._log_parts


async def last_entries(context: ReplicationContext, metadata: LedgerMetadata) -> dict[str, int | BookKeeperError]:
    """See `AdminClient.last_entries`."""
    bookies = sorted({bookie_id for fragment in metadata.fragments for bookie_id in fragment.bookies})
    found = await asyncio.gather(*(_last_entry(context.parts, metadata.ledger_id, bookie_id) for bookie_id in bookies))
    return dict(zip(bookies, found, strict=True))


async def _last_entry(parts: ReplicationParts, ledger_id: int, bookie_id: str) -> int | BookKeeperError:
    request = m.pack([0, ledger_id])
    try:
        reply = await parts.pool.channel(bookie_id).call(Op.READ_LAC, request, timeout_s=parts.settings.read_timeout_s)
        return unverified_last_entry(reply, ledger_id, bookie_id)
    except BookKeeperError as e:
        return e


# --- deleting a ledger ------------------------------------------------------------------------------------------------


def _check_deleted(ledger_id: int, outcome: DeleteOutcome) -> None:
    """Raise the error for an outcome other than the ledger's deletion."""
    match outcome:
        case Gone():
            return
        case Missing() if outcome.index:
            raise MetadataConflictError(f"nothing was deleted: there is no {outcome.node}", ledger_id=ledger_id)
        case Missing():
            raise NoSuchLedgerError("there is no such ledger", ledger_id=ledger_id)
        case Changed() | Superseded():
            raise MetadataConflictError(
                "the ledger's node in ZooKeeper has nodes below it",
                ledger_id=ledger_id,
                outcome_unknown=isinstance(outcome, Superseded),
            )
        case NotDone() | Unknown():
            raise to_error(outcome, ledger_id=ledger_id)
        case _:
            assert_never(outcome)


async def _deletion(ledger_id: int, catalog: LedgerCatalog, logs: LogStore, trail: AuditTrail) -> DeleteOutcome:
    try:
        metadata, _ = await catalog.read(ledger_id)
    except (CorruptDataError, UnsupportedVersionError):  # deletion is the only remedy for unreadable metadata
        return await catalog.delete(
            ledger_id, *await trail.entry(ActKind.DELETE_LEDGER, ledger_id, "its metadata are damaged")
        )
    return await LogMaintenance(logs, catalog).delete_ledger(
        metadata, *await trail.entry(ActKind.DELETE_LEDGER, ledger_id)
    )


# --- making a client --------------------------------------------------------------------------------------------------


def not_of_bookkeeper(what: str) -> ConfigError:
    """The error for what bkpy doesn't do in a BookKeeper cluster."""
    return ConfigError(f"a cluster of Apache BookKeeper has no {what}")


NO_ADMINISTRATION: Final = "administration by bkpy: use `bookkeeper shell`"
_NO_LOGS: Final = "named logs"


async def open_client(
    store: MetadataStore,
    root: str,
    runtime: Runtime,
    settings: ClientSettings,
    *,
    placement: Placement | None = None,
    owns_store: bool = False,
    tls: TlsContext | None = None,
    actor: Actor | None = None,
    of_bookkeeper: bool = False,
) -> Client:
    """A client of the cluster under `root` of a connected store. `NoSuchClusterError` if there is none.

    Acts of the `actor` are recorded; without one, none is. `of_bookkeeper`: the cluster may be one of BookKeeper.
    """
    cluster = await open_cluster(store, root, settings=settings, of_bookkeeper=of_bookkeeper)
    dialler = Dialler(settings, tls, of_bookkeeper=cluster.of_bookkeeper)
    dialect = NATIVE
    if cluster.of_bookkeeper:
        from bkpy.client.bookkeeper.dialect import bookkeeper_dialect, with_short_ranges  # which needs protobuf

        settings = with_short_ranges(settings)
        dialect, actor = bookkeeper_dialect(settings, runtime), None  # it has no audit trail
    directory = BookieDirectory(store, root, runtime, settings, dialect.registrations)
    await directory.start()
    return Client(
        cluster,
        directory,
        dialler,
        settings=settings,
        runtime=runtime,
        placement=placement,
        owns_store=owns_store,
        actor=actor,
        dialect=dialect,
    )
