"""Small JSON files with a checksum, replaced as a whole: cookies, and the state of a scrub.

Invariant: a reader finds the old content or the new one, whenever the machine stops. Everything here blocks.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from crc32c import crc32c

from bkpy.stored_json import parsed

if TYPE_CHECKING:
    from bkpy.runtime.interfaces import Files

_CHECKSUM = "crc32c"


def seal_json(content: dict[str, Any]) -> bytes:
    """The content as it is stored, with its checksum."""
    return json.dumps({**content, _CHECKSUM: _checksum(content)}, indent=2).encode() + b"\n"


def unseal_json(data: bytes) -> dict[str, Any]:
    """The content that was stored; `ValueError`, `KeyError`, `TypeError` or `AttributeError` for anything else."""
    content = parsed(data)
    stored = content.pop(_CHECKSUM)
    if stored != _checksum(content):
        raise ValueError("its checksum is wrong")
    return content  # type: ignore[no-any-return]


def _checksum(content: dict[str, Any]) -> int:
    return crc32c(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def replace_file(files: Files, directory: str, name: str, data: bytes) -> None:
    """Replace the file of that name in the directory atomically and durably."""
    path = f"{directory}/{name}"
    temporary = f"{path}.new"
    if files.exists(temporary):
        files.unlink(temporary)
    file = files.open(temporary, create=True)
    try:
        file.pwritev([data], 0)
        file.fdatasync()
    finally:
        file.close()
    files.rename(temporary, path)
    files.sync_dir(directory)
