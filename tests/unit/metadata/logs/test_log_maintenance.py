"""Truncation, retention, deletion and orphans of logs: cut short anywhere, and beside anybody."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

import pytest
from tests.examples import stride
from tests.unit.metadata.logs.log_world import LIST, NAME, OLD_UID, ROOT, UID, LogWorld
from tests.unit.metadata.store.troubled import AWAY, CLOSED, REPLY_LOST, REQUEST_LOST, OpeningStep

from bkpy.errors import (
    BookKeeperError,
    ConfigError,
    CorruptDataError,
    MetadataConflictError,
    MetadataUnavailableError,
    NoSuchLogError,
)
from bkpy.metadata.logs.catalog import Taken
from bkpy.metadata.logs.maintenance import Swept, log_of
from bkpy.metadata.store.outcome import Done, Gone
from bkpy.metadata.store.store import Create, Delete, Put
from bkpy.protocol.ledger.ledger_metadata import Fragment
from bkpy.protocol.log.log_list import LogList
from bkpy.protocol.log.log_producers import Producers, SinkWriter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from bkpy.metadata.logs.maintenance import LogMaintenance

GRACE_S = 100.0


@pytest.fixture
async def world() -> LogWorld:
    return await LogWorld().begin()


def left(world: LogWorld) -> list[int]:
    log_list = world.log_list()
    assert log_list is not None
    return [segment.ledger_id for segment in log_list.segments]


# --- what they do -----------------------------------------------------------------------------------------------


async def test_a_truncation_deletes_whole_ledgers(world: LogWorld) -> None:
    log_list = await world.maintenance.truncate(NAME, 15)
    assert (log_list.first_position, log_list.pending_delete) == (15, ())
    assert left(world) == world.segments[1:]
    assert world.ledgers() == set(world.segments[1:])
    await world.maintenance.truncate(NAME, 35, end=40)
    assert left(world) == world.segments[3:]
    assert (await world.maintenance.truncate(NAME, 3)).first_position == 35
    world.check()


async def test_what_is_not_known_to_be_acknowledged_is_not_truncated(world: LogWorld) -> None:
    with pytest.raises(ConfigError, match="known to reach up to position 30"):
        await world.maintenance.truncate(NAME, 31)
    with pytest.raises(ConfigError, match="known to reach up to position 35"):
        await world.maintenance.truncate(NAME, 36, end=35)
    assert left(world) == world.segments


async def test_one_who_has_written_another_log_of_that_name_truncates_nothing(world: LogWorld) -> None:
    with pytest.raises(NoSuchLogError, match="another one of that name"):
        await world.maintenance.truncate(NAME, 35, end=40, uid=OLD_UID)
    assert left(world) == world.segments
    assert (await world.maintenance.truncate(NAME, 35, end=40, uid=UID)).first_position == 35


async def test_a_consumer_holds_back_a_truncation_that_is_not_told_to_go_on(world: LogWorld) -> None:
    await world.consumer("billing", 12)
    with pytest.raises(ConfigError, match=r"from 12 on: billing\. Let them go on"):
        await world.maintenance.truncate(NAME, 20)
    assert left(world) == world.segments
    await world.maintenance.truncate(NAME, 12)
    await world.maintenance.truncate(NAME, 20, ignore_consumers=True)
    assert left(world) == world.segments[2:]


async def test_a_consumer_that_can_not_be_read_holds_back_everything(world: LogWorld) -> None:
    world.tree.apply(Create(f"{LIST}/{UID}/consumers/billing", b"?"), 0)
    with pytest.raises(CorruptDataError, match="consumer billing of log orders"):
        await world.maintenance.truncate(NAME, 10)
    await world.maintenance.truncate(NAME, 10, ignore_consumers=True)
    assert left(world) == world.segments[1:]
    await world.maintenance.delete(NAME, world.fence)
    assert not [path for path in world.tree.paths if path.startswith(LIST)]


@pytest.mark.parametrize(("consumer", "kept"), [(None, 3), (25, 2), (5, 0)])
async def test_retention_keeps_what_it_should(consumer: int | None, kept: int) -> None:
    world = await LogWorld().begin(retention_s=10.0)
    if consumer is not None:
        await world.consumer("billing", consumer)
    await world.maintenance.retain(NAME)
    assert left(world) == world.segments
    world.clock.now += 20
    await world.maintenance.retain(NAME)
    assert left(world) == world.segments[kept:]
    assert world.ledgers() == set(world.segments[kept:])
    world.check()


async def test_retention_by_bytes(world: LogWorld) -> None:
    log_list, version = await world.logs.read(NAME)
    await world.logs.write(NAME, dataclasses.replace(log_list, retention_bytes=150), version)
    assert (await world.maintenance.retain(NAME)).first_position == 10


async def test_without_retention_nothing_is_written(world: LogWorld) -> None:
    world.clock.now += 10**9
    await world.maintenance.retain(NAME)
    assert world.tree.node(LIST).version == 0


async def test_many_ledgers_are_deleted_though_the_log_rolls_meanwhile(world: LogWorld) -> None:
    """Each time that they were all to be deleted, the list has changed before that can be written."""
    rolling = [await world.ledger() for _ in range(30)]

    def roll() -> None:
        world.rolls(rolling.pop(0))

    context = world.opened([*[None] * 20, *[None, None, roll] * 30], log_deletes_at_once=1)
    for ledger_id in rolling[:20]:
        world.rolls(ledger_id)
    del rolling[:20]
    log_list = await context.truncate(NAME, 200)
    assert (log_list.first_position, log_list.pending_delete) == (200, ())
    assert len(rolling) < 10
    world.check()


@pytest.mark.parametrize("call", range(8))
async def test_the_consumers_of_another_log_of_that_name_hold_nothing_back(world: LogWorld, call: int) -> None:
    """The log is deleted, and made anew, at any moment before a truncation has read its list."""
    await world.consumer("billing", 12)
    another = "2" * 32

    def replace() -> None:
        log_list = world.log_list()
        assert log_list is not None
        for path in sorted((path for path in world.tree.paths if path.startswith(LIST)), reverse=True):
            world.tree.apply(Delete(path, None), 0)
        world.tree.apply(Create(LIST, dataclasses.replace(log_list, uid=another).encode()), 0)
        for node in (f"{LIST}/{another}", f"{LIST}/{another}/consumers"):
            world.tree.apply(Create(node, b""), 0)

    with contextlib.suppress(NoSuchLogError):
        assert (await world.opened([None] * call + [replace]).truncate(NAME, 20)).uid == another
    assert (await world.maintenance.truncate(NAME, 20)).first_position == 20
    world.check()


@pytest.mark.parametrize("at_once", [1, 2, 32])
async def test_a_ledger_that_can_not_be_deleted_keeps_no_other_one_on_the_list(world: LogWorld, at_once: int) -> None:
    stuck = world.segments[0]
    below = f"{world.catalog.path_of(stuck)}/somebody's"
    world.tree.apply(Create(below, b""), 0)
    for _ in range(2):
        with pytest.raises(MetadataConflictError, match="there are nodes below") as kept:
            await world.opened(log_deletes_at_once=at_once).truncate(NAME, 30)
        assert kept.value.ledger_id == stuck
        log_list = world.log_list()
        assert log_list is not None
        assert log_list.pending_delete == (stuck,)
        assert world.ledgers() == {stuck, world.segments[3]}
    world.check()
    with pytest.raises(MetadataConflictError):
        await world.maintenance.delete(NAME, world.fence)
    assert world.ledgers() == {stuck}
    world.tree.apply(Delete(below, None), 0)
    await world.maintenance.maintain(NAME, world.fence)
    assert world.ledgers() == set()
    assert not [path for path in world.tree.paths if path.startswith(LIST)]


async def test_without_the_store_no_further_ledger_is_tried(world: LogWorld) -> None:
    log_list, version = await world.logs.read(NAME)
    await world.logs.write_anyway(NAME, log_list.truncated(30), version)
    calls: list[int] = []

    def another() -> None:
        calls.append(1)

    context = world.opened([*[None] * 3, AWAY, *[another] * 20], log_deletes_at_once=1)
    with pytest.raises(MetadataUnavailableError, match="the store is away"):
        await context.finish(NAME)
    assert world.log_list().pending_delete == tuple(world.segments[1:3])
    assert len(calls) == 1  # the write of the list
    world.check()


async def test_a_truncation_gets_on_though_the_log_rolls_while_many_consumers_are_looked_at(world: LogWorld) -> None:
    for n in range(20):
        await world.consumer(f"c{n}", 35)
    rolling = [await world.ledger() for _ in range(20)]

    def roll() -> None:
        world.rolls(rolling.pop(0))

    await world.opened([*[None] * 9, roll] * 20).truncate(NAME, 20)
    assert len(rolling) < 18
    assert left(world)[0] == world.segments[2]
    world.check()


async def test_a_deleted_log_leaves_nothing(world: LogWorld) -> None:
    await world.consumer("billing", 12)
    assert await world.logs.take_lease(NAME, UID, "w", "host") == Taken()
    await world.maintenance.delete(NAME, world.fence)
    assert world.fenced == world.segments[-2:]
    assert world.ledgers() == set()
    assert not [path for path in world.tree.paths if path.startswith(LIST)]
    for name in (NAME, "other"):
        with pytest.raises(NoSuchLogError):
            await world.maintenance.delete(name, world.fence)


async def test_a_deletion_that_was_cut_short_is_completed_by_the_next_call(world: LogWorld) -> None:
    """Who repeats it after an error is told of success, and the log's writer is fenced by then."""
    for call in itertools.count():
        world = await LogWorld().begin()
        await world.consumer("billing", 12)
        maintenance = world.opened([None] * call + [AWAY])
        try:
            await maintenance.delete(NAME, world.fence)
        except MetadataUnavailableError:
            await world.opened().delete(NAME, world.fence)
        else:
            break
        assert set(world.fenced) >= set(world.segments[-2:]), call
        assert world.ledgers() == set(), call
        assert not [path for path in world.tree.paths if path.startswith(LIST)], call
        with pytest.raises(NoSuchLogError, match="there is no log orders"):
            await world.maintenance.delete(NAME, world.fence)
    assert call > 10


