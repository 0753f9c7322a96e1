"""Bookies that register and clients that see them, on both stores."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import TYPE_CHECKING

import pytest
from tests.cluster.metadata_harness import DEADLINE_S, Harness, harness, store
from tests.waiting import eventually, turns

from bkpy.config.client import client_settings
from bkpy.errors import BookieUnavailableError, ConfigError, IdentityError, NotEnoughBookiesError
from bkpy.metadata.bookies.cookies import write_cookie
from bkpy.metadata.bookies.registration import BookieDirectory, BookieInfo, Registration
from bkpy.metadata.cluster import init_cluster
from bkpy.metadata.store.store import MetadataStore, SessionState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["harness", "store"]  # fixtures

B1 = BookieInfo("b1", "127.0.0.1:3181", "rack-1", "region-1", "0.1.0", 12345, False, 8000)


@pytest.fixture
async def directory(harness: Harness, store: MetadataStore) -> AsyncIterator[BookieDirectory]:
    await init_cluster(store, harness.root)
    directory = BookieDirectory(store, harness.root, harness.runtime)
    await directory.start()
    yield directory
    await directory.close()


def info(number: int) -> BookieInfo:
    return BookieInfo(f"b{number}", f"127.0.0.1:{3180 + number}")


async def registered(
    harness: Harness, of: BookieInfo, on: MetadataStore | None = None, identity: str = ""
) -> Registration:
    bookie = await harness.open() if on is None else on
    registration = Registration(bookie, harness.root, of, harness.runtime, identity=identity)
    await registration.register()
    return registration


async def test_a_registered_bookie_is_seen_until_it_leaves(harness: Harness, directory: BookieDirectory) -> None:
    registration = await registered(harness, B1)
    await eventually(lambda: directory.bookies == {"b1": B1}, "b1 is seen")
    assert directory.read_only == {}
    await registration.unregister()
    await eventually(lambda: directory.bookies == {}, "b1 has left")
    assert await directory.address_of("b1") == B1.address  # remembered


async def test_a_bookie_whose_process_dies_is_gone_with_its_session(
    harness: Harness, directory: BookieDirectory
) -> None:
    bookie = await harness.open()
    await registered(harness, B1, bookie)
    await eventually(lambda: "b1" in directory.bookies, "b1 is seen")
    await bookie.close()
    await eventually(lambda: directory.bookies == {}, "b1 is gone")


async def test_read_only_bookies_are_kept_apart(harness: Harness, directory: BookieDirectory) -> None:
    registration = await registered(harness, B1)
    await registration.set_read_only(True)
    read_only = dataclasses.replace(B1, read_only=True)
    await eventually(lambda: (directory.bookies, directory.read_only) == ({}, {"b1": read_only}), "b1 is read-only")
    # What is kept up is the new place.
    await harness.stores[0].delete(f"{harness.root}/available/readonly/b1")
    await eventually(lambda: harness.stores[0].exists(f"{harness.root}/available/readonly/b1"), "it is back")
    await registration.set_read_only(False)
    await registration.set_read_only(False)
    await eventually(lambda: (directory.bookies, directory.read_only) == ({"b1": B1}, {}), "b1 takes writes")


async def test_moving_waits_for_the_store(harness: Harness, directory: BookieDirectory) -> None:
    bookie = await harness.open()
    registration = await registered(harness, B1, bookie)
    await harness.suspend(bookie)
    moving = asyncio.create_task(registration.set_read_only(True))
    await turns()
    assert not moving.done()
    await harness.resume(bookie)
    async with asyncio.timeout(DEADLINE_S):
        await moving
    await directory.refresh()
    assert (sorted(directory.bookies), sorted(directory.read_only)) == ([], ["b1"])


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("lost", ["", "lose_request", "lose_reply"])
async def test_free_space_is_rewritten_in_place(
    harness: Harness, directory: BookieDirectory, read_only: bool, lost: str
) -> None:
    bookie = await harness.open()
    registration = await registered(harness, dataclasses.replace(B1, read_only=read_only), bookie)
    path = f"{harness.root}/available/{'readonly/' if read_only else ''}b1"
    if lost:
        getattr(harness, lost)(bookie)
    async with asyncio.timeout(DEADLINE_S):
        await registration.set_free_bytes(777)
    found, version = await harness.stores[0].get(path)
    assert json.loads(found)["free_bytes"] == 777
    assert version == 1
    await directory.refresh()
    assert (directory.read_only if read_only else directory.bookies)["b1"].free_bytes == 777


async def test_free_space_that_was_told_between_two_sessions_is_in_the_new_one(
    harness: Harness, directory: BookieDirectory
) -> None:
    bookie = await harness.open()
    registration = await registered(harness, B1, bookie)
    await harness.suspend(bookie)
    telling = asyncio.create_task(registration.set_free_bytes(777))
    await harness.expire(bookie)
    await harness.resume(bookie)
    async with asyncio.timeout(DEADLINE_S):
        await telling
    seen = dataclasses.replace(B1, free_bytes=777)
    await eventually(lambda: directory.bookies == {"b1": seen}, "b1 is back, with its new space")


@pytest.mark.scenario(56)
async def test_a_bookie_registers_again_after_its_session_was_lost(
    harness: Harness, directory: BookieDirectory
) -> None:
    bookie = await harness.open()
    await registered(harness, B1, bookie)
    path = f"{harness.root}/available/b1"
    for _ in range(2):
        before = bookie.session_id
        await harness.expire(bookie)
        await eventually(lambda before=before: bookie.session_id not in (0, before), "a new session")

        async def registered_anew() -> bool:
            try:
                value, _ = await harness.stores[0].get(path)
            except Exception:
                return False
            return json.loads(value)["session"] == f"{bookie.session_id:#x}"

        await eventually(registered_anew, "registered in the new session")
    await eventually(lambda: directory.bookies == {"b1": B1}, "b1 is seen")


async def test_a_node_that_was_removed_by_hand_comes_back(harness: Harness, directory: BookieDirectory) -> None:
    await registered(harness, B1)
    path = f"{harness.root}/available/b1"
    await harness.stores[0].delete(path)
    await eventually(lambda: harness.stores[0].exists(path), "registered again")


@pytest.mark.parametrize("lost", ["lose_request", "lose_reply"])
async def test_registering_survives_a_lost_connection(harness: Harness, directory: BookieDirectory, lost: str) -> None:
    bookie = await harness.open()
    getattr(harness, lost)(bookie)
    await registered(harness, B1, bookie)
    await eventually(lambda: directory.bookies == {"b1": B1}, "b1 is seen")


@pytest.mark.scenario(56)
async def test_another_living_process_with_the_id_is_refused(harness: Harness, directory: BookieDirectory) -> None:
    await registered(harness, B1)
    impatient = await harness.open(session_timeout_s=1.0)
    with pytest.raises(IdentityError, match="b1"):
        await registered(harness, dataclasses.replace(B1, address="127.0.0.1:9999"), impatient)
    await directory.refresh()
    assert directory.bookies == {"b1": B1}


async def test_a_restarted_bookie_waits_for_its_dead_predecessor(harness: Harness, directory: BookieDirectory) -> None:
    dead = await harness.open()
    await registered(harness, B1, dead)
    await harness.suspend(dead)  # as if killed: nothing is said to the server
    moved = dataclasses.replace(B1, address="127.0.0.1:9999")
    restarting = asyncio.create_task(registered(harness, moved))
    await eventually(lambda: len(harness.stores) == 3, "the new process is connected")
    await harness.expire(dead)
    async with asyncio.timeout(DEADLINE_S):
        await restarting
    await eventually(lambda: directory.bookies == {"b1": moved}, "the new one is seen")


async def test_a_predecessor_with_the_same_directories_is_replaced_at_once(
    harness: Harness, directory: BookieDirectory
) -> None:
    dead = await harness.open()
    await registered(harness, B1, dead, identity="directories of b1")
    await harness.suspend(dead)
    first = dead.session_id
    moved = dataclasses.replace(B1, address="127.0.0.1:9999")
    async with asyncio.timeout(DEADLINE_S):
        registration = await registered(harness, moved, identity="directories of b1")
    await eventually(lambda: directory.bookies == {"b1": moved}, "the new one is seen")
    assert dead.session_id == first
    await registration.unregister()


@pytest.mark.scenario(56)
async def test_losing_the_id_to_another_process_is_reported(harness: Harness, directory: BookieDirectory) -> None:
    deaths: list[BaseException] = []
    bookie = await harness.open(session_timeout_s=1.0)
    registration = Registration(bookie, harness.root, B1, harness.runtime, on_death=deaths.append)
    await registration.register()
    await harness.suspend(bookie)
    await harness.expire(bookie)
    await registered(harness, dataclasses.replace(B1, address="127.0.0.1:9999"))
    await harness.resume(bookie)
    await eventually(lambda: len(deaths) == 1, "the owner is told")
    assert isinstance(deaths[0], IdentityError)


async def test_a_registration_ends_quietly_when_its_store_is_closed(
    harness: Harness, directory: BookieDirectory
) -> None:
    deaths: list[BaseException] = []
    bookie = await harness.open()
    registration = Registration(bookie, harness.root, B1, harness.runtime, on_death=deaths.append)
    await registration.register()
    await bookie.close()
    await eventually(lambda: directory.bookies == {}, "b1 is gone")
    name = f"registration of {B1.bookie_id}"
    await eventually(lambda: name not in [task.get_name() for task in asyncio.all_tasks()], "it has ended")
    assert deaths == []


@pytest.mark.parametrize("bookie_id", ["", "readonly", "a/b"])
async def test_an_id_that_cannot_name_a_node_is_refused(harness: Harness, store: MetadataStore, bookie_id: str) -> None:
    with pytest.raises(ConfigError):
        Registration(store, harness.root, BookieInfo(bookie_id, "h:1"), harness.runtime)


# --- the directory ------------------------------------------------------------------------------------------


async def test_waiting_for_bookies(harness: Harness, directory: BookieDirectory) -> None:
    waiting = asyncio.create_task(directory.wait_for(3, DEADLINE_S))
    for number in (1, 2, 3):
        assert not waiting.done()
        await registered(harness, info(number))
    await waiting
    assert sorted(directory.bookies) == ["b1", "b2", "b3"]
    with pytest.raises(NotEnoughBookiesError, match=r"3 bookies take writes.* 4 are needed"):
        await directory.wait_for(4, 0.05)


async def test_the_last_known_list_outlives_the_store(harness: Harness, directory: BookieDirectory) -> None:
    client = await harness.open()
    mine = BookieDirectory(client, harness.root, harness.runtime)
    await registered(harness, info(1))
    bookie = await harness.open()
    leaving = await registered(harness, info(2), bookie)
    await mine.start()
    assert sorted(mine.bookies) == ["b1", "b2"]
    await harness.suspend(client)
    await leaving.unregister()
    await registered(harness, info(3))
    assert sorted(mine.bookies) == ["b1", "b2"]
    await harness.resume(client)
    await eventually(lambda: sorted(mine.bookies) == ["b1", "b3"], "what happened meanwhile is seen")
    await harness.suspend(client)
    await harness.expire(client)
    assert sorted(mine.bookies) == ["b1", "b3"]
    await harness.resume(client)
    await eventually(lambda: client.state is SessionState.CONNECTED, "a new session")
    await registered(harness, info(4))
    await eventually(lambda: sorted(mine.bookies) == ["b1", "b3", "b4"], "the new session is followed too")
    await mine.close()


@pytest.mark.scenario(53)
async def test_a_bookie_that_comes_back_elsewhere_has_its_new_address(
    harness: Harness, directory: BookieDirectory
) -> None:
    registration = await registered(harness, info(1))
    await eventually(lambda: "b1" in directory.bookies, "seen")
    await registration.unregister()
    await registered(harness, BookieInfo("b1", "127.0.0.1:9999"))

    async def moved() -> bool:
        return await directory.address_of("b1") == "127.0.0.1:9999"

    await eventually(moved, "the new address is seen")


async def test_the_address_of_an_absent_bookie_is_in_its_cookie(harness: Harness, directory: BookieDirectory) -> None:
    with pytest.raises(BookieUnavailableError, match="b7"):
        await directory.address_of("b7")
    cookie = {"bookie_id": "b7", "address": "127.0.0.1:3187", "instance_id": "i"}
    await write_cookie(harness.stores[0], harness.root, "b7", json.dumps(cookie).encode(), None)
    assert await directory.address_of("b7") == "127.0.0.1:3187"


async def test_what_changes_in_place_is_seen_after_a_while(
    harness: Harness, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await init_cluster(store, harness.root)
    client = await harness.open()
    settings = client_settings(bookie_refresh_interval_s=0.05, bookie_reads_at_once=1)
    mine = BookieDirectory(client, harness.root, harness.runtime, settings)
    registration = await registered(harness, B1)
    refresh, looking = mine.refresh, asyncio.Event()

    async def refreshing(*, whole: bool = True) -> None:
        looking.set()
        await refresh(whole=whole)
        looking.clear()

    monkeypatch.setattr(mine, "refresh", refreshing)
    await mine.start()
    await registration.set_free_bytes(777)
    await eventually(lambda: mine.bookies["b1"].free_bytes == 777, "the new space is seen")
    await harness.suspend(client)
    await registration.set_free_bytes(888)
    await eventually(looking.is_set, "it is time to look again")
    await turns()
    assert mine.bookies["b1"].free_bytes == 777
    await harness.resume(client)
    await eventually(lambda: mine.bookies["b1"].free_bytes == 888, "and again after the store was away")
    await mine.close()


async def test_a_stranger_among_the_bookies_is_passed_over(harness: Harness, directory: BookieDirectory) -> None:
    for name, value in (("x1", b""), ("x2", b"[1]"), ("x3", b'{"address": "h:1", "free_bytes": "much"}')):
        await harness.stores[0].create(f"{harness.root}/available/{name}", value)
    await registered(harness, B1)
    await eventually(lambda: directory.bookies == {"b1": B1}, "only b1 is seen")
