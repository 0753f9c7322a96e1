"""The settings of a client as keyword arguments of `bkpy.connect`, for type checkers. Made by `make settings`."""

from __future__ import annotations

from typing import Literal, TypedDict


class ClientArguments(TypedDict, total=False):
    """See `ClientSettings`."""

    tls_ca_file: str | None
    tls_certificate_file: str | None
    tls_key_file: str | None
    zookeeper_tls_ca_file: str | None
    zookeeper_tls_certificate_file: str | None
    zookeeper_tls_key_file: str | None
    zookeeper_auth: str | None
    zookeeper_auth_file: str | None
    zookeeper_acl: Literal["own", "open"]
    metadata_write_attempts_max: int
    metadata_retry_pause_s: float
    metadata_requests_in_flight_max: int
    metadata_reconnect_pause_min_s: float
    metadata_reconnect_pause_max_s: float
    metadata_close_timeout_s: float
    metadata_reply_bytes_max: int
    log_list_bytes_max: int
    log_sinks_max: int
    log_consumers_max: int
    log_consumer_reads_at_once: int
    log_conflicts_max: int
    log_deletes_at_once: int
    log_retention_interval_s: float
    client_name: str
    write_window_bytes: int
    write_window_entries: int
    batch_bytes_max: int
    entry_bytes_max: int
    connect_timeout_s: float
    add_timeout_s: float
    add_quorum_timeout_s: float
    close_linger_s: float
    no_bookies_timeout_s: float
    disable_ensemble_change: bool
    delay_ensemble_change: bool
    ensemble_changes_max: int
    ensemble_changes_window_s: float
    absent_bookie_replace_delay_s: float
    leave_look_interval_s: float
    leaves_at_once: int
    quarantine_s: float
    read_timeout_s: float
    metadata_timeout_s: float
    session_timeout_s: float
    read_bytes: int
    prefetch_depth: int
    scan_by_blocks_after: int
    tail_poll_s: float
    long_poll_s: float
    read_late_percentile: float
    read_late_min_s: float
    read_late_default_s: float
    explicit_lac_interval_s: float
    metadata_refused_timeout_s: float
    metadata_conflicts_max: int
    metadata_write_pause_s: float
    ledger_id_attempts_max: int
    ledger_id_pause_max_s: float
    log_roll_bytes: int
    log_roll_entries: int
    log_roll_s: float
    log_roll_retry_s: float
    log_open_pause_min_s: float
    log_open_pause_max_s: float
    bookie_reads_at_once: int
    bookie_refresh_interval_s: float
    recovery_ranges_at_once: int
    recovery_first_entries: int
    recovery_range_entries_max: int
    recovery_range_bytes_max: int
    recovery_patience_s: float
    calls_in_flight_max: int
    unacked_bytes_max: int
    backpressure_stall_timeout_s: float
    lac_writes_in_flight_max: int
    reply_bytes_max: int
    receive_chunks_max: int
    flush_threshold_bytes: int
    append_overhead_bytes: int
    part_bytes_min: int
    reconnect_pause_min_s: float
    reconnect_pause_max_s: float
    ensemble_retry_backoff_min_s: float
    ensemble_retry_backoff_max_s: float
    progress_check_interval_s: float
    tail_round_min_s: float
    read_retry_pause_s: float
    read_entries_first: int
    read_entries_max: int
    slow_bookie_s: float
    read_late_in_a_row: int
    read_samples_max: int
    read_samples_min: int
    read_samples_per_look: int
