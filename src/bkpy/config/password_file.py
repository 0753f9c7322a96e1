"""A ledger's password in a file, as the command line and Spark take it."""

from __future__ import annotations

from pathlib import Path

from bkpy.errors import ConfigError


def read_password(path: str) -> bytes:
    """All bytes of the file but one line break at its end: LF or CR LF, and a CR alone too. Nothing else is removed.

    `ConfigError` if it can't be read, or holds nothing or whitespace alone: an empty password is none at all, and what
    it was to protect would be open to everybody.
    """
    try:
        password = Path(path).read_bytes().removesuffix(b"\n").removesuffix(b"\r")
    except OSError as e:
        raise ConfigError(f"the password file can't be read: {e.strerror}", path=path) from e
    if not password.strip():
        raise ConfigError("the password file holds no password", path=path)
    return password
