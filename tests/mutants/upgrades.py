"""Formats that change without a new number: what an earlier version wrote means something else to today's code."""

from __future__ import annotations

from pathlib import Path

from tests.mutants import Mutant

_SOURCE = Path(__file__).parents[2] / "src" / "bkpy"
_EARLIER = "tests/sim/test_earlier.py"
_INDEX = "storage/index/index.py"


def _changed(module: str, first: str, last: str, *changes: tuple[str, str]) -> tuple[str, str]:
    """The text of a module from one function to the end of another, as it is and with what both of them write and read
    changed."""
    text = (_SOURCE / module).read_text(encoding="utf-8")
    begin = text.index(f"def {first}(")
    before = after = text[begin : text.index("\n\n\n", text.index(f"def {last}("))]
    for old, new in changes:
        if after.count(old) != 1:
            raise ValueError(f"{old!r} occurs {after.count(old)} times in {module} from {first} to {last}")
        after = after.replace(old, new)
    return before, after


MUTANTS: list[Mutant] = [
    Mutant(
        "kinds of journal records numbered anew, and what has none of them passed over",
        "a bookie that was killed loses by an upgrade what it had acknowledged last",
        *_changed(
            "storage/journal/format.py",
            "encode_record",
            "decode_records",
            ("_RECORD.pack(kind,", "_RECORD.pack(kind + 64,"),
            (
                "if record.kind not in _KINDS:",
                "if record.kind < 64:\n            continue\n        if record.kind - 64 not in _KINDS:",
            ),
            ("yield record", "yield record._replace(kind=record.kind - 64)"),
        ),
        (f"{_EARLIER}::test_todays_code_takes_over_what_an_earlier_version_has_left[crash]",),
    ),
    Mutant(
        "the flag of a fence at another place in the index",
        "a bookie takes appends to closed ledgers after an upgrade",
        *_changed(
            _INDEX,
            "encode_ledger",
            "decode_ledger",
            ("(FENCED if row.fenced else 0)", "(8 if row.fenced else 0)"),
            ("bool(flags & FENCED)", "bool(flags & 8)"),
        ),
        (f"{_EARLIER}::test_todays_code_knows_the_fences_and_the_losses_of_an_earlier_version",),
    ),
    Mutant(
        "the flag of a loss at another place in the index",
        "a bookie denies after an upgrade what it had lost before",
        *_changed(
            _INDEX,
            "encode_shard",
            "decode_shard",
            ("(UNKNOWN_IN_LIMBO if row.unknown_in_limbo else 0)", "(8 if row.unknown_in_limbo else 0)"),
            ("bool(flags & UNKNOWN_IN_LIMBO)", "bool(flags & 8)"),
        ),
        (f"{_EARLIER}::test_todays_code_knows_the_fences_and_the_losses_of_an_earlier_version",),
    ),
]
