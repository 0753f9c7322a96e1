"""How ledger ids become node paths, how they are listed, and where new ones come from.

Invariants: an id is given out at most once in the life of a cluster; a listing visits one partition of at most 10,000
children at a time (the flat layout has a single partition) and yields ids in ascending order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from bkpy.errors import ConfigError, MetadataUnavailableError, NoSuchClusterError, UnauthorizedError
from bkpy.metadata.store.outcome import Done, Exists, Missing, NotDone, Superseded, Unknown
from bkpy.metadata.store.resolve import ID_PREFIX, Answer, attempt, children_if_there, create_certainly, take_number
from bkpy.metadata.store.store import Create, MetadataStore
from bkpy.protocol.ledger.ledger_metadata import LEDGER_ID_MAX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

# A sequence number is a signed 32-bit counter of ZooKeeper's.
SEQUENCE_BITS = 31
_HIGH_MAX = LEDGER_ID_MAX >> SEQUENCE_BITS


@dataclass(frozen=True)
class Layout:
    """Decimal digits of the id, split into `widths`: one node level each, the last one prefixed with an L.

    Ids below `first_id` are in the layout `lower`, under the same root.
    """

    name: str
    widths: tuple[int, ...]
    id_nodes: tuple[str, ...]  # nodes under the root, parents first, that new ids come from
    long_ids: bool = False
    lower: Layout | None = None
    first_id: int = 0

    def path_of(self, root: str, ledger_id: int) -> str:
        """The ledger's node. Raises `ConfigError` for an id that the layout has no room for."""
        if self.lower is not None and ledger_id < self.first_id:
            return self.lower.path_of(root, ledger_id)
        digits = f"{ledger_id:0{sum(self.widths)}d}"
        if not 0 <= ledger_id <= LEDGER_ID_MAX or len(digits) > sum(self.widths):
            raise ConfigError(f"the {self.name} layout has no ledger id {ledger_id}")
        parts = []
        for width in self.widths:
            parts.append(digits[:width])
            digits = digits[width:]
        return "/".join([root, *parts[:-1], f"L{parts[-1]}"])

    def id_of(self, path: str) -> int | None:
        """The ledger whose node is at this path below the root, without a slash in front; None for other nodes."""
        digits = path.replace("/", "").replace("L", "")
        if not digits.isascii() or not digits.isdecimal() or len(digits) > sum(self.widths):
            return None
        ledger_id = int(digits)
        return ledger_id if ledger_id <= LEDGER_ID_MAX and self.path_of("", ledger_id)[1:] == path else None

    async def partitions(
        self,
        store: MetadataStore,
        root: str,
        first: int = 0,
        last: int = LEDGER_ID_MAX,
        *,
        skipped: Callable[[str, UnauthorizedError], None] | None = None,
    ) -> AsyncIterator[list[int]]:
        """The ledger ids of all partitions that have room for one of first..last, ascending, one list for each.

        A partition that vanishes meanwhile is empty. One that may not be listed raises `UnauthorizedError`, or is
        reported to `skipped` and left out.
        """
        if self.lower is not None and first < self.first_id:
            below = min(last, self.first_id - 1)
            async for ids in self.lower.partitions(store, root, first, below, skipped=skipped):
                yield [ledger_id for ledger_id in ids if ledger_id < self.first_id]
        if last >= self.first_id:
            async for ids in self._walk(store, root, 0, 0, range(max(first, self.first_id), last + 1), skipped):
                yield [ledger_id for ledger_id in ids if ledger_id >= self.first_id] if self.first_id else ids

    async def _walk(
        self,
        store: MetadataStore,
        node: str,
        level: int,
        prefix: int,
        wanted: range,
        skipped: Callable[[str, UnauthorizedError], None] | None,
    ) -> AsyncIterator[list[int]]:
        width = self.widths[level]
        last = level == len(self.widths) - 1
        pattern = re.compile(rf"{'L' if last else ''}([0-9]{{{width}}})")
        try:
            names = await children_if_there(store, node)
        except UnauthorizedError as error:
            if skipped is None:
                raise
            skipped(node, error)
            return
        found = [(name, int(match[1])) for name in names if (match := pattern.fullmatch(name))]
        found.sort(key=lambda item: item[1])
        base = prefix * 10**width
        if last:
            yield [base + number for _, number in found]
            return
        below = 10 ** sum(self.widths[level + 1 :])
        for name, number in found:
            lowest = (base + number) * below
            if lowest >= wanted.stop or lowest + below <= wanted.start:
                continue
            async for ids in self._walk(store, f"{node}/{name}", level + 1, base + number, wanted, skipped):
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


async def next_id(store: MetadataStore, root: str, layout: Layout) -> int:
    """The id that is given out next: all that were given out are below it.

    As the server knows it, which may lag behind. Raises `NoNode` where there is no cluster of that layout.
    """
    node = f"{root}/{layout.id_nodes[0]}"
    if not layout.long_ids:
        return await store.children_made(node)
    high = _newest_high(await store.children(node))
    return (high << SEQUENCE_BITS) + await store.children_made(_high_node(node, high))


