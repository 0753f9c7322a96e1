"""What an inspection says of sound files, and of files with each byte flipped or cut off. It changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import itertools
import os
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.storage.inspect.built import FENCED, STRIPED, build
from tests.unit.storage.support import KEY

from bkpy.runtime.ordered_store import LmdbStores
from bkpy.runtime.system import RealFiles
from bkpy.storage.index import index
from bkpy.storage.index.ids import Ids
from bkpy.storage.inspect.entry_log import LogInspection
from bkpy.storage.inspect.finding import TOLD_MAX, some
from bkpy.storage.inspect.index import IndexInspection, is_sound, living_at
from bkpy.storage.inspect.journal import JournalInspection
from bkpy.storage.inspect.ledger import Gaps, LedgerInspection
from bkpy.storage.inspect.marks import inspect_marks
from bkpy.storage.journal.format import (
    FRAME_HEADER_BYTES,
    PAGE_BYTES,
    FrameKind,
    Mark,
    decode_file_header,
    encode_frame,
    encode_ledger,
    encode_record,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bkpy.config.bookie import BookieSettings
    from bkpy.storage.inspect.finding import Finding

READ_BYTES = 1 << 16
EVERY = [pytest.param(False, id="some"), pytest.param(True, id="every", marks=pytest.mark.exhaustive)]


class Bookie:
    """A stopped bookie's files, and all inspections of them."""

    def __init__(self, settings: BookieSettings) -> None:
        self.journals = settings.journal_directories
        self.ledgers = settings.ledger_directories
        self.files = RealFiles()

    def journal_file(self) -> Path:
        return next(path for path in sorted(Path(self.journals[0]).iterdir()) if path.suffix == ".txn")

    def log_file(self) -> Path:
        return next(path for path in sorted(Path(self.ledgers[0]).iterdir()) if path.suffix == ".log")

    def journal(self, **arguments: Any) -> list[Finding]:
        return list(JournalInspection(self.files, self.journals[0], 0, read_bytes=READ_BYTES, **arguments).run())

    def log(self, committed: Callable[[], bool] = lambda: True, **arguments: Any) -> list[Finding]:
        """`committed` is asked at each look at the index whether it has its rows by now."""
        store = LmdbStores().open(f"{self.ledgers[0]}/index", read_only=True)
        try:

            def living(log_id: int, start: int, end: int) -> list[tuple[int, int, int]]:
                with store.read() as txn:
                    return living_at(txn, log_id, start, end) if committed() else []

            path = str(self.log_file())
            return list(LogInspection(self.files, path, living, read_bytes=READ_BYTES, **arguments).run())
        finally:
            store.close()

    def index(self, **arguments: Any) -> list[Finding]:
        store = LmdbStores().open(f"{self.ledgers[0]}/index", read_only=True)
        try:
            with store.read() as txn:
                return list(IndexInspection(self.ledgers[0], txn, **arguments).run())
        finally:
            store.close()

    def ledger(self, ledger_id: int, *, unopened: int = 0) -> list[Finding]:
        with self.indexes() as stores:
            inspection = LedgerInspection(
                self.files,
                stores,
                self.journals,
                ledger_id,
                read_bytes=READ_BYTES,
                ranges_max=100,
                unopened=unopened,
            )
            return list(inspection.run())

    def marks(self) -> list[Finding]:
        with self.indexes() as stores:
            return list(inspect_marks(self.files, stores, self.journals, read_bytes=READ_BYTES))

    def indexes(self) -> Any:
        @contextlib.contextmanager
        def opened() -> Iterator[dict[str, Any]]:
            stores = {path: LmdbStores().open(f"{path}/index", read_only=True) for path in self.ledgers}
            try:
                yield stores
            finally:
                for store in stores.values():
                    store.close()

        return opened()


def bookie(root: Path, **how: Any) -> Bookie:
    return Bookie(asyncio.run(build(root, **how)))


