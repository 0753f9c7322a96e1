"""The contract of a metadata store, on both of them."""

from __future__ import annotations

import asyncio

import pytest
from tests.cluster.metadata_harness import DEADLINE_S, Harness, harness, store
from tests.waiting import eventually

from bkpy.errors import BookKeeperError, ClientClosedError, MetadataUnavailableError
from bkpy.metadata.store.store import (
    BadVersion,
    Check,
    Create,
    Delete,
    MetadataStore,
    NodeExists,
    NoNode,
    NotEmpty,
    Put,
    SessionState,
    Watch,
)

__all__ = ["harness", "store"]  # fixtures


# --- nodes ----------------------------------------------------------------------------------------------------


async def test_a_node_has_its_value_and_counts_its_versions_from_zero(harness: Harness, store: MetadataStore) -> None:
    path = f"{harness.root}/a"
    assert await store.create(path, b"one") == path
    assert await store.get(path) == (b"one", 0)
    assert await store.put(path, b"two", 0) == 1
    assert await store.get(path) == (b"two", 1)
    await store.delete(path, 1)
    assert not await store.exists(path)
    await store.create(path, b"")
    assert await store.get(path) == (b"", 0)


async def test_how_many_children_a_node_has_had(harness: Harness, store: MetadataStore) -> None:
    """That is the next one's number, whatever has become of them."""
    path = f"{harness.root}/a"
    await store.create(path, b"")
    assert await store.children_made(path) == 0
    for count in range(1, 6):
        name = await store.create(f"{path}/n-", b"", sequential=True, ephemeral=bool(count % 2))
        assert name == f"{path}/n-{count - 1:010d}"
        assert await store.children_made(path) == count
        if count != 2:
            await store.delete(name)
            assert await store.children_made(path) == count
    await store.multi([Create(f"{path}/x", b""), Create(f"{path}/y", b""), Delete(f"{path}/y")])
    assert await store.children_made(path) == 7
    with pytest.raises(NoNode):
        await store.children_made(f"{path}/none")


async def test_when_a_node_was_written_last(harness: Harness, store: MetadataStore) -> None:
    path = f"{harness.root}/a"
    await store.create(path, b"")
    made = await store.written_ms(path)
    assert abs(made - store.runtime.clock.time() * 1000) < 3_600_000
    await store.create(f"{path}/below", b"")
    assert await store.written_ms(path) == made, "children are not its value"
    while await store.written_ms(path) == made:
        await store.put(path, b"again", (await store.get(path))[1])
    assert await store.written_ms(path) > made
    with pytest.raises(NoNode):
        await store.written_ms(f"{path}/none")


async def test_refusals_name_the_node_and_change_nothing(harness: Harness, store: MetadataStore) -> None:
    path = f"{harness.root}/a"
    await store.create(path, b"one")
    await store.create(f"{path}/b", b"")
    refused = [
        (NodeExists, path, store.create(path, b"two")),
        (NoNode, f"{path}/x/y", store.create(f"{path}/x/y", b"")),
        (BadVersion, path, store.put(path, b"two", 1)),
        (BadVersion, path, store.delete(path, 1)),
        (NotEmpty, path, store.delete(path)),
        (NoNode, f"{path}/x", store.get(f"{path}/x")),
        (NoNode, f"{path}/x", store.put(f"{path}/x", b"", 0)),
        (NoNode, f"{path}/x", store.delete(f"{path}/x")),
        (NoNode, f"{path}/x", store.children(f"{path}/x")),
    ]
    for kind, node, call in refused:
        with pytest.raises(kind, match=node) as refusal:
            await call
        assert isinstance(refusal.value, BookKeeperError)
        assert not refusal.value.outcome_unknown
        assert refusal.value.node == node
    assert await store.get(path) == (b"one", 0)
    assert await store.children(path) == ["b"]


@pytest.mark.parametrize("path", ["", "a", "/a/", "//a", "/a/../b", "/a/./b"])
async def test_a_path_that_is_none_is_a_programming_error(harness: Harness, store: MetadataStore, path: str) -> None:
    for call in (store.create(path, b""), store.get(path), store.put(path, b"", 0), store.delete(path)):
        with pytest.raises(ValueError, match="no node path"):
            await call
    for call in (store.exists(path), store.children(path), store.sync(path), store.multi([Check(path, 0)])):
        with pytest.raises(ValueError, match="no node path"):
            await call
    with pytest.raises(ValueError, match="no node path"):
        store.watch(path)


