"""The options of the data source, checked: an unknown one is refused by name, a bad value with what it should be.

Spark hands over names without regard to case, so they are compared that way and shown as they are documented.
"""

from __future__ import annotations

import difflib
import json
import math
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from bkpy.client.arguments import parse_ledger_ids
from bkpy.config import password_file
from bkpy.config.base import GIB, MIB
from bkpy.errors import ConfigError
from bkpy.metadata.uri import parse_uri
from bkpy.protocol.ledger.ledger_metadata import LEDGER_ID_MAX
from bkpy.protocol.log.log_list import checked_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CLOSED: Final = "closed"  # in place of ledger ids: all that are closed

# Where a log begins and ends when the query begins, in place of a position.
EARLIEST: Final = "earliest"
LATEST: Final = "latest"

# In the order of the table. `log` and `position` are null for ledgers that are read by their ids.
COLUMNS: Final = ("log", "ledger_id", "entry_id", "payload", "length", "position")
LOG_COLUMNS: Final = (*COLUMNS, "time", "producer", "sequence")  # those of a log, whose entries have stamps

PARTITIONS_MAX: Final = 100_000  # Spark's driver keeps a record of each
PREFETCH_DEPTH_MAX: Final = 64  # times fetchBytes is what a task may hold in memory
METADATA_REQUESTS_MAX: Final = 10_000  # in flight at once, on one connection
TIMEOUT_S_MAX: Final = 3600.0


# Of a log: a position, a time (the first entry that isn't earlier), or one of the words above.
LogOffset = int | datetime | str


@dataclass(frozen=True)
class SourceOptions:
    """What is read and how: either `ledgers`, None for all that are closed, or a `log`. Ends are exclusive.

    `starts` and `ends` are by ledger, `log_start` and `log_end` are a log's, whose uid is in `log_uids` if that isn't
    empty. At most one of `entries_per_trigger` and `bytes_per_trigger` is given: what a stream reads at once.
    """

    metadata_uri: str
    ledgers: tuple[int, ...] | None = ()
    log: str | None = None
    starts: Mapping[int, int] = field(default_factory=dict)
    ends: Mapping[int, int] = field(default_factory=dict)
    log_start: LogOffset = EARLIEST
    log_end: LogOffset = LATEST
    log_uids: frozenset[str] = frozenset()  # of the logs that the offsets are of, as far as they say it
    entries_per_trigger: int | None = None
    bytes_per_trigger: int | None = None
    columns: tuple[str, ...] = COLUMNS
    partitions_min: int = 1
    partition_bytes_max: int = 64 * MIB  # a fraction of a second's work at full speed, so a lost task costs little
    fetch_bytes: int = MIB
    prefetch_depth: int = 8  # measured: hides several milliseconds of latency; more gains nothing
    batch_bytes_max: int = 4 * MIB  # Spark holds a batch in memory on both sides of a socket
    metadata_requests: int = 100  # hides the latency and stays a small load for ZooKeeper
    timeout_s: float = 10.0
    session_timeout_s: float = 10.0
    password_file: str | None = None
    security: Mapping[str, str] = field(default_factory=dict)  # a client's settings that are files, by name
    skip_unauthorized: bool = False
    fail_on_data_loss: bool = True
    pushdown: bool = False

    def client_settings(self) -> dict[str, Any]:
        """The settings of the clients that plan and read, as `connect_tuned` takes them.

        A job may have run for hours when it plans or reads: a ZooKeeper that is just being restarted is waited for.
        """
        return {
            "read_bytes": self.fetch_bytes,
            "prefetch_depth": self.prefetch_depth,
            "scan_by_blocks_after": 0,  # numpy is there already
            "read_timeout_s": self.timeout_s,
            "metadata_timeout_s": self.timeout_s,
            "metadata_refused_timeout_s": self.timeout_s,
            "session_timeout_s": self.session_timeout_s,
            **self.security,
        }

    def password(self) -> bytes:
        """The ledgers' password. It is read wherever it is needed, so that it never travels with Spark's tasks."""
        return read_password(self.password_file)


