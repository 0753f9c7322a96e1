"""Draws bounds tiny: for each number among the settings and tuning values, the values that a run may give it.

A bound that no run reaches hides the behaviour beyond it. So by seed each one is as small as makes sense in some runs,
small in others, and has its default in the rest. Each setting of each host has a random stream of its own, so a new one
doesn't reshuffle the others.

Values that make every run impossible are left out: a bookie must accept the largest entry of the workloads,
`LARGEST_ENTRY_BYTES`, and all hosts of a run must be able to connect.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, NamedTuple

from bkpy.config.renamed import RENAMED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bkpy.config.bookie import BookieSettings
    from bkpy.config.client import ClientSettings

    from .world import World

# A renamed setting keeps its stream, so each seed keeps its run.
_FIRST_NAMES = {new: old for old, new in RENAMED.items()}

KIB = 1024
MIB = 1024 * KIB
LARGEST_ENTRY_BYTES = 8 * KIB
CALM = 0.2  # of the runs have the defaults, except for bounds with a chance of 1


class Bound(NamedTuple):
    """`small` are the values to draw from; the first is the smallest that makes sense."""

    small: tuple[float, ...]
    chance: float = 0.25  # that one is drawn instead of the default; 1 if the default is too large for any run


BOOKIE: Mapping[str, Bound] = {
    # Small enough that files are rolled and replaced; sometimes a checkpoint is always near, sometimes there is only
    # the journal.
    "journal_max_size_mb": Bound((1,), 1.0),
    "journal_max_backups": Bound((0, 1, 5), 1.0),
    "journal_group_bytes_max": Bound((1, 4 * KIB, 64 * KIB)),
    "journal_recycled_files_max": Bound((0, 1)),
    "journal_read_bytes": Bound((4 * KIB,)),
    "journal_uncache_bytes_min": Bound((1, 4 * KIB)),
    "journal_run_bytes_min": Bound((1, 1, 200), 0.5),
    "journal_run_share_min": Bound((0.0, 1.0)),
    "memtable_fill_min": Bound((0.01, 1.0)),
    "memtable_step_batches": Bound((1, 3)),
    "memtable_bytes_max": Bound((1, 32 * KIB, 32 * KIB, 128 * KIB, 128 * KIB, 1 * MIB, 1 * MIB), 1.0),
    "checkpoint_interval_s": Bound((0.05, 0.3, 0.3, 2.0, 2.0, 60.0, 60.0), 1.0),
    "checkpoint_commit_ledgers": Bound((1, 2, 5), 0.5),
    "entry_log_max_size_mb": Bound((1,), 1.0),
    "entry_log_blocks_max": Bound((1, 3, 10)),
    "block_bytes": Bound((1, 4 * KIB, 4 * KIB, 64 * KIB, 64 * KIB), 1.0),
    "block_run_bytes": Bound((1, 200)),
    "entry_log_write_bytes": Bound((1, 4 * KIB)),
    "activity_ledgers_max": Bound((1,)),
    "flush_step_batches": Bound((1, 3)),
    "rebuild_step_blocks": Bound((1, 3)),
    "flush_part_batches": Bound((1, 3)),
    "open_entry_logs_max": Bound((1, 2)),
    "block_cache_bytes_max": Bound((1, 64 * KIB)),
    "memory_bytes_max": Bound(
        (1, 64 * KIB, 512 * KIB), 0.3
    ),  # parts without a value of their own get their share of this
    "memory_rest_interval_s": Bound((0.01, 1.0)),
    "memtable_rest_bytes_min": Bound((1, 4 * KIB)),
    "read_ahead_bytes_max": Bound((0, 64 * KIB)),
    "read_ahead_ledgers_max": Bound((1, 2)),
    "ledger_states_max": Bound((1, 2, 5, 20), 0.5),
    "index_readers_max": Bound((5,)),
    "index_check_share": Bound((1.0,)),
    "index_step_rows": Bound((1, 3)),
    "index_step_pause_s": Bound((0.001,)),
    "reclaim_interval_s": Bound((0.05, 1.0), 0.5),
    "index_free_share_max": Bound((0.01, 0.3)),
    "index_shrink_bytes_min": Bound((0,), 0.5),
    "compaction_minor_living_ratio": Bound((0.0, 0.9), 0.5),
    "compaction_minor_interval_s": Bound((0.001, 1.0), 0.5),
    "compaction_major_living_ratio": Bound((0.0, 0.99), 0.5),
    "compaction_major_interval_s": Bound((0.001, 1.0), 0.5),
    "compaction_bytes_per_s": Bound((100_000,)),
    "compaction_step_bytes": Bound((1, 4 * KIB)),
    "compaction_commit_bytes": Bound((1, 4 * KIB)),
    "scrub_interval_s": Bound((0.5, 2.0, 10.0), 1.0),
    "scrub_bytes_per_s": Bound((100_000,)),
    "scrub_step_bytes": Bound((1, 4 * KIB)),
    "scrub_save_interval_s": Bound((0.05, 1.0)),
    "scrub_damages_max": Bound((1,)),
    "disk_check_interval_s": Bound((0.05,)),
    "gc_interval_s": Bound((0.05, 0.5, 2.0), 1.0),
    "gc_over_replicated_interval_s": Bound((0.05, 1.0, 1.0), 1.0),
    "gc_page_ledgers": Bound((1, 2)),
    "gc_ledgers_at_once": Bound((1, 2)),
    "gc_looks_per_second": Bound((1.0, 10.0)),
    "entry_bytes_max": Bound((LARGEST_ENTRY_BYTES,)),
    "frame_bytes_max": Bound((LARGEST_ENTRY_BYTES + 64 * KIB, 256 * KIB)),
    "read_bytes_max": Bound((1, 4 * KIB)),
    "journal_queue_bytes_max": Bound((1, 4 * KIB)),
    "connections_max": Bound((16,)),
    "new_connections_max": Bound((1, 3)),
    "answers_at_once": Bound((1, 2)),
    "answers_bytes_max": Bound((1,)),  # the smallest budget holds it
    "receive_bytes_max": Bound((1, 100 * KIB)),
    "requests_in_flight_total_max": Bound((20,)),  # the long polls of all readers are among them
    "complaint_interval_s": Bound((0.001,)),
    "marks_look_interval_s": Bound((0.05, 1.0)),
    "worker_report_interval_s": Bound((0.05, 1.0)),
    "worker_report_ledgers_max": Bound((1, 2)),
    "lost_bookie_settle_s": Bound((0.5, 5.0)),
    "lost_bookie_recovery_delay_s": Bound((0.0, 5.0, 30.0)),
    "audit_look_interval_s": Bound((0.05, 1.0)),
    "audit_follow_interval_s": Bound((0.05, 1.0)),
    "audit_whole_interval_s": Bound((0.001, 1.0)),
    "audit_reads_at_once": Bound((1, 2)),
    "audit_remembered_max": Bound((1, 10)),
    "integrity_look_interval_s": Bound((0.1, 2.0, 10.0), 1.0),
    "integrity_retry_interval_s": Bound((0.05, 1.0), 1.0),
    "integrity_ledgers_at_once": Bound((1, 2)),
    "integrity_flush_ledgers": Bound((1, 3)),
    "replicas_check_interval_s": Bound((1.0, 20.0)),
    "placement_check_interval_s": Bound((1.0, 20.0)),
    "log_orphan_interval_s": Bound((1.0, 20.0)),
    "check_progress_interval_s": Bound((0.001, 1.0)),
    "check_bytes_per_s_max": Bound((10_000, 10_000_000)),
    "check_read_bytes": Bound((1, 1000)),
    "check_windows": Bound((2, 4)),
    "check_window_entries": Bound((1, 4)),
    "open_ledger_grace_s": Bound((0.01, 5.0)),
    "copies_at_once": Bound((1, 2)),
    "copies_max_under_load": Bound((2,)),
    "foreground_idle_s": Bound((0.001, 0.1)),
    "copy_bytes_per_s_max": Bound((100 * KIB,)),
    "copy_bytes_per_s_min": Bound((10 * KIB,)),
    "copy_late_s": Bound((0.001, 0.01)),
    "copy_late_factor": Bound((1.001, 100.0)),
    "copy_rate_growth": Bound((0.001, 1.0)),
    "copy_window_bytes": Bound((1, 4 * KIB)),
    "drain_look_interval_s": Bound((0.01, 0.3)),
    "decommission_patience_s": Bound((0.1,)),
    "repair_pause_min_s": Bound((0.01,)),
    "repair_pause_max_s": Bound((0.1, 5.0)),
    "repair_attempts_max": Bound((1, 3)),
    "repair_looks_at_once": Bound((1, 2)),
    "repair_lookers": Bound((1, 3)),
    "repair_queue_max": Bound((1, 3)),
    "stuck_ledgers_max": Bound((1, 3)),
    "metadata_retry_pause_s": Bound((0.001, 1.0)),
    "metadata_write_attempts_max": Bound((1, 2)),
    "log_idle_intervals_max": Bound((1, 3)),
    "log_conflicts_max": Bound((1, 3)),
    "log_producers_max": Bound((1, 3)),
    "log_producer_runs_max": Bound((1, 2)),
    "log_consumer_reads_at_once": Bound((1, 2)),
    "log_deletes_at_once": Bound((1, 2)),
    "log_page_rows": Bound((2, 3), 0.5),  # with one, pages of pages would never be fewer
    "log_pages_cached_max": Bound((1, 2)),
    "log_retention_interval_s": Bound((0.1, 5.0)),
    "requests_in_flight_max": Bound((1, 3)),
    "long_polls_max": Bound((1, 3)),
    "long_poll_max_s": Bound((0.001, 0.1)),
    "backlog_frames_max": Bound((1, 3)),
    "reads_at_once": Bound((1, 2)),
    "deferred_sync_bytes_max": Bound((1, 4 * KIB)),
    "presented_ledgers_max": Bound((1, 3, 10)),
    "key_lookups_at_once": Bound((1, 2)),
    "presented_keys_bytes_max": Bound((1,)),
    "key_lookup_timeout_s": Bound((1.0, 5.0)),
    "receive_chunk_bytes_min": Bound((1, 100)),
    "receive_chunk_bytes_max": Bound((100, 4 * KIB)),
    "receive_room_bytes_min": Bound((1, 100)),
    "receive_spare_chunks": Bound((0, 1)),
    "tick_s": Bound((0.01, 1.0)),
}

CLIENT: Mapping[str, Bound] = {
    "write_window_bytes": Bound((1, 10 * KIB)),
    "write_window_entries": Bound((1, 3, 10)),
    "batch_bytes_max": Bound((1, 4 * KIB)),
    "entry_bytes_max": Bound((LARGEST_ENTRY_BYTES,)),
    "read_bytes": Bound((1, 4 * KIB)),
    "prefetch_depth": Bound((1, 2)),
    "scan_by_blocks_after": Bound((0, 100)),
    "absent_bookie_replace_delay_s": Bound((0.01, 5.0)),
    "leave_look_interval_s": Bound((0.01, 1.0)),
    "leaves_at_once": Bound((1, 2)),
    "quarantine_s": Bound((0.001, 1.0)),
    "ensemble_changes_max": Bound((1, 5), 0.05),
    "tail_poll_s": Bound((0.01, 1.0)),
    "long_poll_s": Bound((0.01, 1.0)),
    "read_late_percentile": Bound((1.0, 50.0)),
    "read_late_min_s": Bound((0.0001, 1.0)),
    "read_late_default_s": Bound((0.0001, 1.0)),
    "explicit_lac_interval_s": Bound((0.01, 0.0)),
    "calls_in_flight_max": Bound((1, 2)),
    "refused_retry_pause_min_s": Bound((0.001,)),
    "refused_retry_pause_max_s": Bound((0.05,)),
    "unacked_bytes_max": Bound((1, 10 * KIB)),
    "reply_bytes_max": Bound((1 * MIB + 64 * KIB,)),  # a default read and what is around it must fit
    "receive_chunks_max": Bound((1, 2)),
    "bookkeeper_reads_first": Bound((1,)),
    "bookkeeper_reads_at_once": Bound((1, 3)),
    "flush_threshold_bytes": Bound((1, 4 * KIB)),
    "append_overhead_bytes": Bound((1, 10 * KIB)),
    "part_bytes_min": Bound((1, 100)),
    "reconnect_pause_min_s": Bound((0.001,)),
    "reconnect_pause_max_s": Bound((0.05,)),
    "ensemble_retry_backoff_min_s": Bound((0.001,)),
    "ensemble_retry_backoff_max_s": Bound((0.05,)),
    "progress_check_interval_s": Bound((0.01, 0.1)),
    "tail_round_min_s": Bound((0.0001, 1.0)),
    "read_retry_pause_s": Bound((0.001, 1.0)),
    "read_entries_first": Bound((1, 3)),
    "read_entries_max": Bound((1, 3)),
    "recovery_first_entries": Bound((1, 3)),
    "recovery_range_entries_max": Bound((1, 3)),
    "recovery_range_bytes_max": Bound((1, 4 * KIB)),
    "recovery_ranges_at_once": Bound((1, 2)),
    "recovery_patience_s": Bound((0.001, 1.0)),
    "lac_writes_in_flight_max": Bound((1, 2)),
    "lac_rests_max": Bound((1, 2)),
    "ledger_id_attempts_max": Bound((1, 2)),
    "ledger_id_pause_max_s": Bound((0.001,)),
    "bookie_reads_at_once": Bound((1, 2)),
    "bookie_refresh_interval_s": Bound((0.1, 5.0)),
    "metadata_conflicts_max": Bound((1, 3)),
    "metadata_retry_pause_s": Bound((0.001, 1.0)),
    "metadata_write_attempts_max": Bound((1, 2)),
    "log_idle_intervals_max": Bound((1, 3)),
    "log_conflicts_max": Bound((1, 3)),
    "log_producers_max": Bound((1, 3)),
    "log_producer_runs_max": Bound((1, 2)),
    "log_consumer_reads_at_once": Bound((1, 2)),
    "log_roll_bytes": Bound((1, 1000)),
    "log_roll_entries": Bound((1, 3)),
    "log_roll_s": Bound((0.05, 1.0)),
    "log_roll_retry_s": Bound((0.001, 0.1)),
    "log_open_pause_min_s": Bound((0.001,)),
    "log_open_pause_max_s": Bound((0.05,)),
    "log_turn_early_s": Bound((0.001, 30.0)),
    "log_turn_pause_min_s": Bound((0.001,)),
    "log_turn_pause_max_s": Bound((0.05, 1.0)),
    "log_turns_remembered_max": Bound((1,)),
    "log_deletes_at_once": Bound((1, 2)),
    "log_page_rows": Bound((2, 3), 0.5),  # with one, pages of pages would never be fewer
    "log_pages_cached_max": Bound((1, 2)),
    "log_retention_interval_s": Bound((0.1, 5.0)),
    "metadata_write_pause_s": Bound((0.001, 1.0)),
    "slow_bookie_s": Bound((0.001, 1.0)),
    "read_late_in_a_row": Bound((1,)),
    "read_samples_max": Bound((1, 3)),
    "read_samples_min": Bound((1, 3)),
    "read_samples_per_look": Bound((1, 3)),
}

# Numbers that bound nothing that a run can reach, each with the reason.
NOT_DRAWN: Mapping[str, str] = {
    "bookkeeper_frame_bytes_max": "is a bookie's setting, which clients have to know",
    "restore_nodes_max": "of a command on a cluster without clients: tests/unit/admin/test_restore.py has it at one",
    "log_orphan_grace_s": "patience with writers that are about to add a ledger, which runs choose",
    "log_producer_idle_s": "runs choose when producers are forgotten",
    "audit_acts_max": "clients of a world record no acts",
    "log_consumers_max": "runs choose how many consumers their logs have",
    "log_write_bytes_max": "a list that is too long stops the log, by design, until it is truncated",
    "slow_request_ms": "log lines alone",
    "metrics_logs_max": "metrics alone, which no world asks for",
    "metrics_consumers_max": "the same",
    "metrics_lag_interval_s": "the same",
    "metrics_port": "a port; there is no metrics page in a world",
    "metrics_connections_max": "of that page",
    "pages_timeout_s": "of programs that read such pages, none of which is simulated",
    "pages_at_once": "of these programs",
    "page_bytes_max": "of these programs",
    "activity_frames_max": "of such a page: tests/unit/bookie/test_busiest.py has it at one",
    "activity_batches_max": "the same",
    "activity_fresh_s": "of such a page",
    "activity_stale_s": "the same",
    "index_bytes_max": "a full index stops the bookie, by design and for good",
    "disk_free_bytes_min": "runs choose when a disk is full, and by how much",
    "disk_free_bytes_resume": "the same",
    "compaction_free_bytes_min": "the same",
    "listen_backlog": "the kernel's; a simulated listener accepts at once",
    "handshake_timeout_s": "patience with isolated hosts, which runs heal in their own time",
    "frame_stall_timeout_s": "the same",
    "first_frame_stall_timeout_s": "the same",
    "memory_pressure_stall_timeout_s": "the same",
    "memory_pressure_bytes_per_s_min": "the same",
    "reply_stall_timeout_s": "the same",
    "keepalive_interval_s": "the kernel's, which asks no simulated host",
    "vanished_timeout_s": "the same",
    "tls_handshakes_max": "simulated hosts speak no TLS",
    "tls_handshake_timeout_s": "the same",
    "tls_buffer_bytes_max": "the same",
    "tls_reload_interval_s": "the same",
    "files_spare": "files for others; a world counts none",
    "stop_timeout_s": "the same, of a bookie that stops",
    "session_timeout_s": "simulated sessions have their own",
    "backpressure_stall_timeout_s": "patience with a bookie that acknowledges too little",
    "connect_timeout_s": "patience, which the failover run draws",
    "add_timeout_s": "the same",
    "add_quorum_timeout_s": "the same",
    "no_bookies_timeout_s": "the same",
    "close_linger_s": "patience with bookies that are slower than the ack quorum",
    "ensemble_changes_window_s": "the time over which ensemble_changes_max counts",
    "read_timeout_s": "patience, which runs choose",
    "metadata_timeout_s": "simulated sessions have their own",
    "metadata_close_timeout_s": "of the client of ZooKeeper, which no world has",
    "metadata_reconnect_pause_min_s": "the same",
    "metadata_reconnect_pause_max_s": "the same",
    "metadata_refused_timeout_s": "the same",
    "metadata_reply_bytes_max": "the same",
    "metadata_requests_in_flight_max": "the same",
}


def bookie_bounds(world: World, host: str) -> dict[str, Any]:
    """The settings of a bookie's bounds in this run."""
    return consistent(draw(world, host, BOOKIE))


