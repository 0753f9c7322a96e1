"""Entry records: layout, digests, and what damage does to them."""

import itertools
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkpy.errors import ConfigError, CorruptDataError, DigestMismatchError
from bkpy.protocol.wire.records import (
    EXPLICIT_LAC_ENTRY,
    HEADER_BYTES,
    NUMBERED,
    NUMBERED_STAMP_BYTES,
    PLAIN,
    STAMP_BYTES,
    RecordCodec,
    digest_key,
    entry_id_at,
    last_add_confirmed_at,
    ledger_key,
    number_at,
    stamp_at,
    walk,
)

CODECS = [("crc32c", b""), ("hmac-sha256", digest_key(b"secret"))]


def encode(codec: RecordCodec, payloads: list[bytes], first: int = 0, stride: int = 1, lac: int = -1) -> bytes:
    parts: list[bytes] = []
    lengths = list(itertools.accumulate(map(len, payloads)))
    codec.encode(parts, payloads, first, stride, lac, lengths)
    data = b"".join(parts)
    if stride == 1:  # the short way makes the same bytes
        run: list[bytes] = []
        assert codec.encode_run(run, payloads, first, lac, 0) == sum(map(len, payloads))
        assert b"".join(run) == data
    return data


def scan(codec: RecordCodec, data: bytes, first: int, last: int) -> list[bytes]:
    starts, ends = array("q"), array("q")
    following = codec.scan(memoryview(data), first, last, starts, ends)
    assert following == first + len(starts)
    return [data[a:b] for a, b in zip(starts, ends, strict=True)]


@pytest.mark.parametrize(("digest", "key"), CODECS)
@given(payloads=st.lists(st.binary(max_size=200) | st.just(b"x" * 2000), max_size=20), first=st.integers(0, 2**62))
def test_what_is_encoded_is_read_back(digest: str, key: bytes, payloads: list[bytes], first: int) -> None:
    codec = RecordCodec(7, digest, key)
    assert scan(codec, encode(codec, payloads, first), first, first + 100) == payloads


@pytest.mark.parametrize(("digest", "key"), CODECS)
def test_payloads_are_found_in_whole_records_put_together(digest: str, key: bytes) -> None:
    codec = RecordCodec(7, digest, key)
    payloads = [b"one", b"", b"three" * 100]
    view = memoryview(encode(codec, payloads))
    records = [view[header.offset : header.end] for header in walk(view)]
    starts, ends = array("q"), array("q")
    codec.locate(records, starts, ends)
    assert [bytes(view[start:end]) for start, end in zip(starts, ends, strict=True)] == payloads
    assert [codec.record_end(end) for end in ends] == [header.end for header in walk(view)]
    assert {len(r) - len(p) for r, p in zip(records, payloads, strict=True)} == {codec.overhead_bytes}


@pytest.mark.parametrize(("digest", "key"), CODECS)
@given(
    payloads=st.lists(st.binary(max_size=200) | st.just(b"x" * 2000) | st.just(b"x" * 1016), min_size=1, max_size=20),
    at_ms=st.integers(-(2**63), 2**63 - 1),
)
def test_stamps_lie_before_the_payloads_that_are_read_back(
    digest: str, key: bytes, payloads: list[bytes], at_ms: int
) -> None:
    writing = RecordCodec(7, digest, key, stamp=lambda: at_ms)
    reading = RecordCodec(7, digest, key, stamp_format=PLAIN)
    plain = RecordCodec(7, digest, key)
    parts: list[bytes] = []
    end = writing.encode_run(parts, payloads, 3, 1, 100)
    data = b"".join(parts)
    assert end == 100 + sum(len(payload) + STAMP_BYTES for payload in payloads)
    assert scan(reading, data, 3, 100) == scan(writing, data, 3, 100) == payloads
    assert scan(plain, data, 3, 100) == [at_ms.to_bytes(8, "little", signed=True) + payload for payload in payloads]
    starts, ends = array("q"), array("q")
    reading.scan(memoryview(data), 3, 100, starts, ends)
    assert {stamp_at(data, start) for start in starts} == {at_ms}
    assert [header.length for header in walk(data)] == writing.lengths(payloads, 100)
    assert len(data) == sum(len(payload) + reading.overhead_bytes for payload in payloads)

    view, located = memoryview(data), (array("q"), array("q"))
    reading.locate([view[header.offset : header.end] for header in walk(view)], *located)
    assert located == (starts, ends)

    cut: list[bytes] = []  # as a large batch leaves, or one of a striped ledger
    writing.encode(cut, payloads, 3, 1, 1, writing.lengths(payloads, 100), writing.stamp())
    assert b"".join(cut) == data


def test_one_time_is_asked_for_what_leaves_together() -> None:
    asked = iter([1000])
    codec = RecordCodec(1, stamp=lambda: next(asked))
    parts: list[bytes] = []
    codec.encode_run(parts, [b"a", b"b", b"c"], 0, -1, 0)
    assert RecordCodec(1, stamp_format=PLAIN).stamp() == RecordCodec(1).stamp() == b""


def test_an_explicit_last_add_confirmed_has_no_stamp() -> None:
    stamped = RecordCodec(1, stamp=lambda: 1000)
    assert stamped.explicit_lac(4, 50) == RecordCodec(1).explicit_lac(4, 50)


def test_headers_carry_ids_last_add_confirmed_and_cumulative_length() -> None:
    data = encode(RecordCodec(1), [b"ab", b"", b"cde"], first=10, stride=4, lac=9)
    assert [(h.entry_id, h.last_add_confirmed, h.length) for h in walk(data)] == [(10, 9, 2), (14, 9, 2), (18, 9, 5)]


