"""Brings the batches of one ledger onto its bookies, and replaces bookies that fail.

    source -> batches -> queues of write sets -> bookies;   answers -> LedgerAcks -> the source's `on_confirmed`
    a failure -> reaction (`protocol/ledger/ensemble_change.py`) -> new fragment in the metadata -> batches sent again
    a bookie that was absent is there -> new fragment with the same bookies -> batches sent again

The writer of a ledger has one, and so has its recovery. They differ in the source of batches, which receives what is
confirmed (`Source`), and in where a change of the ensemble is stored (`FragmentStore`).

Invariants: between the choice of a new fragment's first entry and the metadata's acceptance of it nothing is
acknowledged; an entry counts only on bookies that the metadata name for it; once failed, nothing is confirmed any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from bkpy.errors import (
    BookieUnavailableError,
    BookKeeperError,
    QuorumTimeoutError,
    ReadOnlyBookieError,
    UnauthorizedError,
)
from bkpy.protocol.ledger.acks import Batch, LedgerAcks, ReassignedBatch
from bkpy.protocol.ledger.ensemble_change import REACTIONS, Case, Reaction, ack_quorum_at_risk, members_of
from bkpy.protocol.ledger.quorum import write_set
from bkpy.protocol.ledger.shortfall import Shortfall
from bkpy.protocol.ledger.writer_state import TRANSITIONS, Event, WriterState
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Flags

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from bkpy.client.write.interfaces import FragmentStore, ReplicationParts, Source
    from bkpy.client.write.write_set_queue import WriteSetQueue
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.wire.messages import Status

log = logging.getLogger("bkpy.client")

_NOBODY: Final[frozenset[str]] = frozenset()  # each of its own would cost an idle writer 200 bytes


class Replication:
    """Of the open fragment of one ledger: its acknowledgements, its ensemble and its metadata."""

    # Not for the memory: an object with more than thirty attributes has a dict that is slow to look into.
    __slots__ = (
        "_absent",
        "_change",
        "_changes",
        "_come",
        "_dispatcher",
        "_ensembles",
        "_failed",
        "_flags",
        "_hopeless_since",
        "_leaving",
        "_logged_failures",
        "_may_change",
        "_pause",
        "_pool",
        "_reassigned",
        "_reassigned_to",
        "_runtime",
        "_settings",
        "_share_queues",
        "_shortfall",
        "_store",
        "acks",
        "batch_bytes_max",
        "confirmed",
        "entry_bytes_max",
        "error",
        "ledger_id",
        "metadata",
        "queues",
        "source",
        "state",
        "striped",
    )

    def __init__(
        self,
        metadata: LedgerMetadata,
        *,
        source: Source,
        store: FragmentStore,
        parts: ReplicationParts,
        confirmed: int = -1,
        flags: int = 0,
        may_change: bool = True,
        share_queues: bool = True,
        state: WriterState = WriterState.OPEN,
        absent: Collection[str] = (),
    ) -> None:
        """`may_change`: the ensemble. `share_queues`: with others of the same client.

        `absent`: bookies that the ledger was created without, and that the writer takes in when they come.
        """
        settings = parts.settings
        self.source = source
        self.metadata = metadata
        self.ledger_id = metadata.ledger_id
        self.striped = metadata.ensemble_size > metadata.write_quorum
        self.acks = LedgerAcks(confirmed)
        self.confirmed = confirmed  # the highest id that is on its ack quorum
        self.state = state
        self.error: BookKeeperError | None = None
        self._store = store
        self._ensembles, self._pool, self._dispatcher = parts.ensembles, parts.pool, parts.dispatcher
        self._settings, self._runtime = settings, parts.runtime
        self._flags = flags
        self._may_change = may_change and not settings.disable_ensemble_change
        self._share_queues = share_queues
        self._failed: dict[str, BookKeeperError] = {}  # of the present ensemble
        self._absent = frozenset(absent) if absent else _NOBODY  # bookies of the ensemble that never took part
        self._come = _NOBODY  # of these, the ones to take in now
        self._leaving: tuple[str, ...] = ()  # bookies to leave, though they have not failed here
        self._logged_failures: tuple[str, ...] = ()  # bookies of the present ensemble
        self._reassigned: dict[Batch, ReassignedBatch] = {}
        self._reassigned_to = -1  # the highest id of those
        self._pause = (
            settings.ensemble_retry_backoff_min_s,
            confirmed,
        )  # before the next attempt, and last add confirmed then
        self._change: asyncio.Task[None] | None = None
        self._hopeless_since: tuple[float, int] | None = None  # and last add confirmed then
        self._changes: deque[float] | None = None  # when the ensemble was changed; made by the first time
        self._shortfall: Shortfall | None = None  # made by the first failure
        self._open_queues()

    @property
    def ensemble(self) -> tuple[str, ...]:
        """The bookies that entries go to now."""
        return self.metadata.fragments[-1].bookies

    @property
    def absent(self) -> frozenset[str]:
        """The bookies of the ensemble that were absent when the ledger was created, and have not been taken in."""
        return self._absent

    @property
    def under_replicated(self) -> dict[str, int]:
        """The bookies that may miss confirmed entries of theirs, each with the first of these; not `absent` ones."""
        return {} if self._shortfall is None else self._shortfall.up_to(self.confirmed)

    def _open_queues(self) -> None:
        metadata, ensemble = self.metadata, self.ensemble
        self.queues: list[WriteSetQueue] = [
            self._dispatcher.queue(
                [ensemble[i] for i in members], metadata.ack_quorum, self._flags, shared=self._share_queues
            )
            for members in (
                write_set(r, metadata.ensemble_size, metadata.write_quorum)
                for r in range(metadata.ensemble_size if self.striped else 1)
            )
        ]
        self._limit()

    def _limit(self) -> None:
        """What a bookie wouldn't take is refused at the call, or cut, before it costs others their connection."""
        channels = [self._pool.channel(bookie_id) for bookie_id in self.ensemble]
        self.entry_bytes_max = min([self._settings.entry_bytes_max, *(channel.entry_bytes_max for channel in channels)])
        self.batch_bytes_max = min(
            [self._settings.batch_bytes_max, *(m.batches_bytes_max(channel.frame_bytes_max) for channel in channels)]
        )

    # --- the end ----------------------------------------------------------------------------------------------------

    def move(self, event: Event) -> None:
        self.state = TRANSITIONS[self.state, event]

    def failed(self, error: BookKeeperError) -> None:
        """Nothing more is confirmed from now on."""
        if self.error is None:
            self.error = error
            self.move(Event.FAIL)
            self._reassigned.clear()
            self.source.on_failed(error)

    def failure(self, entry_id: int | None = None, *, outcome_unknown: bool | None = None) -> BookKeeperError:
        """A fresh copy of the error."""
        error = self.error
        assert error is not None
        if outcome_unknown is None:
            outcome_unknown = error.outcome_unknown if entry_id is not None else False
        return error.renewed(ledger_id=self.ledger_id, entry_id=entry_id, outcome_unknown=outcome_unknown)

    def abandon(self, error: BookKeeperError) -> None:
        """End with this error, unless it has ended, and leave nothing that runs."""
        self.move(Event.ABANDON)
        self.failed(error)
        if self._change is not None:
            self._change.cancel()
        self._dispatcher.forget(self)

    # --- the dispatcher's calls -------------------------------------------------------------------------------------

    def blocked(self) -> bool:
        return any(queue.blocked() for queue in self.queues)

    def completed(self, batch: Batch) -> None:
        if self.error is None:
            confirmed = self.acks.done(batch)
            if confirmed > self.confirmed:
                count, self.confirmed = confirmed - self.confirmed, confirmed
                self.source.on_confirmed(confirmed, count)
                if self._reassigned:
                    self._forget_reassigned()

    def accepted(self, batch: Batch, bookie_id: str) -> None:
        if self._shortfall is not None:
            self._shortfall.accepted(bookie_id, batch)
        reassigned = self._reassigned.get(batch)
        if reassigned is None or self.error is not None:
            return
        reassigned.accepted.add(bookie_id)
        if not batch.done and reassigned.complete:
            batch.sent.acknowledged()
            self.completed(batch)

    def refused(self, bookie_id: str, status: Status, entry_id: int) -> None:
        error = m.end_of_writer(status, ledger_id=self.ledger_id, bookie=bookie_id)
        if self._recovers and isinstance(error, UnauthorizedError):
            self.bookie_failed(bookie_id, error, entry_id)
        else:
            self.failed(error)

    @property
    def _recovers(self) -> bool:
        """Whether this is a recovery, which ends as long as enough bookies take part: others may hold the ledger up."""
        return bool(self._flags & Flags.RECOVERY)

    def bookie_failed(self, bookie_id: str, error: BookKeeperError, entry_id: int) -> None:
        if bookie_id not in self._absent:  # else the ledger's under-replication record says so
            if self._shortfall is None:
                self._shortfall = Shortfall()
            self._shortfall.failed(bookie_id, entry_id, self.metadata)
        if self.error is not None or bookie_id not in self.ensemble:
            return  # it has been replaced: what it says no longer counts
        if isinstance(error, UnauthorizedError) and not self._recovers:  # others would say the same
            self.failed(UnauthorizedError(error.message, bookie=bookie_id, outcome_unknown=True))
            return
        if bookie_id not in self._failed:
            again = bookie_id in self._logged_failures or bookie_id in self._absent
            self._logged_failures += (bookie_id,)
            log.log(
                logging.DEBUG if again else logging.WARNING,
                "ledger %d: bookie %s failed: %s",
                self.ledger_id,
                bookie_id,
                error,
            )
        self._failed[bookie_id] = error
        self._ensembles.failed(bookie_id)
        if not self.changing and self._reaction() is not Reaction.NOTHING:
            self._begin_change()

    def _begin_change(self) -> asyncio.Task[None]:
        self._change = self._runtime.spawn(
            self._change_ensemble(), name=f"ensemble of ledger {self.ledger_id}", on_death=self._died
        )
        return self._change

    def leave(self, bookie_ids: Sequence[str]) -> asyncio.Task[None] | None:
        """Put others in the place of these if they are in the ensemble; the change, if that has begun one.

        If there are no others, nothing is changed, and nothing fails for that.
        """
        if self.error is not None or not self._may_change or self.source.idle:
            return None
        self._leaving = tuple(bookie_id for bookie_id in self.ensemble if bookie_id in bookie_ids)
        if not self._leaving or self.changing:
            return None
        return self._begin_change()

    def take_in(self, bookie_ids: Collection[str]) -> asyncio.Task[None] | None:
        """Begin a fragment with these absent bookies, if they can be reached; the change, if that has begun one."""
        if self.error is not None or self.source.idle:
            return None
        self._come = self._absent.intersection(bookie_ids)
        return self._begin_change() if self._come and not self.changing else None

    def _died(self, error: BaseException) -> None:
        log.error("ledger %d: changing its ensemble failed", self.ledger_id, exc_info=error)
        self._broken(error)

    def busy(self) -> bool:
        """Whether something is pending, or nothing is acknowledged until an ensemble is stored."""
        return self.error is None and (self.source.has_pending or self.acks.frozen)

    def rest(self) -> None:
        self.acks.rest()
        self.source.on_rest()

    def stalled(self, seconds: float) -> None:
        """Nothing was confirmed for so long although something is pending: fail after `add_quorum_timeout_s`."""
        if self.error is None and seconds > self._settings.add_quorum_timeout_s:
            failed = "; ".join(f"{bookie_id}: {error.message}" for bookie_id, error in sorted(self._failed.items()))
            self.failed(
                QuorumTimeoutError(
                    f"nothing was acknowledged for {self._settings.add_quorum_timeout_s:g} s"
                    + (f" (failed: {failed})" if failed else ""),
                    ledger_id=self.ledger_id,
                    entry_id=self.confirmed + 1,
                )
            )

    # --- changing the ensemble ---------------------------------------------------------------------------------------

    def _positions(self) -> list[int]:
        """Those of the failed bookies."""
        return [i for i, bookie_id in enumerate(self.ensemble) if bookie_id in self._failed]

    def _to_replace(self) -> list[int]:
        """Of what can't all be replaced, that comes first which matters most."""
        failed = self._positions()
        return failed + [i for i, name in enumerate(self.ensemble) if name in self._leaving and i not in failed]

    @property
    def _ack_quorum_at_risk(self) -> bool:
        metadata = self.metadata
        return ack_quorum_at_risk(self._positions(), metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)

    def _reaction(self) -> Reaction:
        return REACTIONS[
            Case(
                allowed=self._may_change,
                delay=self._settings.delay_ensemble_change,
                ack_quorum_at_risk=self._ack_quorum_at_risk,
                to_be_left=bool(self._leaving)
                or any(isinstance(error, ReadOnlyBookieError) for error in self._failed.values()),
            )
        ]

    @property
    def changing(self) -> bool:
        """Whether a change of the ensemble is under way."""
        # Asked of the task: a task that is cancelled before its first step never gets to a `finally` of its own.
        return self._change is not None and not self._change.done()

    async def _change_ensemble(self) -> None:
        """Replace the bookies that failed; while there are no others, send to them again whenever they are back.

        Bookies that were absent when the ledger was created are taken in.
        """
        try:
            while (self._failed or self._leaving or self._come) and self.error is None and not self.source.idle:
                if self._come:
                    await self._take_in_arrived()
                    continue
                reaction = self._reaction()
                if reaction is Reaction.NOTHING:
                    return
                if reaction is Reaction.CHANGE and await self._replace_failed():
                    continue
                self._leaving = ()  # until `leave` is called again: as long as they answer they are no failure
                if self.error is not None or not self._failed:
                    return
                await asyncio.sleep(self._next_pause() * (1 + self._runtime.rng.random()) / 2)
                # Not before the pause: of several bookies that refuse, one is always the first to say so.
                if self._give_up() or self.error is not None:
                    return
                self._send_again()
        except BookKeeperError as e:
            self._broken(e)

    def _next_pause(self) -> float:
        """Longer and longer while nothing is confirmed: bookies that can be reached may go on refusing."""
        pause, confirmed = self._pause
        if confirmed != self.confirmed:
            pause = self._settings.ensemble_retry_backoff_min_s
        self._pause = (min(pause * 2, self._settings.ensemble_retry_backoff_max_s), self.confirmed)
        return pause

    def _give_up(self) -> bool:
        """Fail if too few bookies have been left for too long, and no others were found."""
        now = self._runtime.clock.monotonic()
        if not self._ack_quorum_at_risk:
            return False
        if self._hopeless_since is None or self._hopeless_since[1] != self.confirmed:
            self._hopeless_since = (now, self.confirmed)
        if now - self._hopeless_since[0] < self._settings.no_bookies_timeout_s or not self._may_change:
            return False
        bookie_id, error = next(reversed(self._failed.items()))
        self.failed(
            BookieUnavailableError(
                f"fewer than {self.metadata.ack_quorum} bookies can acknowledge, and no others can replace the failed "
                f"ones; the last of them: {error.message}",
                ledger_id=self.ledger_id,
                entry_id=self.confirmed + 1,
                bookie=bookie_id,
                outcome_unknown=True,
            )
        )
        return True

    async def _replace_failed(self) -> bool:
        """Put others in the place of the failed bookies; whether any was replaced."""
        ensemble = await self._ensembles.replace(self.ensemble, self._to_replace(), without=self._leaving)
        if ensemble is None or self.error is not None:
            return False
        self._count_change()
        self.move(Event.CHANGE)
        self.acks.freeze()
        self._dispatcher.watch(self)
        changed = False
        try:
            while ensemble is not None:
                before = self.ensemble
                replaced = [old for old, new in zip(before, ensemble, strict=True) if old != new]
                stored = await self._store.store(self, ensemble, replaced)
                if stored is not None:
                    self.metadata = stored
                if stored is None or self.error is not None:
                    break
                changed = True
                self._adopt(before)
                # What failed meanwhile joins this change: nothing is acknowledged before that is replaced as well.
                positions = self._to_replace() if self._positions() else []
                ensemble = await self._ensembles.replace(self.ensemble, positions) if positions else None
                if ensemble is not None:
                    self._count_change()
        except BaseException as e:
            # It is not known which bookies count: what was counted meanwhile is not acknowledged any more.
            self._broken(e)
            raise
        self._thaw()
        return changed

    async def _take_in_arrived(self) -> None:
        """Begin a fragment, with the same bookies, from which on the absent ones that are back take all entries.

        So the one before has an end: workers can copy it to them. Whatever keeps them away, the writer goes on without.
        """
        came, self._come = sorted(self._come), _NOBODY
        reached = await asyncio.gather(
            *(self._pool.channel(bookie_id).connect(again=True) for bookie_id in came), return_exceptions=True
        )
        came = [name for name, error in zip(came, reached, strict=True) if error is None and name in self._absent]
        if not came or self.error is not None:
            return
        if self.confirmed + 1 > self.metadata.fragments[-1].first_entry and not await self._begin_fragment(came):
            return
        if self._absent.intersection(came):  # no new fragment was needed
            self._take_in(came)
        first_entry = self.metadata.fragments[-1].first_entry
        recording = self._store.taken_in(self, came, first_entry)
        self._runtime.spawn(recording, name=f"under-replication record of ledger {self.ledger_id}")
        log.info("ledger %d: entries from %d on go to %s as well", self.ledger_id, first_entry, ", ".join(came))

    async def _begin_fragment(self, came: Sequence[str]) -> bool:
        """Store a fragment with the bookies of the last one, and take these in; whether it is the last one now."""
        self.move(Event.CHANGE)
        self.acks.freeze()
        self._dispatcher.watch(self)
        first_entry, before = self.confirmed + 1, self.ensemble
        begun = False
        try:
            stored = await self._store.store(self, before, came)
            if stored is not None:
                self.metadata = stored
                if self.error is None:
                    self._adopt(before)
                    last = stored.fragments[-1]
                    begun = (last.first_entry, last.bookies) == (first_entry, before)
        except BaseException as e:
            self._broken(e)
            raise
        if begun:
            self._take_in(came)  # before what the others have acknowledged meanwhile is no longer pending
        self._thaw()
        return begun and self.error is None

    def _take_in(self, came: Sequence[str]) -> None:
        """From now on these bookies, which were absent, take all entries of the last fragment."""
        self._absent = self._absent.difference(came)
        self._send_to(came)

    def _broken(self, error: BaseException) -> None:
        """End with this error; whatever is pending has an unknown outcome."""
        if not isinstance(error, BookKeeperError):
            error = BookKeeperError(f"changing the ensemble failed: {error!r}", ledger_id=self.ledger_id)
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
                ledger_id=self.ledger_id,
                outcome_unknown=True,
            )
        self._changes.append(now)

    def _thaw(self) -> None:
        if self.error is not None:
            return
        self.move(Event.CHANGED)
        confirmed = self.acks.thaw()
        count, self.confirmed = confirmed - self.confirmed, confirmed
        if count > 0:
            self.source.on_confirmed(confirmed, count)
            if self._reassigned:
                self._forget_reassigned()
        if self.source.has_unsent:
            self._dispatcher.schedule(self)

    def _adopt(self, before: Sequence[str]) -> None:
        """The metadata name other bookies now: count on these alone, and send them the entries that they miss."""
        ensemble = self.ensemble
        for bookie_id in set(before).difference(ensemble):
            self._pool.channel(bookie_id).replaced += 1
        self._logged_failures = ()
        self._leaving = tuple(bookie_id for bookie_id in self._leaving if bookie_id in ensemble)
        self._failed = {bookie_id: e for bookie_id, e in self._failed.items() if bookie_id in ensemble}
        if self._absent:
            self._absent = self._absent.intersection(ensemble)
        self._open_queues()
        quorum = self.metadata.write_quorum
        missing: dict[str, list[Batch]] = {}
        undone = []
        for batch in self.acks.above():
            old = members_of(batch.first_id, before, quorum)
            new = members_of(batch.first_id, ensemble, quorum)
            if set(old) == set(new):
                continue  # its own bookies are the same: it goes on as it was
            reassigned = self._reassign(batch, old)
            reassigned.members = frozenset(new)
            if reassigned.complete:
                batch.sent.acknowledged()
                batch.done = True
            elif batch.done:
                undone.append(batch)
            for bookie_id in new:
                if bookie_id not in old and bookie_id not in reassigned.accepted:
                    missing.setdefault(bookie_id, []).append(batch)
        self.acks.reopen(undone)
        if self._shortfall is not None:
            self._shortfall.moved(self.metadata)
        for bookie_id, batches in missing.items():
            self._dispatcher.resend(self, bookie_id, batches, self._flags)
        log.info("ledger %d: entries from %d on go to %s", self.ledger_id, self.confirmed + 1, ", ".join(ensemble))

    def _reassign(self, batch: Batch, members: Sequence[str]) -> ReassignedBatch:
        reassigned = self._reassigned.get(batch)
        if reassigned is None:
            accepted = batch.sent.release(batch)
            reassigned = self._reassigned[batch] = ReassignedBatch(batch, members, accepted, self.metadata.ack_quorum)
            self._reassigned_to = max(self._reassigned_to, batch.last_id)
        return reassigned

    def _send_again(self) -> None:
        """Send what is pending to those of the failed bookies that can be reached again.

        A bookie that was absent when the ledger was created is taken in before.
        """
        up = [b for b in self._failed if self._pool.channel(b).reached()]
        self._come = self._absent.intersection(up)
        self._send_to([bookie_id for bookie_id in up if bookie_id not in self._come])

    def _send_to(self, bookie_ids: Sequence[str]) -> None:
        """Send what is pending to these bookies, which can be reached."""
        self._limit()  # they may have come back with other ones
        for queue in self.queues:
            queue.limit()
        for bookie_id in bookie_ids:
            self._failed.pop(bookie_id, None)
            batches = []
            for batch in self.acks.above():
                members = members_of(batch.first_id, self.ensemble, self.metadata.write_quorum)
                if bookie_id in members and bookie_id not in self._reassign(batch, members).accepted:
                    batches.append(batch)
            if self._shortfall is not None:
                self._shortfall.sent_again(bookie_id, batches, self.confirmed)
            self._dispatcher.resend(self, bookie_id, batches, self._flags)

    def _forget_reassigned(self) -> None:
        """Drop them once all are confirmed; to be called where there are some."""
        if self.confirmed >= self._reassigned_to:
            self._reassigned.clear()

    async def settled(self) -> None:
        """Return when no change of the ensemble is under way."""
        while self.changing:
            assert self._change is not None
            if not self.acks.frozen:
                self._change.cancel()
            await asyncio.wait([self._change])
