"""Who may touch what this side creates in ZooKeeper: whoever has one of its passwords, and nobody else.

ZooKeeper's scheme `auth` would list all that a session has shown, the name in its certificate too: a bearer of that
certificate would need no password for the node then. So passwords are listed as such.
"""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Any

from aiozk import ACL, protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

_DIGEST = "digest"


def owners(auth: Sequence[tuple[str, bytes]]) -> list[Any]:
    """The access control list for those who present one of these credentials, (scheme, credential)."""
    entries = [_all(_DIGEST, _digest(secret)) for scheme, secret in auth if scheme == _DIGEST]
    if len(entries) < len(auth) or not entries:  # what others mean by theirs, the server alone knows
        entries.append(protocol.AUTHED_UNRESTRICTED)
    return entries


def _all(scheme: str, name: str) -> Any:
    return ACL.make(scheme=scheme, id=name, read=True, write=True, create=True, delete=True, admin=True)


def _digest(secret: bytes) -> str:
    """What ZooKeeper calls whoever presents this USER:PASSWORD."""
    user = secret.partition(b":")[0].decode(errors="replace")
    return f"{user}:{base64.b64encode(hashlib.sha1(secret).digest()).decode()}"
