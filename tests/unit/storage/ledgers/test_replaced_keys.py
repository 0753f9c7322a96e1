"""Keys that were found to be wrong: what was stored under them goes, at every place where the power may fail."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.hooks import journal_worker
from tests.sim.disk import SimulatedCrash
from tests.unit.storage.support import KEY, Batch, Host, add, read_all
from tests.unit.storage.support import settings as bookie_settings

from bkpy.errors import StorageFailedError
from bkpy.protocol.wire.messages import Status
from bkpy.protocol.wire.records import RecordCodec
from bkpy.storage.journal.format import RecordKind
from bkpy.storage.space.deletion import hide

if TYPE_CHECKING:
    from collections.abc import Callable

WRONG = b"w" * 32
LEDGER, FENCED = 1, 2
PLACES = ("before", "between", "after", "not at all")


@pytest.mark.parametrize("checkpoint", PLACES)
@pytest.mark.parametrize("shards", [1, 3])
async def test_a_power_cut_brings_back_no_wrong_key_and_none_of_its_fences(checkpoint: str, shards: int) -> None:
    host = Host(settings=bookie_settings(ledgers=shards, checkpoint_commit_ledgers=1))
    storage = await host.boot()
    await storage.states((LEDGER, FENCED))
    storage.create(LEDGER, WRONG)
    await storage.set_explicit_lac(LEDGER, RecordCodec(LEDGER).explicit_lac(41, 4000))
    for ledger_id in (LEDGER, FENCED):
        assert await storage.fence(ledger_id, WRONG)
    if checkpoint == "before":
        await storage.checkpoint()
    for ledger_id in (LEDGER, FENCED):
        assert await storage.replace_key(ledger_id, KEY) is Status.OK
    if checkpoint == "between":
        await storage.checkpoint()
    assert await storage.fence(FENCED, KEY)
    await add(storage, Batch(LEDGER, 0, 2))
    if checkpoint == "after":
        await storage.checkpoint()
    for _ in range(2):
        host.disk.power_cut()
        storage = await host.boot()
        states = await storage.states((LEDGER, FENCED))
        found = {i: (state.key, state.fenced, state.explicit_lac) for i, state in states.items() if state is not None}
        assert found == {LEDGER: (KEY, False, b""), FENCED: (KEY, True, b"")}
        assert (LEDGER in storage.fenced, FENCED in storage.fenced) == (False, True)
        assert (await read_all(storage, LEDGER, 0, 1))[0].keys() == {0, 1}
        storage.check_invariants()


def test_a_crash_at_every_operation_of_the_checkpoint_that_writes_entries_under_the_right_key() -> None:
    """Some ledgers' rows are ahead of the marks then: the wrong key's records are replayed over them."""

    async def crash(nth: int) -> bool:
        host = Host(settings=bookie_settings(checkpoint_commit_ledgers=1))
        storage = await host.boot()
        await storage.states((LEDGER, FENCED))
        storage.create(LEDGER, WRONG)
        await storage.set_explicit_lac(LEDGER, RecordCodec(LEDGER).explicit_lac(41, 4000))
        for ledger_id in (LEDGER, FENCED):
            assert await storage.fence(ledger_id, WRONG)
            assert await storage.replace_key(ledger_id, KEY) is Status.OK
        await add(storage, Batch(LEDGER, 0, 2), Batch(FENCED, 0))
        await storage.set_explicit_lac(FENCED, RecordCodec(FENCED).explicit_lac(0, 4))
        assert await storage.fence(FENCED, KEY)
        host.disk.crash_at(nth)
        try:
            await storage.checkpoint()
        except (SimulatedCrash, StorageFailedError):
            pass
        else:
            return False
        host.disk.power_cut()
        storage = await host.boot()
        states = await storage.states((LEDGER, FENCED))
        found = {i: (state.key, state.fenced, len(state.explicit_lac)) for i, state in states.items() if state}
        assert found == {LEDGER: (KEY, False, 0), FENCED: (KEY, True, 32)}
        assert (LEDGER in storage.fenced, FENCED in storage.fenced) == (False, True)
        assert (await read_all(storage, LEDGER, 0, 1))[0].keys() == {0, 1}
        storage.check_invariants()
        return True

    nth = 0
    while asyncio.run(crash(nth)):
        nth += 1
    assert nth > 5


async def test_a_checkpoint_amid_a_replay_keeps_the_fence_of_a_row_that_is_ahead() -> None:
    """Between the records of the right key and of its fence: the ledger's row has both already."""
    host = Host(settings=bookie_settings(checkpoint_commit_ledgers=1, memtable_bytes_max=40_000, memtable_fill_min=1.0))
    storage = await host.boot()
    await storage.states((LEDGER, 2))
    assert await storage.fence(LEDGER, WRONG)
    assert await storage.replace_key(LEDGER, KEY) is Status.OK
    async with storage.shards[0].checkpointing:
        for i in range(30):  # more than a memtable holds
            await add(storage, Batch(2, i * 10, 10, payload=b"x" * 300))
        assert await storage.fence(LEDGER, KEY)
        host.disk.crash_at(8)  # behind the first ledger's transaction
    with pytest.raises((SimulatedCrash, StorageFailedError)):
        await storage.checkpoint()
    host.disk.power_cut()
    storage = await host.boot()
    state = (await storage.states((LEDGER,)))[LEDGER]
    assert state is not None
    assert (state.key, state.fenced, state.fence_of_limbo) == (KEY, True, False)
    storage.check_invariants()


