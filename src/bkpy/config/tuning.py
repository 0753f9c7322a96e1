"""Tuning: numbers and switches that are no settings. Users need none of them, and the simulator varies them all.

A field belongs here if a bound, a pause or a batch size has a good value for every cluster. The settings inherit from
these classes, so code reads a tuning value as it reads a setting, `settings.NAME`, and tests set it by its name.
"""

from __future__ import annotations

from pydantic import Field

from bkpy.config.base import KIB, MIB, Seconds, SecondsOrZero, Settings, Size
from bkpy.config.memory import MEMORY_PARTS


class MetadataTuning(Settings):
    """Of what every process does with the metadata store, and with named logs."""

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
    log_list_bytes_max: int = Field(
        default=768 * KIB,
        gt=0,
        le=1000 * KIB,
        description="bytes of the stored list of one log, some 70 for each of its ledgers: ZooKeeper takes no value of "
        "a megabyte. Where a log grows beyond it, roll its ledgers later, truncate it or set retention",
    )
    log_consumer_reads_at_once: Size = Field(
        default=32, description="consumers of a named log that are read at the same time"
    )
    log_conflicts_max: Size = Field(
        default=20,
        description="writes about a named log, lost one after the other to somebody else's change of it, before that "
        "is an error",
    )
    log_deletes_at_once: Size = Field(
        default=32, description="ledgers of a log that are deleted at the same time, when it is truncated or deleted"
    )


