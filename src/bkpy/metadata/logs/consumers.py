"""Consumers of a named log: named positions, from which on the log must keep its entries.

    logs/<name>/<uid>/consumers              written with every registration, deletion and step back
    logs/<name>/<uid>/consumers/<consumer>   its position, and since when
        .../lease-<token>                    names the client that holds its lease; ends with the session

A client that takes a lease writes the consumer's node in the same transaction, and each commit checks the lease's node,
which has a name that no other ever gets. So a commit by a client that has lost its lease is refused.

Invariants: at most one client holds the lease of a consumer, and while it does nobody else moves that; a truncation
takes no entry from a consumer that was registered before it, unless its caller says so: its transaction checks
`consumers`, and a registration's checks the list; a position is replaced only by a caller that has read it, of the same
registration; none lies past the known end of the log, since retention would delete entries there before anybody has
read them; at most `log_consumers_max` are registered.
"""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, assert_never

from bkpy.errors import (
    BookKeeperError,
    ConfigError,
    ConsumerLockedError,
    MetadataConflictError,
    MetadataUnavailableError,
    NoSuchConsumerError,
    NoSuchLogError,
    TruncatedError,
)
from bkpy.metadata import paths
from bkpy.metadata.store.outcome import Changed, Done, Missing, NotDone, Superseded, Unknown, to_error
from bkpy.metadata.store.resolve import children_if_there, delete_certainly, put_certainly, read_certainly
from bkpy.metadata.store.store import Check, Create, Delete, Put
from bkpy.metadata.stored_record import StoredRecord, fields_of, take
from bkpy.protocol.log.client_info import client_info
from bkpy.protocol.log.log_list import checked_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from bkpy.errors import ClientInfo
    from bkpy.metadata.logs.catalog import LogStore
    from bkpy.metadata.store.store import Operation
    from bkpy.protocol.log.log_list import LogList

_RECORD: Final = StoredRecord("a consumer of a log", version=1)
_LEASE: Final = StoredRecord("the lease of a consumer", version=1)
_LEASE_PREFIX: Final = "lease-"


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """The next position that a consumer reads, and since when it is this one (milliseconds since the epoch)."""

    position: int
    since_ms: int
    token: str = field(default="", repr=False)  # unique to the object that wrote it
    lease: str = field(default="", repr=False)  # the token of the last client that took the lease
    unknown: Mapping[str, Any] = field(default_factory=dict, hash=False, repr=False)


@dataclass(frozen=True, slots=True)
class Registered:
    """All consumers of a log, by name. A transaction with `check` fails once there are others."""

    states: dict[str, ConsumerState]
    check: Check
    checks: dict[str, Check]  # of each consumer: fails once it has moved


@dataclass(frozen=True, slots=True)
class _StoredState:
    """What is stored of one consumer. `state` is None if it isn't registered."""

    state: ConsumerState | None
    version: int
    all_version: int


