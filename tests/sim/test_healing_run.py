"""A bookie that never comes back: its ledgers are whole again, whatever else fails meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .healing import healing_run
from .runs import play_all, seeds_of, trace_hash_elsewhere

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.mark.scenario(22)
@pytest.mark.scenario(59)
@pytest.mark.scenario(60)
@pytest.mark.parametrize("seeds", seeds_of("healing", block=10, blocks=10))
def test_what_a_lost_bookie_had_is_copied(seeds: Sequence[int]) -> None:
    play_all("healing", seeds)


def test_a_seed_gives_the_same_trace_in_every_process() -> None:
    seed = 3
    there = trace_hash_elsewhere("healing", seed)
    cluster, run = healing_run(seed)
    cluster.run(run)
    assert there == cluster.world.trace_hash()
