"""Ledgers whose states are evicted: whoever decides or reads by a state meanwhile is never told less than there is."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.storage.support import KEY, SMALLEST, Batch, Host, add, read_all
from tests.unit.storage.support import settings as bookie_settings

from bkpy.errors import StorageFailedError
from bkpy.protocol.messages import AddColumns, pack
from bkpy.protocol.records import RecordCodec, walk

if TYPE_CHECKING:
    from bkpy.storage.engine import LedgerStorage

OLD, FENCED, OTHER, NEW = 1, 2, 3, 99


async def crowded(**values: Any) -> tuple[Host, LedgerStorage]:
    """A bookie with one ledger more in its cache than that may hold; all are checkpointed."""
    host = Host(settings=bookie_settings(ledger_states_max=2, **values))
    storage = await host.boot()
    await storage.states((OLD, FENCED, OTHER))
    await add(storage, Batch(OLD, 0, 10), Batch(FENCED, 0, 10), Batch(OTHER, 0, 10))
    await storage.fence(FENCED, KEY)
    await storage.set_explicit_lac(OLD, RecordCodec(OLD).explicit_lac(9, 40))
    await storage.checkpoint()
    return host, storage


@pytest.mark.parametrize("asked", [(OLD, NEW), (OLD, FENCED, NEW), (NEW, OTHER, FENCED, OLD)])
async def test_a_request_never_takes_a_ledger_of_its_own_for_new(asked: tuple[int, ...]) -> None:
    host, storage = await crowded()
    states = await storage.states(asked)
    assert [ledger_id for ledger_id, state in states.items() if state is None] == [NEW]
    await add(storage, *(Batch(ledger_id, 10) for ledger_id in asked))
    for _ in range(2):
        for ledger_id in asked:
            have, unknown = await read_all(storage, ledger_id, 0, 10)
            assert (set(have), unknown) == ({10} if ledger_id == NEW else set(range(11)), set())
        assert (await storage.last_entry(FENCED)).fenced
        assert (await storage.last_entry(OLD)).lac == 9
        storage.check_invariants()
        await storage.checkpoint()
        host.disk.power_cut()
        storage = await host.boot()
    assert host.reports.replayed_frames == 0


async def test_a_ledger_that_was_seen_is_never_created_again() -> None:
    _, storage = await crowded()
    await storage.states((NEW,))  # for which OLD was evicted
    with pytest.raises(AssertionError, match=f"ledger {OLD} may have been seen"):
        storage.create(OLD, KEY)
    with pytest.raises(AssertionError, match=f"ledger {NEW + 1} may have been seen"):
        storage.create(NEW + 1, KEY)
    storage.create(NEW, KEY)
    assert (await read_all(storage, OLD, 0, 10))[0].keys() == set(range(10))


async def test_a_checkpoint_never_weakens_a_row() -> None:
    _, storage = await crowded()
    state = (await storage.states((FENCED,)))[FENCED]
    assert state is not None
    state.fenced = False
    storage.ledgers.touch(state)
    with pytest.raises(StorageFailedError, match=f"ledger {FENCED} would be less than"):
        await storage.checkpoint()


async def test_many_ledgers_in_one_replay_are_evicted_once_they_are_written() -> None:
    host = Host(settings=bookie_settings(ledger_states_max=3, memtable_bytes_max=1 << 20))
    storage = await host.boot()
    for i in range(60):
        await storage.states((i,))
        await add(storage, Batch(i, 0, payload=b"x" * 1000))
    host.disk.power_cut()
    host.settings = bookie_settings(ledger_states_max=3, memtable_bytes_max=10_000)
    storage = await host.boot()
    assert len(storage.ledgers) < 30
    for i in range(60):
        assert await read_all(storage, i, 0, 0) == ({0: b"x" * 1000}, set())


# --- many at once -----------------------------------------------------------------------------------------------------

LEDGERS = 12


class Life:
    """Writers, readers, fences and checkpoints at the same time, on one disk and over several starts.

    `found` says what a caller was told and mustn't have been.
    """

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        bounds = SMALLEST if seed % 3 == 0 else {"block_bytes": 4096}
        self.host = Host(
            settings=bookie_settings(
                journals=rng.choice((1, 2)),
                ledgers=rng.choice((1, 2, 3)),
                **{
                    **bounds,
                    "ledger_states_max": rng.choice((1, 2, 3, 6)),
                    "memtable_bytes_max": rng.choice((1, 30_000, 1 << 20)),
                },
            )
        )
        self.acknowledged: list[dict[int, bytes]] = [{} for _ in range(LEDGERS)]
        self.following = [0] * LEDGERS
        self.fenced: set[int] = set()
        self.lacs: dict[int, int] = {}
        self.writes = 0
        self.found: list[str] = []

    def batch(self, ledger_id: int) -> Batch:
        count, stride = self.rng.randrange(1, 6), self.rng.choice((1, 1, 3))
        self.writes += 1
        payload = b"%d." % self.writes + b"x" * self.rng.choice((0, 0, 2000))
        first = self.following[ledger_id]
        self.following[ledger_id] += count * stride
        return Batch(ledger_id, first, count, stride, payload)

    async def write(self, storage: LedgerStorage) -> None:
        authorised: set[int] = set()
        for _ in range(25):
            ids = self.rng.sample(range(LEDGERS), self.rng.randrange(1, 5))
            known = authorised.issuperset(ids)  # a connection that was let in once doesn't ask again
            states = {} if known else await storage.states(ids)
            authorised.update(ids)
            batches = [self.batch(i) for i in ids if i not in storage.fenced]
            if not batches:
                continue
            if not known:
                for batch in batches:
                    if states[batch.ledger_id] is None:
                        storage.create(batch.ledger_id, KEY)
            parts = [batch.body() for batch in batches]
            columns = AddColumns(
                0,
                [batch.ledger_id for batch in batches],
                [batch.first for batch in batches],
                [batch.count for batch in batches],
                [batch.stride for batch in batches],
                [len(part) for part in parts],
            )
            durable = asyncio.Event()
            storage.add(columns, pack(list(columns)), memoryview(b"".join(parts)), durable.set)
            await durable.wait()
            for batch in batches:
                self.acknowledged[batch.ledger_id].update(dict.fromkeys(batch.ids, batch.payload))
            if self.rng.random() < 0.3:
                await asyncio.sleep(0)

    async def read(self, storage: LedgerStorage) -> None:
        for _ in range(40):
            ledger_id = self.rng.randrange(LEDGERS)
            wanted = dict(self.acknowledged[ledger_id])
            lac, fenced = self.lacs.get(ledger_id, -2), ledger_id in self.fenced
            have, unknown = await read_all(
                storage, ledger_id, 0, self.following[ledger_id] + 3, self.rng.choice((500, 1 << 20))
            )
            if unknown or any(have.get(i) != payload for i, payload in wanted.items()):
                self.found.append(f"ledger {ledger_id} has {sorted(have)} of {sorted(wanted)}, unknown {unknown}")
            last = await storage.last_entry(ledger_id)
            highest = max((header.entry_id for header in walk(last.entry)), default=-1)
            if highest < max(wanted, default=-1) or last.lac < lac or last.fenced < fenced:
                self.found.append(f"ledger {ledger_id} ends at {highest}, {last.lac}, fenced: {last.fenced}")

    async def fence(self, storage: LedgerStorage) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
            ledger_id = self.rng.randrange(LEDGERS)
            if self.rng.random() < 0.3:
                await storage.fence(ledger_id, KEY)
                self.fenced.add(ledger_id)
            elif (await storage.states((ledger_id,)))[ledger_id] is not None:
                lac = self.lacs.get(ledger_id, -1) + 1
                await storage.set_explicit_lac(ledger_id, RecordCodec(ledger_id).explicit_lac(lac, 0))
                self.lacs[ledger_id] = max(lac, self.lacs.get(ledger_id, -1))

    async def checkpoint(self, storage: LedgerStorage) -> None:
        for _ in range(6):
            for _ in range(self.rng.randrange(30)):
                await asyncio.sleep(0)
            await storage.checkpoint()

    async def crowd(self, storage: LedgerStorage) -> None:
        for _ in range(30):
            await storage.states([self.rng.randrange(LEDGERS) for _ in range(3)])
            await asyncio.sleep(0)

    async def live(self) -> None:
        for _ in range(3):
            storage = await self.host.boot()
            tasks = (self.write, self.write, self.write, self.read, self.read, self.fence, self.checkpoint, self.crowd)
            await asyncio.gather(*(task(storage) for task in tasks))
            storage.check_invariants()
            end = self.rng.random()
            if end < 0.3:
                await storage.close()
            elif end < 0.7:
                self.host.disk.power_cut()
            else:
                self.host.disk.crash()


@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(6, 24))]
)
def test_nothing_is_denied_however_few_states_are_kept(seed: int) -> None:
    life = Life(seed)
    asyncio.run(life.live())
    assert not life.found
