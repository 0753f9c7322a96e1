"""The file of a backup: what is in it to the byte, and how much memory it takes."""

from __future__ import annotations

import errno
import gzip
import os
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from tests.in_process import DirectFiles, runtime_here

from bkpy.errors import ConfigError, CorruptDataError, UnsupportedVersionError
from bkpy.metadata.backup.backup_file import BackupHeader, BackupNode, reading, verify, writing
from bkpy.runtime.system import RealFiles

if TYPE_CHECKING:
    from pathlib import Path

    from bkpy.runtime.interfaces import File

HEADER = BackupHeader("0f3a", "long-hierarchical", "/ledgers", 1763800000000, "0.3.0", 41)
LINES = (
    b'{"format":"bkpy metadata backup","version":1,"instance_id":"0f3a","layout":"long-hierarchical",'
    b'"root":"/ledgers","time_ms":1763800000000,"software":"0.3.0","kept_from":41}\n'
    b'["cookies/b1","e30="]\n'
    b'["000/0000/0000/0000/L0007",""]\n'
    b'{"end":{"nodes":2,"ledgers":1,"newest_high":3,'
    b'"checksum":"CHECKSUM"}}\n'
)


async def written(path: Path, nodes: int = 2, *, size: int = 1) -> None:
    async with writing(runtime_here().files, str(path)) as writer:
        await writer.header(HEADER)
        await writer.node(BackupNode("cookies/b1", b"{}"))
        for number in range(nodes - 1):
            await writer.node(BackupNode(f"000/0000/0000/0000/L{7 + number:04}", b"x" * (number % 300 * size)))
        await writer.end(ledgers=nodes - 1, newest_high=3)


async def test_the_lines_are_as_the_page_of_the_format_says(tmp_path: Path) -> None:
    await written(tmp_path / "backup")
    lines = gzip.decompress((tmp_path / "backup").read_bytes())
    async with reading(runtime_here().files, str(tmp_path / "backup")) as reader:
        assert await reader.header() == HEADER
        end = await verify(reader)
    assert lines == LINES.replace(b"CHECKSUM", end.checksum.encode())


@pytest.mark.thorough
async def test_memory_does_not_grow_with_the_cluster(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        await written(tmp_path / "backup", 6000, size=30)  # 36 MB of lines
        async with reading(runtime_here().files, str(tmp_path / "backup")) as reader:
            assert (await verify(reader)).nodes == 6000
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


async def test_an_error_while_it_is_written_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        await written(tmp_path / "backup", size="none")  # type: ignore[arg-type]
    assert runtime_here().files.listdir(str(tmp_path)) == []


async def test_a_full_disk_is_that_of_the_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(OSError, match="No space left") as raised:
        await written(tmp_path / "backup")
    assert raised.value.filename == str(tmp_path / "backup")
    assert runtime_here().files.listdir(str(tmp_path)) == []


@pytest.mark.parametrize("at", range(0, 100, 7))
async def test_each_flipped_or_missing_byte_is_noticed(tmp_path: Path, at: int) -> None:
    path = tmp_path / "backup"
    await written(path, 5)
    data = path.read_bytes()
    place = 10 + (len(data) - 11) * at // 100  # behind gzip's header, which has a time and a system
    for damaged in (data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :], data[:place]):
        path.write_bytes(damaged)
        async with reading(runtime_here().files, str(path)) as reader:
            with pytest.raises(CorruptDataError, match="nothing of it is used"):
                await verify(reader)


def changed(path: Path, old: bytes, new: bytes) -> None:
    lines = gzip.decompress(path.read_bytes())
    assert old in lines
    path.write_bytes(gzip.compress(lines.replace(old, new)))


async def test_a_changed_line_and_a_newer_version_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "backup"
    await written(path, 5)
    changed(path, b"cookies/b1", b"cookies/b2")
    async with reading(runtime_here().files, str(path)) as reader:
        with pytest.raises(CorruptDataError, match="checksum"):
            await verify(reader)
    changed(path, b"cookies/b2", b"../elsewhere")
    async with reading(runtime_here().files, str(path)) as reader:
        with pytest.raises(CorruptDataError, match="no path"):
            await verify(reader)
    changed(path, b'"version":1', b'"version":2')
    async with reading(runtime_here().files, str(path)) as reader:
        with pytest.raises(UnsupportedVersionError, match="upgrade it"):
            await reader.header()
    with pytest.raises(ConfigError, match="can't be read"):
        async with reading(runtime_here().files, str(tmp_path / "none")):
            pass


