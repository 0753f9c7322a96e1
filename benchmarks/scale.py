"""How far one machine gets: very many ledgers, open writers, clients and named logs, against a local cluster.

    python benchmarks/scale.py [PART ...] [--ledgers N] [--writers N] [--clients N] [--logs N] [--json FILE]

Parts: ledgers (each with an entry, closed: created, listed, a bookie's start, a collection), writers (open in one
client), clients (of one bookie, with a session each), logs (each rolls once a second). All of them without any. What an
audit of as many ledgers takes: benchmarks/audit.py.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import json
import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import uvloop
from rich.console import Console
from rich.table import Table

import bkpy
from bkpy.bench.machine import machine, versions
from bkpy.bench.memory import rss_anon_mb
from bkpy.local import LocalCluster
from bkpy.runtime.worker_pool import for_each

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from bkpy.client.client import Client

HEAP: Final = "-Xmx4g"  # of ZooKeeper, which has all nodes in memory
AT_ONCE: Final = 200  # calls under way
ROUNDS: Final = 10  # of appends to each writer
ROLLING_S: Final = 20.0
PATIENT: Final = {"session_timeout_s": 60.0, "metadata_timeout_s": 60.0}
COLLECTED: Final = re.compile(r"garbage collection collected .* of (\d+) ledgers, in ([\d.]+) s")

Rows = list[dict[str, Any]]


@contextlib.asynccontextmanager
async def cluster_of(config: dict[str, Any]) -> AsyncIterator[LocalCluster]:
    with tempfile.TemporaryDirectory(prefix="bkpy-scale-") as directory:
        async with LocalCluster(Path(directory), bookies=3, config=config) as cluster:
            yield cluster


def largest_mb(cluster: LocalCluster) -> float:
    """Of the bookies."""
    return max(rss_anon_mb(bookie.pid) or 0.0 for bookie in cluster.bookies if bookie.pid is not None)


def own_mb() -> float:
    return rss_anon_mb(os.getpid()) or 0.0


async def timed(call: Callable[[], Awaitable[Any]]) -> float:
    began = time.perf_counter()
    await call()
    return time.perf_counter() - began


def row(what: str, count: int, seconds: float, **more: float) -> dict[str, Any]:
    print(f"{what}: {seconds:.2f} s", file=sys.stderr)
    return {"what": what, "count": count, "seconds": round(seconds, 3), **{k: round(v, 2) for k, v in more.items()}}


async def ledgers(count: int) -> Rows:
    """So many closed ledgers of one entry."""
    async with cluster_of({"gc_interval_s": 10.0}) as cluster:
        async with bkpy.connect(cluster.connect_string, **PATIENT) as client:

            async def make(_: int) -> None:
                async with await client.create_ledger() as writer:
                    await writer.append(b"x" * 100)

            seconds = await timed(lambda: for_each(range(count), make, at_once=AT_ONCE))
            found = [
                row(
                    "created, appended to and closed", count, seconds, client_mb=own_mb(), bookie_mb=largest_mb(cluster)
                )
            ]

        ids: list[int] = []

        async def listed() -> None:
            async with bkpy.connect(cluster.connect_string, **PATIENT) as client:
                ids.extend([ledger_id async for ledger_id in client.list_ledgers()])

        found.append(row("listed", count, await timed(listed), client_mb=own_mb()))
        assert len(ids) == count
        async with bkpy.connect(cluster.connect_string, **PATIENT) as client:
            await client.delete_ledger(ids[0])  # a collection says nothing where there is nothing to collect
        bookie = cluster.bookies[0]
        await bookie.stop()
        found.append(row("a bookie starts", count, await timed(bookie.start), bookie_mb=largest_mb(cluster)))
        seconds = await collected(bookie.log_path, count)
        found.append(row("its first collection", count, seconds, bookie_mb=largest_mb(cluster)))
        async with bkpy.connect(cluster.connect_string, **PATIENT) as client:
            await client.delete_ledger(ids[1])
        seconds = await collected(bookie.log_path, count - 1, former=1)
        found.append(row("the next collection", count, seconds, bookie_mb=largest_mb(cluster)))
    return found


async def collected(log: Path, count: int, *, former: int = 0) -> float:
    """What a collection took that looked at all of the ledgers, behind so many `former` ones."""
    while True:
        told = COLLECTED.findall(await asyncio.to_thread(log.read_text, errors="replace"))
        seconds = [float(seconds) for looked_at, seconds in told if int(looked_at) >= count]
        if len(seconds) > former:
            return seconds[former]
        await asyncio.sleep(1.0)


async def writers(count: int) -> Rows:
    """So many open writers of one client, which append to all of them at once, again and again."""
    async with cluster_of({}) as cluster, bkpy.connect(cluster.connect_string, **PATIENT) as client:
        opened: list[Any] = []

        async def make(_: int) -> None:
            opened.append(await client.create_ledger())

        before = own_mb()
        found = [row("writers opened", count, await timed(lambda: for_each(range(count), make, at_once=AT_ONCE)))]

        async def append() -> None:
            await asyncio.gather(*(writer.append(b"x" * 100) for writer in opened))

        rounds = [await timed(append) for _ in range(ROUNDS)]
        more = {"client_mb": own_mb() - before, "bookie_mb": largest_mb(cluster)}
        found.append(row("an append to each at once (median)", count, statistics.median(rounds), **more))

        async def close(number: int) -> None:
            await opened[number].close()

        found.append(row("closed", count, await timed(lambda: for_each(range(count), close, at_once=AT_ONCE))))
        return found


async def clients(count: int) -> Rows:
    """So many clients, each with a session of its own and a ledger on the same bookies."""
    async with cluster_of({}) as cluster, contextlib.AsyncExitStack() as stack:
        opened: list[Any] = []

        async def make(_: int) -> None:
            client: Client = await stack.enter_async_context(bkpy.connect(cluster.connect_string, **PATIENT))
            opened.append(await client.create_ledger())

        began = largest_mb(cluster)
        found = [
            row(
                "clients connected, a ledger each",
                count,
                await timed(lambda: for_each(range(count), make, at_once=AT_ONCE)),
            )
        ]

        async def append() -> None:
            await asyncio.gather(*(writer.append(b"x" * 100) for writer in opened))

        rounds = [await timed(append) for _ in range(ROUNDS)]
        grown = largest_mb(cluster) - began
        found.append(row("an append by each at once (median)", count, statistics.median(rounds), bookie_mb=grown))
        return found


async def logs(count: int) -> Rows:
    """So many named logs that roll once a second, with an append to each ten times a second."""
    async with cluster_of({}) as cluster, bkpy.connect(cluster.connect_string, **PATIENT) as client:
        opened: list[Any] = []

        async def make(number: int) -> None:
            opened.append(await client.open_log(f"log-{number}", create=True, roll_s=1.0))

        found = [
            row("logs created and opened", count, await timed(lambda: for_each(range(count), make, at_once=AT_ONCE)))
        ]
        took: list[float] = []
        appended = 0

        async def write(log: Any, until: float) -> None:
            nonlocal appended
            while time.perf_counter() < until:
                began = time.perf_counter()
                await log.append(b"x" * 100)
                took.append(time.perf_counter() - began)
                appended += 1
                await asyncio.sleep(max(0.0, began + 0.1 - time.perf_counter()))

        until = time.perf_counter() + ROLLING_S
        await asyncio.gather(*(write(log, until) for log in opened))
        counted = 0
        for log in opened:
            reader = await client.read_log(log.name)
            counted += len({part.ledger_id for part in reader.ranges()})
        p99 = statistics.quantiles(took, n=100)[98] * 1000
        more = {"rolls_per_s": counted / ROLLING_S, "appends_per_s": appended / ROLLING_S, "p99_ms": p99}
        found.append(row("rolling", count, ROLLING_S, client_mb=own_mb(), bookie_mb=largest_mb(cluster), **more))
        return found


PARTS: Final[dict[str, Callable[[int], Awaitable[Rows]]]] = {
    "ledgers": ledgers,
    "writers": writers,
    "clients": clients,
    "logs": logs,
}


def show(found: Rows) -> None:
    table = Table("", "how many", "seconds", "a second", "")
    for one in found:
        more = [f"{key} {value:,.1f}" for key, value in one.items() if key not in ("what", "count", "seconds")]
        rate = one["count"] / one["seconds"] if one["seconds"] else 0.0
        table.add_row(one["what"], f"{one['count']:,}", f"{one['seconds']:.2f}", f"{rate:,.0f}", ", ".join(more))
    Console().print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--ledgers", type=int, default=1_000_000)
    parser.add_argument("--writers", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=1_000)
    parser.add_argument("--logs", type=int, default=1_000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if unknown := [part for part in arguments.parts if part not in PARTS]:
        parser.error(f"no such part: {', '.join(unknown)}")
    os.environ.setdefault("_JAVA_OPTIONS", HEAP)
    found: Rows = []
    for part in arguments.parts or PARTS:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            found += runner.run(PARTS[part](getattr(arguments, part)))
    show(found)
    if arguments.json is not None:
        report = {
            "command": " ".join(["benchmarks/scale.py", *sys.argv[1:]]),
            "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
            "machine": machine(tempfile.gettempdir()),
            "versions": versions(),
            "rows": found,
        }
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
