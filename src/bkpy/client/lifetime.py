"""What a client, a writer and a reader have in common: they belong to one process, and some are to be closed."""

from __future__ import annotations

import warnings
from typing import Any, NoReturn


def refuse_pickling(it: object) -> NoReturn:
    """As `__reduce__` of what has connections, which can't be sent to another process."""
    raise TypeError(
        f"a {type(it).__name__} can't be pickled, its connections are of this process: "
        "send the cluster's URI and the ledger's id, and connect there"
    )


def warn_unclosed(what: str, source: Any, *, stacklevel: int = 1) -> None:
    """A `ResourceWarning` that this was not closed."""
    warnings.warn(what, ResourceWarning, stacklevel=stacklevel + 1, source=source)
