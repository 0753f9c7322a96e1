"""Tuning of a client."""

from __future__ import annotations

from pydantic import Field

from bkpy.config.base import KIB, MIB, Seconds, SecondsOrZero, Settings, Size


class ClientTuning(Settings):
    # Writers.
    flush_threshold_bytes: Size = Field(
        default=256 * KIB,
        description="bytes appended in one tick of the event loop after which they are sent, so that bookies work on "
        "them meanwhile",
    )
    append_overhead_bytes: Size = Field(
        default=256,
        description="bytes that each append adds to that count besides its own, for the time that it takes at any size",
    )
    part_bytes_min: Size = Field(
        default=4 * KIB,
        description="average bytes of a request's parts below which they are joined: copying then costs less than "
        "many parts",
    )
    progress_check_interval_s: Seconds = Field(
        default=0.5, description="seconds between two checks for writers whose quorums don't answer"
    )
    ensemble_changes_max: Size = Field(
        default=100, description="ensemble changes of a writer within ensemble_changes_window_s before it fails"
    )
    ensemble_changes_window_s: Seconds = Field(
        default=60.0, description="seconds over which a writer's ensemble changes are counted"
    )
    ensemble_retry_backoff_min_s: Seconds = Field(
        default=0.05, description="seconds before a writer first retries to replace or reach failed bookies"
    )
    ensemble_retry_backoff_max_s: Seconds = Field(
        default=1.0, description="seconds to which that pause grows, doubling, while nothing is acknowledged"
    )
    leave_look_interval_s: Seconds = Field(
        default=2.0,
        description="seconds between two checks for idle writers that still use a draining or absent bookie",
    )
    leaves_at_once: Size = Field(
        default=16,
        description="idle writers of a client that replace such a bookie concurrently; thousands may have to",
    )
    close_linger_s: SecondsOrZero = Field(
        default=1.0,
        description="seconds for which closing a ledger may wait for bookies that were slower than the ack quorum",
    )

    # Metrics.
    metrics_logs_max: Size = Field(
        default=100, description="logs that a client's metrics name; all others are one, by the name (others)"
    )
    metrics_consumers_max: Size = Field(
        default=100, description="consumers of one log whose lags a client's metrics have, those furthest behind"
    )
    metrics_lag_interval_s: Seconds = Field(
        default=15.0, description="seconds between two measurements of consumers' lags, for a client's metrics"
    )

    # Flow control: what keeps one bookie, reader or writer from taking all of a client.
    calls_in_flight_max: Size = Field(
        default=128,
        description="unanswered requests to one bookie; further ones queue in the client instead of being refused by "
        "the bookie",
    )
    refused_retry_pause_min_s: Seconds = Field(
        default=0.01,
        description="seconds before a request is sent again that the bookie has refused because too many are in flight",
    )
    refused_retry_pause_max_s: Seconds = Field(
        default=1.0, description="seconds to which that pause grows, doubling, while the bookie refuses the request"
    )
    unacked_bytes_max: Size = Field(
        default=32 * MIB,
        description="unacknowledged bytes at one bookie before its writers wait; far more than a healthy bookie ever "
        "has",
    )
    backpressure_stall_timeout_s: Seconds = Field(
        default=2.0,
        description="seconds for which a bookie with so many unacknowledged bytes may be silent before it counts as "
        "failed",
    )
    lac_writes_in_flight_max: Size = Field(
        default=16,
        description="idle writers whose last add confirmed is in flight to one bookie; thousands may pause at the "
        "same moment",
    )
    lac_rests_max: Size = Field(
        default=32,
        description="rests of an idle writer, at most, before it publishes its last add confirmed again when too few "
        "bookies took it",
    )
    reply_bytes_max: Size = Field(
        default=64 * MIB,
        description="bytes of the largest reply to accept; an entry may be larger than this client's limit",
    )
    bookkeeper_frame_bytes_max: Size = Field(
        default=5 * MIB,
        description="bytes of the largest frame that a client sends to bookies of a BookKeeper cluster, whose "
        "nettyMaxFrameSizeBytes this is",
    )
    bookkeeper_reads_first: Size = Field(
        default=8, description="entries of a BookKeeper ledger that a read first asks for at a time, of unknown sizes"
    )
    bookkeeper_reads_at_once: Size = Field(
        default=128, description="entries of a BookKeeper ledger that one read asks a bookie for at a time"
    )
    receive_chunks_max: Size = Field(
        default=16, description="chunks of a megabyte to receive replies into that are kept for reuse"
    )

    # Connections to bookies, and what they say of themselves.
    reconnect_pause_min_s: Seconds = Field(
        default=0.05, description="seconds before the first attempt to reconnect to a bookie"
    )
    reconnect_pause_max_s: Seconds = Field(
        default=1.0, description="seconds to which that pause grows, doubling, while the bookie can't be reached"
    )
    bookie_reads_at_once: Size = Field(
        default=32, description="registrations of bookies to read concurrently when the list has changed"
    )
    bookie_refresh_interval_s: Seconds = Field(
        default=300.0,
        description="seconds between two readings of all registrations. Their free space only weights choices, so an "
        "old value does no harm",
    )

    # Metadata.
    metadata_conflicts_max: Size = Field(
        default=20,
        description="repetitions, in one call, of a write that closes a ledger, or starts its recovery, and that loses "
        "to somebody else's change",
    )
    metadata_write_pause_s: Seconds = Field(
        default=0.05, description="seconds between two attempts to store an ensemble change with unknown outcome"
    )
    ledger_id_attempts_max: Size = Field(
        default=10, description="new ledger ids in a row that may be in use already before creating a ledger fails"
    )
    ledger_id_pause_max_s: Seconds = Field(
        default=0.05, description="seconds, at most, before the next id, so that clients get out of step"
    )

    # Readers.
    read_entries_first: Size = Field(
        default=64, description="entries of the first read of a ledger, whose entry sizes aren't known yet"
    )
    read_entries_max: Size = Field(default=65_536, description="entries to request in one read, however small they are")
    scan_by_blocks_after: int = Field(
        default=200_000,
        ge=0,
        description="entries that a reader verifies one by one before it verifies blocks of small ones at once. That "
        "needs numpy, whose import takes a tenth of a second, as long as so many entries take",
    )
    read_retry_pause_s: Seconds = Field(
        default=0.05, description="seconds between two rounds over an entry's replicas while some can't be reached"
    )
    tail_poll_s: Seconds = Field(
        default=0.1, description="seconds between two polls of a tailing reader, where bookies don't support long polls"
    )
    tail_round_min_s: Seconds = Field(
        default=0.01,
        description="seconds between two rounds of long polls: for a ledger that is written all the time, each is "
        "answered at once, and costs bookies more than the appends do",
    )

    # When a read is late, so that a second replica is asked.
    read_late_percentile: float = Field(
        default=99.0,
        gt=0,
        le=100,
        description="percentage of recent reads that were faster than a read that counts as late",
    )
    read_late_min_s: Seconds = Field(
        default=0.02, description="seconds before which no read counts as late, however fast the others were"
    )
    read_late_default_s: Seconds = Field(
        default=0.2, description="seconds after which a read counts as late while there are too few samples"
    )
    read_late_in_a_row: Size = Field(default=3, description="late reads in a row after which a bookie counts as slow")
    slow_bookie_s: Seconds = Field(
        default=10.0, description="seconds for which a slow bookie is asked after all others"
    )
    read_samples_max: Size = Field(
        default=256, description="recent reads that are compared; few enough that a change of the bookies shows"
    )
    read_samples_min: Size = Field(default=20, description="reads before there are enough samples for a percentile")
    read_samples_per_look: Size = Field(
        default=16, description="reads after which the percentile is computed again, since that takes time"
    )

    # Recovery of ledgers.
    recovery_ranges_at_once: Size = Field(
        default=4, description="ranges of entries that a recovery reads concurrently, which hides the latency of each"
    )
    recovery_first_entries: Size = Field(
        default=64, description="entries of a recovery's first range, whose entry sizes aren't known yet"
    )
    recovery_range_entries_max: Size = Field(
        default=4096, description="entries of one range, of any size: each becomes an object in memory"
    )
    recovery_range_bytes_max: Size = Field(
        default=4 * MIB, description="bytes of one range in memory, beyond which it is cut short"
    )
    recovery_patience_s: Seconds = Field(
        default=0.05, description="seconds after which a recovery asks a second bookie for an entry"
    )

    # Named logs.
    log_roll_retry_s: Seconds = Field(
        default=1.0, description="seconds between two attempts to roll a log, or to close one of its ledgers"
    )
    log_open_pause_min_s: Seconds = Field(
        default=0.05,
        description="seconds, at most, before a log is opened again that somebody else has taken over meanwhile",
    )
    log_open_pause_max_s: Seconds = Field(
        default=2.0,
        description="seconds to which that pause grows, so that openers that take a log over from each other get out "
        "of step",
    )
    log_turn_early_s: Seconds = Field(
        default=1.0,
        description="seconds within which a writer is fenced that seems to take turns with another client's",
    )
    log_turn_pause_min_s: Seconds = Field(
        default=0.25, description="seconds, at most, before a client opens a log again whose writer was fenced so early"
    )
    log_turn_pause_max_s: Seconds = Field(
        default=10.0, description="seconds to which that pause grows; a writer that has served as long is no such one"
    )
    log_turns_remembered_max: Size = Field(default=1000, description="logs whose writers take turns to remember")
