"""A world: hosts with disks on one network in virtual time, which boot, crash, lose power and boot again.

Everything random in it comes from its seed, one stream for each concern, so that a new draw in one doesn't reshuffle
the others. What happens is written to a trace; the same seed must give the same trace in every process.
"""

from __future__ import annotations

import contextvars
import gc
import hashlib
import random
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from .disk import SimDisk, SimulatedCrash
from .loop import CURRENT, Incarnation, SimLoop
from .metadata import Follower, SimMetadata, SimSession
from .net import SimNet
from .runtime import SimClock, SimFaults, TrueClock, sim_runtime

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine

    from bkpy.runtime.interfaces import DiskRuntime

    from .platter import Dirty, EntryStatus

T = TypeVar("T")


class HostDied(Exception):  # noqa: N818 - an event of the simulation
    """The host died before the call on it had ended."""


class UnhandledError(AssertionError):
    """Something reached the loop's exception handler during the run."""


class Event(NamedTuple):
    """Something that happened, in virtual time."""

    time: float
    host: str
    what: str
    detail: str

    def __str__(self) -> str:
        return f"{self.time:.6f} {self.host} {self.what} {self.detail}"


class World:
    """All of one run. `run` may be called once.

    Without `keeps_trace`, an attribute of the class, `trace` stays empty: a soak plays faster, and whoever looks into a
    seed plays it again.
    """

    keeps_trace = True

    def __init__(
        self,
        seed: int,
        *,
        network_latency_s: tuple[float, float] = (0.00005, 0.0005),
        disk_latency_s: tuple[float, float] = (0.00005, 0.001),
        metadata_latency_s: tuple[float, float] = (0.0002, 0.002),
        metadata_timeout_s: float = 10.0,
        session_timeout_s: float = 10.0,
    ) -> None:
        self.seed = seed
        self.loop = SimLoop()
        self.net = SimNet(self.loop, seed, latency_s=network_latency_s)
        if self.keeps_trace:
            self.net.observer = lambda what, detail: self.record("net", what, detail)
        self.disk_latency_s = disk_latency_s
        self.metadata_latency_s = metadata_latency_s
        self.metadata_timeout_s = metadata_timeout_s  # for one call of a session that is cut off
        self.session_timeout_s = session_timeout_s  # after which the store forgets a process that died
        self.session_timeout_s = session_timeout_s
        self.hosts: dict[str, Host] = {}
        self.trace: list[Event] = []
        self.rots = False  # bytes of a disk do, or can't be read: the scrub tells of damage
        self.marks: Counter[str] = Counter()  # what happened, of what a suite of runs has to go through
        runtime = sim_runtime(
            self.loop,
            SimDisk(f"world-{seed}"),
            f"world-{seed}",
            clock=TrueClock(self.loop),
            faults=SimFaults(f"world-{seed}"),
        )
        self.metadata = SimMetadata(runtime)
        self.metadata_rng = self.stream("metadata")

    def stream(self, concern: str) -> random.Random:
        """A random stream for `concern`, independent of all others."""
        return random.Random(self.seed_of(concern))

    def seed_of(self, concern: str) -> str:
        """What the stream for `concern` begins with."""
        return f"{concern}-{self.seed}"

    def add_host(self, name: str) -> Host:
        assert name not in self.hosts
        host = Host(self, name, f"10.0.0.{len(self.hosts) + 1}")
        self.hosts[name] = host
        return host

    # --- the trace ----------------------------------------------------------------------------------------------------

    def record(self, host: str, what: str, detail: str = "") -> None:
        if self.keeps_trace:
            self.trace.append(Event(self.loop.now, host, what, detail))

    def trace_hash(self) -> str:
        digest = hashlib.sha256()
        for event in self.trace:
            digest.update(f"{event}\n".encode())
        return digest.hexdigest()

    # --- running ------------------------------------------------------------------------------------------------------

    def run(self, main: Coroutine[Any, Any, T], *, limit_s: float = 1000.0) -> T:
        """Run `main` outside of all hosts until it ends. Raises what it raises, or `UnhandledError`.

        `StuckError` if it hasn't ended after `limit_s` virtual seconds: timers may keep a world busy for ever.
        The garbage collector rests meanwhile: it would end abandoned coroutines at moments of its own.
        """
        collecting = gc.isenabled()
        gc.disable()
        self.loop.ends_at = self.loop.time() + limit_s
        try:
            result = self.loop.run_until_complete(main)
            self._raise_errors()
            return result
        finally:
            self.keeps_trace = False  # what coroutines do that are closed now has not happened
            self.loop.close()
            if collecting:
                gc.enable()

    def _raise_errors(self) -> None:
        errors = [e for e in self.loop.errors if not isinstance(e.get("exception"), SimulatedCrash)]
        if errors:
            cause = errors[0].get("exception")
            messages = "; ".join(f"{e['message']}: {e.get('exception')!r}" for e in errors)
            raise UnhandledError(messages) from (cause if isinstance(cause, BaseException) else None)


