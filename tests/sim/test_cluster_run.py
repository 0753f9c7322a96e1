"""Three real bookies and a real client in virtual time: whatever was acknowledged is there, and every seed repeats."""

from __future__ import annotations

import pytest

from bkpy.errors import BookKeeperError

from .cluster import Cluster
from .runs import play_all, trace_hash_elsewhere
from .scenario import run_on, run_seed

BLOCK = 20  # seeds
EVERYTHING = 28  # seeds, in some of which is whatever such runs are expected to go through


@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.exhaustive) for block in range(1, 10))])
def test_what_was_acknowledged_is_read_back(block: int) -> None:
    seeds = range(block * BLOCK, (block + 1) * BLOCK) if block else range(EVERYTHING)
    for cluster in play_all("standard", seeds, everything=not block):
        assert sum(len(ledger.acknowledged) for ledger in cluster.ledgers.values()) > 200


def test_a_seed_gives_the_same_trace_in_every_process() -> None:
    there = trace_hash_elsewhere("standard", 3)
    assert there == run_seed(3).world.trace_hash()
    assert there != run_seed(4).world.trace_hash()


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