def damages(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.damage]


def facts(findings: list[Finding], kind: str) -> list[dict[str, object]]:
    return [finding.facts for finding in findings if finding.kind == kind]


def checked(findings: list[Finding]) -> list[Finding]:
    """The findings, which say for all damage where it is and what to do."""
    assert all(finding.path and finding.advice for finding in damages(findings))
    return findings


@pytest.mark.parametrize("clean", [True, False])
def test_all_that_is_there_is_told_and_nothing_is_changed(tmp_path: Path, clean: bool) -> None:
    one = bookie(tmp_path, clean=clean, ledgers=2)
    before = contents(tmp_path)
    journal, log, rows, marks = one.journal(), one.log(), one.index(), one.marks()
    ledgers = [one.ledger(ledger_id) for ledger_id in range(STRIPED + 2)]
    for findings in (journal, log, rows, marks, *ledgers):
        assert damages(findings) == []
        assert KEY.hex() not in str(findings)
        assert repr(KEY) not in str(findings)
    records = facts(journal, "record")
    assert [r["record"] for r in records].count("KEY") == 5
    assert [r["ledger"] for r in records if r["record"] == "FENCE"] == [FENCED]
    assert sum(r["entries"] for r in records if r["record"] == "ADD") == 32  # type: ignore[misc]
    assert facts(journal, "end")[-1]["clean_stop"] is clean
    assert [f.kind for f in journal].count("clean stop") == clean
    assert {b["ledger"] for b in facts(log, "block")} == {0, 2, 4}
    assert len(facts(log, "footer")) == clean
    assert sum(f["records"] for f in facts(marks, "to replay")) == (0 if clean else 2)  # type: ignore[misc]
    assert len(facts(marks, "mark")) == 2
    for ledger_id, findings in enumerate(ledgers[:STRIPED]):
        (row,) = facts(findings, "row")
        assert (row["ledger"], row["fenced"], row["limbo"]) == (ledger_id, ledger_id == FENCED, False)
        assert len(str(row["key"])) == 16
        assert all(b["checked"] for b in facts(findings, "block"))
        assert [r["first"] for r in facts(findings, "record")] == ([] if clean else [3])
        assert facts(findings, "end") == [{"ledger": ledger_id, "entries": 5, "ids_missing": 0, "gaps": []}]
    (end,) = facts(ledgers[STRIPED], "end")
    assert (end["entries"], end["ids_missing"]) == (12, 22)
    assert end["gaps"] == [f"{i + 1}-{i + 2}" for i in range(0, 33, 3)]
    assert "nothing of the ledger" in str(facts(ledgers[-1], "note"))
    unsure = str(facts(one.ledger(STRIPED + 1, unopened=1), "note"))
    assert "is not known: an index can't be opened" in unsure
    assert "nothing of the ledger" not in unsure
    assert contents(tmp_path) == before


def contents(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file() and path.name != "lock.mdb"}


def test_one_ledger_alone_is_told(tmp_path: Path) -> None:
    one = bookie(tmp_path)
    assert {r.get("ledger") for r in facts(one.journal(ledger=2), "record")} == {2}
    assert [b["ledger"] for b in facts(one.log(ledger=2), "block")] == [2]
    assert {r["ledger"] for r in facts(one.index(ledger=2), "row")} == {2}


def test_a_look_begins_where_it_is_told_to(tmp_path: Path) -> None:
    one = bookie(tmp_path)
    frames = [f.offset for f in one.journal() if f.kind == "frame"]
    file_id = int(one.journal_file().stem, 16)
    for at in (frames[1], frames[1] - 100):
        assert [f.offset for f in one.journal(only=file_id, offset=at) if f.kind == "frame"] == frames[1:]
    assert damages(one.journal(only=file_id, offset=frames[-1] + 1)) == []
    blocks = [f.offset for f in one.log() if f.kind == "block"]
    assert blocks[0] is not None
    for at in (blocks[1], blocks[0] + 1):
        assert at is not None
        assert [f.offset for f in one.log(offset=at) if f.kind == "block"] == blocks[1:]


