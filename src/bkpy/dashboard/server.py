"""The dashboard's HTTP server: its page, its API, and who may use them.

    GET  /, /app.js, /style.css         the page
    GET  /api/v1/...                    JSON, described by /api/v1/openapi.json
    POST /api/v1/actions/<action>       if actions are allowed: {"subject": ...}, with the token

Invariants: a request from another site's page is refused, and so is one that reached this server by a name which isn't
its own; the page loads nothing from elsewhere and can't be framed; no reply has a key, a password or the token; an
action needs the token, and off this machine TLS as well.
"""

from __future__ import annotations

import contextlib
import hmac
import importlib.resources
import logging
import platform
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web
from pydantic import BaseModel, ValidationError

from bkpy.admin.ledger_filter import LedgerFilter
from bkpy.dashboard.actions import ACTIONS, Actions
from bkpy.dashboard.models import ActionRequest, AuditPage, AuditReport, BookiesReport, Events, Healing
from bkpy.dashboard.openapi import description
from bkpy.dashboard.reading import LOG, PAGE_MAX, LedgerReading, LogReading
from bkpy.errors import BookKeeperError, CallerError, NoSuchLedgerError, NoSuchLogError
from bkpy.runtime.http_hosts import host_of, is_address, is_local
from bkpy.runtime.metrics_page import body_of, http_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from bkpy.dashboard.watching import ClusterWatch
    from bkpy.runtime.tls import TlsContext

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

log = logging.getLogger("bkpy.dashboard")

BODY_BYTES_MAX: Final = 4096
_FILES: Final = {
    "/": ("index.html", "text/html"),
    "/app.js": ("app.js", "text/javascript"),
    "/style.css": ("style.css", "text/css"),
}
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Dashboard:
    """The application. `token` is what actions need; without `actions` there are none."""

    def __init__(
        self,
        watch: ClusterWatch,
        ledgers: LedgerReading,
        logs: LogReading,
        *,
        names: tuple[str, ...] = (),
        actions: Actions | None = None,
        token: str = "",
        secured: bool = False,
    ) -> None:
        self._watch = watch
        self._ledgers = ledgers
        self._logs = logs
        self._actions = actions
        self._token = token
        self._secured = secured
        self._names = {"localhost", host_of(platform.node()), *map(host_of, names)}

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._guard], client_max_size=BODY_BYTES_MAX)
        for path in _FILES:
            app.router.add_get(path, self._file)
        get = app.router.add_get
        get("/api/v1/openapi.json", self._openapi)
        get("/api/v1/overview", _json(self._overview))
        get("/api/v1/health", _json(self._health))
        get("/api/v1/bookies", _json(self._bookies))
        get("/api/v1/busiest", _json(self._busiest))
        get("/api/v1/ledgers", _json(self._ledger_page))
        get("/api/v1/ledgers/{ledger_id}", _json(self._ledger))
        get("/api/v1/logs", _json(self._log_page))
        get("/api/v1/logs/{log}", _json(self._log))
        get("/api/v1/healing", _json(self._healing))
        get("/api/v1/audit", _json(self._audit))
        get("/api/v1/events", _json(self._events))
        app.router.add_post("/api/v1/actions/{action}", _json(self._act))
        return app

    # --- who may ask --------------------------------------------------------------------------------------------------

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        refusal = self._refusal(request)
        if refusal is not None:
            return _error(403, refusal)
        try:
            response = await handler(request)
        except web.HTTPException as error:
            response = _error(error.status, error.reason)
        response.headers.update(_HEADERS)
        return response

    def _refusal(self, request: web.Request) -> str | None:
        host = host_of(request.host)
        if not is_address(host) and host not in self._names:
            return f"this dashboard is not {host}: ask it by its address, or as localhost"
        # A link on another page may lead to this one, but nothing else of another page may ask.
        navigates = request.path == "/" and request.headers.get("Sec-Fetch-Mode") == "navigate"
        if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin") and not navigates:
            return "requests of other sites' pages are refused"
        origin = request.headers.get("Origin")
        if origin is not None and origin.partition("://")[2] != request.host:
            return "requests of other sites' pages are refused"
        return None

    # --- the page -----------------------------------------------------------------------------------------------------

    async def _file(self, request: web.Request) -> web.Response:
        name, kind = _FILES[request.path]
        text = importlib.resources.files("bkpy.dashboard").joinpath("static", name).read_text("utf-8")
        return web.Response(text=text, content_type=kind, charset="utf-8")

    # --- the API ------------------------------------------------------------------------------------------------------

    async def _openapi(self, request: web.Request) -> web.Response:
        return web.json_response(description())

    async def _overview(self, request: web.Request) -> BaseModel:
        overview = self._watch.overview()
        overview.actions = [] if self._actions is None else list(ACTIONS)
        return overview

    async def _health(self, request: web.Request) -> BaseModel:
        return self._watch.health()

    async def _bookies(self, request: web.Request) -> BaseModel:
        return BookiesReport(bookies=self._watch.bookies())

    async def _busiest(self, request: web.Request) -> BaseModel:
        return self._watch.busiest()

    async def _ledger_page(self, request: web.Request) -> BaseModel:
        query = request.query
        return await self._ledgers.page(
            after=_number(query.get("after", "-1"), "after"),
            limit=min(PAGE_MAX, max(1, _number(query.get("limit", "50"), "limit"))),
            wanted=_wanted(query),
        )

    async def _ledger(self, request: web.Request) -> BaseModel:
        return await self._ledgers.one(_number(request.match_info["ledger_id"], "ledger_id"))

    async def _log_page(self, request: web.Request) -> BaseModel:
        limit = min(PAGE_MAX, max(1, _number(request.query.get("limit", "50"), "limit")))
        page = await self._logs.page(request.query.get("after", ""), limit)
        for line in page.logs:
            if (busy := self._watch.following.log(line.log)) is not None:
                line.appended_entries, line.appended_bytes = busy.entries, busy.bytes
        return page

    async def _log(self, request: web.Request) -> BaseModel:
        return await self._logs.one(request.match_info["log"])

    async def _healing(self, request: web.Request) -> BaseModel:
        return Healing(replication=dict(self._watch.replication()))

    async def _events(self, request: web.Request) -> BaseModel:
        return Events(events=self._watch.events())

    async def _audit(self, request: web.Request) -> BaseModel:
        since_ms = _number(request.query.get("since_ms", "0"), "since_ms")
        acts = await self._watch.trail.read(await self._watch.trail.names(since_ms))
        return AuditPage(acts=[AuditReport.model_validate(act.to_json()) for act in reversed(acts)])

    async def _act(self, request: web.Request) -> BaseModel:
        if self._actions is None:
            raise web.HTTPForbidden(reason="actions are not allowed here: start the dashboard with --allow-actions")
        if not self._secured and not is_local(request.remote):
            raise web.HTTPForbidden(reason="actions from another machine need TLS")
        if request.content_type != "application/json":
            raise web.HTTPUnsupportedMediaType(reason="send application/json")
        given = request.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
            raise web.HTTPUnauthorized(reason="this is not the dashboard's token")
        asked = ActionRequest.model_validate_json(await body_of(request))
        action = request.match_info["action"]
        if action not in ACTIONS:
            raise web.HTTPNotFound(reason=f"there is no action {action}")
        done = await self._actions.act(action, asked.subject)
        self._watch.tell("action", done.text)
        log.info("%s", done.text)
        return done


