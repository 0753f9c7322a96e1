"""The unordered requests of one connection: reads, fences, long polls, explicit last add confirmed, force.

Invariants: a waiting request holds no slice of the receive buffer; the keys before it on the wire decide it; a fence
applies to the ledger whose key was checked, and to no other of that id; the answers in memory are bounded, for each
connection and for the bookie.
"""

from __future__ import annotations

import asyncio
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final, Protocol

from bkpy.bookie.connection.add_handler import LostConnection
from bkpy.bookie.connection.answers import ConnectionAnswers
from bkpy.errors import BookKeeperError
from bkpy.protocol.wire import frame as wire
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Flags, Op, Status
from bkpy.protocol.wire.records import is_explicit_lac

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from bkpy.bookie.connection.keys import Claim, Keys
    from bkpy.bookie.connection.waiters import Waiter
    from bkpy.bookie.service import BookieService
    from bkpy.buffers import Bytes
    from bkpy.storage.engine import LastEntry
    from bkpy.storage.ledgers.info import LedgerInfo


_PARTS: Final = ("queued", "storage", "reply")  # of a request's time


class RequestConnection(Protocol):
    """The connection whose requests these are."""

    address: str
    forbidden: frozenset[int]

    def no_right(self, to: str) -> str: ...

    def request_id(self, correlation_id: int) -> str: ...

    @property
    def lost(self) -> bool: ...

    def reply(self, op: int, correlation_id: int, head: bytes, body: list[Bytes] | tuple[()] = ()) -> None: ...

    def flush(self) -> None: ...

    def abort(self) -> None: ...


