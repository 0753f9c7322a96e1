"""Garbage collection of one bookie: it deletes its entries of deleted ledgers, and over-replicated copies.

A run first probes the metadata of the highest ledger here, or of one with entries if the highest has none and its id is
not given out yet: that shows best whether the metadata store is older than the bookie. Then the run goes through the
ledgers in pages of `gc_page_ledgers`. For each page it takes the local list, and then lists the metadata of that range
of ids. It probes each ledger that the listing misses, and deletes it where `protocol/repair/garbage_collection.py` says
so. It deletes a copy that no ensemble names under the ledger's re-replication lock.

Invariants: a listing that fails, in whatever partition, collects nothing of its page, and ends the run; so does a probe
without a certain answer. However a run ends, every ledger that it has hidden is deleted or visible again. There is one
run at a time, with `gc_ledgers_at_once` ledgers at once and `gc_looks_per_second` probes a second. All probes that a
run goes by are of one session: what the first one has shown of the store holds for the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import zlib
from collections import Counter
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import prometheus_client

from bkpy.errors import BookKeeperError, CorruptDataError, NoSuchLedgerError, UnauthorizedError, UnsupportedVersionError
from bkpy.metadata.ledgers.metadata_probe import ProbeResult
from bkpy.metadata.store.outcome import Exists, NotDone
from bkpy.protocol.repair.garbage_collection import (
    Action,
    ProbeState,
    Step,
    decide,
    may_begin,
    may_collect_over_replicated,
    probe_state_of,
    unlisted,
)
from bkpy.protocol.restore.restoring import is_confirmed, is_kept
from bkpy.runtime.pacer import Interval, Pacer
from bkpy.runtime.worker_pool import for_each
from bkpy.storage.space.deletion import hide

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from prometheus_client import CollectorRegistry

    from bkpy.config.bookie import BookieSettings
    from bkpy.metadata.ledgers.catalog import LedgerCatalog
    from bkpy.metadata.ledgers.metadata_probe import MetadataProbe
    from bkpy.metadata.replication.locks import LedgerLock, LedgerLocks
    from bkpy.protocol.restore.restoring import Restore
    from bkpy.runtime.interfaces import Runtime
    from bkpy.storage.engine import LedgerStorage
    from bkpy.storage.space.deletion import HiddenLedger

log = logging.getLogger("bkpy.bookie")

# Reasons to keep a ledger: values of a metric's label, and of the JSON of a run.
LOCKED = "somebody else has the ledger's lock"
LOCK_LOST = "the lock was lost"
CHANGED = "the metadata have changed meanwhile"
STORED_TO = "something was stored meanwhile"
DAMAGED = "what the index says of it is damaged"
LATER = "it may have been created after the backup that was restored"

UNCONFIRMED = "the cluster was restored from a backup, which isn't confirmed yet (`bkpy cluster restore --confirm`)"

_NAMED_MAX = 100

_KINDS = {ProbeState.FOREIGN: "foreign", ProbeState.OLDER: "older"}  # of failures, by what a look saw
_OLDER = (
    "; this bookie collects nothing until it is restarted: restore the newer state, or see *Space* in "
    "docs/how-to/disks.md for how to go on without it"
)


@dataclass
class CollectionRun:
    """One run and its results. `dry_run` counts what a run would collect, and deletes nothing.

    `kept`: how many of the probed ledgers had to stay, by reason. `failure` is why the run ended early, and
    `failed` the kind of that reason. Times in seconds, `began` since 1970. `session`: that of its first sure probe.
    """

    number: int
    dry_run: bool
    looks_for_over_replicated: bool  # which takes a read of each ledger's metadata
    began: float
    examined: int = 0
    gone: int = 0
    over_replicated: int = 0
    kept: Counter[str] = field(default_factory=Counter)
    collected: list[int] = field(default_factory=list)  # the first of them
    seconds: float | None = None  # None while it is running
    failed: str = ""
    failure: str = ""
    session: int = 0

    def count(self, ledger_id: int, *, over_replicated: bool) -> None:
        """Count a collected ledger."""
        if over_replicated:
            self.over_replicated += 1
        else:
            self.gone += 1
        if len(self.collected) < _NAMED_MAX:
            self.collected.append(ledger_id)

    def fail(self, kind: str, why: str) -> None:
        """End the run early; `describe` has the first reason."""
        if not self.failed:
            self.failed, self.failure = kind, why

    def describe(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "number": self.number,
            "dry_run": self.dry_run,
            "spares": self.looks_for_over_replicated,
            "began_s": self.began,
            "seconds": self.seconds,
            "outcome": "running" if self.seconds is None else "failed" if self.failed else "done",
            "failure": self.failure,
            "examined": self.examined,
            "gone": self.gone,
            "spare": self.over_replicated,
            "kept": dict(self.kept),
            "collected": self.collected,
        }


class CollectionMetrics:
    """In a bookie's registry. They change once a ledger at most, so Prometheus' own are quick enough."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._ledgers = prometheus_client.Counter(
            "bkpy_bookie_gc_ledgers",
            "Ledgers deleted here: deleted ones (gone), and over-replicated copies (spare)",
            ("kind",),
            registry=registry,
        )
        self._kept = prometheus_client.Counter(
            "bkpy_bookie_gc_kept",
            "Ledgers that a run wanted to collect and had to keep",
            ("reason",),
            registry=registry,
        )
        self._runs = prometheus_client.Counter(
            "bkpy_bookie_gc_runs", "Runs of garbage collection, by outcome", ("outcome",), registry=registry
        )
        self._last_end = prometheus_client.Gauge(
            "bkpy_bookie_gc_last_run_end_seconds",
            "When the last run ended, in seconds since 1970",
            registry=registry,
        )
        self._last_seconds = prometheus_client.Gauge(
            "bkpy_bookie_gc_last_run_seconds", "How long the last run took", registry=registry
        )
        self._last_done = prometheus_client.Gauge(
            "bkpy_bookie_gc_last_run_done", "1 if the last run came to its end, 0 if it failed", registry=registry
        )

    def collected(self, *, over_replicated: bool) -> None:
        self._ledgers.labels("spare" if over_replicated else "gone").inc()

    def kept(self, reason: str) -> None:
        self._kept.labels(reason).inc()

    def ended(self, outcome: str, at: float, seconds: float) -> None:
        """A run has ended at `at`, in seconds since 1970; the outcome is `done` or the kind of failure."""
        self._runs.labels(outcome).inc()
        self._last_end.set(at)
        self._last_seconds.set(seconds)
        self._last_done.set(outcome == "done")


