"""Access control lists of the nodes that this process creates in ZooKeeper: only clients with one of its passwords.

ZooKeeper's scheme `auth` would list every identity of the session, including the name in its certificate: a client with
that certificate would then need no password. So the lists name the passwords explicitly.
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
    """The access control list for clients with one of these credentials, (scheme, credential)."""
    entries = [_all(_DIGEST, _digest(secret)) for scheme, secret in auth if scheme == _DIGEST]
    if len(entries) < len(auth) or not entries:  # only the server understands the other schemes
        entries.append(protocol.AUTHED_UNRESTRICTED)
    return entries


def _all(scheme: str, name: str) -> Any:
    return ACL.make(scheme=scheme, id=name, read=True, write=True, create=True, delete=True, admin=True)


def _digest(secret: bytes) -> str:
    """ZooKeeper's name for a client with this USER:PASSWORD."""
    user = secret.partition(b":")[0].decode(errors="replace")
    return f"{user}:{base64.b64encode(hashlib.sha1(secret).digest()).decode()}"
