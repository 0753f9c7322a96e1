"""Bookies that acknowledge what no disk has yet, and lose power: nothing is denied, and no ledger is cut short."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

from bkpy.storage import at_risk

from .runs import Range, play, play_all, seeds_of

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.mark.thorough
@pytest.mark.scenario(55)
@pytest.mark.parametrize("seeds", seeds_of("exposed", block=10, blocks=20, often=2))
def test_what_was_acknowledged_is_never_denied(seeds: Sequence[int]) -> None:
    clusters = play_all("exposed", seeds)
    counts = [sum(len(ledger.acknowledged) for ledger in cluster.ledgers.values()) for cluster in clusters]
    assert min(counts) > 0  # one with small limits and much trouble may come to little
    assert sum(counts) > 20 * len(seeds)


@pytest.mark.thorough
def test_the_run_notices_a_bookie_that_takes_itself_for_whole() -> None:
    found = Range()
    with patch.object(at_risk, "is_lost", lambda mark, boot_id: False):
        for seed in range(5):
            play("exposed", seed, found)
            if found.failed:
                return
    raise AssertionError("nothing was noticed")
