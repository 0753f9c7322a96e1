"""Compressed lines of JSON with a checksum of all of them: what backups and salvages write."""

from __future__ import annotations

import hashlib
import json
import zlib
from typing import Any, Final

_GZIP: Final = 31  # zlib's wbits
_LEVEL: Final = 6


class SealedLines:
    """Packs lines. The caller writes what `take` and `finish` return, one behind the other."""

    def __init__(self) -> None:
        self._packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
        self._sum = hashlib.sha256()
        self._waiting = bytearray()

    @property
    def checksum(self) -> str:
        """SHA-256 of all lines so far."""
        return self._sum.hexdigest()

    @property
    def waiting_bytes(self) -> int:
        """Bytes of lines that `take` would pack."""
        return len(self._waiting)

    def add(self, value: Any) -> None:
        """One more line."""
        line = json.dumps(value, separators=(",", ":")).encode() + b"\n"
        self._sum.update(line)
        self._waiting += line

    def take(self) -> bytes:
        """What there is to write by now. Takes a while."""
        waiting, self._waiting = self._waiting, bytearray()
        return self._packer.compress(waiting)

    def finish(self) -> bytes:
        """The rest; nothing may follow."""
        return self.take() + self._packer.flush()