class LogConsumers:
    """The consumers of the log `name` with this `uid`, and not of another log of that name.

    Its writes carry a token of its own. So it recognises a write whose reply was lost, or whose call was cancelled.
    """

    def __init__(
        self, logs: LogStore, name: str, uid: str, known_end: Callable[[int], Awaitable[int]] | None = None
    ) -> None:
        """`known_end` returns the position up to which the log is known to reach, and looks again if that is below its
        argument; without it, the list decides.
        """
        self._known_end = known_end
        self._logs = logs
        self._store = logs.store
        self._settings = logs.settings
        self._log = name
        self._uid = uid
        self._token = logs.new_token()
        self._leased = False
        self._folder = f"{paths.log(logs.root, name)}/{uid}/consumers"

    async def registered(self) -> Registered:
        """All consumers, and a check that they are all. Raises `NoSuchLogError`."""
        await self._store.sync(self._folder)
        top = await read_certainly(self._store, self._folder)
        if top is None:
            raise NoSuchLogError(f"log {self._log} has been deleted")
        names = await children_if_there(self._store, self._folder)
        states, checks = {}, {}
        step = self._settings.log_consumer_reads_at_once
        for begin in range(0, len(names), step):
            some = names[begin : begin + step]
            nodes = await asyncio.gather(*(read_certainly(self._store, f"{self._folder}/{name}") for name in some))
            for name, found in zip(some, nodes, strict=True):
                if found is not None:
                    states[name] = _decode(self._log, name, found[0])
                    checks[name] = Check(f"{self._folder}/{name}", found[1])
        return Registered(states, Check(self._folder, top[1]), checks)

    async def find(self, consumer: str) -> ConsumerState | None:
        """The state of the consumer; None if there is none of that name. Raises `NoSuchLogError`."""
        return (await self._known(consumer)).state

    async def register(self, consumer: str, position: int | None) -> ConsumerState:
        """The state of the consumer. A new one is registered at `position`, or if that is None at the log's first.

        Raises `TruncatedError` for a position that was truncated, `ConfigError` for one past the end or if there are
        too many consumers, `NoSuchLogError`, `MetadataConflictError`, `MetadataUnavailableError`.
        """
        node = self._node(consumer)
        for _ in range(self._settings.log_conflicts_max):
            known = await self._known(consumer)
            if known.state is not None:
                return known.state
            if position is not None:
                await self._check_end(position)
            log_list, version = await self._list()
            at = log_list.first_position if position is None else position
            self._check_position(log_list, at)
            await self._check_number()
            state = self._state(at, {})
            create = Create(node, _encode(state))
            if await self._committed(known.all_version, create, self._logs.list_check(self._log, version)):
                return state
        raise self._given_up()

    async def commit(self, consumer: str, position: int, expected: ConsumerState) -> ConsumerState:
        """Move the consumer forward or back, if it is in the `expected` state or one that this object wrote.

        Returns its new state. Raises `MetadataConflictError` if it is in another state, as somebody else uses its name;
        `ConsumerLockedError` if another client holds the lease, or this one has lost it; `TruncatedError` for a
        position that was truncated, `ConfigError` for one past the end, `NoSuchLogError`, `MetadataUnavailableError`.
        """
        node = self._node(consumer)
        await self._check_end(position)
        leased = self._leased
        state = self._state(position, expected.unknown, self._token if leased else "")
        lease = [Check(self._lease_path(consumer), 0)] if leased else []
        for attempt in range(self._settings.log_conflicts_max):
            known = await self._known(consumer)
            if attempt and known.state == state:  # an earlier attempt has done it, and its reply was lost
                return state
            if known.state is not None and known.state.lease and not leased:
                await self._check_free(consumer)
            if known.state is None or (known.state != expected and known.state.token != self._token):
                if leased:
                    raise await self._lost(consumer)
                raise MetadataConflictError(
                    f"consumer {consumer} of log {self._log} is not at position {expected.position} any more: "
                    "somebody else uses that name",
                    retriable=False,
                )
            if position >= known.state.position:
                check = Check(self._folder, known.all_version)
                done = await self._put(node, _encode(state), known.version, check, *lease)
            else:
                log_list, version = await self._list()
                self._check_position(log_list, position)
                put = Put(node, _encode(state), known.version)
                done = await self._committed(known.all_version, put, self._logs.list_check(self._log, version), *lease)
            if done:
                return state
            if leased and not await self._holds(consumer):
                raise await self._lost(consumer)
        raise self._given_up()

    @property
    def leased(self) -> bool:
        """Whether this object has taken the lease; it may have ended since."""
        return self._leased

    # --- leases -----------------------------------------------------------------------------------------------------

    async def lock(self, consumer: str, label: str) -> ConsumerState:
        """Take the lease of the consumer until the session ends, for a client with this label; returns its state.

        Raises `ConsumerLockedError` if another client has it, `NoSuchConsumerError`. If the call fails otherwise, the
        lease may have been taken: `unlock` gives it up.
        """
        node = self._node(consumer)
        value = _LEASE.encode({"token": self._token, "label": label, "since_ms": self._logs.now_ms()})
        lease = Create(self._lease_path(consumer), value, ephemeral=True)
        for _ in range(self._settings.log_conflicts_max):
            known = await self._known(consumer)
            if known.state is None:
                raise no_such_consumer(self._log, consumer)
            if known.state.lease == self._token:  # an earlier attempt has done it, and its reply was lost
                self._leased = True
                return known.state
            await self._check_free(consumer)
            state = dataclasses.replace(known.state, token=self._token, lease=self._token)
            if await self._put(node, _encode(state), known.version, lease):
                self._leased = True
                return state
        raise self._given_up()

    async def unlock(self, consumer: str) -> None:
        """Give up the lease that `lock` took, or may have taken."""
        path, attempts_max = self._lease_path(consumer), self._settings.metadata_write_attempts_max
        outcome = await delete_certainly(self._store, path, attempts_max=attempts_max)
        if isinstance(outcome, NotDone | Unknown):
            raise to_error(outcome)

    async def unlock_at_last(self, consumer: str, pause_s: float) -> None:
        """Give up the lease, however long the store is away."""
        while True:
            try:
                await self.unlock(consumer)
            except MetadataUnavailableError:
                await asyncio.sleep(pause_s)
            except BookKeeperError:
                return  # the session is closed, and the lease with it
            else:
                return

    async def holder(self, consumer: str) -> ClientInfo | None:
        """The client that holds the lease of the consumer; None if nobody does."""
        node = self._node(consumer)
        for name in await self._leases(node):
            found = await read_certainly(self._store, f"{node}/{name}")
            if found is not None:
                fields = fields_of(found[0])
                label, since_ms = fields.get("label"), fields.get("since_ms")
                since_ms = since_ms if isinstance(since_ms, int) else 0
                return client_info(label if isinstance(label, str) else "a client", since_ms)
        return None

    async def _leases(self, node: str) -> list[str]:
        await self._store.sync(node)
        return [name for name in await children_if_there(self._store, node) if name.startswith(_LEASE_PREFIX)]

    async def _check_free(self, consumer: str) -> None:
        """Raise if another client holds the lease."""
        if (holder := await self.holder(consumer)) is not None:
            raise self._locked(f"consumer {consumer} of log {self._log} is leased to {holder}", holder)

    async def _holds(self, consumer: str) -> bool:
        return f"{_LEASE_PREFIX}{self._token}" in await self._leases(self._node(consumer))

    async def _lost(self, consumer: str) -> ConsumerLockedError:
        """The error of a client whose lease has ended. It does not get it back."""
        holder = await self.holder(consumer)
        now = "nobody holds it now" if holder is None else f"it is leased to {holder}"
        error = self._locked(f"the lease of consumer {consumer} of log {self._log} has ended, and {now}", holder)
        error.retriable = False
        return error

    def _locked(self, message: str, holder: ClientInfo | None) -> ConsumerLockedError:
        error = ConsumerLockedError(message)
        error.holder = holder
        return error

    def _lease_path(self, consumer: str) -> str:
        return f"{self._node(consumer)}/{_LEASE_PREFIX}{self._token}"

    # --- the end ----------------------------------------------------------------------------------------------------

    async def delete(self, consumer: str) -> bool:
        """Remove the consumer, whatever its value is; False if there was none. The log then keeps no entries for it."""
        node = self._node(consumer)
        was_there = False
        for _ in range(self._settings.log_conflicts_max):
            all_version, found = await self._stored(node)
            if found is None:
                return was_there
            was_there = True
            leases = [Delete(f"{node}/{name}", 0) for name in await self._leases(node)]
            if await self._committed(all_version, *leases, Delete(node, found[1])):
                return True
        raise self._given_up()

    def _node(self, consumer: str) -> str:
        return f"{self._folder}/{checked_name(consumer, 'consumer')}"

    async def _stored(self, node: str) -> tuple[int, tuple[bytes, int] | None]:
        """The version of the common node, and the consumer's own value and version."""
        await self._store.sync(self._folder)
        # The common node comes first: the check of its version notices any later change.
        top = await read_certainly(self._store, self._folder)
        if top is None:
            raise NoSuchLogError(f"log {self._log} has been deleted")
        return top[1], await read_certainly(self._store, node)

    async def _known(self, consumer: str) -> _StoredState:
        all_version, found = await self._stored(self._node(consumer))
        if found is None:
            return _StoredState(None, -1, all_version)
        return _StoredState(_decode(self._log, consumer, found[0]), found[1], all_version)

    async def _list(self) -> tuple[LogList, int]:
        log_list, version = await self._logs.read(self._log, fresh=True)
        if log_list.uid != self._uid:
            raise NoSuchLogError(f"log {self._log} has been deleted, and there is another one of that name")
        return log_list, version

    async def _check_end(self, position: int) -> None:
        if self._known_end is not None and position > (end := await self._known_end(position)):
            raise ConfigError(
                f"log {self._log} is known to reach up to position {end}, so no consumer can be at {position}"
            )

    def _check_position(self, log_list: LogList, position: int) -> None:
        if log_list.behind(position) < log_list.first_position:
            raise TruncatedError(f"log {self._log} begins at position {log_list.first_position}, not at {position}")
        if not log_list.open_segments and position > log_list.sealed_end:
            raise ConfigError(f"log {self._log} ends before position {log_list.sealed_end}, not {position}")

    async def _check_number(self) -> None:
        """Raise if there may be no further one. A registration meanwhile changes the common node, and we look again."""
        bound = self._settings.log_consumers_max
        if len(await children_if_there(self._store, self._folder)) >= bound:
            raise ConfigError(
                f"log {self._log} has {bound} consumers already, as many as log_consumers_max allows: delete "
                "unused ones, or raise that setting"
            )

    async def _committed(self, all_version: int, *operations: Operation) -> bool:
        """Whether they are done, together with a write of the common node; if not, the caller tries again."""
        return await self._put(self._folder, self._logs.new_token().encode(), all_version, *operations)

    async def _put(self, node: str, data: bytes, version: int, *others: Operation) -> bool:
        attempts_max = self._settings.metadata_write_attempts_max
        outcome = await put_certainly(self._store, node, data, version, *others, attempts_max=attempts_max)
        match outcome:
            case Done():
                return True
            case Changed() | Missing() | Superseded():  # the caller reads it again
                return False
            case NotDone() | Unknown():
                raise to_error(outcome)
            case _:
                assert_never(outcome)

    def _state(self, position: int, unknown: Mapping[str, Any], lease: str = "") -> ConsumerState:
        return ConsumerState(int(position), self._logs.now_ms(), self._token, lease, unknown)

    def _given_up(self) -> MetadataConflictError:
        return MetadataConflictError(f"the consumers of log {self._log} change all the time")


