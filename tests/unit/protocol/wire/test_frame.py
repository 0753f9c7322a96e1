"""Frames and the receive buffer: whole frames come out whatever way the bytes arrive, and nothing else does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from bkpy.errors import FrameTooLargeError, ProtocolError
from bkpy.protocol.wire import frame as wire
from bkpy.protocol.wire.receive_buffer import ChunkPool, ReceiveBuffer

LIMIT = 1 << 20
CHUNK_BYTES = 1 << 20


def feed(buffer: ReceiveBuffer, data: bytes, step: int) -> list[tuple[int, int, bytes, bytes]]:
    """Receive `data` in pieces of at most `step` bytes."""
    frames = []
    while data:
        room = buffer.get_buffer()
        count = min(len(room), len(data), step)
        room[:count] = data[:count]
        data = data[count:]
        frames += [(f.opcode, f.correlation_id, bytes(f.head), bytes(f.body)) for f in buffer.received(count)]
    return frames


FRAMES = st.lists(
    st.tuples(st.integers(0, 255), st.integers(0, 2**64 - 1), st.binary(max_size=50), st.binary(max_size=5000)),
    max_size=20,
)


@given(frames=FRAMES, step=st.sampled_from([1, 7, 24, 1000, 100_000]))
@examples(60)
def test_frames_survive_any_fragmentation(frames: list[tuple[int, int, bytes, bytes]], step: int) -> None:
    data = b"".join(b"".join(wire.encode(op, cid, head, [body])) for op, cid, head, body in frames)
    assert feed(ReceiveBuffer(LIMIT), data, step) == frames


@pytest.mark.parametrize("body", [[], [b""], [b"", b"a", b"", memoryview(b"")]])
def test_no_frame_ends_in_an_empty_buffer(body: list[bytes]) -> None:
    """A transport of Python 3.12 and later keeps such a one for ever, and is never closed."""
    buffers = wire.encode(3, 7, b"head", body)
    assert buffers[-1]
    assert feed(ReceiveBuffer(LIMIT), b"".join(buffers), 1) == [(3, 7, b"head", b"".join(body))]


def test_a_retained_frame_is_never_received_over() -> None:
    buffer = ReceiveBuffer(LIMIT)
    kept = []
    for i in range(2000):
        data = b"".join(wire.encode(3, i, b"h", [bytes([i % 256]) * 300]))
        while data:
            room = buffer.get_buffer()
            count = min(len(room), len(data))
            room[:count] = data[:count]
            data = data[count:]
            for frame in buffer.received(count):
                kept.append(frame)
                buffer.retain()
    assert [bytes(f.body) for f in kept] == [bytes([i % 256]) * 300 for i in range(2000)]


def test_a_buffer_whose_frames_nobody_keeps_stays_small() -> None:
    buffer = ReceiveBuffer(LIMIT)
    data = b"".join(wire.encode(3, 1, b"h", [b"x" * 1000]))
    feed(buffer, data * 500, 1024)
    assert len(buffer.get_buffer()) <= CHUNK_BYTES


@pytest.mark.parametrize("position", range(len(b"".join(wire.encode(3, 9, b"head", [b"body"])))))
def test_a_flip_of_any_byte_is_an_error_or_waits_for_more(position: int) -> None:
    data = bytearray(b"".join(wire.encode(3, 9, b"head", [b"body"])))
    data[position] ^= 0x01
    buffer = ReceiveBuffer(LIMIT)
    try:
        frames = feed(buffer, bytes(data), 1000)
    except (ProtocolError, FrameTooLargeError):
        return
    assert frames == []  # a length that has grown: the rest is waited for, and will not verify
    assert buffer.partial
    with pytest.raises(ProtocolError):
        feed(buffer, bytes(300_000), 1000)


def test_a_huge_length_is_refused_before_anything_is_allocated() -> None:
    data = bytearray(wire.encode(3, 1, b"", [b"x"])[0])
    data[8:12] = (1 << 31).to_bytes(4, "little")
    with pytest.raises(FrameTooLargeError, match="2147483"):
        feed(ReceiveBuffer(LIMIT), bytes(data), 1000)


def test_a_stranger_is_refused_at_the_first_wrong_byte() -> None:
    with pytest.raises(ProtocolError, match="not a bkpy frame"):
        feed(ReceiveBuffer(LIMIT), b"G", 1)


def test_a_newer_version_is_named() -> None:
    with pytest.raises(ProtocolError, match="version 2"):
        feed(ReceiveBuffer(LIMIT), b"bk\x02", 3)


def test_golden_frame() -> None:
    data = b"".join(wire.encode(3, 0x0102030405060708, b"\x00", [b"ab", b"c"]))
    assert data.hex() == "626b010301000000030000000807060504030201aa5a2dfb00616263"


def test_a_chunk_is_used_again_only_when_nobody_keeps_a_slice_of_it() -> None:
    pool = ChunkPool(2)
    first = pool.take(CHUNK_BYTES)
    kept = memoryview(first)[10:20]
    second = pool.take(CHUNK_BYTES)
    assert second is not first
    kept.release()
    assert pool.take(CHUNK_BYTES) is first
    assert len(first) == CHUNK_BYTES
    assert pool.take(CHUNK_BYTES) is second
    assert len(pool.take(100)) == 100  # small ones are made anew


def test_a_pool_forgets_chunks_beyond_its_bound() -> None:
    pool = ChunkPool(2)
    kept = [memoryview(pool.take(CHUNK_BYTES)) for _ in range(3)]
    seen = {id(view.obj) for view in kept}
    kept.pop(0).release()  # the pool has lost sight of it
    assert id(pool.take(CHUNK_BYTES)) not in {id(view.obj) for view in kept}
    assert len(seen) == 3


def test_frames_that_are_kept_survive_the_reuse_of_chunks() -> None:
    buffer = ReceiveBuffer(LIMIT, ChunkPool(4))
    data = memoryview(b"".join(b"".join(wire.encode(3, i, b"h", [bytes([i % 251]) * 50_000])) for i in range(200)))
    kept: list[wire.Frame] = []
    while data:
        room = buffer.get_buffer()
        count = min(len(room), len(data), 300_000)
        room[:count] = data[:count]
        data = data[count:]
        for frame in buffer.received(count):
            buffer.retain()
            kept.append(frame)
        assert all(bytes(old.body) == bytes([old.correlation_id % 251]) * 50_000 for old in kept)
        del kept[:-30]
    assert kept[-1].correlation_id == 199
