"""What a log with very many ledgers costs, against ZooKeeper: opening, reading from its middle, rolling, truncating.

    python benchmarks/long_log.py [--segments N,N,...] [--truncated N] [--json FILE]

The rows of the list and its pages are written directly; three of the ledgers exist. Beside the time of each act stands
how many values it reads from ZooKeeper, and how many writes it makes. A truncation takes as many ledgers as
`--truncated` says, half of them at most. It is timed until a reader sees it, and until all are deleted.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table

import bkpy
from bkpy.client.client import log_parts
from bkpy.local import LocalCluster
from bkpy.metadata.logs.pages import pages_path
from bkpy.metadata.store.outcome import Done
from bkpy.metadata.store.store import Create
from bkpy.protocol.log.log_list import LogList, PageRef, Segment
from bkpy.protocol.log.log_pages import Page

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from bkpy.client.client import Client
    from bkpy.metadata.store.store import MetadataStore

ENTRIES: Final = 10  # of each ledger
ROWS: Final = 128  # of each page, as by default
STEP_MS: Final = 1000  # from one ledger to the next
ROUNDS: Final = 20
TRANSACTION_PAGES: Final = 20
PATIENT: Final = {"session_timeout_s": 60.0, "metadata_timeout_s": 60.0}  # with a machine that does other things


class Counted:
    """Counts what a session reads and writes."""

    def __init__(self, store: MetadataStore) -> None:
        self.calls: Counter[str] = Counter()
        for name in ("get", "put", "multi", "create", "delete", "sync"):
            setattr(store, name, self._counting(name, getattr(store, name)))

    def _counting(self, name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def counted(*arguments: Any, **named: Any) -> Any:
            self.calls[name] += 1
            return await call(*arguments, **named)

        return counted

    def taken(self) -> dict[str, int]:
        """Since the former call."""
        calls, self.calls = self.calls, Counter()
        writes = sum(calls[name] for name in ("put", "multi", "create", "delete"))
        return {"reads": calls["get"], "syncs": calls["sync"], "writes": writes}


async def real_ledgers(client: Client, name: str) -> list[Segment]:
    """Three closed ledgers with entries."""
    for _ in range(3):
        async with await client.open_log(name, create=True) as log:
            await log.append_batch([b"%d" % entry for entry in range(ENTRIES)])
    return list((await listed(client, name)).segments)


async def listed(client: Client, name: str) -> LogList:
    return (await log_parts(client).logs.read(name, fresh=True))[0]


def rows(count: int, real: list[Segment], begin_ms: int) -> Iterator[Segment]:
    """The segments: the first, the middle and the last of them exist."""
    there = {0: real[0], count // 2: real[1], count - 1: real[2]}
    for n in range(count):
        ledger_id = there[n].ledger_id if n in there else 10**9 + n
        begun_ms = begin_ms + n * STEP_MS
        yield Segment(ledger_id, n * ENTRIES, begun_ms).seal(ENTRIES, real[0].length, begun_ms + STEP_MS - 1)


async def make(client: Client, name: str, count: int, real: list[Segment]) -> int:
    """The log with so many ledgers, page by page. Returns when the first of them has begun, in milliseconds."""
    logs = log_parts(client).logs
    begin_ms = logs.now_ms() - count * STEP_MS
    await (await client.open_log(name, create=True)).close()
    log_list, version = await logs.read(name, fresh=True)
    levels: dict[int, list[PageRef]] = {}
    number, waiting = 0, list[Create]()
    folder = pages_path(logs.root, name, log_list.uid)

    async def add(level: int, some: tuple[Any, ...]) -> None:
        nonlocal number
        if not number:
            await logs.store.multi([Create(folder, b"")])
        page = Page(log_list.uid, number, level, some)
        number += 1
        waiting.append(Create(f"{folder}/{page.number}", page.encode()))
        if len(waiting) == TRANSACTION_PAGES:
            await logs.store.multi(waiting)
            waiting.clear()
        refs = levels.setdefault(level, [])
        refs.append(page.reference())
        if len(refs) > ROWS:
            await add(level + 1, tuple(refs[:ROWS]))
            del refs[:ROWS]

    left: list[Segment] = []
    for segment in rows(count, real, begin_ms):
        left.append(segment)
        if len(left) > 2 * ROWS:
            await add(1, tuple(left[:ROWS]))
            del left[:ROWS]
    if waiting:
        await logs.store.multi(waiting)
    refs = tuple(ref for level in sorted(levels, reverse=True) for ref in levels[level])
    wanted = dataclasses.replace(log_list, pages=refs, next_page=number, segments=tuple(left))
    outcome = await logs.write(name, wanted, version)
    if not isinstance(outcome, Done):
        raise RuntimeError(f"the list was not written: {outcome}")
    return begin_ms


async def timed(counted: Counted, act: Callable[[], Awaitable[Any]]) -> tuple[dict[str, float], Any]:
    counted.taken()
    begun = time.perf_counter()
    result = await act()
    return {"ms": (time.perf_counter() - begun) * 1000, **counted.taken()}, result


async def first_of(reader: bkpy.LogReader, position: int) -> bkpy.LogEntry:
    async for entry in reader.read(position, position):
        return entry
    raise AssertionError(f"there is no entry at {position}")


async def measured(uri: str, count: int, truncated: int) -> list[dict[str, Any]]:
    name = f"log-{count}"
    async with bkpy.connect(uri, **PATIENT) as client:
        real = await real_ledgers(client, f"real-{count}")
        begin_ms = await make(client, name, count, real)
        size = len((await listed(client, name)).encode())
    found: list[dict[str, Any]] = []

    def note(act: str, figures: dict[str, Any]) -> None:
        found.append({"segments": count, "act": act, **figures})

    middle = count // 2
    middle_s = (begin_ms + middle * STEP_MS) / 1000 + 0.5
    async with bkpy.connect(uri, **PATIENT) as client, bkpy.connect(uri, **PATIENT) as other:
        counted = Counted(log_parts(client).logs.store)
        figures, reader = await timed(counted, lambda: client.read_log(name))
        note("open to read", {**figures, "list_bytes": size})
        figures, entry = await timed(counted, lambda: first_of(reader, middle * ENTRIES))
        assert entry.position == middle * ENTRIES
        note("read from the middle by position", figures)
        figures, position = await timed(counted, lambda: reader.position_at(middle_s))
        assert position == middle * ENTRIES, position
        note("find a time in the middle", figures)
        figures, log = await timed(counted, lambda: client.open_log(name, roll_entries=1))
        note("open to write", figures)
        rolls: list[dict[str, Any]] = []
        for _ in range(ROUNDS):

            async def roll() -> None:
                ledger_id = log.ledger_id
                await log.append(b"x")
                while log.ledger_id == ledger_id:  # noqa: ASYNC110 - nothing tells when a log has rolled
                    await asyncio.sleep(0.001)

            figures, _ = await timed(counted, roll)
            rolls.append(figures)
            await asyncio.sleep(0.05)
        note("append and roll (median)", {key: statistics.median(one[key] for one in rolls) for key in rolls[0]})
        gone = min(truncated, count // 2)
        counted.taken()
        begun = time.perf_counter()
        cutting = asyncio.create_task(log.truncate(gone * ENTRIES))
        watching = await other.read_log(name)
        while watching.first_position < gone * ENTRIES:
            await watching.refresh()
        seen_ms = (time.perf_counter() - begun) * 1000
        note("truncate, until readers see it", {"ms": seen_ms})
        await cutting
        figures = {"ms": (time.perf_counter() - begun) * 1000, **counted.taken(), "ledgers": gone}
        note("truncate, until all is deleted", figures)
        await log.close()
    return found


async def run(counts: list[int], truncated: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="bkpy-long-log-") as directory:
        async with LocalCluster(Path(directory), bookies=3) as cluster:
            for count in counts:
                found += await measured(cluster.connect_string, count, truncated)
    return found


def show(found: list[dict[str, Any]]) -> None:
    table = Table("ledgers", "act", "ms", "values read", "writes", "")
    for row in found:
        more = [f"{key} {row[key]:,}" for key in ("list_bytes", "ledgers") if key in row]
        counts = [f"{row[key]:g}" if key in row else "" for key in ("reads", "writes")]
        table.add_row(f"{row['segments']:,}", row["act"], f"{row['ms']:.1f}", *counts, ", ".join(more))
    Console().print(table)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python benchmarks/long_log.py", description=__doc__)
    parser.add_argument("--segments", default="10,10000,1000000", help="how many ledgers the logs have")
    parser.add_argument("--truncated", type=int, default=20_000, help="ledgers to truncate")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    os.environ.setdefault("_JAVA_OPTIONS", "-Xmx2g")  # the pages take 70 MB, and local servers have 128
    found = asyncio.run(run([int(count) for count in arguments.segments.split(",")], arguments.truncated))
    show(found)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
