"""A new index of ledgers that were deleted and stored again: the life that counts is kept, in one index."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.unit.storage.space.test_deletion import delete
from tests.unit.storage.support import INSTANCE, KEY, Batch, Host, add, read_all, reclaim, settings, sim_runtime
from tests.unit.storage.tools.rebuild.test_rebuild import Metadata, damage_indexes, metadata_of, rebuild

from bkpy.protocol.wire.messages import Status
from bkpy.storage.cookies import CookieUpdate
from bkpy.storage.index.index import get_ledger, trash_rows

if TYPE_CHECKING:
    from bkpy.storage.engine import LedgerStorage

PAYLOAD = b"P" * 5000
ALL = dict.fromkeys(range(4), PAYLOAD)
FORGETFUL = {"journal_max_backups": 0, "journal_recycled_files_max": 0}


async def put(storage: LedgerStorage, *batches: Batch) -> None:
    await storage.states({batch.ledger_id for batch in batches})
    await add(storage, *batches)


async def two_lives(host: Host, ledger_id: int = 5) -> None:
    """A spare copy is collected, and later the ledger is copied here again."""
    storage = await host.boot()
    await put(storage, Batch(ledger_id, 0, 2, payload=PAYLOAD), Batch(6, 0, 2))
    await storage.checkpoint()
    await delete(storage, ledger_id)
    await put(storage, Batch(ledger_id, 0, 4, payload=PAYLOAD))
    await storage.close()


async def survives(host: Host, ledger_id: int = 5) -> None:
    """The second life is all there, and so it is when space was given back."""
    for _ in range(2):
        storage = await host.boot()
        assert (await read_all(storage, ledger_id, 0, 3))[0] == ALL
        for ratio in (0.0, 0.8, 0.0):
            await reclaim(storage, ratio)
        assert (await read_all(storage, ledger_id, 0, 3))[0] == ALL
        storage.check_invariants()
        await storage.close()


@pytest.mark.parametrize("journaled", [True, False])
async def test_a_record_of_a_deletion_takes_nothing_that_was_found_in_logs(journaled: bool) -> None:
    host = Host(settings=settings(journal_write_data=journaled))
    await two_lives(host)
    damage_indexes(host)
    await rebuild(host, Metadata({5: metadata_of(5, 3), 6: metadata_of(6, 1)}))
    await survives(host)


async def test_a_record_of_a_deletion_takes_nothing_when_only_one_index_is_made_anew() -> None:
    host = Host(settings=settings(ledgers=2))
    await two_lives(host)
    host.settings = settings(ledgers=3)
    await (await host.boot()).close()
    damaged = host.settings.ledger_directories[1]
    host.disk.replace(f"{damaged}/index/data.mdb", b"rotten")
    await rebuild(host, Metadata({5: metadata_of(5, 3), 6: metadata_of(6, 1)}), (damaged,))
    await survives(host)


async def test_lives_in_different_journals() -> None:
    """The first one, with its end, is in a journal that is replayed after that of the second."""
    host = Host(settings=settings(journals=2))
    storage = await host.boot()
    await put(storage, Batch(3, 0, 2, payload=PAYLOAD), Batch(6, 0, 2))
    await storage.checkpoint()
    await delete(storage, 3)
    await storage.close()
    await change_journals(host, 3)
    storage = await host.boot()
    await put(storage, Batch(3, 0, 4, payload=PAYLOAD))
    await storage.close()
    damage_indexes(host)
    await rebuild(host, Metadata({3: metadata_of(3, 3), 6: metadata_of(6, 1)}))
    await survives(host, 3)


@pytest.mark.parametrize("stored", [True, False])
async def test_a_strangers_key_behind_a_deletion_does_not_become_that_of_the_ledger(stored: bool) -> None:
    """The entries before the deletion, whose key is in no journal any more, don't speak for it."""
    host, wrong = Host(settings=settings(**FORGETFUL)), b"w" * 32
    storage = await host.boot()
    await put(storage, Batch(5, 0, 2))
    await storage.close()
    await (await host.boot()).close()  # lets the journal's first file go, which has the key
    storage = await host.boot()
    await put(storage, Batch(5, 2))
    await delete(storage, 5)
    await storage.states((5,))
    assert await storage.fence(5, wrong)
    if stored:  # the metadata decide, and a copy comes
        assert await storage.replace_key(5, KEY) is Status.OK
        await add(storage, Batch(5, 0, 4))
    await storage.close()
    await rebuild(host, Metadata({5: metadata_of(5, 3)}))
    storage = await host.boot()
    state = (await storage.states((5,)))[5]
    assert state is not None
    assert (state.key, state.limbo) == (KEY, not stored)
    storage.release()


async def change_journals(host: Host, count: int, **values: object) -> None:
    host.settings = settings(journals=count, **values)
    for directory in host.settings.journal_directories:
        host.disk.make_dirs(directory)

    async def store(cookie: bytes) -> None:
        host.cookie = cookie

    update = CookieUpdate(host.settings, sim_runtime(host.disk, host.clock), INSTANCE)
    with update.locked():
        await update.carry_out(update.plan(host.cookie), store)


