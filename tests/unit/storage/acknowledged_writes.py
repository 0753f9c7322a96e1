"""A script of writes for a bookie's storage, and what it acknowledged meanwhile, to compare every restart with."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.sim.platter import Dirty, EntryStatus
from tests.unit.storage.support import KEY, Batch, Host, add, read_all
from tests.unit.storage.support import settings as bookie_settings

from bkpy.errors import StorageFailedError
from bkpy.protocol.wire.records import RecordCodec

if TYPE_CHECKING:
    from bkpy.storage.engine import LedgerStorage

IDS = 40  # entry ids in the script are below this


@dataclass
class AcknowledgedWrites:
    """What was sent, and what of it was acknowledged."""

    sent: dict[int, dict[int, bytes]] = field(default_factory=dict)
    acknowledged: dict[int, dict[int, bytes]] = field(default_factory=dict)
    fenced: set[int] = field(default_factory=set)
    lac: dict[int, int] = field(default_factory=dict)

    async def add(self, storage: LedgerStorage, *batches: Batch) -> None:
        await storage.states({batch.ledger_id for batch in batches})
        future = add(storage, *batches)
        for batch in batches:
            self.sent.setdefault(batch.ledger_id, {}).update(dict.fromkeys(batch.ids, batch.payload))
        await durable(storage, future)
        for batch in batches:
            self.acknowledged.setdefault(batch.ledger_id, {}).update(dict.fromkeys(batch.ids, batch.payload))

    async def fence(self, storage: LedgerStorage, ledger_id: int) -> None:
        await storage.fence(ledger_id, KEY)
        self.fenced.add(ledger_id)

    async def publish(self, storage: LedgerStorage, ledger_id: int, lac: int) -> None:
        await storage.set_explicit_lac(ledger_id, RecordCodec(ledger_id).explicit_lac(lac, 0))
        self.lac[ledger_id] = lac

    async def check(self, storage: LedgerStorage) -> None:
        """Everything acknowledged is there, nothing is unknown, and nothing was made up."""
        for ledger_id, sent in self.sent.items():
            have, unknown = await read_all(storage, ledger_id, 0, IDS)
            missing = self.acknowledged.get(ledger_id, {}).keys() - have.keys()
            assert not missing, f"acknowledged entries {sorted(missing)} of ledger {ledger_id} are denied"
            assert not unknown
            assert have.items() <= sent.items()
        for ledger_id in self.fenced:
            state = (await storage.states((ledger_id,)))[ledger_id]
            assert state is not None, f"ledger {ledger_id} was fenced and is denied"
            assert state.fenced
            assert state.key == KEY
            assert ledger_id in storage.fenced
        for ledger_id, lac in self.lac.items():
            record = (await storage.last_entry(ledger_id)).explicit_lac
            assert int.from_bytes(record[16:24], "little") >= lac


async def durable(storage: LedgerStorage, future: asyncio.Future[None]) -> None:
    """Wait for the acknowledgement; the storage's error if it will never come."""
    await asyncio.wait({future, storage.failed}, return_when=asyncio.FIRST_COMPLETED)
    if not future.done():
        raise StorageFailedError("not acknowledged") from storage.failed.exception()


async def script(storage: LedgerStorage, writes: AcknowledgedWrites) -> None:
    """Every kind of write, before and after a checkpoint, small and of several pages, alone and together."""
    await writes.add(storage, Batch(1, 0, 3, payload=b"one"))
    await writes.add(storage, Batch(1, 3, 4, payload=b"x" * 2500), Batch(2, 0, 2, 3, payload=b"two"))
    await writes.fence(storage, 2)
    await writes.publish(storage, 1, 5)
    await storage.checkpoint()
    await writes.fence(storage, 9)  # of a ledger without entries
    await asyncio.gather(
        writes.add(storage, Batch(2, 1, 2, 3, payload=b"recovered")),
        writes.add(storage, Batch(3, 7, 5, payload=b"three")),
        writes.publish(storage, 1, 6),
    )
    await writes.add(storage, Batch(1, 5, 4, payload=b"x" * 2500))  # in part what is there already, as a recovery sends


def new_host(**values: object) -> Host:
    return Host(settings=bookie_settings(journals=2, ledgers=2, block_bytes=4096, **values))


async def whole_life(host: Host, writes: AcknowledgedWrites) -> LedgerStorage:
    """From the first start to an orderly end."""
    storage = await host.boot()
    await script(storage, writes)
    await storage.close()
    return storage


def kept(item: Dirty) -> EntryStatus:
    return EntryStatus.KEPT


def dropped(item: Dirty) -> EntryStatus:
    return EntryStatus.DROPPED


def copy_of(host: Host) -> Host:
    return Host(host.disk.clone(), host.settings, host.cookie, boots=host.boots)


async def restart(host: Host, writes: AcknowledgedWrites) -> None:
    """Boot, compare, write something, end in order, and compare again."""
    storage = await host.boot()
    await writes.check(storage)
    more = AcknowledgedWrites(
        {k: dict(v) for k, v in writes.sent.items()}, {k: dict(v) for k, v in writes.acknowledged.items()}
    )
    more.fenced, more.lac = writes.fenced, writes.lac
    await more.add(storage, Batch(4, 0, 2, payload=b"after"))
    await more.check(storage)
    await storage.close()
    storage = await host.boot()
    assert host.reports.replayed_frames <= len(host.settings.journal_directories)
    await more.check(storage)
    assert not host.reports.damages
    storage.release()
