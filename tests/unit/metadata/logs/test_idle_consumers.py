"""Consumers that have been idle for too long hold back no retention, and no clock and no outage expires another."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

import pytest
from tests.unit.metadata.logs.log_world import LIST, NAME, UID, LogWorld
from tests.unit.metadata.store.troubled import REPLY_LOST, REQUEST_LOST

from bkpy.errors import ConfigError, MetadataUnavailableError
from bkpy.metadata.logs.consumers import LogConsumers
from bkpy.metadata.store.store import Create, Put

if TYPE_CHECKING:
    from bkpy.metadata.logs.consumers import ConsumerState
    from bkpy.metadata.logs.maintenance import LogMaintenance

IDLE = f"{LIST}/{UID}/idle"
EXPIRY_S, INTERVAL_S = 600.0, 60.0  # the interval is the setting's default


class IdleWorld(LogWorld):
    """Its retention keeps nothing but what the consumer, at position 5, has yet to read."""

    async def begin(self, expiry_s: float | None = EXPIRY_S, at: int = 5) -> IdleWorld:
        await super().begin(retention_s=1.0, consumer_expiry_s=expiry_s)
        self.clock.now += 1000.0
        self.of = LogConsumers(self.logs, NAME, UID)
        self.state = await self.of.register("billing", at)
        return self

    async def passes(self, number: int, *maintenance: LogMaintenance) -> None:
        """So many intervals pass, after each of which the retention is applied."""
        for _ in range(number):
            self.clock.now += INTERVAL_S
            for one in maintenance or (self.maintenance,):
                await one.retain(NAME)

    @property
    def kept(self) -> bool:
        """Whether what the consumer needs is there."""
        log_list = self.log_list()
        assert log_list is not None
        return log_list.first_position == 0

    async def commit(self, position: int, state: ConsumerState | None = None) -> None:
        self.state = await self.of.commit("billing", position, state or self.state)


@pytest.fixture
async def world() -> IdleWorld:
    return await IdleWorld().begin()


async def test_one_that_is_idle_for_long_enough_holds_nothing_back(
    world: IdleWorld, caplog: pytest.LogCaptureFixture
) -> None:
    await world.passes(10)
    assert world.kept
    await world.passes(1)
    assert not world.kept
    assert "consumer billing of log orders has been idle for 600 s with entries to read" in caplog.text
    caplog.clear()
    await world.passes(5)
    assert caplog.text == ""
    assert (await world.of.registered()).states == {"billing": world.state}  # it is there still
    world.check()
    await world.maintenance.delete(NAME, world.fence)
    assert not [path for path in world.tree.paths if path.startswith(LIST)]


async def test_too_many_that_are_idle_for_one_write_of_the_list_are_an_error_that_says_so(world: IdleWorld) -> None:
    """The write checks each of them: that none has moved meanwhile."""
    for n in range(20):
        await world.of.register(f"consumer-{n}", 5)
    maintenance = world.opened(log_write_bytes_max=600)
    await world.passes(10, maintenance)
    with pytest.raises(ConfigError, match=r"log orders depends on 22 nodes.*: 21 consumers have been idle .*: delete"):
        await world.passes(1, maintenance)
    assert world.kept
    for n in range(5):
        await world.of.delete(f"consumer-{n}")
    await world.passes(1, maintenance)
    assert not world.kept


async def test_without_an_expiry_nothing_expires_and_nothing_is_stored() -> None:
    world = await IdleWorld().begin(None)
    await world.passes(100)
    assert world.kept
    assert IDLE not in world.tree.paths


async def test_a_commit_begins_again_even_to_the_same_position(world: IdleWorld) -> None:
    for position in (5, 6, 5):
        await world.passes(9)
        await world.commit(position)
    await world.passes(10)
    assert world.kept
    await world.passes(1)
    assert not world.kept


async def test_one_that_takes_its_lease_again_and_again_and_commits_nothing_is_idle(world: IdleWorld) -> None:
    """As a process that is started again whenever it fails at the same entry."""
    for _ in range(10):
        await world.passes(1)
        process = LogConsumers(world.logs, NAME, UID)
        await process.lock("billing", "a process")
        await process.unlock("billing")
    assert world.kept
    await world.passes(1)
    assert not world.kept


async def test_time_with_nothing_to_read_does_not_count() -> None:
    """The consumer has read all that is sealed; then the log grows."""
    world = await IdleWorld().begin(at=30)
    log_list = world.log_list()
    assert log_list is not None
    await world.passes(100)
    assert IDLE not in world.tree.paths
    world.rolls(await world.ledger())
    await world.passes(5)
    stored = json.loads(world.tree.node(IDLE).data)
    assert stored["consumers"]["billing"][1] == 4 * INTERVAL_S


async def test_a_clock_that_jumps_expires_nobody(world: IdleWorld) -> None:
    """Nor does one that runs fast from then on."""
    await world.passes(3)
    world.clock.time = lambda: 2 * world.clock.now + 1e9  # type: ignore[method-assign]
    await world.passes(5)
    assert world.kept
    await world.passes(3)
    assert not world.kept


async def test_a_keeper_that_slept_counts_no_more_than_two_intervals(world: IdleWorld) -> None:
    """Consumers may have been away for the same reason."""
    await world.passes(1)
    world.clock.now += 1e6
    await world.passes(1)
    assert json.loads(world.tree.node(IDLE).data)["consumers"]["billing"][1] == 2 * INTERVAL_S
    assert world.kept


async def test_the_next_keeper_goes_on_where_the_former_was(world: IdleWorld) -> None:
    await world.passes(6)
    following = world.opened()
    await world.passes(5, following)  # the first pass takes over
    assert world.kept
    await world.passes(2, following)
    assert not world.kept


async def test_two_keepers_at_once_count_no_time_twice(world: IdleWorld) -> None:
    await world.passes(100, world.maintenance, world.opened())
    assert world.kept


@pytest.mark.parametrize("trouble", [REPLY_LOST, REQUEST_LOST])
@pytest.mark.parametrize("call", range(12))
async def test_what_goes_wrong_counts_no_time_twice(world: IdleWorld, call: int, trouble: str) -> None:
    keeper = world.opened()
    for _ in range(9):
        world.troubled.script.extend([None] * call + [trouble] * 2)
        world.clock.now += INTERVAL_S
        with contextlib.suppress(MetadataUnavailableError):
            await keeper.retain(NAME)
        world.troubled.script.clear()
    assert world.kept
    await world.passes(12, keeper)
    assert not world.kept


@pytest.mark.parametrize("call", range(14))
async def test_one_that_commits_just_then_is_waited_for(world: IdleWorld, call: int) -> None:
    """Nothing that a consumer has not read is deleted while it lives, whenever it comes back."""
    await world.passes(10)
    committed = False

    def commits() -> None:
        nonlocal committed
        path = f"{LIST}/{UID}/consumers/billing"
        node = world.tree.node(path)
        value = json.loads(node.data) | {"position": 6, "since_ms": world.now_ms, "token": "t"}
        if world.kept:
            committed = True
            world.tree.apply(Put(path, json.dumps(value).encode(), node.version), 0)

    keeper = world.opened()
    await world.passes(1, keeper)
    world.troubled.script.extend([None] * call + [commits])
    await world.passes(1, keeper)
    assert world.kept == committed


async def test_a_damaged_record_is_written_again(world: IdleWorld, caplog: pytest.LogCaptureFixture) -> None:
    world.tree.apply(Create(IDLE, b"?"), 0)
    await world.passes(11)
    assert not world.kept
    assert "it is written again" in caplog.text