async def test_a_pipe_is_refused_before_it_is_opened(tmp_path: Path) -> None:
    """To open it would wait for a writer, and nothing could end that."""

    class Unopened(RealFiles):
        def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File:
            raise AssertionError(path)

    os.mkfifo(tmp_path / "backup")
    files: Any = DirectFiles(Unopened())
    with pytest.raises(ConfigError, match="not a pipe"):
        async with reading(files, str(tmp_path / "backup")):
            pass


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        (b"bkpy metadata backup", b"something else", "no backup of bkpy's metadata"),
        (b'"kept_from":41', b'"kept_from":"41"', "a value of a wrong type"),
        (b'"root":"/ledgers",', b"", "first line can't be read"),
        (b'{"format"', b'["format"', "first line can't be read"),
        (b'["cookies/b1","e30="]', b'["cookies/b1"]', "node 0 can't be read"),
        (b'["cookies/b1","e30="]', b'["cookies/b1","e30"]', "node 0 can't be read"),
        (b'{"end"', b'{"END"', "last line can't be read"),
        (b'"nodes":5', b'"nodes":4', "checksum is wrong"),
        (b'"nodes":5', b'"more":1,"nodes":5', "last line can't be read"),
        (b'"}}\n', b'"}}\n["cookies/b9",""]\n', "something behind its end"),
        (b'"}}\n', b'"}}', "cut off"),
        (b'{"end"', b'["cookies/b9","' + b"A" * (5 << 20), "a line is too long"),
    ],
)
async def test_lines_that_no_backup_has_are_refused_by_what_is_wrong(
    tmp_path: Path, old: bytes, new: bytes, complaint: str
) -> None:
    path = tmp_path / "backup"
    await written(path, 5)
    changed(path, old, new)
    async with reading(runtime_here().files, str(path)) as reader:
        with pytest.raises(CorruptDataError, match=complaint):
            await verify(reader)


async def test_what_is_appended_to_a_backup_and_a_file_without_lines_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "backup"
    await written(path, 5)
    path.write_bytes(path.read_bytes() + b"more")
    async with reading(runtime_here().files, str(path)) as reader:
        with pytest.raises(CorruptDataError, match="something behind its end"):
            await verify(reader)
    for nothing in (b"", gzip.compress(b"")):
        path.write_bytes(nothing)
        async with reading(runtime_here().files, str(path)) as reader:
            with pytest.raises(CorruptDataError, match=r"empty|cut off"):
                await reader.header()
            with pytest.raises(CorruptDataError, match="cut off"):
                await verify(reader)


async def test_a_backup_replaces_no_file_and_what_a_killed_one_left_is_in_no_way(tmp_path: Path) -> None:
    path = tmp_path / "backup"
    (tmp_path / "backup.new").write_bytes(b"of one that was killed")
    await written(path)
    assert runtime_here().files.listdir(str(tmp_path)) == ["backup"]
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="replaces no file"):
        await written(path)
    assert path.read_bytes() == before


async def test_one_backup_at_a_time_is_written_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "backup"
    async with writing(runtime_here().files, str(path)) as writer:
        await writer.header(HEADER)
        with pytest.raises(ConfigError, match="another process is writing a backup"):
            await written(path)
        await writer.node(BackupNode("cookies/b1", b"{}"))
        await writer.end(ledgers=0, newest_high=3)
    async with reading(runtime_here().files, str(path)) as reader:
        assert (await verify(reader)).nodes == 1
    assert runtime_here().files.listdir(str(tmp_path)) == ["backup"]


async def test_a_backup_that_ends_as_another_one_begins_is_not_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "backup"
    files = runtime_here().files
    lock = RealFiles.lock

    def lock_behind_another(self: RealFiles, name: str) -> Any:
        path.write_bytes(b"of another process")
        return lock(self, name)

    monkeypatch.setattr(RealFiles, "lock", lock_behind_another)
    with pytest.raises(ConfigError, match="replaces no file"):
        await written(path)
    assert path.read_bytes() == b"of another process"
    assert files.listdir(str(tmp_path)) == ["backup"]
