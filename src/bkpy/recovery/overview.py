"""What there is to be told of re-replication in a cluster, read from its metadata: for people and for programs."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

from bkpy.errors import BookKeeperError
from bkpy.metadata.audit_record import AuditRecords
from bkpy.metadata.check_record import CheckRecords
from bkpy.metadata.election import leader
from bkpy.metadata.locks import held_locks
from bkpy.metadata.marks import Marks

if TYPE_CHECKING:
    from bkpy.config.recovery import RecoverySettings
    from bkpy.metadata.marks import LedgerMark
    from bkpy.metadata.store import MetadataStore
    from bkpy.runtime.interfaces import Runtime


async def auditor_of(store: MetadataStore, root: str) -> dict[str, Any] | None:
    """Who the auditor is, for JSON."""
    found = await leader(store, root)
    return None if found is None else {"name": found.candidate, "since_ms": found.since_ms}


async def overview(store: MetadataStore, root: str, runtime: Runtime, settings: RecoverySettings) -> dict[str, Any]:
    """The state of re-replication, for JSON. Reads all marks, `audit_reads_at_once` at a time."""
    marks = Marks(store, root, runtime, settings)
    record = await AuditRecords(store, root, settings=settings).read()
    checks = await CheckRecords(store, root, settings=settings).read()
    counts = _Counts()
    some: list[int] = []
    async for ledger_id in marks.list():
        some.append(ledger_id)
        if len(some) == settings.audit_reads_at_once:
            await _count(marks, some, counts)
            some = []
    await _count(marks, some, counts)
    now_ms = runtime.clock.time() * 1000
    oldest = None if counts.oldest_ms is None else round(max(0.0, now_ms - counts.oldest_ms) / 1000, 3)
    return {
        "enabled": await marks.enabled(),
        "auditor": await auditor_of(store, root),
        "ledgers": counts.ledgers,
        "ledgers_by_bookies_missed": {str(n): count for n, count in sorted(counts.by_missed.items())},
        "ledgers_by_bookie": dict(sorted(counts.by_bookie.items())),
        "ledgers_by_reason": dict(sorted(counts.by_reason.items())),
        "unreadable": counts.unreadable,
        "oldest_mark_s": oldest,
        "most_absent": record.most_absent,
        "absent": {
            bookie: {
                "absent_s": round(max(0.0, now_ms - absence.since_ms) / 1000, 3),
                "replaced": absence.replaced,
                "lost": absence.marked,
                "worked_off": absence.worked_off,
            }
            for bookie, absence in sorted(record.absences.items())
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
    }


class _Counts:
    """Of marks."""

    def __init__(self) -> None:
        self.ledgers = 0
        self.unreadable = 0
        self.oldest_ms: int | None = None
        self.by_missed: Counter[int] = Counter()
        self.by_bookie: Counter[str] = Counter()
        self.by_reason: Counter[str] = Counter()

    def add(self, mark: LedgerMark) -> None:
        self.ledgers += 1
        self.by_missed[len(mark.lost)] += 1
        self.by_bookie.update(mark.lost)
        self.by_reason.update({loss.reason for loss in mark.lost.values()})
        for loss in mark.lost.values():
            self.oldest_ms = loss.since_ms if self.oldest_ms is None else min(self.oldest_ms, loss.since_ms)


async def _count(marks: Marks, ledger_ids: list[int], counts: _Counts) -> None:
    for found in await asyncio.gather(*map(marks.read, ledger_ids), return_exceptions=True):
        if isinstance(found, BookKeeperError) and not found.retriable:
            counts.unreadable += 1
        elif isinstance(found, BaseException):
            raise found
        elif found is not None:
            counts.add(found)
