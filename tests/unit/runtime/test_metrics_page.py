"""The page's connections: how many there may be, and that those who come last are answered."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import TYPE_CHECKING

import aiohttp
import pytest
import uvloop
from tests.certificates import Authority
from tests.in_process import DEADLINE_S

from bkpy.runtime.metrics_page import metrics_page
from bkpy.runtime.tls import Certificates, Side, TlsFiles

if TYPE_CHECKING:
    from pathlib import Path

MOST = 4


@pytest.mark.parametrize("most", [1, MOST])
@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("first_bytes", [b"", b"\x16\x03\x01", b"GET /metrics HTTP/1.1\r\n"])
async def test_those_who_only_hold_connections_keep_nobody_out(
    tmp_path: Path, most: int, secure: bool, first_bytes: bytes
) -> None:
    """With TLS they are at their handshake, and no request of theirs is waited for yet."""
    ca = Authority(tmp_path)
    issued = ca.issue("page")
    context = ssl.create_default_context(cafile=str(ca.file))
    context.load_cert_chain(issued.certificate, issued.key)
    files = TlsFiles(str(ca.file), str(issued.certificate), str(issued.key))
    tls = Certificates(files, Side.BOOKIE).context if secure else None
    async with (
        asyncio.timeout(DEADLINE_S),
        metrics_page(lambda: b"x 1\n", "127.0.0.1", 0, tls=tls, connections_max=most, handshake_timeout_s=3600) as port,
    ):
        strangers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5 * most)]
        for _, writer in strangers:
            writer.write(first_bytes)
        url = f"http{'s' if secure else ''}://127.0.0.1:{port}/metrics"
        async with aiohttp.ClientSession() as session, session.get(url, ssl=context) as response:
            assert await response.text() == "x 1\n"
            for reader, _ in strangers[: 4 * most + 1]:
                with contextlib.suppress(ConnectionError):
                    await reader.read()  # to the end
        for _, writer in strangers:
            writer.close()


async def test_a_handshake_at_the_page_ends_in_time(tmp_path: Path) -> None:
    ca = Authority(tmp_path)
    issued = ca.issue("page")
    tls = Certificates(TlsFiles(str(ca.file), str(issued.certificate), str(issued.key)), Side.BOOKIE).context
    async with (
        asyncio.timeout(DEADLINE_S),
        metrics_page(lambda: b"", "127.0.0.1", 0, tls=tls, connections_max=MOST, handshake_timeout_s=0.05) as port,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()


async def test_the_end_of_the_page_is_the_end_of_its_connections() -> None:
    async with asyncio.timeout(DEADLINE_S):
        async with metrics_page(lambda: b"", "127.0.0.1", 0, connections_max=MOST) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        while await reader.read(1 << 16):
            pass
        writer.close()


def test_a_page_that_is_left_open_ends_with_its_loop_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    """As when a bookie fails, which closes nothing."""
    with contextlib.ExitStack() as left, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        page = metrics_page(lambda: b"", "127.0.0.1", 0, connections_max=MOST)
        left.callback(lambda: page)  # which is referred to until the loop has ended
        assert runner.run(page.__aenter__()) > 0
    assert caplog.records == []