async def test_children_are_sorted_names(harness: Harness, store: MetadataStore) -> None:
    for name in ("c", "a", "b"):
        await store.create(f"{harness.root}/{name}", b"")
    await store.create(f"{harness.root}/a/deep", b"")
    assert await store.children(harness.root) == ["a", "b", "c"]
    assert await store.children(f"{harness.root}/c") == []


async def test_sequence_numbers_are_never_used_twice(harness: Harness, store: MetadataStore) -> None:
    paths = [await store.create(f"{harness.root}/n-", b"", sequential=True) for _ in range(3)]
    await store.delete(paths[2])
    paths.append(await store.create(f"{harness.root}/n-", b"", sequential=True))
    assert paths == [f"{harness.root}/n-{number:010d}" for number in range(4)]


async def test_concurrent_sequential_creates_get_distinct_numbers(harness: Harness, store: MetadataStore) -> None:
    other = await harness.open()
    created = await asyncio.gather(
        *(one.create(f"{harness.root}/n-", b"", sequential=True) for one in (store, other) for _ in range(50))
    )
    assert len(set(created)) == 100


async def test_a_large_value_comes_back_whole(harness: Harness, store: MetadataStore) -> None:
    value = bytes(range(256)) * 2000
    await store.create(f"{harness.root}/large", value)
    assert await store.get(f"{harness.root}/large") == (value, 0)


@pytest.mark.scenario(62)
async def test_of_many_writers_with_the_same_version_one_wins(harness: Harness, store: MetadataStore) -> None:
    path = f"{harness.root}/a"
    await store.create(path, b"")
    others = [store, *[await harness.open() for _ in range(2)]]
    results = await asyncio.gather(
        *(one.put(path, str(index).encode(), 0) for index, one in enumerate(others * 3)), return_exceptions=True
    )
    assert sorted(type(result).__name__ for result in results) == ["BadVersion"] * 8 + ["int"]


# --- multi ----------------------------------------------------------------------------------------------------


async def test_multi_does_all_and_reports_each(harness: Harness, store: MetadataStore) -> None:
    root = harness.root
    await store.create(f"{root}/old", b"")
    await store.create(f"{root}/kept", b"")
    results = await store.multi(
        [
            Check(f"{root}/kept", 0),
            Create(f"{root}/new", b"1"),
            Put(f"{root}/kept", b"2", 0),
            Delete(f"{root}/old", 0),
            Create(f"{root}/new/below", b"3"),
        ]
    )
    assert results == [None, f"{root}/new", 1, None, f"{root}/new/below"]
    assert await store.children(root) == ["kept", "new"]
    assert await store.get(f"{root}/kept") == (b"2", 1)
    assert await store.multi([]) == []


async def test_what_a_multi_makes_it_can_write_again(harness: Harness, store: MetadataStore) -> None:
    """So a node gets another version than the one that had its name before."""
    path = f"{harness.root}/new"
    assert await store.multi([Create(path, b"1", ephemeral=True), Put(path, b"2", 0)]) == [path, 1]
    assert await store.get(path) == (b"2", 1)
    with pytest.raises(BadVersion):
        await store.delete(path, 0)


@pytest.mark.parametrize(
    ("kind", "index"), [(NodeExists, 0), (BadVersion, 1), (NoNode, 2), (NotEmpty, 1), (BadVersion, 2)]
)
async def test_multi_does_nothing_when_one_is_refused(
    harness: Harness, store: MetadataStore, kind: type[Exception], index: int
) -> None:
    root = harness.root
    await store.create(f"{root}/a", b"one")
    await store.create(f"{root}/a/b", b"")
    bad = {
        NodeExists: Create(f"{root}/a", b""),
        BadVersion: Check(f"{root}/a", 5),
        NoNode: Put(f"{root}/x", b"", 0),
        NotEmpty: Delete(f"{root}/a"),
    }[kind]
    operations = [Create(f"{root}/c", b""), Put(f"{root}/a", b"two", 0), Delete(f"{root}/a/b")]
    operations.insert(index, bad)
    with pytest.raises(kind) as refusal:
        await store.multi(operations)
    assert refusal.value.index == index
    assert refusal.value.node == bad.path
    assert await store.children(root) == ["a"]
    assert await store.get(f"{root}/a") == (b"one", 0)
    assert await store.children(f"{root}/a") == ["b"]


# --- sessions -------------------------------------------------------------------------------------------------


async def test_ephemeral_nodes_go_with_their_session(harness: Harness, store: MetadataStore) -> None:
    other = await harness.open()
    await other.create(f"{harness.root}/a", b"", ephemeral=True)
    await other.multi([Create(f"{harness.root}/b", b"", ephemeral=True)])
    await other.create(f"{harness.root}/c", b"")
    await store.sync(harness.root)
    assert await store.children(harness.root) == ["a", "b", "c"]
    await other.close()
    await store.sync(harness.root)
    assert await store.children(harness.root) == ["c"]


