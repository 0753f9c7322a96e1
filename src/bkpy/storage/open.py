"""Opens the storage: locks, identity, shards, replay of the journals, and only then new journal files.

Invariants: it changes nothing in directories that don't belong to this bookie; it checkpoints replayed records before
anything new is journaled; it makes no engine before all of that succeeded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, NamedTuple

from bkpy.config.base import MIB
from bkpy.errors import BookKeeperError, CorruptDataError, IdentityError, StorageFailedError
from bkpy.storage import at_risk
from bkpy.storage.engine import LedgerStorage
from bkpy.storage.file_names import INDEX_NAME
from bkpy.storage.identity import Directories, Identity, LedgerDirectory, locked
from bkpy.storage.index import index
from bkpy.storage.index.shrink import remove_copy, shrink, worth_shrinking
from bkpy.storage.index.tombstones import damaged_tombstones, replace_damaged_tombstones
from bkpy.storage.journal.format import START
from bkpy.storage.journal.journal import JournalWriter
from bkpy.storage.ledgers.ledgers import Ledgers
from bkpy.storage.memory_budget import MemoryBudget
from bkpy.storage.observer import NO_OBSERVER, StorageObserver
from bkpy.storage.replay import Replay
from bkpy.storage.shard import Shard
from bkpy.storage.space.reclaimer import Reclaimer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from bkpy.config.bookie import BookieSettings
    from bkpy.runtime.interfaces import DiskRuntime, OrderedStore
    from bkpy.storage.index.index import ShardRow
    from bkpy.storage.journal.format import Mark


async def open_storage(
    settings: BookieSettings,
    runtime: DiskRuntime,
    *,
    instance_id: str,
    expected_cookie: bytes | None,
    observer: StorageObserver = NO_OBSERVER,
    on_moved: Callable[[bytes], Awaitable[None]] | None = None,
    on_restart: Callable[[bytes], Awaitable[None]] | None = None,
    limbo_to: int = -1,
) -> LedgerStorage:
    """Check identity, replay the journals, and return the storage, ready.

    `expected_cookie`: the storage's part of what the metadata store has for this bookie id; None for an id that is new
    to the cluster, whose directories must be new too. `on_moved` is to store the new one before those in directories,
    when these are at other paths now. With `on_restart`, which does the same, all directories may be empty although the
    id isn't new: then every ledger is in limbo. `limbo_to`: for an id that is new to the cluster, but that another
    storage had once: no ledger up to this one is denied. `IdentityError` and `CorruptDataError` say what to do.
    """
    directories = Directories(settings, runtime.files, instance_id)
    with contextlib.ExitStack() as held:
        opening = _Opening(settings, runtime, observer, directories, held)
        try:
            opening.lock()
            if on_restart is not None and expected_cookie is not None:
                expected_cookie = await opening.restart(expected_cookie, on_restart)
            recovered = await opening.recover(expected_cookie, on_moved, limbo_to)
            reclaimers = opening.make_reclaimers(recovered.ledgers)
            journals = opening.begin_journals(recovered.ledgers, recovered.ends)
            parts = held.pop_all()
            held.callback(parts.close)  # the storage's own, once there is one
            storage = LedgerStorage(
                settings,
                runtime,
                observer,
                recovered.ledgers,
                reclaimers,
                journals,
                recovered.cookie,
                parts.close,
                opening.memory,
            )
            held.callback(storage.release)
            for journal in journals:
                held.callback(journal.give_back)
            await storage.checkpoint()  # lets the marks point at the new files: nothing before is needed any more
            storage.scrub.start()
            # What was at risk is in the indexes now, or in limbo. Last: a start that fails puts nothing at risk.
            try:
                await storage.put_at_risk(at_risk.mark_of(settings, opening.boot_id))
            except BaseException:
                with contextlib.suppress(BookKeeperError):
                    await storage.put_at_risk(at_risk.NOTHING)
                raise
        except OSError as e:
            raise StorageFailedError(f"failed to open the storage: {e}", path=e.filename) from e
        held.pop_all()
    storage.checkpoint_periodically()
    return storage


def initialise_storage(
    settings: BookieSettings,
    runtime: DiskRuntime,
    *,
    instance_id: str,
    expected_cookie: bytes | None,
    limbo_to: int = -1,
) -> tuple[bytes, bool]:
    """Make directories, indexes and cookies of a new bookie: (its cookie, whether anything was new). Blocks.

    `limbo_to`: see `open_storage`. A crash leaves what the next call, or a start, goes on from. `IdentityError` where a
    start would refuse.
    """
    directories = Directories(settings, runtime.files, instance_id)
    with contextlib.ExitStack() as held:
        try:
            return _Opening(settings, runtime, NO_OBSERVER, directories, held).initialise(expected_cookie, limbo_to)
        except OSError as e:
            raise StorageFailedError(f"failed to create the storage: {e}", path=e.filename) from e


class _Recovered(NamedTuple):
    """The parts of an engine, with all that the directories hold in the indexes. `ends`: of the journals."""

    ledgers: Ledgers
    ends: Sequence[Mark]
    cookie: bytes


class _Opening:
    """One start. `held` releases its resources when it fails, or when the storage ends."""

    def __init__(
        self,
        settings: BookieSettings,
        runtime: DiskRuntime,
        observer: StorageObserver,
        directories: Directories,
        held: contextlib.ExitStack,
    ) -> None:
        self._settings = settings
        self._runtime = runtime
        self._files = runtime.files
        self._observer = observer
        self._directories = directories
        self._held = held
        self.boot_id = runtime.files.boot_id()
        self.memory = MemoryBudget(settings.memory_bytes_max)

    async def recover(
        self, expected_cookie: bytes | None, on_moved: Callable[[bytes], Awaitable[None]] | None, limbo_to: int
    ) -> _Recovered:
        """Check the directories, replay the journals and add new directories."""
        identity = self._directories.identify(expected_cookie)
        if not identity.known:  # a new bookie: all directories at once, then the cookie, then the first journal file
            identity = self._create(identity)
        await check_indexes(self._runtime, [directory.path for directory in identity.known])
        ledgers = Ledgers(self._known_shards(identity.known), self._settings, self._observer, self.memory)
        self._held.callback(ledgers.close)
        if identity.must_be_empty:
            for shard in ledgers.shards:
                shard.doubt_up_to(limbo_to)
        # Who was never known to the cluster was never asked to store anything.
        lost = not identity.must_be_empty and self._look_for_loss(ledgers)
        journals = self._directories.journals
        replay = Replay(ledgers, journals, self._settings, self._files, self._observer, lost=lost)
        await replay.run()
        if identity.must_be_empty and any(shard.row.ledgers for shard in ledgers.shards):
            raise _unknown_to_the_cluster(ledgers.shards[0].directory)
        for path in identity.new:
            self._add_shard(ledgers, path, replay.ends)
        cookie = self._directories.cookie([shard.row.uuid.hex() for shard in ledgers.shards])
        if identity.moved and on_moved is not None:
            await on_moved(cookie.encode())
        self._directories.write(cookie)
        for directory in self._directories.all:  # all of which have this bookie's cookie now
            paths = [path for path in (directory, f"{directory}/{INDEX_NAME}") if self._files.exists(path)]
            if False in [self._files.restrict(path) for path in paths]:
                logging.getLogger("bkpy.bookie").warning(
                    "other accounts may read %s: it, or a file in it, belongs to another account", directory
                )
        return _Recovered(ledgers, replay.ends, cookie.encode())

    async def restart(self, expected_cookie: bytes, on_restart: Callable[[bytes], Awaitable[None]]) -> bytes:
        """Give a bookie whose disks were lost new indexes, in which everything is in limbo; its cookie from now on.

        It does nothing if each directory has a cookie. `IdentityError` if only some have one, or there is data. After a
        crash another call finishes: the metadata store gets the new indexes first, and no journal begins before every
        directory has its cookie.
        """
        if not self._directories.restart(expected_cookie):
            return expected_cookie
        uuids = []
        for path in self._directories.ledgers:
            store, row = self._new_index(path)
            with contextlib.closing(store):
                row = row._replace(
                    unknown_in_limbo=True, unasked=False, marks=(START,) * len(self._directories.journals)
                )
                index.put_shard(store, row._replace(at_risk=at_risk.NOTHING))  # an index without ledgers may be older
            uuids.append(row.uuid.hex())
        cookie = self._directories.cookie(uuids)
        await on_restart(cookie.encode())
        self._directories.write(cookie)
        self._observer.damage("all that this bookie had is lost: its ledgers are in limbo", self._directories.all[0])
        return cookie.encode()

    def _look_for_loss(self, ledgers: Ledgers) -> bool:
        """Whether the last run lost what it had acknowledged: then everything is in limbo on return, durably."""
        lost = [shard for shard in ledgers.shards if at_risk.is_lost(shard.row.at_risk, self.boot_id)]
        if lost:
            ledgers.distrust_everything()
        for shard in lost:
            self._observer.damage(at_risk.loss(shard.row.at_risk), shard.directory)
        return bool(lost)

    def initialise(self, expected_cookie: bytes | None, limbo_to: int) -> tuple[bytes, bool]:
        """See `initialise_storage`."""
        self.lock()
        identity = self._directories.identify(expected_cookie)
        if identity.known and not identity.must_be_empty:
            return self._directories.cookie([d.uuid for d in identity.known]).encode(), False
        for path in self._directories.journals:  # they may hold what no index knows of yet
            self._directories.check_no_journal(path)
        if not identity.known:
            identity = self._create(identity)
        for directory in identity.known:
            store, row = self._known_index(directory)
            with contextlib.closing(store):
                if row.ledgers:
                    raise _unknown_to_the_cluster(directory.path)
                index.doubt_up_to(store, row, limbo_to)
        cookie = self._directories.cookie([d.uuid for d in identity.known])
        self._directories.write(cookie)  # an earlier try may have got to some of them
        return cookie.encode(), True

    def lock(self) -> None:
        """Let nobody else use the directories."""
        for directory in self._directories.all:
            self._files.make_dirs(directory)
            self._held.enter_context(locked(self._files, directory))

    def _create(self, identity: Identity) -> Identity:
        known = []
        for path in identity.new:
            store, row = self._new_index(path)
            store.close()
            known.append(LedgerDirectory(path, row.uuid.hex()))
        self._directories.write(self._directories.cookie([directory.uuid for directory in known]))
        return identity._replace(known=tuple(known), new=())

    # --- shards -------------------------------------------------------------------------------------------------------

    def _open_index(self, path: str, *, create: bool = False) -> OrderedStore:
        settings = self._settings
        return self._runtime.store.open(
            path, create=create, bytes_max=settings.index_bytes_max, readers_max=settings.index_readers_max
        )

    def _new_index(self, directory: str) -> tuple[OrderedStore, ShardRow]:
        """A new index; one that a start left behind before it got to the cookies is taken if it is empty."""
        path = f"{directory}/{INDEX_NAME}"
        store = self._open_index(path, create=True)
        with _closed_on_error(store):
            row = index.load_shard(store)
            if row is not None and row.ledgers:
                raise IdentityError(
                    "this directory's index holds ledgers, but it has no cookie: use an empty directory (`bkpy bookie "
                    "format --force` empties this one)",
                    path=path,
                )
            if row is None:
                row = index.initialise(store, self._runtime.rng.randbytes(16), len(self._directories.journals))
            self._files.sync_dir(path)
            self._files.sync_dir(directory)
        return store, row

    def _known_shards(self, known: Sequence[LedgerDirectory]) -> list[Shard]:
        shards: list[Shard] = []
        with contextlib.ExitStack() as opened:  # the caller's, once all are found to be right
            for number, directory in enumerate(known):
                shards.append(self._shard(number, directory.path, *self._known_index(directory)))
                opened.callback(shards[-1].close)
            opened.pop_all()
        return shards

    def _known_index(self, directory: LedgerDirectory) -> tuple[OrderedStore, ShardRow]:
        path = f"{directory.path}/{INDEX_NAME}"
        try:
            store = self._open_index(path)
        except FileNotFoundError:
            raise IdentityError(
                "this directory's index is gone; restore it, make a new one of the entry logs with `bkpy bookie "
                "rebuild-index`, or start a new bookie under a new bookie_id (`bkpy bookie format` empties these "
                "directories)",
                path=path,
            ) from None
        with _closed_on_error(store):
            remove_copy(directory.path, self._runtime)
            try:
                row = index.load_shard(store)
            except CorruptDataError as e:
                e.path = path
                raise damaged_index(e) from e
            if row is None or row.uuid.hex() != directory.uuid:
                raise IdentityError(
                    "the index is not the one that the cookie names; restore the right one, or, if `bkpy bookie "
                    "rebuild-index` was interrupted, run that again",
                    path=path,
                )
            if len(row.marks) != len(self._directories.journals):
                raise IdentityError(
                    f"the index has marks of {len(row.marks)} journals, and there are {len(self._directories.journals)}"
                    ": a change of their number was interrupted; run `bkpy bookie cookie update` once more",
                    path=path,
                )
            with store.read() as txn:
                sound = index.ledgers_fit(txn, row)
                fences_sound = not damaged_tombstones(txn)
            if not sound or not fences_sound:
                self._observer.damage("rows of the index were lost or damaged: all its ledgers are in limbo", path)
                row = index.put_all_in_limbo(store, row)
            if not fences_sound:  # in a transaction behind that of the limbo, which fences what they may have covered
                replace_damaged_tombstones(store)
            if worth_shrinking(store, self._settings):
                store = shrink(store, directory.path, self._runtime, self._settings)
            return store, row

    def _shard(self, number: int, directory: str, store: OrderedStore, row: ShardRow) -> Shard:
        """The shard, which closes its index from here on."""
        with _closed_on_error(store):
            return Shard(number, directory, store, row, self._runtime, self._settings, self._observer, self.memory)

    def _add_shard(self, ledgers: Ledgers, directory: str, ends: Sequence[Mark]) -> None:
        """A further ledger directory: everything journaled so far is in the others' indexes already."""
        store, row = self._new_index(directory)
        row = row._replace(marks=tuple(ends))
        # Before the cookies name it: a later start that found its first marks would miss journals that are long gone.
        with _closed_on_error(store):
            index.put_shard(store, row)
        ledgers.add_shard(self._shard(len(ledgers.shards), directory, store, row))

    def make_reclaimers(self, ledgers: Ledgers) -> list[Reclaimer]:
        """The reclaimer of each shard's space; each has a thread."""
        reclaimers = []
        for shard in ledgers.shards:
            reclaimers.append(Reclaimer(shard, self._runtime, self._settings, self._observer))
            self._held.callback(reclaimers[-1].close)
        return reclaimers

    # --- journals -----------------------------------------------------------------------------------------------------

    def begin_journals(self, ledgers: Ledgers, ends: Sequence[Mark]) -> list[JournalWriter]:
        """Begin a new file of each journal, behind what was read of it: all or none."""
        settings = self._settings
        run = at_risk.run_state(settings, [shard.row for shard in ledgers.shards])
        writers = []
        with contextlib.ExitStack() as begun:
            for number, (directory, end) in enumerate(zip(self._directories.journals, ends, strict=True)):
                writer = JournalWriter(
                    self._runtime,
                    directory,
                    number,
                    file_bytes_max=settings.journal_max_size_mb * MIB,
                    backups=settings.journal_max_backups,
                    recycled_max=settings.journal_recycled_files_max,
                    uncache_bytes_min=settings.journal_uncache_bytes_min,
                    end=end,
                    run=run,
                )
                writer.begin_file()
                begun.callback(writer.abandon_file)  # if another can't be begun: each try would reserve as much again
                self._held.callback(writer.close)
                writers.append(writer)
            begun.pop_all()
        return writers


