"""`rebuild-index`: makes new indexes for ledger directories of a stopped bookie, from entry logs and journals.

Invariants: every ledger that is found is fenced, even one that was deleted here, for tombstones were in the old index;
a ledger is in limbo if something of it is or may be lost, or if nothing of it is found and the metadata may want some
of it here; ids that were given out and are not found are fenced as well; a ledger is in one index, however many
directories have blocks of it; the new index knows every loss that the old one knew of, or may have known of. The old
index stays unchanged until the new one is whole and synced, and is kept beside it; an interrupted rebuild starts over.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from bkpy.errors import ConfigError, IdentityError
from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
from bkpy.storage.at_risk import IN_MEMORY, is_lost
from bkpy.storage.file_names import INDEX_NAME, NEW_INDEX_NAME, OLD_INDEX_NAME
from bkpy.storage.identity import Directories, decode_cookie, locked, read_cookie
from bkpy.storage.index import index
from bkpy.storage.index.tombstones import add_tombstones_up_to
from bkpy.storage.journal.format import START
from bkpy.storage.journal.reader import oldest_mark
from bkpy.storage.ledgers.ledgers import Ledgers
from bkpy.storage.memory_budget import MemoryBudget
from bkpy.storage.open import check_indexes
from bkpy.storage.replay import Replay
from bkpy.storage.shard import Shard
from bkpy.storage.tools.rebuild.builder import IndexBuilder
from bkpy.storage.tools.rebuild.lives import join_lives
from bkpy.storage.tools.rebuild.settle import (
    Settled,
    add_missing,
    ledger_ids_after,
    ledgers_without_row,
    settle,
)
from bkpy.storage.tools.rebuild.standing import Standing, standing_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from bkpy.config.bookie import BookieSettings
    from bkpy.runtime.interfaces import DiskRuntime, OrderedStore
    from bkpy.storage.identity import LedgerDirectory
    from bkpy.storage.index.index import ShardRow
    from bkpy.storage.journal.format import Mark
    from bkpy.storage.observer import StorageObserver

Lookup = Callable[[int], Awaitable[LedgerMetadata | None]]


class Catalog(NamedTuple):
    """The metadata of a cluster's ledgers.

    `lookup`: None for a ledger that there certainly isn't, or whose metadata can't be read. `ids`: those of all
    ledgers, listed anew. `newest_id`: no ledger that was created before has a higher id.
    """

    lookup: Lookup
    ids: Callable[[], AsyncIterator[int]]
    newest_id: int


class Rebuilt(NamedTuple):
    """The result of a rebuild. `damages`: (path, what); `kept`: where the old indexes are."""

    directories: list[str]
    logs: int
    blocks: int
    ledgers: int
    limbo: int
    keyless: int
    unknown: int  # not in the metadata: deleted, or never created
    missing: int  # not found, though by the metadata some of it may have to be here: in limbo; not among `ledgers`
    damages: list[tuple[str, str]]
    trusted: bool  # nothing is damaged or was lost, and there are metadata: what was not found certainly isn't here
    kept: list[str]


async def rebuild_index(
    settings: BookieSettings,
    runtime: DiskRuntime,
    *,
    instance_id: str,
    expected_cookie: bytes | None,
    catalog: Catalog | None,
    register: Callable[[bytes], Awaitable[None]],
    observer: StorageObserver,
    directories: Collection[str] = (),
    progress: Callable[[int], None] = lambda done: None,
) -> Rebuilt:
    """Make new indexes of these ledger directories, by default of all.

    `catalog` None: without metadata, so that everything is in limbo, keys are known only where a journal still has
    them, and the indexes keep their uuids. `register` stores the storage's part of the cookie in the metadata store.
    `progress` is called with the bytes of entry logs that are done. Raises `IdentityError` and `CorruptDataError`,
    which say what to do.
    """
    paths = Directories(settings, runtime.files, instance_id)
    if unknown := [path for path in directories if path not in paths.ledgers]:
        raise ConfigError(f"{unknown[0]} is not one of ledger_directories")
    with contextlib.ExitStack() as held:
        for path in paths.all:
            if not runtime.files.exists(path):
                raise IdentityError("there is no such directory: mount its disk, or correct the settings", path=path)
            held.enter_context(locked(runtime.files, path))
        rebuild = _Rebuild(settings, runtime, paths, observer, catalog, held)
        rebuild.identify(expected_cookie)
        return await rebuild.run(tuple(directories) or paths.ledgers, register, progress)


class _Rebuild:
    """One rebuild, while directories are locked. `held` releases its resources."""

    def __init__(
        self,
        settings: BookieSettings,
        runtime: DiskRuntime,
        paths: Directories,
        observer: StorageObserver,
        catalog: Catalog | None,
        held: contextlib.ExitStack,
    ) -> None:
        self._settings = settings
        self._runtime = runtime
        self._files = runtime.files
        self._paths = paths
        self._observer = observer
        self._catalog = catalog
        self._held = held
        self._worker = runtime.files.worker("rebuild")
        held.callback(self._worker.close)
        self._known: Sequence[LedgerDirectory] = ()
        self._uuids: dict[str, set[str]] = {path: set() for path in paths.ledgers}
        self._registered: dict[str, str] = {}  # the indexes' uuids, as the metadata store has them
        self._in_limbo: frozenset[int] = frozenset()  # ledgers that old indexes had in limbo

    def identify(self, expected_cookie: bytes | None) -> None:
        """See that the directories are this bookie's, whatever indexes the cookies name: an earlier rebuild may have
        been interrupted."""
        identity = self._paths.identify(expected_cookie, any_index=True)
        if not identity.known:
            raise IdentityError("there is no bookie in this directory: nothing to rebuild", path=self._paths.all[0])
        self._known = identity.known
        if identity.must_be_empty or expected_cookie is None:
            raise IdentityError(
                "the cluster doesn't know this bookie id: correct bookie_id or metadata_uri", path=self._paths.all[0]
            )
        if identity.moved or identity.new:
            raise IdentityError(
                "directories were moved or added since the bookie's last start: restore the settings of that start",
                path=self._paths.all[0],
            )
        expected = decode_cookie(expected_cookie, "the metadata store")
        self._registered = {directory.path: directory.uuid for directory in expected.ledger_directories}
        for path in self._paths.all:
            cookie = read_cookie(self._files, path)
            for directory in cookie.ledger_directories if cookie is not None else ():
                self._uuids[directory.path].add(directory.uuid)

    async def run(
        self,
        directories: Sequence[str],
        register: Callable[[bytes], Awaitable[None]],
        progress: Callable[[int], None],
    ) -> Rebuilt:
        intact = await self._open_intact([path for path in self._paths.ledgers if path not in directories])
        marks = self._first_marks([row for _, row in intact.values()])
        done, lost = 0, False
        builders: dict[str, IndexBuilder] = {}
        for path in directories:
            standing = await self._worker.run(standing_of, self._runtime, path, self._settings)
            self._in_limbo |= standing.in_limbo
            if standing.limbo or is_lost(standing.at_risk, self._files.boot_id()):
                lost = True
                self._observer.damage(
                    "the old index is gone, or in limbo, or of a run that gave up its journal or the syncs: what can't "
                    "be found counts as lost",
                    path,
                )
            builders[path] = await self._build(path, marks, standing, functools.partial(_add, progress, done))
            done += builders[path].done_bytes
        readable = await self._replay(intact, builders, lost=lost)
        sound = readable and not lost and not any(builder.lost for builder in builders.values())
        trusted = sound and self._catalog is not None
        rows = [*(row for _, row in intact.values()), *(builder.row for builder in builders.values())]
        lost_to = max(row.limbo_to for row in rows) if sound else index.U64_END
        settled = {path: await self._settle(path, sound, readable, lost_to) for path in directories}
        missing = await self._add_missing(directories)
        if trusted and not missing.limbo and not any(found.limbo for found in settled.values()):
            settled = {path: await self._keep_uuid(path, found) for path, found in settled.items()}
        kept = [old for path in directories if (old := self._install(path)) is not None]
        uuids = {path: row.uuid for path, (_, row) in intact.items()}
        uuids |= {path: found.shard.uuid for path, found in settled.items()}
        cookie = self._paths.cookie([uuids[path].hex() for path in self._paths.ledgers])
        await register(cookie.encode())
        self._paths.write(cookie)
        return Rebuilt(
            list(directories),
            sum(builder.logs for builder in builders.values()),
            sum(builder.blocks for builder in builders.values()),
            sum(found.shard.ledgers for found in settled.values()),
            sum(found.limbo for found in settled.values()),
            sum(found.keyless for found in settled.values()) + missing.keyless,
            0 if self._catalog is None else sum(found.unknown for found in settled.values()),
            missing.limbo,
            [damage for builder in builders.values() for damage in builder.damages],
            trusted,
            kept,
        )

    # --- what is there ------------------------------------------------------------------------------------------------

    def _open(self, path: str, *, create: bool = False) -> OrderedStore:
        settings = self._settings
        return self._runtime.store.open(
            path, create=create, bytes_max=settings.index_bytes_max, readers_max=settings.index_readers_max
        )

    async def _open_intact(self, directories: Sequence[str]) -> dict[str, tuple[OrderedStore, ShardRow]]:
        """The indexes that stay, with their own rows."""
        await check_indexes(self._runtime, directories)
        intact = {}
        for path in directories:
            store = self._open(f"{path}/{INDEX_NAME}")
            self._held.callback(store.close)
            row = index.load_shard(store)
            if row is None or row.uuid.hex() not in self._uuids[path]:
                raise IdentityError(
                    "the index is not the one that the cookie names; name this directory as well, for it to be made "
                    "anew",
                    path=f"{path}/{INDEX_NAME}",
                )
            intact[path] = store, row
        return intact

    def _first_marks(self, intact: Sequence[ShardRow]) -> list[Mark]:
        """Where the replay is to begin: at the oldest frame that each journal still has."""
        return [
            # Where there is no file at all, the other indexes' marks tell whether there should be some.
            oldest_mark(self._files, directory)
            or max((row.marks[number] for row in intact), key=attrgetter("sequence"), default=START)
            for number, directory in enumerate(self._paths.journals)
        ]

    # --- the steps ----------------------------------------------------------------------------------------------------

    async def _build(
        self, path: str, marks: Sequence[Mark], standing: Standing, progress: Callable[[int], None]
    ) -> IndexBuilder:
        """A new index beside the old one, with everything that is in the logs. Closed on return."""
        new = f"{path}/{NEW_INDEX_NAME}"
        if self._files.exists(new):
            self._runtime.store.remove(new)
        with contextlib.closing(self._open(new, create=True)) as store:
            row = index.initialise(store, self._new_uuid(path), len(self._paths.journals))
            # What the replay finds besides is in limbo, too.
            row = row._replace(
                marks=tuple(marks), unknown_in_limbo=True, at_risk=standing.at_risk, limbo_to=standing.limbo_to
            )
            index.put_shard(store, row)
            builder = IndexBuilder(self._files, path, store, row, self._settings)
            while await self._worker.run(builder.step):
                progress(builder.done_bytes)
        for file, what in builder.damages:
            self._observer.damage(what, file)
        return builder

    def _new_uuid(self, path: str) -> bytes:
        """Not the old index's, until it is proven that nothing was lost: others copy what a new storage should have.

        Without metadata nobody could learn of another uuid.
        """
        if self._catalog is None:
            return bytes.fromhex(next(known.uuid for known in self._known if known.path == path))
        return self._runtime.rng.randbytes(16)

    async def _replay(
        self, intact: dict[str, tuple[OrderedStore, ShardRow]], builders: dict[str, IndexBuilder], *, lost: bool
    ) -> bool:
        """Bring everything that the journals have into the indexes; whether the journals were found sound."""
        shards: list[Shard] = []
        memory = MemoryBudget(self._settings.memory_bytes_max)
        with contextlib.ExitStack() as opened:
            for number, path in enumerate(self._paths.ledgers):
                if path in intact:
                    store, row = intact[path]
                else:
                    store, row = self._open(f"{path}/{NEW_INDEX_NAME}"), builders[path].row
                    opened.callback(store.close)
                shards.append(Shard(number, path, store, row, self._runtime, self._settings, self._observer, memory))
                opened.callback(shards[-1].close)
            ledgers = Ledgers(shards, self._settings, self._observer, memory)
            rebuilt = {shard.number for shard in shards if shard.directory in builders}
            replay = Replay(
                ledgers, self._paths.journals, self._settings, self._files, self._observer, lost=lost, rebuilt=rebuilt
            )
            await replay.run()
            for number in sorted(rebuilt):
                await join_lives(ledgers, shards[number], rebuilt, replay.ends, self._settings.index_step_rows)
            return not replay.damaged

    async def _settle(self, path: str, sound: bool, readable: bool, lost_to: int) -> Settled:
        """Complete the ledgers' rows by the metadata, and note in the shard's row how to answer for other ledgers.

        `sound`: nothing is damaged or was lost. `readable`: the journals are not damaged. If they are, the next start
        finds the same damage, and must not refuse what this rebuild accepted. `lost_to`: see `settle`.
        """
        trusted = sound and self._catalog is not None
        with contextlib.closing(self._open(f"{path}/{NEW_INDEX_NAME}")) as store:
            row = index.load_shard(store)
            assert row is not None
            done = Settled(row, 0, 0, 0)
            after = -1
            while ids := await self._worker.run(
                ledger_ids_after, store, after, self._settings.metadata_requests_in_flight_max
            ):
                found = await asyncio.gather(*map(self._look_up, ids))
                metadata = dict(zip(ids, found, strict=True))
                part = await self._worker.run(
                    settle, store, done.shard, self._settings.bookie_id, metadata, lost_to, self._in_limbo
                )
                done = Settled(part.shard, *(a + b for a, b in zip(done[1:], part[1:], strict=True)))
                after = ids[-1]
            # A later rebuild can't distinguish ledgers that old indexes had in limbo from ones that nobody looked up.
            unasked = sound and not trusted and not self._in_limbo
            row = done.shard._replace(unknown_in_limbo=not trusted, unasked=unasked)
            if not readable:
                row = row._replace(at_risk=IN_MEMORY)
            await self._worker.run(self._finish, store, row)
        return done._replace(shard=row)

    def _finish(self, store: OrderedStore, row: ShardRow) -> None:
        """Let the index say what is true of ledgers that it doesn't know. Blocks."""
        with store.write() as txn:
            if self._catalog is not None:
                add_tombstones_up_to(txn, self._catalog.newest_id)
            txn.put(index.SHARD_KEY, index.encode_shard(row))

    async def _add_missing(self, directories: Sequence[str]) -> Settled:
        """Put ledgers in limbo of which nothing was found, and something may have been: in a log that is gone, say.

        Nothing in the files tells of that. They go to the first of the new indexes.
        """
        with contextlib.ExitStack() as opened:
            names = [INDEX_NAME if path not in directories else NEW_INDEX_NAME for path in self._paths.ledgers]
            indexes = [f"{path}/{name}" for path, name in zip(self._paths.ledgers, names, strict=True)]
            stores = [opened.enter_context(contextlib.closing(self._open(path))) for path in indexes]
            first = stores[names.index(NEW_INDEX_NAME)]
            row = index.load_shard(first)
            assert row is not None
            done = Settled(row, 0, 0, 0)
            if self._catalog is None:
                return done
            async for listed in self._listed(self._catalog):
                ids = await self._worker.run(ledgers_without_row, stores, listed)
                found = dict(zip(ids, await asyncio.gather(*map(self._look_up, ids)), strict=True))
                part = await self._worker.run(
                    add_missing, first, done.shard, self._settings.bookie_id, found, self._in_limbo
                )
                done = Settled(part.shard, *(a + b for a, b in zip(done[1:], part[1:], strict=True)))
            return done

    async def _keep_uuid(self, path: str, found: Settled) -> Settled:
        """Give the new index the old one's uuid. Nothing was lost, so nobody has to make copies of what is here."""
        row = found.shard._replace(uuid=bytes.fromhex(self._registered[path]))
        with contextlib.closing(self._open(f"{path}/{NEW_INDEX_NAME}")) as store:
            await self._worker.run(index.put_shard, store, row)
        return found._replace(shard=row)

    async def _listed(self, catalog: Catalog) -> AsyncIterator[list[int]]:
        """The ids that are not newer than the rebuild, some at a time."""
        batch: list[int] = []
        async for ledger_id in catalog.ids():
            if ledger_id <= catalog.newest_id:
                batch.append(ledger_id)
            if len(batch) == self._settings.metadata_requests_in_flight_max:
                yield batch
                batch = []
        if batch:
            yield batch

    async def _look_up(self, ledger_id: int) -> LedgerMetadata | None:
        return None if self._catalog is None else await self._catalog.lookup(ledger_id)

    def _install(self, path: str) -> str | None:
        """Put the new index in the place of the old one; where that is from now on, None if there was none."""
        stores, old = self._runtime.store, None
        if self._files.exists(f"{path}/{INDEX_NAME}"):
            old, number = f"{path}/{OLD_INDEX_NAME}", 0
            while self._files.exists(old):
                number += 1
                old = f"{path}/{OLD_INDEX_NAME}-{number}"
            stores.move(f"{path}/{INDEX_NAME}", old)
        stores.move(f"{path}/{NEW_INDEX_NAME}", f"{path}/{INDEX_NAME}")
        return old


def _add(progress: Callable[[int], None], before: int, done: int) -> None:
    progress(before + done)
