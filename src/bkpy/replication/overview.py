"""The state of re-replication in a cluster, read from its metadata: for people and for programs."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

from bkpy.batching import batched_async
from bkpy.errors import BookKeeperError, NoSuchLedgerError
from bkpy.metadata.bookies.registration import BookieDirectory
from bkpy.metadata.replication.audit_record import AuditRecords
from bkpy.metadata.replication.check_record import CheckRecords
from bkpy.metadata.replication.election import leader
from bkpy.metadata.replication.locks import held_locks
from bkpy.metadata.replication.underreplication import UnderreplicationQueue
from bkpy.metadata.replication.worker_nodes import REBUILDING, worker_reports
from bkpy.protocol.repair.rereplication import copies_left, endangered, plan
from bkpy.replication.context import bookies_of, incomplete_bookies

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bkpy.config.recovery import RecoverySettings
    from bkpy.metadata.cluster import Cluster
    from bkpy.metadata.replication.underreplication import UnderreplicationRecord
    from bkpy.metadata.store.store import MetadataStore
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata

_SHOWN_MAX = 100
_FRAGMENTS_SHOWN_MAX = 3


async def auditor_of(store: MetadataStore, root: str) -> dict[str, Any] | None:
    """Who the auditor is, for JSON."""
    found = await leader(store, root)
    return None if found is None else {"name": found.candidate, "since_ms": found.since_ms}


async def overview(cluster: Cluster, settings: RecoverySettings) -> dict[str, Any]:
    """The state of re-replication, for JSON.

    Reads all under-replication records and their ledgers, `audit_reads_at_once` at a time.
    """
    store, root, runtime = cluster.store, cluster.root, cluster.store.runtime
    queue = UnderreplicationQueue(store, root, runtime, settings)
    audited = await AuditRecords(store, root, settings=settings).read()
    checks = await CheckRecords(store, root, settings=settings).read()
    directory = BookieDirectory(store, root, runtime)
    await directory.refresh()
    counts = _Counts(directory)
    async for some in batched_async(queue.list(), settings.audit_reads_at_once):
        await _count(cluster, queue, some, counts)
    reports = await worker_reports(store, root)
    workers = [report for report in reports if REBUILDING not in report]
    rebuilding = _rebuilding(counts, reports)
    stuck = _stuck(counts, workers)
    now_ms = runtime.clock.time() * 1000
    oldest = None if counts.oldest_ms is None else round(max(0.0, now_ms - counts.oldest_ms) / 1000, 3)
    return {
        "enabled": await queue.enabled(),
        "auditor": await auditor_of(store, root),
        "ledgers": len(counts.marked) + _unmarked(counts, rebuilding),
        "marked": len(counts.marked),
        "rebuilding": rebuilding,
        "ledgers_by_copies_left": {str(left): count for left, count in sorted(counts.by_copies_left.items())},
        "ledgers_by_bookies_missed": {str(n): count for n, count in sorted(counts.by_missed.items())},
        "ledgers_by_bookie": dict(sorted(counts.by_bookie.items())),
        "ledgers_by_reason": dict(sorted(counts.by_reason.items())),
        "unreadable": counts.unreadable,
        "oldest_mark_s": oldest,
        "bytes_left": round(counts.bytes_left),
        **_pace(counts, len(stuck), workers),
        "waiting_for_writers": counts.unclosed,
        "stuck": len(stuck),
        "stuck_ledgers": {str(ledger_id): stuck[ledger_id] for ledger_id in sorted(stuck)[:_SHOWN_MAX]},
        "most_absent": audited.suspended,
        "absent": {
            bookie: {
                "absent_s": round(max(0.0, now_ms - absence.missing_since_ms) / 1000, 3),
                "replaced": absence.replaced,
                "lost": absence.marked,
                "worked_off": absence.worked_off,
            }
            for bookie, absence in sorted(audited.absences.items())
        },
        "checks": {
            name: {
                "ended_s": None if not run.ended_ms else round(max(0.0, now_ms - run.ended_ms) / 1000, 3),
                "running_s": round((now_ms - run.began_ms) / 1000, 3) if run.began_ms > run.ended_ms else None,
                "ledgers": run.ledgers,
                "marked": run.marked,
            }
            for name, run in sorted(checks.runs.items())
        },
        "working": [
            {"ledger_id": lock.ledger_id, "holder": lock.holder, "for_s": round((now_ms - lock.since_ms) / 1000, 3)}
            for lock in await held_locks(store, root)
        ],
        "workers": workers,
    }


def _rebuilding(counts: _Counts, reports: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The bookies that copy back what they lost, by their reports; a bookie in limbo counts before its first one."""
    nothing: dict[str, Any] = {"ledgers": None, "entries_copied": 0, "bytes_copied": 0}
    found = dict.fromkeys(counts.bookies.in_limbo, nothing)
    found.update((str(one["name"]), nothing | one[REBUILDING]) for one in reports if one.get(REBUILDING))
    here = counts.bookies.readable
    return {
        bookie_id: found[bookie_id]
        for bookie_id in sorted(found)
        if bookie_id in here and found[bookie_id]["ledgers"] != 0
    }


