"""Brings the batches of one ledger onto its bookies, and other bookies into the place of those that fail.

    batches -> queues -> bookies;   answers -> LedgerAcks -> `_confirm`
    a failure -> reaction (`protocol/ensemble_change.py`) -> new fragment in the metadata -> batches sent once more

What differs between the writer of a ledger and its recovery is left to the subclasses: where batches come from, whom
`_confirm` tells, and where a change of the ensemble is stored.

Invariants: between the choice of a new fragment's first entry and the metadata's acceptance of it nothing is
acknowledged; an entry counts only on bookies that the metadata name for it; once failed, nothing is confirmed any more.
"""

from __future__ import annotations

import abc
import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING

from bkpy.errors import BookieUnavailableError, BookKeeperError, QuorumTimeoutError, ReadOnlyBookieError
from bkpy.protocol import messages as m
from bkpy.protocol.acks import Batch, LedgerAcks, Reopened
from bkpy.protocol.ensemble_change import REACTIONS, Case, Reaction, endangered, members_of
from bkpy.protocol.quorum import write_set
from bkpy.protocol.shortfall import Shortfall

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from bkpy.client.bookies.ensembles import Ensembles
    from bkpy.client.bookies.pool import BookiePool
    from bkpy.client.write.dispatcher import AddDispatcher
    from bkpy.client.write.write_set_queue import WriteSetQueue
    from bkpy.config.client import ClientSettings
    from bkpy.protocol.ledger_metadata import LedgerMetadata
    from bkpy.runtime.interfaces import Runtime

log = logging.getLogger("bkpy.client")


