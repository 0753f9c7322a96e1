"""Hosts that take a log from each other, while one tails it, among bookies that fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .runs import play_all, seeds_of

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.mark.scenario(65)
@pytest.mark.scenario(66)
@pytest.mark.parametrize("seeds", seeds_of("logs", block=6, blocks=6))
def test_a_log_survives_its_writers(seeds: Sequence[int]) -> None:
    for cluster in play_all("logs", seeds):
        assert [event.detail for event in cluster.world.trace if event.host == "oracle"] == [""]
        assert [event.what for event in cluster.world.trace if event.host == "oracle"] == ["satisfied"]
