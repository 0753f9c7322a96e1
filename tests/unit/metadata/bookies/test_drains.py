"""Which bookies are to leave: what is stored, what is certain of it, and what survives."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.in_process import runtime_here
from tests.unit.metadata.store.troubled import AWAY, REPLY_LOST, REQUEST_LOST, Troubled

from bkpy.config.shared import MetadataSettings
from bkpy.errors import MetadataUnavailableError
from bkpy.metadata import paths
from bkpy.metadata.bookies.draining import Drain, Drains
from bkpy.metadata.cluster import init_cluster
from bkpy.metadata.store.memory import MemoryStore
from bkpy.metadata.store.outcome import Changed, Done, Exists, Gone, Missing, NotDone, Unknown
from bkpy.metadata.store.store import Create, Delete, Put

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = "/ledgers"
FOLDER = f"{ROOT}/underreplication/draining"


@pytest.fixture
async def tree() -> MemoryStore:
    tree = MemoryStore(runtime_here())
    await init_cluster(tree.session(), ROOT)
    tree.apply(Create(paths.cookie(ROOT, "a"), b"{}"), 0)
    return tree


def opened(tree: MemoryStore, script: Iterable[str | None] = ()) -> Drains:
    settings = MetadataSettings(metadata_write_attempts_max=2)
    return Drains(Troubled(tree, script), ROOT, runtime_here(), settings)


async def begun(tree: MemoryStore) -> Drain:
    assert isinstance(await opened(tree).begin("a"), Done)
    drain = await opened(tree).read("a")
    assert drain is not None
    return drain


async def test_it_begins_is_said_and_ends(tree: MemoryStore) -> None:
    drains = opened(tree)
    assert await drains.read("a") is None
    assert await drains.bookies() == frozenset()
    drain = await begun(tree)
    assert (drain.refuses, drain.node_version) == (False, 0)
    assert isinstance(await drains.begin("a"), Exists)
    assert await drains.say_refusing(drain) == Done(1)
    said = await drains.read("a")
    assert said is not None
    assert (said.refuses, said.since_ms, said.token) == (True, drain.since_ms, drain.token)
    assert await drains.bookies() == {"a"}
    assert await drains.all() == [said]
    assert await drains.cancel(drain) == Gone()
    assert await drains.read("a") is None
    assert paths.cookie(ROOT, "a") in tree.paths


async def test_a_person_can_read_it(tree: MemoryStore) -> None:
    drain = await begun(tree)
    assert tree.node(f"{FOLDER}/a").data.decode() == drain.token
    value = json.loads(tree.node(f"{FOLDER}/a/{drain.token}").data)
    assert value == {"version": 1, "since_ms": drain.since_ms, "refuses_since_ms": None}


@pytest.mark.scenario(60)
async def test_the_cookie_goes_only_with_what_was_read(tree: MemoryStore) -> None:
    old = await begun(tree)
    drains = opened(tree)
    await drains.say_refusing(old)
    assert await drains.retire(old, 0) == Changed()
    drain = await drains.read("a")
    assert drain is not None
    assert await drains.retire(drain, 5) == Changed()
    await drains.cancel(drain)
    await begun(tree)
    assert isinstance(await drains.retire(drain, 0), Missing)
    assert paths.cookie(ROOT, "a") in tree.paths
    again = await drains.read("a")
    assert again is not None
    assert await drains.retire(again, 0) == Gone()
    assert paths.cookie(ROOT, "a") not in tree.paths
    assert await drains.read("a") is None


@pytest.mark.parametrize("value", [b"\xff", b"[]", b"{}", b'{"version": 2, "since_ms": 1, "refuses_since_ms": 1}'])
async def test_a_value_that_makes_no_sense_says_that_it_is_draining_and_no_more(
    tree: MemoryStore, value: bytes
) -> None:
    drain = await begun(tree)
    tree.apply(Put(f"{FOLDER}/a/{drain.token}", value, 0), 0)
    found = await opened(tree).read("a")
    assert found is not None
    assert not found.refuses
    assert await opened(tree).cancel(found) == Gone()


@pytest.mark.parametrize("value", [b"", b"a/b", b"..", None])
async def test_one_whose_value_can_not_be_found_or_read_drains_all_the_same(
    tree: MemoryStore, value: bytes | None
) -> None:
    drain = await begun(tree)
    store = Troubled(tree)
    drains = Drains(store, ROOT, runtime_here())
    if value is None:
        store.forbidden = {f"{FOLDER}/a", f"{FOLDER}/a/{drain.token}"}
    else:
        tree.apply(Delete(f"{FOLDER}/a/{drain.token}"), 0)
        tree.apply(Put(f"{FOLDER}/a", value, 0), 0)
    found = await drains.read("a")
    assert found is not None
    assert (found.refuses, found.token) == (False, "")
    assert f"{FOLDER}/a" in found.unreadable
    assert await drains.all() == [found]
    if value is not None:
        assert await drains.cancel(found) == Gone()
        assert await drains.read("a") is None


@pytest.mark.parametrize("value", [b"", b"a/b", b"another"])
async def test_a_draining_whose_value_is_damaged_ends_with_the_node_below(tree: MemoryStore, value: bytes) -> None:
    for retired in (False, True):
        drain = await begun(tree)
        tree.apply(Put(f"{FOLDER}/a", value, 0), 0)
        found = await opened(tree).read("a")
        assert found == drain
        ended = await (opened(tree).retire(found, 0) if retired else opened(tree).cancel(found))
        assert ended == Gone()
        assert await opened(tree).read("a") is None


async def test_a_lost_bookie_whose_draining_has_no_value_can_be_retired(tree: MemoryStore) -> None:
    drain = await begun(tree)
    tree.apply(Delete(f"{FOLDER}/a/{drain.token}"), 0)
    tree.apply(Put(f"{FOLDER}/a", b"", 0), 0)
    found = await opened(tree).read("a")
    assert found is not None
    assert await opened(tree).retire(found, 0) == Gone()
    assert paths.cookie(ROOT, "a") not in tree.paths


async def test_unknown_fields_survive(tree: MemoryStore) -> None:
    drain = await begun(tree)
    path = f"{FOLDER}/a/{drain.token}"
    fields = {**json.loads(tree.node(path).data), "by": "somebody"}
    tree.apply(Put(path, json.dumps(fields).encode(), 0), 0)
    found = await opened(tree).read("a")
    assert found is not None
    await opened(tree).say_refusing(found)
    assert json.loads(tree.node(path).data)["by"] == "somebody"


@pytest.mark.parametrize("trouble", [REQUEST_LOST, REPLY_LOST])
async def test_a_lost_request_or_reply_changes_nothing(tree: MemoryStore, trouble: str) -> None:
    drain = await begun(tree)
    assert await opened(tree, [trouble]).say_refusing(drain) == Done(1)
    found = await opened(tree).read("a")
    assert found is not None
    assert await opened(tree, [trouble]).retire(found, 0) == Gone()
    assert paths.cookie(ROOT, "a") not in tree.paths


async def test_what_can_not_be_told_is_said(tree: MemoryStore) -> None:
    drain = await begun(tree)
    assert isinstance(await opened(tree, [AWAY]).cancel(drain), NotDone)
    assert isinstance(await opened(tree, [REQUEST_LOST, REQUEST_LOST]).cancel(drain), Unknown)
    with pytest.raises(MetadataUnavailableError):
        await opened(tree, [AWAY]).read("a")
