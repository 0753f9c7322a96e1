"""A bookie whose directories are removed while it runs ends, instead of writing into files that nobody can open."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from typing import TYPE_CHECKING

import pytest
from tests.in_process import DEADLINE_S, InProcess

from bkpy.errors import BookKeeperError, IdentityError, StorageFailedError

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.real("directories of a real file system go")


@pytest.mark.parametrize("what", ["", "journal", "ledgers"])
async def test_it_ends_and_says_which_one_is_gone(tmp_path: Path, what: str) -> None:
    cluster = InProcess(tmp_path)
    await cluster.start("a", disk_check_interval_s=0.01)
    node = cluster.nodes.pop()
    (tmp_path / "a" / what).rename(tmp_path / "removed")  # at once: the bookie may be making a file in it
    shutil.rmtree(tmp_path / "removed", ignore_errors=True)
    # The look at the directories finds it, or the storage does, if it is about to make a file there.
    found = f"(removed while the bookie ran|No such file or directory).*/a/{what}"
    with pytest.raises((IdentityError, StorageFailedError), match=found):
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.shield(node.failed)
    assert not node.failed.cancelled()
    (tmp_path / "a" / "ledgers" / "index").mkdir(parents=True, exist_ok=True)
    (tmp_path / "a" / "journal").mkdir(exist_ok=True)
    with contextlib.suppress(OSError, BookKeeperError):  # there is nothing to write the checkpoint to
        await node.stop()
    await cluster.stop()
