"""The settings of a client as keyword arguments of `bkpy.connect`, for type checkers. Made by `make settings`."""

from __future__ import annotations

from typing import Literal, TypedDict


class ClientArguments(TypedDict, total=False):
    """See `ClientSettings`."""

    client_name: str
    slow_request_ms: int
    session_timeout_s: float
    metadata_timeout_s: float
    metadata_refused_timeout_s: float
    connect_timeout_s: float
    add_timeout_s: float
    add_quorum_timeout_s: float
    read_timeout_s: float
    no_bookies_timeout_s: float
    write_window_bytes: int
    write_window_entries: int
    batch_bytes_max: int
    entry_bytes_max: int
    read_bytes: int
    prefetch_depth: int
    explicit_lac_interval_s: float
    long_poll_s: float
    disable_ensemble_change: bool
    allow_absent_bookies: bool
    delay_ensemble_change: bool
    quarantine_s: float
    absent_bookie_replace_delay_s: float
    log_retention_interval_s: float
    log_consumers_max: int
    log_producer_idle_s: float
    log_roll_bytes: int
    log_roll_entries: int
    log_roll_s: float
    tls_ca_file: str | None
    tls_certificate_file: str | None
    tls_key_file: str | None
    zookeeper_tls_ca_file: str | None
    zookeeper_tls_certificate_file: str | None
    zookeeper_tls_key_file: str | None
    zookeeper_auth: str | None
    zookeeper_auth_file: str | None
    zookeeper_acl: Literal["own", "open"]
