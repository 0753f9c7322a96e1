"""`bkpy local` heals by itself when directories of its bookies are deleted, while it runs and while it doesn't."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
from typing import TYPE_CHECKING

import pytest
from tests.command import PATIENCE_S, start
from tests.unit.replication.repairing import whole
from tests.waiting import eventually

import bkpy
from bkpy.errors import BookKeeperError
from bkpy.local.process import poll

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LINES = [b"%d" % i * 50 for i in range(300)]
DEADLINE_S = 120.0
PAUSE_S = 0.2  # to read all ledgers leaves the processor to the copying


@contextlib.contextmanager
def local(directory: Path) -> Iterator[str]:
    with start("local", "--bookies", 4, "--dir", directory, uri=None) as running:
        try:
            assert running.stdout is not None
            yield running.stdout.readline().decode().strip()
        finally:
            running.send_signal(signal.SIGINT)
            assert running.wait(PATIENCE_S) == 0
            assert running.stderr is not None
            assert b"Traceback" not in running.stderr.read()


async def written(uri: str, count: int = 4) -> list[int]:
    ledgers = []
    async with bkpy.connect(uri) as client:
        for _ in range(count):
            async with await client.create_ledger() as writer:
                await writer.append_batch(LINES)
            ledgers.append(writer.ledger_id)
    return ledgers


async def on_three_bookies(uri: str, ledgers: list[int]) -> None:
    """Wait until each of the four serves, and each ledger is on those that its metadata name, entry by entry."""
    async with bkpy.connect(uri) as client:

        async def healed() -> bool:
            if len(client.bookies) < 4:
                return False
            try:
                found = [await whole(client, ledger_id) for ledger_id in ledgers]
            except (AssertionError, BookKeeperError):
                return False
            assert all(len(set(fragment.bookies)) == 3 for metadata in found for fragment in metadata.fragments)
            return True

        await eventually(healed, pause_s=PAUSE_S, deadline_s=DEADLINE_S)
        for ledger_id in ledgers:
            reader = await client.open_ledger(ledger_id)
            assert [entry.data async for entry in reader.read()] == LINES


@pytest.mark.exhaustive
@pytest.mark.scenario(52)
def test_deleted_directories_are_made_anew_and_filled_from_the_others(tmp_path: Path) -> None:
    directory = tmp_path / "local"

    async def lose(uri: str, ledgers: list[int], which: str) -> None:
        """Delete it, see the bookie end, and wait until all is as before."""
        cookie = directory / which / ("cookie.json" if "/" in which else "ledgers/cookie.json")
        before = cookie.read_bytes()
        (directory / which).rename(tmp_path / "lost")  # at once: the bookie may be making a file in it
        shutil.rmtree(tmp_path / "lost")

        async def anew() -> bool:
            return cookie.exists() and cookie.read_bytes() != before

        assert await poll(anew, DEADLINE_S)
        await on_three_bookies(uri, ledgers)

    async def while_it_runs(uri: str) -> list[int]:
        ledgers = await written(uri)
        await lose(uri, ledgers, "bookie-1")
        await lose(uri, ledgers, "bookie-2/ledgers")
        assert (directory / "bookie-2" / "journal.lost-1").is_dir()
        return ledgers

    with local(directory) as uri:
        ledgers = asyncio.run(while_it_runs(uri))
    shutil.rmtree(directory / "bookie-3" / "journal")
    shutil.rmtree(directory / "bookie-4")
    with local(directory) as uri:
        asyncio.run(on_three_bookies(uri, ledgers))
    assert (directory / "bookie-3" / "ledgers.lost-1").is_dir()
    assert not (directory / "bookie-4" / "ledgers.lost-1").exists()
