"""The settings of re-replication: how the auditor finds lost bookies, and how workers copy ledgers."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from bkpy.config.base import MIB, RELOADABLE, Group, Seconds, SecondsOrZero, Settings, Size
from bkpy.config.shared import MetadataSettings
from bkpy.config.tuning.recovery import RecoveryTuning


class OrphanedLedgers(Settings):
    group: ClassVar[Group | None] = "logs"

    log_orphan_grace_s: float = Field(
        default=86_400.0,
        ge=0,
        allow_inf_nan=False,
        description="seconds after which the auditor deletes a ledger that was created for a log and isn't in its "
        "list. It must exceed the longest Spark task that writes to a log",
    )


class RecoverySettings(OrphanedLedgers, MetadataSettings, RecoveryTuning):
    """The settings of a process that re-replicates, with or without a bookie."""

    group: ClassVar[Group | None] = "healing"

    lost_bookie_recovery_delay_s: SecondsOrZero = Field(
        json_schema_extra=RELOADABLE,
        default=300.0,
        description="seconds for which a single bookie may be absent before its ledgers are re-replicated. It must "
        "exceed the time of a restart",
    )
    lost_bookie_settle_s: Seconds = Field(
        json_schema_extra=RELOADABLE,
        default=30.0,
        description="seconds for which a bookie may be absent before it counts as lost at all. Two bookies that are "
        "absent for that long at the same time are lost without further delay",
    )
    open_ledger_grace_s: Seconds = Field(
        json_schema_extra=RELOADABLE,
        default=30.0,
        description="seconds for the writer of an open ledger to replace a lost bookie itself. After them, a worker "
        "recovers the ledger, which fences its writer",
    )
    copies_at_once: Size = Field(default=8, description="fragments that one worker copies concurrently")
    copy_bytes_per_s_max: Size = Field(
        json_schema_extra=RELOADABLE,
        default=100 * MIB,
        description="bytes per second that one worker copies at most, over all fragments",
    )
    replicas_check_interval_s: Seconds = Field(
        default=604_800.0,
        description="seconds between two checks that bookies hold the entries that the metadata says they hold",
    )
    check_bytes_per_s_max: Size = Field(default=10 * MIB, description="bytes per second that this check reads at most")
    placement_check_interval_s: Seconds = Field(
        default=86_400.0,
        description="seconds between two checks that the copies of each entry are in different racks",
    )
