"""Plans an export: the ledgers, or positions of a log, that it doesn't hold yet, in batches of a bounded size.

Invariant: the batches of a plan are disjoint, and none repeats what the export has.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from bkpy.client.arguments import format_ledger_ids
from bkpy.client.connecting import connect_tuned
from bkpy.config.base import GIB
from bkpy.config.client import ClientSettings
from bkpy.errors import TruncatedError
from bkpy.spark.id_runs import NOTHING, Runs
from bkpy.spark.log_view import LogView
from bkpy.spark.manifest import ExportSource, State
from bkpy.spark.options import EARLIEST, parse_options
from bkpy.spark.planning import load_ledgers, plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.spark.options import SourceOptions
    from bkpy.spark.planning import EntryRange

BATCH_BYTES: Final = 16 * GIB  # the most work that an export repeats after a crash: a minute or two
BATCH_LEDGERS_MAX: Final = 10_000  # Spark gets their ids as text


@dataclass(frozen=True)
class ExportBatch:
    """What is written and becomes part of an export at once. `given` are the data source's options for it.

    `read` are those of its `ids` that are read: of a log without the positions in `gaps`, where a loss of entries was
    accepted, and without `truncated` many that were truncated before they were exported. `days` are those of its
    ledgers, for an export by day; a log's entries have times of their own.
    """

    ids: Runs
    given: Mapping[str, str]
    rows: int
    tasks: int
    ledgers: int
    days: Mapping[int, str] | None = None
    read: Runs = NOTHING
    gaps: Runs = NOTHING
    truncated: int = 0


@dataclass(frozen=True)
class ExportPlan:
    """The batches that an export in this `state` does not have yet, and the ids of ledgers with another password.

    `nothing` is a batch without entries, for an export of nothing.
    """

    state: State
    batches: Sequence[ExportBatch]
    nothing: ExportBatch
    skipped: list[int]

    def reads_all_of(self, batch: ExportBatch) -> bool:
        """Whether it reads all that the batch of another plan does, so that nothing was deleted since."""
        return Runs.spans(span for planned in self.batches for span in planned.read.pairs()) >= batch.read


def plan_ledgers(
    options: SourceOptions, given: Mapping[str, str], state_of: Callable[[ExportSource], State], bytes_max: int | None
) -> ExportPlan:
    """The ledgers of `options` that an export doesn't have yet. Blocks; raises what `load_ledgers` and `plan` raise.

    In batches of at most `bytes_max` bytes, unless one ledger alone is larger; without a maximum, in one.
    """
    states: list[State] = []

    def done(instance_id: str) -> Runs:
        states.append(state_of(ExportSource(instance_id)))
        return states[0].done

    # Nothing is done yet, so an address where no ZooKeeper runs is an error at once.
    refused_s = ClientSettings().metadata_refused_timeout_s
    selection = load_ledgers(options, done=done, metadata_refused_timeout_s=refused_s)
    parts = plan(selection.ledgers, options)
    if bytes_max is None:
        groups = [(selection.ledgers, parts)] if selection.ledgers else []
    else:
        groups = list(_groups(selection.ledgers, parts, bytes_max))
    batches = [_batch(ledgers, ranges, given) for ledgers, ranges in groups]
    return ExportPlan(states[0], batches, _batch([], [], given), selection.unauthorized)


def _groups(
    ledgers: Sequence[LedgerMetadata], parts: Sequence[EntryRange], bytes_max: int
) -> Iterator[tuple[list[LedgerMetadata], list[EntryRange]]]:
    """Whole ledgers and their ranges, together of at most that size unless one ledger alone is larger."""
    ranges: dict[int, list[EntryRange]] = {}
    for part in parts:
        ranges.setdefault(part.ledger_id, []).append(part)
    some: list[LedgerMetadata] = []
    of_them: list[EntryRange] = []
    size = 0
    for metadata in ledgers:
        own = ranges.get(metadata.ledger_id, [])
        own_size = sum(part.bytes for part in own)
        if some and (size + own_size > bytes_max or len(some) == BATCH_LEDGERS_MAX):
            yield some, of_them
            some, of_them, size = [], [], 0
        some.append(metadata)
        of_them += own
        size += own_size
    if some:
        yield some, of_them


def _batch(ledgers: Sequence[LedgerMetadata], parts: Sequence[EntryRange], given: Mapping[str, str]) -> ExportBatch:
    ids = [metadata.ledger_id for metadata in ledgers]
    runs = Runs.of(ids)
    return ExportBatch(
        runs,
        # A ledger that is closed meanwhile is no part of the plan any more.
        {**given, "ledgers": format_ledger_ids(ids)},
        sum(part.entries for part in parts),
        len(parts),
        len(ids),
        {metadata.ledger_id: _day(metadata.created_ms) for metadata in ledgers},
        runs,
    )


def plan_log(
    options: SourceOptions,
    given: Mapping[str, str],
    state_of: Callable[[ExportSource], State],
    bytes_max: int | None,
    *,
    skip_truncated: bool,
) -> ExportPlan:
    """The positions of the log of `options` that an export doesn't have yet, up to the last one that can be read.

    In batches of about `bytes_max` bytes; without a maximum, in one. Blocks. Raises what `LogView` raises, and
    `TruncatedError` for entries that were truncated after the last export, unless they are to be skipped.
    """
    return asyncio.run(_plan_log(options, given, state_of, bytes_max, skip_truncated))


async def _plan_log(
    options: SourceOptions,
    given: Mapping[str, str],
    state_of: Callable[[ExportSource], State],
    bytes_max: int | None,
    skip_truncated: bool,
) -> ExportPlan:
    refused_s = ClientSettings().metadata_refused_timeout_s
    settings = options.client_settings() | {"metadata_refused_timeout_s": refused_s}
    async with connect_tuned(options.metadata_uri, **settings) as client:
        view = await LogView.of(client, options)
        state = state_of(ExportSource(client.instance_id, options.log, view.uid))
        earliest = await view.position(EARLIEST)
        # An export begins where the log does. One that found nothing has stored how much was truncated before.
        done = max(state.done.ends, default=0 if state.next_batch else earliest)
        end = max(view.end_position, done)  # fewer bookies may answer than at the last export
        start = max(done, min(earliest, end))
        unread = min(view.behind(done), start)
        gone = start - unread
        if gone and not skip_truncated:
            raise TruncatedError(
                f"positions {unread} to {start - 1} of log {options.log} were truncated before they were exported; "
                "--skip-truncated goes on without them"
            )
        batches: list[ExportBatch] = []
        first, position = done, start
        while position < end or first < position:
            stop = end if bytes_max is None else await view.end_within(position, end, bytes_max)
            tasks = await view.plan(position, stop)
            read = Runs.spans(part.positions for task in tasks for part in task)
            batches.append(
                ExportBatch(
                    Runs.between(first, stop),
                    _between(given, view.uid, position, stop, skip_truncated),
                    len(read),
                    len(tasks),
                    0,
                    read=read,
                    gaps=Runs.between(first, unread) | Runs.spans(read.missing(position, stop)),
                    truncated=gone,
                )
            )
            first = position = unread = stop
            gone = 0
        nothing = ExportBatch(Runs.between(0, start), _between(given, view.uid, start, start, skip_truncated), 0, 0, 0)
        return ExportPlan(state, batches, nothing, [])


def _between(given: Mapping[str, str], uid: str, start: int, end: int, skip_truncated: bool) -> dict[str, str]:
    """The options to read the positions start..end, exclusive, of that log and of no other one of its name.

    Entries that are truncated meanwhile are left out if they are to be skipped; `first_position` tells which.
    """
    offsets = (("startingOffsets", start), ("endingOffsets", end))
    return {
        **given,
        **{option: json.dumps({"position": position, "log_uid": uid}) for option, position in offsets},
        "failOnDataLoss": str(not skip_truncated),
    }


def first_position(given: Mapping[str, str]) -> int:
    """The log's first position now, by a batch's options. Blocks. Raises what `LogView` raises."""
    return asyncio.run(_first_position(parse_options(given)))


async def _first_position(options: SourceOptions) -> int:
    async with connect_tuned(options.metadata_uri, **options.client_settings()) as client:
        view = await LogView.of(client, options)
        await view.refresh()
        return await view.position(EARLIEST)


def _day(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).date().isoformat()
