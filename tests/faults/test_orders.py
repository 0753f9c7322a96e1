"""Two services of examples/orders fight for a log, and everything is killed: every order is in it once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .orders import LANES, Attack, Result, difference

if TYPE_CHECKING:
    from pathlib import Path


def demand_all(result: Result) -> None:
    """The attack was one: it had all that it is made of."""
    print(result)
    assert {kind for kinds in LANES.values() for kind in kinds} <= result.faults.keys()
    assert result.faults["everything killed"] >= 1
    assert result.attempts["answered 200"] > result.orders > 100
    assert result.attempts.keys() - {"answered 200"}
    assert result.segments > 3


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("seed", "seconds"),
    [(8, 30.0), pytest.param(9, 300.0, marks=pytest.mark.long)],
    ids=["half a minute", "five minutes"],
)
async def test_every_order_is_in_the_log_once(tmp_path: Path, seed: int, seconds: float) -> None:
    demand_all(await Attack(tmp_path, seed, seconds).run())


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        ([(0, "a"), (1, "b"), (2, "c")], ""),
        ([(0, "a"), (1, "b")], "has 2 orders in place of 3"),
        ([(0, "a"), (1, "c")], "has (1, 'c') in place of (1, 'b'), order 1, which it has 0 times"),
        ([(0, "a"), (1, "b"), (2, "b"), (3, "c")], "has (2, 'b') in place of (2, 'c'), order 2, which it has 1 times"),
        ([(0, "a"), (1, "b"), (2, "c"), (3, "c")], "has 4 orders in place of 3"),
        ([(0, "b"), (1, "a"), (2, "c")], "has (0, 'b') in place of (0, 'a'), order 0, which it has 1 times"),
        ([(0, "a"), (1, "b"), (3, "c")], "has (3, 'c') in place of (2, 'c'), order 2, which it has 1 times"),
    ],
)
def test_what_is_missing_doubled_or_out_of_place_is_found(found: list[tuple[int, str]], wrong: str) -> None:
    assert difference([(0, "a"), (1, "b"), (2, "c")], found) == wrong
