"""Messages of v3: Java's own bytes in both directions, and hostile ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.golden.bookkeeper import reading

from bkpy.errors import ProtocolError
from bkpy.protocol.bookkeeper import frames
from bkpy.protocol.bookkeeper import messages as m
from bkpy.protocol.bookkeeper.entries import DigestType, EntryCodec, master_key
from bkpy.protocol.bookkeeper.messages import Operation, RequestHeader
from bkpy.protocol.bookkeeper.schema import message_class
from bkpy.protocol.bookkeeper.statuses import StatusCode

GOLDEN = {name[3:]: frame for name, frame in reading.read("wire.txt").items() if name.startswith("v3 ")}
LEDGER = 123456789012
TXN = 0x8000000000000001
KEY = master_key(b"secret")
CODEC = EntryCodec(LEDGER, DigestType.CRC32C, b"secret")
BODY = CODEC.encode(7, 6, 5000, bytes(i * 7 & 255 for i in range(20)))
LAC = CODEC.encode_lac(6)
AUTH = m.AuthExchange("plugin", bytes(i * 7 & 255 for i in range(5)))

# With the priority.
REQUESTS: dict[str, tuple[m.Request, int]] = {
    "read": (m.ReadEntryRequest(LEDGER, 7), 0),
    "read last": (m.ReadEntryRequest(LEDGER, -1), 0),
    "read fence": (m.ReadEntryRequest(LEDGER, 7, KEY, fence=True), m.HIGH_PRIORITY),
    "poll": (m.ReadEntryRequest(LEDGER, -1, previous_lac=4, timeout_ms=300), 0),
    "poll piggyback": (m.ReadEntryRequest(LEDGER, -1, previous_lac=-1, timeout_ms=300, piggyback=True), 0),
    "add": (m.AddEntryRequest(LEDGER, 7, KEY, BODY), 0),
    "add recovery": (m.AddEntryRequest(LEDGER, 7, KEY, BODY, recovery=True), m.HIGH_PRIORITY),
    "add deferred": (m.AddEntryRequest(LEDGER, 7, KEY, BODY, deferred_sync=True), 0),
    "auth": (AUTH, 0),
    "write lac": (m.WriteLacRequest(LEDGER, 6, KEY, LAC), 0),
    "read lac": (m.ReadLacRequest(LEDGER), 0),
    "info": (m.BookieInfoRequest(m.InfoParts.TOTAL_DISK_CAPACITY | m.InfoParts.FREE_DISK_SPACE), 0),
    "tls": (m.StartTlsRequest(), 0),
    "force": (m.ForceLedgerRequest(LEDGER), 0),
    "list": (m.EntryListRequest(LEDGER), 0),
}
DENIED, UNKNOWN = StatusCode.ENOENTRY, StatusCode.EUNKNOWNLEDGERSTATE
RESPONSES: dict[str, tuple[Operation, int, m.Response]] = {
    "found": (Operation.READ_ENTRY, 0, m.ReadEntryResponse(0, LEDGER, 7, BODY, 6)),
    "polled": (Operation.READ_ENTRY, 0, m.ReadEntryResponse(0, LEDGER, -1, None, 6, 1234567890123)),
    "denied": (Operation.READ_ENTRY, DENIED, m.ReadEntryResponse(DENIED, LEDGER, 7)),
    **{f"added {s.name}": (Operation.ADD_ENTRY, s, m.AddEntryResponse(s, LEDGER, 7)) for s in StatusCode},
    "auth reply": (Operation.AUTH, 0, AUTH),
    "lac written": (Operation.WRITE_LAC, 0, m.WriteLacResponse(0, LEDGER)),
    "lac both": (Operation.READ_LAC, 0, m.ReadLacResponse(0, LEDGER, LAC, BODY)),
    "lac entry": (Operation.READ_LAC, 0, m.ReadLacResponse(0, LEDGER, None, BODY)),
    "lac unknown": (Operation.READ_LAC, UNKNOWN, m.ReadLacResponse(UNKNOWN, LEDGER)),
    "info reply": (Operation.GET_BOOKIE_INFO, 0, m.BookieInfoResponse(0, 1 << 40, 1 << 39)),
    "tls reply": (Operation.START_TLS, 0, m.StartTlsResponse()),
    "forced": (Operation.FORCE_LEDGER, 0, m.ForceLedgerResponse(0, LEDGER)),
    "list reply": (
        Operation.GET_LIST_OF_ENTRIES_OF_LEDGER,
        0,
        m.EntryListResponse(0, LEDGER, bytes(i * 7 & 255 for i in range(64))),
    ),
}


def body(frame: bytes) -> memoryview:
    """The message in a frame, whose length is right."""
    assert frames.frame_bytes(frame, 0, len(frame)) == len(frame)
    return memoryview(frame)[4:]


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_is_as_java_sends_it(name: str) -> None:
    request, priority = REQUESTS[name]
    assert b"".join(m.encode_request(request, TXN, priority)) == GOLDEN[name]
    header, found = m.decode_request(body(GOLDEN[name]))
    assert found == request
    assert type(found) is type(request)
    assert (header.transaction_id, header.priority) == (TXN, priority)


@pytest.mark.parametrize("name", RESPONSES)
def test_a_response_is_as_java_sends_it(name: str) -> None:
    operation, status, response = RESPONSES[name]
    assert b"".join(m.encode_response(RequestHeader(operation, TXN, 100), response)) == GOLDEN[name]
    found = m.decode_response(body(GOLDEN[name]))
    assert found == (operation, TXN, status, response)
    assert type(found.response) is type(response)


def test_the_quick_answer_to_an_add_is_the_same() -> None:
    for status in (*StatusCode, StatusCode.EOK):
        assert m.encode_added(TXN, status, LEDGER, 7) == GOLDEN[f"added {status.name}"]


def test_a_request_with_a_context_is_read_without_it() -> None:
    assert m.decode_request(body(GOLDEN["read context"])) == m.decode_request(body(GOLDEN["read"]))


def test_a_refusal_has_nothing_but_the_status() -> None:
    assert b"".join(m.encode_refusal(RequestHeader(Operation.ADD_ENTRY, TXN), StatusCode.EUA)) == GOLDEN["refused"]
    assert m.decode_response(body(GOLDEN["refused"])) == (Operation.ADD_ENTRY, TXN, StatusCode.EUA, None)


def test_every_golden_message_was_looked_at() -> None:
    assert REQUESTS.keys() | RESPONSES.keys() | {"read context", "refused"} == GOLDEN.keys()


def test_all_operations_with_a_message_have_one() -> None:
    without = {Operation.RANGE_READ_ENTRY, Operation.RANGE_ADD_ENTRY, Operation.BATCH_READ_ENTRY}
    decoded = {m.decode_request(body(GOLDEN[name]))[0].operation for name in REQUESTS}
    assert decoded == set(Operation) - without
    assert {operation for operation, _, _ in RESPONSES.values()} == set(Operation) - without


# --- hostile bytes --------------------------------------------------------------------------------------------------


def raw(operation: int = 1, version: int = 3, txn: int = 5, **fields: object) -> bytes:
    """A request, however little sense it makes, without a frame."""
    request = message_class("Request")()
    request.header.version, request.header.operation, request.header.txnId = version, operation, txn
    for name, values in fields.items():
        inner = getattr(request, name)
        inner.SetInParent()
        for key, value in dict(values).items():  # type: ignore[call-overload]
            setattr(inner, key, value)
    encoded: bytes = request.SerializePartialToString()
    return encoded


def reason(frame: bytes) -> str:
    header, request = m.decode_request(frame)
    assert header.transaction_id == 5
    assert isinstance(request, m.MalformedRequest)
    return request.reason


@pytest.mark.parametrize("operation", [3, 4, 12])
def test_an_operation_without_a_message_gets_an_answer(operation: int) -> None:
    assert "has no message" in reason(raw(operation))


@pytest.mark.parametrize("operation", [0, 13, -1, 1 << 20])
def test_an_unknown_operation_is_refused(operation: int) -> None:
    with pytest.raises(ProtocolError, match=f"unknown operation {operation}"):
        m.decode_request(raw(operation))


def test_another_version_is_refused() -> None:
    for decode in m.decode_request, m.decode_response:
        with pytest.raises(ProtocolError, match="message version 2"):
            decode(raw(version=2))  # type: ignore[operator]


def test_a_message_without_a_header_is_refused() -> None:
    for decode in m.decode_request, m.decode_response:
        for frame in b"", b"\x0a\x00", b"\x0a\x02\x08\x03":
            with pytest.raises(ProtocolError, match="a header without"):
                decode(frame)  # type: ignore[operator]


def test_a_request_without_its_message_gets_an_answer() -> None:
    assert reason(raw(2, readRequest={"ledgerId": 1, "entryId": 2})) == "a request ADD_ENTRY without its message"


@pytest.mark.parametrize(
    ("operation", "field", "values", "missing"),
    [
        (1, "readRequest", {"ledgerId": 1}, "entryId"),
        (2, "addRequest", {"ledgerId": 1, "entryId": 1, "masterKey": KEY}, "body"),
        (5, "authRequest", {"authPluginName": "a"}, "payload"),
        (6, "writeLacRequest", {"ledgerId": 1, "lac": 1, "body": b""}, "masterKey"),
        (7, "readLacRequest", {}, "ledgerId"),
        (10, "forceLedgerRequest", {}, "ledgerId"),
        (11, "getListOfEntriesOfLedgerRequest", {}, "ledgerId"),
    ],
)
def test_a_missing_field_is_named(operation: int, field: str, values: dict[str, object], missing: str) -> None:
    assert reason(raw(operation, **{field: values})) == f"{field} without {missing}"


@pytest.mark.parametrize(
    ("operation", "field", "values"),
    [
        (1, "readRequest", {"ledgerId": -1, "entryId": 1}),
        (1, "readRequest", {"ledgerId": 1, "entryId": -2}),
        (1, "readRequest", {"ledgerId": 1, "entryId": (1 << 63) - 1}),
        (1, "readRequest", {"ledgerId": 1, "entryId": -1, "previousLAC": -2, "timeOut": 5}),
        (2, "addRequest", {"ledgerId": 1, "entryId": 7, "masterKey": KEY, "body": BODY}),
        (2, "addRequest", {"ledgerId": LEDGER, "entryId": 8, "masterKey": KEY, "body": BODY}),
        (2, "addRequest", {"ledgerId": LEDGER, "entryId": 7, "masterKey": KEY, "body": BODY[:31]}),
        (6, "writeLacRequest", {"ledgerId": 1, "lac": 6, "masterKey": KEY, "body": LAC}),
        (6, "writeLacRequest", {"ledgerId": LEDGER, "lac": 6, "masterKey": KEY, "body": LAC[:15]}),
        (7, "readLacRequest", {"ledgerId": -1}),
        (10, "forceLedgerRequest", {"ledgerId": -1}),
        (11, "getListOfEntriesOfLedgerRequest", {"ledgerId": -1}),
    ],
)
def test_what_makes_no_sense_gets_an_answer(operation: int, field: str, values: dict[str, object]) -> None:
    assert reason(raw(operation, **{field: values}))


def test_a_poll_of_no_time_at_all_is_answered_at_once() -> None:
    poll = {"ledgerId": 1, "entryId": -1, "previousLAC": 3, "timeOut": -7}
    assert m.decode_request(raw(readRequest=poll))[1] == m.ReadEntryRequest(1, -1, previous_lac=3, timeout_ms=0)


def test_unknown_flags_mean_nothing() -> None:
    read = {"ledgerId": 1, "entryId": 2, "flag": 7}
    assert m.decode_request(raw(readRequest=read))[1] == m.ReadEntryRequest(1, 2)
    add = {"ledgerId": LEDGER, "entryId": 7, "masterKey": KEY, "body": BODY, "flag": 2, "writeFlags": 6}
    assert m.decode_request(raw(2, addRequest=add))[1] == m.AddEntryRequest(LEDGER, 7, KEY, BODY)


def test_unknown_fields_mean_nothing() -> None:
    unknown = b"\xd2\x0f\x03new"  # field 250 of the message
    for name, (request, _) in REQUESTS.items():
        assert m.decode_request(bytes(body(GOLDEN[name])) + unknown)[1] == request
    for name, (_, _, response) in RESPONSES.items():
        assert m.decode_response(bytes(body(GOLDEN[name])) + unknown).response == response


def test_a_status_that_nobody_knows_is_handed_out() -> None:
    response = message_class("Response")(status=599)
    response.header.version, response.header.operation, response.header.txnId = 3, 99, 5
    assert m.decode_response(response.SerializeToString()) == (99, 5, 599, None)
    response.header.operation, response.status = Operation.ADD_ENTRY, 0
    response.addResponse.status, response.addResponse.ledgerId, response.addResponse.entryId = 599, 1, 2
    assert m.decode_response(response.SerializeToString()) == (2, 5, 599, m.AddEntryResponse(599, 1, 2))


def test_the_outer_status_counts_unless_it_is_ok() -> None:
    response = message_class("Response")(status=StatusCode.EUA)
    response.header.version, response.header.operation, response.header.txnId = 3, Operation.ADD_ENTRY, 5
    response.addResponse.status, response.addResponse.ledgerId, response.addResponse.entryId = StatusCode.EIO, 1, 2
    assert m.decode_response(response.SerializeToString()).status == StatusCode.EUA


def test_a_response_without_what_it_must_have_is_refused() -> None:
    with pytest.raises(ProtocolError, match="a response without a status"):
        m.decode_response(raw(2))
    response = message_class("Response")(status=0)
    response.header.version, response.header.operation, response.header.txnId = 3, Operation.ADD_ENTRY, 5
    response.addResponse.status = 0
    with pytest.raises(ProtocolError, match="addResponse without ledgerId, entryId"):
        m.decode_response(response.SerializePartialToString())


def test_the_name_of_a_plugin_is_text() -> None:
    hostile = b"\x0a\x02\xff\xfe\x12\x00"
    with pytest.raises(ProtocolError, match="plugin name is no text"):
        m.decode_auth_message(hostile)
    assert "plugin name is no text" in reason(raw(5) + b"\xb2\x06" + bytes([len(hostile)]) + hostile)


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_a_message_that_is_cut_off_is_refused_or_makes_no_sense(name: str) -> None:
    whole = bytes(body(GOLDEN[name]))
    decode = m.decode_request if name in REQUESTS or name == "read context" else m.decode_response
    good = decode(whole)  # type: ignore[operator]
    for size in range(len(whole)):
        try:
            found = decode(whole[:size])  # type: ignore[operator]
        except ProtocolError:
            continue
        assert found != good or name == "read context"


@given(st.binary(max_size=120), st.sampled_from([b"", raw(1), raw(2), raw(5), raw(6), raw(9)]))
def test_any_bytes_are_a_message_or_are_refused(found: bytes, begin: bytes) -> None:
    for decode in m.decode_request, m.decode_response:
        try:
            message = decode(begin + found)  # type: ignore[operator]
        except ProtocolError:
            continue
        assert message[0]


ids = st.integers(0, 1 << 62)


@given(
    st.one_of(
        st.builds(
            m.ReadEntryRequest,
            ids,
            st.integers(-1, 1 << 62),
            st.binary(max_size=20),
            st.booleans(),
            st.none() | st.integers(-1, 1 << 62),
            st.none() | st.integers(0, 1 << 40),
            st.just(False),  # a read that fences can't ask for more
        ),
        st.builds(m.AuthExchange, st.text(max_size=10), st.binary(max_size=10)),
        st.builds(m.BookieInfoRequest, st.integers(-(1 << 63), (1 << 63) - 1)),
        st.builds(m.ForceLedgerRequest, ids),
    ),
    st.integers(0, (1 << 64) - 1),
    st.integers(0, (1 << 32) - 1),
)
def test_requests_come_back(request: m.Request, txn: int, priority: int) -> None:
    header, found = m.decode_request(b"".join(m.encode_request(request, txn, priority))[4:])
    assert (found, header.transaction_id, header.priority) == (request, txn, priority)


def test_many_empty_pairs_of_context_take_little_memory() -> None:
    """A pair of two bytes would be an object of its own, if the message had the field."""
    assert "requestContext" not in message_class("Request").DESCRIPTOR.fields_by_name
    hostile = raw(readRequest={"ledgerId": 1, "entryId": 2}) + b"\xc2\x0c\x00" * 10_000
    assert m.decode_request(hostile)[1] == m.ReadEntryRequest(1, 2)
