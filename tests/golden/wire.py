"""The golden frames of the wire protocol: one of every message, as they always were."""

from __future__ import annotations

from pathlib import Path

from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.frame import REPLY, encode
from bkpy.protocol.wire.messages import Flags, Op, Status
from bkpy.protocol.wire.records import RecordCodec

WIRE = Path(__file__).parent / "wire.bin"
LEDGER = 5
KEY = bytes(range(32))
MAC_KEY = bytes(range(32, 64))
INSTANCE = "11111111-2222-3333-4444-555555555555"


def records(count: int, digest: str = "crc32c") -> bytes:
    """Entries 0, 1, ... of the ledger."""
    parts: list[bytes | bytearray | memoryview] = []
    codec = RecordCodec(LEDGER, digest, MAC_KEY)
    codec.encode_run(parts, [b"entry %d" % i for i in range(count)], 0, -1, 0)
    return b"".join(parts)


def messages() -> list[tuple[int, object, bytes]]:
    """(opcode, head, body) of one frame each; the correlation id is the place in the list."""
    plain, sealed = records(3), records(2, "hmac-sha256")
    lac = RecordCodec(LEDGER).explicit_lac(2, 21)
    last = records(1)
    return [
        (Op.HELLO, m.Hello("bkpy 0.1", INSTANCE, "bookie-1"), b""),
        (Op.HELLO | REPLY, m.HelloReply(Status.OK, "", "bookie-1", 1 << 24, 1 << 20), b""),
        (Op.PRESENT, m.Present([LEDGER, 6], [KEY, bytes(32)]), b""),
        (Op.ADD, m.AddColumns(0, [LEDGER, 6], [0, 1 << 40], [3, 2], 1, [len(plain), len(sealed)]), plain + sealed),
        (
            Op.ADD,
            m.AddColumns(Flags.RECOVERY, [LEDGER, 6], [0, 9], [3, 2], [2, 1], [len(plain), 64]),
            plain + bytes(64),
        ),
        (Op.ADD | REPLY, Status.OK, b""),
        (Op.ADD | REPLY, [Status.OK, Status.FENCED], b""),
        (Op.READ, m.Read(Flags.RECOVERY, LEDGER, 0, 9, 1 << 20), b""),
        (Op.READ | REPLY, m.ReadReply(Status.OK, 9, [(4, 6), (8, 8)], 1), plain),
        (Op.READ | REPLY, m.ErrorReply(Status.NO_SUCH_LEDGER, "never heard of it"), b""),
        (Op.READ_LAC, m.ReadLac(0, LEDGER), b""),
        (Op.READ_LAC | REPLY, m.ReadLacReply(Status.OK, len(last), True), last + lac),
        (Op.WRITE_LAC, m.WriteLac(LEDGER), lac),
        (Op.WRITE_LAC | REPLY, m.ErrorReply(Status.OK, ""), b""),
        (Op.WAIT_LAC, m.WaitLac(LEDGER, -1, False, 10_000), b""),
        (Op.WAIT_LAC | REPLY, m.ReadLacReply(Status.OK, len(last), False), last + lac),
        (Op.ADD, m.AddColumns(Flags.DEFERRED_SYNC, [LEDGER], [0], [3], 1, [len(plain)]), plain),
        (Op.FORCE, m.Force(LEDGER), b""),
        (Op.FORCE | REPLY, m.ErrorReply(Status.FENCED, "fenced"), b""),
    ]


def plain(value: object) -> object:
    """The head as msgpack has it: arrays and plain numbers."""
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value


def frames() -> bytes:
    """All frames, one after the other."""
    parts: list[bytes | bytearray | memoryview] = []
    for number, (opcode, head, body) in enumerate(messages()):
        parts += encode(int(opcode), number, m.pack(plain(head)), [body])
    return b"".join(parts)
