"""The clusters of the client's tests: recovery is a client's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.in_process import InProcess
from tests.unit.client.conftest import cluster, five

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

__all__ = ["cluster", "five", "four"]


@pytest.fixture
async def four(tmp_path: Path) -> AsyncIterator[InProcess]:
    """Four bookies: a to d."""
    local = InProcess(tmp_path)
    await local.start("abcd")
    yield local
    await local.stop()
