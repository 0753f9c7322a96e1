"""Messages of BookKeeper's v3 protocol, in both directions: one protobuf message a frame (`frames`, `schema`).

A request names its operation and a transaction id, which the response repeats; responses come in any order. The
response has a status, and so has the message inside it. Bookies set both alike; clients take the outer one unless it is
EOK.

Invariants: `decode_*` accept any bytes. Bytes without a header that this side can answer raise `ProtocolError`. A
request with such a header is handed out even if it makes no sense, as `MalformedRequest`: it gets EBADREQ. Unknown
fields and flags mean nothing, as in Java.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from bkpy.errors import ProtocolError
from bkpy.protocol.bookkeeper import frames
from bkpy.protocol.bookkeeper.entries import ENTRY_ID_MAX, check_entry, check_lac
from bkpy.protocol.bookkeeper.schema import message_class
from bkpy.protocol.bookkeeper.statuses import StatusCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bkpy.buffers import Bytes

MESSAGE_VERSION: Final = 3
HIGH_PRIORITY: Final = 100
AUTH_DISABLED: Final = "AuthDisabledPlugin"  # what a bookie that asks for no authentication calls itself


class Operation(enum.IntEnum):
    """What a request asks for. 3, 4 and 12 exist as numbers alone: they have no message."""

    READ_ENTRY = 1
    ADD_ENTRY = 2
    RANGE_READ_ENTRY = 3
    RANGE_ADD_ENTRY = 4
    AUTH = 5
    WRITE_LAC = 6
    READ_LAC = 7
    GET_BOOKIE_INFO = 8
    START_TLS = 9
    FORCE_LEDGER = 10
    GET_LIST_OF_ENTRIES_OF_LEDGER = 11
    BATCH_READ_ENTRY = 12


class InfoParts(enum.IntFlag):
    """What GET_BOOKIE_INFO asks for."""

    TOTAL_DISK_CAPACITY = 1
    FREE_DISK_SPACE = 2


_FENCE: Final = 1
_PIGGYBACK: Final = 2
_RECOVERY: Final = 1
_DEFERRED_SYNC: Final = 1


class ReadEntryRequest(NamedTuple):
    """Entry -1 is the last one. `fence` needs the key, and excludes `piggyback`.

    With `previous_lac` and `timeout_ms` it is a long poll: it is answered once last add confirmed is higher. With
    `piggyback` the answer has the entry after `previous_lac`, too.
    """

    ledger_id: int
    entry_id: int
    key: bytes = b""
    fence: bool = False
    previous_lac: int | None = None
    timeout_ms: int | None = None
    piggyback: bool = False


class AddEntryRequest(NamedTuple):
    """`body` is the entry, of the same ledger and id. `deferred_sync`: answered before it is durable."""

    ledger_id: int
    entry_id: int
    key: bytes
    body: bytes
    recovery: bool = False
    deferred_sync: bool = False


class AuthExchange(NamedTuple):
    """Request and response of AUTH, which are alike."""

    plugin: str
    payload: bytes


class WriteLacRequest(NamedTuple):
    """`body` is the explicit last add confirmed."""

    ledger_id: int
    last_add_confirmed: int
    key: bytes
    body: bytes


class ReadLacRequest(NamedTuple):
    ledger_id: int


class BookieInfoRequest(NamedTuple):
    """`parts` are `InfoParts`."""

    parts: int


class StartTlsRequest(NamedTuple):
    """From the response on, both sides speak TLS."""


class ForceLedgerRequest(NamedTuple):
    ledger_id: int


class EntryListRequest(NamedTuple):
    ledger_id: int


class MalformedRequest(NamedTuple):
    """A request with a valid header whose other fields make no sense."""

    reason: str


Request = (
    ReadEntryRequest
    | AddEntryRequest
    | AuthExchange
    | WriteLacRequest
    | ReadLacRequest
    | BookieInfoRequest
    | StartTlsRequest
    | ForceLedgerRequest
    | EntryListRequest
    | MalformedRequest
)


class RequestHeader(NamedTuple):
    operation: Operation
    transaction_id: int
    priority: int = 0


class ReadEntryResponse(NamedTuple):
    """`max_lac` is a hint, which no digest covers. `lac_time_ms`: when it was last raised, since the epoch."""

    status: int
    ledger_id: int
    entry_id: int
    body: Bytes | None = None
    max_lac: int | None = None
    lac_time_ms: int | None = None


class AddEntryResponse(NamedTuple):
    status: int
    ledger_id: int
    entry_id: int


class WriteLacResponse(NamedTuple):
    status: int
    ledger_id: int


class ReadLacResponse(NamedTuple):
    """`lac_body`: the explicit last add confirmed. `last_entry`: the last entry that the bookie has."""

    status: int
    ledger_id: int
    lac_body: Bytes | None = None
    last_entry: Bytes | None = None


class BookieInfoResponse(NamedTuple):
    status: int
    total_bytes: int | None = None
    free_bytes: int | None = None


class StartTlsResponse(NamedTuple):
    pass


class ForceLedgerResponse(NamedTuple):
    status: int
    ledger_id: int


class EntryListResponse(NamedTuple):
    """`entries`: which entries the bookie has, in BookKeeper's own condensed format."""

    status: int
    ledger_id: int
    entries: Bytes | None = None


