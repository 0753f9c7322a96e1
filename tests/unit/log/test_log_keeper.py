"""What the auditor does for logs: retention without a writer, what was begun and not finished, orphans."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.metadata.logs.log_world import LIST, NAME, OLD_UID, ROOT, UID, LogWorld
from tests.unit.metadata.store.troubled import AWAY, CLOSED, Troubled
from tests.waiting import eventually

from bkpy.config.recovery import RecoverySettings
from bkpy.errors import (
    ClientClosedError,
    ConfigError,
    LedgerRecoveryError,
    MetadataUnavailableError,
    UnauthorizedError,
)
from bkpy.log.keeper import LogKeeper
from bkpy.metadata.cluster import open_cluster
from bkpy.metadata.store.outcome import Done
from bkpy.metadata.store.store import Create, Put
from bkpy.protocol.log.log_list import LogList

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

GRACE_S, ORPHAN_S = 100.0, 500.0


class Keeping:
    """A log whose retention is 10 s, and auditors that look after it."""

    def __init__(self, world: LogWorld) -> None:
        self.world = world
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self, script: Any = (), forbidden: Iterable[str] = ()) -> asyncio.Task[None]:
        settings = RecoverySettings(
            metadata_write_attempts_max=2,
            log_retention_interval_s=0.002,
            log_orphan_interval_s=ORPHAN_S,
            log_orphan_grace_s=GRACE_S,
        )
        store = Troubled(self.world.tree)
        cluster = await open_cluster(store, ROOT)
        store.script.extend(script)
        store.forbidden.update(forbidden)
        keeper = LogKeeper(cluster, self.world.fence, self.world.runtime, settings)
        task = asyncio.create_task(keeper.run())
        self.tasks.append(task)
        await asyncio.sleep(0)  # it has begun, and knows since when it hasn't searched
        return task


@pytest.fixture
async def keeping() -> AsyncIterator[Keeping]:
    made = Keeping(await LogWorld().begin(retention_s=10.0))
    yield made
    for task in made.tasks:
        task.cancel()
    if made.tasks:
        await asyncio.wait(made.tasks)


@pytest.mark.scenario(66)
async def test_retention_is_kept_of_a_log_without_a_writer(keeping: Keeping) -> None:
    world = keeping.world
    world.clock.now += 20
    await keeping.start()
    await eventually(lambda: world.ledgers() == set(world.segments[3:]))
    world.check()


@pytest.mark.scenario(66)
async def test_what_a_dead_writer_doomed_is_deleted(keeping: Keeping) -> None:
    world = keeping.world
    log_list, version = await world.logs.read(NAME)
    await world.logs.write_anyway(NAME, log_list.truncated(15), version)
    await keeping.start()
    await eventually(lambda: world.ledgers() == set(world.segments[1:]))


async def test_a_deletion_that_was_cut_short_is_finished(keeping: Keeping) -> None:
    world = keeping.world
    await world.consumer("billing", 0)
    with pytest.raises(ClientClosedError):  # right after all was doomed
        await world.opened([None] * 3 + [CLOSED] * 50).delete(NAME, world.fence)
    assert world.ledgers() == set(world.segments)
    await keeping.start()
    await eventually(lambda: LIST not in world.tree.paths)
    assert world.ledgers() == set()
    assert world.fenced == world.segments[-2:]


async def test_orphans_are_searched_for_now_and_then(keeping: Keeping) -> None:
    world = keeping.world
    old, gone, plain = await world.ledger(), await world.ledger(OLD_UID), await world.ledger(None)
    await world.note_deletion(OLD_UID)
    assert await world.logs.take_lease(NAME, UID, "w", "host")  # the writer keeps the log's own
    await keeping.start()
    world.clock.now += ORPHAN_S - 1
    young = await world.ledger()
    await asyncio.sleep(0.02)
    assert {old, gone} <= world.ledgers()
    world.clock.now += 1
    await eventually(lambda: world.ledgers() == {*world.segments, plain, young})
    late = await world.ledger(OLD_UID)
    await asyncio.sleep(0.02)
    assert late in world.ledgers(), "all ledgers were read again at once"


async def test_ledgers_whose_list_was_lost_are_told_of_with_each_search(
    keeping: Keeping, caplog: pytest.LogCaptureFixture
) -> None:
    world = keeping.world
    world.loses_list()
    await keeping.start()
    told = f"{len(world.segments)} ledgers of log {NAME}, {world.segments[0]} to {world.segments[-1]}, are in no list"
    for searches in (1, 2):
        world.clock.now += ORPHAN_S
        await eventually(lambda searches=searches: caplog.text.count(told) == searches)
    assert world.ledgers() == set(world.segments)
    assert f"the list with uid {UID} seems to be lost" in caplog.text


async def test_a_deletion_is_noted_for_as_long_as_there_may_be_ledgers(keeping: Keeping) -> None:
    world = keeping.world
    note = await world.note_deletion(OLD_UID)
    await world.ledger(OLD_UID)
    world.clock.now += ORPHAN_S - GRACE_S + 1
    recent = await world.note_deletion("2" * 32)
    unreadable = f"{ROOT}/logs-deleted/{'3' * 32}"
    world.tree.apply(Create(unreadable, b"{"), 0)
    world.clock.now -= ORPHAN_S - GRACE_S + 1
    await keeping.start()
    world.clock.now += ORPHAN_S
    await eventually(lambda: world.ledgers() == {world.segments[3]})  # its last one is never too old
    await asyncio.sleep(0.02)
    assert {note, recent, unreadable} <= set(world.tree.paths), "a ledger was found, or it is not long ago"
    world.clock.now += ORPHAN_S
    await eventually(lambda: not {note, recent} & set(world.tree.paths))
    assert unreadable in world.tree.paths


FORBIDDEN = b"FORBIDDEN"


@pytest.mark.parametrize("value", [b"{", b'{"version": 2}', FORBIDDEN])
async def test_a_log_that_can_not_be_read_holds_up_no_other(
    keeping: Keeping, value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Its list is damaged, of a later version, or the store's access control keeps it from the auditor."""
    world = keeping.world
    orphan, hidden = await world.ledger(OLD_UID), await world.ledger(name="first")
    world.tree.apply(Create(f"{ROOT}/logs/first", value), 0)
    await world.note_deletion(OLD_UID)
    world.clock.now += 20
    task = await keeping.start(forbidden=[f"{ROOT}/logs/first"] if value == FORBIDDEN else [])
    await eventually(lambda: world.ledgers() == {world.segments[3], orphan, hidden})
    world.clock.now += ORPHAN_S
    await eventually(lambda: orphan not in world.ledgers())
    assert hidden in world.ledgers(), "of a list that can't be read nobody knows what it names"
    assert not task.done()
    assert "failed to maintain log first" in caplog.text
    kept = f"1 ledgers that say they belong to log first, {hidden} to {hidden}, are kept"
    await eventually(lambda: kept in caplog.text)


