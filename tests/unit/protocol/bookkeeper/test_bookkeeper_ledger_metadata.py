"""Ledger metadata of Apache BookKeeper: Java's own values, what they lose nothing of, and hostile ones."""

from __future__ import annotations

import contextlib
import dataclasses
import traceback
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.golden.bookkeeper import reading

from bkpy.errors import ConfigError, CorruptDataError, LedgerClosedError, UnauthorizedError, UnsupportedVersionError
from bkpy.protocol.bookkeeper.entries import master_key
from bkpy.protocol.bookkeeper.ledger_metadata import DIGEST_NAMES, UNKNOWN_DIGEST, BookKeeperLedgerMetadata
from bkpy.protocol.bookkeeper.schema import message_class
from bkpy.protocol.ledger.ledger_metadata import TRANSITIONS, Fragment, LedgerState
from bkpy.protocol.repair.holdings import holdings

GOLDEN = {
    name.removeprefix("ledger "): value
    for name, value in reading.read("metadata.txt").items()
    if name.startswith("ledger ")
}
LEDGER = 7
ONE = (Fragment(0, ("127.0.0.1:3181",)),)
THREE = (
    Fragment(0, ("host-a.example.org:3181", "bookie_b", "10.0.0.3:3181")),
    Fragment(1 << 40, ("host-a.example.org:3181", "bookie_b", "d.4")),
)
IN_RECOVERY, CLOSED = {"state": LedgerState.IN_RECOVERY}, {"state": LedgerState.CLOSED}
CUSTOM = {"application": b"pulsar", "empty": b"", "bytes": b"\0\1\xff\"\\\n'", "näme": "€".encode()}

# What Java was asked to write, by the last part of the name.
SHAPES: dict[str, dict[str, Any]] = {
    "open": {},
    "recovering": IN_RECOVERY,
    "closed": CLOSED | {"last_entry": 41, "length": 4200},
    "empty": CLOSED,
    "fragments open": {},
    "fragments recovering": IN_RECOVERY,
    "fragments closed": CLOSED | {"last_entry": (1 << 40) + 5, "length": 1 << 50},
    "fragments early": CLOSED | {"last_entry": 9, "length": 90},
    "digest CRC32": {"digest": "bk-crc32"},
    "digest MAC": {"digest": "bk-hmac-sha1"},
    "digest CRC32C": {"digest": "bk-crc32c"},
    "digest DUMMY": {"digest": "bk-dummy"},
    "password": {"password": b'\0\n"\x80\xff', "ledger_key": master_key(b'\0\n"\x80\xff')},
    "custom": {"custom_metadata": CUSTOM},
    "created": {"created_ms": 1764032400123},
    "token": {"owner_token": str(-0x123456789ABCDEF)},
}


def metadata(**changes: Any) -> BookKeeperLedgerMetadata:
    values: dict[str, Any] = {
        "ledger_id": LEDGER,
        "state": LedgerState.OPEN,
        "ensemble_size": 1,
        "write_quorum": 1,
        "ack_quorum": 1,
        "digest": "bk-crc32c",
        "ledger_key": master_key(b""),
        "fragments": ONE,
    }
    return BookKeeperLedgerMetadata(**(values | changes))


def expected(name: str) -> BookKeeperLedgerMetadata:
    version, shape = int(name[1]), name[3:]
    of: dict[str, Any] = {"format_version": version}
    if shape.startswith("fragments"):
        of |= {"ensemble_size": 3, "write_quorum": 2, "ack_quorum": 2, "fragments": THREE, "digest": "bk-hmac-sha1"}
        of |= {"password": b"secret", "ledger_key": master_key(b"secret")}
    if version == 1:
        of |= {"digest": UNKNOWN_DIGEST, "password": None, "ledger_key": master_key(b"")}
    if version == 2 and shape == "token":  # it has no place there
        return metadata(**of)
    if version == 3:
        of["owner_token"] = "0"  # Java stores one always
    return metadata(**of | SHAPES[shape])


