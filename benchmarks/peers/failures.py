"""What failures cost bkpy and Apache BookKeeper on the same machine, round by round in turn, medians of the rounds.

    python benchmarks/peers/failures.py [--rounds N] [--json FILE] [--dir DIRECTORY]

A bookie of four is killed under load (100 B, 100 outstanding, three copies): how long is nothing acknowledged? And a
writer goes when its bookies don't know any of its last 10,000 entries of 1 KB to be confirmed: how long does their
recovery take? FILE may be what run.py wrote: the figures are added to it. Fails, and says why, if a bookie isn't
replaced or an acknowledged entry is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from bookkeeper import JavaCluster, fetch
from peer import PeerError
from rich import box
from rich.console import Console
from rich.table import Table
from rounds import output

from bkpy.bench.machine import machine, versions
from bkpy.errors import BookKeeperError
from bkpy.local.java import find_java

BOOKIES: Final = 4
SIZE, OUTSTANDING = 100, 100
ENTRIES, ENTRY_BYTES = 10_000, 1024
LOAD_S: Final = 2.0  # before the kill, and after it
WARM_UP_S: Final = 5.0  # of the peer, after a start of one of its bookies
WARM_UP_RECOVERIES: Final = 2  # of each kind: the first takes several times as long as the third
MODES: Final = ("defaults", "tuned")
HELD_S: Final = 0.5  # while its bookies are stopped, for its client to send what it was given
OUR_TIMEOUT_S: Final = 120.0

Sides = dict[str, list[float]]  # milliseconds, by whose they are


async def failover(theirs: JavaCluster, ack_quorum: int, rounds: int, directory: str) -> Sides:
    """The longest gap between acknowledgements, of both in turn."""
    gaps: Sides = {"bkpy": [], "BookKeeper": []}
    ours = ["failover", "--size", str(SIZE), "--outstanding", str(OUTSTANDING), "--seconds", str(LOAD_S)]
    for i in range(rounds):
        found = await _ours(directory, *ours, "--ensemble", f"3,3,{ack_quorum}")
        gaps["bkpy"].append(found["longest_gap_ms"])
        gaps["BookKeeper"].append(await _their_gap(theirs, ack_quorum, i))
    return gaps


async def _their_gap(theirs: JavaCluster, ack_quorum: int, position: int) -> float:
    # All four bookies, so that the one that takes over has compiled its code, as the others have.
    await theirs.command("load", BOOKIES, ack_quorum, SIZE, OUTSTANDING)
    await asyncio.sleep(WARM_UP_S)
    await theirs.command("finish")
    ensemble = (await theirs.command("load", 3, ack_quorum, SIZE, OUTSTANDING))["ensemble"]
    await asyncio.sleep(LOAD_S)
    killed = next(b for b in theirs.bookies if b.address == ensemble[position % len(ensemble)])
    await theirs.command("mark")
    await killed.kill()
    await asyncio.sleep(LOAD_S)
    done = await theirs.command("finish")
    if done["ensembles"] < 2:
        raise PeerError("no other bookie took the place of the one that was killed")
    await theirs.start_again(killed)
    gap: float = done["gap_ms"]
    return gap


async def recovery(theirs: JavaCluster, rounds: int, directory: str) -> Sides:
    """The recovery of entries that aren't known to be confirmed, of both in turn; theirs in two ways."""
    times: Sides = {"bkpy": [], **{f"BookKeeper, {mode}": [] for mode in MODES}}
    for mode in MODES * WARM_UP_RECOVERIES:
        await _their_recovery(theirs, mode)
    for _ in range(rounds):
        found = await _ours(directory, "recovery", "--entries", str(ENTRIES), "--size", str(ENTRY_BYTES))
        check_unconfirmed(found["unconfirmed_entries"])
        times["bkpy"].append(found["recovery_ms"])
        for mode in MODES:
            times[f"BookKeeper, {mode}"].append(await _their_recovery(theirs, mode))
    return times


async def _their_recovery(theirs: JavaCluster, mode: str) -> float:
    await theirs.command("prepare")
    # Entries say what was acknowledged when they were sent: all of them are, before a bookie can answer the first.
    for bookie in theirs.bookies:
        bookie.suspend()
    try:
        await theirs.command("submit", ENTRIES, ENTRY_BYTES)
        await asyncio.sleep(HELD_S)
    finally:
        for bookie in theirs.bookies:
            bookie.resume()
    check_unconfirmed((await theirs.command("abandon"))["unconfirmed"])
    took: float = (await theirs.command("recover", mode))["recovery_ms"]
    return took


def check_unconfirmed(count: int) -> None:
    if count != ENTRIES:
        raise PeerError(f"{count} of {ENTRIES} entries were not known to be confirmed: all of them must be")


async def _ours(directory: str, workload: str, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "bkpy", "bench", "--json", "--rounds", "1", "--dir", directory]
    return await output([*command, "--workload", workload, *arguments], OUR_TIMEOUT_S)


async def measure(rounds: int, directory: str, class_path: str) -> list[dict[str, Any]]:
    """Medians and rounds of each failure."""
    theirs = JavaCluster(Path(directory) / "bookkeeper", class_path, bookies=BOOKIES)
    try:
        await theirs.start()
        return [
            summary("a bookie killed, Qa = 2: longest gap", await failover(theirs, 2, rounds, directory)),
            summary("a bookie killed, Qa = 3: longest gap", await failover(theirs, 3, rounds, directory)),
            summary("recovery of 10,000 entries of 1 KB", await recovery(theirs, rounds, directory)),
        ]
    finally:
        await theirs.kill()


def summary(name: str, sides: Sides) -> dict[str, Any]:
    medians = {who: round(statistics.median(times), 3) for who, times in sides.items()}
    return {"name": name, "median_ms": medians, "rounds_ms": sides}


def table(found: list[dict[str, Any]]) -> Table:
    shown = Table(box=box.SIMPLE_HEAD)
    for column in ("failure", "whose", "ms (median)", "least", "most"):
        shown.add_column(column, justify="left" if column in ("failure", "whose") else "right", no_wrap=True)
    for one in found:
        for who, times in one["rounds_ms"].items():
            figures = (one["median_ms"][who], min(times), max(times))
            shown.add_row(one["name"], who, *(f"{figure:,.1f}" for figure in figures))
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="of each failure and each system")
    parser.add_argument("--json", metavar="FILE", type=Path, help="add all figures to FILE")
    parser.add_argument("--dir", metavar="DIRECTORY", help="where the servers keep their files while it runs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="bkpy-peers-") as directory:
        try:
            class_path, version = fetch()
            found = {
                "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "command": " ".join(["benchmarks/peers/failures.py", *sys.argv[1:]]),
                "machine": machine(directory),
                "versions": {**versions(), "bookkeeper": version, "java": find_java().version},
                "rows": asyncio.run(measure(options.rounds, directory, class_path)),
            }
        except (PeerError, BookKeeperError, OSError) as e:
            raise SystemExit(f"bench-peers: {e}") from None
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120
    console.print(table(found["rows"]))
    if options.json is not None:
        whole = json.loads(options.json.read_text()) if options.json.exists() else {"rows": []}
        options.json.write_text(json.dumps({**whole, "failures": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
