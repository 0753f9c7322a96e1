"""Statuses in both directions: nothing but two of each protocol is a denial."""

from __future__ import annotations

from itertools import pairwise

import pytest

from bkpy.errors import LedgerFencedError, ReadOnlyBookieError, TooManyRequestsError
from bkpy.protocol.bookkeeper.statuses import (
    PACKET_CODES,
    STATUS_CODES,
    PacketCode,
    StatusCode,
    denies_entry,
    status_of_v2,
    status_of_v3,
)
from bkpy.protocol.wire.messages import Status, error_of

SAME = {Status.OK, Status.FENCED, Status.UNAUTHORIZED, Status.READ_ONLY, Status.TOO_MANY_REQUESTS, Status.BAD_REQUEST}
NUMBERS = [*StatusCode, *PacketCode, -1, 3, 99, 400, 508, 1 << 31]


def test_the_tables_are_total() -> None:
    assert STATUS_CODES.keys() == set(Status)
    assert PACKET_CODES.keys() == set(StatusCode)


def test_a_bookie_that_stops_gives_no_answer() -> None:
    assert [status for status, code in STATUS_CODES.items() if code is None] == [Status.UNAVAILABLE]


@pytest.mark.parametrize("status", SAME | {Status.NO_SUCH_LEDGER})
def test_what_both_sides_have_comes_back(status: Status) -> None:
    code = STATUS_CODES[status]
    assert code is not None
    assert status_of_v3(code) == status_of_v2(PACKET_CODES[code]) == status


def test_only_a_promise_of_bkpy_becomes_a_denial() -> None:
    codes = {status: code for status, code in STATUS_CODES.items() if code is not None}
    assert [status for status, code in codes.items() if denies_entry(code)] == [Status.NO_SUCH_LEDGER]
    assert [status for status, code in codes.items() if denies_entry(PACKET_CODES[code])] == [Status.NO_SUCH_LEDGER]


def test_only_two_numbers_of_each_protocol_are_denials() -> None:
    denials = {number for number in NUMBERS if denies_entry(number)}
    assert denials == {StatusCode.ENOENTRY, StatusCode.ENOLEDGER, PacketCode.NO_ENTRY, PacketCode.NO_LEDGER}


def test_no_bookie_sends_what_javas_v2_client_cannot_decode() -> None:
    assert PacketCode.UNKNOWN_LEDGER_STATE not in PACKET_CODES.values()
    assert PACKET_CODES[StatusCode.EUNKNOWNLEDGERSTATE] == PacketCode.IO_ERROR == 101


@pytest.mark.parametrize("number", NUMBERS)
def test_what_nobody_knows_says_nothing(number: int) -> None:
    for of, known in (status_of_v3, StatusCode), (status_of_v2, PacketCode):
        if number not in [*known]:
            assert of(number) == Status.UNKNOWN


def test_errors_of_bookkeeper_are_errors_of_bkpy() -> None:
    assert status_of_v3(StatusCode.EIO) == status_of_v2(PacketCode.IO_ERROR) == Status.UNKNOWN
    assert status_of_v3(StatusCode.EBADVERSION) == status_of_v2(PacketCode.BAD_VERSION) == Status.UNKNOWN
    kinds = {StatusCode.EFENCED: LedgerFencedError, StatusCode.EREADONLY: ReadOnlyBookieError}
    kinds[StatusCode.ETOOMANYREQUESTS] = TooManyRequestsError
    for code, kind in kinds.items():
        assert isinstance(error_of(status_of_v3(code)), kind)


def test_numbers_are_javas() -> None:
    assert [*StatusCode] == sorted(StatusCode)
    assert all(b - a == 1 for a, b in pairwise(StatusCode) if a in range(501, 507))
