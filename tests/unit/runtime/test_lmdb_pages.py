"""Damage in the pages of an LMDB environment: noticed before the library sees it, or harmless to every row."""

from __future__ import annotations

import random
import shutil
import struct
from typing import TYPE_CHECKING

import lmdb
import pytest
from crc32c import crc32c

from bkpy.errors import CorruptDataError
from bkpy.runtime.lmdb_pages import find_damage
from bkpy.runtime.ordered_store import LmdbStores

if TYPE_CHECKING:
    from pathlib import Path

PAGE = 4096
Rows = dict[bytes, bytes]


def sealed(key: bytes, value: bytes) -> bytes:
    return value + struct.pack("<I", crc32c(value, crc32c(key)))


def is_sound(key: bytes, value: bytes) -> bool:
    return value[-4:] == struct.pack("<I", crc32c(value[:-4], crc32c(key)))


def make(path: Path, *, ledgers: int = 40, commits: int = 6) -> tuple[Rows, Rows]:
    """An environment with two levels, large values and free pages; what the last two commits left."""
    rng = random.Random(1)
    rows: Rows = {}
    before: Rows = {}
    with lmdb.open(str(path), map_size=1 << 24, sync=False) as env:
        for commit in range(commits):
            before = dict(rows)
            with env.begin(write=True) as txn:
                for ledger in range(ledgers):
                    key = b"b" + struct.pack(">QQ", ledger, commit)
                    rows[key] = sealed(key, rng.randbytes(rng.choice((24, 40))))
                    txn.put(key, rows[key])
                for ledger in rng.sample(range(ledgers), 4):
                    key = b"l" + struct.pack(">Q", ledger)
                    rows[key] = sealed(key, rng.randbytes(rng.choice((36, 3000, 9000))))
                    txn.put(key, rows[key])
                for key in rng.sample(sorted(rows), 10):
                    txn.delete(key)
                    del rows[key]
    return rows, before


def state_of(path: Path) -> Rows:
    """Every row, as a search and as a scan find it; `AssertionError` where these differ."""
    with lmdb.open(str(path), map_size=1 << 24, readonly=True, lock=False) as env, env.begin() as txn:
        rows = {bytes(key): bytes(value) for key, value in txn.cursor()}
        assert list(rows) == sorted(rows)
        for key, value in rows.items():
            assert bytes(txn.get(key)) == value
    return rows


def write_on(path: Path) -> Rows:
    """Rows that further commits add, which use what is free."""
    added: Rows = {}
    with lmdb.open(str(path), map_size=1 << 24, sync=False) as env:
        for commit in range(4):
            with env.begin(write=True) as txn:
                for number in range(30):
                    key = b"z" + struct.pack(">QQ", commit, number)
                    added[key] = bytes(100)
                    txn.put(key, added[key])
    return added


def check_harmless(path: Path, states: tuple[Rows, ...]) -> None:
    """All rows of one of these states are there, or some row's checksum says that they aren't; also after writes."""
    rows = state_of(path)
    if all(is_sound(key, value) for key, value in rows.items()):
        assert rows in states
        added = write_on(path)
        assert state_of(path) == {**rows, **added}
        assert find_damage(str(path / "data.mdb")) is None


def flip_all(tmp_path: Path, places: list[tuple[int, int]]) -> int:
    """How many of the flips, each (offset, mask), were complained of; the others must do no harm."""
    states = make(tmp_path / "index", ledgers=20, commits=4)
    flipped = tmp_path / "index" / "data.mdb"
    sound = flipped.read_bytes()
    noticed = 0
    for offset, mask in places:
        offset %= len(sound)
        with flipped.open("r+b") as file:
            file.seek(offset)
            file.write(bytes([sound[offset] ^ mask]))
        if find_damage(str(flipped)) is not None:
            noticed += 1
        else:
            check_harmless(flipped.parent, states)
        if flipped.stat().st_size == len(sound) and flipped.read_bytes()[:8192] == sound[:8192]:
            with flipped.open("r+b") as file:
                file.seek(offset)
                file.write(sound[offset : offset + 1])
        else:  # it was written to
            flipped.write_bytes(sound)
    return noticed


def test_what_was_written_is_sound(tmp_path: Path) -> None:
    for commits in range(8):
        rows, _ = make(tmp_path / f"{commits}", commits=commits)
        assert find_damage(str(tmp_path / f"{commits}" / "data.mdb")) is None
        LmdbStores().check(str(tmp_path / f"{commits}"))
        assert state_of(tmp_path / f"{commits}") == rows


