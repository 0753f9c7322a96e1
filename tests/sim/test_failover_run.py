"""Writers that die or go on as zombies, and others that recover their ledgers, among bookies that fail."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from bkpy.protocol.ledger_metadata import LedgerState

from .failover import failover_run
from .runs import play_all

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
    seed = 97
    runs = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.sim", "failover", str(seed)],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed in ("1", "2")
    ]
    hashes = {run.communicate()[0].splitlines()[-1] for run in runs}
    assert [run.returncode for run in runs] == [0, 0]
    cluster, run = failover_run(seed)
    cluster.run(run)
    assert hashes == {cluster.world.trace_hash()}
