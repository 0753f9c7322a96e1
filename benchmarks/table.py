"""The standard table: every row is one run of `bkpy bench --json` on a cluster of its own.

First appends and reads, with the ceiling of bare sockets (*share*: ours of it; *store*: of what is left when the bytes
are also checksummed, kept and written to a second file); then what failures cost.

    python benchmarks/table.py [--seconds S] [--rounds N] [--json FILE]

Fails, and prints no table, if a row can't be measured.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from bkpy.bench.machine import machine, versions

# name, then the arguments of `bkpy bench`
ROWS: list[tuple[str, list[str]]] = [
    ("append 100 B, 1000 in flight", ["--size", "100", "--outstanding", "1000"]),
    ("append_batch 10 x 1000 of 100 B", ["--size", "100", "--outstanding", "10", "--api", "append_batch"]),
    ("append 100 B, 100 in flight", ["--size", "100", "--outstanding", "100"]),
    ("append 100 B, 1 in flight", ["--size", "100", "--outstanding", "1"]),
    ("append 100 B, 1000 ledgers", ["--size", "100", "--outstanding", "1000", "--ledgers", "1000"]),
    ("append 1 KB, 1000 in flight", ["--size", "1024", "--outstanding", "1000"]),
    ("append 1 KB, 1000 ledgers", ["--size", "1024", "--outstanding", "1000", "--ledgers", "1000"]),
    ("append 10 KB, 200 in flight", ["--size", "10240", "--outstanding", "200"]),
    ("read 1 KB", ["--workload", "read", "--size", "1024", "--outstanding", "1"]),
    ("read_blocks 1 KB", ["--workload", "read", "--size", "1024", "--outstanding", "1", "--api", "read_blocks"]),
    ("read 1 KB after a restart", ["--workload", "read", "--size", "1024", "--outstanding", "1", "--restart"]),
    ("read 10 KB", ["--workload", "read", "--size", "10240", "--outstanding", "1"]),
]

_KILLED = ["--workload", "failover", "--size", "100", "--outstanding", "100", "--seconds", "2"]

# name, then the arguments of `bkpy bench`, and of which of its figures the rounds are shown
FAILURES: list[tuple[str, list[str], str]] = [
    ("a bookie killed, Qa = 2: longest gap", [*_KILLED, "--ensemble", "3,3,2"], "longest_gap"),
    ("a bookie killed, Qa = 3: longest gap", [*_KILLED, "--ensemble", "3,3,3"], "longest_gap"),
    ("recovery of 10,000 entries of 1 KB", ["--workload", "recovery", "--size", "1024"], "recovery"),
]
_ROUNDS = {"longest_gap": "longest_gaps_ms", "recovery": "recoveries_ms"}


def measure(arguments: list[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "bkpy", "bench", "--json", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"bench failed: {' '.join(command)}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def speed(seconds: float) -> tuple[Table, list[dict[str, Any]]]:
    """The rows of appends and reads."""
    table = _table(
        "entries/s", "MB/s", "p50 ms", "p99 ms", "p99.9 ms", "bare MB/s", "share", "store", "bookie MB", "client MB"
    )
    results = []
    for name, arguments in ROWS:
        print(f"{name} ...", file=sys.stderr)
        result = measure(["--ceiling", "--seconds", str(seconds), *arguments])
        results.append({"name": name, **result})
        table.add_row(
            name,
            f"{result['entries_per_s']:,.0f}",
            f"{result['mb_per_s']:,.1f}",
            *(f"{result[key]:,.2f}" for key in ("p50_ms", "p99_ms", "p999_ms")),
            f"{result['ceiling_mb_per_s']:,.1f}",
            f"{result['ratio_to_ceiling']:.2f}",
            "-" if result["ratio_to_storage_ceiling"] is None else f"{result['ratio_to_storage_ceiling']:.2f}",
            *(
                "-" if result[key] is None else f"{result[key]:,.0f}"
                for key in ("bookie_rss_anon_mb", "client_rss_anon_mb")
            ),
        )
    return table, results


def failures(rounds: int) -> tuple[Table, list[dict[str, Any]]]:
    """The rows of failures: medians of the rounds, and the extremes beside them."""
    table = _table("ms", "least", "most", "rounds")
    results = []
    for name, arguments, figure in FAILURES:
        print(f"{name} ...", file=sys.stderr)
        result = measure(["--rounds", str(rounds), *arguments])
        results.append({"name": name, **result})
        times = result[_ROUNDS[figure]]
        shown = (result[f"{figure}_ms"], min(times), max(times))
        table.add_row(name, *(f"{value:,.1f}" for value in shown), str(rounds))
    return table, results


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("workload", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="counted seconds of each row")
    parser.add_argument("--rounds", type=int, default=5, help="of each failure")
    parser.add_argument("--json", metavar="FILE", help="also write all figures, the machine and the versions to FILE")
    options = parser.parse_args()
    tables, rows = zip(speed(options.seconds), failures(options.rounds), strict=True)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 140
    for table in tables:
        console.print(table)
    if options.json:
        found = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "command": " ".join(["benchmarks/table.py", *sys.argv[1:]]),
            "machine": machine(tempfile.gettempdir()),
            "versions": versions(),
            "rows": rows[0],
            "failures": rows[1],
        }
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
