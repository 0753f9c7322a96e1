"""A named log as a streaming source: the driver says how far to read, the workers read that from the bookies.

An offset is `{"position": n, "log_uid": ...}`: everything below n was read, of the log with that uid. Spark keeps it in
the query's checkpoint, before a batch and again after it; so it reads each entry once. Where a query began Spark keeps
nowhere, and asks again if the first batch is interrupted: so the end of each batch has its beginning, `"begin"`.

Invariants: nothing is planned between offsets of another log; an offset never goes back, and never past last add
confirmed; what two offsets enclose is the same whenever it is planned; nothing that is pickled holds a connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from bkpy.client.connecting import connect_tuned
from bkpy.errors import ConfigError, NoSuchEntryError
from bkpy.spark.options import LATEST
from bkpy.spark.schema import resolve
from bkpy.spark.source import record_batches

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from bkpy.client.client import Client
    from bkpy.runtime.background import BackgroundLoop
    from bkpy.spark.log_view import LogView, Task
    from bkpy.spark.options import SourceOptions

Offset = dict[str, Any]


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a log for as long as its query runs. Spark calls one on the driver, and pickles others with the tasks."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._initial: Offset | None = None
        self._target: int | None = None  # where a query that reads what is available now ends
        self._offered = 0  # the end of the last batch offered to Spark
        self._loop: BackgroundLoop | None = None
        self._client: Client | None = None
        self._view: LogView | None = None

    @staticmethod
    def of(given: Mapping[str, str], schema: StructType) -> LogStreamReader:
        """The reader for these options and the schema that Spark settled. Raises `ConfigError`."""
        options = resolve(given, schema)
        if options.log is None:
            raise ConfigError("a stream reads a log: name it with option log, in place of ledgers")
        if options.log_end != LATEST:
            raise ConfigError("option endingOffsets is for batches: a stream doesn't end")
        if options.pushdown:
            raise ConfigError("option pushdown is for batches")
        return LogStreamReader(options, schema)

    # --- on the driver ----------------------------------------------------------------------------------------------

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name, as those below
        """Where a query without a checkpoint begins. Spark asks twice, and needs the same answer."""
        if self._initial is None:
            self._initial = self._call(self._find_initial())
        return self._initial

    async def _find_initial(self) -> Offset:
        view = await self._refreshed()
        position = await view.position(self._options.log_start)
        if position > view.end_position:
            raise NoSuchEntryError(
                f"startingOffsets: position {position} is past the end of log {self._options.log}, {view.end_position}"
            )
        return self._offset(view, position)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """What a batch reads at most."""
        if self._options.entries_per_trigger is not None:
            return ReadMaxRows(self._options.entries_per_trigger)
        if self._options.bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Leave entries that are confirmed later to the next run."""
        self._target = self._call(self._refreshed()).end_position

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Where the batch ends that begins at `start`; the same if there is nothing to read.

        Raises `TruncatedError` if entries are gone that were not read, unless `fail_on_data_loss` is off.
        """
        begun = start["position"]
        view = self._call(self._refreshed(start))
        available = view.end_position if self._target is None else min(view.end_position, self._target)
        self._offered = max(begun, available)
        if begun < self._offered:
            first, end = view.clipped(begun, self._offered)
            if isinstance(limit, ReadMaxRows):
                end = self._call(view.end_after(first, end, limit.max_rows))
            elif isinstance(limit, ReadMaxBytes):
                end = self._call(view.end_within(first, end, limit.max_bytes))
            self._offered = end
        if self._offered == begun and "log_uid" in start:
            return start
        return {**self._offset(view, self._offered), "begin": begun}

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        """The end of the log, for the query's progress, and how many entries the batch leaves to later ones."""
        if self._view is None:
            return None
        end = self._view.end_position
        return {**self._offset(self._view, end), "lag": max(0, end - self._offered)}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """What each task of a batch reads, a tuple of `EntryRange`: the same for the same offsets."""
        if "begin" not in start:  # no batch ends there: Spark has asked anew where the first one begins
            start = {**start, "position": end.get("begin", start["position"])}
        if start["position"] >= end["position"]:
            return []
        return [InputPartition(task) for task in self._call(self._plan(start, end))]

    async def _plan(self, start: Offset, end: Offset) -> list[Task]:
        view = self._view
        if view is None or view.end_position < end["position"]:  # a driver that has died began the batch
            view = await self._refreshed(end)
        for offset in (start, end):  # of a checkpoint, perhaps of a former log
            self._check_log(view, offset)
        return await view.plan(*view.clipped(start["position"], end["position"]))

    def stop(self) -> None:
        """Give up the connections of the driver."""
        if self._loop is not None:
            if self._client is not None:
                self._loop.call(self._client.close())
            self._loop.close()
            self._loop = self._client = self._view = None

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        if self._loop is None:
            from bkpy.runtime.background import BackgroundLoop

            self._loop = BackgroundLoop(f"stream of log {self._options.log}")
        return self._loop.call(work)

    async def _refreshed(self, seen: Offset | None = None) -> LogView:
        """The log as it is now. `seen` is of its past: what lies below it is confirmed, or this is another log."""
        from bkpy.spark.log_view import LogView

        if self._client is None:
            self._client = await connect_tuned(self._options.metadata_uri, **self._options.client_settings())
        if self._view is None:
            self._view = await LogView.of(self._client, self._options)
        view = self._view
        if seen is not None:
            self._check_log(view, seen)
        await view.refresh(0 if seen is None else seen["position"])
        return view

    def _check_log(self, view: LogView, offset: Offset) -> None:
        """Refuse an offset of another log. One without a uid becomes this log's with the batch that begins there."""
        uid = offset.get("log_uid", view.uid)
        if uid != view.uid:
            raise ConfigError(
                f"the checkpoint belongs to a deleted log of the name {self._options.log} (uid {uid}), not to the "
                f"present one (uid {view.uid}): start the query with another checkpointLocation"
            )

    @staticmethod
    def _offset(view: LogView, position: int) -> Offset:
        return {"position": position, "log_uid": view.uid}

    # --- on the workers ---------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The entries of one task."""
        return record_batches(self._options, self._schema, partition.value or ())
