"""The `AdminClient`: what operators do with a cluster, for programs and for the commands of `bkpy`.

Invariant: it owns no session, no connection and no task that outlives a call: all of that is its `Client`'s.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple

from bkpy.admin.bookie_recovery import BookieRecovery
from bkpy.admin.cluster_health import assess, seen
from bkpy.admin.decommission import Decommission, answers
from bkpy.admin.drain import BookieDrain
from bkpy.admin.ledger_filter import STATES, LedgerFilter
from bkpy.admin.rebalance import Rebalancer
from bkpy.client.arguments import check_ledger_id, check_password, check_position, check_time
from bkpy.client.client import (
    NO_ADMINISTRATION,
    audit_trail,
    inspection_context,
    is_of_bookkeeper,
    last_entries,
    log_parts,
    loop_guard,
    not_of_bookkeeper,
)
from bkpy.client.iteration import ResumableIterator, Stepwise, alone
from bkpy.config.recovery import RecoverySettings
from bkpy.errors import BookieUnavailableError, ConfigError, NoSuchLedgerError
from bkpy.log.client import NewLog, create_log
from bkpy.metadata.audit_trail import ActKind, recorded
from bkpy.metadata.logs.consumers import LogConsumers
from bkpy.metadata.logs.maintenance import LogMaintenance
from bkpy.metadata.logs.pages import PageMissingError
from bkpy.metadata.replication.locks import LedgerLocks, held_locks, lock_holder
from bkpy.metadata.replication.manual import manual_moves
from bkpy.metadata.replication.underreplication import UnderreplicationQueue
from bkpy.metadata.restore_record import check_confirmed
from bkpy.metadata.store.outcome import NotDone, Unknown, to_error
from bkpy.protocol.log.log_list import checked_name
from bkpy.protocol.repair.rereplication import plan
from bkpy.replication.auditor.held_entries import unreadable
from bkpy.replication.context import incomplete_bookies
from bkpy.replication.overview import auditor_of, overview

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence

    from bkpy.admin.bookie_recovery import BookieRecoveryReport, RecoveryProgress
    from bkpy.admin.cluster_health import ClusterHealth
    from bkpy.admin.drain import DrainProgress
    from bkpy.admin.rebalance import RebalanceReport
    from bkpy.client.client import Client
    from bkpy.errors import BookKeeperError
    from bkpy.log.parts import LogParts
    from bkpy.metadata.audit_trail import RecordedAct
    from bkpy.metadata.bookies.naming import ReferencingLedgers
    from bkpy.metadata.ledgers.catalog import LedgerCatalog
    from bkpy.metadata.logs.consumers import ConsumerState
    from bkpy.metadata.replication.locks import HeldLock
    from bkpy.metadata.replication.underreplication import UnderreplicationRecord
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.log.log_list import LogList, Segment
    from bkpy.protocol.log.log_producers import Producers
    from bkpy.protocol.repair.rereplication import Copy, Plan
    from bkpy.recovery.ledger_recovery import Survey
    from bkpy.runtime.loop_guard import Guard
    from bkpy.runtime.tls import TlsContext


class _NotThere:
    """In place of a guard, for calls that a BookKeeper cluster isn't offered."""

    def check(self) -> None:
        raise not_of_bookkeeper(NO_ADMINISTRATION)


def _ignore(*progress: object) -> None:
    """In place of a callback that wasn't given."""


class LedgerReplication(NamedTuple):
    """The copies of one ledger, as the metadata know them.

    `record` is its under-replication record, None if it has none. `locked_by` names the process that moves its copies
    now. `plan` says which copies are missing, and what prevents them from being made.
    """

    metadata: LedgerMetadata
    record: UnderreplicationRecord | None
    locked_by: str | None
    plan: Plan


class LogDescription(NamedTuple):
    """A log's list of ledgers with its attributes, and the label of the client that writes it, None for nobody."""

    log_list: LogList
    writer: str | None


