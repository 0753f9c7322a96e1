"""Entries: Java's own bytes, all digests, hostile bytes, and the way to a record and back."""

from __future__ import annotations

import struct
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.golden.bookkeeper import reading

from bkpy.errors import ConfigError, CorruptDataError, DigestMismatchError, ProtocolError
from bkpy.protocol.bookkeeper.entries import (
    ENTRY_ID_MAX,
    DigestType,
    EntryCodec,
    check_entry,
    check_lac,
    lac_to_record,
    master_key,
    record_to_lac,
    sized_entries,
    to_entry,
    to_record,
)
from bkpy.protocol.wire.records import RecordCodec, is_explicit_lac, walk

GOLDEN = reading.read("wire.txt")
LEDGER = 123456789012
PASSWORD = b"secret"

types = st.sampled_from(DigestType)
ids = st.integers(0, ENTRY_ID_MAX)
i64 = st.integers(-(1 << 63), (1 << 63) - 1)


def data(size: int) -> bytes:
    return bytes(i * 7 & 255 for i in range(size))


ENTRIES = {"first": (0, -1, 20, data(20)), "empty": (5, 4, 1000, b""), "large": (1 << 40, 6, 1 << 50, data(3000))}


@pytest.mark.parametrize("digest_type", DigestType)
@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_is_as_java_makes_it(digest_type: DigestType, name: str) -> None:
    codec, golden = EntryCodec(LEDGER, digest_type, PASSWORD), GOLDEN[f"entry {digest_type.name} {name}"]
    assert codec.encode(*ENTRIES[name]) == golden
    assert codec.decode(golden) == ENTRIES[name]


@pytest.mark.parametrize("digest_type", DigestType)
def test_an_explicit_last_add_confirmed_is_as_java_makes_it(digest_type: DigestType) -> None:
    codec = EntryCodec(LEDGER, digest_type, PASSWORD)
    for name, confirmed in {"": 41, " none": -1}.items():
        golden = GOLDEN[f"lac {digest_type.name}{name}"]
        assert codec.encode_lac(confirmed) == golden
        assert codec.decode_lac(golden) == confirmed


def test_master_keys_are_java_s_also_without_a_password() -> None:
    assert master_key(PASSWORD) == GOLDEN["key secret"]
    assert master_key(b"") == GOLDEN["key empty"]
    with pytest.raises(ConfigError, match="bytes, not str"):
        master_key("secret")  # type: ignore[arg-type]


def test_every_golden_entry_was_looked_at() -> None:
    looked_at = {f"entry {kind.name} {name}" for kind in DigestType for name in ENTRIES}
    looked_at |= {f"lac {kind.name}{name}" for kind in DigestType for name in ("", " none")}
    assert looked_at | {"key secret", "key empty"} == {name for name in GOLDEN if not name.startswith(("v2", "v3"))}


@pytest.mark.parametrize("digest_type", [t for t in DigestType if t != DigestType.DUMMY])
@pytest.mark.parametrize("size", [0, 1, 100, 2000])
def test_no_changed_bit_verifies(digest_type: DigestType, size: int) -> None:
    codec = EntryCodec(LEDGER, digest_type, PASSWORD)
    for good, decode in (codec.encode(3, 2, 500, data(size)), codec.decode), (codec.encode_lac(3), codec.decode_lac):
        for at in range(min(len(good), 60)):
            bad = bytearray(good)
            bad[at] ^= 1
            with pytest.raises(DigestMismatchError, match=str(LEDGER)):
                decode(bad)  # type: ignore[operator]


@given(types, st.binary(max_size=80))
def test_any_bytes_are_an_entry_or_are_refused(digest_type: DigestType, found: bytes) -> None:
    codec = EntryCodec(LEDGER, digest_type, PASSWORD)
    for decode in (codec.decode, codec.decode_lac):
        with pytest.raises(DigestMismatchError):
            decode(found)  # type: ignore[operator]


def test_another_ledgers_entry_or_password_is_refused() -> None:
    for digest_type in DigestType:
        mine, other = EntryCodec(1, digest_type, b"a"), EntryCodec(2, digest_type, b"a")
        with pytest.raises(DigestMismatchError, match="the entry is of ledger 2"):
            mine.decode(other.encode(0, -1, 1, b"x"))
        with pytest.raises(DigestMismatchError, match="the last add confirmed is of ledger 2"):
            mine.decode_lac(other.encode_lac(0))
    with pytest.raises(DigestMismatchError, match="HMAC doesn't match"):
        EntryCodec(1, DigestType.HMAC, b"a").decode(EntryCodec(1, DigestType.HMAC, b"b").encode(0, -1, 1, b"x"))


def test_a_last_add_confirmed_has_nothing_behind_its_digest() -> None:
    codec = EntryCodec(1, DigestType.DUMMY)
    with pytest.raises(DigestMismatchError, match="17 bytes"):
        codec.decode_lac(codec.encode_lac(3) + b"x")


@given(types, st.integers(0, 1 << 62), ids, i64, i64, st.binary(max_size=1500))
def test_entries_come_back(
    digest_type: DigestType, ledger_id: int, entry_id: int, confirmed: int, length: int, payload: bytes
) -> None:
    codec = EntryCodec(ledger_id, digest_type, PASSWORD)
    assert codec.decode(codec.encode(entry_id, confirmed, length, payload)) == (entry_id, confirmed, length, payload)
    assert codec.decode_lac(codec.encode_lac(confirmed)) == confirmed


# --- records --------------------------------------------------------------------------------------------------------


