"""What a bookie holds in memory for its connections, when they hang or its disks do."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.hooks import pauses_of
from tests.in_process import DEADLINE_S, InProcess
from tests.unit.bookie.connection.raw import Raw, add, frame
from tests.waiting import eventually

from bkpy.protocol.wire.messages import Op, Status

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

KEY = b"k" * 32
FRAME_BYTES = 200_000


def present(*ledger_ids: int) -> bytes:
    return frame(Op.PRESENT, [list(ledger_ids), [KEY] * len(ledger_ids)])


async def test_hung_clients_with_half_frames_hold_little_and_nobody_waits_for_them_for_ever(tmp_path: Path) -> None:
    cluster = InProcess(tmp_path)
    bytes_max = 3 * FRAME_BYTES
    await cluster.start(
        "a",
        receive_bytes_max=bytes_max,
        receive_chunk_bytes_max=FRAME_BYTES,
        tick_s=0.02,
        memory_pressure_stall_timeout_s=0.2,
    )
    service = cluster.service("a")
    hung = [await Raw.connect(cluster) for _ in range(20)]
    large = add(1, payload=bytes(FRAME_BYTES))
    for raw in hung:
        raw.send(large[: FRAME_BYTES // 2])
    await eventually(lambda: service.receive_budget.wanted)
    assert service.receive_budget.used <= bytes_max + FRAME_BYTES + 1000
    living = await Raw.connect(cluster)
    living.send(present(1), add(1, correlation_id=10))
    assert (await living.reply(10))[1] == Status.OK  # what is small goes on meanwhile
    living.send(add(1, 1, payload=bytes(FRAME_BYTES), correlation_id=11))
    assert (await living.reply(11))[1] == Status.OK
    # Who hung where nobody was kept waiting is still there, and has what frame_stall_timeout_s gives.
    await eventually(lambda: not service.receive_budget.wanted and len(cluster.connections("a")) <= 3)
    assert living.near in cluster.connections("a")
    for raw in (living, *hung):
        raw.close()
    await cluster.stop()


async def test_who_sends_a_byte_now_and_then_keeps_nobody_waiting_for_long(tmp_path: Path) -> None:
    cluster = InProcess(tmp_path)
    settings = {"receive_bytes_max": FRAME_BYTES, "receive_chunk_bytes_max": FRAME_BYTES}
    await cluster.start(
        "a", tick_s=0.02, memory_pressure_stall_timeout_s=0.3, memory_pressure_bytes_per_s_min=100_000, **settings
    )
    service = cluster.service("a")
    large = add(1, payload=bytes(FRAME_BYTES))
    slow, steady = await Raw.connect(cluster), await Raw.connect(cluster)
    steady.send(present(1))
    slow.send(large[: FRAME_BYTES // 2])
    await eventually(lambda: service.receive_budget.used > 0)
    for i in range(40):  # as slow as it likes while nobody waits
        slow.send(large[FRAME_BYTES // 2 + i : FRAME_BYTES // 2 + i + 1])
        await asyncio.sleep(0.02)
    assert slow.near in cluster.connections("a")
    steady.send(add(1, payload=bytes(FRAME_BYTES), correlation_id=10))
    answer = asyncio.ensure_future(steady.reply(10))
    async with asyncio.timeout(DEADLINE_S):
        while not answer.done():
            if not slow.near.lost:
                slow.send(b"x")
            await asyncio.sleep(0.02)
    assert (await answer)[1] == Status.OK
    assert slow.near.lost
    for raw in (slow, steady):
        raw.close()
    await cluster.stop()


async def test_who_sends_at_a_fair_rate_is_not_closed_although_others_wait(tmp_path: Path) -> None:
    cluster = InProcess(tmp_path)
    settings = {"receive_bytes_max": FRAME_BYTES, "receive_chunk_bytes_max": FRAME_BYTES}
    await cluster.start(
        "a", tick_s=0.02, memory_pressure_stall_timeout_s=0.3, memory_pressure_bytes_per_s_min=50_000, **settings
    )
    service = cluster.service("a")
    large = add(1, payload=bytes(FRAME_BYTES), correlation_id=10)
    fair, other = await Raw.connect(cluster), await Raw.connect(cluster)
    for raw in (fair, other):
        raw.send(present(1))
    sent = FRAME_BYTES // 2
    fair.send(large[:sent])
    await eventually(lambda: service.receive_budget.used > 0)
    other.send(add(1, 1, payload=bytes(FRAME_BYTES), correlation_id=10))
    await eventually(lambda: service.receive_budget.wanted)
    while sent < len(large):
        fair.send(large[sent : sent + 5_000])  # a fifth of a second takes 20,000 at least
        sent += 5_000
        await asyncio.sleep(0.02)
    for raw in (fair, other):
        assert (await raw.reply(10))[1] == Status.OK
        raw.close()
    await cluster.stop()


async def test_a_busy_connection_that_falls_silent_holds_next_to_nothing(tmp_path: Path) -> None:
    cluster = InProcess(tmp_path)
    await cluster.start("a", tick_s=0.02)
    service = cluster.service("a")
    raw = await Raw.connect(cluster)
    raw.send(present(1))
    for i in range(20):
        raw.send(add(1, i, payload=bytes(FRAME_BYTES), correlation_id=10 + i))
        assert (await raw.reply(10 + i))[1] == Status.OK
    await eventually(lambda: service.receive_budget.used == 0)
    raw.send(add(1, 20, correlation_id=50))
    assert (await raw.reply(50))[1] == Status.OK
    raw.close()
    await cluster.stop()


async def test_appends_that_wait_for_states_are_of_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = InProcess(tmp_path)
    bytes_max = 2 * FRAME_BYTES
    await cluster.start("a", receive_bytes_max=bytes_max, receive_chunk_bytes_max=FRAME_BYTES)
    service, storage = cluster.service("a"), cluster.storage("a")
    go_on, states = asyncio.Event(), storage.states

    async def held(ids: object) -> object:
        await go_on.wait()
        return await states(ids)  # type: ignore[arg-type]

    monkeypatch.setattr(storage, "states", held)
    raws = [await Raw.connect(cluster) for _ in range(4)]
    for ledger_id, raw in enumerate(raws):
        raw.send(present(ledger_id))
        raw.send(*(add(ledger_id, i, payload=bytes(10_000), correlation_id=10 + i) for i in range(60)))
    await eventually(lambda: service.receive_budget.exhausted and all(pauses_of(raw.near) for raw in raws))
    waiting = sum(size for raw in raws for size, _, _ in raw.near.adds.backlog)
    assert waiting <= 2 * bytes_max + len(raws) * 20_000  # each of them may fill what it has
    go_on.set()
    for raw in raws:
        assert [(await raw.reply(10 + i))[1] for i in range(60)] == [Status.OK] * 60
    await eventually(lambda: not any(raw.near.adds.backlogged for raw in raws))
    for raw in raws:
        raw.close()
    await eventually(lambda: service.receive_budget.used == 0)
    await cluster.stop()


async def test_while_memory_is_full_who_writes_is_not_read_from_and_who_reads_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = InProcess(tmp_path)
    await cluster.start("a")
    storage = cluster.storage("a")
    writer, reader = await Raw.connect(cluster), await Raw.connect(cluster)
    writer.send(present(1), add(1, correlation_id=10))
    assert (await writer.reply(10))[1] == Status.OK
    other = await Raw.connect(cluster)
    other.send(present(1), add(1, correlation_id=10))
    assert (await other.reply(10))[1] == Status.OK
    full = True
    monkeypatch.setattr(type(storage.journals[0]), "full", property(lambda journal: full))
    writer.send(add(1, 1, correlation_id=11))
    assert (await writer.reply(11))[1] == Status.OK  # it had come before anybody knew
    assert "memory" in pauses_of(writer.near)
    assert "memory" in pauses_of(other.near)  # it writes, too, and hasn't tried
    new_connections = [await Raw.connect(cluster) for _ in range(3)]
    for raw in new_connections:
        raw.send(present(1), add(1, 2, payload=bytes(FRAME_BYTES), correlation_id=12))
    new_reader = await Raw.connect(cluster)
    for raw in (reader, new_reader):
        raw.send(frame(Op.READ, [0, 1, 0, 0, 100], correlation_id=12))
        assert (await raw.reply(12))[1][0] == Status.OK  # who only reads does so
    for raw in new_connections:  # with their keys they have told that they write
        await eventually(lambda raw=raw: "memory" in pauses_of(raw.near))
        assert raw.near.received_bytes < 20_000
    full = False
    storage.look_for_space()
    async with asyncio.timeout(DEADLINE_S):
        for raw in new_connections:
            assert (await raw.reply(12))[1] == Status.OK
    for raw in (writer, reader, other, new_reader, *new_connections):
        raw.close()
    await cluster.stop()
