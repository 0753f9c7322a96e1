"""More connections than a bookie takes, and those whose client has vanished."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING

import pytest
import uvloop
from tests.hooks import accepted_transport, pool_of
from tests.in_process import InProcess
from tests.unit.bookie.connection.raw import Raw, frame, hello
from tests.waiting import eventually

import bkpy
from bkpy.bookie.connection.complaint import Complaint
from bkpy.protocol.wire.messages import Op, Status
from bkpy.runtime.system import real_runtime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[InProcess]:
    local = InProcess(tmp_path)
    await local.start("a", connections_max=2, new_connections_max=2, handshake_timeout_s=60.0)
    yield local
    await local.stop()


async def test_who_comes_when_all_places_are_taken_is_told_why(cluster: InProcess) -> None:
    two = [await Raw.connect(cluster) for _ in range(2)]
    third = await Raw.connect(cluster, greet=False)
    third.send(hello())
    replies = await third.rest()
    opcode, head = replies[1]
    assert opcode == Op.HELLO | 0x80
    assert head[0] == Status.TOO_MANY_REQUESTS
    assert head[1] == "2 clients are connected, which is the bookie's connections_max"
    for raw in two:  # nobody who was there has noticed
        raw.send(frame(Op.READ, [0, 1, 0, 0, 100], correlation_id=5))
        assert (await raw.reply(5))[1][0] == Status.OK
    two[0].close()
    await eventually(lambda: len(cluster.connections("a")) == 1)
    (await Raw.connect(cluster)).close()  # there is room again


async def test_the_error_of_a_client_names_the_reason(cluster: InProcess) -> None:
    two = [await Raw.connect(cluster) for _ in range(2)]
    client = await cluster.client()
    with pytest.raises(bkpy.BookieUnavailableError, match="refused the connection: 2 clients are connected"):
        await pool_of(client).channel("a").connect()
    for raw in two:
        raw.close()


async def test_refusals_are_counted_and_logged_now_and_then(
    cluster: InProcess, caplog: pytest.LogCaptureFixture
) -> None:
    two = [await Raw.connect(cluster) for _ in range(2)]
    with caplog.at_level(logging.WARNING, "bkpy.bookie"):
        for _ in range(20):
            refused = await Raw.connect(cluster, greet=False)
            refused.send(hello())
            await refused.rest()
            await eventually(lambda: len(cluster.connections("a")) == 2)
    assert len([record for record in caplog.records if "refused" in record.message]) == 1
    assert "bkpy_bookie_refused_connections_total 20.0" in cluster.service("a").metrics.render().decode()
    for raw in two:
        raw.close()


async def test_those_who_never_introduced_themselves_go_first_the_oldest_of_all(cluster: InProcess) -> None:
    """And never somebody who did, however long ago."""
    client = await Raw.connect(cluster)
    strangers = [await Raw.connect(cluster, greet=False) for _ in range(2)]
    for _ in range(3):
        strangers.append(await Raw.connect(cluster, greet=False))
        assert await strangers[-3].rest() == {}
    assert set(cluster.connections("a")) == {client.near, strangers[-1].near, strangers[-2].near}
    strangers[-1].send(hello())
    assert (await strangers[-1].reply(1))[1][0] == Status.OK
    assert "bkpy_bookie_refused_connections_total 3.0" in cluster.service("a").metrics.render().decode()
    for raw in (client, *strangers):
        raw.close()


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_the_kernel_watches_over_accepted_connections(tmp_path: Path, loop_factory: object) -> None:
    async def check() -> None:
        cluster = InProcess(tmp_path)
        await cluster.start("a", keepalive_interval_s=7, vanished_timeout_s=0.5)
        raw = await Raw.connect(cluster)
        sock = accepted_transport(raw.near).get_extra_info("socket")
        options = [
            sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
            sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
            sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
            sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
        ]
        assert options == [1, 7, 7, 500]
        raw.close()
        await cluster.stop()

    with asyncio.Runner(loop_factory=loop_factory) as runner:  # type: ignore[arg-type]
        runner.run(check())


def test_a_complaint_is_made_now_and_then_and_says_how_many_were_not(caplog: pytest.LogCaptureFixture) -> None:
    clock = real_runtime().clock
    now = 100.0
    clock.monotonic = lambda: now  # type: ignore[method-assign]
    complain = Complaint(logging.getLogger("bkpy.bookie"), clock, 10.0)
    with caplog.at_level(logging.WARNING, "bkpy.bookie"):
        for now in (100.0, 101.0, 109.9, 110.0, 111.0):
            complain("refusing %s", now)
    assert [record.getMessage() for record in caplog.records] == [
        "refusing 100.0",
        "refusing 110.0 (and 2 more since the last such message)",
    ]


@pytest.mark.parametrize("ends", ["closes", "breaks"])
async def test_who_goes_while_nothing_is_read_makes_room_for_others(cluster: InProcess, ends: str) -> None:
    """As clients do when a disk stalls: each gives up, and connects again."""
    storage = cluster.storage("a")
    storage.full = True
    for _ in range(5):
        raw = await Raw.connect(cluster)
        if ends == "breaks":
            raw.writer.transport.abort()
        else:
            raw.send(frame(Op.READ, [0, 1, 0, 0, 100]))  # there is something to be read before the end
            raw.close()
        await eventually(lambda: not cluster.connections("a"))
    there = await Raw.connect(cluster)
    there.send(frame(Op.READ, [0, 1, 0, 0, 100], correlation_id=5))
    storage.look_for_space()
    assert (await there.reply(5))[1][0] == Status.OK  # and who stays is served when there is room
    there.close()
