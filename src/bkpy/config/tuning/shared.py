"""Tuning of every process: requests to the metadata store, and named logs."""

from __future__ import annotations

from pydantic import Field

from bkpy.config.base import KIB, MIB, Seconds, Settings, Size


class MetadataTuning(Settings):
    # Requests to ZooKeeper, and writes whose reply is lost.
    metadata_requests_in_flight_max: Size = Field(
        default=1000,
        description="unanswered requests to ZooKeeper; further ones queue. Enough to keep a server busy, few enough "
        "to fail quickly if it goes silent",
    )
    metadata_reply_bytes_max: int = Field(
        default=64 * MIB,
        ge=MIB,
        description="bytes of the largest reply to accept from ZooKeeper; the names of a million nodes take 30 MB",
    )
    metadata_write_attempts_max: Size = Field(
        default=5,
        description="attempts in a row to write one value that may lose their connection before the outcome counts as "
        "unknown",
    )
    metadata_retry_pause_s: Seconds = Field(
        default=0.2, description="seconds between two attempts at work that goes on until the metadata store is back"
    )
    metadata_reconnect_pause_min_s: Seconds = Field(
        default=0.05, description="seconds to wait after the first round in which no ZooKeeper server could be reached"
    )
    metadata_reconnect_pause_max_s: Seconds = Field(
        default=1.0,
        description="seconds to which that pause grows; short, so that a client notices a server that is back",
    )
    metadata_close_timeout_s: Seconds = Field(
        default=1.0, description="seconds to close a ZooKeeper session, which otherwise ends by its timeout"
    )

    audit_acts_max: Size = Field(
        default=100, description="acts of each kind that the audit trail keeps, about 500 bytes each"
    )

    restore_nodes_max: Size = Field(
        default=100, description="nodes that one transaction of a restore makes, of at most 128 KiB"
    )

    # Named logs.
    log_page_rows: int = Field(
        default=128,
        ge=2,
        le=400,
        description="ledgers in a page of a log's list, or pages in a page of pages; the list itself has twice as many "
        "ledgers",
    )
    log_pages_cached_max: Size = Field(
        default=64, description="pages of logs' lists to keep in memory, some 30 KB each"
    )
    log_write_bytes_max: int = Field(
        default=256 * KIB,
        gt=0,
        le=256 * KIB,
        description="bytes of one write of a log's list and its new pages",
    )
    log_consumer_reads_at_once: Size = Field(default=32, description="consumers of a log to read concurrently")
    log_idle_intervals_max: Size = Field(
        default=2,
        description="retention intervals that count at most as a consumer's idle time between two passes of the "
        "retention; what kept the passes apart may have kept the consumer from its commits",
    )
    log_conflicts_max: Size = Field(
        default=20,
        description="writes to a log's list that lose in a row to somebody else's change before that is an error",
    )
    log_producers_max: Size = Field(
        default=1000,
        description="producers and ids of Spark writers that one log remembers. One more is refused until an operator "
        "removes a name (`bkpy log producers`)",
    )
    log_producer_runs_max: Size = Field(
        default=4,
        description="runs of numbers that a log remembers of each producer: one more begins where another writer came "
        "in between. An append with an older number is refused",
    )
    log_deletes_at_once: Size = Field(
        default=32, description="ledgers of a log to delete concurrently, when it is truncated or deleted"
    )
