"""A BookKeeper cluster's LAYOUT: where its ledgers are, and where new ids come from.

    2<newline><class of the ledger manager's factory>:<version>      format version 1 has the factory's short name

The default is hierarchical: ids below 2**31 - 1 have nodes of 2, 4 and 4 digits, others of 3, 4, 4, 4 and 4. New ids
are sequence numbers below `idgen`, then `high << 32 | sequence` with the sequence below `idgen-long/HOB-<high>`; the
first high is 1. bkpy's own LAYOUT begins with a brace.

Invariant: a generator never makes a counter with a `high` that it knows to have been used.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, assert_never

from bkpy.errors import ConfigError, CorruptDataError, MetadataUnavailableError, UnsupportedVersionError
from bkpy.metadata.ledgers.layout import FLAT, HIERARCHICAL, LONG_HIERARCHICAL, Layout, NewId
from bkpy.metadata.store.outcome import Done, Exists, Missing, NotDone, Superseded, Unknown
from bkpy.metadata.store.resolve import Answer, attempt, children_if_there, create_certainly, ensure_path, take_number
from bkpy.metadata.store.store import Create

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bkpy.metadata.store.store import MetadataStore

_LAYOUT: Final = re.compile(r"([0-9]{1,9})\n([\w.$]+):([0-9]{1,9})\s*", re.ASCII)
_FORMAT_VERSION: Final = 2
_SHORT_END: Final = 2**31 - 1  # the first id that isn't short
_HIGH_BITS: Final = 32
_HIGH_MAX: Final = 2**31 - 1
_HIGH_PREFIX: Final = "HOB-"

SHORT_IDS: Final = "idgen"
LONG_IDS: Final = "idgen-long"

HYBRID: Final = Layout(
    "bookkeeper-hierarchical",
    LONG_HIERARCHICAL.widths,
    (SHORT_IDS, LONG_IDS),
    long_ids=True,
    lower=HIERARCHICAL,
    first_id=_SHORT_END,
)
NEW_LAYOUT: Final = b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"

# By the name of the factory's class, without its package, and by the short names of format version 1.
_LAYOUTS: Final = {
    "HierarchicalLedgerManagerFactory": HYBRID,
    "PulsarLedgerManagerFactory": HYBRID,
    "LegacyHierarchicalLedgerManagerFactory": HIERARCHICAL,
    "LongHierarchicalLedgerManagerFactory": LONG_HIERARCHICAL,
    "FlatLedgerManagerFactory": FLAT,
    "hierarchical": HYBRID,
    "longhierarchical": LONG_HIERARCHICAL,
    "flat": FLAT,
}


def is_bookkeeper_layout(stored: bytes) -> bool:
    """Whether a cluster's LAYOUT is of Apache BookKeeper."""
    return stored[:1].isdigit()


def decode_layout(stored: bytes, path: str) -> Layout:
    """The layout of a BookKeeper cluster; `path` is that of the node.

    Raises `CorruptDataError`, `UnsupportedVersionError`, and `ConfigError` for a layout that bkpy doesn't know.
    """
    found = _LAYOUT.fullmatch(stored.decode("utf-8", "replace"))
    if found is None:
        raise CorruptDataError(f"{path} is unreadable: {stored[:80]!r}", path=path)
    version, factory = int(found[1]), found[2]
    if not 1 <= version <= _FORMAT_VERSION:
        raise UnsupportedVersionError(
            f"{path} has format version {version}, this bkpy reads up to {_FORMAT_VERSION}: upgrade it"
        )
    name = factory.rpartition(".")[2]
    if name not in _LAYOUTS:
        raise ConfigError(f"{path} names the ledger manager {factory}, which bkpy doesn't know")
    return _LAYOUTS[name]


