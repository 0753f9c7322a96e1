"""Files in errors of the operating system: a write that fails, as on a full disk, names none by itself."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """What is done to this file: an `OSError` that names no file names this one."""
    try:
        yield
    except OSError as e:
        if e.filename is not None or e.errno is None:
            raise
        raise OSError(e.errno, e.strerror, str(path)) from e
