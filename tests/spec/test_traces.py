"""What simulated runs do is a behaviour of the model of a ledger, and what a planted defect does isn't."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from bkpy.protocol.ledger import recovery
from bkpy.protocol.ledger.acks import Flight
from bkpy.protocol.ledger.recovery import EntryStatus

from .simulated import traces_of, watched
from .traces import CHANGE, RECOVERY, SWAP, explain, refused_at

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from _pytest.mark.structures import ParameterSet

# How many traces that count there are at least in each block of seeds.
FAILOVER_SEEDS, FAILOVER_TRACES = 15, 10
HEALING_SEEDS, HEALING_TRACES = 25, 60
CROWD_SEEDS, CROWD_TRACES = 40, 500
# Blocks that take least time; `make test-long` has the others.
CHEAP = {"failover": {45}, "healing": {175}, "crowd": {0, 40}}


def blocks(scenario: str, count: int, size: int) -> list[ParameterSet]:
    """The first seed of each block."""
    return [
        pytest.param(first, marks=() if first in CHEAP[scenario] else pytest.mark.long)
        for first in range(0, count * size, size)
    ]


def explained(scenario: str, seeds: Sequence[int], directory: Path, *, brief: bool = False) -> tuple[int, set[str]]:
    """How many traces the model explains, all there are, and what is in them."""
    traces = [trace for seed in seeds for trace in traces_of(scenario, seed)]
    verdict = explain(traces, directory, brief=brief)
    assert verdict.violated is None, f"refused at {refused_at(traces, verdict)}: {verdict.text}"
    return len(traces), {kind for trace in traces for kind in trace.kinds}


@pytest.mark.exhaustive
def test_the_model_explains_what_some_runs_do(tmp_path: Path) -> None:
    _, kinds = explained("healing", (0, 1), tmp_path, brief=True)
    assert kinds == {CHANGE, RECOVERY, SWAP}


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", blocks("failover", 12, FAILOVER_SEEDS))
def test_the_model_explains_failovers(first: int, tmp_path: Path) -> None:
    count, kinds = explained("failover", range(first, first + FAILOVER_SEEDS), tmp_path)
    assert count >= FAILOVER_TRACES
    assert kinds == {CHANGE, RECOVERY}


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", blocks("crowd", 4, CROWD_SEEDS))
def test_the_model_explains_crowds_of_ledgers(first: int, tmp_path: Path) -> None:
    """Two blocks have a thousand."""
    count, kinds = explained("crowd", range(first, first + CROWD_SEEDS), tmp_path)
    assert count >= CROWD_TRACES
    assert kinds == {CHANGE, RECOVERY}


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", blocks("healing", 10, HEALING_SEEDS))
def test_the_model_explains_healing(first: int, tmp_path: Path) -> None:
    count, kinds = explained("healing", range(first, first + HEALING_SEEDS), tmp_path)
    assert count >= HEALING_TRACES
    assert kinds == {CHANGE, RECOVERY, SWAP}


@pytest.mark.exhaustive
def test_an_acknowledgement_one_copy_early_is_refused(tmp_path: Path) -> None:
    make = Flight.__init__

    def early(flight: Flight, batches: Any, size: int, ack_quorum: int) -> None:
        make(flight, batches, size, max(1, ack_quorum - 1))

    watch, play = watched("failover", 1)
    with patch.object(Flight, "__init__", early), contextlib.suppress(Exception):
        play()  # whether the run notices or not
    traces = watch.counting()
    verdict = explain(traces, tmp_path)
    assert verdict.violated == "deadlock"
    assert refused_at(traces, verdict) == "ack"


@pytest.mark.exhaustive
def test_an_end_after_one_denial_is_refused(tmp_path: Path) -> None:
    judge = recovery.entry_status

    def hasty(present: int, denied: int, *others: Any, **options: Any) -> EntryStatus:
        if denied and not present:
            return EntryStatus.MISSING
        return judge(present, denied, *others, **options)

    watch, play = watched("failover", 1)
    with patch.object(recovery, "entry_status", hasty), contextlib.suppress(Exception):
        play()
    traces = watch.counting()
    verdict = explain(traces, tmp_path)
    assert verdict.violated == "deadlock"
    assert refused_at(traces, verdict) == "close"
