"""Reads passwords from files: a ledger's, for the command line and Spark, and the one for ZooKeeper."""

from __future__ import annotations

from pathlib import Path

from bkpy.config.base import check_user_and_password
from bkpy.errors import ConfigError

PASSWORD_BYTES_MAX = 65536  # of every password: a longer file is another one, or a device, named by mistake


def read_password(path: str) -> bytes:
    """All bytes of the file but one line break at its end: LF or CR LF, and a CR alone too. Nothing else is removed.

    `ConfigError` if it can't be read, has more than `PASSWORD_BYTES_MAX`, or holds nothing or whitespace alone: an
    empty password protects nothing, and would open the ledger to everybody.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(PASSWORD_BYTES_MAX + 3)  # with a line break, and one that is too many
    except OSError as e:
        raise ConfigError(f"the password file can't be read: {e.strerror}", path=path) from e
    password = content.removesuffix(b"\n").removesuffix(b"\r")
    if len(password) > PASSWORD_BYTES_MAX:
        raise ConfigError(f"the password file has over {PASSWORD_BYTES_MAX} bytes", path=path)
    if not password.strip():
        raise ConfigError("the password file holds no password", path=path)
    return password


def read_user_and_password(path: str) -> bytes:
    """USER:PASSWORD from a file, as `read_password` reads it. `ConfigError` if it holds anything else."""
    content = read_password(path)
    try:
        check_user_and_password(content.decode())
    except ValueError:
        raise ConfigError("the file doesn't hold USER:PASSWORD", path=path) from None
    return content
