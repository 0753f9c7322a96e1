"""Questions that a command asks while it works: signals end it, its work goes on meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

import click
import pytest
from tests.waiting import turns

from bkpy.cli import input as inputs
from bkpy.cli.endings import Terminated
from bkpy.cli.input import confirm_meanwhile
from bkpy.cli.running import run

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def typing(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Where answers are written."""
    reading, writing = os.pipe()
    monkeypatch.setattr(inputs, "STANDARD_INPUT", reading)
    with os.fdopen(reading) as standard_input:
        monkeypatch.setattr(sys, "stdin", standard_input)
        yield writing
        os.close(writing)
        for thread in threading.enumerate():
            if thread.name == "bkpy-input":
                thread.join()


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize(("number", "ends"), [(signal.SIGTERM, Terminated), (signal.SIGINT, KeyboardInterrupt)])
def test_a_signal_ends_a_question(typing: int, number: int, ends: type[BaseException]) -> None:
    async def ask() -> None:
        asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), number)
        await confirm_meanwhile("Go on?")

    with pytest.raises(ends):
        run(ask())


async def test_work_goes_on_during_a_question(typing: int) -> None:
    os.write(typing, b"y")
    threading.Timer(0.3, os.write, (typing, b"es\n")).start()
    asking = asyncio.create_task(confirm_meanwhile("Go on?"))
    await turns()
    assert not asking.done()
    await asking


@pytest.mark.parametrize("answer", [b"\n", b"no\n", b"\xff\n"])
async def test_any_other_answer_is_a_no(typing: int, answer: bytes) -> None:
    os.write(typing, answer)
    with pytest.raises(click.ClickException, match="nothing was changed"):
        await confirm_meanwhile("Go on?", "nothing was changed")
