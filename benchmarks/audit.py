"""What it costs to find out what a lost bookie had: the auditor's scans, on a ZooKeeper of their own.

    python benchmarks/audit.py [--ledgers N] [--bookies N] [--json FILE]

The ledgers are metadata alone, closed, on three bookies each. A first bookie is lost: all ledgers are read, and those
that name it are marked. Its marks are worked off, and a second one is lost: what was learnt before is enough. Beside
it somebody else reads a node all the time, as a writer would that opens a ledger: what the audit costs others.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import uvloop
from prometheus_client import CollectorRegistry
from rich.console import Console
from rich.table import Table

from bkpy.bench.machine import machine, versions
from bkpy.config.recovery import RecoverySettings
from bkpy.local.process import free_port
from bkpy.local.zookeeper import ZooKeeperServer
from bkpy.metadata import paths
from bkpy.metadata.cluster import init_cluster
from bkpy.metadata.connect import connect_store
from bkpy.metadata.ledgers.layout import LONG_HIERARCHICAL
from bkpy.metadata.replication.underreplication import LostBookie, UnderreplicationQueue
from bkpy.metadata.store.outcome import NotDone
from bkpy.metadata.store.resolve import ensure_path
from bkpy.metadata.store.store import Create, Delete, Put, parent_of
from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bkpy.replication.auditor.auditor_metrics import AuditorMetrics
from bkpy.replication.auditor.ledger_scan import LedgerScan
from bkpy.replication.auditor.remembered_ledgers import RememberedLedgers
from bkpy.runtime.system import real_runtime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

    from bkpy.metadata.cluster import Cluster
    from bkpy.metadata.store.store import MetadataStore

COPIES: Final = 3
SESSION_TIMEOUT_S: Final = 60.0
MADE_AT_ONCE: Final = 100  # nodes in a transaction
MADE_IN_FLIGHT: Final = 8
HEAP: Final = "-Xmx4g"  # of ZooKeeper, which has all nodes in memory: what is its own for tests is too little
LOOKS_S: Final = 0.01  # between two of somebody else's reads


def metadata_of(ledger_id: int, bookies: Collection[str]) -> bytes:
    metadata = LedgerMetadata(
        ledger_id=ledger_id,
        state=LedgerState.CLOSED,
        ensemble_size=COPIES,
        write_quorum=COPIES,
        ack_quorum=2,
        digest="crc32c",
        ledger_key=bytes(32),
        fragments=(Fragment(0, tuple(bookies)),),
        last_entry=99,
        length=10_000,
        owner_token="0" * 32,
    )
    return metadata.encode()


async def make_ledgers(cluster: Cluster, count: int, bookies: list[str]) -> None:
    """Ledgers 0, 1, ..., and the nodes above them; their ids are drawn, so that a listing tells that all are known."""
    ranges = [range(start, min(count, start + MADE_AT_ONCE)) for start in range(0, count, MADE_AT_ONCE)][::-1]
    for above in {parent_of(cluster.catalog.path_of(ledger_id)) for ledger_id in range(count)}:
        made = await ensure_path(cluster.store, above, attempts_max=1)
        assert not isinstance(made, NotDone)

    def nodes_of(ledger_id: int) -> list[Create | Delete]:
        named = [bookies[(ledger_id + place) % len(bookies)] for place in range(COPIES)]
        drawn = f"{cluster.root}/{LONG_HIERARCHICAL.id_nodes[1]}/{ledger_id}"
        ledger = Create(cluster.catalog.path_of(ledger_id), metadata_of(ledger_id, named))
        return [Create(drawn, b""), Delete(drawn), ledger]

    async def make() -> None:
        while ranges:
            await cluster.store.multi([node for ledger_id in ranges.pop() for node in nodes_of(ledger_id)])

    await asyncio.gather(*(make() for _ in range(MADE_IN_FLIGHT)))


@contextlib.asynccontextmanager
async def somebody_else(store: MetadataStore, path: str) -> AsyncIterator[list[float]]:
    """How long each of their reads took, in milliseconds."""
    took: list[float] = []

    async def look() -> None:
        while True:
            began = time.perf_counter()
            await store.get(path)
            took.append((time.perf_counter() - began) * 1000)
            await asyncio.sleep(LOOKS_S)

    looking = asyncio.create_task(look())
    try:
        yield took
    finally:
        looking.cancel()
        await asyncio.wait([looking])


class Audit:
    """The scans of one auditor's term."""

    def __init__(self, cluster: Cluster, other: MetadataStore, settings: RecoverySettings) -> None:
        self.rows: list[dict[str, Any]] = []
        runtime = cluster.store.runtime
        self._cluster = cluster
        self._other = other
        self._settings = settings
        self._marks = UnderreplicationQueue(cluster.store, cluster.root, runtime, settings)
        metrics = AuditorMetrics(CollectorRegistry())
        remembered = RememberedLedgers(settings.audit_remembered_max)
        self._scan = LedgerScan(cluster.catalog, self._marks, remembered, runtime, settings, metrics)

    async def mark(self, what: str, lost: Collection[str], due: Collection[str]) -> None:
        path = self._cluster.catalog.path_of(0)
        before, began = self._scan.added, time.perf_counter()
        async with somebody_else(self._other, path) as took:
            await self._scan.add_records({name: LostBookie(1, instance="1") for name in lost}, due=due)
        seconds = time.perf_counter() - began
        print(f"{what}: {seconds:.1f} s", file=sys.stderr)
        p99 = statistics.quantiles(took, n=100)[98] if len(took) > 1 else None
        self.rows.append(
            {
                "what": what,
                "seconds": round(seconds, 3),
                "marks": self._scan.added - before,
                "others_read_p99_ms": None if p99 is None else round(p99, 2),
            }
        )

    async def work_off(self, bookies: list[str]) -> None:
        """As workers do, but for the copies: another bookie has the place of the lost one, and the mark goes."""
        began = time.perf_counter()
        left = [ledger_id async for ledger_id in self._marks.list()]
        count = len(left)

        async def operations(ledger_id: int) -> list[Put | Delete]:
            path = self._cluster.catalog.path_of(ledger_id)
            mark = await self._marks.read(ledger_id)
            assert mark is not None
            metadata, version = await self._cluster.catalog.read(ledger_id)
            named = metadata.fragments[0].bookies
            new = bookies[(bookies.index(named[-1]) + 1) % len(bookies)]
            moved = metadata_of(ledger_id, [new if name in mark.lost else name for name in named])
            top = LONG_HIERARCHICAL.path_of(f"{self._cluster.root}/{paths.MARKS}", ledger_id)
            return [Put(path, moved, version), Delete(f"{top}/{mark.token}", mark.node_version), Delete(top)]

        while left:
            some, left = left[:MADE_AT_ONCE], left[MADE_AT_ONCE:]
            found = await asyncio.gather(*map(operations, some))
            await self._cluster.store.multi([operation for each in found for operation in each])
        seconds = round(time.perf_counter() - began, 3)
        self.rows.append({"what": "its marks go", "seconds": seconds, "marks": -count, "others_read_p99_ms": None})


