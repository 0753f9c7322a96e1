"""A bookie that drains, and failed to read or confirm that: it goes on, refuses entries, and reports it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.in_process import ROOT, InProcess, runtime_here
from tests.waiting import eventually

from bkpy.errors import UnauthorizedError
from bkpy.metadata.bookies.draining import Drains
from bkpy.metadata.store.memory import MemorySession
from bkpy.metadata.store.outcome import Done

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

NODE = f"{ROOT}/underreplication/draining/a"


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[InProcess]:
    local = InProcess(tmp_path)
    await local.start("a", metadata_retry_pause_s=0.01)
    yield local
    await local.stop()


async def test_a_draining_that_the_bookie_may_not_read_ends_neither_its_process_nor_its_start(
    one: InProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    get = MemorySession.get
    forbidden = {NODE}

    async def get_if_allowed(session: MemorySession, path: str) -> tuple[bytes, int]:
        if path in forbidden:
            raise UnauthorizedError(f"access control forbids this on {path}")
        return await get(session, path)

    monkeypatch.setattr(MemorySession, "get", get_if_allowed)
    drains = Drains(one.tree.session(), ROOT, runtime_here())
    assert isinstance(await drains.begin("a"), Done)
    await eventually(lambda: "failed to read or confirm" in caplog.text)
    assert f"{ROOT}/available/readonly/a" in one.tree.paths
    assert not one.node("a").failed.done()
    await one.restart("a")
    assert f"{ROOT}/available/readonly/a" in one.tree.paths
    assert not one.node("a").failed.done()
    await eventually(lambda: caplog.text.count("failed to read or confirm") == 2)
    forbidden.clear()
    await eventually(lambda: b'"refuses_since_ms": null' not in value_of(one))


def value_of(one: InProcess) -> bytes:
    token = one.tree.node(NODE).data.decode()
    return one.tree.node(f"{NODE}/{token}").data
