"""The storage run: one bookie's storage through many lives, with rebuilds of its index, on a disk that fails.

No bookie is around it, and no cluster: a model says what the metadata have of each ledger, writes what clients,
recoveries and copiers would, collects what may be collected, and mends what was lost as the integrity check does. In
each life entries are added, ledgers fenced, hidden, deleted and stored again, beside checkpoints, compaction and the
scrub, until the storage is closed, killed, loses power, or an operation of the disk crashes or fails it. Between two
lives settings change, directories are added, bytes rot, files vanish, indexes are damaged and made anew.

It holds that the bookie denies nothing that it has acknowledged, has all of it unless something may have been lost
since, forgets no fence, starts whenever it has to, and that the integrity check makes it whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from typing import TYPE_CHECKING, Any

from bkpy.errors import BookKeeperError, StorageFailedError
from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bkpy.protocol.wire.records import RecordCodec
from bkpy.storage.cookies import CookieUpdate
from bkpy.storage.index.index import ledger_rows, trash_rows
from bkpy.storage.losses import Losses
from bkpy.storage.open import open_storage
from bkpy.storage.space.deletion import hide
from bkpy.storage.tools.rebuild.rebuild import Catalog, rebuild_index
from tests.unit.storage.support import (
    INSTANCE,
    KEY,
    Batch,
    Reports,
    add,
    check_living_bytes,
    read_all,
    reclaim,
    records,
    settings,
)

from .coverage_marks import (
    BATCH_KEPT,
    COLLECTED,
    DIRECTORY_ADDED,
    INDEX_REBUILT,
    LIMBO,
    REBUILT,
    ROTTEN,
    SECOND_LIFE,
    SPARE_COLLECTED,
    WHOLE_AGAIN,
)
from .store import SimStores
from .world import HostDied, World

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable

    from bkpy.config.bookie import BookieSettings
    from bkpy.storage.engine import LedgerStorage

LEDGERS = 6  # at a time
IDS = 30
BOOKIE = "bookie-1"
OPERATIONS = ("pwritev", "open", "fdatasync", "commit", "link", "unlink", "sync_dir", "rename", "allocate")
PATHS = ("/b", "ledgers", "journal")
SYNCED = {"journal_write_data": True, "journal_sync_data": True}
MEMORY, PAGE_CACHE = "memory", "page cache"
DEATHS = ("crash", "power cut")
MODES = (*[SYNCED] * 4, {**SYNCED, "journal_sync_data": False}, {**SYNCED, "journal_write_data": False})
# The smallest that makes sense, some, and what bounds nothing here.
BOUNDS: dict[str, tuple[float, ...]] = {
    "journal_run_bytes_min": (1, 2000, 1 << 30),
    "journal_run_share_min": (0.0, 0.5),
    "journal_max_backups": (0, 1),
    "journal_recycled_files_max": (0, 1, 2),
    "block_bytes": (1, 4096),
    "checkpoint_commit_ledgers": (1, 2, 100),
    "compaction_commit_bytes": (1, 50_000),
    "compaction_step_bytes": (1, 50_000),
    "entry_log_blocks_max": (1, 5, 1000),
    "index_step_rows": (1, 3, 100),
    "ledger_states_max": (1, 3, 100),
    "memtable_bytes_max": (20_000, 300_000, 1 << 24),
    "metadata_requests_in_flight_max": (1, 100),
    "rebuild_step_blocks": (1, 5, 1000),
    "scrub_step_bytes": (1, 4096),
}
FIXED = {
    "compaction_free_bytes_min": 0,
    "disk_free_bytes_min": 0,
    "index_shrink_bytes_min": 0,
    "index_free_share_max": 0.1,
}


def payload(ledger_id: int, entry_id: int) -> bytes:
    """Of an entry: the same in each of its ledger's lives."""
    times = (1, 1, 50, 400, 1500)[(ledger_id * 7 + entry_id * 3) % 5]
    return b"%d/%d." % (ledger_id, entry_id) * times