Response = (
    ReadEntryResponse
    | AddEntryResponse
    | AuthExchange
    | WriteLacResponse
    | ReadLacResponse
    | BookieInfoResponse
    | StartTlsResponse
    | ForceLedgerResponse
    | EntryListResponse
)


class ResponseMessage(NamedTuple):
    """`status` is the one that counts. `response` is None where there is nothing but the status.

    Numbers that this side doesn't know are handed out as they are.
    """

    operation: int
    transaction_id: int
    status: int
    response: Response | None


_REQUEST: Final = message_class("Request")
_RESPONSE: Final = message_class("Response")

# Of all answers to adds: only what differs is set anew.
_ADDED: Final = _RESPONSE()
_ADDED_HEADER: Final = _ADDED.header
_ADDED_RESPONSE: Final = _ADDED.addResponse
_ADDED_HEADER.version, _ADDED_HEADER.operation = MESSAGE_VERSION, Operation.ADD_ENTRY

_REQUEST_FIELDS: Final[Mapping[Operation, str]] = {
    Operation.READ_ENTRY: "readRequest",
    Operation.ADD_ENTRY: "addRequest",
    Operation.AUTH: "authRequest",
    Operation.WRITE_LAC: "writeLacRequest",
    Operation.READ_LAC: "readLacRequest",
    Operation.GET_BOOKIE_INFO: "getBookieInfoRequest",
    Operation.START_TLS: "startTLSRequest",
    Operation.FORCE_LEDGER: "forceLedgerRequest",
    Operation.GET_LIST_OF_ENTRIES_OF_LEDGER: "getListOfEntriesOfLedgerRequest",
}
_RESPONSE_FIELDS: Final[Mapping[int, str]] = {
    operation: name.removesuffix("Request") + "Response" for operation, name in _REQUEST_FIELDS.items()
}


# --- requests -------------------------------------------------------------------------------------------------------


def operation_of(request: Request) -> Operation:
    """What the request asks for."""
    return _OPERATIONS[type(request)]


