"""What a connection leaves behind when it is gone: nothing, and that at once.

A bookie's cycle collector runs seldom, for it stops everything. So nothing may wait for it.
"""

from __future__ import annotations

import asyncio
import gc
import os
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from tests.in_process import InProcess
from tests.unit.bookie.connection.raw import Raw, add, frame, hello, make_ledger
from tests.waiting import eventually

from bkpy.protocol.wire.messages import Flags, Op, Status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

pytestmark = pytest.mark.real("transports of the kernel's sockets are freed")

KEY = b"r" * 32


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[InProcess]:
    local = InProcess(tmp_path)
    await local.start("a", memory_bytes_max=16 << 20)
    yield local
    await local.stop()


@contextmanager
def no_cycle_collector() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def present(*ledger_ids: int) -> bytes:
    return frame(Op.PRESENT, [list(ledger_ids), [os.urandom(32) for _ in ledger_ids]])


async def freed(cluster: InProcess, raw: Raw) -> bool:
    """Hang up; whether the bookie's connection goes, and all that only it had."""
    near = raw.near
    parts = [weakref.ref(part) for part in (near, near.adds, near.requests, near.keys)]
    del near, raw.near
    raw.writer.close()
    await eventually(lambda: not cluster.connections("a"))
    await eventually(lambda: not any(part() for part in parts))
    return True


ENDINGS = {
    "said nothing": b"",
    "greeted": hello(),
    "keys": hello() + present(*range(1000)),
    "an append": hello() + frame(Op.PRESENT, [[0], [KEY]]) + add(0),
    "a fence": hello() + present(1) + frame(Op.READ_LAC, [int(Flags.RECOVERY), 1]),
    "a read": hello() + frame(Op.READ, [0, 5, 0, 9, 1000]),
    "a long poll": hello() + frame(Op.WAIT_LAC, [5, -1, False, 60_000]),
    "a bad request": hello() + frame(Op.ADD, [1, 2, 3]),
    "no frame": hello() + b"x" * 100,
    "half a frame": hello() + add(0, payload=b"x" * 100_000)[:50_000],
}


@pytest.mark.thorough
@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_closed_connection_is_freed_without_the_cycle_collector(cluster: InProcess, ending: str) -> None:
    await make_ledger(cluster, KEY)
    for client in cluster.clients:
        await client.close()
    await eventually(lambda: not cluster.connections("a"))
    with no_cycle_collector():
        raw = await Raw.connect(cluster, greet=False)
        raw.send(ENDINGS[ending])
        await raw.writer.drain()
        await asyncio.sleep(0)
        if ending == "no frame":
            await raw.rest()
        elif ending not in ("said nothing", "half a frame", "a long poll", "greeted"):
            raw.send(frame(Op.READ_LAC, [0, 7], correlation_id=99))
            await raw.reply(99)
        assert await freed(cluster, raw)


async def test_a_connection_that_goes_while_its_requests_wait_is_freed_when_they_end(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, waiting, go_on = cluster.storage("a"), asyncio.Event(), asyncio.Event()
    states = storage.states

    async def late(ledger_ids: object) -> object:
        waiting.set()
        await go_on.wait()
        return await states(ledger_ids)  # type: ignore[arg-type]

    with no_cycle_collector():
        raw = await Raw.connect(cluster)
        monkeypatch.setattr(storage, "states", late)
        raw.send(present(1), add(1), frame(Op.READ_LAC, [int(Flags.RECOVERY), 1], correlation_id=8))
        await waiting.wait()
        part = weakref.ref(raw.near)
        raw.writer.close()
        del raw
        await eventually(lambda: not cluster.connections("a"))
        go_on.set()
        await eventually(lambda: part() is None)


# --- keys and the budget ----------------------------------------------------------------------------------------------


@pytest.mark.thorough
async def test_keys_count_and_those_with_the_most_forget_first(cluster: InProcess) -> None:
    """However many connections present however much, it stays a share of the budget, and one PRESENT."""
    budget = cluster.storage("a").memory
    most = 0
    small = await Raw.connect(cluster)
    small.send(frame(Op.PRESENT, [[0], [KEY]]), add(0, correlation_id=5))
    assert (await small.reply(5))[1] == Status.OK
    raws = []
    for number in range(6):
        raw = await Raw.connect(cluster)
        raws.append(raw)
        raw.send(present(*range(number * 10_000, number * 10_000 + 3000)), frame(Op.READ_LAC, [0, 7], correlation_id=9))
        await raw.reply(9)
        await eventually(lambda raw=raw: not raw.near.adds.backlogged)  # type: ignore[misc]
        most = max(most, budget.by_name()["presented keys"])
    one = 2900 * 200
    assert one <= most <= (16 << 20) // 16 + one
    assert budget.by_name()["presented keys"] > 0
    small.send(add(0, 1, correlation_id=6))
    assert (await small.reply(6))[1] == Status.OK  # who has few keeps them
    for raw in raws:
        raw.close()
    await eventually(lambda: len(cluster.connections("a")) == 1)
    assert budget.by_name()["presented keys"] == 0
    budget.check_invariants()


@pytest.mark.thorough
async def test_a_client_whose_keys_were_forgotten_presents_them_again(tmp_path: Path) -> None:
    cluster = InProcess(tmp_path)
    await cluster.start("abc", memory_bytes_max=16 << 20)
    client = await cluster.client()
    writer = await client.create_ledger(password=b"p")
    await writer.append(b"0")
    for connection in (c for name in "abc" for c in cluster.connections(name)):
        connection.keys.forget()
    assert await writer.append(b"1") == 1
    await writer.close()
    await cluster.stop()
