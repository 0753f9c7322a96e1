"""What is under way in the engine: publications that meet, callbacks that fail, records that make no sense."""

from __future__ import annotations

import asyncio
import functools

import pytest
from tests.hooks import journal_worker
from tests.unit.storage.support import KEY, Batch, Host, Stall, add
from tests.unit.storage.support import settings as bookie_settings
from tests.waiting import turns

from bkpy.errors import CorruptDataError, StorageFailedError
from bkpy.protocol.wire.messages import AddColumns, Status, pack
from bkpy.protocol.wire.records import RecordCodec


async def test_what_is_published_again_before_it_is_durable_waits_for_the_last_of_it() -> None:
    host = Host()
    storage = await host.boot()
    await add(storage, Batch(1, 0))
    stall = Stall(journal_worker(storage.journals[0]))
    stall.begin()
    first = asyncio.ensure_future(storage.set_explicit_lac(1, RecordCodec(1).explicit_lac(5, 0)))
    await turns()
    second = asyncio.ensure_future(storage.set_explicit_lac(1, RecordCodec(1).explicit_lac(6, 0)))
    lower = asyncio.ensure_future(storage.set_explicit_lac(1, RecordCodec(1).explicit_lac(4, 0)))
    await turns()
    assert not first.done()
    assert not lower.done(), "the higher one that it gives way to isn't durable"
    stall.end()
    await asyncio.gather(first, second, lower)
    host.disk.power_cut()
    storage = await host.boot()
    state = (await storage.states((1,)))[1]
    assert state is not None
    assert state.explicit_lac == RecordCodec(1).explicit_lac(6, 0)


async def test_a_key_of_a_ledger_that_is_not_here_or_has_it_is_replaced_by_doing_nothing() -> None:
    storage = await Host().boot()
    assert await storage.replace_key(1, KEY) is Status.OK
    assert (await storage.states((1,)))[1] is None
    await add(storage, Batch(1, 0))
    assert await storage.replace_key(1, KEY) is Status.OK
    state = (await storage.states((1,)))[1]
    assert state is not None
    assert state.key == KEY


@pytest.mark.parametrize("journaled", [True, False])
async def test_behind_an_error_of_a_callback_nothing_is_acknowledged(journaled: bool) -> None:
    host = Host(settings=bookie_settings(journal_write_data=journaled))
    storage = await host.boot()
    await add(storage, Batch(1, 0))
    called: list[int] = []

    def callback(number: int) -> None:
        if number == 1:
            raise ValueError("a defect")
        called.append(number)

    body = Batch(1, 1).body()
    columns = AddColumns(0, [1], [1], [1], 1, [len(body)])
    for number in range(3):
        storage.add(columns, pack(list(columns)), memoryview(body), functools.partial(callback, number))
    await turns()
    assert isinstance(error := storage.failed.exception(), StorageFailedError)
    assert "a defect" in str(error)
    assert called == [0]
    storage.release()


async def test_an_add_record_that_makes_no_sense_is_refused_at_the_next_start() -> None:
    host = Host()
    storage = await host.boot()
    await add(storage, Batch(1, 0))
    done = asyncio.get_running_loop().create_future()
    body = Batch(1, 1).body()
    columns = AddColumns(0, [1], [1], [1], 1, [len(body)])
    storage.add(columns, b"\xc1 no message", memoryview(body), lambda: done.set_result(None))
    await done
    host.disk.crash()
    with pytest.raises(CorruptDataError, match="an add record of the journal can't be read"):
        await host.boot()


async def test_entries_of_a_ledger_without_a_key_in_a_sound_journal_are_refused_at_the_next_start() -> None:
    host = Host()
    storage = await host.boot()
    await add(storage, Batch(1, 0))
    done = asyncio.get_running_loop().create_future()
    body = Batch(1, 1).body()
    columns = AddColumns(0, [1], [1], [1], 1, [len(body)])
    stored = pack(list(columns._replace(ledger_ids=[77])))
    storage.add(columns, stored, memoryview(body), lambda: done.set_result(None))
    await done
    host.disk.crash()
    with pytest.raises(CorruptDataError, match="a ledger whose key it doesn't have") as refused:
        await host.boot()
    assert refused.value.ledger_id == 77