def encode_request(request: Request, transaction_id: int, priority: int = 0) -> list[Bytes]:
    """The frame of a request."""
    operation = operation_of(request)
    message = _REQUEST()
    header = message.header
    header.version, header.operation, header.txnId = MESSAGE_VERSION, operation, transaction_id
    if priority:
        header.priority = priority
    inner = getattr(message, _REQUEST_FIELDS[operation])
    match request:
        case ReadEntryRequest():
            inner.ledgerId, inner.entryId = request.ledger_id, request.entry_id
            if request.key:
                inner.masterKey = request.key
            _set(inner, "previousLAC", request.previous_lac)
            _set(inner, "timeOut", request.timeout_ms)
            if request.fence or request.piggyback:
                inner.flag = _FENCE if request.fence else _PIGGYBACK
        case AddEntryRequest():
            inner.ledgerId, inner.entryId = request.ledger_id, request.entry_id
            inner.masterKey, inner.body = request.key, request.body
            if request.deferred_sync:
                inner.writeFlags = _DEFERRED_SYNC
            if request.recovery:
                inner.flag = _RECOVERY
        case AuthExchange():
            inner.authPluginName, inner.payload = request
        case WriteLacRequest():
            inner.ledgerId, inner.lac, inner.masterKey, inner.body = request
        case BookieInfoRequest():
            inner.requested = request.parts
        case ReadLacRequest() | ForceLedgerRequest() | EntryListRequest():
            inner.ledgerId = request.ledger_id
        case _:
            inner.SetInParent()
    return frames.encode(message.SerializeToString())


def decode_request(frame: Bytes) -> tuple[RequestHeader, Request]:
    """The request in a frame, which has no length any more."""
    message = _parse(_REQUEST, frame)
    header = _header(message)
    found = _BY_NUMBER.get(header.operation)
    if found is None:
        raise ProtocolError(f"unknown operation {header.operation}")
    operation, name, decode = found
    known = RequestHeader(operation, header.txnId, header.priority)
    if decode is None:
        return known, MalformedRequest(f"operation {operation.name} has no message")
    if not message.HasField(name):
        return known, MalformedRequest(f"a request {operation.name} without its message")
    try:
        return known, decode(_whole(getattr(message, name), name))
    except ProtocolError as e:
        return known, MalformedRequest(e.message)


def _decode_read(inner: Any) -> ReadEntryRequest:
    ledger_id, entry_id, flag = inner.ledgerId, inner.entryId, inner.flag
    if ledger_id < 0 or not -1 <= entry_id <= ENTRY_ID_MAX:
        raise ProtocolError(f"no entry can have id {entry_id} in ledger {ledger_id}")
    previous = inner.previousLAC if inner.HasField("previousLAC") else None
    if previous is not None and not -1 <= previous <= ENTRY_ID_MAX:
        raise ProtocolError(f"last add confirmed can't be {previous} in ledger {ledger_id}")
    return ReadEntryRequest(
        ledger_id,
        entry_id,
        inner.masterKey,
        flag == _FENCE,
        previous,
        max(0, inner.timeOut) if inner.HasField("timeOut") else None,
        flag == _PIGGYBACK,
    )


def _decode_add(inner: Any) -> AddEntryRequest:
    ledger_id, entry_id, body = inner.ledgerId, inner.entryId, inner.body
    if check_entry(body) != (ledger_id, entry_id):
        raise ProtocolError(f"the body of entry {entry_id} of ledger {ledger_id} is another entry's")
    deferred = bool(inner.writeFlags & _DEFERRED_SYNC)
    return AddEntryRequest(ledger_id, entry_id, inner.masterKey, body, inner.flag == _RECOVERY, deferred)


def _decode_auth(inner: Any) -> AuthExchange:
    if not isinstance(inner.authPluginName, str):  # protobuf hands out bytes for what is no UTF-8
        raise ProtocolError(f"an AuthMessage whose plugin name is no text: {inner.authPluginName!r}")
    return AuthExchange(inner.authPluginName, inner.payload)


def _decode_write_lac(inner: Any) -> WriteLacRequest:
    ledger_id, last_add_confirmed = check_lac(inner.body)
    # Java's writers take the request's number first, so the body's, which is what readers get, may be higher.
    if ledger_id != inner.ledgerId:
        raise ProtocolError(f"the last add confirmed of ledger {inner.ledgerId} has a body of ledger {ledger_id}")
    return WriteLacRequest(ledger_id, last_add_confirmed, inner.masterKey, inner.body)


def _ledger_of(inner: Any) -> int:
    ledger_id: int = inner.ledgerId
    if ledger_id < 0:
        raise ProtocolError(f"no ledger can have id {ledger_id}")
    return ledger_id