async def held_ids(store: MetadataStore, root: str, layout: Layout) -> set[int]:
    """The ids that were given out and whose ledgers may still be created: their nodes are there.

    As the server knows it, which may lag behind. Raises `NoNode` where there is no cluster of that layout.
    """
    node = f"{root}/{layout.id_nodes[0]}"
    if not layout.long_ids:
        return set(_numbers(await store.children(node)))
    found: set[int] = set()
    for name in await store.children(node):
        if name.startswith("HOB-"):
            high = int(name.removeprefix("HOB-")) << SEQUENCE_BITS
            found.update(high | number for number in _numbers(await store.children(f"{node}/{name}")))
    return found


def _numbers(names: Sequence[str]) -> Iterator[int]:
    for name in names:
        number = name.removeprefix(ID_PREFIX)
        if name != number and number.isdecimal():
            yield int(number)


async def id_is_held(store: MetadataStore, root: str, layout: Layout, ledger_id: int) -> bool:
    """Whether somebody has drawn the id and may still create its ledger: that deletes the node asked for here."""
    node = f"{root}/{layout.id_nodes[0]}"
    if layout.long_ids:
        node = _high_node(node, ledger_id >> SEQUENCE_BITS)
        ledger_id &= (1 << SEQUENCE_BITS) - 1
    return await store.exists(f"{node}/{ID_PREFIX}{ledger_id:010d}")


def _high_node(node: str, high: int) -> str:
    """The parent of the ids with `high`, below the node that long ids come from."""
    return f"{node}/HOB-{high:010d}"


def _newest_high(names: Sequence[str]) -> int:
    return max(int(name.removeprefix("HOB-")) for name in names if name.startswith("HOB-"))


@dataclass(frozen=True, slots=True)
class NewId:
    """An id that nobody else has, and the node that holds it until its ledger is there or the session ends."""

    ledger_id: int
    node: str


class IdGenerator:
    """Ledger ids from ephemeral sequential nodes.

    The node of an id is ephemeral so that an id whose ledger is never created leaves nothing behind. Short ids are the
    sequence number itself; a long id is `high << 31 | sequence`, with one parent node `HOB-<high>` for each value of
    `high`, the next one taken into use when a counter has overflowed.
    """

    def __init__(self, store: MetadataStore, root: str, layout: Layout, *, attempts_max: int) -> None:
        self._store = store
        self._root = root
        self._layout = layout
        self._attempts_max = attempts_max
        self._high = -1  # of the counter in use; -1: none is known
        self._calls = 0

    async def next(self) -> NewId | NotDone:
        """A new id; its node is to be deleted together with the creation of the ledger."""
        if not self._layout.long_ids:
            taken = await self._take(f"{self._root}/{self._layout.id_nodes[0]}")
            if isinstance(taken, NotDone):
                return taken
            return NewId(*taken) if taken[0] >= 0 else self._exhausted()
        if self._high < 0:
            newest = await self._newest_high()
            if isinstance(newest, NotDone):
                return newest
            self._high = max(self._high, newest)
        high = self._high  # another call may take the next one into use meanwhile
        while high <= _HIGH_MAX:
            taken = await self._take(self._high_node(high))
            if isinstance(taken, NotDone):
                return taken
            sequence, node = taken
            if sequence >= 0:
                return NewId(high << SEQUENCE_BITS | sequence, node)
            begun = await self._begin(high + 1)
            if isinstance(begun, NotDone):
                return begun
            high += 1
            self._high = max(self._high, high)
        return self._exhausted()

    async def _take(self, parent: str) -> tuple[int, str] | NotDone:
        self._calls += 1
        token = f"{self._store.session_id:x}-{self._calls}"
        taken = await take_number(self._store, parent, token, attempts_max=self._attempts_max)
        return self._no_cluster() if isinstance(taken, Missing) else taken

    async def _begin(self, high: int) -> Done | NotDone:
        """The parent of the ids with `high`, made by whomever."""
        create = Create(self._high_node(high), b"")
        outcome = await create_certainly(self._store, create, attempts_max=self._attempts_max)
        match outcome:
            case Done() | Exists() | Superseded():
                return Done(0)
            case Missing():
                return self._no_cluster()
            case NotDone() | Unknown():
                return NotDone(outcome.error)  # the next call begins here again
            case _:
                assert_never(outcome)

    def _high_node(self, high: int) -> str:
        return _high_node(f"{self._root}/{self._layout.id_nodes[0]}", high)

    async def _newest_high(self) -> int | NotDone:
        names = await attempt(self._store.children(f"{self._root}/{self._layout.id_nodes[0]}"))
        if isinstance(names, Answer):
            return _newest_high(names.value)
        return NotDone(names.error) if isinstance(names, NotDone | Unknown) else self._no_cluster()

    def _no_cluster(self) -> NotDone:
        return NotDone(NoSuchClusterError(f"there is no cluster under {self._root} any more"))

    def _exhausted(self) -> NotDone:
        return NotDone(
            MetadataUnavailableError(f"the {self._layout.name} layout has no ledger ids left", retriable=False)
        )
