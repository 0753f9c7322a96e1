"""Connections of those who are no clients: how long a bookie waits for what they owe."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.hooks import stop_ticking, tick_once
from tests.in_process import InProcess
from tests.waiting import eventually

from bkpy.protocol.wire import frame as wire
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Op

pytestmark = pytest.mark.real("raw sockets")

HELLO = b"".join(wire.encode(Op.HELLO, 1, m.pack(["test", "", ""])))


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[InProcess]:
    local = InProcess(tmp_path)
    await local.start("a")
    yield local
    await local.stop()


async def test_who_stops_in_the_first_frame_is_hung_up_on_in_less_than_a_second(cluster: InProcess) -> None:
    """Counted in the server's ticks: however soon after a tick the half frame came."""
    server = cluster.server("a")
    stop_ticking(server)
    _, sender = await asyncio.open_connection(*cluster.node("a").address.rsplit(":", 1))
    sender.write(HELLO[: len(HELLO) // 2])
    await eventually(lambda: any(connection.mid_frame for connection in cluster.connections("a")))
    ticks = 0
    while cluster.connections("a"):
        tick_once(server)
        ticks += 1
        for _ in range(3):
            await asyncio.sleep(0)  # a connection that was aborted is gone some turns later
    assert ticks * cluster.service("a").settings.tick_s < 1.0
    sender.close()
