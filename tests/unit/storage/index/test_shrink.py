"""A start makes the file of an index smaller that is mostly free, and is none the worse if it can't."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest
from tests.sim.disk import SimulatedCrash
from tests.sim.platter import EntryStatus
from tests.sim.store import SimStore, SimStores
from tests.unit.storage.acknowledged_writes import copy_of
from tests.unit.storage.space.test_deletion import delete, put
from tests.unit.storage.support import INSTANCE, Batch, Host, read_all, reclaim, sim_runtime
from tests.unit.storage.support import settings as bookie_settings

from bkpy.errors import StorageFailedError
from bkpy.storage.index.index import ledger_rows, seal
from bkpy.storage.index.shrink import shrink
from bkpy.storage.wipe import Owner, wipe


async def mostly_free(**values: Any) -> Host:
    """A bookie that was stopped, with an index of which most is free."""
    host = Host(settings=bookie_settings(block_bytes=1, index_shrink_bytes_min=1000, **values))
    storage = await host.boot()
    await put(storage, *(Batch(i, 2 * k) for i in range(5) for k in range(20)))
    await storage.checkpoint()
    for ledger_id in range(4):
        await delete(storage, ledger_id)
    await reclaim(storage)
    await storage.close()
    return host


async def boot_and_check(host: Host) -> int:
    """Bytes of the index's file."""
    storage = await host.boot()
    for ledger_id in range(5):
        wanted = {2 * k for k in range(20)} if ledger_id == 4 else set()
        have, unknown = await read_all(storage, ledger_id, 0, 50)
        assert (have.keys(), unknown) == (wanted, set())
    assert host.disk.listdir("/b/ledgers0/index")[0] == "data.mdb"
    assert "index.shrunk" not in host.disk.listdir("/b/ledgers0")
    size = storage.shards[0].store.sizes()[0]
    await put(storage, Batch(7, 0))
    await storage.checkpoint()
    host.disk.power_cut()
    storage = await host.boot()
    assert (await read_all(storage, 7, 0, 0))[0].keys() == {0}
    storage.release()
    return size


async def test_a_start_shrinks_what_is_mostly_free() -> None:
    before = await mostly_free()
    sizes = []
    for share in (1.0, 0.1):
        host = copy_of(before)
        host.settings = host.settings.model_copy(update={"index_free_share_max": share})
        sizes.append(await boot_and_check(host))
    assert sizes[1] < sizes[0] / 2
    host = copy_of(before)
    host.settings = host.settings.model_copy(update={"index_shrink_bytes_min": 1 << 20})
    assert await boot_and_check(host) == sizes[0], "too little to be worth it"


async def test_the_smaller_file_has_its_name_for_good() -> None:
    """When `shrink` returns: what follows it moves marks in the new one and removes journal files."""
    host = await mostly_free(journal_max_backups=0, journal_recycled_files_max=0)
    before = host.disk.inode("/b/ledgers0/index/data.mdb")
    runtime = sim_runtime(host.disk)
    store = runtime.store.open("/b/ledgers0/index")
    assert shrink(store, "/b/ledgers0", runtime, host.settings) is not store
    host.disk.power_cut(lambda item: EntryStatus.DROPPED if item.kind == "exchange" else EntryStatus.KEPT)
    assert host.disk.inode("/b/ledgers0/index/data.mdb") is not before
    storage = await host.boot()
    assert (await read_all(storage, 4, 0, 40))[0].keys() == {2 * k for k in range(20)}
    assert not host.reports.damages


async def test_an_exchange_of_a_killed_start_is_durable_before_the_former_index_goes() -> None:
    """Else a power cut brings back the former index's name, and nothing that it names."""
    host = await mostly_free()
    exchanged: list[str] = []

    def after_exchange(operation: str, path: str) -> None:
        if operation == "exchange":
            exchanged.append(path)
            host.disk.crash_at(1, operation="sync_dir", path="/b/ledgers0")

    host.disk.observer = after_exchange
    with pytest.raises((SimulatedCrash, StorageFailedError)):
        await host.boot()
    assert exchanged
    host.disk.observer = None
    host.disk.crash()  # the process is killed, and the machine goes on
    host.disk.crash_at(1, operation="sync_dir", path="/b/ledgers0")
    with pytest.raises((SimulatedCrash, StorageFailedError)):
        await host.boot()
    host.disk.power_cut(lambda item: EntryStatus.DROPPED if item.kind == "exchange" else EntryStatus.KEPT)
    storage = await host.boot()
    assert (await read_all(storage, 4, 0, 40))[0].keys() == {2 * k for k in range(20)}
    storage.release()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("operation", ["make_dirs", "open", "fdatasync"])
async def test_without_space_for_the_copy_it_stays_as_it_is(operation: str, number: int) -> None:
    host = await mostly_free()
    host.disk.fail_at(1, number, operation=operation, path="index.shrunk")
    assert await boot_and_check(host) > 3000


