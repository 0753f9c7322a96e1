"""The lists of named logs and the leases of their writers: reads them, and replaces what was read.

    logs/<name>                 the list, see `bkpy.protocol.log.log_list`
    logs/<name>/<uid>           never changed, and never created again: the nodes below belong to this log, and not to
                                another one that gets the name after its deletion
    logs/<name>/<uid>/consumers see `bkpy.metadata.logs.consumers`
    logs/<name>/<uid>/lease     names the log's writer, for people and for openers that wait; ends with the session

Invariants: a write replaces exactly the list that its caller has read, of this very log; no list gets a ledger that
makes it too long for the store; only the list decides who may write, and never the lease.
"""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, assert_never

from bkpy.config.shared import MetadataSettings
from bkpy.errors import ConfigError, CorruptDataError, MetadataConflictError, NoSuchLogError, UnauthorizedError
from bkpy.metadata import paths
from bkpy.metadata.store.outcome import (
    Changed,
    Done,
    Exists,
    Gone,
    Missing,
    NotDone,
    PutOutcome,
    Superseded,
    Unknown,
    to_error,
)
from bkpy.metadata.store.resolve import (
    children_if_there,
    create_certainly,
    delete_certainly,
    delete_together,
    ensure_path,
    put_certainly,
    read_certainly,
)
from bkpy.metadata.store.store import Check, Create, Delete, MetadataStore, Watch
from bkpy.metadata.stored_record import StoredRecord, fields_of
from bkpy.protocol.ledger.ledger_metadata import UnsupportedVersionError
from bkpy.protocol.log.log_list import LogList

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from bkpy.metadata.ledgers.layout import Layout
    from bkpy.runtime.interfaces import Runtime

log = logging.getLogger(__name__)

_LEASE: Final = StoredRecord("a lease", version=1)
_TOKEN_BYTES: Final = 16
_WARNED_PERCENT: Final = 80
_SHORTEN: Final = "truncate the log, give it a retention, or let it roll later"
_DEFAULTS = MetadataSettings()


@dataclass(frozen=True, slots=True)
class Taken:
    """The caller holds the lease, with its token."""


@dataclass(frozen=True, slots=True)
class HeldBy:
    """Another client has the lease: `label` says which, for people, and `since_ms` since when (0: unknown)."""

    label: str
    since_ms: int = 0


LeaseOutcome = Taken | HeldBy | NotDone | Unknown