class Collector:
    """Collects in `storage`, until it is `stopped`. `run` is the latest run, which may be under way; None before the
    first.

    `over_replicated`: whether it may look for over-replicated copies at all. Without `ids_ascend` callers choose ids,
    and may choose one again.
    """

    def __init__(
        self,
        storage: LedgerStorage,
        catalog: LedgerCatalog,
        probe: MetadataProbe,
        locks: LedgerLocks,
        settings: BookieSettings,
        runtime: Runtime,
        registry: CollectorRegistry,
        *,
        over_replicated: bool = True,
        ids_ascend: bool = True,
    ) -> None:
        self.run: CollectionRun | None = None
        self.stopped = False
        self._storage = storage
        self._catalog = catalog
        self._probe = probe
        self._locks = locks
        self._settings = settings
        self._runtime = runtime
        self._metrics = CollectionMetrics(registry)
        self._may_collect_over_replicated = over_replicated
        self._ids_ascend = ids_ascend
        self._runs = 0
        self._over_replicated_at = float("-inf")  # when a run looked for such copies last
        self._looks = Pacer(runtime.clock, settings.gc_looks_per_second)
        self._restore: Restore | None = None  # that the cluster comes from, as of the present run
        self._older = ""  # why the metadata store is older than the bookie, once a run has found that
        self._collecting: asyncio.Task[Any] | None = None
        self._waiting: asyncio.Task[Any] | None = None
        self._interval = Interval(runtime.clock, lambda: settings.gc_interval_s)

    def start(self) -> None:
        """Collect every `gc_interval_s` from now on, while that isn't 0."""
        self._waiting = self._runtime.spawn(self._collect_forever(), name="garbage collection, regularly")

    def settings_changed(self) -> None:
        """Settings were reloaded: the next run is due by the interval that there is now."""
        self._interval.changed()

    async def stop(self) -> None:
        """End the run that is under way; hidden ledgers become visible again. Locks end with the session."""
        self.stopped = True  # pages are there until the end, and ask for a run
        tasks = [task for task in (self._waiting, self._collecting) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _look_slowly(self) -> None:
        self._looks.per_s = self._settings.gc_looks_per_second  # which may have changed
        await self._looks.take_turn(1)

    def begin(self, *, dry_run: bool = False, over_replicated: bool = True) -> CollectionRun | None:
        """Start a run now; None if one is under way, or the collector was stopped.

        `over_replicated`: look for over-replicated copies, too.
        """
        if self.stopped or (self.run is not None and self.run.seconds is None):
            return None
        self._runs += 1
        over_replicated = over_replicated and self._may_collect_over_replicated
        over_replicated = over_replicated and bool(self._settings.gc_over_replicated_interval_s)
        over_replicated = over_replicated and may_collect_over_replicated(untrusted=self._storage.untrusted)
        self.run = CollectionRun(self._runs, dry_run, over_replicated, self._runtime.clock.time())
        self._collecting = self._runtime.spawn(self._collect(self.run), name=f"garbage collection {self._runs}")
        return self.run

    async def _collect_forever(self) -> None:
        # Bookies that are started together don't all list the metadata together.
        await self._interval.wait(phase(self._settings.bookie_id))
        while True:
            now = self._runtime.clock.monotonic()
            self.begin(over_replicated=now - self._over_replicated_at >= self._settings.gc_over_replicated_interval_s)
            assert self._collecting is not None
            await asyncio.wait([self._collecting])
            await self._interval.wait()

    # --- a run --------------------------------------------------------------------------------------------------------

    async def _collect(self, run: CollectionRun) -> None:
        began = self._runtime.clock.monotonic()
        if run.looks_for_over_replicated and not run.dry_run:
            self._over_replicated_at = began
        try:
            with _failing(run):
                await self._collect_all(run)
        finally:
            run.seconds = self._runtime.clock.monotonic() - began
            self._metrics.ended(run.failed or "done", self._runtime.clock.time(), run.seconds)
            _report(run)

    async def _collect_all(self, run: CollectionRun) -> None:
        self._restore = await self._probe.restore()
        if not may_begin(older=bool(self._older)):
            run.fail("older", self._older)
        elif not is_confirmed(self._restore):
            run.fail("unconfirmed", UNCONFIRMED)
        elif not await self._look_at_highest(run):
            return
        after = -1
        while not run.failed:
            held = await self._storage.held_ledgers(after, self._settings.gc_page_ledgers)
            if not held:
                return
            await self._collect_page(run, held)
            after = held[-1]

    async def _look_at_highest(self, run: CollectionRun) -> bool:
        """Whether there is any ledger here. Ends the run if the store is older than that."""
        highest = -1
        while held := await self._storage.held_ledgers(highest, self._settings.gc_page_ledgers):
            highest = held[-1]
        if highest < 0:
            return False
        seen = await self._look(run, highest)
        if seen.state is ProbeState.NOT_MADE and (lower := await self._first_with_entries(seen.next_id)) is not None:
            seen = await self._look(run, lower)
        if decide(Step.BEGUN, seen.state, own_lock=False, unchanged=False) is Action.STOP:
            self._end(run, seen)
        return True

    async def _first_with_entries(self, at_least: int) -> int | None:
        """The lowest ledger from that id on with entries here; None if there is none."""
        after = at_least - 1
        while held := await self._storage.held_ledgers(after, self._settings.gc_page_ledgers):
            for ledger_id in held:
                if await self._storage.has_entries(ledger_id):
                    return ledger_id
            after = held[-1]
        return None

    async def _collect_page(self, run: CollectionRun, held: list[int]) -> None:
        try:
            listed = await self._catalog.listed(held)
        except BookKeeperError as error:
            run.fail("listing", f"the metadata could not be listed: {error}")
            return
        await self._each(run, unlisted(held, listed), self._collect_unlisted)
        if run.looks_for_over_replicated:
            await self._each(run, sorted(listed), self._collect_listed)
        else:
            run.examined += len(listed)

    async def _each(
        self, run: CollectionRun, ledger_ids: Iterable[int], collect: Callable[[CollectionRun, int], Awaitable[None]]
    ) -> None:
        """Several at once, until the run has failed: any error fails it, and none is raised here."""

        async def examine(ledger_id: int) -> None:
            with _failing(run):
                try:
                    await collect(run, ledger_id)
                except CorruptDataError as error:  # of this ledger only
                    self._kept(run, DAMAGED)
                    log.warning("garbage collection keeps ledger %d: %s", ledger_id, error)
            run.examined += 1

        unless_failed = takewhile(lambda _: not run.failed, ledger_ids)
        await for_each(unless_failed, examine, at_once=self._settings.gc_ledgers_at_once)

    async def _look(self, run: CollectionRun, ledger_id: int, lock: LedgerLock | None = None) -> ProbeResult:
        await self._look_slowly()
        try:
            empty = not await self._storage.has_entries(ledger_id)
        except CorruptDataError:
            empty = False
        seen = await self._probe.look(ledger_id, lock, empty=empty)
        run.session = run.session or seen.session
        if seen.session not in (0, run.session):  # the store may have been put back to an older state in between
            return ProbeResult(ProbeState.UNSURE, why="the session with the metadata store has ended during the run")
        return seen

    # --- one ledger ---------------------------------------------------------------------------------------------------

    async def _collect_unlisted(self, run: CollectionRun, ledger_id: int) -> None:
        """A ledger that the listing has not: delete it if a probe confirms that it is gone."""
        if is_kept(self._restore, ledger_id):
            self._kept(run, LATER)
            return
        seen = await self._look(run, ledger_id)
        action = decide(Step.UNLISTED, seen.state, own_lock=False, unchanged=False)
        if action is not Action.DELETE:
            self._keep(run, ledger_id, action, seen, str(seen.state))
        elif run.dry_run:
            run.count(ledger_id, over_replicated=False)
        elif (hidden := await hide(self._storage, ledger_id)) is not None and await self._stays_gone(run, hidden):
            await self._delete(run, hidden, over_replicated=False)

    async def _stays_gone(self, run: CollectionRun, hidden: HiddenLedger) -> bool:
        """Whether no ledger of that id was made since the probe, whose first entries are hidden as well; else show it.

        Entries that come from now on keep it anyway.
        """
        if self._ids_ascend:
            return True
        try:
            again = await self._look(run, hidden.ledger_id)
        except BaseException:
            hidden.unhide()
            raise
        action = decide(Step.UNLISTED, again.state, own_lock=False, unchanged=False)
        if action is Action.DELETE:
            return True
        hidden.unhide()
        self._keep(run, hidden.ledger_id, action, again, CHANGED)
        return False

    async def _collect_listed(self, run: CollectionRun, ledger_id: int) -> None:
        """A ledger that exists: delete its copy if it is over-replicated."""
        await self._look_slowly()
        try:
            metadata, _ = await self._catalog.read(ledger_id)
        except NoSuchLedgerError:
            return  # deleted since it was listed
        except (CorruptDataError, UnsupportedVersionError, UnauthorizedError) as error:
            self._unreadable(run, ledger_id, str(error))
            return
        except BookKeeperError as error:
            run.fail("metadata", str(error))
            return
        if probe_state_of(metadata, self._settings.bookie_id) is not ProbeState.OVER_REPLICATED:
            return
        if run.dry_run:
            seen = await self._look(run, ledger_id)
            if decide(Step.LOCKED, seen.state, own_lock=True, unchanged=True) is Action.HIDE:
                run.count(ledger_id, over_replicated=True)
            return
        lock = await self._locks.take(ledger_id)
        if isinstance(lock, Exists):
            self._kept(run, LOCKED)
        elif isinstance(lock, NotDone):
            run.fail("metadata", str(lock.error))
        else:
            try:
                await self._collect_locked(run, lock)
            except Exception:  # a run is cancelled only when the bookie stops, and the lock goes with its session
                await self._locks.release(lock)
                raise
            await self._locks.release(lock)

    async def _collect_locked(self, run: CollectionRun, lock: LedgerLock) -> None:
        seen = await self._look(run, lock.ledger_id, lock)
        action = decide(Step.LOCKED, seen.state, own_lock=seen.own_lock, unchanged=True)
        if action is not Action.HIDE:
            self._keep(run, lock.ledger_id, action, seen, str(seen.state))
            return
        hidden = await hide(self._storage, lock.ledger_id)
        if hidden is None:
            return
        try:
            again = await self._look(run, lock.ledger_id, lock)
            unchanged = again.version == seen.version
            action = decide(Step.HIDDEN, again.state, own_lock=again.own_lock, unchanged=unchanged)
        except BaseException:
            hidden.unhide()
            raise
        if action is not Action.DELETE:
            hidden.unhide()
            self._keep(run, lock.ledger_id, action, again, CHANGED if again.own_lock else LOCK_LOST)
        else:
            await self._delete(run, hidden, over_replicated=True)

    async def _delete(self, run: CollectionRun, hidden: HiddenLedger, *, over_replicated: bool) -> None:
        try:
            deleted = await hidden.delete()
        except BaseException:
            hidden.unhide()
            raise
        if not deleted:
            self._kept(run, STORED_TO)
            return
        run.count(hidden.ledger_id, over_replicated=over_replicated)
        self._metrics.collected(over_replicated=over_replicated)
        log.debug(
            "collected ledger %d: %s",
            hidden.ledger_id,
            ProbeState.OVER_REPLICATED if over_replicated else ProbeState.NO_LEDGER,
        )

    # --- accounts -----------------------------------------------------------------------------------------------------

    def _keep(self, run: CollectionRun, ledger_id: int, action: Action, seen: ProbeResult, reason: str) -> None:
        """A probe has decided that the ledger stays."""
        if action is Action.STOP:
            self._end(run, seen)
        elif seen.state is ProbeState.UNREADABLE:
            self._unreadable(run, ledger_id, seen.why)
        else:
            self._kept(run, reason)

    def _end(self, run: CollectionRun, seen: ProbeResult) -> None:
        """A probe has decided that this bookie may collect nothing now."""
        why = f"{seen.state}: {seen.why}"
        if seen.state is ProbeState.OLDER:
            why = self._older = why + _OLDER
        run.fail(_KINDS.get(seen.state, "metadata"), why)

    def _kept(self, run: CollectionRun, reason: str) -> None:
        run.kept[reason] += 1
        self._metrics.kept(reason)

    def _unreadable(self, run: CollectionRun, ledger_id: int, why: str) -> None:
        self._kept(run, str(ProbeState.UNREADABLE))
        log.warning("garbage collection keeps ledger %d: %s", ledger_id, why)


@contextlib.contextmanager
def _failing(run: CollectionRun) -> Iterator[None]:
    """An error ends the run. A defect costs no more than that: the bookie goes on."""
    try:
        yield
    except asyncio.CancelledError:
        run.fail("stopped", "the bookie was stopped")
        raise
    except BookKeeperError as error:
        run.fail("storage", str(error))
    except Exception as error:
        run.fail("defect", repr(error))
        log.exception("garbage collection failed")


def phase(bookie_id: str) -> float:
    """When in an interval the bookie collects, from 0 to 1: always the same, and different from bookie to bookie."""
    return zlib.crc32(bookie_id.encode()) / (1 << 32)


def _report(run: CollectionRun) -> None:
    what = "would collect" if run.dry_run else "collected"
    if run.failed == "older":
        log.error("garbage collection refuses to go on: %s", run.failure)
    elif run.failed and run.failed != "stopped":
        log.warning(
            "garbage collection ended early: %s (%s %d ledgers and %d over-replicated copies); the next run retries",
            run.failure,
            what,
            run.gone,
            run.over_replicated,
        )
    elif run.gone or run.over_replicated:
        log.info(
            "garbage collection %s %d ledgers and %d over-replicated copies of %d ledgers, in %.1f s",
            what,
            run.gone,
            run.over_replicated,
            run.examined,
            run.seconds,
        )