class AdminClient:
    """Administers the cluster of an open `Client`, in that client's session.

        async with bkpy.connect(uri) as client:
            admin = bkpy.AdminClient(client)
            await admin.start_drain("bookie-1")

    `settings` say how fast copies are made and how long is waited. There is nothing to close. Every call may raise
    `MetadataUnavailableError`, and `ClientClosedError` once the client is closed. Callbacks are called on the event
    loop, and must not block.
    """

    def __init__(self, client: Client, settings: RecoverySettings | None = None) -> None:
        self._client = client
        self._settings = settings or RecoverySettings()
        self._context = inspection_context(client)
        self._guard_of_all = loop_guard(client)
        self._guard: Guard = _NotThere() if is_of_bookkeeper(client) else self._guard_of_all
        self._trail = audit_trail(client)
        self._cluster = self._context.cluster
        self._store, self._root = self._cluster.store, self._cluster.root
        self._runtime = self._store.runtime

    @property
    def _log_parts(self) -> LogParts:
        return log_parts(self._client)

    @property
    def client(self) -> Client:
        """The client whose session and connections this uses."""
        return self._client

    # --- re-replication -----------------------------------------------------------------------------------------------

    async def replication_status(self) -> dict[str, Any]:
        """The state of re-replication in the whole cluster, as `bkpy autorecovery status --json` prints it.

        Reads all under-replication records and the metadata of their ledgers. The values are not of one moment.
        """
        self._guard.check()
        return await overview(self._cluster, self._settings)

    async def health(self, *, tls: TlsContext | None = None) -> ClusterHealth:
        """Whether all is well with the cluster, or what isn't, worst first, as `bkpy cluster health` reports it.

        Reads what `replication_status` reads, the lists of logs, and the metrics pages of all bookies as far as this
        machine reaches them; `tls` is for pages that have TLS. What can't be seen is among the findings.
        """
        self._guard.check()
        from bkpy.admin.bookie_pages import ClusterPages  # an HTTP client, which no other call needs

        async with ClusterPages(self._runtime.clock, self._settings, tls) as pages:
            return assess(await seen(self._cluster, self._settings, pages))

    async def auditor(self) -> dict[str, Any] | None:
        """The `name` of the process that is the auditor, and since when (`since_ms`, of the epoch); None for none."""
        self._guard.check()
        return await auditor_of(self._store, self._root)

    async def set_auto_recovery(self, enabled: bool) -> None:
        """Enable or disable re-replication in the whole cluster, until the next call.

        While it is disabled, the auditor records nothing and workers copy nothing; `recover_bookie`, `wait_for_drain`
        and `rebalance` work all the same. If it is cancelled, or fails with `outcome_unknown`, call it
        again.
        """
        self._guard.check()
        if enabled:
            await check_confirmed(self._store, self._root, "re-replication")
        async with self._trail.recorded(ActKind.RE_REPLICATION, "enable" if enabled else "disable"):
            outcome = await self._under_replicated().set_enabled(enabled)
            if isinstance(outcome, NotDone | Unknown):
                raise to_error(outcome)

    def list_under_replicated(self) -> AsyncGenerator[int, None]:
        """The ids of the ledgers that have an under-replication record, ascending."""
        found = Stepwise(self._under_replicated().list(), self._runtime, name="under-replicated ledgers")
        return ResumableIterator(found, alone, self._guard)

    async def under_replication(self, ledger_id: int) -> UnderreplicationRecord | None:
        """The ledger's under-replication record: which bookies it misses, since when and why. None if it has none."""
        self._guard.check()
        check_ledger_id(ledger_id)
        return await self._under_replicated().read(ledger_id)

    async def list_locks(self) -> list[HeldLock]:
        """The re-replication locks that are held now, by ledger id; each names its holder."""
        self._guard.check()
        return await held_locks(self._store, self._root)

    async def describe_replication(self, ledger_id: int) -> LedgerReplication:
        """Which copies of a ledger are missing, and what is in the way. Raises `NoSuchLedgerError`.

        This is what the metadata say. `unreadable_entries` asks the bookies.
        """
        self._guard.check()
        metadata = await self._client.ledger_metadata(ledger_id)
        record = await self._under_replicated().read(ledger_id)
        lock = await lock_holder(self._store, self._root, ledger_id)
        bookies = self._context.bookies()
        named = {name for fragment in metadata.fragments for name in fragment.bookies}
        leaving = (named - bookies.readable) | (set() if record is None else record.lost.keys())
        incomplete = frozenset[str]() if record is None else incomplete_bookies(record, self._context.directory)
        whole_from = {} if record is None else record.whole_from
        planned = plan(metadata, leaving, bookies, incomplete=incomplete, whole_from=whole_from)
        return LedgerReplication(metadata, record, lock, planned)

    async def unreadable_entries(
        self, metadata: LedgerMetadata, copy: Copy, *, ranges_max: int, on_read: Callable[[int], None] | None = None
    ) -> list[tuple[int, int]]:
        """The first `ranges_max` ranges of entries that a planned copy needs and that no bookie returns intact.

        Reads all of the copy's share; `on_read` is called with the highest entry id so far. Raises
        `BookieUnavailableError` if a bookie gives no answer, and no other one returns what it should have.
        """
        self._guard.check()
        found = await unreadable(
            self._context,
            metadata,
            copy,
            read_bytes=self._settings.check_read_bytes,
            ranges_max=ranges_max,
            looked_at=on_read or _ignore,
        )
        if found.doubt is not None:
            raise BookieUnavailableError(
                f"it is not known which entries bookies return: {found.doubt}", ledger_id=metadata.ledger_id
            ) from found.doubt
        return found.ranges

    def _under_replicated(self) -> UnderreplicationQueue:
        return UnderreplicationQueue(self._store, self._root, self._runtime, self._settings)

    # --- ledgers ------------------------------------------------------------------------------------------------------

    async def last_entries(self, metadata: LedgerMetadata) -> Mapping[str, int | BookKeeperError]:
        """By bookie of any of the ledger's fragments, the last entry of the ledger that it reports (-1: none).

        In place of that, the error for a bookie that doesn't answer within `read_timeout_s` or can't say. A bookie may
        miss entries below its last one.
        """
        self._guard_of_all.check()
        return await last_entries(self._context, metadata)

    async def close_ledger(self, ledger_id: int) -> LedgerMetadata:
        """Recover a ledger without its password, and return its CLOSED metadata.

        As `Client.recover_ledger`, also when cancelled, but entries are verified by their checksums alone.
        """
        self._guard.check()
        check_ledger_id(ledger_id)
        return await self._context.recover(ledger_id)

    async def survey_ledger(self, ledger_id: int, *, password: bytes = b"") -> Survey:
        """What `accept_loss` would keep of a ledger that `Client.recover_ledger` can't close.

        Fences the ledger, perhaps also when cancelled, and closes nothing. Raises `NoSuchLedgerError`,
        `UnauthorizedError` for a wrong password.
        """
        self._guard.check()
        check_ledger_id(ledger_id)
        check_password(password)
        recovery = await self._context.recovery_giving_up(ledger_id, password, -1)
        return await recovery.survey()

    async def accept_loss(self, ledger_id: int, last_entry: int, *, password: bytes = b"") -> LedgerMetadata:
        """Close a ledger without the bookies that are not registered now, and return its CLOSED metadata.

        Acknowledged entries that only those bookies hold are lost, for good: ask `survey_ledger` first, and pass its
        `last_entry`. The ledger keeps at least the entries up to there. A cancelled call may have closed it. Raises
        `LedgerRecoveryError` if they can't be read any more.
        """
        self._guard.check()
        check_ledger_id(ledger_id)
        check_password(password)
        await check_confirmed(self._store, self._root, "accepting a loss")
        details = f"keeps at least the entries up to {last_entry}"
        async with self._trail.recorded(ActKind.ACCEPT_LOSS, ledger_id, details):
            return await (await self._context.recovery_giving_up(ledger_id, password, last_entry)).run()

    def find_ledgers(
        self,
        *,
        state: str | None = None,
        since: float | None = None,
        bookie: str | None = None,
        custom: Mapping[str, bytes] | None = None,
        missing_copies: bool = False,
    ) -> AsyncGenerator[LedgerMetadata, None]:
        """The metadata of the ledgers that are all of this, by id; without an argument, of all.

        `state` is "OPEN", "IN_RECOVERY" or "CLOSED"; `since`: created since then, in seconds of the epoch; `bookie` is
        one that any fragment names; `custom`: custom metadata; `missing_copies`: with an under-replication record.
        Reads one ledger after another: the list may be longer than memory. Ledgers with unreadable metadata raise
        `CorruptDataError`.
        """
        if state is not None and state not in STATES:
            raise ConfigError(f"state is one of {', '.join(STATES)}, not {state!r}")
        if since is not None:
            check_time("since", since)
        since_ms = None if since is None else int(since * 1000)
        wanted = LedgerFilter(state, since_ms, bookie, dict(custom or {}), missing_copies)
        if missing_copies:
            self._guard.check()
        found = Stepwise(self._found(wanted), self._runtime, name="list of ledgers")
        return ResumableIterator(found, alone, self._guard_of_all)

    async def _found(self, wanted: LedgerFilter) -> AsyncGenerator[LedgerMetadata, None]:
        catalog, at_once = self._cluster.catalog, self._settings.audit_reads_at_once
        if wanted.missing_copies:  # far fewer ledgers have a record
            ids: AsyncGenerator[int, None] = self._under_replicated().list()
        else:
            ids = self._client.list_ledgers()
        async with aclosing(ids):
            some: list[int] = []
            async for ledger_id in ids:
                some.append(ledger_id)
                if len(some) == at_once:
                    for metadata in await self._wanted(catalog, some, wanted):
                        yield metadata
                    some = []
            for metadata in await self._wanted(catalog, some, wanted):
                yield metadata

    async def _wanted(
        self, catalog: LedgerCatalog, ledger_ids: Sequence[int], wanted: LedgerFilter
    ) -> list[LedgerMetadata]:
        found = await asyncio.gather(*(self._if_there(catalog, ledger_id) for ledger_id in ledger_ids))
        missing = wanted.missing_copies  # each of these has a record
        return [
            metadata for metadata in found if metadata is not None and wanted.wants(metadata, missing_copies=missing)
        ]

    async def _if_there(self, catalog: LedgerCatalog, ledger_id: int) -> LedgerMetadata | None:
        try:
            return (await catalog.read(ledger_id))[0]
        except NoSuchLedgerError:  # deleted meanwhile
            return None

    # --- bookies ------------------------------------------------------------------------------------------------------

    @property
    def registered_bookies(self) -> frozenset[str]:
        """The ids of the bookies that are registered now, whether they take entries or not."""
        return self._context.directory.readable

    async def is_reachable(self, bookie_id: str) -> bool:
        """Whether the bookie answers at the address that it registered last, even if it is not registered now.

        Waits at most `2 * connect_timeout_s`. Raises `TlsError` or `UnauthorizedError` if this client is refused there:
        the bookie may run, and serve others.
        """
        self._guard.check()
        return await answers(self._context, bookie_id)

    async def recover_bookie(
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
        self._guard.check()
        if not dry_run:
            await check_confirmed(self._store, self._root, "recovering a bookie")
        recovery = BookieRecovery(self._context, bookie_id, self._settings, target=target)
        recovery.check()
        details = "" if target is None else f"to {target}"
        trail = None if dry_run else self._trail
        async with recorded(trail, ActKind.RECOVER_BOOKIE, bookie_id, details):
            named, without_metadata = await recovery.scan(on_scanned or _ignore)
            report = await (recovery.plan(named) if dry_run else recovery.run(named, on_progress or _ignore))
        report.unreadable = without_metadata
        return report

    async def start_drain(self, bookie_id: str) -> None:
        """Begin to drain a bookie, unless it is draining: it refuses new entries, and its ledgers are re-replicated.

        Returns at once. The cluster's workers do the work, if there are any; else see `wait_for_drain`. A cancelled
        call may have begun it. Raises `BookieUnavailableError` for a bookie that the cluster doesn't know.
        """
        self._guard.check()
        await self._drain(bookie_id).begin()

    async def cancel_drain(self, bookie_id: str) -> bool:
        """End the draining; returns whether the bookie was draining. Copies that were moved stay where they are.

        A cancelled call may have ended it.
        """
        self._guard.check()
        return await self._drain(bookie_id).cancel()

    async def drain_progress(self, bookie_id: str, *, on_scanned: Callable[[int], None] | None = None) -> DrainProgress:
        """How many ledgers and bytes are left on a bookie, and what blocks them. Reads the metadata of all ledgers."""
        self._guard.check()
        return await self._drain(bookie_id).look(on_scanned or _ignore)

    async def wait_for_drain(
        self, bookie_id: str, *, on_progress: Callable[[DrainProgress], None] | None = None
    ) -> DrainProgress:
        """Return when no ledger names the draining bookie, or the draining was cancelled.

        Where the cluster has no workers, or they are disabled, this call re-replicates. Cancelling the call doesn't end
        the draining. Raises `ConfigError` if a restore of the cluster isn't confirmed.
        """
        self._guard.check()
        await check_confirmed(self._store, self._root, "draining a bookie")
        return await self._drain(bookie_id).run(on_progress or _ignore)

    def _drain(self, bookie_id: str) -> BookieDrain:
        return BookieDrain(self._context, bookie_id, self._settings, self._trail)

    async def decommission(
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
        self._guard.check()
        await check_confirmed(self._store, self._root, "decommissioning a bookie")
        one = Decommission(self._context, bookie_id, self._settings, lost=lost, trail=self._trail)
        return await one.run(confirm or _ignore, on_scanned or _ignore)

    async def rebalance(
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
        self._guard.check()
        if not dry_run:
            await check_confirmed(self._store, self._root, "moving copies")
        name = "bkpy cluster rebalance"
        locks = LedgerLocks(self._store, self._root, name, self._runtime, self._settings)
        one = Rebalancer(
            self._context,
            locks,
            self._settings,
            self._runtime,
            on_scanned=on_scanned or _ignore,
            on_moved=on_moved or _ignore,
        )
        began = self._runtime.clock.monotonic()
        balance = await one.look()
        if dry_run:
            await one.only_plan(balance)
            return one.report(balance.share, None)
        async with manual_moves(self._store, self._root, name, self._runtime, self._settings):
            await one.run(balance)
        return one.report(balance.share, self._runtime.clock.monotonic() - began)

    # --- the audit trail ----------------------------------------------------------------------------------------------

    async def audit_trail(self, *, since: float = 0.0) -> list[RecordedAct]:
        """Who did what to the cluster, the oldest first: acts since then (seconds of the epoch), some 100 of each kind.

        What a record says of its actor is what that process said: no proof.
        """
        self._guard.check()
        check_time("since", since)
        return await self._trail.read(await self._trail.names(int(since * 1000)))

    # --- named logs ---------------------------------------------------------------------------------------------------

    async def create_log(
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
        self._guard.check()
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
        return await create_log(self._log_parts.logs, name, password, new)

    async def log_names(self) -> list[str]:
        """The names of all logs, sorted, with logs that are being deleted: one read, unlike `Client.list_logs`."""
        self._guard.check()
        return await self._log_parts.logs.names()

    async def describe_log(self, name: str, *, fresh: bool = True) -> LogDescription:
        """A log's ledgers and attributes, and its writer. Needs no password. Raises `NoSuchLogError`.

        Without `fresh`, the answer may lag behind the latest change, and costs less.
        """
        self._guard.check()
        log_list, _ = await self._log_parts.logs.read(name, fresh=fresh)
        return LogDescription(log_list, await self._log_parts.logs.lease_holder(name, log_list.uid))

    def log_segments(self, name: str) -> AsyncGenerator[Segment, None]:
        """A log's ledgers in order, those in pages of its list included. Raises `NoSuchLogError`."""
        found = Stepwise(self._segments(name), self._runtime, name=f"ledgers of log {name}")
        return ResumableIterator(found, alone, self._guard)

    async def _segments(self, name: str) -> AsyncGenerator[Segment, None]:
        logs, position = self._log_parts.logs, 0
        while True:
            log_list, _ = await logs.read(name, fresh=True)
            try:
                async with aclosing(logs.pages.segments(name, log_list, position)) as segments:
                    async for segment in segments:
                        position = segment.end_position if segment.sealed else position
                        yield segment
                return
            except PageMissingError as error:
                log_list, _ = await logs.read(name, fresh=True)
                if error.end_position > log_list.first_position:
                    raise  # the page was lost, and not truncated since the list was read

    async def truncate_log(
        self, name: str, before: int, *, password: bytes = b"", ignore_consumers: bool = False
    ) -> LogList:
        """Delete the entries below position `before`, and return the log's list after that.

        A cancelled call may have deleted them. Raises `NoSuchLogError`, `UnauthorizedError`, and `ConfigError` for a
        position past the end, or that a consumer has yet to read unless `ignore_consumers`.
        """
        self._guard.check()
        check_position("before", before)
        async with await self._client.read_log(name, password=password) as reader:
            forced = ", though consumers have yet to read them" if ignore_consumers else ""
            async with self._trail.recorded(ActKind.TRUNCATE_LOG, name, f"entries below {before}{forced}"):
                return await self._log_maintenance().truncate(
                    name, int(before), end=reader.next_position, uid=reader.uid, ignore_consumers=ignore_consumers
                )

    async def log_consumers(self, name: str) -> Mapping[str, ConsumerState]:
        """The consumers of a log by name, each with the position that it reads next. Raises `NoSuchLogError`."""
        self._guard.check()
        return (await (await self._consumers(name)).registered()).states

    async def delete_log_consumer(self, name: str, consumer: str) -> bool:
        """Delete a consumer; retention doesn't wait for it any more. Returns False if there is none of that name.

        A cancelled call may have deleted it. Raises `NoSuchLogError`.
        """
        self._guard.check()
        consumers = await self._consumers(name)
        async with self._trail.recorded(ActKind.DELETE_CONSUMER, name, consumer):
            return await consumers.delete(consumer)

    async def _consumers(self, name: str) -> LogConsumers:
        log_list, _ = await self._log_parts.logs.read(name, fresh=True)
        return LogConsumers(self._log_parts.logs, name, log_list.uid)

    async def log_sinks(self, name: str) -> dict[str, int]:
        """By writer id of a sink, the number of the last batch that it committed to a log. Raises `NoSuchLogError`."""
        self._guard.check()
        return (await self._log_parts.logs.read(name, fresh=True))[0].producers.batches

    async def delete_log_sink(self, name: str, writer_id: str) -> bool:
        """Forget a sink's last batch: one that the sink repeats is then written twice. Returns False if it is unknown.

        A cancelled call may have done it. Raises `NoSuchLogError`.
        """
        self._guard.check()
        async with self._trail.recorded(ActKind.FORGET_PRODUCER, checked_name(name), writer_id):
            return await self._log_maintenance().forget_producer(name, writer_id)

    async def log_producers(self, name: str) -> Producers:
        """The producers of a log, and the writer ids of sinks. Raises `NoSuchLogError`."""
        self._guard.check()
        return (await self._log_parts.logs.read(name, fresh=True))[0].producers

    async def delete_log_producer(self, name: str, producer: str) -> bool:
        """Forget a producer, which then has to be opened as a new one. Returns False if it is unknown.

        A cancelled call may have done it. Raises `NoSuchLogError`.
        """
        self._guard.check()
        async with self._trail.recorded(ActKind.FORGET_PRODUCER, checked_name(name), producer):
            return await self._log_maintenance().forget_producer(name, producer)

    def _log_maintenance(self) -> LogMaintenance:
        return LogMaintenance(self._log_parts.logs, self._log_parts.catalog)
