"""Requests that wait hold nothing of what their connection receives into."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import uvloop
from tests.hooks import journal_worker, pauses_of
from tests.in_process import InProcess
from tests.unit.bookie.connection.raw import Raw, add, frame
from tests.unit.storage.support import Stall
from tests.waiting import eventually

from bkpy.bookie.connection.chunks import BookieChunks
from bkpy.protocol.wire.messages import Flags, Op, Status
from bkpy.protocol.wire.receive_buffer import is_unused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

KEY = b"k" * 32
LEDGER = 5
REQUESTS: dict[str, Callable[[int], bytes]] = {
    "long poll": lambda i: frame(Op.WAIT_LAC, [LEDGER, 10, True, 60_000], correlation_id=i),
    "read": lambda i: frame(Op.READ, [0, LEDGER, 0, 0, 100], correlation_id=i),
    "fence": lambda i: frame(Op.READ_LAC, [int(Flags.RECOVERY), LEDGER], correlation_id=i),
    "force": lambda i: frame(Op.FORCE, [LEDGER], correlation_id=i),
    "key": lambda i: frame(Op.PRESENT, [[LEDGER], [KEY]], correlation_id=i),
}
# What comes in between and is done with at once.
FILLER = frame(Op.FORCE, [], b"x" * 3000, correlation_id=1)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[InProcess]:
    local = InProcess(tmp_path)
    await local.start("a", receive_chunk_bytes_min=4096, receive_chunk_bytes_max=4096, receive_room_bytes_min=1000)
    yield local
    await local.stop()


@pytest.mark.parametrize("name", REQUESTS)
async def test_requests_that_wait_hold_none_of_their_connections_memory(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    chunks: list[bytearray] = []
    take = BookieChunks.take

    def remember(self: BookieChunks, size: int) -> bytearray:
        chunks.append(take(self, size))
        return chunks[-1]

    monkeypatch.setattr(BookieChunks, "take", remember)
    storage = cluster.storage("a")
    held = asyncio.Event()

    def holding(function: Any) -> Any:
        async def wait_first(*args: Any) -> Any:
            await held.wait()
            return await function(*args)

        return wait_first

    for method in ("states", "read"):
        monkeypatch.setattr(storage, method, holding(getattr(storage, method)))
    raw = await Raw.connect(cluster)
    service = cluster.service("a")
    for i in range(20):
        raw.send(REQUESTS[name](100 + i), FILLER)
        assert (await raw.reply(1))[1][0] == Status.BAD_REQUEST
    raw.send(frame(Op.WAIT_LAC, [6, -1, False, 60_000], correlation_id=99))
    await eventually(lambda: len(service.waiters.by_ledger) >= 1)
    kept = [chunk for chunk in {id(chunk): chunk for chunk in chunks}.values() if not is_unused(chunk)]
    assert len(kept) <= 2, f"{len(kept)} chunks are kept by 20 requests"  # what is received into, on either side
    held.set()
    raw.close()


async def test_entries_stay_where_they_were_received(cluster: InProcess) -> None:
    """They are not copied once more on their way to the disk."""
    raw = await Raw.connect(cluster)
    raw.send(frame(Op.PRESENT, [[LEDGER], [KEY]]), add(LEDGER, 0, correlation_id=10), add(LEDGER, 1, correlation_id=11))
    assert [(await raw.reply(i))[1] for i in (10, 11)] == [Status.OK, Status.OK]
    frames = [body for _, body, _ in cluster.storage("a").shards[0].active.frames]
    assert len(frames) == 2
    assert all(isinstance(body, memoryview) for body in frames)
    assert frames[0].obj is frames[1].obj  # type: ignore[union-attr]
    raw.close()


async def test_what_one_bookie_waits_for_is_bounded_over_all_connections(cluster: InProcess) -> None:
    cluster.settings["requests_in_flight_total_max"] = 10
    await cluster.restart("a")
    first, second = await Raw.connect(cluster), await Raw.connect(cluster)
    first.send(*(frame(Op.WAIT_LAC, [6, -1, False, 60_000], correlation_id=i) for i in range(10, 14)))
    await eventually(lambda: cluster.service("a").requests_in_flight == 4)
    second.send(*(frame(Op.WAIT_LAC, [6, -1, False, 60_000], correlation_id=i) for i in (20, 21)))
    _, head = await second.reply(21)
    assert head == [
        Status.TOO_MANY_REQUESTS,
        "1 requests of this connection and 5 of all are in flight, which is the limit of long polls",
    ]
    second.send(frame(Op.READ, [0, 6, 0, 0, 100], correlation_id=22))
    assert (await second.reply(22))[1][0] == Status.OK
    first.close()
    await eventually(lambda: cluster.service("a").requests_in_flight == 1)
    second.send(frame(Op.WAIT_LAC, [6, -1, False, 60_000], correlation_id=23))
    await eventually(lambda: cluster.service("a").requests_in_flight == 2)
    second.close()
    await eventually(lambda: cluster.service("a").requests_in_flight == 0)


async def test_readers_that_wait_keep_no_ledger_from_being_recovered(cluster: InProcess) -> None:
    """However many they are: a bookie that others wait at for hours would refuse all fences as long."""
    cluster.settings["requests_in_flight_total_max"] = 10
    await cluster.restart("a")
    waiting, recovering = await Raw.connect(cluster), await Raw.connect(cluster)
    waiting.send(*(frame(Op.WAIT_LAC, [6, -1, False, 60_000], correlation_id=i) for i in range(10, 30)))
    await waiting.reply(29)
    recovering.send(
        frame(Op.PRESENT, [[LEDGER], [KEY]]), frame(Op.READ_LAC, [int(Flags.RECOVERY), LEDGER], correlation_id=10)
    )
    assert (await recovering.reply(10))[1][0] == Status.OK
    waiting.close()
    recovering.close()


class Held:
    """Holds up calls of a storage's method until `go_on`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cluster: InProcess, method: str) -> None:
        storage = cluster.storage("a")
        function = getattr(storage, method)
        self.calls = 0
        self._going_on = asyncio.Event()

        async def wait_first(*args: Any) -> Any:
            self.calls += 1
            await self._going_on.wait()
            return await function(*args)

        monkeypatch.setattr(storage, method, wait_first)

    def go_on(self) -> None:
        self._going_on.set()


