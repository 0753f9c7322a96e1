"""The HTTP server of a process's metrics page, and of what else is to be served beside it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from aiohttp import web

from bkpy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from bkpy.runtime.tls import TlsContext


@contextlib.asynccontextmanager
async def metrics_page(
    render: Callable[[], bytes],
    listen: str,
    port: int,
    add_to: Callable[[web.Application], None] = lambda app: None,
    tls: TlsContext | None = None,
) -> AsyncIterator[int]:
    """Serve what `render` makes, in Prometheus' text format, and the routes that `add_to` adds; at that port.

    With `tls` it is HTTPS. Port 0 is any free one. Raises `ConfigError` if it can't be had.
    """

    async def page(_: web.Request) -> web.Response:
        return web.Response(body=render(), headers={"Content-Type": "text/plain; version=0.0.4"})

    app = web.Application()
    app.router.add_get("/metrics", page)
    add_to(app)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, listen, port, ssl_context=tls).start()
        except OSError as e:
            raise ConfigError(f"can't serve metrics at {listen}:{port}: {e.strerror or e}") from e
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
