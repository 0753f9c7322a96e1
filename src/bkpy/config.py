"""Typed settings of bookies and clients: every limit with its unit in its name and its reason beside it.

A bookie's settings come from a TOML file, from environment variables `BKPY_<NAME>` and from flags `--<name>`, the later
ones overriding the earlier. Invariants: an unknown name is refused with the nearest valid one, a value of the wrong
type or out of its range is refused with the place it came from, and settings never change after they were checked.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
import tomllib
import types
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from bkpy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

ENVIRONMENT_PREFIX = "BKPY_"

# Variables with our prefix that aren't a bookie's settings: the command line's own, and those that Kubernetes puts into
# every container for a service that happens to be called "bkpy".
_OTHER_VARIABLES = re.compile(r"BKPY_(CONNECT|SERVICE_.*|PORT|PORT_.*)")

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Size = Annotated[int, Field(gt=0)]


class _Settings(BaseModel):
    # Strict: a quoted number or a boolean where a count belongs is a mistake, not a spelling.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class MetadataSettings(_Settings):
    """How bookies and clients deal with the metadata store; a part of the settings of both."""

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


class BookieSettings(MetadataSettings):
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
    rack: str = Field(default="default", min_length=1, description="what fails together with this bookie")
    region: str = Field(default="default", min_length=1, description="the group of racks that this bookie is in")

    journal_max_size_mb: Size = Field(default=64, description="MiB after which a new journal file is begun")
    journal_max_backups: int = Field(
        default=2, ge=0, description="journal files kept after everything in them was checkpointed, for inspection"
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
        default=32 * MIB,
        description="bytes that may wait for the sync of one journal before no more is read from clients",
    )
    journal_damage: Literal["refuse", "limbo"] = Field(
        default="refuse",
        description="at damage inside the journal: do not start, or start and answer 'unknown' for what it held",
    )
    memtable_bytes_max: Size = Field(
        default=96 * MIB,
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
    entry_log_max_size_mb: Size = Field(
        default=1024, description="MiB after which a new entry log is begun; space is reclaimed log by log"
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
    open_entry_logs_max: Size = Field(
        default=128, description="entry logs of one ledger directory held open for reading, so that files are left"
    )
    block_cache_bytes_max: Size = Field(
        default=16 * MIB,
        description="bytes of blocks of one ledger directory kept in memory after they were read; one is kept always",
    )
    ledger_states_max: Size = Field(
        default=100_000,
        description="ledgers whose state (about 500 bytes each) is kept in memory; more only while changes of theirs "
        "are not written yet, or a request needs them",
    )
    # A flush, a read, and what LMDB keeps for the next; one to spare.
    index_readers_max: int = Field(
        default=512, ge=4, description="readers that the index of one ledger directory may have at the same time"
    )
    index_bytes_max: Size = Field(
        default=64 * GIB, description="bytes that the index of one ledger directory may grow to; reserves no space"
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
    newcomers_max: Size = Field(
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
        description="answers of all connections, of read_bytes_max or one entry each, that are in memory until their "
        "clients have read them",
    )
    deferred_sync_bytes_max: Size = Field(
        default=32 * MIB,
        description="bytes that wait for a journal, above which adds with deferred sync wait for it as all others do",
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
        default=128 * MIB,
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
    crowded_stall_timeout_s: Seconds = Field(
        default=1.0,
        description="the same while others wait for the memory that the frame takes, see receive_bytes_max",
    )
    reply_stall_timeout_s: Seconds = Field(
        default=30.0, description="seconds a client may read nothing of what it is sent before it is closed"
    )
    complaint_interval_s: Seconds = Field(
        default=10.0, description="seconds between two log messages of a kind that strangers can provoke at will"
    )
    drain_timeout_s: Seconds = Field(
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
            return {**values, "bookie_id": _id_of(str(address))}
        return values

    @model_validator(mode="after")
    def _consistent(self) -> BookieSettings:
        host, port = split_address(self.listen)
        if self.advertised_address is None and _is_wildcard(host):
            raise ValueError(f"advertised_address is needed, because clients can't connect to {host}")
        if self.advertised_address is not None:
            host, advertised = split_address(self.advertised_address)
            if _is_wildcard(host) or advertised == 0:
                raise ValueError(
                    f"advertised_address = {self.advertised_address!r}: clients can't connect to that; give the host "
                    "and port at which they reach this bookie"
                )
        if port == 0 and self.bookie_id == _id_of(self.listen):
            raise ValueError("bookie_id is needed when the port to listen at is 0, because the address will change")
        if self.entry_bytes_max + 64 * KIB > self.frame_bytes_max:
            raise ValueError(
                "frame_bytes_max must exceed entry_bytes_max by 64 KiB or more, for an entry's request to fit"
            )
        if self.disk_free_bytes_resume <= self.disk_free_bytes_min:
            raise ValueError(
                "disk_free_bytes_resume must exceed disk_free_bytes_min, or the bookie would change to and fro"
            )
        if self.bookie_id == "readonly":
            raise ValueError("bookie_id = 'readonly': the name is taken in ZooKeeper")
        directories = [*self.journal_directories, *self.ledger_directories]
        if twice := sorted({d for d in directories if directories.count(d) > 1}):
            raise ValueError(f"directory {twice[0]} is used twice")
        return self


class ClientSettings(MetadataSettings):
    """The settings of one client."""

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
    no_bookies_timeout_s: float = Field(
        default=3.0,
        ge=0,
        allow_inf_nan=False,
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
    explicit_lac_interval_s: float = Field(
        default=0.1,
        ge=0,
        allow_inf_nan=False,
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
    owed_bytes_max: Size = Field(
        default=32 * MIB,
        description="bytes of appends that one bookie may owe before writers wait for it; far above what a healthy one "
        "ever owes",
    )
    owed_stall_timeout_s: Seconds = Field(
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
    launch_bytes: Size = Field(
        default=256 * KIB,
        description="bytes appended in one turn of the event loop after which they leave, so that bookies are at work "
        "on them while the rest is still being appended",
    )
    launch_append_bytes: Size = Field(
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
    mend_pause_min_s: Seconds = Field(
        default=0.05,
        description="seconds before a writer tries again to replace or to reach bookies that failed, the first time",
    )
    mend_pause_max_s: Seconds = Field(
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
        for name in ("reconnect_pause", "mend_pause"):
            if getattr(self, f"{name}_max_s") < getattr(self, f"{name}_min_s"):
                raise ValueError(f"{name}_max_s must not be below {name}_min_s")
        return self


def load_bookie_settings(
    path: str | None, environ: Mapping[str, str], flags: Mapping[str, str | Sequence[str]]
) -> BookieSettings:
    """A bookie's settings from the TOML file `path` (or none), `environ` and `flags`, in rising priority.

    `ConfigError` naming the setting and where its value came from. An empty variable counts as not set.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    if path is not None:
        for name, value in _read_toml(path).items():
            _check_name(BookieSettings, name, f"file {path}")
            values[name], origins[name] = value, f"file {path}"
    for variable, text in sorted(environ.items()):
        if variable.startswith(ENVIRONMENT_PREFIX) and not _OTHER_VARIABLES.fullmatch(variable) and text:
            name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
            _check_name(BookieSettings, name, "environment", _variable)
            values[name], origins[name] = parse_text(BookieSettings, name, text, "environment"), "environment"
    for name, given in flags.items():
        _check_name(BookieSettings, name, "flag")
        values[name], origins[name] = parse_text(BookieSettings, name, given, "flag"), "flag"
    for name in ("journal_directories", "ledger_directories"):
        if isinstance(values.get(name), list):
            values[name] = [_absolute(directory) for directory in values[name]]
    return _build(BookieSettings, values, origins)


