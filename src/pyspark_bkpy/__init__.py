"""Where Spark finds the data source `bkpy`: it imports every `pyspark_*` module when it first looks a format up.

Invariant: importing this module imports nothing of bkpy, because sessions that never use the format import it too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """Closed ledgers or a log as a table, and a log as a stream and as a sink.

    Spark makes it, pickles it and asks it for the rest.
    """

    @classmethod
    def name(cls) -> str:
        return "bkpy"

    def schema(self) -> StructType:
        from bkpy.spark.schema import schema_of

        return schema_of(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from bkpy.spark.source import LedgerSourceReader

        return LedgerSourceReader.of(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from bkpy.spark.sink import LogBatchWriter

        return LogBatchWriter.of(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        from bkpy.spark.sink import LogStreamWriter

        return LogStreamWriter.of(self.options, schema, overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from bkpy.spark.stream import LogStreamReader

        return LogStreamReader.of(self.options, schema)
