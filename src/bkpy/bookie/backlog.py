"""The slow path of one connection: ADD and PRESENT, in the order in which they arrived.

What the fast path can't decide waits here until the states of its ledgers were read, and everything behind it as well.

Invariants: of two frames that wait, the one that came first is decided first; between the reading of a ledger's state
and what is decided by it, nothing else happens; the bytes that wait are of the receive budget.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from bkpy.errors import BookKeeperError, CorruptDataError, ProtocolError
from bkpy.protocol import frame as wire
from bkpy.protocol import messages as m
from bkpy.protocol.messages import Flags, Op, Status

if TYPE_CHECKING:
    from bkpy.bookie.connection import Connection


class Backlog:
    """`busy`: whether something waits, or is being decided."""

    def __init__(self, connection: Connection) -> None:
        self.busy = False
        self._connection = connection
        self._server = connection.server
        self._storage = connection.server.storage
        self._keys = connection.keys
        self._frames_max = connection.server.settings.backlog_frames_max
        # A PRESENT is copied out of the receive buffer; an ADD's bytes stay where they are, for the memtable.
        self._waiting: deque[tuple[int, wire.Frame | m.Present]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, what: wire.Frame | m.Present, size: int) -> None:
        """Take a frame of `size` bytes, or what it was."""
        self._waiting.append((size, what))
        budget = self._server.receiving
        budget.change(size)
        if len(self._waiting) >= self._frames_max or budget.exhausted:
            self._connection.pause("backlog")
        if not self.busy:
            self.busy = True
            self._server.spawn(self._work_off(), f"backlog of {self._connection.peer}", self._connection)

    def clear(self) -> None:
        """The connection is gone."""
        while self._waiting:
            self._server.receiving.change(-self._waiting.popleft()[0])

    async def _work_off(self) -> None:
        try:
            while self._waiting:
                size, what = self._waiting.popleft()
                try:
                    if isinstance(what, m.Present):
                        await self._present(what)
                    else:
                        await self._add(what)
                except ProtocolError as e:
                    assert isinstance(what, wire.Frame)
                    self._connection.bad_request(what, e)
                finally:
                    self._server.receiving.change(-size)
                if len(self._waiting) <= self._frames_max // 2:
                    self._connection.resume("backlog")
        except BookKeeperError as e:
            self._connection.refuse(e)
        finally:
            self.busy = False
            if self._server.draining:
                self._server.answered()

    async def _present(self, present: m.Present) -> None:
        keys = self._keys
        keys.take(present)
        try:
            states = await self._storage.states(present.ledger_ids)
        except CorruptDataError:
            return  # nobody is authorised for now; each ADD is answered by what its own ledgers are
        for ledger_id, key in zip(present.ledger_ids, present.keys, strict=True):
            state = states[ledger_id]
            if state is not None and state.key == key:
                keys.authorise(ledger_id)

    async def _add(self, frame: wire.Frame) -> None:
        columns = m.decode_add(frame.head, len(frame.body))
        recovery = bool(columns.flags & Flags.RECOVERY)
        ids = set(columns.ledger_ids)
        try:
            states = await self._storage.states(ids)
        except CorruptDataError as e:
            self._server.log.error("an append is refused: %s", e)
            self._answer(frame, Status.UNKNOWN)
            return
        if self._server.draining:
            self._answer(frame, Status.UNAVAILABLE)
            return
        if self._server.read_only and not recovery:
            self._answer(frame, Status.READ_ONLY)
            return
        verdicts: dict[int, Status] = {}
        for ledger_id in ids:
            state = states[ledger_id]
            claim = self._keys.claim_in_turn(ledger_id)
            status = claim.verdict(None if state is None else state.key)
            if status == Status.OK and state is None:
                if claim.key is None:
                    status = Status.KEY_REQUIRED
                else:
                    self._storage.create(ledger_id, claim.key)
            if status == Status.OK:
                self._keys.authorise(ledger_id)
                if not recovery and ledger_id in self._storage.fenced:
                    status = Status.FENCED
            verdicts[ledger_id] = status
        self._accept(frame, columns, verdicts)

    def _accept(self, frame: wire.Frame, columns: m.AddColumns, verdicts: dict[int, Status]) -> None:
        """Store the batches of those ledgers whose verdict is OK."""
        keep = [i for i, ledger_id in enumerate(columns.ledger_ids) if verdicts[ledger_id] == Status.OK]
        if len(keep) == len(columns.ledger_ids):
            self._connection.accept(frame, columns, frame.head, frame.body)
            return
        answer = m.pack([int(verdicts[ledger_id]) for ledger_id in columns.ledger_ids])
        if keep:
            accepted = m.select(columns, keep)
            body = _gather(frame.body, columns.sizes, keep)
            self._connection.accept(frame, accepted, m.pack(list(accepted)), body, answer)
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
