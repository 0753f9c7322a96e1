"""The settings of recovery: who finds out what bookies have lost, and who copies it. A part of those of a bookie."""

from __future__ import annotations

from pydantic import Field

from bkpy.config.base import MIB, MetadataSettings, Seconds, SecondsOrZero, Size


class RecoverySettings(MetadataSettings):
    """How under-replicated ledgers are found and worked off, and what the metrics page beside that may cost."""

    metrics_connections_max: Size = Field(
        default=32,
        description="connections to the metrics page, each of which is a file or two; for one more, the oldest of them "
        "is closed",
    )

    marks_look_interval_s: Seconds = Field(
        default=60.0,
        description="seconds after which the marks of under-replicated ledgers are looked through again, even if "
        "nobody told of a new one",
    )

    # How lost bookies are found, and what they had.
    lost_bookie_settle_s: Seconds = Field(
        default=30.0,
        description="seconds that a bookie may be absent without being lost, and after which two that are absent at "
        "the same time both are",
    )
    lost_bookie_recovery_delay_s: SecondsOrZero = Field(
        default=300.0,
        description="seconds after which a single absent bookie is lost, and its ledgers are copied; longer than a "
        "restart takes",
    )
    audit_look_interval_s: Seconds = Field(
        default=10.0,
        description="seconds between two looks at the bookies by the auditor, which is told of those that come and go",
    )
    audit_follow_interval_s: Seconds = Field(
        default=60.0,
        description="seconds between two looks, while bookies are lost, at ledgers that are new, not closed, or worked "
        "off: they may name a lost bookie now",
    )
    audit_whole_interval_s: Seconds = Field(
        default=86_400.0, description="seconds for which the auditor relies on what it has learnt of closed ledgers"
    )
    audit_reads_at_once: Size = Field(
        default=64, description="reads and marks of ledgers that an audit has in flight at the metadata store"
    )
    audit_remembered_max: Size = Field(
        default=2_000_000,
        description="copies of ledgers that the auditor remembers, 8 bytes each, so that the next loss needs no whole "
        "audit; when there are more, it does",
    )

    # How a bookie that has lost data gets it back.
    integrity_look_interval_s: Seconds = Field(
        default=300.0,
        description="seconds after which a bookie looks again whether it has lost or damaged something that other "
        "bookies have",
    )
    integrity_retry_interval_s: Seconds = Field(
        default=10.0, description="seconds after which it tries again what it could not get back"
    )
    integrity_ledgers_at_once: Size = Field(
        default=8, description="ledgers that it looks at, and copies from others, at the same time"
    )
    integrity_flush_ledgers: Size = Field(
        default=500, description="ledgers after which it flushes what it has copied, and ends their limbo"
    )

    # How the auditor looks after named logs.
    log_orphan_interval_s: Seconds = Field(
        default=21_600.0,
        description="seconds between two searches for ledgers that belong to a named log and that its list doesn't "
        "name; each reads the metadata of all ledgers",
    )
    log_orphan_grace_s: float = Field(
        default=86_400.0,
        ge=0,
        allow_inf_nan=False,
        description="seconds after its creation in which such a ledger is left alone, as somebody may be about to add "
        "it to the list: longer than any Spark task that writes one takes",
    )

    # How bookies leave.
    drain_look_interval_s: Seconds = Field(
        default=1.0, description="seconds between two looks at the ledgers that still name a bookie which is draining"
    )
    decommission_patience_s: Seconds = Field(
        default=60.0,
        description="seconds that decommissioning a bookie waits for those who move copies meanwhile, who may have "
        "chosen it, before it is refused",
    )

    # How the auditor looks for what nobody has noticed.
    replicas_check_interval_s: Seconds = Field(
        default=604_800.0,
        description="seconds between two checks whether bookies hold what the metadata of ledgers name them for",
    )
    placement_check_interval_s: Seconds = Field(
        default=86_400.0,
        description="seconds between two checks whether copies of an entry are in different racks, as far as there are",
    )
    check_progress_interval_s: Seconds = Field(
        default=60.0,
        description="seconds after which it is stored how far a check is, so that another auditor goes on there",
    )
    check_bytes_per_s_max: Size = Field(
        default=10 * MIB, description="bytes a second that the check of replicas reads at most"
    )
    check_read_bytes: Size = Field(default=MIB, description="bytes that it asks a bookie for at once")
    check_windows: int = Field(
        default=8,
        ge=2,
        description="parts of what a bookie holds of a fragment that it looks at: both ends, and others by chance",
    )
    check_window_entries: Size = Field(
        default=128,
        description="entries of such a part, all of which are read and verified; what a bookie holds is looked at "
        "as a whole if it has no more than all parts together",
    )

    # How copies are made.
    open_ledger_grace_s: Seconds = Field(
        default=30.0,
        description="seconds that the writer of an open ledger has to leave a lost bookie by itself, before the ledger "
        "is recovered, which ends its writer",
    )
    copies_at_once: Size = Field(
        default=8, description="fragments that one worker copies at the same time, each of another ledger"
    )
    copies_max_under_load: Size = Field(
        default=1,
        description="the same while clients append to the bookie that the worker is in: their appends wait behind "
        "copies, and more of these at once make them hardly faster",
    )
    foreground_idle_s: Seconds = Field(
        default=1.0, description="seconds without an append of a client after which no client appends to a bookie"
    )
    copy_bytes_per_s_max: Size = Field(
        default=100 * MIB, description="bytes a second that one worker copies at most, of all fragments together"
    )
    copy_bytes_per_s_min: Size = Field(
        default=MIB,
        description="bytes a second that it copies however busy bookies are: a cluster that is always busy has to heal",
    )
    copy_late_s: Seconds = Field(
        default=0.1,
        description="seconds after which a bookie's answer to a part of a copy is late: then the rate is halved, and "
        "clients get the bookie's time",
    )
    copy_rate_growth: float = Field(
        default=0.05,
        gt=0,
        allow_inf_nan=False,
        description="share by which the rate is raised again by each answer that is not late",
    )
    copy_window_bytes: Size = Field(
        default=4 * MIB, description="bytes of one copy that may be unanswered, beyond those that are read ahead"
    )
    repair_pause_min_s: Seconds = Field(
        default=1.0, description="seconds after which a ledger that could not be worked off is tried again at first"
    )
    repair_pause_max_s: Seconds = Field(default=300.0, description="seconds that this pause grows to, doubling")
    repair_attempts_max: Size = Field(
        default=10,
        description="attempts that fail in a row after which a ledger is said to be stuck, and tried again only after "
        "the longest pause, or when its bookies or its mark change",
    )
    repair_looks_at_once: Size = Field(
        default=16, description="marked ledgers whose metadata are read at the same time, to see how urgent they are"
    )
    repair_queue_max: Size = Field(
        default=100_000, description="marked ledgers that one worker keeps in order of urgency; the others wait"
    )
    worker_report_interval_s: Seconds = Field(
        default=5.0, description="seconds between two times that a worker tells, in the metadata, how it gets on"
    )
    worker_report_ledgers_max: Size = Field(
        default=20, description="ledgers that such a report names of each kind: worked on, postponed, stuck"
    )
    stuck_ledgers_max: Size = Field(
        default=10_000,
        description="ledgers that could not be worked off of which a worker remembers why; the oldest are forgotten",
    )