# --- damage -----------------------------------------------------------------------------------------------------------


def places(size: int, every: bool, seed: str) -> list[int]:
    """Every offset, or some."""
    return list(range(size)) if every else sorted(random.Random(seed).sample(range(size), min(60, size)))


def each_flip(path: Path, offsets: list[int]) -> Iterator[int]:
    """Flip one byte after the other."""
    sound = path.read_bytes()
    with path.open("r+b", buffering=0) as file:
        for at in offsets:
            os.pwrite(file.fileno(), bytes([sound[at] ^ 0x40]), at)
            yield at
            os.pwrite(file.fileno(), sound[at : at + 1], at)


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.scenario(44)
def test_a_flipped_byte_of_a_journal_is_told_with_its_place(tmp_path: Path, clean: bool, every: bool) -> None:
    one = bookie(tmp_path, clean=clean)
    sound = one.journal()
    path = one.journal_file()
    frames = [(f.offset or 0, f.facts) for f in sound if f.kind in ("frame", "clean stop")]
    ends = [at + FRAME_HEADER_BYTES + int(str(f.get("bytes", 0))) for at, f in frames]
    spans = [(0, 0, 56), *((at, at, end) for (at, _), end in zip(frames, ends, strict=True))]
    interesting = [at for _, start, end in spans for at in range(start, end)]
    chosen = [interesting[i] for i in places(len(interesting), every, "journal")]
    for at in each_flip(path, chosen):
        findings = checked(one.journal())
        found = damages(findings)
        begin = next(start for start, low, high in spans if low <= at < high)
        if begin == frames[-1][0]:  # the last frame: torn, or nothing of this file, unless it was the clean stop
            assert [f for f in findings if f.kind in ("note", "end")] or found
        else:
            assert [f for f in found if f.offset is not None and f.offset <= at], f"a flip at {at} is passed over"
        others = [f.offset for f in findings if f.kind in ("frame", "clean stop")]
        assert others[-1:] == [frames[-1][0]] or begin == frames[-1][0], "what lies behind it is looked at, too"


@pytest.mark.parametrize("every", EVERY)
def test_a_journal_cut_off_anywhere_is_looked_at(tmp_path: Path, every: bool) -> None:
    one = bookie(tmp_path)
    path = one.journal_file()
    sound = path.read_bytes()
    frames = [f.offset or 0 for f in one.journal() if f.kind == "frame"]
    used = frames[-1] + PAGE_BYTES
    for size in sorted(places(used, every, "cut"), reverse=True):
        os.truncate(path, size)
        found = checked(one.journal())
        assert [f.offset for f in found if f.kind == "frame"] == [at for at in frames if _whole(sound, at, size)]


def _whole(sound: bytes, at: int, size: int) -> bool:
    body = int.from_bytes(sound[at + 40 : at + 44], "little")
    return at + FRAME_HEADER_BYTES + body <= size


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.scenario(49)
def test_a_flipped_byte_of_an_entry_log_is_told_with_what_it_held(tmp_path: Path, clean: bool, every: bool) -> None:
    one = bookie(tmp_path, clean=clean)
    path = one.log_file()
    sound = one.log()
    blocks = [f for f in sound if f.kind == "block"]
    for at in each_flip(path, places(path.stat().st_size, every, "log")):
        findings = checked(one.log())
        found = damages(findings)
        hit = [b for b in blocks if (b.offset or 0) <= at < (b.offset or 0) + int(str(b.facts["bytes"]))]
        if hit:
            (block,) = hit
            (one_damage,) = found
            assert one_damage.offset == block.offset
            assert one_damage.facts["entries"] == [
                f"ledger {block.facts['ledger']}: {block.facts['first']}-{block.facts['last']}"
            ]
            assert len([f for f in findings if f.kind == "block"]) == len(blocks) - 1
        else:
            assert len([f for f in findings if f.kind == "block"]) == len(blocks)
            assert bool(found) or 44 <= at < 64 or at >= path.stat().st_size - 4


