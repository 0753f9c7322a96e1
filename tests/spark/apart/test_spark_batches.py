"""Blocks as record batches: the same rows, the schema of Spark, and no batch over its bound."""

from __future__ import annotations

from array import array
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from bkpy.client.read.block import Block
from bkpy.protocol.wire.records import RecordCodec
from bkpy.spark.batches import arrow_schema, batches
from bkpy.spark.options import COLUMNS, LOG_COLUMNS
from bkpy.spark.planning import Origin
from bkpy.spark.schema import TYPES

GAP = b"#" * 7  # what a block has between payloads


def block_of(payloads: list[bytes], ledger_id: int = 3, first_entry: int = 0) -> Block:
    buffer, starts, ends = bytearray(), array("q"), array("q")
    for payload in payloads:
        buffer += GAP
        starts.append(len(buffer))
        buffer += payload
        ends.append(len(buffer))
    return Block(ledger_id, first_entry, memoryview(bytes(buffer)), starts, ends)


def schema_of(columns: tuple[str, ...]) -> pa.Schema:
    return arrow_schema((name, True) for name in columns)


def test_the_schema_is_what_spark_makes_of_the_columns() -> None:
    fields = [StructField(name, TYPES[name]) for name in LOG_COLUMNS]
    fields += [StructField(name.title(), TYPES[name], nullable=False) for name in LOG_COLUMNS]
    expected = to_arrow_schema(StructType(fields), timezone="UTC")  # type: ignore[no-untyped-call,unused-ignore]
    assert arrow_schema((field.name, field.nullable) for field in fields).equals(expected)


@given(
    st.lists(st.binary(max_size=40), min_size=1, max_size=30),
    st.integers(0, 2**62),
    st.permutations(COLUMNS).flatmap(lambda order: st.integers(1, 6).map(lambda n: tuple(order[:n]))),
    st.integers(1, 100),
)
def test_rows(payloads: list[bytes], first_entry: int, columns: tuple[str, ...], bytes_max: int) -> None:
    schema = schema_of(columns)
    made = list(batches(block_of(payloads, 3, first_entry), columns, schema, bytes_max))
    for batch in made:
        batch.validate(full=True)
        assert batch.schema.equals(schema)
    expected = [
        {"log": None, "ledger_id": 3, "entry_id": first_entry + i, "payload": p, "length": len(p), "position": None}
        for i, p in enumerate(payloads)
    ]
    assert pa.Table.from_batches(made).to_pylist() == [{name: row[name] for name in columns} for row in expected]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.integers(1, 60))
def test_batches_are_as_large_as_they_may_be(sizes: list[int], bytes_max: int) -> None:
    made = list(batches(block_of([bytes(size) for size in sizes]), ("length",), schema_of(("length",)), bytes_max))
    groups = [batch.column(0).to_pylist() for batch in made]
    assert [size for group in groups for size in group] == sizes
    for i, group in enumerate(groups):
        assert len(group) == 1 or sum(group) <= bytes_max
        assert i + 1 == len(groups) or sum(group) + groups[i + 1][0] > bytes_max


def test_an_entry_larger_than_a_batch_has_one_alone() -> None:
    schema = schema_of(("payload",))
    made = list(batches(block_of([b"a", b"x" * 100, b"b"]), ("payload",), schema, 10))
    assert [batch.num_rows for batch in made] == [1, 1, 1]


def test_a_batch_of_another_schema_is_not_made() -> None:
    with pytest.raises(pa.ArrowNotImplementedError, match="cast"):
        list(batches(block_of([b"a"]), ("length",), schema_of(("payload",)), 10))


def stamped_block_of(
    payloads: list[bytes], stamps: list[int], first_entry: int, first_sequence: int | None = None
) -> Block:
    """As it comes from a ledger of a log, perhaps of a producer."""
    clock = iter(stamps)
    parts: list[Any] = []
    codec = RecordCodec(3, stamp=lambda: next(clock), producer=None if first_sequence is None else 5)
    codec.first_sequence = first_sequence or 0
    for i, payload in enumerate(payloads):
        codec.encode_run(parts, [payload], first_entry + i, -1, 0)
    starts, ends = array("q"), array("q")
    view = memoryview(b"".join(parts))
    codec.scan(view, first_entry, first_entry + len(payloads) - 1, starts, ends)
    return Block(3, first_entry, view, starts, ends)


@given(
    st.lists(st.tuples(st.binary(max_size=40), st.integers(0, 2**41)), min_size=1, max_size=30),
    st.integers(0, 2**61),
    st.permutations(LOG_COLUMNS).flatmap(lambda order: st.integers(1, 9).map(lambda n: tuple(order[:n]))),
    st.integers(1, 100),
    st.integers(0, 2**41),
    st.none() | st.integers(0, 2**61),
)
def test_rows_of_a_log(
    entries: list[tuple[bytes, int]],
    first_entry: int,
    columns: tuple[str, ...],
    bytes_max: int,
    begun_ms: int,
    first: int | None,
) -> None:
    payloads, stamps = [payload for payload, _ in entries], [stamp for _, stamp in entries]
    schema = schema_of(columns)
    origin = Origin("orders", 1000, begun_ms)
    producer = None if first is None else "shop"
    block = stamped_block_of(payloads, stamps, first_entry, first)
    made = list(batches(block, columns, schema, bytes_max, origin, producer))
    assert all(batch.schema.equals(schema) for batch in made)
    expected = [
        {
            "log": "orders",
            "ledger_id": 3,
            "entry_id": first_entry + i,
            "payload": payload,
            "length": len(payload),
            "position": 1000 + first_entry + i,
            "time": datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=max(begun_ms, stamp)),
            "producer": producer,
            "sequence": None if first is None else first + first_entry + i,
        }
        for i, (payload, stamp) in enumerate(entries)
    ]
    assert pa.Table.from_batches(made).to_pylist() == [{name: row[name] for name in columns} for row in expected]
