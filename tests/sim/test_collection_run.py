"""A ledger's copies are moved to and fro while every bookie collects: the lock keeps the two apart."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from .ablations.switches import nobody_locks
from .cluster import Cluster, held_by
from .coverage_marks import SPARE_COLLECTED
from .mover import move

MOVES = 12
ENTRIES = 20
SETTINGS = {"gc_interval_s": 0.05, "gc_over_replicated_interval_s": 0.05}


async def to_and_fro(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.client_host.start(_move(cluster))


async def _move(cluster: Cluster) -> None:
    rng = cluster.world.stream("moves")
    async with cluster.client() as client:
        ledger_id = await cluster.write_ledger(client, ENTRIES, (3, 3, 2), password=b"secret")
        moved = 0
        for _ in range(MOVES):
            moved += await move(client, ledger_id, rng)
            await asyncio.sleep(rng.random() * 0.3)  # in which the lock is free
        assert moved
        metadata = await client.ledger_metadata(ledger_id)
        reader = await client.open_ledger(ledger_id, password=b"secret")
        for bookie in cluster.bookies:
            if bookie.settings.bookie_id in metadata.fragments[0].bookies:
                held = await held_by(reader, {}, bookie, metadata.last_entry)
                assert held == set(range(metadata.last_entry + 1)), f"{bookie.host.name} lacks entries"
    await cluster.check()


@pytest.mark.thorough
@pytest.mark.scenario(51)
@pytest.mark.parametrize("seed", range(3))
def test_every_bookie_that_is_named_has_its_copy(seed: int) -> None:
    cluster = Cluster(seed, bookies=4, calm=True, **SETTINGS)
    cluster.run(to_and_fro(cluster))
    assert cluster.world.marks[SPARE_COLLECTED]


@pytest.mark.thorough
def test_without_the_lock_one_has_not() -> None:
    noticed = 0
    for seed in range(3):
        cluster = Cluster(seed, bookies=4, calm=True, **SETTINGS)
        with nobody_locks(), contextlib.suppress(AssertionError):
            cluster.run(to_and_fro(cluster))
            continue
        noticed += 1
    assert noticed
