"""`bkpy export`: writes ledgers and logs to files, with Spark."""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
import time
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import click

from bkpy.cli.arguments import NewPath, SecondsRange
from bkpy.cli.connecting import connect_option, security_settings
from bkpy.cli.endings import TERMINATED
from bkpy.cli.output.json import json_option, print_json, print_json_line
from bkpy.cli.output.progress import progress
from bkpy.cli.output.text import human_bytes, say
from bkpy.cli.running import interruptible

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bkpy.errors import BookKeeperError
    from bkpy.spark.export import ExportSummary


def _named_values(ctx: click.Context, _: click.Parameter, given: Sequence[str]) -> dict[str, str]:
    for one in given:
        if "=" not in one:
            ctx.fail(f"option {one!r} is not of the form NAME=VALUE")
    return dict(one.split("=", 1) for one in given)


@click.command()
@connect_option
@click.option(
    "--ledgers", metavar="LEDGERS", help='Ids and ranges, as in 7,9-12, or "closed" for all closed ones, not of logs.'
)
@click.option("--log", metavar="NAME", help="A named log, up to its last readable entry.")
@click.option(
    "--to",
    "directory",
    required=True,
    metavar="DIR",
    type=NewPath(),
    help="A new directory, or one with an export to continue.",
)
@click.option("--format", "form", type=click.Choice(["parquet", "csv", "json"]), default="parquet", show_default=True)
@click.option(
    "--payload",
    type=click.Choice(["utf8", "base64"]),
    help="Write payloads as text.  [default: bytes in parquet, base64 in csv and json]",
)
@click.option("--partition-by", type=click.Choice(["day"]), help="Write to folders day=YYYY-MM-DD, in UTC.")
@click.option("--password-file", metavar="FILE", help="A file with the ledgers' password.  [default: no password]")
@click.option("--skip-unauthorized", is_flag=True, help="Leave out, and list, ledgers with another password.")
@click.option("--skip-truncated", is_flag=True, help="Skip entries that were truncated before their export.")
@click.option(
    "-o",
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_named_values,
    help="An option of the data source, such as maxBytesPerPartition=1000000. May be repeated.",
)
@click.option(
    "--batch-bytes",
    type=click.IntRange(1),
    metavar="BYTES",
    help="About how many bytes become part of the export at once.  [default: 16 GiB]",
)
@click.option("--follow", is_flag=True, help="Keep adding new entries, until SIGTERM or Ctrl-C.")
@click.option(
    "--interval",
    type=SecondsRange(0, min_open=True),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="With --follow, the pause between two rounds.",
)
@click.option("--master", default="local[*]", show_default=True, metavar="URL", help="The Spark master to run on.")
@click.option("--verbose", is_flag=True, help="Show Spark's own output, instead of keeping it in a file.")
@json_option
def export(
    uri: str,
    ledgers: str | None,
    log: str | None,
    directory: str,
    form: str,
    payload: str | None,
    partition_by: str | None,
    password_file: str | None,
    skip_unauthorized: bool,
    skip_truncated: bool,
    options: dict[str, str],
    batch_bytes: int | None,
    follow: bool,
    interval: float,
    master: str,
    verbose: bool,
    as_json: bool,
) -> None:
    """Add to a directory the entries of closed ledgers, or of a log, that it doesn't have yet, with Apache Spark.

    Columns: log, ledger_id, entry_id, payload, length, position, and of a log time. Run again, or with --follow, it
    adds new entries, each once, even if an earlier run was killed. It adds nothing if a ledger doesn't exist, isn't
    closed or has another password, if entries of a log were truncated before they were exported, or while another
    export writes to the directory.

    Exit status: 0 if the directory has everything, except for ledgers listed as left out with --skip-unauthorized, and
    with --follow after SIGTERM; 1 for a failure, 2 for a wrong command line, 130 after Ctrl-C, 143 after SIGTERM.
    """
    from bkpy.spark.export import Exporter, ExportRequest

    if (ledgers is None) == (log is None):
        raise click.UsageError("give either --ledgers or --log")
    request = ExportRequest(
        uri,
        directory,
        ledgers,
        log,
        format=form,
        payload=payload,
        partition_by=partition_by,
        password_file=password_file,
        skip_unauthorized=skip_unauthorized,
        skip_truncated=skip_truncated,
        options={**_security(), **options},
        batch_bytes=batch_bytes,
    )
    shows_progress = progress(unit="partitions") if not follow else nullcontext()
    with _interruptible(directory, follow), _spark_output(verbose) as output, shows_progress as bar:
        task = bar.add_task("planning", total=None) if bar is not None else None

        def tell(done: int, total: int) -> None:
            if bar is not None and task is not None:
                bar.update(task, description="exporting", completed=done, total=total)

        with Exporter(request, master=master, output=output, progress=tell) as exporter:
            if follow:
                exporter.follow(interval, lambda summary: _show_round(summary, as_json), _show_failed_round)
            summary = exporter.round()
    _show(summary, as_json)


