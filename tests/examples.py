"""How much is tried in `make test` of what the full run tries all of: examples of a property, and places of a fault.

Hypothesis is loaded where tests of properties are, and nowhere else: that takes longer than most tests.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import hypothesis

ALL, FEW = 100, 20
_chosen = ALL


def choose(*, few: bool) -> None:
    global _chosen
    _chosen = FEW if few else ALL


def stride() -> int:
    """How far places are apart at which a test lets something go wrong: each, or every third in `make test`.

    Three, because much takes turns by twos: a write and its sync, a crash and a power cut. Where there are few places,
    or what matters is seldom, each is tried in every run.
    """
    return 3 if _chosen == FEW else 1


@functools.cache
def load_profile() -> None:
    """No test depends on timing or on luck: an example may take as long as it takes, and every run tries the same."""
    import hypothesis

    hypothesis.settings.register_profile(
        "bkpy",
        deadline=None,
        derandomize=True,
        max_examples=_chosen,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile("bkpy")


def examples(number: int) -> hypothesis.settings:
    """As many, or a share of them."""
    import hypothesis

    return hypothesis.settings(max_examples=max(number * _chosen // ALL, 1))
