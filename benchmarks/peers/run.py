"""bkpy beside Apache BookKeeper: the same loads on the same machine, round by round in turn, medians of the rounds.

    python benchmarks/peers/run.py [--quick] [--peers kafka,nats] [--json FILE] [--dir DIRECTORY] [--rows N,N,...]

Apache Kafka and NATS JetStream are further columns behind --peers. The peers' servers run all the time, ours only in
their rounds. A row whose rounds fail, ours or a peer's, says why, and the next ones are measured; if one of ours did,
the command fails at its end. Fails at once, and says why, if a server can't be started, or the time is up; what was
measured by then is in the file.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bookkeeper import JavaCluster, fetch
from disk import free_bytes
from further import Further, further_header, further_peers, peer_names
from peer import Peer, PeerError
from plan import FULL, QUICK, Plan
from report import comparisons, further_table, summary, tables
from rest import Rest, resting
from rich.console import Console
from rounds import Rounds, fill, in_time, warm_up_cold, within
from rows import ROWS, Row

from bkpy.bench.machine import machine, versions
from bkpy.errors import BookKeeperError
from bkpy.local.java import find_java

if TYPE_CHECKING:
    from collections.abc import Callable


class Comparison:
    """Runs rows on all systems. `cold` is whether the peer's servers have yet to compile their code."""

    def __init__(self, plan: Plan, theirs: JavaCluster, further: Further, rest: Rest) -> None:
        self._plan = plan
        self._theirs = theirs
        self._further = further
        self._rest = rest
        self._rounds = Rounds(rest, plan)
        self._cold = True

    async def row(self, row: Row) -> dict[str, Any]:
        """The figures of one row: for each call of ours, and each of theirs, medians and rounds."""
        failure = None
        modes: tuple[str, ...] = ()
        warm_ups: dict[str, list[dict[str, Any]]] = {}
        try:
            modes, warm_ups = await self._prepare(row)
        except PeerError as e:
            failure = await self._start_anew(e)
        await self._further.prepare(row)
        ours: dict[str, list[dict[str, Any]]] = {api: [] for api, _ in row.apis}
        theirs: dict[str, list[dict[str, Any]]] = {mode: [] for mode in modes}
        our_failure = None
        count = self._plan.rounds_of(row)
        for i in range(count):
            ceiling = self._plan.ceiling_each_round or i == count - 1
            try:
                for api, entries in row.apis if our_failure is None else ():
                    ours[api].append(await self._rounds.ours(row, api, entries, ceiling=ceiling))
            except PeerError as e:
                our_failure = str(e)
            try:
                for mode in modes if failure is None else ():
                    theirs[mode].append(await self._rounds.java(self._theirs, row, mode, refill=True))
                    if row.seconds is not None:
                        await self._rounds.clear(self._theirs)
            except PeerError as e:
                failure = await self._start_anew(e)
            await self._further.round(row)
        if failure is None:
            await self._theirs.command("close")
        further = await self._further.close(row)
        result = {
            "name": row.name,
            "workload": row.workload,
            "size": row.size,
            "outstanding": row.outstanding,
            "ledgers": row.ledgers,
            "journalMaxGroupWaitMSec": row.group_wait_ms,
            "restarted": row.restart,
            "ours": {api: summary(rounds) for api, rounds in ours.items() if rounds},
            "theirs": {mode: summary(rounds) for mode, rounds in theirs.items() if rounds},
            "their_warm_up": warm_ups,
            **({"our_failure": our_failure} if our_failure is not None else {}),
            **({"their_failure": failure} if failure is not None else {}),
            **({"further": further} if further else {}),
        }
        return {**result, "comparisons": list(comparisons(result))}

    async def _start_anew(self, error: PeerError) -> str:
        """Go on with fresh servers; what the row says of the error."""
        left_gb = free_bytes(self._rest.directory) / 1e9
        await self._theirs.start_anew()
        self._cold = True
        return f"{error} ({left_gb:.0f} GB of the disk are free)"

    async def _prepare(self, row: Row) -> tuple[tuple[str, ...], dict[str, list[dict[str, Any]]]]:
        """Bring the peer's servers into the row's state and warm them up; which of its ways of calling to measure."""
        if row.workload == "read":
            await fill(self._theirs, row)
        if row.restart or row.group_wait_ms != self._theirs.group_wait_ms:
            await self._theirs.restart(row.group_wait_ms)
            self._cold = True
        if self._cold:
            await warm_up_cold(self._theirs, self._plan, reads=row.workload == "read")
            self._cold = False
        return await self._rounds.warm_up(self._theirs, row)


