"""The scrub of a real bookie whose files are damaged on disk: the command tells it, with its place and what to do."""

from __future__ import annotations

import json
import re
import urllib.request
from typing import TYPE_CHECKING

import pytest
from tests.cluster.test_damage import damage, written
from tests.cluster.test_without_journal import asked
from tests.command import as_json, bkpy

import bkpy as library
from bkpy.local import LocalCluster
from bkpy.protocol.wire.messages import Status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(tmp_path / "cluster", bookies=3, config={"metrics_port": 0}) as cluster:
        yield cluster


@pytest.mark.exhaustive
async def test_damage_on_the_disk_is_told_by_the_command(local: LocalCluster) -> None:
    uri, bookie = local.connect_string, local.bookies[0]
    which = ("--bookie", bookie.id)
    async with library.connect(uri) as client:
        ledger_id, payloads = await written(client)
    shown = bkpy("bookie", "scrub", *which, uri=uri).stdout.decode()
    assert "never" in shown
    assert "the next round begins 20" in shown

    await damage(bookie, payloads[77])
    told = json.loads(bkpy("bookie", "scrub", "--now", *which, "--json", uri=uri, status=1).stdout)
    (found,) = told["damages"]
    assert (told["bookie_id"], told["left_out"], found["ledger_id"]) == (bookie.id, 0, ledger_id)
    assert found["first"] <= 77 <= found["last"]
    assert found["path"].startswith(str(bookie.directory / "ledgers"))
    assert [(s["running"], s["rounds"]) for s in told["directories"]] == [(False, 1)]
    assert sum(s["done_bytes"] for s in told["directories"]) > 50_000
    line = f"damage in {found['path']}: ledger {ledger_id}, entries {found['first']} to {found['last']}, at offset"
    assert bookie.log_path.read_text().count(line) == 1
    shown = bkpy("bookie", "scrub", *which, uri=uri, status=1).stdout.decode()
    assert "the ledger's other bookies" in shown
    assert metrics(bookie.log_path) >= {"bkpy_bookie_scrub_damages 1.0", "bkpy_bookie_scrub_progress 1.0"}

    # The other bookies have these entries: they are copied from there.
    report = as_json("bookie", "integrity", "--now", *which, uri=uri)
    assert (report["look"]["repaired"], report["look"]["mended"], report["left"]) == (1, 1, [])
    assert report["copied_entries"] >= found["last"] - found["first"] + 1
    async with library.connect(uri) as client:
        assert await asked(client, bookie, ledger_id) == (Status.OK, set(range(100)), set())
    assert as_json("bookie", "scrub", "--now", *which, uri=uri)["damages"] == []
    assert "bkpy_bookie_scrub_damages 0.0" in metrics(bookie.log_path)
    assert "which bookie?" in bkpy("bookie", "scrub", uri=uri, status=2).stderr.decode()


def metrics(log: Path) -> set[str]:
    url = re.findall(r"metrics at (http://\S+)", log.read_text())[-1]
    with urllib.request.urlopen(url) as page:
        return set(page.read().decode().splitlines())
