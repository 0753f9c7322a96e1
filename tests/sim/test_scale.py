"""A rack of a small cluster is lost, with real bookies and with light ones: all heals, and the calls are counted."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from .scale import Scale, Size, main, subject_of

if TYPE_CHECKING:
    from pathlib import Path

LEDGERS = 5
SIZE = Size(bookies=6, ledgers=LEDGERS, racks=3, entries=2, entry_bytes=100)


@pytest.mark.thorough
@pytest.mark.parametrize("light", [pytest.param(False, marks=pytest.mark.exhaustive), True])
def test_a_lost_rack_is_healed_and_every_call_counted(light: bool) -> None:
    size = replace(SIZE, light=light, writers=0 if light else 4)
    found = Scale(size).run()
    assert (found["lost"], found["ledgers_in_all"], found["writers_failed"]) == (2, 10, 0)
    assert 30 < found["recorded_s"] <= found["healed_s"] < 120
    by_phase = {phase["phase"]: phase for phase in found["phases"]}
    lost = by_phase["a rack is lost"]
    assert lost["calls"] == sum(lost["by_kind"].values()) == sum(lost["by_subject"].values())
    assert lost["by_subject"]["records"] >= found["ledgers_in_all"] / 2
    assert lost["calls"] > by_phase["nothing happens"]["calls"] > 0
    assert (lost["ledger_writes_of_clients"] > 0) == (not light)


@pytest.mark.exhaustive
def test_a_copy_takes_the_time_of_its_bytes() -> None:
    """Three and a third ledgers for each of four workers, of 100 KB at 10 KB a second."""
    slow = replace(SIZE, light=True, ledgers=10, entry_bytes=50_000, copy_rate=10_000)
    quick = replace(slow, copy_rate=10_000_000)
    slow_s, quick_s = (Scale(size).run()["healed_s"] for size in (slow, quick))
    assert slow_s - quick_s > 10


@pytest.mark.thorough
def test_a_slow_zookeeper_takes_its_time() -> None:
    slow, quick = (replace(SIZE, light=True, zookeeper_calls=calls) for calls in (200, 0))
    assert Scale(slow).run()["healed_s"] > Scale(quick).run()["healed_s"] + 1


def test_paths_have_their_subjects() -> None:
    subjects = [subject_of(f"/ledgers/{path}") for path in ("available/b", "underreplication/ledgers/0", "000/L1", "x")]
    assert subjects == ["registrations", "records", "ledgers", "others"]


@pytest.mark.thorough
def test_rows_are_added_to_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "rows.json"
    monkeypatch.setattr(logging, "lastResort", None)  # as the program does
    sizes = ("--racks", "3", "--bookies", "6", "7", "--ledgers", "3", "--light")
    monkeypatch.setattr(sys, "argv", ["scale", *sizes, "--json", str(file)])
    assert main() == 0
    assert [row["bookies"] for row in json.loads(file.read_text())] == [6, 7]
