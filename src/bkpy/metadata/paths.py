"""The paths of nodes under a cluster's root node."""

from __future__ import annotations

import re
from urllib.parse import quote

from bkpy.errors import ConfigError
from bkpy.protocol.log.log_list import checked_name

LAYOUT = "LAYOUT"
INSTANCE_ID = "INSTANCEID"
AVAILABLE = "available"
READ_ONLY = "available/readonly"
COOKIES = "cookies"
LOCKS = "underreplication/locks"
MARKS = "underreplication/ledgers"
MARKS_NEWS = "underreplication/news"
DISABLED = "underreplication/disable"
MANUAL_MOVES = "underreplication/byhand"
DRAINING = "underreplication/draining"
AUDIT = "underreplication/audit"
CHECKS = "underreplication/checks"
WORKERS = "underreplication/workers"
ELECTION = "underreplication/auditorelection"
RETIRED = "retired"
AUDIT_TRAIL = "audit-trail"
LOGS = "logs"
LOGS_DELETED = "logs-deleted"
IMPORTS = "imports"
RESTORE = "RESTORE"

_BOOKIE_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:\-]{0,254}")


def is_bookie_id(name: str) -> bool:
    return _BOOKIE_ID.fullmatch(name) is not None and name != "readonly"


def checked_bookie_id(bookie_id: str) -> str:
    """The id if it can name a node. Raises `ConfigError`."""
    if not is_bookie_id(bookie_id):
        raise ConfigError(
            f"{bookie_id!r} can't be a bookie id: letters, digits, '_', '-', '.' and ':', at most 255, not 'readonly'"
        )
    return bookie_id


def available(root: str, bookie_id: str, *, read_only: bool) -> str:
    return f"{root}/{READ_ONLY if read_only else AVAILABLE}/{bookie_id}"


def cookie(root: str, bookie_id: str) -> str:
    return f"{root}/{COOKIES}/{checked_bookie_id(bookie_id)}"


def ledger_lock(root: str, ledger_id: int, folder: str = LOCKS) -> str:
    return f"{root}/{folder}/L{ledger_id:019d}"


def imports(instance_id: str) -> str:
    """The folder of locks on the ledgers of another cluster, which are imported."""
    return f"{IMPORTS}/from-{quote(instance_id, safe='')}"


def draining(root: str, bookie_id: str) -> str:
    return f"{root}/{DRAINING}/{checked_bookie_id(bookie_id)}"


def retired(root: str, bookie_id: str) -> str:
    return f"{root}/{RETIRED}/{checked_bookie_id(bookie_id)}"


def log(root: str, name: str) -> str:
    return f"{root}/{LOGS}/{checked_name(name)}"


def token_in(data: bytes) -> str:
    """The name of the one node below, which the value of a node gives; "" if that is no node's name."""
    name = data.decode(errors="replace")
    return name if name.isascii() and name.isalnum() else ""
