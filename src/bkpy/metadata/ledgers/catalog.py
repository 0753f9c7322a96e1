"""The catalogue of ledgers: creating, reading, replacing, deleting and listing their metadata.

Invariants: one call of `create` creates at most one ledger, whatever is lost on the way, and none if it is cancelled; a
write replaces exactly the version that its caller has read; the catalogue resolves a write with an unknown outcome, or
returns that outcome as a value; *no such ledger* never comes from a server that lags behind.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, assert_never

from bkpy.config.client import ClientSettings
from bkpy.errors import ConfigError, MetadataConflictError, NoSuchClusterError, NoSuchLedgerError
from bkpy.metadata import paths
from bkpy.metadata.ledgers.layout import IdGenerator, Layout, NewId, held_ids, next_id
from bkpy.metadata.replication.underreplication import UnderreplicationQueue
from bkpy.metadata.store.outcome import (
    CreateOutcome,
    DeleteOutcome,
    Done,
    Exists,
    Missing,
    NotDone,
    PutOutcome,
    Superseded,
    Unknown,
    to_error,
)
from bkpy.metadata.store.resolve import (
    Answer,
    attempt,
    create_certainly,
    delete_certainly,
    delete_together,
    ensure_path,
    put_certainly,
    read_certainly,
)
from bkpy.metadata.store.store import Check, Create, Delete, MetadataStore, NoNode, SessionState, Watch, parent_of
from bkpy.protocol.ledger.ledger_metadata import LEDGER_ID_MAX, LedgerMetadata, LedgerState

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence

    from bkpy.errors import UnauthorizedError
    from bkpy.metadata.bookies.registration import AbsentBookie
    from bkpy.metadata.replication.locks import LedgerLock
    from bkpy.runtime.interfaces import Runtime

_DEFAULTS = ClientSettings()


@dataclass(frozen=True, slots=True)
class Created:
    """A new ledger's metadata, as they are stored at `version`. `absent`: bookies that it was created without."""

    metadata: LedgerMetadata
    version: int
    absent: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class NotKnown:
    """Nothing was created: this absent bookie drains by now, or its cookie has changed or gone."""

    bookie_id: str


class IdsGiven(NamedTuple):
    """The ids that were given out up to one moment: all are below `below`.

    A ledger with one of the ids in `held` may still be created. No other new ledger gets an id below `below`.
    """

    below: int
    held: frozenset[int]


class NewIds(Protocol):
    """Where the ids of new ledgers come from."""

    async def next(self) -> NewId | NotDone: ...


