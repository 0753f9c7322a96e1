"""A bookie's storage under crashes, power cuts and errors of its disk: what was acknowledged is there again.

A script of adds, fences, explicit last add confirmed and checkpoints runs against every fault at every place; `Told`
keeps what was acknowledged meanwhile, and each restart is compared with it.
"""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING

import pytest
from tests.examples import stride
from tests.hooks import was_closed
from tests.sim.disk import SimDisk, SimulatedCrash
from tests.unit.storage.acknowledged_writes import (
    AcknowledgedWrites,
    copy_of,
    dropped,
    kept,
    new_host,
    restart,
    script,
    whole_life,
)
from tests.unit.storage.support import KEY, Batch, Host, add
from tests.unit.storage.support import settings as bookie_settings
from tests.waiting import turns

from bkpy.errors import StorageFailedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from bkpy.storage.engine import LedgerStorage

HANG_S = 30  # generous: only a call that never returns takes so long


def operations_of(life: Callable[[Host], Awaitable[object]], host: Host) -> int:
    """How many operations of the disk that takes."""
    before = host.disk.operations
    asyncio.run(life(host))  # type: ignore[arg-type]
    return host.disk.operations - before


# --- crashes ----------------------------------------------------------------------------------------------------------


async def crash_and_check(nth: int, cuts: int) -> None:
    host, writes = new_host(), AcknowledgedWrites()
    host.disk.crash_at(nth)
    try:
        await whole_life(host, writes)
    except (SimulatedCrash, StorageFailedError):
        assert host.disk.dead
    host.disk.heal()
    variants: list[Callable[[SimDisk], None]] = [
        SimDisk.crash if nth % 2 else lambda disk: disk.power_cut(kept),
        lambda disk: disk.power_cut(dropped),
        *[lambda disk: disk.power_cut()] * cuts,
    ]
    for i, end in enumerate(variants):
        other = copy_of(host)
        other.disk.rng.seed(1000 * nth + i)
        end(other.disk)
        # A crash before the cookie reached the metadata store: for that store this bookie is new.
        try:
            await restart(other, writes)
        except Exception as e:
            raise AssertionError(f"crash at operation {nth}, variant {i}") from e


OPERATIONS = operations_of(lambda host: whole_life(host, AcknowledgedWrites()), new_host())


@pytest.mark.thorough
@pytest.mark.scenario(45)
@pytest.mark.scenario(48)
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.exhaustive) for part in (1, 2))])
def test_a_crash_at_every_operation_loses_nothing_that_was_acknowledged(part: int) -> None:
    for nth in range(1 + part, OPERATIONS + 2, 3):
        asyncio.run(crash_and_check(nth, 1))


@pytest.mark.scenario(48)
@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(8))
def test_a_crash_at_every_operation_and_many_power_cuts(part: int) -> None:
    for nth in range(1 + part, OPERATIONS + 2, 8):
        asyncio.run(crash_and_check(nth, 40))


def rolling_host(in_place: bool) -> Host:
    """Large entries roll the journal and the entry log; no backups, so that files are recycled or kept at once."""
    bounds = {"journal_max_backups": 0, "entry_log_max_size_mb": 1, "block_bytes": 300_000}
    return Host(settings=bookie_settings(journal_as_entry_log=in_place, **bounds))


async def rolling_life(host: Host, writes: AcknowledgedWrites) -> None:
    storage = await host.boot()
    for i in range(12):
        await writes.add(storage, Batch(1, i, payload=bytes([i]) * 400_000))
        if i % 4 == 3:
            await writes.fence(storage, 10 + i)
            await storage.checkpoint()
    await storage.close()


async def crash_rolling(nth: int, in_place: bool) -> bool:
    """Crash at that operation; returns whether there was one."""
    host, writes = rolling_host(in_place), AcknowledgedWrites()
    host.disk.crash_at(nth)
    try:
        await rolling_life(host, writes)
    except (SimulatedCrash, StorageFailedError):
        assert host.disk.dead
    crashed = host.disk.dead
    host.disk.heal()
    host.disk.rng.seed(nth)
    host.disk.power_cut()
    await restart(host, writes)
    return crashed


