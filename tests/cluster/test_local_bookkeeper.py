"""`bkpy local --protocol bookkeeper`: a cluster of BookKeeper's with bkpy's bookies, as real processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import bkpy
from bkpy.errors import ConfigError
from bkpy.local import LocalCluster

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.exhaustive
async def test_a_local_cluster_of_bookkeepers_keeps_its_ledgers_and_its_protocol(tmp_path: Path) -> None:
    entries = [b"%d" % i for i in range(100)]
    async with LocalCluster(tmp_path / "cluster", 1, {"protocol": "bookkeeper"}) as cluster:
        async with bkpy.connect(cluster.connect_string) as client:
            writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
            for entry in entries:
                await writer.append(entry)
            await writer.close()
        await cluster.bookies[0].kill()
        await cluster.bookies[0].start()
        async with bkpy.connect(cluster.connect_string) as client:
            reader = await client.open_ledger(writer.ledger_id)
            assert [entry.data async for entry in reader.read()] == entries
    async with LocalCluster(tmp_path / "cluster", 1) as cluster:
        assert cluster.of_bookkeeper, "as it was made"
        async with bkpy.connect(cluster.connect_string) as client:
            reader = await client.open_ledger(writer.ledger_id)
            assert [entry.data async for entry in reader.read()] == entries
    with pytest.raises(ConfigError, match="has protocol = bookkeeper"):
        await LocalCluster(tmp_path / "cluster", 1, {"protocol": "bkpy"}).start()
