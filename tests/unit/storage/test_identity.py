"""Cookies and directories: what belongs together is used, anything else is refused with what to do."""

from __future__ import annotations

import dataclasses
import errno
from typing import TYPE_CHECKING, Any

import pytest
from tests.examples import stride
from tests.sim.disk import SimDisk, SimulatedCrash, SimWorker
from tests.sim.store import SimStore, SimStores
from tests.unit.storage.acknowledged_writes import dropped
from tests.unit.storage.support import INSTANCE, Batch, Host, add, read_all, sim_runtime
from tests.unit.storage.support import settings as bookie_settings

from bkpy.errors import CorruptDataError, IdentityError, StorageFailedError
from bkpy.storage.identity import COOKIE_NAME, Cookie, LedgerDirectory, decode_cookie
from bkpy.storage.index.index import SHARD_KEY
from bkpy.storage.open import open_storage
from bkpy.storage.sealed_json import seal_json

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

COOKIE = Cookie("b", INSTANCE, ("/j0", "/j1"), (LedgerDirectory("/l0", "00" * 16),))


async def used(host: Host) -> None:
    """Start a bookie and leave an entry in it."""
    storage = await host.boot()
    await add(storage, Batch(1, 0, 5))
    await storage.close()


def test_a_cookie_survives_reformatting_but_no_change() -> None:
    text = COOKIE.encode()
    assert decode_cookie(text, "x") == COOKIE
    assert decode_cookie(b" ".join(text.split()), "x") == COOKIE
    for damaged in (
        text.replace(b'"b"', b'"c"'), text.replace(b"/j0", b"/j9"), text[:-5], b"", b"[]", b"{}", b"\xff",
        text.replace(b'"version": 1', b'"version": 2'),
    ):  # fmt: skip
        with pytest.raises(CorruptDataError, match="x"):
            decode_cookie(damaged, "x")


def test_a_cookie_of_another_version_is_refused() -> None:
    content = {"version": 9, "bookie_id": "a", "instance_id": "b", "journal_directories": [], "ledger_directories": []}
    with pytest.raises(CorruptDataError, match="version 9 is not supported"):
        decode_cookie(seal_json(content), "the metadata store")
    assert decode_cookie(seal_json({**content, "version": 1}), "here").bookie_id == "a"


async def test_an_index_whose_own_row_is_damaged_is_named() -> None:
    host = Host(settings=bookie_settings(ledgers=2))
    await used(host)
    path = f"{host.settings.ledger_directories[1]}/index"
    store = SimStores(host.disk).open(path)
    with store.write() as txn:
        txn.put(SHARD_KEY, b"no row")
    store.close()
    with pytest.raises(CorruptDataError, match="rebuild-index") as refused:
        await host.boot()
    assert refused.value.path == path


def test_only_ledger_directories_are_ever_added() -> None:
    more = COOKIE._replace(ledger_directories=(*COOKIE.ledger_directories, LedgerDirectory("/l1", "11" * 16)))
    assert COOKIE.extends(COOKIE)
    assert more.extends(COOKIE)
    assert not COOKIE.extends(more)
    assert not more._replace(bookie_id="c").extends(COOKIE)


@pytest.mark.scenario(53)
async def test_a_known_bookie_starts_again() -> None:
    host = Host(settings=bookie_settings(journals=2, ledgers=2))
    await used(host)
    storage = await host.boot()
    assert await read_all(storage, 1, 0, 4) == (dict.fromkeys(range(5), b"data"), set())


@pytest.mark.scenario(53)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bookie_id": "bookie-2"}, "are those of bookie bookie-1"),
        ({"ledger_directories": ["/b/ledgers0"]}, "no longer names"),
        ({"ledger_directories": ["/b/ledgers1", "/b/ledgers0"]}, "in this order"),
        ({"journal_directories": ["/b/journal0"]}, "created with journal_directories"),
        ({"journal_directories": ["/b/journal1", "/b/journal0"]}, "created with journal_directories"),
    ],
    ids=str,
)
async def test_settings_that_disagree_are_refused(change: dict[str, object], message: str) -> None:
    host = Host(settings=bookie_settings(journals=2, ledgers=2))
    await used(host)
    good = host.settings
    host.settings = good.model_copy(update=change)
    with pytest.raises(IdentityError, match=message):
        await host.boot()
    host.settings = good
    await host.boot()


@pytest.mark.scenario(53)
async def test_a_foreign_cluster_is_refused() -> None:
    host = Host()
    await used(host)
    with pytest.raises(IdentityError, match="belongs to cluster"):
        await open_storage(host.settings, sim_runtime(host.disk), instance_id="another", expected_cookie=host.cookie)


@pytest.mark.scenario(53)
@pytest.mark.parametrize("directory", ["/b/journal0", "/b/ledgers0"])
async def test_an_empty_disk_under_a_known_id_is_refused(directory: str) -> None:
    host = Host()
    await used(host)
    for name in host.disk.listdir(directory):
        if host.disk.exists(f"{directory}/{name}") and name != "index":
            host.disk.unlink(f"{directory}/{name}")
    with pytest.raises(IdentityError, match="mount its disk"):
        await host.boot()


