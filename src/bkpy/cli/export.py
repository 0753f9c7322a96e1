"""`bkpy export`: ledgers to files, with Spark."""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from bkpy.cli.common import connect_option, human_bytes, json_option, print_json, progress, say, security_settings
from bkpy.cli.interrupts import interruptible

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bkpy.spark.export import ExportSummary


def _named_values(ctx: click.Context, _: click.Parameter, given: Sequence[str]) -> dict[str, str]:
    for one in given:
        if "=" not in one:
            ctx.fail(f"option {one!r} is not of the form NAME=VALUE")
    return dict(one.split("=", 1) for one in given)


@click.command()
@connect_option
@click.option(
    "--ledgers", required=True, metavar="LEDGERS", help='Ids and ranges, as in 7,9-12, or "closed" for all closed ones.'
)
@click.option("--to", "directory", required=True, metavar="DIR", help="Where to write; must be empty or not exist.")
@click.option("--format", "form", type=click.Choice(["parquet", "csv", "json"]), default="parquet", show_default=True)
@click.option(
    "--payload",
    type=click.Choice(["utf8", "base64"]),
    help="Write payloads as text.  [default: bytes in parquet, base64 in csv and json]",
)
@click.option("--password-file", metavar="FILE", help="A file with the ledgers' password.  [default: no password]")
@click.option("--skip-unauthorized", is_flag=True, help="Leave out, and list, ledgers with another password.")
@click.option(
    "-o",
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_named_values,
    help="An option of the data source, such as maxBytesPerPartition=1000000; may be given again.",
)
@click.option("--master", default="local[*]", show_default=True, metavar="URL", help="The Spark to run on.")
@click.option("--verbose", is_flag=True, help="Show what Spark itself prints, instead of keeping it in a file.")
@json_option
def export(
    uri: str,
    ledgers: str,
    directory: str,
    form: str,
    payload: str | None,
    password_file: str | None,
    skip_unauthorized: bool,
    options: dict[str, str],
    master: str,
    verbose: bool,
    as_json: bool,
) -> None:
    """Write the entries of closed ledgers to files, with Apache Spark.

    Columns: log, ledger_id, entry_id, payload, length, position. Nothing is written if a ledger doesn't exist, isn't
    closed or has another password, or while another export writes to the same place.

    Exit status: 0 if everything asked for was written, which with --skip-unauthorized is what isn't listed as left
    out; 1 for a failure, 2 for a wrong command line, 130 after Ctrl-C, 143 after SIGTERM.
    """
    from bkpy.spark.export import export_ledgers

    options = {**_security(), **options}
    unfinished = f"{directory} holds no complete export"
    with interruptible(unfinished), _spark_output(verbose) as output, progress(unit="partitions") as bar:
        task = bar.add_task("planning", total=None)
        summary = export_ledgers(
            uri,
            ledgers,
            directory,
            format=form,
            payload=payload,
            password_file=password_file,
            skip_unauthorized=skip_unauthorized,
            options=options,
            master=master,
            output=output,
            progress=lambda done, total: bar.update(task, description="exporting", completed=done, total=total),
        )
    _show(summary, as_json)


def _security() -> dict[str, str]:
    """The data source's options for what this command's settings say of certificates and passwords."""
    from bkpy.errors import ConfigError
    from bkpy.spark.options import SECURITY

    given = security_settings()
    if "zookeeper_auth" in given:
        raise ConfigError("Spark would show the password: put it into a file, and set BKPY_ZOOKEEPER_AUTH_FILE instead")
    return {option: given[setting] for option, setting in SECURITY.items() if setting in given}


@contextmanager
def _spark_output(verbose: bool) -> Iterator[int]:
    """A file descriptor for what Spark prints: standard error, or a file that is kept and told of after a failure."""
    if verbose:
        yield sys.stderr.fileno()
        return
    fd, path = tempfile.mkstemp(prefix="bkpy-export-", suffix=".log")
    try:
        yield fd
    except Exception:
        if os.fstat(fd).st_size > 0:
            say(f"What Spark itself printed is in {path}")
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
    from bkpy.spark.options import format_ledgers

    if summary.skipped:
        say(f"left out {len(summary.skipped)} ledgers, which have another password: {format_ledgers(summary.skipped)}")
    if as_json:
        print_json(dataclasses.asdict(summary))
        return
    say(
        f"{summary.rows:,} entries, {human_bytes(summary.bytes)}, of {summary.ledgers} ledgers "
        f"in {summary.seconds:.2f} s to {summary.files} files"
    )
    click.echo(summary.directory)
