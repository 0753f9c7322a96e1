"""Whose answers count while an ensemble changes: those of bookies that the metadata name, and each once."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import channels_of, cluster_of, failed_bookies, unanswered_adds
from tests.in_process import DEADLINE_S, InProcess, contents
from tests.waiting import eventually

import bkpy
from bkpy.client.client import replication_context
from bkpy.client.write.add_request import AddRequest
from bkpy.errors import MetadataUnavailableError
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENT = {"add_timeout_s": 2 * DEADLINE_S, "add_quorum_timeout_s": 2 * DEADLINE_S, "explicit_lac_interval_s": 0}


class Held:
    """A bookie's appends on their way into its storage, as long as this is entered; `release` lets some go on."""

    def __init__(self, cluster: InProcess, name: str) -> None:
        self._storage = cluster.storage(name)
        self._add = self._storage.add
        self.waiting: list[tuple[Any, ...]] = []
        self._storage.add = self._hold  # type: ignore[method-assign]

    def _hold(self, *args: Any) -> None:
        self.waiting.append(args)

    def release(self, count: int) -> None:
        some, self.waiting = self.waiting[:count], self.waiting[count:]
        for args in some:
            self._add(*args)

    def end(self) -> None:
        self._storage.add = self._add  # type: ignore[method-assign]
        self.release(len(self.waiting))


@contextlib.contextmanager
def held(cluster: InProcess, names: Any) -> Iterator[dict[str, Held]]:
    bookies = {name: Held(cluster, name) for name in names}
    try:
        yield bookies
    finally:
        for bookie in bookies.values():
            bookie.end()


@pytest.mark.scenario(25)
async def test_what_was_done_during_a_change_is_pending_again_when_its_bookies_are_replaced_too(
    five: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two bookies accept an entry while a third is being replaced, and one of those two is replaced next."""
    client = await five.client(**PATIENT)
    writer = await client.create_ledger(ack_quorum=2)
    await writer.append(b"0")
    await eventually(lambda: not any(unanswered_adds(channel) for channel in channels_of(client).values()))
    first, second, _ = writer.ensemble
    spares = set("abcde") - set(writer.ensemble)
    store = cluster_of(client).store
    put = store.put
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def hold(*args: Any) -> int:
        arrived.set()
        await go_on.wait()
        return await put(*args)

    monkeypatch.setattr(store, "put", hold)
    with held(five, "abcde") as bookies:
        futures = []
        for data in (b"1", b"2"):
            futures.append(writer.append_nowait(data))
            await asyncio.sleep(0)  # each leaves by itself
        await eventually(lambda: all(len(bookies[name].waiting) == 2 for name in writer.ensemble))
        five.kill(first)
        await arrived.wait()
        for name in writer.ensemble[1:]:
            bookies[name].release(1)
        await eventually(lambda: writer.pending.replication.acks.above()[0].done)
        five.kill(second)
        await eventually(lambda: second in failed_bookies(writer))
        go_on.set()
        await eventually(lambda: spares < set(writer.ensemble) and not writer.pending.replication.acks.frozen)
        await eventually(lambda: all(bookies[name].waiting for name in spares))
        assert not futures[0].done()  # it is on one bookie that lives
        assert writer.last_add_confirmed == 0
        for name in spares:
            bookies[name].end()
        async with asyncio.timeout(DEADLINE_S):
            assert await asyncio.gather(*futures) == [1, 2]
    monkeypatch.undo()
    await writer.close()
    assert await contents(client, writer.ledger_id) == [b"0", b"1", b"2"]


@pytest.mark.scenario(25)
async def test_a_late_answer_of_a_bookie_that_was_replaced_makes_up_no_quorum(
    four: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses entry 1, is replaced, and accepts entry 2, which it had been sent before."""
    client = await four.client(**PATIENT)
    writer = await client.create_ledger(ack_quorum=2)
    await writer.append(b"0")
    await eventually(lambda: not any(unanswered_adds(channel) for channel in channels_of(client).values()))
    replaced, _, late = writer.ensemble
    (spare,) = set("abcd") - set(writer.ensemble)
    replied = AddRequest.replied
    withheld: dict[tuple[str, int], Callable[[bytes], None]] = {}

    def withhold(self: AddRequest, index: int, head: memoryview) -> None:
        name, first = self.channels[index].bookie_id, self.flight.batches[0].first_id
        if name in (replaced, late):
            withheld[name, first] = lambda head: replied(self, index, memoryview(head))
        else:
            replied(self, index, head)

    monkeypatch.setattr(AddRequest, "replied", withhold)
    ok = m.pack(int(Status.OK))
    with held(four, spare) as bookies:
        futures = []
        for data in (b"1", b"2"):
            futures.append(writer.append_nowait(data))
            await asyncio.sleep(0)
        await eventually(lambda: len(withheld) == 4)
        withheld[replaced, 1](m.pack(int(Status.READ_ONLY)))
        await eventually(lambda: spare in writer.ensemble and bool(bookies[spare].waiting))
        withheld[late, 1](ok)
        async with asyncio.timeout(DEADLINE_S):
            assert await futures[0] == 1
        withheld[replaced, 2](ok)
        assert not futures[1].done()  # one of its three has it
        assert writer.last_add_confirmed == 1
    async with asyncio.timeout(DEADLINE_S):
        assert await futures[1] == 2
    await writer.close()


async def test_a_change_that_can_not_be_stored_ends_the_writer_though_nothing_is_pending(
    four: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await four.client(
        add_timeout_s=2 * DEADLINE_S,
        add_quorum_timeout_s=0.2,
        explicit_lac_interval_s=0.01,
        progress_check_interval_s=0.01,
    )
    writer = await client.create_ledger()
    await writer.append(b"0")
    lost = writer.ensemble[0]
    four.hang(lost)
    await writer.append(b"1")
    await eventually(lambda: not replication_context(client).parts.dispatcher.watched())
    store = cluster_of(client).store

    async def away(*args: Any) -> Any:
        raise MetadataUnavailableError("the store is away", outcome_unknown=True)

    for name in ("put", "get", "sync"):
        monkeypatch.setattr(store, name, away)
    four.kill(lost)
    await eventually(lambda: writer.pending.replication.acks.frozen)
    await eventually(lambda: writer.pending.replication.error is not None)
    assert isinstance(writer.pending.replication.error, bkpy.QuorumTimeoutError)
    monkeypatch.undo()
    writer.abandon()
