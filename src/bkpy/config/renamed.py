"""The former names of settings, which users may still give until the next minor version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

RENAMED: Final[Mapping[str, str]] = {  # old name -> new name
    "mend_pause_min_s": "ensemble_retry_backoff_min_s",
    "mend_pause_max_s": "ensemble_retry_backoff_max_s",
    "owed_bytes_max": "unacked_bytes_max",
    "owed_stall_timeout_s": "backpressure_stall_timeout_s",
    "launch_bytes": "flush_threshold_bytes",
    "launch_append_bytes": "append_overhead_bytes",
    "crowded_stall_timeout_s": "memory_pressure_stall_timeout_s",
    "crowded_bytes_per_s_min": "memory_pressure_bytes_per_s_min",
    "leave_absent_bookie_s": "absent_bookie_replace_delay_s",
    "copy_clients_gone_s": "foreground_idle_s",
    "copies_beside_clients": "copies_max_under_load",
    "journal_runs_in_place": "journal_as_entry_log",
    "gc_spare_interval_s": "gc_over_replicated_interval_s",
    "newcomers_max": "new_connections_max",
    "log_sinks_max": "log_producers_max",
}
