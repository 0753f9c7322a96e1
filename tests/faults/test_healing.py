"""A bookie is killed for good, and while what it had is copied something else is killed, at each step of the work.

The work goes by marks, locks, copies and swaps that many processes make, so that any of them may end anywhere. In the
end every ledger is closed and whole on living bookies, whatever was acknowledged is in it, and no mark or lock is left.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import TYPE_CHECKING

import pytest

import bkpy
from bkpy.local import LocalCluster
from bkpy.metadata.replication.locks import held_locks
from tests.command import as_json
from tests.command import bkpy as command
from tests.hooks import cluster_of

from .healing import CONFIG, Healing, Step, until

if TYPE_CHECKING:
    from pathlib import Path

    from bkpy.local import LocalBookie

LEDGERS = 10
AUDITOR, WORKER, SOURCE, TARGET, ZOOKEEPER, SWITCH = "auditor", "worker", "source", "target", "zookeeper", "switch"
DEATHS = (AUDITOR, WORKER, SOURCE, TARGET, ZOOKEEPER, SWITCH)
ALL = list(itertools.product(DEATHS, Step))
ONE = [(WORKER, Step.LOCKED)]  # in simulated runs the others die as well


class Round:
    """One bookie is lost, something else dies, and the cluster heals."""

    def __init__(self, cluster: LocalCluster, client: bkpy.Client, rng: random.Random) -> None:
        self.healing = Healing(cluster.connect_string, client)
        self._cluster = cluster
        self._client = client
        self._rng = rng

    def _bookie(self, bookie_id: str) -> LocalBookie:
        return next(bookie for bookie in self._cluster.bookies if bookie.id == bookie_id)

    async def run(self, death: str, step: Step) -> None:
        healing, rng = self.healing, self._rng
        await healing.write(LEDGERS, abandoned=1)
        load = await healing.begin(pause_s=0.05)
        auditor = await healing.auditor()
        others = [bookie.id for bookie in self._cluster.bookies if bookie.id != auditor]
        victim = rng.choice(others)  # not the auditor, whose successor takes long enough to be seen
        await self._bookie(victim).kill()
        await healing.at(step, victim)
        await asyncio.sleep(rng.choice((0.0, rng.uniform(0, 0.2))))
        await self._die(death, victim)
        await healing.end(load)
        await healing.healed(victim)
        await healing.demand()
        await self._bookie(victim).start()

        async def back() -> bool:
            found = await asyncio.to_thread(as_json, "autorecovery", "status", uri=self._cluster.connect_string)
            return not found["absent"] and not found["ledgers"]

        await until(back, "all bookies are back")

    async def _die(self, death: str, victim: str) -> None:
        healing, pause_s = self.healing, self._rng.choice((0.0, self._rng.uniform(0, 3)))
        if death == ZOOKEEPER:
            await self._cluster.zookeeper.kill()
            await asyncio.sleep(pause_s)
            await self._cluster.zookeeper.start()
            return
        if death == SWITCH:
            await self._switch()
            return
        dies = (
            await healing.auditor()
            if death == AUDITOR
            else await healing.worker()
            if death == WORKER
            else await healing.concerned(victim, target=death == TARGET)
        )
        if dies == victim:  # the lock that a dead worker had is still there
            dies = await healing.concerned(victim, target=False)
        await self._bookie(dies).kill()
        await asyncio.sleep(pause_s)
        await self._bookie(dies).start()

    async def _switch(self) -> None:
        """Off, and nothing goes on but what has begun; and on again."""
        uri, metadata = self._cluster.connect_string, cluster_of(self._client)
        await asyncio.to_thread(command, "autorecovery", "disable", uri=uri)

        async def at_rest() -> bool:
            return not await held_locks(metadata.store, metadata.root)

        await self.healing.switched_off(self._cluster.bookies)
        await until(at_rest, "the locks of those that died have ended")
        before, marked = await self.healing.all_closed(), await self.healing.marked()
        await asyncio.sleep(1.5)
        after = await self.healing.all_closed()
        assert {ledger_id: after[ledger_id] for ledger_id in before} == before
        assert await self.healing.marked() == marked
        await asyncio.to_thread(command, "autorecovery", "enable", uri=uri)


@pytest.mark.exhaustive
@pytest.mark.scenario(57)
@pytest.mark.scenario(59)
@pytest.mark.parametrize(
    ("seed", "deaths"),
    [
        pytest.param(0, ONE, id="one"),
        *(
            pytest.param(
                seed,
                ALL[seed - 1 :: 4],
                id=f"all, {seed}",
                marks=[pytest.mark.timeout(900), *([] if seed == 1 else [pytest.mark.long])],
            )
            for seed in range(1, 5)
        ),
    ],
)
async def test_whatever_dies_while_a_lost_bookies_ledgers_are_copied(
    tmp_path: Path, seed: int, deaths: list[tuple[str, Step]]
) -> None:
    rng = random.Random(seed)
    async with LocalCluster(tmp_path, 5, CONFIG) as cluster, bkpy.connect(cluster.connect_string) as client:
        rounds = []
        for death, step in deaths:
            print(f"seed {seed}: {death} dies when {step.value}")
            rounds.append(Round(cluster, client, rng))
            await rounds[-1].run(death, step)
        for earlier in rounds[:-1]:  # whose ledgers were copied in later rounds again
            await earlier.healing.demand()
        for bookie in cluster.bookies:
            assert "Traceback" not in bookie.log_path.read_text()