class BookKeeperIdGenerator:
    """Ledger ids of a BookKeeper cluster, from ephemeral sequential nodes."""

    def __init__(self, store: MetadataStore, root: str, layout: Layout, *, attempts_max: int) -> None:
        self._store = store
        self._short = root if layout is FLAT else f"{root}/{SHORT_IDS}"
        self._long = f"{root}/{LONG_IDS}"
        self._long_ids = layout.long_ids
        self._attempts_max = attempts_max
        self._high = 0  # of the counter in use; 0: none is known
        self._calls = 0

    async def next(self) -> NewId | NotDone:
        """A new id; its node is to be deleted together with the creation of the ledger."""
        if self._high:
            taken = await self._take_long(self._high)
            return taken or await self._take_newer()
        highs = await self._highs() if self._long_ids else []
        if isinstance(highs, NotDone):
            return highs
        if not highs:
            short = await self._take_short()
            if isinstance(short, NotDone) or short.ledger_id in range(_SHORT_END):
                return short
            if not self._long_ids:
                return self._exhausted()
        return await self._take_newer()

    async def _take_short(self) -> NewId | NotDone:
        taken = await self._take(self._short)
        if isinstance(taken, Missing):  # no ledger has ever been made here
            made = await ensure_path(self._store, self._short, attempts_max=self._attempts_max)
            if isinstance(made, NotDone):
                return made
            taken = await self._take(self._short)
        if isinstance(taken, Missing):
            return NotDone(MetadataUnavailableError(f"somebody deletes {taken.node} at the same time"))
        return taken if isinstance(taken, NotDone) else NewId(*taken)

    async def _take_newer(self) -> NewId | NotDone:
        """An id of the newest counter, if that is newer than the one in use, or else of a new one.

        BookKeeper's clients delete old counters. One that was made again would give out the same ids again.
        """
        high = self._high
        while high < _HIGH_MAX:
            highs = await self._highs()
            if isinstance(highs, NotDone):
                return highs
            newest = max(highs, default=0)
            if newest <= high:
                newest = high + 1
                made = await self._begin(newest)
                if isinstance(made, NotDone):
                    return made
            taken = await self._take_long(newest)
            if taken is not None:
                return taken
            high = newest
        return self._exhausted()

    async def _take_long(self, high: int) -> NewId | NotDone | None:
        """An id of this counter; None if it is full or gone."""
        taken = await self._take(self._high_node(high))
        if isinstance(taken, NotDone):
            return taken
        if isinstance(taken, Missing) or taken[0] not in range(_SHORT_END):
            return None
        self._high = high
        return NewId(high << _HIGH_BITS | taken[0], taken[1])

    async def _take(self, parent: str) -> tuple[int, str] | Missing | NotDone:
        self._calls += 1
        token = f"{self._store.session_id:x}-{self._calls}"
        return await take_number(self._store, parent, token, attempts_max=self._attempts_max)

    async def _highs(self) -> list[int] | NotDone:
        names = await attempt(children_if_there(self._store, self._long))
        if isinstance(names, Answer):
            return _highs_in(names.value)
        if isinstance(names, NotDone | Unknown):
            return NotDone(names.error)
        raise names  # what isn't there has no children

    async def _begin(self, high: int) -> Done | NotDone:
        """The parent of the ids with `high`, made by whomever."""
        above = await ensure_path(self._store, self._long, attempts_max=self._attempts_max)
        if isinstance(above, NotDone):
            return above
        create = Create(self._high_node(high), b"")
        outcome = await create_certainly(self._store, create, attempts_max=self._attempts_max)
        match outcome:
            case Done() | Exists() | Superseded():
                return Done(0)
            case Missing():
                return NotDone(MetadataUnavailableError(f"somebody deletes {outcome.node} at the same time"))
            case NotDone() | Unknown():
                return NotDone(outcome.error)  # the next call begins here again
            case _:
                assert_never(outcome)

    def _high_node(self, high: int) -> str:
        return f"{self._long}/{_HIGH_PREFIX}{high:010d}"

    def _exhausted(self) -> NotDone:
        return NotDone(MetadataUnavailableError("the cluster's layout has no ledger ids left", retriable=False))


def _highs_in(names: Sequence[str]) -> list[int]:
    numbers = (name.removeprefix(_HIGH_PREFIX) for name in names if name.startswith(_HIGH_PREFIX))
    return [int(number) for number in numbers if number.isascii() and number.isdecimal()]
