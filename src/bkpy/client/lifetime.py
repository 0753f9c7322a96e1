"""What a client, a writer and a reader have in common: they belong to one process, and some are to be closed."""

from __future__ import annotations

import warnings
from typing import Any, NoReturn


class OfThisProcess:
    """Refuses to be pickled: connections can't be sent to another process."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} can't be pickled, its connections are of this process: "
            "send the cluster's URI and the ledger's id, and connect there"
        )


def warn_unclosed(what: str, source: Any, *, stacklevel: int = 1) -> None:
    """A `ResourceWarning` that this was not closed."""
    warnings.warn(what, ResourceWarning, stacklevel=stacklevel + 1, source=source)
