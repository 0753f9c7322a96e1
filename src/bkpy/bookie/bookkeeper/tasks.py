"""The requests of one connection that aren't adds: how many there are, their answers' places, their end.

Invariants: a request counts until it is answered or dropped; no request is refused because its client sends many of
them (they wait, and the connection stops reading), but for long polls beyond `long_polls_max`; the tasks of all
connections are bounded, but that each connection may have one; a bookie that stops waits for all of them.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Protocol

from bkpy.bookie.bookkeeper.adds import LostEntryConnection
from bkpy.bookie.connection.answers import ConnectionAnswers
from bkpy.errors import BookKeeperError
from bkpy.protocol.wire.messages import Op

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from bkpy.bookie.connection.waiters import Waiter
    from bkpy.bookie.service import BookieService
    from bkpy.buffers import Bytes


class TaskConnection(Protocol):
    """The connection whose requests these are."""

    address: str

    @property
    def lost(self) -> bool: ...

    def send(self, buffers: list[Bytes]) -> None: ...

    def flush(self) -> None: ...

    def pause(self, reason: str) -> None: ...

    def resume(self, reason: str) -> None: ...

    def abort(self) -> None: ...


class RequestGroup(NamedTuple):
    """Requests that are served together. After an error `give_up` answers the ones that have no answer yet."""

    op: Op
    serve: Callable[[], Coroutine[None, None, None]]
    give_up: Callable[[], None]
    requests: int = 1


class RequestTasks:
    """`in_flight`: how many requests have no answer yet, long polls included. `long_polls`: how many of these."""

    def __init__(self, service: BookieService, connection: TaskConnection) -> None:
        self.in_flight = 0
        self.long_polls = 0
        self.connection: TaskConnection | LostEntryConnection = connection
        self.answers = ConnectionAnswers(service.answers, service.settings.reads_at_once, connection.flush)
        self.waits: dict[Waiter, None] = {}
        self._service = service
        self._running = 0  # tasks that are no long polls
        self._queue: deque[RequestGroup] = deque()  # what one call of the socket brought beyond the bounds
        self._waiting_max = service.settings.requests_in_flight_max

    def have_enough(self, more: int = 0) -> bool:
        """Whether as many requests are in flight, with so many `more`, as may be. Long polls don't count."""
        return self.in_flight - self.long_polls + more >= self._waiting_max

    def start(self, serving: RequestGroup) -> None:
        """Serve these requests, in their turn."""
        self.in_flight += serving.requests
        self.long_polls += serving.op == Op.WAIT_LAC
        if self.have_enough():
            self.connection.pause("requests")
        if serving.op != Op.WAIT_LAC and self._running and self._has_no_place():
            self._queue.append(serving)
        else:
            self._spawn(serving)

    def _has_no_place(self) -> bool:
        return self._running >= self._waiting_max or self._service.too_many_requests(long_poll=False)

    def _spawn(self, serving: RequestGroup) -> None:
        self._running += serving.op != Op.WAIT_LAC
        self._service.requests_in_flight += 1
        self._service.spawn(self._serve(serving), f"request of {self.connection.address}", self.connection.abort)

    async def _serve(self, serving: RequestGroup) -> None:
        op = serving.op
        done: Callable[[], float] = self._service.metrics.request_started(op)
        try:
            await serving.serve()
        except BookKeeperError as e:
            self._service.log.warning("a request of %s failed: %s", self.connection.address, e)
            serving.give_up()
        finally:
            if (seconds := done()) >= self._service.slow.over_s and op != Op.WAIT_LAC:
                address = self.connection.address
                self._service.slow.note(address, op.name.lower(), seconds, (), {}, client=address)
            self._running -= op != Op.WAIT_LAC
            self._service.requests_in_flight -= 1
            self.long_polls -= op == Op.WAIT_LAC
            self._ended(serving)
            if self._queue and self._running < self._waiting_max:
                self._spawn(self._queue.popleft())

    def _ended(self, serving: RequestGroup) -> None:
        self.in_flight -= serving.requests
        if self.in_flight - self.long_polls <= self._waiting_max // 2:
            self.connection.resume("requests")
        self._service.request_ended()

    def close(self) -> None:
        """The connection is gone: release what waits for it."""
        self.answers.close()
        for waiter in self.waits:
            waiter.end()
        self.connection = LostEntryConnection(self.connection.address)
        while self._queue:
            self._ended(self._queue.popleft())
