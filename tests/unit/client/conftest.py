"""Clusters in one process for the client's tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.in_process import InProcess


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[InProcess]:
    """Three bookies: a, b and c."""
    local = InProcess(tmp_path)
    await local.start()
    yield local
    await local.stop()


@pytest.fixture
async def five(tmp_path: Path) -> AsyncIterator[InProcess]:
    """Five bookies: a to e."""
    local = InProcess(tmp_path)
    await local.start("abcde")
    yield local
    await local.stop()


@pytest.fixture
async def four(tmp_path: Path) -> AsyncIterator[InProcess]:
    """Four bookies: a to d."""
    local = InProcess(tmp_path)
    await local.start("abcd")
    yield local
    await local.stop()
