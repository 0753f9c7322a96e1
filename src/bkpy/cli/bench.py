"""`bkpy bench`: appends, reads and failures on a cluster; the ceiling of bare sockets beside appends and reads."""

from __future__ import annotations

import contextlib
import gc
import os
import tempfile
from typing import TYPE_CHECKING, Any

import click

from bkpy.cli.arguments import SecondsRange, quorums
from bkpy.cli.connecting import connect, security_settings
from bkpy.cli.output.json import json_option, print_json_line
from bkpy.cli.output.progress import progress
from bkpy.cli.output.tables import print_table
from bkpy.cli.running import interruptible, run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from bkpy.bench.workloads import Options
    from bkpy.local import LocalCluster


_WORKLOADS = (
    "failover: a bookie is killed under load; recovery: a ledger whose writer is gone is recovered; restart: all "
    "bookies are killed and restarted, with --entries stored in --ledgers."
)
# docs/explanation/performance.md advises these to services with thousands of calls in flight, which are no garbage.
_GC_THRESHOLDS = (100_000, 20, 100)
FAILURES = ("failover", "recovery", "restart")
_OWN_CLUSTER = "with a cluster started for the run: without --connect, and without BKPY_CONNECT in the environment"


@click.command()
@click.option(
    "--workload", type=click.Choice(["append", "read", *FAILURES]), default="append", show_default=True, help=_WORKLOADS
)
@click.option("--size", type=click.IntRange(1, 4 << 20), default=100, show_default=True, help="Bytes of an entry.")
@click.option(
    "--outstanding", type=click.IntRange(1), default=None, help="Calls in flight.  [default: 1000, of reads 1]"
)
@click.option("--ledgers", type=click.IntRange(1), default=1, show_default=True, help="Ledgers, used in rotation.")
@click.option("--log", is_flag=True, help="Append to named logs, as many as --ledgers says, in place of ledgers.")
@click.option(
    "--roll",
    "roll_s",
    type=SecondsRange(0.1),
    default=None,
    help="Seconds until a log rolls.",
)
@click.option(
    "--ensemble", callback=quorums, default="3,3,2", show_default=True, metavar="E,QW,QA", help="Quorum sizes."
)
@click.option("--seconds", type=SecondsRange(0.1), default=10.0, show_default=True, help="Seconds to measure.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Rounds of failover and recovery.")
@click.option(
    "--entries",
    type=click.IntRange(1),
    default=10_000,
    show_default=True,
    help="Entries to recover, or to store before a restart.",
)
@click.option("--api", default=None, help="append, append_batch (of 1000), read or read_blocks.")
@click.option("--restart", is_flag=True, help="Restart the bookies before the reads, so that these come from disk.")
@click.option(
    "--ceiling",
    is_flag=True,
    help="Also measure the same bytes through bare sockets and fdatasync, without and with the work of storing them.",
)
@click.option(
    "--memory",
    "course",
    is_flag=True,
    help="Also report the bookies' memory during the run, and 10 s after it.",
)
@click.option(
    "--processor-time",
    "tell_processor_time",
    is_flag=True,
    help="Also report the processor time of an entry, by process and thread (Linux only).",
)
@click.option(
    "--connect",
    "uri",
    metavar="URI",
    envvar="BKPY_CONNECT",
    help="Use this cluster instead of a new one.  [env: BKPY_CONNECT]",
)
@click.option("--dir", "directory", type=click.Path(), help="The directory for the cluster of the run.")
@json_option
def bench(
    workload: str,
    size: int,
    outstanding: int | None,
    ledgers: int,
    log: bool,
    roll_s: float | None,
    ensemble: tuple[int, int, int],
    seconds: float,
    rounds: int,
    entries: int,
    api: str | None,
    restart: bool,
    ceiling: bool,
    course: bool,
    tell_processor_time: bool,
    uri: str | None,
    directory: str | None,
    as_json: bool,
) -> None:
    """Measure appends or reads: rates, latencies, and the share of what bare sockets and fdatasync allow.

    Or failures, as the median of some rounds: how long no append is acknowledged when a bookie is killed, with
    --seconds of load before and after; how long the recovery of a ledger takes of which no entry is known to be
    confirmed. The command starts a cluster of three bookies on this machine for the run (for a failover, one more than
    the ensemble), unless --connect names one. Appends and reads use TLS if tls_certificate_file is set, for 127.0.0.1.
    """
    from bkpy.bench.workloads import APPEND_APIS, READ_APIS, Options

    outstanding = outstanding or (1 if workload == "read" else 1000)
    if workload in FAILURES:
        owns_cluster, owns_ledgers = workload != "recovery", workload != "restart"
        useless = (
            api is not None
            or log
            or roll_s is not None
            or restart
            or ceiling
            or course
            or tell_processor_time
            or (owns_ledgers and ledgers != 1)
        )
        if useless or (owns_cluster and uri is not None):
            raise click.UsageError(
                f"--workload {workload} goes without --api, --log, --roll, --restart, --ceiling, --memory, "
                "--processor-time"
                + (" and --ledgers" if owns_ledgers else "")
                + (f", and {_OWN_CLUSTER}" if owns_cluster else "")
            )
        with _scratch(directory) as scratch:
            gc.set_threshold(*_GC_THRESHOLDS)
            if workload == "restart":
                failure = run(_restart(ensemble, size, entries, ledgers, scratch))
            else:
                failure = run(_fail(workload, ensemble, size, outstanding, seconds, rounds, entries, uri, scratch))
        if as_json:
            print_json_line(failure)
        else:
            _show_failure(failure)
        return
    if (log and workload != "append") or (roll_s is not None and not log):
        raise click.UsageError("--log goes with --workload append, and --roll with --log")
    apis = APPEND_APIS if workload == "append" else READ_APIS
    api = api or apis[0]
    if api not in apis:
        raise click.UsageError(f"--api {api} doesn't go with --workload {workload}: one of {', '.join(apis)}")
    if restart and (uri is not None or workload != "read"):
        raise click.UsageError(f"--restart goes with --workload read, and {_OWN_CLUSTER}")
    if course and uri is not None:
        raise click.UsageError(f"--memory goes {_OWN_CLUSTER}")
    if tell_processor_time and uri is not None:
        raise click.UsageError(f"--processor-time goes {_OWN_CLUSTER}")
    if tell_processor_time and not os.path.exists("/proc/stat"):
        raise click.UsageError("--processor-time reads Linux's /proc, which this system doesn't have")
    options = Options(workload, size, outstanding, ledgers, ensemble, seconds, api, log, roll_s)
    with _scratch(directory) as scratch:
        gc.set_threshold(*_GC_THRESHOLDS)
        result = run(_measure(options, uri, scratch, restart, course, tell_processor_time))
        bare, stored = _ceilings(options, scratch) if ceiling else (None, None)
        for name, moved in (("ceiling", bare), ("storage_ceiling", stored)):
            result[f"{name}_mb_per_s"] = None if moved is None else round(moved, 2)
            result[f"ratio_to_{name}"] = None if moved is None else round(result["mb_per_s"] / moved, 3)
    if as_json:
        print_json_line(result)
    else:
        _show(result)


