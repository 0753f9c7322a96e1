"""What many receive buffers hold together: bounded, and everybody comes to go on."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.hooks import chunk_bytes

from bkpy.protocol.wire import frame as wire
from bkpy.protocol.wire.receive_buffer import ChunkPool, ReceiveBudget, ReceiveBuffer

FRAME_MAX = 3000


class Sender:
    """One connection: sends its frames byte by byte, while it may."""

    def __init__(self, budget: ReceiveBudget, pool: ChunkPool, sizes: list[int]) -> None:
        self.paused = False
        self.data = b"".join(b"".join(wire.encode(3, i, b"h", [bytes(size)])) for i, size in enumerate(sizes))
        self.got: list[int] = []
        self.buffer = ReceiveBuffer(FRAME_MAX, pool, budget, self.go_on)

    def go_on(self) -> None:
        self.paused = False

    def send(self, count: int) -> None:
        assert not self.paused
        room = self.buffer.get_buffer()
        assert len(room) > 0
        count = min(count, len(room), len(self.data))
        room[:count] = self.data[:count]
        self.data = self.data[count:]
        for frame in self.buffer.received(count):
            self.got.append(len(frame.body))
            self.buffer.retain()
        self.paused = not self.buffer.ready()


@given(
    bytes_max=st.sampled_from([1, 100, 4000, 10_000]),
    sizes=st.lists(st.lists(st.integers(0, FRAME_MAX - 40), max_size=6), min_size=1, max_size=6),
    chunk=st.sampled_from([(1, 1, 1), (64, 256, 16), (64, 4096, 16)]),
    seed=st.integers(0, 1000),
)
def test_the_budget_holds_and_everybody_goes_on(
    bytes_max: int, sizes: list[list[int]], chunk: tuple[int, int, int], seed: int
) -> None:
    rng = random.Random(seed)
    budget = ReceiveBudget(bytes_max)
    pool = ChunkPool(2, bytes_min=chunk[0], bytes_max=chunk[1], room_bytes_min=chunk[2])
    senders = [Sender(budget, pool, each) for each in sizes]
    small = max(chunk[0], wire.PREFIX_BYTES + chunk[2])
    while sending := [sender for sender in senders if sender.data]:
        able = [sender for sender in sending if not sender.paused]
        assert able, "all wait for each other"
        rng.choice(able).send(rng.choice([1, 50, 5000]))
        assert budget.used <= bytes_max + max(FRAME_MAX, 4096)
        assert budget.used == sum(sender.buffer.charged for sender in senders)
        assert all(chunk_bytes(s.buffer) <= max(small, s.buffer.charged) for s in senders)
        for sender in senders:
            if not sender.data:
                sender.buffer.release_idle()  # as for every connection that is silent
    assert [sender.got for sender in senders] == sizes
    for sender in senders:
        sender.buffer.close()
    assert budget.used == 0
    assert not budget.wanted


def test_who_waits_goes_on_when_another_is_closed_in_the_order_in_which_they_came() -> None:
    budget = ReceiveBudget(3000)
    pool = ChunkPool(0, bytes_min=64, bytes_max=64, room_bytes_min=16)
    stalled, first, second, small = (Sender(budget, pool, [size]) for size in (2500, 2000, 2000, 20))
    for sender in (stalled, first, second, small):
        sender.send(30)
    assert [sender.paused for sender in (stalled, first, second, small)] == [False, True, True, False]
    small.send(1000)
    assert small.got == [20]
    stalled.buffer.close()
    assert [first.paused, second.paused] == [False, True]
    while first.data:
        first.send(5000)
    first.buffer.release_idle()
    assert first.got == [2000]
    assert not second.paused


def test_who_waits_and_is_closed_leaves_the_line() -> None:
    budget = ReceiveBudget(1000)
    pool = ChunkPool(0, bytes_min=64, bytes_max=64, room_bytes_min=16)
    holder, gone, next_one = (Sender(budget, pool, [900]) for _ in range(3))
    for sender in (holder, gone, next_one):
        sender.send(30)
    gone.buffer.close()
    holder.buffer.close()
    assert gone.paused
    assert not next_one.paused
    next_one.buffer.close()
    assert budget.used == 0


def test_the_next_in_line_has_the_room_that_was_too_little_for_one_that_is_closed() -> None:
    budget = ReceiveBudget(1000)
    pool = ChunkPool(0, bytes_min=64, bytes_max=64, room_bytes_min=16)
    holder, gone, next_one = (Sender(budget, pool, [size]) for size in (500, 900, 200))
    for sender in (holder, gone, next_one):
        sender.send(30)
    assert next_one.paused
    gone.buffer.close()
    assert not next_one.paused
    assert budget.used <= budget.bytes_max
    for sender in (holder, next_one):
        sender.buffer.close()
    assert budget.used == 0


@pytest.mark.parametrize("kept", [False, True])
def test_a_silent_connection_gives_back_what_a_busy_one_needs(kept: bool) -> None:
    budget = ReceiveBudget(100_000)
    pool = ChunkPool(4, bytes_min=64, bytes_max=1024, room_bytes_min=16)
    buffer = ReceiveBuffer(FRAME_MAX, pool, budget)
    data = b"".join(b"".join(wire.encode(3, i, b"h", [bytes([i])])) for i in range(200))
    frames: list[wire.Frame] = []
    while data:
        room = buffer.get_buffer()
        count = min(len(room), len(data))
        room[:count] = data[:count]
        data = data[count:]
        for frame in buffer.received(count):
            if kept:
                buffer.retain()
                frames.append(frame)
        assert buffer.ready()
    assert budget.used > 0
    buffer.release_idle()
    assert budget.used == 0
    assert [bytes(frame.body) for frame in frames] == [bytes([i]) for i in range(200 * kept)]


def test_without_a_budget_there_is_always_room() -> None:
    buffer = ReceiveBuffer(1 << 20)
    assert buffer.ready()
    buffer.get_buffer()
    assert buffer.ready()
    buffer.close()
