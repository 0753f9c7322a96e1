"""A hedged read: it asks one replica after the other until one gives a good answer.

It asks the next replica when one has failed, and also when one is late. Replicas with a free slot come first. The first
good answer wins, and the read abandons the other requests. Invariants: no replica is asked twice; the result has the
bad answer of each replica that gave one; no request is left behind, however the read ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from bkpy.client.read.missing_entry import Miss, MissKind
from bkpy.errors import (
    BookieUnavailableError,
    BookKeeperError,
    ClientClosedError,
    MetadataUnavailableError,
    ProtocolError,
    TlsError,
    TooManyRequestsError,
    UnauthorizedError,
)
from bkpy.protocol.wire.messages import Op

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bkpy.client.bookies.channel import BookieChannel
    from bkpy.client.bookies.pool import BookiePool
    from bkpy.protocol.wire import frame as wire
    from bkpy.runtime.interfaces import Runtime

T = TypeVar("T")


class Outcome(NamedTuple, Generic[T]):
    """The good answer, or None and the answer of each replica."""

    good: T | None
    answers: dict[str, Miss]


class _Asked(NamedTuple):
    channel: BookieChannel
    at: float


class HedgedRead(Generic[T]):
    """Sends `head`, a READ, to the bookies in `order`. `judge` turns a reply into a good answer or a `Miss`.

    A bookie has `timeout_s` to answer.
    """

    def __init__(
        self,
        pool: BookiePool,
        runtime: Runtime,
        *,
        order: Sequence[str],
        head: bytes,
        judge: Callable[[wire.Frame, str], T | MissKind],
        timeout_s: float,
    ) -> None:
        self._pool = pool
        self._now = runtime.clock.monotonic
        self._queue = deque(order)
        self._head = head
        self._judge = judge
        self._timeout_s = timeout_s
        self._asked: dict[asyncio.Future[wire.Frame], _Asked] = {}  # in the order in which they were asked
        self._ask_at = 0.0  # when to ask the next replica, even if one may still answer
        self._answers: dict[str, Miss] = {}

    async def run(self) -> Outcome[T]:
        """Raises `ClientClosedError` and errors that are not a bookie's, and no others."""
        try:
            while self._queue or self._asked:
                if self._queue and (not self._asked or self._now() >= self._ask_at):
                    await self._ask_next()
                for future in await self._wait():
                    good = self._take(future)
                    if good is not None:
                        return Outcome(good, self._answers)
            return Outcome(None, self._answers)
        finally:
            for future in self._asked:
                future.cancel()

    async def _ask_next(self) -> None:
        latency = self._pool.latency
        channel = self._free()
        if self._asked:
            if channel is None:  # this client itself is overloaded: more reads would not help
                self._ask_at = self._now() + latency.late_s
                return
            latency.speculative += 1
        if channel is None:
            channel = await self._wait_for_slot()
        else:
            await channel.slots.acquire()
        self._queue.remove(channel.bookie_id)
        now = self._now()
        self._asked[channel.request(Op.READ, self._head)] = _Asked(channel, now)
        self._ask_at = now + latency.late_s

    def _free(self) -> BookieChannel | None:
        """The first bookie of the queue with a free slot."""
        channels = map(self._pool.channel, self._queue)
        return next((channel for channel in channels if not channel.slots.locked()), None)

    async def _wait_for_slot(self) -> BookieChannel:
        """The bookie at which it has acquired a slot. It waits at each bookie of the queue in turn.

        Other requests may keep the slots of a hung bookie for longer than a read may take. Each wait is longer than
        the one before: a read that always moved on early would never come to the head of a line.
        """
        patience_s = self._pool.latency.late_s
        while True:
            channel = self._pool.channel(self._queue[0])
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience_s):
                    await channel.slots.acquire()
                    return channel
            self._queue.rotate(-1)
            patience_s = min(2 * patience_s, self._timeout_s)

    async def _wait(self) -> list[asyncio.Future[wire.Frame]]:
        """Wait for an answer, a timeout or the time of the next request. Returns requests that ended or timed out."""
        expires = next(iter(self._asked.values())).at + self._timeout_s
        until = min(expires, self._ask_at) if self._queue else expires
        await asyncio.wait(self._asked, timeout=max(0.0, until - self._now()), return_when=asyncio.FIRST_COMPLETED)
        if not any(future.done() for future in self._asked):
            await asyncio.sleep(0)  # an answer that this busy loop has yet to receive isn't late
        now = self._now()  # the same sum as above: another one may be rounded differently
        return [f for f, asked in self._asked.items() if f.done() or asked.at + self._timeout_s <= now]

    def _take(self, future: asyncio.Future[wire.Frame]) -> T | None:
        channel, at = self._asked.pop(future)
        self._ask_at = 0.0  # unless it is a good answer
        if not future.done():
            future.cancel()
            channel.mark_slow()
            self._answers[channel.bookie_id] = Miss(MissKind.UNAVAILABLE, f"no answer within {self._timeout_s:g} s")
            return None
        answer = self._answer(future, channel.bookie_id)
        if isinstance(answer, Miss):
            self._answers[channel.bookie_id] = answer
            return None
        latency = self._pool.latency
        latency.answered(channel.bookie_id, self._now() - at)
        superseded = [asked.channel for asked in self._asked.values() if asked.at < at]
        latency.won += bool(superseded)
        for other in superseded:
            if latency.superseded(other.bookie_id):
                other.mark_slow()
        return answer

    def _answer(self, future: asyncio.Future[wire.Frame], bookie_id: str) -> T | Miss:
        try:
            judged = self._judge(future.result(), bookie_id)
        except ClientClosedError:
            raise
        except TlsError as e:
            return Miss(MissKind.UNTRUSTED, e.message)
        except UnauthorizedError as e:
            return Miss(MissKind.FORBIDDEN, e.message)
        except (BookieUnavailableError, MetadataUnavailableError, TooManyRequestsError) as e:
            return Miss(MissKind.UNAVAILABLE, e.message)
        except ProtocolError as e:
            return Miss(MissKind.REFUSED, e.message)  # a repetition would get the same answer
        except BookKeeperError as e:
            return Miss(MissKind.UNKNOWN, e.message)
        return Miss(judged, judged.value) if isinstance(judged, MissKind) else judged
