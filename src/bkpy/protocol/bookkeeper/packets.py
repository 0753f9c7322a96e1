"""Packets of BookKeeper's v2 protocol, in both directions: fixed fields, all big-endian, in frames (`frames`).

    every packet begins with a word: version (u8, 2), opcode (u8), flags (u16; 0 in replies)

    request      after the word
    ADD          master key (20), entry
    READ         ledger id (i64), entry id (i64; -1 is the last), with FENCE the master key (20)
    AUTH         an AuthMessage of v3
    BATCH_READ   ledger id (i64), first entry id (i64), request id (i64), entries at most (i32), bytes at most (i64),
                 with FENCE the master key (20)

    reply        after the word
    ADD          return code (i32), ledger id (i64), entry id (i64)
    READ         the same, entry
    AUTH         an AuthMessage of v3
    BATCH_READ   the same, request id (i64), and for each entry its size (u32) and its bytes

Replies come in any order. Clients match them by ledger and entry id, those of BATCH_READ by the request id.

Invariants: `decode_*` accept any bytes and raise `ProtocolError` for whatever isn't the packet. Unknown flags mean
nothing, as in Java. Views into the packet are handed out without a copy.
"""

from __future__ import annotations

import enum
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from bkpy.errors import ProtocolError
from bkpy.protocol.bookkeeper import frames
from bkpy.protocol.bookkeeper.entries import ENTRY_ID_MAX, MASTER_KEY_BYTES, check_entry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bkpy.buffers import Bytes


class PacketOp(enum.IntEnum):
    """The opcodes that exist. Java names 4 to 6, too, and has never implemented them."""

    ADD = 1
    READ = 2
    AUTH = 3
    BATCH_READ = 7


class PacketFlags(enum.IntFlag):
    """Flags of a request."""

    NONE = 0
    FENCE = 1  # READ, BATCH_READ: fence the ledger first
    RECOVERY = 2  # ADD: accepted on a fenced ledger
    HIGH_PRIORITY = 4  # may overtake other requests


class AddPacket(NamedTuple):
    """Ledger and entry id are the entry's own."""

    flags: int
    key: bytes
    ledger_id: int
    entry_id: int
    entry: memoryview


class ReadPacket(NamedTuple):
    """Entry -1 is the last one. `key` is empty without FENCE."""

    flags: int
    ledger_id: int
    entry_id: int
    key: bytes


class BatchReadPacket(NamedTuple):
    """Entries from `first` on. No limit: `entries_max` of 0 or less."""

    flags: int
    ledger_id: int
    first: int
    request_id: int
    entries_max: int
    bytes_max: int
    key: bytes


class AuthPacket(NamedTuple):
    """`message` is an AuthMessage of v3."""

    message: memoryview


class ReplyPacket(NamedTuple):
    """A reply. `code` is not checked, it may be one that this side doesn't know.

    `body`: of READ the entry, of BATCH_READ what `batch_entries` takes apart. `request_id` is BATCH_READ's alone.
    """

    op: PacketOp
    code: int
    ledger_id: int
    entry_id: int
    request_id: int
    body: memoryview


_WORD = struct.Struct(">BBH")
_READ = struct.Struct(">BBHqq")
_BATCH_READ = struct.Struct(">BBHqqqiq")
_REPLY = struct.Struct(">BBHiqq")
_REQUEST_ID = struct.Struct(">q")
_SIZE = struct.Struct(">I")
_ADD_ENTRY_AT: Final = _WORD.size + MASTER_KEY_BYTES

REPLY_BYTES: Final = _REPLY.size
BATCH_REPLY_BYTES: Final = _REPLY.size + _REQUEST_ID.size
SIZE_BYTES: Final = _SIZE.size


# --- requests -------------------------------------------------------------------------------------------------------


def encode_add(key: bytes, entry: Bytes, flags: int = 0) -> list[Bytes]:
    """The frame that adds an entry."""
    return frames.encode(_WORD.pack(frames.PACKET_VERSION, PacketOp.ADD, flags) + key, entry)


def encode_read(ledger_id: int, entry_id: int, flags: int = 0, key: bytes = b"") -> list[Bytes]:
    """The frame that reads one entry. With FENCE it needs the key."""
    return frames.encode(_READ.pack(frames.PACKET_VERSION, PacketOp.READ, flags, ledger_id, entry_id) + key)


def encode_batch_read(
    ledger_id: int, first: int, request_id: int, entries_max: int, bytes_max: int, flags: int = 0, key: bytes = b""
) -> list[Bytes]:
    """The frame that reads entries from `first` on. With FENCE it needs the key."""
    packed = _BATCH_READ.pack(
        frames.PACKET_VERSION, PacketOp.BATCH_READ, flags, ledger_id, first, request_id, entries_max, bytes_max
    )
    return frames.encode(packed + key)


def encode_auth(message: bytes) -> list[Bytes]:
    """The frame of an AuthMessage: request and reply are alike."""
    return frames.encode(_WORD.pack(frames.PACKET_VERSION, PacketOp.AUTH, 0) + message)


