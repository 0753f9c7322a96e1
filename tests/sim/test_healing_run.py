"""A bookie that never comes back: its ledgers are whole again, whatever else fails meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from bkpy.recovery.fragment_copy import Copied, FragmentCopy

from .healing import healing_run
from .runs import Range, play, play_all, trace_hash_elsewhere

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

BLOCK = 10  # seeds


@pytest.mark.scenario(22)
@pytest.mark.scenario(59)
@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.exhaustive) for block in range(1, 20))])
def test_what_a_lost_bookie_had_is_copied(block: int) -> None:
    play_all("healing", range(block * BLOCK, (block + 1) * BLOCK), everything=not block)


def test_a_seed_gives_the_same_trace_in_every_process() -> None:
    seed = 3
    there = trace_hash_elsewhere("healing", seed)
    cluster, run = healing_run(seed)
    cluster.run(run)
    assert there == cluster.world.trace_hash()


def swapping_before_copying() -> AbstractContextManager[Any]:
    """Rule 27."""

    async def run(copy: FragmentCopy) -> Copied:
        return Copied(0)

    return patch.object(FragmentCopy, "run", run)


@pytest.mark.parametrize("without", [swapping_before_copying])
def test_without_the_rule_it_is_noticed(without: Callable[[], AbstractContextManager[Any]]) -> None:
    found = Range()
    with without():
        for seed in range(3):
            play("healing", seed, found)
    assert found.failed
