"""A client's channel to one bookie: it connects when it is first used, and reconnects after a loss.

    IDLE --first use--> CONNECTING --greeted--> UP --lost--> DOWN --retry--> CONNECTING (nothing waits) ...
      ^------------------unused for long--------------------'

During the first attempt to connect, requests wait. Once an attempt has failed, every request fails at once until the
bookie is back: appends have other replicas, and repeated waits for a hung bookie would stop them. A bookie that is down
and that nobody uses may be gone for good: the channel stops dialling it, and the next use is a first one.

Invariants: every request ends, by its reply, by an error, or by the timeout of the oldest one; senders bound the bytes
that wait for a bookie (see `congested`).
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from bkpy.client.bookies.connection import BookieConnection, ChannelConnection, ChannelOwner, FrameWriter
from bkpy.client.bookies.dialling import ClosedMeanwhileError, Dialler, copy_of, hung_up, not_welcome
from bkpy.errors import BookieUnavailableError, BookKeeperError, FrameTooLargeError, ProtocolError
from bkpy.protocol.wire import frame as wire
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Op, Status

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator

    from bkpy.buffers import Bytes
    from bkpy.config.client import ClientSettings
    from bkpy.protocol.wire.receive_buffer import ChunkPool
    from bkpy.runtime.interfaces import Runtime
    from bkpy.runtime.slow_requests import SlowRequests

    Observed = Callable[[int, float, int], None]

NewConnection: TypeAlias = "Callable[[ChannelOwner], ChannelConnection]"

log = logging.getLogger("bkpy.client")

_NO_CALL: Final = (None, 0.0, b"")
_ANSWER_PAUSE_S: Final = 0.0005  # before the second look for answers, and twice as long before each further one
_UNUSED_S: Final = 300.0  # for which a bookie is dialled for nobody: longer than a restart takes


class Add(Protocol):
    """An ADD frame on its way to several bookies. `index` is the bookie's place among them."""

    buffers: list[Bytes]
    correlation_id: int
    body_bytes: int
    ledger_ids: set[int]

    def replied(self, index: int, head: memoryview) -> None: ...

    def failed(self, index: int, error: BookKeeperError) -> None: ...


class _State(enum.Enum):
    IDLE = enum.auto()
    CONNECTING = enum.auto()
    UP = enum.auto()
    DOWN = enum.auto()
    CLOSED = enum.auto()


