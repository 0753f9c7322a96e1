"""Unit tests run in virtual time, unless their module says that it is about something real."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


VIRTUAL = (  # folders of tests
    "admin",
    "bench",
    "bookie",
    "client",
    "log",
    "metadata",
    "recovery",
    "replication",
)


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    part = item.path.relative_to(Path(__file__).parent).parts[0]
    if part not in VIRTUAL or item.get_closest_marker("real"):
        return {"real": asyncio.new_event_loop}
    from tests.in_process import virtual_loop  # which imports what other unit tests don't need

    return {"virtual": virtual_loop}
