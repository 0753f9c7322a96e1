"""The memory of a bookie's process, when its journal's disk hangs, and its clients do, and many wait for news."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import eventually

import bkpy
from bkpy.config.loading import load_bookie_settings
from bkpy.local import LocalBookie, LocalCluster
from bkpy.protocol.wire import frame as wire
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Op

MIB = 1 << 20
DEADLINE_S = 100
HUNG = 100
TAILS = 1000
WRITERS = 4
ROUNDS = 5
ENTRY = bytes(16_000)

pytestmark = pytest.mark.usefixtures("real_bookies")

# Takes the place of the interpreter: a bookie whose journal is written as long as no file called "stall" is beside it.
STALLING = f"""#!{sys.executable}
import os, sys
if "bookie" not in sys.argv:
    os.execv({sys.executable!r}, [{sys.executable!r}, *sys.argv[1:]])
import time
from bkpy.cli import main
from bkpy.runtime.system import RealFile
write = RealFile.write_durably
def wait_and_write(self, buffers, offset):
    while "journal" in self.path and os.path.exists(os.path.join(os.path.dirname({{marker!r}}), "stall")):
        time.sleep(0.02)
    return write(self, buffers, offset)
RealFile.write_durably = wait_and_write
sys.argv = ["bkpy", *sys.argv[sys.argv.index("bookie"):]]
main()
"""


def memory(bookie: LocalBookie, what: str) -> int:
    """Bytes of the process' memory: VmRSS now, VmHWM at most so far."""
    status = Path(f"/proc/{bookie.pid}/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith(what))


def frame(op: int, head: object, correlation_id: int, body: bytes = b"") -> bytes:
    return b"".join(wire.encode(op, correlation_id, m.pack(head), [body]))


async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(frame(Op.HELLO, ["test", "", ""], 1))
    await reader.readexactly(wire.PREFIX_BYTES)
    return reader, writer


def budget(config: dict[str, Any]) -> int:
    """What docs/how-to/memory.md says that a bookie with one ledger directory takes."""
    flags = {"metadata_uri": "zk://h:1/l", "journal_directories": "/j", "ledger_directories": "/a"}
    s = load_bookie_settings(None, {}, {**flags, **{name: str(value) for name, value in config.items()}})
    process = 100 * MIB
    let_in = WRITERS * s.receive_chunk_bytes_max + s.frame_bytes_max
    connections = (s.connections_max + s.new_connections_max) * 80 * 1024
    requests = s.requests_in_flight_total_max * 8 * 1024
    return process + s.memory_bytes_max + let_in + connections + requests


CONFIG: dict[str, Any] = {
    "memory_bytes_max": 96 * MIB,
    "memtable_bytes_max": 16 * MIB,
    "journal_queue_bytes_max": 16 * MIB,
    "receive_bytes_max": 32 * MIB,
    "connections_max": 200,
    "new_connections_max": 50,
    "requests_in_flight_total_max": 2000,
    "answers_at_once": 16,
    "journal_max_size_mb": 16,
}


@pytest.mark.exhaustive
async def test_a_bookie_stays_within_its_memory_whatever_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher, stall = tmp_path / "python", tmp_path / "stall"
    launcher.write_text(STALLING.replace("{marker!r}", repr(str(launcher))))
    launcher.chmod(0o755)
    monkeypatch.setattr("bkpy.local.cluster.sys.executable", str(launcher))
    async with asyncio.timeout(DEADLINE_S), LocalCluster(tmp_path / "cluster", bookies=1, config=CONFIG) as cluster:
        bookie = cluster.bookies[0]
        before = memory(bookie, "VmRSS")
        async with contextlib.AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(bkpy.connect(cluster.connect_string, add_timeout_s=1.0))
                for _ in range(WRITERS)
            ]
            stall.touch()
            connections = await hang(bookie.address)
            for _ in range(ROUNDS):
                # They fail as their bookie answers nothing, and whatever it has taken by then it keeps.
                ledgers = [
                    await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1) for client in clients
                ]
                tasks = [asyncio.create_task(write(ledger)) for ledger in ledgers for _ in range(25)]
                results = await asyncio.gather(*tasks, return_exceptions=True)
                assert all(isinstance(result, bkpy.BookKeeperError) for result in results)
            peak = memory(bookie, "VmHWM")
            stall.unlink()
            for _, writer in connections:
                writer.close()
        # The disk is back: so is the bookie.
        async with bkpy.connect(cluster.connect_string, add_timeout_s=60) as client:
            again = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
            assert await again.append(b"after") == 0
    print(f"{before / MIB:.0f} MiB before, {peak / MIB:.0f} MiB at most, {budget(CONFIG) / MIB:.0f} MiB are allowed")
    assert peak <= budget(CONFIG)


@pytest.mark.exhaustive
async def test_memory_falls_again_after_load(tmp_path: Path) -> None:
    config = {"memory_rest_interval_s": 0.3}
    async with asyncio.timeout(DEADLINE_S), LocalCluster(tmp_path, bookies=1, config=config) as cluster:
        bookie = cluster.bookies[0]
        before = memory(bookie, "RssAnon")
        async with bkpy.connect(cluster.connect_string) as client:
            writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
            for _ in range(200):
                await writer.append_batch([ENTRY] * 50)
            highest = memory(bookie, "RssAnon")
            after = await eventually(
                lambda: memory(bookie, "RssAnon"), until=lambda now: now <= before + 20 * MIB, pause_s=0.1
            )
            await writer.close()
            reader = await client.open_ledger(writer.ledger_id)
            assert [entry.data async for entry in reader.read(0, 99)] == [ENTRY] * 100
    print(f"{before / MIB:.0f} MiB before, {highest / MIB:.0f} MiB under load, {after / MIB:.0f} MiB after it")
    assert highest > before + 60 * MIB, "there was no load"


async def hang(address: str) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Clients that stop in the middle of a frame, and one that waits for news of many ledgers."""
    connections = [await connect(address) for _ in range(HUNG)]
    half = frame(Op.ADD, [0, [1], [0], [1], 1, [4 * MIB]], 5, bytes(4 * MIB))[: 2 * MIB]
    for _, hung in connections:
        hung.write(half)
    connections.append(await connect(address))
    _, tailing = connections[-1]
    for i in range(TAILS):
        # In between is what a client sends while it tails: it must not stay because of those who wait.
        tailing.write(frame(Op.WAIT_LAC, [2**40 + i, -1, False, 60_000], 10 + i))
        tailing.write(frame(Op.WAIT_LAC, [2**40 + i, -1, False, 0], 10 + i, bytes(15_000)))
    return connections


async def write(writer: bkpy.LedgerWriter) -> None:
    while True:
        await writer.append_batch([ENTRY] * 50)
