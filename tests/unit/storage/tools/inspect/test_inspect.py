"""What an inspection says of sound files, and of files with each byte flipped or cut off. It changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import faulthandler
import itertools
import os
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.sim.disk import SimDisk
from tests.unit.storage.support import KEY, Batch, Host, add, records
from tests.unit.storage.tools.inspect.built import FENCED, STRIPED, build

from bkpy.runtime.ordered_store import LmdbStores
from bkpy.runtime.system import RealFiles
from bkpy.storage.entry_log.entry_log import BLOCK_MAGIC, LOG_HEADER_BYTES, BlockWriter, decode_log_header, log_name
from bkpy.storage.index import index
from bkpy.storage.index.ids import Ids
from bkpy.storage.index.tombstones import encode_tombstone, tombstone_key
from bkpy.storage.journal import format as journal_format
from bkpy.storage.journal.format import (
    FRAME_HEADER_BYTES,
    PAGE_BYTES,
    FrameKind,
    Mark,
    RecordKind,
    decode_file_header,
    encode_file_header,
    encode_frame,
    encode_ledger,
    encode_record,
)
from bkpy.storage.tools.inspect.entry_log import LogInspection
from bkpy.storage.tools.inspect.finding import SHOWN_MAX, some
from bkpy.storage.tools.inspect.index import IndexInspection, is_sound, living_at
from bkpy.storage.tools.inspect.journal import JournalInspection
from bkpy.storage.tools.inspect.ledger import Gaps, LedgerInspection
from bkpy.storage.tools.inspect.marks import inspect_marks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bkpy.config.bookie import BookieSettings
    from bkpy.storage.tools.inspect.finding import Finding

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

    def journal(self, number: int | None = 0, **arguments: Any) -> list[Finding]:
        directory = self.journals[number or 0]
        return list(JournalInspection(self.files, directory, number, read_bytes=READ_BYTES, **arguments).run())

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


@pytest.mark.parametrize("clean", [True, False])
def test_a_look_begins_where_it_is_told_to(tmp_path: Path, clean: bool) -> None:
    one = bookie(tmp_path, clean=clean)
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


@pytest.mark.thorough
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


def append_frame(one: Bookie, records: int, body: list[Any]) -> int:
    """Put a sound commit frame of these records behind the last one; its offset."""
    path = one.journal_file()
    end = next(f for f in one.journal() if f.kind == "end")
    frame = [f for f in one.journal() if f.kind == "frame"][-1]
    content = path.read_bytes()
    header = decode_file_header(content[:PAGE_BYTES])
    assert header is not None
    chain = int.from_bytes(content[(frame.offset or 0) + 48 : (frame.offset or 0) + 52], "little")
    sequence = int(str(end.facts["sequence"]))
    buffers, _, _ = encode_frame(FrameKind.RECORDS, header.nonce, sequence, chain, records, body)
    assert end.offset is not None
    with path.open("r+b") as file:
        file.seek(end.offset)
        file.write(b"".join(buffers))
    return end.offset


def test_records_of_later_versions_are_told_by_kind_and_size(tmp_path: Path) -> None:
    one = bookie(tmp_path)
    head = encode_ledger(7)
    body: list[Any] = []
    for kind in (5, 6, 7, 9):
        body += [encode_record(kind, head, b"xy"), head, b"xy"]  # type: ignore[arg-type]
    append_frame(one, 4, body)
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


def test_a_log_with_another_logs_name_is_told(tmp_path: Path) -> None:
    one = bookie(tmp_path)
    path = one.log_file()
    header = decode_log_header(path.read_bytes()[:LOG_HEADER_BYTES])
    path.rename(path.with_name(log_name(header.log_id + 1)))
    findings = one.log(committed=lambda: False)
    (found,) = damages(checked(findings))
    assert (found.damage, found.offset) == (f"the header is that of log {header.log_id}", 0)
    assert [f for f in findings if f.kind == "block"]


def test_a_block_that_no_row_names_is_no_loss(tmp_path: Path) -> None:
    one = bookie(tmp_path, clean=True)
    block = next(f for f in one.log() if f.kind == "block")
    for _ in each_flip(one.log_file(), [(block.offset or 0) + 60]):
        (found,) = damages(checked(one.log()))
        assert "*unknown*" in found.advice
        (found,) = damages(checked(one.log(committed=lambda: False)))
        assert found.offset == block.offset
        assert "nothing is lost" in found.advice


def test_a_bad_place_before_sound_blocks_of_a_log_without_a_footer_is_damage_only_if_a_row_names_it(
    tmp_path: Path,
) -> None:
    one = bookie(tmp_path)
    block = next(f for f in one.log() if f.kind == "block")
    for _ in each_flip(one.log_file(), [(block.offset or 0) + 60]):
        findings = one.log(committed=lambda: False)
        assert damages(findings) == []
        assert [f.offset for f in findings if "nothing says that there was one" in str(f.facts)] == [block.offset]
        (found,) = damages(LogInspection(one.files, str(one.log_file()), None, read_bytes=READ_BYTES).run())
        assert found.offset == block.offset


def test_what_only_begins_like_a_block_is_passed_over(tmp_path: Path) -> None:
    one = bookie(tmp_path)
    first, second, third, *_ = (f for f in one.log() if f.kind == "block")
    content = bytearray(one.log_file().read_bytes())
    assert first.offset is not None
    assert second.offset is not None
    for offset in (first.offset, second.offset):
        assert content[offset : offset + len(BLOCK_MAGIC)] == BLOCK_MAGIC
        content[offset + 60] ^= 1
    one.log_file().write_bytes(content)
    findings = one.log()
    (found,) = damages(checked(findings))
    assert found.offset == first.offset
    assert f"to offset {third.offset}" in found.damage
    assert len(found.facts["entries"]) == 2  # type: ignore[arg-type]
    assert next(f.offset for f in findings if f.kind == "block") == third.offset


def test_blocks_behind_a_place_that_a_disk_cannot_read_are_shown() -> None:
    disk = SimDisk()
    disk.make_dirs("/d")
    log = BlockWriter(disk, "/d", 1, bytes(16))
    places = [log.append(7, Ids(number, 1), [(0, 0)], [records(7, (number,))]) for number in range(3)]
    log.sync()
    at = places[1].offset + 60
    disk.unreadable.append((".log", range(at, at + 1)))
    found = list(LogInspection(disk, f"/d/{log_name(1)}", None, read_bytes=READ_BYTES).run())
    assert [f.facts["first"] for f in found if f.kind == "block"] == [0, 2]
    assert [f.offset for f in damages(found)] == [places[1].offset, None]


@pytest.mark.parametrize("message", ["make no sense", "an add record can't be read"])
def test_records_that_make_no_sense_are_damage_behind_those_that_do(tmp_path: Path, message: str) -> None:
    one = bookie(tmp_path)
    head = encode_ledger(7)
    body: list[Any] = [encode_record(RecordKind.FENCE, head, b"xy"), head, b"xy"]
    if message == "make no sense":
        at = append_frame(one, 2, body)
    else:
        at = append_frame(one, 2, [*body, encode_record(RecordKind.ADD, b"\xc1", b""), b"\xc1"])
    findings = checked(one.journal())
    (found,) = damages(findings)
    assert found.offset == at
    assert message in found.damage
    assert (findings[-3].offset, findings[-3].facts["ledger"], findings[-3].facts["record"]) == (at, 7, "FENCE")
    # A look at a ledger can't go on behind it.
    (found,) = damages(checked(one.ledger(7)))
    assert "can't be read on" in found.damage
    assert bool(facts(one.ledger(7), "record")) == (message != "make no sense") or True


def test_a_record_that_is_no_add_is_told_of_its_ledger(tmp_path: Path) -> None:
    one = bookie(tmp_path)
    head = encode_ledger(1)
    append_frame(one, 1, [encode_record(RecordKind.FENCE, head, KEY), head, KEY])
    findings = one.ledger(1)
    assert [r["record"] for r in facts(findings, "record")] == ["ADD", "FENCE"]
    assert damages(findings) == []
    assert facts(findings, "end")[0]["entries"] == 5
    assert [r["record"] for r in facts(one.ledger(7), "record")] == []


def test_a_ledger_without_journals_or_marks_is_looked_up_in_the_index_alone(tmp_path: Path) -> None:
    one = bookie(tmp_path)
    journals, one.journals = one.journals, []
    findings = one.ledger(1)
    assert facts(findings, "record") == []
    assert facts(findings, "end")[0]["entries"] == 3
    one.journals = journals
    delete_rows(one, index.SHARD_KEY)
    findings = one.ledger(1)
    assert facts(findings, "record") == []
    assert facts(findings, "end")[0]["entries"] == 3
    assert [f for f in damages(findings) if "the marks can't be read" in f.damage]


def delete_rows(one: Bookie, *keys: bytes) -> None:
    put_rows(one, dict.fromkeys(keys, b""))


def put_rows(one: Bookie, rows: dict[bytes, bytes]) -> None:
    """Those without a value are removed."""
    store = LmdbStores().open(f"{one.ledgers[0]}/index")
    with store.write() as txn:
        for key, value in rows.items():
            if value:
                txn.put(key, value)
            else:
                txn.delete(key)
    store.close()


def test_a_ledger_that_an_index_may_have_lost_is_unknown(tmp_path: Path) -> None:
    one = bookie(tmp_path)
    with one.indexes() as stores:
        (store,) = stores.values()
        row = index.load_shard(store)
    assert row is not None
    for changed, lost in (
        (row, False),
        (row._replace(unknown_in_limbo=True), True),
        (row._replace(limbo_to=55), True),
        (row._replace(limbo_to=54), False),
    ):
        put_rows(one, {index.SHARD_KEY: index.encode_shard(changed)})
        assert ("it lost data: it answers *unknown*" in str(facts(one.ledger(55), "note"))) == lost


def test_a_ledger_of_which_it_is_not_known_whether_it_was_deleted_is_damage(tmp_path: Path) -> None:
    one = bookie(tmp_path)
    put_rows(one, {tombstone_key(50): encode_tombstone(50, 60)[:-1] + b"?"})
    findings = checked(one.ledger(55))
    (found,) = damages(findings)
    assert "is not known" in found.damage
    assert found.facts["ledger"] == 55
    assert facts(findings, "note") == []
    assert damages(one.ledger(1)) == []


def test_rows_of_a_deleted_ledger_are_no_damage(tmp_path: Path) -> None:
    one = bookie(tmp_path, clean=True)
    key = index.trash_key(1)
    put_rows(one, {index.ledger_key(1): b"", key: index.seal(key, b"")})
    findings = one.index()
    assert [r for r in facts(findings, "row") if r["row"] == "deleted ledger"] == [
        {"row": "deleted ledger", "ledger": 1}
    ]
    assert [f.damage for f in damages(findings)] == [
        "the index counts 5 ledger rows, and 4 are here, or one was changed"
    ]
    assert damages(one.index(ledger=1)) == []
    delete_rows(one, key)
    (found,) = damages(checked(one.index(ledger=1)))
    assert "no row of their ledger" in found.damage


def test_rows_out_of_order_end_the_look(tmp_path: Path) -> None:
    class Unordered:
        """The rows of damaged pages."""

        def get(self, key: bytes) -> bytes | None:
            return b"row"

        def scan(self, start: bytes, end: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
            yield from ((key, index.seal(key, b"")) for key in (b"x1", b"x3", b"x2", b"x4"))

    findings = checked(list(IndexInspection("/b", Unordered()).run()))
    assert [f.kind for f in findings] == ["row", "row", "damage"]
    assert "out of order" in findings[-1].damage
    assert findings[-1].facts["key"] == b"x2".hex()


def test_a_damaged_row_hides_no_other_row_of_a_log(tmp_path: Path) -> None:
    one = bookie(tmp_path, clean=True)
    store = LmdbStores().open(f"{one.ledgers[0]}/index")
    with store.write() as txn:
        before = living_at(txn, 1, 0, 1 << 40)
        key, value = next(iter(index.scan_blocks(txn, 1, 0, 9)))
        txn.put(key, value[:-1] + bytes([value[-1] ^ 1]))
        after = living_at(txn, 1, 0, 1 << 40)
    store.close()
    assert set(before) - set(after) == {(1, 0, 2)}
    assert len(before) - len(after) == 1


def test_marks_of_another_number_of_journals_are_told(tmp_path: Path) -> None:
    one = bookie(tmp_path)
    assert damages(one.marks()) == []
    one.journals = [*one.journals, *one.journals]
    (found,) = damages(checked(one.marks()))
    assert found.damage == "there are marks of 1 journals, and 2 journal directories"
    assert "cookie update" in found.advice


# --- several journal files, and what changes or can't be read while it is looked at -----------------------------------


async def with_files(files: int, **values: Any) -> tuple[Host, list[str]]:
    """A bookie on a simulated disk that was killed, and its journal files."""
    host = Host()
    storage = await host.boot()
    entry_id = 0
    while len(host.journal_files()) < files:
        await storage.states((1,))
        await add(storage, Batch(1, entry_id, payload=b"x" * 200_000))
        entry_id += 1
    await storage.states((1,))
    await add(storage, Batch(1, entry_id))
    host.disk.crash()
    return host, host.journal_files()


def journal_of(host: Host, *, files: Any = None, **arguments: Any) -> list[Finding]:
    (directory,) = host.settings.journal_directories
    return list(JournalInspection(files or host.disk, directory, 0, read_bytes=READ_BYTES, **arguments).run())


def id_of(path: str) -> int:
    return int(Path(path).stem, 16)


async def test_one_journal_file_alone_is_looked_at() -> None:
    host, paths = await with_files(3)
    everything = journal_of(host)
    assert damages(everything) == []
    for path in paths:
        found = journal_of(host, only=id_of(path))
        assert found == [f for f in everything if f.path == path]
        assert [f.kind for f in found].count("file") == 1
    (note,) = journal_of(host, only=id_of(paths[-1]) + 1)
    assert "no journal files" in str(note.facts)
    # What another file has is not told.
    frame = next(f for f in everything if f.kind == "frame" and f.path == paths[1])
    host.disk.flip(paths[1], (frame.offset or 0) + 60)
    assert [f.path for f in damages(journal_of(host))] == [paths[1]]
    assert damages(journal_of(host, only=id_of(paths[0]))) == []
    assert [f.path for f in damages(journal_of(host, only=id_of(paths[1])))] == [paths[1]]


async def test_a_file_that_was_never_begun_is_told() -> None:
    host, paths = await with_files(1)
    path = f"{paths[0].rpartition('/')[0]}/{id_of(paths[0]) + 1:016x}.txn"
    host.disk.replace(path, bytes(PAGE_BYTES))
    findings = journal_of(host)
    assert damages(findings) == []
    assert [f.path for f in findings if "never begun" in str(f.facts)] == [path]


async def test_a_file_of_a_later_version_ends_the_look_at_it_and_at_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    host, paths = await with_files(3)
    content = bytearray(host.disk.contents(paths[0]))
    header = decode_file_header(content[:PAGE_BYTES])
    assert header is not None
    with monkeypatch.context() as later:
        later.setattr(journal_format, "VERSION", journal_format.VERSION + 1)
        content[:PAGE_BYTES] = encode_file_header(header)
    host.disk.replace(paths[0], bytes(content))
    findings = checked(journal_of(host))
    assert [(f.path, "of version" in f.damage) for f in damages(findings)] == [(paths[0], True)]
    assert [f.path for f in findings if f.kind == "file"] == paths[1:]
    (found,) = journal_of(host, only=id_of(paths[0]))
    assert found.damage


async def test_a_file_that_the_disk_does_not_give_ends_the_look_at_it_and_at_no_other() -> None:
    host, paths = await with_files(3)
    host.disk.fail_at(1, errno.EIO, operation="pread", path=paths[0])
    findings = checked(journal_of(host))
    assert [(f.path, "Input/output error" in f.damage) for f in damages(findings)] == [(paths[0], True)]
    assert [f.path for f in findings if f.kind == "file"] == paths[1:]


async def test_a_file_that_is_let_go_meanwhile_is_no_damage() -> None:
    host, paths = await with_files(3)
    disk = host.disk

    class LetGo:
        """The second look at the directory finds the first file gone."""

        def listdir(self, path: str) -> list[str]:
            names = disk.listdir(path)
            if disk.exists(paths[0]):
                disk.unlink(paths[0])
            return names

        def __getattr__(self, name: str) -> Any:
            return getattr(disk, name)

    findings = journal_of(host, files=LetGo())
    assert damages(findings) == []
    assert findings[0].path == paths[0]
    assert "let go meanwhile" in str(findings[0].facts)
    assert [f.path for f in findings if f.kind == "file"] == paths[1:]


async def test_damage_of_a_file_that_is_let_go_meanwhile_is_none() -> None:
    host, paths = await with_files(2)
    frame = next(f for f in journal_of(host) if f.kind == "frame")
    host.disk.flip(paths[0], (frame.offset or 0) + 60)
    findings = []
    for finding in JournalInspection(host.disk, paths[0].rpartition("/")[0], 0, read_bytes=READ_BYTES).run():
        findings.append(finding)
    assert [f.path for f in damages(findings)] == [paths[0]]


async def test_an_entry_log_that_cannot_be_opened_or_read_is_told() -> None:
    host = Host()
    storage = await host.boot()
    await add(storage, Batch(1, 0))
    await storage.close()
    (directory,) = host.settings.ledger_directories
    (name,) = (name for name in host.disk.listdir(directory) if name.endswith(".log"))
    path = f"{directory}/{name}"

    def look() -> list[Finding]:
        return checked(list(LogInspection(host.disk, path, None, read_bytes=READ_BYTES).run()))

    assert [f.kind for f in look()] == ["file", "footer", "block"]
    for nth in (1, 2, 3, 4, 7, 8):  # the fifth and sixth are of the footer, once more
        host.disk.fail_at(nth, errno.EIO, operation="pread", path=path)
        assert "Input/output error" in look()[-1].damage
        host.disk.heal()

    class Unopenable(RealFiles):
        def open(self, path: str, *, create: bool = False, read_only: bool = False) -> Any:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    (found,) = checked(list(LogInspection(Unopenable(), path, None, read_bytes=READ_BYTES).run()))
    assert "Permission denied" in found.damage
    host.disk.unlink(path)
    (note,) = look()
    assert not note.damage
    assert "let go meanwhile" in str(note.facts)


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


@pytest.mark.thorough
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
    assert some("ids", range(1000)) == {"ids": list(range(SHOWN_MAX)), "all_ids": 1000}


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