async def test_the_auditor_leaves_a_log_with_a_writer_alone() -> None:
    world = await LogWorld().begin(retention_s=10.0)
    world.clock.now += 20
    assert await world.logs.take_lease(NAME, UID, "w", "host") == Taken()
    await world.opened().maintain(NAME, world.fence)
    assert left(world) == world.segments
    await world.logs.drop_lease(NAME, UID, "w")
    await world.opened().maintain(NAME, world.fence)
    assert left(world) == world.segments[3:]
    await world.opened().maintain("other", world.fence)


@pytest.mark.scenario(66)
async def test_what_is_in_the_list_is_no_orphan_and_what_is_not_becomes_one(world: LogWorld) -> None:
    orphan, plain, other = await world.ledger(), await world.ledger(None), await world.ledger(OLD_UID)
    odd = await world.ledger(UID, "no/name")
    await world.note_deletion(OLD_UID)

    async def swept() -> set[int]:
        for ledger_id in sorted(world.ledgers()):
            await world.opened().sweep(await world.metadata(ledger_id), GRACE_S)
        return world.ledgers()

    assert await swept() == {*world.segments, orphan, plain, odd}
    assert other not in world.ledgers()
    world.clock.now += GRACE_S
    assert await swept() == {*world.segments, plain, odd}
    world.check()
    late = await world.ledger()
    await world.maintenance.delete(NAME, world.fence)
    assert await swept() == {plain, odd}
    assert late not in world.ledgers()


