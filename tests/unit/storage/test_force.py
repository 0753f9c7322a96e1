"""Forcing what was added before: it waits for exactly that, and what was forced outlives a power cut at any place."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING

import pytest
from tests.examples import stride
from tests.sim.disk import SimulatedCrash
from tests.unit.storage.acknowledged_writes import AcknowledgedWrites, copy_of, dropped, kept, new_host, restart
from tests.unit.storage.support import Batch, Host, add, read_all
from tests.unit.storage.support import settings as bookie_settings
from tests.waiting import turns

from bkpy.errors import StorageFailedError

if TYPE_CHECKING:
    from bkpy.storage.engine import LedgerStorage


@pytest.mark.scenario(35)
@pytest.mark.parametrize("group_bytes", [1, 1 << 20])
async def test_a_force_waits_for_everything_added_before_and_for_nothing_else(group_bytes: int) -> None:
    host = Host(settings=bookie_settings(journal_group_bytes_max=group_bytes))
    storage = await host.boot()
    await storage.force(1)  # of a ledger that nobody has seen
    await add(storage, Batch(1, 0))
    host.disk.stall()
    await storage.force(1)  # everything is synced already
    adds = [add(storage, Batch(1, 1))]
    await turns()  # the first is being written, the others wait for it
    during = asyncio.ensure_future(storage.force(1))
    adds += [add(storage, Batch(1, i)) for i in (2, 3, 4)]
    behind = asyncio.ensure_future(storage.force(1))
    await turns()
    assert not during.done()
    assert not behind.done()
    host.disk.unstall()
    await during
    assert adds[0].done()
    await behind
    assert all(future.done() for future in adds)
    host.disk.power_cut(dropped)
    storage = await host.boot()
    have, unknown = await read_all(storage, 1, 0, 9)
    assert sorted(have) == [0, 1, 2, 3, 4]
    assert not unknown


@pytest.mark.scenario(35)
async def test_a_force_fails_with_the_journal() -> None:
    host = Host()
    storage = await host.boot()
    await add(storage, Batch(1, 0))
    host.disk.fail_at(1, errno.EIO, path="journal")
    add(storage, Batch(1, 1))
    with pytest.raises(StorageFailedError):
        await storage.force(1)
    with pytest.raises(StorageFailedError):
        await storage.force(1)  # also when nothing is pending any more
    storage.release()


async def life(host: Host, writes: AcknowledgedWrites) -> LedgerStorage:
    """Adds of which nobody waits for the sync, and a force now and then."""
    storage = await host.boot()
    for round_ in range(4):
        for k in range(3):
            first = 9 * round_ + 3 * k
            batches = [Batch(1, first, 3, payload=b"x" * 1500), Batch(2, first, 2, payload=b"two")]
            await storage.states((1, 2))
            add(storage, *batches)
            for batch in batches:
                writes.sent.setdefault(batch.ledger_id, {}).update(dict.fromkeys(batch.ids, batch.payload))
        for ledger_id in (1, 2):
            sent = dict(writes.sent[ledger_id])
            await storage.force(ledger_id)
            writes.acknowledged.setdefault(ledger_id, {}).update(sent)
        if round_ == 1:
            await storage.checkpoint()
    return storage


def operations() -> int:
    host = new_host()
    before = host.disk.operations

    async def whole() -> None:
        (await life(host, AcknowledgedWrites())).release()

    asyncio.run(whole())
    return host.disk.operations - before


@pytest.mark.thorough
@pytest.mark.scenario(35)
@pytest.mark.parametrize("nth", range(1, operations() + 1, stride()))
async def test_what_was_forced_is_there_after_a_crash_at_any_operation(nth: int) -> None:
    host, writes = new_host(), AcknowledgedWrites()
    host.disk.crash_at(nth)
    try:
        (await life(host, writes)).release()
    except (SimulatedCrash, StorageFailedError):
        assert host.disk.dead
    host.disk.heal()
    for entry_status in (kept, dropped, None):
        other = copy_of(host)
        other.disk.power_cut(entry_status)
        await restart(other, writes)
