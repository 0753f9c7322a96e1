"""Asynchronous iterators that survive a cancelled `__anext__`: what the public API returns for reads, tails and lists.

An asynchronous generator ends for good when the task that awaits its next value is cancelled, as a time-out does. A
consumer that goes on after the time-out then stops without an error. A `ResumableIterator` keeps its place instead. It
takes batches from a `BatchSource`, which keeps its place too; `Stepwise` makes one of a generator.

Invariants: a cancelled `__anext__` loses nothing and repeats nothing; after an error every further call raises that
error, so that no consumer takes it for the end, and a task of the iterator that somebody else has cancelled is one;
`aclose` ends everything that the iterator began.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from bkpy.errors import ClientClosedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from bkpy.runtime.interfaces import Runtime
    from bkpy.runtime.loop_guard import Guard

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class BatchSource(Protocol[T_co]):
    """Where a `ResumableIterator` takes batches of elements from."""

    async def following(self) -> T_co:
        """The next batch. Raises `StopAsyncIteration` at the end, or if `close` was called meanwhile.

        A call that is cancelled changes nothing: the next one returns what it would have returned.
        """

    async def close(self) -> None:
        """End everything that was begun. May be called again, also while a call runs."""


def alone(element: T) -> Iterator[T]:
    """The elements of a batch that is one element itself."""
    return iter((element,))


class ResumableIterator(AsyncGenerator[T, None]):
    """An asynchronous iterator whose `__anext__` can be cancelled and called again; not by two tasks at once.

    It is an `AsyncGenerator` for `aclosing`, and for annotations that name one. Nothing can be sent into it. There is
    no task and no suspension for an element of a batch that has arrived.
    """

    def __init__(
        self,
        source: BatchSource[Any],
        elements: Callable[[Any], Iterator[T]] = iter,
        guard: Guard | None = None,
    ) -> None:
        self._source = source
        self._guard = guard  # of an iterator that users get
        self._elements = elements
        self._next: Callable[[], T] = iter(()).__next__
        self._awaited = False
        self._ended: BaseException | None = None
        self._traceback: TracebackType | None = None

    def __aiter__(self) -> ResumableIterator[T]:
        return self

    async def __anext__(self) -> T:
        """The next element; the one that a cancelled call would have returned, if it was cancelled."""
        try:
            return self._next()
        except StopIteration:
            return await self._first_of_following()
        except BaseException as e:
            self._end(e)
            raise

    async def _first_of_following(self) -> T:
        if self._guard is not None:
            self._guard.check()
        while self._ended is None:
            if self._awaited:
                raise RuntimeError("another task awaits the next element of this iterator already")
            self._awaited = True
            try:
                batch = await self._source.following()
                self._next = self._elements(batch).__next__
                return self._next()
            except StopIteration:
                continue  # an empty batch
            except asyncio.CancelledError:
                raise  # also if it was closed meanwhile: a caller that is cancelled has not read all
            except BaseException as e:
                self._end(e)
                raise
            finally:
                self._awaited = False
        raise self._ended.with_traceback(self._traceback)  # which grows otherwise, with each call

    def arrived(self, most: int) -> list[T]:
        """Up to `most` further elements of the batch that the last one came with. An error waits for `__anext__`."""
        found: list[T] = []
        try:
            while len(found) < most:
                found.append(self._next())
        except StopIteration:
            pass
        except BaseException as e:
            self._end(e)
        return found

    def _end(self, error: BaseException) -> None:
        self._next = iter(()).__next__
        if self._ended is None:
            self._ended, self._traceback = error, error.__traceback__

    async def aclose(self) -> None:
        """End everything that was begun. Further calls of `__anext__` raise `StopAsyncIteration`."""
        if self._guard is not None:
            self._guard.check()
        self._end(StopAsyncIteration())
        await self._source.close()

    async def asend(self, value: None) -> T:
        """`__anext__`. Raises `TypeError` for anything but None."""
        if value is not None:
            raise TypeError("nothing can be sent into this iterator")
        return await self.__anext__()

    async def athrow(
        self,
        typ: type[BaseException] | BaseException,
        val: BaseException | object = None,
        tb: TracebackType | None = None,
    ) -> T:
        """Close the iterator and raise the exception."""
        await self.aclose()
        error = typ if isinstance(typ, BaseException) else val if isinstance(val, BaseException) else typ()
        raise error.with_traceback(tb or error.__traceback__)


class Stepwise:
    """A `BatchSource` that runs each step of `generator` in a task, which a cancelled call leaves to the next one."""

    def __init__(self, generator: AsyncGenerator[Any, None], runtime: Runtime, *, name: str) -> None:
        self._generator = generator
        self._runtime = runtime
        self._name = name
        self._step: asyncio.Task[tuple[Any, ...]] | None = None
        self._closing: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin the next step, unless it has begun: its outcome waits for `following`."""
        if self._step is None:
            self._step = self._runtime.spawn(_next_of(self._generator), name=self._name, on_death=raised_where_awaited)

    async def following(self) -> Any:
        self.begin()
        assert self._step is not None
        await ended(self._step)
        step, self._step = self._step, None
        if step is None or not (found := result_of(step)):
            raise StopAsyncIteration
        return found[0]

    async def close(self) -> None:
        if self._closing is None:
            self._closing = self._runtime.spawn(
                self._close(), name=f"end of {self._name}", on_death=raised_where_awaited
            )
        await ended(self._closing)
        self._closing.result()

    async def _close(self) -> None:
        # A task of its own: a generator can't be closed by two, nor while a step of it runs.
        step, self._step = self._step, None
        if step is not None:
            step.cancel()
            await ended(step)
        await self._generator.aclose()

    def __del__(self) -> None:
        if self._step is not None:
            cancel_dropped(self._step)


async def _next_of(generator: AsyncGenerator[T, None]) -> tuple[T, ...]:
    """The next element, alone in a tuple; an empty one at the end: a task can't raise `StopAsyncIteration`."""
    async for element in generator:
        return (element,)
    return ()


async def ended(task: asyncio.Task[Any]) -> None:
    """Return when the task has ended, however; a cancellation of the caller leaves it running."""
    if not task.done():
        await asyncio.wait((task,))


def result_of(task: asyncio.Task[T]) -> T:
    """What the task, which has ended, returned or raised; `ClientClosedError` if somebody else has cancelled it.

    The iterator that it belongs to could only go on without what it was to fetch.
    """
    if task.cancelled():
        raise ClientClosedError(f"the task {task.get_name()!r} was cancelled, though its iterator was not closed")
    return task.result()


def cancel_dropped(task: asyncio.Task[Any]) -> None:
    """End a task of an object that was garbage collected, perhaps by another thread."""
    if not task.done() and not (loop := task.get_loop()).is_closed():
        loop.call_soon_threadsafe(task.cancel)


def raised_where_awaited(error: BaseException) -> None:
    """The `on_death` of a task whose error concerns only the caller that awaits it."""