def decoded(stored: bytes) -> BookKeeperLedgerMetadata:
    return BookKeeperLedgerMetadata.decode(LEDGER, stored)


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_what_java_stores_is_read(name: str) -> None:
    assert decoded(GOLDEN[name]) == expected(name)


@pytest.mark.parametrize("name", sorted(name for name in GOLDEN if not name.startswith("v1")))
def test_a_value_is_stored_as_java_stores_it(name: str) -> None:
    assert decoded(GOLDEN[name]).encode() == GOLDEN[name]
    assert expected(name).encode() == GOLDEN[name]


def test_all_shapes_are_there() -> None:
    assert {name[3:] for name in GOLDEN} == SHAPES.keys()


def test_format_version_1_is_never_written() -> None:
    ledger = decoded(GOLDEN["v1 open"])
    assert ledger.in_recovery().state is LedgerState.IN_RECOVERY
    with pytest.raises(ConfigError, match="version 1"):
        ledger.encode()


@pytest.mark.parametrize("name", ["v2 open", "v3 open"])
def test_a_transition_keeps_the_format_that_was_read(name: str) -> None:
    closed = decoded(GOLDEN[name]).in_recovery().closed(41, 4200)
    assert isinstance(closed, BookKeeperLedgerMetadata)
    assert closed.encode() == GOLDEN[name.replace("open", "closed")]


def test_a_bookies_change_is_stored_as_java_stores_it() -> None:
    first = dataclasses.replace(decoded(GOLDEN["v3 fragments open"]), fragments=THREE[:1])
    assert first.new_fragment(1 << 40, THREE[1].bookies).encode() == GOLDEN["v3 fragments open"]


def test_no_bookie_has_to_hold_what_lies_behind_the_end() -> None:
    """Java's old recoveries closed ledgers before their last fragment."""
    found = list(holdings(decoded(GOLDEN["v3 fragments early"])))
    assert [(part.first_entry, part.last_entry) for part in found] == [(0, 9), (1 << 40, (1 << 40) - 1)]
    assert [[share.entries for share in part.shares] for part in found] == [[7, 7, 6], [0, 0, 0]]


# --- fields of a newer version --------------------------------------------------------------------------------------


def test_fields_that_nobody_knows_survive_each_transition() -> None:
    stored = message_class("LedgerMetadataFormat")()
    stored.MergeFromString(GOLDEN["v3 fragments open"].partition(b"\n")[2][2:])
    stored.MergeFromString(b"\xa2\x06\x03new")
    stored.segment[0].MergeFromString(b"\xa2\x06\x03old")
    stored.customMetadata.add(key="a", value=b"b").MergeFromString(b"\xa2\x06\x03own")
    ledger = decoded(framed(stored.SerializeToString()))
    assert ledger.encode() == framed(stored.SerializeToString())
    changed = ledger.new_fragment((1 << 40) + 7, ("x", "y", "z")).in_recovery().closed((1 << 40) + 9, 900)
    again = message_class("LedgerMetadataFormat").FromString(changed.encode().partition(b"\n")[2][2:])
    assert b"\xa2\x06\x03new" in again.SerializeToString()
    assert again.segment[0].SerializeToString() == stored.segment[0].SerializeToString()
    assert again.customMetadata[0].SerializeToString() == stored.customMetadata[0].SerializeToString()
    assert [segment.firstEntryId for segment in again.segment] == [0, 1 << 40, (1 << 40) + 7]


def framed(message: bytes) -> bytes:
    assert 1 << 7 <= len(message) < 1 << 14
    return b"BookieMetadataFormatVersion\t3\n" + bytes((len(message) & 127 | 128, len(message) >> 7)) + message


def test_an_absent_ack_quorum_is_the_write_quorum_and_stays_absent() -> None:
    text = b"quorumSize: 2\nensembleSize: 2\nlength: 0\nstate: OPEN\nsegment {\n"
    text += b'  ensembleMember: "a"\n  ensembleMember: "b"\n  firstEntryId: 0\n}\n'
    ledger = decoded(b"BookieMetadataFormatVersion\t2\n" + text)
    assert (ledger.ack_quorum, ledger.password, ledger.digest) == (2, None, UNKNOWN_DIGEST)
    assert b"ackQuorumSize" not in ledger.in_recovery().encode()
    assert b"password" not in ledger.in_recovery().encode()


