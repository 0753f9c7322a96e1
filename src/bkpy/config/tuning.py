"""Tuning: internal numbers. Users don't set them; the simulator varies all of them.

A bound, a pause or a batch size belongs here if one value suits every cluster. The settings inherit from these classes:
code reads a tuning value as `settings.NAME`, and tests set it by keyword.
"""

from __future__ import annotations

from pydantic import Field

from bkpy.config.base import KIB, MIB, Seconds, SecondsOrZero, Settings, Size
from bkpy.config.memory import MEMORY_PARTS


class MetadataTuning(Settings):
    """Every process: the metadata store and named logs."""

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

    # Named logs.
    log_list_bytes_max: int = Field(
        default=768 * KIB,
        gt=0,
        le=1000 * KIB,
        description="bytes of the stored list of one log, some 70 for each ledger; ZooKeeper accepts no value of a "
        "megabyte",
    )
    log_consumer_reads_at_once: Size = Field(default=32, description="consumers of a log to read concurrently")
    log_conflicts_max: Size = Field(
        default=20,
        description="writes to a log's list that lose in a row to somebody else's change before that is an error",
    )
    log_deletes_at_once: Size = Field(
        default=32, description="ledgers of a log to delete concurrently, when it is truncated or deleted"
    )


class RecoveryTuning(Settings):
    """The auditor, re-replication workers, and integrity checks."""

    # The metrics page.
    metrics_connections_max: Size = Field(
        default=32,
        description="connections to the metrics page, each of which takes a file or two; a further one closes the "
        "oldest",
    )

    # How the auditor finds lost bookies, and their ledgers.
    audit_look_interval_s: Seconds = Field(
        default=10.0,
        description="seconds between two readings of the bookies by the auditor, which watches them as well",
    )
    audit_follow_interval_s: Seconds = Field(
        default=60.0,
        description="seconds between two readings, while bookies are lost, of ledgers that may name a lost bookie "
        "only now: new, open or just repaired ones",
    )
    audit_whole_interval_s: Seconds = Field(
        default=86_400.0, description="seconds for which the auditor relies on what it knows of closed ledgers"
    )
    audit_reads_at_once: Size = Field(
        default=64, description="reads and writes of ledger metadata that an audit keeps in flight"
    )
    audit_remembered_max: Size = Field(
        default=2_000_000,
        description="copies of ledgers that the auditor remembers, 8 bytes each, so that the next loss needs no full "
        "audit; with more, it needs one",
    )
    marks_look_interval_s: Seconds = Field(
        default=60.0,
        description="seconds after which workers read the under-replication records again, even without a notification",
    )

    # How a bookie that has lost data copies it back.
    integrity_look_interval_s: Seconds = Field(
        default=300.0,
        description="seconds between two searches of a bookie for data that it has lost or damaged and other bookies "
        "hold",
    )
    integrity_retry_interval_s: Seconds = Field(
        default=10.0, description="seconds after which a bookie retries data that it could not copy back"
    )
    integrity_ledgers_at_once: Size = Field(
        default=8, description="ledgers that a bookie checks and copies back concurrently"
    )
    integrity_flush_ledgers: Size = Field(
        default=500, description="ledgers after which a bookie flushes copied data, and ends the limbo of these ledgers"
    )

    # How the auditor maintains named logs.
    log_orphan_interval_s: Seconds = Field(
        default=21_600.0,
        description="seconds between two searches for ledgers that were created for a log and aren't in its list; "
        "each reads the metadata of all ledgers",
    )

    # How bookies leave.
    drain_look_interval_s: Seconds = Field(
        default=1.0, description="seconds between two checks which ledgers still name a draining bookie"
    )
    decommission_patience_s: Seconds = Field(
        default=60.0,
        description="seconds for which decommissioning waits for manual moves of copies, which may have chosen the "
        "bookie, before it is refused",
    )

    # How the auditor checks replicas.
    check_progress_interval_s: Seconds = Field(
        default=60.0,
        description="seconds between two times that a check stores its progress, from which another auditor continues",
    )
    check_read_bytes: Size = Field(default=MIB, description="bytes to request from a bookie in one read of a check")
    check_windows: int = Field(
        default=8,
        ge=2,
        description="windows of a fragment that a check reads on a bookie: both ends, and others at random",
    )
    check_window_entries: Size = Field(
        default=128,
        description="entries of such a window, all of which are read and verified; a fragment that isn't larger "
        "than its windows is read as a whole",
    )

    # How workers copy.
    copies_max_under_load: Size = Field(
        default=1,
        description="fragments to copy concurrently while clients append to the worker's bookie: their appends wait "
        "behind copies, and more copies at once hardly finish sooner",
    )
    foreground_idle_s: Seconds = Field(
        default=1.0, description="seconds without an append after which a bookie counts as free of clients"
    )
    copy_bytes_per_s_min: Size = Field(
        default=MIB,
        description="bytes per second that one worker copies however busy bookies are: a cluster that is always busy "
        "has to heal",
    )
    copy_late_s: Seconds = Field(
        default=0.1,
        description="seconds after which a bookie's answer to a part of a copy is late; then the worker halves its "
        "rate",
    )
    copy_rate_growth: float = Field(
        default=0.05, gt=0, allow_inf_nan=False, description="share by which each answer in time raises that rate again"
    )
    copy_window_bytes: Size = Field(
        default=4 * MIB, description="unanswered bytes of one copy, besides the entries that it has read ahead"
    )
    repair_pause_min_s: Seconds = Field(
        default=1.0, description="seconds before the first retry of a ledger that a worker could not repair"
    )
    repair_pause_max_s: Seconds = Field(default=300.0, description="seconds to which that pause grows, doubling")
    repair_attempts_max: Size = Field(
        default=10,
        description="failed attempts in a row after which a ledger counts as stuck. A worker retries it after the "
        "longest pause, or when its bookies or its record change",
    )
    repair_looks_at_once: Size = Field(
        default=16,
        description="under-replicated ledgers whose metadata a worker reads concurrently, to order them by urgency",
    )
    repair_queue_max: Size = Field(
        default=100_000,
        description="under-replicated ledgers that one worker keeps in order of urgency; the others wait",
    )
    worker_report_interval_s: Seconds = Field(
        default=5.0, description="seconds between two reports of a worker, which it stores in the metadata"
    )
    worker_report_ledgers_max: Size = Field(
        default=20, description="ledgers that a report names of each kind: in work, postponed, stuck"
    )
    stuck_ledgers_max: Size = Field(
        default=10_000, description="failed ledgers whose reason a worker remembers; it forgets the oldest"
    )


