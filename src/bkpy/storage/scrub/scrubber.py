"""Scrubs one ledger directory: round after round over its block rows, at a limited rate, resuming where it stopped.

Each step gathers some rows, reads and verifies their blocks on a thread of its own, and looks into the index again for
blocks that failed: a block that was compacted or deleted meanwhile is no damage.

Invariants: it reports a damage once; an error ends only the step that it happens in; it stores its progress now and
then, so that a restart resumes there, and writes nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from bkpy.errors import CorruptDataError
from bkpy.runtime.pacer import Pacer
from bkpy.storage.entry_log.entry_log import KEPT, log_id_of
from bkpy.storage.index.index import block_key, first_of_block, ledger_of_block, log_rows
from bkpy.storage.scrub.damages import DamageList
from bkpy.storage.scrub.state import Round, ScrubState, read_state, store_state
from bkpy.storage.scrub.walk import START, RowWalk, as_it_is_now, confirmed, verify

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.config.bookie import BookieSettings
    from bkpy.runtime.interfaces import DiskRuntime, Worker
    from bkpy.storage.observer import StorageObserver
    from bkpy.storage.shard import Shard
    from bkpy.storage.tools.check.defects import Defect


T = TypeVar("T")


class ScrubStatus(NamedTuple):
    """The scrub of one directory. Times in seconds since 1970; None: not yet, or never by itself.

    `done_bytes` of about `total_bytes` were verified in the round that is under way, or else in the last one.
    """

    directory: str
    running: bool
    rounds: int  # complete ones so far
    began_s: float | None
    done_bytes: int
    total_bytes: int
    ended_s: float | None
    next_s: float | None


class Scrubber:
    """The scrub of one shard. Its methods run on the event loop; the constructor blocks."""

    def __init__(self, shard: Shard, runtime: DiskRuntime, settings: BookieSettings, observer: StorageObserver) -> None:
        self._shard = shard
        self._files = runtime.files
        self._clock = runtime.clock
        self._settings = settings
        self._observer = observer
        self._pacer = Pacer(runtime.clock, settings.scrub_bytes_per_s)
        self._log = logging.getLogger("bkpy.bookie")
        self._rng = runtime.rng
        self._saved = self._stored()  # as the file has it; None: there is none, or it is damaged
        self._state = self._saved or ScrubState(0, 0.0)
        self.damages = DamageList(self._state.known, self._state.left_out, settings.scrub_damages_max)
        self._total_bytes = self._state.round.bytes if self._state.round is not None else 0
        self._done_bytes = self._total_bytes
        self._save_at = 0.0
        self._save_failed = False
        self._woken = asyncio.Event()
        self._task: asyncio.Task[Any] | None = None
        self._spawn = runtime.spawn
        self._worker: Worker | None = None  # while it runs

    def _stored(self) -> ScrubState | None:
        try:
            state = read_state(self._files, self._shard.directory)
        except (OSError, CorruptDataError) as e:
            self._log.warning(
                "failed to read the state of the scrub of %s, restarting it: %s", self._shard.directory, e
            )
            return None
        if state is not None and not self._settings.scrub_interval_s:
            return state._replace(round=None)  # an operator asked for that round, and may ask again
        return state

    # --- what others see ----------------------------------------------------------------------------------------------

    @property
    def status(self) -> ScrubStatus:
        state, under_way = self._state, self._state.round
        interval_s = self._settings.scrub_interval_s
        return ScrubStatus(
            self._shard.directory,
            under_way is not None,
            state.rounds,
            None if under_way is None else under_way.began_s,
            self._done_bytes,
            max(self._total_bytes, self._done_bytes),
            state.ended_s,
            state.counted_from_s + interval_s if under_way is None and interval_s else None,
        )

    def begin(self) -> bool:
        """Begin a round now; False if one is under way."""
        if self._state.round is not None:
            return False
        self._begin()
        self._woken.set()
        return True

    def settings_changed(self) -> None:
        """Look again when the next round is due."""
        self._woken.set()

    async def look_again(self) -> None:
        """Forget damages that the index doesn't name any more: the entries were deleted, or stored elsewhere."""
        before = self.damages.defects
        if before:
            now = await self._shard.on_index(as_it_is_now, self._shard.store, before)
            self._log_gone(self.damages.update(before, now))

    # --- its life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Scrub from now on."""
        self._worker = self._files.worker(f"scrub-{self._shard.number}")
        self._task = self._spawn(self._run(), name=f"scrub of {self._shard.directory}")

    async def stop(self) -> None:
        """End within a step, and store the progress."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
            await self._save()

    def close(self) -> None:
        """End the thread. Blocks until it has finished its work."""
        if self._task is not None:
            self._task.cancel()
        if self._worker is not None:
            self._worker.close()

    def _blocking(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        assert self._worker is not None  # it was started
        return self._worker.run(function, *args)

    async def _run(self) -> None:
        while True:
            try:
                if self._state.round is None:
                    await self._wait()
                else:
                    await self._go_round(self._state.round)
            except OSError as e:
                self._log.warning(
                    "the scrub of %s failed to read its index, retrying in %g s: %s",
                    self._shard.directory,
                    self._settings.scrub_save_interval_s,
                    e,
                )
                await asyncio.sleep(self._settings.scrub_save_interval_s)
            except Exception:  # a defect of the scrub must not end the bookie
                self._log.exception(
                    "the scrub of %s failed, retrying in %g s",
                    self._shard.directory,
                    self._settings.scrub_save_interval_s,
                )
                await asyncio.sleep(self._settings.scrub_save_interval_s)

    def _first_start(self) -> None:
        """Choose a first time for a directory that was never scrubbed, so that bookies started together differ."""
        waited_s = self._settings.scrub_interval_s * self._rng.random()
        self._state = self._state._replace(counted_from_s=self._clock.time() - waited_s)

    async def _wait(self) -> None:
        """Wait until a round is due or requested, or it is time to look whether damages are still there."""
        interval_s = self._settings.scrub_interval_s
        wait_s = None
        if interval_s:
            if not self._state.counted_from_s:
                self._first_start()
                await self._save()
            now = self._clock.time()
            if self._state.counted_from_s > now:  # the clock was set back
                self._state = self._state._replace(counted_from_s=now)
                await self._save()
            wait_s = self._state.counted_from_s + interval_s - now
            if wait_s <= 0:
                self._begin()
                return
        if self.damages.defects:
            wait_s = min(wait_s or self._settings.scrub_save_interval_s, self._settings.scrub_save_interval_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._woken.wait()
        self._woken.clear()
        await self.look_again()

    # --- a round ------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._done_bytes = self._total_bytes = 0
        self._state = self._state._replace(round=Round(self._clock.time(), 0, 0, 0))

    async def _go_round(self, under_way: Round) -> None:
        """Scrub from where the round is to its end."""
        settings, shard, number = self._settings, self._shard, self._state.rounds + 1
        cursor: bytes | None = block_key(under_way.ledger_id, under_way.entry_id)
        if cursor != START:
            self._log.info("the scrub of %s resumes at ledger %d", shard.directory, under_way.ledger_id)
        await self._save()
        self._total_bytes = await shard.on_index(self._bytes_in_logs)
        walk = RowWalk(
            shard.store,
            shard.directory,
            block_key(under_way.ledger_id, under_way.entry_id),
            shard.deleted.pending,
            rows_max=settings.index_step_rows,
            bytes_max=settings.scrub_step_bytes,
            doubts_max=settings.scrub_damages_max,
        )
        while cursor is not None:
            sources, defects, cursor = await shard.on_index(walk.gather)
            failed = await self._blocking(verify, self._files, shard.directory, sources)
            if failed:
                defects = defects + await shard.on_index(confirmed, shard.store, shard.directory, failed)
            for defect in defects:
                self._found(defect, number)
            size = sum(source.row.place.length for source in sources)
            self._observer.scrubbed(size)
            self._done_bytes += size
            if cursor is not None:
                await self._advance(cursor)
            self._pacer.per_s = settings.scrub_bytes_per_s  # which may have changed
            await asyncio.sleep(max(self._pacer.charge(size), settings.index_step_pause_s))
        await self._end_round(under_way, number)

    async def _advance(self, cursor: bytes) -> None:
        assert self._state.round is not None
        began_s = self._state.round.began_s
        here = Round(began_s, ledger_of_block(cursor), first_of_block(cursor), self._done_bytes)
        self._state = self._state._replace(round=here)
        if self._clock.monotonic() >= self._save_at:
            await self.look_again()
            await self._save()

    async def _end_round(self, under_way: Round, number: int) -> None:
        self._log_gone(self.damages.end_round(number))
        now = self._clock.time()
        self._state = self._state._replace(rounds=number, counted_from_s=now, ended_s=now, round=None)
        self._total_bytes = self._done_bytes
        await self._save()
        count = len(self.damages.defects) + self.damages.left_out
        self._log.log(
            logging.WARNING if count else logging.INFO,
            "scrubbed %s: %d bytes in %.1f s, %s",
            self._shard.directory,
            self._done_bytes,
            now - under_way.began_s,
            f"{count} damages, {self.damages.left_out} of them not listed: see `bkpy bookie scrub`"
            if count
            else "no damage",
        )

    def _bytes_in_logs(self) -> int:
        """About how many bytes a round reads: living blocks in logs, and the log that is being filled. Blocks."""
        directory = self._shard.directory
        with self._shard.store.read() as txn:
            rows = log_rows(txn)
        total = sum(row.bytes if row.living is None else row.living for row in rows.values() if row is not None)
        for name in self._files.listdir(directory):
            log_id = log_id_of(name)
            if log_id is not None and log_id not in rows and not log_id & KEPT:
                with contextlib.suppress(FileNotFoundError):
                    file = self._files.open(f"{directory}/{name}", read_only=True)
                    total += file.size()
                    file.close()
        return total

    def _found(self, defect: Defect, number: int) -> None:
        if self.damages.add(defect, number):
            self._observer.damage(describe(defect), defect.path)
            self._save_at = 0.0  # soon

    def _log_gone(self, gone: list[Defect]) -> None:
        for defect in gone:
            self._log.info("damage in %s is gone: %s", defect.path, describe(defect))

    # --- its progress -------------------------------------------------------------------------------------------------

    async def _save(self) -> None:
        """Store the progress. If that fails, a restart resumes at what was stored last."""
        directory = self._shard.directory
        self._save_at = self._clock.monotonic() + self._settings.scrub_save_interval_s
        state = self._state._replace(known=self.damages.known, left_out=self.damages.left_out)
        if state == (self._saved or ScrubState(0, 0.0)):
            return
        try:
            await self._blocking(store_state, self._files, directory, state)
            self._saved, self._save_failed = state, False
        except OSError as e:
            if not self._save_failed:
                self._log.warning("failed to store the progress of the scrub of %s, retrying: %s", directory, e)
            self._save_failed = True


def describe(defect: Defect) -> str:
    """Describe a damage: the ledger, its entries, the place, what is wrong there and what to do about it."""
    entries = "all entries" if defect.last is None else f"entries {defect.first} to {defect.last}"
    place = "" if defect.offset is None else f", at offset {defect.offset}"
    return f"ledger {defect.ledger_id}, {entries}{place}: {defect.what}; {defect.remedy}"
