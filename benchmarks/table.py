"""The standard table: every row is one run of `bkpy bench --json` on a cluster of its own.

First appends and reads, with the ceiling of bare sockets (*share*: ours of it; *store*: of what is left when the bytes
are also checksummed, kept and written to a second file); then the processor time of each, and what failures cost.

    python benchmarks/table.py [NAME ...] [--seconds S] [--rounds N] [--json FILE]

NAME: a module of workloads/, without its suffix; without names, all of them in the standard order.

Fails, and prints no table, if a row can't be measured.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from bkpy.bench.machine import machine, versions
from bkpy.bench.processor_time import REST
from workloads import STANDARD, Failure, Workload, load

if TYPE_CHECKING:
    from collections.abc import Sequence

# What `bkpy bench` tells, by the column it is in.
_PARTS = {
    "client: event loop": "client",
    "bookies: event loop": "event loops",
    "bookies: journal": "journals",
    "bookies: flush": "flushes",
    "bookies: read": "reads",
    REST: REST,
}
_ROUNDS = {"longest_gap": "longest_gaps_ms", "recovery": "recoveries_ms", "restart": "restarts_ms"}


def measure(arguments: list[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "bkpy", "bench", "--json", *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "BKPY_CONNECT"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=environment)
    if done.returncode != 0:
        raise SystemExit(f"bench failed: {' '.join(command)}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def speed(rows: Sequence[Workload], seconds: float) -> tuple[Table, list[dict[str, Any]]]:
    """The rows of appends and reads."""
    table = _table(
        "entries/s", "MB/s", "p50 ms", "p99 ms", "p99.9 ms", "bare MB/s", "share", "store", "bookie MB", "client MB"
    )
    results = []
    for row in rows:
        print(f"{row.title} ...", file=sys.stderr)
        result = measure(["--ceiling", "--processor-time", "--seconds", str(seconds), *row.arguments])
        results.append({"name": row.title, **result})
        table.add_row(
            row.title,
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


def processor_time(results: Sequence[dict[str, Any]]) -> Table:
    """Microseconds of an entry, of all processes together; in brackets, how much of that was spent in the kernel."""
    table = _table("client", "event loops", "journals", "flushes", "reads", "everything else", "together", "processors")
    for result in results:
        parts = dict.fromkeys(_PARTS.values(), (0.0, 0.0))
        for row in result["processor_time"]:
            part = _PARTS.get(row["of"], REST)
            user, system = parts[part]
            parts[part] = user + row["user_us"], system + row["system_us"]
        all_us = sum(map(sum, parts.values()))
        busy = all_us * result["entries_per_s"] / 1e6
        shown = (f"{user + system:,.2f} ({system:,.2f})" for user, system in parts.values())
        table.add_row(result["name"], *shown, f"{all_us:,.2f}", f"{busy:.2f}")
    return table


def failures(rows: Sequence[Failure], rounds: int) -> tuple[Table, list[dict[str, Any]]]:
    """The rows of failures: medians of the rounds, and the extremes beside them."""
    table = _table("ms", "least", "most", "rounds")
    results = []
    for row in rows:
        print(f"{row.title} ...", file=sys.stderr)
        result = measure(["--rounds", str(rounds), *row.arguments])
        results.append({"name": row.title, **result})
        times = result[_ROUNDS[row.figure]]
        shown = (result[f"{row.figure}_ms"], min(times), max(times))
        table.add_row(row.title, *(f"{value:,.1f}" for value in shown), str(len(times)))
    return table, results


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("workload", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(STANDARD)}")
    parser.add_argument("--seconds", type=float, default=5.0, help="counted seconds of each row")
    parser.add_argument("--rounds", type=int, default=5, help="of each failure")
    parser.add_argument("--json", metavar="FILE", help="also write all figures, the machine and the versions to FILE")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in STANDARD]
    if unknown:
        parser.error(f"no such workload: {', '.join(unknown)}; there are {', '.join(STANDARD)}")
    chosen = [load(name) for name in options.names or STANDARD]
    rates = [row for row in chosen if isinstance(row, Workload)]
    times = [row for row in chosen if isinstance(row, Failure)]
    tables, rows = zip(speed(rates, options.seconds), failures(times, options.rounds), strict=True)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 180
    for table in (tables[0], processor_time(rows[0]), tables[1]):
        if table.row_count:
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
