"""HTTP servers: that of a process's metrics page, with other pages beside it, and that of any application.

Invariant: strangers fill neither the log nor the memory. What is no HTTP, and who hangs up, is logged at DEBUG, in a
line that has none of their bytes; of a body that is not read, the server takes `_LINGER_BYTES` at most. Nobody who
sends half a body keeps a server from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final

from aiohttp import ClientConnectionResetError, web
from aiohttp.http_exceptions import HttpProcessingError

from bkpy.errors import ConfigError
from bkpy.runtime.http_connections import HttpConnections

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from bkpy.runtime.tls import TlsContext

log = logging.getLogger("bkpy.http")

# A client that still sends when it is answered would lose the answer if the connection were closed at once.
_LINGER_BYTES: Final = 1 << 16
_LINGER_S: Final = 1.0
_BODY_S: Final = 10.0  # for all of a body, which is small
_LAST_REQUESTS_S: Final = 2.0  # for those under way when the server ends


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
    app.middlewares.insert(0, _whatever_the_body)
    # Nobody needs to send compressed bodies, and they can be a thousand times as large as what arrives.
    runner = web.AppRunner(
        app,
        access_log=None,
        logger=_ServerLog(log, {}),
        auto_decompress=False,
        lingering_time=0,
        shutdown_timeout=_LAST_REQUESTS_S,
    )
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


async def body_of(request: web.Request) -> bytes:
    """The request's body, if it arrives in time; else the answer is status 408."""
    try:
        async with asyncio.timeout(_BODY_S):
            return await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout(reason=f"the body did not arrive within {_BODY_S:g} s") from None


class _ServerLog(logging.LoggerAdapter[logging.Logger]):
    """What aiohttp logs: errors of handlers as they are, errors of parsing in a line at DEBUG."""

    def log(self, level: int, msg: object, *args: object, **given: Any) -> None:
        error = given.get("exc_info")
        if isinstance(error, HttpProcessingError | ClientConnectionResetError):
            log.debug("a client sends what is no HTTP, or hangs up (%s)", type(error).__name__)
        else:
            super().log(level, msg, *args, **given)


@web.middleware
async def _whatever_the_body(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answer also a request whose body is malformed, ends early or never, and take little of the rest of it."""
    try:
        try:
            if "Content-Encoding" in request.headers:
                raise web.HTTPUnsupportedMediaType(reason="send the body as it is")
            response = await handler(request)
        except web.HTTPException as refusal:
            await _answer_and_linger(request, refusal)
            raise
        await _answer_and_linger(request, response)
    except web.RequestPayloadError as error:
        log.debug("the body of a client's request is malformed (%s)", type(error).__name__)
        response = web.Response(status=400)
        response.force_close()
    except ConnectionError:
        if request.transport is not None and not request.transport.is_closing():
            raise  # of another connection
        log.debug("a client hangs up during its request")
        response = web.Response(status=400)  # which nobody gets
    return response


async def _answer_and_linger(request: web.Request, response: web.StreamResponse) -> None:
    if request.content.is_eof():
        return
    await response.prepare(request)
    await response.write_eof()
    left = _LINGER_BYTES
    with contextlib.suppress(TimeoutError, ConnectionError, web.RequestPayloadError):
        async with asyncio.timeout(_LINGER_S):
            while left > 0 and not request.content.is_eof():
                left -= len(await request.content.readany())
