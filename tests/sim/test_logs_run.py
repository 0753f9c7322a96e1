"""Hosts that take a log from each other, while one tails it, among bookies that fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .runs import play_all, seeds_of

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.mark.thorough
@pytest.mark.scenario(65)
@pytest.mark.scenario(66)
@pytest.mark.parametrize("seeds", seeds_of("logs", block=6, blocks=6, often=1))
def test_a_log_survives_its_writers(seeds: Sequence[int]) -> None:
    for cluster in play_all("logs", seeds):
        assert [event.detail for event in cluster.world.trace if event.host == "oracle"] == [""]
        assert [event.what for event in cluster.world.trace if event.host == "oracle"] == ["satisfied"]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(810043, id="the consumer of a tail expires, and comes back to where it was"),
        pytest.param(810159, id="a log rolls while an operator gives up what its open ledger has"),
    ],
)
def test_the_run_asks_no_more_than_a_log_promises(seed: int) -> None:
    play_all("logs", [seed])
