"""Writers that die or go on as zombies, and others that recover their ledgers, among bookies that fail."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from bkpy.protocol.ledger.ledger_metadata import LedgerState

from .runs import play_all, seeds_of

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.mark.thorough
@pytest.mark.scenario(1)
@pytest.mark.scenario(14)
@pytest.mark.scenario(16)
@pytest.mark.scenario(18)
@pytest.mark.scenario(67)
@pytest.mark.parametrize("seeds", seeds_of("failover", block=10, blocks=20))
def test_a_ledger_survives_its_writer(seeds: Sequence[int]) -> None:
    happened: Counter[str] = Counter()  # by the names of hosts and events
    for cluster in play_all("failover", seeds):
        for event in cluster.world.trace:
            happened[f"{event.host}: {event.what}"] += 1
            happened[event.detail.rpartition(" ")[2]] += event.what.endswith(" failed")
            happened["ensembles"] += event.detail.count("; ") if event.what == str(LedgerState.CLOSED) else 0
    # They went where it hurts.
    assert happened["writer: acknowledged"] > 30 * len(seeds)
    assert happened["oracle: satisfied"] > len(seeds)
    assert happened["ensembles"] > 0
    assert happened["LedgerFencedError"] > 0
