"""`bkpy cluster top` on a terminal: it shows every bookie, sorts by a key, fits, and leaves the terminal as it was."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import struct
import termios
from typing import TYPE_CHECKING, Any

import pytest
from tests.command import environment, on_terminal, start, start_real
from tests.conftest import run_elsewhere
from tests.waiting import eventually_here

import bkpy
from bkpy.local import LocalCluster

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three bookies with pages."""
    made = LocalCluster(tmp_path_factory.mktemp("watched"), 3, {"metrics_port": 0})
    try:
        run_elsewhere(made.start())
        yield made
    finally:
        run_elsewhere(made.stop())


def played(uri: str, columns: int, *bookies: str, busy: str = "", begin: Any = start) -> None:
    master, slave = os.openpty()
    os.set_blocking(master, False)
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    before = termios.tcgetattr(slave)
    clean = {name: value for name, value in environment(uri).items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    shown = ""

    def shows(*texts: str) -> bool:
        nonlocal shown
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(master, 65536):
                shown += chunk.decode(errors="replace")
        return all(text in shown for text in texts)

    pipes = {"stdin": slave, "stdout": slave, "stderr": slave}
    with begin("cluster", "top", "--interval", "0.5", uri=uri, env={**clean, "TERM": "xterm"}, **pipes) as running:
        try:
            eventually_here(lambda: shows(*bookies, "writable", "copies/s") and shown, "all bookies are shown")
            shown = ""
            os.write(master, b"f")
            eventually_here(lambda: shows(*bookies), "they are shown in another order")
            if busy:
                eventually_here(lambda: shows(busy, "entries/s"), "what is busiest is below the bookies")
            shown = ""
            os.write(master, b"l")
            eventually_here(
                lambda: shows(busy or "nothing is appended") and only(shown, busy, bookies),
                "only what is busiest is shown",
            )
            os.write(master, b"q")
            assert running.wait(60.0) == 0, shown
        finally:
            running.kill()
    assert termios.tcgetattr(slave) == before
    os.close(slave)
    os.close(master)


def only(shown: str, busy: str, bookies: tuple[str, ...]) -> bool:
    """Whether the last screen has what is busy, and no bookie, which would come before."""
    screen = shown.rpartition("take entries")[2]
    return busy in screen and not any(name in screen for name in bookies)


@pytest.mark.exhaustive
async def test_a_terminal_without_a_cursor_gets_one_look(local: LocalCluster) -> None:
    lines = await asyncio.to_thread(
        on_terminal, 80, "cluster", "top", "--interval", "0.5", uri=local.connect_string, term="dumb"
    )
    assert any("bookie-1" in line for line in lines), lines


@pytest.mark.exhaustive
async def test_it_shows_all_bookies_at_any_width_and_ends_by_a_key(local: LocalCluster) -> None:
    uri, names = local.connect_string, [bookie.id for bookie in local.bookies]
    async with bkpy.connect(uri) as client, await client.open_log("orders", create=True) as log:
        appending = asyncio.create_task(append_forever(log))
        try:
            await asyncio.to_thread(played, uri, 120, *names, busy="orders", begin=start_real)
            await asyncio.to_thread(played, uri, 80, *names, busy="orders")
        finally:
            appending.cancel()
    await asyncio.to_thread(played, uri, 50, *names)


async def append_forever(log: bkpy.LogWriter) -> None:
    while True:
        await log.append(b"order")
        await asyncio.sleep(0.01)
