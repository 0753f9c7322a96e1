"""Virtual time, order, and nothing that escapes."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import TYPE_CHECKING, Any

import pytest

from .loop import CURRENT, ESCAPES, EscapeError, Incarnation, SimLoop, StuckError

if TYPE_CHECKING:
    from collections.abc import Coroutine


def run(main: Coroutine[Any, Any, Any], loop: SimLoop | None = None) -> Any:
    loop = loop or SimLoop()
    try:
        return loop.run_until_complete(main)
    finally:
        loop.close()


def test_time_is_virtual() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        start = loop.time()
        await asyncio.sleep(86_400)
        return loop.time() - start

    assert run(main()) == 86_400


def test_timers_run_in_order_and_ties_in_order_of_their_setting() -> None:
    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        order: list[int] = []
        at = loop.time() + 5
        for i in range(20):
            loop.call_at(at, order.append, i)
        loop.call_at(at - 1, order.append, -1)
        loop.call_at(at, order.append, 99).cancel()
        loop.call_soon(order.append, -3)
        loop.call_soon(order.append, -2)
        await asyncio.sleep(10)
        return order

    assert run(main()) == [-3, -2, -1, *range(20)]


def test_timeouts_strike_in_virtual_time() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        start = loop.time()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3):
                await loop.create_future()
        return loop.time() - start

    assert run(main()) == 3


def test_sets_of_tasks_and_futures_iterate_in_the_same_order_in_every_run() -> None:
    async def main() -> list[str]:
        async def work(i: int) -> None:
            await asyncio.sleep(i % 3)

        tasks = {asyncio.create_task(work(i), name=str(i)) for i in range(100)}
        done, _ = await asyncio.wait(tasks)
        futures = {asyncio.get_running_loop().create_future(): str(i) for i in range(50)}
        return [task.get_name() for task in done] + [futures[future] for future in set(futures)]

    junk = [object() for _ in range(1000)]
    first = run(main())
    junk.extend(object() for _ in range(100_000))
    assert run(main()) == first


def test_a_program_for_which_nothing_can_happen_is_reported() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(StuckError, match="nothing can happen"):
        run(main())


def test_a_program_that_spins_is_reported() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()

        def again() -> None:
            loop.call_soon(again)

        again()
        await asyncio.sleep(1)

    with pytest.raises(StuckError, match="callbacks at"):
        run(main())


@pytest.mark.parametrize("name", ESCAPES)
def test_what_would_escape_raises(name: str) -> None:
    loop = SimLoop()
    with pytest.raises(EscapeError, match=name):
        getattr(loop, name)()
    loop.close()


def test_threads_and_networks_escape() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(EscapeError):
            await asyncio.to_thread(print)
        with pytest.raises(EscapeError, match="without a simulated network"):
            await loop.create_connection(asyncio.Protocol, "10.0.0.1", 1)
        with pytest.raises(EscapeError, match="ssl"):
            await loop.create_server(asyncio.Protocol, "10.0.0.1", 1, ssl=True)
        caught: list[BaseException] = []

        def other_thread() -> None:
            try:
                loop.call_soon_threadsafe(print)
            except EscapeError as e:
                caught.append(e)

        thread = threading.Thread(target=other_thread)
        thread.start()
        thread.join()
        assert len(caught) == 1

    run(main())


def test_the_dead_do_nothing_and_do_not_make_time_go_on() -> None:
    incarnation = Incarnation("10.0.0.1")
    context = contextvars.Context()
    context.run(CURRENT.set, incarnation)
    seen: list[str] = []

    async def victim() -> None:
        try:
            await asyncio.sleep(1)
            seen.append("one")
            await asyncio.sleep(1)
            seen.append("two")
        finally:
            seen.append("finally")

    async def main() -> float:
        loop = asyncio.get_running_loop()
        start = loop.time()
        task = loop.create_task(victim(), context=context)
        loop.call_later(1.5, setattr, incarnation, "dead", True)
        await asyncio.sleep(10)
        assert not task.done()
        assert seen == ["one"]
        loop.call_later(1000, seen.append, "late", context=context)
        done, _ = await asyncio.wait({task}, timeout=2000)
        assert not done
        return loop.time() - start

    assert run(main()) == 2010
    assert seen == ["one", "finally"]  # at the end of the run, and not before
    assert len(incarnation.parked) == 2


def test_what_nobody_caught_is_noted() -> None:
    loop = SimLoop()

    async def main() -> None:
        loop.call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)

    run(main(), loop)
    assert [type(error["exception"]) for error in loop.errors] == [ZeroDivisionError]
