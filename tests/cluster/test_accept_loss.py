"""`bkpy ledger recover --accept-loss` on real processes: what it shows, what it asks, what it leaves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.command import PATIENCE_S, PRELOADED, as_json, bkpy, environment
from tests.conftest import run_elsewhere
from tests.waiting import eventually

import bkpy as api
from bkpy.local import LocalCluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SESSION_S = 4.0  # a busy machine may keep a process waiting for longer than a second or two


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalCluster]:
    """Four bookies whose deaths are soon noticed."""
    cluster = LocalCluster(tmp_path, bookies=4, config={"session_timeout_s": SESSION_S, "journal_max_size_mb": 4})
    try:
        run_elsewhere(cluster.start())
        yield cluster
    finally:
        run_elsewhere(cluster.stop())


@pytest.mark.exhaustive
async def test_a_ledger_two_of_whose_bookies_are_gone_is_closed_when_its_id_is_typed(local: LocalCluster) -> None:
    uri = local.connect_string
    async with api.connect(uri) as client:
        writer = await client.create_ledger()
        for i in range(5):
            await writer.append(b"entry %d" % i)
        metadata = writer.metadata
        await eventually(
            lambda: api.AdminClient(client).last_entries(metadata), until=lambda last: set(last.values()) == {4}
        )
        writer.abandon()
        dead = list(writer.ensemble[:2])
        for bookie in local.bookies:
            if bookie.id in dead:
                await bookie.kill()
        await eventually(lambda: not set(dead) & client.bookies.keys(), "the dead are seen to be gone")
    words: tuple[object, ...] = ("ledger", "recover", writer.ledger_id)
    refused = await asyncio.to_thread(bkpy, *words, uri=uri, status=1)
    assert b"too few bookies" in refused.stderr
    assert (
        b"--yes goes with --accept-loss" in (await asyncio.to_thread(bkpy, *words, "--yes", uri=uri, status=2)).stderr
    )

    def accept(stdin: bytes, status: int, *options: str) -> list[str]:
        done = PRELOADED.run(
            [*map(str, words), "--accept-loss", *options], stdin=stdin, env=environment(uri), timeout_s=PATIENCE_S
        )
        assert done.returncode == status, done.stderr.decode()
        return (done.stderr + done.stdout).decode().splitlines()

    for answer, status in ((b"", 2), (b"y\n", 1)):
        shown = await asyncio.to_thread(accept, answer, status)
        # Whether the writer still said that its last entry was acknowledged, depends on how long it was there.
        assert any(f"certain: entries 0 to {last} were acknowledged" in shown for last in (3, 4))
        assert "the ledger will end at entry 4, for good" in shown
        assert f"may be lost: entries from 5 on, as many as were acknowledged with {', '.join(sorted(dead))}" in shown
        assert f"{writer.ensemble[2]}: its last entry is 4" in shown
        assert "the ledger stays IN_RECOVERY" in shown[-1]
        assert as_json("ledger", "show", writer.ledger_id, uri=uri)["state"] == "IN_RECOVERY"

    shown = await asyncio.to_thread(accept, b"%d\n" % writer.ledger_id, 0)
    assert any("given up" in line and dead[0] in line and dead[1] in line for line in shown)
    told = as_json("ledger", "show", writer.ledger_id, uri=uri)
    assert (told["state"], told["last_entry"]) == ("CLOSED", 4)
    assert set(told["accepted_loss"]["bookies"]) == set(dead)
    assert b"seen up to 4; given up: " in bkpy("ledger", "show", writer.ledger_id, uri=uri).stdout
    assert bkpy("ledger", "read", writer.ledger_id, uri=uri).stdout.splitlines() == [b"entry %d" % i for i in range(5)]
    # Of a ledger that is closed nothing is given up any more.
    again = as_json("ledger", "recover", writer.ledger_id, "--accept-loss", uri=uri)
    assert again["result"]["accepted_loss"] == told["accepted_loss"]
