"""Ledgers whose states are evicted: whoever decides or reads by a state meanwhile is never told less than there is."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import elsewhere
from tests.unit.storage.space.test_deletion import delete, put
from tests.unit.storage.support import KEY, SMALLEST, Batch, Host, add, read_all
from tests.unit.storage.support import settings as bookie_settings

from bkpy.errors import StorageFailedError
from bkpy.protocol.wire.messages import AddColumns, pack
from bkpy.protocol.wire.records import RecordCodec, walk
from bkpy.storage.space.deletion import hide

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
    with pytest.raises(AssertionError, match=f"ledger {OLD} may be in an index"):
        storage.create(OLD, KEY)
    with pytest.raises(AssertionError, match=f"ledger {NEW + 1} may be in an index"):
        storage.create(NEW + 1, KEY)
    storage.create(NEW, KEY)
    assert (await read_all(storage, OLD, 0, 10))[0].keys() == set(range(10))


async def test_a_checkpoint_never_weakens_a_row() -> None:
    _, storage = await crowded()
    state = (await storage.states((FENCED,)))[FENCED]
    assert state is not None
    state.fenced = False
    storage.ledgers.touch(state)
    with pytest.raises(StorageFailedError, match=f"the state of ledger {FENCED} forgets"):
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


# --- ledgers outside the directory of their id ------------------------------------------------------------------------


@pytest.mark.parametrize("states_max", [1, 2, 100])
async def test_a_copy_that_comes_back_is_where_it_is_read(states_max: int) -> None:
    host = Host(settings=bookie_settings(ledger_states_max=states_max))
    storage = await host.boot()
    await put(storage, Batch(1, 0, 3))
    await storage.close()
    host.settings = bookie_settings(ledgers=2, ledger_states_max=states_max)  # from now on it would be in the second
    storage = await host.boot()
    await put(storage, Batch(1, 3))
    await put(storage, Batch(1001, 0), Batch(1003, 0), Batch(1005, 0))
    await delete(storage, 1)
    host.disk.crash()  # before a checkpoint of the second directory: a start replays all of that
    storage = await host.boot()
    assert (await storage.states((1,)))[1] is None
    await put(storage, Batch(1, 0, 4))
    storage.check_invariants()
    for _ in range(2):
        assert (await read_all(storage, 1, 0, 3))[0].keys() == {0, 1, 2, 3}
        await storage.checkpoint()
    await storage.close()
    storage = await host.boot()
    assert (await read_all(storage, 1, 0, 3))[0].keys() == {0, 1, 2, 3}


@pytest.mark.thorough
async def test_the_place_of_a_ledger_takes_memory_only_as_long_as_its_state_or_a_writer_needs_it() -> None:
    host = Host(settings=bookie_settings())
    storage = await host.boot()
    odd = range(1, 601, 2)
    for i in odd:
        await put(storage, Batch(i, 0))
    await storage.close()
    host.settings = bookie_settings(ledgers=2, ledger_states_max=10)
    storage = await host.boot()
    storage.ledgers.writable = lambda ids: ids & {1, 3}
    for i in odd:
        await storage.states((i,))
        assert len(elsewhere(storage.ledgers)) <= 2 * (10 + 2) + 1
    assert storage.ledgers.get(1) is None
    assert storage.ledgers.get(3) is None
    assert elsewhere(storage.ledgers) >= {1, 3}
    await add(storage, Batch(1, 1), Batch(3, 1))
    for i in odd:
        assert (await read_all(storage, i, 0, 1))[0].keys() == ({0, 1} if i < 4 else {0})
    storage.check_invariants()


# --- many at once -----------------------------------------------------------------------------------------------------

LEDGERS = 12
DIRECTORIES_MAX = 4


class Life:
    """Writers, readers, fences, collections and checkpoints at the same time, on one disk and over several starts.

    Starts add ledger directories. Copies come back of ledgers that were collected. `found` holds wrong answers.
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
        self.lives = [0] * LEDGERS  # how often each was collected
        self.hidings = [0] * LEDGERS  # odd while it is hidden
        self.authorised: list[set[int]] = []  # of each writer
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
        self.authorised.append(authorised)
        for _ in range(25):
            ids = self.rng.sample(range(LEDGERS), self.rng.randrange(1, 5))
            known = authorised.issuperset(ids)  # a connection that was let in once doesn't ask again
            states = {} if known else await storage.states(ids)
            authorised.update(ids)
            # A copier stores also what is fenced.
            batches = [self.batch(i) for i in ids if i not in storage.fenced or self.rng.random() < 0.3]
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
            lives = [self.lives[batch.ledger_id] for batch in batches]
            storage.add(columns, pack(list(columns)), memoryview(b"".join(parts)), durable.set)
            await durable.wait()
            for batch, life in zip(batches, lives, strict=True):
                if life == self.lives[batch.ledger_id]:
                    self.acknowledged[batch.ledger_id].update(dict.fromkeys(batch.ids, batch.payload))
            if self.rng.random() < 0.3:
                await asyncio.sleep(0)

    async def read(self, storage: LedgerStorage) -> None:
        for _ in range(40):
            ledger_id = self.rng.randrange(LEDGERS)
            hidings = self.hidings[ledger_id]
            wanted = dict(self.acknowledged[ledger_id])
            lac, fenced = self.lacs.get(ledger_id, -2), ledger_id in self.fenced
            have, unknown = await read_all(
                storage, ledger_id, 0, self.following[ledger_id] + 3, self.rng.choice((500, 1 << 20))
            )
            if hidings % 2 or hidings != self.hidings[ledger_id]:
                continue
            if unknown or any(have.get(i) != payload for i, payload in wanted.items()):
                self.found.append(f"ledger {ledger_id} has {sorted(have)} of {sorted(wanted)}, unknown {unknown}")
            last = await storage.last_entry(ledger_id)
            if hidings != self.hidings[ledger_id]:
                continue
            highest = max((header.entry_id for header in walk(last.entry)), default=-1)
            if highest < max(wanted, default=-1) or last.lac < lac or (last.known and last.fenced < fenced):
                self.found.append(f"ledger {ledger_id} ends at {highest}, {last.lac}, fenced: {last.fenced}")

    async def fence(self, storage: LedgerStorage) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
            ledger_id = self.rng.randrange(LEDGERS)
            if self.rng.random() < 0.3:
                await storage.fence(ledger_id, KEY)
                self.fenced.add(ledger_id)
            elif (await storage.states((ledger_id,)))[ledger_id] is not None:
                life = self.lives[ledger_id]
                lac = self.lacs.get(ledger_id, -1) + 1
                await storage.set_explicit_lac(ledger_id, RecordCodec(ledger_id).explicit_lac(lac, 0))
                if life == self.lives[ledger_id]:
                    self.lacs[ledger_id] = max(lac, self.lacs.get(ledger_id, -1))

    def forget(self, ledger_id: int) -> None:
        """The ledger is being collected: the bookie has promised nothing of it any more, except its fence."""
        self.lives[ledger_id] += 1
        self.acknowledged[ledger_id] = {}
        self.lacs.pop(ledger_id, None)
        for authorised in self.authorised:
            authorised.discard(ledger_id)

    async def collect(self, storage: LedgerStorage) -> None:
        for _ in range(4):
            for _ in range(self.rng.randrange(60)):
                await asyncio.sleep(0)
            ledger_id = self.rng.randrange(LEDGERS)
            self.hidings[ledger_id] += 1
            hidden = await hide(storage, ledger_id)
            if hidden is not None and await hidden.delete():
                self.fenced.add(ledger_id)
            self.hidings[ledger_id] += 1

    async def checkpoint(self, storage: LedgerStorage) -> None:
        for _ in range(6):
            for _ in range(self.rng.randrange(30)):
                await asyncio.sleep(0)
            await storage.checkpoint()

    async def crowd(self, storage: LedgerStorage) -> None:
        for _ in range(30):
            await storage.states([self.rng.randrange(LEDGERS) for _ in range(3)])
            await asyncio.sleep(0)

    def grow(self) -> None:
        """Let the next start find a further ledger directory, in some lives."""
        directories = self.host.settings.ledger_directories
        if len(directories) < DIRECTORIES_MAX and self.rng.random() < 0.5:
            more = [*directories, f"/b/ledgers{len(directories)}"]
            self.host.settings = self.host.settings.model_copy(update={"ledger_directories": more})

    async def live(self) -> None:
        for _ in range(3):
            storage = await self.host.boot()
            self.authorised.clear()
            storage.ledgers.writable = lambda ids: ids & set[int]().union(*self.authorised)
            storage.ledgers.on_key_void.append(self.forget)
            tasks = (self.write, self.write, self.write, self.read, self.read, self.fence, self.checkpoint, self.crowd)
            await asyncio.gather(*(task(storage) for task in (*tasks, self.collect)))
            storage.check_invariants()
            self.grow()
            end = self.rng.random()
            if end < 0.3:
                await storage.close()
            elif end < 0.7:
                self.host.disk.power_cut()
            else:
                self.host.disk.crash()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (0, *range(2, 24)))]
)
def test_nothing_is_denied_however_few_states_are_kept(seed: int) -> None:
    life = Life(seed)
    asyncio.run(life.live())
    assert not life.found