async def measure(
    plan: Plan, rows: list[Row], directory: str, class_path: str, peers: list[Peer], save: Callable[[Any], None]
) -> list[Row]:
    """Measure the rows, and hand each to `save` when it is done; the rows that the plan leaves out.

    `PeerError` if the time isn't enough, and the plan leaves out none.
    """
    theirs = JavaCluster(Path(directory) / "bookkeeper", class_path)
    async with resting(directory) as rest:
        further = Further(peers, plan, rest)
        try:
            async with within(plan, plan.time_max_s + len(further.columns) * plan.setting_time_max_s) as ends:
                await theirs.start()
                await further.start()
                comparison = Comparison(plan, theirs, further, rest)
                return await in_time(rows, comparison.row, save, ends=ends)
        finally:
            await asyncio.gather(theirs.kill(), further.kill())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="about ten minutes without --peers, and rougher")
    parser.add_argument("--peers", metavar="NAME,NAME", type=peer_names, default=(), help="as well: kafka, nats")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all figures to FILE")
    parser.add_argument("--dir", metavar="DIRECTORY", help="where the servers keep their files while it runs")
    parser.add_argument("--rows", metavar="N,N", help=f"only these, 1 to {len(ROWS)}")
    parser.add_argument("--seconds", type=float, help="of a round, instead of the usual")
    parser.add_argument("--rounds", type=int, help="of each system, instead of the usual, also of a sustained row")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    plan = (QUICK if options.quick else FULL).changed(options)
    rows = [row for row in ROWS if plan.sustained or row.seconds is None]
    if options.rows:
        rows = [ROWS[int(n) - 1] for n in options.rows.split(",")]
    found: dict[str, Any] = {"rows": []}
    failure = None
    left_out: list[Row] = []
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="bkpy-peers-") as directory:
        try:
            class_path, version = fetch()
            peers = further_peers(options.peers, Path(directory))
            found |= {
                "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "command": " ".join(["benchmarks/peers/run.py", *sys.argv[1:]]),
                "plan": vars(plan),
                "machine": machine(directory),
                "versions": {**versions(), "bookkeeper": version, "java": find_java().version},
                **further_header(peers),
            }

            def save(row: dict[str, Any]) -> None:
                found["rows"].append(row)
                if options.json is not None:
                    options.json.write_text(json.dumps(found, indent=1) + "\n")

            left_out = asyncio.run(measure(plan, rows, directory, class_path, peers, save))
        except (PeerError, BookKeeperError, OSError) as e:
            failure = f"bench-peers: {e}"
    show(found)
    if left_out:
        numbers = ",".join(str(ROWS.index(row) + 1) for row in left_out)
        print(f"not measured for want of time: {', '.join(row.name for row in left_out)} (--rows {numbers})")
    if failure is None and (failed := [row["name"] for row in found["rows"] if "our_failure" in row]):
        failure = f"bench-peers: bkpy failed in {', '.join(failed)}"
    if failure is not None:
        raise SystemExit(failure)


def show(found: dict[str, Any]) -> None:
    """Print the tables of the rows that were measured."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 165
    for table in tables(found["rows"]) if found["rows"] else ():
        console.print(table)
    for row in found["rows"]:
        for whose, key in (("bkpy", "our_failure"), ("BookKeeper", "their_failure")):
            if key in row:
                console.print(f"{row['name']}: {whose} failed: {row[key]}")
    if "further" in found and found["rows"]:
        console.print(further_table(found["rows"], found["further"]))


if __name__ == "__main__":
    main()
