"""kill -9 again and again while checkpoints, rolling, collection and compaction all go on under load.

Ledgers come and go: they are written, closed, and most of them deleted. After each start the bookie has to give back
every entry of every living ledger that it ever acknowledged, itself, whatever the others have.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import urllib.request
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import bkpy
from bkpy.local import LocalCluster
from bkpy.local.process import poll
from tests.command import bkpy as command

from .load import Load
from .oracle import Promises, check
from .witness import Witness

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from bkpy.local import LocalBookie

DEADLINE_S = 60.0
KIB, MIB = 1 << 10, 1 << 20
LIVING_MAX = 12  # closed ledgers that are kept at a time
BUSY = {
    "metrics_port": 0,
    "journal_max_size_mb": 1,
    "journal_max_backups": 0,
    "journal_run_bytes_min": 4 * KIB,  # some batches stay in their journal files, others don't
    "journal_run_share_min": 0.1,
    "memtable_bytes_max": MIB,
    "checkpoint_interval_s": 0.2,
    "entry_log_max_size_mb": 1,
    "entry_log_blocks_max": 20,
    "gc_interval_s": 0.2,
    "reclaim_interval_s": 0.1,
    "compaction_minor_interval_s": 0.1,
    "compaction_minor_living_ratio": 0.9,
    "compaction_step_bytes": 64 * KIB,
    "compaction_commit_bytes": 256 * KIB,
    "index_shrink_bytes_min": 0,
    # A copy that an ensemble change has left behind may be denied after that; here nothing may.
    "gc_over_replicated_interval_s": 0,
}
SIZES = ((3, 3, 2), (3, 3, 2), (2, 2, 2), (1, 1, 1))


class Traffic:
    """Ledgers that are written all the time, each for a moment, and most of which are deleted."""

    def __init__(self, client: bkpy.Client, witness: Witness, rng: random.Random) -> None:
        self.living: dict[int, Promises] = {}  # closed and not deleted
        self.deleted = 0
        self._client = client
        self._witness = witness
        self._rng = rng
        self._stop = asyncio.Event()
        self._tasks = [asyncio.create_task(self._lane(n, *sizes)) for n, sizes in enumerate(SIZES)]

    async def stop(self) -> None:
        """Return when every ledger is closed."""
        self._stop.set()
        await asyncio.gather(*self._tasks)

    def check(self) -> None:
        """Fail if something has ended that was to go on."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def _lane(self, number: int, ensemble: int, write: int, ack: int) -> None:
        while not self._stop.is_set():
            try:
                writer = await self._client.create_ledger(ensemble_size=ensemble, write_quorum=write, ack_quorum=ack)
            except bkpy.NotEnoughBookiesError:  # one of them is down
                await self._wait(0.05)
                continue
            load = Load(writer, outstanding=10, filler_bytes_max=4000, pause_s=0.05, seed=writer.ledger_id)
            async with load:
                # The first lane's ledgers are open while several bookies die.
                await self._wait(8.0 if number == 0 else self._rng.uniform(0.2, 1.0))
            if load.error is not None:
                raise load.error
            await writer.close()
            self.living[writer.ledger_id] = load.promises
            while len(self.living) > LIVING_MAX:
                await self.delete(self._rng.choice(list(self.living)))

    async def _wait(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.wait()

    async def delete(self, ledger_id: int) -> None:
        """From here on its bookies may deny it."""
        self._witness.forget(ledger_id)
        del self.living[ledger_id]
        self.deleted += 1
        await self._client.delete_ledger(ledger_id)


class Work(NamedTuple):
    """What a bookie has done since its start."""

    checkpoints: float = 0
    journal_files: float = 0  # that were begun
    entry_logs: float = 0
    collected: float = 0  # ledgers
    compacted: float = 0  # bytes
    reclaimed: float = 0  # bytes


METRICS = {
    "checkpoints": "checkpoint_seconds_count",
    "collected": 'gc_ledgers_total{kind="gone"}',
    "compacted": "compacted_bytes_total",
    "reclaimed": "reclaimed_bytes_total",
}


class Life:
    """One run of a bookie's process, from its start on."""

    def __init__(self, client: bkpy.Client, bookie: LocalBookie) -> None:
        self.work = Work()
        self._client = client
        self._bookie = bookie
        self._began = newest(bookie)

    async def is_busy(self) -> bool:
        """Whether it has done some of everything."""
        page = await asyncio.to_thread(self._page)
        found = {name: page.get(f"bkpy_bookie_{metric}", 0.0) for name, metric in METRICS.items()}
        journal, log = (now > before for now, before in zip(newest(self._bookie), self._began, strict=True))
        self.work = Work(**found, journal_files=journal, entry_logs=log)
        return all(self.work)

    def _page(self) -> dict[str, float]:
        """Its metrics; none as long as it can't be asked."""
        info = self._client.bookies.get(self._bookie.id)
        if info is None:
            return {}
        where = f"http://127.0.0.1:{info.metrics_port}"
        try:
            with urllib.request.urlopen(f"{where}/gc") as answer:
                if json.load(answer)["bookie_id"] != self._bookie.id:
                    return {}
            with urllib.request.urlopen(f"{where}/metrics") as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return {}
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines) if name[:1] != "#"}


