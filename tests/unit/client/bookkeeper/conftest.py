"""A BookKeeper cluster of three bookies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.unit.client.bookkeeper.their_bookies import TheirCluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def theirs() -> AsyncIterator[TheirCluster]:
    cluster = TheirCluster()
    await cluster.start()
    yield cluster
    await cluster.stop()
