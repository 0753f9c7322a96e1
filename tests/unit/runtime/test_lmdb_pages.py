"""Damage in the pages of an LMDB environment: noticed before the library sees it, or harmless to every row."""

from __future__ import annotations

import random
import shutil
import signal
import struct
import subprocess
import threading
from typing import TYPE_CHECKING, Any

import lmdb
import pytest
from crc32c import crc32c
from tests.examples import stride
from tests.waiting import eventually_here

from bkpy.errors import CorruptDataError
from bkpy.runtime import lmdb_pages
from bkpy.runtime.lmdb_pages import SOUND_NAME, find_damage, learn, look_through
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
        assert find_damage(str(path)) is None


def flip_all(tmp_path: Path, places: list[tuple[int, int]], *, learned: bool) -> int:
    """How many of the flips, each (offset, mask), were complained of; the others must do no harm.

    `learned`: an earlier look has left word of which leaves are sound.
    """
    states = make(tmp_path / "index", ledgers=20, commits=4)
    if learned:
        learn(str(tmp_path / "index"), 1.0)
        assert len(look_through(str(tmp_path / "index")).looked_into) < 3  # those with values on other pages
    flipped = tmp_path / "index" / "data.mdb"
    sound = flipped.read_bytes()
    noticed = 0
    for offset, mask in places:
        offset %= len(sound)
        with flipped.open("r+b") as file:
            file.seek(offset)
            file.write(bytes([sound[offset] ^ mask]))
        if find_damage(str(flipped.parent)) is not None:
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


@pytest.mark.thorough
def test_what_was_written_is_sound(tmp_path: Path) -> None:
    for commits in range(8):
        rows, _ = make(tmp_path / f"{commits}", commits=commits)
        assert find_damage(str(tmp_path / f"{commits}")) is None
        LmdbStores().check(str(tmp_path / f"{commits}"))
        assert state_of(tmp_path / f"{commits}") == rows


