"""The second cluster of a plan: its bookies speak BookKeeper's protocol, and the oracle judges its ledgers, too."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from bkpy.bookie.bookkeeper import ledger_keys
from bkpy.protocol.wire.messages import Status
from tests.sim.cluster import NATIVE, Tree
from tests.sim.coverage_marks import acted
from tests.sim.world import Event

from .bookkeeper_part import BOOKKEEPER
from .oracle import Violation
from .plan import Plan
from .run import Outcome, Play, play, prepare
from .stage import cluster_of
from .story import tell


def part_of(seed: int) -> Plan:
    """Of a plan, what is in the second cluster."""
    plan = Plan.draw(seed)
    others = {one.key for one in (*plan.actors, *plan.faults) if "of_bookkeeper" not in one.options}
    return dataclasses.replace(plan.without(others), features=frozenset({"BookKeeper's protocol"}))


@pytest.mark.thorough
def test_its_ledgers_are_there_and_nowhere_else() -> None:
    plan = part_of(90)
    cluster = cluster_of(plan)
    played = Play(plan, cluster)
    cluster.run(played.run())
    native, second = played.stage.parts
    assert len(second.stories.by_id) == 2
    assert not native.stories.by_id
    for story in second.stories.by_id.values():
        assert story.closed
        assert type(story.stored) is second.cluster.tree.codec
        assert (
            sum(len(bookie.promises[story.ledger_id]) for bookie in second.cluster.bookies) >= len(story.payloads) > 0
        )
    assert not any(bookie.promises for bookie in native.cluster.bookies)
    assert cluster.world.marks[acted("duel", of_bookkeeper=True)]


@pytest.mark.thorough
def test_a_forgotten_fence_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forget(*args: Any) -> Status:
        return Status.OK

    assert play(part_of(95)).error is None
    monkeypatch.setattr(ledger_keys, "fence", forget)
    monkeypatch.setattr("bkpy.bookie.bookkeeper.reads.fence", forget)
    outcome = play(part_of(95))
    assert outcome.invariant == "I1"
    story = tell(outcome)
    assert "(in BookKeeper's cluster)" in story
    assert "@bookkeeper: " in story


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (Violation("I1", "ledger 0: entry 7 was acknowledged", NATIVE), {NATIVE}),
        (Violation("I1", "ledger 0: entry 7 was acknowledged", BOOKKEEPER), {BOOKKEEPER}),
        (KeyError("ledger 0"), {NATIVE, BOOKKEEPER}),
    ],
)
def test_a_story_tells_ledgers_of_the_same_id_apart(error: Exception, told: set[Tree]) -> None:
    trees = (NATIVE, BOOKKEEPER)
    trace = [Event(1.0, "writer", "closed", f"{tree.name_of(n)} 7") for tree in trees for n in range(2)]
    lines = tell(Outcome(part_of(90), error, "I1", trace=trace)).splitlines()
    assert [tree for tree in trees if any(f"closed, ledger {tree.name_of(0)}: 7" in line for line in lines)] == [
        tree for tree in trees if tree in told
    ]
    assert not any(f"ledger {tree.name_of(1)}:" in line for tree in trees for line in lines)


def test_a_plan_without_it_has_no_such_bookie() -> None:
    plan = dataclasses.replace(part_of(90), features=frozenset())
    cluster, run = prepare(plan.without({one.key for one in (*plan.actors, *plan.faults)}))
    run.close()
    assert not [name for name in cluster.world.hosts if name.startswith("bk-")]
