"""The wire protocol stays as it is: the messages give the golden bytes, and the golden bytes are read as ever."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.golden.wire import LEDGER, MAC_KEY, WIRE, frames, messages, plain

from bkpy.errors import FrameTooLargeError, ProtocolError
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.frame import REPLY, Frame, frame_bytes, take
from bkpy.protocol.wire.messages import Op
from bkpy.protocol.wire.records import RecordCodec, walk

if TYPE_CHECKING:
    from collections.abc import Callable


def golden() -> list[Frame]:
    view = memoryview(WIRE.read_bytes())
    found = []
    offset = 0
    while offset < len(view):
        end = offset + frame_bytes(view, offset, 1 << 20)
        found.append(take(view, offset, end))
        offset = end
    return found


DECODERS: dict[int, Callable[[Frame], Any]] = {
    Op.HELLO: lambda frame: m.decode_hello(frame.head),
    Op.HELLO | REPLY: lambda frame: m.decode_hello_reply(frame.head),
    Op.PRESENT: lambda frame: m.decode_present(frame.head),
    Op.ADD: lambda frame: m.decode_add(frame.head, len(frame.body)),
    Op.ADD | REPLY: lambda frame: m.decode_add_reply(frame.head, 2),
    Op.READ: lambda frame: m.decode_read(frame.head),
    Op.READ_LAC: lambda frame: m.decode_read_lac(frame.head),
    Op.READ_LAC | REPLY: lambda frame: m.decode_read_lac_reply(frame.head),
    Op.WRITE_LAC: lambda frame: m.decode_write_lac(frame.head),
    Op.WRITE_LAC | REPLY: lambda frame: m.decode_error(frame.head),
    Op.WAIT_LAC: lambda frame: m.decode_wait_lac(frame.head),
    Op.WAIT_LAC | REPLY: lambda frame: m.decode_read_lac_reply(frame.head),
    Op.FORCE: lambda frame: m.decode_force(frame.head),
    Op.FORCE | REPLY: lambda frame: m.decode_error(frame.head),
}


def decode(frame: Frame) -> Any:
    if frame.opcode == Op.READ | REPLY:
        return m.decode_read_reply(frame.head) if len(frame.body) else m.decode_error(frame.head)
    return DECODERS[frame.opcode](frame)


def test_the_frames_are_the_golden_ones() -> None:
    assert frames() == WIRE.read_bytes()


@pytest.mark.parametrize("number", range(len(messages())))
def test_a_golden_frame_is_read(number: int) -> None:
    frame = golden()[number]
    opcode, head, body = messages()[number]
    assert (frame.opcode, frame.correlation_id, bytes(frame.body)) == (opcode, number, body)
    assert plain(decode(frame)) == plain(head)


def test_there_is_a_golden_frame_of_every_message() -> None:
    opcodes = {frame.opcode for frame in golden()}
    assert opcodes == {int(op) for op in Op} | {op | REPLY for op in Op if op is not Op.PRESENT}


def test_golden_records_verify() -> None:
    add = golden()[3]
    columns = m.decode_add(add.head, len(add.body))
    middle = columns.sizes[0]
    for codec, part in (
        (RecordCodec(LEDGER), add.body[:middle]),
        (RecordCodec(LEDGER, "hmac-sha256", MAC_KEY), add.body[middle:]),
    ):
        for header in walk(part):
            codec.check(part, header.offset, header.end)
            payload = bytes(part[header.offset + 32 : header.end - codec.mac_bytes])
            assert payload == b"entry %d" % header.entry_id


def test_no_flipped_bit_of_a_golden_frame_is_taken() -> None:
    data = WIRE.read_bytes()
    size = frame_bytes(data, 0, 1 << 20)
    for bit in range(8 * size):
        bad = bytearray(data[:size])
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises((ProtocolError, FrameTooLargeError)):
            take(memoryview(bad), 0, frame_bytes(bad, 0, size))