@pytest.mark.parametrize("every", EVERY)
def test_an_entry_log_cut_off_anywhere_is_looked_at(tmp_path: Path, every: bool) -> None:
    one = bookie(tmp_path, clean=True)
    path = one.log_file()
    blocks = [((f.offset or 0), int(str(f.facts["bytes"]))) for f in one.log() if f.kind == "block"]
    for size in sorted(places(path.stat().st_size, every, "cut log"), reverse=True):
        os.truncate(path, size)
        findings = checked(one.log())
        assert [f.offset for f in findings if f.kind == "block"] == [at for at, n in blocks if at + n <= size]
        lost = [at for at, n in blocks if at + n > size]
        assert bool(damages(findings)) == bool(lost) or size < 64


def test_what_a_crash_left_behind_the_last_block_is_no_damage(tmp_path: Path) -> None:
    one = bookie(tmp_path)
    path = one.log_file()
    with path.open("ab") as file:
        file.write(path.read_bytes()[64:200])
    findings = one.log()
    assert damages(findings) == []
    assert "a crash or a write under way" in str(facts(findings, "note"))


def test_a_log_that_grows_while_it_is_looked_at_is_not_damaged(tmp_path: Path) -> None:
    """Whatever part of the last blocks is there at first, and however much of the file and the index comes later."""
    one = bookie(tmp_path)
    path = one.log_file()
    whole = path.read_bytes()
    blocks = [(f.offset or 0) for f in one.log() if f.kind == "block"]
    assert len(blocks) > 3
    for there in [*blocks[1:], *range(blocks[-2], len(whole), 7)]:
        for asked in range(3):
            path.write_bytes(whole[:there])
            asks = itertools.count()

            def written(asks: Iterator[int] = asks, asked: int = asked) -> bool:
                if next(asks) == asked:
                    path.write_bytes(whole)
                return path.stat().st_size == len(whole)

            assert damages(one.log(committed=written)) == []


@pytest.mark.parametrize("kind", [b"l", b"b", b"g", b"m"])
def test_a_damaged_row_of_the_index_is_told(tmp_path: Path, kind: bytes) -> None:
    one = bookie(tmp_path, clean=True)
    store = LmdbStores().open(f"{one.ledgers[0]}/index")
    with store.write() as txn:
        key, value = next(iter(txn.scan(kind, kind + b"\xff" * 20)))
        txn.put(key, bytes([value[0] ^ 1]) + value[1:])
    store.close()
    found = damages(checked(one.index()))
    assert "doesn't match its checksum" in found[0].damage
    assert found[0].facts["key"] == key.hex()
    assert found[0].facts.get("ledger") == (0 if kind in (b"l", b"b") else None)
    if kind in (b"l", b"b"):
        assert damages(checked(one.ledger(0)))
    assert bool(damages(checked(one.marks()))) == (kind == b"m")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (b"b", "all 2 block rows are gone"),
        (b"l", "no row of their ledger"),
        (b"m", "no row of its own"),
    ],
)
def test_rows_that_are_gone_are_told(tmp_path: Path, kind: bytes, message: str) -> None:
    one = bookie(tmp_path, clean=True)
    store = LmdbStores().open(f"{one.ledgers[0]}/index")
    with store.write() as txn:
        for key, _ in list(txn.scan(kind, kind + b"\xff" * 20)):
            if kind != b"b" or key[8] == 1:
                txn.delete(key)
    store.close()
    assert [f for f in damages(checked(one.index())) if message in f.damage]


