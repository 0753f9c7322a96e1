"""The OpenAPI description of the dashboard's API, made from its models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic.json_schema import models_json_schema

from bkpy._version import VERSION
from bkpy.dashboard import models as m
from bkpy.dashboard.actions import ACTIONS

if TYPE_CHECKING:
    from pydantic import BaseModel

_AFTER_ID: Final = ("after", "integer", "ledgers with higher ids only")
_AFTER_NAME: Final = ("after", "string", "logs whose names come later only")
_LIMIT: Final = ("limit", "integer", "how many at most, up to 200")

# By path: what it returns, what that is, and the arguments of its query.
_READS: Final[dict[str, tuple[type[BaseModel], str, tuple[tuple[str, str, str], ...]]]] = {
    "/overview": (m.Overview, "The cluster's health, and rates of the last five minutes.", ()),
    "/health": (m.HealthReport, "Whether all is well, or what isn't, worst first.", ()),
    "/bookies": (m.BookiesReport, "All bookies, with what each of them does now.", ()),
    "/busiest": (m.Busiest, "The ledgers and logs that are written to most.", ()),
    "/ledgers": (
        m.LedgerPage,
        "A page of ledgers by id.",
        (
            _AFTER_ID,
            _LIMIT,
            ("state", "string", "OPEN, IN_RECOVERY or CLOSED only"),
            ("missing", "boolean", "ledgers with missing copies only"),
            ("log", "string", "those of a named log only"),
            ("since_ms", "integer", "those created since then only"),
            ("bookie", "string", "which name this bookie only"),
            ("custom", "string", "those with this custom metadata only, KEY=VALUE"),
        ),
    ),
    "/ledgers/{ledger_id}": (m.LedgerDetail, "A ledger, its fragments, and the copies that it misses.", ()),
    "/logs": (m.LogPage, "A page of named logs by name.", (_AFTER_NAME, _LIMIT)),
    "/logs/{log}": (m.LogDetail, "A log, its newest segments, and its consumers.", ()),
    "/healing": (m.Healing, "The state of re-replication.", ()),
    "/audit": (m.AuditPage, "Who did what to the cluster.", (("since_ms", "integer", "acts since then only"),)),
    "/events": (m.Events, "What has changed, the newest first: a thousand events at most.", ()),
}
_REF: Final = "#/components/schemas/{model}"


def description() -> dict[str, Any]:
    """The description, for JSON."""
    used: list[type[BaseModel]] = [model for model, _, _ in _READS.values()]
    used += [m.ActionRequest, m.ActionDone, m.ErrorReport]
    all_models: list[tuple[type[BaseModel], Literal["serialization"]]] = [(model, "serialization") for model in used]
    _, schemas = models_json_schema(all_models, ref_template=_REF)
    paths: dict[str, Any] = {path: {"get": _read(path, *read)} for path, read in _READS.items()}
    for action, text in ACTIONS.items():
        paths[f"/actions/{action}"] = {"post": _action(action, text)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "bkpy dashboard", "version": VERSION},
        "servers": [{"url": "/api/v1"}],
        "paths": paths,
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _read(path: str, model: type[BaseModel], text: str, query: tuple[tuple[str, str, str], ...]) -> dict[str, Any]:
    arguments = [_argument(name, kind, what, "query") for name, kind, what in query]
    if "{ledger_id}" in path:
        arguments.append(_argument("ledger_id", "integer", "the ledger's id", "path"))
    if "{log}" in path:
        arguments.append(_argument("log", "string", "the log's name", "path"))
    return {
        "operationId": path.strip("/").replace("/", "_").replace("{", "").replace("}", ""),
        "summary": text,
        "parameters": arguments,
        "responses": {"200": _answer(model, "what was asked for"), "default": _answer(m.ErrorReport, "why not")},
    }


def _action(action: str, text: str) -> dict[str, Any]:
    return {
        "operationId": action.replace("-", "_"),
        "summary": text,
        "security": [{"token": []}],
        "requestBody": {"required": True, "content": _content(m.ActionRequest)},
        "responses": {"200": _answer(m.ActionDone, "what was done"), "default": _answer(m.ErrorReport, "why not")},
    }


def _argument(name: str, kind: str, what: str, where: str) -> dict[str, Any]:
    return {"name": name, "in": where, "required": where == "path", "description": what, "schema": {"type": kind}}


def _answer(model: type[BaseModel], what: str) -> dict[str, Any]:
    return {"description": what, "content": _content(model)}


def _content(model: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REF.format(model=model.__name__)}}}
