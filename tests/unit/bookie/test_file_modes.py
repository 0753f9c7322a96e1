"""What other accounts of a bookie's machine can read: nothing, whatever the umask, also of older files."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest
from tests.in_process import InProcess

from bkpy.errors import IdentityError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = pytest.mark.real("modes of files are those of a real file system")


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def open_to_others(directory: Path) -> set[str]:
    """The names of what other accounts have rights to, the directory itself among them."""
    paths = [directory, *directory.rglob("*")]
    return {path.name for path in paths if stat.S_IMODE(path.stat().st_mode) & 0o077}


async def write(cluster: InProcess) -> None:
    client = await cluster.client()
    writer = await client.create_ledger(password=b"secret")
    await writer.append(b"TOP SECRET")
    for name in "abc":
        await cluster.storage(name).checkpoint()
    await writer.close()


@pytest.mark.thorough
async def test_a_new_bookie_shows_others_nothing(tmp_path: Path) -> None:
    cluster = InProcess(tmp_path)
    await cluster.start("abc")
    await write(cluster)
    for name in "abc":
        for part in ("journal", "ledgers"):
            assert open_to_others(tmp_path / name / part) == set()
    await cluster.stop()


@pytest.mark.thorough
async def test_a_bookies_own_directories_are_closed_at_its_start_and_no_others(tmp_path: Path) -> None:
    cluster = InProcess(tmp_path)
    await cluster.start("abc")
    await write(cluster)
    await cluster.node("a").stop()
    for path in (tmp_path / "a").rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    (tmp_path / "a" / "notes").write_text("of somebody else")
    (tmp_path / "notes").write_text("of somebody else")
    (tmp_path / "a" / "ledgers" / "link").symlink_to(tmp_path / "notes")
    await cluster.start_node("a")
    assert open_to_others(tmp_path / "a" / "journal") == set()
    assert open_to_others(tmp_path / "a" / "ledgers") - {"link"} == set()
    for path in (tmp_path / "a" / "notes", tmp_path / "notes"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
    await cluster.stop()


async def test_directories_with_another_bookies_cookie_stay_as_they_are(tmp_path: Path) -> None:
    cluster = InProcess(tmp_path)
    await cluster.start("ab")
    for name in "ab":
        await cluster.node(name).stop()
    for path in (tmp_path / "b", *(tmp_path / "b").rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    before = open_to_others(tmp_path / "b")
    (tmp_path / "a").rename(tmp_path / "former")
    (tmp_path / "b").rename(tmp_path / "a")
    with pytest.raises(IdentityError):
        await cluster.start_node("a")
    assert open_to_others(tmp_path / "a") - {"a"} == before - {"b"}