class RecoveryTuning(Settings):
    """Of the auditor and of re-replication workers."""

    metrics_connections_max: Size = Field(
        default=32,
        description="connections to the metrics page, each of which is a file or two; for one more, the oldest of them "
        "is closed",
    )
    marks_look_interval_s: Seconds = Field(
        default=60.0,
        description="seconds after which the marks of under-replicated ledgers are looked through again, even if "
        "nobody told of a new one",
    )
    audit_look_interval_s: Seconds = Field(
        default=10.0,
        description="seconds between two looks at the bookies by the auditor, which is told of those that come and go",
    )
    audit_follow_interval_s: Seconds = Field(
        default=60.0,
        description="seconds between two looks, while bookies are lost, at ledgers that are new, not closed, or worked "
        "off: they may name a lost bookie now",
    )
    audit_whole_interval_s: Seconds = Field(
        default=86_400.0, description="seconds for which the auditor relies on what it has learnt of closed ledgers"
    )
    audit_reads_at_once: Size = Field(
        default=64, description="reads and marks of ledgers that an audit has in flight at the metadata store"
    )
    audit_remembered_max: Size = Field(
        default=2_000_000,
        description="copies of ledgers that the auditor remembers, 8 bytes each, so that the next loss needs no whole "
        "audit; when there are more, it does",
    )
    # How a bookie that has lost data gets it back.
    integrity_look_interval_s: Seconds = Field(
        default=300.0,
        description="seconds after which a bookie looks again whether it has lost or damaged something that other "
        "bookies have",
    )
    integrity_retry_interval_s: Seconds = Field(
        default=10.0, description="seconds after which it tries again what it could not get back"
    )
    integrity_ledgers_at_once: Size = Field(
        default=8, description="ledgers that it looks at, and copies from others, at the same time"
    )
    integrity_flush_ledgers: Size = Field(
        default=500, description="ledgers after which it flushes what it has copied, and ends their limbo"
    )
    # How the auditor looks after named logs.
    log_orphan_interval_s: Seconds = Field(
        default=21_600.0,
        description="seconds between two searches for ledgers that belong to a named log and that its list doesn't "
        "name; each reads the metadata of all ledgers",
    )
    # How bookies leave.
    drain_look_interval_s: Seconds = Field(
        default=1.0, description="seconds between two looks at the ledgers that still name a bookie which is draining"
    )
    decommission_patience_s: Seconds = Field(
        default=60.0,
        description="seconds that decommissioning a bookie waits for those who move copies meanwhile, who may have "
        "chosen it, before it is refused",
    )
    check_progress_interval_s: Seconds = Field(
        default=60.0,
        description="seconds after which it is stored how far a check is, so that another auditor goes on there",
    )
    check_read_bytes: Size = Field(default=MIB, description="bytes that it asks a bookie for at once")
    check_windows: int = Field(
        default=8,
        ge=2,
        description="parts of what a bookie holds of a fragment that it looks at: both ends, and others by chance",
    )
    check_window_entries: Size = Field(
        default=128,
        description="entries of such a part, all of which are read and verified; what a bookie holds is looked at "
        "as a whole if it has no more than all parts together",
    )
    copies_max_under_load: Size = Field(
        default=1,
        description="the same while clients append to the bookie that the worker is in: their appends wait behind "
        "copies, and more of these at once make them hardly faster",
    )
    foreground_idle_s: Seconds = Field(
        default=1.0, description="seconds without an append of a client after which no client appends to a bookie"
    )
    copy_bytes_per_s_min: Size = Field(
        default=MIB,
        description="bytes a second that it copies however busy bookies are: a cluster that is always busy has to heal",
    )
    copy_late_s: Seconds = Field(
        default=0.1,
        description="seconds after which a bookie's answer to a part of a copy is late: then the rate is halved, and "
        "clients get the bookie's time",
    )
    copy_rate_growth: float = Field(
        default=0.05,
        gt=0,
        allow_inf_nan=False,
        description="share by which the rate is raised again by each answer that is not late",
    )
    copy_window_bytes: Size = Field(
        default=4 * MIB, description="bytes of one copy that may be unanswered, beyond those that are read ahead"
    )
    repair_pause_min_s: Seconds = Field(
        default=1.0, description="seconds after which a ledger that could not be worked off is tried again at first"
    )
    repair_pause_max_s: Seconds = Field(default=300.0, description="seconds that this pause grows to, doubling")
    repair_attempts_max: Size = Field(
        default=10,
        description="attempts that fail in a row after which a ledger is said to be stuck, and tried again only after "
        "the longest pause, or when its bookies or its mark change",
    )
    repair_looks_at_once: Size = Field(
        default=16, description="marked ledgers whose metadata are read at the same time, to see how urgent they are"
    )
    repair_queue_max: Size = Field(
        default=100_000, description="marked ledgers that one worker keeps in order of urgency; the others wait"
    )
    worker_report_interval_s: Seconds = Field(
        default=5.0, description="seconds between two times that a worker tells, in the metadata, how it gets on"
    )
    worker_report_ledgers_max: Size = Field(
        default=20, description="ledgers that such a report names of each kind: worked on, postponed, stuck"
    )
    stuck_ledgers_max: Size = Field(
        default=10_000,
        description="ledgers that could not be worked off of which a worker remembers why; the oldest are forgotten",
    )


