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
from typing import TYPE_CHECKING

from bkpy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.log.log_list import LogList, Segment

_MS = 1000
_UID = re.compile(r"[0-9a-f]{32}")


def retained_from(log_list: LogList, now_ms: int, consumers: Iterable[int]) -> int:
    """The position before which nothing is kept any more; it is the list's first one if everything is kept.

    `consumers` are the positions that they have yet to read.
    """
    needed = min(consumers, default=None)
    behind = sum(segment.payload_bytes for segment in log_list.segments)
    begin = log_list.first_position
    for segment in log_list.segments[:-1]:
        behind -= segment.payload_bytes
        if not segment.sealed or not _expired(log_list, segment, behind, now_ms):
            break
        if needed is not None and needed < segment.end_position and not _outwaited(log_list, segment, now_ms):
            break
        begin = max(begin, segment.end_position)
    return begin


def _expired(log_list: LogList, segment: Segment, behind: int, now_ms: int) -> bool:
    """Whether none of the log's limits keeps the segment."""
    limits = []
    if log_list.retention_s is not None:
        limits.append(segment.last_ms + log_list.retention_s * _MS <= now_ms)
    if log_list.retention_bytes is not None:
        limits.append(behind >= log_list.retention_bytes)
    return bool(limits) and all(limits)


def _outwaited(log_list: LogList, segment: Segment, now_ms: int) -> bool:
    """Whether no consumer may hold the segment back any more."""
    if log_list.consumer_lag_max_s is None or not segment.sealed:
        return False
    return segment.last_ms + ((log_list.retention_s or 0) + log_list.consumer_lag_max_s) * _MS <= now_ms


def truncated(
    name: str, log_list: LogList, before: int, end: int, consumers: Mapping[str, int], now_ms: int
) -> LogList:
    """The list of log `name` without what lies below `before`; `end` is the position behind what is acknowledged.

    `consumers` are positions by name. Raises `ConfigError` if one of them may still hold something of that back, or if
    `before` lies past the end: what is appended there later would never be seen.
    """
    end = max(end, log_list.sealed_end) if log_list.segments else log_list.first_position
    if before > end:
        raise ConfigError(
            f"log {name} is known to reach up to position {end}, so it can't be truncated before {before}"
        )
    if before <= log_list.first_position:
        return log_list
    if not _outwaited(log_list, log_list.segments[log_list.index_of(before - 1)], now_ms):
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
    ledger_id: int, uid: str, log_list: LogList | None, deleted: bool, created_ms: int, now_ms: int, grace_s: float
) -> Orphan:
    """What to do with a ledger of the log with this uid.

    `log_list` is the list that the log's name has now. `deleted` says whether a record of the log's deletion exists.
    Without such a record a list that is missing was lost, and an operator may restore it.

    A ledger that is pending deletion is kept here. The client that recorded the deletion deletes it.
    """
    if log_list is None or log_list.uid != uid:
        return Orphan.DELETE if deleted else Orphan.KEEP_FOR_LOST_LIST
    if ledger_id in log_list.pending_delete or any(segment.ledger_id == ledger_id for segment in log_list.segments):
        return Orphan.KEEP
    return Orphan.DELETE_IF_UNCHANGED if created_ms + grace_s * _MS <= now_ms else Orphan.KEEP
