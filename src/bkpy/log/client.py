"""The named logs of one client: what `Client` has of them."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, assert_never

from bkpy.client.arguments import check_password, check_seconds, check_size
from bkpy.errors import ConfigError, MetadataUnavailableError, NoSuchLogError, UnauthorizedError
from bkpy.log.opening import Opening, drop_lease_later, new_ledger
from bkpy.log.reader import LogReader
from bkpy.log.rolling import RollLimits
from bkpy.log.segments import Segments
from bkpy.log.snapshot import LogSnapshot
from bkpy.log.writer import LogWriter
from bkpy.metadata.logs.catalog import HeldBy, Taken
from bkpy.metadata.store.outcome import Done, Exists, NotDone, Unknown, to_error
from bkpy.protocol.ledger.quorum import check_sizes
from bkpy.protocol.log.log_list import LogList, checked_name
from bkpy.protocol.log.log_opening import LENGTH_MAX
from bkpy.protocol.wire.records import DIGESTS, PLAIN, RecordCodec, digest_key, ledger_key

if TYPE_CHECKING:
    from bkpy.client.read.reader import LedgerReader
    from bkpy.client.write.writer import LedgerWriter
    from bkpy.config.client import ClientSettings
    from bkpy.log.opening import Opened
    from bkpy.log.parts import LogParts
    from bkpy.metadata.logs.catalog import LogStore

log = logging.getLogger("bkpy.client")


class NewLog(NamedTuple):
    """The arguments of `Client.open_log` that describe a log to create. `checked` validates them."""

    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    digest: str
    retention_s: float | None
    retention_bytes: int | None
    consumer_lag_max_s: float | None
    consumer_expiry_s: float | None = None

    def checked(self) -> NewLog:
        """The same. Raises `ConfigError` for a value that no log can have."""
        check_size("ensemble_size", self.ensemble_size)
        check_size("write_quorum", self.write_quorum)
        check_size("ack_quorum", self.ack_quorum)
        check_sizes(self.ensemble_size, self.write_quorum, self.ack_quorum)
        if self.digest not in DIGESTS:
            raise ConfigError(f"digest {self.digest!r} is not one of {', '.join(DIGESTS)}")
        if self.retention_s is not None:
            check_seconds("retention_s", self.retention_s)
        if self.consumer_lag_max_s is not None:
            check_seconds("consumer_lag_max_s", self.consumer_lag_max_s)
        if self.consumer_expiry_s is not None:
            check_seconds("consumer_expiry_s", self.consumer_expiry_s)
        if self.retention_bytes is not None:
            check_size("retention_bytes", self.retention_bytes)
            if not 0 <= self.retention_bytes <= LENGTH_MAX:
                raise ConfigError(f"retention_bytes must be from 0 to {LENGTH_MAX}")
        return self


# --- writing ----------------------------------------------------------------------------------------------------------


async def open_log(
    parts: LogParts,
    name: str,
    password: bytes,
    limits: RollLimits,
    *,
    create: NewLog | None,
    wait: bool,
    producer: str | None = None,
    new_producer: bool = False,
) -> LogWriter:
    """See `Client.open_log`."""
    checked_name(name)
    check_password(password)
    if producer is not None:
        checked_name(producer, "producer")
    elif new_producer:
        raise ConfigError("new_producer says of a producer that it is new, and there is none: give producer")
    made = create is not None and await create_log(parts.logs, name, password, create)
    opening = Opening(name, password, parts, wait=wait, made=made, producer=producer or "", new_producer=new_producer)
    opened = await opening.run()
    if wait:
        try:
            await _show(parts, name, opened)
        except BaseException:  # there will be no writer: a lease would keep others away until the session ends
            drop_lease_later(name, opened.log_list.uid, opened.token, parts)
            raise
    return LogWriter(name, opened, password, limits, parts, partial(read_log, parts, name, password))


def roll_limits(
    settings: ClientSettings, roll_bytes: int | None, roll_entries: int | None, roll_s: float | None
) -> RollLimits:
    """When a log rolls; the settings say it where an argument is None. Raises `ConfigError` for a bad value."""
    limits = RollLimits(
        settings.log_roll_bytes if roll_bytes is None else roll_bytes,
        settings.log_roll_entries if roll_entries is None else roll_entries,
        settings.log_roll_s if roll_s is None else roll_s,
    )
    check_size("roll_bytes", limits.bytes)
    check_size("roll_entries", limits.entries)
    check_seconds("roll_s", limits.seconds)
    for name, limit in (("roll_bytes", limits.bytes), ("roll_entries", limits.entries), ("roll_s", limits.seconds)):
        if not limit > 0:
            raise ConfigError(f"{name} must be more than 0, not {limit}: a log rolls when it has something")
    return limits


async def create_log(logs: LogStore, name: str, password: bytes, new: NewLog) -> bool:
    """Make a log, see `Client.open_log`. Returns False if a log of that name exists, and leaves that log as it is."""
    checked_name(name)
    check_password(password)
    log_list = LogList(
        uid=logs.new_token(),
        ledger_key=ledger_key(password),
        created_ms=logs.now_ms(),
        **new.checked()._asdict(),
    )
    try:
        await logs.read(name, fresh=True)
    except NoSuchLogError:
        return await _created(logs, name, log_list)
    return False


async def _created(logs: LogStore, name: str, log_list: LogList) -> bool:
    outcome = await logs.create(name, log_list)
    match outcome:
        case Done():
            return True
        case Exists():
            return False
        case NotDone() | Unknown():
            raise to_error(outcome) from None
        case _:
            assert_never(outcome)


async def _show(parts: LogParts, name: str, opened: Opened) -> None:
    """Store this writer as the lease's holder, which commands show and openers without `wait` respect."""
    try:
        outcome = await parts.logs.take_lease(name, opened.log_list.uid, opened.token, parts.label, replace=True)
    except MetadataUnavailableError as error:
        outcome = NotDone(error)
    match outcome:
        case Taken() | HeldBy():
            return
        case NotDone() | Unknown():
            log.info("failed to take the lease of log %s: %s", name, outcome.error)
        case _:
            assert_never(outcome)


