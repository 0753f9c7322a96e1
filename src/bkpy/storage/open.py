"""Brings the storage up: locks, identity, shards, replay of the journals, and only then new journal files.

Invariants: nothing is changed in directories that don't belong to this bookie; what is replayed is checkpointed before
anything new is journaled; limbo is durable before a mark moves past the damage that is its reason.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, NamedTuple

from bkpy.config.base import MIB
from bkpy.errors import CorruptDataError, IdentityError, ProtocolError, StorageFailedError
from bkpy.protocol.messages import decode_add
from bkpy.storage.engine import LedgerStorage
from bkpy.storage.entry_log.entry_log import log_id_of
from bkpy.storage.identity import COOKIE_NAME, Cookie, LedgerDirectory, check, decode_cookie, read_cookie, write_cookie
from bkpy.storage.index import index
from bkpy.storage.journal.format import Record, RecordKind, decode_ledger, decode_records, file_id_of
from bkpy.storage.journal.journal import Journal, JournalWriter
from bkpy.storage.journal.replay import Frame, JournalReplay, cut, refuse
from bkpy.storage.ledgers.info import take_explicit_lac
from bkpy.storage.memtable.split import split
from bkpy.storage.shard import Shard

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from bkpy.config.bookie import BookieSettings
    from bkpy.runtime.interfaces import DiskRuntime, Files, OrderedStore
    from bkpy.storage.index.index import ShardRow
    from bkpy.storage.observer import StorageObserver

LOCK_NAME: Final = "lock"
INDEX_NAME: Final = "index"


async def open_storage(
    settings: BookieSettings,
    runtime: DiskRuntime,
    instance_id: str,
    expected_cookie: bytes | None,
    observer: StorageObserver,
    on_moved: Callable[[bytes], Awaitable[None]] | None,
) -> LedgerStorage:
    """See `LedgerStorage.open`."""
    with contextlib.ExitStack() as cleanup:
        starter = _Starter(settings, runtime, instance_id, expected_cookie, observer, on_moved, cleanup)
        try:
            storage = await starter.start()
        except OSError as e:
            raise StorageFailedError(f"the storage can't be opened: {e}", path=e.filename) from e
        cleanup.pop_all()  # the storage has it now
    return storage


class _Identity(NamedTuple):
    """What the directories' cookies say. `known` are those of an earlier start, `new` is created in this one."""

    known: tuple[LedgerDirectory, ...]
    new: tuple[str, ...]
    moved: bool  # some are at other paths than at the earlier start
    must_be_empty: bool  # the cluster does not know this bookie: there may be leftovers of a first start, but no data