@pytest.mark.parametrize(
    "changes",
    [
        {"ensemble_size": 4, "fragments": (Fragment(0, ("a", "b", "c", "d")),)},
        {"write_quorum": 2},
        {"ack_quorum": 3},
        {"digest": "hmac-sha256"},
        {"ledger_key": b"another".ljust(32)},
        {"caller_ids": True},
        {"deferred_sync": True},
        {"custom_metadata": {"bkpy.log": b"orders", "bkpy.log_uid": b"u1"}},
    ],
)
@pytest.mark.parametrize("uid", [UID, OLD_UID])
async def test_a_ledger_that_no_log_made_stays(world: LogWorld, changes: dict[str, Any], uid: str) -> None:
    """Somebody has copied a log's ledger, with its custom metadata, before those names were kept for bkpy."""
    metadata = await world.metadata(await world.ledger(uid))
    world.clock.now += GRACE_S
    await world.note_deletion(OLD_UID)
    telling = uid == UID or changes.keys() & {"caller_ids", "deferred_sync", "custom_metadata"}
    swept = await world.maintenance.sweep(dataclasses.replace(metadata, **changes), GRACE_S)
    assert swept is (Swept.KEPT if telling else Swept.DELETED)
    assert (metadata.ledger_id in world.ledgers()) is bool(telling)


