"""The findings of a check, and what to do about each."""

from __future__ import annotations

from typing import Final, NamedTuple

RESTORE: Final = "restore the file, or let `bkpy bookie rebuild-index` make a new index"
OTHER_COPIES: Final = (
    "answered as unknown until they are copied here from the ledger's other bookies: soon after a scrub of the running "
    "bookie has found it, or at once by `bkpy bookie integrity --now`"
)
JOURNAL: Final = "restore the file, or start with journal_damage = limbo"
COOKIE: Final = "see `bkpy bookie cookie show`, and restore the right directory or use `bkpy bookie cookie update`"
REBUILD: Final = "`bkpy bookie rebuild-index`"


class Defect(NamedTuple):
    """A finding. `offset` is in bytes, None for the whole file.

    `first` and `last`: the entries of the ledger that it concerns lie between them; None if they aren't known.
    """

    path: str
    offset: int | None
    ledger_id: int | None
    what: str
    remedy: str
    first: int | None = None
    last: int | None = None
