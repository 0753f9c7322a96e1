"""What the settings of bookies and of clients have in common: units, types, and those of the metadata store.

Invariants: an unknown name is refused, so is a value of the wrong type or out of its range, and settings never change
after they were checked.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Size = Annotated[int, Field(gt=0)]


class Settings(BaseModel):
    # Strict: a quoted number or a boolean where a count belongs is a mistake, not a spelling.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class MetadataSettings(Settings):
    """How bookies and clients deal with the metadata store; a part of the settings of both."""

    metadata_write_attempts_max: Size = Field(
        default=5,
        description="attempts in a row to write one value of metadata that may lose their connection, before its "
        "outcome is given up as unknown",
    )
    metadata_retry_pause_s: Seconds = Field(
        default=0.2, description="seconds between two attempts at what goes on until the metadata store is back"
    )
    metadata_requests_in_flight_max: Size = Field(
        default=1000,
        description="requests to ZooKeeper that wait for an answer before further ones wait their turn: enough to keep "
        "a server busy, few enough to fail quickly when it goes silent",
    )
    metadata_reconnect_pause_min_s: Seconds = Field(
        default=0.05, description="seconds after the first round in which no ZooKeeper server could be reached"
    )
    metadata_reconnect_pause_max_s: Seconds = Field(
        default=1.0, description="seconds to which that pause grows, so that a server that is back is soon noticed"
    )
    metadata_close_timeout_s: Seconds = Field(
        default=1.0, description="seconds to tell ZooKeeper that a session is over, which otherwise ends by its timeout"
    )
    metadata_reply_bytes_max: int = Field(
        default=64 * MIB,
        ge=MIB,
        description="bytes of the largest answer that is taken for ZooKeeper's; a million nodes' names have 30 MB",
    )