def read_password(path: str | None) -> bytes:
    """The password in the file, as `password_file.read_password` reads it; empty for no file."""
    return b"" if path is None else password_file.read_password(path)


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """The options that Spark was given; `ConfigError` naming the one at fault."""
    values = checked_values(given, _PARSERS)
    if "metadata_uri" not in values:
        raise ConfigError("option metadataServiceUri is missing")
    if "log" in values and "ledgers" in values:
        raise ConfigError("either option ledgers or option log says what is read, not both")
    if "log" not in values and "ledgers" not in values:
        raise ConfigError("option ledgers is missing, or option log: one of them says what is read")
    if {"entries_per_trigger", "bytes_per_trigger"} <= values.keys():
        raise ConfigError("either maxEntriesPerTrigger or maxBytesPerTrigger bounds what a stream reads at once")
    whole_log = "log" in values
    values.setdefault("columns", LOG_COLUMNS if whole_log else COLUMNS)
    for option, of_ledgers, of_log in _OFFSETS:
        if of_ledgers in values:
            text = values.pop(of_ledgers)
            try:
                if whole_log:
                    values[of_log], uid = _log_offset(text)
                    if uid is not None:
                        values["log_uids"] = values.get("log_uids", frozenset()) | {uid}
                else:
                    values[of_ledgers] = _offsets(text)
            except ValueError as e:
                raise ConfigError(f"option {option} = {text!r}: {e}") from e
    options = SourceOptions(**values)
    if whole_log:
        _check_log_options(options, values)
    _check_offsets(options)
    return options


def checked_values(given: Mapping[str, str], parsers: Mapping[str, tuple[str, Callable[[str], Any]]]) -> dict[str, Any]:
    """The values of options by field, those of `SECURITY` in one of their own. `ConfigError` names the one at fault."""
    names = {name.lower(): name for name in parsers}
    values: dict[str, Any] = {}
    for key, text in given.items():
        name = names.get(key.lower())
        if name is None:
            near = difflib.get_close_matches(key.lower(), names, n=1)
            nearest = f"; the nearest valid one is {names[near[0]]}" if near else ""
            raise ConfigError(f"unknown option {key}{nearest}")
        attribute, parse = parsers[name]
        try:
            if name in SECURITY:
                values.setdefault("security", {})[attribute] = parse(text)
            else:
                values[attribute] = parse(text)
        except ValueError as e:
            raise ConfigError(f"option {name} = {text!r}: {e}") from e
    return values


def parse_ledgers(text: str) -> tuple[int, ...] | None:
    """Ids, ascending, of "7,9-12"; None for "closed". `ValueError` for anything else."""
    if text.strip().lower() == CLOSED:
        return None
    try:
        return parse_ledger_ids(text)
    except ValueError as e:
        raise ValueError(f'{e}; or "{CLOSED}" for all that are closed') from None


def column_named(name: str) -> str:
    """The source's own spelling of a column's name; `ConfigError` with the nearest one if there is none."""
    if name.lower() not in LOG_COLUMNS:
        near = difflib.get_close_matches(name.lower(), LOG_COLUMNS, n=1)
        raise ConfigError(f"there is no column {name!r}" + (f"; the nearest one is {near[0]}" if near else ""))
    return name.lower()


def _check_offsets(options: SourceOptions) -> None:
    for ledger_id, start in options.starts.items():
        end = options.ends.get(ledger_id, start)
        if end < start:
            raise ConfigError(f"the range to read ends at entry {end}, before its start {start}", ledger_id=ledger_id)


def _check_log_options(options: SourceOptions, given: Mapping[str, Any]) -> None:
    if "skip_unauthorized" in given:
        raise ConfigError("option skipUnauthorized is for ledgers: a log has one password")
    if options.log_end == EARLIEST:
        raise ConfigError('option endingOffsets: a read that ends at "earliest" has no entries')
    if isinstance(options.log_start, int) and isinstance(options.log_end, int) and options.log_end < options.log_start:
        raise ConfigError(f"the range to read ends at position {options.log_end}, before its start {options.log_start}")


def metadata_uri(text: str) -> str:
    """The URI in its shortest form. `ConfigError` for what is none."""
    return str(parse_uri(text))


def _offsets(text: str) -> dict[int, int]:
    try:
        pairs = json.loads(text)
    except ValueError:
        pairs = None
    if not isinstance(pairs, dict):
        raise ValueError('expected JSON such as {"7": 100}')
    offsets = {}
    for ledger, entry in pairs.items():
        if not ledger.isascii() or not ledger.isdigit():
            raise ValueError(f"{ledger!r} is no ledger id")
        if type(entry) is not int or not 0 <= entry <= LEDGER_ID_MAX:  # True is an int to isinstance
            raise ValueError(f"{entry!r} is no entry id")
        offsets[int(ledger)] = entry
    return offsets


