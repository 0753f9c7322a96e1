"""Hosts that take a log from each other, while one tails it, among bookies that fail."""

from __future__ import annotations

import pytest

from .runs import play_all

BLOCK = 6  # seeds


@pytest.mark.scenario(65)
@pytest.mark.scenario(66)
@pytest.mark.parametrize("block", [0, *(pytest.param(i, marks=pytest.mark.exhaustive) for i in range(1, 6))])
def test_a_log_survives_its_writers(block: int) -> None:
    for cluster in play_all("logs", range(block * BLOCK, (block + 1) * BLOCK), everything=block == 0):
        assert [event.detail for event in cluster.world.trace if event.host == "oracle"] == [""]
        assert [event.what for event in cluster.world.trace if event.host == "oracle"] == ["satisfied"]