_DECODERS: Final[Mapping[Operation, Callable[[Any], Request]]] = {
    Operation.READ_ENTRY: _decode_read,
    Operation.ADD_ENTRY: _decode_add,
    Operation.AUTH: _decode_auth,
    Operation.WRITE_LAC: _decode_write_lac,
    Operation.READ_LAC: lambda inner: ReadLacRequest(_ledger_of(inner)),
    Operation.GET_BOOKIE_INFO: lambda inner: BookieInfoRequest(inner.requested),
    Operation.START_TLS: lambda _: StartTlsRequest(),
    Operation.FORCE_LEDGER: lambda inner: ForceLedgerRequest(_ledger_of(inner)),
    Operation.GET_LIST_OF_ENTRIES_OF_LEDGER: lambda inner: EntryListRequest(_ledger_of(inner)),
}

# By plain numbers: those of an enumeration take longer to look up than a message takes to parse.
_BY_NUMBER: Final = {
    int(operation): (operation, _REQUEST_FIELDS.get(operation, ""), _DECODERS.get(operation)) for operation in Operation
}
_OPERATIONS: Final[Mapping[type, Operation]] = {
    ReadEntryRequest: Operation.READ_ENTRY,
    AddEntryRequest: Operation.ADD_ENTRY,
    AuthExchange: Operation.AUTH,
    WriteLacRequest: Operation.WRITE_LAC,
    ReadLacRequest: Operation.READ_LAC,
    BookieInfoRequest: Operation.GET_BOOKIE_INFO,
    StartTlsRequest: Operation.START_TLS,
    ForceLedgerRequest: Operation.FORCE_LEDGER,
    EntryListRequest: Operation.GET_LIST_OF_ENTRIES_OF_LEDGER,
}


# --- responses ------------------------------------------------------------------------------------------------------


def encode_response(header: RequestHeader, response: Response) -> list[Bytes]:
    """The frame that answers the request with that header."""
    message = _response_to(header)
    inner = getattr(message, _RESPONSE_FIELDS[header.operation])
    if isinstance(response, AuthExchange):
        message.status = StatusCode.EOK
        inner.authPluginName, inner.payload = response
    elif isinstance(response, StartTlsResponse):
        message.status = StatusCode.EOK
        inner.SetInParent()
    else:
        message.status = inner.status = response.status
        if not isinstance(response, BookieInfoResponse):
            inner.ledgerId = response.ledger_id
        match response:
            case ReadEntryResponse():
                inner.entryId = response.entry_id
                _set(inner, "body", response.body)
                _set(inner, "maxLAC", response.max_lac)
                _set(inner, "lacUpdateTimestamp", response.lac_time_ms)
            case AddEntryResponse():
                inner.entryId = response.entry_id
            case ReadLacResponse():
                _set(inner, "lacBody", response.lac_body)
                _set(inner, "lastEntryBody", response.last_entry)
            case BookieInfoResponse():
                _set(inner, "totalDiskCapacity", response.total_bytes)
                _set(inner, "freeDiskSpace", response.free_bytes)
            case EntryListResponse():
                _set(inner, "availabilityOfEntriesOfLedger", response.entries)
    return frames.encode(message.SerializeToString())


def encode_added(transaction_id: int, status: StatusCode, ledger_id: int, entry_id: int) -> bytes:
    """The frame that answers an ADD_ENTRY, as `encode_response` makes it in twice the time."""
    _ADDED_HEADER.txnId = transaction_id
    _ADDED.status = _ADDED_RESPONSE.status = status
    _ADDED_RESPONSE.ledgerId, _ADDED_RESPONSE.entryId = ledger_id, entry_id
    encoded: bytes = _ADDED.SerializeToString()
    return frames.LENGTH.pack(len(encoded)) + encoded


def encode_refusal(header: RequestHeader, status: StatusCode) -> list[Bytes]:
    """The frame that refuses a request and has nothing but the status."""
    message = _response_to(header)
    message.status = status
    return frames.encode(message.SerializeToString())