def test_flips_are_noticed_or_harmless(tmp_path: Path) -> None:
    rng = random.Random(2)
    # The heads of pages, where damage does most harm, and anywhere.
    heads = [(PAGE * rng.randrange(40) + rng.randrange(200), 1 << rng.randrange(8)) for _ in range(200)]
    meta = [(PAGE * (i % 2) + i // 2, 1 << rng.randrange(8)) for i in range(2 * 160)]
    anywhere = [(rng.randrange(1 << 24), rng.randrange(1, 256)) for _ in range(200)]
    assert flip_all(tmp_path, heads + meta + anywhere) > 100


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(4))
def test_every_flipped_byte_is_noticed_or_harmless(tmp_path: Path, part: int) -> None:
    make(tmp_path / "size", ledgers=20, commits=4)
    size = (tmp_path / "size" / "data.mdb").stat().st_size
    rng = random.Random(part)
    places = [(offset, rng.randrange(1, 256)) for offset in range(part, size, 4)]
    assert flip_all(tmp_path, places) > 200


def test_a_key_behind_its_bounds_is_noticed(tmp_path: Path) -> None:
    """A scan finds all rows, each with a right checksum, and a search looks for some in the wrong page."""
    make(tmp_path / "index", ledgers=200)
    data = tmp_path / "index" / "data.mdb"
    content = bytearray(data.read_bytes())
    branches = [at for at in range(0, len(content), PAGE) if struct.unpack_from("<H", content, at + 10)[0] == 1]
    noticed = 0
    for page in branches:
        lower = struct.unpack_from("<H", content, page + 12)[0]
        for at in range(page + 18, page + lower, 2):
            node = page + struct.unpack_from("<H", content, at)[0]
            content[node + 8 + 8] ^= 0x02  # the lowest byte of a ledger's id
            data.write_bytes(content)
            damage = find_damage(str(data))
            noticed += damage is not None
            content[node + 8 + 8] ^= 0x02
            if damage is not None:
                assert "no search" in damage or "not in order" in damage
    assert noticed > 5


def test_a_file_that_was_cut_is_noticed_wherever_a_page_in_use_is_missing(tmp_path: Path) -> None:
    states = make(tmp_path / "index")
    sound = (tmp_path / "index" / "data.mdb").read_bytes()
    (tmp_path / "cut").mkdir()
    for length in {*range(0, len(sound), PAGE), *range(1, len(sound), 3 * PAGE)}:
        (tmp_path / "cut" / "data.mdb").write_bytes(sound[:length])
        if find_damage(str(tmp_path / "cut" / "data.mdb")) is None:
            check_harmless(tmp_path / "cut", states)


def test_the_child_tells_what_and_where(tmp_path: Path) -> None:
    make(tmp_path / "index")
    data = tmp_path / "index" / "data.mdb"
    content = bytearray(data.read_bytes())
    content[3 * PAGE : 4 * PAGE] = bytes(PAGE)
    root = bytearray(content)
    data.write_bytes(root)
    damage = find_damage(str(data))
    if damage is None:  # the page was free
        content[PAGE : 2 * PAGE] = bytes(PAGE)
        data.write_bytes(content)
    with pytest.raises(CorruptDataError, match="page") as raised:
        LmdbStores().check(str(tmp_path / "index"))
    assert raised.value.path == str(data)


def test_a_child_that_dies_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "index")
    killed = tmp_path / "killed.py"
    killed.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGBUS)\n")
    monkeypatch.setattr("bkpy.runtime.lmdb_pages.__file__", str(killed))
    with pytest.raises(CorruptDataError, match="signal 7"):
        LmdbStores().check(str(tmp_path / "index"))
    killed.write_text("raise OSError('no such disk')\n")
    with pytest.raises(CorruptDataError, match="no such disk"):
        LmdbStores().check(str(tmp_path / "index"))


def test_stores_are_moved_and_removed(tmp_path: Path) -> None:
    rows, _ = make(tmp_path / "index")
    stores = LmdbStores()
    stores.move(str(tmp_path / "index"), str(tmp_path / "index.old"))
    assert state_of(tmp_path / "index.old") == rows
    stores.remove(str(tmp_path / "index.old"))
    assert not (tmp_path / "index.old").exists()
    shutil.rmtree(tmp_path / "index", ignore_errors=True)