def client_bounds(world: World, host: str) -> dict[str, Any]:
    """The settings of a client's bounds in this run."""
    return consistent(draw(world, host, CLIENT))


def smallest(bounds: Mapping[str, Bound]) -> dict[str, Any]:
    """Every bound at its smallest, all at once."""
    return consistent({name: bound.small[0] for name, bound in bounds.items()})


def draw(world: World, host: str, bounds: Mapping[str, Bound]) -> dict[str, Any]:
    """The bounds of a host that are small in this run; each is drawn by itself."""
    calm = world.stream("buggify").random() < CALM
    drawn = {}
    stream = random.Random()  # one object for all streams: there are a hundred for each host
    for name, bound in bounds.items():
        if calm and bound.chance < 1.0:
            continue
        stream.seed(world.seed_of(f"buggify-{host}-{_FIRST_NAMES.get(name, name)}"))
        if stream.random() < bound.chance:
            drawn[name] = stream.choice(bound.small)
    return drawn


def consistent(drawn: dict[str, Any]) -> dict[str, Any]:
    """Make a frame hold an entry, whatever was drawn for either."""
    if "frame_bytes_max" in drawn or "reply_bytes_max" in drawn:
        drawn.setdefault("entry_bytes_max", LARGEST_ENTRY_BYTES)
    return drawn


def numeric(model: type[BookieSettings | ClientSettings]) -> set[str]:
    """The settings and tuning values that are numbers."""
    return {name for name, field in model.model_fields.items() if field.annotation in (int, float)}
