"""How commands run their coroutines: a SIGTERM that comes at any moment is heeded."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import pytest

from bkpy.cli.endings import Terminated
from bkpy.cli.running import run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(autouse=True)
def heard() -> Iterator[list[int]]:
    """The signals that came when nothing was run; there is a handler of its own afterwards as before."""
    signals: list[int] = []

    def note(number: int, _: object) -> None:
        signals.append(number)

    before = signal.signal(signal.SIGTERM, note)
    yield signals
    assert signal.signal(signal.SIGTERM, before) is note


def terminate(*_: object) -> None:
    """The handler has run when it returns."""
    os.kill(os.getpid(), signal.SIGTERM)


async def while_it_waits() -> None:
    asyncio.get_running_loop().call_later(0.01, terminate)
    await asyncio.Event().wait()


async def before_it_waits() -> None:
    terminate()
    await asyncio.Event().wait()


async def as_it_returns() -> str:
    terminate()
    return "done"


async def when_it_has_ended() -> str:
    task = asyncio.current_task()
    assert task is not None
    task.add_done_callback(terminate)
    return "done"


async def when_it_has_failed() -> None:
    await when_it_has_ended()
    raise ValueError("of the command")


async def while_the_loop_is_closed() -> str:
    """What is left of its tasks is cancelled then."""

    async def left() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            terminate()

    task = asyncio.create_task(left())
    while task.get_coro().cr_await is None:  # type: ignore[union-attr]
        await asyncio.sleep(0)
    return "done"


@pytest.mark.parametrize(
    "command",
    [
        while_it_waits,
        before_it_waits,
        as_it_returns,
        when_it_has_ended,
        when_it_has_failed,
        while_the_loop_is_closed,
    ],
)
def test_sigterm_is_heeded_whenever_it_comes(command: Callable[[], object], heard: list[int]) -> None:
    with pytest.raises(Terminated):
        run(command())  # type: ignore[arg-type]
    assert heard == []


def test_sigterm_is_heeded_before_the_coroutine_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = False

    async def command() -> None:
        nonlocal begun
        begun = True

    runner_run = asyncio.Runner.run

    def run_late(runner: asyncio.Runner, coroutine: object) -> object:
        terminate()
        return runner_run(runner, coroutine)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncio.Runner, "run", run_late)
    with pytest.raises(Terminated):
        run(command())
    assert not begun


def test_what_comes_before_or_behind_is_for_who_listened_before(heard: list[int]) -> None:
    terminate()
    assert run(asyncio.sleep(0, "done")) == "done"
    terminate()
    assert heard == [signal.SIGTERM] * 2
    with pytest.raises(ValueError, match="of the command"):
        run(failing())


async def failing() -> None:
    raise ValueError("of the command")
