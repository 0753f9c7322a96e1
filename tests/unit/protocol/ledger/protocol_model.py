"""The protocol's clients, made of the decisions in `bkpy.protocol`, one step per message of a `World`.

`Replicator` does what `client/write/replication.py` does, `Writer` what `client/write/writer.py` does, `Recovery` and
`WriteBack` what `recovery/ledger_recovery.py` and `recovery/write_back.py` do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.unit.protocol.ledger.protocol_world import Bookie, BrokenPromiseError, Record, Unknown, World

from bkpy.protocol.ledger.acks import BareBatch, Batch, Flight, LedgerAcks, ReassignedBatch
from bkpy.protocol.ledger.close_conflict import CLOSE_ACTIONS, CloseAction, Closer, fresh_state, rebased
from bkpy.protocol.ledger.ensemble_change import (
    REACTIONS,
    Case,
    Conflict,
    Reaction,
    ack_quorum_at_risk,
    members_of,
    on_conflict,
)
from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata, LedgerState
from bkpy.protocol.ledger.recovery import EntryAnswer, EntryStatus, Fencing, Forward, Reply
from bkpy.protocol.wire.messages import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ENTRIES_MAX = 14
RANGE_ENTRIES = 3


@dataclass(eq=False)
class Sent:
    """A batch as it left, and the count of its answers."""

    records: dict[int, Record]
    flight: Flight
    names: tuple[str, ...]
    released: bool = False


class Replicator:
    """Brings batches onto their bookies, and other bookies into the place of those that fail."""

    def __init__(self, world: World, value: LedgerMetadata, version: int, confirmed: int, *, recovering: bool) -> None:
        self.world = world
        self.value = value
        self.version = version
        self.confirmed = confirmed
        self.recovering = recovering
        self.acks = LedgerAcks(confirmed)
        self.failed: set[str] = set()
        self.reopened: dict[Batch, ReassignedBatch] = {}
        self.unsent: list[dict[int, Record]] = []
        self.changing = False
        self.ended = False

    @property
    def ensemble(self) -> tuple[str, ...]:
        return self.value.fragments[-1].bookies

    def members(self, batch: Batch, ensemble: Sequence[str]) -> tuple[str, ...]:
        return members_of(batch.first_id, ensemble, self.value.write_quorum)

    # --- sending and counting ---------------------------------------------------------------------------------------

    def send(self) -> None:
        """All that is unsent leaves, one batch per write set and run."""
        if self.ended or self.acks.frozen:
            return
        unsent, self.unsent = self.unsent, []
        stride = self.value.ensemble_size if self.value.ensemble_size > self.value.write_quorum else 1
        for run in unsent:
            ids = list(run)
            for k in range(min(stride, len(ids))):
                part = ids[k::stride]
                batch = BareBatch(1, part[0], part[-1], self)
                self.acks.sent(batch)
                names = self.members(batch, self.ensemble)
                flight = Flight([batch], len(names), self.value.ack_quorum)
                batch.sent = Sent({n: run[n] for n in part}, flight, names)
                for index, name in enumerate(names):
                    self._add(name, batch, partial(self._answered, batch, index))

    def _add(self, name: str, batch: Batch, settle: Callable[[Status | None], None]) -> None:
        records = batch.sent.records
        self.world.call(name, lambda bookie: bookie.add(records, recovering=self.recovering), settle)

    def _answered(self, batch: Batch, index: int, status: Status | None) -> None:
        sent: Sent = batch.sent
        if self.ended:
            return
        verdict = sent.flight.fail(index) if status is None else sent.flight.reply(index, status)
        if verdict.refused:
            self.end()
        elif verdict.failed:
            self.bookie_failed(sent.names[index])
        elif not sent.released:
            for completed in verdict.completed:
                self.completed(completed)
        elif sent.flight.accepted(batch) >> index & 1:
            self.accepted(batch, sent.names[index])

    def _answered_again(self, batch: Batch, name: str, status: Status | None) -> None:
        if self.ended:
            return
        if status is None:
            self.bookie_failed(name)
        elif status is Status.FENCED:
            self.end()
        else:
            self.accepted(batch, name)

    def completed(self, batch: Batch) -> None:
        self._confirm(self.acks.done(batch))

    def accepted(self, batch: Batch, name: str) -> None:
        reopened = self.reopened.get(batch)
        if reopened is not None:
            reopened.accepted.add(name)
            if not batch.done and reopened.complete:
                self.completed(batch)

    def _confirm(self, confirmed: int) -> None:
        self.acks.check_invariants()
        if confirmed < self.confirmed:
            raise BrokenPromiseError("last add confirmed has gone back")
        if confirmed > self.confirmed:
            self.confirmed = confirmed
            self.reopened = {batch: r for batch, r in self.reopened.items() if batch.last_id > confirmed}
            self.moved()

    def moved(self) -> None:
        """More is confirmed, or a change of the ensemble is over."""

    def end(self) -> None:
        """Nothing more is confirmed."""
        self.ended = True

    # --- changing the ensemble --------------------------------------------------------------------------------------

    def bookie_failed(self, name: str) -> None:
        if name in self.ensemble:
            self.failed.add(name)

    def mend(self) -> None:
        """What the failures known by now call for."""
        if self.ended or self.changing or not self.failed:
            return
        value = self.value
        reaction = REACTIONS[
            Case(
                allowed=self.world.may_change,
                delay=self.world.delay_change,
                ack_quorum_at_risk=ack_quorum_at_risk(
                    self._positions(), value.ensemble_size, value.write_quorum, value.ack_quorum
                ),
                to_be_left=False,
            )
        ]
        if reaction is Reaction.NOTHING:
            return
        ensemble = self._replaced() if reaction is Reaction.CHANGE else None
        if ensemble is None:
            self._send_again()
            return
        self.changing = True
        if self.world.safeguards.nothing_is_acknowledged_during_a_change:
            self.acks.freeze()
        self.store(ensemble)

    def _positions(self) -> list[int]:
        return [i for i, name in enumerate(self.ensemble) if name in self.failed]

    def _replaced(self) -> tuple[str, ...] | None:
        """The ensemble with bookies that are up in the place of as many failed ones as possible; None for none."""
        spares = [n for n, bookie in self.world.bookies.items() if bookie.up and n not in self.ensemble]
        changes = dict(zip(self._positions(), spares, strict=False))
        return tuple(changes.get(i, name) for i, name in enumerate(self.ensemble)) if changes else None

    def store(self, ensemble: tuple[str, ...]) -> None:
        """Make it the ensemble of what isn't confirmed, then call `adopt`."""
        raise NotImplementedError

    def adopt(self, before: tuple[str, ...]) -> None:
        """`value` names the ensemble that counts from now on."""
        self.failed &= set(self.ensemble)
        undone, again = [], []
        for batch in self.acks.above():
            old, new = self.members(batch, before), self.members(batch, self.ensemble)
            if set(old) == set(new):
                continue
            reopened = self._reopen(batch, old)
            forgets = self.world.safeguards.replaced_bookies_count_no_more
            reopened.members = frozenset(new) if forgets else reopened.members | set(new)
            if reopened.complete:
                batch.done = True
            elif batch.done:
                undone.append(batch)
            again += [(name, batch) for name in new if name not in old and name not in reopened.accepted]
        self.acks.reopen(undone)
        for name, batch in again:
            self._add(name, batch, partial(self._answered_again, batch, name))
        further = self._replaced() if self.failed else None
        if further is not None:
            self.store(further)
        else:
            self.thaw()

    def thaw(self) -> None:
        self.changing = False
        self._confirm(self.acks.thaw())
        self.send()
        self.moved()

    def _reopen(self, batch: Batch, members: Sequence[str]) -> ReassignedBatch:
        if batch not in self.reopened:
            sent: Sent = batch.sent
            sent.released = True
            bits = sent.flight.accepted(batch)
            accepted = {name for i, name in enumerate(sent.names) if bits >> i & 1}
            self.reopened[batch] = ReassignedBatch(batch, members, accepted, self.value.ack_quorum)
        return self.reopened[batch]

    def _send_again(self) -> None:
        for name in sorted(name for name in self.failed if self.world.bookies[name].up):
            self.failed.remove(name)
            for batch in self.acks.above():
                members = self.members(batch, self.ensemble)
                if name in members and name not in self._reopen(batch, members).accepted:
                    self._add(name, batch, partial(self._answered_again, batch, name))


