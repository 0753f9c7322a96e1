"""A metadata store in memory, in which a cluster is initialised."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.in_process import ROOT, runtime_here

from bkpy.metadata.cluster import init_cluster
from bkpy.metadata.store.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def tree() -> AsyncIterator[MemoryStore]:
    made = MemoryStore(runtime_here())
    await init_cluster(made.session(), ROOT)
    yield made
    made.check_invariants()
