"""The integrity check of one bookie: what it lost is copied back from other bookies, and then its limbo ends.

    metadata: which ledgers name this bookie --> which of their entries its index misses --> copies, from others to it
        --> flush --> under each ledger's lock: nothing missing, end its limbo --> ledgers never seen are trusted again

It looks through all ledgers when the bookie may have lost any, or when it is asked to; else at those in limbo and those
in which the scrub has found damage. What to do about a ledger is decided in `protocol/repair/integrity.py`.

In a cluster that was restored from a backup and isn't confirmed it only copies, from any bookie, and reports what it
misses (`protocol/restore/restoring.py`).

Invariants: a ledger with entries that could not be copied back stays in limbo, is logged, and is tried again; ledgers
that the bookie has never seen are trusted only after a look at all ledgers, which began after the bookie was started; a
failure in here harms nothing else in the process.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from prometheus_client import Counter, Gauge

from bkpy.batching import batched_async
from bkpy.client.client import Client, open_client, replication_context
from bkpy.client.iteration import raised_where_awaited
from bkpy.config.client import client_settings
from bkpy.config.shared import MetadataSettings
from bkpy.errors import BookKeeperError, MetadataUnavailableError, NoSuchLedgerError, UnsupportedVersionError
from bkpy.metadata.ledgers.all_ledgers import UNREADABLE, all_ledgers
from bkpy.metadata.replication.locks import LedgerLock, LedgerLocks
from bkpy.metadata.replication.underreplication import LossReason, UnderreplicationQueue
from bkpy.metadata.replication.worker_nodes import REBUILDING, WorkerNode
from bkpy.metadata.restore_record import read_restore, write_report
from bkpy.metadata.store.outcome import NotDone
from bkpy.protocol.repair.integrity import Demand, IntegrityAction, copy_of, demand_of, next_action
from bkpy.protocol.restore.restoring import copies_here, is_confirmed, widened
from bkpy.replication.worker.fragment_copy import Copied, CopyCount, Failed, FragmentCopy, Unreadable
from bkpy.replication.worker.pacing import CopyRate
from bkpy.runtime.worker_pool import for_each

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from prometheus_client import CollectorRegistry

    from bkpy.config.recovery import RecoverySettings
    from bkpy.metadata.replication.underreplication import UnderreplicationRecord
    from bkpy.metadata.restore_record import StoredRestore
    from bkpy.metadata.store.store import MetadataStore
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.repair.integrity import MissingRange
    from bkpy.runtime.interfaces import Runtime

log = logging.getLogger("bkpy.recovery")


class RepairableStorage(Protocol):
    """The losses of a bookie, and their end. See `storage/losses.py`."""

    @property
    def all_in_doubt(self) -> bool: ...

    @property
    def any_in_doubt(self) -> bool: ...

    async def damaged(self) -> set[int]: ...

    async def in_limbo(self) -> set[int]: ...

    async def in_doubt(self, ledger_id: int) -> bool: ...

    async def make_known(self, metadata: LedgerMetadata) -> None: ...

    async def missing_ranges(self, metadata: LedgerMetadata) -> list[MissingRange]: ...

    async def flush(self) -> None: ...

    async def end(self, metadata: LedgerMetadata) -> bool: ...

    async def trust_unseen(self, limbo_to: int) -> None: ...


@dataclass(slots=True)
class IntegrityLook:
    """One look through ledgers. Times are in seconds since 1970; `whole`: through all ledgers of the cluster."""

    whole: bool
    began_s: float
    ended_s: float | None = None
    looked_at: int = 0
    repaired: int = 0  # nothing of them is missing or in limbo any more
    named: int | None = None  # ledgers that name this bookie, all of which may have lost entries; None before it knows


class IntegrityMetrics:
    """The Prometheus metrics of the integrity check. All of them count rare events."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._in_doubt = Gauge(
            "bkpy_integrity_in_doubt", "1 while any ledger may be among what this bookie has lost", registry=registry
        )
        self._left = Gauge(
            "bkpy_integrity_left",
            "Ledgers that could not be repaired here yet, as of the last look",
            registry=registry,
        )
        self._to_rebuild = Gauge(
            "bkpy_integrity_to_rebuild",
            "Ledgers of which this bookie may miss entries that it had; at least 1 while nobody has counted them",
            registry=registry,
        )
        self._looks = Counter("bkpy_integrity_looks", "Ledgers that were looked at", registry=registry)
        self._repaired = Counter("bkpy_integrity_mended", "Ledgers that were repaired", registry=registry)
        self._copied = Counter(
            "bkpy_integrity_copied_entries", "Entries that were copied here from other bookies", registry=registry
        )

    def update(self, *, left: int, in_doubt: bool) -> None:
        self._left.set(left)
        self._in_doubt.set(in_doubt)

    def to_rebuild(self, ledgers: int | None, *, in_doubt: bool) -> None:
        self._to_rebuild.set(1 if ledgers is None else ledgers)
        self._in_doubt.set(in_doubt)

    def looked_at(self) -> None:
        self._looks.inc()

    def repaired(self) -> None:
        self._repaired.inc()

    def copied(self, entries: int) -> None:
        self._copied.inc(entries)


