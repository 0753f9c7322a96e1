"""Loads the blocks that a sequential reader will ask for next, while nobody else wants to read.

Invariants: nothing is loaded while a read waits for the worker, and a read that comes meanwhile waits for one block at
most; what is loaded ahead is bounded for each reader, and goes into the cache only; nothing that fails here is told to
anybody, for whoever needs the block finds out by itself.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from typing import TYPE_CHECKING

from bkpy.errors import CorruptDataError
from bkpy.storage.reads.scans import Scans

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from bkpy.runtime.interfaces import Spawn
    from bkpy.storage.index.index import BlockRow
    from bkpy.storage.reads.block_cache import BlockCache


class ReadAhead:
    """`find(ledger_id, first, last, bytes_max)`: the rows of blocks in that range. `load`: one of them, to the cache.

    `reading`: how many reads use the worker or wait for it; kept by whoever reads.
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
        """A read is done. Load what comes next, if that can be told and when there is time."""
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
