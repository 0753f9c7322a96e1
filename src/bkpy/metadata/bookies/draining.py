"""Draining bookies: an operator creates a node for each, which the bookie and its writers watch.

    draining/<bookie id>          its value is the name of the one node below it, which is unique
    draining/<bookie id>/<token>  since when it drains, and whether the bookie has said that it is read-only

Invariants: as long as the node is there the bookie is draining, whatever its value; the bookie's statement belongs to
this one draining, as the token is unique; only `retire` ends a draining together with the cookie.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, assert_never

from bkpy.config.shared import MetadataSettings
from bkpy.errors import CorruptDataError, MetadataConflictError, UnauthorizedError, UnsupportedVersionError
from bkpy.metadata import paths
from bkpy.metadata.store.outcome import Changed, CreateOutcome, Done, Exists, Missing, NotDone, Superseded, Unknown
from bkpy.metadata.store.resolve import (
    children_if_there,
    create_certainly,
    delete_together,
    ensure_path,
    put_certainly,
    read_certainly,
    read_if_there,
)
from bkpy.metadata.store.store import Create, Delete, MetadataStore
from bkpy.metadata.stored_record import StoredRecord, take

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from bkpy.metadata.store.outcome import DeleteOutcome, PutOutcome
    from bkpy.runtime.interfaces import Runtime

_RECORD: Final = StoredRecord("the record of a draining", version=1)
_TOKEN_BYTES = 8
_DEFAULTS = MetadataSettings()


@dataclass(frozen=True, slots=True)
class Drain:
    """A bookie that drains since `since_ms` (of the epoch), and refuses all entries since `refuses_since_ms`.

    `unreadable` says why nothing else is known of the draining; it then has no `token`.
    """

    bookie_id: str
    token: str
    since_ms: int = 0
    refuses_since_ms: int | None = None
    node_version: int = -1  # of the value; -1 if there is none
    unknown: Mapping[str, Any] = field(default_factory=dict, hash=False, repr=False)
    unreadable: str = ""

    @property
    def refuses(self) -> bool:
        """Whether the bookie has said so."""
        return self.refuses_since_ms is not None


class Drains:
    """The drainings under `root`. Reads raise `MetadataUnavailableError`."""

    def __init__(
        self, store: MetadataStore, root: str, runtime: Runtime, settings: MetadataSettings = _DEFAULTS
    ) -> None:
        self._store = store
        self._root = root
        self._runtime = runtime
        self._attempts_max = settings.metadata_write_attempts_max

    async def read(self, bookie_id: str) -> Drain | None:
        """The draining; None if the bookie is certainly not draining. An unreadable value is no error."""
        return await self._read(bookie_id, read_certainly)

    async def _read(
        self, bookie_id: str, read: Callable[[MetadataStore, str], Awaitable[tuple[bytes, int] | None]]
    ) -> Drain | None:
        """The bookie drains whatever the value is, even if this process may not read it."""
        path = paths.draining(self._root, bookie_id)
        try:
            top = await read(self._store, path)
            if top is None:
                return None
            token = paths.token_in(top[0])
            value = await read(self._store, f"{path}/{token}") if token else None
            if value is None and len(below := await children_if_there(self._store, path)) == 1:
                token = below[0]  # the value is damaged: a draining that has a node below can't be ended without that
                value = await read(self._store, f"{path}/{token}")
            if not token:
                return Drain(bookie_id, "", unreadable=f"the value of {path} names no node below it")
        except UnauthorizedError as error:
            return Drain(bookie_id, "", unreadable=str(error))
        # Without a value, it was cancelled or restarted between the two reads: the watch notices that.
        return Drain(bookie_id, token) if value is None else _decode(bookie_id, token, *value)

    async def bookies(self) -> frozenset[str]:
        """The ids of all draining bookies, as the server knows them: it may lag behind."""
        return frozenset(await children_if_there(self._store, f"{self._root}/{paths.DRAINING}"))

    async def all(self) -> list[Drain]:
        """All drainings, as the server knows them, by id."""
        found = []
        for bookie_id in sorted(await self.bookies()):
            drain = await self._read(bookie_id, read_if_there)
            if drain is not None:
                found.append(drain)
        return found

    def new_token(self) -> str:
        """For `begin`: by it the caller can `cancel` this draining alone, whether it has begun or not."""
        return self._runtime.rng.randbytes(_TOKEN_BYTES).hex()

    async def begin(self, bookie_id: str, *audit: Create, token: str | None = None) -> CreateOutcome:
        """Start to drain the bookie, and record that. `Exists` if it drains already."""
        path = paths.draining(self._root, bookie_id)
        token = self.new_token() if token is None else token
        value = _encode(Drain(bookie_id, token, int(self._runtime.clock.time() * 1000)))
        nodes = Create(path, token.encode()), Create(f"{path}/{token}", value), *audit
        outcome = await create_certainly(self._store, *nodes, attempts_max=self._attempts_max)
        if isinstance(outcome, Missing):  # the first one of the cluster
            above = await ensure_path(self._store, f"{self._root}/{paths.DRAINING}", attempts_max=self._attempts_max)
            if isinstance(above, NotDone):
                return above
            outcome = await create_certainly(self._store, *nodes, attempts_max=self._attempts_max)
        match outcome:
            case Done() | Exists() | NotDone() | Unknown() | Superseded():
                return outcome
            case Missing():
                return NotDone(MetadataConflictError(f"somebody deletes what is above {outcome.node}"))
            case _:
                assert_never(outcome)

    async def say_refusing(self, drain: Drain) -> PutOutcome:
        """The bookie's own statement: from now on, and as long as it drains, it stores no entry."""
        node = f"{paths.draining(self._root, drain.bookie_id)}/{drain.token}"
        now_ms = int(self._runtime.clock.time() * 1000)
        said = Drain(drain.bookie_id, drain.token, drain.since_ms, now_ms, unknown=drain.unknown)
        return await put_certainly(
            self._store, node, _encode(said), drain.node_version, attempts_max=self._attempts_max
        )

    async def cancel(self, drain: Drain, *audit: Create) -> DeleteOutcome:
        """End this draining, and record that: the bookie stays."""
        path = paths.draining(self._root, drain.bookie_id)
        if not drain.token:  # nothing distinguishes this draining from the next one
            return await delete_together(self._store, Delete(path), *audit, attempts_max=1)
        unique = Delete(f"{path}/{drain.token}")
        return await delete_together(self._store, unique, Delete(path), *audit, attempts_max=self._attempts_max)

    async def retire(self, drain: Drain, cookie_version: int, *audit: Create) -> DeleteOutcome:
        """Remove the bookie's cookie and its draining, if neither has changed since it was read."""
        path = paths.draining(self._root, drain.bookie_id)
        cookie = Delete(paths.cookie(self._root, drain.bookie_id), cookie_version)
        if not drain.token:  # nothing distinguishes this draining from the next one
            return await delete_together(self._store, Delete(path), cookie, *audit, attempts_max=1)
        unique = Delete(f"{path}/{drain.token}", drain.node_version)
        return await delete_together(self._store, unique, Delete(path), cookie, *audit, attempts_max=self._attempts_max)


def superseded(outcome: DeleteOutcome | PutOutcome) -> bool:
    """Whether it was refused because something else has happened to the bookie meanwhile: the caller reads again."""
    return isinstance(outcome, Missing | Changed | Superseded)


# --- the stored form ----------------------------------------------------------------------------------------------


def _encode(drain: Drain) -> bytes:
    fields = {"since_ms": drain.since_ms, "refuses_since_ms": drain.refuses_since_ms}
    return _RECORD.encode(fields, drain.unknown)


def _decode(bookie_id: str, token: str, data: bytes, node_version: int) -> Drain:
    """A value that is damaged, or of a newer version, says only that the bookie drains."""

    def made(fields: dict[str, Any]) -> Drain:
        since_ms, refuses_since_ms = take(fields, "since_ms", int), fields.pop("refuses_since_ms")
        if refuses_since_ms is not None and type(refuses_since_ms) is not int:
            raise ValueError("not a time")
        return Drain(bookie_id, token, since_ms, refuses_since_ms, node_version, fields)

    try:
        return _RECORD.decode(data, made)
    except (CorruptDataError, UnsupportedVersionError):
        return Drain(bookie_id, token, node_version=node_version)
