"""What the size of a cluster costs: a rack is lost, and everything heals, in virtual time, with each call counted.

    python -m tests.sim.scale --bookies 100 --ledgers 100 --writers 200
    python -m tests.sim.scale --bookies 1000 --ledgers 100 --light

Each bookie has its replication worker, its candidate for auditor and its client in its process, as by default. Ledgers
are written, some stay open under writers that go on, and then one rack loses its power. It is healed when the auditor
has recorded all of its ledgers, no under-replication record is left, and no ledger names a lost bookie.

With `--light` a bookie has no storage and no server: its registration, its cookie, its worker, its candidate and its
client are the real ones, ledgers are metadata alone, and a copy takes `COPY_S` and the time of its bytes at the
worker's rate. That leaves the writers out, and makes a thousand bookies affordable.

Time is that of messages, disks, pauses and rates. What a processor needs for its work takes no time here; ZooKeeper's
work takes as much as `--zookeeper-calls` says, calls a second of all sessions together, 0 for none. No call times out.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import gc
import json
import logging
import math
import resource
import sys
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from prometheus_client import CollectorRegistry

from bkpy.bookie.node import BookieNode
from bkpy.client.bookies.channel import BookieChannel
from bkpy.client.bookies.placement import rack_aware_placement
from bkpy.client.client import open_client
from bkpy.config.base import MIB
from bkpy.config.bookie import BookieSettings
from bkpy.config.client import client_settings
from bkpy.errors import BookieUnavailableError, BookKeeperError
from bkpy.metadata import paths
from bkpy.metadata.bookies.cookies import write_cookie
from bkpy.metadata.bookies.registration import BookieInfo, Registration
from bkpy.metadata.cluster import init_cluster
from bkpy.metadata.ledgers.layout import LONG_HIERARCHICAL
from bkpy.metadata.store.store import Check, Create, NoNode, parent_of
from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bkpy.replication.auto_recovery import AutoRecovery
from bkpy.replication.worker.fragment_copy import Copied
from bkpy.replication.worker.ledger_repair import LedgerRepair
from bkpy.runtime.pacer import Pacer
from bkpy.runtime.worker_pool import for_each

from . import world
from .cluster import ROOT, Bookie
from .loop import CURRENT
from .metadata import SimSession
from .runtime import TrueClock
from .world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from bkpy.client.client import Client
    from bkpy.client.write.writer import LedgerWriter
    from bkpy.metadata.store.store import Operation, Watch
    from bkpy.protocol.repair.rereplication import Copy

    from .world import Host

ENSEMBLE: Final = 3
QUORUM: Final = 2
SIZES: Final = {"ensemble_size": ENSEMBLE, "write_quorum": ENSEMBLE, "ack_quorum": QUORUM}
CLIENTS: Final = 4  # processes with writers
AT_ONCE: Final = 20  # ledgers that one of them makes
TICK_S: Final = 2.0  # in which ZooKeeper ends sessions
QUIET_S: Final = 60.0  # between the last ledger and the loss
LOOK_S: Final = 0.2  # between two looks whether all is healed
HEALED_WITHIN_S: Final = 100_000.0
COPY_S: Final = 0.02  # of a light copy, beside its bytes: what a real one of a small ledger takes here
STARTED_AT_ONCE: Final = 20  # bookies
SETTLED_S: Final = 30.0  # after all of them
APPEND_S: Final = 1.0  # between two appends to a ledger, on average
ENSEMBLES_MAX: Final = 5000  # different ones, of light ledgers
NAME_BYTES: Final = 4  # of a name in a list, beside its characters
LEVELS: Final = len(LONG_HIERARCHICAL.widths)
SHOWN: Final = 14

# Where the first of these leads, a call belongs.
SUBJECTS: Final = {
    f"{ROOT}/{paths.READ_ONLY}": "registrations",
    f"{ROOT}/{paths.AVAILABLE}": "registrations",
    f"{ROOT}/{paths.COOKIES}": "cookies",
    f"{ROOT}/{paths.DRAINING}": "drains",
    f"{ROOT}/{paths.MARKS}": "records",
    f"{ROOT}/{paths.LOCKS}": "locks",
    f"{ROOT}/{paths.ELECTION}": "election",
    f"{ROOT}/{paths.WORKERS}": "reports",
    f"{ROOT}/{paths.AUDIT}": "audit",
    f"{ROOT}/underreplication": "news, switches",
    f"{ROOT}/idgen": "ids",
    f"{ROOT}/{paths.LOGS}": "logs",
}


def subject_of(path: str) -> str:
    for prefix, subject in SUBJECTS.items():
        if path.startswith(prefix):
            return subject
    return "ledgers" if path.removeprefix(f"{ROOT}/")[:1].isdecimal() else "others"


class Phase:
    """What sessions asked of the metadata store in one part of a run."""

    def __init__(self, name: str, at: float) -> None:
        self.name = name
        self.began = at
        self.seconds = 0.0
        self.calls: Counter[tuple[str, str]] = Counter()  # by kind and subject
        self.by_second: Counter[int] = Counter()
        self.reply_bytes = 0
        self.list_bytes_max = 0  # of one list of children
        self.writes_of_clients = 0  # of ledgers' metadata

    def report(self) -> dict[str, Any]:
        total = sum(self.calls.values())
        kinds: Counter[str] = Counter()
        subjects: Counter[str] = Counter()
        for (kind, subject), count in self.calls.items():
            kinds[kind] += count
            subjects[subject] += count
        return {
            "phase": self.name,
            "seconds": round(self.seconds, 1),
            "calls": total,
            "calls_per_s": round(total / self.seconds, 1) if self.seconds else None,
            "calls_in_worst_second": max(self.by_second.values(), default=0),
            "reply_mb": round(self.reply_bytes / 1e6, 1),
            "list_bytes_max": self.list_bytes_max,
            "by_kind": dict(kinds.most_common()),
            "by_subject": dict(subjects.most_common()),
            "by_both": {f"{kind} {subject}": n for (kind, subject), n in self.calls.most_common(SHOWN)},
            "ledger_writes_of_clients": self.writes_of_clients,
        }


class Meter:
    """Counts what all sessions of a world ask, phase by phase."""

    def __init__(self, world: World, calls_per_s: int) -> None:
        self.world = world
        self.server = Pacer(TrueClock(world.loop), calls_per_s) if calls_per_s else None
        self.phases: list[Phase] = []
        self.now = Phase("before", world.loop.now)
        self.clients: set[str] = set()  # addresses

    def begin(self, name: str) -> None:
        at = self.world.loop.now
        self.now.seconds = at - self.now.began
        self.now = Phase(name, at)
        self.phases.append(self.now)

    def end(self) -> None:
        self.now.seconds = self.world.loop.now - self.now.began

    def count(self, kind: str, path: str, reply_bytes: int = 0, operations: int = 1) -> None:
        phase, subject = self.now, subject_of(path)
        phase.calls[kind, subject] += operations
        phase.by_second[int(self.world.loop.now)] += operations
        phase.reply_bytes += reply_bytes
        if kind == "write" and subject == "ledgers":
            here = CURRENT.get()
            phase.writes_of_clients += here is not None and here.address in self.clients

    def count_list(self, kind: str, path: str, names: Collection[str]) -> None:
        size = sum(map(len, names)) + NAME_BYTES * len(names)
        self.now.list_bytes_max = max(self.now.list_bytes_max, size)
        self.count(kind, path, size)

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """All sessions that hosts begin meanwhile."""
        with patch.object(world, "SimSession", partial(CountedSession, self)):
            yield


class CountedSession(SimSession):
    """A session whose calls are counted: one that is refused as well, and a transaction as its operations.

    To set a watch is a call, which answers with a list of children where it is on one.
    """

    def __init__(self, meter: Meter, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.meter = meter

    async def get(self, path: str) -> tuple[bytes, int]:
        try:
            data, version = await super().get(path)
        except NoNode:
            self.meter.count("read", path)
            raise
        self.meter.count("read", path, len(data))
        return data, version

    async def children(self, path: str) -> list[str]:
        try:
            names = await super().children(path)
        except NoNode:
            self.meter.count("list", path)
            raise
        self.meter.count_list("list", path, names)
        return names

    async def children_made(self, path: str) -> int:
        self.meter.count("read", path)
        return await super().children_made(path)

    async def written_ms(self, path: str) -> int:
        self.meter.count("read", path)
        return await super().written_ms(path)

    async def exists(self, path: str) -> bool:
        self.meter.count("read", path)
        return await super().exists(path)

    async def sync(self, path: str) -> None:
        self.meter.count("sync", path)
        await super().sync(path)

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False, sequential: bool = False) -> str:
        self.meter.count("write", path)
        return await super().create(path, data, ephemeral=ephemeral, sequential=sequential)

    async def put(self, path: str, data: bytes, expected_version: int) -> int:
        self.meter.count("write", path)
        return await super().put(path, data, expected_version)

    async def delete(self, path: str, expected_version: int | None = None) -> None:
        self.meter.count("write", path)
        await super().delete(path, expected_version)

    async def multi(self, operations: Sequence[Operation]) -> list[str | int | None]:
        for operation in operations:
            self.meter.count("check" if isinstance(operation, Check) else "write", operation.path)
        return await super().multi(operations)

    async def _call(self, function: Callable[[], Any], *, write: bool) -> Any:
        if self.meter.server is not None:
            await self.meter.server.take_turn(1)
        return await super()._call(function, write=write)

    async def _arm(self, watch: Watch) -> None:
        await super()._arm(watch)
        try:
            names = self.tree.node(watch.path).children if watch.children else ()
        except NoNode:
            names = ()
        self.meter.count_list("watch", watch.path, names)


class Untraced(World):
    keeps_trace = False


# --- bookies --------------------------------------------------------------------------------------------------------


class RealBookie(Bookie):
    """A bookie with all that its process has by default."""

    def _new_node(self, session: SimSession) -> BookieNode:
        settings, runtime = self.settings, self.host.runtime

        def recovery(registry: CollectorRegistry, appended: Callable[[], int]) -> AutoRecovery:
            return AutoRecovery(settings, session, ROOT, runtime, settings.bookie_id, registry, appended)

        return BookieNode(settings, session, ROOT, runtime, background_service=recovery)


class LightBookie:
    """What of a bookie's process has to do with metadata."""

    def __init__(self, world: World, name: str, settings: BookieSettings) -> None:
        self.host = world.add_host(name)
        self.settings = settings

    async def start(self) -> None:
        self.host.boot()
        await self.host.start(self._start())

    async def _start(self) -> None:
        settings, runtime, session = self.settings, self.host.runtime, self.host.session()
        name = settings.bookie_id
        index = runtime.rng.randbytes(16).hex()
        cookie = {
            "bookie_id": name,
            "address": settings.listen,
            "instance_id": "scale",
            "storage": {"ledger_directories": [{"index_uuid": index}]},
        }
        value = json.dumps(cookie).encode()
        await write_cookie(session, ROOT, name, value, None)
        info = BookieInfo(name, settings.listen, rack=settings.rack, region=settings.region, free_bytes=1 << 40)
        registration = Registration(session, ROOT, info, runtime, cookie=value, settings=settings)
        await registration.register()
        AutoRecovery(settings, session, ROOT, runtime, name, CollectorRegistry()).start()