class BookieTuning(Settings):
    """Of a bookie."""

    memory_rest_interval_s: Seconds = Field(
        default=1.5,
        description="seconds after which memory that nobody used meanwhile is given back, and a memtable that nothing "
        "was added to is flushed",
    )
    memtable_rest_bytes_min: Size = Field(
        default=4 * MIB, description="bytes of such a memtable; one with less waits for the next checkpoint"
    )
    journal_group_bytes_max: Size = Field(
        default=8 * MIB, description="bytes that one sync covers at most, so that no request waits for a huge write"
    )
    journal_recycled_files_max: int = Field(
        default=2,
        ge=0,
        description="journal files that nothing needs any more kept to be overwritten, which is faster than new ones; "
        "enough that one is there even when a checkpoint is late",
    )
    # The smallest is a page: a search looks for frames page by page.
    journal_read_bytes: int = Field(
        default=MIB,
        ge=4 * KIB,
        description="bytes of a journal read at a time when it is replayed; whole pages of 4 KiB",
    )
    journal_queue_bytes_max: Size = Field(
        default=MEMORY_PARTS["journal_queue_bytes_max"],
        description="bytes that may wait for the sync of one journal before no more is read from clients",
    )
    journal_uncache_bytes_min: Size = Field(
        default=256 * KIB,
        description="bytes of a write to a new journal file that doesn't stay in the system's page cache",
    )
    journal_run_bytes_min: Size = Field(
        default=64 * KIB, description="bytes of a batch that is large enough to be left in its journal file"
    )
    journal_run_share_min: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="share of the bytes of a journal file that must be in such batches for it to be kept: the rest of "
        "it is space that only compaction gives back",
    )
    memtable_fill_min: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="share of a memtable from which on it is flushed, at random between this and all of it, so that "
        "the bookies of a ledger, which fill up alike, don't all flush at once",
    )
    memtable_step_batches: Size = Field(
        default=4000,
        description="batches that a read takes into the memtable's index, a few milliseconds at most, before it lets "
        "others go on",
    )
    checkpoint_commit_ledgers: Size = Field(
        default=2_000,
        description="ledgers that one transaction of a checkpoint writes, with a page of the index in memory for each, "
        "which LMDB keeps for the next one",
    )
    entry_log_blocks_max: Size = Field(
        default=250_000,
        description="blocks after which a new one is begun as well: their table, 40 bytes each, is kept in memory "
        "until the log is full",
    )
    block_bytes: Size = Field(default=256 * KIB, description="bytes of one ledger that are stored and indexed together")
    block_run_bytes: Size = Field(
        default=4 * KIB,
        description="bytes of a block between two places where a reader may begin; each such place takes 8 bytes",
    )
    entry_log_write_bytes: Size = Field(
        default=MIB,
        description="bytes of an entry log written and synced at a time: with more, the journal waits longer in the "
        "disk's queue, with less, a flush takes longer",
    )
    flush_step_batches: Size = Field(
        default=1000, description="batches that a flush handles, about a millisecond, before it lets requests go on"
    )
    flush_part_batches: Size = Field(
        default=5000, description="batches of one ledger that a flush looks at in one go, which nothing interrupts"
    )
    rebuild_step_blocks: Size = Field(
        default=20_000, description="blocks that go into a new index in one transaction, when it is made of entry logs"
    )
    open_entry_logs_max: Size = Field(
        default=128, description="entry logs of one ledger directory held open for reading, so that files are left"
    )
    read_ahead_bytes_max: int = Field(
        default=MIB,
        ge=0,
        description="bytes of blocks that are loaded ahead of a reader that reads a ledger in steps; 0 for none",
    )
    read_ahead_ledgers_max: Size = Field(
        default=1000, description="ledgers whose last read is remembered, to tell whether the next one goes on from it"
    )
    ledger_states_max: Size = Field(
        default=MEMORY_PARTS["ledger_states_max"],
        description="ledgers whose state (about 500 bytes each) is kept in memory; more only while changes of theirs "
        "are not written yet, or a request needs them",
    )
    # A flush, a read, a count of what lives, and what LMDB keeps for the next; one to spare.
    index_readers_max: int = Field(
        default=512, ge=5, description="readers that the index of one ledger directory may have at the same time"
    )
    index_check_share: float = Field(
        default=0.05, gt=0, le=1, description="share of a processor for looking through what is new in an index"
    )
    index_step_rows: Size = Field(
        default=1000,
        description="rows of an index that are removed or counted, a few milliseconds at most, before flushes and "
        "requests go on",
    )
    index_step_pause_s: Seconds = Field(
        default=0.01, description="seconds between two such steps, which are never urgent"
    )
    reclaim_interval_s: Seconds = Field(
        default=60.0,
        description="seconds between two looks for entry logs in which nothing lives; right away after a deletion",
    )
    index_free_share_max: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="free share of an index's file above which a start copies it to a smaller one; 1 for never",
    )
    index_shrink_bytes_min: int = Field(
        default=64 * MIB, ge=0, description="bytes of such a file below which that isn't worth the time"
    )
    compaction_step_bytes: Size = Field(
        default=MIB, description="bytes that compaction copies at a time; a block at least"
    )
    compaction_commit_bytes: Size = Field(
        default=16 * MIB, description="bytes that compaction copies before it syncs them and updates the index"
    )
    scrub_step_bytes: Size = Field(
        default=256 * KIB, description="bytes that the scrub reads at a time; a block at least"
    )
    scrub_save_interval_s: Seconds = Field(
        default=60.0,
        description="seconds between two times that the scrub stores how far it is, which a restart goes on from, and "
        "looks whether what it has found is still there",
    )
    scrub_damages_max: Size = Field(
        default=1000,
        description="damages of each ledger directory that the scrub lists and logs; of more it says only how many",
    )
    disk_check_interval_s: Seconds = Field(
        default=1.0, description="seconds between two looks at the free space; what is written meanwhile must fit, too"
    )
    gc_page_ledgers: Size = Field(
        default=10_000, description="ledgers of this bookie that are compared with the metadata at a time"
    )
    gc_ledgers_at_once: Size = Field(default=8, description="ledgers that are looked at, and deleted, at the same time")
    read_bytes_max: Size = Field(
        default=MIB, description="bytes of the largest answer to a read, unless one entry alone is larger"
    )
    files_spare: Size = Field(
        default=64,
        description="files that may be opened besides those of the storage and of connections: by who reads metrics, "
        "by libraries. Connections get what is left",
    )
    new_connections_max: Size = Field(
        default=1000,
        description="connections that have not introduced themselves; with one more, the oldest of them is closed",
    )
    keepalive_interval_s: Size = Field(
        default=10, description="seconds of silence after which a client's machine is asked whether it is still there"
    )
    vanished_timeout_s: Seconds = Field(
        default=60.0, description="seconds without any sign of a client's machine after which its connection is closed"
    )
    requests_in_flight_total_max: Size = Field(
        default=20_000,
        description="requests of all connections, long polls included, that wait for an answer before further ones are "
        "refused; each takes about 6 KB",
    )
    long_polls_max: Size = Field(
        default=1000, description="requests of one connection that wait for news of a ledger before more are refused"
    )
    long_poll_max_s: Seconds = Field(
        default=60.0, description="seconds such a request waits at most, whatever its client asked for"
    )
    backlog_frames_max: Size = Field(
        default=64,
        description="requests of one connection that wait for ledgers' states to be read; with more its socket isn't",
    )
    reads_at_once: Size = Field(
        default=8,
        description="reads of one connection whose answers are made at once; the others wait, so that a client which "
        "doesn't read its answers holds few in memory",
    )
    answers_at_once: Size = Field(
        default=128,
        description="answers of all connections that are in memory until their clients have read them",
    )
    answers_bytes_max: Size = Field(
        default=MEMORY_PARTS["answers_bytes_max"],
        description="bytes of all these answers, with the blocks that they are cut out of; one answer may always be "
        "made. So much of memory_bytes_max is set aside for them: reads go on while entries take up all the rest",
    )
    deferred_sync_bytes_max: Size = Field(
        default=MEMORY_PARTS["deferred_sync_bytes_max"],
        description="bytes that wait for a journal, above which adds with deferred sync wait for it as all others do",
    )
    presented_keys_bytes_max: Size = Field(
        default=MEMORY_PARTS["presented_keys_bytes_max"],
        description="bytes of the keys that all connections have presented, beyond 100 keys each, and what one PRESENT "
        "has brought; the connections with the most forget theirs then, which clients present again",
    )
    key_lookups_at_once: Size = Field(
        default=16,
        description="ledgers whose keys are looked up in the metadata at the same time, because a client presented "
        "another key than the bookie has",
    )
    key_lookup_timeout_s: Seconds = Field(
        default=2.0,
        description="seconds after which a request that waits for such a lookup is answered that the bookie can't tell "
        "now whose the ledger is",
    )
    presented_ledgers_max: Size = Field(
        default=100_000,
        description="ledgers whose keys one connection may have presented; beyond it keys are forgotten, which clients "
        "present again. What was presented at once is always kept, however much that is",
    )
    receive_chunk_bytes_min: Size = Field(
        default=16 * KIB, description="bytes that a connection first receives into; little, since most are idle"
    )
    receive_chunk_bytes_max: Size = Field(
        default=MIB,
        description="bytes that a busy connection receives into at once, for few system calls; one larger frame "
        "gets as many as it has",
    )
    receive_bytes_max: Size = Field(
        default=MEMORY_PARTS["receive_bytes_max"],
        description="bytes that all connections together receive into, beyond receive_chunk_bytes_min each; with more, "
        "connections wait in line before they receive a larger frame",
    )
    receive_room_bytes_min: Size = Field(
        default=4 * KIB, description="free bytes below which it isn't worth receiving into what is left of such memory"
    )
    receive_spare_chunks: int = Field(
        default=16,
        ge=0,
        description="pieces of receive_chunk_bytes_max that are kept for further requests, besides those of two "
        "memtables: memory that is new to the process costs more than receiving into it",
    )
    listen_backlog: Size = Field(
        default=1024, description="connections that the kernel holds until the bookie has time to accept them"
    )
    tick_s: Seconds = Field(
        default=0.25,
        description="seconds between two looks at connections that make no progress; the timeouts below are that exact",
    )
    handshake_timeout_s: Seconds = Field(
        default=5.0, description="seconds a new connection may take to introduce itself"
    )
    first_frame_stall_timeout_s: Seconds = Field(
        default=0.5,
        description="seconds a connection may stop in the middle of its first frame: whoever does is no client",
    )
    frame_stall_timeout_s: Seconds = Field(
        default=30.0, description="seconds a connection may stop in the middle of a frame before it is closed"
    )
    memory_pressure_stall_timeout_s: Seconds = Field(
        default=1.0,
        description="the same while others wait for the memory that the frame takes, see receive_bytes_max",
    )
    memory_pressure_bytes_per_s_min: Size = Field(
        default=64 * KIB,
        description="bytes a second that a client has to send of its frame, or to read of its answers, while others "
        "wait for the memory that these take; whoever is slower over the time of its timeout is closed",
    )
    reply_stall_timeout_s: Seconds = Field(
        default=30.0, description="seconds a client may read nothing of what it is sent before it is closed"
    )
    complaint_interval_s: Seconds = Field(
        default=10.0, description="seconds between two log messages of a kind that strangers can provoke at will"
    )
    tls_handshakes_max: Size = Field(
        default=256,
        description="connections that are at their TLS handshake, before which they cost little else; with one more, "
        "the oldest of them is closed",
    )
    tls_handshake_timeout_s: Seconds = Field(
        default=3.0, description="seconds a new connection may take for its TLS handshake"
    )
    tls_buffer_bytes_max: Size = Field(
        default=64 * KIB,
        description="bytes of a connection with TLS that wait to be decrypted while the bookie doesn't read from it, "
        "and that wait to be sent before its client counts as one who doesn't read",
    )
    tls_reload_interval_s: Seconds = Field(
        default=10.0,
        description="seconds between two looks at the files of certificates and of rights; new connections get new "
        "certificates, and all connections new rights",
    )


class ClientTuning(Settings):
    """Of a client."""

    close_linger_s: SecondsOrZero = Field(
        default=1.0,
        description="seconds that closing a ledger may wait for bookies that the ack quorum was quicker than",
    )
    ensemble_changes_max: Size = Field(
        default=100, description="changes of a writer's ensemble within ensemble_changes_window_s before it fails"
    )
    ensemble_changes_window_s: Seconds = Field(
        default=60.0, description="seconds over which a writer's changes of ensemble are counted"
    )
    leave_look_interval_s: Seconds = Field(
        default=2.0, description="seconds between two looks for writers that have yet to leave a bookie"
    )
    leaves_at_once: Size = Field(
        default=16, description="idle writers of a client that leave a bookie at the same time; thousands may have to"
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