class Writer(Replicator):
    def __init__(self, world: World) -> None:
        super().__init__(world, world.value, world.version, -1, recovering=False)
        self.next_id = 0

    def append(self, count: int) -> None:
        if not self.ended and self.next_id + count <= ENTRIES_MAX:
            ids = range(self.next_id, self.next_id + count)
            self.unsent.append({n: Record(f"entry {n}", self.confirmed) for n in ids})
            self.next_id += count
            self.send()

    def moved(self) -> None:
        self.world.acknowledged = self.confirmed

    def store(self, ensemble: tuple[str, ...]) -> None:
        wanted = self.value.new_fragment(self.confirmed + 1, ensemble)
        self.world.put(wanted, self.version, partial(self._stored, wanted))

    def _stored(self, wanted: LedgerMetadata, outcome: Any) -> None:
        if self.ended:
            return
        if outcome is Unknown:
            if self.world.safeguards.unknown_outcomes_are_found_out:
                self.world.put(wanted, self.version, partial(self._stored, wanted))
            else:
                self.thaw()
            return
        before = self.ensemble
        if outcome is None:
            fresh = self.world.value
            replaced = set(before) - set(wanted.fragments[-1].bookies)
            if on_conflict(fresh, replaced) in (Conflict.FENCED, Conflict.CLOSED):
                self.end()
                return
            if fresh.fragments[-1].first_entry > self.confirmed + 1:
                raise BrokenPromiseError("somebody has begun a fragment that the writer has not")
            self.value, self.version = fresh, self.world.version
        else:
            self.value, self.version = wanted, outcome
        self.adopt(before)

    def close(self) -> None:
        """What is pending fails, and the ledger is closed behind what was acknowledged."""
        if not self.ended and not self.changing:
            self.end()
            self._close()

    def _close(self) -> None:
        closed = self.value.closed(self.confirmed, self.confirmed + 1)
        self.world.put(closed, self.version, self._closed)

    def _closed(self, outcome: Any) -> None:
        if outcome is Unknown:
            self._close()
        elif outcome is None:
            fresh, self.version = self.world.value, self.world.version
            action = CLOSE_ACTIONS[Closer.WRITER, fresh_state(fresh, self.confirmed, self.confirmed + 1)]
            if action is CloseAction.TRY_AGAIN:
                self.value = fresh
                self._close()