@pytest.mark.parametrize("ends", ["closed", "answered"])
async def test_what_waits_for_the_states_of_ledgers_is_charged_until_it_ends(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    budget = cluster.service("a").receive_budget
    held = Held(monkeypatch, cluster, "states")
    raw = await Raw.connect(cluster)
    raw.send(frame(Op.PRESENT, [[LEDGER], [KEY]]))
    raw.send(*(add(LEDGER, i, payload=bytes(3000), correlation_id=10 + i) for i in range(20)))
    await eventually(lambda: budget.used >= 20 * 3000)
    if ends == "closed":
        raw.close()
        await eventually(lambda: not cluster.connections("a"))
        held.go_on()
    else:
        held.go_on()
        assert [(await raw.reply(10 + i))[1] for i in range(20)] == [Status.OK] * 20
    await eventually(lambda: budget.used == 0)
    raw.close()


async def test_a_bad_append_that_waited_is_not_charged_any_longer(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = cluster.service("a").receive_budget
    held = Held(monkeypatch, cluster, "states")
    raw = await Raw.connect(cluster)
    raw.send(frame(Op.PRESENT, [[LEDGER], [KEY]]))
    raw.send(*(frame(Op.ADD, [0, [LEDGER]], bytes(3000), correlation_id=10 + i) for i in range(5)))
    await eventually(lambda: budget.used >= 5 * 3000)
    held.go_on()
    assert [(await raw.reply(10 + i))[1] for i in range(5)] == [Status.BAD_REQUEST] * 5
    await eventually(lambda: budget.used == 0)
    raw.close()


async def test_a_connection_whose_appends_wait_is_read_no_further_than_its_bound(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.settings["backlog_frames_max"] = 4
    await cluster.restart("a")
    held = Held(monkeypatch, cluster, "states")
    raw = await Raw.connect(cluster)
    raw.send(frame(Op.PRESENT, [[LEDGER], [KEY]]))
    raw.send(*(add(LEDGER, i, payload=bytes(1000), correlation_id=10 + i) for i in range(50)))
    await eventually(lambda: "backlog" in pauses_of(raw.near))
    assert len(raw.near.adds.backlog) <= 4 + 4  # what one chunk of 4 KiB holds comes at once
    held.go_on()
    assert [(await raw.reply(10 + i))[1] for i in range(50)] == [Status.OK] * 50
    assert not pauses_of(raw.near)
    raw.close()


async def test_what_one_connection_waits_for_is_bounded_beside_its_long_polls(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.settings["requests_in_flight_max"] = 3
    await cluster.restart("a")
    raw = await Raw.connect(cluster)
    raw.send(*(frame(Op.WAIT_LAC, [6, -1, False, 60_000], correlation_id=i) for i in (10, 11)))
    await eventually(lambda: cluster.service("a").requests_in_flight == 2)
    held = Held(monkeypatch, cluster, "read")
    raw.send(*(frame(Op.READ, [0, 6, 0, 0, 100], correlation_id=i) for i in range(20, 24)))
    assert (await raw.reply(23))[1] == [
        Status.TOO_MANY_REQUESTS,
        "3 requests of this connection and 5 of all are in flight, which is the limit",
    ]
    held.go_on()
    assert [(await raw.reply(i))[1][0] for i in (20, 21, 22)] == [Status.OK] * 3
    raw.close()


async def test_a_fence_of_a_ledger_never_seen_is_answered_when_it_is_durable(cluster: InProcess) -> None:
    storage = cluster.storage("a")
    stall = Stall(journal_worker(storage.journals[0]))
    stall.begin()
    raw = await Raw.connect(cluster)
    raw.send(frame(Op.PRESENT, [[LEDGER], [KEY]]), frame(Op.READ_LAC, [int(Flags.RECOVERY), LEDGER], correlation_id=10))
    await eventually(lambda: LEDGER in storage.fenced)
    for i in range(20, 40):  # round trips, each longer than an answer takes
        raw.send(frame(Op.READ, [0, 6, 0, 0, 100], correlation_id=i))
        assert (await raw.reply(i))[1][0] == Status.OK
    assert not raw.has_reply(10)
    stall.end()
    assert (await raw.reply(10))[1][0] == Status.OK
    raw.close()
    await cluster.restart("a")
    assert (await cluster.storage("a").last_entry(LEDGER)).fenced


def test_answers_that_are_not_read_are_bounded_over_all_connections_and_end(tmp_path: Path) -> None:
    """A client that reads nothing keeps others waiting for a while only."""

    async def check() -> None:
        cluster = InProcess(tmp_path)
        await cluster.start("a", answers_at_once=1, tick_s=0.05, reply_stall_timeout_s=0.3, handshake_timeout_s=60.0)
        silent, other = await Raw.connect(cluster), await Raw.connect(cluster)
        silent.send(frame(Op.PRESENT, [[LEDGER], [KEY]]))
        payload = b"x" * 3_000_000
        for i in range(5):
            silent.send(add(LEDGER, i, payload=payload, correlation_id=10 + i))
            assert (await silent.reply(10 + i))[1] == Status.OK
        silent.stop_reading()
        silent.send(*(frame(Op.READ, [0, LEDGER, i, i, 100], correlation_id=20 + i) for i in range(5)))
        service = cluster.service("a")
        await eventually(lambda: service.answers.full and "writing" in pauses_of(silent.near))
        other.send(frame(Op.READ, [0, LEDGER, 0, 0, 100], correlation_id=30))
        assert (await other.reply(30))[1][0] == Status.OK
        assert silent.near.lost
        assert cluster.connections("a") == [other.near]
        await eventually(lambda: not service.answers.full)
        other.close()
        await cluster.stop()

    # As bookies do: writelines of asyncio's own loop never pauses in Python 3.12.0 to 3.12.8, 3.13.0 and 3.13.1.
    uvloop.run(check())
