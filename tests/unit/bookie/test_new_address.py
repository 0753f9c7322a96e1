"""A bookie that is started at another address under its id: clients find it, and nothing is copied."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.in_process import ROOT, InProcess, contents
from tests.waiting import eventually

from bkpy.bookie.node import BookieNode
from bkpy.config.loading import load_bookie_settings
from bkpy.errors import IdentityError
from bkpy.metadata.bookies.cookies import cookie_fields, read_cookie

if TYPE_CHECKING:
    from pathlib import Path

OTHER = "127.0.0.1:4181"
ALONE = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}


async def test_a_bookie_that_is_started_elsewhere_under_its_id_is_found_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = InProcess(tmp_path)
    await cluster.start("a")
    client = await cluster.client()
    old = await client.create_ledger(**ALONE)
    assert await old.append(b"before") == 0
    await old.close()
    former = client.bookies["a"].address
    await cluster.nodes[0].stop()
    cluster.settings = {"listen": OTHER}
    await cluster.start_node("a")
    await eventually(
        lambda: [it.address for it in client.bookies.values()], "the client knows it", until=lambda at: at == [OTHER]
    )
    assert await contents(client, old.ledger_id) == [b"before"]
    new = await client.create_ledger(**ALONE)
    assert await new.append(b"after") == 0
    await new.close()
    later = await cluster.client()  # one that was not there when it moved
    assert await contents(later, old.ledger_id) == [b"before"]
    assert (await later.ledger_metadata(old.ledger_id)).fragments == old.metadata.fragments
    cookie = await read_cookie(cluster.tree.session(), ROOT, "a")
    assert cookie is not None
    assert cookie_fields(cookie[0])["address"] == OTHER  # for clients that come while the bookie is away
    assert f"bookie a has moved from {former} to {OTHER}" in caplog.messages
    await cluster.stop()


async def test_one_whose_id_was_its_address_is_refused_and_told_the_id_to_keep(tmp_path: Path) -> None:
    cluster = InProcess(tmp_path)
    await cluster.start("a")
    await cluster.nodes[0].stop()
    flags = {
        "metadata_uri": "zk://127.0.0.1:1/ledgers",
        "listen": OTHER,
        "journal_directories": str(tmp_path / "a" / "journal"),
        "ledger_directories": str(tmp_path / "a" / "ledgers"),
        "journal_max_size_mb": "4",
    }
    settings = load_bookie_settings(None, {}, flags)
    node = BookieNode(settings, cluster.tree.session(), "/ledgers", cluster.runtime("a"))
    with pytest.raises(IdentityError, match=r"keep that, with bookie_id = 'a'"):
        await node.start()
    await cluster.start_node("a")  # nothing has been changed
    await cluster.stop()
