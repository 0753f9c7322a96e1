"""Packets of v2: Java's own bytes in both directions, and hostile ones."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.golden.bookkeeper import reading

from bkpy.errors import FrameTooLargeError, ProtocolError
from bkpy.protocol.bookkeeper import frames
from bkpy.protocol.bookkeeper import packets as p
from bkpy.protocol.bookkeeper.entries import DigestType, EntryCodec, master_key
from bkpy.protocol.bookkeeper.messages import AuthExchange, decode_auth_message, encode_auth_message
from bkpy.protocol.bookkeeper.packets import PacketFlags, PacketOp

if TYPE_CHECKING:
    from bkpy.buffers import Bytes

GOLDEN = {name[3:]: frame for name, frame in reading.read("wire.txt").items() if name.startswith("v2 ")}
LEDGER = 123456789012
KEY = master_key(b"secret")
AUTH = AuthExchange("plugin", bytes(i * 7 & 255 for i in range(5)))
FENCE, HIGH, RECOVERY = PacketFlags.FENCE, PacketFlags.HIGH_PRIORITY, PacketFlags.RECOVERY


def entry(entry_id: int, length: int, size: int, digest_type: DigestType = DigestType.CRC32C) -> bytes:
    data = bytes(i * 7 & 255 for i in range(size))
    return EntryCodec(LEDGER, digest_type, b"secret").encode(entry_id, 6, length, data)


def body(frame: bytes) -> memoryview:
    """The packet in a frame, whose length is right."""
    assert frames.frame_bytes(frame, 0, len(frame)) == len(frame)
    assert frames.is_packet(frame[4:])
    return memoryview(frame)[4:]


def joined(buffers: list[Bytes]) -> bytes:
    return b"".join(buffers)


def sized(entries: list[bytes]) -> list[bytes]:
    """Each entry behind its size."""
    return [part for found in entries for part in (struct.pack(">I", len(found)), found)]


FOUND = [entry(7, 5000, 20), entry(8, 5000, 0), entry(9, 8000, 3000)]
READS = {
    "read": p.ReadPacket(0, LEDGER, 7, b""),
    "read last": p.ReadPacket(0, LEDGER, -1, b""),
    "read fence": p.ReadPacket(FENCE | HIGH, LEDGER, -1, KEY),
}
BATCHES = {
    "batch": p.BatchReadPacket(0, LEDGER, 7, 99, 100, 1 << 20, b""),
    "batch fence": p.BatchReadPacket(FENCE, LEDGER, 7, 99, 0, 5 << 20, KEY),
}


@pytest.mark.parametrize("digest_type", DigestType)
@pytest.mark.parametrize(("size", "flags"), [(20, 0), (3000, RECOVERY | HIGH)])
def test_an_add_is_as_java_sends_it(digest_type: DigestType, size: int, flags: int) -> None:
    golden, added = GOLDEN[f"add {digest_type.name} {size}"], entry(7, 5000, size, digest_type)
    assert joined(p.encode_add(KEY, added, flags)) == golden
    assert p.decode_request(body(golden)) == p.AddPacket(flags, KEY, LEDGER, 7, memoryview(added))


@pytest.mark.parametrize("name", READS)
def test_a_read_is_as_java_sends_it(name: str) -> None:
    read = READS[name]
    assert joined(p.encode_read(read.ledger_id, read.entry_id, read.flags, read.key)) == GOLDEN[name]
    assert p.decode_request(body(GOLDEN[name])) == read


@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_read_is_as_java_sends_it(name: str) -> None:
    flags, ledger_id, first, request_id, entries_max, bytes_max, key = BATCHES[name]
    encoded = p.encode_batch_read(ledger_id, first, request_id, entries_max, bytes_max, flags, key)
    assert joined(encoded) == GOLDEN[name]
    assert p.decode_request(body(GOLDEN[name])) == BATCHES[name]


def test_auth_is_as_java_sends_it() -> None:
    for name in ("auth", "auth reply"):
        assert joined(p.encode_auth(encode_auth_message(AUTH))) == GOLDEN[name]
    packet = p.decode_request(body(GOLDEN["auth"]))
    assert isinstance(packet, p.AuthPacket)
    assert decode_auth_message(packet.message) == AUTH
    reply = p.decode_reply(body(GOLDEN["auth reply"]))
    assert (reply.op, decode_auth_message(reply.body)) == (PacketOp.AUTH, AUTH)


@pytest.mark.parametrize("code", [int(name.split()[1]) for name in GOLDEN if name.startswith("added ")])
def test_a_reply_to_an_add_is_as_java_sends_it(code: int) -> None:
    golden = GOLDEN[f"added {code}"]
    assert joined(p.encode_add_reply(code, LEDGER, 7)) == golden
    assert p.decode_reply(body(golden)) == p.ReplyPacket(PacketOp.ADD, code, LEDGER, 7, -1, memoryview(b""))


def test_a_reply_to_a_read_is_as_java_sends_it() -> None:
    assert joined(p.encode_read_reply(0, LEDGER, 7, FOUND[0])) == GOLDEN["found"]
    assert joined(p.encode_read_reply(2, LEDGER, -1)) == GOLDEN["denied"]
    found = p.decode_reply(body(GOLDEN["found"]))
    assert found == p.ReplyPacket(PacketOp.READ, 0, LEDGER, 7, -1, memoryview(FOUND[0]))
    assert p.decode_reply(body(GOLDEN["denied"])) == p.ReplyPacket(PacketOp.READ, 2, LEDGER, -1, -1, memoryview(b""))


def test_a_reply_to_a_batch_read_is_as_java_sends_it() -> None:
    assert joined(p.encode_batch_read_reply(0, LEDGER, 7, 99, sized(FOUND))) == GOLDEN["batch found"]
    assert joined(p.encode_batch_read_reply(1, LEDGER, 7, 99)) == GOLDEN["batch denied"]
    reply = p.decode_reply(body(GOLDEN["batch found"]))
    assert reply[:5] == (PacketOp.BATCH_READ, 0, LEDGER, 7, 99)
    assert p.batch_entries(reply.body) == FOUND
    denied = p.decode_reply(body(GOLDEN["batch denied"]))
    assert (denied[:5], p.batch_entries(denied.body)) == ((PacketOp.BATCH_READ, 1, LEDGER, 7, 99), [])


def test_every_golden_packet_was_looked_at() -> None:
    adds = {f"add {kind.name} {size}" for kind in DigestType for size in (20, 3000)}
    replies = {"auth", "auth reply", "found", "denied", "batch found", "batch denied"}
    assert adds | replies | READS.keys() | BATCHES.keys() == {n for n in GOLDEN if not n.startswith("added ")}


# --- hostile bytes --------------------------------------------------------------------------------------------------

WHOLE = {name: frame[4:] for name, frame in GOLDEN.items()}
REQUESTS = {
    name for name in WHOLE if name.startswith(("add ", "read", "batch")) and not name.endswith(("found", "denied"))
}
NEEDED = {"add": 56, "read": 20, "read last": 20, "read fence": 40, "batch": 40, "batch fence": 60}


@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_a_request_that_is_cut_off_is_refused(name: str) -> None:
    packet = WHOLE[name]
    needed = NEEDED["add" if name.startswith("add ") else name]
    p.decode_request(memoryview(packet[:needed]))  # of an entry, whatever its digest says
    for size in range(needed):
        with pytest.raises(ProtocolError, match=r"too few|without a master key"):
            p.decode_request(memoryview(packet[:size]))


@pytest.mark.parametrize("name", sorted(WHOLE.keys() - REQUESTS - {"auth", "auth reply"}))
def test_a_reply_that_is_cut_off_is_refused(name: str) -> None:
    packet = WHOLE[name]
    needed = 32 if name.startswith("batch") else 24
    p.decode_reply(memoryview(packet[:needed]))
    for size in range(needed):
        with pytest.raises(ProtocolError, match="too few"):
            p.decode_reply(memoryview(packet[:size]))


@pytest.mark.thorough
def test_entries_that_run_past_their_batch_are_refused() -> None:
    packed = bytes(p.decode_reply(body(GOLDEN["batch found"])).body)
    whole = [0, 4 + len(FOUND[0]), 8 + len(FOUND[0]) + len(FOUND[1]), len(packed)]
    for size in range(len(packed)):
        if size in whole:
            assert p.batch_entries(memoryview(packed[:size])) == FOUND[: whole.index(size)]
        else:
            with pytest.raises(ProtocolError, match=rf"entry \d of a batch runs past its reply of {size} bytes"):
                p.batch_entries(memoryview(packed[:size]))
    with pytest.raises(ProtocolError, match="entry 0 of a batch"):
        p.batch_entries(memoryview(b"\xff" * 50))


@pytest.mark.parametrize(("ledger_id", "entry_id"), [(-1, 0), (0, -2), (0, (1 << 63) - 1), (-(1 << 63), -1)])
def test_a_read_of_what_cannot_be_is_refused(ledger_id: int, entry_id: int) -> None:
    for buffers in p.encode_read(ledger_id, entry_id), p.encode_batch_read(ledger_id, entry_id, 1, 1, 1):
        with pytest.raises(ProtocolError, match=f"id {entry_id} in ledger {ledger_id}"):
            p.decode_request(body(joined(buffers)))


def test_a_batch_read_begins_at_an_entry() -> None:
    with pytest.raises(ProtocolError, match="id -1"):
        p.decode_request(body(joined(p.encode_batch_read(0, -1, 1, 1, 1))))


def test_an_add_of_what_cannot_be_is_refused() -> None:
    for ids in (-1, 0), (0, -1):
        with pytest.raises(ProtocolError, match=f"id {ids[1]} in ledger {ids[0]}"):
            p.decode_request(body(joined(p.encode_add(KEY, struct.pack(">qqqq", *ids, 0, 0)))))


@pytest.mark.parametrize("op", [0, 4, 5, 6, 8, 255])
def test_an_unknown_opcode_is_refused(op: int) -> None:
    for decode in p.decode_request, p.decode_reply:
        with pytest.raises(ProtocolError, match=f"unknown packet opcode {op}"):
            decode(memoryview(struct.pack(">BBH", 2, op, 0) + bytes(60)))  # type: ignore[operator]


def test_another_version_is_refused() -> None:
    with pytest.raises(ProtocolError, match="packet version 1"):
        p.decode_request(memoryview(b"\x01" + WHOLE["read"][1:]))


def test_unknown_flags_mean_nothing() -> None:
    packet = p.decode_request(body(joined(p.encode_read(5, 7, 0xFFF0))))
    assert packet == p.ReadPacket(0xFFF0, 5, 7, b"")


@given(
    st.binary(max_size=100), st.sampled_from([b"", b"\x02\x01", b"\x02\x02\x00\x01", b"\x02\x07\x00\x01", b"\x02\x03"])
)
def test_any_bytes_are_a_packet_or_are_refused(found: bytes, begin: bytes) -> None:
    for decode in p.decode_request, p.decode_reply:
        try:
            packet = decode(memoryview(begin + found))  # type: ignore[operator]
        except ProtocolError:
            continue
        assert packet[0] is not None


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.lists(st.binary(max_size=50), max_size=5))
def test_batches_come_back(ledger_id: int, first: int, entries: list[bytes]) -> None:
    reply = p.decode_reply(body(joined(p.encode_batch_read_reply(0, ledger_id, first, -5, sized(entries)))))
    assert reply[:5] == (PacketOp.BATCH_READ, 0, ledger_id, first, -5)
    assert p.batch_entries(reply.body) == entries


# --- frames ---------------------------------------------------------------------------------------------------------


def test_a_frame_over_the_limit_is_refused_before_it_is_there() -> None:
    assert frames.frame_bytes(struct.pack(">I", 96), 0, 100) == 100
    for length in 97, 1 << 31, (1 << 32) - 1:
        with pytest.raises(FrameTooLargeError, match=f"{length + 4} bytes is over the limit of 100"):
            frames.frame_bytes(struct.pack(">I", length), 0, 100)


@pytest.mark.parametrize("frame", [b"", b"\x00", b"\x01abc", b"\x03", b"\x16\x03\x01", b"GET / HTTP/1.1", b"bk\x01"])
def test_what_begins_neither_protocol_is_refused(frame: bytes) -> None:
    with pytest.raises(ProtocolError, match="not a frame of BookKeeper's v2 or v3 protocol"):
        frames.is_packet(frame)


def test_the_first_byte_tells_the_protocols_apart() -> None:
    for name, frame in reading.read("wire.txt").items():
        if name.startswith(("v2", "v3")):
            assert frames.is_packet(frame[4:]) == name.startswith("v2")
