"""The oracle of chaos refuses what a log must never do, and its schedule depends on the seed alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .oracle import Read, Record, account, consumed, digest, make_payload, streamed
from .schedule import EARLIER, LANES, draw

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LOG, TERM, NEXT = "log", 5, 6
ENTRIES = [Read(i, make_payload(LOG, TERM, i, b"x" * i)) for i in range(20)]
KNOWN = [(entry.position, digest(entry.payload).hex()) for entry in ENTRIES]


def _at_their_places(payloads: list[bytes], first: int = 0) -> list[Read]:
    return [Read(i, payload) for i, payload in enumerate(payloads, first)]


def lost(payloads: list[bytes]) -> None:
    del payloads[7]


def lost_at_the_beginning(payloads: list[bytes]) -> None:
    del payloads[0]


def lost_at_the_end(payloads: list[bytes]) -> None:
    del payloads[-1]


def doubled(payloads: list[bytes]) -> None:
    payloads.append(payloads[7])


def altered(payloads: list[bytes]) -> None:
    payloads[7] = payloads[7][:-1] + b"?"


def replaced(payloads: list[bytes]) -> None:
    payloads[7] = make_payload(LOG, TERM, 7, b"other bytes")


def reordered(payloads: list[bytes]) -> None:
    payloads[7], payloads[8] = payloads[8], payloads[7]


def test_a_log_that_keeps_its_promises_is_accepted() -> None:
    assert account(LOG, KNOWN, ENTRIES) == []
    assert consumed(ENTRIES, KNOWN, KNOWN) == []
    assert streamed(ENTRIES, ENTRIES) == []
    unknown = [*ENTRIES, Read(20, make_payload(LOG, TERM, 20, b"")), Read(21, make_payload(LOG, NEXT, 0, b""))]
    assert account(LOG, KNOWN, unknown) == []
    assert account(LOG, KNOWN, ENTRIES[7:], first=7) == []
    assert consumed(ENTRIES[7:], KNOWN, KNOWN) == []


@pytest.mark.parametrize("spoil", [lost, lost_at_the_beginning, lost_at_the_end, doubled, altered, replaced, reordered])
def test_a_spoiled_log_is_refused(spoil: Callable[[list[bytes]], None]) -> None:
    payloads = [entry.payload for entry in ENTRIES]
    spoil(payloads)
    found = _at_their_places(payloads)
    assert account(LOG, KNOWN, found)
    assert consumed(ENTRIES, [(entry.position, digest(entry.payload).hex()) for entry in found])
    assert streamed(ENTRIES, found)


@pytest.mark.parametrize("spoil", [lost, lost_at_the_beginning, doubled, reordered])
def test_what_nobody_acknowledged_is_refused_when_it_is_not_a_prefix(spoil: Callable[[list[bytes]], None]) -> None:
    payloads = [entry.payload for entry in ENTRIES]
    spoil(payloads)
    assert "out of order" in account(LOG, [], _at_their_places(payloads))[-1]


def test_a_term_that_goes_on_behind_the_next_one_is_refused() -> None:
    payloads = [make_payload(LOG, term, number, b"") for term, number in ((5, 0), (6, 0), (5, 1))]
    moved = "doubled, missing before it, or out of order"
    assert account(LOG, [], _at_their_places(payloads)) == [f"{moved}: 2"]
    payloads = [make_payload(LOG, term, number, b"") for term, number in ((5, 3), (6, 1))]
    assert account(LOG, [], _at_their_places(payloads, 9), first=9) == [
        "doubled, missing before it, or out of order: 10"
    ]


def test_a_position_that_is_missing_twice_there_or_out_of_order_is_refused() -> None:
    hole, twice, turned = ENTRIES[:7] + ENTRIES[8:], [*ENTRIES, ENTRIES[7]], [*ENTRIES[1:], ENTRIES[0]]
    for found in (hole, twice, turned):
        assert "belongs" in account(LOG, [], found)[0]
    assert "acknowledged twice: 3" in account(LOG, [*KNOWN, KNOWN[3]], ENTRIES)
    assert consumed(ENTRIES, [*KNOWN[:8], *KNOWN[7:]])
    assert consumed(ENTRIES[7:], [*KNOWN[:3], (3, "other"), *KNOWN[4:]], KNOWN) == ["consumed with other bytes: 3"]
    assert consumed(ENTRIES[:7], KNOWN) == [
        f"consumed and not there: {', '.join(map(str, range(7, 17)))} ... (13 in all)"
    ]


def test_a_record_keeps_whole_lines_only(tmp_path: Path) -> None:
    record = Record(tmp_path / "record")
    record.add(ENTRIES)
    record.close()
    assert Record.load(record.path) == KNOWN
    record.path.write_bytes(record.path.read_bytes()[:-3])
    assert Record.load(record.path) == KNOWN[:-1]
    again = Record(record.path)
    assert again.count == len(KNOWN) - 1
    again.add(ENTRIES[-1:])
    again.close()
    assert Record.load(record.path) == KNOWN


def test_a_schedule_depends_on_its_seed_alone_and_faults_of_a_lane_do_not_overlap() -> None:
    faults = draw(7, 3600.0)
    assert faults == draw(7, 3600.0) != draw(8, 3600.0)
    assert {fault.target for fault in faults if fault.kind == "upgrade"} == set(EARLIER)
    for lane, kinds in LANES.items():
        of_lane = [fault for fault in faults if fault.lane == lane]
        assert {fault.kind for fault in of_lane} == set(kinds)
        assert {(f.kind, f.target) for f in of_lane} <= {(kind, t) for kind in kinds for t in kinds[kind][0]}
        ends = [0.0, *(fault.at_s + fault.lasts_s for fault in of_lane)]
        assert all(end < fault.at_s for end, fault in zip(ends, of_lane, strict=False))
        assert ends[-1] <= 3600.0
