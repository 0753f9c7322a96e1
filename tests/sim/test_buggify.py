"""Every bound can be drawn tiny, and nothing hangs when all of them are at their smallest at the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pydantic_core import PydanticUndefined

from bkpy.config.bookie import BookieSettings
from bkpy.config.client import ClientSettings

from . import cluster
from .buggify import BOOKIE, CLIENT, NOT_DRAWN, Bound, bookie_bounds, client_bounds, draw, numeric, smallest
from .runs import Range, play
from .world import World

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@pytest.mark.parametrize(("model", "bounds"), [(BookieSettings, BOOKIE), (ClientSettings, CLIENT)])
def test_every_number_is_drawn_or_said_to_be_no_bound(
    model: type[BookieSettings | ClientSettings], bounds: Mapping[str, Bound]
) -> None:
    numbers = numeric(model)
    assert bounds.keys() <= numbers, "these are no settings, or no numbers"
    assert not bounds.keys() & NOT_DRAWN.keys()
    assert numbers - bounds.keys() - NOT_DRAWN.keys() == set(), "these belong into the table of tests/sim/buggify.py"


def test_no_reason_is_given_for_what_is_no_setting() -> None:
    assert NOT_DRAWN.keys() <= numeric(BookieSettings) | numeric(ClientSettings)


@pytest.mark.parametrize(("model", "bounds"), [(BookieSettings, BOOKIE), (ClientSettings, CLIENT)])
def test_what_is_drawn_is_not_the_default(
    model: type[BookieSettings | ClientSettings], bounds: Mapping[str, Bound]
) -> None:
    for name, bound in bounds.items():
        default = model.model_fields[name].default
        assert default is not PydanticUndefined
        assert default not in bound.small or bound.chance == 1.0, name


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("scenario", "seeds"),
    [
        pytest.param("standard", (9,), marks=pytest.mark.exhaustive),
        ("failover", (1,)),
        pytest.param("failover", (8,), marks=pytest.mark.exhaustive),
        pytest.param("crowd", (1,), marks=pytest.mark.exhaustive),
        *(
            pytest.param(scenario, range(4), id=f"{scenario}-many", marks=[pytest.mark.exhaustive, *more])
            for scenario, more in (("standard", []), ("failover", [pytest.mark.long]), ("crowd", [pytest.mark.long]))
        ),
    ],
)
def test_nothing_hangs_when_every_bound_is_at_its_smallest(
    scenario: str, seeds: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "bookie_bounds", lambda world, host: smallest(BOOKIE))
    monkeypatch.setattr(cluster, "client_bounds", lambda world, host: smallest(CLIENT))
    for seed in seeds:
        assert play(scenario, seed, Range()) is None


def test_a_setting_more_does_not_reshuffle_the_others() -> None:
    world = World(17)
    drawn = draw(world, "bookie-1", BOOKIE)
    fewer = dict(list(BOOKIE.items())[::2])
    assert draw(world, "bookie-1", fewer) == {name: value for name, value in drawn.items() if name in fewer}
    assert drawn != draw(world, "bookie-2", BOOKIE)


@pytest.mark.thorough
def test_in_some_runs_a_bound_is_tiny_and_in_some_it_is_not() -> None:
    runs = [{**bookie_bounds(World(seed), "b"), **client_bounds(World(seed), "c")} for seed in range(100)]
    for name, bound in {**BOOKIE, **CLIENT}.items():
        assert any(run.get(name) == bound.small[0] for run in runs), name
        assert any(run.get(name) != bound.small[0] for run in runs) or len(bound.small) == 1, name
