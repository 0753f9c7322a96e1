"""A bookie's process that may open few files, and more connections than those are enough for."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import sys
from typing import TYPE_CHECKING, Any

import pytest

import bkpy
from bkpy.local import LocalCluster
from bkpy.protocol.wire import frame as wire
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Op

if TYPE_CHECKING:
    from pathlib import Path

DEADLINE_S = 60
FILES_MAX = 400
CONNECTIONS = 600
AT_ONCE = 10  # fewer than may wait for their turn to introduce themselves: none is refused for that
HELLO = b"".join(wire.encode(Op.HELLO, 1, m.pack(["test", "", ""])))

# Takes the place of the interpreter: allows few files, for good, then becomes what it was asked for.
FEW_FILES = f"""#!{sys.executable}
import os, resource, sys
if "bookie" in sys.argv:
    resource.setrlimit(resource.RLIMIT_NOFILE, ({FILES_MAX}, {FILES_MAX}))
os.execv({sys.executable!r}, [{sys.executable!r}, *sys.argv[1:]])
"""


@pytest.fixture
def few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = tmp_path / "python"
    launcher.write_text(FEW_FILES)
    launcher.chmod(0o755)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < CONNECTIONS + 200:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, CONNECTIONS + 200), hard))
    monkeypatch.setattr("bkpy.local.cluster.sys.executable", str(launcher))


async def greeted(address: str, opened: list[Any], turns: asyncio.Semaphore) -> None:
    host, port = address.rsplit(":", 1)
    async with turns:
        reader, writer = await asyncio.open_connection(host, int(port))
        opened.append(writer)
        writer.write(HELLO)
        with contextlib.suppress(ConnectionError):
            await reader.read(1)


@pytest.mark.exhaustive
async def test_a_bookie_at_the_end_of_its_files_goes_on_and_says_so(few_files: None, tmp_path: Path) -> None:
    """More clients than there are files for; the journal begins files meanwhile."""
    config = {"journal_max_size_mb": 1, "complaint_interval_s": 0.1}
    async with LocalCluster(tmp_path / "cluster", bookies=1, config=config) as cluster:
        bookie = cluster.bookies[0]
        async with asyncio.timeout(DEADLINE_S), bkpy.connect(cluster.connect_string) as client:
            writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
            await writer.append(b"before")
            opened: list[Any] = []
            turns = asyncio.Semaphore(AT_ONCE)
            await asyncio.gather(*(greeted(bookie.address, opened, turns) for _ in range(CONNECTIONS)))
            for _ in range(12):  # several files of the journal
                await writer.append_batch([bytes(100_000)] * 5)
            assert len(list((bookie.directory / "journal").rglob("*"))) > 2
            for connection in opened:
                connection.close()
            async with bkpy.connect(cluster.connect_string) as other:  # there is room again
                assert (await other.open_ledger(writer.ledger_id)).ledger_id == writer.ledger_id
                assert await other.recover_ledger(writer.ledger_id) is not None
        log = bookie.log_path.read_text()
        assert f"this process may open {FILES_MAX} files" in log
        assert "instead of 1000" in log
        assert "which is the bookie's connections_max" in log
        await bookie.stop()
        assert bookie.exit_status == 0
