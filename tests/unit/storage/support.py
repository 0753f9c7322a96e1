"""What the storage tests share: entry records, adds, and a bookie's storage on a simulated disk that can crash."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.hooks import open_logs_of
from tests.sim.disk import SimDisk
from tests.sim.store import SimStores

from bkpy.config.bookie import BookieSettings
from bkpy.protocol.wire.messages import AddColumns, pack
from bkpy.protocol.wire.records import RecordCodec, walk
from bkpy.runtime.process import NoFaults, TaskSpawner
from bkpy.runtime.system import SystemRuntime
from bkpy.storage.engine import LedgerStorage
from bkpy.storage.index.index import block_rows, decode_block_row, log_rows
from bkpy.storage.open import open_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bkpy.storage.engine import LedgerStorage
    from bkpy.storage.shard import Shard

KEY = b"k" * 32
INSTANCE = "11111111-2222-3333-4444-555555555555"


@dataclass
class SteppingClock:
    """A millisecond passes at each look, so that files get different names without waiting."""

    now: float = 1_700_000_000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        self.now += 0.001
        return self.now


def sim_runtime(disk: SimDisk, clock: SteppingClock | None = None, seed: int | str = 0) -> SystemRuntime:
    """A runtime on `disk` whose tasks run on the loop of the test."""
    return SystemRuntime(
        clock=clock or SteppingClock(),
        files=disk,
        store=SimStores(disk),
        rng=random.Random(f"storage-{seed}"),
        spawn=TaskSpawner(),
        faults=NoFaults(),
        process="tests, pid 1",
    )


def settings(root: str = "/b", *, journals: int = 1, ledgers: int = 1, **values: Any) -> BookieSettings:
    """Small sizes, so that little data rolls files and fills blocks."""
    return BookieSettings(
        **{
            "metadata_uri": "zk://127.0.0.1:2181/ledgers",
            "bookie_id": "bookie-1",
            "journal_directories": [f"{root}/journal{i}" for i in range(journals)],
            "ledger_directories": [f"{root}/ledgers{i}" for i in range(ledgers)],
            "journal_max_size_mb": 1,
            "checkpoint_interval_s": 1e6,
            "reclaim_interval_s": 1e6,
            "index_step_pause_s": 1e-6,
            "scrub_interval_s": 0,
            **values,
        }
    )


# Every bound of the storage at its smallest.
SMALLEST: dict[str, Any] = {
    "journal_group_bytes_max": 1,
    "journal_queue_bytes_max": 1,
    "journal_max_backups": 0,
    "journal_recycled_files_max": 0,
    "journal_read_bytes": 4096,
    "journal_uncache_bytes_min": 1,
    "journal_run_bytes_min": 1,
    "journal_run_share_min": 0.0,
    "memtable_bytes_max": 1,
    "memtable_fill_min": 0.001,
    "memtable_step_batches": 1,
    "block_bytes": 1,
    "block_run_bytes": 1,
    "entry_log_max_size_mb": 1,
    "entry_log_blocks_max": 1,
    "entry_log_write_bytes": 1,
    "checkpoint_commit_ledgers": 1,
    "flush_step_batches": 1,
    "rebuild_step_blocks": 1,
    "flush_part_batches": 1,
    "open_entry_logs_max": 1,
    "block_cache_bytes_max": 1,
    "read_ahead_bytes_max": 0,
    "read_ahead_ledgers_max": 1,
    "memory_bytes_max": 1,
    "memtable_rest_bytes_min": 1,
    "ledger_states_max": 1,
    "index_readers_max": 5,
    "index_step_rows": 1,
    "index_free_share_max": 0.001,
    "index_shrink_bytes_min": 0,
    "reclaim_interval_s": 0.001,
    "compaction_minor_interval_s": 0.001,
    "compaction_major_interval_s": 0.001,
    "compaction_step_bytes": 1,
    "compaction_commit_bytes": 1,
    "scrub_interval_s": 0.001,
    "scrub_step_bytes": 1,
    "scrub_save_interval_s": 0.001,
    "scrub_damages_max": 1,
}


def records(ledger_id: int, entry_ids: Sequence[int], payload: bytes = b"data", lac: int = -1) -> bytes:
    """The records of these entries, one after the other."""
    codec = RecordCodec(ledger_id)
    parts: list[Any] = []
    for entry_id in entry_ids:
        codec.encode(parts, (payload,), entry_id, 1, lac, (0,))
    return b"".join(parts)


def found_ids(segments: Sequence[Any]) -> list[int]:
    return [header.entry_id for header in walk(b"".join(segments))]


def payloads(segments: Sequence[Any]) -> dict[int, bytes]:
    """Payload by entry id, in the order in which the entries came."""
    data = b"".join(segments)
    return {header.entry_id: data[header.offset + 32 : header.end] for header in walk(data)}


@dataclass
class Batch:
    """A batch of an ADD: entries first + k * stride."""

    ledger_id: int
    first: int
    count: int = 1
    stride: int = 1
    payload: bytes = b"data"
    lac: int = -1

    @property
    def ids(self) -> range:
        return range(self.first, self.first + self.count * self.stride, self.stride)

    def body(self) -> bytes:
        return records(self.ledger_id, self.ids, self.payload, self.lac)


def add(storage: LedgerStorage, *batches: Batch, bodies: Sequence[bytes] | None = None) -> asyncio.Future[None]:
    """One ADD frame of these batches; resolved when it is durable. Ledgers that were never seen are created."""
    parts = [batch.body() for batch in batches] if bodies is None else list(bodies)
    strides = {batch.stride for batch in batches}
    columns = AddColumns(
        0,
        [batch.ledger_id for batch in batches],
        [batch.first for batch in batches],
        [batch.count for batch in batches],
        strides.pop() if len(strides) == 1 else [batch.stride for batch in batches],
        [len(part) for part in parts],
    )
    for ledger_id in dict.fromkeys(batch.ledger_id for batch in batches):
        if storage.ledgers.load_now(ledger_id) is None:
            storage.create(ledger_id, KEY)
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    storage.add(columns, pack(list(columns)), memoryview(b"".join(parts)), lambda: future.set_result(None))
    return future


async def read_all(storage: LedgerStorage, ledger_id: int, first: int, last: int, bytes_max: int = 1 << 20) -> Any:
    """(payload by id, unknown ids) of a range, by as many reads as it takes; checks what each of them promises."""
    have: dict[int, bytes] = {}
    unknown: set[int] = set()
    at = first
    while at <= last:
        result = await storage.read(ledger_id, at, last, bytes_max)
        assert at <= result.examined_to <= last
        part = payloads(result.segments)
        assert list(part) == sorted(part), "not in ascending order"
        assert all(at <= entry_id <= result.examined_to for entry_id in part)
        size = sum(map(len, result.segments))
        assert size <= bytes_max or len(part) == 1 or bytes_max >= 1 << 20
        have |= part
        for low, high in result.unknown:
            assert at <= low <= high <= result.examined_to
            unknown.update(range(low, high + 1))
        at = result.examined_to + 1
    return have, unknown - have.keys()


async def reclaim(storage: LedgerStorage, living_ratio: float = 0.0) -> None:
    """One round of what gives space back, in every shard, with compaction of logs of which less than that lives."""
    for reclaimer in storage.reclaimers:
        await reclaimer.reclaim(living_ratio)


def check_living_bytes(storage: LedgerStorage) -> None:
    """What the logs' rows say to live is what the block rows name, and no log that is named is missing."""
    for shard in storage.shards:
        _check_living_bytes(shard)