def test_one_block_row_that_is_gone_is_told(tmp_path: Path) -> None:
    one = bookie(tmp_path, clean=True)
    store = LmdbStores().open(f"{one.ledgers[0]}/index")
    with store.write() as txn:
        key, _ = next(iter(txn.scan(index.block_key(1, 0), index.block_key(1, 9))))
        txn.delete(key)
    store.close()
    for findings in (one.index(), one.ledger(1)):
        (found,) = damages(checked(findings))
        assert "counts 2 block rows, and 1 are here" in found.damage
        assert found.facts["ledger"] == 1
    assert facts(one.ledger(1), "end")[0]["gaps"] == ["0-2"]


def test_what_this_version_does_not_know_is_no_damage(tmp_path: Path) -> None:
    one = bookie(tmp_path, clean=True)
    store = LmdbStores().open(f"{one.ledgers[0]}/index")
    key = b"t" + (50).to_bytes(8, "big")
    rows = {key: (60).to_bytes(8, "little"), b"z": b"later", index.ledger_key(99): b"\x09 later"}
    with store.write() as txn:
        for key, value in rows.items():
            txn.put(key, index.seal(key, value))
    store.close()
    assert is_sound(key, index.seal(key, rows[key]))
    findings = one.index()
    assert [f.damage for f in damages(findings)] == [
        "the index counts 5 ledger rows, and 6 are here, or one was changed"
    ]
    assert [r for r in facts(findings, "row") if r["row"] == "tombstones"] == [
        {"row": "tombstones", "first": 50, "last": 60}
    ]
    assert len([r for r in facts(findings, "row") if r.get("form") == "not known to this version"]) == 1
    (tombstone,) = facts(one.ledger(55), "tombstone")
    assert tombstone["deleted"]


def test_records_of_later_versions_are_told_by_kind_and_size(tmp_path: Path) -> None:
    one = bookie(tmp_path)
    path = one.journal_file()
    end = next(f for f in one.journal() if f.kind == "end")
    frame = [f for f in one.journal() if f.kind == "frame"][-1]
    content = path.read_bytes()
    header = decode_file_header(content[:PAGE_BYTES])
    assert header is not None
    chain = int.from_bytes(content[(frame.offset or 0) + 48 : (frame.offset or 0) + 52], "little")
    head = encode_ledger(7)
    body: list[Any] = []
    for kind in (5, 6, 7, 9):
        body += [encode_record(kind, head, b"xy"), head, b"xy"]  # type: ignore[arg-type]
    sequence = int(str(end.facts["sequence"]))
    buffers, _, _ = encode_frame(FrameKind.RECORDS, header.nonce, sequence, chain, 4, body)
    with path.open("r+b") as file:
        file.seek(end.offset or 0)
        file.write(b"".join(buffers))
    findings = one.journal()
    assert damages(findings) == []
    assert [r["record"] for r in facts(findings, "record")][-4:] == ["DELETED", "HIDE", "UNHIDE", "kind 9"]
    assert {r["ledger"] for r in facts(findings, "record")[-4:]} == {7}


def test_damage_before_the_marks_is_told_as_harmless(tmp_path: Path) -> None:
    one = bookie(tmp_path, clean=True)
    path = one.journal_file()
    mark = Mark(int(path.stem, 16), 1 << 30, 100, 0)
    for _ in each_flip(path, [PAGE_BYTES + 60]):
        (found,) = damages(one.journal(mark=mark))
        assert "nothing is lost" in found.advice
        (found,) = damages(one.journal())
        assert "journal_damage" in found.advice


def test_a_journal_file_that_the_marks_need_and_that_is_gone_is_told(tmp_path: Path) -> None:
    one = bookie(tmp_path)
    one.journal_file().unlink()
    (found,) = damages(checked(one.marks()))
    assert "the last checkpoint relies on is gone" in found.damage
    assert damages(checked(one.ledger(0)))