def test_a_newer_format_is_not_taken_for_damage() -> None:
    with pytest.raises(UnsupportedVersionError, match="version 4"):
        decoded(b"BookieMetadataFormatVersion\t4\nanything")


# --- passwords ------------------------------------------------------------------------------------------------------


def test_another_password_is_refused() -> None:
    ledger = decoded(GOLDEN["v3 fragments open"])
    assert ledger.authorised(b"secret") is ledger
    for wrong in (b"", b"Secret", b"secret\0"):
        with pytest.raises(UnauthorizedError):
            ledger.authorised(wrong)
    with pytest.raises(UnauthorizedError):
        decoded(GOLDEN["v3 open"]).authorised(b"secret")


def test_a_ledger_that_stores_no_password_takes_the_callers() -> None:
    ledger = decoded(GOLDEN["v1 open"]).authorised(b"secret")
    assert ledger.ledger_key == master_key(b"secret")
    assert b"secret" not in repr(decoded(GOLDEN["v3 fragments open"]).authorised(b"secret")).encode()


def test_metadata_without_a_password_tell_no_key() -> None:
    assert decoded(GOLDEN["v1 open"]).known_key == b""
    assert decoded(GOLDEN["v3 fragments open"]).known_key == master_key(b"secret")
    assert metadata(password=b"").known_key == master_key(b""), "the empty one is a password"


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ((b'"secret"', b'"secret'), "damaged in line"),
        ((b"password:", b"pass word:"), "damaged in line"),
        ((b'"secret"', b'"secret\xff"'), "damaged: not all of them is text"),
    ],
)
def test_no_error_has_the_password(change: tuple[bytes, bytes], where: str) -> None:
    stored = GOLDEN["v2 fragments open"]
    assert b'password: "secret"' in stored
    with pytest.raises(CorruptDataError, match=where) as damaged:
        decoded(stored.replace(*change))
    assert "secr" not in "".join(traceback.format_exception(damaged.value))


# --- what can't be --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"digest": "crc32c"},
        {"ledger_key": bytes(32)},
        {"ack_quorum": 2},
        {"owner_token": "abc"},
        {"owner_token": str(2**63)},
        {"caller_ids": True},
        {"deferred_sync": True},
        {"last_entry": 3},
        {"length": 3},
        CLOSED | {"last_entry": -2},
        CLOSED | {"length": 1},
        CLOSED | {"last_entry": 0, "length": -1},
    ],
    ids=repr,
)
def test_an_impossible_value_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        metadata(**changes)


LINES = b"BookieMetadataFormatVersion\t1\n"


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"{}",
        b"BookieMetadataFormatVersion\t0\n",
        b"BookieMetadataFormatVersion\t\n",
        b"BookieMetadataFormatVersion\t99999999999\n",
        b"BookieMetadataFormatVersion\t3",
        b"BookieMetadataFormatVersion\t3\n",
        b"BookieMetadataFormatVersion\t3\n\x80\x80\x80\x80\x80",
        GOLDEN["v3 open"] + b"\0",
        GOLDEN["v3 open"] + b"\xa2\x06\0",  # a field
        GOLDEN["v3 open"][:-1],
        GOLDEN["v2 open"] + b'newField: "a"\n',
        GOLDEN["v2 open"].replace(b"OPEN", b"SHUT"),
        GOLDEN["v2 open"].replace(b"OPEN", b"7"),
        GOLDEN["v2 open"].replace(b"127.0.0.1", b"../.."),
        GOLDEN["v2 open"].replace(b"127.0.0.1:3181", b"readonly"),
        GOLDEN["v2 open"].replace(b"quorumSize: 1", b"quorumSize: 99999999999"),
        GOLDEN["v2 fragments open"].replace(b"bookie_b", b"10.0.0.3:3181"),
        LINES,
        LINES + b"1\n1\n0\n",
        LINES + b"1\n1\nx\n0\ta\n",
        LINES + b"1\n1\n0\n0\ta\n-103\tCLOSED",
        LINES + b"1\n1\n0\n0\ta\tb\n",
        LINES + "1\n1\n0\n\u0660\ta\n".encode(),
        LINES + b"1\n1\n0\n\n",
        LINES + b"1\n1\n0\n0\t\xff\n",
    ],
    ids=lambda stored: repr(stored[28:60]),
)
def test_damage_is_refused(stored: bytes) -> None:
    with pytest.raises(CorruptDataError):
        decoded(stored)


