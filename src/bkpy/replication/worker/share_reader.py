"""Reads the entries that one bookie of a fragment has to hold, from the others, verified and in order.

Where every bookie holds every entry, that is what a reader reads. Of a striped fragment each bookie holds some of the
entries, in a pattern; they are read from as few of the others as hold them all, and what those don't return is read one
by one, as a reader does.

Invariants: what is returned has a matching checksum; nothing but the share is needed, so an entry outside of it that
nobody can return does no harm; an entry of the share that can't be had is an error, as a reader's.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from itertools import chain
from typing import TYPE_CHECKING

from bkpy.client.read.range_pipeline import RangePipeline
from bkpy.client.read.range_reader import RangeReader
from bkpy.client.read.snapshot import LedgerSnapshot
from bkpy.client.write.add_request import SentBatch
from bkpy.errors import BookKeeperError, CorruptDataError, DigestMismatchError
from bkpy.protocol.ledger.quorum import write_set
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Op, Status
from bkpy.protocol.wire.records import RecordCodec, walk

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from bkpy.client.write.interfaces import ReplicationParts
    from bkpy.metadata.ledgers.catalog import LedgerCatalog
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.repair.rereplication import Copy

Found = list[tuple[int, memoryview]]  # ids, ascending, and their records


class ShareReader:
    """Reads `copy`'s share of the ledger, as `metadata` have it. Knows no password: checksums are what it verifies."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        copy: Copy,
        readable: frozenset[str],
        *,
        catalog: LedgerCatalog,
        parts: ReplicationParts,
        given: bool = False,
    ) -> None:
        """`given`: the metadata are not those of the store (see `LedgerSnapshot`)."""
        self._metadata = metadata
        self._copy = copy
        self._share = copy.share
        self._codec = RecordCodec(metadata.ledger_id)
        self._pool = parts.pool
        self._settings = settings = parts.settings
        self._reader = RangeReader(
            LedgerSnapshot(metadata, given=given),
            codec=self._codec,
            catalog=catalog,
            pool=parts.pool,
            settings=settings,
            runtime=parts.runtime,
        )
        self._sources = self._choose(readable)
        self._ranges: RangePipeline[Found] = RangePipeline(
            self._range,
            name=f"copy of ledger {metadata.ledger_id}",
            at_once=settings.prefetch_depth,
            rest_ahead=True,
            first_entries=settings.read_entries_first,
            range_entries_max=settings.read_entries_max,
            range_bytes=settings.read_bytes,
            runtime=parts.runtime,
        )

    async def batches(self) -> AsyncGenerator[list[SentBatch], None]:
        """The share in order, some batches at a time. Raises the `missing_entry_error` of what can't be had."""
        copy, size = self._copy, self._share.step
        if not self._share.starts:
            return
        if self._share.step == 1:
            async with aclosing(self._reader.blocks(copy.first, copy.last)) as blocks:
                async for block in blocks:
                    yield [SentBatch(block.first_entry, len(block), 1, block.buffer)]
            return
        async with aclosing(self._ranges.run(copy.first, copy.last)) as ranges:
            async for found in ranges:
                by_class: dict[int, Found] = {}
                for entry_id, record in found:
                    by_class.setdefault(entry_id % size, []).append((entry_id, record))
                # Without a gap in the share, those of one class are a whole ensemble apart.
                yield [
                    SentBatch(some[0][0], len(some), size, memoryview(b"".join(record for _, record in some)))
                    for some in by_class.values()
                ]

    # --- striped fragments ------------------------------------------------------------------------------------------

    def _choose(self, readable: frozenset[str]) -> list[str]:
        """Readable bookies that hold the whole share between them, as far as that can be, those it is of at last."""
        names = self._metadata.fragments[self._copy.fragment].bookies
        sizes = self._metadata.ensemble_size, self._metadata.write_quorum
        sets = [{names[i] for i in write_set(start, *sizes)} & readable for start in self._share.starts]
        chosen: list[str] = []
        while sets := [members for members in sets if members.isdisjoint(chosen)]:
            among = sorted(set(chain(*sets)))
            if not among:
                break
            chosen.append(max(among, key=lambda name: (name != self._copy.old, sum(name in s for s in sets))))
        return chosen

    def _wanted(self, first: int, last: int) -> list[int]:
        return sorted(chain(*self._runs(first, last)))

    def _runs(self, first: int, last: int) -> Iterator[range]:
        step = self._share.step
        for start in self._share.starts:
            yield range(start + max(0, -(-(first - start) // step)) * step, last + 1, step)

    async def _range(self, first: int, last: int) -> tuple[Found, int]:
        """What can be had at once of the share in first..last, at least its first entry; and up to where that is."""
        wanted = self._wanted(first, last)
        if not wanted:
            return [], last
        replies = await asyncio.gather(*(self._ask(bookie_id, wanted[0], last) for bookie_id in self._sources))
        records = {entry_id: record for some in replies for entry_id, record in some.items()}
        found: Found = []
        for entry_id in wanted:
            if entry_id not in records:
                break
            found.append((entry_id, records[entry_id]))
        if not found:
            found = [(wanted[0], await self._single(wanted[0]))]
        self._ranges.record_bytes = sum(len(record) for _, record in found) / len(found)
        return found, last if len(found) == len(wanted) else wanted[len(found)] - 1

    async def _single(self, entry_id: int) -> memoryview:
        """From any bookie of its write set that has it."""
        async with aclosing(self._reader.blocks(entry_id, entry_id)) as blocks:
            return (await anext(blocks)).buffer

    async def _ask(self, bookie_id: str, first: int, last: int) -> dict[int, memoryview]:
        """What the bookie returns of first..last, intact; nothing if it fails."""
        found: dict[int, memoryview] = {}
        head = m.pack([0, self._metadata.ledger_id, first, last, self._settings.read_bytes])
        timeout_s = self._settings.replica_timeout_s(self._metadata.write_quorum)
        try:
            frame = await self._pool.channel(bookie_id).call(Op.READ, head, timeout_s=timeout_s)
            if m.reply_status(frame.head) != Status.OK:
                return found
            for header in walk(frame.body):
                self._codec.check(frame.body, header.offset, header.end)
                found[header.entry_id] = frame.body[header.offset : header.end]
        except (CorruptDataError, DigestMismatchError):
            return found  # up to where it is damaged
        except BookKeeperError:
            return {}
        return found
