"""The pages of a bookie over HTTP: metrics, health, and what an administrator may ask of it, as JSON.

    GET  /metrics     in Prometheus' text format
    GET  /healthz     200 as long as the process answers; a supervisor may restart a process that doesn't
    GET  /readyz      200 while the bookie serves and clients can find it, else 503
    GET  /activity    the ledgers that the bookie stores most of, and the latest fences
    GET  /gc          the latest run of garbage collection, which may be running
    POST /gc          start a run, unless one is running (409); {"dry_run": true} deletes nothing
    GET  /scrub       the progress of the scrub in each ledger directory, and the damage that it has found
    POST /scrub       start a round in each directory, unless one is running in all of them (409)
    GET  /integrity   what the bookie has lost, and how much of it is copied from other bookies
    POST /integrity   check all ledgers that name this bookie, unless such a check is running (409)
    POST /reload      read settings, certificates and rights again; 409 with the reason if they are unusable

`/healthz` and `/readyz` have the same JSON: `bookie_id`, `live`, `ready`, and `why` it isn't.

A web page in an administrator's browser can send requests here, too. So the bookie refuses requests that a browser
marks as another site's, and a POST needs what no page can send unasked: a body of type application/json, or the header
X-Bkpy.

Invariants: the pages are there before the storage is opened, which may take a while after a crash, and until the bookie
ends; an administrator's requests are answered only for clients on the same machine, unless `admin_clients` says
otherwise, or, with `metrics_tls`, for clients whose certificate has a name that may administer; while the bookie
starts, the answer to all of these is 503.
"""

from __future__ import annotations

import contextlib
import logging
import platform
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aiohttp import web

from bkpy.config.reloading import reloadable
from bkpy.errors import ConfigError
from bkpy.protocol.access import Right, describe_names, names_in
from bkpy.runtime.http_hosts import host_of, is_address, is_local
from bkpy.runtime.metrics_page import body_of, metrics_page
from bkpy.stored_json import parsed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from bkpy.bookie.background_services import IntegrityChecker
    from bkpy.bookie.collector import Collector
    from bkpy.bookie.credentials import Credentials
    from bkpy.bookie.metrics import BookieMetrics
    from bkpy.config.bookie import BookieSettings
    from bkpy.storage.busiest import BusiestLedgers
    from bkpy.storage.scrub.scrub import Scrub

log = logging.getLogger("bkpy.bookie")

COMMAND_HEADER: Final = "X-Bkpy"
_PROXY_HEADERS: Final = ("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Via")


