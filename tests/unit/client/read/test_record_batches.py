"""Arrow's record batches of ledgers and logs: the same entries as those that `read` gives."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.in_process import InProcess

import bkpy

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator
    from pathlib import Path

    from bkpy.client.client import Client


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    local = InProcess(tmp_path)
    await local.start("abc")
    yield await local.client(read_bytes=400)
    await local.stop()


async def rows(batches: AsyncGenerator[pa.RecordBatch, None]) -> list[dict[str, object]]:
    found = [batch async for batch in batches]
    for batch in found:
        batch.validate(full=True)
    return pa.Table.from_batches(found).to_pylist()


@pytest.mark.thorough
@pytest.mark.parametrize("digest", ["crc32c", "hmac-sha256"])
async def test_a_ledger(client: Client, digest: str) -> None:
    payloads = [b"x" * (i % 7) for i in range(40)]
    async with await client.create_ledger(digest=digest) as writer:
        await writer.append_batch(payloads)
    async with await client.open_ledger(writer.ledger_id) as reader:
        batches = [batch.num_rows async for batch in reader.read_batches(3, 38)]
        assert len(batches) > 1
        assert sum(batches) == 36
        assert await rows(reader.read_batches(3, 38)) == [
            {"ledger_id": writer.ledger_id, "entry_id": i, "payload": payloads[i]} for i in range(3, 39)
        ]
        with pytest.raises(bkpy.NoSuchEntryError, match="entry 40 is past the last entry, 39"):
            await rows(reader.read_batches(0, 40))
        with pytest.raises(bkpy.ConfigError, match="first must be"):
            reader.read_batches(-1)


@pytest.mark.parametrize("producer", [None, "shop"])
async def test_a_log(client: Client, producer: str | None) -> None:
    numbers: list[dict[str, int]] = [{"sequence": 10 + i} if producer else {} for i in range(9)]
    async with await client.open_log("orders", create=True, producer=producer, roll_entries=4) as log:
        for i in range(9):
            await log.append(b"%d" % i, **numbers[i])
    async with await client.read_log("orders") as reader:
        entries = [entry async for entry in reader.read(1, 7)]
        found = await rows(reader.read_batches(1, 7))
        with pytest.raises(bkpy.ConfigError, match="first must be"):
            reader.read_batches(-1)
    assert [entry.data for entry in entries] == [b"%d" % i for i in range(1, 8)]
    assert [row.pop("time").timestamp() for row in found] == [entry.time for entry in entries]  # type: ignore[attr-defined]
    assert found == [
        {
            "position": entry.position,
            "ledger_id": entry.ledger_id,
            "entry_id": entry.entry_id,
            "producer": producer,
            "sequence": entry.sequence,
            "payload": entry.data,
        }
        for entry in entries
    ]


async def test_where_pyarrow_is_missing(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    async with await client.open_log("orders", create=True):
        pass
    async with await client.create_ledger() as writer:
        pass
    readers = await client.open_ledger(writer.ledger_id), await client.read_log("orders")
    for name in ("bkpy.client.read.arrow", "bkpy.log.arrow"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for reader in readers:
        with pytest.raises(bkpy.ConfigError, match=r"pyarrow is missing; get it with pip install 'bkpy\[arrow\]'"):
            reader.read_batches()
