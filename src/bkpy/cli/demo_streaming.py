"""The end of `bkpy demo`: streams the flights through a log, and compares what each reader found with the source."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from bkpy.cli.output.progress import progress
from bkpy.cli.output.tables import print_table
from bkpy.cli.running import run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from bkpy.demo.events import FlightEvent
    from bkpy.demo.streaming import Streamed

_DAYS_PER_SECOND = 30.0
_PICTURE = "delays.png"


def show_stream(uri: str, spark: SparkSession, lines: Sequence[bytes], base: Path) -> bool:
    """Run the pipeline on a log of the cluster and draw its result; whether all of it agrees with the source."""
    from bkpy.demo.chart import draw
    from bkpy.demo.delays import windows_of
    from bkpy.demo.events import flight_events
    from bkpy.demo.streaming import PARTS, Pipeline, events_in, flights_in, stream

    events = flight_events(lines)
    pipeline = Pipeline(uri, spark, base, events, _DAYS_PER_SECOND)
    with progress(unit="events") as bar:
        tasks = {part: bar.add_task(f"streaming: {part}", total=len(events)) for part in PARTS}
        streamed = run(stream(pipeline, lambda part, position: bar.update(tasks[part], completed=position)))
    expected = windows_of(lines)
    aggregated = streamed.aggregated
    found = {
        f"the log, {streamed.ledgers} ledgers": events_in(streamed.payloads, events),
        "the consumer": events_in(streamed.tailed.payloads, events),
        f"Spark's {len(aggregated.windows):,} windows": flights_in(aggregated.windows, expected),
    }
    _tell(streamed, events)
    print_table(
        ("flights in", "flights", "missing", "too many", "out of order"),
        [(where, f"{a.flights:,}", a.missing, a.surplus, a.displaced) for where, a in found.items()],
    )
    prefix = streamed.takeover.position >= streamed.takeover.acknowledged
    equal = aggregated.windows == expected
    click.echo(f"Numbers and delays by day and airport are {'the same as' if equal else 'NOT those'} in the source.\n")
    draw(aggregated.windows, base / _PICTURE)
    click.echo(f"Picture   {base / _PICTURE}\nStream    {pipeline.parquet}")
    return prefix and equal and all(tally.exact for tally in found.values())


def _tell(streamed: Streamed, events: Sequence[FlightEvent]) -> None:
    takeover, aggregated = streamed.takeover, streamed.aggregated
    survived = streamed.payloads[: takeover.position]
    is_prefix = survived == [event.payload for event in events[: takeover.position]]
    click.echo(
        f"The flights streamed through the log in {streamed.seconds:.1f} s, as their time came, {_DAYS_PER_SECOND:g} "
        f"days a second. The service that wrote it\n"
        f"was killed (SIGKILL) with {takeover.acknowledged:,} events acknowledged. Another one took over "
        f"{takeover.seconds:.1f} s later, found the first {takeover.position:,}\n"
        f"{'as they were written' if is_prefix else 'NOT as they were written'}, and went on. "
        f"The consumer went on at position {streamed.tailed.resumed_at:,} in a second session.\n"
        f"Spark aggregated the log in {aggregated.batches} micro-batches meanwhile; the query was stopped at position "
        f"{aggregated.stopped_at:,}, and started\nagain from its checkpoint at position {aggregated.resumed_at:,}"
    )
