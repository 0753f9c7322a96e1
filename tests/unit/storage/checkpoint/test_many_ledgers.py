"""Checkpoints of more ledgers than one transaction of the index has: each is whole, and a crash between two is none."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tracemalloc
from typing import TYPE_CHECKING

import pytest
from tests.sim.disk import SimulatedCrash
from tests.unit.storage.support import KEY, Batch, Host, add, check_living_bytes, read_all, reclaim
from tests.unit.storage.support import settings as bookie_settings

from bkpy.errors import StorageFailedError
from bkpy.storage.checkpoint.flush import WrittenLedgers
from bkpy.storage.index.index import LedgerRow

if TYPE_CHECKING:
    from pathlib import Path

    from bkpy.storage.engine import LedgerStorage

LEDGERS = 7


def host() -> Host:
    return Host(settings=bookie_settings(checkpoint_commit_ledgers=2, block_bytes=4096, journal_run_bytes_min=5000))


async def put(storage: LedgerStorage, *batches: Batch) -> None:
    await storage.states({batch.ledger_id for batch in batches})
    await add(storage, *batches)


async def first(storage: LedgerStorage) -> None:
    await put(storage, *(Batch(i, 0, 5, payload=b"old") for i in range(LEDGERS)))
    await storage.checkpoint()


async def second(storage: LedgerStorage) -> None:
    """Entries that replace some, that are new, that are large; a fence; a ledger more."""
    await put(storage, *(Batch(i, 3, 5, payload=b"new") for i in range(LEDGERS - 1)))
    await put(storage, Batch(LEDGERS - 1, 5, 3, payload=b"n" * 3000), Batch(LEDGERS, 0, 8, payload=b"new"))
    await storage.fence(3, KEY)


async def check(storage: LedgerStorage) -> None:
    for i in range(LEDGERS - 1):
        wanted = {**dict.fromkeys(range(3), b"old"), **dict.fromkeys(range(3, 8), b"new")}
        assert await read_all(storage, i, 0, 9) == (wanted, set())
    wanted = {**dict.fromkeys(range(5), b"old"), **dict.fromkeys(range(5, 8), b"n" * 3000)}
    assert await read_all(storage, LEDGERS - 1, 0, 9) == (wanted, set())
    assert await read_all(storage, LEDGERS, 0, 9) == (dict.fromkeys(range(8), b"new"), set())
    assert 3 in storage.fenced
    assert not storage.untrusted


@pytest.mark.parametrize("commits", [1, 3, 10])
async def test_a_transaction_has_so_many_ledgers(commits: int) -> None:
    host = Host(settings=bookie_settings(checkpoint_commit_ledgers=4))
    storage = await host.boot()
    await put(storage, *(Batch(i, 0) for i in range(4 * commits)))
    seen: list[str] = []
    host.disk.observer = lambda operation, path: seen.append(operation)
    await storage.checkpoint()
    assert seen.count("commit") == commits
    await storage.close()


@pytest.mark.thorough
def test_a_crash_at_every_operation_of_a_checkpoint_of_many_ledgers() -> None:
    async def crash(nth: int) -> bool:
        crashed = host()
        storage = await crashed.boot()
        await first(storage)
        await second(storage)
        crashed.disk.crash_at(nth)
        try:
            await storage.checkpoint()
        except (SimulatedCrash, StorageFailedError):
            assert crashed.disk.dead
        again = crashed.disk.dead
        crashed.disk.heal()
        crashed.disk.rng.seed(nth)
        crashed.disk.power_cut()
        for _ in range(2):
            storage = await crashed.boot()
            await check(storage)
            await reclaim(storage)
            check_living_bytes(storage)
            await storage.close()
            assert crashed.reports.damages == []
        return again

    nth = 1
    while asyncio.run(crash(nth)):
        nth += 1
    assert nth > 5


def test_what_was_written_takes_little_memory_until_it_is_told() -> None:
    rows = [(i, LedgerRow(KEY, False, i % 100 == 0, b"", 1000 + i, 2000 + i)) for i in range(5000)]
    written = WrittenLedgers()
    tracemalloc.start()
    try:
        for ledger_id, row in rows:
            written.add(ledger_id, row)
        held = tracemalloc.get_traced_memory()[0] / len(rows)
    finally:
        tracemalloc.stop()
    assert held < 40
    assert list(written) == [(i, 1000 + i, 2000 + i) for i in range(5000)]
    assert written.limbo == list(range(0, 5000, 100))


PAGES = """
import os, sys
from bkpy.bench.memory import rss_anon_mb
from bkpy.config.bookie import BookieSettings
from bkpy.runtime.ordered_store import LmdbStores
from bkpy.storage.entry_log.entry_log import Place
from bkpy.storage.index.changes import Changes
from bkpy.storage.index.ids import Ids
from bkpy.storage.index.index import BlockRow, LedgerRow, encode_block_row, initialise
from bkpy.storage.index.living import LivingBytes

LEDGERS = 10_000
store = LmdbStores().open(sys.argv[1], create=True)
shard = initialise(store, b"u" * 16, 1)
for start in range(0, LEDGERS, 500):
    with store.write() as txn:
        for ledger_id in range(start, start + 500):
            txn.put(encode_block_row(ledger_id, BlockRow(Ids(0, 5), Place(1, 64, 100)))[0], bytes(1900))
changes = Changes(shard, LivingBytes(), BookieSettings.model_fields["checkpoint_commit_ledgers"].default)
for ledger_id in range(LEDGERS):
    with store.read() as txn:
        changes.ledger(txn, ledger_id, LedgerRow(b"k" * 20, False, False), [BlockRow(Ids(5, 5), Place(2, 64, 100))])
before = rss_anon_mb(os.getpid())
changes.commit(store)
print(before, rss_anon_mb(os.getpid()))
"""


@pytest.mark.thorough
def test_little_is_kept_of_pages_that_were_written(tmp_path: Path) -> None:
    """LMDB keeps the memory of all the pages that a transaction changes: here one for each ledger, as after an hour."""
    done = subprocess.run(
        [sys.executable, "-c", PAGES, str(tmp_path / "index")], capture_output=True, text=True, check=True
    )
    before, after = map(float, done.stdout.split())
    assert after - before < 15
