"""A job in Spark goes on while the ledger that it reads is moved to other bookies, and its old ones end."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.command import bkpy
from tests.waiting import eventually_here

import bkpy as library
from bkpy.local import LocalCluster
from bkpy.spark.export import export_ledgers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)

PATIENCE_S = 120.0
ENTRIES, SIZE = 3000, 8000  # more than the buffers between the processes of a task hold
PARTITIONS = 4  # more than tasks that run at a time


def payload(i: int) -> bytes:
    return b"%08d" % i * (SIZE // 8)


async def written(uri: str) -> tuple[int, tuple[str, ...]]:
    """A closed ledger on two bookies."""
    async with library.connect(uri) as client:
        async with await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2) as writer:
            for i in range(0, ENTRIES, 100):
                await writer.append_batch([payload(n) for n in range(i, i + 100)])
        return writer.ledger_id, writer.ensemble


def move(cluster: LocalCluster, ledger_id: int, old: tuple[str, ...]) -> None:
    """All copies go to other bookies, and then the old ones end."""
    for bookie_id in old:
        bkpy("bookie", "drain", bookie_id, uri=cluster.connect_string)

    async def end() -> None:
        async with library.connect(cluster.connect_string) as client:
            (fragment,) = (await client.ledger_metadata(ledger_id)).fragments
        assert not set(old) & set(fragment.bookies)
        for bookie in cluster.bookies:
            if bookie.id in old:
                await bookie.kill()

    asyncio.run(end())


def waiting_at(started: Path, go: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What a task does with its rows: it takes the first ones, and the rest when the file `go` is there."""
    folder, signal_file = str(started), str(go)

    def digests(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import hashlib
        import os
        import uuid

        import pyarrow

        first = True
        for batch in batches:
            if first:
                open(f"{folder}/{uuid.uuid4()}", "w").close()
                while not os.path.exists(signal_file):
                    time.sleep(0.05)
                first = False
            found = [hashlib.sha256(one).hexdigest() for one in batch.column("payload").to_pylist()]
            yield pyarrow.RecordBatch.from_arrays([batch.column("entry_id"), pyarrow.array(found)], ["id", "digest"])

    return digests


@pytest.mark.exhaustive
@pytest.mark.scenario(41)
def test_tasks_go_on_and_those_that_begin_later_read_what_was_moved(spark: SparkSession, tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "cluster", bookies=4)
    started, go = tmp_path / "started", tmp_path / "go"
    started.mkdir()
    rows: list[Any] = []
    try:
        asyncio.run(cluster.start())
        uri = cluster.connect_string
        ledger_id, old = asyncio.run(written(uri))
        reader = spark.read.format("bkpy").option("metadataServiceUri", uri).option("ledgers", str(ledger_id))
        source = reader.option("maxBytesPerPartition", str(ENTRIES * SIZE // PARTITIONS)).load()
        job = source.select("entry_id", "payload").mapInArrow(waiting_at(started, go), "id bigint, digest string")
        collecting = threading.Thread(target=lambda: rows.extend(job.collect()))
        collecting.start()

        def some_started() -> bool:
            alive, some = collecting.is_alive(), any(started.iterdir())
            assert some or alive
            return some

        eventually_here(some_started, "the job is planned, and tasks read", deadline_s=PATIENCE_S)
        move(cluster, ledger_id, old)
        assert len(list(started.iterdir())) < PARTITIONS  # others have not begun yet
        assert not rows
        go.touch()
        collecting.join(PATIENCE_S)
        assert {row["id"]: row["digest"] for row in rows} == {
            i: hashlib.sha256(payload(i)).hexdigest() for i in range(ENTRIES)
        }
        assert len(rows) == ENTRIES
        assert export_ledgers(uri, [ledger_id], tmp_path / "exported", spark=spark).rows == ENTRIES
    finally:
        go.touch()
        asyncio.run(cluster.stop())
