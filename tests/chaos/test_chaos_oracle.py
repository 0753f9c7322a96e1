"""The oracle of chaos refuses what a log must never do, and its schedule depends on the seed alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .oracle import Read, Record, account, consumed, digest, make_payload
from .schedule import BOOKIES, KINDS, draw

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LOG = "log"
ENTRIES = [Read(i, make_payload(LOG, i, b"x" * i)) for i in range(20)]
KNOWN = [(entry.position, digest(entry.payload).hex()) for entry in ENTRIES]


def _at_their_places(payloads: list[bytes]) -> list[Read]:
    return [Read(i, payload) for i, payload in enumerate(payloads)]


def lost(payloads: list[bytes]) -> None:
    del payloads[7]


def lost_at_the_end(payloads: list[bytes]) -> None:
    del payloads[-1]


def doubled(payloads: list[bytes]) -> None:
    payloads.append(payloads[7])


def altered(payloads: list[bytes]) -> None:
    payloads[7] = payloads[7][:-1] + b"?"


def replaced(payloads: list[bytes]) -> None:
    payloads[7] = make_payload(LOG, 7, b"other bytes")


def reordered(payloads: list[bytes]) -> None:
    payloads[7], payloads[8] = payloads[8], payloads[7]


def test_a_log_that_keeps_its_promises_is_accepted() -> None:
    assert account(LOG, KNOWN, ENTRIES) == []
    assert consumed(ENTRIES, KNOWN) == []
    unknown = [
        *ENTRIES,
        Read(20, make_payload(LOG, 25, b"")),
    ]  # five appends failed, and one of unknown outcome is there
    assert account(LOG, KNOWN, unknown) == []


@pytest.mark.parametrize("spoil", [lost, lost_at_the_end, doubled, altered, replaced, reordered])
def test_a_spoiled_log_is_refused(spoil: Callable[[list[bytes]], None]) -> None:
    payloads = [entry.payload for entry in ENTRIES]
    spoil(payloads)
    found = _at_their_places(payloads)
    assert account(LOG, KNOWN, found)
    assert consumed(ENTRIES, [(entry.position, digest(entry.payload).hex()) for entry in found])


def test_what_nobody_acknowledged_is_refused_when_it_is_doubled_or_moved() -> None:
    for spoil in (doubled, reordered):
        payloads = [entry.payload for entry in ENTRIES]
        spoil(payloads)
        assert "doubled or out of order" in account(LOG, [], _at_their_places(payloads))[-1]


def test_a_position_that_is_missing_twice_there_or_out_of_order_is_refused() -> None:
    hole, twice, turned = ENTRIES[:7] + ENTRIES[8:], [*ENTRIES, ENTRIES[7]], [*ENTRIES[1:], ENTRIES[0]]
    for found in (hole, twice, turned):
        assert "belongs" in account(LOG, [], found)[0]
    assert "acknowledged twice: 3" in account(LOG, [*KNOWN, KNOWN[3]], ENTRIES)
    assert consumed(ENTRIES, [*KNOWN[:8], *KNOWN[7:]])


def test_a_record_keeps_whole_lines_only(tmp_path: Path) -> None:
    record = Record(tmp_path / "record")
    record.add(ENTRIES)
    record.close()
    assert Record.load(record.path) == KNOWN
    record.path.write_bytes(record.path.read_bytes()[:-3])
    assert Record.load(record.path) == KNOWN[:-1]


def test_a_schedule_depends_on_its_seed_alone_and_its_faults_do_not_overlap() -> None:
    faults = draw(7, 3600.0)
    assert faults == draw(7, 3600.0) != draw(8, 3600.0)
    assert {fault.kind for fault in faults} == set(KINDS)
    assert {fault.target for fault in faults} == {"", *BOOKIES}
    ends = [0.0, *(fault.at_s + fault.lasts_s for fault in faults)]
    assert all(end < fault.at_s for end, fault in zip(ends, faults, strict=False))
    assert ends[-1] <= 3600.0