def _log_offset(text: str) -> tuple[LogOffset, str | None]:
    """A position, as a number or as `{"position": number}`, a word or a time.

    And the uid of its log, if the text has one as in a stream's checkpoint.
    """
    word = text.strip()
    if word.lower() in (EARLIEST, LATEST):
        return word.lower(), None
    try:
        found = json.loads(word)
    except ValueError:
        return _time(word), None
    fields = found if isinstance(found, dict) else {"position": found}
    position, uid = fields.get("position"), fields.get("log_uid")
    if type(position) is not int or not isinstance(uid, str | None) or not 0 <= position <= LEDGER_ID_MAX:
        raise ValueError('expected {"position": number}, "earliest", "latest" or a time such as 2026-01-31T12:00:00Z')
    return position, uid


def _time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            'expected {"position": number}, "earliest", "latest" or a time such as 2026-01-31T12:00:00Z'
        ) from None
    if time.tzinfo is None:
        raise ValueError("a time needs its zone, such as the Z in 2026-01-31T12:00:00Z")
    return time


def _columns(text: str) -> tuple[str, ...]:
    columns = tuple(column_named(part.strip()) for part in text.split(","))
    if len(set(columns)) < len(columns):
        raise ValueError("a column is named twice")
    return columns


def whole(low: int, high: int) -> Callable[[str], int]:
    """What makes a whole number from `low` to `high` of a text, or raises `ValueError`."""

    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
            raise ValueError(f"expected a whole number from {low} to {high}")
        return int(text)

    return parse


def seconds(text: str) -> float:
    """A time-out. `ValueError` for what is none."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= TIMEOUT_S_MAX:
        raise ValueError(f"expected seconds, more than 0 and at most {TIMEOUT_S_MAX:g}")
    return value


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("expected true or false")
    return text.lower() == "true"


# What keeps others out of a cluster, as files at the same path on every machine. A password itself is no option: Spark
# shows those.
SECURITY: Final[Mapping[str, str]] = {
    "tlsCaFile": "tls_ca_file",
    "tlsCertificateFile": "tls_certificate_file",
    "tlsKeyFile": "tls_key_file",
    "zookeeperTlsCaFile": "zookeeper_tls_ca_file",
    "zookeeperTlsCertificateFile": "zookeeper_tls_certificate_file",
    "zookeeperTlsKeyFile": "zookeeper_tls_key_file",
    "zookeeperAuthFile": "zookeeper_auth_file",
    "zookeeperAcl": "zookeeper_acl",
}

# option, the field that it is for ledgers, the one that it is for a log
_OFFSETS: Final = (("startingOffsets", "starts", "log_start"), ("endingOffsets", "ends", "log_end"))

# option: (field, what makes a value of its text or raises ValueError)
_PARSERS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "metadataServiceUri": ("metadata_uri", metadata_uri),
    "ledgers": ("ledgers", parse_ledgers),
    "log": ("log", checked_name),
    "startingOffsets": ("starts", str),  # what they mean depends on what is read
    "endingOffsets": ("ends", str),
    "maxEntriesPerTrigger": ("entries_per_trigger", whole(1, LEDGER_ID_MAX)),
    "maxBytesPerTrigger": ("bytes_per_trigger", whole(1, LEDGER_ID_MAX)),
    "columns": ("columns", _columns),
    "minPartitions": ("partitions_min", whole(1, PARTITIONS_MAX)),
    "maxBytesPerPartition": ("partition_bytes_max", whole(1, 1024 * GIB)),
    "fetchBytes": ("fetch_bytes", whole(1, 32 * MIB)),
    "prefetchDepth": ("prefetch_depth", whole(1, PREFETCH_DEPTH_MAX)),
    "maxBytesPerBatch": ("batch_bytes_max", whole(1, GIB)),
    "metadataRequests": ("metadata_requests", whole(1, METADATA_REQUESTS_MAX)),
    "timeoutSeconds": ("timeout_s", seconds),
    "sessionTimeoutSeconds": ("session_timeout_s", seconds),
    "passwordFile": ("password_file", str),
    **{option: (setting, str) for option, setting in SECURITY.items()},
    "skipUnauthorized": ("skip_unauthorized", _flag),
    "failOnDataLoss": ("fail_on_data_loss", _flag),
    "pushdown": ("pushdown", _flag),
}
