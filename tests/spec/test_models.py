"""TLC sees all behaviours of the models over small constants; without a rule, it shows how that breaks an invariant."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .models import Creations, Ledgers, Logs

if TYPE_CHECKING:
    from pathlib import Path

TWO_COPIES, ONE_OF_TWO, TWO_OF_THREE = (2, 2, 2), (2, 2, 1), (3, 3, 2)

# Each rule with the invariant that breaks without it, and constants that are enough for that.
WITHOUT = [
    ("I1", Ledgers(3, TWO_COPIES, 1, changes=1, off=("rule 2",))),
    ("I7", Ledgers(3, TWO_COPIES, 1, changes=1, off=("rule 3",))),
    ("I7", Ledgers(2, TWO_COPIES, 1, off=("lac",))),
    ("I1", Ledgers(3, TWO_OF_THREE, 1, off=("rule 13",))),
    ("I6", Ledgers(3, ONE_OF_TWO, 2, changes=2, off=("rule 14",))),
    ("I1", Ledgers(3, ONE_OF_TWO, 1, changes=1, off=("rule 15",))),
    ("I1", Ledgers(2, ONE_OF_TWO, 1, off=("rule 16",))),
    ("I7", Ledgers(2, TWO_COPIES, 1, off=("rule 17",))),
    ("I3", Ledgers(2, ONE_OF_TWO, 1, recoveries=2, off=("rule 19",))),
    ("I8", Ledgers(2, ONE_OF_TWO, 1, off=("rule 20",))),
    ("I7", Ledgers(3, ONE_OF_TWO, 1, swaps=1, off=("rule 27",))),
    ("I1", Ledgers(3, ONE_OF_TWO, 1, swaps=1, off=("rule 33",))),
    ("I1", Ledgers(2, ONE_OF_TWO, 1, losses=1, off=("rule 34",))),
    ("I1", Ledgers(2, TWO_COPIES, 1, losses=1, off=("limbo",))),
    ("I1", Ledgers(2, ONE_OF_TWO, 1, strangers=1, off=("rule 45",))),
    ("Durable", Logs(2, 4, 2, off=("rule 31",))),
    ("Dense", Logs(2, 3, 2, off=("rule 32",))),
    ("AtMostTwoOpen", Logs(2, 3, 2, off=("rule 32 two",))),
    ("Dense", Logs(2, 3, 2, off=("rule 41",))),
    ("Dense", Logs(2, 4, 2, off=("rule 41 drop",))),
    ("Ends", Creations(3, 1, 1, 2, off=("51 enough",))),
    ("Known", Creations(3, 2, 1, 2, off=("51 cookie",))),
    ("Known", Creations(3, 2, 1, 2, off=("51 drain",))),
    ("Marked", Creations(3, 2, 1, 2, off=("51 record",))),
    ("Marked", Creations(3, 2, 1, 2, off=("51 reason",))),
    ("Marked", Creations(3, 2, 1, 2, off=("51 fragment",))),
]

# How many distinct states there are: a change of the model that leaves out behaviours shows itself.
WHOLE = [
    (Ledgers(2, ONE_OF_TWO, 1), 174),
    (Ledgers(3, ONE_OF_TWO, 1, changes=1), 8636),
    (Logs(2, 4, 2), 5752),
    (Creations(3, 2, 2, 3), 1041),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("invariant", "model"), WITHOUT, ids=[model.off[0] for _, model in WITHOUT])
def test_without_a_rule_its_invariant_is_violated(
    invariant: str, model: Ledgers | Logs | Creations, tmp_path: Path
) -> None:
    verdict = model.check(tmp_path, invariant)
    assert verdict.violated == invariant, f"TLC has seen {verdict.distinct} states, and none violates {invariant}"
    print(verdict.text)  # the counterexample


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("model", "states"), WHOLE, ids=str)
def test_all_behaviours_keep_all_invariants(model: Ledgers | Logs | Creations, states: int, tmp_path: Path) -> None:
    verdict = model.check(tmp_path)
    assert verdict.violated is None, verdict.text
    assert verdict.distinct == states


def test_the_smallest_model_keeps_all_invariants(tmp_path: Path) -> None:
    verdict = Ledgers(2, TWO_COPIES, 1).check(tmp_path, brief=True)
    assert verdict.violated is None, verdict.text
