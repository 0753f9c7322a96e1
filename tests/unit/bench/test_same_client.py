"""One Java client on bookies of both kinds: which rows there are, how they are compared, and where the figures go."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from types import ModuleType


PEERS = Path(__file__).parents[3] / "benchmarks" / "peers"


def script(monkeypatch: pytest.MonkeyPatch, name: str) -> ModuleType:
    """A module of benchmarks/peers/, which is no package."""
    monkeypatch.syspath_prepend(str(PEERS))
    return __import__(name)


def side(rate: float, ms: float, cpu_us: float | None = None) -> dict[str, Any]:
    memory = {"bookie_rss_anon_mb": 10 * ms, "client_rss_anon_mb": 100.0}
    return {"entries_per_s": rate, "p50_ms": ms, "p99_ms": 2 * ms, **memory, "bookie_cpu_us": cpu_us}


def measured() -> dict[str, Any]:
    """A row of reads: both calls on both kinds of bookies, and bkpy's client."""
    return {
        "name": "reads",
        "bookies": {
            "java": {"entries": side(100.0, 4.0, 20.0), "batch": side(400.0, 2.0, 5.0)},
            "bkpy": {"entries": side(150.0, 2.0, 10.0), "batch": side(200.0, 3.0, 5.0)},
        },
        "bkpy_client": {"read": side(300.0, 1.0)},
        "resident_mb": {"java": 1000.0, "bkpy": 250.0},
    }


def test_bookies_are_compared_call_by_call_and_clients_on_the_same_bookies(monkeypatch: pytest.MonkeyPatch) -> None:
    found = list(script(monkeypatch, "report").same_client_comparisons(measured()))
    assert [(one["what"], one["call"], one["times"]) for one in found] == [
        ("bookies", "entries", 1.5),
        ("bookies", "batch", 0.5),
        ("clients", "read : entries", 3.0),
        ("clients", "read : batch", 0.75),
    ]
    assert (found[0]["p99_ratio"], found[0]["bookie_cpu_ratio"], found[0]["bookie_memory_ratio"]) == (0.5, 0.5, 0.5)
    assert "bookie_cpu_ratio" not in found[2]  # `bkpy bench` knows nothing of bookies that it didn't start


def test_a_table_of_bookies_and_one_of_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    report = script(monkeypatch, "report")
    bookies, clients = report.same_client_tables([measured(), {**measured(), "bkpy_client": {}}])
    assert (bookies.row_count, clients.row_count) == (4, 2)
    resident = next(column for column in bookies.columns if "resident" in str(column.header))
    assert set(resident.cells) == {"250 / 1,000"}


def test_every_row_has_the_calls_of_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends go the way that is faster on these bookies, and are one call all the same."""
    rows = script(monkeypatch, "rows")
    for row in rows.SAME_CLIENT_ROWS:
        ways = rows.READ_MODES if row.workload == "read" else rows.DRIVES
        calls = {row.call(way) for way in ways}
        assert calls == (set(rows.READ_MODES) if row.workload == "read" else {"append"})
        assert row.group_wait_ms == rows.GROUP_WAIT_DEFAULT_MS
        assert not row.restart


def test_figures_are_added_to_what_the_file_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    add_to = script(monkeypatch, "same_client").add_to
    file = tmp_path / "peers.json"
    add_to(file, {"rows": [1]})
    assert json.loads(file.read_text()) == {"rows": [], "same_client": {"rows": [1]}}
    file.write_text('{"rows": [5], "healing": [6], "same_client": {}}')
    add_to(file, {"rows": [1, 2]})
    assert json.loads(file.read_text()) == {"rows": [5], "healing": [6], "same_client": {"rows": [1, 2]}}


def test_seconds_and_rounds_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = script(monkeypatch, "plan")
    assert plan.QUICK.changed(argparse.Namespace(seconds=None, rounds=None)) == plan.QUICK
    changed = plan.FULL.changed(argparse.Namespace(seconds=0.5, rounds=1))
    assert (changed.seconds, changed.rounds, changed.cold_rounds) == (0.5, 1, plan.FULL.cold_rounds)


@pytest.mark.thorough
def test_processor_time_and_the_largest_resident_set(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = script(monkeypatch, "processes")
    own = os.getpid()
    assert processes.cpu_s([]) == processes.cpu_s([None]) == 0
    spent = processes.cpu_s([own])
    assert spent > 0
    assert processes.cpu_s([own, own]) >= 2 * spent
    assert processes.peak_resident_mb([None]) is None
    before = processes.peak_resident_mb([own])
    block = b"x" * (before_bytes := int(before * 1e6))
    assert processes.peak_resident_mb([own, None]) > before
    assert len(block) == before_bytes