class LedgerCatalog:
    """The ledgers under `root`. Reads raise `MetadataUnavailableError` when the store can't be reached in time.

    `codec` decodes what is stored of a ledger. `new_ids` gives out ids as the layout does, by default. `has_marks`:
    the cluster has under-replication records of bkpy.
    """

    def __init__(
        self,
        store: MetadataStore,
        root: str,
        layout: Layout,
        runtime: Runtime,
        settings: ClientSettings = _DEFAULTS,
        *,
        codec: type[LedgerMetadata] = LedgerMetadata,
        new_ids: NewIds | None = None,
        has_marks: bool = True,
    ) -> None:
        self.layout = layout
        self.has_marks = has_marks
        self._codec = codec
        self._store = store
        self._root = root
        self._runtime = runtime
        self._settings = settings
        self._attempts_max = settings.metadata_write_attempts_max
        self._new_ids = new_ids or IdGenerator(store, root, layout, attempts_max=self._attempts_max)
        self._taking_back: set[asyncio.Task[None]] = set()

    @property
    def reachable(self) -> bool:
        """Whether there is a connection to the store now."""
        return self._store.state is SessionState.CONNECTED

    def path_of(self, ledger_id: int) -> str:
        return self.layout.path_of(self._root, ledger_id)

    async def create(
        self, build: Callable[[int], LedgerMetadata], absent: Sequence[AbsentBookie] = ()
    ) -> Created | NotKnown | NotDone | Unknown:
        """Store a new ledger's metadata, which `build` makes of its new id. The error of `Unknown` names the ledger.

        `build` may be called again with another id. The value's `owner_token` must be unique to this call. Bookies that
        are `absent` are in the under-replication record that the same transaction makes.
        """
        for _ in range(self._settings.ledger_id_attempts_max):
            new = await self._new_ids.next()
            if isinstance(new, NotDone):
                return new
            try:
                metadata = _checked(build(new.ledger_id), new.ledger_id)
            except BaseException:
                await self._discard(new.node)
                raise
            ledger = Create(self.path_of(new.ledger_id), metadata.encode())
            try:
                outcome = await self._create_at(new.ledger_id, ledger, Delete(new.node), absent)
            except GeneratorExit:  # the loop has ended: nothing can take the ledger back
                raise
            except BaseException:  # nobody will use the ledger
                work = self._take_back(ledger, new.node)
                task = self._runtime.spawn(work, name=f"take back ledger {new.ledger_id}")
                self._taking_back.add(task)
                task.add_done_callback(self._taking_back.discard)
                raise
            match outcome:
                case Done():
                    if not absent:
                        return Created(metadata, outcome.version)
                    return Created(metadata, outcome.version, frozenset(one.bookie_id for one in absent))
                case NotKnown():
                    await self._discard(new.node)
                    return outcome
                case Exists() | Missing():
                    # Somebody chose this id for a ledger, or the session ended, and the id's node with it.
                    await self._discard(new.node)
                    await asyncio.sleep(self._runtime.rng.random() * self._settings.ledger_id_pause_max_s)
                case Superseded():
                    what = "the ledger may have been made, and somebody else has changed or deleted it since"
                    return Unknown(MetadataConflictError(what, ledger_id=new.ledger_id))
                case NotDone():
                    return outcome  # the node of the id ends with the session
                case Unknown():
                    return Unknown(to_error(outcome, ledger_id=new.ledger_id))
                case _:
                    assert_never(outcome)
        count = self._settings.ledger_id_attempts_max
        return NotDone(MetadataConflictError(f"{count} new ledger ids in a row were taken or lost"))

    async def newest_id(self) -> int | NotDone:
        """An id at least as high as that of any ledger until now: ledgers created from now on get higher ones.

        Lists all ledgers, because callers may have chosen the ids of some.
        """
        new = await self._new_ids.next()
        if isinstance(new, NotDone):
            return new
        await self._discard(new.node)
        newest = new.ledger_id
        async for ledger_id in self.ids():
            newest = max(newest, ledger_id)
        return newest

    async def ids_given(self) -> IdsGiven:
        """The ids that were given out until now; a listing that begins afterwards misses at most the `held` ones.

        Ids are drawn in order, but their ledgers are created in any order.
        """
        await self._store.sync(self._root)
        try:
            below = await next_id(self._store, self._root, self.layout)
            return IdsGiven(below, frozenset(await held_ids(self._store, self._root, self.layout)))
        except NoNode:
            raise NoSuchClusterError(f"there is no cluster under {self._root} any more") from None

    async def _create_at(
        self, ledger_id: int, ledger: Create, id_node: Delete, absent: Sequence[AbsentBookie]
    ) -> CreateOutcome | NotKnown:
        marks = self.marks()
        others: tuple[Create | Delete | Check, ...] = (id_node,)
        if absent:
            lost = marks.absent_now({one.bookie_id: one.instance for one in absent})
            others = (id_node, *marks.nodes_of(ledger_id, lost), *(op for one in absent for op in self._stays(one)))
        # The first ledger of its partition, the first record of its own, and the first draining of the cluster.
        above = (parent_of(ledger.path), marks.partition_of(ledger_id), f"{self._root}/{paths.DRAINING}")
        outcome = await create_certainly(self._store, ledger, *others, attempts_max=self._attempts_max)
        for _ in range(self._attempts_max * len(above)):  # one after the other may be missing
            if not isinstance(outcome, Missing) or (parent := parent_of(outcome.node)) not in above:
                break
            made = await ensure_path(self._store, parent, attempts_max=self._attempts_max)
            if isinstance(made, NotDone):
                return made
            outcome = await create_certainly(self._store, ledger, *others, attempts_max=self._attempts_max)
        if isinstance(outcome, Exists | Missing):
            for one in absent:
                if outcome.node in (stay.path for stay in self._stays(one)):
                    return NotKnown(one.bookie_id)
        return outcome

    def _stays(self, bookie: AbsentBookie) -> tuple[Check, Create, Delete]:
        """For a transaction that names an absent bookie: refused if it was decommissioned, or drains."""
        draining = paths.draining(self._root, bookie.bookie_id)  # a store can't check that there is no node
        return (
            Check(paths.cookie(self._root, bookie.bookie_id), bookie.cookie_version),
            Create(draining, b""),
            Delete(draining),
        )

    async def _discard(self, id_node: str) -> None:
        # The outcome doesn't matter: at the latest the node ends with the session.
        await delete_certainly(self._store, id_node, attempts_max=1)

    async def close(self) -> None:
        """Wait until ledgers of cancelled creations are gone, for `metadata_close_timeout_s` at most."""
        if self._taking_back:
            await asyncio.wait(self._taking_back, timeout=self._settings.metadata_close_timeout_s)

    async def _take_back(self, ledger: Create, id_node: str) -> None:
        """Delete a ledger whose creation was cancelled, if it is there and unchanged."""
        # If the session has ended, an empty ledger is left that nobody knows.
        await self._discard(id_node)
        found = await attempt(read_certainly(self._store, ledger.path))
        if isinstance(found, Answer) and found.value == (ledger.data, 0):
            await delete_certainly(self._store, ledger.path, 0, attempts_max=self._attempts_max)

    async def read(self, ledger_id: int, *, fresh: bool = False) -> tuple[LedgerMetadata, int]:
        """The metadata and its version, `fresh` if no earlier write may be missed: a server's answer may be old.

        Raises `NoSuchLedgerError`, which is never old, `CorruptDataError`, `UnsupportedVersionError`.
        """
        path = self.path_of(ledger_id)
        if fresh:
            await self._store.sync(path)
        found = await read_certainly(self._store, path)
        if found is None:
            raise NoSuchLedgerError("there is no such ledger", ledger_id=ledger_id)
        return self._codec.decode(ledger_id, found[0]), found[1]

    async def written_ms(self, ledger_id: int) -> int:
        """When the metadata were last written, by the clock of the metadata store. Raises `NoSuchLedgerError`."""
        path = self.path_of(ledger_id)
        await self._store.sync(path)
        try:
            return await self._store.written_ms(path)
        except NoNode:
            raise NoSuchLedgerError("there is no such ledger", ledger_id=ledger_id) from None

    async def closed_before(self, ledger_id: int, ms: int) -> bool:
        """Whether the ledger was CLOSED at that time and is unchanged since, or is gone.

        By the clock of the metadata store. Raises the errors of `read`, except `NoSuchLedgerError`.
        """
        try:
            metadata, _ = await self.read(ledger_id)
            return metadata.state is LedgerState.CLOSED and await self._store.written_ms(self.path_of(ledger_id)) < ms
        except (NoSuchLedgerError, NoNode):
            return True

    def marks(self) -> UnderreplicationQueue:
        """The under-replication records of these ledgers."""
        return UnderreplicationQueue(self._store, self._root, self._runtime)

    def watch(self, ledger_id: int) -> Watch:
        """Wakes whenever the ledger's metadata may have changed or gone. The caller closes it."""
        return self._store.watch(self.path_of(ledger_id))

    async def write(self, metadata: LedgerMetadata, expected_version: int) -> PutOutcome:
        """Replace the metadata, if they are at `expected_version`."""
        path = self.path_of(metadata.ledger_id)
        return await put_certainly(
            self._store, path, metadata.encode(), expected_version, attempts_max=self._attempts_max
        )

    async def write_locked(self, metadata: LedgerMetadata, expected_version: int, lock: LedgerLock) -> PutOutcome:
        """The same, and only while the ledger's re-replication lock is held; else `Missing` names the lock's proof."""
        path = self.path_of(metadata.ledger_id)
        held = Check(lock.proof, 0)
        return await put_certainly(
            self._store, path, metadata.encode(), expected_version, held, attempts_max=self._attempts_max
        )

    async def delete(self, ledger_id: int, *checks: Check | Create) -> DeleteOutcome:
        """Remove the ledger and make nodes, if the `checks` pass: else `Changed`, or `Missing` with an index."""
        path = self.path_of(ledger_id)
        if not checks:
            return await delete_certainly(self._store, path, attempts_max=self._attempts_max)
        return await delete_together(self._store, Delete(path), *checks, attempts_max=self._attempts_max)

    async def delete_locked(self, ledger_id: int, version: int, lock: LedgerLock, *audit: Create) -> DeleteOutcome:
        """Remove the ledger at this version while the lock is held: `Changed` at another, else as `delete`."""
        ledger = Delete(self.path_of(ledger_id), version)
        held = Check(lock.proof, 0)
        return await delete_together(self._store, ledger, held, *audit, attempts_max=self._attempts_max)

    async def ids(self) -> AsyncIterator[int]:
        """The ids of all ledgers, ascending; one partition is in flight at a time.

        A ledger that exists during the whole listing is in it; one that is created or deleted meanwhile may be.
        """
        async for partition in self.partitions():
            for ledger_id in partition:
                yield ledger_id

    async def listed(self, ledger_ids: Sequence[int]) -> set[int]:
        """The ids of `ledger_ids`, which ascend, that exist; lists the partitions between them, one at a time.

        A ledger that exists during the whole call is in it. `BookKeeperError` if any of the partitions can't be listed.
        """
        wanted = set(ledger_ids)
        found: set[int] = set()
        async for partition in self.partitions(ledger_ids[0], ledger_ids[-1]):
            found.update(wanted.intersection(partition))
        return found

    async def partitions(
        self,
        first: int = 0,
        last: int = LEDGER_ID_MAX,
        *,
        skipped: Callable[[str, UnauthorizedError], None] | None = None,
    ) -> AsyncGenerator[list[int], None]:
        """See `Layout.partitions`; from a server that has caught up."""
        await self._store.sync(self._root)
        async for partition in self.layout.partitions(self._store, self._root, first, last, skipped=skipped):
            yield partition


def _checked(metadata: LedgerMetadata, ledger_id: int) -> LedgerMetadata:
    if metadata.ledger_id != ledger_id:
        raise ConfigError(f"the metadata is for ledger {metadata.ledger_id}", ledger_id=ledger_id)
    return metadata