async def test_a_key_with_entries_stays() -> None:
    for checkpointed in (False, True):
        storage = await Host().boot()
        await storage.states((LEDGER,))
        await add(storage, Batch(LEDGER, 0))
        if checkpointed:
            await storage.checkpoint()
        assert await storage.replace_key(LEDGER, WRONG) is Status.UNKNOWN
        state = (await storage.states((LEDGER,)))[LEDGER]
        assert state is not None
        assert (state.key, state.gone) == (KEY, False)


async def test_a_fence_that_is_still_being_written_concerns_the_old_key_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = Host()
    storage = await host.boot()
    await storage.states((LEDGER,))
    (journal,) = storage.journals
    record, held = journal.record, []

    def slow(kind: RecordKind, ledger_id: int, body: bytes, on_durable: Callable[[], None] | None = None) -> None:
        if kind is RecordKind.FENCE and body == WRONG:
            held.append(lambda: record(kind, ledger_id, body, on_durable))
        else:
            record(kind, ledger_id, body, on_durable)

    monkeypatch.setattr(journal, "record", slow)
    wrong = asyncio.ensure_future(storage.fence(LEDGER, WRONG))
    while not held:
        await asyncio.sleep(0)

    async def prove_and_fence() -> bool:
        assert await storage.replace_key(LEDGER, KEY) is Status.OK
        return await storage.fence(LEDGER, KEY)

    proved = asyncio.ensure_future(prove_and_fence())
    for _ in range(100):  # as far as it gets while the first fence isn't durable
        await asyncio.sleep(0)
    held[0]()
    assert await wrong
    assert await proved
    host.disk.power_cut()
    storage = await host.boot()
    state = (await storage.states((LEDGER,)))[LEDGER]
    assert state is not None
    assert (state.key, state.fenced) == (KEY, True)


async def test_an_explicit_lac_that_is_still_being_written_stays_with_the_old_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its record has no key: replayed over entries under the right one, it would be taken for one of theirs."""
    host = Host()
    storage = await host.boot()
    await storage.states((LEDGER,))
    storage.create(LEDGER, WRONG)
    await storage.force(LEDGER)
    worker = journal_worker(storage.journals[0])
    submit, held = worker.submit, []
    monkeypatch.setattr(worker, "submit", lambda *args: held.append(args))
    wrong = asyncio.ensure_future(storage.set_explicit_lac(LEDGER, RecordCodec(LEDGER).explicit_lac(41, 4000)))
    while not held:
        await asyncio.sleep(0)

    async def prove_and_add() -> None:
        assert await storage.replace_key(LEDGER, KEY) is Status.OK
        await add(storage, Batch(LEDGER, 0))

    proved = asyncio.ensure_future(prove_and_add())
    for _ in range(100):  # as far as it gets while the record isn't durable
        await asyncio.sleep(0)
    await storage.checkpoint()
    monkeypatch.setattr(worker, "submit", submit)
    submit(*held[0])
    await wrong
    await proved
    for _ in range(2):
        host.disk.power_cut()
        storage = await host.boot()
        state = (await storage.states((LEDGER,)))[LEDGER]
        assert state is not None
        assert (state.key, state.explicit_lac) == (KEY, b"")
        assert (await read_all(storage, LEDGER, 0, 0))[0].keys() == {0}


async def test_a_hidden_ledger_is_left_to_its_collector() -> None:
    storage = await Host().boot()
    await storage.states((LEDGER,))
    await storage.fence(LEDGER, WRONG)
    hidden = await hide(storage, LEDGER)
    assert hidden is not None
    assert await storage.replace_key(LEDGER, KEY) is Status.UNAVAILABLE
    hidden.unhide()
    assert await storage.replace_key(LEDGER, KEY) is Status.OK


async def test_states_whose_keys_are_replaced_are_evicted_only_once_they_are_written() -> None:
    host = Host(settings=bookie_settings(ledger_states_max=1))
    storage = await host.boot()
    for ledger_id in range(6):
        await storage.fence(ledger_id, WRONG)
    for ledger_id in range(6):
        assert await storage.replace_key(ledger_id, KEY) is Status.OK
        storage.check_invariants()
        if ledger_id == 2:
            await storage.checkpoint()
    await storage.checkpoint()
    await storage.states((99,))
    assert len(storage.ledgers) <= 2
    for ledger_id in range(6):
        state = (await storage.states((ledger_id,)))[ledger_id]
        assert state is not None
        assert (state.key, state.fenced) == (KEY, False)
