"""The golden bytes of Apache BookKeeper, by name."""

from __future__ import annotations

from pathlib import Path


def read(file_name: str) -> dict[str, bytes]:
    """The lines of a file: a name, and bytes in hexadecimal digits."""
    lines = (Path(__file__).parent / file_name).read_text(encoding="ascii").splitlines()
    return {name: bytes.fromhex(digits) for name, _, digits in (line.rpartition(" ") for line in lines)}