@pytest.mark.thorough
@pytest.mark.parametrize("learned", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_flips_are_noticed_or_harmless(tmp_path: Path, learned: bool) -> None:
    rng = random.Random(2)
    # The heads of pages, where damage does most harm, and anywhere.
    heads = [(PAGE * rng.randrange(40) + rng.randrange(200), 1 << rng.randrange(8)) for _ in range(200 // stride())]
    meta = [(PAGE * (i % 2) + i // 2, 1 << rng.randrange(8)) for i in range(0, 2 * 160, stride())]
    anywhere = [(rng.randrange(1 << 24), rng.randrange(1, 256)) for _ in range(200 // stride())]
    assert flip_all(tmp_path, heads + meta + anywhere, learned=learned) > 100 // stride()


@pytest.mark.exhaustive
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(4))
def test_every_flipped_byte_is_noticed_or_harmless(tmp_path: Path, part: int) -> None:
    make(tmp_path / "size", ledgers=20, commits=4)
    size = (tmp_path / "size" / "data.mdb").stat().st_size
    rng = random.Random(part)
    places = [(offset, rng.randrange(1, 256)) for offset in range(part, size, 4)]
    assert flip_all(tmp_path, places, learned=part % 2 == 1) > 200


@pytest.mark.parametrize("learned", [False, True])
def test_a_key_behind_its_bounds_is_noticed(tmp_path: Path, learned: bool) -> None:
    """A scan finds all rows, each with a right checksum, and a search looks for some in the wrong page."""
    make(tmp_path / "index", ledgers=200)
    if learned:
        learn(str(tmp_path / "index"), 1.0)
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
            damage = find_damage(str(data.parent))
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
        if find_damage(str(tmp_path / "cut")) is None:
            check_harmless(tmp_path / "cut", states)


def test_the_child_tells_what_and_where(tmp_path: Path) -> None:
    make(tmp_path / "index")
    data = tmp_path / "index" / "data.mdb"
    content = bytearray(data.read_bytes())
    content[3 * PAGE : 4 * PAGE] = bytes(PAGE)
    root = bytearray(content)
    data.write_bytes(root)
    damage = find_damage(str(data.parent))
    if damage is None:  # the page was free
        content[PAGE : 2 * PAGE] = bytes(PAGE)
        data.write_bytes(content)
    with pytest.raises(CorruptDataError, match="page") as raised:
        LmdbStores().check(str(tmp_path / "index"))
    assert raised.value.path == str(data)


# --- leaves that were found sound before ------------------------------------------------------------------------------


def rows_looked_into(path: Path) -> int:
    return sum(rows for _, rows in look_through(str(path)).looked_into)


def test_only_leaves_that_changed_are_looked_into_again(tmp_path: Path) -> None:
    index = tmp_path / "index"
    rows, _ = make(index, ledgers=400)
    assert rows_looked_into(index) == len(rows)
    LmdbStores().check(str(index))
    few = rows_looked_into(index)
    assert few < len(rows) / 20  # leaves with values that lie on other pages
    with lmdb.open(str(index), map_size=1 << 24) as env, env.begin(write=True) as txn:
        txn.put(b"b" + struct.pack(">QQ", 200, 50), b"new")
    changed = rows_looked_into(index) - few
    assert 0 < changed < 200  # one leaf, or the two that it was split into
    learn(str(index), 1.0)
    assert rows_looked_into(index) == few
    assert len(state_of(index)) == len(rows) + 1


def test_a_start_reads_what_it_was_told_and_no_more_of_a_leaf_however_many_rows_there_are(tmp_path: Path) -> None:
    for ledgers in (50, 100, 200, 800):
        index = tmp_path / f"{ledgers}"
        make(index, ledgers=ledgers, commits=3)
        LmdbStores().check(str(index))
        with lmdb.open(str(index), map_size=1 << 24) as env, env.begin(write=True) as txn:
            txn.put(b"b" + struct.pack(">QQ", 20, 50), b"new")
        assert len(look_through(str(index)).looked_into) < 12


@pytest.mark.thorough
def test_word_of_sound_leaves_that_is_damaged_or_of_another_file_hides_nothing(tmp_path: Path) -> None:
    index, other = tmp_path / "index", tmp_path / "other"
    make(index, ledgers=200)
    make(other, ledgers=210)
    learn(str(index), 1.0)
    learn(str(other), 1.0)
    data = index / "data.mdb"
    sound = bytearray(data.read_bytes())
    told = (index / SOUND_NAME).read_bytes()
    leaf = next(
        at
        for at in range(2 * PAGE, len(sound), PAGE)
        if (sound[at + 10], told[16 + at // PAGE * 4 :][:4] != bytes(4)) == (2, True) and is_in_use(index, at // PAGE)
    )
    sound[leaf + 16 : leaf + 20] = sound[leaf + 18 : leaf + 20] + sound[leaf + 16 : leaf + 18]  # out of order
    data.write_bytes(sound)
    assert find_damage(str(index)) is not None
    rng = random.Random(3)
    words = [b"", told[:10], told[:-1], told[:-4], told + bytes(4), (other / SOUND_NAME).read_bytes()]
    for _ in range(200):
        word = bytearray(told)
        word[rng.randrange(len(word))] ^= rng.randrange(1, 256)
        words.append(bytes(word))
    for word in words:
        (index / SOUND_NAME).write_bytes(word)
        assert find_damage(str(index)) is not None
    learn(str(index), 1.0)
    assert find_damage(str(index)) is not None


def test_word_of_sound_leaves_that_is_not_whole_is_not_believed(tmp_path: Path) -> None:
    rows, _ = make(tmp_path / "index", ledgers=200)
    learn(str(tmp_path / "index"), 1.0)
    sound = tmp_path / "index" / SOUND_NAME
    told = sound.read_bytes()
    few = rows_looked_into(tmp_path / "index")
    for at in (0, 8, 12, 16, len(told) - 1):  # magic, checksum, bytes of a page, what is told
        sound.write_bytes(told[:at] + bytes([told[at] ^ 1]) + told[at + 1 :])
        assert rows_looked_into(tmp_path / "index") == len(rows) > few
    sound.write_bytes(told)
    assert rows_looked_into(tmp_path / "index") == few


def is_in_use(path: Path, number: int) -> bool:
    """Whether damage to a page is noticed."""
    data = path / "data.mdb"
    sound = data.read_bytes()
    data.write_bytes(sound[: number * PAGE] + bytes(PAGE) + sound[(number + 1) * PAGE :])
    damage = find_damage(str(path))
    data.write_bytes(sound)
    return damage is not None


@pytest.mark.thorough
def test_leaves_are_learned_while_somebody_writes(tmp_path: Path) -> None:
    rng = random.Random(4)
    index = tmp_path / "index"
    rows: Rows = {}
    store = LmdbStores().open(str(index), create=True, bytes_max=1 << 28)
    stop = threading.Event()
    learned = 0

    def learn_on() -> None:
        nonlocal learned
        while not stop.is_set():
            learn(str(index), 1.0)
            learned += 1

    thread = threading.Thread(target=learn_on)
    thread.start()
    try:
        commits = 0
        while commits < 30 or learned < 5:
            commits += 1
            with store.write() as txn:
                for _ in range(200):
                    key = b"b" + struct.pack(">QQ", rng.randrange(3000), 0)
                    rows[key] = sealed(key, rng.randbytes(30))
                    txn.put(key, rows[key])
    finally:
        stop.set()
        thread.join()
        store.close()
    LmdbStores().check(str(index))
    assert state_of(index) == rows


def test_no_space_for_what_was_learned_is_no_error(tmp_path: Path) -> None:
    make(tmp_path / "index")
    (tmp_path / "index" / f"{SOUND_NAME}.new").mkdir()
    LmdbStores().check(str(tmp_path / "index"))
    learn(str(tmp_path / "index"), 1.0)
    assert not (tmp_path / "index" / SOUND_NAME).exists()


def test_a_store_is_looked_through_beside_its_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = tmp_path / "index"
    make(index, ledgers=400)
    begun: list[subprocess.Popen[bytes]] = []
    begin = subprocess.Popen

    def count(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        begun.append(begin(*args, **options))
        return begun[-1]

    monkeypatch.setattr(subprocess, "Popen", count)
    store = LmdbStores().open(str(index), bytes_max=1 << 24)
    store.prepare_check(1.0)
    assert begun[0].wait(30) == 0
    assert len(look_through(str(index)).looked_into) < 12
    store.prepare_check(1.0)  # nothing was written since
    assert len(begun) == 1
    with store.write() as txn:
        txn.put(b"new", b"")
    store.prepare_check(1e-9)
    store.prepare_check(1e-9)  # while that is under way
    assert len(begun) == 2
    store.close()
    assert begun[1].returncode == -signal.SIGKILL


def test_a_store_whose_pages_can_not_be_looked_through_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make(tmp_path / "index")
    store = LmdbStores().open(str(tmp_path / "index"), bytes_max=1 << 24)
    monkeypatch.setattr("sys.executable", str(tmp_path / "nothing"))
    store.prepare_check(1.0)
    assert "the next start does it" in caplog.text
    caplog.clear()
    monkeypatch.setattr("sys.executable", "/bin/false")
    with store.write() as txn:
        txn.put(b"new", b"")

    def checked() -> str:
        store.prepare_check(1.0)
        return caplog.text

    assert "the next start does it" in eventually_here(checked)
    store.close()


def test_a_child_that_dies_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "index")
    killed = tmp_path / "killed.py"
    killed.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGBUS)\n")
    monkeypatch.setattr(lmdb_pages, "__file__", str(killed))
    with pytest.raises(CorruptDataError, match="SIGBUS"):
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