def _json(answer: Callable[[web.Request], Awaitable[BaseModel]]) -> Handler:
    """The handler that sends the model as JSON, or what prevented it."""

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            model = await answer(request)
        except (NoSuchLedgerError, NoSuchLogError) as error:
            return _error(404, str(error))
        except (CallerError, ValidationError, ValueError) as error:
            return _error(400, str(error).partition("\n")[0])
        except BookKeeperError as error:
            return _error(503, str(error))
        return web.Response(text=model.model_dump_json(), content_type="application/json")

    return handle


def _error(status: int, why: str) -> web.Response:
    response = web.json_response({"error": why}, status=status)
    response.headers.update(_HEADERS)
    return response


def _wanted(query: Mapping[str, str]) -> LedgerFilter:
    custom = {LOG: query["log"].encode()} if query.get("log") else {}
    if query.get("custom"):
        key, separator, value = query["custom"].partition("=")
        if not separator:
            raise ValueError("custom is KEY=VALUE")
        custom[key] = value.encode()
    return LedgerFilter(
        state=query.get("state") or None,
        since_ms=_number(query["since_ms"], "since_ms") if query.get("since_ms") else None,
        bookie=query.get("bookie") or None,
        custom=custom,
        missing_copies=query.get("missing", "") == "true",
    )


def _number(text: str, name: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise ValueError(f"{name} is a number, not {text[:40]!r}") from None
    if not -1 <= number < 1 << 63:
        raise ValueError(f"{name} is from 0 to {(1 << 63) - 1}")
    return number


@contextlib.asynccontextmanager
async def serving(
    dashboard: Dashboard, host: str, port: int, tls: TlsContext | None, *, connections_max: int
) -> AsyncIterator[int]:
    """Serve it; the port. Raises `ConfigError` if the port isn't available."""
    async with http_server(
        dashboard.application(), host, port, tls, connections_max=connections_max, what="the dashboard"
    ) as bound:
        yield bound


def links(host: str, port: int, tls: TlsContext | None) -> str:
    """Where a browser finds it."""
    shown: Any = f"[{host}]" if ":" in host else host
    return f"{'http' if tls is None else 'https'}://{shown}:{port}/"
