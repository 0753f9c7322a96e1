"""An index that is made anew: of logs with a flipped byte (everything 941304, shrunk), and while ledgers are open."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from tests.sim.everything import stage
from tests.sim.everything.plan import Actor, Fault, Plan
from tests.sim.everything.run import play

PLAN = Plan(
    seed=941304,
    size="quick",
    shape={
        "bookies": 4,
        "clients": 2,
        "workers": 2,
        "storm_s": 0.0,
        "network_latency_s": [0.0005, 0.02],
        "metadata_latency_s": [0.0002, 0.002],
        "metadata_timeout_s": 2.0,
        "session_timeout_s": 10.0,
        "client_settings": {
            "add_timeout_s": 0.3,
            "connect_timeout_s": 0.3,
            "read_timeout_s": 5.0,
            "add_quorum_timeout_s": 30.0,
            "no_bookies_timeout_s": 10.0,
            "delay_ensemble_change": True,
            "log_retention_interval_s": 0.5,
            "log_page_rows": 2,
        },
        "unlucky": 3,
    },
    features=frozenset(),
    bounds={},
    actors=(
        Actor(
            key="writer-1",
            kind="writer",
            at_s=0.0,
            options={
                "host": "client-1",
                "sizes": [3, 2, 2],
                "appends": 1,
                "batch_max": 1,
                "pause_s": 0.3,
                "end": "hold",
            },
        ),
        Actor(
            key="writer-2",
            kind="writer",
            at_s=0.0,
            options={
                "host": "client-1",
                "sizes": [2, 2, 2],
                "appends": 12,
                "batch_max": 1,
                "pause_s": 0.3,
                "end": "leave",
            },
        ),
    ),
    faults=(
        Fault(key="rot-3", kind="rot", at_s=1.7566, lasts_s=0.0, options={}),
        Fault(key="index-rot", kind="rot in an index", at_s=1.9026, lasts_s=0.0, options={}),
    ),
)


def test_a_bookie_with_an_index_of_rotten_logs_may_not_know_what_it_never_had() -> None:
    outcome = play(PLAN)
    assert outcome.error is None, f"{outcome.invariant}: {outcome.error}"


@pytest.mark.exhaustive
def test_a_limbo_that_nobody_looks_for_again_is_noticed() -> None:
    plan = Plan.draw(1007455)
    assert play(plan).error is None
    with patch.dict(stage.CALM_BOOKIE, integrity_look_interval_s=1e6):
        assert str(play(plan).error).startswith("liveness: limbo empty: ")
