"""Where Spark finds the data source `bkpy`: it imports every `pyspark_*` module when it first looks a format up.

Invariant: importing this module imports nothing of bkpy, because sessions that never use the format import it too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """Closed ledgers as a table. Spark makes it, pickles it and asks it for a schema and a reader."""

    @classmethod
    def name(cls) -> str:
        return "bkpy"

    def schema(self) -> StructType:
        from bkpy.spark.schema import schema_of

        return schema_of(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from bkpy.spark.source import LedgerSourceReader

        return LedgerSourceReader.of(self.options, schema)