async def test_an_expired_session_starts_anew_and_says_so(harness: Harness, store: MetadataStore) -> None:
    seen: list[SessionState] = []
    unsubscribe = store.session_events.subscribe(seen.append)
    await store.create(f"{harness.root}/a", b"", ephemeral=True)
    first = store.session_id
    await harness.expire(store)
    await eventually(lambda: store.session_id not in (0, first), "a new session")
    await eventually(lambda: store.state is SessionState.CONNECTED, "connected")
    assert not await store.exists(f"{harness.root}/a")
    assert [state for state in seen if state is not SessionState.SUSPENDED] == ["expired", "connected"]
    unsubscribe()
    await harness.expire(store)
    await eventually(lambda: store.state is SessionState.CONNECTED, "connected")
    assert len([state for state in seen if state is SessionState.EXPIRED]) == 1


async def test_a_short_suspension_keeps_the_session_and_its_nodes(harness: Harness, store: MetadataStore) -> None:
    other = await harness.open()
    await store.create(f"{harness.root}/a", b"", ephemeral=True)
    first = store.session_id
    seen: list[SessionState] = []
    store.session_events.subscribe(seen.append)
    await harness.suspend(store)
    assert store.state is SessionState.SUSPENDED
    call = asyncio.create_task(store.get(f"{harness.root}/a"))
    await harness.resume(store)
    assert await call == (b"", 0)
    assert store.session_id == first
    assert await other.exists(f"{harness.root}/a")
    assert seen == ["suspended", "connected"]


async def test_calls_without_a_connection_end_at_their_deadline(harness: Harness, store: MetadataStore) -> None:
    impatient = await harness.open(call_timeout_s=0.2)
    await harness.suspend(impatient)
    calls = [
        impatient.get("/"),
        impatient.create(f"{harness.root}/a", b""),
        impatient.multi([Create(f"{harness.root}/b", b"")]),
    ]
    async with asyncio.timeout(DEADLINE_S):
        errors = await asyncio.gather(*calls, return_exceptions=True)
    for error in errors:
        assert isinstance(error, MetadataUnavailableError)
        assert not error.outcome_unknown  # never sent
    await harness.resume(impatient)
    assert await store.children(harness.root) == []


async def test_a_lost_write_is_reported_as_unknown_and_not_repeated(harness: Harness, store: MetadataStore) -> None:
    harness.lose_request(store)
    with pytest.raises(MetadataUnavailableError) as lost:
        await store.create(f"{harness.root}/a-", b"", sequential=True)
    assert lost.value.outcome_unknown
    assert await store.children(harness.root) == []
    harness.lose_reply(store)
    with pytest.raises(MetadataUnavailableError) as lost:
        await store.create(f"{harness.root}/a-", b"", sequential=True)
    assert lost.value.outcome_unknown
    await store.sync(harness.root)
    assert await store.children(harness.root) == ["a-0000000000"]


async def test_a_closed_store_refuses_every_call_at_once(harness: Harness, store: MetadataStore) -> None:
    other = await harness.open()
    watch = other.watch(harness.root)
    await anext(watch)
    waiting = asyncio.create_task(anext(watch))
    await other.close()
    await other.close()
    for call in (other.get("/"), other.create(f"{harness.root}/a", b""), other.exists("/"), other.sync("/")):
        with pytest.raises(ClientClosedError):
            await call
    with pytest.raises(StopAsyncIteration):
        await waiting
    assert [turn async for turn in other.watch("/")] == []
    assert other.state is SessionState.EXPIRED


async def test_closing_ends_calls_that_wait_for_a_connection(harness: Harness, store: MetadataStore) -> None:
    other = await harness.open()
    await harness.suspend(other)
    call = asyncio.create_task(other.get("/"))
    await asyncio.sleep(0)
    await other.close()
    with pytest.raises(ClientClosedError):
        await call


# --- watches --------------------------------------------------------------------------------------------------


async def turn(watch: Watch) -> None:
    async with asyncio.timeout(DEADLINE_S):
        await anext(watch)


async def settled(watch: Watch) -> None:
    """Take all turns until the watch waits; needless ones are allowed."""
    while True:
        try:
            async with asyncio.timeout(0.1):
                await anext(watch)
        except TimeoutError:
            return


