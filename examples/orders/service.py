"""The service: takes orders over HTTP, and appends each of them once to the log "orders".

python examples/orders/service.py PORT
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator

from aiohttp import web

import bkpy

LOG, PRODUCER = "orders", "shop"
ORDER_BYTES_MAX = 100_000
ANSWER_WITHIN_S = 5.0


class Orders:
    """The log's writer: opened when an order comes, and again when another service has taken the log over."""

    def __init__(self, client: bkpy.Client) -> None:
        self._client = client
        self._opening: asyncio.Task[bkpy.LogWriter] | None = None

    async def put(self, number: int, order: bytes) -> int:
        """The order's position. A number that is in the log is not appended again, whichever service did that."""
        log = await self._writer()
        try:
            return await log.append(order, sequence=number)
        except bkpy.SequenceError:
            # Another service may have become the writer, and this one only learns that when it appends something. Then
            # the number is the next one, or in the log, after all.
            log.abandon()
            return await (await self._writer()).append(order, sequence=number)

    async def next_number(self) -> int:
        return (await self._writer()).last_sequence + 1

    async def _writer(self) -> bkpy.LogWriter:
        if self._opening is None or (self._opening.done() and not self._usable()):
            self._opening = asyncio.create_task(self._client.open_log(LOG, create=True, producer=PRODUCER))
        # A request that gives up leaves the opening to the next one.
        return await asyncio.shield(self._opening)

    def _usable(self) -> bool:
        task = self._opening
        return task is not None and not task.cancelled() and task.exception() is None and task.result().usable

    async def close(self) -> None:
        """Wait for what is pending, so that the next service finds a closed log."""
        if self._opening is not None:
            await asyncio.wait((self._opening,))
            if self._usable():
                await self._opening.result().close()


ORDERS = web.AppKey("orders", Orders)
routes = web.RouteTableDef()


@routes.put(r"/orders/{number:\d{1,15}}")
async def put_order(request: web.Request) -> web.Response:
    orders, number, order = request.app[ORDERS], int(request.match_info["number"]), await request.read()
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            return web.json_response({"position": await orders.put(number, order)})
    except bkpy.SequenceError as error:  # neither the next number nor one that is in the log
        return web.json_response({"error": str(error)}, status=409)
    except (TimeoutError, bkpy.BookKeeperError) as error:
        # Perhaps the order is in the log. It is right to repeat it in either case.
        return web.json_response({"error": f"repeat this: {error!r}"}, status=503, headers={"Retry-After": "1"})


@routes.get("/orders/next")
async def next_number(request: web.Request) -> web.Response:
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            return web.json_response({"number": await request.app[ORDERS].next_number()})
    except (TimeoutError, bkpy.BookKeeperError) as error:
        return web.json_response({"error": f"repeat this: {error!r}"}, status=503, headers={"Retry-After": "1"})


async def connected(app: web.Application) -> AsyncIterator[None]:
    async with bkpy.connect(os.environ["BKPY_CONNECT"], client_name=f"orders-{sys.argv[1]}") as client:
        app[ORDERS] = Orders(client)
        yield
        await app[ORDERS].close()


def main() -> None:
    app = web.Application(client_max_size=ORDER_BYTES_MAX)
    app.add_routes(routes)
    app.cleanup_ctx.append(connected)
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]))


if __name__ == "__main__":
    if "BKPY_CONNECT" not in os.environ or len(sys.argv) != 2:
        sys.exit("usage: service.py PORT, with BKPY_CONNECT set as the output of bkpy local says")
    main()