@given(st.integers(0, (1 << 63) - 1), ids, i64, i64, st.binary(max_size=2000))
def test_an_entry_is_one_record_and_loses_nothing(
    ledger_id: int, entry_id: int, confirmed: int, length: int, rest: bytes
) -> None:
    entry = struct.pack(">qqqq", ledger_id, entry_id, confirmed, length) + rest  # whatever the digest is
    assert check_entry(entry) == (ledger_id, entry_id)
    record = to_record(entry)
    assert len(record) == len(entry)
    assert to_entry(ledger_id, record) == to_entry(ledger_id, memoryview(record)) == entry
    starts, ends = array("q"), array("q")
    assert RecordCodec(ledger_id).scan(memoryview(record), entry_id, entry_id, starts, ends) == entry_id + 1
    assert record[starts[0] : ends[0]] == rest
    (header,) = walk(record)
    assert (header.entry_id, header.last_add_confirmed, header.length) == (entry_id, confirmed, length)


def test_a_record_is_of_its_ledger() -> None:
    record = memoryview(to_record(EntryCodec(1, DigestType.CRC32).encode(0, -1, 1, b"x")))
    RecordCodec(1).check(record, 0, len(record))
    with pytest.raises(DigestMismatchError):
        RecordCodec(2).check(record, 0, len(record))


@pytest.mark.parametrize("size", range(32))
def test_less_than_a_header_is_no_entry(size: int) -> None:
    with pytest.raises(ProtocolError, match=f"{size} bytes are too few"):
        check_entry(bytes(size))


@pytest.mark.parametrize(("ledger_id", "entry_id"), [(-1, 0), (0, -1), (-(1 << 63), 5), (5, (1 << 63) - 1)])
def test_an_id_that_no_entry_can_have_is_refused(ledger_id: int, entry_id: int) -> None:
    with pytest.raises(ProtocolError, match=f"id {entry_id} in ledger {ledger_id}"):
        check_entry(struct.pack(">qqqq", ledger_id, entry_id, 0, 0))


@given(st.integers(0, (1 << 63) - 1), st.integers(-1, (1 << 63) - 1), st.sampled_from([0, 4, 8, 20]))
def test_an_explicit_last_add_confirmed_is_one_record_and_loses_nothing(
    ledger_id: int, confirmed: int, digest_bytes: int
) -> None:
    body = struct.pack(">qq", ledger_id, confirmed) + data(digest_bytes)
    assert check_lac(body) == (ledger_id, confirmed)
    record = lac_to_record(body)
    assert record_to_lac(ledger_id, record) == body
    RecordCodec(ledger_id).check(memoryview(record), 0, len(record))
    (header,) = walk(record)
    assert (header.entry_id, header.last_add_confirmed, header.length) == (-1, confirmed, 0)


def test_a_bookie_tells_such_a_record_from_its_own() -> None:
    """BookKeeper's has a digest of its own as payload; one without any is the same as bkpy's."""
    for digest_type in DigestType:
        record = memoryview(lac_to_record(EntryCodec(3, digest_type).encode_lac(7)))
        assert is_explicit_lac(record, 3) == (digest_type == DigestType.DUMMY)


@pytest.mark.parametrize("body", [b"", bytes(15), bytes(37), struct.pack(">qq", -1, 0), struct.pack(">qq", 0, -2)])
def test_what_is_no_explicit_last_add_confirmed_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="last add confirmed"):
        check_lac(body)


def test_a_record_that_is_cut_off_is_no_last_add_confirmed() -> None:
    with pytest.raises(CorruptDataError, match="31 bytes"):
        record_to_lac(3, bytes(31))


# --- entries of many records ------------------------------------------------------------------------------------------


def records(*entry_ids: int) -> bytes:
    """The records of these entries, of 36 bytes and as many more as their id."""
    codec = EntryCodec(LEDGER, DigestType.CRC32C)
    return b"".join(to_record(codec.encode(i, i - 1, 10 * i, data(i))) for i in entry_ids)


def sized(*entry_ids: int) -> bytes:
    entries = [to_entry(LEDGER, records(i)) for i in entry_ids]
    return b"".join(struct.pack(">I", len(found)) + found for found in entries)


@pytest.mark.parametrize(
    ("segments", "first", "bytes_max", "expected"),
    [
        ([], 0, 1000, ()),
        ([(0, 1), (2,)], 0, 1000, (0, 1, 2)),
        ([(), (0,), (), (1,)], 0, 1000, (0, 1)),
        ([(0, 1), (2,)], 1, 1000, ()),
        ([(1, 2)], 0, 1000, ()),
        ([(0, 1, 3), (4,)], 0, 1000, (0, 1)),
        ([(0, 1), (3,)], 0, 1000, (0, 1)),
        ([(0,), (1, 2)], 0, 40 + 41, (0, 1)),
        ([(0,), (1, 2)], 0, 40 + 40, (0,)),
        ([(7, 8)], 7, 1, (7,)),
        ([(7, 8)], 7, -1, (7,)),
    ],
)
def test_entries_of_records_end_at_a_gap_and_at_the_limit(
    segments: list[tuple[int, ...]], first: int, bytes_max: int, expected: tuple[int, ...]
) -> None:
    buffers, size = sized_entries(LEDGER, [records(*ids) for ids in segments], first, bytes_max)
    assert b"".join(buffers) == sized(*expected)
    assert size == len(sized(*expected))


@pytest.mark.parametrize(
    ("found", "what"), [(records(0, 1)[:-1], "past its block"), (records(0) + b"x" * 31, "too few")]
)
def test_records_that_do_not_fill_their_block_have_no_entries(found: bytes, what: str) -> None:
    with pytest.raises(CorruptDataError, match=what):
        sized_entries(LEDGER, [records(), found], 0, 1000)
