"""Unit tests run in virtual time, unless their module says that it is about something real."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.sim.loop import SimLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


_VIRTUAL = ("bookie", "client", "log", "metadata", "recovery")
_TURN_S = 20e-6  # what a turn of the loop takes about, so that time goes on for a test that looks at each turn


def _virtual() -> SimLoop:
    return SimLoop(_TURN_S)


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    part = item.path.relative_to(Path(__file__).parent).parts[0]
    if part not in _VIRTUAL or item.get_closest_marker("real"):
        return {"real": asyncio.new_event_loop}
    return {"virtual": _virtual}
