"""The settings of a bookie: every limit with its unit in its name and its reason beside it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from bkpy.config.address import id_of, is_wildcard, split_address
from bkpy.config.base import GIB, KIB, MIB, Seconds, SecondsOrZero, Size
from bkpy.config.memory import MEMORY_BYTES, MEMORY_PARTS, shares_of_memory
from bkpy.config.security import SecuritySettings


class BookieSettings(SecuritySettings):
    """The settings of one bookie."""

    metadata_uri: str = Field(description="where the cluster's metadata is, as zk://HOST:PORT[,HOST:PORT...]/ROOT")
    journal_directories: list[str] = Field(
        min_length=1,
        description="where entries are made durable before they are acknowledged; best a disk of their own",
    )
    ledger_directories: list[str] = Field(
        min_length=1, description="where entries are kept for good; several are filled in turn"
    )
    listen: str = Field(default="127.0.0.1:3181", description="HOST:PORT to accept clients at")
    advertised_address: str | None = Field(
        default=None, description="HOST:PORT that clients connect to, where it differs from the one listened at"
    )
    bookie_id: str = Field(
        default="",  # replaced by a validator, so it is never empty
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:-]*$",  # it is a node's name in ZooKeeper
        max_length=255,
        description="name of this bookie in all metadata, for good; by default the address it has at its first start",
    )
    metrics_port: int = Field(
        default=-1, ge=-1, le=65535, description="port of the metrics page: -1 for none, 0 for any free one"
    )
    metrics_listen: str = Field(
        default="127.0.0.1", description="host to serve metrics at; they are not protected, so not everywhere"
    )
    admin_clients: Literal["local", "all"] = Field(
        default="local",
        description="who may give commands at the metrics page's port, which protects nothing: those on the same "
        "machine, or all who can reach it",
    )
    auto_recovery: bool = Field(
        default=True,
        description="stand for auditor, which finds what bookies have lost, and help to copy it",
    )
    rack: str = Field(default="default", min_length=1, description="what fails together with this bookie")
    region: str = Field(default="default", min_length=1, description="the group of racks that this bookie is in")

    memory_bytes_max: Size = Field(
        default=MEMORY_BYTES,
        description="bytes that all of these hold together: entries that are not flushed, what they were received "
        "into, what waits for the journal, answers, blocks that were read, ledgers' states. When they are used up, "
        "caches give way, memtables are flushed, and no more is read from those who write. Parts that are not set have "
        "the share of it that they have of the default, memtables and journals no more than that of the default; by "
        "default there is more where a part was set to more",
    )
    memory_rest_interval_s: Seconds = Field(
        default=1.5,
        description="seconds after which memory that nobody used meanwhile is given back, and a memtable that nothing "
        "was added to is flushed",
    )
    memtable_rest_bytes_min: Size = Field(
        default=4 * MIB, description="bytes of such a memtable; one with less waits for the next checkpoint"
    )
    journal_max_size_mb: Size = Field(default=64, description="MiB after which a new journal file is begun")
    journal_max_backups: int = Field(
        default=2,
        ge=0,
        description="journal files kept after everything in them was checkpointed, for inspection; as many copies of "
        "torn frames that starts cut off",
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
    journal_as_entry_log: bool = Field(
        default=True,
        description="leave large batches in the journal files that hold them already, instead of writing them to an "
        "entry log as well, where there is one ledger directory and the journal is on the same file system",
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
    journal_damage: Literal["refuse", "limbo"] = Field(
        default="refuse",
        description="at damage inside the journal: do not start, or start and answer 'unknown' for what it held",
    )
    journal_write_data: bool = Field(
        default=True,
        description="write entries to the journal before they are acknowledged. Without that, an unclean stop loses "
        "those that no checkpoint has stored: see docs/how-to/disks.md",
    )
    journal_sync_data: bool = Field(
        default=True,
        description="wait until the disk has what the journal holds of entries before they are acknowledged. Without "
        "that, a power cut loses some of them: see docs/how-to/disks.md",
    )
    memtable_bytes_max: Size = Field(
        default=MEMORY_PARTS["memtable_bytes_max"],
        description="bytes of entries held in memory before they are flushed to the entry log; twice that may be held "
        "while a flush runs, before no more is read from clients",
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
    checkpoint_interval_s: Seconds = Field(
        default=60.0, description="seconds between checkpoints, which bound the journal that a restart replays"
    )
    checkpoint_commit_ledgers: Size = Field(
        default=2_000,
        description="ledgers that one transaction of a checkpoint writes, with a page of the index in memory for each, "
        "which LMDB keeps for the next one",
    )
    entry_log_max_size_mb: Size = Field(
        default=1024, description="MiB after which a new entry log is begun; space is reclaimed log by log"
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
    block_cache_bytes_max: Size = Field(
        default=MEMORY_PARTS["block_cache_bytes_max"],
        description="bytes of blocks of one ledger directory kept in memory after they were read; one is kept always",
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
    index_bytes_max: Size = Field(
        default=64 * GIB, description="bytes that the index of one ledger directory may grow to; reserves no space"
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
    compaction_minor_living_ratio: float = Field(
        default=0.2,
        ge=0,
        lt=1,
        description="entry logs of which less than this share is still needed are compacted often; 0 for never",
    )
    compaction_minor_interval_s: Seconds = Field(default=3600.0, description="seconds between two of these")
    compaction_major_living_ratio: float = Field(
        default=0.8,
        ge=0,
        lt=1,
        description="entry logs of which less than this share is still needed are compacted now and then, and while "
        "less than disk_free_bytes_resume is free; 0 for never",
    )
    compaction_major_interval_s: Seconds = Field(default=86_400.0, description="seconds between two of these")
    compaction_bytes_per_s: Size = Field(
        default=16 * MIB, description="bytes that compaction copies in a second at most, in each ledger directory"
    )
    compaction_step_bytes: Size = Field(
        default=MIB, description="bytes that compaction copies at a time; a block at least"
    )
    compaction_commit_bytes: Size = Field(
        default=16 * MIB, description="bytes that compaction copies before it syncs them and updates the index"
    )
    compaction_free_bytes_min: int = Field(
        default=128 * MIB,
        ge=0,
        description="bytes of a ledger directory's disk that compaction leaves free, for what has to be written",
    )
    scrub_interval_s: SecondsOrZero = Field(
        default=604_800.0,
        description="seconds from the end of one round of the scrub, which reads what the index names and verifies it, "
        "to the begin of the next, in each ledger directory; 0 for never, until somebody asks for it",
    )
    scrub_bytes_per_s: Size = Field(
        default=8 * MIB, description="bytes that the scrub reads in a second at most, in each ledger directory"
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
    # What is in two memtables, a few journal files and what recoveries write back still fit.
    disk_free_bytes_min: int = Field(
        default=512 * MIB,
        ge=0,
        description="free bytes in any of the directories below which no new entries are taken; 0 for never",
    )
    disk_free_bytes_resume: Size = Field(
        default=GIB, description="free bytes that all the directories must have again before new entries are taken"
    )
    disk_check_interval_s: Seconds = Field(
        default=1.0, description="seconds between two looks at the free space; what is written meanwhile must fit, too"
    )

    gc_interval_s: SecondsOrZero = Field(
        default=900.0,
        description="seconds between two looks for ledgers that were deleted, whose space is then given back; 0 for "
        "never, until somebody asks for it",
    )
    gc_over_replicated_interval_s: SecondsOrZero = Field(
        default=86400.0,
        description="seconds between two looks for copies that no ensemble of their ledger names any more, which take "
        "a read of each ledger's metadata; 0 for never",
    )
    gc_page_ledgers: Size = Field(
        default=10_000, description="ledgers of this bookie that are compared with the metadata at a time"
    )
    gc_ledgers_at_once: Size = Field(default=8, description="ledgers that are looked at, and deleted, at the same time")
    gc_looks_per_second: float = Field(
        default=500.0,
        gt=0,
        allow_inf_nan=False,
        description="looks at ledgers' metadata in a second, so that collection leaves ZooKeeper to the clients",
    )

    frame_bytes_max: Size = Field(default=8 * MIB, description="bytes of the largest request that is accepted")
    entry_bytes_max: Size = Field(
        default=4 * MIB, description="bytes of the largest entry that clients are told they may append"
    )
    read_bytes_max: Size = Field(
        default=MIB, description="bytes of the largest answer to a read, unless one entry alone is larger"
    )
    connections_max: Size = Field(
        default=1000, description="client connections, so that files are left for the storage"
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
    requests_in_flight_max: Size = Field(
        default=1000, description="requests of one connection that wait for an answer before further ones are refused"
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
    stop_timeout_s: Seconds = Field(
        default=10.0, description="seconds that a bookie which is stopped goes on answering what it has taken"
    )
    session_timeout_s: Seconds = Field(
        default=10.0, description="seconds without contact after which ZooKeeper reports this bookie as gone"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="the least severe messages that are logged"
    )

    @field_validator("listen", "advertised_address")
    @classmethod
    def _is_address(cls, value: str | None) -> str | None:
        if value is not None:
            split_address(value)
        return value

    @model_validator(mode="before")
    @classmethod
    def _default_id(cls, values: dict[str, Any]) -> dict[str, Any]:
        if not values.get("bookie_id"):
            address = values.get("advertised_address") or values.get("listen") or cls.model_fields["listen"].default
            return {**values, "bookie_id": id_of(str(address))}
        return values

    @model_validator(mode="before")
    @classmethod
    def _shares_of_memory(cls, values: dict[str, Any]) -> dict[str, Any]:
        return shares_of_memory(values)

    @model_validator(mode="after")
    def _consistent(self) -> BookieSettings:
        host, port = split_address(self.listen)
        if self.advertised_address is None and is_wildcard(host):
            raise ValueError(f"advertised_address is needed, because clients can't connect to {host}")
        if self.advertised_address is not None:
            host, advertised = split_address(self.advertised_address)
            if is_wildcard(host) or advertised == 0:
                raise ValueError(
                    f"advertised_address = {self.advertised_address!r}: clients can't connect to that; give the host "
                    "and port at which they reach this bookie"
                )
        if port == 0 and self.bookie_id == id_of(self.listen):
            raise ValueError("bookie_id is needed when the port to listen at is 0, because the address will change")
        if self.entry_bytes_max + 64 * KIB > self.frame_bytes_max:
            raise ValueError(
                "frame_bytes_max must exceed entry_bytes_max by 64 KiB or more, for an entry's request to fit"
            )
        if self.answers_bytes_max > self.memory_bytes_max:
            raise ValueError("answers_bytes_max must not exceed memory_bytes_max, of which it is a part")
        if self.disk_free_bytes_resume <= self.disk_free_bytes_min:
            raise ValueError(
                "disk_free_bytes_resume must exceed disk_free_bytes_min, or the bookie would change to and fro"
            )
        if 0 < self.disk_free_bytes_min <= self.compaction_free_bytes_min:
            raise ValueError(
                f"compaction_free_bytes_min = {self.compaction_free_bytes_min} must be below disk_free_bytes_min = "
                f"{self.disk_free_bytes_min}, or a bookie that is read-only for lack of space could not compact: lower "
                "the one, or raise the other"
            )
        if self.bookie_id == "readonly":
            raise ValueError("bookie_id = 'readonly': the name is taken in ZooKeeper")
        directories = [*self.journal_directories, *self.ledger_directories]
        if twice := sorted({d for d in directories if directories.count(d) > 1}):
            raise ValueError(f"directory {twice[0]} is used twice")
        return self
