"""Hostile bytes and crowds at the ports of the dashboard and of bookies' pages: refused, and others are answered."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import random
import resource
import socket
import struct
from typing import TYPE_CHECKING

import aiohttp
import pytest
from aiohttp import web
from tests import hooks
from tests.unit.dashboard.test_server import TOKEN, Shown, shown
from tests.waiting import eventually

from bkpy.runtime.metrics_page import http_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

DEADLINE_S = 60.0  # only what never happens takes so long
CROWD = 1000
CONNECTIONS_MAX = 16  # of `shown`
TAKEN_MAX = 32 << 20  # more than the kernel's buffers hold, and far less than what is sent
HOST = b"Host: localhost\r\n"
POST = b"POST /api/v1/actions/drain HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
ACT = POST + f"Authorization: Bearer {TOKEN}\r\n".encode()

BAD: dict[str, bytes] = {
    "random bytes": random.Random(1).randbytes(1000),
    "nothing but zeros": bytes(5000),
    "a TLS handshake": bytes.fromhex("16030100c8010000c40303") + random.Random(2).randbytes(200),
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "an unknown version": b"GET / HTTP/9.9\r\n" + HOST + b"\r\n",
    "an unknown method": b"EXPLODE / HTTP/1.1\r\n" + HOST + b"\r\n",
    "a method of 10,000 letters": b"G" * 10_000 + b" / HTTP/1.1\r\n\r\n",
    "a path of 100,000 letters": b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
    "no host": b"GET /api/v1/overview HTTP/1.1\r\n\r\n",
    "an empty host": b"GET /api/v1/overview HTTP/1.1\r\nHost:\r\n\r\n",
    "a host of other letters": b"GET /api/v1/overview HTTP/1.1\r\nHost: \xff\xfe[::\r\n\r\n",
    "a host that is half an address": b"GET /api/v1/overview HTTP/1.1\r\nHost: [::1\r\n\r\n",
    "two hosts": b"GET /api/v1/overview HTTP/1.1\r\n" + HOST + b"Host: attacker.example\r\n\r\n",
    "a header without a colon": b"GET / HTTP/1.1\r\n" + HOST + b"nonsense\r\n\r\n",
    "a header of 100,000 letters": b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 100_000 + b"\r\n\r\n",
    "a folded header": b"GET / HTTP/1.1\r\n" + HOST + b"X: a\r\n b\r\n\r\n",
    "a length below zero": ACT + b"Content-Length: -1\r\n\r\n",
    "a length that is no number": ACT + b"Content-Length: many\r\n\r\n",
    "two lengths": ACT + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "a length and chunks": ACT + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks without a size": ACT + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n",
    "an unknown encoding": ACT + b"Content-Encoding: nonsense\r\nContent-Length: 2\r\n\r\n{}",
    "a body that is not what it is encoded as": ACT + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd",
    "a body that is no JSON": ACT + b"Content-Length: 1\r\n\r\n{",
    "a body that is no text": ACT + b"Content-Length: 4\r\n\r\n\xff\xfe\xfd\xfc",
    "a body that is nested deeply": ACT + b"Content-Length: 4000\r\n\r\n" + b"[" * 4000,
    "half a letter": ACT + b'Content-Length: 21\r\n\r\n{"subject": "\\ud800"}',
    "a body of a gigabyte, announced": ACT + b"Content-Length: 1000000000\r\n\r\n",
    "an upgrade": b"GET / HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    "a tunnel": b"CONNECT attacker.example:443 HTTP/1.1\r\nHost: attacker.example\r\n\r\n",
    "a proxy's request": b"GET http://attacker.example/ HTTP/1.1\r\nHost: attacker.example\r\n\r\n",
}
PATHS = (
    "/../../etc/passwd",
    "/%2e%2e/%2e%2e/etc/passwd",
    "/static/../server.py",
    "//etc/passwd",
    "/app.js/../../server.py",
    "/api/v1/logs/%ff%fe",
    "/api/v1/logs/%00",
    "/api/v1/logs/..%2f..%2fcookies",
    "/api/v1/logs/" + "a" * 5000,
    "/api/v1/ledgers/%00",
    "/api/v1/ledgers/-1",
    "/api/v1/ledgers/9223372036854775808",
    "/api/v1/ledgers/" + "9" * 5000,
    "/api/v1/ledgers/٣",
    "/api/v1/ledgers?after=%ff",
    "/api/v1/ledgers?after=1e9",
    "/api/v1/ledgers?limit=" + "9" * 5000,
    "/api/v1/ledgers?state=%00",
    "/api/v1/ledgers?since_ms=nan",
    "/api/v1/ledgers?custom=%ff=%ff",
    "/api/v1/logs?after=%ff%fe",
    "/api/v1/audit?since_ms=-5",
    "/api/v1/audit?since_ms=9223372036854775807",
    "/api/v1/actions/drain",
)
GZIP_HEADER = bytes.fromhex("1f8b0800000000000003")
HARMLESS = frozenset({"an upgrade"})
# What comes first, and what comes again and again.
ENDLESS: dict[str, tuple[bytes, bytes]] = {
    "a line": (b"", b"a" * 65536),
    "headers": (b"GET / HTTP/1.1\r\n" + HOST, b"X: y\r\n" * 10_000),
    "a body": (ACT + b"Content-Length: 1000000000000\r\n\r\n", bytes(65536)),
    "a refused body": (POST + b"Content-Length: 1000000000000\r\n\r\n", bytes(65536)),
    "chunks": (ACT + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n" * 10_000),
    "a body that unpacks to nothing": (
        ACT + b"Content-Encoding: gzip\r\nContent-Length: 1000000000000\r\n\r\n" + GZIP_HEADER,
        b"\0\0\0\xff\xff" * 10_000,  # empty blocks
    ),
}
# Of these the server waits for more, within its bound on connections.
UNFINISHED = frozenset({"a TLS handshake", "a body of a gigabyte, announced"})


@pytest.fixture
async def dashboard(tmp_path: Path) -> AsyncIterator[Shown]:
    async with shown(tmp_path) as one:
        yield one


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    for name in ("bkpy.http", "aiohttp"):
        caplog.set_level(logging.DEBUG, name)
    return caplog


def ports(dashboard: Shown) -> dict[str, int]:
    return {
        "the dashboard": int(dashboard.where.rpartition(":")[2]),
        "a bookie": dashboard.cluster.node("a").metrics_port,
    }


@contextlib.asynccontextmanager
async def connection(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def answer(port: int, data: bytes) -> bytes:
    """The whole first answer to these bytes; empty if the server hangs up without one."""
    async with connection(port) as (reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            writer.write(data)
            found = await reader.readuntil(b"\r\n\r\n")
            length = found.lower().partition(b"content-length: ")[2].partition(b"\r")[0]
            return found + await reader.readexactly(int(length or b"0"))
        return b""


async def works(dashboard: Shown) -> None:
    assert (await dashboard.get("/api/v1/health"))["bookies"] == 3
    assert not await dashboard.draining()


def assert_little_is_logged(logged: pytest.LogCaptureFixture) -> None:
    """No errors, and nothing of what strangers send."""
    for record in logged.records:
        if record.name.startswith(("bkpy.http", "aiohttp", "asyncio")):
            assert record.levelno < logging.ERROR, record.getMessage()
            assert record.exc_info is None
            assert len(record.getMessage()) < 200


@pytest.mark.thorough
async def test_what_is_no_request_is_refused_and_fills_no_log(
    dashboard: Shown, logged: pytest.LogCaptureFixture
) -> None:
    for (of, port), (what, data) in itertools.product(ports(dashboard).items(), BAD.items()):
        if of == "a bookie":
            for path in (b"/api/v1/actions/drain", b"/api/v1/overview"):
                data = data.replace(path, b"/gc").replace(b"subject", b"dry_run")
        if what in UNFINISHED:
            async with connection(port) as (_, writer):
                writer.write(data)
                await works(dashboard)
            continue
        found = await answer(port, data)
        assert not found or found[9:10] == b"4" or what in HARMLESS, (of, what, found)
        assert b"Traceback" not in found, (of, what)
        assert TOKEN.encode() not in found, (of, what)
    await works(dashboard)
    assert_little_is_logged(logged)


async def test_an_error_of_a_handler_is_logged_whole(logged: pytest.LogCaptureFixture) -> None:
    errors = [ValueError("a defect"), ConnectionRefusedError("by another server")]

    async def fail(request: web.Request) -> web.Response:
        raise errors[int(request.query["which"])]

    app = web.Application()
    app.router.add_get("/", fail)
    async with http_server(app, "127.0.0.1", 0, None, connections_max=4, what="defects") as port:
        for which in range(len(errors)):
            request = f"GET /?which={which} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
            assert (await answer(port, request)).startswith(b"HTTP/1.1 500")
    found = [record for record in logged.records if record.levelno == logging.ERROR]
    assert [record.exc_info and record.exc_info[1] for record in found] == errors


@pytest.mark.thorough
async def test_who_hangs_up_in_the_midst_of_a_body_is_no_error(
    dashboard: Shown, logged: pytest.LogCaptureFixture
) -> None:
    for (of, port), reset in itertools.product(ports(dashboard).items(), (False, True)):
        logged.clear()
        head = ACT if of == "the dashboard" else ACT.replace(b"/api/v1/actions/drain", b"/gc")
        one = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
        if reset:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.sendall(head + b'Content-Length: 100\r\n\r\n{"subject": "')
        async with aiohttp.ClientSession() as another, another.get(f"{dashboard.where}/api/v1/health") as response:
            assert response.status == 200  # by now the handler of the first waits for the rest
        one.close()
        await eventually(lambda: "a client hangs up during its request" in logged.messages, "the server knows")
        assert_little_is_logged(logged)
    await works(dashboard)


async def test_a_body_that_is_malformed_later_is_refused(logged: pytest.LogCaptureFixture) -> None:
    """As aiohttp says it where it has no compiled parser; the compiled one waits for the rest of the body."""

    async def read(request: web.Request) -> web.Response:
        raise web.RequestPayloadError("not a chunk's size: nonsense")

    app = web.Application()
    app.router.add_get("/", read)
    async with http_server(app, "127.0.0.1", 0, None, connections_max=4, what="bodies") as port:
        assert (await answer(port, b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")).startswith(b"HTTP/1.1 400")
    assert_little_is_logged(logged)


@pytest.mark.thorough
async def test_paths_and_arguments_that_make_no_sense_are_refused(dashboard: Shown) -> None:
    port = ports(dashboard)["the dashboard"]
    for path in PATHS:
        found = await answer(port, b"GET " + path.encode() + b" HTTP/1.1\r\n" + HOST + b"\r\n")
        nothing = any(empty in found for empty in (b'"ledgers":[]', b'"logs":[]', b'"acts":[]'))
        assert found[9:10] == b"4" or (found[9:12] == b"200" and nothing), (path[:60], found)
        assert b"root:" not in found, path
    await works(dashboard)


@pytest.mark.thorough
async def test_bytes_without_an_end_are_not_taken(dashboard: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    hooks.linger_over_bodies(monkeypatch, 60 * DEADLINE_S)
    for (of, port), (what, (first, more)) in itertools.product(ports(dashboard).items(), ENDLESS.items()):
        if of == "a bookie":
            first = first.replace(b"/api/v1/actions/drain", b"/gc")
        sent = 0
        async with connection(port) as (_, writer):
            with contextlib.suppress(ConnectionError):
                writer.write(first)
                while sent <= TAKEN_MAX:
                    writer.write(more)
                    sent += len(more)
                    await writer.drain()
        assert sent <= TAKEN_MAX, (of, what)
    await works(dashboard)


@pytest.mark.thorough
async def test_a_body_that_does_not_come_is_not_waited_for_when_it_is_refused(
    dashboard: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks.linger_over_bodies(monkeypatch, 0.01)
    port = ports(dashboard)["the dashboard"]
    async with connection(port) as (reader, writer):
        writer.write(POST + b"Content-Length: 100\r\n\r\n{")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 401")
        await reader.read()  # to the end


@pytest.mark.thorough
async def test_a_body_that_comes_late_is_no_end_of_the_connection(
    dashboard: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a client that sends head and body in two segments: it reads why it is refused, and asks again."""
    hooks.linger_over_bodies(monkeypatch, 60 * DEADLINE_S)
    port = ports(dashboard)["the dashboard"]
    async with connection(port) as (reader, writer):
        for _ in range(2):
            writer.write(POST + b"Content-Length: 60000\r\n\r\n")
            found = await reader.readuntil(b"\r\n\r\n")
            assert found.startswith(b"HTTP/1.1 401")
            await reader.readexactly(int(found.lower().partition(b"content-length: ")[2].partition(b"\r")[0]))
            writer.write(bytes(60000))


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["the dashboard", "a bookie"])
async def test_half_a_body_of_somebody_who_may_act_is_refused_in_time(
    dashboard: Shown, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    hooks.wait_for_bodies(monkeypatch, 0.05)
    to = ACT if name == "the dashboard" else b"POST /gc HTTP/1.1\r\nContent-Type: application/json\r\n" + HOST
    async with connection(ports(dashboard)[name]) as (reader, writer):
        writer.write(to + b"Content-Length: 100\r\n\r\n{")
        assert (await reader.readline()).startswith(b"HTTP/1.1 408")


@pytest.mark.thorough
async def test_half_a_body_does_not_keep_the_dashboard_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks.wait_for_bodies(monkeypatch, 60 * DEADLINE_S)
    async with contextlib.AsyncExitStack() as stack:
        one = await stack.enter_async_context(shown(tmp_path))
        _, writer = await asyncio.open_connection("127.0.0.1", ports(one)["the dashboard"])
        writer.write(ACT + b"Content-Length: 100\r\n\r\n{")
        await works(one)
        async with asyncio.timeout(DEADLINE_S / 2):
            await stack.aclose()
        writer.transport.abort()


@pytest.mark.thorough
async def test_a_client_that_asks_and_does_not_read_is_not_worked_for(dashboard: Shown) -> None:
    """Requests behind one whose answer nobody reads wait in the kernel."""
    request = b"GET /app.js HTTP/1.1\r\n" + HOST + b"\r\n"
    async with connection(ports(dashboard)["the dashboard"]) as (_, writer):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                sent = 0
                while sent <= TAKEN_MAX:
                    writer.write(request * 1000)
                    sent += len(request) * 1000
                    await writer.drain()
        assert sent <= TAKEN_MAX
        await works(dashboard)
        writer.transport.abort()


@pytest.mark.thorough
async def test_a_thousand_connections_take_sixteen_files_and_others_are_answered(dashboard: Shown) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 3 * CROWD)), hard))
    crowd: list[socket.socket] = []
    before = len(os.listdir("/proc/self/fd"))
    try:
        for number in range(CROWD):
            one = socket.create_connection(("127.0.0.1", ports(dashboard)["the dashboard"]), timeout=DEADLINE_S)
            one.sendall(b"GET /api/v1/overview HTTP/1.1\r\n" + HOST[: number % len(HOST)])
            crowd.append(one)
            if number % 100 == 0:
                await works(dashboard)
            await asyncio.sleep(0)

        def held() -> int:
            return len(os.listdir("/proc/self/fd")) - before - CROWD

        # A connection has two handles, and one of ours may be new.
        await eventually(held, "the oldest are closed", until=lambda count: count <= 2 * CONNECTIONS_MAX + 4)
        await works(dashboard)
    finally:
        for one in crowd:
            one.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    await works(dashboard)
    assert "begins to drain" in (await dashboard.act("drain", "a"))["text"]
