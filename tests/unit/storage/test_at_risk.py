"""Without a journal, or without its syncs: after an unclean stop nothing that was acknowledged is denied.

Whatever was lost is *unknown*, every ledger is fenced, and fences, keys and explicit last adds confirmed are as durable
as ever. What was not lost is known: after a clean stop, and where only the process ended and the entries were written.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
from typing import TYPE_CHECKING, Any

import pytest
from tests.sim.disk import SimDisk, SimulatedCrash
from tests.sim.store import SimStores
from tests.unit.storage.acknowledged_writes import (
    IDS,
    AcknowledgedWrites,
    copy_of,
    dropped,
    kept,
    new_host,
    restart,
    script,
    whole_life,
)
from tests.unit.storage.support import KEY, Batch, Host, add, read_all
from tests.unit.storage.support import settings as bookie_settings
from tests.waiting import turns

from bkpy.errors import StorageFailedError
from bkpy.runtime import system
from bkpy.runtime.system import real_runtime
from bkpy.storage import at_risk
from bkpy.storage.index.index import ShardRow, decode_shard, encode_shard, load_shard
from bkpy.storage.journal.format import Mark

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bkpy.storage.engine import LedgerStorage

UNWRITTEN = {"journal_write_data": False}
UNSYNCED = {"journal_sync_data": False}
NEITHER = {**UNWRITTEN, **UNSYNCED}
MODES: tuple[dict[str, Any], ...] = ({}, UNWRITTEN, UNSYNCED, NEITHER)
BOOT = b"b" * 16

ENDS: dict[str, Callable[[SimDisk], None]] = {
    "crash": SimDisk.crash,
    "power cut": lambda disk: disk.power_cut(),
    "nothing synced is lost": lambda disk: disk.power_cut(kept),
    "all that is not synced is lost": lambda disk: disk.power_cut(dropped),
}


async def check_denies_nothing(storage: LedgerStorage, writes: AcknowledgedWrites) -> None:
    """What was acknowledged is there or unknown; states are there for certain; and nothing was made up."""
    for ledger_id, sent in writes.sent.items():
        have, unknown = await read_all(storage, ledger_id, 0, IDS)
        denied = writes.acknowledged.get(ledger_id, {}).keys() - have.keys() - unknown
        assert not denied, f"acknowledged entries {sorted(denied)} of ledger {ledger_id} are denied"
        assert have.items() <= sent.items()
        last = await storage.last_entry(ledger_id)
        assert last.limbo or not unknown
        if storage.untrusted:
            assert unknown | have.keys() == set(range(IDS + 1)), "of a bookie in limbo nothing is a negative"
            assert (await storage.read(99, 0, 5, 1000)).unknown == [(0, 5)], "nor of a ledger that it never saw"
    for ledger_id in writes.fenced:
        state = (await storage.states((ledger_id,)))[ledger_id]
        assert state is not None, f"ledger {ledger_id} was fenced and is forgotten"
        assert state.fenced
        assert state.key == KEY
    for ledger_id, lac in writes.lac.items():
        record = (await storage.last_entry(ledger_id)).explicit_lac
        assert int.from_bytes(record[16:24], "little") >= lac


def with_mode(host: Host, mode: dict[str, Any]) -> None:
    host.settings = host.settings.model_copy(update={"journal_write_data": True, "journal_sync_data": True, **mode})


def rows(host: Host) -> list[ShardRow]:
    """The shards' rows, of a bookie that doesn't run."""
    found = []
    for directory in host.settings.ledger_directories:
        store = SimStores(host.disk).open(f"{directory}/index")
        row = load_shard(store)
        assert row is not None
        found.append(row)
        store.close()
    return found


# --- the mark and the verdict -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize("synced", [True, False])
def test_what_is_at_risk_with_which_settings(written: bool, synced: bool) -> None:
    mark = at_risk.mark_of(bookie_settings(journal_write_data=written, journal_sync_data=synced), BOOT)
    assert mark == {(True, True): b"", (True, False): BOOT}.get((written, synced), at_risk.IN_MEMORY)


def test_what_is_lost_after_an_unclean_stop() -> None:
    other = b"o" * 16
    lost = {(mark, now): at_risk.is_lost(mark, now) for mark in (b"", at_risk.IN_MEMORY, BOOT) for now in (BOOT, other)}
    assert lost == {
        (b"", BOOT): False,
        (b"", other): False,
        (at_risk.IN_MEMORY, BOOT): True,
        (at_risk.IN_MEMORY, other): True,
        (BOOT, BOOT): False,  # the page cache is the same: what was written is there
        (BOOT, other): True,
    }


def test_what_is_given_up_is_said() -> None:
    assert at_risk.warnings(bookie_settings()) == []
    assert "journal_write_data = false: entries are acknowledged" in at_risk.warnings(bookie_settings(**UNWRITTEN))[0]
    assert "journal_sync_data = false: entries are acknowledged" in at_risk.warnings(bookie_settings(**UNSYNCED))[0]
    assert at_risk.warnings(bookie_settings(**NEITHER)) == at_risk.warnings(bookie_settings(**UNWRITTEN))


# --- lives ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
async def test_a_clean_stop_loses_nothing_and_leaves_nothing_at_risk(mode: dict[str, Any]) -> None:
    host, writes = new_host(**mode), AcknowledgedWrites()
    storage = await whole_life(host, writes)
    assert not storage.untrusted
    assert all(row.at_risk == b"" for row in rows(host)), "yesterday's software reads it again"
    host.disk.power_cut(dropped)
    await restart(host, writes)


@pytest.mark.scenario(55)
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("mode", MODES)
async def test_an_unclean_stop(mode: dict[str, Any], end: str) -> None:
    host, writes = new_host(**mode), AcknowledgedWrites()
    storage = await host.boot()
    await script(storage, writes)
    ENDS[end](host.disk)
    storage = await host.boot()
    await check_denies_nothing(storage, writes)
    lost = bool(mode) and (end != "crash" or mode != UNSYNCED)
    assert storage.untrusted == lost
    if not lost:
        await writes.check(storage)
        assert not host.reports.damages
        return
    assert any("stopped uncleanly" in what and "limbo" in what for what, _ in host.reports.damages)
    state = (await storage.states((1,)))[1]
    assert state is not None
    assert state.fenced
    assert state.limbo
    # Recoveries are served, of ledgers that it knew and of others, and limbo stays, whatever the settings are then.
    await writes.add(storage, Batch(1, 12, 2, payload=b"written back"), Batch(50, 0, payload=b"another"))
    await storage.close()
    with_mode(host, {})
    storage = await host.boot()
    assert storage.untrusted
    await check_denies_nothing(storage, writes)
    assert set((await read_all(storage, 1, 12, 13))[0]) == {12, 13}
    await storage.close()


async def test_entries_are_acknowledged_in_order_and_before_any_write() -> None:
    host = Host(settings=bookie_settings(**UNWRITTEN))
    storage = await host.boot()
    await storage.states((1,))
    await add(storage, Batch(1, 0))
    host.disk.stall()
    done: list[int] = []
    for i in range(1, 5):
        add(storage, Batch(1, i)).add_done_callback(lambda _, i=i: done.append(i))
    assert not done
    forced = asyncio.ensure_future(storage.force(1))
    await turns(10)
    assert done == [1, 2, 3, 4]
    assert forced.done()
    fencing = asyncio.ensure_future(storage.fence(1, KEY))
    await turns(10)
    assert not fencing.done(), "a fence waits for the disk all the same"
    host.disk.unstall()
    await fencing
    await storage.close()


@pytest.mark.thorough
async def test_a_fence_survives_what_adds_before_it_do_not() -> None:
    """The frames of adds before it are lost, and one that is torn is no reason to stop reading."""
    for seed in range(20):
        host, writes = Host(settings=bookie_settings(**UNSYNCED)), AcknowledgedWrites()
        storage = await host.boot()
        for i in range(8):
            await writes.add(storage, Batch(1, i, payload=b"x" * 9000))
        await writes.fence(storage, 2)
        await writes.publish(storage, 1, 5)
        await writes.add(storage, Batch(1, 8, payload=b"x" * 9000))
        host.disk.rng.seed(seed)
        host.disk.power_cut(dropped if not seed else None)
        storage = await host.boot()
        await check_denies_nothing(storage, writes)
        storage.release()
        host.disk.crash()


async def test_a_failure_acknowledges_nothing_more() -> None:
    host, writes = Host(settings=bookie_settings(**UNWRITTEN)), AcknowledgedWrites()
    storage = await host.boot()
    await writes.add(storage, Batch(1, 0))
    host.disk.fail_at(1, errno.ENOSPC, path=".log", repeat=True)
    late = add(storage, Batch(1, 1))
    storage.fail(OSError(errno.EIO, "the disk failed"))
    await turns()
    assert not late.done()
    with pytest.raises(StorageFailedError):
        await storage.force(1)
    await storage.close()
    host.disk.heal()
    host.disk.crash()
    storage = await host.boot()
    assert storage.untrusted
    await check_denies_nothing(storage, writes)


async def test_what_was_flushed_is_there_after_an_unclean_stop() -> None:
    host, writes = Host(settings=bookie_settings(**UNWRITTEN)), AcknowledgedWrites()
    storage = await host.boot()
    await writes.add(storage, Batch(1, 0, 4))
    await storage.checkpoint()
    await writes.add(storage, Batch(1, 4, 4))
    host.disk.power_cut(dropped)
    have, unknown = await read_all(await host.boot(), 1, 0, 9)
    assert set(have) == {0, 1, 2, 3}
    assert unknown == {4, 5, 6, 7, 8, 9}


async def test_a_bookie_that_the_cluster_does_not_know_yet_has_lost_nothing() -> None:
    host = Host(settings=bookie_settings(**UNWRITTEN))
    await host.boot()
    host.disk.power_cut()
    host.cookie = None  # it never got as far as that
    storage = await host.boot()
    assert not storage.untrusted
    await storage.close()


@pytest.mark.parametrize("mode", [UNWRITTEN, UNSYNCED])
async def test_a_start_that_fails_for_full_disk_note_loses_nothing(mode: dict[str, Any]) -> None:
    host, writes = new_host(**mode), AcknowledgedWrites()
    await whole_life(host, writes)
    host.disk.fail_at(1, errno.ENOSPC, operation="allocate", repeat=True)
    with pytest.raises(StorageFailedError, match="No space left"):
        await host.boot()
    host.disk.heal()
    host.disk.power_cut()
    storage = await host.boot()
    assert not storage.untrusted
    await writes.check(storage)


# --- crashes ----------------------------------------------------------------------------------------------------------


async def crash_and_check(mode: dict[str, Any], nth: int, then: dict[str, Any]) -> bool:
    """Crash at that operation of a life; whether there was one."""
    host, writes = new_host(**mode), AcknowledgedWrites()
    host.disk.crash_at(nth)
    try:
        await whole_life(host, writes)
    except (SimulatedCrash, StorageFailedError):
        assert host.disk.dead
    crashed = host.disk.dead
    host.disk.heal()
    with_mode(host, then)
    for i, end in enumerate(ENDS.values()):
        other = copy_of(host)
        other.disk.rng.seed(1000 * nth + i)
        end(other.disk)
        storage = await other.boot()
        await check_denies_nothing(storage, writes)
        if not storage.untrusted:
            await writes.check(storage)
        await storage.close()
        storage = await other.boot()
        await check_denies_nothing(storage, writes)
        storage.release()
    return crashed


@pytest.mark.thorough
@pytest.mark.scenario(55)
@pytest.mark.parametrize("mode", [UNWRITTEN, UNSYNCED])
@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_a_crash_at_every_operation_denies_nothing(mode: dict[str, Any], step: int) -> None:
    nth = 1
    while asyncio.run(crash_and_check(mode, nth, MODES[nth % 4])):
        nth += step
    assert nth > 50


@pytest.mark.thorough
@pytest.mark.parametrize("mode", [UNWRITTEN, UNSYNCED])
def test_a_crash_at_every_operation_of_the_start_in_limbo(mode: dict[str, Any]) -> None:
    host, writes = new_host(**mode), AcknowledgedWrites()

    async def life() -> None:
        await script(await host.boot(), writes)

    asyncio.run(life())
    host.disk.rng.seed(5)
    host.disk.power_cut()

    async def crash(nth: int) -> bool:
        other = copy_of(host)
        with_mode(other, MODES[nth % 4])
        other.disk.crash_at(nth)
        try:
            (await other.boot()).release()
        except (SimulatedCrash, StorageFailedError):
            assert other.disk.dead
        crashed = other.disk.dead
        other.disk.heal()
        other.disk.rng.seed(nth)
        other.disk.power_cut()
        with_mode(other, MODES[nth // 4 % 4])
        storage = await other.boot()
        assert storage.untrusted
        await check_denies_nothing(storage, writes)
        storage.release()
        return crashed

    nth = next(nth for nth in itertools.count(1) if not asyncio.run(crash(nth)))
    assert nth > 10


@pytest.mark.thorough
@pytest.mark.parametrize(
    "end", ["power cut", *(pytest.param(it, marks=pytest.mark.exhaustive) for it in ("crash", "stop"))]
)
def test_the_settings_may_change_between_any_two_runs(end: str) -> None:
    """The verdict is on how the last run acknowledged, not on how this one will."""

    async def lives(modes: tuple[dict[str, Any], ...]) -> None:
        host, writes = new_host(), AcknowledgedWrites()
        lost = False
        for number, mode in enumerate(modes):
            with_mode(host, mode)
            storage = await host.boot()
            assert storage.untrusted == lost
            await check_denies_nothing(storage, writes)
            if not lost:
                await writes.check(storage)
            await writes.add(storage, Batch(1, 2 * number, 2), Batch(2 + number, 0))
            await writes.fence(storage, 10 + number)
            if end == "stop":
                await storage.close()
            elif end == "crash":
                host.disk.crash()
                lost = lost or not host.settings.journal_write_data
            else:
                host.disk.power_cut()
                lost = lost or bool(mode)

    for modes in itertools.product(MODES, repeat=3):
        asyncio.run(lives(modes))


def test_the_mark_is_in_the_row_and_makes_it_another_version() -> None:
    row = ShardRow(b"u" * 16, False, 7, 3, 99, (Mark(1, 4096, 5, 6), Mark(2, 8192, 7, 8)))
    for mark, keeps in itertools.product((b"", at_risk.IN_MEMORY, BOOT), (False, True)):
        marked = row._replace(at_risk=mark, keeps=keeps)
        assert decode_shard(encode_shard(marked)) == marked
        assert encode_shard(marked)[0] == (3 if mark else 2 if keeps else 1)


def test_the_machine_says_which_boot_this_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = real_runtime().files
    assert files.boot_id() == files.boot_id() != at_risk.IN_MEMORY
    assert len(files.boot_id()) == 16
    for text in (None, "", "no boot id"):
        path = tmp_path / "boot_id"
        if text is not None:
            path.write_text(text)
        monkeypatch.setattr(system, "BOOT_ID_PATH", str(path))
        assert files.boot_id() != files.boot_id(), "what can't be told is another boot"
