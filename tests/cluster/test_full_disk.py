"""A bookie whose file system really fills up: it takes no new entries, keeps what it has, and goes on by itself."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

import bkpy
from bkpy.local import LocalCluster
from bkpy.local.process import poll

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MIB = 1 << 20
PATIENCE_S = 60.0


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MiB."""
    directory = tmp_path / "small"
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(directory)], check=True)
    yield directory
    subprocess.run(["umount", str(directory)], check=True)


@pytest.mark.privileged
async def test_a_bookie_on_a_full_disk_serves_what_it_has_until_there_is_space_again(
    tmp_path: Path, small: Path
) -> None:
    config = {
        "journal_directories": [str(small / "journal")],
        "ledger_directories": [str(small / "ledgers")],
        "journal_max_size_mb": 1,
        "index_bytes_max": 16 * MIB,
        "disk_free_bytes_min": 16 * MIB,
        "disk_free_bytes_resume": 24 * MIB,
        "disk_check_interval_s": 0.05,
    }
    async with LocalCluster(tmp_path / "cluster", bookies=1, config=config) as cluster:
        (bookie,) = cluster.bookies
        async with bkpy.connect(cluster.connect_string, no_bookies_timeout_s=0.0) as client:
            sizes = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}
            payloads = [b"%d" % i * 1000 for i in range(1000)]
            writer = await client.create_ledger(**sizes)
            await writer.append_batch(payloads)
            await writer.close()
            unfinished = await client.create_ledger(**sizes)
            await unfinished.append(b"stored before")

            async def read_only() -> bool:
                return bookie.id in client.read_only_bookies and bookie.id not in client.bookies

            async def writable() -> bool:
                return bookie.id in client.bookies and bookie.id not in client.read_only_bookies

            (small / "somebody's").write_bytes(bytes(50 * MIB))
            assert await poll(read_only, PATIENCE_S)
            with pytest.raises(bkpy.NotEnoughBookiesError):
                await client.create_ledger(**sizes)
            with pytest.raises(bkpy.BookKeeperError):
                await unfinished.append(b"no space for it")
            reader = await client.open_ledger(writer.ledger_id)
            assert [entry.data async for entry in reader.read()] == payloads
            reader = await client.recover_ledger(unfinished.ledger_id)
            assert [entry.data async for entry in reader.read()] == [b"stored before"]

            await bookie.kill()
            await bookie.start()  # on what space is kept for this
            assert await poll(read_only, PATIENCE_S)
            reader = await client.open_ledger(writer.ledger_id)
            assert [entry.data async for entry in reader.read()] == payloads

            (small / "somebody's").unlink()
            assert await poll(writable, PATIENCE_S)
            again = await client.create_ledger(**sizes)
            await again.append_batch(payloads)
            await again.close()