class BookieTuning(Settings):
    """A bookie."""

    # The journal.
    journal_group_bytes_max: Size = Field(
        default=8 * MIB, description="bytes that one sync covers at most, so that no request waits for a huge write"
    )
    journal_queue_bytes_max: Size = Field(
        default=MEMORY_PARTS["journal_queue_bytes_max"],
        description="bytes that may wait for the sync of one journal before the bookie stops reading from clients",
    )
    journal_recycled_files_max: int = Field(
        default=2,
        ge=0,
        description="unused journal files to keep for overwriting, which is faster than new files; enough that one is "
        "there even when a checkpoint is late",
    )

    # The smallest is a page: a search looks for frames page by page.
    journal_read_bytes: int = Field(
        default=MIB, ge=4 * KIB, description="bytes of a journal to read at a time in a replay; whole pages of 4 KiB"
    )
    journal_uncache_bytes_min: Size = Field(
        default=256 * KIB,
        description="bytes of a write to a new journal file from which on it doesn't stay in the system's page cache",
    )
    journal_run_bytes_min: Size = Field(
        default=64 * KIB, description="bytes of a batch from which on it may stay in its journal file"
    )
    journal_run_share_min: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="share of a journal file that such batches must fill for the file to be kept; only compaction "
        "reclaims the rest of it",
    )
    deferred_sync_bytes_max: Size = Field(
        default=MEMORY_PARTS["deferred_sync_bytes_max"],
        description="bytes waiting for a journal above which adds with deferred sync wait for it like all others",
    )

    # The memtable, flushes and checkpoints.
    memtable_fill_min: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="share of a memtable at which a flush may start, at random between this and 1, so that the "
        "bookies of a ledger don't all flush at once",
    )
    memtable_step_batches: Size = Field(
        default=4000,
        description="batches that a read adds to the memtable's index, a few milliseconds at most, before it yields",
    )
    memory_rest_interval_s: Seconds = Field(
        default=1.5, description="seconds after which unused memory is released, and an unchanged memtable is flushed"
    )
    memtable_rest_bytes_min: Size = Field(
        default=4 * MIB, description="bytes of an unchanged memtable below which it waits for the next checkpoint"
    )
    flush_step_batches: Size = Field(
        default=1000, description="batches that a flush handles, about a millisecond, before it yields to requests"
    )
    flush_part_batches: Size = Field(
        default=5000, description="batches of one ledger that a flush handles without interruption"
    )
    checkpoint_commit_ledgers: Size = Field(
        default=2_000,
        description="ledgers that one transaction of a checkpoint writes. LMDB keeps a page of memory for each until "
        "the next one",
    )

    # The entry log.
    entry_log_blocks_max: Size = Field(
        default=250_000,
        description="blocks after which the bookie starts a new entry log: it keeps their table, 40 bytes each, in "
        "memory until the log is full",
    )
    entry_log_write_bytes: Size = Field(
        default=MIB,
        description="bytes of an entry log to write and sync at a time: more of them delay the journal, fewer delay "
        "the flush",
    )
    block_bytes: Size = Field(default=256 * KIB, description="bytes of one ledger that are stored and indexed together")
    block_run_bytes: Size = Field(
        default=4 * KIB,
        description="bytes of a block between two entry points for readers; each entry point takes 8 bytes",
    )
    open_entry_logs_max: Size = Field(
        default=128,
        description="entry logs of one ledger directory to hold open for reading, which leaves files for others",
    )

    # Reads and ledger states.
    read_bytes_max: Size = Field(
        default=MIB, description="bytes of the largest answer to a read, unless a single entry is larger"
    )
    read_ahead_bytes_max: int = Field(
        default=MIB, ge=0, description="bytes of blocks to load ahead of a sequential reader; 0 for none"
    )
    read_ahead_ledgers_max: Size = Field(
        default=1000, description="ledgers whose last read is remembered, to recognise sequential readers"
    )
    ledger_states_max: Size = Field(
        default=MEMORY_PARTS["ledger_states_max"],
        description="ledgers whose state, about 500 bytes each, is kept in memory; more only while a state has "
        "unwritten changes or a request needs it",
    )

    # The index.
    # A flush, a read, a count of living bytes, one that LMDB keeps for the next, and a reserve.
    index_readers_max: int = Field(
        default=512, ge=5, description="concurrent readers of the index of one ledger directory"
    )
    index_check_share: float = Field(
        default=0.05, gt=0, le=1, description="share of a processor for verifying the new pages of an index"
    )
    index_step_rows: Size = Field(
        default=1000,
        description="rows of an index to remove or count, a few milliseconds at most, before flushes and requests get "
        "their turn",
    )
    index_step_pause_s: Seconds = Field(
        default=0.01, description="seconds between two such steps, which are never urgent"
    )
    index_free_share_max: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="free share of an index's file above which a start copies it to a smaller one; 1 for never",
    )
    index_shrink_bytes_min: int = Field(
        default=64 * MIB, ge=0, description="bytes of an index's file below which that isn't worth the time"
    )
    rebuild_step_blocks: Size = Field(
        default=20_000, description="blocks that one transaction adds to an index that is rebuilt from entry logs"
    )

    # Space: garbage collection, compaction, scrub.
    reclaim_interval_s: Seconds = Field(
        default=60.0,
        description="seconds between two searches for entry logs without living entries; a deletion starts one at once",
    )
    disk_check_interval_s: Seconds = Field(
        default=1.0, description="seconds between two checks of free disk space; what is written in between has to fit"
    )
    gc_page_ledgers: Size = Field(
        default=10_000, description="ledgers of this bookie to compare with the metadata at a time"
    )
    gc_ledgers_at_once: Size = Field(default=8, description="ledgers to check and delete concurrently")
    compaction_step_bytes: Size = Field(
        default=MIB, description="bytes that compaction copies at a time; at least a block"
    )
    compaction_commit_bytes: Size = Field(
        default=16 * MIB, description="bytes that compaction copies before it syncs them and updates the index"
    )
    scrub_step_bytes: Size = Field(
        default=256 * KIB, description="bytes that the scrub reads at a time; at least a block"
    )
    scrub_save_interval_s: Seconds = Field(
        default=60.0,
        description="seconds between two times that the scrub stores its progress, from which a restart continues, "
        "and checks whether known damage is still there",
    )
    scrub_damages_max: Size = Field(
        default=1000,
        description="damages of each ledger directory that the scrub lists and logs; it only counts further ones",
    )

    # Connections and files.
    listen_backlog: Size = Field(
        default=1024, description="connections that the kernel holds until the bookie accepts them"
    )
    files_spare: Size = Field(
        default=64, description="files to leave for readers of metrics and for libraries; connections get the rest"
    )
    new_connections_max: Size = Field(
        default=1000, description="connections that have not introduced themselves; a further one closes the oldest"
    )
    keepalive_interval_s: Size = Field(
        default=10, description="seconds of silence after which the kernel probes a client's machine"
    )
    vanished_timeout_s: Seconds = Field(
        default=60.0, description="seconds without a sign of a client's machine after which its connection is closed"
    )
    tick_s: Seconds = Field(
        default=0.25,
        description="seconds between two checks for connections without progress, which is how exact the following "
        "timeouts are",
    )
    handshake_timeout_s: Seconds = Field(default=5.0, description="seconds for a new connection to introduce itself")
    first_frame_stall_timeout_s: Seconds = Field(
        default=0.5, description="seconds for which a connection may pause within its first frame; no client does"
    )
    frame_stall_timeout_s: Seconds = Field(
        default=30.0, description="seconds for which a connection may pause within a frame before it is closed"
    )
    reply_stall_timeout_s: Seconds = Field(
        default=30.0,
        description="seconds for which a client may read none of its answers before its connection is closed",
    )
    memory_pressure_stall_timeout_s: Seconds = Field(
        default=1.0,
        description="seconds for which a connection may pause within a frame while others wait for the frame's memory",
    )
    memory_pressure_bytes_per_s_min: Size = Field(
        default=64 * KIB,
        description="bytes per second that a client must send of a frame, or read of its answers, while others wait "
        "for their memory; the bookie closes slower connections",
    )
    complaint_interval_s: Seconds = Field(
        default=10.0, description="seconds between two log messages of a kind that strangers can provoke at will"
    )

    # Requests and answers.
    requests_in_flight_total_max: Size = Field(
        default=20_000,
        description="unanswered requests of all connections, long polls included, about 6 KB each; the bookie refuses "
        "further ones",
    )
    long_polls_max: Size = Field(
        default=1000,
        description="requests of one connection that wait for news of a ledger; the bookie refuses further ones",
    )
    long_poll_max_s: Seconds = Field(
        default=60.0, description="seconds for which such a request waits at most, whatever its client asked for"
    )
    backlog_frames_max: Size = Field(
        default=64,
        description="requests of one connection that wait for ledger states; with more, the bookie stops reading from "
        "it",
    )
    reads_at_once: Size = Field(
        default=8,
        description="reads of one connection to answer concurrently, so that a client that doesn't read its answers "
        "holds few of them in memory",
    )
    answers_at_once: Size = Field(
        default=128, description="answers of all connections in memory, until their clients have read them"
    )
    answers_bytes_max: Size = Field(
        default=MEMORY_PARTS["answers_bytes_max"],
        description="bytes of all these answers and of the blocks that they are parts of; one answer always fits. "
        "This part of memory_bytes_max is reserved, so that reads go on while entries fill the rest",
    )

    # Keys of ledgers.
    presented_ledgers_max: Size = Field(
        default=100_000,
        description="ledgers whose keys one connection keeps; clients present forgotten keys again. It keeps all keys "
        "of one request",
    )
    presented_keys_bytes_max: Size = Field(
        default=MEMORY_PARTS["presented_keys_bytes_max"],
        description="bytes of the keys of all connections, beyond 100 keys each; above them, the connections with the "
        "most keys forget theirs",
    )
    key_lookups_at_once: Size = Field(
        default=16,
        description="ledgers whose keys are read from the metadata concurrently, because a client presented another "
        "key than the bookie knows",
    )
    key_lookup_timeout_s: Seconds = Field(
        default=2.0,
        description="seconds after which a request that waits for such a lookup is answered without it: the bookie "
        "can't verify the key now",
    )

    # Memory to receive into.
    receive_bytes_max: Size = Field(
        default=MEMORY_PARTS["receive_bytes_max"],
        description="bytes that all connections receive into, beyond receive_chunk_bytes_min each; above them, "
        "connections queue for the memory of a larger frame",
    )
    receive_chunk_bytes_min: Size = Field(
        default=16 * KIB,
        description="bytes that a connection receives into at first; few, since most connections are idle",
    )
    receive_chunk_bytes_max: Size = Field(
        default=MIB,
        description="bytes that a busy connection receives into, for few system calls; a larger frame gets its own "
        "size",
    )
    receive_room_bytes_min: Size = Field(
        default=4 * KIB, description="bytes left in a chunk below which receiving into them isn't worth a system call"
    )
    receive_spare_chunks: int = Field(
        default=16,
        ge=0,
        description="chunks of receive_chunk_bytes_max to keep for reuse, besides those of two memtables: new memory "
        "costs more than receiving",
    )

    # TLS.
    tls_handshakes_max: Size = Field(
        default=256, description="connections in their TLS handshake; a further one closes the oldest"
    )
    tls_handshake_timeout_s: Seconds = Field(default=3.0, description="seconds for a new connection's TLS handshake")
    tls_buffer_bytes_max: Size = Field(
        default=64 * KIB,
        description="bytes of a TLS connection that wait for decryption while the bookie doesn't read, and that wait "
        "to be sent before its client counts as not reading",
    )
    tls_reload_interval_s: Seconds = Field(
        default=10.0,
        description="seconds between two checks of the files of certificates and rights. New connections use new "
        "certificates, and all connections new rights",
    )


class ClientTuning(Settings):
    """A client."""

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

    # Flow control: what keeps one bookie, reader or writer from taking all of a client.
    calls_in_flight_max: Size = Field(
        default=128,
        description="unanswered requests to one bookie; further ones queue in the client instead of being refused by "
        "the bookie",
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
    reply_bytes_max: Size = Field(
        default=64 * MIB,
        description="bytes of the largest reply to accept; an entry may be larger than this client's limit",
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
        description="writes that close a ledger, or start its recovery, that lose in a row to somebody else's change "
        "before that is an error",
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
