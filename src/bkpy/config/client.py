"""The settings of a client: every limit with its unit in its name."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, model_validator

from bkpy.config.base import GIB, KIB, MIB, Group, Seconds, SecondsOrZero, Settings, Size, check_names
from bkpy.config.checking import build
from bkpy.config.shared import MetadataSettings
from bkpy.config.tuning.client import ClientTuning


class ClientNetwork(Settings):
    group: ClassVar[Group | None] = "network"

    session_timeout_s: Seconds = Field(
        default=10.0, description="seconds without contact after which ZooKeeper ends the session"
    )
    metadata_timeout_s: Seconds = Field(default=10.0, description="seconds for one operation on metadata")
    metadata_refused_timeout_s: Seconds = Field(
        default=1.0,
        description="seconds for which a new client retries while every ZooKeeper server refuses the connection",
    )
    connect_timeout_s: Seconds = Field(default=3.0, description="seconds to connect to a bookie and shake hands")
    add_timeout_s: Seconds = Field(
        default=5.0, description="seconds for a bookie to acknowledge an append before the writer treats it as failed"
    )
    add_quorum_timeout_s: Seconds = Field(
        default=30.0, description="seconds without any acknowledgement after which a writer's pending appends fail"
    )
    read_timeout_s: Seconds = Field(default=10.0, description="seconds for a bookie to answer a read")
    no_bookies_timeout_s: SecondsOrZero = Field(
        default=3.0,
        description="seconds for which a writer waits if too few bookies are left and none can replace the failed ones",
    )
    write_window_bytes: Size = Field(
        default=16 * MIB, description="unacknowledged bytes of one writer before `append` waits"
    )
    write_window_entries: Size = Field(
        default=100_000, description="unacknowledged entries of one writer before `append` waits"
    )
    batch_bytes_max: Size = Field(
        default=256 * KIB, description="bytes of entries in one batch; larger batches measured slower"
    )
    entry_bytes_max: Size = Field(
        default=4 * MIB, description="bytes of the largest entry that a client appends or a bookie accepts"
    )
    # A little below a chunk of memory for receiving, so that the reply fits one.
    read_bytes: Size = Field(default=MIB - 4 * KIB, description="bytes to request from a bookie in one read")
    prefetch_depth: Size = Field(
        default=4, description="reads that a scan keeps in flight, which hides the latency of each"
    )
    explicit_lac_interval_s: SecondsOrZero = Field(
        default=0.1,
        description="seconds after which an idle writer publishes its last add confirmed to bookies; 0 for never",
    )
    long_poll_s: Seconds = Field(
        default=10.0, description="seconds for which a bookie holds a tailing reader's request while it has no news"
    )


class WriterHealing(Settings):
    group: ClassVar[Group | None] = "healing"

    disable_ensemble_change: bool = Field(
        default=False, description="keep sending to failed bookies instead of replacing them"
    )
    allow_absent_bookies: bool = Field(
        default=True,
        description="create ledgers with bookies that are known and absent where there are too few others. Those get "
        "their entries when they are back",
    )
    delay_ensemble_change: bool = Field(
        default=False, description="replace failed bookies only when an ack quorum is in danger"
    )
    quarantine_s: Seconds = Field(
        default=30.0, description="seconds for which a failed bookie is chosen only if there is no other"
    )
    absent_bookie_replace_delay_s: Seconds = Field(
        default=30.0,
        description="seconds for which a bookie may be absent before idle writers replace it. It must exceed the time "
        "of a restart, and be below lost_bookie_recovery_delay_s plus open_ledger_grace_s",
    )


class LogRolling(Settings):
    group: ClassVar[Group | None] = "logs"

    log_roll_bytes: Size = Field(
        default=GIB,
        description="bytes of a log's ledger after which its writer rolls to a new ledger. Retention deletes whole "
        "ledgers",
    )
    log_roll_entries: Size = Field(
        default=10_000_000, description="entries of a log's ledger after which its writer rolls to a new ledger"
    )
    log_roll_s: Seconds = Field(
        default=3600.0,
        description="seconds after which a log's writer rolls to a new ledger, unless the present one is empty",
    )


class ClientSettings(ClientNetwork, WriterHealing, LogRolling, MetadataSettings, ClientTuning):
    """The settings of one client."""

    group: ClassVar[Group | None] = "basic"

    client_name: str = Field(
        default="",
        max_length=64,
        pattern=r"^[A-Za-z0-9_.:@/\-]*$",
        description="name of the client for people. A log shows it, with host and process, as its writer",
    )

    def replica_timeout_s(self, write_quorum: int) -> float:
        """For how long a read waits for one replica of an entry: hung ones leave time for another round."""
        return self.read_timeout_s / write_quorum

    @model_validator(mode="after")
    def _consistent(self) -> ClientSettings:
        if self.reply_bytes_max < max(self.entry_bytes_max, self.read_bytes) + 64 * KIB:
            raise ValueError(
                "reply_bytes_max must exceed entry_bytes_max and read_bytes by 64 KiB or more, for replies to fit"
            )
        for name in ("reconnect_pause", "refused_retry_pause", "ensemble_retry_backoff"):
            if getattr(self, f"{name}_max_s") < getattr(self, f"{name}_min_s"):
                raise ValueError(f"{name}_max_s must not be below {name}_min_s")
        return self


def client_settings(**values: object) -> ClientSettings:
    """A client's settings from keyword arguments, tuning values included.

    `ConfigError` naming the argument at fault.
    """
    for name in values:
        check_names(ClientSettings.model_fields, name, "argument")
    return build(ClientSettings, values, {})
