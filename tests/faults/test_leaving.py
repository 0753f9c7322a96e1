"""A bookie leaves its cluster while others die, and one that is lost for good is struck off when nothing needs it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any

import pytest

import bkpy
from bkpy.errors import IdentityError
from bkpy.local import LocalCluster
from bkpy.metadata.bookies.cookies import list_cookies
from bkpy.metadata.bookies.draining import Drains
from bkpy.metadata.replication.locks import held_locks
from bkpy.metadata.store.outcome import Done, Gone
from tests.command import as_json
from tests.command import bkpy as command
from tests.hooks import cluster_of

from .healing import CONFIG, Healing, Step, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from bkpy.local import LocalBookie

LEDGERS = 12
LEAVER, TARGET, ZOOKEEPER, AUDITOR, CANCEL = "leaver", "target", "zookeeper", "auditor", "cancel"


class Leaving:
    """One bookie drains, as the cluster's own processes do it."""

    def __init__(self, cluster: LocalCluster, client: bkpy.Client, bookie: LocalBookie) -> None:
        self.healing = Healing(cluster.connect_string, client)
        self.bookie = bookie
        self._cluster = cluster
        self._metadata = metadata = cluster_of(client)
        self._drains = Drains(metadata.store, metadata.root, metadata.store.runtime)

    async def begin(self) -> None:
        assert isinstance(await self._drains.begin(self.bookie.id), Done)

    async def in_the_middle(self, rng: random.Random) -> None:
        """Some of its ledgers have left it, and others not."""
        await self.healing.at(Step.SWAPPED, self.bookie.id)
        await asyncio.sleep(rng.uniform(0, 0.3))

    async def cancel(self) -> None:
        drain = await self._drains.read(self.bookie.id)
        assert drain is not None
        assert isinstance(await self._drains.cancel(drain), Gone)

    async def refused(self) -> None:
        """It can't be struck off, and it is said how many ledgers name it. Meanwhile nothing is copied."""
        healing, metadata = self.healing, self._metadata

        async def at_rest() -> bool:
            return not await held_locks(metadata.store, metadata.root)

        assert isinstance(await healing.marks.set_enabled(False), Done)
        await healing.switched_off(self._cluster.bookies)
        await until(at_rest, "the work that has begun is done")
        if await healing.naming(self.bookie.id):
            words = ("bookie", "decommission", self.bookie.id, "--yes")
            told = await asyncio.to_thread(command, *words, uri=healing.uri, status=1)
            assert b"ledger" in told.stderr, told.stderr.decode()
            assert self.bookie.id in await self.cookies()
        assert isinstance(await healing.marks.set_enabled(True), Done)

    async def cookies(self) -> set[str]:
        """Of all bookies that the cluster knows."""
        return set(await list_cookies(self._metadata.store, self._metadata.root))

    async def die(self, who: str, rng: random.Random) -> None:
        """kill -9, and back a moment later."""
        process: Any = self._cluster.zookeeper
        if who != ZOOKEEPER:
            name = {
                LEAVER: self.bookie.id,
                TARGET: await self.healing.concerned(self.bookie.id, target=True),
                AUDITOR: await self.healing.auditor(),
            }[who]
            process = next(bookie for bookie in self._cluster.bookies if bookie.id == name)
        await process.kill()
        await asyncio.sleep(rng.uniform(0, 3))
        await process.start()

    async def gone(self) -> None:
        """Nothing names it any more, and so it can go."""
        await self.healing.healed(self.bookie.id)
        told = await asyncio.to_thread(as_json, "bookie", "decommission", self.bookie.id, "--yes", uri=self.healing.uri)
        assert (told["decommissioned"], told["named_by"]) == (True, 0)
        await self.bookie.stop()
        await self.healing.demand()


@contextlib.asynccontextmanager
async def five(directory: Path) -> AsyncIterator[tuple[LocalCluster, bkpy.Client]]:
    async with LocalCluster(directory, 5, CONFIG) as cluster, bkpy.connect(cluster.connect_string) as client:
        yield cluster, client
        for bookie in cluster.bookies:
            assert "Traceback" not in bookie.log_path.read_text()


@pytest.mark.exhaustive
@pytest.mark.scenario(60)
@pytest.mark.parametrize(
    ("seed", "deaths"),
    [
        (0, (TARGET, CANCEL, ZOOKEEPER)),
        *enumerate(
            [(LEAVER,), (TARGET,), (ZOOKEEPER,), (AUDITOR,), (LEAVER, CANCEL), (CANCEL, LEAVER, TARGET, AUDITOR)], 1
        ),
    ],
)
async def test_a_bookie_leaves_whatever_dies_meanwhile(tmp_path: Path, seed: int, deaths: tuple[str, ...]) -> None:
    rng = random.Random(seed)
    async with five(tmp_path) as (cluster, client):
        leaving = Leaving(cluster, client, rng.choice(cluster.bookies))
        healing = leaving.healing
        await healing.write(LEDGERS, abandoned=1)
        load = await healing.begin(pause_s=0.05)
        await healing.auditor()
        await leaving.begin()
        for death in deaths:
            await leaving.in_the_middle(rng)
            if death != CANCEL:
                await leaving.refused()
                await leaving.die(death, rng)
                continue
            await leaving.cancel()

            async def stays() -> bool:
                # The ledger that is being written may keep its mark: workers verify its share once it is closed.
                void = set(await healing.marked()) - await healing.open_after_return()
                return leaving.bookie.id in client.bookies and not void

            await until(stays, "it takes entries again, and its marks are void")
            await healing.write(4)
            await leaving.begin()
        await healing.end(load)
        await leaving.gone()
        assert leaving.bookie.id not in await leaving.cookies()


@pytest.mark.exhaustive
@pytest.mark.scenario(60)
async def test_a_bookie_that_never_comes_back_is_struck_off_when_nothing_names_it(tmp_path: Path) -> None:
    async with five(tmp_path) as (cluster, client):
        lost = cluster.bookies[1]
        leaving = Leaving(cluster, client, lost)
        await leaving.healing.write(LEDGERS)
        words = ("bookie", "decommission", lost.id, "--lost", "--yes")
        refused = await asyncio.to_thread(command, *words, uri=cluster.connect_string, status=1)
        assert b"is registered" in refused.stderr
        await lost.kill()
        await leaving.healing.healed(lost.id)

        async def away() -> bool:
            return lost.id not in client.bookies

        await until(away, "its registration ends")
        told = await asyncio.to_thread(as_json, *words, uri=cluster.connect_string)
        assert (told["decommissioned"], told["named_by"]) == (True, 0)
        await leaving.healing.demand()
        assert lost.id not in await leaving.cookies()
        with pytest.raises(IdentityError, match="was decommissioned"):  # the cluster remembers its id
            await lost.start()
