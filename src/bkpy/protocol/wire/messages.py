"""The messages of the wire protocol: opcodes, statuses, and the heads of requests and replies.

A head is one msgpack value. `decode_*` accept any bytes and raise `ProtocolError` for whatever isn't the message, so
that nothing behind them meets a wrong type or a number out of its range. The head of ADD is columns, and is checked
column by column, never batch by batch.
"""

from __future__ import annotations

import enum
import re
from itertools import repeat
from operator import ge, mul
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgpack

from bkpy.errors import (
    BookieUnavailableError,
    BookKeeperError,
    CorruptDataError,
    FrameTooLargeError,
    LedgerFencedError,
    NoSuchClusterError,
    NoSuchLedgerError,
    ProtocolError,
    ReadOnlyBookieError,
    TlsError,
    TooManyRequestsError,
    UnauthorizedError,
)
from bkpy.protocol.wire.records import HEADER_BYTES, MAC_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bkpy.buffers import Bytes


I64_MAX: Final = (1 << 63) - 1
KEY_BYTES: Final = 32
HELLO_BYTES_MAX: Final = 4096  # of the whole frame: names are short, and strangers get no more memory than that
BATCHES_MAX: Final = 65_536  # in one ADD frame: bounds the columns, far above what a client sends at once


# What an ADD and a PRESENT need for one batch and one key besides its bytes, at most, and for themselves. A msgpack
# integer has 9 bytes or less, a key 2 more than it is long, an array 5 before its elements.
_BATCH_HEAD_BYTES: Final = 5 * 9
_PRESENT_BYTES: Final = 9 + 2 + KEY_BYTES
_REQUEST_BYTES: Final = 64  # the frame's prefix, the arrays and the flags


def payload_bytes_max(frame_bytes_max: int) -> int:
    """Bytes of the largest entry that fits an ADD frame, alone in it; below 0 if none does."""
    return frame_bytes_max - _REQUEST_BYTES - _BATCH_HEAD_BYTES - HEADER_BYTES - MAC_BYTES


def batches_bytes_max(frame_bytes_max: int) -> int:
    """Bytes of records that fit an ADD frame, however many batches they are; at least one.

    No batch is smaller than a record's header.
    """
    fit = (frame_bytes_max - _REQUEST_BYTES) * HEADER_BYTES // (HEADER_BYTES + _BATCH_HEAD_BYTES)
    return max(1, min(fit, BATCHES_MAX * HEADER_BYTES))