# --- reading ----------------------------------------------------------------------------------------------------------


async def read_log(parts: LogParts, name: str, password: bytes) -> LogReader:
    """See `Client.read_log`."""
    check_password(password)
    # A list of an earlier log of that name, from a server that lags behind, has another password.
    log_list, version = await parts.logs.read(checked_name(name), fresh=True)
    if log_list.ledger_key != ledger_key(password):
        why = "the password is not the log's" if password else "the log has a password, and none was given"
        raise UnauthorizedError(f"log {name}: {why}")
    reader = LogReader(
        LogSnapshot(name, log_list, version),
        password,
        parts=parts,
        segments=_segments(parts),
    )
    await reader.refresh()
    return reader


def _segments(parts: LogParts) -> Segments:
    shared = parts.shared
    return Segments(parts.catalog, shared.pool, shared.settings, shared.runtime)


# --- a log's ledgers one by one, for the Spark connector --------------------------------------------------------------


async def open_segment(
    parts: LogParts, ledger_id: int, password: bytes, confirmed: int = -1, stamp: int = PLAIN
) -> LedgerReader:
    """A reader of one of a log's ledgers. Payloads begin behind their stamps. See `Segments.open`."""
    return await _segments(parts).open(ledger_id, password, stamp, confirmed)


async def create_segment(parts: LogParts, name: str, log_list: LogList, password: bytes) -> LedgerWriter:
    """The writer of a new ledger of a log, which no list names yet. Raises what `Client.create_ledger` does."""
    created = await parts.create(new_ledger(name, log_list))
    codec = RecordCodec(created.metadata.ledger_id, log_list.digest, digest_key(password))
    return parts.writer(created, codec, None)
