"""The appends of one connection: ADD and PRESENT, taken in the order in which they arrived.

The fast path decides a whole ADD frame with two set operations. A frame that it can't decide waits in the backlog until
the states of its ledgers have been read, and so do all frames behind it.

Invariants: of two waiting frames the handler decides the earlier one first, unless that needs the metadata to know
whose its ledgers are; nothing else happens between reading a ledger's state and deciding by it; waiting bytes count
towards the receive budget; an ADD is answered OK only from the storage's own callback, after the sync,
unless its client asked for less.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from bkpy.errors import BookKeeperError, CorruptDataError, ProtocolError
from bkpy.protocol.access import NO_OPS
from bkpy.protocol.repair.draining import takes_entries
from bkpy.protocol.wire import frame as wire
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Flags, Op, Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bkpy.bookie.connection.keys import Claim, Keys
    from bkpy.bookie.service import BookieService
    from bkpy.buffers import Bytes

_DEFERRED: Final = int(Flags.DEFERRED_SYNC)
_RECOVERY: Final = int(Flags.RECOVERY)
OK_HEAD: Final = m.pack(int(Status.OK))


class AddConnection(Protocol):
    """The connection whose appends these are."""

    address: str

    def request_id(self, correlation_id: int) -> str: ...

    def reply(self, op: int, correlation_id: int, head: bytes) -> None: ...

    def bad_request(self, frame: wire.Frame, error: ProtocolError) -> None: ...

    def refuse(self, error: BookKeeperError) -> None: ...

    def memory_full(self) -> None: ...

    def pause(self, reason: str) -> None: ...

    def resume(self, reason: str) -> None: ...

    def abort(self) -> None: ...


class LostConnection:
    """Stands in for a connection that is gone, in requests that are still under way: it drops their answers."""

    forbidden = NO_OPS
    lost = True

    def __init__(self, address: str) -> None:
        self.address = address

    def _nothing(self, *args: object) -> None:
        pass

    reply = bad_request = refuse = memory_full = pause = resume = abort = flush = _nothing

    def request_id(self, correlation_id: int) -> str:
        return f"{self.address}-{correlation_id}"

    def no_right(self, to: str) -> str:
        return f"the connection is lost, and with it the right to {to}"


class AddHandler:
    """`in_flight`: how many frames are being stored. `backlogged`: whether frames wait, or one is being decided."""

    def __init__(self, service: BookieService, connection: AddConnection, keys: Keys) -> None:
        self.in_flight = 0
        self.backlogged = False
        # With sizes and times of arrival. A PRESENT is copied out of the receive buffer; an ADD stays where it is, for
        # the memtable.
        self.backlog: deque[tuple[int, wire.Frame | m.Present, float]] = deque()
        self._service = service
        self._storage = service.storage
        self._metrics = service.metrics
        self._waiters = service.waiters
        self._undecided = 0  # frames that wait for the metadata, and don't block others
        self._frames_max = service.settings.backlog_frames_max
        self._slow = service.slow
        self._unsynced_max = service.settings.deferred_sync_bytes_max
        self._connection = connection
        self._keys = keys
        self._authorised = keys.authorised

    @property
    def busy(self) -> bool:
        """Whether an accepted frame has no answer yet."""
        return self.in_flight > 0 or self.backlogged

    def add(self, frame: wire.Frame) -> None:
        """Store the frame as it is if all its ledgers are known to be this connection's and none is fenced.

        The backlog decides all other frames. Raises `ProtocolError` if the frame is no ADD.
        """
        if self.backlogged or self._service.read_only:
            self._wait(frame, len(frame.head) + len(frame.body))
            return
        columns = m.decode_add(frame.head, len(frame.body))
        ids = set(columns.ledger_ids)
        if (
            (columns.flags and columns.flags != _DEFERRED)
            or not self._authorised.issuperset(ids)
            or not self._storage.fenced.isdisjoint(ids)
        ):
            self._wait(frame, len(frame.head) + len(frame.body))
            return
        self._store(frame, columns, frame.head, frame.body)

    def present(self, head: memoryview) -> None:
        """Take these keys when their turn comes. Raises `ProtocolError` if the frame is no PRESENT."""
        present = m.decode_present(head)
        self._keys.arrive(present)
        self._wait(present, len(head))

    def close(self) -> None:
        """The connection is gone: drop the backlog."""
        while self.backlog:
            self._service.receive_budget.change(-self.backlog.popleft()[0])
        self._connection = LostConnection(self._connection.address)

    def _store(
        self,
        frame: wire.Frame,
        columns: m.AddColumns,
        head: Bytes,
        body: Bytes,
        answer: bytes | None = None,
        *,
        arrived: float | None = None,
    ) -> None:
        """Store these batches, whose ledgers are known, and answer when they are durable, by default OK.

        `arrived`: when, if that isn't now.
        """
        correlation_id = frame.correlation_id
        connection, metrics, waiters, service = self._connection, self._metrics, self._waiters, self._service
        began = metrics.add_started(columns, len(body))
        slow_at = (began if arrived is None else arrived) + self._slow.over_s
        self.in_flight += 1

        def done() -> None:
            ended = metrics.add_done(began)
            if ended >= slow_at:
                self._note_slow(connection, correlation_id, columns, arrived, began, ended)
            connection.reply(Op.ADD, correlation_id, answer or OK_HEAD)
            if waiters.by_ledger:
                waiters.wake(columns.ledger_ids)
            self.in_flight -= 1
            service.request_ended()

        storage = self._storage
        if columns.flags & _DEFERRED and storage.unsynced_bytes < self._unsynced_max and not storage.failed.done():
            storage.add(columns, head, body, _nothing)
            done()
        else:
            storage.add(columns, head, body, done)
        if storage.full:
            connection.memory_full()

    def _note_slow(
        self,
        connection: AddConnection,
        correlation_id: int,
        columns: m.AddColumns,
        arrived: float | None,
        began: float,
        ended: float,
    ) -> None:
        """Say where the time went. Called while the callbacks of the frame's journal group run."""
        arrived = began if arrived is None else arrived
        write = self._storage.last_write
        parts = {"queued": began - arrived}
        if write is not None and write.ended >= began:
            parts["journal"] = max(0.0, write.began - began)
            parts["sync"] = write.ended - max(write.began, began)
            parts["reply"] = ended - write.ended
        self._slow.note(
            connection.request_id(correlation_id),
            "add",
            ended - arrived,
            set(columns.ledger_ids),
            parts,
            client=connection.address,
        )

    # --- the backlog ------------------------------------------------------------------------------------------------

    def _wait(self, what: wire.Frame | m.Present, size: int) -> None:
        self.backlog.append((size, what, self._service.now()))
        budget = self._service.receive_budget
        budget.change(size)
        if len(self.backlog) + self._undecided >= self._frames_max or budget.exhausted:
            self._connection.pause("backlog")
        if not self.backlogged:
            self.backlogged = True
            self._service.spawn(self._work_off(), f"backlog of {self._connection.address}", self._connection.abort)

    async def _work_off(self) -> None:
        try:
            while self.backlog:
                size, what, arrived = self.backlog.popleft()
                try:
                    if isinstance(what, m.Present):
                        await self._present(what)
                    else:
                        await self._add(what, size, arrived)
                except ProtocolError as e:
                    assert isinstance(what, wire.Frame)
                    self._connection.bad_request(what, e)
                finally:
                    self._service.receive_budget.change(-size)
                self._read_on()
        except BookKeeperError as e:
            self._connection.refuse(e)
        finally:
            self.backlogged = False
            self._service.request_ended()

    async def _present(self, present: m.Present) -> None:
        keys = self._keys
        keys.take(present)
        try:
            states = await self._storage.states(present.ledger_ids)
        except CorruptDataError:
            return  # no ledger is authorised for now; each ADD gets the answer of its own ledgers
        for ledger_id, key in zip(present.ledger_ids, present.keys, strict=True):
            state = states[ledger_id]
            if state is not None and state.key == key:
                keys.authorise(ledger_id)

    def _read_on(self) -> None:
        if len(self.backlog) + self._undecided <= self._frames_max // 2:
            self._connection.resume("backlog")

    async def _add(self, frame: wire.Frame, size: int, arrived: float) -> None:
        columns = m.decode_add(frame.head, len(frame.body))
        disputed = await self._decide(frame, columns, arrived, {}, {})
        if disputed:  # the frame goes on waiting, and the frames behind it go on
            self._undecided += 1
            self.in_flight += 1
            self._service.receive_budget.change(size)
            self._service.spawn(
                self._decide_by_metadata(frame, columns, arrived, disputed, size),
                f"keys of {self._connection.address}",
                self._connection.abort,
            )

    async def _decide_by_metadata(
        self, frame: wire.Frame, columns: m.AddColumns, arrived: float, disputed: dict[int, Claim], size: int
    ) -> None:
        """Decide a frame whose keys differ from the keys that its ledgers have here."""
        decide = self._service.key_authority.decide
        claims: dict[int, Claim] = {}
        decided: dict[int, Status] = {}
        try:
            while disputed:  # once more if meanwhile a stranger was the first to present a key for another ledger of it
                claims.update(disputed)
                found = await asyncio.gather(*(decide(i, claim.key) for i, claim in disputed.items() if claim.key))
                decided.update(zip(disputed, found, strict=True))
                disputed = await self._decide(frame, columns, arrived, claims, decided)
        except BookKeeperError as e:
            self._connection.refuse(e)
        finally:
            self._undecided -= 1
            self.in_flight -= 1
            self._service.receive_budget.change(-size)
            self._read_on()
            self._service.request_ended()

    async def _decide(
        self,
        frame: wire.Frame,
        columns: m.AddColumns,
        arrived: float,
        claims: Mapping[int, Claim],
        decided: Mapping[int, Status],
    ) -> dict[int, Claim]:
        """Store and answer the frame, unless some keys differ from those here and the metadata have to decide.

        Returns the claims to the disputed ledgers. `claims` are the claims of the frame's turn, and `decided` what the
        metadata have decided of them.
        """
        recovery = bool(columns.flags & _RECOVERY)
        ids = set(columns.ledger_ids)
        try:
            states = await self._storage.states(ids)
        except CorruptDataError as e:
            self._service.log.error("refused an append from %s: %s", self._connection.address, e)
            self._answer(frame, Status.UNKNOWN)
            return {}
        if self._service.stopping:
            self._answer(frame, Status.UNAVAILABLE)
            return {}
        if not takes_entries(leaves=self._service.leaves, read_only=self._service.read_only, recovery=recovery):
            self._answer(frame, Status.READ_ONLY)
            return {}
        known = {ledger_id: None if state is None else state.key for ledger_id, state in states.items()}
        made = {ledger_id: claims.get(ledger_id) or self._keys.claim_in_turn(ledger_id) for ledger_id in ids}
        undecided = {i: claim for i, claim in made.items() if i not in decided}
        if disputed := {i: c for i, c in undecided.items() if c.check(known[i]) == Status.UNAUTHORIZED}:
            return disputed
        statuses: dict[int, Status] = {}
        for ledger_id in ids:
            state = states[ledger_id]
            claim = made[ledger_id]
            status = decided.get(ledger_id, Status.OK)
            if status == Status.OK:
                status = claim.check(known[ledger_id])
            if status == Status.OK and state is None:
                if not recovery and self._storage.was_deleted(ledger_id):
                    status = Status.FENCED  # its writer was cut off for long
                elif not recovery and self._storage.ledgers.doubts(ledger_id):
                    status = Status.READ_ONLY  # its writer uses another bookie: here the ledger would be fenced
                elif claim.key is None:
                    status = Status.KEY_REQUIRED
                else:
                    self._storage.create(ledger_id, claim.key)
            if status == Status.OK:
                self._keys.authorise(ledger_id)
                if not recovery and ledger_id in self._storage.fenced:
                    of_limbo = self._storage.ledgers.is_fenced_by_limbo(ledger_id)
                    status = Status.READ_ONLY if of_limbo else Status.FENCED
            statuses[ledger_id] = status
        self._store_some(frame, columns, statuses, arrived)
        return {}

    def _store_some(
        self, frame: wire.Frame, columns: m.AddColumns, statuses: dict[int, Status], arrived: float
    ) -> None:
        """Store the batches of those ledgers whose status is OK."""
        keep = [i for i, ledger_id in enumerate(columns.ledger_ids) if statuses[ledger_id] == Status.OK]
        if len(keep) == len(columns.ledger_ids):
            self._store(frame, columns, frame.head, frame.body, arrived=arrived)
            return
        answer = m.pack([int(statuses[ledger_id]) for ledger_id in columns.ledger_ids])
        if keep:
            kept = m.select(columns, keep)
            body = _gather(frame.body, columns.sizes, keep)
            self._store(frame, kept, m.pack(list(kept)), body, answer, arrived=arrived)
        else:
            self._connection.reply(Op.ADD, frame.correlation_id, answer)

    def _answer(self, frame: wire.Frame, status: Status) -> None:
        self._connection.reply(Op.ADD, frame.correlation_id, m.pack(int(status)))


def _gather(body: memoryview, sizes: list[int], keep: list[int]) -> bytes:
    """The bodies of the batches with these indexes."""
    offsets = [0]
    for size in sizes:
        offsets.append(offsets[-1] + size)
    return b"".join(body[offsets[i] : offsets[i + 1]] for i in keep)


def _nothing() -> None:
    pass
