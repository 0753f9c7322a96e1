"""A bookie whose directories were moved while it was stopped."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.in_process import ROOT, InProcess, contents

from bkpy.errors import IdentityError
from bkpy.metadata.bookies.cookies import read_cookie

if TYPE_CHECKING:
    from bkpy.config.bookie import BookieSettings


pytestmark = pytest.mark.real("directories of a real file system move")


def elsewhere(settings: BookieSettings, place: Path) -> BookieSettings:
    """The same settings with directories below `place`."""
    return settings.model_copy(
        update={
            "journal_directories": [str(place / Path(path).name) for path in settings.journal_directories],
            "ledger_directories": [str(place / Path(path).name) for path in settings.ledger_directories],
        }
    )


async def test_a_bookie_starts_where_its_directories_are_now(tmp_path: Path) -> None:
    cluster = InProcess(tmp_path)
    await cluster.start("a")
    client = await cluster.client()
    async with await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1) as writer:
        await writer.append(b"x")
    node = cluster.node("a")
    old = node.settings
    await node.stop()
    place = tmp_path / "new"
    place.mkdir()
    new = elsewhere(old, place)
    moves = dict(
        zip(
            [*old.journal_directories, *old.ledger_directories],
            [*new.journal_directories, *new.ledger_directories],
            strict=True,
        )
    )
    for path, target in moves.items():
        os.rename(path, target)
    again = cluster.new_node("a")
    again.settings = new
    await again.start()
    cluster.nodes[:] = [again]
    known = await read_cookie(cluster.tree.session(), ROOT, "a")
    assert known is not None
    cookie = json.loads(known[0])
    assert cookie["storage"]["journal_directories"] == new.journal_directories
    assert cookie["address"] == again.address
    assert await contents(client, writer.ledger_id) == [b"x"]
    await cluster.stop()


async def test_a_cookie_with_relative_paths_does_not_keep_its_bookie_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cluster = InProcess(tmp_path)
    first = cluster.new_node("a")
    await cluster.start("")
    first.settings = elsewhere(first.settings, Path())  # as they were kept once
    await first.start()
    await first.stop()
    again = cluster.new_node("a")
    again.settings = elsewhere(again.settings, tmp_path)
    await again.start()
    cluster.nodes[:] = [again]
    known = await read_cookie(cluster.tree.session(), ROOT, "a")
    assert known is not None
    assert json.loads(known[0])["storage"]["journal_directories"] == again.settings.journal_directories
    await cluster.stop()


async def test_a_second_bookie_of_an_id_is_told_to_take_another(tmp_path: Path) -> None:
    cluster = InProcess(tmp_path)
    await cluster.start("a")
    second = cluster.new_node("a")
    second.settings = elsewhere(second.settings, tmp_path / "second").model_copy(update={"listen": "127.0.0.1:0"})
    with pytest.raises(IdentityError, match=r"in use with other directories .* another --bookie_id"):
        await second.start()
    await cluster.stop()
