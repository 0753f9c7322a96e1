"""The settings of recovery: who finds out what bookies have lost, and who copies it. A part of those of a bookie."""

from __future__ import annotations

from pydantic import Field

from bkpy.config.base import MetadataSettings, Seconds, Size


class RecoverySettings(MetadataSettings):
    """How under-replicated ledgers are found and worked off."""

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
    lost_bookie_recovery_delay_s: float = Field(
        default=300.0,
        ge=0,
        allow_inf_nan=False,
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
