"""The reader behind the data source: plans on the driver, reads on the workers, straight from the bookies.

Invariants: nothing that is pickled holds a connection, a loop or a password; a partition yields each of its entries
once and in order, or raises.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from bkpy.client.connecting import connect_tuned
from bkpy.errors import CorruptDataError, NoSuchEntryError, NoSuchLedgerError
from bkpy.spark.pushdown import Conditions
from bkpy.spark.schema import resolve

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from bkpy.client.client import Client
    from bkpy.client.read.block import Block
    from bkpy.spark.log_view import Task
    from bkpy.spark.options import SourceOptions
    from bkpy.spark.planning import EntryRange

T = TypeVar("T")


class LedgerSourceReader(DataSourceReader):
    """Reads the entries of closed ledgers or a log that match its conditions. Spark pickles it with each task."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._conditions = Conditions()

    @staticmethod
    def of(given: Mapping[str, str], schema: StructType) -> DataSourceReader:
        """The reader for these options and the schema that Spark settled. Raises `ConfigError`."""
        options = resolve(given, schema)
        reader = LedgerSourceReader(options, schema)
        return FilteringReader(reader) if options.pushdown else reader

    def add_conditions(self, filters: list[Filter]) -> list[Filter]:
        """Narrow the plan by these conditions where it can. Returns the conditions that Spark has to apply."""
        left = []
        for condition in filters:
            both = self._conditions.and_also(condition)
            if both is None:
                left.append(condition)
            else:
                self._conditions = both
        return left

    def partitions(self) -> list[InputPartition]:
        """What each task reads, a tuple of `EntryRange`. Raises what `load_ledgers` and `plan`, or `LogView`, raise."""
        if self._options.log is not None:
            return [InputPartition(task) for task in asyncio.run(self._plan_log())]
        from bkpy.spark.planning import load_ledgers, plan

        ledgers = load_ledgers(self._options).ledgers
        return [InputPartition((part,)) for part in plan(ledgers, self._options, self._conditions.narrow)]

    async def _plan_log(self) -> list[Task]:
        from bkpy.spark.log_view import plan_batch

        async with connect_tuned(self._options.metadata_uri, **self._options.client_settings()) as client:
            return await plan_batch(client, self._options, self._conditions.narrow)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The entries of one partition: see `record_batches`."""
        # When a plan is empty, Spark makes a partition of nothing, or before 4.2 no partition and reads that.
        task: Task = () if partition is None else partition.value or ()
        return record_batches(self._options, self._schema, task)


class FilteringReader(DataSourceReader):
    """A reader that takes a query's conditions.

    A class of its own, because Spark refuses any reader that has `pushFilters` when its filter pushdown is disabled.
    """

    def __init__(self, reader: LedgerSourceReader) -> None:
        self._reader = reader

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take over what narrows the plan; returns the conditions that Spark has to apply."""
        return self._reader.add_conditions(filters)

    def partitions(self) -> list[InputPartition]:
        """What each task reads of what the conditions leave."""
        return self._reader.partitions()

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The entries of one partition."""
        return self._reader.read(partition)


def record_batches(options: SourceOptions, schema: StructType, task: Task) -> Iterator[pa.RecordBatch]:
    """The entries of a task, in order. Raises what reading raises, `DigestMismatchError` for damaged entries.

    Without `fail_on_data_loss`, ledgers that were deleted since the plan was made are left out. Missing entries of a
    ledger that exists are an error in any case.
    """
    from bkpy.spark.batches import arrow_schema, batches

    columns = [field.name.lower() for field in schema.fields]
    of_batches = arrow_schema((field.name, field.nullable) for field in schema.fields)
    for part, block, producer in _stepwise(_blocks_of_task(options, task)):
        yield from batches(block, columns, of_batches, options.batch_bytes_max, part.origin, producer)


class LazyClient:
    """A client of the cluster that is connected when it is first asked for."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._client: Client | None = None

    async def client(self) -> Client:
        """The client. Raises what connecting does."""
        if self._client is None:
            self._client = await connect_tuned(self.options.metadata_uri, **self.options.client_settings())
        return self._client

    async def has_ledger(self, ledger_id: int) -> bool:
        """Whether the metadata have the ledger. Raises `MetadataUnavailableError`."""
        from bkpy.client.client import inspection_context

        client = await self.client()
        try:
            await inspection_context(client).cluster.catalog.read(ledger_id, fresh=True)
        except NoSuchLedgerError:
            return False
        return True

    async def close(self) -> None:
        """Every connection is ended."""
        if self._client is not None:
            await self._client.close()


async def _blocks_of_task(
    options: SourceOptions, task: Task
) -> AsyncGenerator[tuple[EntryRange, Block, str | None], None]:
    lazy = LazyClient(options)
    try:
        for part in task:
            expected = part.first
            try:
                async with aclosing(blocks_of(lazy, part)) as blocks:
                    async for block, producer in blocks:
                        _check(part, expected, block.first_entry)
                        expected = block.last_entry + 1
                        yield part, block, producer
            except (NoSuchLedgerError, NoSuchEntryError):
                if options.fail_on_data_loss or await lazy.has_ledger(part.ledger_id):
                    raise
            else:
                _check(part, expected, part.last + 1)
    finally:
        await lazy.close()


async def blocks_of(lazy: LazyClient, part: EntryRange) -> AsyncGenerator[tuple[Block, str | None], None]:
    """The entries of a range, and who has numbered them. Raises what reading raises."""
    from bkpy.client.client import log_parts
    from bkpy.log.client import open_segment
    from bkpy.log.segments import producer_of

    client, password = await lazy.client(), lazy.options.password()
    if part.origin is None:
        reader = await client.open_ledger(part.ledger_id, password=password)
    else:  # the plan has only confirmed entries, whatever the bookies answer now
        reader = await open_segment(log_parts(client), part.ledger_id, password, part.last, part.origin.stamp)
    # Ended before the client is closed, also when the iteration is given up.
    async with aclosing(reader.read_blocks(part.first, part.last)) as blocks:
        async for block in blocks:
            yield block, producer_of(reader)


def _check(part: EntryRange, expected: int, found: int) -> None:
    """Not an assertion: workers may run without those, and rows would be missing without a notice."""
    if found != expected:
        raise CorruptDataError(
            f"the read went on, or ended, at entry {found}", ledger_id=part.ledger_id, entry_id=expected
        )


def _stepwise(blocks: AsyncGenerator[T, None]) -> Iterator[T]:
    """An asynchronous iteration as a plain one, on a loop that runs in a thread of its own.

    A query may take minutes for the rows of one block. Meanwhile what was asked for ahead is received, before it is too
    late or the bookies give the connection up, and the session lives.
    """
    from bkpy.runtime.background import BackgroundLoop

    async def step() -> T | None:
        return await anext(blocks, None)

    loop = BackgroundLoop("read for Spark")
    try:
        while (block := loop.call(step())) is not None:
            yield block
    finally:
        try:
            loop.call(blocks.aclose())
        finally:
            loop.close()  # whatever is left on it is cancelled
