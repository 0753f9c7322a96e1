"""The columns that a read has, and where the options of a table that was made with CREATE TABLE are kept.

Spark hands a source the options of a read or a temporary view. Those of a table it hands over only once, when the table
is created, and all that it keeps of the source's answer is the schema. So a table's options are remembered there, in
the metadata of its first column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from bkpy.errors import ConfigError
from bkpy.spark.options import COLUMNS, SourceOptions, column_named, parse_options

if TYPE_CHECKING:
    from collections.abc import Mapping

TYPES: Final[Mapping[str, DataType]] = {
    "log": StringType(),
    "ledger_id": LongType(),
    "entry_id": LongType(),
    "payload": BinaryType(),
    "length": IntegerType(),
    "position": LongType(),
    "time": TimestampType(),
    "producer": StringType(),
    "sequence": LongType(),
}

_CREATING: Final = "provider"  # a property of every new table, and no option of the source
_TABLE_OPTION: Final = "option."  # precedes the names of OPTIONS (...) among the properties of a new table
_REMEMBERED: Final = "bkpy"


def schema_of(given: Mapping[str, str]) -> StructType:
    """The schema of a read with these options, or of a table that is being created with them. Raises `ConfigError`."""
    if _CREATING not in given:
        return StructType([StructField(name, TYPES[name]) for name in parse_options(given).columns])
    table = {name.removeprefix(_TABLE_OPTION): text for name, text in given.items() if name.startswith(_TABLE_OPTION)}
    first, *others = parse_options(table).columns
    return StructType(
        [
            StructField(first, TYPES[first], metadata={_REMEMBERED: table}),
            *(StructField(name, TYPES[name]) for name in others),
        ]
    )


def resolve(given: Mapping[str, str], schema: StructType) -> SourceOptions:
    """The options of a read, once Spark has settled its schema: a table's own, overridden by the query's.

    `ConfigError` for a wrong option, and for a column of a schema chosen by the user that the source doesn't have.
    """
    if not schema.fields:
        raise ConfigError("a schema without columns")
    chosen = schema.fields[0].metadata.get(_REMEMBERED, {}) | {name.lower(): text for name, text in given.items()}
    if not chosen:
        raise ConfigError(
            "no options: Spark keeps those of CREATE TABLE ... USING bkpy OPTIONS (...) only if the statement doesn't"
            " list the columns"
        )
    options = parse_options(chosen)
    for field in schema.fields:
        expected = TYPES[column_named(field.name)]
        if field.dataType != expected:
            raise ConfigError(f"column {field.name} is {expected.simpleString()}, not {field.dataType.simpleString()}")
    names = tuple(column_named(field.name) for field in schema.fields)
    if options.log is None and (of_logs := set(names) - set(COLUMNS)):
        raise ConfigError(f"column {min(of_logs)} is a log's: the entries of a ledger that is read by its id have none")
    if "columns" in chosen and names != options.columns:
        raise ConfigError(f"option columns names {', '.join(options.columns)}, the schema {', '.join(names)}")
    return options