@contextlib.contextmanager
def light_copies(bookies: Mapping[str, LightBookie], ledger_bytes: int, copy_rate: int) -> Iterator[None]:
    """Meanwhile nobody connects to a bookie, and a copy takes its time and no more."""
    pacers: dict[int, Pacer] = {}  # by worker

    async def connect(channel: BookieChannel, *, again: bool = False) -> None:
        if not bookies[channel.bookie_id].host.up:
            raise BookieUnavailableError("it has lost its power", bookie=channel.bookie_id)

    async def copy(repair: LedgerRepair, metadata: LedgerMetadata, what: Copy, target: str) -> Copied:
        here = CURRENT.get()
        assert here is not None
        pacer = pacers.setdefault(id(here), Pacer(TrueClock(asyncio.get_running_loop()), copy_rate))
        await asyncio.sleep(COPY_S)
        await pacer.take_turn(ledger_bytes)
        return Copied(metadata.last_entry + 1)

    with patch.object(BookieChannel, "connect", connect), patch.object(LedgerRepair, "copy", copy):
        yield


# --- a run ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Size:
    """Of one run. `ledgers`: how many a bookie has a copy of, about; `copy_rate`: bytes a second of one worker.

    `zookeeper_calls`: a second, of all sessions together.
    """

    bookies: int
    ledgers: int
    racks: int = 10
    entries: int = 10
    entry_bytes: int = 1000
    writers: int = 0
    copy_rate: int = 100 * MIB
    zookeeper_calls: int = 20_000
    light: bool = False
    seed: int = 0

    @property
    def ledgers_in_all(self) -> int:
        return self.bookies * self.ledgers // ENSEMBLE


