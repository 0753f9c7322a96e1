"""Cookies: what the cluster remembers about a bookie, to recognise its directories when it comes back.

The value is the bookie's own JSON; here only its presence, its version and the three fields that others rely on matter.
"""

from __future__ import annotations

import json
from typing import Any

from bkpy.errors import ConfigError
from bkpy.metadata import paths
from bkpy.metadata.resolve import children_if_there, create_certainly, delete_certainly, put_certainly, read_if_there
from bkpy.metadata.store import Create, MetadataStore

REQUIRED_FIELDS = ("bookie_id", "address", "instance_id")


async def read_cookie(store: MetadataStore, root: str, bookie_id: str) -> tuple[bytes, int] | None:
    """The bookie's cookie and its version, None if it has none."""
    return await read_if_there(store, paths.cookie(root, bookie_id))


async def write_cookie(
    store: MetadataStore, root: str, bookie_id: str, value: bytes, expected_version: int | None
) -> int:
    """Write the cookie and return its version; `expected_version` None means that there must be none yet.

    Raises `ConfigError` for a value that is no cookie of this bookie, `NodeExists`, `BadVersion` or `NoNode`.
    """
    fields = cookie_fields(value)
    if fields["bookie_id"] != bookie_id:
        raise ConfigError(f"the cookie is for {fields['bookie_id']!r}", bookie=bookie_id)
    path = paths.cookie(root, bookie_id)
    if expected_version is None:
        await create_certainly(store, Create(path, value))
        return 0
    return await put_certainly(store, path, value, expected_version)


async def delete_cookie(store: MetadataStore, root: str, bookie_id: str, expected_version: int | None = None) -> None:
    """Forget the bookie. Raises `NoNode` and `BadVersion`."""
    await delete_certainly(store, paths.cookie(root, bookie_id), expected_version)


async def list_cookies(store: MetadataStore, root: str) -> list[str]:
    """The ids of all bookies that have a cookie, sorted."""
    return list(await children_if_there(store, f"{root}/{paths.COOKIES}"))


def cookie_fields(value: bytes) -> dict[str, Any]:
    """The cookie's fields. Raises `ConfigError` when one that others rely on is missing."""
    try:
        fields = json.loads(value)
    except ValueError as error:
        raise ConfigError(f"a cookie is a JSON object: {error}") from error
    missing = [
        name for name in REQUIRED_FIELDS if not isinstance(fields, dict) or not isinstance(fields.get(name), str)
    ]
    if missing:
        raise ConfigError(f"a cookie needs {', '.join(missing)}")
    assert isinstance(fields, dict)
    return fields
