"""How many examples hypothesis tries of a property: all of them in the full run, every fifth in `make test`.

It is loaded where tests of properties are, and nowhere else: that takes longer than most tests.
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
