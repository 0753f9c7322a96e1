"""Garbage collection of one bookie: what it holds of ledgers that are gone, and copies that nobody needs, are deleted.

A run begins with a look at the highest ledger that is here, or at one with entries if that one has none and is still to
be made: that tells most of how old the metadata store is. Then it goes through the ledgers in pages of
`gc_page_ledgers`. Of each page the local list is taken first; then the metadata are listed for its range of ids; then
what the listing misses is looked at one by one, and deleted where `protocol/repair/collection.py` says so. A copy that
no ensemble names is deleted under its ledger's re-replication lock.

Invariants: a listing that fails, in whatever partition, collects nothing of its page, and ends the run; so does a look
that was not sure. What was hidden is deleted or seen again, however a run ends. There is one run at a time, with
`gc_ledgers_at_once` ledgers in hand and `gc_looks_per_second` looks a second.
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

from bkpy.errors import BookKeeperError, CorruptDataError, NoSuchLedgerError, UnauthorizedError
from bkpy.metadata.store.outcome import Exists, NotDone
from bkpy.protocol.ledger.ledger_metadata import UnsupportedVersionError
from bkpy.protocol.repair.collection import (
    Action,
    ProbeState,
    Step,
    decide,
    may_begin,
    may_collect_over_replicated,
    probe_state_of,
    unlisted,
)
from bkpy.runtime.pacer import Pacer
from bkpy.runtime.worker_pool import for_each
from bkpy.storage.space.deletion import hide

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from bkpy.bookie.collection_metrics import CollectionMetrics
    from bkpy.config.bookie import BookieSettings
    from bkpy.metadata.ledgers.catalog import LedgerCatalog
    from bkpy.metadata.ledgers.metadata_probe import MetadataProbe, ProbeResult
    from bkpy.metadata.replication.locks import LedgerLock, LedgerLocks
    from bkpy.runtime.interfaces import Runtime
    from bkpy.storage.engine import LedgerStorage
    from bkpy.storage.space.deletion import HiddenLedger

log = logging.getLogger("bkpy.bookie")

LOCKED = "somebody else has the ledger's lock"
LOCK_LOST = "the lock was lost"
CHANGED = "the metadata have changed meanwhile"
STORED_TO = "something was stored meanwhile"
DAMAGED = "what the index says of it is damaged"

_NAMED_MAX = 100

_KINDS = {ProbeState.FOREIGN: "foreign", ProbeState.OLDER: "older"}  # of failures, by what a look saw
_OLDER = (
    "; nothing is collected until this bookie is started again: put the newer state back, or see *Space* in "
    "docs/how-to/disks.md for how to go on without it"
)


@dataclass
class CollectionRun:
    """One run: what it is for, and what has come of it. `dry_run` counts what would be collected, and deletes nothing.

    `kept`: how many ledgers that were looked at closely had to stay, for which reasons. `failure` is why the run ended
    early; then `failed` is the kind of reason. Times in seconds, `began` since 1970.
    """

    number: int
    dry_run: bool
    spares: bool  # whether copies that nobody needs are looked for, which takes a look at every ledger
    began: float
    examined: int = 0
    gone: int = 0
    spare: int = 0
    kept: Counter[str] = field(default_factory=Counter)
    collected: list[int] = field(default_factory=list)  # the first of them
    seconds: float | None = None  # None: it goes on
    failed: str = ""
    failure: str = ""

    def count(self, ledger_id: int, *, spare: bool) -> None:
        """One more was collected."""
        if spare:
            self.spare += 1
        else:
            self.gone += 1
        if len(self.collected) < _NAMED_MAX:
            self.collected.append(ledger_id)

    def fail(self, kind: str, why: str) -> None:
        """End the run early; the first reason is the one that is told."""
        if not self.failed:
            self.failed, self.failure = kind, why

    def describe(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "number": self.number,
            "dry_run": self.dry_run,
            "spares": self.spares,
            "began_s": self.began,
            "seconds": self.seconds,
            "outcome": "running" if self.seconds is None else "failed" if self.failed else "done",
            "failure": self.failure,
            "examined": self.examined,
            "gone": self.gone,
            "spare": self.spare,
            "kept": dict(self.kept),
            "collected": self.collected,
        }


class Collector:
    """The collector of the bookie whose storage this is. `run` is the latest, which may be going on; None before it."""

    def __init__(
        self,
        storage: LedgerStorage,
        catalog: LedgerCatalog,
        probe: MetadataProbe,
        locks: LedgerLocks,
        settings: BookieSettings,
        runtime: Runtime,
        metrics: CollectionMetrics,
    ) -> None:
        self.run: CollectionRun | None = None
        self._storage = storage
        self._catalog = catalog
        self._probe = probe
        self._locks = locks
        self._settings = settings
        self._runtime = runtime
        self._metrics = metrics
        self._runs = 0
        self._spares_at = float("-inf")  # when spare copies were looked for last
        self._looks = Pacer(runtime.clock, settings.gc_looks_per_second)
        self._older = ""  # how the metadata store was found to be older than what is here
        self._collecting: asyncio.Task[Any] | None = None
        self._waiting: asyncio.Task[Any] | None = None

    def start(self) -> None:
        """Collect every `gc_interval_s` from now on, if that isn't 0."""
        if self._settings.gc_interval_s:
            self._waiting = self._runtime.spawn(self._collect_forever(), name="garbage collection, regularly")

    async def stop(self) -> None:
        """End what goes on; what is hidden is seen again. Locks go with the session, which is to be closed."""
        tasks = [task for task in (self._waiting, self._collecting) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def begin(self, *, dry_run: bool = False, spares: bool = True) -> CollectionRun | None:
        """Begin a run now; None while one goes on. `spares`: look for copies that nobody needs, too."""
        if self.run is not None and self.run.seconds is None:
            return None
        self._runs += 1
        spares = spares and bool(self._settings.gc_over_replicated_interval_s)
        spares = spares and may_collect_over_replicated(untrusted=self._storage.untrusted)
        self.run = CollectionRun(self._runs, dry_run, spares, self._runtime.clock.time())
        self._collecting = self._runtime.spawn(self._collect(self.run), name=f"garbage collection {self._runs}")
        return self.run

    async def _collect_forever(self) -> None:
        interval_s = self._settings.gc_interval_s
        # Bookies that are started together don't all list the metadata together.
        await asyncio.sleep(interval_s * phase(self._settings.bookie_id))
        while True:
            now = self._runtime.clock.monotonic()
            self.begin(spares=now - self._spares_at >= self._settings.gc_over_replicated_interval_s)
            assert self._collecting is not None
            await asyncio.wait([self._collecting])
            await asyncio.sleep(interval_s)

    # --- a run --------------------------------------------------------------------------------------------------------

    async def _collect(self, run: CollectionRun) -> None:
        began = self._runtime.clock.monotonic()
        if run.spares and not run.dry_run:
            self._spares_at = began
        try:
            with _failing(run):
                await self._collect_all(run)
        finally:
            run.seconds = self._runtime.clock.monotonic() - began
            self._metrics.ended(run.failed or "done", self._runtime.clock.time(), run.seconds)
            _report(run)

    async def _collect_all(self, run: CollectionRun) -> None:
        if not may_begin(older=bool(self._older)):
            run.fail("older", self._older)
        else:
            await self._look_at_highest(run)
        after = -1
        while not run.failed:
            held = await self._storage.held_ledgers(after, self._settings.gc_page_ledgers)
            if not held:
                return
            await self._collect_page(run, held)
            after = held[-1]

    async def _look_at_highest(self, run: CollectionRun) -> None:
        highest = -1
        while held := await self._storage.held_ledgers(highest, self._settings.gc_page_ledgers):
            highest = held[-1]
        if highest < 0:
            return
        seen = await self._look(highest)
        if seen.state is ProbeState.NOT_MADE and (lower := await self._first_with_entries(seen.next_id)) is not None:
            seen = await self._look(lower)
        if decide(Step.BEGUN, seen.state, own_lock=False, unchanged=False) is Action.STOP:
            self._end(run, seen)

    async def _first_with_entries(self, at_least: int) -> int | None:
        """The lowest ledger from that id on of which there are entries here; None if there is none."""
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
        if run.spares:
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

    async def _look(self, ledger_id: int, lock: LedgerLock | None = None) -> ProbeResult:
        await self._looks.take_turn(1)
        try:
            empty = not await self._storage.has_entries(ledger_id)
        except CorruptDataError:
            empty = False
        return await self._probe.look(ledger_id, lock, empty=empty)

    # --- one ledger ---------------------------------------------------------------------------------------------------

    async def _collect_unlisted(self, run: CollectionRun, ledger_id: int) -> None:
        """One that is gone, unless it turns out to be there."""
        seen = await self._look(ledger_id)
        action = decide(Step.UNLISTED, seen.state, own_lock=False, unchanged=False)
        if action is not Action.DELETE:
            self._keep(run, ledger_id, action, seen, str(seen.state))
        elif run.dry_run:
            run.count(ledger_id, spare=False)
        elif (hidden := await hide(self._storage, ledger_id)) is not None:
            await self._delete(run, hidden, spare=False)

    async def _collect_listed(self, run: CollectionRun, ledger_id: int) -> None:
        """One that exists: its copy goes if it is spare."""
        await self._looks.take_turn(1)
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
            seen = await self._look(ledger_id)
            if decide(Step.LOCKED, seen.state, own_lock=True, unchanged=True) is Action.HIDE:
                run.count(ledger_id, spare=True)
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
        seen = await self._look(lock.ledger_id, lock)
        action = decide(Step.LOCKED, seen.state, own_lock=seen.own_lock, unchanged=True)
        if action is not Action.HIDE:
            self._keep(run, lock.ledger_id, action, seen, str(seen.state))
            return
        hidden = await hide(self._storage, lock.ledger_id)
        if hidden is None:
            return
        try:
            again = await self._look(lock.ledger_id, lock)
            unchanged = again.version == seen.version
            action = decide(Step.HIDDEN, again.state, own_lock=again.own_lock, unchanged=unchanged)
        except BaseException:
            hidden.unhide()
            raise
        if action is not Action.DELETE:
            hidden.unhide()
            self._keep(run, lock.ledger_id, action, again, CHANGED if again.own_lock else LOCK_LOST)
        else:
            await self._delete(run, hidden, spare=True)

    async def _delete(self, run: CollectionRun, hidden: HiddenLedger, *, spare: bool) -> None:
        try:
            deleted = await hidden.delete()
        except BaseException:
            hidden.unhide()
            raise
        if not deleted:
            self._kept(run, STORED_TO)
            return
        run.count(hidden.ledger_id, spare=spare)
        self._metrics.collected(spare=spare)
        log.debug(
            "collected ledger %d: %s", hidden.ledger_id, ProbeState.OVER_REPLICATED if spare else ProbeState.NO_LEDGER
        )

    # --- accounts -----------------------------------------------------------------------------------------------------

    def _keep(self, run: CollectionRun, ledger_id: int, action: Action, seen: ProbeResult, reason: str) -> None:
        """A look has said no."""
        if action is Action.STOP:
            self._end(run, seen)
        elif seen.state is ProbeState.UNREADABLE:
            self._unreadable(run, ledger_id, seen.why)
        else:
            self._kept(run, reason)

    def _end(self, run: CollectionRun, seen: ProbeResult) -> None:
        """A look has said that nothing may be collected now."""
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
    """What goes wrong ends the run. A defect costs no more than that: the bookie goes on."""
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
    """Where in an interval the bookie's turn is, from 0 to 1: another one for each bookie, and always the same."""
    return zlib.crc32(bookie_id.encode()) / (1 << 32)


def _report(run: CollectionRun) -> None:
    what = "would collect" if run.dry_run else "collected"
    if run.failed == "older":
        log.error("garbage collection refuses to go on: %s", run.failure)
    elif run.failed and run.failed != "stopped":
        log.warning(
            "garbage collection ended early, and goes on at its next time: %s (%s %d ledgers and %d spare copies)",
            run.failure,
            what,
            run.gone,
            run.spare,
        )
    elif run.gone or run.spare:
        log.info(
            "garbage collection %s %d ledgers and %d spare copies of %d ledgers, in %.1f s",
            what,
            run.gone,
            run.spare,
            run.examined,
            run.seconds,
        )
