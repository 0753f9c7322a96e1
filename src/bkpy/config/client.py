"""The settings of a client: every limit with its unit in its name and its reason beside it."""

from __future__ import annotations

from pydantic import Field, model_validator

from bkpy.config.base import GIB, KIB, MIB, MetadataSettings, Seconds, SecondsOrZero, Size
from bkpy.config.checking import build, check_name


class ClientSettings(MetadataSettings):
    """The settings of one client."""

    client_name: str = Field(
        default="",
        max_length=64,
        pattern=r"^[A-Za-z0-9_.:@/\-]*$",
        description="a name of the client for people: a log whose writer it is names it, with its host and process",
    )
    write_window_bytes: Size = Field(
        default=16 * MIB, description="bytes of a writer's appends that may be unacknowledged before `append` waits"
    )
    write_window_entries: Size = Field(
        default=100_000, description="appends of a writer that may be unacknowledged before `append` waits"
    )
    batch_bytes_max: Size = Field(
        default=256 * KIB,
        description="bytes of entries that travel as one batch; larger ones were measured to be slower",
    )
    entry_bytes_max: Size = Field(default=4 * MIB, description="bytes of the largest entry; bookies refuse larger ones")
    connect_timeout_s: Seconds = Field(default=3.0, description="seconds to reach a bookie and be greeted by it")
    add_timeout_s: Seconds = Field(
        default=5.0, description="seconds a bookie has to acknowledge an append before it is taken for failed"
    )
    add_quorum_timeout_s: Seconds = Field(
        default=30.0, description="seconds without any progress after which a writer's pending appends fail"
    )
    close_linger_s: SecondsOrZero = Field(
        default=1.0,
        description="seconds that closing a ledger may wait for bookies that the ack quorum was quicker than",
    )
    no_bookies_timeout_s: SecondsOrZero = Field(
        default=3.0,
        description="seconds a writer waits for bookies, when too few are left and no others can replace them",
    )
    disable_ensemble_change: bool = Field(
        default=False, description="send to failed bookies again, instead of putting others in their place"
    )
    delay_ensemble_change: bool = Field(
        default=False, description="replace failed bookies only when the ack quorum is in danger"
    )
    ensemble_changes_max: Size = Field(
        default=100, description="changes of a writer's ensemble within ensemble_changes_window_s before it fails"
    )
    ensemble_changes_window_s: Seconds = Field(
        default=60.0, description="seconds over which a writer's changes of ensemble are counted"
    )
    absent_bookie_replace_delay_s: Seconds = Field(
        default=30.0,
        description="seconds for which a bookie may be away before writers put others in its place that don't append: "
        "longer than a restart takes, and shorter than it takes others to end their ledgers for it",
    )
    leave_look_interval_s: Seconds = Field(
        default=2.0, description="seconds between two looks for writers that have yet to leave a bookie"
    )
    leaves_at_once: Size = Field(
        default=16, description="idle writers of a client that leave a bookie at the same time; thousands may have to"
    )
    quarantine_s: Seconds = Field(
        default=30.0, description="seconds for which a bookie that failed is chosen only if there is no other"
    )
    read_timeout_s: Seconds = Field(default=10.0, description="seconds a bookie has to answer a read")
    metadata_timeout_s: Seconds = Field(default=10.0, description="seconds for one operation on metadata")
    session_timeout_s: Seconds = Field(
        default=10.0, description="seconds without contact after which ZooKeeper ends this client's session"
    )
    # A little below a chunk of memory for receiving, so that the reply fits one.
    read_bytes: Size = Field(default=MIB - 4 * KIB, description="bytes asked of a bookie in one read")
    prefetch_depth: Size = Field(
        default=4, description="reads that a scan keeps in flight, which hides the time that each takes"
    )
    scan_by_blocks_after: int = Field(
        default=200_000,
        ge=0,
        description="entries that a reader verifies one by one before it verifies blocks of small ones at once, for "
        "which numpy has to be imported: a tenth of a second, as long as so many entries take",
    )
    tail_poll_s: Seconds = Field(
        default=0.1, description="seconds between two looks for new entries, when tailing where bookies don't wait"
    )
    long_poll_s: Seconds = Field(default=10.0, description="seconds that a bookie waits for news when tailing")
    read_late_percentile: float = Field(
        default=99.0,
        gt=0,
        le=100,
        description="share of recent reads, in percent, that were faster than one which counts as late; then a second "
        "replica is asked as well",
    )
    read_late_min_s: Seconds = Field(
        default=0.02, description="seconds before which no read counts as late, however fast the others were"
    )
    read_late_default_s: Seconds = Field(
        default=0.2, description="seconds after which a read counts as late while too few were made to compare it with"
    )
    explicit_lac_interval_s: SecondsOrZero = Field(
        default=0.1,
        description="seconds after which an idle writer tells bookies how far readers may read; 0 for never",
    )
    metadata_refused_timeout_s: Seconds = Field(
        default=1.0,
        description="seconds for which every ZooKeeper server may refuse a client's first connection at once, as one "
        "does that is just starting, before that is an error",
    )
    metadata_conflicts_max: Size = Field(
        default=20,
        description="writes that close a ledger, or begin its recovery, lost one after the other to somebody else's "
        "change of the metadata, before that is an error",
    )
    metadata_write_pause_s: Seconds = Field(
        default=0.05, description="seconds between two attempts to store a change of the ensemble with unknown outcome"
    )
    ledger_id_attempts_max: Size = Field(
        default=10, description="new ledger ids in a row that may turn out to be taken, before creating a ledger fails"
    )
    ledger_id_pause_max_s: Seconds = Field(
        default=0.05, description="seconds, at most, before another id is tried, so that clients get out of step"
    )
    log_roll_bytes: Size = Field(
        default=GIB,
        description="bytes of a log's ledger after which its writer goes on in another one: what is deleted at a time",
    )
    log_roll_entries: Size = Field(
        default=10_000_000, description="entries of a log's ledger after which its writer goes on in another one"
    )
    log_roll_s: Seconds = Field(
        default=3600.0,
        description="seconds after which a log's writer goes on in another ledger, unless the present one is empty",
    )
    log_roll_retry_s: Seconds = Field(
        default=1.0,
        description="seconds between two attempts to roll a log, or to close a ledger of it, where that isn't possible",
    )
    log_open_pause_min_s: Seconds = Field(
        default=0.05,
        description="seconds, at most, before a log is opened again if somebody else has become its writer meanwhile",
    )
    log_open_pause_max_s: Seconds = Field(
        default=2.0, description="seconds to which that pause grows, so that those who take it from each other get on"
    )
    bookie_reads_at_once: Size = Field(
        default=32, description="bookies' registrations that are read at the same time, when the list has changed"
    )
    bookie_refresh_interval_s: Seconds = Field(
        default=300.0,
        description="seconds between two readings of what all bookies say of themselves; free space only weights "
        "choices, so an old value does no harm, and reading has its price",
    )
    recovery_ranges_at_once: Size = Field(
        default=4, description="ranges of entries that a recovery reads at the same time, to hide the time of each"
    )
    recovery_first_entries: Size = Field(
        default=64, description="entries of a recovery's first range, while nothing is known of their sizes"
    )
    recovery_range_entries_max: Size = Field(
        default=4096, description="entries of one such range, of any size: each becomes an object in memory"
    )
    recovery_range_bytes_max: Size = Field(
        default=4 * MIB, description="bytes of one such range in memory, beyond which it is cut short"
    )
    recovery_patience_s: Seconds = Field(
        default=0.05, description="seconds after which a recovery asks a second bookie for what one has not answered"
    )

    # What keeps one bookie, one reader or one writer from taking all of a client.
    calls_in_flight_max: Size = Field(
        default=128, description="requests in flight at one bookie; the others wait here, and are not refused there"
    )
    unacked_bytes_max: Size = Field(
        default=32 * MIB,
        description="bytes of appends that one bookie may owe before writers wait for it; far above what a healthy one "
        "ever owes",
    )
    backpressure_stall_timeout_s: Seconds = Field(
        default=2.0,
        description="seconds for which a bookie that owes so much may be silent before it is given up: writers wait",
    )
    lac_writes_in_flight_max: Size = Field(
        default=16,
        description="idle writers of whose progress one bookie is told at once; thousands may pause at the same moment",
    )
    reply_bytes_max: Size = Field(
        default=64 * MIB,
        description="bytes of the largest reply that is accepted: one entry may be larger than this client's limit",
    )
    receive_chunks_max: Size = Field(
        default=16, description="chunks of a megabyte that replies are received into and that are kept to be used again"
    )
    flush_threshold_bytes: Size = Field(
        default=256 * KIB,
        description="bytes appended in one tick of the event loop after which they leave, so that bookies are at work "
        "on them while the rest is still being appended",
    )
    append_overhead_bytes: Size = Field(
        default=256, description="bytes that each append counts for there besides its own: it takes time at any size"
    )
    part_bytes_min: Size = Field(
        default=4 * KIB,
        description="bytes of the average part of a request below which all are joined: copying costs less than many",
    )

    # How often something is tried again, or looked at.
    reconnect_pause_min_s: Seconds = Field(
        default=0.05, description="seconds before a bookie that was lost is connected to again, the first time"
    )
    reconnect_pause_max_s: Seconds = Field(
        default=1.0, description="seconds that this pause grows to, doubling, while the bookie can't be reached"
    )
    ensemble_retry_backoff_min_s: Seconds = Field(
        default=0.05,
        description="seconds before a writer tries again to replace or to reach bookies that failed, the first time",
    )
    ensemble_retry_backoff_max_s: Seconds = Field(
        default=1.0, description="seconds that this pause grows to, doubling, while nothing is acknowledged"
    )
    progress_check_interval_s: Seconds = Field(
        default=0.5, description="seconds between two looks for writers whose quorums don't answer"
    )
    tail_round_min_s: Seconds = Field(
        default=0.01,
        description="seconds between two rounds of asking bookies for news: of a ledger that is written all the time, "
        "each would be answered at once, and cost bookies more than the appends do",
    )
    read_retry_pause_s: Seconds = Field(
        default=0.05, description="seconds between two rounds over an entry's replicas while some can't be reached"
    )

    # How reads are cut, and how they are judged.
    read_entries_first: Size = Field(
        default=64, description="entries of the first read of a ledger, while nothing is known of their sizes"
    )
    read_entries_max: Size = Field(
        default=65_536, description="entries asked of a bookie in one read, however small they are"
    )
    slow_bookie_s: Seconds = Field(
        default=10.0, description="seconds for which a bookie that didn't answer in time is asked after all others"
    )
    read_late_in_a_row: Size = Field(
        default=3, description="late reads in a row after which a bookie is slow, and not only unlucky"
    )
    read_samples_max: Size = Field(
        default=256,
        description="recent reads among which a late one is told: within so many, a change of the bookies is noticed",
    )
    read_samples_min: Size = Field(
        default=20, description="reads before there are enough to tell a late one by a percentile"
    )
    read_samples_per_look: Size = Field(
        default=16, description="reads after which the percentile is computed again: each time would cost too much"
    )

    @model_validator(mode="after")
    def _consistent(self) -> ClientSettings:
        if self.reply_bytes_max < max(self.entry_bytes_max, self.read_bytes) + 64 * KIB:
            raise ValueError(
                "reply_bytes_max must exceed entry_bytes_max and read_bytes by 64 KiB or more, for replies to fit"
            )
        for name in ("reconnect_pause", "ensemble_retry_backoff"):
            if getattr(self, f"{name}_max_s") < getattr(self, f"{name}_min_s"):
                raise ValueError(f"{name}_max_s must not be below {name}_min_s")
        return self


def client_settings(**values: object) -> ClientSettings:
    """A client's settings from keyword arguments; `ConfigError` naming the argument at fault."""
    for name in values:
        check_name(ClientSettings, name, "argument")
    return build(ClientSettings, values, {})