def keys_max(frame_bytes_max: int) -> int:
    """Keys that fit a PRESENT frame; at least one."""
    return max(1, min(BATCHES_MAX, (frame_bytes_max - _REQUEST_BYTES) // _PRESENT_BYTES))


class Op(enum.IntEnum):
    """Requests. A reply has the same number with the high bit set."""

    HELLO = 1
    PRESENT = 2  # no reply
    ADD = 3
    READ = 4
    READ_LAC = 5
    WRITE_LAC = 6
    WAIT_LAC = 7
    FORCE = 8


class Status(enum.IntEnum):
    """Outcome of a request, or of one batch of an ADD."""

    OK = 0
    FENCED = 1  # the ledger is fenced on this bookie
    UNAUTHORIZED = 2  # the presented key isn't the ledger's: the bookie has read its metadata
    KEY_REQUIRED = 3  # present the ledger's key on this connection, and send again
    READ_ONLY = 4
    TOO_MANY_REQUESTS = 5
    BAD_REQUEST = 6
    TOO_LARGE = 7
    NO_SUCH_LEDGER = 8  # a promise: the bookie never acknowledged an entry of that ledger
    UNKNOWN = 9  # the bookie doesn't know: damaged, in limbo, or failing
    WRONG_BOOKIE = 10  # the connection reached another bookie or cluster than it meant to
    UNAVAILABLE = 11  # stopping or starting, or the metadata that decide are unreadable now
    TLS_REQUIRED = 12  # the bookie speaks TLS only; sent in the clear, to a client without TLS
    FORBIDDEN = 13  # the names in the client's certificate may not do this


class Flags(enum.IntFlag):
    """Flags of ADD, READ and READ_LAC."""

    NONE = 0
    RECOVERY = 1  # ADD: accepted on a fenced ledger; READ, READ_LAC: fences the ledger first
    DEFERRED_SYNC = 2  # ADD: answered before it is durable, which FORCE makes it


_ADD_FLAGS_UNKNOWN: Final = ~int(Flags.RECOVERY | Flags.DEFERRED_SYNC)
_READ_FLAGS_UNKNOWN: Final = ~int(Flags.RECOVERY)

_ERRORS: Final[dict[Status, type[BookKeeperError]]] = {
    Status.FENCED: LedgerFencedError,
    # Clients present the key of the metadata and no other: the bookie is wrong, or has read other metadata.
    Status.UNAUTHORIZED: BookieUnavailableError,
    Status.KEY_REQUIRED: BookieUnavailableError,  # it has forgotten the key again
    Status.READ_ONLY: ReadOnlyBookieError,
    Status.TOO_MANY_REQUESTS: TooManyRequestsError,
    Status.BAD_REQUEST: ProtocolError,
    Status.TOO_LARGE: FrameTooLargeError,
    Status.NO_SUCH_LEDGER: NoSuchLedgerError,
    Status.UNKNOWN: CorruptDataError,
    Status.WRONG_BOOKIE: NoSuchClusterError,
    Status.UNAVAILABLE: BookieUnavailableError,
    Status.TLS_REQUIRED: TlsError,
    Status.FORBIDDEN: UnauthorizedError,
}


# What ends a writer: no other bookie would do.
ENDS_WRITER: Final = frozenset((Status.FENCED, Status.FORBIDDEN))

_MESSAGES = {
    Status.KEY_REQUIRED: "the bookie has forgotten the ledger's key each time that it was presented",
    Status.UNAUTHORIZED: "the bookie refuses the ledger's key, and takes another one for that of the metadata",
    Status.TOO_LARGE: "the entry needs a larger frame than the bookie takes",
    Status.UNAVAILABLE: "the bookie is stopping or starting, or can't read the ledger's metadata now",
    Status.FENCED: "fenced: another client is recovering the ledger, or has closed it; go on in a new one",
    Status.FORBIDDEN: "the bookie's file of rights does not allow this to the names in this client's certificate",
    # A bookie of bkpy's has a text of its own; one of BookKeeper's has none, and several reasons.
    Status.TLS_REQUIRED: "the bookie refuses this client: it asks for TLS, for a certificate with other rights, or for "
    "authentication by SASL, which bkpy doesn't have",
}


def message_of(status: Status) -> str:
    """What the error for this status says where the bookie has no text of its own."""
    return _MESSAGES.get(status) or status.name.lower().replace("_", " ")


def error_of(
    status: Status, message: str = "", *, ledger_id: int | None = None, bookie: str | None = None
) -> BookKeeperError:
    """The exception for a status other than OK. The one table between the wire and the error classes."""
    return _ERRORS[status](message or message_of(status), ledger_id=ledger_id, bookie=bookie)


def end_of_writer(status: Status, *, ledger_id: int, bookie: str) -> BookKeeperError:
    """The exception for a status that ends a writer. A withdrawn right may have held for a part of the appends."""
    error = error_of(status, ledger_id=ledger_id, bookie=bookie)
    error.outcome_unknown |= status == Status.FORBIDDEN
    return error


class AddColumns(NamedTuple):
    """The head of ADD. Batch i holds entries first_ids[i] + k * stride, k < counts[i], in sizes[i] bytes of body.

    `strides` is one number where all batches share it, which is always so without striping.
    """

    flags: int
    ledger_ids: list[int]
    first_ids: list[int]
    counts: list[int]
    strides: int | list[int]
    sizes: list[int]


class Present(NamedTuple):
    """Ledgers and their keys (32 bytes each), good for this connection from now on."""

    ledger_ids: list[int]
    keys: list[bytes]


class Read(NamedTuple):
    """Entries first..last of a ledger, as many as fit `bytes_max` (at least one)."""

    flags: int
    ledger_id: int
    first: int
    last: int
    bytes_max: int


class ReadReply(NamedTuple):
    """A bookie's knowledge of entries first..examined_to.

    The body holds records in ascending id order. An id in that range which is neither in the body nor in `unknown`
    was never acknowledged by this bookie. `lac` is the highest last add confirmed it has seen, a hint: no digest
    covers it.
    """

    status: int
    examined_to: int
    unknown: list[tuple[int, int]]
    lac: int


class ReadLac(NamedTuple):
    flags: int
    ledger_id: int


class ReadLacReply(NamedTuple):
    """Body: the record of the highest entry here (`entry_bytes`, 0 if none), the explicit last add confirmed."""

    status: int
    entry_bytes: int
    fenced: bool


class WriteLac(NamedTuple):
    """The body is the explicit last-add-confirmed record."""

    ledger_id: int


class WaitLac(NamedTuple):
    """READ_LAC that is answered once there is news, and after `wait_ms` milliseconds at the latest.

    News is a last add confirmed above `known_lac` (-1: none), or a fence while `known_fenced` is false.
    """

    ledger_id: int
    known_lac: int
    known_fenced: bool
    wait_ms: int


class Force(NamedTuple):
    """Make durable what was acknowledged before, of adds with `DEFERRED_SYNC`."""

    ledger_id: int


class Hello(NamedTuple):
    """First frame of a connection. Empty strings mean *any*."""

    software: str
    instance_id: str
    bookie_id: str


class HelloReply(NamedTuple):
    status: int
    message: str
    bookie_id: str
    frame_bytes_max: int
    entry_bytes_max: int


class ErrorReply(NamedTuple):
    """The head of any reply whose status isn't OK, and of all replies that carry nothing else."""

    status: int
    message: str


# `msgpack.packb` makes a packer for each value. A shared one is safe only where packing is a single call into C, which
# never lets go of the interpreter: without its extension, msgpack is Python that other threads may interrupt.
_IN_C: Final = msgpack.Packer.__module__.endswith("_cmsgpack")
_packb: Final = msgpack.Packer().pack if _IN_C else msgpack.packb


def pack(value: Any) -> bytes:
    """One msgpack value."""
    packed: bytes = _packb(value)
    return packed


# msgpack makes a list of as many elements as an array's header claims before it looks at the first one. Headers of
# arrays inside arrays cost a few bytes each, so that a few KiB could ask for hundreds of MiB. A head this short can't.
_SHORT_BYTES: Final = 128
_LONG_ARRAYS_MAX: Final = 16  # headers that may claim more than 15 elements, in a head that isn't looked at closely
# In a head of many batches one byte in 64 looks like such a header, and most that do claim more than msgpack accepts.
_SPARSE: Final = 32  # bytes for each that are still no reason to look closely, if together they claim
_CLAIMED_MAX: Final = 16  # elements for each byte of the head, at most
_SCALARS: Final = re.compile(
    rb"(?:[\x00-\x7f\xc0\xc2\xc3\xe0-\xff]|[\xcc\xd0].|[\xcd\xd1]..|[\xca\xce\xd2].{4}|[\xcb\xcf\xd3].{8}|\xc4\x20.{32})*+",
    re.DOTALL,
)
# By the first byte of what is no scalar: where its length or its number of elements is, and whether it has elements.
_SIZED: Final = {
    **{0xC4 + i: (1 << i, False) for i in range(3)},  # bytes
    **{0xD9 + i: (1 << i, False) for i in range(3)},  # strings
    **{0xDC + i: (2 << i, True) for i in range(2)},  # arrays
}


def _looks_harmful(head: bytes) -> bool:
    """Whether there may be so many headers of long arrays, wherever they lie, that decoding them could cost much."""
    suspects = head.count(b"\xdc") + head.count(b"\xdd")
    if suspects <= _LONG_ARRAYS_MAX:
        return False
    if suspects * _SPARSE > len(head):
        return True
    claimed = 0
    for code, size in ((b"\xdc", 2), (b"\xdd", 4)):
        at = head.find(code)
        while at >= 0:
            number = int.from_bytes(head[at + 1 : at + 1 + size], "big")
            if number <= len(head):  # msgpack refuses the others before it makes a list
                claimed += number
            at = head.find(code, at + 1)
    return claimed > _CLAIMED_MAX * len(head)


def _claims_too_much(head: bytes) -> bool:
    """Whether the arrays of this value claim more elements than there are bytes."""
    claimed = at = 0
    while claimed <= len(head) and (at := _end_of_scalars(head, at)) < len(head):
        first = head[at]
        at += 1
        if 0x90 <= first <= 0x9F:
            claimed += first & 15
        elif 0xA0 <= first <= 0xBF:
            at += first & 31
        elif (sized := _SIZED.get(first)) is not None:
            size, has_elements = sized
            number = int.from_bytes(head[at : at + size], "big")
            at += size + (0 if has_elements else number)
            claimed += number if has_elements else 0
        elif not 0x80 <= first <= 0x8F:
            return True  # a large map or an extension, of which no message has any
    return claimed > len(head)


def _end_of_scalars(head: bytes, at: int) -> int:
    found = _SCALARS.match(head, at)
    return at if found is None else found.end()


def _unpack(head: Bytes, array_max: int | None = None) -> Any:
    """The value, no array of which has more than `array_max` elements (None: than the head has bytes)."""
    if array_max is None and len(head) > _SHORT_BYTES:
        whole = bytes(head)
        if _looks_harmful(whole) and _claims_too_much(whole):
            raise ProtocolError("the head's arrays claim more elements than it has bytes")
    try:
        return msgpack.unpackb(head, max_map_len=16, max_array_len=len(head) if array_max is None else array_max)
    except Exception as e:  # msgpack raises ValueError, its own kinds, RecursionError, UnicodeDecodeError
        raise ProtocolError(f"the head is not a msgpack value: {e}") from None


def _fields(
    head: Bytes, kinds: tuple[type | tuple[type, ...], ...], what: str, usual: tuple[type, ...] | None = None
) -> list[Any]:
    """The elements of an array head, with exactly these types (a bool is no int). `usual` saves a closer look."""
    value = _unpack(head, None if list in kinds or (int, list) in kinds else len(kinds))
    if not isinstance(value, list) or len(value) != len(kinds):
        raise ProtocolError(f"{what}: expected an array of {len(kinds)}")
    if tuple(map(type, value)) == (usual or kinds):
        return value
    for i, (item, kind) in enumerate(zip(value, kinds, strict=True)):
        if type(item) is not kind and not (isinstance(kind, tuple) and type(item) in kind):
            raise ProtocolError(f"{what}: field {i} has the wrong type ({type(item).__name__})")
    return value


def _is_i64(number: int) -> bool:
    """Whether it is valid as an id, a size or a time."""
    return 0 <= number <= I64_MAX


_ONLY_INT: Final = {int}
_WITHOUT_STRIDES: Final = (int, list, list, list, int, list)


def _one_is_sound(columns: AddColumns, body_bytes: int) -> bool:
    """What `decode_add` checks, for a single batch: the usual case of a ledger that is written a lot."""
    flags, (ledger_id,), (first_id,), (count,), stride, (size,) = columns
    return (
        type(ledger_id) is type(first_id) is type(count) is type(size) is type(stride) is int
        and 0 <= ledger_id <= I64_MAX
        and first_id >= 0
        and count > 0
        and stride > 0
        and not flags & _ADD_FLAGS_UNKNOWN
        and size == body_bytes >= count * HEADER_BYTES
        and first_id + stride * count <= I64_MAX
    )


def decode_add(head: Bytes, body_bytes: int) -> AddColumns:
    """Check the columns of an ADD against each other and the body's size."""
    value = _fields(head, (int, list, list, list, (int, list), list), "ADD", _WITHOUT_STRIDES)
    columns = AddColumns(*value)
    flags, ledger_ids, first_ids, counts, strides, sizes = columns
    n = len(ledger_ids)
    if n == len(first_ids) == len(counts) == len(sizes) == 1 and _one_is_sound(columns, body_bytes):
        return columns
    if flags & _ADD_FLAGS_UNKNOWN:
        raise ProtocolError(f"ADD: flags {flags} are not known to this side")
    if not 0 < n <= BATCHES_MAX or not n == len(first_ids) == len(counts) == len(sizes):
        raise ProtocolError("ADD: the columns are empty, too long, or differ in length")
    lists = [ledger_ids, first_ids, counts, sizes]
    if isinstance(strides, list):
        if len(strides) != n:
            raise ProtocolError("ADD: the columns differ in length")
        lists.append(strides)
    for column in lists:
        if set(map(type, column)) != _ONLY_INT:
            raise ProtocolError("ADD: a column holds something that is no integer")
    single = counts.count(1) == n  # one entry a batch: the usual case of many ledgers
    if min(ledger_ids) < 0 or min(first_ids) < 0 or max(ledger_ids) > I64_MAX or not (single or min(counts) > 0):
        raise ProtocolError("ADD: an id or a count is out of range")
    if (min(strides) if isinstance(strides, list) else strides) < 1:
        raise ProtocolError("ADD: a stride is below 1")
    fit = min(sizes) >= HEADER_BYTES if single else all(map(ge, sizes, map(mul, counts, repeat(HEADER_BYTES))))
    if not fit or sum(sizes) != body_bytes:
        raise ProtocolError("ADD: the sizes don't fit the counts or the body")
    if max(first_ids) + (max(strides) if isinstance(strides, list) else strides) * max(counts) > I64_MAX:
        raise ProtocolError("ADD: an entry id is out of range")
    return columns


def decode_present(head: Bytes) -> Present:
    value = Present(*_fields(head, (list, list), "PRESENT"))
    if len(value.ledger_ids) != len(value.keys) or len(value.keys) > BATCHES_MAX:
        raise ProtocolError("PRESENT: the columns differ in length or are too long")
    if any(type(i) is not int or not 0 <= i <= I64_MAX for i in value.ledger_ids):
        raise ProtocolError("PRESENT: a ledger id is out of range")
    if any(type(k) is not bytes or len(k) != KEY_BYTES for k in value.keys):
        raise ProtocolError(f"PRESENT: a key isn't {KEY_BYTES} bytes")
    return value


def decode_read(head: Bytes) -> Read:
    value = Read(*_fields(head, (int, int, int, int, int), "READ"))
    if value.flags & _READ_FLAGS_UNKNOWN:
        raise ProtocolError(f"READ: flags {value.flags} are not known to this side")
    if not (_is_i64(value.ledger_id) and 0 <= value.first <= value.last <= I64_MAX and 1 <= value.bytes_max <= I64_MAX):
        raise ProtocolError(f"READ: a field is out of range in {list(value)}")
    return value


def decode_read_reply(head: Bytes) -> ReadReply:
    status, examined_to, unknown, lac = _fields(head, (int, int, list, int), "READ reply")
    for item in unknown:
        if not (isinstance(item, list) and len(item) == 2 and all(type(i) is int for i in item)):
            raise ProtocolError("READ reply: a range of unknown ids is malformed")
        if not 0 <= item[0] <= item[1] <= I64_MAX:
            raise ProtocolError("READ reply: a range of unknown ids is out of range")
    if not (-1 <= examined_to <= I64_MAX and -1 <= lac <= I64_MAX):
        raise ProtocolError("READ reply: a field is out of range")
    return ReadReply(status, examined_to, [(a, b) for a, b in unknown], lac)


def decode_read_lac(head: Bytes) -> ReadLac:
    value = ReadLac(*_fields(head, (int, int), "READ_LAC"))
    if value.flags & _READ_FLAGS_UNKNOWN:
        raise ProtocolError(f"READ_LAC: flags {value.flags} are not known to this side")
    if not _is_i64(value.ledger_id):
        raise ProtocolError("READ_LAC: the ledger id is out of range")
    return value


def decode_read_lac_reply(head: Bytes) -> ReadLacReply:
    value = ReadLacReply(*_fields(head, (int, int, bool), "READ_LAC reply"))
    if not _is_i64(value.entry_bytes):
        raise ProtocolError("READ_LAC reply: the size of the entry is out of range")
    return value


def decode_write_lac(head: Bytes) -> WriteLac:
    value = WriteLac(*_fields(head, (int,), "WRITE_LAC"))
    if not _is_i64(value.ledger_id):
        raise ProtocolError("WRITE_LAC: the ledger id is out of range")
    return value


def decode_wait_lac(head: Bytes) -> WaitLac:
    value = WaitLac(*_fields(head, (int, int, bool, int), "WAIT_LAC"))
    if not (_is_i64(value.ledger_id) and -1 <= value.known_lac <= I64_MAX and _is_i64(value.wait_ms)):
        raise ProtocolError("WAIT_LAC: a field is out of range")
    return value


def decode_force(head: Bytes) -> Force:
    value = Force(*_fields(head, (int,), "FORCE"))
    if not _is_i64(value.ledger_id):
        raise ProtocolError("FORCE: the ledger id is out of range")
    return value


def ledgers_of_request(op: int, head: Bytes) -> tuple[int, ...]:
    """The ledger that a request of this side's is about, by its head; none if it is about no single one."""
    match op:
        case Op.READ:
            return (decode_read(head).ledger_id,)
        case Op.READ_LAC:
            return (decode_read_lac(head).ledger_id,)
        case Op.WRITE_LAC:
            return (decode_write_lac(head).ledger_id,)
        case Op.FORCE:
            return (decode_force(head).ledger_id,)
    return ()


def decode_hello(head: Bytes) -> Hello:
    return Hello(*_fields(head, (str, str, str), "HELLO"))


def decode_hello_reply(head: Bytes) -> HelloReply:
    value = HelloReply(*_fields(head, (int, str, str, int, int), "HELLO reply"))
    if not (_is_i64(value.frame_bytes_max) and _is_i64(value.entry_bytes_max)):
        raise ProtocolError("HELLO reply: a limit is out of range")
    return value


def is_refusal(head: Bytes) -> bool:
    """Whether it is a status with a message. UNKNOWN begins also answers of a bookie that doesn't know all."""
    value = _unpack(head)
    return isinstance(value, list) and tuple(map(type, value)) == (int, str)


def decode_error(head: Bytes) -> ErrorReply:
    return ErrorReply(*_fields(head, (int, str), "reply"))


def decode_add_reply(head: Bytes, batches: int) -> int | list[int]:
    """One status for all batches, with or without a message, or a list with one a batch. Any number may be one."""
    value = _unpack(head)
    if type(value) is int:
        return value
    if isinstance(value, list) and len(value) == batches and set(map(type, value)) == _ONLY_INT:
        return value
    if isinstance(value, list) and tuple(map(type, value)) == (int, str):
        status: int = value[0]
        return status
    raise ProtocolError("ADD reply: neither a status nor a status per batch")


def status_of(code: int) -> Status:
    """The status with that number. `ProtocolError` for one of a newer side: it has not carried out the request."""
    try:
        return Status(code)
    except ValueError:
        raise ProtocolError(f"status {code} is not known to this side") from None


def refusal(code: int, *, ledger_id: int | None = None, bookie: str | None = None) -> BookKeeperError:
    """The exception for any number other than OK's, which this side may know as a status or not."""
    try:
        return error_of(status_of(code), ledger_id=ledger_id, bookie=bookie)
    except ProtocolError as e:
        return ProtocolError(e.message, ledger_id=ledger_id, bookie=bookie)


def reply_status(head: Bytes) -> Status:
    """The status of any reply but ADD's: its head is an array that begins with it."""
    value = _unpack(head)
    if not isinstance(value, list) or not value or type(value[0]) is not int:
        raise ProtocolError("a reply that doesn't begin with a status")
    return status_of(value[0])


def select(columns: AddColumns, keep: Sequence[int]) -> AddColumns:
    """The columns of the batches with these indexes, for the slow path."""
    strides = columns.strides
    return AddColumns(
        columns.flags,
        [columns.ledger_ids[i] for i in keep],
        [columns.first_ids[i] for i in keep],
        [columns.counts[i] for i in keep],
        [strides[i] for i in keep] if isinstance(strides, list) else strides,
        [columns.sizes[i] for i in keep],
    )
