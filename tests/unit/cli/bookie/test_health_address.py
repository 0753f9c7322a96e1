"""Where a bookie's health is asked for."""

from __future__ import annotations

import pytest

from bkpy.cli.bookie.health import health
from bkpy.errors import ConfigError


@pytest.mark.parametrize("where", ["ex ample:80", "https://ex ample:80", "example"])
def test_what_is_no_address_is_a_wrong_option(where: str) -> None:
    with pytest.raises(ConfigError, match="--admin: "):
        health.main(["--admin", where], standalone_mode=False)
