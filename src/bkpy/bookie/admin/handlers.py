"""What an administrator may ask of a running bookie, over HTTP beside the metrics: JSON in, JSON out.

    GET  /gc   the latest run of garbage collection, which may be going on
    POST /gc   begin a run, unless one goes on (409); {"dry_run": true} deletes nothing
    GET  /scrub   how far the scrub of each ledger directory is, and what it has found damaged
    POST /scrub   begin a round in each directory, unless one goes on in all (409)
    GET  /integrity   what was lost here, and how far it is copied from other bookies
    POST /integrity   look through all ledgers that name this bookie, unless that goes on (409)
    POST /reload  read certificates and rights again, if they have changed; 409 with the reason if they can't be used

A web page in an administrator's browser can send requests here, too. So whatever a browser marks as another site's is
refused, and a POST needs what no page can send unasked: a body of type application/json, or the header X-Bkpy.

Invariants: only who is on the same machine is answered, unless `admin_clients` says otherwise, or, with `metrics_tls`,
who shows a certificate with a name that may administer; as long as the bookie starts, all are told so (503).
"""

from __future__ import annotations

import ipaddress
import platform
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aiohttp import web

from bkpy.errors import ConfigError
from bkpy.protocol.access import Right, describe_names, names_in
from bkpy.stored_json import parsed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from bkpy.bookie.background_services import IntegrityChecker
    from bkpy.bookie.collector import Collector
    from bkpy.bookie.credentials import Credentials
    from bkpy.config.bookie import BookieSettings
    from bkpy.storage.scrub.scrub import Scrub


COMMAND_HEADER: Final = "X-Bkpy"
_PROXY_HEADERS: Final = ("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Via")


class AdminRequestError(Exception):
    """The request can't be done, and why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Administered(NamedTuple):
    """What there is to ask for once the bookie's storage is open."""

    collector: Collector
    scrub: Scrub
    integrity_checker: IntegrityChecker | None


class AdminPages:
    """The routes of one bookie; `of` is set when it has started."""

    def __init__(self, settings: BookieSettings, credentials: Credentials) -> None:
        self.of: Administered | None = None
        self._settings = settings
        self._credentials = credentials

    def add_to(self, app: web.Application) -> None:
        """Let the application serve them."""
        app.router.add_get("/gc", self._guarded(self._gc))
        app.router.add_post("/gc", self._guarded(self._begin_gc))
        app.router.add_get("/scrub", self._guarded(self._tell_scrub))
        app.router.add_post("/scrub", self._guarded(self._begin_scrub))
        app.router.add_get("/integrity", self._guarded(self._tell_integrity))
        app.router.add_post("/integrity", self._guarded(self._begin_integrity))
        app.router.add_post("/reload", self._guarded(self._reload))

    def _guarded(
        self, handle: Callable[[web.Request, Administered], Awaitable[dict[str, Any]]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        """The handler for those who may ask; what it raises for the client becomes an answer."""

        async def guarded(request: web.Request) -> web.Response:
            try:
                self._check(request)
                if self.of is None:
                    raise AdminRequestError(503, "the bookie is starting")
                answer, status = await handle(request, self.of), 200
            except AdminRequestError as error:
                answer, status = {"error": str(error)}, error.status
            return web.json_response({"bookie_id": self._settings.bookie_id, **answer}, status=status)

        return guarded

    def _check(self, request: web.Request) -> None:
        """`AdminRequestError` if the client may not ask for this."""
        headers = request.headers
        if "Origin" in headers or headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            raise AdminRequestError(403, "a web page asks, and none may")
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
        if not is_address(host) and host not in ("localhost", *(host_of(name or "") for name in own)):
            raise AdminRequestError(403, f"this bookie is not {host}: ask it by its address, or as localhost")

    async def _gc(self, request: web.Request, of: Administered) -> dict[str, Any]:
        run = of.collector.run
        return {"interval_s": self._settings.gc_interval_s, "run": None if run is None else run.describe()}

    async def _begin_gc(self, request: web.Request, of: Administered) -> dict[str, Any]:
        dry_run = (await _fields(request)).get("dry_run", False)
        if not isinstance(dry_run, bool):
            raise AdminRequestError(400, "dry_run is true or false")
        if of.collector.begin(dry_run=dry_run) is None:
            raise AdminRequestError(409, "a run is going on: wait until it has ended")
        return await self._gc(request, of)

    async def _tell_scrub(self, request: web.Request, of: Administered) -> dict[str, Any]:
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
        return await self._tell_scrub(request, of)

    async def _tell_integrity(self, request: web.Request, of: Administered) -> dict[str, Any]:
        return _integrity_checker(of).status()

    async def _begin_integrity(self, request: web.Request, of: Administered) -> dict[str, Any]:
        if not _integrity_checker(of).begin():
            raise AdminRequestError(409, "all ledgers are being looked through: wait until that has ended")
        return await self._tell_integrity(request, of)

    async def _reload(self, request: web.Request, of: Administered) -> dict[str, Any]:
        try:
            return {"reloaded": self._credentials.reload()}
        except ConfigError as error:
            raise AdminRequestError(409, str(error)) from None


def _integrity_checker(of: Administered) -> IntegrityChecker:
    if of.integrity_checker is None:
        raise AdminRequestError(404, "this bookie runs without an integrity check")
    return of.integrity_checker


async def _fields(request: web.Request) -> dict[str, Any]:
    """The JSON object that the request has as its body; an empty body is an empty one."""
    body = await request.read()
    try:
        fields = parsed(body) if body else {}
    except ValueError as error:
        raise AdminRequestError(400, f"the body is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise AdminRequestError(400, "the body is no JSON object")
    return fields


def host_of(place: str) -> str:
    """The host of HOST or HOST:PORT, in lower case."""
    host = place.rpartition(":")[0] if re.search(r":[0-9]*$", place) and not is_address(place) else place
    return host.strip("[]").rstrip(".").lower()


def is_address(host: str) -> bool:
    """Whether it is an IP address: no name that somebody else could point here."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_local(address: str | None) -> bool:
    """Whether a client at that IP address is on the same machine."""
    try:
        ip = ipaddress.ip_address(address or "")
    except ValueError:
        return False
    mapped = getattr(ip, "ipv4_mapped", None)
    return (mapped or ip).is_loopback