async def test_a_ledger_that_is_put_in_limbo_is_not_waiting_to_be_removed() -> None:
    host = Host(settings=settings())
    storage = await host.boot()
    await put(storage, Batch(5, 0, 2, payload=PAYLOAD), Batch(6, 0, 2))
    await storage.checkpoint()
    await delete(storage, 5)
    await storage.close()
    damage_indexes(host)
    await rebuild(host, Metadata({6: metadata_of(6, 1)}, unreadable={5}))
    storage = await host.boot()
    with storage.shards[0].store.read() as txn:
        assert trash_rows(txn) == []
    state = (await storage.states((5,)))[5]
    assert state is not None
    assert (state.fenced, state.limbo) == (True, True)
    await put(storage, Batch(5, 0, 4, payload=PAYLOAD))
    await storage.close()
    await survives(host)


async def test_a_doubtful_life_stays_for_the_collector() -> None:
    """Nothing tells that no later life is in the logs: it is fenced, in limbo, and can be deleted again."""
    host = Host(settings=settings())
    storage = await host.boot()
    await put(storage, Batch(5, 0, 4, payload=PAYLOAD))
    await storage.checkpoint()
    await delete(storage, 5)
    await storage.close()
    damage_indexes(host)
    done = await rebuild(host, Metadata())
    assert (done.ledgers, done.limbo, done.unknown) == (1, 1, 1)
    storage = await host.boot()
    assert await storage.held_ledgers(-1, 9) == [5]
    assert (await storage.last_entry(5)).limbo
    assert 5 in storage.fenced
    await delete(storage, 5)
    await reclaim(storage)
    assert await read_all(storage, 5, 0, 3) == ({}, set())
    await storage.close()


@pytest.mark.parametrize("values", [{}, {"index_step_rows": 1, "memtable_bytes_max": 1, "memtable_fill_min": 0.001}])
@pytest.mark.parametrize("rebuilt", [(), (0,), (1,)])
@pytest.mark.parametrize("damaged", [False, True])
async def test_a_ledger_with_blocks_in_two_directories_is_in_one_index(
    rebuilt: tuple[int, ...], damaged: bool, values: dict[str, float]
) -> None:
    """Its lives were in one directory each; the next directory changes where a ledger is looked for first."""
    host = Host(settings=settings(**FORGETFUL))
    storage = await host.boot()
    await put(storage, Batch(5, 0, 2, payload=PAYLOAD), Batch(6, 0, 2), Batch(5, 7, 2, payload=PAYLOAD))
    await storage.close()
    (log,) = [name for name in host.disk.listdir("/b/ledgers0") if name.endswith(".log")]
    host.settings = settings(ledgers=2, **FORGETFUL)
    storage = await host.boot()
    await delete(storage, 5)
    await put(storage, Batch(5, 0, 4, payload=PAYLOAD))
    await storage.close()
    for ledger_id in range(60, 64):  # until the journal has no record of the deletion
        storage = await host.boot()
        await put(storage, Batch(ledger_id, 0))
        await storage.close()
    if damaged:
        path = f"/b/ledgers0/{log}"
        host.disk.flip(path, host.disk.contents(path).rindex(PAYLOAD))
    known = {5: 3, 6: 1, **dict.fromkeys(range(60, 64), 0)}
    directories = tuple(host.settings.ledger_directories[number] for number in rebuilt)
    for path in directories or host.settings.ledger_directories:
        host.disk.replace(f"{path}/index/data.mdb", b"rotten")
    metadata = Metadata({i: metadata_of(i, last) for i, last in known.items()})
    host.settings = host.settings.model_copy(update=values)
    await rebuild(host, metadata, directories)
    host.settings = settings(ledgers=2, **FORGETFUL)
    storage = await host.boot()
    rows = []
    for shard in storage.shards:
        with shard.store.read() as txn:
            rows.append(get_ledger(txn, 5))
    assert rows[0] is None
    assert rows[1] is not None
    assert rows[1].key == KEY
    storage.release()
    await survives(host)
    host.settings = settings(ledgers=3, **FORGETFUL)
    await survives(host)


@pytest.mark.parametrize("behind", [False, True])
async def test_a_ledger_whose_row_was_in_another_index_than_that_of_its_id_is_kept(behind: bool) -> None:
    """A rebuild had put it in limbo there; its key is nowhere in the journal, and its entries are in nothing else."""
    host = Host(settings=settings(ledgers=2))
    storage = await host.boot()
    await put(storage, Batch(6, 0))
    await storage.close()
    assert (await rebuild(host, Metadata({3: metadata_of(3, None), 6: metadata_of(6, 0)}))).missing == 1
    storage = await host.boot()
    state = (await storage.states((3,)))[3]
    assert state is not None
    assert state.shard == 0
    await put(storage, Batch(3, 0, 4, payload=PAYLOAD))
    if behind:
        await storage.checkpoint_shard(storage.shards[1])
    host.disk.crash()
    host.disk.replace("/b/ledgers0/index/data.mdb", b"rotten")
    await rebuild(host, Metadata({6: metadata_of(6, 0)}), ("/b/ledgers0",))
    await survives(host, 3)
