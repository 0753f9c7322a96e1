"""Three real bookies and a real client in virtual time: whatever was acknowledged is there, and every seed repeats."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import pytest

from bkpy.errors import BookKeeperError

from .cluster import Cluster
from .runs import play_all, seeds_of
from .scenario import run_on

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.mark.thorough
@pytest.mark.parametrize("seeds", seeds_of("standard", block=10, blocks=20))
def test_what_was_acknowledged_is_read_back(seeds: Sequence[int]) -> None:
    clusters = play_all("standard", seeds)
    counts = [sum(len(ledger.acknowledged) for ledger in cluster.ledgers.values()) for cluster in clusters]
    assert min(counts) > 50  # one with small limits and much trouble may come to little
    assert sum(counts) > 200 * len(seeds)


@pytest.mark.thorough
@pytest.mark.parametrize("seeds", seeds_of("quick", block=100, blocks=4))
def test_what_was_acknowledged_in_haste_is_read_back(seeds: Sequence[int]) -> None:
    clusters = play_all("quick", seeds)
    counts = [sum(len(ledger.acknowledged) for ledger in cluster.ledgers.values()) for cluster in clusters]
    assert statistics.median(counts) >= 180


@pytest.mark.thorough
@pytest.mark.scenario(45)
@pytest.mark.parametrize("path", [".txn", ".log"])
def test_the_run_notices_what_is_never_synced(path: str) -> None:
    """If these pass unnoticed, the runs above prove nothing."""
    for seed in range(3):
        cluster = Cluster(seed)
        for bookie in cluster.bookies:
            bookie.host.disk.never_syncs = path
        try:
            cluster.run(run_on(cluster))
        except (AssertionError, BookKeeperError):
            return
    raise AssertionError("nothing was noticed")
