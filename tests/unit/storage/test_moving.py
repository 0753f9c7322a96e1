"""Directories of a stopped bookie that are moved to other paths."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.examples import stride
from tests.sim.disk import SimDisk, SimulatedCrash
from tests.unit.storage.support import KEY, Batch, Host, add, read_all
from tests.unit.storage.support import settings as bookie_settings

from bkpy.errors import IdentityError, StorageFailedError

if TYPE_CHECKING:
    from bkpy.config.bookie import BookieSettings


def copy(disk: SimDisk, old: str, new: str) -> None:
    other = disk.clone()
    for path in [p for p in other.directories if p == old or p.startswith(f"{old}/")]:
        disk.directories[new + path.removeprefix(old)] = other.directories[path]


MOVES = [
    {"/b/journal0": "/fast/j"},
    {"/b/journal1": "/fast/j"},
    {"/b/journal0": "/fast/0", "/b/journal1": "/fast/1"},
    {"/b/ledgers1": "/large/l"},
    {"/b/journal0": "/x/j0", "/b/journal1": "/x/j1", "/b/ledgers0": "/x/l0", "/b/ledgers1": "/x/l1"},
]


def moved_settings(moves: dict[str, str]) -> BookieSettings:
    settings = bookie_settings(journals=2, ledgers=2)
    return settings.model_copy(
        update={
            "journal_directories": [moves.get(path, path) for path in settings.journal_directories],
            "ledger_directories": [moves.get(path, path) for path in settings.ledger_directories],
        }
    )


async def used(clean: bool = True) -> Host:
    host = Host(settings=bookie_settings(journals=2, ledgers=2))
    storage = await host.boot()
    await add(storage, *(Batch(i, 0, 3) for i in range(4)))
    await storage.checkpoint()
    await add(storage, *(Batch(i, 3, 2) for i in range(4)))
    await storage.fence(3, KEY)
    if clean:
        await storage.close()
    else:
        host.disk.power_cut()
    return host


async def check(host: Host) -> None:
    for _ in range(2):
        storage = await host.boot()
        for i in range(4):
            assert await read_all(storage, i, 0, 5) == (dict.fromkeys(range(5), b"data"), set())
        assert 3 in storage.fenced
        await storage.close()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("moves", MOVES, ids=str)
async def test_directories_that_were_moved_are_used_where_they_are(moves: dict[str, str], clean: bool) -> None:
    host = await used(clean)
    for old, new in moves.items():
        host.disk.move_directory(old, new)
    before = host.cookie
    host.settings = moved_settings(moves)
    await check(host)
    assert host.cookie != before
    # and back
    for old, new in moves.items():
        host.disk.move_directory(new, old)
    host.settings = moved_settings({})
    await check(host)
    assert host.cookie == before


@pytest.mark.thorough
@pytest.mark.parametrize("moves", MOVES[2:], ids=str)
def test_a_crash_at_every_operation_of_a_start_after_a_move(moves: dict[str, str]) -> None:
    original = asyncio.run(used(clean=False))
    for old, new in moves.items():
        original.disk.move_directory(old, new)

    async def crash(nth: int) -> bool:
        host = Host(original.disk.clone(), moved_settings(moves), original.cookie, boots=nth)
        host.disk.crash_at(nth)
        try:
            await host.boot()
        except (SimulatedCrash, StorageFailedError):
            assert host.disk.dead
        crashed = host.disk.dead
        host.disk.heal()
        host.disk.rng.seed(nth)
        host.disk.power_cut()
        await check(host)
        return crashed

    nth = 1
    while asyncio.run(crash(nth)):
        nth += stride()
    assert nth > 20


async def test_an_old_copy_is_refused_after_a_move() -> None:
    host = await used()
    before = moved_settings({})
    for path in (*before.journal_directories, *before.ledger_directories):
        copy(host.disk, path, f"/old{path}")
        host.disk.move_directory(path, f"/new{path}")
    paths = [*before.journal_directories, *before.ledger_directories]
    host.settings = moved_settings({path: f"/new{path}" for path in paths})
    await check(host)
    for path in paths:
        host.disk.move_directory(f"/old{path}", path)
    host.settings = before
    with pytest.raises(IdentityError, match="and they are now /b/journal0"):
        await host.boot()
    for path in paths:
        host.disk.move_directory(path, f"/third{path}")
    host.settings = moved_settings({path: f"/third{path}" for path in paths})
    with pytest.raises(IdentityError, match="and they are now /third/b/journal0"):
        await host.boot()


async def test_a_copy_is_refused_while_the_original_is_there() -> None:
    host = await used()
    copy(host.disk, "/b/journal0", "/fast/j")
    host.settings = moved_settings({"/b/journal0": "/fast/j"})
    with pytest.raises(IdentityError, match="a copy of /b/journal0, which is still there"):
        await host.boot()
    host.settings = moved_settings({})
    await check(host)


async def test_directories_are_not_moved_in_each_others_place() -> None:
    host = await used()
    host.disk.move_directory("/b/journal0", "/b/j")
    host.disk.move_directory("/b/journal1", "/b/journal0")
    host.disk.move_directory("/b/j", "/b/journal1")
    with pytest.raises(IdentityError, match="belongs to journal 1"):
        await host.boot()
    host = await used()
    host.disk.move_directory("/b/journal0", "/b/j1")
    host.disk.move_directory("/b/journal1", "/b/j0")
    host.settings = moved_settings({"/b/journal0": "/b/j0", "/b/journal1": "/b/j1"})
    with pytest.raises(IdentityError, match="belongs to journal 1"):
        await host.boot()
    host = await used()
    host.disk.move_directory("/b/ledgers0", "/b/l1")
    host.disk.move_directory("/b/ledgers1", "/b/l0")
    host.settings = moved_settings({"/b/ledgers0": "/b/l0", "/b/ledgers1": "/b/l1"})
    with pytest.raises(IdentityError, match="not the one that the cookie names"):
        await host.boot()


async def test_a_directory_without_its_cookie_was_not_moved() -> None:
    host = await used()
    host.disk.move_directory("/b/journal0", "/fast/j")
    host.disk.unlink("/fast/j/cookie.json")
    host.settings = moved_settings({"/b/journal0": "/fast/j"})
    with pytest.raises(IdentityError, match="or move the directories there with all that is in them"):
        await host.boot()


async def test_moving_and_adding_take_two_starts() -> None:
    host = await used()
    host.disk.move_directory("/b/journal0", "/fast/j")
    host.settings = moved_settings({"/b/journal0": "/fast/j"})
    more = host.settings.model_copy(update={"ledger_directories": [*host.settings.ledger_directories, "/b/ledgers2"]})
    alone, host.settings = host.settings, more
    with pytest.raises(IdentityError, match="start the bookie once with the former alone"):
        await host.boot()
    host.settings = alone
    await check(host)
    host.settings = more
    await check(host)


async def test_a_second_bookie_of_the_same_id_is_told_to_take_another() -> None:
    host = await used()
    host.settings = bookie_settings("/elsewhere", journals=2, ledgers=2)
    with pytest.raises(IdentityError, match=r"in use with other directories \(/b/journal0, .*another --bookie_id"):
        await host.boot()
    host.disk = SimDisk()  # of another machine
    host.settings = bookie_settings(journals=2, ledgers=2)
    with pytest.raises(IdentityError, match="this is to be another bookie, give it another --bookie_id"):
        await host.boot()
