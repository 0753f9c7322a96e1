"""The settings of a bookie: every limit with its unit in its name."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from bkpy.config.address import id_of, is_wildcard, split_address
from bkpy.config.base import GIB, KIB, MIB, RELOADABLE, Group, Mebibytes, Seconds, SecondsOrZero, Settings, Size
from bkpy.config.memory import MEMORY_BYTES, MEMORY_PARTS, shares_of_memory
from bkpy.config.recovery import RecoverySettings
from bkpy.config.tuning.bookie import BookieTuning

Directory = Annotated[str, Field(min_length=1)]  # an empty name would be taken for the present directory


class BookieStorage(Settings):
    group: ClassVar[Group | None] = "storage"

    journal_max_size_mb: Mebibytes = Field(
        default=64, description="MiB after which the bookie starts a new journal file"
    )
    journal_max_backups: int = Field(
        default=2,
        ge=0,
        description="journal files to keep for inspection after a checkpoint covers them, and copies to keep of torn "
        "frames that a start cut off",
    )
    journal_write_data: bool = Field(
        default=True,
        description="write entries to the journal before acknowledging them. If false, an unclean stop loses the "
        "entries since the last checkpoint: see docs/how-to/disks.md",
    )
    journal_sync_data: bool = Field(
        default=True,
        description="sync the journal to disk before acknowledging entries. If false, a power failure loses some of "
        "them: see docs/how-to/disks.md",
    )
    journal_as_entry_log: bool = Field(
        default=True,
        description="keep large batches in the journal file instead of copying them to an entry log. Applies with one "
        "ledger directory, on the journal's file system",
    )
    journal_damage: Literal["refuse", "limbo"] = Field(
        default="refuse",
        description="on damage inside the journal: refuse to start, or start and answer 'unknown' for entries that "
        "it may have held",
    )
    memtable_bytes_max: Size = Field(
        default=MEMORY_PARTS["memtable_bytes_max"],
        description="bytes of entries in memory before a flush to the entry log. During a flush twice as many fit, "
        "then the bookie stops reading from clients",
    )
    checkpoint_interval_s: Seconds = Field(
        json_schema_extra=RELOADABLE,
        default=60.0,
        description="seconds between checkpoints, which bound the journal that a restart replays",
    )
    entry_log_max_size_mb: Mebibytes = Field(
        default=1024, description="MiB after which the bookie starts a new entry log. Space is reclaimed log by log"
    )
    block_cache_bytes_max: Size = Field(
        default=MEMORY_PARTS["block_cache_bytes_max"],
        description="bytes of recently read blocks that each ledger directory caches; it always caches one block",
    )
    index_bytes_max: int = Field(
        gt=0,
        le=1 << 46,  # a process has 2^47 addresses, and all of an index is mapped
        default=64 * GIB,
        description="bytes to which the index of one ledger directory may grow; reserves no space",
    )
    # The content of two memtables, a few journal files and the entries that recoveries write back still fit.
    disk_free_bytes_min: int = Field(
        json_schema_extra=RELOADABLE,
        default=512 * MIB,
        ge=0,
        description="free bytes in any directory below which the bookie becomes read-only; 0 for never",
    )
    disk_free_bytes_resume: Size = Field(
        json_schema_extra=RELOADABLE,
        default=GIB,
        description="free bytes in every directory at which it accepts new entries again",
    )
    gc_interval_s: SecondsOrZero = Field(
        json_schema_extra=RELOADABLE,
        default=900.0,
        description="seconds between two searches for deleted ledgers, whose space is then reclaimed; 0 to search only "
        "on request",
    )
    gc_over_replicated_interval_s: SecondsOrZero = Field(
        json_schema_extra=RELOADABLE,
        default=86400.0,
        description="seconds between two searches for over-replicated copies, which no ensemble names any more. Each "
        "search reads the metadata of every ledger; 0 for never",
    )
    gc_looks_per_second: float = Field(
        json_schema_extra=RELOADABLE,
        default=500.0,
        gt=0,
        allow_inf_nan=False,
        description="reads of ledger metadata per second by garbage collection, which limits its load on ZooKeeper",
    )
    compaction_minor_living_ratio: float = Field(
        json_schema_extra=RELOADABLE,
        default=0.2,
        ge=0,
        lt=1,
        description="minor compaction rewrites entry logs of which less than this share is still in use; 0 for never",
    )
    compaction_minor_interval_s: Seconds = Field(
        json_schema_extra=RELOADABLE, default=3600.0, description="seconds between two runs of minor compaction"
    )
    compaction_major_living_ratio: float = Field(
        json_schema_extra=RELOADABLE,
        default=0.8,
        ge=0,
        lt=1,
        description="major compaction rewrites entry logs of which less than this share is still in use; 0 for never. "
        "It also runs while less than disk_free_bytes_resume is free",
    )
    compaction_major_interval_s: Seconds = Field(
        json_schema_extra=RELOADABLE, default=86_400.0, description="seconds between two runs of major compaction"
    )
    compaction_bytes_per_s: Size = Field(
        json_schema_extra=RELOADABLE,
        default=16 * MIB,
        description="bytes per second that compaction copies at most in each ledger directory",
    )
    compaction_free_bytes_min: int = Field(
        json_schema_extra=RELOADABLE,
        default=128 * MIB,
        ge=0,
        description="bytes of a ledger directory's disk that compaction leaves free",
    )
    scrub_interval_s: SecondsOrZero = Field(
        json_schema_extra=RELOADABLE,
        default=604_800.0,
        description="seconds from the end of one scrub, which verifies all stored entries of a ledger directory, to "
        "the next; 0 to scrub only on request",
    )
    scrub_bytes_per_s: Size = Field(
        json_schema_extra=RELOADABLE,
        default=8 * MIB,
        description="bytes per second that the scrub reads at most in each ledger directory",
    )


class BookieNetwork(Settings):
    group: ClassVar[Group | None] = "network"

    session_timeout_s: Seconds = Field(
        default=10.0, description="seconds without contact after which ZooKeeper ends the session"
    )
    stop_timeout_s: Seconds = Field(
        json_schema_extra=RELOADABLE,
        default=10.0,
        description="seconds for which a stopping bookie still answers the requests that it has accepted",
    )
    connections_max: Size = Field(
        default=1000, description="client connections. A low limit on open files lowers it: see docs/how-to/memory.md"
    )
    requests_in_flight_max: Size = Field(
        default=1000, description="unanswered requests of one connection; the bookie refuses further ones"
    )
    entry_bytes_max: Size = Field(
        default=4 * MIB, description="bytes of the largest entry that a client appends or a bookie accepts"
    )
    frame_bytes_max: Size = Field(
        default=8 * MIB,
        description="bytes of the largest request; must exceed entry_bytes_max by 64 KiB",
    )


class BookieSecurity(Settings):
    group: ClassVar[Group | None] = "security"

    access_file: str | None = Field(
        default=None,
        description="TOML file of access rights: the lists read, write, administer and bookies of names in "
        "certificates. Without it, every client with a valid certificate may read and write everything",
    )
    metrics_tls: bool = Field(
        default=False,
        description="serve the metrics page with TLS, to clients with a certificate. Commands then need a name with "
        "the right to administer, and admin_clients doesn't apply",
    )
    admin_clients: Literal["local", "all"] = Field(
        default="local",
        description="clients that may send commands to the metrics port without TLS: only those on this machine, or "
        "all that can reach the port",
    )


class BookieSettings(BookieStorage, BookieNetwork, BookieSecurity, RecoverySettings, BookieTuning):
    """The settings of one bookie."""

    group: ClassVar[Group | None] = "basic"

    metadata_uri: str = Field(description="where the cluster's metadata is, as zk://HOST:PORT[,HOST:PORT...]/ROOT")
    journal_directories: list[Directory] = Field(
        min_length=1,
        description="directories of the journals, which make entries durable before they are acknowledged. Give them "
        "a disk of their own",
    )
    ledger_directories: list[Directory] = Field(
        min_length=1,
        description="directories of the entry logs and indexes, which store entries for good. Ledgers are spread over "
        "them",
    )
    listen: str = Field(default="127.0.0.1:3181", description="HOST:PORT to accept clients at")
    advertised_address: str | None = Field(
        default=None, description="HOST:PORT that clients connect to, if it differs from listen"
    )
    bookie_id: str = Field(
        default="",  # replaced by a validator, so it is never empty
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:-]*$",  # it is a node's name in ZooKeeper
        max_length=255,
        description="permanent name of this bookie in the metadata; by default its address at the first start",
    )
    protocol: Literal["bkpy", "bookkeeper"] = Field(
        default="bkpy",
        description="the protocol of clients, for life: bkpy's own, or Apache BookKeeper's in a cluster of that kind",
    )
    rack: str = Field(
        default="default", min_length=1, description="failure domain of this bookie: a rack, or an availability zone"
    )
    region: str = Field(default="default", min_length=1, description="group of racks that this bookie is in")
    memory_bytes_max: Size = Field(
        default=MEMORY_BYTES,
        description="bytes of memory for entries, requests, answers, caches and ledger states together. At the limit "
        "the bookie drops caches, flushes memtables and stops reading from writers. Parts without a value of their "
        "own get a share: see docs/how-to/memory.md",
    )
    metrics_port: int = Field(
        default=-1, ge=-1, le=65535, description="port of the metrics page: -1 for none, 0 for any free one"
    )
    metrics_listen: str = Field(
        default="127.0.0.1", description="host to serve the metrics page at; without metrics_tls it is not protected"
    )
    auto_recovery: bool = Field(
        default=True,
        description="run a candidate for the auditor, which finds lost bookies, and a worker, which re-replicates "
        "their ledgers",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        json_schema_extra=RELOADABLE, default="info", description="lowest severity of messages to log"
    )
    log_format: Literal["text", "json"] = Field(
        default="text", description="log lines as text, or as one JSON object each: see docs/how-to/watching.md"
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
                "disk_free_bytes_resume must exceed disk_free_bytes_min, or the bookie would switch to and fro"
            )
        if 0 < self.disk_free_bytes_min <= self.compaction_free_bytes_min:
            raise ValueError(
                f"compaction_free_bytes_min = {self.compaction_free_bytes_min} must be below disk_free_bytes_min = "
                f"{self.disk_free_bytes_min}, or a bookie with a full disk, which is read-only, could not compact: "
                "lower the one, or raise the other"
            )
        if self.bookie_id == "readonly":
            raise ValueError("bookie_id = 'readonly': the name is taken in ZooKeeper")
        directories = [*self.journal_directories, *self.ledger_directories]
        if twice := sorted({d for d in directories if directories.count(d) > 1}):
            raise ValueError(f"directory {twice[0]} is used twice")
        return self

    @model_validator(mode="after")
    def _serves_with_tls(self) -> Self:
        if self.tls_ca_file is not None and self.tls_certificate_file is None:
            raise ValueError("a bookie with tls_ca_file needs tls_certificate_file and tls_key_file, too")
        if self.metrics_tls and self.tls_certificate_file is None:
            raise ValueError("metrics_tls needs tls_certificate_file, tls_key_file and tls_ca_file")
        if self.access_file is not None and self.tls_certificate_file is None:
            raise ValueError("access_file needs tls_certificate_file: a client's name comes from its certificate")
        return self