async def test_a_node_watch_wakes_for_creation_change_and_deletion(harness: Harness, store: MetadataStore) -> None:
    other = await harness.open()
    path = f"{harness.root}/a"
    watch = store.watch(path)
    await turn(watch)
    await other.create(path, b"")
    await turn(watch)
    await other.put(path, b"x", 0)
    await turn(watch)
    await store.sync(path)
    assert await store.get(path) == (b"x", 1)
    await other.delete(path)
    await turn(watch)
    assert not await store.exists(path)


async def test_a_children_watch_wakes_for_each_change_of_the_list(harness: Harness, store: MetadataStore) -> None:
    other = await harness.open()
    parent = f"{harness.root}/parent"
    watch = store.watch(parent, children=True)
    await turn(watch)
    await other.create(parent, b"")  # a missing parent is waited for
    await turn(watch)
    await other.create(f"{parent}/a", b"")
    await turn(watch)
    assert await store.children(parent) == ["a"]
    await other.delete(f"{parent}/a")
    await turn(watch)
    assert await store.children(parent) == []
    await other.delete(parent)
    await turn(watch)
    assert not await store.exists(parent)


async def test_changes_between_two_turns_are_not_lost(harness: Harness, store: MetadataStore) -> None:
    path = f"{harness.root}/a"
    await store.create(path, b"")
    watch = store.watch(path)
    await turn(watch)
    for version in range(10):
        await store.put(path, str(version).encode(), version)
    await turn(watch)
    assert await store.get(path) == (b"9", 10)


async def test_two_watches_on_one_node_both_wake(harness: Harness, store: MetadataStore) -> None:
    watches = [store.watch(harness.root, children=True) for _ in range(2)]
    for watch in watches:
        await turn(watch)
    watches.append(store.watch(harness.root))
    await turn(watches[2])
    await store.create(f"{harness.root}/a", b"")
    await turn(watches[0])
    await turn(watches[1])
    await store.put(harness.root, b"x", 0)
    await turn(watches[2])
    assert (await store.get(harness.root))[0] == b"x"


async def test_a_watch_survives_a_suspension_and_sees_what_happened_in_it(
    harness: Harness, store: MetadataStore
) -> None:
    other = await harness.open()
    path = f"{harness.root}/a"
    await other.create(path, b"")
    watches = {
        "deleted": store.watch(path),
        "created": store.watch(f"{harness.root}/b"),
        "children": store.watch(harness.root, children=True),
    }
    for watch in watches.values():
        await settled(watch)
    await harness.suspend(store)
    await other.delete(path)
    await other.create(f"{harness.root}/b", b"")
    await harness.resume(store)
    for watch in watches.values():
        await turn(watch)
    await store.sync(harness.root)
    assert await store.children(harness.root) == ["b"]
    # And they are set again: a change after the reconnect is seen too.
    for watch in watches.values():
        await settled(watch)
    await other.create(path, b"")
    await turn(watches["deleted"])
    await turn(watches["children"])
    await other.put(f"{harness.root}/b", b"x", 0)
    await turn(watches["created"])


async def test_an_untouched_watch_still_works_after_a_suspension(harness: Harness, store: MetadataStore) -> None:
    other = await harness.open()
    path = f"{harness.root}/a"
    await other.create(path, b"")
    watch = store.watch(path)
    await settled(watch)
    await harness.suspend(store)
    await harness.resume(store)
    await settled(watch)
    waiting = asyncio.create_task(turn(watch))
    await other.delete(path)
    await waiting
    assert not await store.exists(path)


async def test_every_watch_wakes_when_the_session_is_lost(harness: Harness, store: MetadataStore) -> None:
    path = f"{harness.root}/a"
    await store.create(path, b"", ephemeral=True)
    watch = store.watch(path)
    untouched = store.watch("/")
    await settled(watch)
    await settled(untouched)
    await harness.expire(store)
    await turn(watch)
    await turn(untouched)
    assert not await store.exists(path)
    await settled(watch)
    await store.create(path, b"")
    await turn(watch)


async def test_a_closed_watch_ends(harness: Harness, store: MetadataStore) -> None:
    watch = store.watch(harness.root)
    turns = 0
    async for _ in watch:
        turns += 1
        if turns == 2:
            watch.close()
        else:
            await store.put(harness.root, b"x", 0)
    assert turns == 2
    with pytest.raises(StopAsyncIteration):
        await anext(watch)


async def test_a_cancelled_wait_leaves_the_watch_usable(harness: Harness, store: MetadataStore) -> None:
    watch = store.watch(harness.root)
    await settled(watch)
    waiting = asyncio.create_task(anext(watch))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    await store.put(harness.root, b"x", 0)
    await turn(watch)
    assert await store.get(harness.root) == (b"x", 1)
