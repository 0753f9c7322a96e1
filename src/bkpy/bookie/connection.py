"""One client's connection: frames in, requests to the storage, replies out.

ADD and PRESENT are taken in the order in which they arrived. The fast path decides a whole ADD frame with two set
operations; whatever it can't decide goes to a backlog that is worked off in order, and so does everything behind it.

Invariants: nothing is answered before HELLO; an ADD is answered OK only from the storage's own callback, after the
sync, unless its client asked for less; what is pending for a connection is bounded, by not reading from the socket.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from bkpy.bookie.waiters import Waiter
from bkpy.errors import BookKeeperError, CorruptDataError, FrameTooLargeError, ProtocolError
from bkpy.protocol import frame as wire
from bkpy.protocol import messages as m
from bkpy.protocol.messages import Flags, Op, Status
from bkpy.protocol.receive_buffer import ReceiveBuffer
from bkpy.protocol.records import is_explicit_lac

if TYPE_CHECKING:
    from bkpy.bookie.server import BookieServer
    from bkpy.storage.ledger_storage import LastEntry

_UNORDERED: Final = frozenset((Op.READ, Op.READ_LAC, Op.WRITE_LAC, Op.WAIT_LAC, Op.FORCE))
_DEFERRED: Final = int(Flags.DEFERRED_SYNC)
_OK_HEAD: Final = m.pack(int(Status.OK))


class Connection(asyncio.BufferedProtocol):
    """Created by the server for each accepted socket."""

    def __init__(self, server: BookieServer) -> None:
        self._server = server
        self._storage = server.storage
        self._metrics = server.metrics
        self._settings = server.settings
        self._receive = ReceiveBuffer(server.settings.frame_bytes_max, server.chunks)
        self._transport: asyncio.Transport | None = None
        self._greeted = False
        self._authorised: set[int] = set()
        self._presented: dict[int, bytes] = {}
        self._backlog: deque[wire.Frame] = deque()
        self._backlog_busy = False
        self._out: list[wire.Bytes] = []
        self._pauses: set[str] = set()
        self._reads = asyncio.Semaphore(server.settings.reads_at_once)
        self._writable = asyncio.Event()
        self._writable.set()
        self._waits: dict[Waiter, None] = {}
        self._waiting = 0  # long polls that were taken; they are among those in flight
        self.peer = "?"
        self.in_flight = 0
        self.idle_ticks = 0
        self.received_bytes = 0
        self._seen_bytes = 0

    # --- the transport's calls --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one only by its methods
        peer = self._transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if peer else "?"
        self._server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._writable.set()  # nobody waits for a connection that is gone
        for waiter in self._waits:
            waiter.end()
        self._backlog.clear()
        self._out.clear()
        self._server.closed(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receive.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.received_bytes += nbytes
        try:
            for frame in self._receive.received(nbytes):
                self._take(frame)
                if self._transport is None:
                    return
        except BookKeeperError as e:
            self._refuse(e)

    def eof_received(self) -> bool:
        return False  # closes; replies to a client that has stopped listening would be for nobody

    def pause_writing(self) -> None:
        # The client isn't reading its replies: stop taking requests, or they would pile up in memory.
        self.pause("writing")

        self._writable.clear()

    def resume_writing(self) -> None:
        self.resume("writing")
        self._writable.set()

    # --- flow control and closing -----------------------------------------------------------------------------------

    def pause(self, reason: str) -> None:
        """Stop reading from the socket until every reason has been taken back."""
        if not self._pauses and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self._pauses.add(reason)

    def resume(self, reason: str) -> None:
        if reason in self._pauses:
            self._pauses.discard(reason)
            if not self._pauses and self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()

    def owes_progress(self) -> bool:
        """Whether this client has to send something now; counts the ticks in which it didn't."""
        owes = not self._pauses and (not self._greeted or self._receive.partial)
        self.idle_ticks = self.idle_ticks + 1 if owes and self.received_bytes == self._seen_bytes else 0
        self._seen_bytes = self.received_bytes
        return owes

    @property
    def mid_frame(self) -> bool:
        return self._receive.partial

    @property
    def greeted(self) -> bool:
        return self._greeted

    @property
    def busy(self) -> bool:
        """Whether a request that was taken is still to be answered."""
        return self.in_flight > 0 or self._backlog_busy

    def _ended(self) -> None:
        self.in_flight -= 1
        if self._server.draining:
            self._server.answered()

    def close(self) -> None:
        """Send what is buffered, then close."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _refuse(self, error: BookKeeperError) -> None:
        """The peer broke the protocol: say why, once, and hang up."""
        self._metrics.frame_refused()
        self._server.log.warning("closing the connection from %s: %s", self.peer, error)
        status = Status.TOO_LARGE if isinstance(error, FrameTooLargeError) else Status.BAD_REQUEST
        self._reply(0, 0, m.pack([int(status), str(error)]))
        self.close()

    # --- replies ----------------------------------------------------------------------------------------------------

    def _reply(self, op: int, correlation_id: int, head: bytes, body: list[wire.Bytes] | tuple[()] = ()) -> None:
        if self._transport is None:
            return
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)
        self._out += wire.encode(op | wire.REPLY, correlation_id, head, body)

    def _flush(self) -> None:
        out, self._out = self._out, []
        if out and self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(out)

    def _fail(self, frame: wire.Frame, status: Status, message: str) -> None:
        self._reply(frame.opcode, frame.correlation_id, m.pack([int(status), message]))

    # --- requests ---------------------------------------------------------------------------------------------------

    def _take(self, frame: wire.Frame) -> None:
        op = frame.opcode
        if op == Op.ADD and self._greeted:
            self._receive.retain()
            if self._backlog_busy or not self._add_fast(frame):
                self._defer(frame)
        elif not self._greeted:
            self._hello(frame)
        elif op == Op.PRESENT:
            self._receive.retain()
            self._learn(m.decode_present(frame.head))
            self._defer(frame)
        elif op in _UNORDERED:
            self._receive.retain()
            self._start(frame)
        else:
            raise ProtocolError(f"unknown opcode {op}")

    def _hello(self, frame: wire.Frame) -> None:
        if frame.opcode != Op.HELLO:
            raise ProtocolError("the first frame of a connection must be HELLO")
        hello = m.decode_hello(frame.head)
        server = self._server
        status, message = server.greet(hello)
        limits = (server.settings.frame_bytes_max, server.settings.entry_bytes_max)
        self._reply(Op.HELLO, frame.correlation_id, m.pack([int(status), message, server.bookie_id, *limits]))
        if status == Status.OK:
            self._greeted = True
        else:
            self.close()

    def _add_fast(self, frame: wire.Frame) -> bool:
        """Accept the frame as it is, if all its ledgers are known to be this connection's and none is fenced."""
        if self._server.read_only:
            return False
        columns = m.decode_add(frame.head, len(frame.body))
        ids = set(columns.ledger_ids)
        if columns.flags and columns.flags != _DEFERRED:
            return False
        if not self._authorised.issuperset(ids) or not self._storage.fenced.isdisjoint(ids):
            return False
        self._accept(frame, columns, frame.head, frame.body, _OK_HEAD)
        return True

    def _accept(
        self, frame: wire.Frame, columns: m.AddColumns, head: wire.Bytes, body: wire.Bytes, answer: bytes
    ) -> None:
        correlation_id = frame.correlation_id
        metrics = self._metrics
        began = metrics.add_started(columns, len(body))
        waiters = self._server.waiters
        self.in_flight += 1

        def done() -> None:
            metrics.add_done(began)
            self._reply(Op.ADD, correlation_id, answer)
            if waiters.by_ledger:
                waiters.wake(columns.ledger_ids)
            self._ended()

        storage = self._storage
        unsynced_max = self._settings.deferred_sync_bytes_max
        if columns.flags & _DEFERRED and storage.unsynced_bytes < unsynced_max and not storage.failed.done():
            storage.add(columns, head, body, _nothing)
            done()
        else:
            storage.add(columns, head, body, done)
        if storage.full:
            self.pause("memory")

    # --- the slow path, in order ------------------------------------------------------------------------------------

    def _defer(self, frame: wire.Frame) -> None:
        self._backlog.append(frame)
        if len(self._backlog) >= self._settings.backlog_frames_max:
            self.pause("backlog")
        if not self._backlog_busy:
            self._backlog_busy = True
            self._server.spawn(self._work_off(), f"backlog of {self.peer}", self)

    async def _work_off(self) -> None:
        try:
            while self._backlog:
                frame = self._backlog.popleft()
                if frame.opcode == Op.PRESENT:
                    await self._present(m.decode_present(frame.head))
                else:
                    await self._add_slow(frame)
                if len(self._backlog) <= self._settings.backlog_frames_max // 2:
                    self.resume("backlog")
        except BookKeeperError as e:
            self._refuse(e)
        finally:
            self._backlog_busy = False
            if self._server.draining:
                self._server.answered()

    def _learn(self, present: m.Present) -> None:
        """Know the keys at once: requests that keep no order, and so don't wait for the backlog, need them as well."""
        if len(self._presented) + len(present.keys) > self._settings.presented_ledgers_max:
            # Forgetting is always safe: the next ADD is answered KEY_REQUIRED, and the client presents again.
            self._presented.clear()
            self._authorised.clear()
        self._presented.update(zip(present.ledger_ids, present.keys, strict=True))

    async def _present(self, present: m.Present) -> None:
        try:
            states = await self._storage.states(present.ledger_ids)
        except CorruptDataError:
            return  # nobody is authorised for now; each ADD is answered by what its own ledgers are
        for ledger_id, key in zip(present.ledger_ids, present.keys, strict=True):
            state = states[ledger_id]
            # What was forgotten while the states were read has to be presented again.
            if state is not None and state.key == key and self._presented.get(ledger_id) == key:
                self._authorised.add(ledger_id)
            else:
                self._authorised.discard(ledger_id)

    def _check_key(self, ledger_id: int, key: bytes | None, known: bytes | None) -> Status:
        """Whether the key presented here opens the ledger, whose own key is `known` (None: never seen)."""
        if ledger_id in self._authorised:
            return Status.OK
        if key is None:
            return Status.KEY_REQUIRED
        if known == b"":
            return Status.UNKNOWN  # the key was lost with the index: who may write can't be told
        return Status.OK if known is None or known == key else Status.UNAUTHORIZED

    async def _add_slow(self, frame: wire.Frame) -> None:
        columns = m.decode_add(frame.head, len(frame.body))
        recovery = bool(columns.flags & Flags.RECOVERY)
        ids = set(columns.ledger_ids)
        try:
            states = await self._storage.states(ids)
        except CorruptDataError as e:
            self._server.log.error("an append is refused: %s", e)
            self._reply(Op.ADD, frame.correlation_id, m.pack(int(Status.UNKNOWN)))
            return
        if self._server.draining:
            self._reply(Op.ADD, frame.correlation_id, m.pack(int(Status.UNAVAILABLE)))
            return
        if self._server.read_only and not recovery:
            self._reply(Op.ADD, frame.correlation_id, m.pack(int(Status.READ_ONLY)))
            return
        verdicts: dict[int, Status] = {}
        for ledger_id in ids:
            state = states[ledger_id]
            key = self._presented.get(ledger_id)
            status = self._check_key(ledger_id, key, None if state is None else state.key)
            if status == Status.OK:
                if state is None and key is not None:
                    self._storage.create(ledger_id, key)
                self._authorised.add(ledger_id)
                if not recovery and ledger_id in self._storage.fenced:
                    status = Status.FENCED
            verdicts[ledger_id] = status
        keep = [i for i, ledger_id in enumerate(columns.ledger_ids) if verdicts[ledger_id] == Status.OK]
        if len(keep) == len(columns.ledger_ids):
            self._accept(frame, columns, frame.head, frame.body, _OK_HEAD)
            return
        answer = m.pack([int(verdicts[ledger_id]) for ledger_id in columns.ledger_ids])
        if keep:
            accepted = m.select(columns, keep)
            self._accept(frame, accepted, m.pack(list(accepted)), _gather(frame.body, columns.sizes, keep), answer)
        else:
            self._reply(Op.ADD, frame.correlation_id, answer)

    # --- requests without an order ----------------------------------------------------------------------------------

    def _start(self, frame: wire.Frame) -> None:
        settings = self._server.settings
        if frame.opcode == Op.WAIT_LAC:
            pending, bound = self._waiting, settings.long_polls_max
        else:
            pending, bound = self.in_flight - self._waiting, settings.requests_in_flight_max
        if pending >= bound:
            self._fail(frame, Status.TOO_MANY_REQUESTS, f"{pending} requests are in flight, which is the limit")
            return
        self._waiting += frame.opcode == Op.WAIT_LAC
        self.in_flight += 1
        self._server.spawn(self._serve(frame), f"request of {self.peer}", self)

    async def _serve(self, frame: wire.Frame) -> None:
        done: Callable[[], None] = self._metrics.request_started(frame.opcode)
        try:
            if frame.opcode == Op.READ:
                await self._read(frame, m.decode_read(frame.head))
            elif frame.opcode == Op.READ_LAC:
                await self._read_lac(frame, m.decode_read_lac(frame.head))
            elif frame.opcode == Op.WAIT_LAC:
                await self._wait_lac(frame, m.decode_wait_lac(frame.head))
            elif frame.opcode == Op.FORCE:
                await self._force(frame, m.decode_force(frame.head))
            else:
                await self._write_lac(frame, m.decode_write_lac(frame.head))
        except BookKeeperError as e:
            if isinstance(e, ProtocolError):
                self._refuse(e)
            else:
                self._fail(frame, Status.UNKNOWN, str(e))
        finally:
            done()
            self._waiting -= frame.opcode == Op.WAIT_LAC
            self._ended()

    async def _fence(self, ledger_id: int) -> Status:
        """Fence for a recovering reader, which must have presented the key."""
        state = (await self._storage.states((ledger_id,)))[ledger_id]
        key = self._presented.get(ledger_id)
        status = self._check_key(ledger_id, key, None if state is None else state.key)
        if status == Status.OK:
            if state is not None:
                key = state.key
            if key is None:  # authorised, and forgotten meanwhile
                return Status.KEY_REQUIRED
            await self._storage.fence(ledger_id, key)
            self._server.waiters.wake((ledger_id,))
        return status

    async def _read(self, frame: wire.Frame, read: m.Read) -> None:
        if read.flags & Flags.RECOVERY:
            status = await self._fence(read.ledger_id)
            if status != Status.OK:
                self._fail(frame, status, f"fencing ledger {read.ledger_id} was refused")
                return
        limit = min(read.bytes_max, self._server.settings.read_bytes_max)
        async with self._reads:
            await self._writable.wait()
            result = await self._storage.read(read.ledger_id, read.first, read.last, limit)
            self._metrics.read_done(sum(map(len, result.segments)))
            head = m.pack([int(Status.OK), result.examined_to, result.unknown, result.lac])
            self._reply(Op.READ, frame.correlation_id, head, result.segments)
            self._flush()  # so that the next one waits if the client doesn't read

    async def _read_lac(self, frame: wire.Frame, request: m.ReadLac) -> None:
        if request.flags & Flags.RECOVERY:
            status = await self._fence(request.ledger_id)
            if status != Status.OK:
                self._fail(frame, status, f"fencing ledger {request.ledger_id} was refused")
                return
        self._tell_last(frame, await self._storage.last_entry(request.ledger_id))

    def _tell_last(self, frame: wire.Frame, last: LastEntry) -> None:
        known = Status.UNKNOWN if last.limbo else Status.OK
        status = known if last.known else Status.NO_SUCH_LEDGER
        head = m.pack([int(status), len(last.entry), last.fenced])
        self._reply(frame.opcode, frame.correlation_id, head, [last.entry, last.explicit_lac])

    async def _wait_lac(self, frame: wire.Frame, request: m.WaitLac) -> None:
        waiters = self._server.waiters
        waiter = waiters.add(request.ledger_id)  # before the first look, so that nothing falls between the two
        self._waits[waiter] = None
        wait_s = min(request.wait_ms / 1000, self._server.settings.long_poll_max_s)
        timer = asyncio.get_running_loop().call_later(wait_s, waiter.end)
        if self._server.draining or self._transport is None:
            waiter.end()
        try:
            while not await self._told(frame, request, waiter):
                await waiter.changed.wait()
        finally:
            timer.cancel()
            del self._waits[waiter]
            waiters.remove(request.ledger_id, waiter)

    async def _told(self, frame: wire.Frame, request: m.WaitLac, waiter: Waiter) -> bool:
        """Answer a long poll if there is news or its time is up; whether it was."""
        async with self._reads:  # records are in memory for a few at once only, as for reads
            await self._writable.wait()
            waiter.changed.clear()
            last = await self._storage.last_entry(request.ledger_id)
            news = last.lac > request.known_lac or (last.fenced and not request.known_fenced)
            if not news and not waiter.over:
                return False
            self._tell_last(frame, last)
            self._flush()  # so that the next one waits if the client doesn't read
            return True

    async def _may_write(self, ledger_id: int) -> tuple[Status, bool]:
        """(whether this client may change the ledger, whether the ledger was ever seen)."""
        state = (await self._storage.states((ledger_id,)))[ledger_id]
        status = self._check_key(ledger_id, self._presented.get(ledger_id), None if state is None else state.key)
        if status == Status.OK and ledger_id in self._storage.fenced:
            status = Status.FENCED
        return status, state is not None

    async def _write_lac(self, frame: wire.Frame, request: m.WriteLac) -> None:
        status, seen = await self._may_write(request.ledger_id)
        if status == Status.OK and not seen:
            status = Status.NO_SUCH_LEDGER
        if status == Status.OK and not is_explicit_lac(frame.body, request.ledger_id):
            status = Status.BAD_REQUEST
        if status == Status.OK:
            await self._storage.set_explicit_lac(request.ledger_id, bytes(frame.body))
            self._server.waiters.wake((request.ledger_id,))
        self._fail(frame, status, "")

    async def _force(self, frame: wire.Frame, request: m.Force) -> None:
        status, _ = await self._may_write(request.ledger_id)
        if status == Status.OK:
            await self._storage.force(request.ledger_id)
        self._fail(frame, status, "")


def _nothing() -> None:
    pass


def _gather(body: memoryview, sizes: list[int], keep: list[int]) -> bytes:
    """The bodies of the batches with these indexes."""
    offsets = [0]
    for size in sizes:
        offsets.append(offsets[-1] + size)
    return b"".join(body[offsets[i] : offsets[i + 1]] for i in keep)
