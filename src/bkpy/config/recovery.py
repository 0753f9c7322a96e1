"""The settings of recovery: who finds out what bookies have lost, and who copies it. A part of those of a bookie."""

from __future__ import annotations

from pydantic import Field

from bkpy.config.base import MetadataSettings, Seconds


class RecoverySettings(MetadataSettings):
    """How under-replicated ledgers are found and worked off."""

    marks_look_interval_s: Seconds = Field(
        default=60.0,
        description="seconds after which the marks of under-replicated ledgers are looked through again, even if "
        "nobody told of a new one",
    )
