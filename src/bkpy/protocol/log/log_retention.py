"""What of a named log may be deleted: by its retention, by a truncation, and of the ledgers that no list names.

    a sealed segment        goes by retention when no limit keeps it: by time, its last entry is too old; by size,
                            enough bytes of entries lie behind it
    the last segment        never: where the log ends is known by it
    what a consumer needs   stays, for at most `consumer_lag_max_s` longer than retention by time keeps it
    a ledger of no list     goes when its log was deleted, or when it is so old that nobody is about to add it

Invariants: whole segments go, from the beginning; what has gone stays gone; a consumer that the caller does not know
holds back nothing, so the write of the decision checks that there is no such consumer.
"""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING, NamedTuple

from bkpy.errors import ConfigError
from bkpy.protocol.log.log_list import PageRef

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.log.log_list import LogList, Segment
    from bkpy.protocol.log.log_pages import Row

_MS = 1000
_UID = re.compile(r"[0-9a-f]{32}")


class Retained(NamedTuple):
    """Nothing before `position` is kept. Perhaps neither are the first segments of the page `edge`, if there is one.

    `behind` are bytes of the users' entries behind that page.
    """

    position: int
    edge: PageRef | None = None
    behind: int = 0


def retained_from(log_list: LogList, now_ms: int, consumers: Iterable[int]) -> Retained:
    """What is kept, as far as the list tells without its pages. `consumers` are positions that they have yet to read.

    The position is the list's first one if everything is kept.
    """
    return _retained(log_list, log_list.rows[:-1], log_list.first_position, log_list.payload_bytes, now_ms, consumers)


def retained_in(
    log_list: LogList, rows: Sequence[Row], so_far: Retained, now_ms: int, consumers: Iterable[int]
) -> Retained:
    """What is kept, as far as the page tells that was the edge `so_far`, and has these rows."""
    assert so_far.edge is not None
    behind = so_far.behind + so_far.edge.payload_bytes
    return _retained(log_list, rows, so_far.position, behind, now_ms, consumers)


def _retained(
    log_list: LogList, rows: Sequence[Row], begin: int, behind: int, now_ms: int, consumers: Iterable[int]
) -> Retained:
    """`behind` are bytes of the rows and of what lies behind them. None but whole rows go.

    As times ascend, a page's last segment goes last.
    """
    needed = min(consumers, default=None)
    for row in rows:
        behind -= row.payload_bytes
        if row.sealed and row.end_position <= begin:
            continue
        if (
            not row.sealed
            or not _expired(log_list, row, behind, now_ms)
            or (needed is not None and needed < row.end_position and not _outwaited(log_list, row, now_ms))
        ):
            return Retained(begin, row if isinstance(row, PageRef) else None, behind)
        begin = row.end_position
    return Retained(begin)


def _expired(log_list: LogList, row: Row, behind: int, now_ms: int) -> bool:
    """Whether none of the log's limits keeps the row."""
    limits = []
    if log_list.retention_s is not None:
        limits.append(row.last_ms + log_list.retention_s * _MS <= now_ms)
    if log_list.retention_bytes is not None:
        limits.append(behind >= log_list.retention_bytes)
    return bool(limits) and all(limits)


def _outwaited(log_list: LogList, row: Row, now_ms: int) -> bool:
    """Whether no consumer may hold it back any more."""
    if log_list.consumer_lag_max_s is None or not row.sealed:
        return False
    return row.last_ms + ((log_list.retention_s or 0) + log_list.consumer_lag_max_s) * _MS <= now_ms


def truncated(
    name: str,
    log_list: LogList,
    before: int,
    end: int,
    consumers: Mapping[str, int],
    now_ms: int,
    last_gone: Segment | None,
) -> LogList:
    """The list of log `name` without what lies below `before`; `end` is the position behind what is acknowledged.

    `last_gone` is the segment of the position below `before`, if that isn't gone already. `consumers` are positions by
    name. Raises `ConfigError` if one of them may still hold something of that back, or if `before` lies past the end:
    what is appended there later would never be seen.
    """
    end = max(end, log_list.sealed_end) if log_list.segments else log_list.first_position
    if before > end:
        raise ConfigError(
            f"log {name} is known to reach up to position {end}, so it can't be truncated before {before}"
        )
    if before <= log_list.first_position:
        return log_list
    if last_gone is None or not _outwaited(log_list, last_gone, now_ms):
        holding = sorted(consumer for consumer, position in consumers.items() if log_list.behind(position) < before)
        if holding:
            least = min(consumers[consumer] for consumer in holding)
            raise ConfigError(
                f"log {name} has consumers that have yet to read what lies before position {before}, from {least} on: "
                f"{', '.join(holding)}. Let them go on, delete them, or truncate without regard to consumers"
            )
    return log_list.truncated(before)


def made_by_log(metadata: LedgerMetadata, uid: str, log_list: LogList | None) -> bool:
    """Whether the ledger, which says that it is of the log with this uid, can be one that bkpy made for it.

    `log_list` is the one that the log's name has now. A user may have copied a ledger of a log together with its
    custom metadata. Such a copy differs in sizes, digest or key from the log's ledgers. Only their list shows that.
    """
    if not _UID.fullmatch(uid) or metadata.caller_ids or metadata.deferred_sync:
        return False
    return log_list is None or log_list.uid != uid or _kind(metadata) == _kind(log_list)


def _kind(of: LedgerMetadata | LogList) -> tuple[int, int, int, str, bytes]:
    return of.ensemble_size, of.write_quorum, of.ack_quorum, of.digest, of.ledger_key


class Orphan(enum.Enum):
    """What becomes of a ledger that says that it belongs to a log."""

    KEEP = "keep"  # the list names it, or it may be about to
    KEEP_FOR_LOST_LIST = "keep for a lost list"  # its log wasn't deleted, and yet there is no list of it
    DELETE = "delete"  # no log can ever name it
    DELETE_IF_UNCHANGED = "delete if unchanged"  # the list doesn't name it, unless that is changed meanwhile


def orphaned(
    uid: str, log_list: LogList | None, named: bool, deleted: bool, created_ms: int, now_ms: int, grace_s: float
) -> Orphan:
    """What to do with a ledger of the log with this uid.

    `log_list` is the list that the log's name has now, and `named` says whether it, or a page of it, has the ledger,
    pending deletion or not. `deleted` says whether a record of the log's deletion exists.
    Without such a record a list that is missing was lost, and an operator may restore it.

    A ledger that is pending deletion is kept here. The client that recorded the deletion deletes it.
    """
    if log_list is None or log_list.uid != uid:
        return Orphan.DELETE if deleted else Orphan.KEEP_FOR_LOST_LIST
    if named:
        return Orphan.KEEP
    return Orphan.DELETE_IF_UNCHANGED if created_ms + grace_s * _MS <= now_ms else Orphan.KEEP