class WriteBack(Replicator):
    def __init__(self, recovery: Recovery, confirmed: int) -> None:
        super().__init__(recovery.world, recovery.value, recovery.version, confirmed, recovering=True)
        self.recovery = recovery

    def add(self, records: dict[int, Record]) -> None:
        if records:
            self.unsent.append(records)
            self.send()

    def store(self, ensemble: tuple[str, ...]) -> None:
        before = self.ensemble
        self.value = self.value.new_fragment(self.confirmed + 1, ensemble)
        self.adopt(before)

    def moved(self) -> None:
        self.recovery.progress()


@dataclass(eq=False)
class Recovery:
    """IN_RECOVERY, fence, read forward, write back, close. `over` when it has closed the ledger, failed or died."""

    world: World
    over: bool = False
    failure: str | None = None
    write_back: WriteBack | None = None
    last_entry: int | None = None  # once it is known
    busy: set[int] = field(default_factory=set)
    records: dict[int, Record] = field(default_factory=dict)
    closing: bool = False

    def start(self) -> None:
        self._mark(None)

    def stop(self, failure: str) -> None:
        self.over, self.failure = True, failure
        if self.write_back is not None:
            self.write_back.end()

    def _mark(self, _: Any) -> None:
        if self.over:
            return
        self.value, self.version = self.world.value, self.world.version
        if self.value.state is LedgerState.OPEN:
            self.world.put(self.value.in_recovery(), self.version, self._mark)  # whatever its outcome: look
        elif self.value.state is LedgerState.IN_RECOVERY:
            self._fence()
        else:
            self.over = True

    # --- fencing ----------------------------------------------------------------------------------------------------

    def _fence(self) -> None:
        fragment = self.value.fragments[-1]
        self.sizes = (self.value.ensemble_size, self.value.write_quorum, self.value.ack_quorum)
        self.fencing = Fencing(*self.sizes)
        lifted = self.world.safeguards.reading_starts_in_the_last_fragment
        self.confirmed = fragment.first_entry - 1 if lifted else -1
        for index, name in enumerate(fragment.bookies):
            self.world.call(name, Bookie.fence, partial(self._fenced, index))

    def _fenced(self, index: int, confirmed: int | None) -> None:
        if self.over or self.write_back is not None:
            return
        if confirmed is None:
            self.fencing.failed(index)
            if self.fencing.impossible:
                self.stop("too few bookies could be fenced")
            return
        self.confirmed = max(self.confirmed, confirmed)
        self.fencing.fenced(index)
        if self.fencing.complete:
            self.write_back = WriteBack(self, self.confirmed)
            self._read_range(self.confirmed + 1)

    # --- reading forward --------------------------------------------------------------------------------------------

    def _read_range(self, first: int) -> None:
        self.first = first
        self.bookies = self.value.fragment_of(first).bookies
        self.forward = Forward(first, first + RANGE_ENTRIES - 1, *self.sizes)
        self.busy = set()
        self._ask()

    def _ask(self) -> None:
        forward = self.forward
        for index in forward.members(forward.next):
            if index in self.busy or forward.word(index, forward.next) is not EntryAnswer.NONE:
                continue
            self.busy.add(index)
            self.world.call(
                self.bookies[index],
                partial(
                    Bookie.read,
                    first=forward.next,
                    last=forward.last,
                    limit=(index + forward.next) % RANGE_ENTRIES,  # some answer in pieces
                    fence=self.world.safeguards.recovery_reads_fence,
                ),
                partial(self._read, forward, index, forward.next),
            )

    def _read(self, forward: Forward, index: int, first: int, reply: tuple[int, dict[int, Record]] | None) -> None:
        if self.over or forward is not self.forward or self.last_entry is not None:
            return
        self.busy.discard(index)
        if reply is not None:
            examined_to, records = reply
            forward.answer(index, Reply(first, examined_to, records))
            self.records.update(records)
        elif self.world.safeguards.errors_deny_nothing:
            forward.fail(index)
        else:
            forward.answer(index, Reply(first, forward.last, ()))
        verdict = forward.decide()
        if verdict is EntryStatus.OPEN:
            self._ask()
        elif verdict is EntryStatus.UNDECIDABLE:
            self.stop("too few bookies can tell")
        else:
            self._copy(verdict)

    def _copy(self, verdict: EntryStatus) -> None:
        assert self.write_back is not None
        end = self.forward.next
        if verdict is EntryStatus.MISSING:
            self.last_entry = end - 1
        self.write_back.add({n: self.records[n] for n in range(self.first, end)})
        if verdict is EntryStatus.MISSING:
            self.progress()
        else:
            self._read_range(end)

    # --- closing ----------------------------------------------------------------------------------------------------

    def progress(self) -> None:
        """Close the ledger when all that it has is on its ack quorums."""
        copy = self.write_back
        if copy is None or self.over or self.closing or copy.changing or copy.confirmed != self.last_entry:
            return
        self.closing = True
        self.ours = copy.value
        self._close(copy.value)

    def _close(self, value: LedgerMetadata) -> None:
        assert self.last_entry is not None
        self.world.put(value.closed(self.last_entry, self.last_entry + 1), self.version, partial(self._closed, value))

    def _closed(self, value: LedgerMetadata, outcome: Any) -> None:
        if self.over:
            return
        if outcome is Unknown:
            self._close(value)
        elif outcome is None:
            assert self.last_entry is not None
            fresh, self.version = self.world.value, self.world.version
            action = CLOSE_ACTIONS[Closer.RECOVERY, fresh_state(fresh, self.last_entry, self.last_entry + 1)]
            if action is CloseAction.TRY_AGAIN:
                self._close(rebased(fresh, self.value, self.ours))
            elif action is CloseAction.CLOSED:
                self.over = True
            else:
                raise BrokenPromiseError(action.value)
        else:
            self.over = True
