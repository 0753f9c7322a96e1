"""Pages of bookies are read whole, whatever pieces they come in, and what is no bookie's page is none."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest
from aiohttp import web
from tests.in_process import runtime_here

from bkpy.admin.bookie_pages import ClusterPages
from bkpy.config.recovery import RecoverySettings
from bkpy.metadata.bookies.registration import BookieInfo
from bkpy.runtime.metrics_page import http_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from bkpy.admin.bookie_pages import PageReport

READY = b'{"bookie_id": "a", "live": true, "ready": true, "why": null}'
METRICS = b"bkpy_bookie_scrub_damages 3.0\nbkpy_bookie_connections 7.0\n"


@contextlib.asynccontextmanager
async def serving(ready: bytes, metrics: bytes) -> AsyncIterator[int]:
    """Pages that come byte by byte, each in a segment of its own."""

    async def page(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for byte in ready if request.path == "/readyz" else metrics:
            await response.write(bytes([byte]))
            await asyncio.sleep(0)
        return response

    app = web.Application()
    app.router.add_get("/readyz", page)
    app.router.add_get("/metrics", page)
    async with http_server(app, "127.0.0.1", 0, None, connections_max=8, what="pages") as port:
        yield port


async def read(ready: bytes, metrics: bytes = METRICS, bookie_id: str = "a", **settings: int) -> PageReport | None:
    async with (
        serving(ready, metrics) as port,
        ClusterPages(runtime_here().clock, RecoverySettings(**settings)) as pages,
    ):
        return (await pages.read([BookieInfo(bookie_id, f"127.0.0.1:{port}", metrics_port=port)]))[bookie_id]


async def test_a_page_that_comes_in_pieces_is_read_whole() -> None:
    report = await read(READY)
    assert report is not None
    assert report.ready
    assert report.value("bkpy_bookie_scrub_damages") == 3
    assert report.value("bkpy_bookie_connections") == 7


async def test_another_bookies_page_is_none() -> None:
    assert await read(READY, bookie_id="b") is None


@pytest.mark.parametrize("ready", [b"[]", b"7", b"null", b"{}", b"", b"<html>", b"\xff"])
async def test_what_is_no_bookies_page_is_none(ready: bytes) -> None:
    assert await read(ready) is None


async def test_a_page_without_an_end_is_none() -> None:
    assert await read(READY, METRICS, page_bytes_max=len(READY) + len(METRICS)) is not None
    assert await read(READY, METRICS * 3, page_bytes_max=len(READY) + len(METRICS)) is None
