"""Two processes start under one bookie id at the same time, on directories of their own: one of them is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import store_of
from tests.in_process import ROOT, InProcess, contents

from bkpy.bookie import node as nodes
from bkpy.errors import IdentityError
from bkpy.metadata import paths
from bkpy.metadata.bookies.cookies import cookie_fields, read_cookie
from bkpy.storage.open import open_storage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from bkpy.bookie.node import BookieNode

ALONE = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}


def second(cluster: InProcess, *, rebuild: bool = False) -> BookieNode:
    """A bookie with the id of a, on another machine: directories of the same names, on a disk of its own."""
    first = cluster.disks.pop("a", None)
    cluster.settings = {"listen": "127.0.0.1:4181"}
    node = cluster.new_node("a", rebuild=rebuild)
    cluster.settings = {}
    del cluster.disks["a"]
    if first is not None:
        cluster.disks["a"] = first
    return node


def before_its_storage_opens(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Awaitable[object]]) -> None:
    """Let this happen while the next bookie that starts has looked at its cookie, and has no storage yet."""

    async def opening(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(nodes, "open_storage", open_storage)
        await act()
        return await open_storage(*args, **kwargs)

    monkeypatch.setattr(nodes, "open_storage", opening)


async def written(cluster: InProcess) -> int:
    client = await cluster.client()
    async with await client.create_ledger(**ALONE) as writer:
        await writer.append(b"x")
    return writer.ledger_id


async def test_a_new_bookie_takes_no_id_that_another_one_took_while_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = InProcess(tmp_path)
    await cluster.start("")
    late = second(cluster)
    before_its_storage_opens(monkeypatch, lambda: cluster.start_node("a"))
    with pytest.raises(IdentityError, match="another process has taken the bookie's id"):
        await late.start()
    ledger_id = await written(cluster)
    await cluster.restart("a")  # whose cookie is its own still
    assert await contents(cluster.clients[0], ledger_id) == [b"x"]
    await cluster.stop()


async def test_a_bookie_takes_no_id_back_that_was_rebuilt_elsewhere_while_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = InProcess(tmp_path)
    await cluster.start("a")
    await cluster.node("a").stop()
    cluster.nodes.clear()
    rebuilt = second(cluster, rebuild=True)
    late = cluster.new_node("a")
    before_its_storage_opens(monkeypatch, rebuilt.start)
    with pytest.raises(IdentityError, match="another process has taken the bookie's id"):
        await late.start()
    known = await read_cookie(cluster.tree.session(), ROOT, "a")
    assert known is not None
    assert cookie_fields(known[0])["address"] == rebuilt.address
    await rebuilt.stop()


async def test_none_is_rebuilt_beside_a_process_whose_registration_is_unreadable(tmp_path: Path) -> None:
    cluster = InProcess(tmp_path)
    await cluster.start("a")
    await cluster.node("a").stop()
    cluster.nodes.clear()
    session = cluster.tree.session()
    cookie = await read_cookie(session, ROOT, "a")
    await session.create(paths.available(ROOT, "a", read_only=False), b"\xff", ephemeral=True)
    with pytest.raises(IdentityError, match="it is registered, so its process runs somewhere"):
        await second(cluster, rebuild=True).start()
    assert await read_cookie(session, ROOT, "a") == cookie


async def test_a_bookie_ends_for_what_somebody_has_written_into_its_registration_and_says_so(tmp_path: Path) -> None:
    """Clients don't find it any more. A process that takes the id is told of by its address, and here is none."""
    cluster = InProcess(tmp_path)
    await cluster.start("a")
    path = paths.available(ROOT, "a", read_only=False)
    await cluster.tree.session().put(path, b"\xff", 0)
    with pytest.raises(IdentityError, match=f"can't be read: somebody wrote into {path}"):
        await cluster.node("a").failed
    await cluster.stop()
    await store_of(cluster.node("a")).close()
    await cluster.start_node("a")
    await cluster.stop()