async def test_without_space_to_open_the_copy_it_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock file takes some, too."""
    host = await mostly_free()
    opened = SimStores.open

    def open_(stores: SimStores, path: str, **values: Any) -> SimStore:
        if path.endswith("index.shrunk"):
            raise OSError(errno.ENOSPC, "no space", path)
        return opened(stores, path, **values)

    monkeypatch.setattr(SimStores, "open", open_)
    assert await boot_and_check(host) > 3000


@pytest.mark.parametrize("number", [errno.ENOTSUP, errno.EPERM])
async def test_a_system_that_does_not_exchange_names_leaves_it_as_it_is(number: int) -> None:
    """As file systems do that can't, and containers that forbid the call."""
    host = await mostly_free()
    host.disk.no_exchange = number
    assert await boot_and_check(host) > 3000


@pytest.mark.parametrize("change", ["a row is missing", "a row has another value", "there are no rows"])
async def test_a_copy_whose_rows_are_not_those_of_the_index_never_serves(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = await mostly_free()
    copy = SimStore.copy

    def copy_badly(store: SimStore, path: str) -> None:
        copy(store, path)
        copied = SimStores(host.disk).open(path)
        with copied.write() as txn:
            rows = list(txn.scan(b"\0", b"\xff"))
            if change == "a row has another value":
                txn.put(rows[0][0], seal(rows[0][0], b"another value"))
            for key, _ in rows if change == "there are no rows" else rows[:1] if change == "a row is missing" else ():
                txn.delete(key)
        copied.close()

    monkeypatch.setattr(SimStore, "copy", copy_badly)
    assert await boot_and_check(host) > 3000


@pytest.mark.thorough
def test_a_reader_that_opens_the_index_between_any_two_steps_hides_nothing() -> None:
    before = asyncio.run(mostly_free(journal_max_backups=0, journal_recycled_files_max=0))
    steps: list[str] = []
    whole = copy_of(before)
    whole.disk.observer = lambda operation, path: steps.append(operation)

    async def boot(host: Host) -> None:
        (await host.boot()).release()

    asyncio.run(boot(whole))

    async def read_at(nth: int, read_only: bool) -> None:
        host = copy_of(before)
        readers: list[SimStore] = []
        done = 0

        def open_reader(operation: str, path: str) -> None:
            nonlocal done
            done += 1
            if done == nth:
                readers.append(SimStores(host.disk, survives=True).open("/b/ledgers0/index", read_only=read_only))

        host.disk.observer = open_reader
        for _ in range(2):  # the reader stays
            storage = await host.boot()
            await reclaim(storage)
            for entry_id in range(3):  # each a transaction, so that both meta pages are written
                await put(storage, Batch(7, entry_id))
                await storage.checkpoint()
            assert (await read_all(storage, 4, 0, 40))[0].keys() == {2 * k for k in range(20)}
            assert (await read_all(storage, 7, 0, 2))[0].keys() == {0, 1, 2}
            with readers[0].read() as txn:
                assert {4} <= {ledger_id for ledger_id, _, _ in ledger_rows(txn)}
            storage.release()
            host.disk.power_cut()

    for nth in range(1, len(steps) + 1):
        for read_only in (False, True):
            asyncio.run(read_at(nth, read_only))


async def test_nothing_of_a_copy_is_left_when_a_bookie_is_wiped() -> None:
    host = await mostly_free(index_free_share_max=1.0)
    (await host.boot()).release()
    host.disk.make_dirs("/b/ledgers0/index.shrunk")
    for name in ("index/data.mdb.new", "index.shrunk/data.mdb"):
        host.disk.replace(f"/b/ledgers0/{name}", b"half of it")
    wipe(host.disk, ["/b/ledgers0"], Owner("bookie-1", INSTANCE))
    assert host.disk.listdir("/b/ledgers0/index") == host.disk.listdir("/b/ledgers0/index.shrunk") == []


async def test_what_an_earlier_version_left_of_a_copy_goes() -> None:
    host = await mostly_free(index_free_share_max=1.0)
    host.disk.replace("/b/ledgers0/index/data.mdb.new", b"half of it")
    (await host.boot()).release()
    assert host.disk.listdir("/b/ledgers0/index") == ["data.mdb", "lock.mdb"]


@pytest.mark.thorough
@pytest.mark.parametrize("fault", ["crash", "EIO"])
def test_a_fault_at_every_operation_of_it_does_no_harm(fault: str) -> None:
    before = asyncio.run(mostly_free())
    whole = copy_of(before)
    seen: list[str] = []
    whole.disk.observer = lambda operation, path: seen.append(f"{operation} {path}")

    async def boot(host: Host) -> None:
        (await host.boot()).release()

    asyncio.run(boot(whole))
    assert "exchange /b/ledgers0/index" in seen

    async def strike(nth: int) -> None:
        host = copy_of(before)
        if fault == "crash":
            host.disk.crash_at(nth)
        else:
            host.disk.fail_at(nth, errno.EIO)
        with pytest.raises((SimulatedCrash, StorageFailedError)):
            await boot(host)
        host.disk.heal()
        host.disk.rng.seed(nth)
        host.disk.power_cut()
        await boot_and_check(host)

    for nth in range(1, len(seen) + 1):
        asyncio.run(strike(nth))
