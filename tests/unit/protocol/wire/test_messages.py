"""Heads: round trips, and that no bytes get past the decoders as a wrong type."""

import contextlib
import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkpy import errors
from bkpy.errors import ProtocolError
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Status

KEY = b"k" * 32

DECODERS = [
    lambda head: m.decode_add(head, 64),
    m.decode_present,
    m.decode_read,
    m.decode_read_reply,
    m.decode_read_lac,
    m.decode_read_lac_reply,
    m.decode_write_lac,
    m.decode_wait_lac,
    m.decode_force,
    m.decode_hello,
    m.decode_hello_reply,
    m.decode_error,
    m.reply_status,
    lambda head: m.decode_add_reply(head, 2),
]

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=7) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=20,
)


@pytest.mark.parametrize("decode", DECODERS)
@given(data=st.binary(max_size=60))
def test_random_bytes_are_a_message_or_a_protocol_error(decode: Any, data: bytes) -> None:
    try:
        decode(data)
    except ProtocolError:
        return


@given(value=JSON)
def test_any_value_is_a_message_or_a_protocol_error(value: Any) -> None:
    head = msgpack.packb(value)
    for decode in DECODERS:
        with contextlib.suppress(ProtocolError):
            decode(head)


def test_add_columns_are_read_back() -> None:
    columns = m.AddColumns(0, [1, 2], [0, 5], [1, 1], 1, [32, 40])
    assert m.decode_add(m.pack(list(columns)), 72) == columns


@pytest.mark.parametrize(
    ("columns", "body_bytes"),
    [
        ([0, [], [], [], 1, []], 0),
        ([0, [1], [0], [1], 1, [32]], 33),  # sizes don't add up
        ([0, [1], [0], [2], 1, [40]], 40),  # two records can't be that small
        ([0, [1], [0], [0], 1, [32]], 32),
        ([0, [-1], [0], [1], 1, [32]], 32),
        ([0, [1], [-1], [1], 1, [32]], 32),
        ([0, [1], [0], [1], 0, [32]], 32),
        ([0, [1], [0], [1], [1, 1], [32]], 32),
        ([0, [True], [0], [1], 1, [32]], 32),
        ([0, ["1"], [0], [1], 1, [32]], 32),
        ([0, [1.0], [0], [1], 1, [32]], 32),
        ([0, [1], [2**63 - 1], [1], 1, [32]], 32),
        ([0, [2**63], [0], [1], 1, [32]], 32),
        ([0, [1, 2], [0], [1], 1, [32]], 32),
        ([0, [1, 1], [0, 0], [1, 1], 1, [-32, 96]], 64),
    ],
)
def test_an_add_whose_columns_do_not_fit_is_refused(columns: list[Any], body_bytes: int) -> None:
    with pytest.raises(ProtocolError):
        m.decode_add(m.pack(columns), body_bytes)


@pytest.mark.parametrize(
    ("decode", "head"),
    [
        (m.decode_read_reply, [0, 5, [[1]], 5]),
        (m.decode_read_reply, [0, 5, [1, 2], 5]),
        (m.decode_read_reply, [0, 5, [[1, True]], 5]),
        (m.decode_read_reply, [0, 5, [[3, 2]], 5]),
        (m.decode_read_reply, [0, 5, [[-1, 2]], 5]),
        (m.decode_read_reply, [0, 5, [[1, 2**63]], 5]),
        (m.decode_read_reply, [0, -2, [], 5]),
        (m.decode_read_reply, [0, 2**63, [], 5]),
        (m.decode_read_reply, [0, 5, [], -2]),
        (m.decode_read_reply, [0, 5, [], 2**63]),
        (m.decode_read_lac_reply, [0, -1, False]),
        (m.decode_read_lac_reply, [0, 2**63, False]),
        (m.decode_hello_reply, [0, "bkpy", "a", -1, 1]),
        (m.decode_hello_reply, [0, "bkpy", "a", 1, 2**63]),
    ],
)
def test_a_reply_out_of_range_is_refused(decode: Any, head: list[Any]) -> None:
    with pytest.raises(ProtocolError):
        decode(m.pack(head))


def test_replies_are_read_back() -> None:
    assert m.decode_read_reply(m.pack([0, -1, [(1, 1), (3, 2**63 - 1)], -1])) == (0, -1, [(1, 1), (3, 2**63 - 1)], -1)
    assert m.decode_read_lac_reply(m.pack([0, 0, True])) == (0, 0, True)
    assert m.decode_hello_reply(m.pack([0, "bkpy", "a", 0, 2**63 - 1])) == (0, "bkpy", "a", 0, 2**63 - 1)


def test_a_long_poll_is_read_back() -> None:
    assert m.decode_wait_lac(m.pack([5, -1, False, 0])) == m.WaitLac(5, -1, False, 0)


