"""What a log's writer does beside appends: the lease comes back, and retention is kept."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.in_process import eventually
from tests.unit.metadata.log_world import LIST, NAME, LogWorld
from tests.unit.metadata.troubled import AWAY

from bkpy.log.retention import LogRetention

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

FAR_S, SOON_S = 1000.0, 0.002


class Keeping:
    def __init__(self) -> None:
        self.world: LogWorld
        self.running: list[LogRetention] = []

    def start(self, script: Any = (), **settings: Any) -> LogRetention:
        upkeep, logs = self.world.opened_parts(script, **settings)
        retention = LogRetention(NAME, "w", "host", logs, upkeep, self.world.runtime)
        retention.start()
        self.running.append(retention)
        return retention

    def first(self) -> int:
        lst = self.world.lst()
        assert lst is not None
        return lst.first_position


@pytest.fixture
async def keeping() -> AsyncIterator[Keeping]:
    made = Keeping()
    made.world = await LogWorld().begin(retention_s=10.0)
    yield made
    for retention in made.running:
        await retention.stop()


async def test_it_looks_at_once_and_after_each_roll(keeping: Keeping) -> None:
    world = keeping.world
    retention = keeping.start(log_retention_interval_s=FAR_S)
    await eventually(lambda: f"{LIST}/u1/lease" in world.tree.paths)
    world.clock.now += 11
    retention.look()
    await eventually(lambda: keeping.first() == 20)
    world.clock.now += 1
    retention.look()
    await eventually(lambda: world.ledgers() == set(world.segments[3:]))


async def test_it_looks_now_and_then(keeping: Keeping) -> None:
    keeping.start(log_retention_interval_s=SOON_S)
    keeping.world.clock.now += 20
    await eventually(lambda: keeping.first() == 30)


async def test_the_lease_that_went_with_a_session_is_taken_again(keeping: Keeping) -> None:
    world = keeping.world
    retention = keeping.start(log_retention_interval_s=FAR_S)
    await eventually(lambda: f"{LIST}/u1/lease" in world.tree.paths)
    world.sessions[-1].expire()
    assert await world.logs.lease_holder(NAME) is None
    retention.look()
    await eventually(lambda: f"{LIST}/u1/lease" in world.tree.paths)


async def test_the_lease_of_another_is_left_to_it(keeping: Keeping) -> None:
    await keeping.world.logs.take_lease(NAME, "other", "another host")
    keeping.world.clock.now += 20
    keeping.start()
    await eventually(lambda: keeping.first() == 30)
    assert await keeping.world.logs.lease_holder(NAME) == "another host"


@pytest.mark.parametrize("call", range(12))
async def test_what_fails_is_tried_again(keeping: Keeping, call: int) -> None:
    keeping.world.clock.now += 20
    keeping.start([None] * call + [AWAY], log_retention_interval_s=SOON_S)
    await eventually(lambda: keeping.world.ledgers() == set(keeping.world.segments[3:]))


async def test_of_a_log_that_is_gone_nothing_is_kept(keeping: Keeping) -> None:
    await keeping.world.upkeep.delete(NAME)
    keeping.start(log_retention_interval_s=FAR_S)
    await eventually(lambda: not [task for task in asyncio.all_tasks() if "retention" in task.get_name()])
