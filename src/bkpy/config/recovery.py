"""The settings of recovery: who finds out what bookies have lost, and who copies it. A part of those of a bookie."""

from __future__ import annotations

from pydantic import Field

from bkpy.config.base import MIB, MetadataSettings, Seconds, Size


class RecoverySettings(MetadataSettings):
    """How under-replicated ledgers are found and worked off."""

    marks_look_interval_s: Seconds = Field(
        default=60.0,
        description="seconds after which the marks of under-replicated ledgers are looked through again, even if "
        "nobody told of a new one",
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
        description="attempts that fail in a row after which a ledger is left alone, until its bookies or its mark "
        "change",
    )
    repair_looks_at_once: Size = Field(
        default=16, description="marked ledgers whose metadata are read at the same time, to see how urgent they are"
    )
    repair_queue_max: Size = Field(
        default=100_000, description="marked ledgers that one worker keeps in order of urgency; the others wait"
    )
    stuck_ledgers_max: Size = Field(
        default=10_000,
        description="ledgers that could not be worked off of which a worker remembers why; the oldest are forgotten",
    )