class AdminRequestError(Exception):
    """Why a request of an administrator is refused, and the HTTP status that says so."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Administered(NamedTuple):
    """The parts of a bookie that administrators ask for; they exist once it has started."""

    collector: Collector
    scrub: Scrub
    integrity_checker: IntegrityChecker | None
    busiest: BusiestLedgers
    fences: Collection[tuple[int, float]]


class AdminPages:
    """The pages of one bookie. `unready` returns why it isn't ready, None if it is."""

    def __init__(
        self,
        settings: BookieSettings,
        reload: Callable[[], dict[str, Any]],
        credentials: Credentials,
        metrics: BookieMetrics,
        unready: Callable[[], str | None],
    ) -> None:
        self._administered: Administered | None = None
        self._settings = settings
        self._reload_all = reload
        self._credentials = credentials
        self._metrics = metrics
        self._unready = unready
        self._server = contextlib.AsyncExitStack()

    async def serve(self) -> int:
        """Serve the pages until `close`; returns the port. Raises `ConfigError` if the port isn't available."""
        settings = self._settings
        certificates = self._credentials.certificates if settings.metrics_tls else None
        port = await self._server.enter_async_context(
            metrics_page(
                self._metrics.render,
                settings.metrics_listen,
                settings.metrics_port,
                self._add_to,
                None if certificates is None else certificates.following(),
                connections_max=settings.metrics_connections_max,
                handshake_timeout_s=settings.tls_handshake_timeout_s,
            )
        )
        scheme = "http" if certificates is None else "https"
        log.info(
            "bookie %s serves metrics at %s://%s:%d/metrics", settings.bookie_id, scheme, settings.metrics_listen, port
        )
        return port

    def administer(
        self,
        collector: Collector,
        scrub: Scrub,
        integrity_checker: IntegrityChecker | None,
        busiest: BusiestLedgers,
        fences: Collection[tuple[int, float]],
    ) -> None:
        """Answer administrators from now on: the bookie has started."""
        self._administered = Administered(collector, scrub, integrity_checker, busiest, fences)

    async def close(self) -> None:
        await self._server.aclose()

    def _add_to(self, app: web.Application) -> None:
        get, post = app.router.add_get, app.router.add_post
        get("/healthz", self._healthz)
        get("/readyz", self._readyz)
        get("/activity", self._activity)
        get("/gc", self._guarded(self._gc))
        post("/gc", self._guarded(self._begin_gc))
        get("/scrub", self._guarded(self._scrub))
        post("/scrub", self._guarded(self._begin_scrub))
        get("/integrity", self._guarded(self._integrity))
        post("/integrity", self._guarded(self._begin_integrity))
        get("/reload", self._guarded(self._reloadable))
        post("/reload", self._guarded(self._reload))

    # --- health -----------------------------------------------------------------------------------------------------

    async def _healthz(self, request: web.Request) -> web.Response:
        return self._health(200)

    async def _readyz(self, request: web.Request) -> web.Response:
        return self._health(200 if self._unready() is None else 503)

    def _health(self, status: int) -> web.Response:
        why = self._unready()
        health = {"bookie_id": self._settings.bookie_id, "live": True, "ready": why is None, "why": why}
        return web.json_response(health, status=status)

    async def _activity(self, request: web.Request) -> web.Response:
        of = self._administered
        if of is None:
            return web.json_response({"error": "the bookie is starting"}, status=503)
        busiest = [[rate.ledger_id, round(rate.entries, 3), round(rate.bytes)] for rate in of.busiest.look()]
        fences = [[ledger_id, round(time_s, 3)] for ledger_id, time_s in of.fences]
        return web.json_response({"bookie_id": self._settings.bookie_id, "busiest": busiest, "fences": fences})

    # --- an administrator's requests --------------------------------------------------------------------------------

    def _guarded(
        self, handle: Callable[[web.Request, Administered], Awaitable[dict[str, Any]]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        """The handler, for clients that may administer the bookie; an `AdminRequestError` becomes its answer."""

        async def guarded(request: web.Request) -> web.Response:
            try:
                self._check(request)
                if self._administered is None:
                    raise AdminRequestError(503, "the bookie is starting")
                answer, status = await handle(request, self._administered), 200
            except AdminRequestError as error:
                answer, status = {"error": str(error)}, error.status
            return web.json_response({"bookie_id": self._settings.bookie_id, **answer}, status=status)

        return guarded

    def _check(self, request: web.Request) -> None:
        """Raises `AdminRequestError` if the client may not administer the bookie."""
        headers = request.headers
        if "Origin" in headers or headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            raise AdminRequestError(403, "requests of web pages are refused")
        if request.method != "GET" and request.content_type != "application/json" and COMMAND_HEADER not in headers:
            raise AdminRequestError(415, f"send application/json, or the header {COMMAND_HEADER}: 1")
        if self._settings.metrics_tls:
            assert request.transport is not None
            names = names_in(request.transport.get_extra_info("peercert"))
            if not self._credentials.rights_of(names) & Right.ADMINISTER:
                raise AdminRequestError(403, f"the file of rights does not let {describe_names(names)} administer")
        elif self._settings.admin_clients == "local":
            self._check_local(request)

    def _check_local(self, request: web.Request) -> None:
        if not is_local(request.remote):
            raise AdminRequestError(403, "ask from the bookie's own machine, or set admin_clients = 'all'")
        if any(name in request.headers for name in _PROXY_HEADERS):
            raise AdminRequestError(403, "the request came through a proxy: ask the bookie itself")
        host = host_of(request.host)
        settings = self._settings
        own = (settings.advertised_address, settings.listen, settings.metrics_listen, platform.node())
        if not is_address(host) and host not in ("localhost", *(host_of(name) for name in own if name)):
            raise AdminRequestError(403, f"this bookie is not {host}: ask it by its address, or as localhost")

    async def _gc(self, request: web.Request, of: Administered) -> dict[str, Any]:
        run = of.collector.run
        return {"interval_s": self._settings.gc_interval_s, "run": None if run is None else run.describe()}

    async def _begin_gc(self, request: web.Request, of: Administered) -> dict[str, Any]:
        dry_run = (await _fields(request)).get("dry_run", False)
        if not isinstance(dry_run, bool):
            raise AdminRequestError(400, "dry_run is true or false")
        if of.collector.stopped:
            raise AdminRequestError(503, "the bookie stops")
        if of.collector.begin(dry_run=dry_run) is None:
            raise AdminRequestError(409, "a run is under way: wait until it has ended")
        return await self._gc(request, of)

    async def _scrub(self, request: web.Request, of: Administered) -> dict[str, Any]:
        damages = await of.scrub.damages()
        return {
            "interval_s": self._settings.scrub_interval_s,
            "bytes_per_s": self._settings.scrub_bytes_per_s,
            "directories": [status._asdict() for status in of.scrub.statuses],
            "damages": [damage._asdict() for damage in damages.found],
            "left_out": damages.left_out,
        }

    async def _begin_scrub(self, request: web.Request, of: Administered) -> dict[str, Any]:
        if not of.scrub.begin():
            raise AdminRequestError(409, "a round is under way in every ledger directory: wait until it has ended")
        return await self._scrub(request, of)

    async def _integrity(self, request: web.Request, of: Administered) -> dict[str, Any]:
        return _integrity_checker(of).status()

    async def _begin_integrity(self, request: web.Request, of: Administered) -> dict[str, Any]:
        if not _integrity_checker(of).begin():
            raise AdminRequestError(409, "a check of all ledgers is under way: wait until it has ended")
        return await self._integrity(request, of)

    async def _reloadable(self, request: web.Request, of: Administered) -> dict[str, Any]:
        return {"reloadable": sorted(reloadable(type(self._settings)))}

    async def _reload(self, request: web.Request, of: Administered) -> dict[str, Any]:
        try:
            return self._reload_all()
        except ConfigError as error:
            raise AdminRequestError(409, str(error)) from None


def _integrity_checker(of: Administered) -> IntegrityChecker:
    if of.integrity_checker is None:
        raise AdminRequestError(404, "this bookie runs without an integrity check")
    return of.integrity_checker


async def _fields(request: web.Request) -> dict[str, Any]:
    """The JSON object in the request's body; for an empty body, an empty object."""
    body = await body_of(request)
    try:
        fields = parsed(body) if body else {}
    except ValueError as error:
        raise AdminRequestError(400, f"the body is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise AdminRequestError(400, "the body is not a JSON object")
    return fields