async def test_an_index_that_vanished_is_not_created_anew() -> None:
    host = Host()
    await used(host)
    host.disk.unlink("/b/ledgers0/index/data.mdb")
    with pytest.raises(IdentityError, match="index is gone"):
        await host.boot()


async def test_indexes_that_were_swapped_are_noticed() -> None:
    host = Host(settings=bookie_settings(ledgers=2))
    await used(host)
    one, other = ("/b/ledgers0/index", "/b/ledgers1/index")
    stores = sim_runtime(host.disk).store
    uuid_rows = []
    for path in (one, other):
        store = stores.open(path)
        with store.read() as txn:
            uuid_rows.append(txn.get(b"m") or b"")
        store.close()
    for path, row in ((one, uuid_rows[1]), (other, uuid_rows[0])):
        store = stores.open(path)
        with store.write() as txn:
            txn.put(b"m", row)
        store.close()
    with pytest.raises(IdentityError, match="not the one that the cookie names"):
        await host.boot()


async def test_journal_directories_that_were_swapped_are_noticed() -> None:
    host = Host(settings=bookie_settings(journals=2))
    await used(host)
    for name in host.disk.listdir("/b/journal1"):
        if name.endswith(".txn"):
            host.disk.replace(f"/b/journal0/{name}", host.disk.contents(f"/b/journal1/{name}"))
    with pytest.raises(IdentityError, match="belongs to journal 1"):
        await host.boot()


async def test_data_of_a_bookie_that_the_cluster_does_not_know_is_refused() -> None:
    host = Host()
    await used(host)
    host.cookie = None
    with pytest.raises(IdentityError, match="doesn't know this bookie id"):
        await host.boot()


@pytest.mark.scenario(53)
async def test_data_without_a_cookie_is_refused() -> None:
    host = Host()
    await used(host)
    for directory in ("/b/journal0", "/b/ledgers0"):
        host.disk.unlink(f"{directory}/{COOKIE_NAME}")
    host.cookie = None
    with pytest.raises(IdentityError, match="holds data"):
        await host.boot()


async def test_a_directory_is_used_by_one_process() -> None:
    host = Host()
    storage = await host.boot()
    with pytest.raises(IdentityError, match="another process"):
        await host.boot()
    storage.release()
    await host.boot()


async def test_a_refused_start_leaves_the_directories_free() -> None:
    host = Host()
    await used(host)
    for _ in range(3):
        with pytest.raises(IdentityError):
            await open_storage(
                host.settings, sim_runtime(host.disk), instance_id="another", expected_cookie=host.cookie
            )
    await host.boot()


@pytest.mark.scenario(53)
@pytest.mark.parametrize("clean", [True, False])
async def test_a_ledger_directory_is_added_and_old_ledgers_stay_where_they_are(clean: bool) -> None:
    host = Host()
    storage = await host.boot()
    await add(storage, *(Batch(ledger_id, 0, 3) for ledger_id in range(4)))
    await storage.checkpoint()
    await add(storage, *(Batch(ledger_id, 3, 2) for ledger_id in range(6)))
    if clean:
        await storage.close()
    else:
        host.disk.power_cut()
    host.settings = bookie_settings(ledgers=3)
    old_cookie = host.cookie
    for _ in range(2):
        storage = await host.boot()
        await storage.states(range(12))
        await add(storage, *(Batch(ledger_id, 5, 5) for ledger_id in range(12)))
        for ledger_id in range(12):
            have, unknown = await read_all(storage, ledger_id, 0, 20)
            assert have.keys() == set(range(0 if ledger_id < 4 else 3 if ledger_id < 6 else 5, 10))
            assert not unknown
            assert storage.ledgers.shard_of(ledger_id) == (0 if ledger_id < 6 else ledger_id % 3)
        storage.check_invariants()
        host.disk.power_cut()
    # The metadata store may not have heard of it yet: what it has is older, and that is fine.
    host.cookie = old_cookie
    storage = await host.boot()
    assert storage.cookie != old_cookie


async def dying_starts(*, added: bool) -> AsyncIterator[Host]:
    """Bookies whose first start, or whose start with a directory added, died: one at each operation on the disk."""
    at = 0
    while True:
        at += stride()
        host = Host(settings=bookie_settings(journals=2, ledgers=2))
        if added:
            await used(host)
            host.settings = bookie_settings(journals=2, ledgers=3)
        host.disk.crash_at(at)
        try:
            await host.boot()
        except SimulatedCrash:
            yield host
        else:
            break
    assert at > 20


@pytest.mark.thorough
@pytest.mark.parametrize("added", [False, True])
async def test_a_crash_at_every_operation_of_a_first_start_and_of_adding_a_directory(added: bool) -> None:
    async for host in dying_starts(added=added):
        host.disk.power_cut()
        host.disk.heal()
        storage = await host.boot()
        if added:
            assert await read_all(storage, 1, 0, 4) == (dict.fromkeys(range(5), b"data"), set())
        await storage.states((77,))
        await add(storage, Batch(77, 0))
        await storage.close()


