"""Blocks of records verified at once: always the same as one by one, whatever is in them."""

from __future__ import annotations

import random
import struct
from array import array

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from bkpy.protocol.wire.block_scan import scan_block
from bkpy.protocol.wire.records import HEADER_BYTES, PLAIN, STAMP_BYTES, RecordCodec, digest_key

LEDGER = 7
FIRST = 2**40 - 3  # more than 32 bits have, and a carry soon
ALL = 2**62

CODEC = RecordCodec(LEDGER)
STAMPED = RecordCodec(LEDGER, stamp_format=PLAIN)

ALIKE = [b"%d?" % i for i in range(4)]
UNLIKE = [b"", b"x" * 9, b"yz", b""]


def encoded(payloads: list[bytes], ledger_id: int = LEDGER, first: int = FIRST, *, stamped: bool = False) -> bytearray:
    codec = RecordCodec(ledger_id, stamp=(lambda: 1000) if stamped else None)
    parts: list[bytes] = []
    codec.encode_run(parts, payloads, first, first - 1, 1000)
    return bytearray(b"".join(parts))


def scanned(codec: RecordCodec, data: bytes, last: int, *, by_blocks: bool) -> tuple[int, array[int], array[int]]:
    starts, ends = array("q", [5]), array("q", [6])  # of something before, which is left alone
    return codec.scan(memoryview(data), FIRST, last, starts, ends, by_blocks=by_blocks), starts, ends


def check(data: bytes, last: int = ALL, *, stamped: bool = False) -> tuple[int, int]:
    """How many entries a block has, and how many of them are verified at once: all or none, and the same ones."""
    codec = STAMPED if stamped else CODEC
    following, starts, ends = expected = scanned(codec, data, last, by_blocks=False)
    assert scanned(codec, data, last, by_blocks=True) == expected
    before = bytes(data)
    some = array("q", [5]), array("q", [6])
    seed, payload_at = crc32c(struct.pack("<q", LEDGER)), HEADER_BYTES + STAMP_BYTES * stamped
    done = scan_block(memoryview(data), FIRST, last, seed, payload_at, *some)
    assert some == (starts[: done + 1], ends[: done + 1])
    assert data == before
    again = array("q", [5]), array("q", [6])
    assert scan_block(memoryview(before), FIRST, last, seed, payload_at, *again) == done  # bytes that can't be changed
    assert again == some
    assert done in (0, following - FIRST)
    return following - FIRST, done


@pytest.mark.parametrize("payloads", [ALIKE, UNLIKE])
@pytest.mark.parametrize("stamped", [False, True])
def test_a_block_that_is_cut_anywhere_has_what_is_whole(payloads: list[bytes], stamped: bool) -> None:
    data = encoded(payloads, stamped=stamped)
    found = [check(data[:size], stamped=stamped) for size in range(len(data) + 1)]
    assert all(count == done for count, done in found)
    assert sorted({count for count, _ in found}) == [0, 1, 2, 3, 4]
    for wanted in range(-1, 6):
        assert check(data, FIRST + wanted - 1, stamped=stamped) == (min(max(wanted, 0), 4),) * 2


@pytest.mark.parametrize("payloads", [ALIKE, UNLIKE])
def test_every_flip_of_a_byte_is_found(payloads: list[bytes]) -> None:
    data = encoded(payloads)
    for at in range(len(data)):
        for flip in (1, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[at] ^= flip
            count, _ = check(damaged)
            assert count < len(payloads), at


@pytest.mark.thorough
def test_two_flipped_bits_are_found() -> None:
    data = encoded([b"a", b"b"])
    for one in range(0, len(data) * 8, 97):
        for two in range(len(data) * 8):
            if one != two:
                damaged = bytearray(data)
                damaged[one // 8] ^= 1 << one % 8
                damaged[two // 8] ^= 1 << two % 8
                assert check(damaged)[0] < 2, (one, two)


@given(
    payloads=st.lists(st.binary(max_size=40), max_size=12) | st.lists(st.binary(min_size=3, max_size=3), max_size=12),
    last=st.integers(-1, 14),
    damage=st.lists(st.tuples(st.integers(0, 2000), st.integers(1, 255)), max_size=3),
    cut=st.integers(0, 100),
    stamped=st.booleans(),
)
def test_what_is_verified_at_once_is_what_is_verified_one_by_one(
    payloads: list[bytes], last: int, damage: list[tuple[int, int]], cut: int, stamped: bool
) -> None:
    data = encoded(payloads, stamped=stamped)
    for at, flip in damage if data else ():
        data[at % len(data)] ^= flip
    count, done = check(data[: max(0, len(data) - cut)] if cut < 50 else data, FIRST + last, stamped=stamped)
    assert done == count or damage


def test_records_that_belong_elsewhere_are_no_entries_of_the_block() -> None:
    for payloads in (ALIKE, UNLIKE):
        assert check(encoded(payloads, LEDGER + 1)) == (0, 0)
        assert check(encoded(payloads, first=FIRST + 1)) == (0, 0)
        head, tail = payloads[:2], payloads[2:]
        assert check(encoded(head) + encoded(tail, LEDGER + 1, FIRST + 2)) == (2, 0)
        assert check(encoded(head) + encoded(tail, first=FIRST + 3)) == (2, 0)
        assert check(encoded(head) + encoded(tail, first=FIRST + 1)) == (2, 0)
        assert check(encoded(head) + encoded(tail, first=FIRST + 2)) == (4, 4)


def test_checksums_that_are_wrong_in_several_records_do_not_make_up_for_each_other() -> None:
    data = encoded(ALIKE)
    size = len(data) // len(ALIKE)
    places = [slice(i * size + 4, i * size + 8) for i in range(len(ALIKE))]
    for one in range(len(places)):
        for two in range(one):
            damaged = bytearray(data)
            damaged[places[one]], damaged[places[two]] = data[places[two]], data[places[one]]
            assert check(damaged) == (two, 0)
            damaged = bytearray(data)
            for place in (places[one], places[two]):
                damaged[place] = bytes(byte ^ 0xFF for byte in data[place])
            assert check(damaged) == (two, 0)


@pytest.mark.parametrize("sizes", [[9] * 100, [i % 37 for i in range(100)], [9] * 99 + [500], [5000] + [9] * 99])
def test_large_blocks_are_scanned_alike(sizes: list[int]) -> None:
    rng = random.Random(1)
    data = encoded([rng.randbytes(size) for size in sizes])
    assert check(data) == (100, 100)
    for _ in range(30):
        assert check(data[: rng.randrange(len(data))], FIRST + rng.randrange(60, 110))
        damaged = bytearray(data)
        damaged[rng.randrange(len(data))] ^= rng.randrange(1, 256)
        assert check(damaged)[0] < 100


def test_a_ledger_with_macs_has_each_of_them_checked() -> None:
    codec = RecordCodec(LEDGER, "hmac-sha256", digest_key(b"secret"))
    parts: list[bytes] = []
    codec.encode_run(parts, [b"entry"] * 80, FIRST, -1, 0)
    data = b"".join(parts)
    assert scanned(codec, data, ALL, by_blocks=True) == scanned(codec, data, ALL, by_blocks=False)
    # Another key's: right in all that a checksum can tell.
    other = RecordCodec(LEDGER, "hmac-sha256", digest_key(b"other"))
    assert scanned(other, data, ALL, by_blocks=True)[0] == FIRST
