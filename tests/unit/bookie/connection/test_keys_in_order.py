"""Keys and fences while others are under way: what is decided is decided by what came before it, with all bounds small.

Bookies hold states of ledgers in a cache, and a connection's keys up to a bound. Here a request is stopped between the
look at a ledger and what it decides by it, and something else happens meanwhile.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.in_process import DEADLINE_S, InProcess
from tests.unit.bookie.connection.raw import Raw, add, frame, make_ledger, record
from tests.waiting import eventually

from bkpy.protocol.wire.messages import Flags, Op, Status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from bkpy.storage.engine import LedgerStorage

RIGHT, WRONG = b"r" * 32, b"w" * 32
RECOVERY = int(Flags.RECOVERY)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[InProcess]:
    local = InProcess(tmp_path)
    await local.start("a", presented_ledgers_max=1, backlog_frames_max=1, reads_at_once=1, answers_at_once=1)
    for _ in range(2):
        await make_ledger(local, RIGHT)
    yield local
    await local.stop()


def present(key: bytes, *ledger_ids: int) -> bytes:
    return frame(Op.PRESENT, [list(ledger_ids), [key] * len(ledger_ids)])


def fence(ledger_id: int, correlation_id: int) -> bytes:
    return frame(Op.READ_LAC, [RECOVERY, ledger_id], correlation_id=correlation_id)


@asynccontextmanager
async def stopped(storage: LedgerStorage, monkeypatch: pytest.MonkeyPatch, turn: int) -> AsyncIterator[asyncio.Event]:
    """From the `turn`th look at states on, looks wait before they begin. The event: one is waiting."""
    states, go_on, waiting, count = storage.states, asyncio.Event(), asyncio.Event(), 0

    async def held(ledger_ids: Any) -> Any:
        nonlocal count
        count += 1
        if count >= turn:
            waiting.set()
            await go_on.wait()
        return await states(ledger_ids)

    with monkeypatch.context() as patched:
        patched.setattr(storage, "states", held)
        yield waiting
        go_on.set()


async def test_a_key_presented_later_does_not_change_what_came_before(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.settings["backlog_frames_max"] = 64  # or nothing would be read while the append is decided
    await cluster.restart("a")
    raw = await Raw.connect(cluster)
    storage = cluster.storage("a")
    async with stopped(storage, monkeypatch, 2) as deciding, asyncio.timeout(DEADLINE_S):
        raw.send(present(RIGHT, 1), add(1, correlation_id=10))
        await deciding.wait()
        raw.send(present(WRONG, 1), add(1, 1, correlation_id=11))
        await eventually(lambda: len(raw.near.adds.backlog) >= 1)
    assert (await raw.reply(10))[1] == Status.OK
    assert (await raw.reply(11))[1] == [Status.UNAUTHORIZED]
    state = (await storage.states((1,)))[1]
    assert state is not None
    assert state.key == RIGHT
    raw.close()


async def test_keys_are_not_forgotten_before_what_needs_them_was_decided(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few may be held: a client that is told to present again does so once."""
    raw = await Raw.connect(cluster)
    async with stopped(cluster.storage("a"), monkeypatch, 1):
        for ledger_id in range(1, 6):
            raw.send(present(RIGHT, ledger_id, 100 + ledger_id), add(ledger_id, correlation_id=10 + ledger_id))
        raw.send(present(RIGHT, 50), frame(Op.FORCE, [50], correlation_id=50), present(RIGHT, 51))
        await eventually(lambda: raw.near.adds.backlogged)
    assert [(await raw.reply(10 + ledger_id))[1] for ledger_id in range(1, 6)] == [Status.OK] * 5
    assert (await raw.reply(50))[1][0] == Status.OK
    assert len(raw.near.keys) <= 1
    raw.close()


