"""The stage on which a plan is played: hosts, their clients, bookies that are started again, and who waits for whom."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, TypeVar

from prometheus_client import CollectorRegistry

from bkpy.config.recovery import RecoverySettings
from bkpy.errors import BookKeeperError, CorruptDataError
from bkpy.replication.auto_recovery import AutoRecovery
from tests.sim.buggify import consistent
from tests.sim.cluster import Bookie, Cluster
from tests.sim.coverage_marks import JOURNAL_GIVEN_UP, REBUILT, TAKEN_OVER_STOPPED, TAKEN_OVER_TORN
from tests.sim.earlier import EarlierBookies
from tests.sim.strangers import Stranger
from tests.sim.users import PATIENCE_S, Users
from tests.sim.world import Host, HostDied, World

from .oracle import LedgerStory, Oracle, Violation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping

    from bkpy.client.client import Client
    from tests.sim.log_users import LogUsers

    from .plan import Options, Plan
    from .restored import Backup

T = TypeVar("T")

# What production has too large, or too slow, for a world. Bounds of the plan come on top.
CALM_BOOKIE: Mapping[str, Any] = {
    "journal_max_size_mb": 1,
    "journal_max_backups": 1,
    "memtable_bytes_max": 128 * 1024,
    "checkpoint_interval_s": 2.0,
    "entry_log_max_size_mb": 1,
    "block_bytes": 4096,
    "scrub_interval_s": 10.0,
    "gc_interval_s": 1.0,
    "gc_over_replicated_interval_s": 1.0,
    "integrity_look_interval_s": 2.0,
    "integrity_retry_interval_s": 1.0,
    "compaction_minor_interval_s": 3.0,
    "compaction_minor_living_ratio": 0.5,
    "compaction_major_interval_s": 7.0,
}
CALM_WORKER: Mapping[str, Any] = {
    "open_ledger_grace_s": 2.0,
    "repair_pause_max_s": 2.0,
    "marks_look_interval_s": 2.0,
    "lost_bookie_settle_s": 1.0,
    "lost_bookie_recovery_delay_s": 2.0,
    "audit_look_interval_s": 1.0,
    "audit_follow_interval_s": 1.0,
    "drain_look_interval_s": 0.5,
    "decommission_patience_s": 5.0,
    "replicas_check_interval_s": 5.0,
    "log_retention_interval_s": 0.5,
    "log_orphan_interval_s": 3.0,
    "log_orphan_grace_s": 60.0,
}
EARLIER = "0.2.0"  # the version whose code some bookies begin with
ALL_CANCELLED = "calls of all kinds cancelled"
CREATION = "creation"  # names one call of it, where they may be cancelled
SAMPLES = ("check_windows", "check_window_entries")  # how much a check of the replicas reads
UP_AGAIN_S = 0.5  # after which someone starts a bookie that nobody else is about to start


class Stage(Users):
    """Of one run. `hosts` by name; `ended` is set when the storm is over, and all that was broken is whole again."""

    def __init__(self, plan: Plan, cluster: Cluster, oracle: Oracle) -> None:
        super().__init__(cluster, oracle.stories)
        self.schedule = plan
        self.oracle = oracle
        shape = plan.shape
        self.clients = [self.world.add_host(f"client-{n + 1}") for n in range(int(shape["clients"]))]  # type: ignore[arg-type]
        self.workers = [self.world.add_host(f"worker-{n + 1}") for n in range(int(shape["workers"]))]  # type: ignore[arg-type]
        self.operating = self.world.add_host("operator")
        self.stranger = Stranger(cluster, comes=True)
        self.new_bookie: Bookie | None = None  # that isn't there yet
        if "growth" in plan.features:
            name = f"bookie-{len(cluster.bookies) + 1}"
            self.new_bookie = prepared(plan, Bookie(self.world, name, calm=True, **bookie_settings(plan)))
        for name, rate in self.rates.items():
            self.world.hosts[name].rate = rate
        self.ended = asyncio.Event()
        self.busy: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # a bookie that someone stops and starts
        self.logs: dict[str, LogUsers] = {}
        self.calls: defaultdict[str, dict[asyncio.Future[None], None]] = defaultdict(dict)  # by host, may be cancelled
        self.cancelled_creations: set[bytes] = set()
        self.imported: Counter[int] = Counter()  # by ledger of the second cluster, how often a copy was made
        self.older: Mapping[str, Any] | None = None  # a copy of the metadata to which the store goes back in the end
        self.backup: Backup | None = None  # from which the metadata are restored in the end
        self.refusals: defaultdict[str, str] = defaultdict(str)  # by bookie, why its last start has failed
        self.rotten_journals: set[str] = set()  # of these bookies bytes have flipped
        self.parts = [self]  # one for each cluster
        self._stories: dict[str, asyncio.Future[LedgerStory]] = {}
        self._connecting: dict[tuple[str, int], asyncio.Task[Client]] = {}
        settings = {**CALM_WORKER, **self.bounds(RecoverySettings.model_fields)}
        checks = bool(shape.get("checks_replicas", True))
        if not checks:
            settings["replicas_check_interval_s"] = 1e6
        # A check that reads next to nothing of a ledger need not come upon what is missing.
        oracle.checks_replicas = checks and not plan.bounds.keys() & {f"bookie.{name}" for name in SAMPLES}
        self.settings = RecoverySettings(**settings)

    def beside(self, cluster: Cluster, oracle: Oracle) -> Stage:
        """The part of another cluster, with the same hosts, actors and clients' processes."""
        other = copy.copy(self)
        other.cluster, other.oracle, other.stories = cluster, oracle, oracle.stories
        other.writers, other._connecting = {}, {}
        self.parts.append(other)
        return other

    @property
    def cancels_all(self) -> bool:
        """Whether creations, closes, recoveries and deletions may be cancelled, too."""
        return ALL_CANCELLED in self.schedule.features

    def part_of(self, options: Options) -> Stage:
        """Where an actor acts, or a fault strikes."""
        return next(part for part in self.parts if part.cluster.tree.of_bookkeeper == ("of_bookkeeper" in options))

    def bounds(self, names: Any) -> dict[str, Any]:
        """The extreme settings among these of a bookie, or of a worker."""
        drawn = {name.removeprefix("bookie."): v for name, v in self.schedule.bounds.items() if "bookie." in name}
        return {name: value for name, value in drawn.items() if name in names}

    @property
    def rates(self) -> dict[str, float]:
        """By host, how many seconds its clocks count while one goes by."""
        rates = self.schedule.shape.get("clock_rates", {})
        assert isinstance(rates, dict)
        return {name: float(rate) for name, rate in rates.items()}  # type: ignore[arg-type]

    @property
    def unlucky(self) -> Bookie:
        """The only bookie whose copies may be lost."""
        return self.cluster.bookies[int(self.schedule.shape["unlucky"])]  # type: ignore[arg-type]

    def bookie(self, number: Any) -> Bookie:
        return self.cluster.bookies[number]

    def is_gone(self, bookie: Bookie) -> bool:
        return bookie.settings.bookie_id in self.oracle.gone

    # --- hosts --------------------------------------------------------------------------------------------------------

    async def on(self, name: str, act: Callable[[Client], Coroutine[Any, Any, None]]) -> bool:
        """Run it in the host's process, with its client; whether it came to its end before the host died."""
        host = self.world.hosts[name]
        while not host.up:
            await asyncio.sleep(0.1)
        try:
            await host.start(self._with_client(host, act), name="actor")
        except HostDied:
            return False
        return True

    async def _with_client(self, host: Host, act: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
        """All actors of one process share a client."""
        key = host.name, host.boots
        if key not in self._connecting:
            self._connecting[key] = asyncio.create_task(self.connect(host))
        await act(await asyncio.shield(self._connecting[key]))

    async def connect(self, host: Host) -> Client:
        """A new client, as soon as the metadata store can be reached."""
        while True:
            try:
                return await self.cluster.connect(host, calm=True, **self.client_settings(host))
            except BookKeeperError:
                await asyncio.sleep(0.1)

    def client_settings(self, host: Host) -> dict[str, Any]:
        """The settings of a client. The operator's are calm: it has to bring all to its end."""
        bounds = {n.removeprefix("client."): v for n, v in self.schedule.bounds.items() if n.startswith("client.")}
        drawn = self.schedule.shape["client_settings"]
        assert isinstance(drawn, dict)
        return {} if host is self.operating else {"ensemble_changes_max": 1000, **consistent(bounds), **drawn}

    def dies(self, host: Host, *, power: bool) -> None:
        """A host with clients or workers dies: nobody knows any more what its writers know."""
        for story in [story for part in self.parts for story in part.oracle.stories.by_id.values()]:
            assert isinstance(story, LedgerStory)
            if story.host == host.name:
                story.writer = None
        if power:
            host.power_cut()
        else:
            host.crash()

    def boot(self, host: Host) -> None:
        host.boot()
        if host in self.workers:
            host.start(self._work(host), name="worker").add_done_callback(_ignored)

    async def _work(self, host: Host) -> None:
        recovery = AutoRecovery(
            self.settings, host.session(), self.cluster.tree.root, host.runtime, host.name, CollectorRegistry()
        )
        recovery.start()
        await asyncio.Event().wait()

    # --- bookies ------------------------------------------------------------------------------------------------------

    async def start(self, bookie: Bookie) -> None:
        """Until it serves, or is no part of the cluster: a fault may strike it once more while it starts."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._start(bookie)
        except TimeoutError:
            self.oracle.violate("liveness: bookies start", f"{bookie.host.name}: {self.refusals[bookie.host.name]}")

    async def _start(self, bookie: Bookie) -> None:
        former, stopped = bookie.code, bookie.stopped
        while not self.is_gone(bookie):
            if not bookie.settings.journal_write_data and not bookie.stopped:
                self.oracle.loses_memory(bookie)  # it had acknowledged what was only there
            try:
                await bookie.start()
                if former is not None and bookie.code is None:
                    self.world.marks[TAKEN_OVER_STOPPED if stopped else TAKEN_OVER_TORN] += 1
                    await self.on(self.operating.name, lambda client: self._ask_for_losses(client, bookie))
                return
            except HostDied:
                await asyncio.sleep(0.1)
            except BookKeeperError as error:
                bookie.host.record("start failed", type(error).__name__)
                self.refusals[bookie.host.name] = str(error)
                if isinstance(error, CorruptDataError) and bookie.host.name in self.rotten_journals:
                    self.do_without_its_journal(bookie)
                if bookie.host.up:
                    bookie.host.crash()
                bookie.host.disk.heal()
                await asyncio.sleep(0.2)

    async def _ask_for_losses(self, client: Client, bookie: Bookie) -> None:
        """Today's code has to know what the earlier version had lost."""
        with contextlib.suppress(BookKeeperError):  # it may be down again
            await self.oracle.check_denials(client, bookie)

    def do_without_its_journal(self, bookie: Bookie) -> None:
        """As an operator does where a start or a rebuild refuses damage: the bookie may have lost anything."""
        bookie.settings = bookie.settings.model_copy(update={"journal_damage": "limbo"})
        self.oracle.loses_memory(bookie)
        self.world.marks[JOURNAL_GIVEN_UP] += 1

    async def keep_up(self) -> None:
        """Start each bookie that is down, and that nobody is about to start."""
        while True:
            await asyncio.sleep(UP_AGAIN_S)
            for bookie in self.cluster.bookies:
                lock = self.busy[bookie.host.name]
                if not bookie.host.up and bookie.host.boots and not self.is_gone(bookie) and not lock.locked():
                    async with lock:
                        await self.start(bookie)

    async def take_over(self, bookie: Bookie, how: str) -> None:
        """Today's code takes over what the earlier version has left, unless it has already."""
        if bookie.earlier is None:
            return
        async with self.busy[bookie.host.name]:
            bookie.earlier_lives = 0
            if bookie.code is None or self.is_gone(bookie):
                return
            if bookie.host.up and how == "stop":
                with contextlib.suppress(HostDied):  # it may give up on its own meanwhile
                    await bookie.stop()
            elif bookie.host.up and how == "crash":
                bookie.host.crash()
            elif bookie.host.up:
                bookie.host.power_cut()
            await self.start(bookie)

    async def rebuild(self, bookie: Bookie, after_s: float) -> None:
        """It loses its disks, and comes back with empty ones."""
        async with self.busy[bookie.host.name]:
            if bookie.host.up:
                bookie.host.crash()
            bookie.host.disk.heal()
            bookie.host.disk.swap_out()
            self.oracle.loses_disks(bookie)
            bookie.rebuilds = True
            await asyncio.sleep(after_s)
            await self.start(bookie)
            self.world.marks[REBUILT] += 1

    # --- who waits for whom -------------------------------------------------------------------------------------------

    def announce(self, key: str, story: LedgerStory) -> None:
        """The actor has begun a ledger."""
        future = self._story(key)
        if not future.done():
            future.set_result(story)

    async def story_of(self, key: Any) -> LedgerStory | None:
        """The ledger of an actor; None if it has none before the storm is over."""
        future = self._story(key)
        over = asyncio.ensure_future(self.ended.wait())
        await asyncio.wait([future, over], return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        return future.result() if future.done() else None

    def _story(self, key: str) -> asyncio.Future[LedgerStory]:
        return self._stories.setdefault(key, self.world.loop.create_future())

    async def within(self, liveness: str, work: Awaitable[T], seconds: float = PATIENCE_S) -> T:
        """What it returns. It has to come to its end."""
        try:
            async with asyncio.timeout(seconds):
                return await work
        except TimeoutError:
            raise Violation(
                f"liveness: {liveness}", f"not within {seconds} s after the faults", self.cluster.tree
            ) from None

    async def call(self, host: str, work: Coroutine[Any, Any, None], *, kind: str = "append") -> None:
        """A call that a fault may cancel; others than appends in some plans only."""
        if kind != "append" and not self.cancels_all:
            await work
            return
        task = asyncio.ensure_future(work)
        self.calls[host][task] = None
        try:
            await asyncio.wait([task])
        finally:
            self.calls[host].pop(task)
        if not task.cancelled():
            task.result()

    def cancel_calls(self, host: str) -> None:
        """Those of the host's client that may be cancelled, and are under way."""
        for call in [*self.calls[host]]:
            call.cancel()


def _ignored(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


def world_of(plan: Plan) -> World:
    shape = plan.shape

    def pair(name: str) -> tuple[float, float]:
        low, high = shape[name]  # type: ignore[misc]
        return low, high  # type: ignore[return-value]

    return World(
        plan.seed,
        network_latency_s=pair("network_latency_s"),
        metadata_latency_s=pair("metadata_latency_s"),
        metadata_timeout_s=shape["metadata_timeout_s"],  # type: ignore[arg-type]
        session_timeout_s=shape["session_timeout_s"],  # type: ignore[arg-type]
    )


def bookie_settings(plan: Plan) -> dict[str, Any]:
    drawn = {n.removeprefix("bookie."): v for n, v in plan.bounds.items() if n.startswith("bookie.")}
    settings = {**CALM_BOOKIE, "open_ledger_grace_s": 2.0, **drawn}
    settings["journal_as_entry_log"] = "journal kept" in plan.features
    return consistent(settings)


def prepared(plan: Plan, bookie: Bookie) -> Bookie:
    bookie.mends = "healing" in plan.features
    bookie.grows = 0.5 if "directories added" in plan.features else 0.0
    return bookie


def cluster_of(plan: Plan) -> Cluster:
    bookies = int(plan.shape["bookies"])  # type: ignore[arg-type]
    cluster = Cluster(plan.seed, bookies=bookies, world=world_of(plan), calm=True, **bookie_settings(plan))
    for bookie in cluster.bookies:
        prepared(plan, bookie)
    for bookie, size in zip(cluster.bookies, plan.shape.get("frame_bytes", ()), strict=False):  # type: ignore[arg-type]
        take_frames_of(bookie, size)  # type: ignore[arg-type]
    for bookie, rack in zip(cluster.bookies, plan.shape.get("racks", ()), strict=False):  # type: ignore[arg-type]
        bookie.settings = bookie.settings.model_copy(update={"rack": rack})
    if "earlier version" in plan.features:
        for number, lives in plan.shape["earlier"]:  # type: ignore[misc, union-attr]
            cluster.bookies[number].begin_with(EarlierBookies.of(EARLIER), lives)  # type: ignore[index, arg-type]
    if plan.shape.get("no_journal"):
        without_journal(cluster.bookies[int(plan.shape["unlucky"])])  # type: ignore[arg-type]
    return cluster


def without_journal(bookie: Bookie) -> None:
    """It keeps in memory what it acknowledges, and loses it with its process."""
    bookie.settings = bookie.settings.model_copy(update={"journal_write_data": False})


def take_frames_of(bookie: Bookie, size: int) -> None:
    """From its next start on it takes no larger frames."""
    bookie.settings = bookie.settings.model_copy(update=consistent({"frame_bytes_max": size}))