class Ledger:
    """A ledger as the metadata and its clients know it.

    `stage`: `open` and `closed` name the bookie, `elsewhere` is a recovery's or a copier's that does not name it yet
    and may, `spare` is CLOSED and never named it, or no longer, `gone` is in the metadata no more. `acknowledged`: what
    may not be denied; `doubtful` of it: what may be lost; `unnoticed` of that: what nothing tells of but the index,
    and the metadata as long as they name the bookie.
    """

    def __init__(self, ledger_id: int, stage: str) -> None:
        self.ledger_id = ledger_id
        self.stage = stage
        self.last: int | None = None  # as soon as it is CLOSED
        self.acknowledged: set[int] = set()
        self.doubtful: set[int] = set()
        self.unnoticed: set[int] = set()
        self.fenced = False
        self.lives = 0  # that ended

    @property
    def named(self) -> bool:
        return self.stage in ("open", "closed")

    def close(self) -> None:
        """Let it end behind what the bookie has without a gap: what lies behind that is no entry of it."""
        if self.last is None:
            self.last = min(set(range(IDS + 1)) - self.acknowledged) - 1
            self.acknowledged &= set(range(self.last + 1))
            self.doubtful &= self.acknowledged
            self.unnoticed &= self.acknowledged

    @property
    def metadata(self) -> LedgerMetadata:
        state = LedgerState.CLOSED if self.last is not None else LedgerState.OPEN
        return LedgerMetadata(
            ledger_id=self.ledger_id,
            state=state if self.last is not None or self.named else LedgerState.IN_RECOVERY,
            ensemble_size=1,
            write_quorum=1,
            ack_quorum=1,
            digest="crc32c",
            ledger_key=KEY,
            fragments=(Fragment(0, (BOOKIE if self.named else "another",)),),
            last_entry=-1 if self.last is None else self.last,
        )