def _unmarked(counts: _Counts, rebuilding: Mapping[str, Mapping[str, Any]]) -> int:
    """About how many ledgers miss copies on these bookies and have no record; one for a bookie that has not counted."""
    left = {bookie_id: 1 if one["ledgers"] is None else one["ledgers"] for bookie_id, one in rebuilding.items()}
    return sum(max(0, ledgers - counts.by_bookie[bookie_id]) for bookie_id, ledgers in left.items())


def _pace(counts: _Counts, stuck: int, workers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The recent speed of all workers together, and how long the rest takes at that; None if that is unknown."""
    bytes_per_s = sum(worker.get("bytes_per_s", 0) for worker in workers)
    ledgers_per_s = sum(worker.get("ledgers_per_s", 0) for worker in workers)
    rest = ((counts.bytes_left, bytes_per_s), (len(counts.marked) - stuck, ledgers_per_s))
    times = [left / rate for left, rate in rest if left and rate]
    eta_s = 0.0 if not len(counts.marked) else round(max(times), 1) if times else None
    return {"bytes_per_s": bytes_per_s, "ledgers_per_s": round(ledgers_per_s, 1), "eta_s": eta_s}


def _stuck(counts: _Counts, workers: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """Why recorded ledgers are stuck: by the last attempt of a worker, or by the metadata."""
    found = dict(counts.stuck)
    for worker in workers:
        errors = {int(ledger_id): why for ledger_id, why in worker.get("stuck_ledgers", {}).items()}
        found.update((ledger_id, why) for ledger_id, why in errors.items() if ledger_id in counts.marked)
    return found


class _Counts:
    """Counts over under-replication records and their ledgers, with these bookies."""

    def __init__(self, directory: BookieDirectory) -> None:
        self.directory = directory
        self.bookies = bookies_of(directory)
        self.marked: set[int] = set()
        self.unreadable = 0
        self.unclosed = 0
        self.oldest_ms: int | None = None
        self.bytes_left = 0.0
        self.stuck: dict[int, str] = {}
        self.by_missed: Counter[int] = Counter()
        self.by_copies_left: Counter[int] = Counter()
        self.by_bookie: Counter[str] = Counter()
        self.by_reason: Counter[str] = Counter()

    def add(self, record: UnderreplicationRecord) -> None:
        self.marked.add(record.ledger_id)
        self.by_missed[len(record.lost)] += 1
        self.by_bookie.update(record.lost.keys())
        self.by_reason.update({loss.reason for loss in record.lost.values()})
        for loss in record.lost.values():
            self.oldest_ms = loss.since_ms if self.oldest_ms is None else min(self.oldest_ms, loss.since_ms)

    def plan(self, record: UnderreplicationRecord, metadata: LedgerMetadata) -> None:
        """Count the work that the ledger needs."""
        left = copies_left(endangered(metadata, record.lost), self.bookies.readable)
        if left is not None:
            self.by_copies_left[left] += 1
        incomplete = incomplete_bookies(record, self.directory)
        planned = plan(metadata, record.lost, self.bookies, incomplete=incomplete, whole_from=record.whole_from)
        self.unclosed += bool(planned.unclosed)
        entries = sum(copy.share.entries or 0 for copy in planned.copies)
        self.bytes_left += entries * metadata.length / max(1, metadata.last_entry + 1)
        if planned.stuck:
            self.stuck[record.ledger_id] = "; ".join(
                stuck.description for stuck in planned.stuck[:_FRAGMENTS_SHOWN_MAX]
            )


async def _count(cluster: Cluster, queue: UnderreplicationQueue, ledger_ids: list[int], counts: _Counts) -> None:
    errors = await asyncio.gather(
        *(_look(cluster, queue, ledger_id) for ledger_id in ledger_ids), return_exceptions=True
    )
    for found in errors:
        if isinstance(found, BookKeeperError) and not found.retriable:
            counts.unreadable += 1
        elif isinstance(found, BaseException):
            raise found
        elif found is not None:
            record, metadata = found
            counts.add(record)
            if metadata is not None:
                counts.plan(record, metadata)


async def _look(
    cluster: Cluster, queue: UnderreplicationQueue, ledger_id: int
) -> tuple[UnderreplicationRecord, LedgerMetadata | None] | None:
    record = await queue.read(ledger_id)
    if record is None:
        return None
    try:
        return record, (await cluster.catalog.read(ledger_id))[0]
    except NoSuchLedgerError:
        return record, None
