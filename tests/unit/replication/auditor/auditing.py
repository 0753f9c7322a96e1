"""A cluster in memory for tests of the auditor: bookies that are only nodes, ledgers that are only metadata."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry
from tests.in_process import runtime_here
from tests.unit.metadata.store.troubled import Troubled
from tests.waiting import eventually

from bkpy.config.recovery import RecoverySettings
from bkpy.metadata.cluster import Cluster, init_cluster, open_cluster
from bkpy.metadata.ledgers.catalog import Created
from bkpy.metadata.ledgers.layout import IdGenerator, NewId
from bkpy.metadata.replication.election import Election
from bkpy.metadata.replication.underreplication import UnderreplicationQueue, UnderreplicationRecord
from bkpy.metadata.store.memory import MemoryStore
from bkpy.metadata.store.outcome import Done, Gone
from bkpy.metadata.store.store import Create, Delete, Put
from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bkpy.replication.auditor.auditor import Auditor
from bkpy.replication.auditor.auditor_metrics import AuditorMetrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.unit.metadata.store.troubled import OpeningStep

    from bkpy.runtime.interfaces import Runtime
    from bkpy.runtime.system import SystemRuntime

ROOT = "/ledgers"
SETTLE_S, DELAY_S = 30.0, 300.0


class Clock:
    """The clock on the wall stands still unless a test moves it; all waiting takes no time to speak of."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def time(self) -> float:
        return self.now


class Ahead:
    """Another machine's clock, which is ahead."""

    def __init__(self, clock: Clock, ahead_s: float) -> None:
        self._clock = clock
        self._ahead_s = ahead_s

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def time(self) -> float:
        return self._clock.time() + self._ahead_s


def settings(**given: Any) -> RecoverySettings:
    return RecoverySettings(
        **{
            "metadata_write_attempts_max": 3,
            "metadata_retry_pause_s": 0.001,
            "lost_bookie_settle_s": SETTLE_S,
            "lost_bookie_recovery_delay_s": DELAY_S,
            "audit_look_interval_s": 0.002,
            "audit_follow_interval_s": 0.002,
            **given,
        }
    )


class Auditing:
    """The cluster, and what is done to it. Changes are made behind everybody's back, at once."""

    def __init__(self, tree: MemoryStore, cluster: Cluster, runtime: SystemRuntime, clock: Clock) -> None:
        self.tree = tree
        self.cluster = cluster
        self.runtime = runtime
        self.clock = clock
        self.marks = UnderreplicationQueue(tree.session(), ROOT, runtime)
        self.candidates: list[Candidate] = []

    def put(self, path: str, fields: dict[str, Any]) -> None:
        data = json.dumps(fields).encode()
        if path in self.tree.paths:
            self.tree.apply(Put(path, data, self.tree.node(path).version), 0)
        else:
            self.tree.apply(Create(path, data), 0)

    def bookie(self, name: str, storage: str = "1", *, read_only: bool = False, in_limbo: bool = False) -> None:
        """It comes, with that storage."""
        uuids = [{"path": f"/{uuid}", "index_uuid": uuid} for uuid in storage.split()]
        cookie = {"bookie_id": name, "address": "h:1", "instance_id": "i", "storage": {"ledger_directories": uuids}}
        self.put(f"{ROOT}/cookies/{name}", cookie)
        place = f"{ROOT}/available/{'readonly/' if read_only else ''}{name}"
        self.put(place, {"version": 1, "address": "h:1", "in_limbo": in_limbo})

    def leave(self, *names: str) -> None:
        """Their registrations go."""
        for name in names:
            for place in ("", "readonly/"):
                if (path := f"{ROOT}/available/{place}{name}") in self.tree.paths:
                    self.tree.apply(Delete(path), 0)

    async def ledger(self, *ensembles: str, state: LedgerState = LedgerState.CLOSED) -> int:
        """A ledger with one fragment for each ensemble, given as "a b c"."""

        def build(ledger_id: int) -> LedgerMetadata:
            return metadata(ledger_id, LedgerState.OPEN, ensembles)

        created = await self.cluster.catalog.create(build)
        assert isinstance(created, Created)
        await self.rewrite(created.metadata.ledger_id, *ensembles, state=state)
        self.written_ago(created.metadata.ledger_id, 3600)
        return created.metadata.ledger_id

    async def draw_id(self) -> NewId:
        """What a client holds that has yet to create its ledger."""
        layout = self.cluster.catalog.layout
        new = await IdGenerator(self.tree.session(), ROOT, layout, attempts_max=1).next()
        assert isinstance(new, NewId)
        return new

    def create_drawn(self, new: NewId, *ensembles: str) -> None:
        """That client goes on."""
        data = metadata(new.ledger_id, LedgerState.CLOSED, ensembles).encode()
        self.tree.apply_all([Create(self.cluster.catalog.path_of(new.ledger_id), data), Delete(new.node)], 0)

    def give_ids_from(self, ledger_id: int) -> None:
        """Those before were given to ledgers that are gone."""
        self.tree.node(f"{ROOT}/idgen-long/HOB-0000000000").created = ledger_id

    def written_ago(self, ledger_id: int, seconds: float) -> None:
        """The ledger's metadata were written then."""
        node = self.tree.node(self.cluster.catalog.path_of(ledger_id))
        node.written_ms = int((self.clock.now - seconds) * 1000)

    async def rewrite(self, ledger_id: int, *ensembles: str, state: LedgerState = LedgerState.CLOSED) -> None:
        _, version = await self.cluster.catalog.read(ledger_id)
        assert isinstance(await self.cluster.catalog.write(metadata(ledger_id, state, ensembles), version), Done)

    def names(self, ledger_id: int) -> set[str]:
        data = self.tree.node(self.cluster.catalog.path_of(ledger_id)).data
        return {bookie for fragment in LedgerMetadata.decode(ledger_id, data).fragments for bookie in fragment.bookies}

    async def marked(self) -> dict[int, set[str]]:
        """Which ledgers have marks, and for whom."""
        found = {}
        async for ledger_id in self.marks.list():
            mark = await self.marks.read(ledger_id)
            if mark is not None:
                found[ledger_id] = set(mark.lost)
        return found

    async def mark(self, ledger_id: int) -> UnderreplicationRecord:
        mark = await self.marks.read(ledger_id)
        assert mark is not None
        return mark

    def record(self) -> dict[str, Any]:
        path = f"{ROOT}/underreplication/audit"
        found = json.loads(self.tree.node(path).data) if path in self.tree.paths else {}
        assert isinstance(found, dict)
        return found

    def absent(self) -> dict[str, dict[str, Any]]:
        found = self.record().get("absent", {})
        assert isinstance(found, dict)
        return found

    async def auditor(
        self, script: Iterable[str | OpeningStep | None] = (), name: str = "a", ahead_s: float = 0.0, **given: Any
    ) -> Candidate:
        """One whose clock is ahead of that of the metadata store by so much."""
        store = Watched(self.tree)
        cluster = await open_cluster(store, ROOT)
        runtime = dataclasses.replace(self.runtime, clock=Ahead(self.clock, ahead_s)) if ahead_s else self.runtime
        candidate = Candidate(store, cluster, runtime, settings(**given), name, script)
        self.candidates.append(candidate)
        return candidate

    async def until(self, condition: Callable[[], bool]) -> None:
        await eventually(condition, pause_s=0.001)

    async def rounds(self, count: int = 2) -> None:
        """Until the auditor has looked that often more, from beginning to end."""
        leading = next(c for c in self.candidates if not c.task.done())
        target = leading.store.looks + count + 1
        await self.until(lambda: leading.store.looks >= target)

    async def close(self) -> None:
        for candidate in self.candidates:
            candidate.task.cancel()
        if self.candidates:
            await asyncio.wait([candidate.task for candidate in self.candidates])


