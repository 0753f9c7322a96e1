"""HTTP servers: that of a process's metrics page, with other pages beside it, and that of any application."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from aiohttp import web

from bkpy.errors import ConfigError
from bkpy.runtime.http_connections import HttpConnections

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from bkpy.runtime.tls import TlsContext


def metrics_page(
    render: Callable[[], bytes],
    listen: str,
    port: int,
    add_to: Callable[[web.Application], None] = lambda app: None,
    tls: TlsContext | None = None,
    *,
    connections_max: int,
    handshake_timeout_s: float | None = None,
) -> contextlib.AbstractAsyncContextManager[int]:
    """Serve what `render` makes, in Prometheus' text format, and the routes that `add_to` adds; at that port.

    With `tls` it is HTTPS. For one connection more than `connections_max` it closes the oldest. Port 0 is any free
    port. Raises `ConfigError` if the port isn't available.
    """

    async def page(_: web.Request) -> web.Response:
        return web.Response(body=render(), headers={"Content-Type": "text/plain; version=0.0.4"})

    app = web.Application()
    app.router.add_get("/metrics", page)
    add_to(app)
    # Itself no generator: the end of a loop closes two that are nested at the same time, and so neither.
    return http_server(
        app, listen, port, tls, connections_max=connections_max, handshake_timeout_s=handshake_timeout_s, what="metrics"
    )


@contextlib.asynccontextmanager
async def http_server(
    app: web.Application,
    listen: str,
    port: int,
    tls: TlsContext | None,
    *,
    connections_max: int,
    handshake_timeout_s: float | None = None,
    what: str,
) -> AsyncIterator[int]:
    """Serve the application at that port, as `metrics_page` does its pages. `what` names it in errors."""
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    assert runner.server is not None
    http_connections = HttpConnections(runner.server, connections_max, tls, handshake_timeout_s)
    try:
        try:
            # The loop may accept all connections of the kernel's backlog before it handles one.
            server = await asyncio.get_running_loop().create_server(
                http_connections.new_connection, listen, port, backlog=connections_max
            )
        except OSError as e:
            raise ConfigError(f"can't serve {what} at {listen}:{port}: {e.strerror or e}") from e
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
    finally:
        await runner.cleanup()
        http_connections.stop()
