"""What clients, writers and readers share: they can't leave their process, and warn if they were not closed."""

from __future__ import annotations

import warnings
from typing import Any, NoReturn


def refuse_pickling(it: object) -> NoReturn:
    """The `__reduce__` of an object with connections, which can't be sent to another process."""
    raise TypeError(
        f"a {type(it).__name__} can't be pickled, its connections are of this process: "
        "send the cluster's URI and the ledger's id, and connect there"
    )


def warn_unclosed(what: str, source: Any, *, stacklevel: int = 1) -> None:
    """Emit a `ResourceWarning` about an object that was not closed."""
    warnings.warn(what, ResourceWarning, stacklevel=stacklevel + 1, source=source)
