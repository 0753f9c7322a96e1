"""The reader of one ledger: it finds out how far the ledger may be read, reads ranges, and tails.

Invariant: nothing past last add confirmed (open) or the last entry (closed) is returned, unless it was asked for by
`read_unconfirmed`. Reading never fences and never changes anything.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from bkpy.client.arguments import check_first, check_last
from bkpy.client.iteration import ResumableIterator, Stepwise, alone
from bkpy.client.lifetime import refuse_pickling
from bkpy.client.read.range_reader import RangeReader
from bkpy.client.read.snapshot import LedgerSnapshot
from bkpy.client.read.tail import Tail
from bkpy.errors import (
    BookieUnavailableError,
    BookKeeperError,
    ClientClosedError,
    ConfigError,
    NoSuchEntryError,
    TlsError,
    UnauthorizedError,
)
from bkpy.protocol.ledger.quorum import covered
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.lac_reply import LastAddConfirmed, proven_to_reader
from bkpy.protocol.wire.messages import Op

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator

    from pyarrow import RecordBatch

    from bkpy.client.bookies.pool import BookiePool
    from bkpy.client.read.block import Block, Entry
    from bkpy.client.read.range_pipeline import RangeScan
    from bkpy.config.client import ClientSettings
    from bkpy.metadata.ledgers.catalog import LedgerCatalog
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.wire.records import RecordCodec
    from bkpy.runtime.interfaces import Runtime


class LedgerReader:
    """Reads one ledger; made by `Client.open_ledger`. Ranges are inclusive; -1 means no entry yet."""

    __reduce__ = refuse_pickling

    def __init__(
        self,
        metadata: LedgerMetadata,
        *,
        codec: RecordCodec,
        catalog: LedgerCatalog,
        pool: BookiePool,
        settings: ClientSettings,
        runtime: Runtime,
        confirmed: int = -1,
    ) -> None:
        self._snapshot = LedgerSnapshot(metadata)
        # The caller knows that it is confirmed; the bookies that know may be away.
        self._snapshot.advance(LastAddConfirmed(confirmed, None, fenced=False))
        self._ranges = RangeReader(
            self._snapshot, codec=codec, catalog=catalog, pool=pool, settings=settings, runtime=runtime
        )
        self._codec = codec
        self._catalog = catalog
        self._pool = pool
        self._settings = settings
        self._runtime = runtime
        self._tails: set[Tail] = set()
        self._closed = False

    # --- what is known ----------------------------------------------------------------------------------------------

    @property
    def ledger_id(self) -> int:
        """The ledger's id."""
        return self._snapshot.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata, when they were read last."""
        return self._snapshot.metadata

    @property
    def last_add_confirmed(self) -> int:
        """The highest id this reader may read, as far as it knows; the last entry, for a closed ledger."""
        return self._snapshot.confirmed

    @property
    def length(self) -> int:
        """Payload bytes up to last add confirmed; while the ledger is open, as last published by its writer."""
        return self._snapshot.length

    @property
    def closed(self) -> bool:
        """Whether the ledger was CLOSED when its metadata were read last: then it never grows again."""
        return self._snapshot.closed

    def bytes_of(self, entries: int) -> int:
        """The approximate payload size of `entries` entries, from the average so far; 0 before any size is known."""
        return self._snapshot.bytes_of(entries)

    def __repr__(self) -> str:
        return (
            f"<LedgerReader ledger={self.ledger_id} last_add_confirmed={self.last_add_confirmed} closed={self.closed}>"
        )

    async def close(self) -> None:
        """End the reader and its tails. Doesn't touch the ledger."""
        self._pool.guard.check()
        self._closed = True
        for tail in self._tails:
            tail.fail(ClientClosedError("the reader is closed", ledger_id=self.ledger_id))

    async def __aenter__(self) -> LedgerReader:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _check_open(self) -> None:
        self._pool.guard.check()
        if self._closed:
            raise ClientClosedError("the reader is closed", ledger_id=self.ledger_id)

    # --- last add confirmed -----------------------------------------------------------------------------------------

    async def read_last_add_confirmed(self) -> int:
        """Ask the bookies and the metadata how far the ledger may be read. Returns that entry's id."""
        self._check_open()
        if not self.closed:
            await self._snapshot.refresh(self._catalog)
        if not self.closed:
            await self._ask_last_add_confirmed()
        return self.last_add_confirmed

    async def _ask_last_add_confirmed(self) -> None:
        """The highest answer of the last fragment's bookies, once every ack quorum is represented."""
        metadata = self.metadata
        answered: set[int] = set()
        errors: list[BookKeeperError] = []
        tasks = [
            self._runtime.spawn(self._ask_one(i, bookie_id), name=f"last add confirmed of ledger {self.ledger_id}")
            for i, bookie_id in enumerate(metadata.fragments[-1].bookies)
        ]
        try:
            for task in asyncio.as_completed(tasks):
                index, answer = await task
                if isinstance(answer, BookKeeperError):
                    errors.append(answer)
                    continue
                answered.add(index)
                self._snapshot.advance(answer)
                if covered(answered, metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum):
                    return
        finally:
            for task in tasks:
                task.cancel()
        for error in errors:
            if isinstance(error, ClientClosedError):
                raise error.renewed(ledger_id=self.ledger_id)
        kinds = {type(error) for error in errors}
        not_shown = kinds.pop() if kinds in ({TlsError}, {UnauthorizedError}) else BookieUnavailableError
        raise not_shown(
            f"too few of the ledger's bookies tell its last add confirmed: {'; '.join(map(str, errors))}",
            ledger_id=self.ledger_id,
        )

    async def _ask_one(self, index: int, bookie_id: str) -> tuple[int, LastAddConfirmed | BookKeeperError]:
        try:
            reply = await self._pool.channel(bookie_id).call(
                Op.READ_LAC, m.pack([0, self.ledger_id]), timeout_s=self._settings.read_timeout_s
            )
            return index, proven_to_reader(self._codec, reply, self.ledger_id, bookie_id)
        except BookKeeperError as e:
            return index, e

    # --- reading ----------------------------------------------------------------------------------------------------

    def read(self, first: int = 0, last: int | None = None) -> AsyncGenerator[Entry, None]:
        """Entries first..last in order; `last=None` is last add confirmed, negative is *no entry*.

        Last add confirmed is what this reader knows at the call: of an open ledger, call `read_last_add_confirmed`
        before, or use `tail`. A writer that pauses tells bookies of its last entries after `explicit_lac_interval_s`.

        Raises `ConfigError` at the call for what is no id. Iterating raises `NoSuchEntryError` for a `last` past last
        add confirmed, `DigestMismatchError` if no replica of an entry verifies, `BookieUnavailableError` if the
        replicas can't be reached within `read_timeout_s`.
        """
        self._check_ids(first, last)
        return ResumableIterator(ConfirmedEntries(lambda: self._scan(first, last)), guard=self._pool.guard)

    def read_blocks(self, first: int = 0, last: int | None = None) -> AsyncGenerator[Block, None]:
        """Like `read`, many entries at once, with no object per entry."""
        self._check_ids(first, last)
        return ResumableIterator(ConfirmedEntries(lambda: self._scan(first, last)), alone, self._pool.guard)

    def read_batches(self, first: int = 0, last: int | None = None) -> AsyncGenerator[RecordBatch, None]:
        """Like `read_blocks`, as Arrow's record batches: columns `ledger_id`, `entry_id` and `payload`.

        About `read_bytes` of records in a batch, at least one. Raises `ConfigError` at the call where pyarrow isn't
        installed.
        """
        self._check_ids(first, last)
        try:
            from bkpy.client.read.arrow import record_batch
        except ImportError as e:
            raise ConfigError(f"{e.name} is missing; get it with pip install 'bkpy[arrow]'") from None
        entries = ConfirmedEntries(lambda: self._scan(first, last))
        return ResumableIterator(entries, lambda block: alone(record_batch(block)), self._pool.guard)

    def _scan(self, first: int, last: int | None) -> RangeScan[Block]:
        self._check_open()
        end = self.last_add_confirmed if last is None else last
        self._check_end(end)
        return self._ranges.source(first, end)

    def read_unconfirmed(self, first: int, last: int) -> AsyncGenerator[Entry, None]:
        """Entries first..last in order, also past last add confirmed: sent by the writer, perhaps never acknowledged.

        Whether such an entry becomes part of the ledger is open until it is confirmed or the ledger closed. Raises
        `NoSuchEntryError` at the first that no bookie of its write set has, or that lies past the end of a closed
        ledger; else as `read`.
        """
        check_first(first, self.ledger_id)
        check_last(last, self.ledger_id)
        return ResumableIterator(self._stepwise(self._unconfirmed(first, last), "read"), guard=self._pool.guard)

    async def _unconfirmed(self, first: int, last: int) -> AsyncGenerator[Iterator[Entry], None]:
        self._check_open()
        if not self.closed:
            await self._snapshot.refresh(self._catalog)
        self._check_end(last if self.closed else -1)
        async with aclosing(self._ranges.blocks(first, last)) as blocks:
            async for block in blocks:
                yield self._checked(block)

    def _checked(self, block: Block) -> Iterator[Entry]:
        for entry in block:
            if self.closed:  # it was closed meanwhile, perhaps before this entry
                self._check_end(entry.entry_id)
            yield entry

    def _check_ids(self, first: int, last: int | None) -> None:
        check_first(first, self.ledger_id)
        if last is not None:
            check_last(last, self.ledger_id)

    def _check_end(self, last: int) -> None:
        if last > self.last_add_confirmed:
            what = "last entry" if self.closed else "last add confirmed"
            raise NoSuchEntryError(
                f"entry {last} is past the {what}, {self.last_add_confirmed}", ledger_id=self.ledger_id, entry_id=last
            )

    # --- tailing ----------------------------------------------------------------------------------------------------

    def tail(self, first: int = 0) -> AsyncGenerator[Entry, None]:
        """Entries from `first` on as they are confirmed. Ends after the last entry of a closed ledger.

        Waits at the bookies, and goes on while some of them, or the metadata store, are away. Raises
        `NoSuchLedgerError` once the ledger is deleted, else as `read`.
        """
        check_first(first, self.ledger_id)
        return ResumableIterator(self._stepwise(self._tail_blocks(first), "tail"), guard=self._pool.guard)

    def tail_blocks(self, first: int = 0) -> AsyncGenerator[Block, None]:
        """Like `tail`, as many entries at once as have come, with no object per entry."""
        check_first(first, self.ledger_id)
        return ResumableIterator(self._stepwise(self._tail_blocks(first), "tail"), alone, self._pool.guard)

    async def _tail_blocks(self, first: int) -> AsyncGenerator[Block, None]:
        self._check_open()
        tail = Tail(
            self._snapshot,
            codec=self._codec,
            catalog=self._catalog,
            pool=self._pool,
            settings=self._settings,
            runtime=self._runtime,
        )
        self._tails.add(tail)
        try:
            while True:
                last = self.last_add_confirmed
                if first <= last:
                    async with aclosing(self.read_blocks(first, last)) as blocks:
                        async for block in blocks:
                            yield block
                    first = last + 1
                if self.closed and first > self.last_add_confirmed:
                    return
                await tail.news(first - 1)
        finally:
            self._tails.discard(tail)
            await tail.close()

    def _stepwise(self, generator: AsyncGenerator[Any, None], what: str) -> Stepwise:
        return Stepwise(generator, self._runtime, name=f"{what} of ledger {self.ledger_id}")


class ConfirmedEntries:
    """A `BatchSource` that begins with its first call: how far the ledger may be read is known then."""

    def __init__(self, begin: Callable[[], RangeScan[Block]]) -> None:
        self._begin = begin
        self._scan: RangeScan[Block] | None = None

    async def following(self) -> Block:
        if self._scan is None:
            self._scan = self._begin()
        return await self._scan.following()

    async def close(self) -> None:
        if self._scan is not None:
            await self._scan.close()
