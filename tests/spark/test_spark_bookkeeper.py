"""The data source and the export on ledgers of a BookKeeper cluster."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from tests.spark.conftest import write

import bkpy
from bkpy.local import LocalCluster
from bkpy.spark.export import export_ledgers

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(900), pytest.mark.exhaustive]


async def test_its_ledgers_are_read_and_exported(spark: SparkSession, tmp_path: Path) -> None:
    payloads = {digest: [f"{digest} {n}".encode() for n in range(700)] for digest in ("crc32", "hmac-sha1")}
    async with LocalCluster(tmp_path / "cluster", 2, {"protocol": "bookkeeper"}) as cluster:
        sizes = {"ensemble_size": 2, "write_quorum": 1, "ack_quorum": 1}
        ids = [
            await write(cluster.connect_string, entries, digest=digest, **sizes) for digest, entries in payloads.items()
        ]
        await write(cluster.connect_string, [b"open"], close=False, **sizes)
        expected = sorted(
            (ledger_id, n, payload)
            for ledger_id, entries in zip(ids, payloads.values(), strict=True)
            for n, payload in enumerate(entries)
        )
        source = spark.read.format("bkpy").options(metadataServiceUri=cluster.connect_string, ledgers="closed")
        rows = await asyncio.to_thread(lambda: source.load().collect())
        assert sorted((row.ledger_id, row.entry_id, bytes(row.payload)) for row in rows) == expected
        to = tmp_path / "export"
        await asyncio.to_thread(export_ledgers, cluster.connect_string, "closed", to, spark=spark)
        columns = await asyncio.to_thread(lambda: pq.read_table(to, columns=["ledger_id", "entry_id", "payload"]))
        assert sorted(zip(*(column.to_pylist() for column in columns), strict=True)) == expected
        async with bkpy.connect(cluster.connect_string) as client:
            await client.delete_ledger(ids[0])
        assert await asyncio.to_thread(lambda: source.load().count()) == 700
