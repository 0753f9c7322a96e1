"""How ledger ids become node paths, how they are listed, and where new ones come from.

Invariants: an id is given out at most once in the life of a cluster; a listing visits one partition of at most 10,000
children at a time (the flat layout has a single partition) and yields ids in ascending order.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

from bkpy.errors import ConfigError, MetadataUnavailableError
from bkpy.metadata.resolve import ATTEMPTS_MAX, children_if_there, create_certainly
from bkpy.metadata.store import Create, MetadataStore, NodeExists
from bkpy.protocol.ledger_metadata import LEDGER_ID_MAX

# A sequence number is a signed 32-bit counter of ZooKeeper's.
SEQUENCE_BITS = 31
_HIGH_MAX = LEDGER_ID_MAX >> SEQUENCE_BITS


@dataclass(frozen=True)
class Layout:
    """Decimal digits of the id, split into `widths`: one node level each, the last one prefixed with an L."""

    name: str
    widths: tuple[int, ...]
    id_nodes: tuple[str, ...]  # nodes under the root, parents first, that new ids come from
    long_ids: bool = False

    def path_of(self, root: str, ledger_id: int) -> str:
        """The ledger's node. Raises `ConfigError` for an id that the layout has no room for."""
        digits = f"{ledger_id:0{sum(self.widths)}d}"
        if not 0 <= ledger_id <= LEDGER_ID_MAX or len(digits) > sum(self.widths):
            raise ConfigError(f"the {self.name} layout has no ledger id {ledger_id}")
        parts = []
        for width in self.widths:
            parts.append(digits[:width])
            digits = digits[width:]
        return "/".join([root, *parts[:-1], f"L{parts[-1]}"])

    async def partitions(self, store: MetadataStore, root: str) -> AsyncIterator[list[int]]:
        """All ledger ids, ascending, one list for each partition; a partition that vanishes meanwhile is empty."""
        async for ids in self._walk(store, root, 0, 0):
            yield ids

    async def _walk(self, store: MetadataStore, node: str, level: int, prefix: int) -> AsyncIterator[list[int]]:
        width = self.widths[level]
        last = level == len(self.widths) - 1
        pattern = re.compile(rf"{'L' if last else ''}([0-9]{{{width}}})")
        found = [
            (name, int(match[1])) for name in await children_if_there(store, node) if (match := pattern.fullmatch(name))
        ]
        found.sort(key=lambda item: item[1])
        base = prefix * 10**width
        if last:
            yield [base + number for _, number in found]
            return
        for name, number in found:
            async for ids in self._walk(store, f"{node}/{name}", level + 1, base + number):
                yield ids


FLAT = Layout("flat", (10,), ("idgen",))
HIERARCHICAL = Layout("hierarchical", (2, 4, 4), ("idgen",))
LONG_HIERARCHICAL = Layout(
    "long-hierarchical", (3, 4, 4, 4, 4), ("idgen-long", "idgen-long/HOB-0000000000"), long_ids=True
)

LAYOUTS = {layout.name: layout for layout in (FLAT, HIERARCHICAL, LONG_HIERARCHICAL)}


def layout_named(name: str) -> Layout:
    """The layout of that name. Raises `ConfigError`."""
    if name not in LAYOUTS:
        raise ConfigError(f"{name!r} is no ledger layout, expected one of {', '.join(LAYOUTS)}")
    return LAYOUTS[name]


class IdGenerator:
    """Ledger ids from ephemeral sequential nodes.

    The node of an id is ephemeral so that an id whose ledger is never created leaves nothing behind. Short ids are the
    sequence number itself; a long id is `high << 31 | sequence`, with one parent node `HOB-<high>` for each value of
    `high`, the next one taken into use when a counter has overflowed.
    """

    def __init__(self, store: MetadataStore, root: str, layout: Layout) -> None:
        self._store = store
        self._root = root
        self._layout = layout
        self._high: int | None = None

    async def next(self) -> tuple[int, str]:
        """A new id, and the node that holds it, to be deleted together with the creation of the ledger."""
        if not self._layout.long_ids:
            sequence, node = await self._sequence(f"{self._root}/{self._layout.id_nodes[0]}")
            if sequence < 0:
                raise self._exhausted()
            return sequence, node
        if self._high is None:
            self._high = await self._newest_high()
        while self._high <= _HIGH_MAX:
            sequence, node = await self._sequence(self._high_node(self._high))
            if sequence >= 0:
                return self._high << SEQUENCE_BITS | sequence, node
            self._high += 1
            try:
                await create_certainly(self._store, Create(self._high_node(self._high), b""))
            except NodeExists:
                continue  # another client came first
        raise self._exhausted()

    def _high_node(self, high: int) -> str:
        return f"{self._root}/{self._layout.id_nodes[0]}/HOB-{high:010d}"

    async def _newest_high(self) -> int:
        names = await self._store.children(f"{self._root}/{self._layout.id_nodes[0]}")
        return max(int(name.removeprefix("HOB-")) for name in names if name.startswith("HOB-"))

    async def _sequence(self, parent: str) -> tuple[int, str]:
        """The next number under `parent`. One whose creation got lost is skipped; its node goes with the session."""
        for _ in range(ATTEMPTS_MAX):
            try:
                node = await self._store.create(f"{parent}/ID-", b"", ephemeral=True, sequential=True)
            except MetadataUnavailableError as error:
                if not error.outcome_unknown:
                    raise
            else:
                return int(node.removeprefix(f"{parent}/ID-")), node
        raise MetadataUnavailableError(
            f"the connection was lost in {ATTEMPTS_MAX} attempts in a row to get a ledger id"
        )

    def _exhausted(self) -> MetadataUnavailableError:
        return MetadataUnavailableError(f"the {self._layout.name} layout has no ledger ids left", retriable=False)