class Replicator(abc.ABC):
    """The common part of `LedgerWriter` and of a ledger's recovery."""

    # Not for the memory: an object with more than thirty attributes has a dict that is slow to look into.
    __slots__ = (
        "__weakref__",
        "_acks",
        "_batch_bytes_max",
        "_changes",
        "_confirmed",
        "_dispatcher",
        "_ensembles",
        "_entry_bytes_max",
        "_error",
        "_failed",
        "_flags",
        "_hopeless_since",
        "_ledger_id",
        "_mending",
        "_metadata",
        "_pause",
        "_pool",
        "_queues",
        "_reopened",
        "_reopened_to",
        "_runtime",
        "_settings",
        "_shortfall",
        "_striped",
        "_told",
    )

    def __init__(
        self,
        metadata: LedgerMetadata,
        *,
        ensembles: Ensembles,
        pool: BookiePool,
        dispatcher: AddDispatcher,
        settings: ClientSettings,
        runtime: Runtime,
        confirmed: int = -1,
        flags: int = 0,
    ) -> None:
        self._metadata = metadata
        self._ledger_id = metadata.ledger_id
        self._ensembles = ensembles
        self._pool = pool
        self._dispatcher = dispatcher
        self._settings = settings
        self._runtime = runtime
        self._flags = flags
        self._striped = metadata.ensemble_size > metadata.write_quorum
        self._acks = LedgerAcks(confirmed)
        self._confirmed = confirmed
        self._error: BookKeeperError | None = None
        self._failed: dict[str, BookKeeperError] = {}  # of the present ensemble
        self._told: tuple[str, ...] = ()  # bookies of the present ensemble whose failure was logged
        self._reopened: dict[Batch, Reopened] = {}
        self._reopened_to = -1  # the highest id of those
        self._pause = (settings.mend_pause_min_s, confirmed)  # before the next attempt, and last add confirmed then
        self._mending: asyncio.Task[None] | None = None
        self._hopeless_since: tuple[float, int] | None = None  # and last add confirmed then
        self._changes: deque[float] | None = None  # when the ensemble was changed; made by the first time
        self._shortfall: Shortfall | None = None  # made by the first failure
        self._open_queues()

    @property
    def ensemble(self) -> tuple[str, ...]:
        """The bookies that entries go to now."""
        return self._metadata.fragments[-1].bookies

    def _open_queues(self) -> None:
        metadata, ensemble = self._metadata, self.ensemble
        self._queues: list[WriteSetQueue] = [
            self._new_queue([ensemble[i] for i in members])
            for members in (
                write_set(r, metadata.ensemble_size, metadata.write_quorum)
                for r in range(metadata.ensemble_size if self._striped else 1)
            )
        ]
        self._limit()

    def _limit(self) -> None:
        """What a bookie wouldn't take is refused at the call, or cut, before it costs others their connection."""
        peers = [self._pool.peer(bookie_id) for bookie_id in self.ensemble]
        self._entry_bytes_max = min([self._settings.entry_bytes_max, *(peer.entry_bytes_max for peer in peers)])
        self._batch_bytes_max = min(
            [self._settings.batch_bytes_max, *(m.batches_bytes_max(peer.frame_bytes_max) for peer in peers)]
        )

    def _new_queue(self, bookie_ids: Sequence[str]) -> WriteSetQueue:
        return self._dispatcher.queue(bookie_ids, self._metadata.ack_quorum, self._flags)

    # --- what a subclass does ---------------------------------------------------------------------------------------

    @abc.abstractmethod
    def drain(self) -> None:
        """Hand all that is unsent to queues, unless the acknowledgements are frozen."""

    @abc.abstractmethod
    def _confirm(self, confirmed: int) -> None:
        """Everything up to `confirmed` is on its ack quorum."""

    @abc.abstractmethod
    def failed(self, error: BookKeeperError) -> None:
        """Nothing more can be confirmed."""

    @abc.abstractmethod
    async def _store(self, ensemble: Sequence[str], replaced: Collection[str]) -> bool:
        """Make `ensemble` that of the entries above last add confirmed; whether that was done, or another was found.

        Called while the acknowledgements are frozen. Sets `_metadata`. False if nothing was changed and nothing will
        be. Raises what ends the replicator.
        """

    @abc.abstractmethod
    def publish_lac(self) -> None:
        """Tell the bookies what is confirmed, if there is something to tell."""

    def rest(self) -> None:
        """Nothing is pending, and nothing was sent for a while."""
        self._acks.rest()

    @abc.abstractmethod
    def abandon(self) -> None:
        """End without closing the ledger."""

    @abc.abstractmethod
    def _resume(self) -> None:
        """Acknowledgements are no longer frozen: send what has gathered."""

    @abc.abstractmethod
    def _pending(self) -> bool:
        """Whether something that was handed over is not confirmed, sent or not."""

    @abc.abstractmethod
    def _idle(self) -> bool:
        """Whether nothing is pending and nothing will come: then failures are nobody's concern."""

    # --- the dispatcher's calls--------------------------------------------------------------------------------------

    def blocked(self) -> bool:
        return any(queue.blocked() for queue in self._queues)

    def completed(self, batch: Batch) -> None:
        if self._error is None:
            confirmed = self._acks.done(batch)
            if confirmed > self._confirmed:
                self._confirm(confirmed)

    def accepted(self, batch: Batch, bookie_id: str) -> None:
        if self._shortfall is not None:
            self._shortfall.accepted(bookie_id, batch)
        reopened = self._reopened.get(batch)
        if reopened is None or self._error is not None:
            return
        reopened.accepted.add(bookie_id)
        if not batch.done and reopened.complete:
            self.completed(batch)

    def bookie_failed(self, bookie_id: str, error: BookKeeperError, entry_id: int) -> None:
        if self._shortfall is None:
            self._shortfall = Shortfall()
        self._shortfall.failed(bookie_id, entry_id, self._metadata)
        if self._error is not None or bookie_id not in self.ensemble:
            return  # it has been replaced: what it says is of no account
        if bookie_id not in self._failed:
            again = bookie_id in self._told
            self._told += (bookie_id,)
            log.log(
                logging.DEBUG if again else logging.WARNING,
                "ledger %d: bookie %s failed: %s",
                self._ledger_id,
                bookie_id,
                error,
            )
        self._failed[bookie_id] = error
        self._ensembles.failed(bookie_id)
        if not self.mending and self._reaction() is not Reaction.NOTHING:
            self._mending = self._runtime.spawn(
                self._mend(), name=f"ensemble of ledger {self._ledger_id}", on_death=self._died
            )

    def _died(self, error: BaseException) -> None:
        log.error("ledger %d: mending its ensemble failed", self._ledger_id, exc_info=error)
        self._broken(error)

    @property
    def confirmed(self) -> int:
        """The highest id that is on its ack quorum."""
        return self._confirmed

    def busy(self) -> bool:
        """Whether something is pending, or nothing is acknowledged until an ensemble is stored."""
        return self._error is None and (self._pending() or self._acks.frozen)

    def stalled(self, seconds: float) -> None:
        """Nothing was confirmed for so long although something is pending: fail after `add_quorum_timeout_s`."""
        if self._error is None and seconds > self._settings.add_quorum_timeout_s:
            failed = "; ".join(f"{bookie_id}: {error.message}" for bookie_id, error in sorted(self._failed.items()))
            self.failed(
                QuorumTimeoutError(
                    f"nothing was acknowledged for {self._settings.add_quorum_timeout_s:g} s"
                    + (f" (failed: {failed})" if failed else ""),
                    ledger_id=self._ledger_id,
                    entry_id=self._confirmed + 1,
                )
            )

    # --- mending the ensemble ---------------------------------------------------------------------------------------

    def _positions(self) -> list[int]:
        return [i for i, bookie_id in enumerate(self.ensemble) if bookie_id in self._failed]

    @property
    def _endangered(self) -> bool:
        metadata = self._metadata
        return endangered(self._positions(), metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)

    def _reaction(self) -> Reaction:
        return REACTIONS[
            Case(
                allowed=self._may_change,
                delay=self._settings.delay_ensemble_change,
                endangered=self._endangered,
                read_only=any(isinstance(error, ReadOnlyBookieError) for error in self._failed.values()),
            )
        ]

    @property
    def _may_change(self) -> bool:
        return not self._settings.disable_ensemble_change

    @property
    def mending(self) -> bool:
        """Whether a change of the ensemble is under way."""
        # Asked of the task: a task that is cancelled before its first step never gets to a `finally` of its own.
        return self._mending is not None and not self._mending.done()

    async def _mend(self) -> None:
        """Replace the bookies that failed; while there are no others, send to them again whenever they are back."""
        try:
            while self._failed and self._error is None and not self._idle():
                reaction = self._reaction()
                if reaction is Reaction.NOTHING:
                    return
                if reaction is Reaction.CHANGE and await self._change():
                    continue
                if self._error is not None:
                    return
                await asyncio.sleep(self._next_pause() * (1 + self._runtime.rng.random()) / 2)
                # Not before the pause: of several bookies that refuse, one is always the first to say so.
                if self._give_up() or self._error is not None:
                    return
                self._send_again()
        except BookKeeperError as e:
            self._broken(e)

    def _next_pause(self) -> float:
        """Longer and longer while nothing is confirmed: bookies that can be reached may go on refusing."""
        pause, confirmed = self._pause
        if confirmed != self._confirmed:
            pause = self._settings.mend_pause_min_s
        self._pause = (min(pause * 2, self._settings.mend_pause_max_s), self._confirmed)
        return pause

    def _give_up(self) -> bool:
        """Fail if too few bookies have been left for too long, and no others were found."""
        now = self._runtime.clock.monotonic()
        if not self._endangered:
            return False
        if self._hopeless_since is None or self._hopeless_since[1] != self._confirmed:
            self._hopeless_since = (now, self._confirmed)
        if now - self._hopeless_since[0] < self._settings.no_bookies_timeout_s or not self._may_change:
            return False
        bookie_id, error = next(reversed(self._failed.items()))
        self.failed(
            BookieUnavailableError(
                f"fewer than {self._metadata.ack_quorum} bookies can acknowledge, and no others can take the place of "
                f"those that failed; the last of them: {error.message}",
                ledger_id=self._ledger_id,
                entry_id=self._confirmed + 1,
                bookie=bookie_id,
                outcome_unknown=True,
            )
        )
        return True

    async def _change(self) -> bool:
        """Put others in the place of the failed bookies; whether any was replaced."""
        ensemble = await self._ensembles.replace(self.ensemble, self._positions())
        if ensemble is None or self._error is not None:
            return False
        self._count_change()
        self._acks.freeze()
        self._dispatcher.watch(self)
        changed = False
        try:
            while ensemble is not None:
                before = self.ensemble
                replaced = [old for old, new in zip(before, ensemble, strict=True) if old != new]
                if not await self._store(ensemble, replaced) or self._error is not None:
                    break
                changed = True
                self._adopt(before)
                # What failed meanwhile joins this change: nothing is acknowledged before that is replaced as well.
                positions = self._positions()
                ensemble = await self._ensembles.replace(self.ensemble, positions) if positions else None
                if ensemble is not None:
                    self._count_change()
        except BaseException as e:
            # Whose word counts is not known: what was counted meanwhile is not acknowledged any more.
            self._broken(e)
            raise
        self._thaw()
        return changed

    def _broken(self, error: BaseException) -> None:
        """End with this error; whatever is pending has an unknown outcome."""
        if not isinstance(error, BookKeeperError):
            error = BookKeeperError(f"mending the ensemble failed: {error!r}", ledger_id=self._ledger_id)
        error.outcome_unknown = True
        self.failed(error)

    def _count_change(self) -> None:
        now, settings = self._runtime.clock.monotonic(), self._settings
        if self._changes is None:
            self._changes = deque(maxlen=settings.ensemble_changes_max)
        if (
            len(self._changes) == settings.ensemble_changes_max
            and now - self._changes[0] < settings.ensemble_changes_window_s
        ):
            raise BookieUnavailableError(
                f"bookies keep failing: {settings.ensemble_changes_max} changes of the ensemble within "
                f"{settings.ensemble_changes_window_s:g} s",
                ledger_id=self._ledger_id,
                outcome_unknown=True,
            )
        self._changes.append(now)

    def _thaw(self) -> None:
        if self._error is not None:
            return
        confirmed = self._acks.thaw()
        if confirmed > self._confirmed:
            self._confirm(confirmed)
        self._resume()

    def _adopt(self, before: Sequence[str]) -> None:
        """The metadata name other bookies now: count on those alone, and send them what they have to have."""
        ensemble = self.ensemble
        self._told = ()
        self._failed = {bookie_id: e for bookie_id, e in self._failed.items() if bookie_id in ensemble}
        self._open_queues()
        quorum = self._metadata.write_quorum
        missing: dict[str, list[Batch]] = {}
        undone = []
        for batch in self._acks.above():
            old = members_of(batch.first_id, before, quorum)
            new = members_of(batch.first_id, ensemble, quorum)
            if set(old) == set(new):
                continue  # its own bookies are the same: it goes on as it was
            reopened = self._reopen(batch, old)
            reopened.members = frozenset(new)
            if reopened.complete:
                batch.done = True
            elif batch.done:
                undone.append(batch)
            for bookie_id in new:
                if bookie_id not in old and bookie_id not in reopened.accepted:
                    missing.setdefault(bookie_id, []).append(batch)
        self._acks.reopen(undone)
        if self._shortfall is not None:
            self._shortfall.moved(self._metadata)
        for bookie_id, batches in missing.items():
            self._dispatcher.resend(self, bookie_id, batches, self._flags)
        log.info("ledger %d: entries from %d on go to %s", self._ledger_id, self._confirmed + 1, ", ".join(ensemble))

    def _reopen(self, batch: Batch, members: Sequence[str]) -> Reopened:
        reopened = self._reopened.get(batch)
        if reopened is None:
            accepted = batch.sent.release(batch)
            reopened = self._reopened[batch] = Reopened(batch, members, accepted, self._metadata.ack_quorum)
            self._reopened_to = max(self._reopened_to, batch.last_id)
        return reopened

    def _send_again(self) -> None:
        """Send what is pending to those of the failed bookies that can be reached again."""
        self._limit()  # they may have come back with other ones
        for queue in self._queues:
            queue.limit()
        for bookie_id in [b for b in self._failed if self._pool.peer(b).up]:
            del self._failed[bookie_id]
            batches = []
            for batch in self._acks.above():
                members = members_of(batch.first_id, self.ensemble, self._metadata.write_quorum)
                if bookie_id in members and bookie_id not in self._reopen(batch, members).accepted:
                    batches.append(batch)
            if self._shortfall is not None:
                self._shortfall.sent_again(bookie_id, batches, self._confirmed)
            self._dispatcher.resend(self, bookie_id, batches, self._flags)

    def _forget_reopened(self, confirmed: int) -> None:
        """Drop them once all are confirmed; to be called where there are some."""
        if confirmed >= self._reopened_to:
            self._reopened.clear()

    async def _mended(self) -> None:
        """Return when no change of the ensemble is under way."""
        while self.mending:
            assert self._mending is not None
            if not self._acks.frozen:
                self._mending.cancel()
            await asyncio.wait([self._mending])