@contextlib.contextmanager
def _scratch(directory: str | None) -> Iterator[str]:
    """A directory for the run's files, deleted at its end. Ctrl-C prints one line."""
    if directory is not None:
        os.makedirs(directory, exist_ok=True)
    with (
        interruptible("the measurement was not finished"),
        tempfile.TemporaryDirectory(dir=directory, prefix="bkpy-bench-") as scratch,
    ):
        yield scratch


@contextlib.asynccontextmanager
async def _cluster(
    uri: str | None, scratch: str, bookies: int, config: dict[str, Any] | None = None
) -> AsyncIterator[tuple[str, LocalCluster | None]]:
    if uri is not None:
        yield uri, None
        return
    from bkpy.local import LocalCluster

    async with LocalCluster(scratch, bookies=bookies, config=config) as cluster:
        yield cluster.connect_string, cluster


async def _measure(
    options: Options, uri: str | None, scratch: str, restart: bool, tell_course: bool, tell_processor_time: bool
) -> dict[str, Any]:
    """The workload's figures, and the peaks of memory: of bookies only if this run has started them."""
    from bkpy.bench import memory, workloads
    from bkpy.bench.processor_time import ProcessorTime

    # With a certificate in the command's settings, the bookies of a new cluster have it as well.
    tls = {name: value for name, value in security_settings().items() if name.startswith("tls_")}
    async with (
        _cluster(uri, scratch, max(3, options.ensemble[0]), tls) as (address, cluster),
        connect(address) as client,
    ):
        bookies = [] if cluster is None else cluster.bookies

        async def restart_bookies() -> None:
            for bookie in bookies:
                await bookie.stop()
                await bookie.start()

        course = memory.MemoryProfile(lambda: [b.pid for b in bookies])
        used = ProcessorTime(lambda: {"client": [os.getpid()], "bookies": [b.pid for b in bookies]})

        with progress(unit="%") as bar:
            task = bar.add_task(f"{options.workload} of {options.size} B", total=100)

            def show(share: float) -> None:
                bar.update(task, completed=round(share * 100))
                course.at(share)

            async with memory.watched(lambda: [os.getpid()], lambda: [b.pid for b in bookies]) as (own, theirs):
                result = await workloads.run(
                    client,
                    options,
                    show,
                    before_reads=restart_bookies if restart else None,
                    after_load=course.rest if tell_course else None,
                    counted=used if tell_processor_time else None,
                )
    peaks = {"client_rss_anon_mb": own.mb, "bookie_rss_anon_mb": theirs.mb}
    measured: dict[str, Any] = (
        {"bookie_memory_mb": course.mb, "bookie_files_mb": course.files_mb} if tell_course else {}
    )
    if tell_processor_time:
        measured["processor_time"] = used.rows(result["entries_per_s"] * result["seconds"])
    unmeasured = {"bookie_memory_mb": None, "bookie_files_mb": None, "processor_time": None}
    return {**result, "restarted": restart, **peaks, **unmeasured, **measured}