class BookieChannel:
    """The channel to a bookie by id. `address` returns its current address, or raises; called before each connect."""

    def __init__(
        self,
        bookie_id: str,
        address: Callable[[str], Awaitable[str]],
        dialler: Dialler,
        settings: ClientSettings,
        runtime: Runtime,
        *,
        instance_id: str,
        software: str,
        key_of: Callable[[int], bytes | None],
        next_id: Callable[[], int],
        slow: SlowRequests,
        client_id: str = "",
        on_congestion: Callable[[BookieChannel, bool], None] = lambda channel, congested: None,
        chunks: ChunkPool | None = None,
        new_connection: NewConnection | None = None,
    ) -> None:
        self.bookie_id = bookie_id
        # The bookie's limits, once its greeting has named them.
        self.entry_bytes_max = settings.entry_bytes_max
        self.frame_bytes_max = 1 << 62
        self.slow_until = 0.0  # a read has timed out: reads prefer other bookies until then
        self.slots = asyncio.Semaphore(settings.calls_in_flight_max)  # of `request`; long polls take none
        self._answered_at = 0.0  # when it last answered an append
        self.generation = 0  # how many connections there have been
        self.congested = False  # too much is in flight: writers should wait
        self.in_flight_bytes = 0  # of ADD frames that the bookie has yet to answer
        self.failed_requests = 0  # without an answer, though sent or waiting for a connection
        self.resent_batches = 0  # of appends, that were sent once more or in another bookie's place
        self.replaced = 0  # changes of an ensemble that put another bookie in the place of this one
        self._slow = slow
        self._client_id = client_id
        self._observe_from_s = slow.over_s  # what takes so long is looked at when it is answered
        self._observed: Observed | None = None
        self._in_flight_bytes_max = settings.unacked_bytes_max
        self._on_congestion = on_congestion
        self._chunks = chunks
        self._new_connection = new_connection
        self._dialler = dialler
        self._address = address
        self._settings = settings
        self._runtime = runtime
        self._instance_id = instance_id
        self._software = software
        self._key_of = key_of
        self._next_id = next_id
        self._state = _State.IDLE
        self._error: BookKeeperError | None = None
        self._connection: ChannelConnection | None = None
        self._greeting: asyncio.Future[m.HelloReply] | None = None
        self._presented: set[int] = set()
        self._adds: dict[int, tuple[Add, int, float]] = {}
        # Each with the time when it was sent, and its head.
        self._calls: dict[int, tuple[asyncio.Future[wire.Frame], float, bytes]] = {}
        self._waiting: list[tuple[Add, int]] = []
        self._attempts = 0  # to connect, the present one included
        self._attempting = False
        self._used_at = 0.0  # when somebody wanted a connection, or one was lost
        self._connected: list[tuple[asyncio.Future[None], int]] = []  # and the attempt that counts for each
        self._task: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()  # set when a request waits for the next attempt to connect
        self._watch: asyncio.Handle | None = None

    @property
    def up(self) -> bool:
        return self._state is _State.UP

    def reached(self) -> bool:
        """Whether it is connected. If not, the bookie is dialled for as long as callers ask."""
        self._start()
        return self.up

    def observe(self, observed: Observed) -> None:
        """Call `observed` with operation, seconds and bytes of each request that is answered from now on."""
        self._observed, self._observe_from_s = observed, -1.0

    # --- sending ----------------------------------------------------------------------------------------------------

    def add(self, add: Add, index: int) -> None:
        """Send an ADD frame; `add.replied` or `add.failed` follows, never during this call."""
        self._count_in_flight(add.body_bytes)
        if self._state is _State.UP:
            self._write_add(add, index)
        elif self._state in (_State.IDLE, _State.CONNECTING):
            self._waiting.append((add, index))
            self._start()
        else:
            error = self._unavailable()
            asyncio.get_running_loop().call_soon(self._add_failed, add, index, error)

    def _count_in_flight(self, size: int) -> None:
        self.in_flight_bytes += size
        if (self.in_flight_bytes > self._in_flight_bytes_max) is not self.congested:
            self.congested = not self.congested
            self._on_congestion(self, self.congested)
            if self.congested and self._watch is not None:
                self._watch.cancel()
                self._watch = asyncio.get_running_loop().call_soon(self._watch_oldest)

    def has_unanswered_appends(self, ledger_id: int) -> bool:
        """Whether appends to the ledger wait to be sent or answered. Goes through all pending appends."""
        return any(ledger_id in add.ledger_ids for add in self._pending_appends())

    async def appends_answered(self, ledger_id: int, *, timeout_s: float) -> None:
        """Return when the appends to the ledger that were sent until now have been answered, or have failed.

        Raises `BookieUnavailableError` after `timeout_s` seconds.
        """
        pause_s = _ANSWER_PAUSE_S
        sent = {add.correlation_id for add in self._pending_appends() if ledger_id in add.ledger_ids}
        try:
            async with asyncio.timeout(timeout_s):
                while sent := sent.intersection(add.correlation_id for add in self._pending_appends()):
                    await asyncio.sleep(pause_s)
                    pause_s *= 2
        except TimeoutError:
            what = f"appends were not answered within {timeout_s:g} s"
            raise BookieUnavailableError(what, ledger_id=ledger_id, bookie=self.bookie_id) from None

    def _pending_appends(self) -> Iterator[Add]:
        for add, *_ in self._adds.values():
            yield add
        for add, _ in self._waiting:
            yield add

    def add_again(self, add: Add, index: int) -> None:
        """The bookie has forgotten a ledger's key, which it may: present the key and send once more."""
        self._presented -= add.ledger_ids
        self.resent_batches += 1
        self.add(add, index)

    def _write_add(self, add: Add, index: int) -> None:
        transport = self._transport()
        if add.body_bytes + len(add.buffers[0]) > self.frame_bytes_max:
            # The frame is older than the bookie's limits. If it were sent, the connection would end for all requests.
            size = add.body_bytes + len(add.buffers[0])
            error = FrameTooLargeError(
                f"the bookie takes frames of {self.frame_bytes_max} bytes, and these appends need {size}",
                bookie=self.bookie_id,
            )
            asyncio.get_running_loop().call_soon(self._add_failed, add, index, error)
            return
        self._adds[add.correlation_id] = (add, index, self._runtime.clock.monotonic())
        self._present(add.ledger_ids)
        if not transport.is_closing():  # else it fails with the connection, whose end is about to be reported
            transport.writelines(add.buffers)
        if self._watch is None:
            self._watch_oldest()

    def _present(self, ledger_ids: set[int]) -> None:
        if self._presented >= ledger_ids:
            return
        # A ledger whose writer has ended meanwhile has no key any more: the bookie refuses that batch, and no other.
        keys = [(i, key) for i in sorted(ledger_ids - self._presented) if (key := self._key_of(i)) is not None]
        count = m.keys_max(self.frame_bytes_max)
        for start in range(0, len(keys), count):
            some = dict(keys[start : start + count])
            self._presented.update(some)
            head = m.pack([list(some), list(some.values())])
            self._write(wire.encode(Op.PRESENT, self._next_id(), head))

    def forget(self, ledger_id: int) -> None:
        """This client doesn't write the ledger any more."""
        self._presented.discard(ledger_id)

    def _write(self, buffers: list[Bytes]) -> None:
        transport = self._transport()
        if not transport.is_closing():
            transport.writelines(buffers)

    def _transport(self) -> FrameWriter:
        assert self._connection is not None
        assert self._connection.transport is not None
        return self._connection.transport

    async def call(
        self,
        op: Op,
        head: bytes,
        body: tuple[Bytes, ...] = (),
        *,
        present: int | None = None,
        timeout_s: float,
        renew: bool = False,
        again: bool = False,
        long_poll: bool = False,
    ) -> wire.Frame:
        """Send a request and return its reply. `present`: a ledger whose key has to be presented before; `renew`: right
        before, also if it was. `again`: as for `connect`.

        A bookie that has too many requests in flight refuses further ones: the request is sent again, except for a long
        poll, and the refusal is returned once `timeout_s` is over.

        The reply's slices stay valid. Raises `BookieUnavailableError`, within `timeout_s` seconds once it is among the
        `calls_in_flight_max` that are in flight. A `long_poll` isn't counted among those.
        """
        refusal: wire.Frame | None = None
        pause_s = self._settings.refused_retry_pause_min_s
        try:
            async with contextlib.nullcontext() if long_poll else self.slots, asyncio.timeout(timeout_s):
                while True:
                    reply = await self._connect_and_send(op, head, body, present, renew=renew, again=again)
                    if long_poll or m.reply_status(reply.head) != Status.TOO_MANY_REQUESTS:
                        return reply
                    refusal = reply
                    await asyncio.sleep(pause_s * (1 + self._runtime.rng.random()) / 2)
                    refusal = None
                    pause_s = min(pause_s * 2, self._settings.refused_retry_pause_max_s)
        except TimeoutError:
            if refusal is not None:
                return refusal
            self.mark_slow()
            raise BookieUnavailableError(f"no answer within {timeout_s:g} s", bookie=self.bookie_id) from None

    async def call_as_owner(
        self,
        op: Op,
        head: bytes,
        body: tuple[Bytes, ...] = (),
        *,
        ledger_id: int,
        timeout_s: float,
        again: bool = True,
    ) -> wire.Frame:
        """Like `call`, for what needs the ledger's key; presents it again if the bookie has forgotten it."""
        reply = await self.call(op, head, body, present=ledger_id, timeout_s=timeout_s, again=again)
        if m.reply_status(reply.head) == Status.KEY_REQUIRED:
            # Not marked as forgotten here: until it is this call's turn another may present it, and the bookie forget.
            reply = await self.call(op, head, body, present=ledger_id, timeout_s=timeout_s, renew=True)
        return reply

    def request(self, op: Op, head: bytes) -> asyncio.Future[wire.Frame]:
        """Send a request without a body. Returns the future of its reply, which the caller cancels after its timeout.

        The caller has acquired one of `slots`; the channel releases it when the future is done. On a connected channel
        there is no task, because reads are many.
        """
        future: asyncio.Future[wire.Frame]
        if self._state is _State.UP:
            future = self._send(op, head, ())
        else:
            future = self._runtime.spawn(
                self._connect_and_send(op, head, (), None),
                name=f"request to {self.bookie_id}",
                on_death=lambda error: None,  # raised where the reply is awaited
            )
        future.add_done_callback(self._give_slot_back)
        return future

    def _give_slot_back(self, future: asyncio.Future[wire.Frame]) -> None:
        self.slots.release()

    def mark_slow(self) -> None:
        """Have reads prefer other bookies for a while."""
        self.slow_until = self._runtime.clock.monotonic() + self._settings.slow_bookie_s

    async def _connect_and_send(
        self,
        op: Op,
        head: bytes,
        body: tuple[Bytes, ...],
        present: int | None,
        *,
        renew: bool = False,
        again: bool = False,
    ) -> wire.Frame:
        await self.connect(again=again)
        if self._state is not _State.UP:
            raise self._unavailable()  # it was lost again before this task ran
        if present is not None:
            if renew:
                self.forget(present)
            self._present({present})
        return await self._send(op, head, body)

    def _send(self, op: Op, head: bytes, body: tuple[Bytes, ...]) -> asyncio.Future[wire.Frame]:
        correlation_id = self._next_id()
        future: asyncio.Future[wire.Frame] = asyncio.get_running_loop().create_future()
        self._calls[correlation_id] = (future, self._runtime.clock.monotonic(), head)
        future.add_done_callback(lambda _: self._calls.pop(correlation_id, None))
        self._write(wire.encode(op, correlation_id, head, body))
        return future

    async def connect(self, *, again: bool = False) -> None:
        """Return once connected; `BookieUnavailableError` if the bookie is down.

        `again`: what counts is one more attempt from now, and not that the last one failed.
        """
        if self._state is _State.UP:
            return
        if self._state is _State.CLOSED or (self._state is _State.DOWN and not again):
            raise self._unavailable()
        self._hurry.set()
        connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        under_way = self._attempting and not again
        self._connected.append((connected, self._attempts + (not under_way)))
        self._start()
        await connected

    def _unavailable(self) -> BookKeeperError:
        self._used_at = self._runtime.clock.monotonic()
        if self._error is None:
            return ClosedMeanwhileError("the client is closed", bookie=self.bookie_id)
        return self._error.renewed(bookie=self.bookie_id)

    # --- connecting -------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._used_at = self._runtime.clock.monotonic()
        if self._state is _State.IDLE:
            self._state = _State.CONNECTING
            self._task = self._runtime.spawn(
                self._keep_connected(), name=f"connection to {self.bookie_id}", on_death=self._died
            )

    def _died(self, error: BaseException) -> None:
        log.error("the connection to bookie %s failed", self.bookie_id, exc_info=error)
        self._drop(self._connection)
        self._attempts += 1  # the last one
        self._went_down(BookieUnavailableError(f"the connection failed: {error!r}", bookie=self.bookie_id))
        if self._state is _State.DOWN:
            self._state = _State.IDLE  # no background attempt follows: the next use connects

    async def _keep_connected(self) -> None:
        shortest, longest = self._settings.reconnect_pause_min_s, self._settings.reconnect_pause_max_s
        delay = shortest
        while self._state is not _State.CLOSED:
            self._attempts += 1
            self._attempting = True
            self._hurry.clear()
            try:
                connection = await self._connect_once()
            except BookKeeperError as e:
                self._attempting = False
                self._went_down(e)
                if not self._connected:
                    self._hurry.clear()
                    if self._state is _State.DOWN and self._runtime.clock.monotonic() - self._used_at >= _UNUSED_S:
                        self._state = _State.IDLE
                        return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(delay * (1 + self._runtime.rng.random()) / 2):
                        await self._hurry.wait()
                delay = min(delay * 2, longest)
                continue
            self._attempting = False
            delay = shortest
            self._came_up(connection)
            await connection.lost
            self._used_at = self._runtime.clock.monotonic()
            # A bookie that greets and hangs up at once is not connected to in a tight loop.
            await asyncio.sleep(shortest)

    async def _connect_once(self) -> ChannelConnection:
        connection: ChannelConnection | None = None
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s):
                address = await self._address(self.bookie_id)
                self._greeting = asyncio.get_running_loop().create_future()
                self._connection = connection = self._made()
                await connection.open(self._dialler, address)
                hello = m.pack([self._software, self._instance_id, self.bookie_id])
                self._write(wire.encode(Op.HELLO, self._next_id(), hello))
                reply = await self._greeting
        except TimeoutError:
            self._drop(connection)
            self._attempts += 1  # it was silent until now: requests that came meanwhile need no other attempt
            raise BookieUnavailableError(
                f"no answer within {self._settings.connect_timeout_s:g} s", bookie=self.bookie_id
            ) from None
        except (OSError, ValueError) as e:
            self._drop(connection)
            raise self._dialler.not_reached(e, self.bookie_id) from None
        except BookKeeperError:
            self._drop(connection)
            raise
        if reply.status != Status.OK:
            self._drop(connection)
            raise not_welcome(reply.status, reply.message, self.bookie_id)
        self.frame_bytes_max = reply.frame_bytes_max
        self.entry_bytes_max = max(0, min(reply.entry_bytes_max, m.payload_bytes_max(reply.frame_bytes_max)))
        return connection

    def _made(self) -> ChannelConnection:
        if self._new_connection is not None:
            return self._new_connection(self)
        return BookieConnection(self, self._settings.reply_bytes_max, self._chunks)

    def _drop(self, connection: ChannelConnection | None) -> None:
        self._connection = None
        if connection is not None and connection.transport is not None:
            connection.transport.abort()

    def _came_up(self, connection: ChannelConnection) -> None:
        if connection.lost.done():
            return
        self._state = _State.UP
        self.generation += 1
        self._error = None
        self._presented.clear()
        for connected, _ in self._connected:
            if not connected.done():
                connected.set_result(None)
        self._connected.clear()
        waiting, self._waiting = self._waiting, []
        for add, index in waiting:
            self._write_add(add, index)

    def connection_lost(self, connection: ChannelConnection, error: Exception | None) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        self._went_down(self._dialler.lost(error, self.bookie_id))

    def _went_down(self, error: BookKeeperError) -> None:
        """Fail all pending requests, with unknown outcomes."""
        if self._state is not _State.CLOSED:
            self._state = _State.DOWN
            self._error = error
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._greeting is not None and not self._greeting.done():
            self._greeting.set_exception(error)
            self._greeting.exception()  # retrieved: perhaps no task waits for it any more
        adds, self._adds = self._adds, {}
        waiting, self._waiting = self._waiting, []
        calls, self._calls = self._calls, {}
        closed = self._state is _State.CLOSED
        ended = [connected for connected, attempt in self._connected if closed or attempt <= self._attempts]
        self._connected = [] if closed else [one for one in self._connected if one[1] > self._attempts]
        futures: list[asyncio.Future[Any]] = [*(future for future, _, _ in calls.values()), *ended]
        self.failed_requests += sum(not future.done() for future, _, _ in calls.values())
        for future in futures:
            if not future.done():
                future.set_exception(copy_of(error, self.bookie_id))
        for add, index, _ in adds.values():
            self._add_failed(add, index, error)
        for add, index in waiting:
            self._add_failed(add, index, error)

    def _add_failed(self, add: Add, index: int, error: BookKeeperError) -> None:
        self.failed_requests += 1
        add.failed(index, error)
        self._count_in_flight(-add.body_bytes)

    def _watch_oldest(self) -> None:
        """Drop the connection when the oldest append has waited too long: a hung bookie counts as failed.

        While writers wait for it, it is given up as soon as it has answered nothing for a shorter time.
        """
        loop = asyncio.get_running_loop()
        if not self._adds:
            self._watch = None
            return
        now, timeout = self._runtime.clock.monotonic(), self._settings.add_timeout_s
        correlation_id, (add, _, sent_at) = next(iter(self._adds.items()))
        left = timeout - (now - sent_at)
        stall = self._settings.backpressure_stall_timeout_s
        if self.congested and timeout > stall:
            left = min(left, stall - (now - max(sent_at, self._answered_at)))
        if left > 0:
            self._watch = loop.call_later(left + 0.001, self._watch_oldest)
            return
        self._watch = None
        if self._slow.over_s <= now - sent_at:
            self._note_slow(Op.ADD, correlation_id, now - sent_at, add.ledger_ids, answered=False)
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.abort(BookieUnavailableError(f"an append wasn't answered within {timeout:g} s"))
            self._went_down(
                BookieUnavailableError(f"an append wasn't answered within {timeout:g} s", bookie=self.bookie_id)
            )

    # --- receiving --------------------------------------------------------------------------------------------------

    def received(self, connection: ChannelConnection, frame: wire.Frame) -> None:
        if frame.opcode == Op.ADD | wire.REPLY:
            sent = self._adds.pop(frame.correlation_id, None)
            if sent is not None:
                add, index, sent_at = sent
                self._answered_at = now = self._runtime.clock.monotonic()
                if now - sent_at >= self._observe_from_s:
                    self._observe(Op.ADD, now - sent_at, add.body_bytes)
                    if now - sent_at >= self._slow.over_s:
                        self._note_slow(Op.ADD, frame.correlation_id, now - sent_at, add.ledger_ids)
                try:
                    add.replied(index, frame.head)
                except ProtocolError as e:
                    add.failed(index, e)  # it is not in `_adds` any more, which fail with the connection
                    raise
                finally:  # not earlier: waiters for the append run before waiters for the bookie
                    self._count_in_flight(-add.body_bytes)
            return
        if frame.opcode == Op.HELLO | wire.REPLY and self._greeting is not None and not self._greeting.done():
            self._greeting.set_result(m.decode_hello_reply(frame.head))
            return
        if frame.opcode == wire.REPLY:  # about the connection as a whole
            raise hung_up(*m.decode_error(frame.head), self.bookie_id)
        future, sent_at, head = self._calls.get(frame.correlation_id, _NO_CALL)
        if future is not None and not future.done():
            seconds = self._runtime.clock.monotonic() - sent_at
            op = frame.opcode & ~wire.REPLY
            if seconds >= self._observe_from_s and op != Op.WAIT_LAC:  # which waits on purpose
                self._observe(op, seconds, len(frame.body))
                if seconds >= self._slow.over_s:
                    self._note_slow(op, frame.correlation_id, seconds, m.ledgers_of_request(op, head))
            connection.receive.retain()
            future.set_result(frame)

    def _observe(self, op: int, seconds: float, bytes_: int) -> None:
        if self._observed is not None:
            self._observed(op, seconds, bytes_)

    def _note_slow(
        self, op: int, correlation_id: int, seconds: float, ledger_ids: Collection[int], *, answered: bool = True
    ) -> None:
        name = Op(op).name.lower() + ("" if answered else " without an answer")
        self._slow.note(f"{self._client_id}-{correlation_id}", name, seconds, ledger_ids, {}, bookie=self.bookie_id)

    async def close(self) -> None:
        """Drop the connection, which fails all pending requests."""
        self._state = _State.CLOSED
        self._error = None
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        connection, self._connection = self._connection, None
        if connection is not None and connection.transport is not None:
            connection.transport.abort()  # `close` would wait for a hung bookie to take what was not sent yet
        self._went_down(ClosedMeanwhileError("the client was closed during the call", bookie=self.bookie_id))