async def consumers_of(logs: LogStore, name: str) -> LogConsumers:
    """The consumers of the log that has this name now. Raises `NoSuchLogError`."""
    log_list, _ = await logs.read(name)
    return LogConsumers(logs, name, log_list.uid)


def no_such_consumer(log: str, consumer: str) -> NoSuchConsumerError:
    """There is none of that name."""
    return NoSuchConsumerError(
        f"log {log} has no consumer {consumer}: check the name, or register it with create=True, so that entries are "
        "kept for it from then on"
    )


def _encode(state: ConsumerState) -> bytes:
    fields = {"position": state.position, "since_ms": state.since_ms, "token": state.token}
    if state.lease:
        fields["lease"] = state.lease
    return _RECORD.encode(fields, state.unknown)


def _decode(log: str, consumer: str, data: bytes) -> ConsumerState:
    def made(fields: dict[str, Any]) -> ConsumerState:
        position, since_ms = take(fields, "position", int), take(fields, "since_ms", int)
        if position < 0:
            raise ValueError("the position is below 0")
        token, lease = take(fields, "token", str), take(fields, "lease", str) if "lease" in fields else ""
        return ConsumerState(position, since_ms, token, lease, fields)

    return _RECORD.decode(data, made, what=f"consumer {consumer} of log {log}")