async def _fail(
    workload: str,
    ensemble: tuple[int, int, int],
    size: int,
    outstanding: int,
    seconds: float,
    rounds: int,
    entries: int,
    uri: str | None,
    scratch: str,
) -> dict[str, Any]:
    from bkpy.bench import failures

    bookies = ensemble[0] + 1 if workload == "failover" else max(3, ensemble[0])
    async with _cluster(uri, scratch, bookies) as (address, cluster):
        with progress(unit="%") as bar:
            task = bar.add_task(f"{workload} of {size} B", total=100)

            def show(share: float) -> None:
                bar.update(task, completed=round(share * 100))

            if cluster is not None and workload == "failover":
                return await failures.failover(cluster, ensemble, size, outstanding, rounds, seconds, show)
            return await failures.recovery(address, ensemble, size, entries, rounds, show)


async def _restart(ensemble: tuple[int, int, int], size: int, entries: int, ledgers: int, scratch: str) -> Any:
    from bkpy.bench import restarts

    async with _cluster(None, scratch, max(3, ensemble[0])) as (_, cluster):
        assert cluster is not None
        with progress(unit="%") as bar:
            task = bar.add_task(f"restart after {entries} x {size} B", total=100)
            return await restarts.restart(
                cluster, ensemble, size, entries, ledgers, lambda share: bar.update(task, completed=round(share * 100))
            )


def _ceilings(options: Options, scratch: str) -> tuple[float, float | None]:
    """MB/s of bare sockets and syncs; and, for appends, with the work of storing."""
    from bkpy.bench import ceiling

    seconds = min(options.seconds, 5.0)
    if options.workload == "read":
        return ceiling.reads(scratch, options.outstanding, options.ensemble[1], seconds), None
    window = max(1, options.size * options.outstanding * (1000 if options.api == "append_batch" else 1))
    arguments = (scratch, window, options.ensemble[1], options.ensemble[2], seconds)
    return ceiling.appends(*arguments), ceiling.appends(*arguments, stored=True)


def _show(result: dict[str, Any]) -> None:
    names = {
        "entries_per_s": "entries/s",
        "mb_per_s": "MB/s",
        "p50_ms": "p50 ms",
        "p99_ms": "p99 ms",
        "p999_ms": "p99.9 ms",
        "longest_gap_ms": "longest without an answer, ms",
        "client_rss_anon_mb": "client's memory, MB",
        "bookie_rss_anon_mb": "largest bookie's memory, MB",
        "ceiling_mb_per_s": "bare sockets and fdatasync, MB/s",
        "ratio_to_ceiling": "share of that",
        "storage_ceiling_mb_per_s": "these with all that storing takes, MB/s",
        "ratio_to_storage_ceiling": "share of that",
    }
    title = f"{result['workload']} ({result['api']}), {result['size']} B, {result['outstanding']} in flight"
    rows = [(name, result[key]) for key, name in names.items() if result[key] is not None]
    rows += [(f"largest bookie's memory, MB: {when}", mb) for when, mb in (result["bookie_memory_mb"] or {}).items()]
    rows += [(f"its pages of files, MB: {when}", mb) for when, mb in (result["bookie_files_mb"] or {}).items()]
    rows += [
        (f"processor time of an entry, us: {row['of']}", f"{row['user_us']} + {row['system_us']} in the kernel")
        for row in result["processor_time"] or []
    ]
    print_table(("measure", "value"), rows, title)


def _show_failure(result: dict[str, Any]) -> None:
    quorums = ",".join(map(str, result["ensemble"]))
    if result["workload"] == "failover":
        title = f"a bookie killed: {result['size']} B, {result['outstanding']} in flight ({quorums})"
        names = {
            "longest_gap_ms": "longest without an answer, ms (median of the rounds)",
            "undisturbed_gap_ms": "the same before the kill",
            "entries": "entries acknowledged, none lost",
        }
    elif result["workload"] == "restart":
        title = (
            f"restart after kill -9: {result['entries']} x {result['size']} B, {result['ledgers']} ledgers ({quorums})"
        )
        names = {
            "restart_ms": "until a bookie serves, ms (median of the bookies)",
            "slowest_restart_ms": "the same, the slowest of them",
            "written_s": "writing before that, s",
        }
    else:
        title = f"recovery of {result['entries']} x {result['size']} B ({quorums})"
        names = {
            "recovery_ms": "recovery, ms (median of the rounds)",
            "ms_per_entry": "an entry, ms",
            "unconfirmed_entries": "entries not known to be confirmed",
        }
    print_table(("measure", "value"), [(name, f"{result[key]:,}") for key, name in names.items()], title)
