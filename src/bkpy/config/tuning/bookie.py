"""Tuning of a bookie."""

from __future__ import annotations

from pydantic import Field

from bkpy.config.base import KIB, MIB, Seconds, Settings, Size
from bkpy.config.memory import MEMORY_PARTS


class BookieTuning(Settings):
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

    # What dashboards ask for.
    activity_ledgers_max: Size = Field(
        default=100, description="ledgers that an answer about the busiest ones has, and fences that are remembered"
    )
    activity_frames_max: Size = Field(
        default=500, description="frames, drawn from those in memory, that one look for the busiest ledgers is at"
    )
    activity_batches_max: Size = Field(
        default=5000, description="batches in these frames after which the look ends: a few milliseconds"
    )
    activity_fresh_s: Seconds = Field(
        default=1.0, description="seconds for which all who ask for the busiest ledgers get the same answer"
    )
    activity_stale_s: Seconds = Field(
        default=30.0, description="seconds without a question after which the next answer is empty"
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
        description="unanswered requests of all connections, about 6 KB each; the bookie refuses further ones, and "
        "long polls already at half of it",
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
