"""Tuning of the auditor, of re-replication workers and of integrity checks."""

from __future__ import annotations

from pydantic import Field

from bkpy.config.base import MIB, Seconds, Settings, Size


class RecoveryTuning(Settings):
    # The metrics page.
    metrics_connections_max: Size = Field(
        default=32,
        description="connections to the metrics page, each of which takes a file or two; a further one closes the "
        "oldest",
    )

    # How programs that look at a whole cluster read the pages of its bookies.
    pages_timeout_s: Seconds = Field(
        default=3.0, description="seconds after which a bookie's page counts as out of reach"
    )
    pages_at_once: Size = Field(default=32, description="connections to bookies' pages at a time")
    page_bytes_max: Size = Field(default=4 * MIB, description="bytes of a bookie's page that are read at most")

    # How the auditor finds lost bookies, and their ledgers.
    audit_look_interval_s: Seconds = Field(
        default=10.0,
        description="seconds between two readings of the bookies by the auditor, which watches them as well",
    )
    audit_follow_interval_s: Seconds = Field(
        default=60.0,
        description="seconds between two readings, while bookies are lost, of ledgers that may name a lost bookie "
        "only now: new, open or just repaired ones",
    )
    audit_whole_interval_s: Seconds = Field(
        default=86_400.0, description="seconds for which the auditor relies on what it knows of closed ledgers"
    )
    audit_reads_at_once: Size = Field(
        default=64, description="reads and writes of ledger metadata that an audit keeps in flight"
    )
    audit_remembered_max: Size = Field(
        default=20_000_000,  # three copies of 3.7 million ledgers, three in ten of which have records
        description="copies of ledgers that the auditor remembers, 8 bytes each, so that the next loss needs no full "
        "audit; with more, it needs one. A ledger that is open or has a record takes as much as eight copies",
    )
    marks_look_interval_s: Seconds = Field(
        default=60.0,
        description="seconds after which workers read the under-replication records again, even without a notification",
    )

    # How a bookie that has lost data copies it back.
    integrity_look_interval_s: Seconds = Field(
        default=300.0,
        description="seconds between two searches of a bookie for data that it has lost or damaged and other bookies "
        "hold",
    )
    integrity_retry_interval_s: Seconds = Field(
        default=10.0, description="seconds after which a bookie retries data that it could not copy back"
    )
    integrity_ledgers_at_once: Size = Field(
        default=8, description="ledgers that a bookie checks and copies back concurrently"
    )
    integrity_flush_ledgers: Size = Field(
        default=500, description="ledgers after which a bookie flushes copied data, and ends the limbo of these ledgers"
    )

    # How the auditor maintains named logs.
    log_orphan_interval_s: Seconds = Field(
        default=21_600.0,
        description="seconds between two searches for ledgers that were created for a log and aren't in its list; "
        "each reads the metadata of all ledgers",
    )

    # How bookies leave.
    drain_look_interval_s: Seconds = Field(
        default=1.0, description="seconds between two checks which ledgers still name a draining bookie"
    )
    decommission_patience_s: Seconds = Field(
        default=60.0,
        description="seconds for which decommissioning waits for manual moves of copies, which may have chosen the "
        "bookie, before it is refused",
    )

    # How the auditor checks replicas.
    check_progress_interval_s: Seconds = Field(
        default=60.0,
        description="seconds between two times that a check stores its progress, from which another auditor continues",
    )
    check_read_bytes: Size = Field(default=MIB, description="bytes to request from a bookie in one read of a check")
    check_windows: int = Field(
        default=8,
        ge=2,
        description="windows of a fragment that a check reads on a bookie: both ends, and others at random",
    )
    check_window_entries: Size = Field(
        default=128,
        description="entries of such a window, all of which are read and verified; a fragment that isn't larger "
        "than its windows is read as a whole",
    )

    # How workers copy.
    copies_max_under_load: Size = Field(
        default=1,
        description="fragments to copy concurrently while clients append to the worker's bookie: their appends wait "
        "behind copies, and more copies at once hardly finish sooner",
    )
    foreground_idle_s: Seconds = Field(
        default=1.0, description="seconds without an append after which a bookie counts as free of clients"
    )
    copy_bytes_per_s_min: Size = Field(
        default=MIB,
        description="bytes per second that one worker copies however busy bookies are: a cluster that is always busy "
        "has to heal",
    )
    copy_late_s: Seconds = Field(
        default=0.02,
        description="seconds after which a bookie's answer to a part of a copy is late; then the worker halves its "
        "rate",
    )
    copy_late_factor: float = Field(
        default=5.0,
        gt=1,
        allow_inf_nan=False,
        description="a late answer takes at least so many times as long as the quickest one that the same bookie gave "
        "lately to parts of the largest size: on a slow disk each takes `copy_late_s`",
    )
    copy_rate_growth: float = Field(
        default=0.05, gt=0, allow_inf_nan=False, description="share by which each answer in time raises that rate again"
    )
    copy_window_bytes: Size = Field(
        default=4 * MIB, description="unanswered bytes of one copy, besides the entries that it has read ahead"
    )
    repair_pause_min_s: Seconds = Field(
        default=1.0, description="seconds before the first retry of a ledger that a worker could not repair"
    )
    repair_pause_max_s: Seconds = Field(default=300.0, description="seconds to which that pause grows, doubling")
    repair_attempts_max: Size = Field(
        default=10,
        description="failed attempts in a row after which a ledger counts as stuck. A worker retries it after the "
        "longest pause, or when its bookies or its record change",
    )
    repair_looks_at_once: Size = Field(
        default=16,
        description="under-replicated ledgers whose metadata a worker reads concurrently, to order them by urgency",
    )
    repair_lookers: Size = Field(
        default=2,
        description="workers that look at each under-replicated ledger first. Others look at it only when nothing has "
        "been left of theirs for `repair_pause_min_s`, so that a thousand workers don't all read a hundred thousand "
        "ledgers and reach for the same locks",
    )
    repair_queue_max: Size = Field(
        default=100_000,
        description="under-replicated ledgers that one worker keeps in order of urgency; the others wait",
    )
    worker_report_interval_s: Seconds = Field(
        default=5.0, description="seconds between two reports of a worker, which it stores in the metadata"
    )
    worker_report_ledgers_max: Size = Field(
        default=20, description="ledgers that a report names of each kind: in work, postponed, stuck"
    )
    stuck_ledgers_max: Size = Field(
        default=10_000, description="failed ledgers whose reason a worker remembers; it forgets the oldest"
    )
