"""Writers that die or go on as zombies, and others that recover their ledgers, among bookies that fail."""

from __future__ import annotations

from collections import Counter

import pytest

from bkpy.protocol.ledger_metadata import LedgerState

from .failover import failover_run
from .runs import play_all, trace_hash_elsewhere

BLOCK = 25  # seeds


def run_seeds(seeds: range) -> Counter[str]:
    """Run them all; how often what happened, by the names of hosts and events."""
    happened: Counter[str] = Counter()
    for cluster in play_all("failover", seeds, everything=seeds.stop <= 2 * BLOCK):
        for event in cluster.world.trace:
            happened[f"{event.host}: {event.what}"] += 1
            happened[event.detail.rpartition(" ")[2]] += event.what.endswith(" failed")
            happened["ensembles"] += event.detail.count("; ") if event.what == str(LedgerState.CLOSED) else 0
    return happened


@pytest.mark.scenario(1)
@pytest.mark.scenario(14)
@pytest.mark.scenario(16)
@pytest.mark.scenario(18)
@pytest.mark.scenario(67)
@pytest.mark.parametrize("block", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_a_ledger_survives_its_writer(block: int) -> None:
    happened = run_seeds(range(block * BLOCK, (block + 1) * BLOCK))
    # They went where it hurts.
    assert happened["writer: acknowledged"] > 1000
    assert happened["oracle: satisfied"] > BLOCK
    assert happened["ensembles"] > 0
    assert happened["LedgerFencedError"] > 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("block", range(2, 8))
def test_a_ledger_survives_its_writer_in_many_runs(block: int) -> None:
    happened = run_seeds(range(block * BLOCK, (block + 1) * BLOCK))
    assert happened["oracle: satisfied"] > BLOCK


def test_a_seed_gives_the_same_trace_in_every_process() -> None:
    seed = 19
    there = trace_hash_elsewhere("failover", seed)
    cluster, run = failover_run(seed)
    cluster.run(run)
    assert there == cluster.world.trace_hash()
