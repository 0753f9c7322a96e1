"""Versioned JSON values: their bytes, what survives, and what is refused how."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bkpy.errors import CorruptDataError, UnsupportedVersionError
from bkpy.metadata.stored_record import StoredRecord, fields_of, take

RECORD = StoredRecord("the record", version=3, advice="; restore it")


def made(fields: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    return take(fields, "n", int), fields


def test_the_version_comes_first_and_unknown_fields_last() -> None:
    assert RECORD.encode({"n": 1, "a": 2}, {"new": "é"}) == b'{"version": 3, "n": 1, "a": 2, "new": "\\u00e9"}'


def test_unknown_fields_survive() -> None:
    n, unknown = RECORD.decode(b'{"version": 2, "n": 1, "new": [2]}', made)
    assert (n, unknown) == (1, {"new": [2]})
    assert json.loads(RECORD.encode({"n": n}, unknown)) == {"version": 3, "n": 1, "new": [2]}


def test_a_newer_version_is_not_taken_for_damage() -> None:
    newer = b'{"version": 4, "m": 1}'
    with pytest.raises(UnsupportedVersionError, match="the record has format version 4, this bkpy reads up to 3") as e:
        RECORD.decode(newer, made, bookie="b1")
    assert e.value.bookie == "b1"
    with pytest.raises(UnsupportedVersionError, match="record 7 has format version 4"):
        RECORD.decode(newer, made, what="record 7")


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", b"[]", b"7", b"{}", b'{"version": 3}', b'{"n": 1}', b'{"version": 3, "n": true}']
    + [f'{{"version": {version}, "n": 1}}'.encode() for version in ("0", "-1", "true", '"3"', "null", "3.0")]
    + [b'{"version": 3, "n": 1' + b"[" * 100_000],
)
def test_damage_is_named(data: bytes) -> None:
    with pytest.raises(CorruptDataError, match=r"the record is unreadable: .*; restore it") as e:
        RECORD.decode(data, made, path="/x")
    assert e.value.path == "/x"


def test_a_field_is_of_exactly_its_type() -> None:
    fields = {"n": True, "m": 1, "text": "x"}
    with pytest.raises(ValueError, match="n = True is no int"):
        take(fields, "n", int)
    with pytest.raises(KeyError):
        take(fields, "other", int)
    assert (take(fields, "m", int), take(fields, "text", str), fields) == (1, "x", {})


@pytest.mark.parametrize(("data", "fields"), [(b'{"a": 1}', {"a": 1}), (b"[1]", {}), (b"", {}), (b"\xff", {})])
def test_fields_of_any_value(data: bytes, fields: dict[str, Any]) -> None:
    assert fields_of(data) == fields