def test_a_log_that_is_gone_is_told_with_the_ledgers_entries(tmp_path: Path) -> None:
    one = bookie(tmp_path, clean=True)
    one.log_file().unlink()
    found = damages(checked(one.ledger(1)))
    assert {(f.facts["first"], f.facts["last"]) for f in found} == {(0, 2), (3, 4)}


def _in_children(path: Path, offsets: list[int], look: Callable[[], list[Finding]]) -> Counter[int]:
    """How often flipping one of these bytes came to what: 0: sound, 1: damage, 2: an error that isn't one of the disk,
    below 0: ended by that signal. A child goes on with the next byte until one kills it."""
    sound = path.read_bytes()
    statuses: list[int] = []
    while len(statuses) < len(offsets):
        source, sink = os.pipe()
        child = os.fork()
        if not child:
            try:
                _quiet()
                for _ in each_flip(path, offsets[len(statuses) :]):
                    os.write(sink, bytes([_status(look)]))
            finally:
                os._exit(0)
        os.close(sink)
        with open(source, "rb") as pipe:
            statuses += pipe.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if len(statuses) < len(offsets):
            statuses.append(status)
            assert status < 0
            path.write_bytes(sound)
    return Counter(statuses)


def _in_a_child(look: Callable[[], list[Finding]]) -> int:
    """The same of one look."""
    child = os.fork()
    if not child:
        try:
            _quiet()
        finally:
            os._exit(_status(look))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _quiet() -> None:
    """Say nothing when the library gives up or the process is killed."""
    faulthandler.disable()
    os.close(2)


def _status(look: Callable[[], list[Finding]]) -> int:
    try:
        return int(bool(damages(look())))
    except OSError:
        return 1
    except BaseException:
        return 2


@pytest.mark.parametrize("every", EVERY)
def test_an_index_with_any_byte_flipped_or_cut_off_ends_an_inspection_in_order(tmp_path: Path, every: bool) -> None:
    one = bookie(tmp_path, clean=True)
    path = Path(one.ledgers[0]) / "index" / "data.mdb"
    kept = tmp_path / "kept"
    shutil.copy(path, kept)
    content = path.read_bytes()
    used = [at for at, byte in enumerate(content) if byte]  # half of the pages is free, and nobody looks there
    told = _in_children(path, [used[i] for i in places(len(used), every, "index")], one.index)
    assert not told[2]
    assert told.total() > told[0]
    for size in reversed(range(0, len(content), 512 if every else 8192)):
        os.truncate(path, size)
        assert _in_a_child(one.index) != 2
    shutil.copy(kept, path)
    assert _in_a_child(one.index) == 0


def test_what_is_about_many_things_names_some_of_them() -> None:
    assert some("ids", [1, 2]) == {"ids": [1, 2]}
    assert some("ids", range(1000)) == {"ids": list(range(TOLD_MAX)), "all_ids": 1000}


def test_gaps_are_what_no_set_has() -> None:
    rng = random.Random(7)
    for _ in range(300):
        sets = sorted(
            (Ids(rng.randrange(200), rng.randrange(1, 9), rng.randrange(1, 5)) for _ in range(rng.randrange(1, 30))),
            key=lambda ids: ids.first,
        )
        members = {i for ids in sets for i in ids.from_rank(0)}
        gaps = Gaps(1000)
        for ids in sets:
            gaps.add(ids)
        gaps.end()
        missing = {i for first, last in gaps.ranges for i in range(first, last + 1)}
        assert missing == set(range(max(members) + 1)) - members
        assert (gaps.present, gaps.missing) == (len(members), len(missing))
    few = Gaps(2)
    for first in (10**12, 10**12 + 5, 10**12 + 9):
        few.add(Ids(first, 1))
    few.end()
    assert few.ranges == [(0, 10**12 - 1), (10**12 + 1, 10**12 + 4)]
    assert few.missing == 10**12 + 4 + 3
