"""A bookie that never comes back: its ledgers are whole again, whatever else fails meanwhile."""

from __future__ import annotations

import pytest

from .healing import healing_run
from .runs import play_all, trace_hash_elsewhere

BLOCK = 10  # seeds


@pytest.mark.scenario(22)
@pytest.mark.scenario(59)
@pytest.mark.scenario(60)
@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.exhaustive) for block in range(1, 10))])
def test_what_a_lost_bookie_had_is_copied(block: int) -> None:
    play_all("healing", range(block * BLOCK, (block + 1) * BLOCK), everything=not block)


def test_a_seed_gives_the_same_trace_in_every_process() -> None:
    seed = 3
    there = trace_hash_elsewhere("healing", seed)
    cluster, run = healing_run(seed)
    cluster.run(run)
    assert there == cluster.world.trace_hash()
