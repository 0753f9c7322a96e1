"""A bookie is killed, a disk fills up, ledgers are stuck: the alarms fire, name that and nothing else, and clear."""

from __future__ import annotations

import contextlib
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

import bkpy
from bkpy.local import LocalCluster
from tests.waiting import eventually

from .prometheus import DEADLINE_S, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .prometheus import Prometheus

pytestmark = [pytest.mark.prometheus, pytest.mark.exhaustive]

MIB = 1 << 20
SOON: dict[str, Any] = {
    "metrics_port": 0,
    "session_timeout_s": 2.0,
    "lost_bookie_settle_s": 0.5,
    "lost_bookie_recovery_delay_s": 1.0,
    "open_ledger_grace_s": 0.5,
    "audit_look_interval_s": 0.2,
    "audit_follow_interval_s": 0.5,
    "worker_report_interval_s": 0.2,
    "gc_interval_s": 1.0,
}
ONE = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}


def pages(client: bkpy.Client) -> dict[str, int]:
    there = {**client.bookies, **client.read_only_bookies}
    return {name: info.metrics_port for name, info in there.items() if info.metrics_port is not None}


async def scraped(prometheus: Prometheus, client: bkpy.Client, count: int) -> None:
    """So many bookies are scraped, and answer."""

    async def all_there() -> dict[str, int]:
        return pages(client)

    prometheus.scrape(await eventually(all_there, "bookies have pages", until=lambda found: len(found) == count))
    up = 'count(up{job="bookies"} == 1)'
    await eventually(lambda: prometheus.value(up), f"{count} are scraped", until=lambda now: now == count)


async def test_a_killed_bookie_and_ledgers_that_are_stuck_for_it(tmp_path: Path) -> None:
    async with (
        LocalCluster(tmp_path / "cluster", 3, SOON) as cluster,
        bkpy.connect(cluster.connect_string) as client,
        running(tmp_path / "prometheus") as prometheus,
    ):
        for _ in range(3):
            async with await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2) as writer:
                await writer.append_batch([b"entry"] * 10)
        await scraped(prometheus, client, 3)
        await prometheus.clears()
        await cluster.bookies[1].kill()  # nobody can take its place
        about_it = {"BkpyBookieDoesntAnswer", "BkpyBookieIsLost", "BkpyLedgersAreStuck"}
        await prometheus.fires(*about_it)
        assert await prometheus.firing() == about_it
        await cluster.bookies[1].start()
        await eventually(
            lambda: len(pages(client)), "it is back", until=lambda count: count == 3, deadline_s=DEADLINE_S
        )
        await scraped(prometheus, client, 3)
        await prometheus.clears()


async def test_most_bookies_are_absent(tmp_path: Path) -> None:
    async with (
        LocalCluster(tmp_path / "cluster", 3, SOON) as cluster,
        bkpy.connect(cluster.connect_string) as client,
        running(tmp_path / "prometheus") as prometheus,
    ):
        await scraped(prometheus, client, 3)
        for bookie in cluster.bookies[:2]:
            await bookie.kill()
        await prometheus.fires("BkpyMostBookiesAreAbsent", "BkpyBookieDoesntAnswer")
        for bookie in cluster.bookies[:2]:
            await bookie.start()
        await scraped(prometheus, client, 3)
        await prometheus.clears()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MiB."""
    directory = tmp_path / "small"
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(directory)], check=True)
    yield directory
    subprocess.run(["umount", str(directory)], check=True)


@pytest.mark.privileged
async def test_a_disk_that_fills_up(tmp_path: Path, small: Path) -> None:
    config = {
        **SOON,
        "journal_directories": [str(small / "journal")],
        "ledger_directories": [str(small / "ledgers")],
        "journal_max_size_mb": 1,
        "index_bytes_max": 16 * MIB,
        "disk_free_bytes_min": 16 * MIB,
        "compaction_free_bytes_min": 8 * MIB,
        "disk_free_bytes_resume": 24 * MIB,
        "disk_check_interval_s": 0.05,
    }
    async with (
        LocalCluster(tmp_path / "cluster", 1, config) as cluster,
        bkpy.connect(cluster.connect_string) as client,
        running(tmp_path / "prometheus") as prometheus,
    ):
        async with await client.create_ledger(**ONE) as writer:
            await writer.append_batch([b"entry"] * 10)
        await scraped(prometheus, client, 1)
        await prometheus.clears()
        filling = small / "somebody's"
        with contextlib.closing(filling.open("wb")) as file:
            file.write(bytes(50 * MIB))
        await prometheus.fires("BkpyBookieTakesNoEntries")
        assert await prometheus.firing() == {"BkpyBookieTakesNoEntries"}
        filling.unlink()
        await prometheus.clears()
