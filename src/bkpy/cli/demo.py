"""`bkpy demo`: runs the steps of `bkpy.demo.flights` on a cluster of its own and shows their results."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import shutil
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bkpy.cli.connecting import security_settings
from bkpy.cli.demo_streaming import show_stream
from bkpy.cli.output.progress import progress
from bkpy.cli.output.tables import live_table, print_table
from bkpy.cli.output.text import human_bytes, say
from bkpy.cli.running import interruptible, run
from bkpy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from bkpy.demo.flights import Kill, Month, Numbers, Written
    from bkpy.demo.healing import HealingSample
    from bkpy.local import LocalCluster

_MARK = ".bkpy-demo"  # the file by which a demo knows a directory that it may empty


@click.command()
@click.option(
    "--dir", "directory", default="demo-data", show_default=True, metavar="DIR", help="The directory for all files."
)
@click.option("--keep", is_flag=True, help="Keep the cluster running afterwards, until Ctrl-C.")
@click.option(
    "--connect",
    "uri",
    metavar="URI",
    envvar="BKPY_CONNECT",
    help="Only store the flights in this cluster, and read them back.  [env: BKPY_CONNECT]",
)
def demo(directory: str, keep: bool, uri: str | None) -> int:
    """Store a year of flights in twelve ledgers, read them back, and query them with Spark.

    The demo kills a bookie during the writes, and the others re-replicate what it held. Then it kills a writer in the
    middle of a ledger with all flights, and recovers that ledger. In the end the flights stream through a log, in the
    order of their times: the demo kills the service that writes it, a consumer tails it, and a Spark query, stopped and
    restarted once, aggregates it into a picture. The demo compares every result with the source; the exit status is 0
    only if all agree.

    With --connect the demo kills nothing, and doesn't need Spark.
    """
    from bkpy.demo import flights as steps
    from bkpy.demo.chart import check_chart
    from bkpy.demo.healing import HEALS_SOON
    from bkpy.local import LocalCluster

    started = time.monotonic()
    lines = steps.load_flights()
    if uri is not None:
        say(f"Storing the flights in the cluster at {uri} ...")
        with interruptible(f"the demo on {uri} was not finished"):
            return _conclude(_store(uri, lines, **security_settings())[1])
    check_chart()
    with fresh_directory(Path(directory).absolute()) as base:
        cluster = LocalCluster(base / "cluster", bookies=steps.BOOKIES, config=HEALS_SOON)
        with interruptible(f"the demo in {base} was not finished"):
            agree = _steps(cluster, lines, base, keep, started)
    return _conclude(agree)


def _conclude(agree: bool) -> int:
    click.echo("All of it agrees with the source." if agree else "NOT all of it agrees with the source.")
    return 0 if agree else 1


def _steps(cluster: LocalCluster, lines: dict[int, list[bytes]], base: Path, keep: bool, started: float) -> bool:
    """All steps, on a cluster that runs only meanwhile; whether all results agree with the source."""
    from bkpy.demo import flights as steps

    say(f"Starting ZooKeeper and {steps.BOOKIES} bookies ...")
    try:
        run(cluster.start())
        months, stored = _store(cluster.connect_string, lines, steps.killer(cluster))
        recovered = _recover(cluster.connect_string, lines, base / "writer.log")
        agree = _in_spark(cluster.connect_string, lines, months, base)
        click.echo(f"Cluster   {cluster.directory}\nParquet   {base / 'flights.parquet'}")
        click.echo(f"Time      {time.monotonic() - started:.1f} s")
        if keep:
            run(cluster.start())  # the bookie that was killed
            _wait(cluster)
    finally:
        run(cluster.stop())
    return stored and recovered and agree


@contextlib.contextmanager
def fresh_directory(base: Path) -> Iterator[Path]:
    """An empty directory for this demo alone: a new one, or that of an earlier demo."""
    mark = base / _MARK
    if base.exists() and any(base.iterdir()) and not mark.exists():
        raise ConfigError(f"{base} is not empty and not from an earlier demo; choose another with --dir")
    base.mkdir(parents=True, exist_ok=True)
    with open(mark, "ab") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another demo is running in {base}; choose another directory with --dir") from None
        for old in base.iterdir():
            if old.is_dir() and not old.is_symlink():
                shutil.rmtree(old)
            elif old != mark:
                old.unlink()
        yield base


def _store(
    uri: str, lines: dict[int, list[bytes]], kill: Kill | None = None, **settings: Any
) -> tuple[list[Month], bool]:
    """Write every month and read all back. With `kill`, a bookie dies in between, and its ledgers are re-replicated.

    Returns what was written, and whether it was read back, and every flight is on as many bookies as before.
    """
    from bkpy.demo import flights as steps

    total = sum(map(len, lines.values()))
    with progress() as bar:
        writing = bar.add_task("writing", total=total)
        written = run(steps.write_months(uri, lines, lambda count: bar.advance(writing, count), kill, **settings))
    months = written.months
    looks = [] if written.killed is None else _follow(uri, written)
    with progress() as bar:
        reading = bar.add_task("reading", total=total)
        found, read_s = run(steps.read_months(uri, months, lambda count: bar.advance(reading, count), **settings))
    same = {m.month: found[m.month] == m.sha256 == steps.digest(lines[m.month]) for m in months}
    click.echo(f"\nLedgers (E={steps.ENSEMBLE_SIZE}, Qw={steps.WRITE_QUORUM}, Qa={steps.ACK_QUORUM})")
    print_table(
        ("month", "ledger", "entries", "size", "SHA-256", "read back"),
        [
            (
                m.month,
                m.ledger_id,
                m.entries,
                human_bytes(m.bytes),
                m.sha256[:16],
                "same" if same[m.month] else "DIFFERS",
            )
            for m in months
        ],
    )
    size = sum(m.bytes for m in months)
    for what, seconds in (("Wrote", written.seconds), ("Read ", read_s)):
        rates = f"{total / seconds:,.0f} entries/s, {human_bytes(round(size / seconds))}/s"
        click.echo(f"{what} {total:,} entries, {human_bytes(size)}, in {seconds:.2f} s: {rates}")
    if written.killed is not None:
        click.echo(
            f"{written.killed} was killed (SIGKILL) in the middle of the write: ensembles changed {written.changes} "
            f"times, the longest\npause between two acknowledgements of a ledger was "
            f"{written.pauses.after_s * 1000:.0f} ms (before the kill {written.pauses.before_s * 1000:.0f} ms)"
        )
    whole = sum(m.entries for m in months) == total and size == sum(
        len(line) for all_ in lines.values() for line in all_
    )
    healed = written.killed is None or _show_healing(uri, written, looks, lines)
    return months, whole and all(same.values()) and healed


_HEALING = ("after the kill", "under-replicated ledgers", "to be copied", "what happens")


def _follow(uri: str, written: Written) -> list[HealingSample]:
    """Show how the number of under-replicated ledgers falls to zero. Returns the samples that differ from the last."""
    from bkpy.demo.healing import follow

    looks: list[HealingSample] = []

    with live_table(_HEALING) as show:

        def tell(look: HealingSample) -> None:
            if not looks or (look.ledgers, look.state) != (looks[-1].ledgers, looks[-1].state):
                looks.append(look)
            show([_row(some) for some in looks] + ([] if look is looks[-1] else [_row(look)]))

        run(follow(uri, written, tell))
    return looks


def _row(look: HealingSample) -> tuple[str, int, str, str]:
    left = "" if look.bytes_left is None else human_bytes(look.bytes_left)
    return f"{look.seconds:.1f} s", look.ledgers, left, look.state


def _show_healing(uri: str, written: Written, looks: Sequence[HealingSample], lines: dict[int, list[bytes]]) -> bool:
    """Print the samples, read all copies from each bookie by itself; whether every flight is on enough of them."""
    from bkpy.demo import flights as steps
    from bkpy.demo.healing import DEFAULT_DELAY_S, HEALS_SOON, count_copies

    delay_s = HEALS_SOON["lost_bookie_recovery_delay_s"]
    click.echo(
        f"\n{written.killed} stays away. Here an absent bookie counts as lost after {delay_s:g} s "
        f"(lost_bookie_recovery_delay_s,\nby default {DEFAULT_DELAY_S:g} s); then the others re-replicate its ledgers"
    )
    print_table(_HEALING, [_row(look) for look in looks])
    total = sum(map(len, lines.values()))
    with progress() as bar:
        task = bar.add_task("reading every copy", total=steps.WRITE_QUORUM * total)
        copies = run(count_copies(uri, written.months, lines, lambda count: bar.advance(task, count)))
    click.echo(f"\nRead from each bookie by itself, and compared with the source, in {copies.seconds:.2f} s")
    print_table(
        ("bookies that have them", "flights"),
        [(number, f"{count:,}") for number, count in sorted(copies.flights.items())],
    )
    enough = copies.flights == {steps.WRITE_QUORUM: total} and written.killed not in copies.bookies
    click.echo(
        f"Every flight is on {steps.WRITE_QUORUM} bookies that run, {looks[-1].seconds:.1f} s after the kill."
        if enough
        else f"NOT every flight is on {steps.WRITE_QUORUM} bookies that run."
    )
    return enough


def _recover(uri: str, lines: dict[int, list[bytes]], log_path: Path) -> bool:
    """Kill a writer process and recover its ledger; whether all acknowledged flights are there."""
    from bkpy.demo import flights as steps

    year = [line for month in lines.values() for line in month]
    ledger_id, acknowledged = run(steps.kill_writer(uri, len(year), log_path))
    found = run(steps.recover(uri, ledger_id, acknowledged, year))
    click.echo(
        f"\nLedger {ledger_id}, whose writer was killed (SIGKILL) in the middle of the year: "
        f"recovered by another process in {found.seconds:.2f} s"
    )
    print_table(
        ("flights acknowledged", "recovered", "lost", "different from the source"),
        [(found.acknowledged, found.recovered, found.lost, found.different)],
    )
    click.echo()
    return found.lost == 0 and found.different == 0


def _in_spark(uri: str, lines: dict[int, list[bytes]], months: Sequence[Month], base: Path) -> bool:
    """The steps that need Spark, in one session; whether all results agree with the source."""
    from bkpy.demo import flights as steps
    from bkpy.demo.delays import SPARK_CONFIG

    say(f"Spark's own output goes to {base / 'spark.log'}")
    with contextlib.ExitStack() as stack:
        with progress(unit="") as bar:
            bar.add_task("starting Spark", total=None)
            spark = stack.enter_context(steps.spark_session(base / "spark.log", SPARK_CONFIG))
        numbers_agree = _query(uri, spark, lines, months, base / "flights.parquet")
        streams_agree = show_stream(uri, spark, [line for month in lines.values() for line in month], base)
    return numbers_agree and streams_agree


def _query(
    uri: str, spark: SparkSession, lines: dict[int, list[bytes]], months: Sequence[Month], parquet: Path
) -> bool:
    """Export the ledgers with Spark, query the files, and compare with the numbers from the lines."""
    from bkpy.demo import flights as steps
    from bkpy.spark.export import export_ledgers

    with progress(unit="partitions") as bar:
        task = bar.add_task("exporting", total=None)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        exported = export_ledgers(uri, [m.ledger_id for m in months], parquet, spark=spark, progress=show)
        ours, by_ledger = steps.query(spark, parquet)
    theirs = steps.count([line for month in months for line in lines[month.month]])
    click.echo(
        f"Exported {exported.rows:,} rows to {exported.files} Parquet files in {exported.seconds:.2f} s: "
        f"{exported.rows / exported.seconds:,.0f} rows/s"
    )
    return all((compare(ours, theirs), by_ledger == {m.ledger_id: m.entries for m in months}))


def compare(spark: Numbers, csv: Numbers) -> bool:
    """Print the numbers side by side; whether they are the same."""
    click.echo("\nFlights and mean departure delay (minutes) by carrier")
    carriers = sorted(spark.flights | csv.flights)
    print_table(
        ("carrier", "flights: Spark", "CSV", "delay: Spark", "CSV"),
        [(c, spark.flights[c], csv.flights[c], spark.mean_delay(c), csv.mean_delay(c)) for c in carriers],
    )
    click.echo("\nFlights by origin")
    origins = sorted(spark.origins | csv.origins)
    print_table(("origin", "flights: Spark", "CSV"), [(o, spark.origins[o], csv.origins[o]) for o in origins])
    click.echo()
    return spark == csv  # the means are quotients of these whole numbers


def _wait(cluster: LocalCluster) -> None:
    say(f"The cluster is running:  export BKPY_CONNECT={cluster.connect_string}\nCtrl-C stops it.")

    async def until_asked() -> None:
        signalled = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, signalled.set)
        await signalled.wait()

    run(until_asked())
