"""What a bookie says over HTTP beside its metrics: how it is, and what an administrator asks (`admin/handlers.py`).

    GET  /healthz   200 as long as the process gets round to answering: whoever isn't answered may start it anew
    GET  /readyz    200 when clients are served and can find the bookie, else 503

Both have the same JSON: `bookie_id`, `live`, `ready`, and `why` it isn't.

Invariant: they are served before the storage is opened, which may take a while after a crash, until the bookie ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from bkpy.bookie.admin.handlers import Administered, AdminPages

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.bookie.background_services import IntegrityChecker
    from bkpy.bookie.collector import Collector
    from bkpy.bookie.credentials import Credentials
    from bkpy.config.bookie import BookieSettings
    from bkpy.storage.scrub.scrub import Scrub


class ServedPages:
    """The pages of one bookie. `unready` says why it isn't ready, None if it is."""

    def __init__(self, settings: BookieSettings, credentials: Credentials, unready: Callable[[], str | None]) -> None:
        self._bookie_id = settings.bookie_id
        self._unready = unready
        self._admin = AdminPages(settings, credentials)

    def add_to(self, app: web.Application) -> None:
        """Let the application serve them."""
        app.router.add_get("/healthz", self._tell_health)
        app.router.add_get("/readyz", self._tell_readiness)
        self._admin.add_to(app)

    def administer(self, collector: Collector, scrub: Scrub, integrity_checker: IntegrityChecker | None) -> None:
        """Let these be asked for from now on: the bookie's storage is open."""
        self._admin.of = Administered(collector, scrub, integrity_checker)

    async def _tell_health(self, request: web.Request) -> web.Response:
        return self._health(200)

    async def _tell_readiness(self, request: web.Request) -> web.Response:
        return self._health(200 if self._unready() is None else 503)

    def _health(self, status: int) -> web.Response:
        why = self._unready()
        status_of_bookie = {"bookie_id": self._bookie_id, "live": True, "ready": why is None, "why": why}
        return web.json_response(status_of_bookie, status=status)