async def measure(directory: Path, ledgers: int, count: int) -> list[dict[str, Any]]:
    runtime = real_runtime()
    bookies = [f"bookie-{number}" for number in range(count)]
    settings = RecoverySettings()
    async with ZooKeeperServer(directory, port=free_port([])) as server, contextlib.AsyncExitStack() as stack:
        stores = []
        for _ in range(2):
            uri = f"zk://{server.connect_string}/ledgers"
            store, root = await connect_store(uri, runtime, session_timeout_s=SESSION_TIMEOUT_S)
            stack.push_async_callback(store.close)
            stores.append(store)
        cluster = await init_cluster(stores[0], root)
        began = time.perf_counter()
        await make_ledgers(cluster, ledgers, bookies)
        print(f"{ledgers:,} ledgers were made in {time.perf_counter() - began:.1f} s", file=sys.stderr)
        first, second = bookies[:2]
        audit = Audit(cluster, stores[1], settings)
        await audit.mark("the first one is lost", [first], [first])
        await audit.mark("a look at what has changed", [first], [])
        await audit.work_off(bookies)
        await audit.mark("a look at what was worked off", [first], [])
        await audit.mark("the second one is lost", [first, second], [second])
        return audit.rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ledgers", type=int, default=100_000)
    parser.add_argument("--bookies", type=int, default=10)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    os.environ["_JAVA_OPTIONS"] = HEAP
    with (
        tempfile.TemporaryDirectory(prefix="bkpy-audit-") as directory,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        rows = runner.run(measure(Path(directory), arguments.ledgers, arguments.bookies))
    table = Table(title=f"{arguments.ledgers:,} ledgers on {arguments.bookies} bookies")
    for heading in ("", "seconds", "marks", "others' reads, p99 ms"):
        table.add_column(heading, justify="left" if not heading else "right")
    for row in rows:
        p99 = row["others_read_p99_ms"]
        table.add_row(row["what"], f"{row['seconds']:.1f}", f"{row['marks']:,}", "" if p99 is None else f"{p99:.1f}")
    Console().print(table)
    if arguments.json is not None:
        report = {
            "command": f"benchmarks/audit.py --ledgers {arguments.ledgers} --bookies {arguments.bookies}",
            "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
            "machine": machine(tempfile.gettempdir()),
            "versions": versions(),
            "rows": rows,
        }
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