async def test_what_is_doomed_is_left_to_those_who_doomed_it(world: LogWorld) -> None:
    log_list, version = await world.logs.read(NAME)
    await world.logs.write_anyway(NAME, log_list.truncated(10), version)
    pending_delete = await world.metadata(world.segments[0])
    world.clock.now += GRACE_S
    assert await world.maintenance.sweep(pending_delete, GRACE_S) is Swept.KEPT
    await world.maintenance.maintain(NAME, world.fence)
    assert world.ledgers() == set(world.segments[1:])
    assert await world.maintenance.sweep(pending_delete, GRACE_S) is Swept.KEPT  # by one who read its metadata before


@pytest.mark.parametrize("made_anew", [False, True])
async def test_of_a_log_whose_list_was_lost_nothing_is_deleted(world: LogWorld, made_anew: bool) -> None:
    """Somebody has removed its nodes, and perhaps a service has made a new log of its name since."""
    orphan = await world.ledger()
    world.clock.now += GRACE_S
    back = world.loses_list()
    if made_anew:
        assert isinstance(await world.logs.create(NAME, LogList("2" * 32, 3, 3, 2, "crc32c", bytes(32))), Done)
    for ledger_id in (*world.segments, orphan):
        swept = await world.opened().sweep(await world.metadata(ledger_id), GRACE_S)
        assert swept is Swept.KEPT_FOR_LOST_LIST
    assert world.ledgers() == {*world.segments, orphan}
    if made_anew:
        await world.maintenance.delete(NAME, world.fence)
    await sweep(world.maintenance, world)
    for node in back:
        world.tree.apply(node, 0)
    await sweep(world.maintenance, world)
    assert world.ledgers() == set(world.segments)
    world.check()


@pytest.mark.parametrize("trouble", [AWAY, REQUEST_LOST, REPLY_LOST])
async def test_a_list_is_not_removed_before_the_deletion_is_noted(trouble: str) -> None:
    for call in range(CALLS):
        world = await LogWorld().begin()
        script = [None] * call + [trouble] * (1 if trouble == REPLY_LOST else CALLS)
        with contextlib.suppress(BookKeeperError):
            await world.opened(script, metadata_write_attempts_max=1).delete(NAME, world.fence)
        assert LIST in world.tree.paths or f"{ROOT}/logs-deleted/{UID}" in world.tree.paths, call


async def test_a_deletion_is_noted_by_everybody_who_finishes_it(world: LogWorld) -> None:
    """Also one that has to be noted twice: the list was put back from an old copy, and deleted again."""
    back = world.loses_list()
    for _ in range(2):
        for node in back:
            world.tree.apply(node, 0)
        await world.maintenance.delete(NAME, world.fence)
    assert f"{ROOT}/logs-deleted/{UID}" in world.tree.paths
    assert LIST not in world.tree.paths


# --- a ledger of a log is nobody else's to delete ---------------------------------------------------------------


async def test_a_ledger_that_a_log_has_is_not_deleted(world: LogWorld) -> None:
    for ledger_id in world.segments:
        with pytest.raises(ConfigError, match="the ledger is a part of log orders: truncate that"):
            await world.maintenance.delete_ledger(await world.metadata(ledger_id))
    for ledger_id in (await world.ledger(), await world.ledger(None), await world.ledger(OLD_UID)):
        assert await world.maintenance.delete_ledger(await world.metadata(ledger_id)) == Gone()
    world.check()


async def test_one_that_no_log_has_is_deleted_though_a_request_is_lost_and_its_log_rolls_meanwhile(
    world: LogWorld,
) -> None:
    ledger_id, another = await world.ledger(), await world.ledger()
    maintenance = world.opened([None, None, REQUEST_LOST, lambda: world.rolls(another)])
    assert await maintenance.delete_ledger(await world.metadata(ledger_id)) == Gone()
    assert ledger_id not in world.ledgers()
    world.check()


async def test_nor_one_that_gets_into_it_at_that_moment(world: LogWorld) -> None:
    ledger_id = await world.ledger()
    metadata = await world.metadata(ledger_id)
    with pytest.raises(ConfigError):  # right before the transaction
        await world.opened([None] * 2 + [lambda: world.rolls(ledger_id)]).delete_ledger(metadata)
    world.check()
    another = await world.ledger()
    world.clock.now += GRACE_S
    metadata = await world.metadata(another)
    swept = await world.opened([None] * 2 + [lambda: world.rolls(another)]).sweep(metadata, GRACE_S)
    assert swept is Swept.KEPT
    assert left(world)[-1] == another
    world.check()


