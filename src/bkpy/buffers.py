"""What bytes come in."""

from __future__ import annotations

Bytes = bytes | bytearray | memoryview
