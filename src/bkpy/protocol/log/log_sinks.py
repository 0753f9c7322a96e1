"""Batches that several processes write to a log, each a ledger of its own, and one of them commits: pure decisions.

The process that commits is the log's writer for the moment: the list that it stores has the ledgers of the batch as
sealed segments, in order, no writer, and the batch's number beside the id of the writer of such batches.

Invariants: a list has the ledgers of a batch exactly if it has had its number; the number of a writer id never falls,
and is forgotten only when an operator removes the id.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bkpy.errors import ConfigError
from bkpy.protocol.log.log_list import Segment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bkpy.protocol.log.log_list import LogList


@dataclass(frozen=True, slots=True)
class BatchPart:
    """A CLOSED ledger with a part of a batch; not empty. `last_ms` is the latest time of its entries' stamps."""

    ledger_id: int
    entries: int
    length: int
    last_ms: int


class BatchStanding(enum.Enum):
    """What the list says of a batch."""

    NEW = "it was never committed"
    COMMITTED = "it is the last one that was committed"
    OLDER = "one with a higher number was committed"


def standing(log_list: LogList, writer_id: str, batch: int) -> BatchStanding:
    """Whether the batch is to be committed."""
    last = log_list.producers.batches.get(writer_id)
    if last is None or batch > last:
        return BatchStanding.NEW
    return BatchStanding.COMMITTED if batch == last else BatchStanding.OLDER


def with_batch(
    log_list: LogList, writer_id: str, batch: int, parts: Sequence[BatchPart], now_ms: int, producers_max: int
) -> LogList:
    """The list with one more batch behind all its entries. All segments must be sealed, see `log_opening.settled`.

    The entries' time is that of the commit, for all of them: `now_ms`, unless the log or a part is ahead of that.
    Raises `ConfigError` for the name of a producer of numbered entries; and for a new writer id if the list has
    `producers_max` of both: one that was forgotten would commit a repeated batch once more.
    """
    known = log_list.producers.known
    if log_list.producers.numbered(writer_id) is not None:
        raise ConfigError(f"{writer_id} is the name of a producer of the log: use another writerId")
    if writer_id not in known and len(known) >= producers_max:
        raise ConfigError(
            f"the log remembers {len(known)} producers and Spark writers, as many as log_producers_max allows, so "
            f"{writer_id} can't be a further one: use a writerId again with ascending batch numbers, or remove "
            "names that never come back with bkpy log sinks NAME --delete WRITER_ID, or bkpy log producers"
        )
    begun_ms = max([now_ms, log_list.last_ms, *(part.last_ms for part in parts)])
    position = max(log_list.sealed_end, log_list.first_position)
    segments = list(log_list.segments)
    for part in parts:
        segments.append(Segment(part.ledger_id, position, begun_ms).seal(part.entries, part.length, begun_ms))
        position += part.entries
    return dataclasses.replace(
        log_list,
        segments=tuple(segments),
        writer="",
        writer_label="",
        writer_since_ms=0,
        producers=log_list.producers.with_batch(writer_id, batch),
    )