@pytest.mark.parametrize("custom", [{}, {"bkpy.log": b"orders"}, {"bkpy.log": b"\xff", "bkpy.log_uid": b"u"}])
async def test_a_ledger_of_no_log(world: LogWorld, custom: dict[str, bytes]) -> None:
    metadata = await world.metadata(world.segments[0])
    assert log_of(metadata) == (NAME, UID)
    assert log_of(dataclasses.replace(metadata, custom_metadata=custom)) is None


# --- cut short anywhere -----------------------------------------------------------------------------------------


async def sweep(context: LogMaintenance, world: LogWorld) -> None:
    """Of all ledgers, as the auditor does it."""
    for ledger_id in sorted(world.ledgers()):
        await context.sweep(await world.metadata(ledger_id), GRACE_S)


ACTS: dict[str, Any] = {
    "truncate": lambda context, _: context.truncate(NAME, 20),
    "retain": lambda context, _: context.retain(NAME),
    "maintain": lambda context, world: context.maintain(NAME, world.fence),
    "delete": lambda context, world: context.delete(NAME, world.fence),
    "sweep": sweep,
}


async def a_world() -> LogWorld:
    """Retention keeps the last sealed ledger and what comes behind it, and a consumer needs no more than that.

    There is an orphan, which is the last of the ledgers.
    """
    world = await LogWorld().begin(retention_s=50.0)
    await world.consumer("billing", 20)
    world.clock.now += GRACE_S + 5
    await world.ledger()
    world.clock.now += GRACE_S
    return world


def expected(act: str, world: LogWorld) -> set[int]:
    """The ledgers that are to be there when it is done, and the auditor has looked after what is left of it."""
    return set() if act == "delete" else set(world.segments[2:])


async def looked_after(world: LogWorld) -> None:
    """What the auditor finds, it does to the end."""
    await world.maintenance.maintain(NAME, world.fence)
    await sweep(world.maintenance, world)
    world.check()


CALLS = 40  # more than any of them makes


async def calls_of(act: str) -> int:
    """How many calls to the store one makes to which nothing happens."""
    world = await a_world()
    await ACTS[act](world.opened(), world)
    return world.troubled.calls


@pytest.mark.thorough
@pytest.mark.scenario(66)
@pytest.mark.parametrize(
    "trouble", [AWAY, REPLY_LOST, *(pytest.param(it, marks=pytest.mark.exhaustive) for it in (CLOSED, REQUEST_LOST))]
)
@pytest.mark.parametrize("act", ACTS)
async def test_what_is_cut_short_anywhere_is_finished_by_the_auditor(act: str, trouble: str) -> None:
    run: Callable[[LogMaintenance, LogWorld], Awaitable[object]] = ACTS[act]
    cut = 0
    for call in range(await calls_of(act)):
        world = await a_world()
        script: list[str | OpeningStep | None] = [None] * call + [trouble]
        if trouble in (AWAY, CLOSED):
            script += [trouble] * CALLS  # this one never comes back
        try:
            await run(world.opened(script, metadata_write_attempts_max=1), world)
        except BookKeeperError:
            cut += 1
        world.check()
        log_list = world.log_list()
        assert log_list is None or log_list.first_position <= 20
        begun = log_list is None or log_list.deleted
        await looked_after(world)
        assert world.ledgers() == (expected("delete", world) if begun else set(world.segments[2:])), call
        if begun:
            assert act == "delete"
            assert not [path for path in world.tree.paths if path.startswith(LIST)]
    assert cut


@pytest.mark.parametrize("trouble", [REQUEST_LOST, REPLY_LOST])
@pytest.mark.parametrize("act", ACTS)
async def test_one_lost_request_or_reply_is_got_over(act: str, trouble: str) -> None:
    for call in range(0, await calls_of(act), stride()):
        world = await a_world()
        await ACTS[act](world.opened([None] * call + [trouble], log_conflicts_max=5), world)
        await looked_after(world)
        assert world.ledgers() == expected(act, world), call


