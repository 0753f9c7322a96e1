"""`bkpy export`: ledgers to files, with Spark."""

from __future__ import annotations

import dataclasses

import click

from bkpy.cli.common import connect_option, human_bytes, json_option, print_json, progress, say


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
@click.option("--master", default="local[*]", show_default=True, metavar="URL", help="The Spark to run on.")
@json_option
def export(
    uri: str,
    ledgers: str,
    directory: str,
    form: str,
    payload: str | None,
    password_file: str | None,
    master: str,
    as_json: bool,
) -> None:
    """Write the entries of closed ledgers to files, with Apache Spark.

    Columns: log, ledger_id, entry_id, payload, length, position. Nothing is written if a ledger doesn't exist, isn't
    closed or has another password.
    """
    from bkpy.spark.export import export_ledgers

    with progress(unit="partitions") as bar:
        task = bar.add_task("planning", total=None)
        summary = export_ledgers(
            uri,
            ledgers,
            directory,
            format=form,
            payload=payload,
            password_file=password_file,
            master=master,
            progress=lambda done, total: bar.update(task, description="exporting", completed=done, total=total),
        )
    if as_json:
        print_json(dataclasses.asdict(summary))
        return
    say(
        f"{summary.rows:,} entries, {human_bytes(summary.bytes)}, of {summary.ledgers} ledgers "
        f"in {summary.seconds:.2f} s to {summary.files} files"
    )
    click.echo(summary.directory)