@pytest.mark.parametrize("head", [[-1, 0, False, 1], [2**63, 0, False, 1], [1, -2, False, 1], [1, 0, False, -1]])
def test_a_long_poll_out_of_range_is_refused(head: list[Any]) -> None:
    with pytest.raises(ProtocolError):
        m.decode_wait_lac(m.pack(head))


@pytest.mark.parametrize("head", [[1, 0, 0, 1], [True, 0, False, 1], [1, 0, False], [1, 0, False, 1.0]])
def test_a_long_poll_with_wrong_types_is_refused(head: list[Any]) -> None:
    with pytest.raises(ProtocolError):
        m.decode_wait_lac(m.pack(head))


@pytest.mark.parametrize("head", [[-1], [2**63], ["1"], [True], [], [1, 2]])
def test_a_force_of_no_ledger_is_refused(head: list[Any]) -> None:
    with pytest.raises(ProtocolError):
        m.decode_force(m.pack(head))


@pytest.mark.parametrize(
    ("op", "head", "ledgers"),
    [
        (m.Op.READ, [0, 7, 1, 2, 100], (7,)),
        (m.Op.READ_LAC, [0, 7], (7,)),
        (m.Op.WRITE_LAC, [7], (7,)),
        (m.Op.FORCE, [7], (7,)),
        (m.Op.HELLO, ["software", "", "bookie"], ()),
    ],
)
def test_a_request_says_of_what_ledger_it_is(op: m.Op, head: list[Any], ledgers: tuple[int, ...]) -> None:
    assert m.ledgers_of_request(op, m.pack(head)) == ledgers


def test_select_keeps_columns_together() -> None:
    columns = m.AddColumns(0, [1, 2, 3], [10, 20, 30], [1, 2, 3], [4, 5, 6], [32, 64, 96])
    assert m.select(columns, [0, 2]) == m.AddColumns(0, [1, 3], [10, 30], [1, 3], [4, 6], [32, 96])


def test_every_status_but_ok_has_an_error() -> None:
    for status in Status:
        if status is not Status.OK:
            error = m.error_of(status, ledger_id=3, bookie="b")
            assert isinstance(error, errors.BookKeeperError)
            assert "ledger 3" in str(error)


def test_an_unknown_status_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="77"):
        m.status_of(77)


def test_present_wants_whole_keys() -> None:
    assert m.decode_present(m.pack([[1], [KEY]])) == m.Present([1], [KEY])
    with pytest.raises(ProtocolError):
        m.decode_present(m.pack([[1], [KEY[:-1]]]))


# --- arrays that claim more than there is -----------------------------------------------------------------------------


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize(
    "header", [b"\xdd\x00\x00\x10\x00", b"\xdc\x10\x00", b"\x91\xdc\xff\xff", b"\x92\xc0\xdd\x00\x00\x10\x00"]
)
@pytest.mark.parametrize("size", [100, 4096, 65_536])
def test_arrays_inside_arrays_cost_no_more_than_the_bytes_that_came(decode: Any, header: bytes, size: int) -> None:
    """A list is made as long as its header says, before its first element is looked at."""
    head = header * min(1000, size // len(header))
    head += b"\xc0" * (size - len(head))
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            decode(head)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 300 * size


@pytest.mark.parametrize("decode", DECODERS)
def test_an_extension_hides_no_arrays_behind_it(decode: Any) -> None:
    """What lies in it isn't looked at: it could look like the header of a text that spans all the rest."""
    size = 65_536
    extension = b"\xc7\x05\x01" + b"\xdb\x00\x00\xff\xff"
    head = b"\x92" + extension + b"\xdc\x10\x00" * 1000
    head += b"\xc0" * (size - len(head))
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            decode(head)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 300 * size


@pytest.mark.parametrize("count", [1, 20, 1000, pytest.param(m.BATCHES_MAX, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("number", [0xDC, 0xDDDD, 0xDCDCDCDC, 0xDDDDDDDD_DDDDDDDD >> 1])
def test_ids_and_keys_that_look_like_headers_of_arrays_are_read_back(count: int, number: int) -> None:
    columns = [0, [number] * count, [number >> 8] * count, [1] * count, 1, [64] * count]
    assert list(m.decode_add(m.pack(columns), 64 * count)) == columns
    for key in (b"\xdd" * 32, b"\xdc\x00" * 16):
        assert m.decode_present(m.pack([[number] * count, [key] * count])).keys == [key] * count
    unknown = [[number >> 16, number]] * count
    assert len(m.decode_read_reply(m.pack([0, 9, unknown, -1])).unknown) == count


@pytest.mark.thorough
@given(st.lists(JSON, min_size=1, max_size=30))
def test_what_a_packer_has_made_never_claims_too_much(values: list[Any]) -> None:
    marks = [b"\xdc" * 40, "\u0700" * 40, 0xDDDD]  # so that it is looked at closely
    head = msgpack.packb([*marks, *values, *([0xDC] * 100)])
    with pytest.raises(ProtocolError) as refused:
        m.decode_add_reply(head, 1)
    assert "claim" not in refused.value.message