@pytest.mark.thorough
@pytest.mark.parametrize("step", [29, pytest.param(1, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(("in_place", "expected"), [(False, "rename"), (True, "link")])
def test_a_crash_while_files_roll_and_are_recycled(step: int, in_place: bool, expected: str) -> None:
    operations: list[str] = []
    host = rolling_host(in_place)
    host.disk.observer = lambda operation, path: operations.append(operation)
    asyncio.run(rolling_life(host, AcknowledgedWrites()))
    # In the default run where a file is taken or goes, and some of the many other places.
    for nth, operation in enumerate(operations, 1):
        if nth % step == 0 or operation in ("rename", "link", "unlink", "allocate"):
            assert asyncio.run(crash_rolling(nth, in_place)), f"there was no operation {nth}"
    assert expected in operations, "nothing was recycled, or kept"


def unclean(*, power: bool = True) -> tuple[Host, AcknowledgedWrites]:
    """A host that lost power, or its process, with a journal to replay and a torn or unsynced frame at its end."""
    host, writes = new_host(), AcknowledgedWrites()

    async def life() -> None:
        storage = await host.boot()
        await script(storage, writes)
        host.disk.crash_at(1, operation="fdatasync")
        with pytest.raises(StorageFailedError):
            await writes.add(storage, Batch(1, 20, 10, payload=b"torn" * 500))

    asyncio.run(life())
    host.disk.heal()
    host.disk.rng.seed(5)
    if power:
        host.disk.power_cut()
    else:
        host.disk.crash()
    return host, writes


@pytest.mark.thorough
@pytest.mark.scenario(55)
@pytest.mark.parametrize("power", [True, False])
def test_a_crash_at_every_operation_of_a_restart(power: bool) -> None:
    """A frame that is in the page cache alone is seen by a restart, and not by the next one behind a power cut."""
    host, writes = unclean(power=power)

    async def boot(host: Host) -> None:
        (await host.boot()).release()

    count = operations_of(boot, copy_of(host))
    assert count > 10

    async def crash(nth: int) -> None:
        other = copy_of(host)
        other.disk.crash_at(nth)
        with pytest.raises((SimulatedCrash, StorageFailedError)):
            await other.boot()
        other.disk.heal()
        other.disk.rng.seed(nth)
        other.disk.power_cut()
        await restart(other, writes)

    for nth in range(1, count + 1, stride()):
        asyncio.run(crash(nth))


@pytest.mark.thorough
@pytest.mark.scenario(55)
def test_a_mark_names_no_journal_file_whose_name_a_power_cut_takes() -> None:
    """The process died before it synced the name of a new file, which the next start goes on behind."""
    host, writes = Host(), AcknowledgedWrites()

    async def life() -> None:
        storage = await host.boot()
        await writes.add(storage, Batch(1, 0, payload=b"a" * 600_000))
        host.disk.crash_at(1, operation="sync_dir", path="/journal0")
        with pytest.raises(StorageFailedError):
            await writes.add(storage, Batch(1, 1, payload=b"b" * 600_000))

    asyncio.run(life())
    host.disk.heal()
    host.disk.crash()
    begun = host.journal_files()[-1]

    async def boot(host: Host) -> None:
        (await host.boot()).release()

    count = operations_of(boot, copy_of(host))

    async def crash(nth: int) -> bool:
        """Returns whether the power cut took the name."""
        other = copy_of(host)
        other.disk.crash_at(nth)
        with pytest.raises((SimulatedCrash, StorageFailedError)):
            await other.boot()
        other.disk.heal()
        other.disk.power_cut(dropped)
        taken = begun not in other.journal_files()
        await restart(other, writes)
        return taken

    assert {asyncio.run(crash(nth)) for nth in range(1, count + 1)} == {True, False}


@pytest.mark.scenario(45)
def test_the_sweep_notices_a_disk_that_does_not_sync() -> None:
    """What the other tests rely on: an acknowledgement without a sync would be found out."""

    async def life() -> None:
        host, writes = new_host(), AcknowledgedWrites()
        storage = await host.boot()
        host.disk.never_syncs = ""  # of no path
        await writes.add(storage, Batch(1, 0, 3))
        host.disk.power_cut(dropped)
        with pytest.raises(AssertionError, match="denied"):
            await writes.check(await host.boot())

    asyncio.run(life())


# --- errors of the disk -----------------------------------------------------------------------------------------------


async def fail_and_check(nth: int, error: int, repeat: bool) -> bool:
    """Returns whether the fault struck."""
    host, writes = new_host(), AcknowledgedWrites()
    host.disk.fail_at(nth, error, repeat=repeat)
    storage: LedgerStorage | None = None
    struck = False
    async with asyncio.timeout(HANG_S):
        try:
            storage = await host.boot()
            await script(storage, writes)
            await storage.close()
        except StorageFailedError:
            struck = True
        if storage is not None and not was_closed(storage):
            await nothing_is_acknowledged(storage)
            await storage.close()
    host.disk.heal()
    host.disk.rng.seed(nth)
    if nth % 2:
        host.disk.power_cut()
    else:
        host.disk.crash()
    try:
        await restart(host, writes)
    except Exception as e:
        raise AssertionError(f"error {error} at operation {nth}") from e
    return struck


async def nothing_is_acknowledged(storage: LedgerStorage) -> None:
    """The storage has failed, says so, and takes nothing any more."""
    assert storage.failed.done()
    assert isinstance(storage.failed.exception(), StorageFailedError)
    future = add(storage, Batch(7, 0))
    for refused in (storage.fence(8, KEY), storage.checkpoint()):
        with pytest.raises(StorageFailedError):
            await refused
    for _ in range(200):  # turns of the loop: more than any write, sync and callback take on this disk
        await asyncio.sleep(0)
    assert not future.done()


@pytest.mark.thorough
@pytest.mark.scenario(44)
@pytest.mark.parametrize(
    ("error", "repeat"),
    [
        pytest.param(errno.EIO, False, id="EIO-once"),
        pytest.param(errno.ENOSPC, True, id="ENOSPC-from-then-on"),
        pytest.param(errno.EIO, True, id="EIO-from-then-on", marks=pytest.mark.exhaustive),
        pytest.param(errno.ENOSPC, False, id="ENOSPC-once", marks=pytest.mark.exhaustive),
    ],
)
def test_an_error_at_every_operation(error: int, repeat: bool) -> None:
    struck = [asyncio.run(fail_and_check(nth, error, repeat)) for nth in range(1, OPERATIONS + 1, stride())]
    assert all(struck), (
        f"nobody was told of errors at {[1 + i * stride() for i, told in enumerate(struck) if not told]}"
    )


@pytest.mark.thorough
@pytest.mark.scenario(44)
def test_an_error_at_every_operation_of_a_restart() -> None:
    host, writes = unclean()

    async def boot(host: Host) -> None:
        (await host.boot()).release()

    count = operations_of(boot, copy_of(host))

    async def fail(nth: int) -> None:
        other = copy_of(host)
        other.disk.fail_at(nth, errno.EIO)
        with pytest.raises(StorageFailedError):
            await other.boot()
        other.disk.heal()
        other.disk.rng.seed(nth)
        other.disk.power_cut()
        await restart(other, writes)

    for nth in range(1, count + 1, stride()):
        asyncio.run(fail(nth))


@pytest.mark.thorough
@pytest.mark.parametrize("first", [True, False])
def test_a_start_that_fails_lets_go_of_everything(first: bool) -> None:
    """Whatever it had got to: nothing of it runs on, and another start in the same process finds nothing in its way."""
    before, writes = (new_host(), AcknowledgedWrites()) if first else unclean()

    async def boot(host: Host) -> None:
        (await host.boot()).release()

    async def fail(nth: int) -> None:
        host = copy_of(before)
        host.disk.fail_at(nth, errno.EIO)
        with pytest.raises(StorageFailedError):
            await host.boot()
        await turns()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        host.disk.heal()
        await writes.check(await host.boot())

    for nth in range(1, operations_of(boot, copy_of(before)) + 1, stride()):
        asyncio.run(fail(nth))


@pytest.mark.scenario(45)
async def test_a_sync_that_failed_is_not_tried_again() -> None:
    host, writes = Host(), AcknowledgedWrites()
    storage = await host.boot()
    await writes.add(storage, Batch(1, 0))
    syncs: list[str] = []
    host.disk.fail_at(1, errno.EIO, operation="fdatasync")
    host.disk.observer = lambda operation, path: syncs.append(operation)
    with pytest.raises(StorageFailedError):
        await writes.add(storage, Batch(1, 1))
    await nothing_is_acknowledged(storage)
    async with asyncio.timeout(HANG_S):
        await storage.close()
    assert syncs == ["pwritev", "fdatasync"]
    host.disk.power_cut()
    await writes.check(await host.boot())


async def test_close_ends_when_something_was_added_after_a_failure() -> None:
    host = Host()
    storage = await host.boot()
    host.disk.fail_at(1, errno.EIO, operation="commit")
    await storage.fence(1, KEY)
    with pytest.raises(StorageFailedError):
        await storage.checkpoint()
    assert storage.failed.done()
    future = add(storage, Batch(1, 0))
    async with asyncio.timeout(HANG_S):
        await storage.close()
    assert not future.done()


async def test_an_explicit_lac_sent_twice_is_durable_before_either_is_answered() -> None:
    host, writes = Host(), AcknowledgedWrites()
    storage = await host.boot()
    await writes.add(storage, Batch(1, 0, 8))
    host.disk.stall()
    first, second = (asyncio.ensure_future(writes.publish(storage, 1, 6)) for _ in range(2))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not first.done()
    assert not second.done(), "the second was answered before anything was synced"
    host.disk.unstall()
    async with asyncio.timeout(HANG_S):
        await asyncio.gather(first, second)
    await writes.publish(storage, 1, 4)  # lower than what is there: nothing to do
    host.disk.power_cut(dropped)
    record = (await (await host.boot()).last_entry(1)).explicit_lac
    assert int.from_bytes(record[16:24], "little") == 6


@pytest.mark.scenario(45)
async def test_a_fence_sent_twice_is_durable_before_either_is_answered() -> None:
    host, writes = Host(), AcknowledgedWrites()
    storage = await host.boot()
    await writes.add(storage, Batch(1, 0, 8))
    host.disk.stall()
    first, second = (asyncio.ensure_future(writes.fence(storage, 1)) for _ in range(2))
    for _ in range(50):
        await asyncio.sleep(0)
    assert 1 in storage.fenced, "effective at once"
    assert not first.done()
    assert not second.done()
    host.disk.unstall()
    async with asyncio.timeout(HANG_S):
        await asyncio.gather(first, second)
    host.disk.power_cut(dropped)
    await writes.check(await host.boot())
