"""The requests of one connection that aren't adds: how many there are, their answers' places, their end.

Invariants: a request counts until it is answered or dropped; no request is refused because its client sends many of
them (the connection stops reading instead), but for long polls beyond `long_polls_max`; a bookie that stops waits for
all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

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

    def request_ended(self) -> None: ...

    def abort(self) -> None: ...


class RequestTasks:
    """`in_flight`: how many requests have no answer yet, long polls included. `long_polls`: how many of these."""

    def __init__(self, service: BookieService, connection: TaskConnection) -> None:
        self.in_flight = 0
        self.long_polls = 0
        self.connection: TaskConnection | LostEntryConnection = connection
        self.answers = ConnectionAnswers(service.answers, service.settings.reads_at_once, connection.flush)
        self.waits: dict[Waiter, None] = {}
        self._service = service
        self._waiting_max = service.settings.requests_in_flight_max

    def start(self, op: Op, coro: Coroutine[None, None, None], give_up: Callable[[], None], requests: int = 1) -> None:
        """Serve these requests; after an error `give_up` answers the ones that have no answer yet."""
        self.in_flight += requests
        self.long_polls += op == Op.WAIT_LAC
        self._service.requests_in_flight += 1
        if self.in_flight - self.long_polls >= self._waiting_max:
            self.connection.pause("requests")
        self._service.spawn(
            self._serve(op, coro, give_up, requests),
            f"request of {self.connection.address}",
            self.connection.abort,
        )

    async def _serve(
        self, op: Op, coro: Coroutine[None, None, None], give_up: Callable[[], None], requests: int
    ) -> None:
        done: Callable[[], float] = self._service.metrics.request_started(op)
        try:
            await coro
        except BookKeeperError as e:
            self._service.log.warning("a request of %s failed: %s", self.connection.address, e)
            give_up()
        finally:
            if (seconds := done()) >= self._service.slow.over_s and op != Op.WAIT_LAC:
                address = self.connection.address
                self._service.slow.note(address, op.name.lower(), seconds, (), {}, client=address)
            self.in_flight -= requests
            self.long_polls -= op == Op.WAIT_LAC
            self._service.requests_in_flight -= 1
            if self.in_flight - self.long_polls <= self._waiting_max // 2:
                self.connection.resume("requests")
            self.connection.request_ended()

    def close(self) -> None:
        """The connection is gone: release what waits for it."""
        self.answers.close()
        for waiter in self.waits:
            waiter.end()
        self.connection = LostEntryConnection(self.connection.address)