@pytest.mark.parametrize("error", [LedgerRecoveryError("few"), UnauthorizedError("key"), ConfigError("x"), KeyError(1)])
async def test_no_error_of_one_log_holds_up_another(keeping: Keeping, error: Exception) -> None:
    """A deleted log whose ledgers can't be fenced, for whatever reason, comes first."""
    world = keeping.world
    uid = "5" * 32
    pending_delete = await world.ledger(uid, name="first")
    log_list = LogList(uid, 3, 3, 2, "crc32c", bytes(32), deleted=True, pending_delete=(pending_delete,))
    assert isinstance(await world.logs.create("first", log_list), Done)
    fence, world.clock.now = world.fence, world.clock.now + 20

    async def failing(ledger_id: int) -> None:
        if ledger_id == pending_delete:
            raise error
        await fence(ledger_id)

    world.fence = failing  # type: ignore[method-assign]
    await keeping.start()
    await eventually(lambda: world.ledgers() & set(world.segments) == {world.segments[3]})
    orphan = await world.ledger()
    world.clock.now += ORPHAN_S
    await eventually(lambda: orphan not in world.ledgers())


async def test_a_log_for_which_the_store_is_always_away_holds_up_no_other(keeping: Keeping) -> None:
    world = keeping.world
    assert isinstance(await world.logs.create("first", LogList("5" * 32, 3, 3, 2, "crc32c", bytes(32))), Done)
    world.clock.now += 20
    tree, asked = world.tree, []

    class Slow(Troubled):
        async def get(self, path: str) -> tuple[bytes, int]:
            if path == f"{ROOT}/logs/first":
                asked.append(path)
                raise MetadataUnavailableError("no answer in time")
            return await super().get(path)

    cluster = await open_cluster(store := Slow(tree), ROOT)
    settings = RecoverySettings(log_retention_interval_s=0.002)
    keeping.tasks.append(asyncio.create_task(LogKeeper(cluster, world.fence, world.runtime, settings).run()))
    await eventually(lambda: world.ledgers() == {world.segments[3]})
    assert asked
    assert store.calls


async def test_a_ledger_that_can_not_be_read_may_belong_to_any_log(
    keeping: Keeping, caplog: pytest.LogCaptureFixture
) -> None:
    """The note that a log was deleted stays as long as a ledger may need it."""
    world = keeping.world
    note, unreadable_note = await world.note_deletion(OLD_UID), await world.note_deletion("6" * 32)
    left = await world.ledger(OLD_UID)
    task = await keeping.start(forbidden=[world.catalog.path_of(left), unreadable_note])
    world.clock.now += ORPHAN_S
    await eventually(lambda: "their metadata can't be read" in caplog.text)
    assert {note, unreadable_note} <= set(world.tree.paths)
    task.cancel()
    await asyncio.wait([task])
    await keeping.start()
    world.clock.now += ORPHAN_S
    await eventually(lambda: left not in world.ledgers())


@pytest.mark.parametrize("call", range(12))
async def test_without_the_store_it_goes_on_later(keeping: Keeping, call: int) -> None:
    world = keeping.world
    world.clock.now += 20
    await keeping.start([None] * call + [AWAY])
    await eventually(lambda: world.ledgers() == set(world.segments[3:]))


async def test_it_ends_when_the_session_is_over(keeping: Keeping) -> None:
    task = await keeping.start([CLOSED])
    with pytest.raises(ClientClosedError):
        await asyncio.wait_for(task, 30)


async def test_a_list_that_changes_all_the_time_is_left_to_the_next_look(keeping: Keeping) -> None:
    world = keeping.world
    world.clock.now += 20

    def changed() -> None:
        log_list = world.log_list()
        assert log_list is not None
        world.tree.apply(Put(LIST, log_list.encode(), world.tree.node(LIST).version), 0)

    await keeping.start([changed] * 200)
    await eventually(lambda: world.ledgers() == set(world.segments[3:]))