async def check_living_bytes_between_checkpoints(storage: LedgerStorage) -> None:
    """The same, where a checkpoint may be under way: what it has committed is known to the shard a moment later."""
    for shard in storage.shards:
        async with shard.checkpointing:
            _check_living_bytes(shard)


def _check_living_bytes(shard: Shard) -> None:
    with shard.store.read() as txn:
        named: Counter[int] = Counter()
        for key, value in block_rows(txn):
            place = decode_block_row(key, value).place
            named[place.log_id] += place.length
        rows = log_rows(txn)
    for log_id, row in rows.items():
        assert row is not None
        assert row.living in (None, named[log_id]), f"{row.living} instead of {named[log_id]} bytes live"
    missing = named.keys() - rows.keys() - open_logs_of(shard)
    assert not missing, f"logs {missing} are named, and nobody has them"


class Reports:
    """Remembers what the storage reported."""

    def __init__(self) -> None:
        self.damages: list[tuple[str, str]] = []
        self.cuts: list[tuple[str, str]] = []
        self.groups: list[int] = []
        self.removed: list[int] = []
        self.copied: list[int] = []
        self.reclaim_failures = 0
        self.replayed_frames = 0
        self.scrubbed_bytes = 0
        self.checkpoints = 0
        self.flushed: list[int] = []

    def journal_group(self, frames: int, bytes_: int, sync_seconds: float) -> None:
        self.groups.append(frames)

    def checkpoint(self, bytes_: int, seconds: float) -> None:
        self.checkpoints += 1
        self.flushed.append(bytes_)

    def replayed(self, frames: int, bytes_: int) -> None:
        self.replayed_frames += frames

    def compacted(self, bytes_: int) -> None:
        self.copied.append(bytes_)

    def reclaim_failed(self) -> None:
        self.reclaim_failures += 1

    def log_removed(self, bytes_: int) -> None:
        self.removed.append(bytes_)

    def scrubbed(self, bytes_: int) -> None:
        self.scrubbed_bytes += bytes_

    def cut(self, what: str, path: str) -> None:
        self.cuts.append((what, path))

    def damage(self, what: str, path: str) -> None:
        self.damages.append((what, path))