class Scale:
    """One run. `run()` may be called once."""

    def __init__(self, size: Size, **settings: Any) -> None:
        self.size = size
        self.world = Untraced(size.seed)
        self.rng = self.world.stream("scale")
        self.meter = Meter(self.world, size.zookeeper_calls)
        self.operator = self.world.add_host("operator")
        self.clients = [self.world.add_host(f"client-{i}") for i in range(CLIENTS)]
        self.meter.clients = {host.address for host in self.clients}
        self.settings = settings
        self.bookies = [self._bookie(number) for number in range(size.bookies)]
        self.lost = [bookie for number, bookie in enumerate(self.bookies) if number % size.racks == 0]
        self.lost_names = {bookie.settings.bookie_id for bookie in self.lost}
        self.over = asyncio.Event()
        self.waits: list[float] = []  # of appends while the rack was going, seconds
        self.failed = 0  # writers
        self.result: dict[str, Any] = {}

    def _bookie(self, number: int) -> RealBookie | LightBookie:
        name, rack = f"bookie-{number:04}.example", f"rack-{number % self.size.racks}"
        settings: dict[str, Any] = {
            "journal_directories": ["/data/journal"],
            "ledger_directories": ["/data/ledgers"],
            "journal_max_size_mb": 4,
            "rack": rack,
            "copy_bytes_per_s_max": self.size.copy_rate,
            **self.settings,
        }
        if not self.size.light:
            return RealBookie(self.world, name, calm=True, **settings)
        address = f"10.1.{number // 250}.{number % 250 + 1}:3181"
        return LightBookie(
            self.world,
            name,
            BookieSettings(metadata_uri=f"zk://10.0.0.100:2181{ROOT}", listen=address, bookie_id=name, **settings),
        )

    def run(self) -> dict[str, Any]:
        began = time.process_time()
        light = {bookie.settings.bookie_id: bookie for bookie in self.bookies if isinstance(bookie, LightBookie)}
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.meter.counting())
            if light:
                stack.enter_context(light_copies(light, self.size.entries * self.size.entry_bytes, self.size.copy_rate))
            self.world.run(self._play(), limit_s=HEALED_WITHIN_S)
        self.meter.end()
        return {
            **dataclasses.asdict(self.size),
            "ledgers_in_all": self.size.ledgers_in_all,
            **self.result,
            "phases": [phase.report() for phase in self.meter.phases],
            "processor_s": round(time.process_time() - began, 1),
            "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }

    async def _play(self) -> None:
        gc.enable()  # a run is long, and nothing is compared between two
        for host in (self.operator, *self.clients):
            host.boot()
        await self.operator.start(init_cluster(self.operator.session(), ROOT))
        self.meter.begin("the cluster starts")
        await for_each(self.bookies, lambda bookie: bookie.start(), at_once=STARTED_AT_ONCE)
        self.meter.begin("ledgers are made")
        if self.size.light:
            self._make_ledgers()
        else:
            parts = range(CLIENTS)
            await asyncio.gather(*(self.clients[i].start(self._write_ledgers(i)) for i in parts))
        writing = [host.start(self._write_on(i)) for i, host in enumerate(self.clients) if self.size.writers]
        await asyncio.sleep(SETTLED_S)
        self.meter.begin("nothing happens")
        await asyncio.sleep(QUIET_S)
        self.meter.begin("a rack is lost")
        await self._lose_rack()
        self.meter.begin("afterwards")
        self.over.set()
        await asyncio.gather(*writing)

    # --- ledgers ----------------------------------------------------------------------------------------------------

    def _make_ledgers(self) -> None:
        """As metadata alone, placed as clients place them."""
        tree = self.world.metadata
        placement = rack_aware_placement(self.rng)
        infos = {
            bookie.settings.bookie_id: BookieInfo(bookie.settings.bookie_id, "", bookie.settings.rack)
            for bookie in self.bookies
        }
        some = [placement.choose(infos, ENSEMBLE, ()) for _ in range(min(self.size.ledgers_in_all, ENSEMBLES_MAX))]
        made: set[str] = set()
        for ledger_id in range(self.size.ledgers_in_all):
            path = LONG_HIERARCHICAL.path_of(ROOT, ledger_id)
            above: list[str] = []
            while (parent := parent_of(above[-1] if above else path)) != ROOT and parent not in made:
                above.append(parent)
            for parent in reversed(above):
                tree.apply(Create(parent, b""), 0)
                made.add(parent)
            metadata = LedgerMetadata(
                ledger_id=ledger_id,
                state=LedgerState.CLOSED,
                ensemble_size=ENSEMBLE,
                write_quorum=ENSEMBLE,
                ack_quorum=QUORUM,
                digest="crc32c",
                ledger_key=bytes(32),
                fragments=(Fragment(0, some[ledger_id % len(some)]),),
                last_entry=self.size.entries - 1,
                length=self.size.entries * self.size.entry_bytes,
                owner_token="0" * 32,
            )
            tree.apply(Create(path, metadata.encode()), 0)
        tree.node(f"{ROOT}/{LONG_HIERARCHICAL.id_nodes[1]}").created = self.size.ledgers_in_all

    async def _connect(self, host: Host) -> Client:
        return await open_client(host.session(), ROOT, host.runtime, client_settings(), owns_store=True)

    async def _write_ledgers(self, number: int) -> None:
        size = self.size
        client = await self._connect(self.clients[number])

        async def write(_: int) -> None:
            async with await client.create_ledger(**SIZES) as writer:
                await writer.append_batch([bytes(size.entry_bytes)] * size.entries)

        await for_each(range(number, size.ledgers_in_all, CLIENTS), write, at_once=AT_ONCE)
        await client.close()

    async def _write_on(self, number: int) -> None:
        """Append to each of some open ledgers again and again, until all is healed."""
        client = await self._connect(self.clients[number])
        writers = [await client.create_ledger(**SIZES) for _ in range(number, self.size.writers, CLIENTS)]
        await asyncio.gather(*(self._append_to(writer) for writer in writers))
        for writer in writers:
            with contextlib.suppress(BookKeeperError):
                await writer.close()
        await client.close()

    async def _append_to(self, writer: LedgerWriter) -> None:
        rng = self.world.stream(f"writer-{writer.ledger_id}")
        loop = asyncio.get_running_loop()
        while not self.over.is_set():
            began = loop.time()
            try:
                await writer.append(bytes(self.size.entry_bytes))
            except BookKeeperError:
                self.failed += 1
                return
            self.waits.append(loop.time() - began)
            await asyncio.sleep(rng.random() * 2 * APPEND_S)

    # --- the loss ---------------------------------------------------------------------------------------------------

    async def _lose_rack(self) -> None:
        began = self.world.loop.now
        self.waits.clear()
        for bookie in self.lost:
            for session in bookie.host.sessions:
                session.session_timeout_s = self._ends_in(session.session_timeout_s)
            bookie.host.power_cut()
        recorded_at = None
        while True:
            await asyncio.sleep(LOOK_S)
            if recorded_at is None and self._recorded():
                recorded_at = self.world.loop.now
            if recorded_at is not None and not self._records() and not self._naming_lost():
                break
        now = self.world.loop.now
        self.result = {
            "lost": len(self.lost),
            "recorded_s": round(recorded_at - began, 1),
            "healed_s": round(now - began, 1),
            "audit_record_bytes": len(self.world.metadata.node(f"{ROOT}/{paths.AUDIT}").data),
            "writers_failed": self.failed,
            "append_wait_max_s": round(max(self.waits, default=0.0), 3),
        }

    def _ends_in(self, timeout_s: float) -> float:
        """When ZooKeeper ends a session that dies now: it was heard of up to a third of its timeout ago."""
        now = self.world.loop.now
        ends_at = now + timeout_s * (1 - self.rng.random() / 3)
        return math.ceil(ends_at / TICK_S) * TICK_S - now

    def _recorded(self) -> bool:
        """Whether the auditor has recorded all ledgers of the lost bookies."""
        try:
            record = json.loads(self.world.metadata.node(f"{ROOT}/{paths.AUDIT}").data)
        except NoNode:
            return False
        absences = record["absent"]
        return all(absences.get(name, {}).get("marked") for name in self.lost_names)

    def _records(self) -> bool:
        return any(True for _ in self._leaves(f"{ROOT}/{paths.MARKS}", LEVELS))

    def _naming_lost(self) -> bool:
        return any(
            not self.lost_names.isdisjoint(metadata.needed_bookies)
            for metadata in map(self._metadata, self._leaves(ROOT, LEVELS))
        )

    def _metadata(self, path: str) -> LedgerMetadata:
        ledger_id = LONG_HIERARCHICAL.id_of(path.removeprefix(f"{ROOT}/"))
        assert ledger_id is not None
        return LedgerMetadata.decode(ledger_id, self.world.metadata.node(path).data)

    def _leaves(self, path: str, levels: int) -> Iterator[str]:
        """The nodes of ledgers so many levels below."""
        if not levels:
            yield path
            return
        try:
            names = self.world.metadata.node(path).children
        except NoNode:
            return
        for name in sorted(names):
            if name.removeprefix("L").isdecimal():
                yield from self._leaves(f"{path}/{name}", levels - 1)


# --- all of them ----------------------------------------------------------------------------------------------------


def show(found: dict[str, Any]) -> None:
    print(
        f"{found['bookies']} bookies, {found['ledgers_in_all']} ledgers: {found['lost']} bookies lost, recorded after "
        f"{found['recorded_s']} s, healed after {found['healed_s']} s; the longest append took "
        f"{found['append_wait_max_s']} s, {found['writers_failed']} writers failed ({found['processor_s']} s of "
        f"processor, {found['memory_mb']} MB)"
    )
    for phase in found["phases"]:
        print(
            f"  {phase['phase']}: {phase['seconds']} s, {phase['calls']} calls, {phase['calls_in_worst_second']} in "
            f"the worst second, replies of {phase['reply_mb']} MB, the largest list {phase['list_bytes_max']} bytes, "
            f"{phase['ledger_writes_of_clients']} writes of metadata by clients"
        )
        for name in ("by_kind", "by_both"):
            print("    " + ", ".join(f"{what} {count}" for what, count in phase[name].items()))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.sim.scale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bookies", type=int, nargs="+", default=[100])
    parser.add_argument("--ledgers", type=int, nargs="+", default=[100], help="that each bookie has a copy of")
    for field in dataclasses.fields(Size):
        if field.name not in ("bookies", "ledgers", "light"):
            parser.add_argument(f"--{field.name.replace('_', '-')}", type=int, default=field.default)
    parser.add_argument("--light", action="store_true")
    parser.add_argument("--json", type=Path, help="a file to which the rows are added")
    arguments = vars(parser.parse_args())
    logging.lastResort = None  # what a lost rack makes bookies and workers warn of
    file, bookies, ledgers = arguments.pop("json"), arguments.pop("bookies"), arguments.pop("ledgers")
    rows: list[dict[str, Any]] = json.loads(file.read_text()) if file is not None and file.exists() else []
    for bookies_, ledgers_ in product(bookies, ledgers):
        found = Scale(Size(bookies_, ledgers_, **arguments)).run()
        show(found)
        sys.stdout.flush()
        rows.append(found)
        if file is not None:
            file.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