def _absolute(directory: object) -> object:
    """A bookie's cookie keeps where its directories are, which must not depend on where it was started."""
    return str(Path(directory).absolute()) if isinstance(directory, str) and directory else directory


def client_settings(**values: object) -> ClientSettings:
    """A client's settings from keyword arguments; `ConfigError` naming the argument at fault."""
    for name in values:
        _check_name(ClientSettings, name, "argument")
    return _build(ClientSettings, values, {})


def check_bookie_names(names: Iterable[str], origin: str) -> None:
    """`ConfigError` if one of the names, which came from `origin`, is not a bookie's setting."""
    for name in names:
        _check_name(BookieSettings, name, origin)


def split_address(address: str) -> tuple[str, int]:
    """(host, port) of `HOST:PORT`, where an IPv6 host is in brackets; `ValueError` if it isn't one."""
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        ipaddress.IPv6Address(host)
    elif ":" in host:
        raise ValueError(f"{address!r} is not HOST:PORT (an IPv6 address goes in brackets)")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{address!r} is not HOST:PORT")
    return host, int(port)


S = TypeVar("S", bound=_Settings)


def parse_text(model: type[_Settings], name: str, given: str | Sequence[str], origin: str) -> object:
    """The value that a variable's or flag's text stands for, by the type of the setting."""
    kind = _kind(model.model_fields[name].annotation)
    if kind is list:
        texts = [given] if isinstance(given, str) else given
        return [part.strip() for text in texts for part in text.split(",") if part.strip()]
    text = given if isinstance(given, str) else given[-1]
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            what = "a whole number" if kind is int else "a number"
            raise ConfigError(f"{origin}: {name} must be {what}, not {text!r}") from None
    return text


def _kind(annotation: Any) -> type:
    """The plain type behind an annotation: int, float, list or str."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _kind(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return _kind(next(a for a in get_args(annotation) if a is not type(None)))
    if origin is Literal:
        return str
    return list if origin is list else annotation


def _read_toml(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as e:
        raise ConfigError(f"file {path}: {e.strerror}") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise ConfigError(f"file {path}: not TOML: {e}") from e


def _check_name(model: type[_Settings], name: str, origin: str, written: Callable[[str], str] = str) -> None:
    if name not in model.model_fields:
        nearest = difflib.get_close_matches(name.lower().replace("-", "_"), model.model_fields, n=1, cutoff=0.0)[0]
        raise ConfigError(f"{origin}: unknown setting {written(name)}; the nearest valid one is {written(nearest)}")


def _variable(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper()


def _build(model: type[S], values: Mapping[str, object], origins: Mapping[str, str]) -> S:
    try:
        return model.model_validate(dict(values))
    except ValidationError as e:
        error = e.errors()[0]
        message = error["msg"].removeprefix("Value error, ")
        message = message[:1].lower() + message[1:]
        if not error["loc"]:  # a check across settings: the message names them
            raise ConfigError(message) from e
        name = str(error["loc"][0])
        if error["type"] == "missing":
            raise ConfigError(f"setting {name} is missing: {model.model_fields[name].description}") from e
        origin = f"{origins[name]}: " if name in origins else ""
        raise ConfigError(f"{origin}{name} = {values.get(name)!r}: {message}") from e


def _id_of(address: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.:-]", "", address).lstrip(".:-")  # what an IPv6 address has and an id must not


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