@dataclass
class Host:
    """A bookie's storage on a simulated disk, across crashes."""

    disk: SimDisk = field(default_factory=SimDisk)
    settings: BookieSettings = field(default_factory=settings)
    cookie: bytes | None = None
    clock: SteppingClock = field(default_factory=SteppingClock)
    reports: Reports = field(default_factory=Reports)
    boots: int = 0

    async def boot(self, *, rebuild: bool = False) -> LedgerStorage:
        """`rebuild`: on directories that may be empty."""
        self.boots += 1
        self.reports = Reports()
        storage = await open_storage(
            self.settings,
            sim_runtime(self.disk, self.clock, self.boots),
            instance_id=INSTANCE,
            expected_cookie=self.cookie,
            observer=self.reports,
            on_moved=self._moved,
            on_restart=self._moved if rebuild else None,
        )
        self.cookie = storage.cookie
        storage.check_invariants()
        return storage

    async def _moved(self, cookie: bytes) -> None:
        self.cookie = cookie

    def journal_files(self, number: int = 0) -> list[str]:
        directory = self.settings.journal_directories[number]
        return [f"{directory}/{name}" for name in self.disk.listdir(directory) if name.endswith(".txn")]


class Stall:
    """Holds up what a worker is given, from `begin` to `end`; order is kept."""

    def __init__(self, worker: Any) -> None:
        self._run = worker.run
        self._held: list[tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]] = []
        self._on = False
        worker.run = self.run

    def begin(self) -> None:
        self._on = True

    def end(self) -> None:
        self._on = False
        for future, function, args in self._held:
            asyncio.ensure_future(self._run(function, *args)).add_done_callback(
                lambda done, future=future: future.set_result(done.result())
            )
        self._held.clear()

    def run(self, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        if not self._on:
            return self._run(function, *args)  # type: ignore[no-any-return]
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._held.append((future, function, args))
        return future
