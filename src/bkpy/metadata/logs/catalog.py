"""The lists of named logs and the leases of their writers: reads them, and replaces what was read.

    logs/<name>                 the list, see `bkpy.protocol.log.log_list`
    logs/<name>/<uid>           never changed, and never created again: the nodes below belong to this log, and not to
                                another one that gets the name after its deletion
    logs/<name>/<uid>/consumers see `bkpy.metadata.logs.consumers`
    logs/<name>/<uid>/pages     see `bkpy.metadata.logs.pages`
    logs/<name>/<uid>/lease     names the log's writer, for people and for openers that wait; ends with the session

Invariants: a write replaces exactly the list that its caller has read, of this very log, together with the pages that
it refers to first; a page is changed only while no list refers to it; no transaction has more than
`log_write_bytes_max` beside its caller's checks, see `check_checks`; only the list decides who may write, and never the
lease.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, assert_never

from bkpy.config.shared import MetadataSettings
from bkpy.errors import (
    BookKeeperError,
    ConfigError,
    CorruptDataError,
    MetadataConflictError,
    MetadataUnavailableError,
    NoSuchLogError,
    UnauthorizedError,
    UnsupportedVersionError,
)
from bkpy.metadata import paths
from bkpy.metadata.logs.pages import LogPages, pages_path
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
    write_while,
)
from bkpy.metadata.store.store import Check, Create, Delete, MetadataStore, Put, Watch
from bkpy.metadata.stored_record import StoredRecord, fields_of
from bkpy.protocol.log.log_list import LogList
from bkpy.protocol.log.log_pages import paged

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from bkpy.metadata.ledgers.layout import Layout
    from bkpy.protocol.log.log_pages import Page
    from bkpy.runtime.interfaces import Runtime

log = logging.getLogger(__name__)


def _size(operation: Create | Put | Check) -> int:
    return _PATH_BYTES + (0 if isinstance(operation, Check) else len(operation.data))


_LEASE: Final = StoredRecord("a lease", version=1)
_TOKEN_BYTES: Final = 16
_WARNED_PERCENT: Final = 80
_PATH_BYTES: Final = 512  # more than an operation has beside its value
_CHECK_BYTES: Final = 20  # more than a check has beside its path
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


class _Lease(NamedTuple):
    """A lease as it was read. Its node has another `version` than that of the lease which it has replaced."""

    token: str
    label: str
    since_ms: int
    version: int


def _contents(log_list: LogList) -> str:
    """What takes room in a list, and what can be done about it."""
    return (
        f"it has {len(log_list.producers.known)} producers and Spark writers (bkpy log producers NAME --delete removes "
        "one), "
        f"{len(log_list.gaps)} gaps, and {len(log_list.pending_delete)} ledgers pending deletion, which the auditor "
        "deletes when it can"
    )


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
        self.pages = LogPages(store, root, settings)
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

    def monotonic(self) -> float:
        """Seconds by a clock that never jumps."""
        return self._runtime.clock.monotonic()

    async def create(self, name: str, log_list: LogList) -> Done | Exists | NotDone | Unknown:
        """Create a log. `Exists` if there is one of that name, even one whose deletion is under way."""
        path = paths.log(self.root, name)
        own = f"{path}/{log_list.uid}"
        written = dataclasses.replace(log_list, write_token=self.new_token())
        data = written.encode()
        self._check_length(name, written, data)
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

    async def unmake(self, name: str, uid: str, *also: Create) -> bool:
        """Remove a log that was created with this `uid`, and make nodes, unless its list or consumers have changed.

        Then it returns False. No list has ever named a ledger of it. Raises an error if the outcome isn't certain.
        """
        path = paths.log(self.root, name)
        own = f"{path}/{uid}"
        nodes = Delete(f"{own}/consumers", 0), Delete(own, 0), Delete(path, 0)
        outcome = await delete_together(self.store, *nodes, *also, attempts_max=self._attempts_max)
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
        written, pages = paged(
            dataclasses.replace(log_list, write_token=token or self.new_token()), self.settings.log_page_rows
        )
        data = written.encode()
        if not anyway:
            self._check_length(name, written, data)
        # Without this check, a delayed write could meet the same version of another log of that name.
        same = Check(f"{path}/{log_list.uid}", 0)
        try:
            return await self._put_with_pages(name, Put(path, data, expected_version), pages, same, checks)
        except BookKeeperError as error:  # of a read of pages: no write before it can take effect any more
            return NotDone(error)

    async def _put_with_pages(
        self, name: str, put: Put, pages: Sequence[Page], same: Check, checks: Sequence[Check]
    ) -> PutOutcome:
        """Raises the error of a read of pages that are there."""
        for _ in range(self.settings.log_conflicts_max):
            operations = await self._page_operations(name, pages)
            room = self.settings.log_write_bytes_max - len(put.data)
            if sum(map(_size, operations)) > room:
                refused = await self._write_ahead(operations, Check(put.path, put.expected_version))
                if refused is not None:
                    return refused
                operations = await self._page_operations(name, pages)
            outcome = await put_certainly(
                self.store,
                put.path,
                put.data,
                put.expected_version,
                same,
                *checks,
                *operations,
                attempts_max=self._attempts_max,
            )
            if not isinstance(outcome, Missing) or not outcome.index:
                return outcome
            if outcome.node == same.path:
                return Missing(put.path)
            if any(outcome.node == check.path for check in checks):
                return Missing(outcome.node, outcome.index)
            # Another client has written a page meanwhile, for a list of the same version.
        return Changed()

    async def _page_operations(self, name: str, pages: Sequence[Page]) -> list[Create | Put | Check]:
        """What writes the pages in the transaction that refers to them first.

        No list refers to a page with such a number as yet. A page that is there was written ahead, by this client or
        another.
        """
        if not pages:
            return []
        folder = pages_path(self.root, name, pages[0].uid)
        operations: list[Create | Put | Check] = []
        if await read_certainly(self.store, folder) is None:
            operations.append(Create(folder, b""))
        for page in pages:
            path, data = f"{folder}/{page.number}", page.encode()
            found = None if operations and operations[0].path == folder else await read_certainly(self.store, path)
            if found is None:
                operations.append(Create(path, data))
            elif found[0] == data:
                operations.append(Check(path, found[1]))
            else:
                operations.append(Put(path, data, found[1]))
        return operations

    async def _write_ahead(
        self, operations: Sequence[Create | Put | Check], unchanged: Check
    ) -> NotDone | Changed | None:
        """Write pages before the list that refers to them, in small transactions; why that is in vain, or None.

        Each checks that the list still has the version that it is to replace: a page is never changed once a list
        refers to it. The caller looks at what is there.
        """
        left = deque(operation for operation in operations if not isinstance(operation, Check))
        while left:
            some = [left.popleft()]
            while left and sum(map(_size, (*some, left[0]))) <= self.settings.log_write_bytes_max:
                some.append(left.popleft())
            outcome = await write_while(self.store, unchanged, some)
            if not isinstance(outcome, Done):
                return outcome
        return None

    def stored_form(self, log_list: LogList) -> LogList:
        """What `write` stores of this list, but for the write token: its oldest segments go into pages."""
        return paged(log_list, self.settings.log_page_rows)[0]

    def _check_length(self, name: str, log_list: LogList, data: bytes) -> None:
        bound = self.settings.log_write_bytes_max
        said = f"the list of log {name} has {len(data)} bytes"
        if len(data) > bound:
            raise ConfigError(f"{said}, more than the limit of {bound}: {_contents(log_list)}")
        if len(data) * 100 > bound * _WARNED_PERCENT:
            log.warning("%s, near the limit of %d: %s", said, bound, _contents(log_list))

    def check_fits(self, name: str, log_list: LogList) -> None:
        """Raise `ConfigError` if a list to be made may be too long, before anything is done for it."""
        size, bound = len(self.stored_form(log_list).encode()), self.settings.log_write_bytes_max
        if size > bound:
            raise ConfigError(
                f"the list of log {name} has no room for another ledger: with it the list may need {size} bytes, more "
                f"than the limit of {bound}: {_contents(log_list)}"
            )

    def check_checks(self, name: str, checks: Sequence[Check], hint: str) -> None:
        """Raise `ConfigError`, which says what can be done, if so many checks may be too long for one write of a list.

        The list and its pages take at most a quarter of what ZooKeeper takes in one request.
        """
        size = sum(len(check.path.encode()) + _CHECK_BYTES for check in checks)
        bound = 3 * self.settings.log_write_bytes_max
        if size > bound:
            raise ConfigError(
                f"a write of the list of log {name} depends on {len(checks)} nodes, whose checks take {size} bytes, "
                f"more than the limit of {bound}: {hint}"
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

        `HeldBy` if another writer has it; with `replace`, only if the list has another writer by now. Raises
        `NoSuchLogError`.
        """
        path = self._lease_path(name, uid)
        lease_value = _LEASE.encode({"token": token, "label": label, "since_ms": self.now_ms()})
        lease = Create(path, lease_value, ephemeral=True)
        for _ in range(self._attempts_max):
            found = await self._lease_at(path)
            others: tuple[Put, ...] = ()
            if found is not None:
                if found.token == token:
                    return Taken()
                log_list, version = await self.read(name, fresh=True) if replace else (None, -1)
                if log_list is None or log_list.writer != token:  # else an opener would take its successor's
                    return HeldBy(found.label, found.since_ms)
                present = self.list_check(name, version)
                removed = await delete_together(self.store, Delete(path, found.version), present, attempts_max=1)
                if isinstance(removed, NotDone):
                    return removed
                if isinstance(removed, Changed):
                    continue
                # The writer before may be about to delete its own: that must not be the version of the new one.
                others = () if found.version else (Put(path, lease_value, 0),)
            outcome = await create_certainly(self.store, lease, *others, attempts_max=self._attempts_max)
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
        return None if found is None else found.label

    async def drop_lease(self, name: str, uid: str, token: str) -> None:
        """Remove the lease if it has this token. Raises an error if it may still be there."""
        path = self._lease_path(name, uid)
        found = await self._lease_at(path)
        if found is not None and found.token == token:
            outcome = await delete_certainly(self.store, path, found.version, attempts_max=1)
            if isinstance(outcome, NotDone | Unknown):
                raise to_error(outcome)

    async def drop_lease_at_last(self, name: str, uid: str, token: str, pause_s: float) -> None:
        """The same, however long the store is away."""
        while True:
            try:
                await self.drop_lease(name, uid, token)
            except MetadataUnavailableError:
                await asyncio.sleep(pause_s)
            except BookKeeperError as error:  # the session is closed, and the lease with it
                log.info("the lease of log %s stays until the session ends: %s", name, error)
                return
            else:
                return

    def _lease_path(self, name: str, uid: str) -> str:
        return f"{paths.log(self.root, name)}/{uid}/lease"

    async def _lease_at(self, path: str) -> _Lease | None:
        await self.store.sync(path)
        found = await read_certainly(self.store, path)
        if found is None:
            return None
        try:
            fields = fields_of(found[0])
            return _Lease(str(fields["token"]), str(fields["label"]), int(fields["since_ms"]), found[1])
        except (ValueError, KeyError, TypeError):
            return _Lease("", "a client whose lease is unreadable", 0, found[1])
