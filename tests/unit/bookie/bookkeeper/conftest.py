"""The cluster of most tests of bookies that speak BookKeeper's protocol."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.in_process import InProcess
from tests.unit.bookie.bookkeeper.raw import V2, V3, Authority, RawBookKeeper


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[InProcess]:
    """One bookie: a."""
    local = InProcess(tmp_path, of_bookkeeper=True)
    await local.start("a")
    yield local
    await local.stop()


@pytest.fixture(params=[V2, V3])
async def raw(cluster: InProcess, request: pytest.FixtureRequest) -> AsyncIterator[RawBookKeeper]:
    """A client of bookie a."""
    client = await RawBookKeeper.connect(cluster, speaks=request.param)
    yield client
    client.close()


@pytest.fixture
def authority(cluster: InProcess, monkeypatch: pytest.MonkeyPatch) -> Authority:
    """The keys in the metadata."""
    return Authority(cluster, monkeypatch)
