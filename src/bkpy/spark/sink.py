"""Writing rows to a log: each task attempt writes a ledger of its own, the driver commits them all at once.

Invariants: nothing of a batch is in the log before all of it is; a batch with a number that was committed is never
committed again; nothing that is pickled holds a connection or a password.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType

from bkpy.errors import ConfigError
from bkpy.spark.sink_options import SinkOptions, parse_sink_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from bkpy.protocol.log.log_sinks import BatchPart

PAYLOAD = "payload"


@dataclass(frozen=True)
class Attempt(WriterCommitMessage):
    """What one task has written; None for no rows."""

    written: BatchPart | None


class LogBatchWriter(DataSourceArrowWriter):
    """`df.write`: one batch, whose number is the option `batchId`."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    @staticmethod
    def of(given: Mapping[str, str], schema: StructType, overwrite: bool) -> LogBatchWriter:
        """The writer for these options and rows.

        Raises `ConfigError`, and as Spark has begun no task yet, what is wrong with the log: `NoSuchLogError`,
        `UnauthorizedError`; or `MetadataUnavailableError`.
        """
        _check_rows(schema, overwrite)
        options = parse_sink_options(given)
        _check_log(options)
        return LogBatchWriter(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Attempt:
        """The rows of one task, into a ledger that nobody knows of yet."""
        return _write(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Put them all into the log."""
        _commit(self._options, messages, self._options.batch or 0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete what was written, unless it was committed."""
        _abort(self._options, messages)


class LogStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`: batches with Spark's own numbers."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    @staticmethod
    def of(given: Mapping[str, str], schema: StructType, overwrite: bool) -> LogStreamWriter:
        """The writer for these options and rows.

        Raises `ConfigError`, and as Spark has begun no task yet, what is wrong with the log: `NoSuchLogError`,
        `UnauthorizedError`; or `MetadataUnavailableError`.
        """
        _check_rows(schema, overwrite)
        options = parse_sink_options(given)
        if options.batch is not None:
            raise ConfigError("option batchId is for batch queries: a stream numbers its batches itself")
        _check_log(options)
        return LogStreamWriter(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Attempt:
        """The rows of one task, into a ledger that nobody knows of yet."""
        return _write(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Put them all into the log."""
        _commit(self._options, messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Delete what was written, unless it was committed."""
        _abort(self._options, messages)


def _check_rows(schema: StructType, overwrite: bool) -> None:
    if overwrite:
        raise ConfigError("a log is appended to, and can't be overwritten: use mode append")
    others = [field.name for field in schema.fields if field.name.lower() != PAYLOAD]
    if others:
        raise ConfigError(
            f"a log takes the column {PAYLOAD} alone, not {', '.join(others)}: select what its entries are to be"
        )
    if not schema.fields:
        raise ConfigError(f"there is no column {PAYLOAD}, which has the entries")
    if len(schema.fields) > 1:  # Spark allows names that differ in case alone
        names = ", ".join(field.name for field in schema.fields)
        raise ConfigError(f"a log takes one column {PAYLOAD}, and there are {len(schema.fields)}: {names}")
    if not isinstance(schema.fields[0].dataType, BinaryType):
        raise ConfigError(f"column {PAYLOAD} is {schema.fields[0].dataType.simpleString()}, not binary: cast it")


def _check_log(options: SinkOptions) -> None:
    from bkpy.spark.sink_commit import check_log

    asyncio.run(check_log(options))


def _write(options: SinkOptions, rows: Iterator[pa.RecordBatch]) -> Attempt:
    from bkpy.spark.sink_commit import write_attempt

    return Attempt(write_attempt(options, rows))


def _commit(options: SinkOptions, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
    from bkpy.spark.sink_commit import commit_batch

    asyncio.run(commit_batch(options, batch, _written(messages)))


def _abort(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    from bkpy.spark.sink_commit import discard

    asyncio.run(discard(options, _written(messages)))


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[BatchPart]:
    """In the order of the partitions; None stands for a task that failed."""
    return [message.written for message in messages if isinstance(message, Attempt) and message.written is not None]
