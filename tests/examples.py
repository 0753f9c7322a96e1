"""How many examples hypothesis tries of a property: all of them in the full run, every third in `make test`."""

from __future__ import annotations

import hypothesis

ALL = 100
_SHARE = {"few": 3, "all": 1}

# No test depends on timing or on luck: an example may take as long as it takes, and every run tries the same ones.
for _name, _share in _SHARE.items():
    hypothesis.settings.register_profile(
        _name,
        deadline=None,
        derandomize=True,
        max_examples=ALL // _share,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )


def choose(*, few: bool) -> None:
    """For all tests that are imported from now on."""
    hypothesis.settings.load_profile("few" if few else "all")


def examples(number: int) -> hypothesis.settings:
    """As many, or a share of them."""
    return hypothesis.settings(max_examples=max(number * hypothesis.settings().max_examples // ALL, 1))
