"""A bookie that never comes back: its ledgers are whole again, whatever else fails meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .runs import play_all, seeds_of

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.mark.thorough
@pytest.mark.scenario(22)
@pytest.mark.scenario(59)
@pytest.mark.scenario(60)
@pytest.mark.parametrize("seeds", seeds_of("healing", block=10, blocks=10, often=2))
def test_what_a_lost_bookie_had_is_copied(seeds: Sequence[int]) -> None:
    play_all("healing", seeds)
