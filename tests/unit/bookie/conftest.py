"""The cluster of most tests of bookies."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.in_process import InProcess


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[InProcess]:
    """One bookie: a."""
    local = InProcess(tmp_path)
    await local.start("a")
    yield local
    await local.stop()