@pytest.mark.parametrize("lac", [-1, 0, 2**62])
def test_a_field_of_a_header_can_be_read_alone(lac: int) -> None:
    data = encode(RecordCodec(1), [b"ab", b"", b"cde"], first=10, stride=4, lac=lac)
    headers = list(walk(data))
    assert [entry_id_at(data, h.offset) for h in headers] == [10, 14, 18]
    assert [last_add_confirmed_at(memoryview(data), h.offset) for h in headers] == [lac, lac, lac]


@pytest.mark.parametrize(("digest", "key"), CODECS)
def test_a_flip_of_any_byte_is_noticed(digest: str, key: bytes) -> None:
    codec = RecordCodec(3, digest, key)
    data = encode(codec, [b"payload"], first=5)
    for i in range(len(data)):
        damaged = bytearray(data)
        damaged[i] ^= 0x40
        assert scan(codec, bytes(damaged), 5, 5) == [], f"byte {i}"


def test_a_record_of_another_ledger_does_not_verify() -> None:
    data = encode(RecordCodec(1), [b"x"])
    with pytest.raises(DigestMismatchError):
        RecordCodec(2).check(memoryview(data), 0, len(data))


def test_a_record_with_another_password_does_not_verify() -> None:
    data = encode(RecordCodec(1, "hmac-sha256", digest_key(b"a")), [b"x"])
    assert scan(RecordCodec(1, "hmac-sha256", digest_key(b"b")), data, 0, 0) == []
    assert scan(RecordCodec(1, "hmac-sha256", digest_key(b"a")), data, 0, 0) == [b"x"]


def test_the_crc_of_a_mac_ledger_can_be_checked_without_the_password() -> None:
    data = encode(RecordCodec(1, "hmac-sha256", digest_key(b"a")), [b"x"])
    RecordCodec(1).check(memoryview(data), 0, len(data))


def test_a_payload_that_imitates_a_record_is_only_a_payload() -> None:
    codec = RecordCodec(1)
    inner = encode(codec, [b"inner"], first=1)
    assert scan(codec, encode(codec, [inner, b"next"]), 0, 1) == [inner, b"next"]


@given(cut=st.integers(1, 3 * (HEADER_BYTES + 4) - 1))
def test_walking_cut_bytes_is_an_error_never_a_short_answer(cut: int) -> None:
    data = encode(RecordCodec(1), [b"aaaa", b"bbbb", b"cccc"])[:-cut]
    if len(data) % (HEADER_BYTES + 4):
        with pytest.raises(CorruptDataError):
            list(walk(data))
    else:
        assert len(list(walk(data))) == len(data) // (HEADER_BYTES + 4)


def test_explicit_last_add_confirmed_is_a_record_without_an_entry() -> None:
    codec = RecordCodec(4)
    record = codec.explicit_lac(17, 1234)
    (header,) = walk(record)
    codec.check(memoryview(record), header.offset, header.end)
    assert (header.entry_id, header.last_add_confirmed, header.length) == (EXPLICIT_LAC_ENTRY, 17, 1234)


def test_keys_are_different_for_different_uses_and_passwords() -> None:
    keys = {ledger_key(b""), digest_key(b""), ledger_key(b"p"), digest_key(b"p")}
    assert len(keys) == 4
    assert {len(key) for key in keys} == {32}


def test_an_unknown_digest_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="md5"):
        RecordCodec(1, "md5")


@pytest.mark.parametrize("password", ["text", None, bytearray(b"p"), 1])
def test_a_password_is_bytes(password: Any) -> None:
    with pytest.raises(ConfigError, match=f"not {type(password).__name__}"):
        ledger_key(password)


@pytest.mark.parametrize(("digest", "key"), CODECS)
@given(
    payloads=st.lists(st.binary(max_size=200) | st.just(b"x" * 2000), min_size=1, max_size=20),
    at_ms=st.integers(-(2**63), 2**63 - 1),
    producer=st.integers(0, 2**32 - 1),
    first=st.integers(0, 2**62),
    stride=st.integers(1, 4),
)
def test_numbers_lie_before_the_times_of_entries(
    digest: str, key: bytes, payloads: list[bytes], at_ms: int, producer: int, first: int, stride: int
) -> None:
    writing = RecordCodec(7, digest, key, stamp=lambda: at_ms, producer=producer)
    writing.first_sequence = first
    reading = RecordCodec(7, digest, key, stamp_format=NUMBERED)
    parts: list[bytes] = []
    end = writing.encode_run(parts, payloads, 3, 1, 100)
    data = b"".join(parts)
    assert end == 100 + sum(len(payload) + NUMBERED_STAMP_BYTES for payload in payloads)
    assert len(data) == sum(len(payload) + reading.overhead_bytes for payload in payloads)
    assert scan(reading, data, 3, 100) == scan(writing, data, 3, 100) == payloads
    starts, ends = array("q"), array("q")
    reading.scan(memoryview(data), 3, 100, starts, ends)
    assert {stamp_at(data, start) for start in starts} == {at_ms}
    assert [number_at(data, start) for start in starts] == [(producer, first + 3 + i) for i in range(len(payloads))]

    cut: list[bytes] = []  # as a large batch leaves, or one of a striped ledger
    writing.encode(cut, payloads, 3, stride, 1, writing.lengths(payloads, 100), writing.stamp())
    view, located = memoryview(b"".join(cut)), (array("q"), array("q"))
    reading.locate([view[header.offset : header.end] for header in walk(view)], *located)
    assert [number_at(view, start)[1] for start in located[0]] == [first + 3 + stride * i for i in range(len(payloads))]
    assert writing.explicit_lac(4, 50) == RecordCodec(7, digest, key).explicit_lac(4, 50)
