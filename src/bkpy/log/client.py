"""The named logs of one client: what `Client` has of them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, assert_never

from bkpy.client.arguments import check_password, check_seconds, check_size
from bkpy.errors import ConfigError, MetadataUnavailableError, NoSuchLogError
from bkpy.log.opening import Opening
from bkpy.log.rolling import RollLimits
from bkpy.log.writer import LogWriter
from bkpy.metadata.logs.catalog import HeldBy, Taken
from bkpy.metadata.store.outcome import Done, Exists, NotDone, Unknown, to_error
from bkpy.protocol.ledger.quorum import check_sizes
from bkpy.protocol.log.log_list import LogList, checked_name
from bkpy.protocol.wire.records import DIGESTS, ledger_key

if TYPE_CHECKING:
    from bkpy.log.opening import Opened
    from bkpy.log.parts import LogParts
    from bkpy.metadata.logs.catalog import LogStore

log = logging.getLogger("bkpy.client")


async def open_log(
    parts: LogParts,
    name: str,
    *,
    create: bool,
    wait: bool,
    password: bytes,
    ensemble_size: int,
    write_quorum: int,
    ack_quorum: int,
    digest: str,
    retention_s: float | None,
    retention_bytes: int | None,
    consumer_lag_max_s: float | None,
    roll_bytes: int | None,
    roll_entries: int | None,
    roll_s: float | None,
) -> LogWriter:
    """See `Client.open_log`."""
    checked_name(name)
    check_password(password)
    limits = _limits(parts, roll_bytes, roll_entries, roll_s)
    made = False
    if create:
        made = await create_log(
            parts.logs,
            name,
            password=password,
            ensemble_size=ensemble_size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            digest=digest,
            retention_s=retention_s,
            retention_bytes=retention_bytes,
            consumer_lag_max_s=consumer_lag_max_s,
        )
    opened = await Opening(name, password, parts, wait=wait, made=made).run()
    if wait:
        await _show(parts, name, opened)
    return LogWriter(name, opened, password, limits, parts)


def _limits(parts: LogParts, roll_bytes: int | None, roll_entries: int | None, roll_s: float | None) -> RollLimits:
    settings = parts.shared.settings
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


async def create_log(
    logs: LogStore,
    name: str,
    *,
    password: bytes,
    ensemble_size: int,
    write_quorum: int,
    ack_quorum: int,
    digest: str,
    retention_s: float | None,
    retention_bytes: int | None,
    consumer_lag_max_s: float | None,
) -> bool:
    """Make a log, see `Client.open_log`; False if there is one of that name, which stays as it is."""
    checked_name(name)
    check_password(password)
    check_size("ensemble_size", ensemble_size)
    check_size("write_quorum", write_quorum)
    check_size("ack_quorum", ack_quorum)
    check_sizes(ensemble_size, write_quorum, ack_quorum)
    if digest not in DIGESTS:
        raise ConfigError(f"digest {digest!r} is not one of {', '.join(DIGESTS)}")
    if retention_s is not None:
        check_seconds("retention_s", retention_s)
    if consumer_lag_max_s is not None:
        check_seconds("consumer_lag_max_s", consumer_lag_max_s)
    if retention_bytes is not None:
        check_size("retention_bytes", retention_bytes)
        if retention_bytes < 0:
            raise ConfigError(f"retention_bytes must not be negative, and is {retention_bytes}")
    log_list = LogList(
        uid=logs.new_token(),
        ensemble_size=ensemble_size,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        digest=digest,
        ledger_key=ledger_key(password),
        created_ms=logs.now_ms(),
        retention_s=retention_s,
        retention_bytes=retention_bytes,
        consumer_lag_max_s=consumer_lag_max_s,
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
    """Who writes the log, for people, and for those who want to be alone with it."""
    try:
        outcome = await parts.logs.take_lease(name, opened.log_list.uid, opened.token, parts.label, replace=True)
    except MetadataUnavailableError as error:
        outcome = NotDone(error)
    match outcome:
        case Taken() | HeldBy():
            return
        case NotDone() | Unknown():
            log.info("the lease of log %s isn't taken: %s", name, outcome.error)
        case _:
            assert_never(outcome)
