"""What users are told when a connection is lost while a cluster, a ledger, a cookie or a registration is made."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import publish
from tests.in_process import DEADLINE_S, runtime_here
from tests.stepping import run_to
from tests.unit.metadata.new_ledgers import builder
from tests.unit.metadata.store.troubled import AWAY, CLOSED, REPLY_LOST, REQUEST_LOST, Somebody, Troubled
from tests.waiting import turns

from bkpy.config.client import client_settings
from bkpy.errors import (
    BookieUnavailableError,
    BookKeeperError,
    ClientClosedError,
    ConfigError,
    CorruptDataError,
    MetadataConflictError,
    MetadataUnavailableError,
    NoSuchClusterError,
)
from bkpy.metadata.bookies.cookies import delete_cookie, read_cookie, write_cookie
from bkpy.metadata.bookies.registration import BookieInfo, Registration
from bkpy.metadata.cluster import Cluster, init_cluster, open_cluster
from bkpy.metadata.ledgers.catalog import Created
from bkpy.metadata.store.memory import MemoryStore
from bkpy.metadata.store.outcome import NotDone, Unknown
from bkpy.metadata.store.store import Create, Delete, Put
from bkpy.metadata.store.zookeeper.store import ZooKeeperStore

if TYPE_CHECKING:
    from collections.abc import Awaitable

ROOT = "/ledgers"
COOKIE = json.dumps({"bookie_id": "b", "address": "h:1", "instance_id": "i"}).encode()


@pytest.fixture
async def store() -> Troubled:
    return Troubled(MemoryStore(runtime_here()))


@pytest.fixture
async def cluster(store: Troubled) -> Cluster:
    """A cluster with one ledger, so that no partition is missing."""
    made = await init_cluster(store, ROOT)
    assert isinstance(await made.catalog.create(builder("first")), Created)
    return made


async def error_of(call: Awaitable[Any]) -> BookKeeperError:
    with pytest.raises(BookKeeperError) as failure:
        await call
    return failure.value


# --- a cluster ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "kind", "unknown"),
    [
        ([AWAY], MetadataUnavailableError, False),  # already while looking for a cluster above
        ([None, AWAY], MetadataUnavailableError, False),
        ([None, None, None, AWAY], MetadataUnavailableError, False),
        ([None, None, None, REPLY_LOST, AWAY], MetadataUnavailableError, True),
        ([None, None, None, REPLY_LOST, None, AWAY], MetadataUnavailableError, True),
        ([None, None, None, REPLY_LOST, CLOSED], ClientClosedError, True),
        ([None, None, None, REPLY_LOST, "changes"], MetadataConflictError, True),
        ([None, None, None, "deletes"], MetadataConflictError, False),
    ],
)
async def test_making_a_cluster(store: Troubled, script: list[Any], kind: type, unknown: bool) -> None:
    instance_id, root = Somebody(store.tree, f"{ROOT}/INSTANCEID"), Somebody(store.tree, ROOT)
    acts = {"changes": instance_id.puts(b"another"), "deletes": root.deletes}
    store.script.extend([acts.get(turn, turn) for turn in script])
    error = await error_of(init_cluster(store, ROOT))
    assert (type(error), error.outcome_unknown) == (kind, unknown)
    assert not store.script


async def test_a_cluster_is_there_if_its_makers_connection_was_lost_or_somebody_was_first(store: Troubled) -> None:
    store.script.extend([None, None, None, REPLY_LOST])
    made = await init_cluster(store, ROOT)
    assert (await open_cluster(store, ROOT)).instance_id == made.instance_id
    error = await error_of(init_cluster(store, ROOT))
    assert isinstance(error, ConfigError)
    assert "already under /ledgers" in error.message


@pytest.mark.parametrize("node", ["INSTANCEID", "LAYOUT"])
async def test_a_damaged_node_of_the_cluster_is_named(cluster: Cluster, store: Troubled, node: str) -> None:
    await store.put(f"{ROOT}/{node}", b"\xff", 0)
    error = await error_of(open_cluster(store, ROOT))
    assert isinstance(error, CorruptDataError)
    assert f"/ledgers/{node} is unreadable" in error.message


# --- a ledger -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ([AWAY], NotDone),
        ([REPLY_LOST, AWAY], NotDone),  # of the id
        ([None, AWAY], NotDone),
        ([None, REPLY_LOST, AWAY], Unknown),
        ([None, REPLY_LOST, None, AWAY], Unknown),
        ([None, REPLY_LOST, "changes"], Unknown),
        ([None, REPLY_LOST, None, "deletes"], Unknown),
        ([None, REPLY_LOST], Created),
        ([None, "creates"], Created),  # with the next id
        ([None, REQUEST_LOST, "creates"], Created),
    ],
)
async def test_creating_a_ledger(store: Troubled, cluster: Cluster, script: list[Any], expected: type) -> None:
    path = cluster.catalog.path_of(1)
    theirs = builder("theirs")(1).encode()
    somebody = Somebody(store.tree, path)
    acts = {"changes": somebody.puts(theirs), "creates": somebody.creates(theirs), "deletes": somebody.deletes}
    store.script.extend([acts.get(turn, turn) for turn in script])
    outcome = await cluster.catalog.create(builder("ours"))
    assert type(outcome) is expected
    assert not store.script
    if isinstance(outcome, Created):
        assert await cluster.catalog.read(outcome.metadata.ledger_id) == (outcome.metadata, 0)
        assert outcome.metadata.ledger_id == (2 if "creates" in script else 1)
    elif isinstance(outcome, Unknown):
        assert outcome.error.ledger_id == 1
    else:
        assert path not in store.tree.paths


async def test_ids_that_are_all_taken(store: Troubled) -> None:
    settings = client_settings(ledger_id_attempts_max=2, ledger_id_pause_max_s=0.001)
    made = await init_cluster(store, ROOT, settings=settings)
    assert isinstance(await made.catalog.create(builder("first")), Created)
    for ledger_id in (1, 2):
        store.tree.apply(Create(made.catalog.path_of(ledger_id), b"by hand"), 0)
    outcome = await made.catalog.create(builder("ours"))
    assert isinstance(outcome, NotDone)
    assert "2 new ledger ids in a row were taken" in outcome.error.message
    assert (await store.children(f"{ROOT}/idgen-long/HOB-0000000000")) == []


@pytest.mark.parametrize("theirs", [True, False], ids=["somebody else's", "changed by somebody"])
async def test_only_what_was_made_is_taken_back(store: Troubled, cluster: Cluster, theirs: bool) -> None:
    """The creation is cancelled before its answer; meanwhile somebody has made, or changed, the ledger of that id."""
    path, tree = cluster.catalog.path_of(1), store.tree
    multi, sent = store.multi, asyncio.Event()

    async def held(operations: Any) -> Any:
        if not theirs:
            await multi(operations)
        sent.set()
        await asyncio.Event().wait()

    store.multi = held  # type: ignore[method-assign]
    creating = asyncio.create_task(cluster.catalog.create(builder("ours")))
    await sent.wait()
    value = builder("theirs")(1).encode()
    tree.apply(Create(path, value) if theirs else Put(path, value, 0), 0)
    creating.cancel()
    await asyncio.wait([creating])
    taking_back = [task for task in asyncio.all_tasks() if task.get_name() == "take back ledger 1"]
    assert len(taking_back) == 1
    await asyncio.wait(taking_back, timeout=DEADLINE_S)
    assert tree.node(path).data == value
    assert (await store.children(f"{ROOT}/idgen-long/HOB-0000000000")) == []


@pytest.mark.parametrize("late", [False, True])
async def test_whenever_a_creation_is_cancelled_neither_ledger_nor_id_is_left(
    store: Troubled, cluster: Cluster, late: bool
) -> None:
    """The node of an id that nobody uses would count as a ledger to come, for as long as the session lives."""
    ids = f"{ROOT}/idgen-long/HOB-0000000000"
    held = await store.create(f"{ids}/ID-", b"", ephemeral=True, sequential=True)  # by another call
    at = 0
    while await run_to(cluster.catalog.create(builder("ours")), at, late, None):
        await turns(100)
        assert [f"{ids}/{name}" for name in await store.children(ids)] == [held], at
        assert [one async for one in cluster.catalog.ids()] == [0], at
        at += 1
    assert at > 2


async def test_a_creation_that_ends_with_its_loop_takes_nothing_back(store: Troubled, cluster: Cluster) -> None:
    """There is no loop any more that a task could be started on: its coroutine would never be awaited."""
    sent = asyncio.Event()

    async def held(operations: Any) -> Any:
        sent.set()
        await asyncio.Event().wait()

    store.multi = held  # type: ignore[method-assign]
    coroutine = cluster.catalog.create(builder("ours"))
    creating = asyncio.create_task(coroutine)
    await sent.wait()
    coroutine.close()  # as the end of a loop does with what it leaves behind
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "take back ledger 1"]
    creating.cancel()
    await asyncio.wait([creating])
    assert isinstance(creating.exception(), RuntimeError)


async def test_a_cluster_that_was_removed_under_a_client(store: Troubled, cluster: Cluster) -> None:
    for path in sorted((path for path in store.tree.paths if path != "/"), key=len, reverse=True):
        store.tree.apply(Delete(path), 0)
    outcome = await cluster.catalog.create(builder("ours"))
    assert isinstance(outcome, NotDone)
    assert isinstance(outcome.error, NoSuchClusterError)


# --- a cookie -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [None, 0], ids=["the first", "another"])
async def test_writing_a_cookie(store: Troubled, cluster: Cluster, known: int | None) -> None:
    somebody = Somebody(store.tree, f"{ROOT}/cookies/b")
    if known is not None:
        somebody.creates(b"{}")()
    for script, kind, unknown in (
        ([AWAY], MetadataUnavailableError, False),
        ([REQUEST_LOST, AWAY], MetadataUnavailableError, True),
        ([somebody.creates(b"{}") if known is None else somebody.puts(b"{}")], MetadataConflictError, False),
    ):
        store.script.extend(script)
        error = await error_of(write_cookie(store, ROOT, "b", COOKIE, known))
        assert (type(error), error.outcome_unknown, error.bookie) == (kind, unknown, "b")
    somebody.deletes()
    if known is None:
        store.script.extend([REPLY_LOST, somebody.puts(b"{}")])
        error = await error_of(write_cookie(store, ROOT, "b", COOKIE, None))
        assert (type(error), error.outcome_unknown) == (MetadataConflictError, True)
        error = await error_of(write_cookie(store, "/elsewhere", "b", COOKIE, None))
        assert isinstance(error, NoSuchClusterError)
    else:
        error = await error_of(write_cookie(store, ROOT, "b", COOKIE, known))
        assert isinstance(error, MetadataConflictError)
        assert "deleted" in error.message


async def test_a_cookie_is_deleted_once(store: Troubled, cluster: Cluster) -> None:
    """The bookie may come back, and write another one, before a second attempt."""
    await write_cookie(store, ROOT, "b", COOKIE, None)
    somebody = Somebody(store.tree, f"{ROOT}/cookies/b")
    store.script.extend([REPLY_LOST, somebody.creates(b"another")])
    error = await error_of(delete_cookie(store, ROOT, "b", 0))
    assert (type(error), error.outcome_unknown, error.bookie) == (MetadataUnavailableError, True, "b")
    assert await read_cookie(store, ROOT, "b") == (b"another", 0)
    error = await error_of(delete_cookie(store, ROOT, "b", 7))
    assert isinstance(error, MetadataConflictError)
    await delete_cookie(store, ROOT, "b", 0)
    assert isinstance(await error_of(delete_cookie(store, ROOT, "b")), BookieUnavailableError)


# --- a registration -------------------------------------------------------------------------------------------------

B = BookieInfo("b", "h:1")


@pytest.mark.parametrize(
    "script",
    [[], [REQUEST_LOST], [REPLY_LOST], [REQUEST_LOST, None, REPLY_LOST]],
    ids=lambda script: ", ".join(map(str, script)),
)
async def test_a_registration_survives_lost_connections(store: Troubled, cluster: Cluster, script: list[Any]) -> None:
    registration = Registration(store, ROOT, B, runtime_here())
    store.script.extend(script)
    await registration.register()
    assert await store.exists(f"{ROOT}/available/b")
    await registration.set_free_bytes(7)
    assert json.loads((await store.get(f"{ROOT}/available/b"))[0])["free_bytes"] == 7
    await registration.unregister()
    assert not await store.exists(f"{ROOT}/available/b")


@pytest.mark.parametrize(
    ("script", "unknown"),
    [([AWAY], False), ([None, AWAY], False), ([REPLY_LOST, AWAY], True), ([REQUEST_LOST, None, CLOSED], True)],
)
async def test_a_registration_that_fails_says_why(
    store: Troubled, cluster: Cluster, script: list[Any], unknown: bool
) -> None:
    store.script.extend(script)
    error = await error_of(Registration(store, ROOT, B, runtime_here()).register())
    assert isinstance(error, MetadataUnavailableError | ClientClosedError)
    assert error.outcome_unknown == unknown


async def test_a_registration_without_a_cluster(store: Troubled) -> None:
    error = await error_of(Registration(store, ROOT, B, runtime_here()).register())
    assert (type(error), error.bookie) == (NoSuchClusterError, "b")


async def test_a_registration_gives_up_when_its_outcome_stays_unknown(store: Troubled, cluster: Cluster) -> None:
    store.session_timeout_s = 0.0
    store.script.extend([REPLY_LOST])
    error = await error_of(Registration(store, ROOT, B, runtime_here()).register())
    assert (error.outcome_unknown, error.bookie) == (True, "b")


@pytest.mark.parametrize("lost", [AWAY, REPLY_LOST])
async def test_leaving_without_the_store_is_an_error(store: Troubled, cluster: Cluster, lost: str) -> None:
    registration = Registration(store, ROOT, B, runtime_here())
    await registration.register()
    store.script.extend([None, lost])  # the look, and the deletion
    error = await error_of(registration.unregister())
    assert (type(error), error.outcome_unknown) == (MetadataUnavailableError, lost == REPLY_LOST)


async def test_a_node_that_can_not_be_brought_up_to_date_is_an_error(store: Troubled, cluster: Cluster) -> None:
    registration = Registration(store, ROOT, B, runtime_here())
    await publish(registration)
    registration.info = dataclasses.replace(B, free_bytes=9)
    for script, unknown in (([None, None, AWAY], False), ([None, None, REPLY_LOST], True)):
        store.script.extend(script)  # the creation, the look, the replacement
        error = await error_of(publish(registration))
        assert (error.outcome_unknown, error.bookie) == (unknown, "b")
    await publish(registration)
    assert json.loads((await store.get(f"{ROOT}/available/b"))[0])["free_bytes"] == 9


# --- a session ------------------------------------------------------------------------------------------------------


async def test_every_call_of_a_session_that_has_ended_gets_an_error_of_its_own() -> None:
    """What one caller is told of its call must not be told to another."""
    store = ZooKeeperStore([("127.0.0.1", 1)], runtime_here())
    await store.close()
    errors = [await error_of(store.get("/")) for _ in range(2)]
    assert errors[0] is not errors[1]
    assert all(isinstance(error, ClientClosedError) and not error.outcome_unknown for error in errors)
