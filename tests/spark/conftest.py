"""One cluster with some ledgers in it, and one Spark session, for all tests of the data source and the export."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark_classes import VARIABLES

import bkpy
from bkpy.local import LocalCluster
from bkpy.spark.session import own_session

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

for variable, options in VARIABLES.items():
    os.environ.setdefault(variable, options)

# What text formats get wrong: separators, quotes, line breaks, blanks at the ends, nothing at all.
AWKWARD = ["plain", "", " blanks around ", 'a "quoted", word', "two\nlines", "tab\tand \\ backslash", "naïve 日本語 🙂"]


@dataclass(frozen=True)
class Ledgers:
    """A cluster, and the payloads of its ledgers. `plain`, `striped` and `awkward` are closed and have entries."""

    cluster: LocalCluster
    uri: str
    plain: int
    striped: int
    awkward: int
    empty: int
    unfinished: int
    payloads: dict[int, list[bytes]]

    @property
    def closed(self) -> list[int]:
        return [self.plain, self.striped, self.awkward, self.empty]

    def write(self, payloads: Sequence[bytes], **attributes: Any) -> int:
        """One more closed ledger."""
        return asyncio.run(write(self.uri, payloads, **attributes))

    def delete(self, ledger_id: int) -> None:
        async def delete() -> None:
            async with bkpy.connect(self.uri) as client:
                await client.delete_ledger(ledger_id)

        asyncio.run(delete())


async def write(uri: str, payloads: Sequence[bytes], *, close: bool = True, **attributes: Any) -> int:
    async with bkpy.connect(uri) as client:
        writer = await client.create_ledger(**attributes)
        for i in range(0, len(payloads), 500):
            await writer.append_batch(payloads[i : i + 500])
        if close:
            await writer.close()
        return writer.ledger_id


@pytest.fixture(scope="package")
def ledgers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledgers]:
    cluster = LocalCluster(tmp_path_factory.mktemp("cluster"))
    try:
        asyncio.run(cluster.start())
        uri = cluster.connect_string
        # Of all lengths from none on, and every value of a byte.
        plain = [bytes((i + k) % 256 for k in range(i % 300)) for i in range(5000)]
        striped = [b"%d" % i * 20 for i in range(3000)]
        awkward = [text.encode() for text in AWKWARD]
        sizes = {"ensemble_size": 3, "write_quorum": 2, "ack_quorum": 2}
        payloads = {
            asyncio.run(write(uri, plain)): plain,
            asyncio.run(write(uri, striped, **sizes)): striped,
            asyncio.run(write(uri, awkward)): awkward,
            asyncio.run(write(uri, [])): [],
        }
        unfinished = asyncio.run(write(uri, [b"not yet"], close=False))
        ids = list(payloads)
        yield Ledgers(cluster, uri, ids[0], ids[1], ids[2], ids[3], unfinished, payloads)
    finally:
        asyncio.run(cluster.stop())


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    config = {
        "spark.sql.shuffle.partitions": "2",
        "spark.python.daemon.module": "tests.spark.loaded_workers",
        "spark.sql.warehouse.dir": tmp_path_factory.mktemp("warehouse").as_uri(),
    }
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).with_name("planning")), prepend=os.pathsep)
    # Its own handler of Ctrl-C, unlike PySpark's, doesn't speak to a Java process that is just being spoken to.
    with own_session("tests", master="local[2]", config=config) as session:
        monkeypatch.undo()  # the Java process has it, and gives it to what it starts
        yield session
