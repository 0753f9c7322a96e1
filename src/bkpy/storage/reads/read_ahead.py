"""Recognizes sequential readers, and loads the blocks that they will ask for next while nobody else reads.

Invariants: nothing is loaded while a read waits for the worker, and a read that comes meanwhile waits for one block at
most; what is loaded ahead is bounded for each reader, and goes into the cache only; errors are dropped: the read that
needs the block meets them again.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from bkpy.errors import CorruptDataError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from bkpy.runtime.interfaces import Spawn
    from bkpy.storage.index.index import BlockRow
    from bkpy.storage.reads.block_cache import BlockCache


class _Scan(NamedTuple):
    first: int
    last: int
    step: int  # from the first entry of the read before, 0 if there was none
    steps: int  # in a row


class Scans:
    """Recognizes readers that go through a ledger in steps; remembers the last read of up to `ledgers_max` ledgers.

    A reader asks several bookies in turn, so the steps that one of them sees leave entries out. A step is known by its
    likeness with the one before, or by going on right behind it. Nothing is predicted before two steps in a row.
    """

    def __init__(self, ledgers_max: int) -> None:
        self._ledgers_max = ledgers_max
        self._scans: OrderedDict[int, _Scan] = OrderedDict()

    def began(self, ledger_id: int, first: int, last: int) -> bool:
        """A read begins; whether it goes on from the one before."""
        before = self._scans.get(ledger_id)
        if before is not None and before.first == first:
            return before.steps > 0  # somebody asks once more
        step = first - before.first if before is not None else 0
        goes_on = before is not None and step > 0 and (first == before.last + 1 or step == before.step)
        steps = before.steps + 1 if goes_on and before is not None else 0
        self._scans[ledger_id] = _Scan(first, last, step, steps)
        self._scans.move_to_end(ledger_id)
        if len(self._scans) > self._ledgers_max:
            self._scans.popitem(last=False)
        return goes_on

    def ended(self, ledger_id: int, first: int, examined_to: int) -> tuple[int, int] | None:
        """A read has got to `examined_to`: the range that will be read next, None if that isn't known."""
        scan = self._scans.get(ledger_id)
        if scan is None or scan.first != first:
            return None
        self._scans[ledger_id] = scan = scan._replace(last=min(scan.last, examined_to))
        if scan.steps < 2:  # one may be chance
            return None
        return first + scan.step, scan.last + scan.step

    def __len__(self) -> int:
        return len(self._scans)


class ReadAhead:
    """`find(ledger_id, first, last, bytes_max)`: the rows of blocks in that range. `load`: one of them, to the cache.

    `reading`: how many reads use the worker or wait for it; kept by the shard.
    """

    def __init__(
        self,
        cache: BlockCache,
        spawn: Spawn,
        *,
        bytes_max: int,
        ledgers_max: int,
        find: Callable[[int, int, int, int], Awaitable[Sequence[BlockRow]]],
        load: Callable[[int, BlockRow], Awaitable[None]],
    ) -> None:
        self.reading = 0
        self.blocks = 0  # loaded so far
        self._cache = cache
        self._spawn = spawn
        self._bytes_max = min(bytes_max, cache.bytes_max // 2)  # the reader's last blocks are in it, too
        self._ledgers_max = ledgers_max
        self._find = find
        self._load = load
        self._scans = Scans(ledgers_max)
        self._wanted: OrderedDict[int, tuple[int, int]] = OrderedDict()  # ranges by ledger
        self._running = False

    def began(self, ledger_id: int, first: int, last: int) -> bool:
        """A read begins; whether it goes on from the one before."""
        return self._scans.began(ledger_id, first, last)

    def ended(self, ledger_id: int, first: int, examined_to: int) -> None:
        """A read is done. Load what comes next, if that is known and when there is time."""
        following = self._scans.ended(ledger_id, first, examined_to)
        if following is None or not self._bytes_max:
            return
        self._wanted[ledger_id] = following
        if len(self._wanted) > self._ledgers_max:
            self._wanted.popitem(last=False)
        if not self._running:
            self._running = True
            self._spawn(self._run(), name="read-ahead")

    async def _run(self) -> None:
        try:
            while self._wanted and not self.reading:
                ledger_id, (first, last) = self._wanted.popitem()  # the latest: the others may have been read by now
                await self._ahead(ledger_id, first, last)
        finally:
            self._wanted.clear()
            self._running = False

    async def _ahead(self, ledger_id: int, first: int, last: int) -> None:
        used = 0
        with contextlib.suppress(OSError, CorruptDataError):
            for row in await self._find(ledger_id, first, last, self._bytes_max):
                used += row.place.length
                if self.reading or used > self._bytes_max:
                    return
                if row.place not in self._cache:
                    await self._load(ledger_id, row)
                    self.blocks += 1