class StorageRun:
    """All of one run."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed, disk_latency_s=(0.0, 0.0005))
        self.host = self.world.add_host(BOOKIE)
        self.plan = self.world.stream("plan")
        plan = self.plan
        # A third of the runs is about ledgers that are collected and copied here again, a third about damaged journals.
        self.stress = self.world.stream("stress")
        self.theme = self.stress.choice(("", "lives", "journals"))
        self.directories, self.journals = plan.choice((1, 1, 1, 2)), plan.choice((1, 1, 2))
        self.values: dict[str, Any] = {name: plan.choice(values) for name, values in BOUNDS.items()} | FIXED
        self.values["journal_damage"] = plan.choice(("refuse", "limbo"))
        self.values |= plan.choice(MODES)
        if self.theme == "lives" and self.stress.random() < 0.4:
            self.values |= MODES[-1]
        self.cookie: bytes | None = None
        self.ledgers: dict[int, Ledger] = {}
        self.newest_id = 0
        self.reports = Reports()
        self.faulty = False  # something was let fail that may end the present process
        self.risk = ""  # what the storage has acknowledged is in memory alone, or in the page cache
        self.unsynced = False  # old journal files may have holes: there was no sync, or bytes of them rotted
        self.rotten = False  # some bytes are other than they were written
        self.anew = False  # all disks were lost
        self.started_with = 0  # directories, at the last start

    @property
    def settings(self) -> BookieSettings:
        return settings(journals=self.journals, ledgers=self.directories, **self.values)

    def _note(self, what: str) -> None:
        self.host.record("note", what)

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        self.world.run(main, limit_s=1e9)

    async def lives(self) -> None:
        """Some lives, and the last one, in which nothing fails and all that was lost comes back."""
        for _ in range(self.plan.randint(3, 9)):
            await self._life()
            await self._between_lives()
        await self._end()

    # --- a life -------------------------------------------------------------------------------------------------------

    async def _life(self) -> None:
        """From a start to an end of whatever kind."""
        plan = self.plan
        if plan.random() < 0.4:
            self._let_something_fail()
        ending = plan.choice(("close", "close", "crash", "power cut"))
        if not await self._in_process(self._live(ending)) and ending == "close":
            ending = plan.choice(DEATHS)
        self._stop(ending)

    async def _in_process(self, call: Coroutine[Any, Any, None]) -> bool:
        """Run it in a process of its own; whether it came to its end. It must, unless something was let fail."""
        self.host.boot()
        try:
            await self.host.start(call)
        except HostDied:
            return False
        except (BookKeeperError, OSError) as e:
            if not self.faulty:
                raise
            self._note(f"failed: {e!r}")
            return False
        return True

    def _stop(self, ending: str) -> None:
        """End the process, if it is still there, and what was let fail."""
        self._note(ending)
        disk = self.host.disk
        disk.heal()
        if ending == "power cut":
            self.host.power_cut()
        elif self.host.up:
            self.host.crash()
        else:
            disk.crash()
        self.faulty = False
        if (self.risk == MEMORY and ending != "close") or (self.risk == PAGE_CACHE and ending == "power cut"):
            self._doubt_everything()
            self.risk = ""

    def _let_something_fail(self) -> None:
        disk, plan = self.host.disk, self.plan
        self.faulty = True
        if self.theme == "journals" and self.stress.random() < 0.5:
            disk.crash_at(self.stress.randint(1, 8), operation="fdatasync", path=self.stress.choice(PATHS[1:]))
        elif plan.random() < 0.6:
            disk.crash_at(plan.randint(5, 400))
        else:
            disk.fail_at(
                plan.randint(1, 60),
                plan.choice((errno.ENOSPC, errno.EIO)),
                operation=plan.choice(OPERATIONS),
                path=plan.choice(PATHS),
                repeat=plan.random() < 0.3,
            )

    async def _start(self) -> LedgerStorage:
        async def register(cookie: bytes) -> None:
            self.cookie = cookie

        self.reports = Reports()
        storage = await open_storage(
            self.settings,
            self.host.runtime,
            instance_id=INSTANCE,
            expected_cookie=self.cookie,
            observer=self.reports,
            on_moved=register,
            on_restart=register if self.anew else None,
        )
        self.world.marks[BATCH_KEPT] += bool(self._files(".txn"))
        self.cookie, self.anew, self.started_with = storage.cookie, False, self.directories
        written, synced = self.values["journal_write_data"], self.values["journal_sync_data"]
        self.unsynced = self.unsynced or not (written and synced)
        self.risk = MEMORY if not written else "" if synced else PAGE_CACHE
        self._note(f"started: {self.journals} journals, {self.directories} directories, untrusted={storage.untrusted}")
        if storage.untrusted:
            self.world.marks[LIMBO] += 1
        return storage

    async def _live(self, ending: str) -> None:
        storage = await self._start()
        await self._check(storage)
        try:
            for _ in range(self.plan.randint(2, 18) if self.theme != "journals" else self.stress.randint(0, 4)):
                await self._act(storage)
            if ending == "close":
                await storage.close()
                if storage.failed.done():  # then it only let go of its files
                    raise StorageFailedError("not closed in order")
                self.risk = ""
        except StorageFailedError:
            raise  # the storage notices in the same turn
        except BookKeeperError as e:
            if not storage.failed.done():
                raise AssertionError(f"the storage refused, and has not failed: {e}") from e
            raise

    # --- what is done in it -------------------------------------------------------------------------------------------

    async def _act(self, storage: LedgerStorage) -> None:
        actions: dict[Callable[[LedgerStorage], Awaitable[None]], float] = {
            self._add: 10,
            self._add_beside: 2,
            self._checkpoint: 2,
            self._fence: 1,
            self._confirm: 1,
            self._change_metadata: 4,
            self._collect: 3,
            self._reclaim: 1.5,
            self._check: 1,
            self._scrub: 0.3,
            self._mend: 0.5,
        }
        if self.theme == "lives":
            actions |= {self._add: 5, self._change_metadata: 10, self._collect: 8}
        action = self.plan.choices(list(actions), list(actions.values()))[0]
        await action(storage)

    def _choose(self, *stages: str) -> Ledger | None:
        """A ledger of one of these stages; new ones are made as long as there are few."""
        if sum(ledger.stage != "gone" for ledger in self.ledgers.values()) < LEDGERS:
            self.newest_id += 1
            self.ledgers[self.newest_id] = Ledger(self.newest_id, self.plan.choice(("open", "open", "elsewhere")))
        found = [ledger for ledger in self.ledgers.values() if ledger.stage in stages]
        return self.plan.choice(found) if found else None

    async def _add(self, storage: LedgerStorage, batches_max: int = 3) -> None:
        """One frame: what writers send, recoveries write back and copiers copy, in any order, some of it again."""
        plan, batches, bodies = self.plan, [], []
        for _ in range(plan.randint(1, batches_max)):
            ledger = self._choose("open", "open", "elsewhere", "closed")
            if ledger is None:
                return
            # Those that begin with their first entry are closed with entries, and worth a second life.
            first = plan.randrange(4 if self.theme == "lives" else IDS - 4)
            count = plan.choice((1, 1, 2, 4))
            stride = plan.choice((1, 1, 1, 3)) if count == 2 else 1
            batch = Batch(ledger.ledger_id, first, count, stride)
            if ledger.last is not None and batch.ids[-1] > ledger.last:
                continue
            batches.append(batch)
            bodies.append(b"".join(records(ledger.ledger_id, [i], payload(ledger.ledger_id, i)) for i in batch.ids))
        if batches:
            await self._store(storage, batches, bodies)

    async def _store(self, storage: LedgerStorage, batches: list[Batch], bodies: list[bytes]) -> None:
        await storage.states({batch.ledger_id for batch in batches})
        self._note(f"add {[(batch.ledger_id, *batch.ids) for batch in batches]}")
        done = add(storage, *batches, bodies=bodies)
        await asyncio.wait({done, storage.failed}, return_when=asyncio.FIRST_COMPLETED)
        if not done.done():
            raise StorageFailedError("not acknowledged")
        for batch in batches:
            ledger = self.ledgers[batch.ledger_id]
            if ledger.last is not None and batch.ids[-1] > ledger.last:
                continue  # it was closed meanwhile, and these are no entries of it
            ledger.acknowledged.update(batch.ids)
            ledger.doubtful.difference_update(batch.ids)
            ledger.unnoticed.difference_update(batch.ids)

    async def _add_beside(self, storage: LedgerStorage) -> None:
        """Adds, while checkpoints and compaction run."""
        beside = self.plan.choice((self._checkpoint, self._reclaim, self._collect, self._fence))
        done = await asyncio.gather(
            self._add(storage, 2), self._add(storage, 2), beside(storage), self._add(storage, 2), return_exceptions=True
        )
        for result in done:
            if isinstance(result, BaseException):
                raise result

    async def _checkpoint(self, storage: LedgerStorage) -> None:
        self._note("checkpoint")
        await storage.checkpoint()

    async def _fence(self, storage: LedgerStorage) -> None:
        ledger = self._choose("open", "elsewhere", "closed")
        if ledger is not None:
            self._note(f"fence {ledger.ledger_id}")
            await storage.fence(ledger.ledger_id, KEY)
            ledger.fenced = True

    async def _confirm(self, storage: LedgerStorage) -> None:
        ledger = self._choose("open")
        if ledger is not None and (await storage.states((ledger.ledger_id,)))[ledger.ledger_id] is not None:
            record = RecordCodec(ledger.ledger_id).explicit_lac(self.plan.randrange(IDS), 0)
            await storage.set_explicit_lac(ledger.ledger_id, record)

    async def _change_metadata(self, storage: LedgerStorage) -> None:
        """Something happens in the cluster: a ledger is closed, copied away, copied here again, or deleted."""
        plan = self.plan
        ledger = self._choose("open", "elsewhere", "closed", "spare")
        if ledger is None:
            return
        stage = plan.choice(
            {
                "open": ("closed", "closed", "gone"),
                "elsewhere": ("closed", "spare", "open"),
                "closed": ("spare", "spare", "gone"),
                "spare": ("elsewhere", "elsewhere", "gone"),
            }[ledger.stage]
        )
        if ledger.last is not None and stage in ("open", "elsewhere"):
            await self._copy_here(storage, ledger)
            stage = "closed"
        elif stage in ("closed", "spare"):
            ledger.close()
        self._note(f"ledger {ledger.ledger_id}: {ledger.stage} -> {stage}, last {ledger.last}")
        ledger.stage = stage

    async def _copy_here(self, storage: LedgerStorage, ledger: Ledger) -> None:
        """Let a copier store all of a CLOSED ledger here, and then the metadata name the bookie."""
        assert ledger.last is not None
        before, ledger.stage = ledger.stage, "elsewhere"  # nobody collects it while the copier has its lock
        self.world.marks[SECOND_LIFE] += bool(ledger.lives)
        await self._copy(storage, ledger, range(ledger.last + 1))
        ledger.stage = before

    async def _copy(self, storage: LedgerStorage, ledger: Ledger, ids: Iterable[int]) -> None:
        ordered = list(ids)
        if self.plan.random() < 0.3:
            self.plan.shuffle(ordered)
        size = self.plan.choice((1, 5))
        for at in range(0, len(ordered), size):
            some = ordered[at : at + size]
            batches = [Batch(ledger.ledger_id, i) for i in some]
            await self._store(
                storage, batches, [records(ledger.ledger_id, [i], payload(ledger.ledger_id, i)) for i in some]
            )

    async def _collect(self, storage: LedgerStorage) -> None:
        """What the collector does with one ledger; a bookie that has lost data keeps its spare copies."""
        plan = self.plan
        ledger = self._choose("gone", *(() if storage.untrusted else ("spare", "spare")))
        if ledger is None:
            return
        hidden = await hide(storage, ledger.ledger_id)
        if hidden is None:
            return
        if plan.random() < 0.2:
            hidden.unhide()
            return
        if plan.random() < 0.2 and ledger.stage == "gone":
            entry_id = plan.randrange(IDS)
            body = records(ledger.ledger_id, [entry_id], payload(ledger.ledger_id, entry_id))
            await self._store(storage, [Batch(ledger.ledger_id, entry_id)], [body])
        self._note(f"delete {ledger.ledger_id}")
        before, ledger.acknowledged = ledger.acknowledged, set()  # from here on they may be gone
        if await hidden.delete():
            ledger.lives += 1
            self.world.marks[COLLECTED if ledger.stage == "gone" else SPARE_COLLECTED] += 1
        else:
            ledger.acknowledged = before
        ledger.fenced = True

    async def _reclaim(self, storage: LedgerStorage) -> None:
        self._note("reclaim")
        await reclaim(storage, self.plan.choice((0.0, 0.5, 0.95)))

    async def _scrub(self, storage: LedgerStorage) -> None:
        """A whole round. What it finds is damaged: nothing may be found that is sound."""
        storage.scrub.begin()
        while any(status.running for status in storage.scrub.statuses):
            await asyncio.sleep(0.01)
        found = (await storage.scrub.damages()).found
        assert self.rotten or not found, f"the scrub takes sound bytes for damaged: {found}"

    async def _mend(self, storage: LedgerStorage) -> None:
        """What the integrity check does, with other bookies that have everything."""
        self._note("mend")
        await self._scrub(storage)  # what rotted is lost like anything else, once it is found
        losses = Losses(storage, self.settings, self.host.runtime, lambda: None)
        newest = self.newest_id
        in_limbo = await losses.in_limbo()
        for ledger in [ledger for ledger in self.ledgers.values() if ledger.stage != "gone"]:
            if ledger.named and ledger.last is None and await losses.in_doubt(ledger.ledger_id):
                ledger.close()
                ledger.stage = "closed"
            if ledger.stage != "closed":
                continue
            metadata = ledger.metadata
            missing_ranges = await losses.missing_ranges(metadata)
            if missing_ranges:
                await losses.make_known(metadata)
                await self._copy(
                    storage,
                    ledger,
                    sorted({i for missing in missing_ranges for i in range(missing.first, missing.last + 1)}),
                )
            await losses.flush()
            assert not await losses.missing_ranges(metadata), f"ledger {ledger.ledger_id} still lacks what was copied"
            if (
                await losses.in_doubt(ledger.ledger_id)
                and (await storage.states((ledger.ledger_id,)))[ledger.ledger_id]
            ):
                assert await losses.end(metadata), f"ledger {ledger.ledger_id} lacks nothing, and stays in limbo"
            ledger.doubtful.clear()
            ledger.unnoticed.clear()
        if storage.untrusted:
            await losses.trust_unseen(newest)
        left = await losses.in_limbo() & {i for i in in_limbo if self.ledgers[i].stage == "closed"}
        assert not left, f"ledgers {sorted(left)} are still in limbo"
        self.world.marks[WHOLE_AGAIN] += 1

    async def _check(self, storage: LedgerStorage) -> None:
        """What has to be so at any time."""
        for ledger in self.ledgers.values():
            ledger_id = ledger.ledger_id
            have, unknown = await read_all(storage, ledger_id, 0, IDS)
            for entry_id, found in have.items():
                assert found == payload(ledger_id, entry_id), f"entry {entry_id} of ledger {ledger_id} is another's"
            missing = ledger.acknowledged - have.keys()
            denied = missing - unknown
            assert not denied, f"entries {sorted(denied)} of ledger {ledger_id} ({ledger.stage}) are denied"
            unexplained = missing - ledger.doubtful
            assert not unexplained, (
                f"entries {sorted(unexplained)} of ledger {ledger_id} are unknown, and were not lost"
            )
            if ledger.fenced:
                state = (await storage.states((ledger_id,)))[ledger_id]
                if state is None:
                    forgotten = not storage.was_deleted(ledger_id) and not storage.ledgers.doubts(ledger_id)
                else:
                    forgotten = not state.fenced or ledger_id not in storage.fenced
                assert not forgotten, f"the fence of ledger {ledger_id} is forgotten"
        if storage.failed.done():  # in the middle of a checkpoint, of which nothing more becomes
            raise StorageFailedError("it failed meanwhile")
        storage.check_invariants()
        async with contextlib.AsyncExitStack() as between:
            for shard in storage.shards:  # in a checkpoint, what is committed may be ahead of what is known of it
                await between.enter_async_context(shard.checkpointing)
            self._check_indexes(storage)

    def _check_indexes(self, storage: LedgerStorage) -> None:
        check_living_bytes(storage)
        held: list[int] = []
        for shard in storage.shards:
            with shard.store.read() as txn:
                rows = [ledger_id for ledger_id, _, _ in ledger_rows(txn)]
                trash = trash_rows(txn)
            assert not set(rows) & set(trash), "what is to be removed of a deleted ledger is that of a living one"
            held += rows
        assert len(held) == len(set(held)), "a ledger is in two indexes"

    # --- between two lives --------------------------------------------------------------------------------------------

    async def _between_lives(self) -> None:
        """Change what may be changed of a bookie that is stopped, and what nobody wants to change."""
        if self.cookie is None:
            return
        plan = self.plan
        changes = ("", "directory", "rebuild", "journals", "mode", "place", "rot", "lose")
        what = plan.choices(changes, (1, 2, 4, 2, 1, 1, 0, 0) if self.theme else (2, 1, 2, 1, 1, 1, 0.5, 0.2))[0]
        if what == "directory" and self.directories < 3:
            self.directories += 1
            self.world.marks[DIRECTORY_ADDED] += 1
        elif what == "mode":
            self.values |= plan.choice(MODES)
        elif what == "place":
            self.values["journal_run_bytes_min"] = plan.choice(BOUNDS["journal_run_bytes_min"])
        elif what == "journals":
            await self._change_journals(plan.choice((1, 2, 3)))
        elif what == "rot":
            self._rot()
        elif what == "lose":
            self.host.disk.swap_out()
            self.anew = True
            self.risk = ""
            self._doubt_everything()
            self.world.marks[REBUILT] += 1
        elif what == "rebuild" and self.started_with == self.directories and not self.anew:
            await self._rebuild()

    def _doubt_everything(self) -> None:
        for ledger in self.ledgers.values():
            ledger.doubtful = set(ledger.acknowledged)

    async def _change_journals(self, count: int) -> None:
        """Possible where nothing is to be replayed."""
        before, self.journals = self.journals, count
        for path in self.settings.journal_directories:
            self.host.disk.make_dirs(path)

        async def store(cookie: bytes) -> None:
            self.cookie = cookie

        async def update() -> None:
            change = CookieUpdate(self.settings, self.host.runtime, INSTANCE)
            with change.locked():
                await change.carry_out(change.plan(self.cookie), store)

        self.faulty = True  # it may refuse
        if not await self._in_process(update()):
            self.journals = before
        self._note(f"{self.journals} journals")
        self._stop("close")

    def _files(self, *suffixes: str) -> list[str]:
        disk = self.host.disk
        return [
            f"{directory}/{name}"
            for directory in self.settings.ledger_directories
            for name in disk.listdir(directory)
            if name.endswith(suffixes) and disk.contents(f"{directory}/{name}")
        ]

    def _rot(self) -> None:
        """Flip a byte of an entry log, or of a journal file that is kept as one."""
        disk, plan = self.host.disk, self.plan
        # Of what a journal still has, the last frame would look torn, which is an accepted loss.
        paths = [path for path in self._files(".log", ".txn") if disk.links(path) == 1]
        if paths:
            path = plan.choice(paths)
            used = len(disk.contents(path).rstrip(b"\0"))
            disk.flip(path, plan.randrange(used), plan.randrange(1, 256))
            self._note(f"rotten: {path}")
            self.rotten = True
            self.world.marks[ROTTEN] += 1
            self._doubt_everything()

    async def _rebuild(self) -> None:
        """Make some indexes anew, sound ones or damaged ones, until no interruption prevents it."""
        plan, disk = self.plan, self.host.disk
        directories = [path for path in self.settings.ledger_directories if plan.random() < 0.6]
        rebuilt = directories or list(self.settings.ledger_directories)
        if plan.random() < 0.5:
            for path in rebuilt:
                disk.replace(f"{path}/index/data.mdb", b"page 7 is rotten")
            for ledger in self.ledgers.values():
                if not ledger.named:  # the index was the last to tell
                    ledger.acknowledged -= ledger.unnoticed
        if plan.random() < 0.1 or (self.theme == "lives" and self.stress.random() < 0.2):
            self._lose_a_log(rebuilt)
        # A frame that looks torn is an accepted loss, unless everything counts as lost.
        if self.theme == "journals" and len(rebuilt) == self.directories and self.stress.random() < 0.5:
            self._damage_a_journal(rebuilt)
        for ledger in self.ledgers.values():
            if ledger.stage == "gone":  # nobody asks for it any more, and nothing tells a new index what it had lost
                ledger.acknowledged -= ledger.doubtful
        self._note(f"rebuild of {rebuilt}")
        if plan.random() < 0.3:
            self._let_something_fail()
        self.faulty = self.faulty or self.unsynced
        while not await self._in_process(self._rebuild_index(directories, with_metadata=plan.random() < 0.9)):
            self._stop(plan.choice(DEATHS))
            if (
                self.unsynced
            ):  # an old journal file may have a hole, and only an operator can say that it doesn't matter
                self.faulty = True
                self.values["journal_damage"] = "limbo"
                self._doubt_everything()
        self._stop("close")
        self.world.marks[INDEX_REBUILT] += 1

    def _damage_a_journal(self, rebuilt: list[str]) -> None:
        """Where indexes are gone as well, all counts as lost: the damage prevents neither rebuild nor start."""
        disk = self.host.disk
        paths = [
            f"{directory}/{name}"
            for directory in self.settings.journal_directories
            for name in disk.listdir(directory)
            if name.endswith(".txn") and disk.contents(f"{directory}/{name}").rstrip(b"\0")
        ]
        if paths:
            for directory in rebuilt:
                SimStores(disk).remove(f"{directory}/index")
            path = self.stress.choice(paths)
            disk.flip(path, self.stress.randrange(len(disk.contents(path).rstrip(b"\0"))))
            self.rotten = self.unsynced = True
            self._doubt_everything()

    def _lose_a_log(self, rebuilt: list[str]) -> None:
        """Remove a log of a directory whose index is made anew: nothing but the metadata tells of what was in it."""
        paths = [path for path in self._files(".log") if path.rpartition("/")[0] in rebuilt]
        if paths and not any(ledger.stage == "elsewhere" and ledger.acknowledged for ledger in self.ledgers.values()):
            self.host.disk.unlink(self.plan.choice(paths))
            self._doubt_everything()
            for ledger in self.ledgers.values():
                if ledger.named:
                    ledger.unnoticed = set(ledger.acknowledged)
                else:
                    ledger.acknowledged = set()

    async def _rebuild_index(self, directories: list[str], *, with_metadata: bool) -> None:
        listed = {ledger.ledger_id: ledger.metadata for ledger in self.ledgers.values() if ledger.stage != "gone"}

        async def lookup(ledger_id: int) -> LedgerMetadata | None:
            return listed.get(ledger_id)

        async def ids() -> AsyncIterator[int]:
            for ledger_id in listed:
                yield ledger_id

        async def register(cookie: bytes) -> None:
            self.cookie = cookie

        done = await rebuild_index(
            self.settings,
            self.host.runtime,
            instance_id=INSTANCE,
            expected_cookie=self.cookie,
            catalog=Catalog(lookup, ids, self.newest_id) if with_metadata else None,
            register=register,
            observer=self.reports,
            directories=directories,
        )
        self._note(f"rebuilt: trusted={done.trusted} limbo={done.limbo} missing={done.missing} {done.damages}")

    # --- the end ------------------------------------------------------------------------------------------------------

    async def _end(self) -> None:
        """Nothing fails any more: the bookie starts, gets back what it lost, and has it after another start."""
        self.values |= SYNCED
        for last in (self._get_everything_back, self._check):

            async def live(last: Callable[[LedgerStorage], Awaitable[None]] = last) -> None:
                storage = await self._start()
                await last(storage)
                await storage.close()

            await self._in_process(live())
            self._stop("close")

    async def _get_everything_back(self, storage: LedgerStorage) -> None:
        await self._check(storage)
        await self._mend(storage)
        assert not storage.untrusted
        await self._check(storage)
        for ledger in self.ledgers.values():
            if ledger.stage == "closed":
                assert ledger.last is not None
                have, _ = await read_all(storage, ledger.ledger_id, 0, IDS)
                assert have.keys() >= set(range(ledger.last + 1)), f"ledger {ledger.ledger_id} isn't whole"


def storage_run(seed: int) -> tuple[StorageRun, Coroutine[Any, Any, None]]:
    run = StorageRun(seed)
    return run, run.lives()