class Watched(Troubled):
    """Counts looks at the bookies, and the nodes of ledgers that are read."""

    looks = 0
    ledger_reads = 0

    async def children(self, path: str) -> list[str]:
        self.looks += path == f"{ROOT}/cookies"
        return await super().children(path)

    async def get(self, path: str) -> tuple[bytes, int]:
        self.ledger_reads += path.startswith(f"{ROOT}/000/")
        return await super().get(path)


class Candidate:
    """One that stands for auditor, in a session of its own."""

    def __init__(
        self,
        store: Watched,
        cluster: Cluster,
        runtime: Runtime,
        given: RecoverySettings,
        name: str,
        script: Iterable[str | OpeningStep | None],
    ) -> None:
        self.store = store
        store.script.extend(script)
        self.registry = CollectorRegistry()
        auditor = Auditor(cluster, runtime, given, AuditorMetrics(self.registry))
        self.election = Election(store, ROOT, name, runtime, given)
        self.task = asyncio.ensure_future(self.election.stand(auditor.audit))

    def metric(self, name: str, **labels: str) -> float:
        value = self.registry.get_sample_value(f"bkpy_auditor_{name}", labels)
        assert value is not None, name
        return value

    async def kill(self) -> None:
        """The process is gone, and its session with it."""
        self.task.cancel()
        await asyncio.wait([self.task])
        await self.store.close()


def metadata(ledger_id: int, state: LedgerState, ensembles: tuple[str, ...]) -> LedgerMetadata:
    closed = state is LedgerState.CLOSED
    return LedgerMetadata(
        ledger_id=ledger_id,
        state=state,
        ensemble_size=len(ensembles[0].split()),
        write_quorum=1,
        ack_quorum=1,
        digest="crc32c",
        ledger_key=bytes(32),
        fragments=tuple(Fragment(10 * n, tuple(ensemble.split())) for n, ensemble in enumerate(ensembles)),
        last_entry=10 * len(ensembles) if closed else -1,
        length=1 if closed else 0,
        owner_token="t",
    )


async def auditing(bookies: str = "abcde", layout: str = "long-hierarchical") -> Auditing:
    """A cluster of bookies that are all there."""
    clock = Clock()
    runtime = dataclasses.replace(runtime_here(), clock=clock)
    tree = MemoryStore(runtime)
    made = Auditing(tree, await init_cluster(tree.session(), ROOT, layout), runtime, clock)
    for name in bookies:
        made.bookie(name)
    return made


async def lose(cluster: Auditing, *bookies: str, for_s: float = DELAY_S) -> None:
    """These leave; and that time passes, after the auditor has seen it."""
    cluster.leave(*bookies)
    await cluster.until(lambda: set(bookies) <= cluster.absent().keys())
    cluster.clock.now += for_s


async def until_marked(cluster: Auditing, *bookies: str) -> None:
    await cluster.until(lambda: all(cluster.absent().get(bookie, {}).get("marked") for bookie in bookies))


async def replicate(cluster: Auditing, ledger_id: int, *ensembles: str) -> None:
    """What a worker does with a mark: the swap, and then the mark goes."""
    mark = await cluster.mark(ledger_id)
    await cluster.rewrite(ledger_id, *ensembles)
    assert isinstance(await cluster.marks.remove(mark, mark.lost), Gone)
