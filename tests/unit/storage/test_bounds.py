"""The storage's bounds: each is a setting that holds, down to its smallest value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import open_logs
from tests.unit.storage.support import INSTANCE, KEY, SMALLEST, Batch, Host, Reports, add, read_all
from tests.unit.storage.support import settings as bookie_settings

from bkpy.config.base import MIB
from bkpy.runtime.system import real_runtime
from bkpy.storage.journal.format import PAGE_BYTES
from bkpy.storage.open import open_storage

if TYPE_CHECKING:
    from pathlib import Path

    from bkpy.storage.engine import LedgerStorage


async def filled(host: Host, ledgers: int = 4, rounds: int = 4) -> LedgerStorage:
    """Each round is a checkpoint, and each checkpoint a log of its own."""
    storage = await host.boot()
    for number in range(rounds):
        await storage.states(range(ledgers))
        await add(storage, *(Batch(i, number, payload=b"x" * 400_000) for i in range(ledgers)))
        await storage.checkpoint()
    return storage


async def check_filled(storage: LedgerStorage, ledgers: int = 4, rounds: int = 4) -> None:
    for ledger_id in range(ledgers):
        have, unknown = await read_all(storage, ledger_id, 0, rounds)
        assert (have, unknown) == (dict.fromkeys(range(rounds), b"x" * 400_000), set())


@pytest.mark.parametrize(("blocks", "bound"), [(1, 1), (1, 500_000), (2, 900_000), (16, 16 * MIB)])
async def test_blocks_in_memory_are_bounded(blocks: int, bound: int) -> None:
    host = Host(settings=bookie_settings(block_cache_bytes_max=bound))
    storage = await filled(host)
    await check_filled(storage)
    assert len(storage.shards[0].cache) == blocks
    storage.check_invariants()


@pytest.mark.parametrize("bound", [1, 2, 128])
async def test_open_entry_logs_are_bounded(bound: int) -> None:
    bounds = {"open_entry_logs_max": bound, "block_cache_bytes_max": 1, "entry_log_max_size_mb": 1}
    host = Host(settings=bookie_settings(journal_as_entry_log=False, **bounds))
    storage = await filled(host, rounds=6)
    await check_filled(storage, rounds=6)
    logs = [name for name in host.disk.listdir("/b/ledgers0") if name.endswith(".log")]
    assert len(logs) > 2
    assert open_logs(storage.shards[0]) == min(bound, len(logs))


@pytest.mark.parametrize("bound", [1, 3, 1000])
async def test_the_blocks_of_an_entry_log_are_bounded(bound: int) -> None:
    host = Host(settings=bookie_settings(entry_log_blocks_max=bound, journal_as_entry_log=False))
    storage = await filled(host, ledgers=4, rounds=2)
    await check_filled(storage, ledgers=4, rounds=2)
    logs = [name for name in host.disk.listdir("/b/ledgers0") if name.endswith(".log")]
    assert len(logs) == -(-8 // bound)
    await storage.close()
    await check_filled(await host.boot(), ledgers=4, rounds=2)


@pytest.mark.parametrize("bound", [0, 1, 4])
async def test_recycled_journal_files_are_bounded(bound: int) -> None:
    bounds = {"journal_recycled_files_max": bound, "journal_max_backups": 0}
    host = Host(settings=bookie_settings(journal_as_entry_log=False, **bounds))
    storage = await host.boot()
    for i in range(6):  # in one checkpoint: six files are let go at once
        await add(storage, Batch(1, i, payload=b"x" * 900_000))
    await storage.checkpoint()
    assert len(host.journal_files()) == 1 + bound
    assert (await read_all(storage, 1, 0, 9))[0].keys() == set(range(6))


@pytest.mark.parametrize("bound", [1, 4096, 5000, 1 << 20])
async def test_a_journal_is_read_in_parts_of_any_size(bound: int) -> None:
    host = Host(settings=bookie_settings(journal_read_bytes=max(bound, PAGE_BYTES)))
    storage = await host.boot()
    await storage.fence(7, KEY)
    for i in range(5):
        await add(storage, Batch(i, 0, payload=b"x" * 30_000), Batch(9, i))
    host.disk.power_cut()
    storage = await host.boot()
    assert (await read_all(storage, 9, 0, 9))[0].keys() == set(range(5))
    assert storage.fenced == {7}
    assert not host.reports.damages


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("setting", "value"),
    [("all", 0), *(pytest.param(*one, marks=pytest.mark.exhaustive) for one in SMALLEST.items())],
)
async def test_the_smallest_bounds_work_on_a_real_disk(tmp_path: Path, setting: str, value: float) -> None:
    values: dict[str, Any] = SMALLEST if setting == "all" else {setting: value}
    settings = bookie_settings(str(tmp_path), journals=2, ledgers=2, **values)
    cookie = None
    for boot in range(3):
        storage = await open_storage(
            settings, real_runtime(), instance_id=INSTANCE, expected_cookie=cookie, observer=Reports()
        )
        cookie = storage.cookie
        await storage.states(range(5))
        await add(storage, *(Batch(i, 10 * boot, 4, stride=1 + i % 3, payload=b"x" * 5000) for i in range(4)))
        if boot == 1:
            await storage.checkpoint()
        for i in range(4):
            wanted = {10 * b + k * (1 + i % 3) for b in range(boot + 1) for k in range(4)}
            have, unknown = await read_all(storage, i, 0, 40)
            assert (have.keys(), unknown) == (wanted, set())
        storage.check_invariants()
        if boot:
            await storage.close()
        else:
            storage.release()