class _Starter:
    def __init__(
        self,
        settings: BookieSettings,
        runtime: DiskRuntime,
        instance_id: str,
        expected_cookie: bytes | None,
        observer: StorageObserver,
        on_moved: Callable[[bytes], Awaitable[None]] | None,
        cleanup: contextlib.ExitStack,
    ) -> None:
        self._settings = settings
        self._runtime = runtime
        self._files: Files = runtime.files
        self._instance_id = instance_id
        self._expected = expected_cookie
        self._observer = observer
        self._on_moved = on_moved
        self._cleanup = cleanup
        self._journal_directories = [_trim(path) for path in settings.journal_directories]
        self._ledger_directories = [_trim(path) for path in settings.ledger_directories]

    async def start(self) -> LedgerStorage:
        locks = contextlib.ExitStack()
        self._cleanup.callback(locks.close)
        for directory in (*self._journal_directories, *self._ledger_directories):
            self._files.make_dirs(directory)
            try:
                locks.enter_context(self._files.lock(f"{directory}/{LOCK_NAME}"))
            except BlockingIOError:
                raise IdentityError("another process uses this directory; stop it first", path=directory) from None
        identity = self._identify()
        if not identity.known:  # a new bookie: all directories at once, then the cookie, then the first journal file
            identity = self._create(identity)
        indexes = [self._known_index(directory) for directory in identity.known]
        shards = [
            self._shard(number, directory.path, *indexes[number]) for number, directory in enumerate(identity.known)
        ]
        storage = LedgerStorage(self._settings, self._runtime, self._observer, shards, locks.close)
        self._cleanup.callback(storage.release)
        await self._replay(storage)
        if identity.must_be_empty and any(shard.row.ledgers for shard in storage.shards):
            raise IdentityError(
                "the directories hold ledgers, but the cluster doesn't know this bookie id: either its metadata was "
                "lost, or this is another cluster's bookie; correct bookie_id or metadata_uri, or use empty ones",
                path=storage.shards[0].directory,
            )
        uuids = [shard.row.uuid.hex() for shard in storage.shards]
        for path in identity.new:
            uuids.append(self._add_shard(storage, path))
        cookie = self._cookie(uuids)
        if identity.moved and self._on_moved is not None:
            await self._on_moved(cookie.encode())
        for directory in (*self._journal_directories, *self._ledger_directories):
            if read_cookie(self._files, directory) != cookie:
                write_cookie(self._files, directory, cookie)
        storage.cookie = cookie.encode()
        await self._begin(storage)
        return storage

    # --- identity -----------------------------------------------------------------------------------------------------

    def _identify(self) -> _Identity:
        """Compare cookies, settings and what the metadata store has; `IdentityError` on any disagreement."""
        directories = (*self._journal_directories, *self._ledger_directories)
        found = {path: cookie for path in directories if (cookie := read_cookie(self._files, path)) is not None}
        expected = None if self._expected is None else decode_cookie(self._expected, "the metadata store")
        newest = max(found.values(), key=lambda cookie: len(cookie.ledger_directories), default=expected)
        if newest is None:
            for path in directories:
                self._check_no_data(path)
            return _Identity((), tuple(self._ledger_directories), False, True)
        if expected is not None and not found and set(directories).isdisjoint(expected.paths):
            raise IdentityError(
                f"bookie_id {self._settings.bookie_id} is in use with other directories ({', '.join(expected.paths)}): "
                "give this bookie another --bookie_id, or, if it is that one, name its directories",
                path=directories[0],
            )
        moves = self._moves(found)
        if moves:
            found = {path: cookie.moved(moves) for path, cookie in found.items()}
            expected = expected and expected.moved(moves)
            newest = newest.moved(moves)
        where = next((path for path, cookie in found.items() if cookie == newest), "the metadata store")
        for path, cookie in (*found.items(), *([("the metadata store", expected)] if expected else [])):
            self._check_cookie(cookie, path)
            if not newest.extends(cookie):
                raise IdentityError(
                    f"the cookies of {path} and {where} disagree; restore the one that is wrong", path=path
                )
        self._check_cookie(newest, where)
        needed = set() if expected is None else set(expected.paths)
        for path in directories:
            if path in needed and path not in found:
                raise IdentityError(
                    f"this directory has no cookie, but bookie {self._settings.bookie_id} has data in it: mount its "
                    "disk; if the disk is lost, or this is to be another bookie, give it another --bookie_id",
                    path=path,
                )
            if path not in found:
                self._check_no_data(path)
        known = newest.ledger_directories
        new = tuple(self._ledger_directories[len(known) :])
        if moves and new:
            raise IdentityError(
                "directories were moved and others added; start the bookie once with the former alone", path=new[0]
            )
        return _Identity(known, new, bool(moves), expected is None)

    def _moves(self, found: Mapping[str, Cookie]) -> dict[str, str]:
        """Old and new paths of directories that were moved since they were used last, with the cookies in them.

        What the metadata store has is told first of a move, so only the cookies in directories can be those from
        before: directories that say otherwise than it are an old copy, and are refused later.
        """
        moves: dict[str, str] = {}
        for cookie in found.values():
            ledgers = [directory.path for directory in cookie.ledger_directories]
            if len(cookie.journal_directories) != len(self._journal_directories):
                continue
            for old, new in (
                *zip(cookie.journal_directories, self._journal_directories, strict=True),
                *zip(ledgers, self._ledger_directories, strict=False),
            ):
                if new != old and new in found and new not in cookie.paths:
                    moves[old] = new
        for old, new in moves.items():
            # Bookies of before kept relative paths as they were given, which say nothing of where that was.
            if old.startswith("/") and self._files.exists(f"{old}/{COOKIE_NAME}"):
                raise IdentityError(
                    f"this seems to be a copy of {old}, which is still there and may be newer; name that one, or "
                    f"remove it if {new} is its latest state",
                    path=new,
                )
        return moves

    def _check_cookie(self, cookie: Cookie, where: str) -> None:
        check(
            cookie,
            where,
            bookie_id=self._settings.bookie_id,
            instance_id=self._instance_id,
            journal_directories=self._journal_directories,
            ledger_directories=self._ledger_directories,
        )

    def _check_no_data(self, path: str) -> None:
        for name in self._files.listdir(path):
            if file_id_of(name) is not None or log_id_of(name) is not None:
                raise IdentityError(
                    f"this directory holds data ({name}), but no {COOKIE_NAME}: it is another bookie's or was damaged; "
                    "use an empty directory",
                    path=path,
                )

    def _cookie(self, uuids: list[str]) -> Cookie:
        ledger_directories = tuple(map(LedgerDirectory, self._ledger_directories, uuids))
        return Cookie(self._settings.bookie_id, self._instance_id, tuple(self._journal_directories), ledger_directories)

    def _create(self, identity: _Identity) -> _Identity:
        known = []
        for path in identity.new:
            store, row = self._new_index(path)
            store.close()
            known.append(LedgerDirectory(path, row.uuid.hex()))
        cookie = self._cookie([directory.uuid for directory in known])
        for path in (*self._journal_directories, *self._ledger_directories):
            write_cookie(self._files, path, cookie)
        return _Identity(tuple(known), (), False, True)

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
        row = index.load_shard(store)
        if row is not None and row.ledgers:
            store.close()
            raise IdentityError("this directory's index holds ledgers, but it has no cookie", path=path)
        if row is None:
            row = index.initialise(store, self._runtime.rng.randbytes(16), len(self._journal_directories))
        self._files.sync_dir(path)
        self._files.sync_dir(directory)
        return store, row

    def _known_index(self, directory: LedgerDirectory) -> tuple[OrderedStore, ShardRow]:
        path = f"{directory.path}/{INDEX_NAME}"
        try:
            store = self._open_index(path)
        except FileNotFoundError:
            raise IdentityError(
                "this directory's index is gone; restore it, or start a new bookie under a new bookie_id", path=path
            ) from None
        self._cleanup.callback(store.close)
        row = index.load_shard(store)
        if row is None or row.uuid.hex() != directory.uuid:
            raise IdentityError("the index is not the one that the cookie names; restore the right one", path=path)
        with store.read() as txn:
            sound = index.ledgers_fit(txn, row)
        if not sound:
            self._observer.damage("rows of the index were lost or damaged: all its ledgers are in limbo", path)
            row = index.put_all_in_limbo(store, row)
        return store, row

    def _shard(self, number: int, directory: str, store: OrderedStore, row: ShardRow) -> Shard:
        return Shard(number, directory, store, row, self._runtime, self._settings, self._observer)

    def _add_shard(self, storage: LedgerStorage, directory: str) -> str:
        """A further ledger directory: everything journaled so far is in the others' indexes already."""
        store, row = self._new_index(directory)
        row = row._replace(marks=tuple(storage.positions))
        # Before the cookies name it: a later start that found its first marks would miss journals that are long gone.
        index.put_shard(store, row)
        storage.add_shard(self._shard(len(storage.shards), directory, store, row))
        return row.uuid.hex()

    # --- replay -------------------------------------------------------------------------------------------------------

    async def _replay(self, storage: LedgerStorage) -> None:
        storage.positions = [
            min((shard.row.marks[number] for shard in storage.shards), key=lambda mark: mark.sequence)
            for number in range(len(self._journal_directories))
        ]
        for number, directory in enumerate(self._journal_directories):
            await self._replay_journal(storage, number, directory)
        if not all(shard.active.empty for shard in storage.shards):
            await storage.checkpoint()

    async def _replay_journal(self, storage: LedgerStorage, number: int, directory: str) -> None:
        read_bytes = self._settings.journal_read_bytes
        replay = JournalReplay(self._files, directory, number, storage.positions[number], read_bytes=read_bytes)
        frames = size = damages = 0
        for frame in replay:
            damages = self._judge(storage, replay, damages)
            self._apply(storage, number, frame)
            storage.positions[number] = frame.end
            frames, size = frames + 1, size + len(frame.body)
            storage.trim()
            for shard in storage.shards:
                if shard.memory_bytes >= storage.generation_bytes_max:
                    await storage.checkpoint_shard(shard)
        self._judge(storage, replay, damages)
        storage.positions[number] = replay.end
        if replay.torn is not None:
            path, offset = replay.torn
            self._observer.damage(
                f"a torn frame at offset {offset}, never acknowledged, was cut; a copy is in {path}.broken", path
            )
            cut(self._files, path, offset, read_bytes=read_bytes)
        for path in replay.unfinished:  # a start that found no space left them behind, and this one needs it
            self._files.unlink(path)
        self._observer.replayed(frames, size)

    def _judge(self, storage: LedgerStorage, replay: JournalReplay, seen: int) -> int:
        """Act on damage that was found since the last frame; returns how many places there are."""
        if len(replay.damages) > seen:
            if self._settings.journal_damage == "refuse":
                raise refuse(replay.damages)
            for damage in replay.damages[seen:]:
                self._observer.damage(f"at offset {damage.offset}: {damage.what}", damage.path)
            storage.distrust_everything()
        return len(replay.damages)

    def _apply(self, storage: LedgerStorage, number: int, frame: Frame) -> None:
        for record in decode_records(frame.body, frame.records):
            if record.kind == RecordKind.ADD:
                self._apply_add(storage, number, frame.sequence, record)
            else:
                self._apply_state(storage, number, frame.sequence, record)

    def _apply_add(self, storage: LedgerStorage, number: int, sequence: int, record: Record) -> None:
        try:
            columns = decode_add(record.head, len(record.body))
        except ProtocolError as e:
            raise CorruptDataError(f"an add record of the journal can't be read: {e}") from e
        for ledger_id in set(columns.ledger_ids):
            if storage.load_now(ledger_id) is None:
                self._introduce_lost(storage, ledger_id)
        for home, part in split(columns, record.head, record.body, storage.shard_of).items():
            shard = storage.shards[home]
            if sequence >= shard.row.marks[number].sequence:
                storage.store(shard, part.columns, part.body)

    def _introduce_lost(self, storage: LedgerStorage, ledger_id: int) -> None:
        """A ledger whose key record is missing: only damage explains that."""
        if not storage.untrusted:
            raise CorruptDataError(
                "the journal has entries of a ledger whose key it doesn't have, although it isn't damaged",
                ledger_id=ledger_id,
            )
        storage.introduce(ledger_id, b"")

    def _apply_state(self, storage: LedgerStorage, number: int, sequence: int, record: Record) -> None:
        ledger_id = decode_ledger(record.head)
        state = storage.load_now(ledger_id)
        if state is not None and sequence < storage.shards[state.shard].row.marks[number].sequence:
            return
        body = bytes(record.body)
        if state is None and record.kind == RecordKind.EXPLICIT_LAC:
            self._introduce_lost(storage, ledger_id)
            state = storage.load_now(ledger_id)
        elif state is None:
            state = storage.introduce(ledger_id, body)
        assert state is not None
        if record.kind == RecordKind.FENCE:
            state.fenced = True
            storage.fenced.add(ledger_id)
        elif record.kind == RecordKind.EXPLICIT_LAC:
            take_explicit_lac(state, body)
        if record.kind != RecordKind.EXPLICIT_LAC and not state.key:
            state.key = body
        storage.touch(state)

    # --- beginning ----------------------------------------------------------------------------------------------------

    async def _begin(self, storage: LedgerStorage) -> None:
        """Begin new journal files, and let the marks point at them: nothing before is needed any more."""
        settings = self._settings
        for number, directory in enumerate(self._journal_directories):
            writer = JournalWriter(
                self._runtime,
                directory,
                number,
                file_bytes_max=settings.journal_max_size_mb * MIB,
                backups=settings.journal_max_backups,
                recycled_max=settings.journal_recycled_files_max,
                end=storage.positions[number],
            )
            storage.positions[number] = writer.begin_file()
            storage.journals.append(
                Journal(
                    writer,
                    self._runtime,
                    name=f"journal-{number}",
                    group_bytes_max=settings.journal_group_bytes_max,
                    queue_bytes_max=settings.journal_queue_bytes_max,
                    on_written=storage.look_for_space,
                    on_failure=storage.fail,
                    observer=self._observer,
                )
            )
        await storage.checkpoint()
        storage.periodic = self._runtime.spawn(storage.checkpoint_forever(), name="checkpoints", on_death=storage.fail)


def _trim(path: str) -> str:
    return path.rstrip("/") or "/"
