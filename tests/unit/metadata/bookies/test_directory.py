"""What a client reads when bookies come and go: with many of both, the calls of all clients are many."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
from tests.in_process import runtime_here
from tests.unit.metadata.store.troubled import Troubled
from tests.waiting import eventually, turns

from bkpy.config.client import client_settings
from bkpy.metadata import paths
from bkpy.metadata.bookies.registration import BookieDirectory
from bkpy.metadata.cluster import init_cluster
from bkpy.metadata.store.memory import MemoryStore
from bkpy.metadata.store.store import Create, Delete, Put

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ROOT = "/ledgers"
BOOKIES = 20


def path_of(name: str, *, read_only: bool = False) -> str:
    return paths.available(ROOT, name, read_only=read_only)


def registered(tree: MemoryStore, name: str, port: int, *, read_only: bool = False) -> None:
    value = {"version": 1, "bookie_id": name, "address": f"127.0.0.1:{port}"}
    tree.apply(Create(path_of(name, read_only=read_only), json.dumps(value).encode()), 0)


class Watched:
    """A directory, and the registrations that it has read since it was last asked."""

    def __init__(self, tree: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
        session = tree.session()
        self.directory = BookieDirectory(session, ROOT, runtime_here())
        self._read: list[str] = []
        get = session.get

        async def noted(path: str) -> tuple[bytes, int]:
            self._read.append(path.rpartition("/")[2])
            return await get(path)

        monkeypatch.setattr(session, "get", noted)

    async def read(self) -> list[str]:
        """By all that there was to do until now."""
        await turns(1000)
        read, self._read = self._read, []
        return sorted(read)


@pytest.fixture
async def tree() -> MemoryStore:
    tree = MemoryStore(runtime_here())
    await init_cluster(tree.session(), ROOT)
    for number in range(BOOKIES):
        registered(tree, f"b{number}", 3181 + number)
    return tree


@pytest.fixture
async def watched(tree: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watched]:
    watched = Watched(tree, monkeypatch)
    await watched.directory.start()
    yield watched
    await watched.directory.close()


async def test_a_start_reads_each_registration_once(watched: Watched) -> None:
    assert len(await watched.read()) == BOOKIES
    assert len(watched.directory.bookies) == BOOKIES


async def test_of_bookies_that_come_and_go_only_the_new_ones_are_read(tree: MemoryStore, watched: Watched) -> None:
    await watched.read()
    tree.apply(Delete(path_of("b3")), 0)
    assert await watched.read() == []
    assert "b3" not in watched.directory.bookies
    registered(tree, "b3", 4000)
    assert await watched.read() == ["b3"]
    assert watched.directory.bookies["b3"].address == "127.0.0.1:4000"
    registered(tree, "b4", 3185, read_only=True)
    tree.apply(Delete(path_of("b4")), 0)
    assert await watched.read() == ["b4"]
    assert set(watched.directory.read_only) == {"b4"}


async def test_a_bookie_that_was_away_between_two_lists_is_read_again(tree: MemoryStore, watched: Watched) -> None:
    await watched.read()
    tree.apply(Delete(path_of("b3")), 0)
    registered(tree, "b3", 4000)
    await eventually(lambda: watched.directory.bookies["b3"].address == "127.0.0.1:4000", "its new address is read")


async def test_one_that_was_away_is_read_again_though_another_one_comes(tree: MemoryStore, watched: Watched) -> None:
    await watched.read()
    tree.apply(Delete(path_of("b3")), 0)
    registered(tree, "b3", 4000)
    registered(tree, "new", 5000)
    await watched.read()
    assert watched.directory.bookies["b3"].address == "127.0.0.1:4000"
    assert watched.directory.bookies["new"].address == "127.0.0.1:5000"


@pytest.mark.parametrize("lists", range(3))
@pytest.mark.parametrize("read_only", [False, True], ids=["to the read-only ones", "to the writable ones"])
async def test_a_bookie_that_moves_between_two_lists_is_not_absent(
    tree: MemoryStore, monkeypatch: pytest.MonkeyPatch, lists: int, read_only: bool
) -> None:
    places = [path_of("b3", read_only=one) for one in (read_only, not read_only)]
    if read_only:
        tree.apply(Delete(path_of("b3")), 0)
        registered(tree, "b3", 3184, read_only=True)
    session = tree.session()
    directory = BookieDirectory(session, ROOT, runtime_here())
    await directory.refresh()
    children, seen = session.children, 0

    async def moved_behind(path: str) -> list[str]:
        nonlocal seen
        names = await children(path)
        seen += 1
        if seen == lists:  # as `Registration` moves it
            registered(tree, "b3", 3184, read_only=not read_only)
            tree.apply(Delete(places[0]), 0)
        return names

    monkeypatch.setattr(session, "children", moved_behind)
    await directory.refresh(whole=False)
    assert len(directory.readable) == BOOKIES
    assert not directory.absent_since
    tree.apply(Delete(next(place for place in places if place in tree.paths)), 0)
    await directory.refresh(whole=False)
    assert list(directory.absent_since) == ["b3"]


async def test_a_registration_that_this_client_may_not_read_hides_no_other_one(tree: MemoryStore) -> None:
    session = Troubled(tree)
    directory = BookieDirectory(session, ROOT, runtime_here())
    await directory.start()
    session.forbidden = {path_of("theirs"), paths.cookie(ROOT, "theirs")}
    registered(tree, "theirs", 4000)
    tree.apply(Create(paths.cookie(ROOT, "theirs"), b"{}"), 0)
    await turns(1000)
    registered(tree, "later", 5000)
    await eventually(lambda: "later" in directory.bookies, "the next one is noticed")
    assert len(directory.bookies) == BOOKIES + 1
    assert await directory.known(()) == []
    session.forbidden.clear()
    await directory.refresh()
    assert directory.bookies["theirs"].address == "127.0.0.1:4000"
    await directory.close()


@pytest.mark.parametrize("folder", [paths.AVAILABLE, paths.READ_ONLY, paths.DRAINING])
async def test_bookies_are_noticed_again_once_this_client_may_list_them_again(
    tree: MemoryStore, folder: str, caplog: pytest.LogCaptureFixture
) -> None:
    session = Troubled(tree)
    settings = client_settings(bookie_refresh_interval_s=1e6)
    directory = BookieDirectory(session, ROOT, runtime_here(), settings)
    await directory.start()
    session.forbidden = {f"{ROOT}/{folder}"}
    registered(tree, "early", 4000)
    await asyncio.sleep(10 * settings.metadata_retry_pause_s)
    assert "early" not in directory.bookies
    assert len([one for one in caplog.messages if "failed to list the bookies" in one]) == 1
    session.forbidden.clear()
    await eventually(lambda: "early" in directory.bookies, "the one that came meanwhile is noticed")
    registered(tree, "later", 5000, read_only=True)
    await eventually(lambda: "later" in directory.read_only, "the next one is noticed, too")
    await directory.close()


@pytest.mark.thorough
async def test_registrations_are_read_again_once_this_client_may_list_them_again(tree: MemoryStore) -> None:
    session = Troubled(tree)
    settings = client_settings(bookie_refresh_interval_s=60)
    directory = BookieDirectory(session, ROOT, runtime_here(), settings)
    await directory.start()
    session.forbidden = {f"{ROOT}/{paths.AVAILABLE}"}
    await asyncio.sleep(200)
    session.forbidden.clear()
    changed = json.dumps({"version": 1, "bookie_id": "b1", "address": "127.0.0.1:4000"}).encode()
    tree.apply(Put(path_of("b1"), changed, 0), 0)
    await asyncio.sleep(100)
    assert directory.bookies["b1"].address == "127.0.0.1:4000"
    await directory.close()
