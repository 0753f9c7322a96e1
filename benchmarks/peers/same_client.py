"""The same Java client on Java's bookies and on bkpy's, and bkpy's client on Java's bookies, round by round in turn.

    python benchmarks/peers/same_client.py [--quick] [--json FILE] [--dir DIRECTORY] [--rows N,N,...]

Java's client speaks v2, as it does in Pulsar. Both kinds of bookies run all the time, each with a ZooKeeper and a
client process of its own. FILE may be what run.py wrote: the figures are added to it. Fails, and says why, if a server
can't be reached, a round brings no entry, or the time is up; the rows that were measured by then are in the file.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bookkeeper import BOOKIES, JavaCluster, client_command, fetch
from peer import ANSWER_TIMEOUT_S, Client, PeerError
from plan import FULL, IDLE_S, QUICK, Plan
from processes import peak_resident_mb
from report import same_client_comparisons, same_client_tables, summary
from rest import Rest, resting
from rich.console import Console
from rounds import Rounds, fill, in_time, warm_up_cold, within
from rows import SAME_CLIENT_ROWS, Row

from bkpy.bench.machine import machine, versions
from bkpy.errors import BookKeeperError
from bkpy.local import LocalCluster
from bkpy.local.java import find_java

if TYPE_CHECKING:
    from collections.abc import Callable

    from rounds import Driven

# The protocol; and, as with Java's `gcWaitTime` in BOOKIE_CONFIG, deleted ledgers are collected during a long run.
BKPY_CONFIG: Final = {"protocol": "bookkeeper", "gc_interval_s": 5.0}


class BkpyCluster:
    """A ZooKeeper and bookies of bkpy for BookKeeper's clients, and one process of Java's client."""

    rest_s = IDLE_S

    def __init__(self, directory: Path, class_path: str) -> None:
        self._class_path = class_path
        self._cluster = LocalCluster(directory, BOOKIES, BKPY_CONFIG)
        self.client: Client | None = None

    async def start(self) -> None:
        """Start everything, and return when the client is connected."""
        await self._cluster.start()
        self.client = Client(self._cluster.directory / "client.log")
        uri = self._cluster.connect_string.replace("zk://", "zk+hierarchical://", 1)
        await self.client.start(client_command(self._class_path, uri))

    def bookie_pids(self) -> list[int | None]:
        return [bookie.pid for bookie in self._cluster.bookies]

    async def command(self, *words: object) -> dict[str, Any]:
        """The client's answer; `PeerError` if it is an error, or doesn't come."""
        assert self.client is not None
        return await self.client.command(" ".join(map(str, words)), ANSWER_TIMEOUT_S)

    async def kill(self) -> None:
        """SIGKILL to everything."""
        if self.client is not None:
            await self.client.kill()
        await self._cluster.kill()


class SameClient:
    """Runs rows on both kinds of bookies, `java` and `bkpy`, and with both clients on Java's."""

    def __init__(self, plan: Plan, java: JavaCluster, bkpy: BkpyCluster, rest: Rest) -> None:
        self._plan = plan
        self._java = java
        self._kinds: dict[str, Driven] = {"java": java, "bkpy": bkpy}
        self._rounds = Rounds(rest, plan)

    async def row(self, row: Row) -> dict[str, Any]:
        """The figures of one row: by the bookies' kind and the client's call, medians and rounds."""
        ways: dict[str, tuple[str, ...]] = {}
        warm_ups: dict[str, Any] = {}
        for kind, cluster in self._kinds.items():
            if row.workload == "read":
                await fill(cluster, row)
            ways[kind], warm_ups[kind] = await self._rounds.warm_up(cluster, row)
        bookies: dict[str, dict[str, list[dict[str, Any]]]] = {
            kind: {way: [] for way in ways[kind]} for kind in self._kinds
        }
        clients: dict[str, list[dict[str, Any]]] = {api: [] for api, _ in row.apis}
        for _ in range(self._plan.rounds):
            for kind, cluster in self._kinds.items():
                for way in ways[kind]:
                    bookies[kind][way].append(await self._rounds.java(cluster, row, way, refill=True))
            for api, entries in row.apis:
                clients[api].append(await self._rounds.ours(row, api, entries, connect=self._java.connect_string))
        for cluster in self._kinds.values():
            await cluster.command("close")
        result = {
            "name": row.name,
            "workload": row.workload,
            "size": row.size,
            "outstanding": row.outstanding,
            "ledgers": row.ledgers,
            "bookies": {
                kind: {
                    row.call(way): {"way": way, **summary(rounds), "warm_up": warm_ups[kind]}
                    for way, rounds in found.items()
                }
                for kind, found in bookies.items()
            },
            "bkpy_client": {api: summary(rounds) for api, rounds in clients.items()},
            # Of the largest bookie since its start, with all rows before.
            "resident_mb": {kind: peak_resident_mb(cluster.bookie_pids()) for kind, cluster in self._kinds.items()},
        }
        return {**result, "comparisons": list(same_client_comparisons(result))}


