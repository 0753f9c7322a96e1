"""Finds consumers of logs that have been idle longer than their log waits for them.

    logs/<name>/<uid>/idle    for how long consumers have been idle, see `bkpy.protocol.log.consumer_expiry`

Invariants: the record is only for logs with `consumer_expiry_s`; two processes that count at the same time count less,
never more; a record that can't be read, or written, expires nobody.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bkpy.errors import CorruptDataError
from bkpy.metadata import paths
from bkpy.metadata.store.outcome import Done
from bkpy.metadata.store.resolve import create_certainly, put_certainly, read_certainly
from bkpy.metadata.store.store import Create
from bkpy.metadata.stored_record import StoredRecord, take
from bkpy.protocol.log.consumer_expiry import Idle, expired, observed

if TYPE_CHECKING:
    from bkpy.metadata.logs.catalog import LogStore
    from bkpy.metadata.logs.consumers import ConsumerState, Registered
    from bkpy.protocol.log.log_list import LogList

log = logging.getLogger(__name__)

_RECORD: Final = StoredRecord("the idle consumers of a log", version=1)


class _Pass(NamedTuple):
    """When this process has last written the record of the log with this uid, and the version that it made."""

    uid: str
    version: int
    at: float


class IdleConsumers:
    """Of all logs that one process applies the retention of."""

    def __init__(self, logs: LogStore) -> None:
        self._logs = logs
        self._store = logs.store
        self._passes: dict[str, _Pass] = {}  # by log, of logs that are there and have idle consumers

    async def expired(self, name: str, log_list: LogList, registered: Registered) -> frozenset[str]:
        """The consumers for which retention waits no longer. Raises `MetadataUnavailableError`."""
        before = self._passes.pop(name, None)
        expiry_s = log_list.consumer_expiry_s
        if expiry_s is None:
            return frozenset()
        unread = {
            consumer: _mark(state)
            for consumer, state in registered.states.items()
            if log_list.behind(state.position) < log_list.sealed_end
        }
        path = idle_path(self._logs.root, name, log_list.uid)
        found = await read_certainly(self._store, path)
        if found is None and not unread:
            return frozenset()
        known, version = ({}, -1) if found is None else (_decode(name, found[0]), found[1])
        now = self._logs.monotonic()
        elapsed_s = 0.0
        if before is not None and (before.uid, before.version) == (log_list.uid, version):
            settings = self._logs.settings
            elapsed_s = min(now - before.at, settings.log_idle_intervals_max * settings.log_retention_interval_s)
        idle = observed(known, unread, elapsed_s)
        if idle or known:
            written = await self._write(path, version, idle)
            if written is None:
                return expired(observed(known, unread, 0.0), expiry_s)
            self._passes[name] = _Pass(log_list.uid, written, now)
        gone = expired(idle, expiry_s)
        for consumer in sorted(gone - expired(known, expiry_s)):
            log.warning(
                "consumer %s of log %s has been idle for %.0f s with entries to read: retention does not wait for it",
                consumer,
                name,
                idle[consumer].seconds,
            )
        return gone

    def forget(self, name: str) -> None:
        """The log is gone."""
        self._passes.pop(name, None)

    async def _write(self, path: str, version: int, idle: dict[str, Idle]) -> int | None:
        """The version that was made; None if the record isn't certainly what is written."""
        data = _RECORD.encode(
            {"token": self._logs.new_token(), "consumers": {consumer: list(seen) for consumer, seen in idle.items()}}
        )
        attempts_max = self._logs.settings.metadata_write_attempts_max
        if version < 0:
            created = await create_certainly(self._store, Create(path, data), attempts_max=attempts_max)
            return 0 if isinstance(created, Done) else None
        put = await put_certainly(self._store, path, data, version, attempts_max=attempts_max)
        return put.version if isinstance(put, Done) else None


def idle_path(root: str, name: str, uid: str) -> str:
    """The node of the record."""
    return f"{paths.log(root, name)}/{uid}/idle"


def _mark(state: ConsumerState) -> str:
    """Another one after each commit, and the same when another client takes the lease."""
    return f"{state.position}-{state.since_ms}"


def _decode(name: str, data: bytes) -> dict[str, Idle]:
    """What is stored; nothing if that is damaged: then counting begins again."""

    def made(fields: dict[str, Any]) -> dict[str, Idle]:
        return {
            consumer: Idle(str(mark), max(0.0, float(seconds)))
            for consumer, (mark, seconds) in take(fields, "consumers", dict).items()
        }

    try:
        return _RECORD.decode(data, made, what=f"the record of idle consumers of log {name}")
    except CorruptDataError as error:
        log.warning("%s: it is written again", error)
        return {}