async def test_a_ledger_is_fenced_by_its_own_key_only(cluster: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two clients that present different keys for a ledger never seen, the stranger neither writes nor fences."""
    writer, stranger = await Raw.connect(cluster), await Raw.connect(cluster)
    storage = cluster.storage("a")
    writer.send(present(RIGHT, 1))
    stranger.send(present(WRONG, 1))
    await eventually(lambda: len(writer.near.keys) == len(stranger.near.keys) == 1)
    await eventually(lambda: not writer.near.adds.backlogged and not stranger.near.adds.backlogged)
    reached = asyncio.Event()
    go_on = asyncio.Event()
    fencing = storage.fence

    async def later(ledger_id: int, key: bytes) -> bool:
        reached.set()
        await go_on.wait()
        return await fencing(ledger_id, key)

    monkeypatch.setattr(storage, "fence", later)
    stranger.send(fence(1, 20))
    async with asyncio.timeout(DEADLINE_S):
        await reached.wait()  # the stranger's key was found good, since the ledger had none
    writer.send(add(1, correlation_id=10))
    appended = (await writer.reply(10))[1]
    go_on.set()
    fenced = (await stranger.reply(20))[1]
    assert (appended, fenced[0]) == (Status.OK, Status.UNAVAILABLE)
    state = (await storage.states((1,)))[1]
    assert state is not None
    assert (state.key, state.fenced) == (RIGHT, False)
    for raw in (writer, stranger):
        raw.close()


@pytest.mark.parametrize("first", ["writer", "stranger"])
async def test_of_two_first_presenters_one_has_the_ledger(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    writer, stranger = await Raw.connect(cluster), await Raw.connect(cluster)
    storage = cluster.storage("a")
    async with stopped(storage, monkeypatch, 3) as waiting:
        writer.send(present(RIGHT, 1))
        stranger.send(present(WRONG, 1))
        for raw in (writer, stranger):  # both keys have arrived and were looked at: the first two looks
            await eventually(lambda raw=raw: len(raw.near.keys) == 1 and not raw.near.adds.backlogged)  # type: ignore[misc]
        for raw in (writer, stranger) if first == "writer" else (stranger, writer):
            raw.send(add(1, correlation_id=10))
            await eventually(lambda raw=raw: raw.near.adds.backlogged)  # type: ignore[misc]
        async with asyncio.timeout(DEADLINE_S):
            await waiting.wait()
    answers = {"writer": (await writer.reply(10))[1], "stranger": (await stranger.reply(10))[1]}
    if first == "writer":
        assert answers == {"writer": Status.OK, "stranger": [Status.UNAUTHORIZED]}
    else:
        assert answers == {"writer": [Status.UNKNOWN], "stranger": Status.OK}
    state = (await storage.states((1,)))[1]
    assert state is not None
    assert state.key == (RIGHT if first == "writer" else WRONG)
    for raw in (writer, stranger):
        raw.close()


async def test_an_append_under_way_while_its_ledger_is_fenced_is_refused(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where the states it looks at were read before."""
    writer, rival = await Raw.connect(cluster), await Raw.connect(cluster)
    storage = cluster.storage("a")
    writer.send(present(RIGHT, 1), add(1, correlation_id=10))
    assert (await writer.reply(10))[1] == Status.OK
    writer.send(present(RIGHT, 2))  # so that the next append isn't decided at once
    await eventually(lambda: not writer.near.adds.backlogged)
    states, read, go_on = storage.states, asyncio.Event(), asyncio.Event()
    held = 0

    async def stale(ledger_ids: Any) -> Any:
        nonlocal held
        found = await states(ledger_ids)
        held += 1
        if held == 2:  # the look of the append, behind its key's
            read.set()
            await go_on.wait()
        return found

    with monkeypatch.context() as patched:
        patched.setattr(storage, "states", stale)
        writer.send(present(RIGHT, 1), add(1, 1, correlation_id=11))
        async with asyncio.timeout(DEADLINE_S):
            await read.wait()
        rival.send(present(RIGHT, 1), fence(1, 20))
        assert (await rival.reply(20))[1][0] == Status.OK
        go_on.set()
        assert (await writer.reply(11))[1] == [Status.FENCED]
    for raw in (writer, rival):
        raw.close()


async def test_of_a_frame_only_what_is_not_refused_is_stored(cluster: InProcess) -> None:
    """A frame has entries of two ledgers, and the fenced one gets none."""
    writer, rival = await Raw.connect(cluster), await Raw.connect(cluster)
    rival.send(present(RIGHT, 0), fence(0, 20))
    await rival.reply(20)
    bodies = [record(0, 0), record(1, 0)]
    columns = [0, [0, 1], [0, 0], [1, 1], 1, [len(body) for body in bodies]]
    writer.send(present(RIGHT, 0, 1), frame(Op.ADD, columns, b"".join(bodies), 10))
    assert (await writer.reply(10))[1] == [Status.FENCED, Status.OK]
    held = [await cluster.storage("a").last_entry(ledger_id) for ledger_id in (0, 1)]
    assert [bool(one.entry) for one in held] == [False, True]
    for raw in (writer, rival):
        raw.close()
