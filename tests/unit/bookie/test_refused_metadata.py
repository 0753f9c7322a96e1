"""Access control keeps a bookie from its own nodes for a while: it goes on, reports it, and tries again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.in_process import ROOT, InProcess, contents, runtime_here
from tests.waiting import eventually

from bkpy.errors import UnauthorizedError
from bkpy.metadata import paths
from bkpy.metadata.bookies.draining import Drains
from bkpy.metadata.store.memory import MemorySession
from bkpy.metadata.store.outcome import Done
from bkpy.metadata.store.store import Delete

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

COOKIE = paths.cookie(ROOT, "a")
REGISTRATION = paths.available(ROOT, "a", read_only=False)
DRAIN = paths.draining(ROOT, "a")


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[InProcess]:
    local = InProcess(tmp_path)
    await local.start("a", metadata_retry_pause_s=0.01)
    yield local
    await local.stop()


@pytest.fixture
def forbidden(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Nodes that nobody may read."""
    get, found = MemorySession.get, set[str]()

    async def get_if_allowed(session: MemorySession, path: str) -> tuple[bytes, int]:
        if path in found:
            raise UnauthorizedError(f"access control forbids this on {path}")
        return await get(session, path)

    monkeypatch.setattr(MemorySession, "get", get_if_allowed)
    return found


@pytest.mark.parametrize("node", [COOKIE, REGISTRATION])
async def test_a_bookie_whose_node_is_gone_goes_on_until_it_may_register_again(
    one: InProcess, forbidden: set[str], node: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = await one.client()
    async with await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1) as writer:
        await writer.append(b"x")
    before = one.tree.node(REGISTRATION).data
    forbidden.add(node)
    if node == COOKIE:
        one.tree.apply(Delete(REGISTRATION), 0)  # as with the session
    else:
        await one.tree.session().put(REGISTRATION, before + b" ", 0)
    await eventually(lambda: "failed to register bookie a, going on" in caplog.text)
    assert caplog.text.count("failed to register") == 1
    assert await contents(client, writer.ledger_id) == [b"x"]
    assert not one.node("a").failed.done()
    forbidden.clear()
    await eventually(lambda: REGISTRATION in one.tree.paths and one.tree.node(REGISTRATION).data == before)
    assert not one.node("a").failed.done()


async def test_a_bookie_that_may_not_read_its_cookie_follows_its_drain_and_the_end_of_that(
    one: InProcess, forbidden: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    drains = Drains(one.tree.session(), ROOT, runtime_here())
    assert isinstance(await drains.begin("a"), Done)
    await eventually(lambda: "refuses every entry" in caplog.text)
    forbidden.add(COOKIE)
    drain = await drains.read("a")
    assert drain is not None
    await drains.cancel(drain)
    await eventually(lambda: "failed to read the cookie of bookie a, going on as before" in caplog.text)
    assert not one.node("a").failed.done()
    forbidden.clear()
    await eventually(lambda: REGISTRATION in one.tree.paths)
    assert not one.node("a").failed.done()


async def test_a_bookie_that_may_not_read_its_registration_stops(
    one: InProcess, forbidden: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    forbidden.add(REGISTRATION)
    await one.node("a").stop()
    assert "failed to deregister bookie a: access control forbids this" in caplog.text


async def test_a_draining_that_the_bookie_may_not_read_ends_neither_its_process_nor_its_start(
    one: InProcess, forbidden: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    forbidden.add(DRAIN)
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
    token = one.tree.node(DRAIN).data.decode()
    await eventually(lambda: b'"refuses_since_ms": null' not in one.tree.node(f"{DRAIN}/{token}").data)