class RequestHandler:
    """`in_flight`: how many requests have no answer yet."""

    def __init__(self, service: BookieService, connection: RequestConnection, keys: Keys) -> None:
        self.in_flight = 0
        self._service = service
        self._connection = connection
        self._keys = keys
        self._storage = service.storage
        self._settings = service.settings
        self.answers = ConnectionAnswers(service.answers, self._settings.reads_at_once, connection.flush)
        self._waits: dict[Waiter, None] = {}
        self._long_polls = 0  # they are among those in flight

    def start(self, frame: wire.Frame) -> None:
        """Start serving the request. Raises `ProtocolError` if it is none."""
        op, correlation_id = frame.opcode, frame.correlation_id
        marks: list[float] = []
        ledger_id, serving = self._decoded(frame, marks)
        long_poll = op == Op.WAIT_LAC
        if long_poll:
            pending, bound = self._long_polls, self._settings.long_polls_max
        else:
            pending, bound = self.in_flight - self._long_polls, self._settings.requests_in_flight_max
        if pending >= bound or self._service.too_many_requests(long_poll=long_poll):
            total, what = self._service.requests_in_flight, "limit of long polls" if long_poll else "limit"
            message = f"{pending} requests of this connection and {total} of all are in flight, which is the {what}"
            self._fail(op, correlation_id, Status.TOO_MANY_REQUESTS, message)
            return
        self._long_polls += long_poll
        self.in_flight += 1
        self._service.requests_in_flight += 1
        self._service.spawn(
            self._serve(op, correlation_id, ledger_id, marks, serving),
            f"request of {self._connection.address}",
            self._connection.abort,
        )

    def _decoded(self, frame: wire.Frame, marks: list[float]) -> tuple[int, Callable[[], Awaitable[None]]]:
        """(the ledger, a function that serves the request), without the frame, whose buffer others need."""
        op, correlation_id, head = frame.opcode, frame.correlation_id, frame.head
        keys = self._keys
        if op == Op.READ:
            read = m.decode_read(head)
            if read.flags & Flags.RECOVERY and Op.ADD in self._connection.forbidden:
                return read.ledger_id, partial(self._forbid_fencing, op, correlation_id)
            claim = keys.claim_on_arrival(read.ledger_id)
            return read.ledger_id, partial(self._read, correlation_id, read, claim, marks)
        if op == Op.READ_LAC:
            read_lac = m.decode_read_lac(head)
            if read_lac.flags & Flags.RECOVERY and Op.ADD in self._connection.forbidden:
                return read_lac.ledger_id, partial(self._forbid_fencing, op, correlation_id)
            claim = keys.claim_on_arrival(read_lac.ledger_id)
            return read_lac.ledger_id, partial(self._read_lac, correlation_id, read_lac, claim, marks)
        if op == Op.WAIT_LAC:
            wait_lac = m.decode_wait_lac(head)
            return wait_lac.ledger_id, partial(self._wait_lac, correlation_id, wait_lac)
        if op == Op.FORCE:
            force = m.decode_force(head)
            claim = keys.claim_on_arrival(force.ledger_id)
            return force.ledger_id, partial(self._force, correlation_id, force, claim, marks)
        write = m.decode_write_lac(head)
        record = bytes(frame.body) if is_explicit_lac(frame.body, write.ledger_id) else None
        claim = keys.claim_on_arrival(write.ledger_id)
        return write.ledger_id, partial(self._write_lac, correlation_id, write, record, claim, marks)

    async def _serve(
        self, op: int, correlation_id: int, ledger_id: int, marks: list[float], serving: Callable[[], Awaitable[None]]
    ) -> None:
        done: Callable[[], float] = self._service.metrics.request_started(op)
        try:
            await serving()
        except BookKeeperError as e:
            self._fail(op, correlation_id, Status.UNKNOWN, str(e))
        finally:
            if (seconds := done()) >= self._service.slow.over_s and op != Op.WAIT_LAC:
                self._note_slow(op, correlation_id, ledger_id, marks, seconds)
            self._long_polls -= op == Op.WAIT_LAC
            self.in_flight -= 1
            self._service.requests_in_flight -= 1
            self._service.request_ended()

    def _mark(self, marks: list[float]) -> None:
        """Note when the storage's part begins or ends, where slow requests are logged."""
        if self._service.slow.over_s != inf:
            marks.append(self._service.now())

    def _note_slow(self, op: int, correlation_id: int, ledger_id: int, marks: list[float], seconds: float) -> None:
        """Say where the time went, as far as the request came."""
        ended = self._service.now()
        times = [ended - seconds, *marks, ended]
        parts = {name: end - begin for name, begin, end in zip(_PARTS, times, times[1:], strict=False)}
        request, name = self._connection.request_id(correlation_id), Op(op).name.lower()
        self._service.slow.note(request, name, seconds, (ledger_id,), parts, client=self._connection.address)

    def _fail(self, op: int, correlation_id: int, status: Status, message: str) -> None:
        self._connection.reply(op, correlation_id, m.pack([int(status), message]))

    def close(self) -> None:
        """The connection is gone: release what waits for it."""
        self.answers.close()
        for waiter in self._waits:
            waiter.end()
        self._connection = LostConnection(self._connection.address)

    # --- the requests -----------------------------------------------------------------------------------------------

    async def _forbid_fencing(self, op: int, correlation_id: int) -> None:
        self._fail(op, correlation_id, Status.FORBIDDEN, self._connection.no_right("write, and so to fence"))

    async def _check(self, ledger_id: int, claim: Claim) -> tuple[Status, LedgerInfo | None]:
        """(whether the claim opens the ledger, the ledger's state); the caller runs before anything else happens."""
        state = (await self._storage.states((ledger_id,)))[ledger_id]
        status = claim.check(None if state is None else state.key)
        if status == Status.UNAUTHORIZED and claim.key is not None:
            status = await self._service.key_authority.decide(ledger_id, claim.key)
            if status == Status.OK:
                state = (await self._storage.states((ledger_id,)))[ledger_id]
                status = claim.check(None if state is None else state.key)
        elif claim.authorised and ledger_id not in self._keys.authorised:
            status = Status.KEY_REQUIRED  # the key was found to be wrong since the request arrived, or was forgotten
        return status, state

    async def _fence(self, ledger_id: int, claim: Claim) -> Status:
        """Fence for a recovery, which must have presented the key."""
        status, state = await self._check(ledger_id, claim)
        if status != Status.OK:
            return status
        if state is None:
            if claim.key is None:  # it was authorised, and its key has been forgotten since
                return Status.KEY_REQUIRED
            # Before any await: else another client could create it meanwhile, with another key, and would be fenced.
            state = self._storage.create(ledger_id, claim.key)
        if not await self._storage.fence(ledger_id, state.key):
            return Status.UNAVAILABLE
        self._service.waiters.wake((ledger_id,))
        return Status.OK

    async def _is_fenced_without_key(self, ledger_id: int, claim: Claim) -> bool:
        """Whether the ledger's key was lost here, and a recovery that has that of the metadata may count it as fenced.

        It is in limbo, and takes no entry before it is CLOSED. What is stored here is not shown to the recovery: nobody
        knows whose entries these are.
        """
        state = (await self._storage.states((ledger_id,)))[ledger_id]
        if claim.key is None or state is None or state.key or not (state.limbo and state.fenced):
            return False
        return await self._service.key_authority.prove(ledger_id, claim.key) == Status.OK

    async def _read(self, correlation_id: int, read: m.Read, claim: Claim, marks: list[float]) -> None:
        if read.flags & Flags.RECOVERY:
            status = await self._fence(read.ledger_id, claim)
            if status != Status.OK:
                self._fail(Op.READ, correlation_id, status, f"fencing ledger {read.ledger_id} was refused")
                return
        limit = min(read.bytes_max, self._settings.read_bytes_max)
        async with self.answers.place(max(limit, self._settings.block_bytes)) as place:
            self._mark(marks)
            result = await self._storage.read(read.ledger_id, read.first, read.last, limit)
            self._mark(marks)
            place.holds(result.segments)
            self._service.metrics.read_done(sum(map(len, result.segments)))
            head = m.pack([int(Status.OK), result.examined_to, result.unknown, result.lac])
            self._connection.reply(Op.READ, correlation_id, head, result.segments)

    async def _read_lac(self, correlation_id: int, request: m.ReadLac, claim: Claim, marks: list[float]) -> None:
        if request.flags & Flags.RECOVERY:
            status = await self._fence(request.ledger_id, claim)
            if status == Status.UNKNOWN and await self._is_fenced_without_key(request.ledger_id, claim):
                self._connection.reply(Op.READ_LAC, correlation_id, m.pack([int(Status.UNKNOWN), 0, True]))
                return
            if status != Status.OK:
                self._fail(Op.READ_LAC, correlation_id, status, f"fencing ledger {request.ledger_id} was refused")
                return
        async with self.answers.place(self._settings.block_bytes) as place:
            self._mark(marks)
            last = await self._storage.last_entry(request.ledger_id)
            self._mark(marks)
            place.holds([last.entry])
            self._reply_last(Op.READ_LAC, correlation_id, last)

    def _reply_last(self, op: Op, correlation_id: int, last: LastEntry) -> None:
        known = Status.UNKNOWN if last.limbo else Status.OK
        status = known if last.known else Status.NO_SUCH_LEDGER
        head = m.pack([int(status), len(last.entry), last.fenced])
        self._connection.reply(op, correlation_id, head, [last.entry, last.explicit_lac])

    async def _wait_lac(self, correlation_id: int, request: m.WaitLac) -> None:
        waiters = self._service.waiters
        waiter = waiters.add(request.ledger_id)  # before the first look, so that no news is missed
        self._waits[waiter] = None
        wait_s = min(request.wait_ms / 1000, self._settings.long_poll_max_s)
        timer = asyncio.get_running_loop().call_later(wait_s, waiter.end)
        if self._service.stopping or self._connection.lost:
            waiter.end()
        try:
            while not await self._answered(correlation_id, request, waiter):
                await waiter.changed.wait()
        finally:
            timer.cancel()
            del self._waits[waiter]
            waiters.remove(request.ledger_id, waiter)

    async def _answered(self, correlation_id: int, request: m.WaitLac, waiter: Waiter) -> bool:
        """Answer a long poll if there is news or its time is up; whether it was answered."""
        async with self.answers.place(self._settings.block_bytes) as place:
            waiter.changed.clear()
            last = await self._storage.last_entry(request.ledger_id)
            place.holds([last.entry])
            news = last.lac > request.known_lac or (last.fenced and not request.known_fenced)
            if not news and not waiter.over:
                return False
            self._reply_last(Op.WAIT_LAC, correlation_id, last)
            return True

    async def _may_write(self, ledger_id: int, claim: Claim) -> tuple[Status, bool]:
        """(whether this client may change the ledger, whether the bookie knows the ledger)."""
        status, state = await self._check(ledger_id, claim)
        deleted = state is None and self._storage.was_deleted(ledger_id)
        if status == Status.OK and (deleted or ledger_id in self._storage.fenced):
            of_limbo = not deleted and self._storage.ledgers.is_fenced_by_limbo(ledger_id)
            status = Status.READ_ONLY if of_limbo else Status.FENCED
        return status, state is not None

    async def _write_lac(
        self, correlation_id: int, request: m.WriteLac, record: bytes | None, claim: Claim, marks: list[float]
    ) -> None:
        status, seen = await self._may_write(request.ledger_id, claim)
        if status == Status.OK and not seen:
            status = Status.NO_SUCH_LEDGER
        if status == Status.OK and record is None:
            status = Status.BAD_REQUEST
        if status == Status.OK and record is not None:
            self._mark(marks)
            await self._storage.set_explicit_lac(request.ledger_id, record)
            self._mark(marks)
            self._service.waiters.wake((request.ledger_id,))
        self._fail(Op.WRITE_LAC, correlation_id, status, "")

    async def _force(self, correlation_id: int, request: m.Force, claim: Claim, marks: list[float]) -> None:
        status, _ = await self._may_write(request.ledger_id, claim)
        if status == Status.OK:
            self._mark(marks)
            await self._storage.force(request.ledger_id)
            self._mark(marks)
        self._fail(Op.FORCE, correlation_id, status, "")