class LogStore:
    """The logs under `root`, whose ledgers are in `layout`. Reads raise `MetadataUnavailableError`."""

    def __init__(
        self,
        store: MetadataStore,
        root: str,
        layout: Layout,
        runtime: Runtime,
        settings: MetadataSettings = _DEFAULTS,
    ) -> None:
        self.store = store
        self.root = root
        self.settings = settings
        self._layout = layout
        self._runtime = runtime
        self._attempts_max = settings.metadata_write_attempts_max

    # --- lists ------------------------------------------------------------------------------------------------------

    def new_token(self) -> str:
        """A unique text: for a list's uid, its writer, or one write of it."""
        return self._runtime.rng.randbytes(_TOKEN_BYTES).hex()

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return int(self._runtime.clock.time() * 1000)

    async def create(self, name: str, log_list: LogList) -> Done | Exists | NotDone | Unknown:
        """Create a log. `Exists` if there is one of that name, even one whose deletion is under way."""
        path = paths.log(self.root, name)
        own = f"{path}/{log_list.uid}"
        data = self._encoded(name, dataclasses.replace(log_list, write_token=self.new_token()))
        nodes = Create(path, data), Create(own, b""), Create(f"{own}/consumers", b"")
        outcome = await create_certainly(self.store, *nodes, attempts_max=self._attempts_max)
        if isinstance(outcome, Missing):  # the first log of the cluster
            above = await ensure_path(self.store, f"{self.root}/{paths.LOGS}", attempts_max=self._attempts_max)
            if isinstance(above, NotDone):
                return above
            outcome = await create_certainly(self.store, *nodes, attempts_max=self._attempts_max)
        match outcome:
            case Done() | Exists() | NotDone() | Unknown():
                return outcome
            case Superseded():
                what = f"log {name} may have been made, and somebody else has changed or deleted it since"
                return Unknown(MetadataConflictError(what))
            case Missing():
                return NotDone(MetadataConflictError(f"somebody deletes what is above {outcome.node}"))
            case _:
                assert_never(outcome)

    async def unmake(self, name: str, uid: str) -> bool:
        """Remove a log that was created with this `uid`, unless its list or consumers have changed; then False.

        No list has ever named a ledger of it. Raises an error if the outcome isn't certain.
        """
        path = paths.log(self.root, name)
        own = f"{path}/{uid}"
        nodes = Delete(f"{own}/consumers", 0), Delete(own, 0), Delete(path, 0)
        outcome = await delete_together(self.store, *nodes, attempts_max=self._attempts_max)
        if isinstance(outcome, NotDone | Unknown):
            raise to_error(outcome)
        return isinstance(outcome, Gone)

    async def read(self, name: str, *, fresh: bool = False, include_deleted: bool = False) -> tuple[LogList, int]:
        """The list and its version, `fresh` if no earlier write may be missed: a server's answer may be old.

        Raises `NoSuchLogError`, which is never old, also during the deletion of a log unless `include_deleted`;
        `CorruptDataError`, `UnsupportedVersionError`.
        """
        path = paths.log(self.root, name)
        if fresh:
            await self.store.sync(path)
        found = await read_certainly(self.store, path)
        if found is None:
            raise NoSuchLogError(f"there is no log {name}")
        log_list = LogList.decode(name, found[0])
        if log_list.deleted and not include_deleted:
            raise NoSuchLogError(f"log {name} has been deleted")
        return log_list, found[1]

    async def write(
        self, name: str, log_list: LogList, expected_version: int, *checks: Check, token: str | None = None
    ) -> PutOutcome:
        """Replace the list, if it is at `expected_version` and of the same log, and if the `checks` pass.

        The list gets a new write token, or `token`, which must be new. `Missing` with an index names the node of the
        failed check; without an index, the log is gone. Raises `ConfigError` for a list that is too long.
        """
        return await self._put(name, log_list, expected_version, *checks, token=token)

    async def write_anyway(self, name: str, log_list: LogList, expected_version: int, *checks: Check) -> PutOutcome:
        """The same for a list that adds no ledger to the stored one: it may be longer than the limit."""
        return await self._put(name, log_list, expected_version, *checks, anyway=True)

    async def _put(
        self,
        name: str,
        log_list: LogList,
        expected_version: int,
        *checks: Check,
        token: str | None = None,
        anyway: bool = False,
    ) -> PutOutcome:
        path = paths.log(self.root, name)
        written = dataclasses.replace(log_list, write_token=token or self.new_token())
        data = written.encode() if anyway else self._encoded(name, written)
        # Without this check, a delayed write could meet the same version of another log of that name.
        same = Check(f"{path}/{log_list.uid}", 0)
        outcome = await put_certainly(
            self.store, path, data, expected_version, same, *checks, attempts_max=self._attempts_max
        )
        if not isinstance(outcome, Missing) or not outcome.index:
            return outcome
        return Missing(path) if outcome.node == same.path else Missing(outcome.node, outcome.index)

    def _encoded(self, name: str, log_list: LogList) -> bytes:
        data = log_list.encode()
        bound = self.settings.log_list_bytes_max
        said = f"the list of log {name} has {len(log_list.segments)} ledgers and {len(data)} bytes"
        if len(data) > bound:
            raise ConfigError(f"{said}, more than the limit of {bound}: {_SHORTEN}")
        if len(data) * 100 > bound * _WARNED_PERCENT:
            log.warning("%s, near the limit of %d: %s", said, bound, _SHORTEN)
        return data

    def check_fits(self, name: str, log_list: LogList) -> None:
        """Raise `ConfigError` if a list to be made may be too long, before anything is done for it."""
        size, bound = len(log_list.encode()), self.settings.log_list_bytes_max
        if size > bound:
            raise ConfigError(
                f"the list of log {name} has no room for more ledgers: with them it may need {size} bytes, more than "
                f"the limit of {bound}: {_SHORTEN}"
            )

    async def names(self) -> list[str]:
        """The names of all logs, sorted, including logs whose deletion is under way."""
        folder = f"{self.root}/{paths.LOGS}"
        await self.store.sync(folder)
        return sorted(await children_if_there(self.store, folder))

    async def living_names(self) -> AsyncGenerator[str, None]:
        """The same without logs whose deletion is under way. Reads all the lists, one at a time."""
        for name in await self.names():
            try:
                await self.read(name)
            except NoSuchLogError:
                continue
            except (CorruptDataError, UnsupportedVersionError, UnauthorizedError):  # it is there, though unreadable
                pass
            yield name

    def watch(self, name: str) -> Watch:
        """Wakes whenever the list may have changed or gone. The caller closes it."""
        return self.store.watch(paths.log(self.root, name))

    # --- checks, for the transaction of a write -----------------------------------------------------------------------

    def ledger_check(self, ledger_id: int, version: int) -> Check:
        """Checks that the ledger is there, with its metadata at `version`: for a write that adds it to a list."""
        return Check(self._layout.path_of(self.root, ledger_id), version)

    def list_check(self, name: str, version: int) -> Check:
        """Checks that the list is at `version`: for the deletion of a ledger that it doesn't name."""
        return Check(paths.log(self.root, name), version)

    # --- the lease ----------------------------------------------------------------------------------------------------

    async def take_lease(self, name: str, uid: str, token: str, label: str, *, replace: bool = False) -> LeaseOutcome:
        """Take the lease of the log with this `uid` for the writer with this token, until the session ends.

        `HeldBy` if another writer has it, unless `replace`. Raises `NoSuchLogError`.
        """
        path = self._lease_path(name, uid)
        lease_value = _LEASE.encode({"token": token, "label": label, "since_ms": self.now_ms()})
        lease = Create(path, lease_value, ephemeral=True)
        for _ in range(self._attempts_max):
            found = await self._lease_at(path)
            if found is not None:
                if found[0] == token:
                    return Taken()
                if not replace:
                    return HeldBy(found[1], found[2])
                removed = await delete_certainly(self.store, path, 0, attempts_max=1)
                if isinstance(removed, NotDone):
                    return removed
            outcome = await create_certainly(self.store, lease, attempts_max=self._attempts_max)
            match outcome:
                case Done():
                    return Taken()
                case Missing():
                    raise NoSuchLogError(f"log {name} has been deleted")
                case NotDone() | Unknown():
                    return outcome
                case Exists() | Superseded():
                    continue
                case _:
                    assert_never(outcome)
        return NotDone(MetadataConflictError(f"the lease of log {name} changes hands all the time"))

    async def lease_holder(self, name: str, uid: str) -> str | None:
        """The label of the writer that holds the lease of the log with this `uid`; None if nobody does."""
        found = await self._lease_at(self._lease_path(name, uid))
        return None if found is None else found[1]

    async def drop_lease(self, name: str, uid: str, token: str) -> None:
        """Remove the lease if it has this token. Without the store this fails, and the lease ends with the session."""
        path = self._lease_path(name, uid)
        found = await self._lease_at(path)
        if found is not None and found[0] == token:
            outcome = await delete_certainly(self.store, path, 0, attempts_max=1)
            if not isinstance(outcome, Gone | Missing | Changed | Superseded):
                log.info("the lease of log %s stays until the session ends: %s", name, outcome.error)

    def _lease_path(self, name: str, uid: str) -> str:
        return f"{paths.log(self.root, name)}/{uid}/lease"

    async def _lease_at(self, path: str) -> tuple[str, str, int] | None:
        """Token, label, and since when."""
        await self.store.sync(path)
        found = await read_certainly(self.store, path)
        if found is None:
            return None
        try:
            fields = fields_of(found[0])
            return str(fields["token"]), str(fields["label"]), int(fields["since_ms"])
        except (ValueError, KeyError, TypeError):
            return "", "a client whose lease is unreadable", 0