class Host:
    """One machine: an address, a disk that outlives its processes, and at most one process."""

    def __init__(self, world: World, name: str, address: str) -> None:
        self.world = world
        self.name = name
        self.address = address
        self.disk = SimDisk(f"{name}-{world.seed}", latency_s=world.disk_latency_s)
        if world.keeps_trace:
            self.disk.observer = self.record
        self.disk.on_crash = self._crashed_in_disk
        self.clock = SimClock(world.loop)
        self.rate = 1.0  # of its clocks, from its next boot on
        self.faults = SimFaults(f"{name}-{world.seed}")
        self.boots = 0
        self.incarnation: Incarnation | None = None
        self._context = contextvars.Context()
        self._runtime: DiskRuntime | None = None
        self._calls: dict[asyncio.Future[Any], None] = {}  # what others wait for on this host
        self.sessions: list[SimSession] = []  # of the current process
        self.follower: Follower | None = None  # the server of the metadata store that it connects to; None: the leader

    def record(self, what: str, detail: str = "") -> None:
        self.world.record(self.name, what, detail)

    @property
    def up(self) -> bool:
        return self.incarnation is not None

    @property
    def runtime(self) -> DiskRuntime:
        """The runtime of the current process."""
        assert self._runtime is not None, f"{self.name} is down"
        return self._runtime

    def boot(self) -> DiskRuntime:
        """Start a new, empty process; its runtime."""
        assert not self.up, f"{self.name} is up"
        if self.disk.dead:
            self.disk.crash()
        self.boots += 1
        self.incarnation = Incarnation(self.address, self.boots, rate=self.rate)
        self.world.loop.rated |= self.rate != 1.0
        self._context = contextvars.Context()
        self._context.run(CURRENT.set, self.incarnation)
        self.world.net.power_restored(self.address)
        self._runtime = sim_runtime(
            self.world.loop,
            self.disk,
            f"{self.name}-{self.boots}-{self.world.seed}",
            incarnation=self.incarnation,
            clock=self.clock,
            faults=self.faults,
        )
        self.record("boot", str(self.boots))
        return self._runtime

    def do(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """Call `function` as the host's process."""
        assert self.up, f"{self.name} is down"
        return self._context.copy().run(function, *args, **options)

    def start(self, coro: Coroutine[Any, Any, T], *, name: str = "call") -> asyncio.Future[T]:
        """Run `coro` in the host's process. The future is the caller's, and fails with `HostDied` if the host dies."""
        assert self.up, f"{self.name} is down"
        loop = self.world.loop
        task = loop.create_task(coro, name=f"{self.name}: {name}", context=self._context.copy())
        outcome: asyncio.Future[T] = loop.create_future()
        self._calls[outcome] = None

        def ended(done: asyncio.Task[T]) -> None:
            self._calls.pop(outcome, None)
            if outcome.done():
                return
            if done.cancelled():
                outcome.cancel()
            elif (error := done.exception()) is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(done.result())

        task.add_done_callback(ended, context=loop.outside)
        # A caller that gives up takes the call back, as long as the host lives.
        outcome.add_done_callback(lambda future: task.cancel() if future.cancelled() else None, context=loop.outside)
        return outcome

    def session(self) -> SimSession:
        """A new session of the host's process with the world's metadata store."""
        world = self.world
        session = self.do(
            SimSession,
            world.metadata,
            world.metadata_rng,
            world.metadata_latency_s,
            session_timeout_s=world.session_timeout_s,
            call_timeout_s=world.metadata_timeout_s,
        )
        session.runtime = self.runtime  # whose fault points are the host's
        session.follower = self.follower
        self.sessions.append(session)
        return session

    def follow(self, lag_s: float) -> None:
        """From now on its sessions are connected to a follower of the metadata store, which lags."""
        if self.follower is None:
            self.follower = Follower(self.world.metadata, self.world.loop, lag_s)
            for session in self.sessions:
                session.move_to(self.follower)
        self.follower.lag_s = lag_s
        if not lag_s:
            self.follower.catch_up()

    def crash(self) -> None:
        """Kill the process: what it wrote stays in the page cache."""
        incarnation = self._die()
        self.record("crash")
        self.world.net.process_died(incarnation)
        self.disk.crash()

    def power_cut(self, entry_status: Callable[[Dirty], EntryStatus] | None = None) -> None:
        """Cut the power: what was not synced is kept, dropped or torn. A host that is down can lose it too."""
        incarnation = self._die() if self.up else Incarnation(self.address, self.boots, dead=True)
        self.record("power cut")
        self.world.net.power_lost(incarnation)
        self.disk.power_cut(entry_status)

    def _die(self) -> Incarnation:
        assert self.incarnation is not None, f"{self.name} is down"
        incarnation, self.incarnation = self.incarnation, None
        incarnation.dead = True
        self._runtime = None
        sessions, self.sessions = self.sessions, []
        for session in sessions:
            self.world.loop.call_later(session.session_timeout_s, session.forgotten, context=self.world.loop.outside)
        calls, self._calls = self._calls, {}
        for outcome in calls:
            if not outcome.done():
                outcome.set_exception(HostDied(self.name))
                outcome.exception()  # nobody has to look at it
        return incarnation

    def _crashed_in_disk(self) -> None:
        """A crash that was asked for at an operation of the disk has struck; the disk is dead until the next boot."""
        if self.up:
            incarnation = self._die()
            self.record("crash", "at a disk operation")
            self.world.net.process_died(incarnation)
