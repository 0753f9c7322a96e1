"""The value of a bookie's cookie in the metadata store: id, address, cluster, and the storage's own cookie in it."""

from __future__ import annotations

import json

from bkpy.errors import BookKeeperError
from bkpy.stored_json import parsed


def encode_cookie(bookie_id: str, address: str, instance_id: str, storage: bytes) -> bytes:
    """The value; `storage` is the cookie that the directories have."""
    value = {
        "bookie_id": bookie_id,
        "address": address,
        "instance_id": instance_id,
        "storage": parsed(storage),
    }
    return json.dumps(value, indent=1, sort_keys=True).encode()


def with_storage(cookie: bytes, storage: bytes) -> bytes:
    """The value with another cookie of the directories."""
    return json.dumps({**parsed(cookie), "storage": parsed(storage)}, indent=1, sort_keys=True).encode()


def storage_part(cookie: bytes) -> bytes:
    """The cookie that the directories should have."""
    try:
        return json.dumps(parsed(cookie)["storage"], sort_keys=True).encode()
    except (ValueError, KeyError, TypeError) as e:
        raise BookKeeperError(f"the bookie's cookie in the metadata store is unreadable: {e!r}") from e
