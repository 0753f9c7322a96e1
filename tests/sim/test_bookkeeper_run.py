"""A bookie for BookKeeper's clients through many lives: what it acknowledged comes back, and fences hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from bkpy.bookie.bookkeeper import ledger_keys
from bkpy.protocol.wire.messages import Status

from .runs import Range, play, play_all, seeds_of

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.mark.thorough
@pytest.mark.parametrize("seeds", seeds_of("bookkeeper", block=10, blocks=40))
def test_nothing_acknowledged_is_lost_or_denied(seeds: Sequence[int]) -> None:
    play_all("bookkeeper", seeds)


@pytest.mark.exhaustive
def test_the_run_notices_a_fence_that_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forget(*args: Any) -> Status:
        return Status.OK

    monkeypatch.setattr(ledger_keys, "fence", forget)
    monkeypatch.setattr("bkpy.bookie.bookkeeper.reads.fence", forget)
    found = Range()
    for seed in range(20):
        play("bookkeeper", seed, found)
        if found.failed:
            return
    raise AssertionError("nothing was noticed")