@contextmanager
def _interruptible(directory: str, follow: bool) -> Iterator[None]:
    """Ctrl-C and SIGTERM end it. For a service, SIGTERM is the normal end."""
    from bkpy.spark.lock import is_uri

    text = "holds no complete export" if is_uri(directory) else "has all whole batches; the same command adds the rest"
    try:
        with interruptible(f"{directory} {text}"):
            yield
    except SystemExit as e:
        if follow and e.code == TERMINATED:
            sys.exit(0)
        raise


def _security() -> dict[str, str]:
    """The data source's options for the certificates and passwords in this command's settings."""
    from bkpy.errors import ConfigError
    from bkpy.spark.options import SECURITY

    given = security_settings()
    if "zookeeper_auth" in given:
        raise ConfigError("Spark would show the password: put it into a file, and set BKPY_ZOOKEEPER_AUTH_FILE instead")
    return {option: given[setting] for option, setting in SECURITY.items() if setting in given}


@contextmanager
def _spark_output(verbose: bool) -> Iterator[int]:
    """A file descriptor for Spark's own output: standard error, or a file, which is kept and named after a failure."""
    if verbose:
        yield sys.stderr.fileno()
        return
    fd, path = tempfile.mkstemp(prefix="bkpy-export-", suffix=".log")
    try:
        yield fd
    except Exception:
        if os.fstat(fd).st_size > 0:
            say(f"Spark's own output is in {path}")
        else:
            os.unlink(path)
        raise
    except BaseException:
        os.unlink(path)
        raise
    else:
        os.unlink(path)
    finally:
        os.close(fd)


def _show(summary: ExportSummary, as_json: bool) -> None:
    from bkpy.client.arguments import format_ledger_ids

    if summary.skipped:
        which = format_ledger_ids(summary.skipped)
        say(f"left out {len(summary.skipped)} ledgers, which have another password: {which}")
    if summary.truncated:
        say(f"left out {summary.truncated:,} entries, which were truncated before they were exported")
    for first, last in summary.gaps:
        say(f"positions {first} to {last} have no entries: a loss was accepted there")
    if as_json:
        print_json(dataclasses.asdict(summary))
        return
    say(_summary_line(summary))
    click.echo(summary.directory)


def _summary_line(summary: ExportSummary) -> str:
    total = summary.total
    if total.rows == 0:
        return "there are no entries yet; the directory has only the columns"
    if summary.rows == 0:
        return f"nothing new; {total.rows:,} entries in {_files(total.files)}"
    of = f", of {summary.ledgers} ledgers" if summary.ledgers else ""
    what = f"{summary.rows:,} entries, {human_bytes(summary.bytes)}{of}"
    added = f"{what} in {summary.seconds:.2f} s to {_files(summary.files)}"
    return added if total.rows == summary.rows else f"{added}; {total.rows:,} entries in {_files(total.files)} now"


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"


def _show_round(summary: ExportSummary, as_json: bool) -> None:
    """A line for each round of a service."""
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    if as_json:
        print_json_line({"time": now, **dataclasses.asdict(summary)})
    else:
        click.echo(f"{now} {_summary_line(summary)}")
    sys.stdout.flush()


def _show_failed_round(error: BookKeeperError) -> None:
    say(f"{time.strftime('%Y-%m-%d %H:%M:%S')} bkpy: {error}; retrying in the next round")