def newest(bookie: LocalBookie) -> tuple[str, str]:
    """Names of the newest journal file and the newest entry log."""
    journal = [path.name for path in (bookie.directory / "journal").glob("*.txn")]
    return max(journal, default=""), max((path.name for path in logs_of(bookie, "*.log")), default="")


def logs_of(bookie: LocalBookie, pattern: str) -> list[Path]:
    return list((bookie.directory / "ledgers").glob(pattern))


def bytes_of_logs(bookie: LocalBookie) -> int:
    """Of entry logs, and of journal files that have stayed."""
    total = 0
    for path in (*logs_of(bookie, "*.log"), *logs_of(bookie, "*.txn")):
        with contextlib.suppress(FileNotFoundError):  # it has just gone
            total += path.stat().st_blocks * 512
    return total


async def killed_when_busy(client: bkpy.Client, bookie: LocalBookie, rng: random.Random) -> Work:
    """Let the bookie, which has just started, do some of everything; kill it a random moment later."""
    life = Life(client, bookie)
    assert await poll(life.is_busy, DEADLINE_S), f"{bookie.id} had nothing to do: {life.work}"
    await asyncio.sleep(rng.uniform(0, 0.3))
    await bookie.kill()
    return life.work


async def killed_while_it_starts(bookie: LocalBookie, rng: random.Random) -> None:
    """Wherever its start has come to: before, in or behind the replay."""
    starting = asyncio.create_task(bookie.start())
    await asyncio.sleep(rng.uniform(0, 1.0))
    await bookie.kill()
    with contextlib.suppress(bkpy.BookieUnavailableError):
        await starting
    await bookie.kill()  # if it had not begun


async def look_into(bookie: LocalBookie, inspect: Iterable[str]) -> None:
    """Nothing is wrong in the directories of a bookie that was killed; `inspect`: what to show of it."""
    config = ("--config", bookie.config_path)
    found = await asyncio.to_thread(command, "bookie", "check", *config, "--json")
    told: dict[str, Any] = json.loads(found.stdout)
    assert (told["wrong"], told["untold"]) == (0, []), told
    for what in inspect:
        found = await asyncio.to_thread(command, "inspect", what, bookie.config_path, "--json")
        assert json.loads(found.stdout.splitlines()[-1])["damages"] == 0


@pytest.mark.scenario(55)
@pytest.mark.exhaustive
@pytest.mark.parametrize("kills", [10, pytest.param(30, marks=[pytest.mark.timeout(900), pytest.mark.long])])
async def test_killed_again_and_again_while_everything_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int
) -> None:
    rng = random.Random(kills)
    witness = Witness(monkeypatch)
    kept_files = 0
    lives: list[Work] = []
    async with (
        LocalCluster(tmp_path, bookies=3, config=BUSY) as cluster,
        bkpy.connect(cluster.connect_string) as client,
    ):
        traffic = Traffic(client, witness, rng)
        for number in range(kills):
            bookie = cluster.bookies[number % 3] if number < 3 else rng.choice(cluster.bookies)
            lives.append(await killed_when_busy(client, bookie, rng))
            kept_files += len(logs_of(bookie, "*.txn"))
            for _ in range(rng.randrange(2)):
                await killed_while_it_starts(bookie, rng)
            await bookie.start()
            assert await witness.check(client, bookie.id) > 0
            traffic.check()
        await traffic.stop()
        assert all(all(work) for work in lives)
        assert kept_files, "no journal file has stayed"

        for bookie in cluster.bookies:
            assert await witness.check(client, bookie.id) > 0
        async with bkpy.connect(cluster.connect_string) as fresh:
            for ledger_id, promises in traffic.living.items():
                metadata = await fresh.ledger_metadata(ledger_id)
                assert all(witness.copies(ledger_id, i) >= metadata.ack_quorum for i in promises.acknowledged)
                await check(fresh, promises)

        for ledger_id in list(traffic.living)[1:]:
            await traffic.delete(ledger_id)
        (kept,) = traffic.living.values()
        # What lives, what a tenth of is dead, and the files that are being filled.
        few = 2 * sum(promise.size for promise in kept.acknowledged.values()) + 4 * MIB

        async def given_back() -> bool:
            return all(bytes_of_logs(bookie) <= few for bookie in cluster.bookies)

        assert await poll(given_back, DEADLINE_S), (few, [bytes_of_logs(bookie) for bookie in cluster.bookies])
        looks = (("journal", "marks"), ("entry-log",), ("index",))
        for bookie, look in zip(cluster.bookies, looks, strict=True):
            await witness.check(client, bookie.id)
            await bookie.kill()
            await look_into(bookie, look)
            log = bookie.log_path.read_text()
            assert "damage in" not in log
            assert "Traceback" not in log