def decode_request(packet: memoryview) -> AddPacket | ReadPacket | BatchReadPacket | AuthPacket:
    """The request in a frame, which has no length any more."""
    op, flags = _begin(packet)
    if op == PacketOp.ADD:
        if len(packet) < _ADD_ENTRY_AT:
            raise _too_short(op, packet)
        entry = packet[_ADD_ENTRY_AT:]
        return AddPacket(flags, bytes(packet[_WORD.size : _ADD_ENTRY_AT]), *check_entry(entry), entry)
    if op == PacketOp.READ:
        if len(packet) < _READ.size:
            raise _too_short(op, packet)
        _, _, _, ledger_id, entry_id = _READ.unpack_from(packet)
        _check_ids(ledger_id, entry_id, -1)
        return ReadPacket(flags, ledger_id, entry_id, _key(packet, flags, _READ.size))
    if op == PacketOp.BATCH_READ:
        if len(packet) < _BATCH_READ.size:
            raise _too_short(op, packet)
        _, _, _, ledger_id, first, request_id, entries_max, bytes_max = _BATCH_READ.unpack_from(packet)
        _check_ids(ledger_id, first, 0)
        key = _key(packet, flags, _BATCH_READ.size)
        return BatchReadPacket(flags, ledger_id, first, request_id, entries_max, bytes_max, key)
    return AuthPacket(packet[_WORD.size :])


def _begin(packet: memoryview) -> tuple[PacketOp, int]:
    """(opcode, flags)."""
    if len(packet) < _WORD.size:
        raise ProtocolError(f"{len(packet)} bytes are too few for a packet")
    version, code, flags = _WORD.unpack_from(packet)
    if version != frames.PACKET_VERSION:
        raise ProtocolError(f"packet version {version} is not supported; this side speaks version 2")
    try:
        return PacketOp(code), flags
    except ValueError:
        raise ProtocolError(f"unknown packet opcode {code}") from None


def _key(packet: memoryview, flags: int, at: int) -> bytes:
    if not flags & PacketFlags.FENCE:
        return b""
    if len(packet) < at + MASTER_KEY_BYTES:
        raise ProtocolError(f"a packet of {len(packet)} bytes fences without a master key")
    return bytes(packet[at : at + MASTER_KEY_BYTES])


def _check_ids(ledger_id: int, entry_id: int, lowest: int) -> None:
    if ledger_id < 0 or not lowest <= entry_id <= ENTRY_ID_MAX:
        raise ProtocolError(f"no entry can have id {entry_id} in ledger {ledger_id}")


def _too_short(op: PacketOp, packet: memoryview) -> ProtocolError:
    return ProtocolError(f"{len(packet)} bytes are too few for a packet with opcode {op.name}")


# --- replies --------------------------------------------------------------------------------------------------------


def encode_add_reply(code: int, ledger_id: int, entry_id: int) -> list[Bytes]:
    """The frame that answers an ADD."""
    return frames.encode(_REPLY.pack(frames.PACKET_VERSION, PacketOp.ADD, 0, code, ledger_id, entry_id))


def encode_read_reply(code: int, ledger_id: int, entry_id: int, *entry: Bytes) -> list[Bytes]:
    """The frame that answers a READ, with the parts of the entry. The ids are the request's, also where that was -1."""
    return frames.encode(_REPLY.pack(frames.PACKET_VERSION, PacketOp.READ, 0, code, ledger_id, entry_id), *entry)


def encode_batch_read_reply(
    code: int, ledger_id: int, first: int, request_id: int, entries: Sequence[Bytes] = ()
) -> list[Bytes]:
    """The frame that answers a BATCH_READ. `entries`: `sized_entries` from `first` on."""
    head = _REPLY.pack(frames.PACKET_VERSION, PacketOp.BATCH_READ, 0, code, ledger_id, first)
    return frames.encode(head + _REQUEST_ID.pack(request_id), *entries)


def decode_reply(packet: memoryview) -> ReplyPacket:
    """The reply in a frame, which has no length any more."""
    op, _ = _begin(packet)
    if op == PacketOp.AUTH:
        return ReplyPacket(op, 0, -1, -1, -1, packet[_WORD.size :])
    batch = op == PacketOp.BATCH_READ
    if len(packet) < (BATCH_REPLY_BYTES if batch else REPLY_BYTES):
        raise _too_short(op, packet)
    _, _, _, code, ledger_id, entry_id = _REPLY.unpack_from(packet)
    if batch:
        (request_id,) = _REQUEST_ID.unpack_from(packet, REPLY_BYTES)
        return ReplyPacket(op, code, ledger_id, entry_id, request_id, packet[BATCH_REPLY_BYTES:])
    return ReplyPacket(op, code, ledger_id, entry_id, -1, packet[REPLY_BYTES:])


def batch_entries(body: memoryview) -> list[memoryview]:
    """The entries in the body of a BATCH_READ's reply."""
    found: list[memoryview] = []
    at, end = 0, len(body)
    while at < end:
        start = at + SIZE_BYTES
        if start > end or (at := start + _SIZE.unpack_from(body, at)[0]) > end:
            raise ProtocolError(f"entry {len(found)} of a batch runs past its reply of {end} bytes")
        found.append(body[start:at])
    return found
