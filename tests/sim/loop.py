"""An event loop in virtual time: nothing waits, nothing escapes, and the same program runs the same way every time.

Time moves only when nothing is ready, straight to the next timer, and by `turn_s` with each turn of the loop. Timers
that are due at the same instant run in the order in which they were set. Tasks and futures hash by their number, so
that sets of them iterate alike in every process. The network is a `SimNet`; everything else that would reach outside
the process raises `EscapeError`.

Invariant: a callback whose context belongs to a dead incarnation of a host never runs. It is parked, and its coroutine
sees neither an exception nor a `finally`, as with a process that was killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import math
import threading
from contextvars import copy_context
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

    from .net import SimNet, SimServer, SimTransport

START_S = 1000.0  # not 0, so that a mistaken 0 shows
TURNS_MAX = 100_000  # callbacks at one instant of virtual time; more means that the program spins


class EscapeError(AssertionError):
    """The code under test tried to reach outside the simulation."""


class StuckError(AssertionError):
    """Nothing can happen any more, or things happen for ever without time going on."""


@dataclass(eq=False)
class Incarnation:
    """One boot of a host. What its callbacks would have done after its death is kept here, and never done."""

    address: str
    number: int = 1
    dead: bool = False
    rate: float = 1.0  # of its clocks: 1.1 if they count 11 seconds while 10 go by
    parked: list[asyncio.Handle] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.address}#{self.number}"


CURRENT: contextvars.ContextVar[Incarnation | None] = contextvars.ContextVar("incarnation", default=None)


class SimFuture(asyncio.Future[Any]):
    """A future whose hash is its number and not its address in memory; made by `SimLoop.create_future` only."""

    _number: int

    def __hash__(self) -> int:
        return self._number


class SimTask(asyncio.Task[Any]):
    """A task whose hash is its number and not its address in memory."""

    def __init__(self, coro: Coroutine[Any, Any, Any], *, loop: SimLoop, **kwargs: Any) -> None:
        self._number = loop.next_number()  # before the base, which puts the task into a set
        super().__init__(coro, loop=loop, **kwargs)

    def __hash__(self) -> int:
        return self._number


class _SimHandle(asyncio.Handle):
    """A handle that costs little to make: there is one for each callback, and the base's looks for a debug mode.

    It is cancelled when it has no callback.
    """

    __slots__ = ()

    def __init__(self, callback: Callable[..., Any], args: tuple[Any, ...], context: contextvars.Context) -> None:
        self._callback = callback
        self._args = args
        self._context = context

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._callback!r}>"

    def cancel(self) -> None:
        self._callback = self._args = None

    def cancelled(self) -> bool:
        return self._callback is None


class _SimTimer(asyncio.TimerHandle):
    """The same at a time."""

    __slots__ = ()

    def __init__(
        self, when: float, callback: Callable[..., Any], args: tuple[Any, ...], context: contextvars.Context
    ) -> None:
        self._when = when
        self._callback = callback
        self._args = args
        self._context = context

    __repr__ = _SimHandle.__repr__
    cancel = _SimHandle.cancel
    cancelled = _SimHandle.cancelled


def _new_task(
    loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any], **kwargs: Any
) -> SimTask:
    assert isinstance(loop, SimLoop)
    task = SimTask(coro, loop=loop, **kwargs)
    context = kwargs.get("context")
    loop.unfinished[task] = CURRENT.get() if context is None else context.get(CURRENT)
    task.add_done_callback(loop.forget, context=loop.outside)
    return task


def _rate_of(context: contextvars.Context | None) -> float:
    incarnation = CURRENT.get() if context is None else context.get(CURRENT)
    return 1.0 if incarnation is None else incarnation.rate


class SimLoop(asyncio.BaseEventLoop):
    """`errors` collects what reached the loop's exception handler; a run with any is a failed run."""

    def __init__(self, turn_s: float = 0.0) -> None:
        self._numbers = 0
        super().__init__()
        self._now = START_S
        self._turn_s = turn_s  # more than 0, and whoever waits by `sleep(0)` is not stuck
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._turns = 0
        self.rated = False  # some host's clock doesn't count true seconds
        self.ends_at = float("inf")  # a program that is still running then is stuck, however busy it looks
        self.outside = contextvars.Context()  # of no incarnation
        self.unfinished: dict[asyncio.Task[Any], Incarnation | None] = {}
        self.errors: list[dict[str, Any]] = []
        self.net: SimNet | None = None
        self.set_task_factory(_new_task)
        self.set_exception_handler(self._note_error)

    # --- time and order ---------------------------------------------------------------------------------------------

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    @property
    def now(self) -> float:
        """Virtual seconds, by the true clock."""
        return self._now

    def time(self) -> float:
        """Virtual seconds, by the clock of the host that asks."""
        if self.rated and (incarnation := CURRENT.get()) is not None:
            return START_S + (self._now - START_S) * incarnation.rate
        return self._now

    def create_future(self) -> asyncio.Future[Any]:
        future = SimFuture(loop=self)
        self._numbers += 1
        future._number = self._numbers
        return future

    def call_soon(
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if self._closed:
            self._check_closed()
        handle = _SimHandle(callback, args, copy_context() if context is None else context)
        self._ready.append(handle)
        return handle

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """`when` is by the clock of the host that the callback belongs to."""
        if self._closed:
            self._check_closed()
        if self.rated and (rate := _rate_of(context)) != 1.0:
            when, wanted = START_S + (when - START_S) / rate, when
            while START_S + (when - START_S) * rate < wanted:  # by a rounding: then the host's clock must not be early
                when = math.nextafter(when, math.inf)
        return self.call_at_true(when, callback, *args, context=context)

    def call_at_true(
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """`when` is by the true clock, as `now` is."""
        timer = _SimTimer(when, callback, args, copy_context() if context is None else context)
        self._numbers += 1
        heappush(self._timers, (when, self._numbers, timer))
        return timer

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        if self.rated and (rate := _rate_of(context)) != 1.0:
            return self.call_at(START_S + (self._now - START_S) * rate + delay, callback, *args, context=context)
        # As `call_at` does it, without the call: every wait of the simulated disks, links and stores comes here.
        if self._closed:
            self._check_closed()
        when = self._now + delay
        timer = _SimTimer(when, callback, args, copy_context() if context is None else context)
        self._numbers += 1
        heappush(self._timers, (when, self._numbers, timer))
        return timer

    def call_soon_threadsafe(
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if self._thread_id not in (None, threading.get_ident()):
            self._escape("a callback from another thread")
        return self.call_soon(callback, *args, context=context)

    def _run_once(self) -> None:
        """Take turns until the loop is to stop."""
        # Written for speed: a tenth of what simulated runs take is here.
        ready, timers, turn_s, current = self._ready, self._timers, self._turn_s, CURRENT
        pop, take = heappop, self._ready.popleft
        while True:
            if not ready and not self._stopping:
                self._move_on()
            now = self._now
            while timers and timers[0][0] <= now:
                timer = pop(timers)[2]
                if timer._callback is not None:
                    ready.append(timer)
            if turn_s:
                self._now += turn_s
                self._turns = 0
            count = len(ready)
            self._turns += count
            if self._turns > TURNS_MAX:
                raise StuckError(f"{TURNS_MAX} callbacks at {self._now}, the next one {ready[0]!r}")
            for _ in range(count):
                handle = take()
                callback = handle._callback
                if callback is None:
                    continue
                context = handle._context
                incarnation = context.get(current)
                if incarnation is not None and incarnation.dead:
                    incarnation.parked.append(handle)
                    continue
                try:
                    context.run(callback, *handle._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # whatever a callback raises is the loop's to tell, as in asyncio
                    self._callback_failed(handle, error)
            if self._stopping:
                return

    def _callback_failed(self, handle: asyncio.Handle, error: BaseException) -> None:
        self.call_exception_handler({"message": f"Exception in {handle!r}", "exception": error, "handle": handle})

    def _move_on(self) -> None:
        # Neither cancelled timers nor those of the dead make time go on.
        timers = self._timers
        while timers:
            when, _, timer = timers[0]
            if not timer.cancelled():
                incarnation: Incarnation | None = timer._context.get(CURRENT)
                if incarnation is None or not incarnation.dead:
                    break
                incarnation.parked.append(timer)  # which then keeps it for ever
            heappop(timers)
        else:
            raise StuckError(f"nothing can happen any more; waiting: {self._waiting()}")
        if when > self.ends_at:
            raise StuckError(f"still running at {self._now}; waiting: {self._waiting()}; errors: {self.errors}")
        if when > self._now:
            self._now = when
            self._turns = 0

    def _waiting(self) -> list[str]:
        return [task.get_name() for task, owner in self.unfinished.items() if owner is None or not owner.dead]

    # --- ends -------------------------------------------------------------------------------------------------------

    def forget(self, task: asyncio.Task[Any]) -> None:
        self.unfinished.pop(task, None)

    def _note_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.errors.append(context)

    def close(self) -> None:
        """Close what never ended. This is the one point where coroutines of dead incarnations see a `GeneratorExit`."""
        for task in list(self.unfinished):
            task._log_destroy_pending = False
            coro = task.get_coro()
            assert coro is not None
            # Whatever a dead coroutine does on its way out, there is nobody to hear of it.
            with contextlib.suppress(BaseException):
                coro.close()
        self.unfinished.clear()
        self._timers.clear()
        super().close()

    # --- the network ------------------------------------------------------------------------------------------------

    async def create_connection(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **options: Any
    ) -> tuple[SimTransport, asyncio.BaseProtocol]:
        return await self._network(options).connect(protocol_factory, host, port)

    async def create_server(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | list[str] | None = None,
        port: int | None = None,
        **options: Any,
    ) -> SimServer:
        if isinstance(host, list):
            (host,) = host
        start = options.pop("start_serving", True)
        server = self._network(options).listen(protocol_factory, host, port or 0)
        if start:
            await server.start_serving()
        return server

    def _network(self, options: dict[str, Any]) -> SimNet:
        for name in ("ssl", "sock", "local_addr"):
            if options.get(name):
                self._escape(f"a connection or server with {name}=")
        if self.net is None:
            self._escape("a connection without a simulated network")
        return self.net

    # --- everything else escapes --------------------------------------------------------------------------------------

    def _escape(self, what: str) -> NoReturn:
        raise EscapeError(f"{what} would leave the simulation")

    def _write_to_self(self) -> None:
        pass  # nothing sleeps, so nothing has to be woken

    def _process_events(self, event_list: list[Any]) -> None:
        self._escape("polling")


def _escaping(name: str) -> Callable[..., NoReturn]:
    def escape(self: SimLoop, *args: Any, **kwargs: Any) -> NoReturn:
        self._escape(f"loop.{name}")

    return escape


ESCAPES = (
    *("run_in_executor", "set_default_executor", "getaddrinfo", "getnameinfo"),
    *("sock_recv", "sock_recv_into", "sock_recvfrom", "sock_recvfrom_into", "sock_sendall", "sock_sendto"),
    *("sock_connect", "sock_accept", "sock_sendfile", "sendfile", "start_tls", "connect_accepted_socket"),
    *("add_reader", "remove_reader", "add_writer", "remove_writer", "add_signal_handler", "remove_signal_handler"),
    *("create_datagram_endpoint", "create_unix_connection", "create_unix_server"),
    *("connect_read_pipe", "connect_write_pipe", "subprocess_shell", "subprocess_exec"),
)
for _name in ESCAPES:
    setattr(SimLoop, _name, _escaping(_name))
