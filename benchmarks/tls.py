"""What TLS costs: the same loads on two clusters, one of which speaks it, in turn.

    python benchmarks/tls.py [--seconds S] [--rounds N] [--json FILE] [--dir DIRECTORY]

Makes its certificates with `openssl`. Prints the medians of both, the share that TLS leaves, and how many times the
processor time it takes, of client and bookies together: that says more where disks are slow or the machine is busy.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import gc
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import uvloop
from rich.console import Console
from rich.table import Table

import bkpy
from bkpy.bench import workloads
from bkpy.bench.machine import machine, versions
from bkpy.local import LocalCluster

KEY: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
# workload, API, bytes of an entry, calls in flight
ROWS: Final = (
    ("append", "append", 100, 1000),
    ("append", "append", 100, 1),
    ("append", "append", 1024, 1000),
    ("append", "append", 10240, 200),
    ("read", "read", 1024, 1),
    ("read", "read_blocks", 1024, 1),
)


def certificates(directory: Path) -> dict[str, str]:
    """The settings of bookies and clients that all have one certificate, for this machine."""
    directory.mkdir()

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)

    (directory / "host.ext").write_text("subjectAltName=IP:127.0.0.1\n")
    openssl("req", "-x509", *KEY, "-days", "2", "-subj", "/CN=ca", "-keyout", "ca-key.pem", "-out", "ca.pem")
    openssl("req", *KEY, "-subj", "/CN=bench", "-keyout", "key.pem", "-out", "host.csr")
    signed = ("-CA", "ca.pem", "-CAkey", "ca-key.pem", "-CAcreateserial", "-days", "2", "-extfile", "host.ext")
    openssl("x509", "-req", "-in", "host.csr", *signed, "-out", "certificate.pem")
    files = {"tls_ca_file": "ca.pem", "tls_certificate_file": "certificate.pem", "tls_key_file": "key.pem"}
    return {name: str(directory / file) for name, file in files.items()}


def processor_s(cluster: LocalCluster) -> float:
    """Seconds of processor time that this process and the bookies have taken so far."""
    ticks = 0
    for bookie in cluster.bookies:
        fields = Path(f"/proc/{bookie.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


async def measure(
    cluster: LocalCluster, settings: dict[str, str], row: tuple[Any, ...], seconds: float
) -> tuple[float, float]:
    """Entries a second, and microseconds of processor time for each of them, the warm-up included."""
    workload, api, size, outstanding = row
    options = workloads.Options(workload, size, outstanding, 1, (3, 3, 2), seconds, api)
    async with bkpy.connect(cluster.connect_string, **settings) as client:
        before = processor_s(cluster)
        result = await workloads.run(client, options, lambda share: None)
        taken = processor_s(cluster) - before
    return result["entries_per_s"], taken * 1e6 / (result["entries_per_s"] * result["seconds"])


async def compare(options: argparse.Namespace, directory: Path) -> list[dict[str, Any]]:
    settings = certificates(directory / "certificates")
    found: list[dict[str, Any]] = [
        {"workload": w, "api": a, "size": s, "outstanding": o, "plain": [], "tls": [], "plain_us": [], "tls_us": []}
        for w, a, s, o in ROWS
    ]
    async with (
        LocalCluster(directory / "plain") as plain,
        LocalCluster(directory / "tls", config=settings) as secure,
    ):
        for number in range(options.rounds):
            for row, rates in zip(ROWS, found, strict=True):
                pair = [("plain", plain, {}), ("tls", secure, settings)]
                for name, cluster, of in pair if number % 2 else reversed(pair):
                    print(f"round {number + 1}, {row}, {name} ...", file=sys.stderr)
                    rate, taken_us = await measure(cluster, of, row, options.seconds)
                    rates[name].append(rate)
                    rates[f"{name}_us"].append(round(taken_us, 2))
    for rates in found:
        rates["share"] = round(statistics.median(rates["tls"]) / statistics.median(rates["plain"]), 3)
        rates["processor"] = round(statistics.median(rates["tls_us"]) / statistics.median(rates["plain_us"]), 3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="counted seconds of each run")
    parser.add_argument("--rounds", type=int, default=3, help="of each cluster")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write all figures to FILE")
    parser.add_argument("--dir", metavar="DIRECTORY", default=tempfile.gettempdir(), help="where the files are kept")
    options = parser.parse_args()
    scratch = tempfile.mkdtemp(dir=options.dir, prefix="bkpy-tls-")
    gc.set_threshold(100_000, 20, 100)  # as `bkpy bench`
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            rows = runner.run(compare(options, Path(scratch)))
    finally:
        shutil.rmtree(scratch)
    table = Table("workload", "plain/s", "TLS/s", "share", "processor time, times")
    for row in rows:
        name = f"{row['api']} {row['size']} B, {row['outstanding']} in flight"
        plain, tls = (statistics.median(row[kind]) for kind in ("plain", "tls"))
        table.add_row(name, f"{plain:,.0f}", f"{tls:,.0f}", f"{row['share']:.2f}", f"{row['processor']:.2f}")
    Console(highlight=False).print(table)
    if options.json is not None:
        date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        found = {"date": date, "machine": machine(options.dir), "versions": versions(), "rows": rows}
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