@given(st.sampled_from(sorted(GOLDEN)), st.data())
@examples(150)
def test_no_bytes_do_more_than_be_refused(name: str, data: st.DataObject) -> None:
    stored = bytearray(GOLDEN[name])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(stored)))
        stored[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    with contextlib.suppress(CorruptDataError, UnsupportedVersionError):
        found = decoded(bytes(stored))
        assert found.format_version == 1 or decoded(found.encode()) == found


NAMES = st.text("abcXYZ019:-_.", min_size=1, max_size=12).filter(lambda name: name != "readonly")
I64 = st.integers(0, 2**63 - 2)
TIME_LAST_MS = 253_402_300_799_999  # the end of the year 9999


@st.composite
def ledgers(draw: st.DrawFn) -> BookKeeperLedgerMetadata:
    size = draw(st.integers(1, 4))
    write_quorum = draw(st.integers(1, size))
    firsts = [0, *sorted(draw(st.sets(st.integers(1, 2**62), max_size=3)))]
    ensembles = st.lists(NAMES, min_size=size, max_size=size, unique=True).map(tuple)
    state = draw(st.sampled_from(LedgerState))
    last_entry = draw(st.one_of(st.just(-1), I64)) if state is LedgerState.CLOSED else -1
    password = draw(st.binary(max_size=30))
    return metadata(
        format_version=draw(st.sampled_from([2, 3])),
        state=state,
        ensemble_size=size,
        write_quorum=write_quorum,
        ack_quorum=draw(st.integers(1, write_quorum)),
        digest=draw(st.sampled_from(sorted(DIGEST_NAMES.values()))),
        fragments=tuple(Fragment(first, draw(ensembles)) for first in firsts),
        last_entry=last_entry,
        length=draw(I64) if last_entry >= 0 else 0,
        created_ms=draw(st.integers(0, TIME_LAST_MS)),
        custom_metadata=draw(st.dictionaries(st.text(max_size=6), st.binary(max_size=9), max_size=4)),
        password=password,
        ledger_key=master_key(password),
    )


@pytest.mark.parametrize(("stored", "time"), [(TIME_LAST_MS, TIME_LAST_MS), (TIME_LAST_MS + 1, 0), (2**63 - 1, 0)])
def test_a_time_of_creation_that_no_date_has_is_none(stored: int, time: int) -> None:
    assert decoded(metadata(created_ms=stored).encode()).created_ms == time


@given(ledgers(), st.lists(st.sampled_from(sorted(TRANSITIONS)), max_size=4))
@examples(80)
def test_any_ledger_comes_back_after_any_transitions(ledger: BookKeeperLedgerMetadata, steps: list[str]) -> None:
    assert decoded(ledger.encode()) == ledger
    value: Any = decoded(ledger.encode())
    for step in steps:
        last = value.fragments[-1].first_entry
        arguments: dict[str, tuple[Any, ...]] = {
            "in_recovery": (),
            "closed": (last + 3, 77),
            "new_fragment": (last + 2, tuple(f"new{n}" for n in range(ledger.ensemble_size))),
            "replace_bookie": (0, 0, "other:1"),
        }
        try:
            changed = getattr(value, step)(*arguments[step])
        except (ConfigError, LedgerClosedError):
            continue
        assert changed.state is TRANSITIONS[step][value.state]
        assert changed.format_version == ledger.format_version
        value = changed
        assert decoded(value.encode()) == value