@pytest.mark.thorough
@pytest.mark.scenario(66)
@pytest.mark.parametrize("other", ["rolls", "registers", "truncates", "deletes", "replaces"])
@pytest.mark.parametrize("act", ACTS)
async def test_whatever_another_does_meanwhile_nothing_is_lost(act: str, other: str) -> None:
    """The other one acts between any two calls to the store: the writer, a consumer, another who takes things out."""
    for call in range(0, await calls_of(act), stride()):
        world = await a_world()
        spare = max(world.ledgers())  # what the sweep takes for an orphan, and the writer is about to use
        moment = {
            "rolls": lambda world=world, spare=spare: world.rolls(spare),
            "registers": lambda world=world: world.registers(12),
            "truncates": lambda world=world: _truncates(world),
            "deletes": lambda world=world: _deletes(world),
            "replaces": lambda world=world: _replaces(world),
        }[other]
        try:
            await ACTS[act](world.opened([None] * call + [moment]), world)
        except (NoSuchLogError, ConfigError, MetadataConflictError):
            assert other != "rolls" or act == "delete"
        if other == "replaces":
            _check_successor(world)
            continue
        world.check()
        held = f"{LIST}/{UID}/consumers/late" in world.tree.paths and act != "delete"
        if other == "registers" and held:
            # It was let in, so what it needs is there, whoever took what for unneeded.
            log_list = world.log_list()
            assert log_list is not None
            assert log_list.first_position <= 12, call
        await world.maintenance.maintain(NAME, world.fence)
        world.check()


def _truncates(world: LogWorld) -> None:
    log_list = world.log_list()
    if log_list is not None and not log_list.deleted and log_list.first_position < 10:
        world.tree.apply(Put(LIST, log_list.truncated(10).encode(), world.tree.node(LIST).version), 0)


def _deletes(world: LogWorld) -> None:
    log_list = world.log_list()
    if log_list is not None and not log_list.deleted:
        pending_delete = log_list.pending_delete + tuple(segment.ledger_id for segment in log_list.segments)
        gone = dataclasses.replace(log_list, deleted=True, segments=(), pending_delete=pending_delete)
        world.tree.apply(Put(LIST, gone.encode(), world.tree.node(LIST).version), 0)


def _replaces(world: LogWorld) -> None:
    """The log was deleted by another, and there is a new one of its name, with a ledger of its own."""
    for path in sorted((path for path in world.tree.paths if path.startswith(LIST)), reverse=True):
        world.tree.apply(Delete(path), 0)
    log_list = LogList("u2", 3, 3, 2, "crc32c", bytes(16), segments=())
    for node, value in (("", log_list.encode()), ("/u2", b""), ("/u2/consumers", b"")):
        world.tree.apply(Create(LIST + node, value), 0)


def _check_successor(world: LogWorld) -> None:
    """Nothing has happened to it, unless the act began behind it."""
    log_list = world.log_list()
    if log_list is not None and log_list.uid == "u2":
        assert not log_list.pending_delete
        assert f"{LIST}/u2/consumers" in world.tree.paths


async def test_a_list_that_changes_all_the_time_is_an_error(world: LogWorld) -> None:
    def changed() -> None:
        log_list = world.log_list()
        assert log_list is not None
        world.tree.apply(Put(LIST, log_list.encode(), world.tree.node(LIST).version), 0)

    for act in (
        world.opened([changed] * CALLS).truncate(NAME, 10),
        world.opened([changed] * CALLS).delete(NAME, world.fence),
    ):
        with pytest.raises(MetadataConflictError, match="the list of log orders changes all the time"):
            await act
    metadata = await world.metadata(await world.ledger())
    with pytest.raises(MetadataConflictError):
        await world.opened([changed] * CALLS).delete_ledger(metadata)


async def test_a_log_of_that_name_that_is_being_deleted_makes_room(world: LogWorld) -> None:
    """Whoever wants the name finishes the deletion first."""
    _deletes(world)
    await world.maintenance.maintain(NAME, world.fence)
    assert isinstance(await world.logs.create(NAME, LogList("u2", 3, 3, 2, "crc32c", bytes(16))), Done)


async def test_a_writer_id_is_forgotten_when_an_operator_says_so(world: LogWorld) -> None:
    log_list, version = await world.logs.read(NAME)
    await world.logs.write(
        NAME, dataclasses.replace(log_list, producers=Producers({"a": SinkWriter(3), "b": SinkWriter(0)})), version
    )
    assert await world.maintenance.forget_producer(NAME, "a")
    assert not await world.maintenance.forget_producer(NAME, "a")
    assert (await world.logs.read(NAME))[0].producers.batches == {"b": 0}
    world.check()
