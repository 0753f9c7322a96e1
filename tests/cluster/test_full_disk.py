"""A bookie whose file system really fills up: it takes no new entries, keeps what it has, and goes on by itself."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

import bkpy
from bkpy.local import LocalCluster
from bkpy.local.process import poll
from bkpy.local.zookeeper import ZooKeeperServer

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


def enlarge(directory: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=160m", str(directory)], check=True)


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
        "compaction_free_bytes_min": 8 * MIB,
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
            with pytest.raises(
                bkpy.NotEnoughBookiesError,
                match=rf"0 are available: none; 1 are read-only: {bookie.id} \(too little disk space\)",
            ):
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


@pytest.mark.privileged
async def test_a_local_cluster_says_that_its_disk_is_full(small: Path) -> None:
    """ZooKeeper's own log can't say it."""
    server = ZooKeeperServer(small / "zookeeper")
    await server.start()
    await server.stop()
    free = shutil.disk_usage(small).free
    (small / "somebody's").write_bytes(bytes(free - 4096))  # its configuration can be written
    try:
        with pytest.raises(bkpy.BookKeeperError, match=r"; the disk of .*zookeeper is full \(\d+ bytes are free\)"):
            await server.start()
        (small / "somebody's").unlink()
        await server.start()
    finally:
        await server.kill()


@pytest.mark.privileged
async def test_a_bookie_whose_disk_fills_to_the_last_byte_never_loses_and_comes_back(
    tmp_path: Path, small: Path
) -> None:
    """Nothing is kept free, so it runs into the end of the disk at whatever it does: it ends, and says why.

    Started again without space it may end again; with space it has all that it acknowledged.
    """
    config = {
        "journal_directories": [str(small / "journal")],
        "ledger_directories": [str(small / "ledgers")],
        "journal_max_size_mb": 1,
        "memtable_bytes_max": 2 * MIB,
        "index_bytes_max": 16 * MIB,
        "disk_free_bytes_min": 0,
        "disk_free_bytes_resume": 1,
    }
    async with LocalCluster(tmp_path / "cluster", bookies=1, config=config) as cluster:
        (bookie,) = cluster.bookies
        sizes = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}
        async with bkpy.connect(cluster.connect_string, no_bookies_timeout_s=1.0, add_timeout_s=5.0) as client:
            writer = await client.create_ledger(**sizes)
            stored = 0
            with contextlib.suppress(bkpy.BookKeeperError):
                while True:
                    await writer.append_batch([b"%d" % i * 1000 for i in range(stored, stored + 100)])
                    stored += 100

            async def ended() -> bool:
                return bookie.pid is None

            assert await poll(ended, PATIENCE_S)
            assert "No space left" in bookie.log_path.read_text()
            for _ in range(3):  # it may come up on what the last start gave back
                with contextlib.suppress(bkpy.BookKeeperError):
                    await bookie.start()
                await bookie.kill()
        enlarge(small)
        await bookie.start()
        async with bkpy.connect(cluster.connect_string) as client:
            reader = await client.recover_ledger(writer.ledger_id)
            assert reader.last_add_confirmed >= stored - 1
            async for entry in reader.read():
                assert entry.data == b"%d" % entry.entry_id * 1000
            again = await client.create_ledger(**sizes)
            await again.append(b"as before")
            await again.close()