async def check_indexes(runtime: DiskRuntime, directories: Sequence[str]) -> None:
    """`CorruptDataError` if the index of one of these ledger directories is damaged so that it can't be used.

    Rows have checksums, which are looked at when rows are. This is about what leads to them: damage there may end the
    process, or hide a row, which would be a denial. All are looked at beside each other.
    """
    with contextlib.ExitStack() as begun:
        checks = []
        for number, path in enumerate(directories):
            worker = runtime.files.worker(f"check-{number}")
            begun.callback(worker.close)
            checks.append(worker.run(runtime.store.check, f"{path}/{INDEX_NAME}"))
        try:
            await asyncio.gather(*checks)
        except CorruptDataError as e:
            raise damaged_index(e) from e


def damaged_index(error: CorruptDataError) -> CorruptDataError:
    """The error of a bookie whose index can't be used, with what to do about it."""
    return CorruptDataError(
        f"the index is damaged: {error.message}; restore the directory, or make a new index of the entry logs with "
        "`bkpy bookie rebuild-index`",
        path=error.path,
    )


def _unknown_to_the_cluster(directory: str) -> IdentityError:
    return IdentityError(
        "the directories hold ledgers, but the cluster doesn't know this bookie id: either its metadata was "
        "lost, or this is another cluster's bookie; correct bookie_id or metadata_uri, or use empty ones; if "
        "the bookie's cookie alone is gone there, `bkpy bookie cookie update` writes it again",
        path=directory,
    )


@contextlib.contextmanager
def _closed_on_error(store: OrderedStore) -> Iterator[None]:
    try:
        yield
    except BaseException:
        store.close()
        raise
