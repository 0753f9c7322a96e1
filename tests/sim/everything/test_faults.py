"""What faults leave when they are over."""

from __future__ import annotations

import asyncio

from tests.sim.disk import PLENTY_BYTES

from .faults import strike
from .plan import Fault, Plan
from .run import Play
from .stage import cluster_of


def test_a_disk_that_was_filled_twice_at_once_has_room_again() -> None:
    """Each fault is over for itself: what it found is not what it may leave."""
    options = {"bookie": 0, "free_bytes": 1000}
    faults = [Fault(f"full-{n}", "full disk", at_s=0.5 * n, lasts_s=0.8, options=options) for n in range(2)]
    plan = Plan.draw(0)
    cluster = cluster_of(plan)
    stage = Play(plan, cluster).stage

    async def play() -> None:
        together = asyncio.gather(*(strike(stage, fault) for fault in faults))
        await asyncio.sleep(0.7)
        assert stage.bookie(0).host.disk.capacity_bytes == 1000
        await together

    cluster.run(play())
    assert stage.bookie(0).host.disk.capacity_bytes == PLENTY_BYTES
