"""The examples of docs/how-to/spark.md run as printed, but for the two that need jars of Delta and of Iceberg."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.command import bkpy
from tests.spark.logs import TestLog, assert_exactly

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from tests.spark.conftest import Ledgers

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "spark.md").read_text(encoding="utf-8")
PRINTED_URI = "zk://127.0.0.1:2181/ledgers"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_the_examples_run(
    ledgers: Ledgers,
    spark: SparkSession,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    read, stream, write, *with_jars = blocks("python")
    (sql,) = blocks("sql")
    bkpy("log", "create", "enriched", uri=ledgers.uri)
    with TestLog(ledgers.uri) as orders:
        names: dict[str, Any] = {"uri": ledgers.uri}
        here = {PRINTED_URI: ledgers.uri, '"orders"': f'"{orders.name}"'}
        for directory in ("orders-parquet", "orders-checkpoint", "enrich-checkpoint"):
            here[f'"{directory}"'] = repr(str(tmp_path / directory))

        def run(block: str, **changes: str) -> None:
            for printed, tried in (here | changes).items():
                block = block.replace(printed, tried)
            exec(block, names)

        run(read)
        assert re.search(rf"\|\s*{ledgers.plain}\|\s*5000\|", capfd.readouterr().out)

        orders.append(1000)
        run(stream, **{'processingTime="1 second"': "availableNow=True"})
        names["query"].awaitTermination()
        assert_exactly(spark.read.parquet(str(tmp_path / "orders-parquet")).collect(), 0, 1000)

        # The last statement is for rows that are no stream.
        names["batch"] = spark.createDataFrame([(b"one",), (b"two",)], "payload binary NOT NULL")
        run(write, **{'processingTime="10 seconds"': "availableNow=True", "rows.write.": "batch.write."})
        names["query"].awaitTermination()
        options = {"metadataServiceUri": ledgers.uri, "log": "enriched"}
        rows = spark.read.format("bkpy").options(**options).load().collect()
        assert len(rows) == 1002
        assert {b"one", b"two"} <= {bytes(row["payload"]) for row in rows}

        for statement in filter(str.strip, sql.split(";")):
            spark.sql(
                statement.replace(PRINTED_URI, ledgers.uri)
                .replace("7,9-12", str(ledgers.plain))
                .replace("'orders'", f"'{orders.name}'")
            )
        assert spark.sql("SELECT * FROM entries").count() == 5000
        assert spark.sql("SELECT * FROM orders").count() == 1000
        spark.sql("DROP TABLE orders")
        spark.sql("DROP VIEW entries")
    assert len(with_jars) == 2
    for block in with_jars:
        ast.parse(block)