async def measure(
    plan: Plan, rows: list[Row], directory: str, class_path: str, save: Callable[[Any], None]
) -> list[Row]:
    """Measure the rows, and hand each to `save` when it is done; the rows that the plan leaves out.

    `PeerError` if the time isn't enough, and the plan leaves out none.
    """
    java = JavaCluster(Path(directory) / "bookkeeper", class_path)
    bkpy = BkpyCluster(Path(directory) / "bkpy", class_path)
    async with resting(directory) as rest:
        try:
            async with within(plan, plan.time_max_s) as ends:
                for cluster in (java, bkpy):
                    await cluster.start()
                    await warm_up_cold(cluster, plan, reads=False)
                same_client = SameClient(plan, java, bkpy, rest)
                return await in_time(rows, same_client.row, save, ends=ends)
        finally:
            await asyncio.gather(java.kill(), bkpy.kill())


def add_to(file: Path, found: dict[str, Any]) -> None:
    """Put the figures into the file, beside what else it has."""
    whole = json.loads(file.read_text()) if file.exists() else {"rows": []}
    file.write_text(json.dumps({**whole, "same_client": found}, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="about ten minutes, and rougher")
    parser.add_argument("--json", metavar="FILE", type=Path, help="add all figures to FILE")
    parser.add_argument("--dir", metavar="DIRECTORY", help="where the servers keep their files while it runs")
    parser.add_argument("--rows", metavar="N,N", help=f"only these, 1 to {len(SAME_CLIENT_ROWS)}")
    parser.add_argument("--seconds", type=float, help="of a round, instead of the usual")
    parser.add_argument("--rounds", type=int, help="of each kind, instead of the usual")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    plan = (QUICK if options.quick else FULL).changed(options)
    numbers = options.rows.split(",") if options.rows else range(1, len(SAME_CLIENT_ROWS) + 1)
    rows = [SAME_CLIENT_ROWS[int(n) - 1] for n in numbers]
    found: dict[str, Any] = {"rows": []}
    failure = None
    left_out: list[Row] = []
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="bkpy-peers-") as directory:
        try:
            class_path, version = fetch()
            found |= {
                "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "command": " ".join(["benchmarks/peers/same_client.py", *sys.argv[1:]]),
                "plan": vars(plan),
                "machine": machine(directory),
                "versions": {**versions(), "bookkeeper": version, "java": find_java().version},
            }

            def save(row: dict[str, Any]) -> None:
                found["rows"].append(row)
                if options.json is not None:
                    add_to(options.json, found)

            left_out = asyncio.run(measure(plan, rows, directory, class_path, save))
        except (PeerError, BookKeeperError, OSError) as e:
            failure = f"bench-peers: {e}"
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 165
    for table in same_client_tables(found["rows"]) if found["rows"] else ():
        console.print(table)
    if left_out:
        left = ",".join(str(SAME_CLIENT_ROWS.index(row) + 1) for row in left_out)
        print(f"not measured for want of time: {', '.join(row.name for row in left_out)} (--rows {left})")
    if failure is not None:
        raise SystemExit(failure)


if __name__ == "__main__":
    main()
