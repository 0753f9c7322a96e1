"""What a bookie says over HTTP: its metrics, how it is, and what an administrator may ask (`bkpy.bookie.admin`).

    GET  /metrics   in the text format of Prometheus
    GET  /healthz   200 as long as the process gets round to answering: whoever isn't answered may start it anew
    GET  /readyz    200 when clients are served and can find the bookie, else 503

The latter two have the same JSON: `bookie_id`, `live`, `ready`, and `why` it isn't.

Invariant: they are served before the storage is opened, which may take a while after a crash, until the bookie ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from bkpy.bookie.admin import Administered, AdminPages
from bkpy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.bookie.collector import Collector
    from bkpy.config.bookie import BookieSettings
    from bkpy.storage.scrub.scrub import Scrub


class Pages:
    """The pages of one bookie. `metrics` renders them, `unready` says why it isn't ready, None if it is."""

    def __init__(
        self, settings: BookieSettings, metrics: Callable[[], bytes], unready: Callable[[], str | None]
    ) -> None:
        self.port = -1
        self._settings = settings
        self._metrics = metrics
        self._unready = unready
        self._admin = AdminPages(settings)
        app = web.Application()
        app.router.add_get("/metrics", self._tell_metrics)
        app.router.add_get("/healthz", self._tell_health)
        app.router.add_get("/readyz", self._tell_readiness)
        self._admin.add_to(app)
        self._runner = web.AppRunner(app, access_log=None)

    async def start(self) -> None:
        """Listen, at `port` then. Raises `ConfigError` if that is impossible."""
        await self._runner.setup()
        host, port = self._settings.metrics_listen, self._settings.metrics_port
        try:
            await web.TCPSite(self._runner, host, port).start()
        except OSError as e:
            raise ConfigError(f"can't serve metrics at {host}:{port}: {e.strerror or e}") from e
        self.port = self._runner.addresses[0][1]

    def administer(self, collector: Collector, scrub: Scrub) -> None:
        """Let these be asked for from now on: the bookie's storage is open."""
        self._admin.of = Administered(collector, scrub)

    async def stop(self) -> None:
        """Answer nobody from this call on."""
        await self._runner.cleanup()

    async def _tell_metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self._metrics(), headers={"Content-Type": "text/plain; version=0.0.4"})

    async def _tell_health(self, request: web.Request) -> web.Response:
        return self._health(200)

    async def _tell_readiness(self, request: web.Request) -> web.Response:
        return self._health(200 if self._unready() is None else 503)

    def _health(self, status: int) -> web.Response:
        why = self._unready()
        told = {"bookie_id": self._settings.bookie_id, "live": True, "ready": why is None, "why": why}
        return web.json_response(told, status=status)