class IntegrityCheck:
    """Of the bookie `bookie_id`, on `store`, whose owner ends the session after `stop`, and with it locks."""

    def __init__(
        self,
        settings: RecoverySettings,
        store: MetadataStore,
        root: str,
        runtime: Runtime,
        bookie_id: str,
        losses: RepairableStorage,
        registry: CollectorRegistry,
    ) -> None:
        self._settings = settings
        self._store = store
        self._root = root
        self._runtime = runtime
        self._bookie_id = bookie_id
        self._losses = losses
        self._metrics = IntegrityMetrics(registry)
        self._locks = LedgerLocks(store, root, bookie_id, runtime, settings)
        self._queue = UnderreplicationQueue(store, root, runtime, settings)
        self._rate = CopyRate(settings, runtime)
        self._count = CopyCount()
        self._client: Client | None = None
        self._look: IntegrityLook | None = None
        self._left: dict[int, str] = {}  # what could not be got back yet, and why
        self._waiting: dict[int, float] = {}  # open ledgers, and since when their writers have had time to close them
        self._to_recover: set[int] = set()  # open ledgers that may have lost entries before this bookie takes new ones
        self._marked: set[int] = set()  # with records that name this bookie, which go if it misses nothing
        self._asked = False
        self._was_restored: bool | None = None  # None until that was read
        self._reported_of = -1  # the version of the restore's record
        self._restore_left: list[int] = []  # ledgers reported as incomplete
        self._restore_retried: set[int] = set()  # of these, the ones that a bookie may return another time
        self._restore_asked: set[str] = set()  # the bookies that could be asked all the time
        self._search_at = float("-inf")  # when to look for ledgers in limbo again
        self._woken = asyncio.Event()
        self._tasks: list[asyncio.Task[Any]] = []
        self._node = WorkerNode(store, root, settings, rebuilding=True)
        self._reported = False  # that there is something to do

    def start(self) -> None:
        """Begin. Returns at once, whatever the metadata store does."""
        self._tasks = [
            self._runtime.spawn(self._run(), name=f"integrity check of {self._bookie_id}"),
            self._runtime.spawn(self._report_forever(), name=f"report of the integrity check of {self._bookie_id}"),
        ]

    async def stop(self) -> None:
        """End all work. What was not got back is still in limbo, and the next start goes on."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._client is not None:
            await self._client.close()

    def begin(self) -> bool:
        """Look through all ledgers now; False if such a look is under way or about to begin."""
        if self._asked or (self._look is not None and self._look.whole and self._look.ended_s is None):
            return False
        self._asked = True
        self._woken.set()
        return True

    def status(self) -> dict[str, Any]:
        """How far it is, for JSON."""
        return {
            "in_doubt": self._losses.all_in_doubt,
            "asked": self._asked,
            "to_rebuild": self._to_rebuild(),
            "look": None if self._look is None else {**asdict(self._look), "mended": self._look.repaired},
            "copied_entries": self._count.entries,
            "copied_bytes": self._count.bytes,
            "waiting": sorted(self._waiting),
            "left": [{"ledger_id": ledger_id, "why": why} for ledger_id, why in sorted(self._left.items())],
        }

    def _to_rebuild(self) -> int | None:
        """Ledgers of which this bookie may miss entries; None if nobody has counted them yet."""
        if not self._losses.all_in_doubt:
            return len(self._left) + len(self._waiting)
        look = self._look
        return None if look is None or look.named is None else max(1, look.named - look.repaired)

    # --- reports ------------------------------------------------------------------------------------------------------

    async def _report_forever(self) -> None:
        """Report what there is to rebuild, in the metadata and as metrics; later while the store is away."""
        while True:
            to_rebuild = self._to_rebuild()
            self._metrics.to_rebuild(to_rebuild, in_doubt=self._losses.all_in_doubt)
            if to_rebuild != 0 or self._reported:
                self._reported = True
                try:
                    await self._node.tell(self._report(to_rebuild))
                    self._reported = to_rebuild != 0
                except BookKeeperError as error:
                    log.debug("the report of what is rebuilt comes later: %s", error)
            await asyncio.sleep(self._settings.worker_report_interval_s)

    def _report(self, to_rebuild: int | None) -> dict[str, Any]:
        return {
            "name": self._bookie_id,
            REBUILDING: {
                "ledgers": to_rebuild,
                "entries_copied": self._count.entries,
                "bytes_copied": self._count.bytes,
            },
        }

    async def _count_named(self, client: Client, look: IntegrityLook) -> None:
        """Count the ledgers that this look has to rebuild."""
        named = 0
        reads_at_once = self._settings.audit_reads_at_once
        async for some in all_ledgers(replication_context(client).cluster.catalog, reads_at_once=reads_at_once):
            named += sum(one is not None and self._bookie_id in one.needed_bookies for _, one in some)
        look.named = named

    # --- looks --------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        retry_s, look_s = self._settings.integrity_retry_interval_s, self._settings.integrity_look_interval_s
        pause_s = retry_s
        while True:
            try:
                if await self._round() or self._waiting:
                    pause_s = retry_s
                else:  # nothing was got back: less and less often
                    pause_s = min(2 * pause_s, look_s) if self._left else look_s
            except BookKeeperError as error:
                pause_s = retry_s
                log.warning("the integrity check failed, retrying in %.0f s: %s", retry_s, error)
            except Exception:
                pause_s = retry_s
                log.exception("the integrity check failed, retrying in %.0f s", retry_s)
            self._metrics.update(left=len(self._left) + len(self._waiting), in_doubt=self._losses.all_in_doubt)
            try:
                async with asyncio.timeout(pause_s):
                    await self._woken.wait()
            except TimeoutError:
                pass
            self._woken.clear()

    async def _round(self) -> bool:
        """Look at all ledgers, or at the ones in limbo or damaged, and repair them; whether any was repaired."""
        await self._locks.release_abandoned()  # of a look that failed
        found = await self._restore_of_cluster()
        if found is not None and not is_confirmed(found.restore):
            return await self._copy_for(found)
        in_doubt = self._losses.all_in_doubt
        whole = in_doubt or self._asked
        some = self._left.keys() | self._waiting.keys()
        now = self._runtime.clock.monotonic()
        if not whole and now >= self._search_at:  # that reads all rows
            self._search_at = now + self._settings.integrity_look_interval_s
            some |= await self._losses.in_limbo() | await self._losses.damaged()
            if self._losses.any_in_doubt:  # under-replication records may say that its copies are lost
                some |= await self._marked_here()
        if not whole and not some:
            return False
        client = await self._opened()
        self._look = look = IntegrityLook(whole, self._runtime.clock.time())
        try:
            if whole:
                await self._look_at_all(client, look, in_doubt=in_doubt)
                self._asked = False
            else:
                await self._look_at(_each(sorted(some)))
        finally:
            look.ended_s = self._runtime.clock.time()
        if whole or look.repaired:
            log.info(
                "integrity check: looked at %d ledgers in %.1f s, repaired %d, %d are left (%d entries copied)",
                look.looked_at,
                look.ended_s - look.began_s,
                look.repaired,
                len(self._left) + len(self._waiting),
                self._count.entries,
            )
        return look.repaired > 0

    # --- a cluster that was restored from a backup --------------------------------------------------------------------

    async def _restore_of_cluster(self) -> StoredRestore | None:
        """The restore that the cluster comes from; no cluster becomes a restored one later."""
        if self._was_restored is False:
            return None
        found = await read_restore(self._store, self._root)
        self._was_restored = found is not None
        return found

    async def _copy_for(self, found: StoredRestore) -> bool:
        """Copy what the restored metadata want of this bookie, from any bookie, and report; no limbo ends before.

        Looks at all ledgers, then again and again at those of which entries are missing. Always True: the next round is
        soon.
        """
        again = found.version == self._reported_of
        if not copies_here(found.restore) or (again and not self._restore_left):
            return True
        client = await self._opened()
        await replication_context(client).directory.refresh()
        self._restore_asked = set(replication_context(client).bookies().readable)
        self._look = look = IntegrityLook(True, self._runtime.clock.time())
        self._left.clear()
        self._restore_retried.clear()
        left: list[int] = []
        catalog = replication_context(client).cluster.catalog
        ledger_ids = _each(self._restore_left) if again else catalog.ids()
        try:
            async for some in batched_async(ledger_ids, self._settings.integrity_flush_ledgers):
                await self._each(some, self._copy_from_any)
                await self._losses.flush()
                complete: set[int] = set()
                await self._each(some, functools.partial(self._check_copied, complete))
                left += set(some) - complete
        finally:
            look.ended_s = self._runtime.clock.time()
        retried = len(self._restore_retried.intersection(left))
        await write_report(
            self._store,
            self._root,
            self._bookie_id,
            found.version,
            sorted(left),
            retried=retried,
            asked=self._restore_asked,
        )
        self._reported_of, self._restore_left = found.version, sorted(left)
        return True

    async def _copy_from_any(self, ledger_id: int) -> None:
        try:
            await self._copy_missing_from_any(ledger_id)
        except BookKeeperError as error:
            if error.retriable:
                self._restore_retried.add(ledger_id)
            raise

    async def _copy_missing_from_any(self, ledger_id: int) -> None:
        metadata = await self._read(ledger_id)
        if metadata is None or demand_of(metadata, self._bookie_id) is Demand.NOTHING:
            return
        missing_ranges = await self._losses.missing_ranges(metadata)
        if missing_ranges:
            await self._losses.make_known(metadata)
            context = replication_context(await self._opened())
            readable = context.bookies().readable
            self._restore_asked &= readable
            sources = sorted(readable - {self._bookie_id})
            if sources:
                await self._copy(metadata, missing_ranges, widened(metadata, sources))

    async def _check_copied(self, complete: set[int], ledger_id: int) -> None:
        """Note the ledger if it is closed, or gone, and misses no entry here, by the index on disk.

        If that can't be found out, it is not: the report would deny that entries are missing.
        """
        metadata = await self._read(ledger_id)
        demand = demand_of(metadata, self._bookie_id)
        if metadata is None or demand is Demand.NOTHING:
            complete.add(ledger_id)
        elif demand is not Demand.CLOSED or await self._losses.missing_ranges(metadata):
            self._left.setdefault(ledger_id, "no bookie has all entries that belong here")
        else:
            complete.add(ledger_id)

    async def _opened(self) -> Client:
        if self._client is None:
            shared = {name: getattr(self._settings, name) for name in MetadataSettings.model_fields}
            self._client = await open_client(self._store, self._root, self._runtime, client_settings(**shared))
        return self._client

    async def _look_at_all(self, client: Client, look: IntegrityLook, *, in_doubt: bool) -> None:
        """Look at every ledger; afterwards trust the ledgers that this bookie has never seen."""
        catalog = replication_context(client).cluster.catalog
        limbo_to = await catalog.newest_id() if in_doubt else -1
        if isinstance(limbo_to, NotDone):
            raise limbo_to.error
        if in_doubt:
            log.warning("this bookie has lost data: copying it back from other bookies, ledger by ledger")
        counting = self._runtime.spawn(
            self._count_named(client, look), name="ledgers to rebuild", on_death=raised_where_awaited
        )
        try:
            await self._look_at(catalog.ids())
        finally:
            counting.cancel()  # it has ended, or nobody needs it any more
        while in_doubt and self._waiting:
            await asyncio.sleep(self._settings.integrity_retry_interval_s)
            await self._look_at(_each(sorted(self._waiting)))
        if in_doubt:
            await self._losses.trust_unseen(limbo_to)
            log.info("all ledgers up to %d were looked at: new ones may be stored here", limbo_to)
        await self._look_at(_each(sorted(await self._marked_here())))
        await self._queue.tidy()

    async def _marked_here(self) -> set[int]:
        """Ledgers whose records say that this bookie has lost its entries: it may have copied them back since."""
        self._marked = set()
        async for ledger_id in self._queue.list():
            try:
                record = await self._queue.read(ledger_id)
            except UNREADABLE:
                continue
            if record is not None and self._is_reported_lost(record):
                self._marked.add(ledger_id)
                if len(self._marked) == self._settings.stuck_ledgers_max:
                    break  # the others are found when these have none any more
        return self._marked.copy()

    def _is_reported_lost(self, record: UnderreplicationRecord) -> bool:
        loss = record.lost.get(self._bookie_id)
        # RETURNED is what the auditor makes of LOST as soon as this bookie's limbo has ended.
        return loss is not None and loss.reason in (LossReason.LOST, LossReason.REBUILDING, LossReason.RETURNED)

    async def _look_at(self, ledger_ids: AsyncIterator[int]) -> None:
        async for some in batched_async(ledger_ids, self._settings.integrity_flush_ledgers):
            await self._repair(some)

    async def _repair(self, ledger_ids: list[int]) -> None:
        """Copy their missing entries, flush, and end their limbo."""
        brought: list[int] = []

        async def bring(ledger_id: int) -> None:
            if await self._bring(ledger_id):
                brought.append(ledger_id)

        await self._each(ledger_ids, bring)
        if brought:
            await self._losses.flush()
            await self._each(brought, self._end)

    async def _each(self, ledger_ids: Iterable[int], act: Callable[[int], Awaitable[None]]) -> None:
        """`act` for each of them, some at once; retry while the store is away, and leave others that fail for later."""

        async def attempt(ledger_id: int) -> None:
            while True:
                try:
                    return await act(ledger_id)
                except MetadataUnavailableError as error:
                    if not error.retriable:
                        raise
                    await asyncio.sleep(self._settings.metadata_retry_pause_s)
                except (BookKeeperError, UnsupportedVersionError) as error:
                    return self._leave(ledger_id, str(error))
                except Exception as error:  # a defect costs no more than the one ledger
                    log.exception("the integrity check of ledger %d failed", ledger_id)
                    return self._leave(ledger_id, repr(error))

        await for_each(ledger_ids, attempt, at_once=self._settings.integrity_ledgers_at_once)

    # --- one ledger ---------------------------------------------------------------------------------------------------

    async def _bring(self, ledger_id: int) -> bool:
        """Copy back the entries that this bookie should hold; whether they are all here, and the limbo can end."""
        assert self._look is not None
        self._look.looked_at += 1
        self._metrics.looked_at()
        recovered = False
        while True:
            metadata = await self._read(ledger_id)
            demand, in_limbo = demand_of(metadata, self._bookie_id), await self._losses.in_doubt(ledger_id)
            missing_ranges = [] if metadata is None else await self._losses.missing_ranges(metadata)
            to_end = self._ends_its_writer(ledger_id, demand, in_limbo=in_limbo)
            action = next_action(
                demand, to_end=to_end, missing=bool(missing_ranges), grace_over=self._grace_over(ledger_id)
            )
            if action in (IntegrityAction.WAIT, IntegrityAction.RECOVER) and in_limbo:
                assert metadata is not None
                await self._losses.make_known(metadata)  # by its row it is found after a restart
            room = ledger_id in self._waiting or len(self._waiting) < self._settings.stuck_ledgers_max
            if action is IntegrityAction.WAIT and room:
                self._waiting.setdefault(ledger_id, self._runtime.clock.monotonic())
                return False
            if action is IntegrityAction.RECOVER and not recovered:
                recovered = True  # afterwards it is closed, or gone
                assert self._client is not None
                await replication_context(self._client).recover(ledger_id)
                continue
            self._waiting.pop(ledger_id, None)
            if action is IntegrityAction.LEAVE:
                self._left.pop(ledger_id, None)
                return False
            if action in (IntegrityAction.WAIT, IntegrityAction.RECOVER):
                self._leave(ledger_id, demand.value)
                return False
            assert metadata is not None
            if action is IntegrityAction.END and not in_limbo and ledger_id not in self._marked:
                self._left.pop(ledger_id, None)
                return False
            await self._losses.make_known(metadata)
            return await self._copy(metadata, missing_ranges)

    def _ends_its_writer(self, ledger_id: int, demand: Demand, *, in_limbo: bool) -> bool:
        """Whether the ledger's limbo is to end though that ends its writer.

        Only a look at all ledgers while all of them are in doubt decides that, and it holds until the ledger is closed.
        A failure says nothing about it.
        """
        if not in_limbo or demand not in (Demand.OPEN, Demand.IN_RECOVERY):
            self._to_recover.discard(ledger_id)
            return False
        if self._losses.all_in_doubt:
            if len(self._to_recover) < self._settings.stuck_ledgers_max:
                self._to_recover.add(ledger_id)
            return True
        return ledger_id in self._to_recover

    def _grace_over(self, ledger_id: int) -> bool:
        since = self._waiting.get(ledger_id)
        now = self._runtime.clock.monotonic()
        return since is not None and now - since >= self._settings.open_ledger_grace_s

    async def _read(self, ledger_id: int) -> LedgerMetadata | None:
        assert self._client is not None
        try:
            return (await replication_context(self._client).cluster.catalog.read(ledger_id, fresh=True))[0]
        except NoSuchLedgerError:
            return None

    async def _copy(
        self, metadata: LedgerMetadata, missing_ranges: list[MissingRange], read_as: LedgerMetadata | None = None
    ) -> bool:
        """Copy from the other bookies to this one, as a worker does; whether all of it is here.

        `read_as`: other ensembles to read from than those of the metadata.
        """
        assert self._client is not None
        context = replication_context(self._client)
        others = context.bookies().readable - {self._bookie_id}
        for missing in missing_ranges:
            copied = await FragmentCopy(
                read_as or metadata,
                copy_of(metadata, missing, others),
                self._bookie_id,
                context=context,
                settings=self._settings,
                rate=self._rate,
                count=self._count,
                given=read_as is not None,
            ).run()
            if isinstance(copied, Copied):
                self._metrics.copied(copied.entries)
            else:
                at = f"entry {copied.entry_id} can't be read anywhere: " if isinstance(copied, Unreadable) else ""
                if read_as is not None and isinstance(copied, Failed) and copied.may_pass:
                    self._restore_retried.add(metadata.ledger_id)
                self._leave(metadata.ledger_id, f"{at}{copied.why}")
                return False
        return True

    async def _end(self, ledger_id: int) -> None:
        """End the ledger's limbo under its lock: copies that a worker made here before the loss can't be swapped in."""
        lock = await self._locks.take(ledger_id)
        if not isinstance(lock, LedgerLock):
            why = str(lock.error) if isinstance(lock, NotDone) else "somebody else has the ledger's lock"
            self._leave(ledger_id, why)
            return
        try:
            try:
                await self._end_locked(ledger_id)
            except Exception:
                await self._locks.release(lock)
                raise
            await self._locks.release(lock)
        except asyncio.CancelledError:
            self._locks.abandon(lock)
            raise

    async def _end_locked(self, ledger_id: int) -> None:
        assert self._look is not None
        self._marked.discard(ledger_id)
        record = await self._queue.read(ledger_id)
        metadata = await self._read(ledger_id)
        demand = demand_of(metadata, self._bookie_id)
        if metadata is None or demand is Demand.NOTHING:
            self._left.pop(ledger_id, None)  # it is not wanted here any more
            return
        if await self._losses.missing_ranges(metadata):
            self._leave(ledger_id, "its metadata have changed meanwhile, or what was copied was lost again")
            return
        if demand is Demand.CLOSED and not await self._losses.end(metadata):
            self._leave(ledger_id, "rows of the index are damaged: `bkpy bookie rebuild-index`")
            return
        self._left.pop(ledger_id, None)
        self._look.repaired += 1
        self._metrics.repaired()
        if demand is Demand.CLOSED and record is not None and self._is_reported_lost(record):
            # Whatever comes of it: at worst a worker copies what is here.
            await self._queue.end_absence(record, [self._bookie_id])

    def _leave(self, ledger_id: int, why: str) -> None:
        self._waiting.pop(ledger_id, None)
        if self._left.get(ledger_id) != why:
            log.warning("integrity check: ledger %d can't be repaired here yet: %s", ledger_id, why)
        if ledger_id in self._left or len(self._left) < self._settings.stuck_ledgers_max:
            self._left[ledger_id] = why  # the others are found by their rows, or by the next look at all ledgers


async def _each(ledger_ids: Iterable[int]) -> AsyncIterator[int]:
    for ledger_id in ledger_ids:
        yield ledger_id