@pytest.mark.thorough
@pytest.mark.parametrize("added", [False, True])
async def test_what_a_start_leaves_that_dies_is_synced_before_anything_is_stored(added: bool) -> None:
    """The next start finds it in the page cache, and a power cut behind that one takes what was never synced."""
    async for host in dying_starts(added=added):
        host.disk.crash()
        host.disk.heal()
        storage = await host.boot()
        await storage.states((77,))
        await add(storage, Batch(77, 0))
        storage.release()
        host.disk.power_cut(dropped)
        storage = await host.boot()
        assert await read_all(storage, 77, 0, 0) == ({0: b"data"}, set())
        storage.release()


async def test_an_error_of_the_disk_at_start_is_told() -> None:
    host = Host(disk=SimDisk())
    host.disk.fail_at(1, errno.ENOSPC, operation="allocate")
    with pytest.raises(Exception, match="No space left"):
        await host.boot()
    await host.boot()


def held_open(host: Host, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """What workers and indexes were made from now on and not closed again."""
    made: list[tuple[str, SimWorker | SimStore]] = []
    worker, open_index = host.disk.worker, SimStores.open

    def make_worker(name: str) -> SimWorker:
        made.append((name, one := worker(name)))
        return one

    def make_index(stores: SimStores, path: str, **bounds: Any) -> SimStore:
        store = open_index(stores, path, **bounds)
        made.append((path, store))
        return store

    monkeypatch.setattr(host.disk, "worker", make_worker)
    monkeypatch.setattr(SimStores, "open", make_index)
    return lambda: [name for name, one in made if not one.closed]


@pytest.mark.parametrize("directory", ["/b/ledgers0", "/b/ledgers1", "/b/ledgers2"])
async def test_a_start_that_fails_at_one_directory_ends_what_it_began_for_the_others(
    monkeypatch: pytest.MonkeyPatch, directory: str
) -> None:
    host = Host(settings=bookie_settings(ledgers=2))
    await used(host)
    host.settings = bookie_settings(ledgers=3)  # the last one is added
    left = held_open(host, monkeypatch)
    listdir = host.disk.listdir

    def refuse(path: str) -> list[str]:
        if path == directory and host.disk.exists(f"{directory}/index/data.mdb"):  # what it holds has been opened
            raise OSError(errno.EIO, "Input/output error", path)
        return listdir(path)

    with monkeypatch.context() as failing:
        failing.setattr(host.disk, "listdir", refuse)
        with pytest.raises(StorageFailedError, match="Input/output error"):
            await host.boot()
    assert left() == []
    storage = await host.boot()
    assert left() != []
    await storage.close()
    assert left() == []


@pytest.mark.thorough
async def test_a_start_that_fails_at_any_operation_ends_what_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    at, failed = 0, True
    while failed:
        at += stride()
        host = Host(settings=bookie_settings(journals=2, ledgers=2))
        await used(host)
        host.settings = bookie_settings(journals=2, ledgers=3)
        with monkeypatch.context() as watching:
            left = held_open(host, watching)
            host.disk.fail_at(at, errno.EIO)
            try:
                await (await host.boot()).close()
                failed = False
            except StorageFailedError:
                pass
            assert left() == []
    assert at > 20


@pytest.mark.parametrize("threads", range(12))
async def test_a_start_that_gets_no_further_thread_ends_what_it_began(
    monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    """Two for each ledger directory come first, then one for each journal, when all else is ready; the scrub's last."""
    host = Host(settings=bookie_settings(journals=2, ledgers=2))
    await used(host)
    left = held_open(host, monkeypatch)
    worker, made = host.disk.worker, list[str]()

    def refuse(name: str) -> SimWorker:
        if len(made) == threads:
            raise RuntimeError("can't start new thread")
        made.append(name)
        return worker(name)

    with monkeypatch.context() as failing:
        failing.setattr(host.disk, "worker", refuse)
        with pytest.raises(RuntimeError, match="thread") as held:  # and who holds the error holds what it leads to
            await host.boot()
    assert left() == []
    storage = await host.boot()
    assert len([name for name in left() if "-" in name]) == 10  # compaction has one for each ledger directory, too
    await storage.close()
    assert left() == []
    assert held.value.__traceback__ is not None


async def test_checkpoints_come_by_themselves_only_after_that_of_the_start() -> None:
    host = Host()
    begun: list[str] = []
    runtime = sim_runtime(host.disk)

    def spawn(coro: Any, *, name: str, **how: Any) -> Any:
        begun.append(name)
        return runtime.spawn(coro, name=name, **how)

    storage = await open_storage(
        host.settings, dataclasses.replace(runtime, spawn=spawn), instance_id=INSTANCE, expected_cookie=None
    )
    assert [name for name in begun if "checkpoint" in name] == ["checkpoint of /b/ledgers0", "checkpoints"]
    await storage.close()