def _response_to(header: RequestHeader) -> Any:
    message = _RESPONSE()
    answered = message.header
    answered.version, answered.operation, answered.txnId = MESSAGE_VERSION, header.operation, header.transaction_id
    return message


def decode_response(frame: Bytes) -> ResponseMessage:
    """The response in a frame, which has no length any more."""
    message = _parse(_RESPONSE, frame)
    header = _header(message)
    if not message.HasField("status"):
        raise ProtocolError("a response without a status")
    status = message.status
    name = _RESPONSE_FIELDS.get(header.operation)
    if name is None or not message.HasField(name):
        return ResponseMessage(header.operation, header.txnId, status, None)
    response = _RESPONSE_DECODERS[header.operation](_whole(getattr(message, name), name))
    if status == StatusCode.EOK and not isinstance(response, AuthExchange | StartTlsResponse):
        status = response.status
    return ResponseMessage(header.operation, header.txnId, status, response)


def _get(inner: Any, name: str) -> Any:
    return getattr(inner, name) if inner.HasField(name) else None


def _set(inner: Any, name: str, value: Any) -> None:
    if value is not None:
        setattr(inner, name, value)


_RESPONSE_DECODERS: Final[Mapping[int, Callable[[Any], Response]]] = {
    Operation.READ_ENTRY: lambda inner: ReadEntryResponse(
        inner.status,
        inner.ledgerId,
        inner.entryId,
        _get(inner, "body"),
        _get(inner, "maxLAC"),
        _get(inner, "lacUpdateTimestamp"),
    ),
    Operation.ADD_ENTRY: lambda inner: AddEntryResponse(inner.status, inner.ledgerId, inner.entryId),
    Operation.AUTH: _decode_auth,
    Operation.WRITE_LAC: lambda inner: WriteLacResponse(inner.status, inner.ledgerId),
    Operation.READ_LAC: lambda inner: ReadLacResponse(
        inner.status, inner.ledgerId, _get(inner, "lacBody"), _get(inner, "lastEntryBody")
    ),
    Operation.GET_BOOKIE_INFO: lambda inner: BookieInfoResponse(
        inner.status, _get(inner, "totalDiskCapacity"), _get(inner, "freeDiskSpace")
    ),
    Operation.START_TLS: lambda _: StartTlsResponse(),
    Operation.FORCE_LEDGER: lambda inner: ForceLedgerResponse(inner.status, inner.ledgerId),
    Operation.GET_LIST_OF_ENTRIES_OF_LEDGER: lambda inner: EntryListResponse(
        inner.status, inner.ledgerId, _get(inner, "availabilityOfEntriesOfLedger")
    ),
}


# --- AuthMessage in packets of v2 -----------------------------------------------------------------------------------


def encode_auth_message(exchange: AuthExchange) -> bytes:
    """The AuthMessage alone, as packets of v2 have it."""
    message = message_class("AuthMessage")(authPluginName=exchange.plugin, payload=exchange.payload)
    encoded: bytes = message.SerializeToString()
    return encoded


def decode_auth_message(encoded: Bytes) -> AuthExchange:
    """`ProtocolError` if the bytes are no AuthMessage."""
    return _decode_auth(_whole(_parse(message_class("AuthMessage"), encoded), "an AuthMessage"))


# --- parsing --------------------------------------------------------------------------------------------------------


def _parse(kind: Any, frame: Bytes) -> Any:
    try:
        return kind.FromString(frame)
    except DecodeError as e:
        raise ProtocolError(f"the frame is not a protobuf message {kind.DESCRIPTOR.name}: {e}") from None


def _whole(message: Any, name: str) -> Any:
    """The message, unless it misses a required field."""
    if not message.IsInitialized():
        raise ProtocolError(f"{name} without {', '.join(message.FindInitializationErrors())}")
    return message


def _header(message: Any) -> Any:
    header = _whole(message.header, "a header")
    if header.version != MESSAGE_VERSION:
        raise ProtocolError(f"message version {header.version} is not supported; this side speaks version 3")
    return header
