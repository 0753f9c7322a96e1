"""The journal's chain on a simulated disk: what is found at its end, what is damage, and what a torn frame is."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
from tests.sim.disk import SimDisk, SimFile, SimulatedCrash
from tests.sim.platter import Dirty, EntryStatus
from tests.unit.storage.support import SteppingClock, sim_runtime

from bkpy.errors import IdentityError
from bkpy.storage.journal.format import (
    FRAME_HEADER_BYTES,
    PAGE_BYTES,
    START,
    FrameKind,
    Mark,
    file_id_of,
    file_name,
)
from bkpy.storage.journal.journal import JournalWriter
from bkpy.storage.journal.reader import Damage, JournalReader, cut_torn_frame, oldest_mark, refuse

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DIRECTORY = "/j"
FILE_BYTES = 4 * PAGE_BYTES  # the header and three pages of frames: BODIES make three files
BODIES = [b"first", b"second" * 1000, b"third", b"fourth" * 900, b"fifth", b"sixth", b"seventh" * 20]
ONE_FILE_BYTES = 16 * PAGE_BYTES  # all of BODIES fit
STRIDE = 61  # of sweeps over every byte in the default run; a prime, so that all places inside headers are met


@dataclass
class Outcome:
    """What a replay found."""

    bodies: list[bytes]
    damages: list[Damage]
    torn: tuple[str, int] | None
    end: Mark


class Journal:
    """A journal directory, written without the storage around it."""

    def __init__(self, *, file_bytes: int = FILE_BYTES, backups: int = 100, recycled_max: int = 2) -> None:
        self.disk = SimDisk()
        self.disk.make_dirs(DIRECTORY)
        self.clock = SteppingClock()
        self.file_bytes = file_bytes
        self.backups = backups
        self.recycled_max = recycled_max
        self.writer = self.open(START)

    def open(self, end: Mark) -> JournalWriter:
        """A writer that begins a new file at `end`, as a start does."""
        self.writer = JournalWriter(
            sim_runtime(self.disk, self.clock, end.sequence),
            DIRECTORY,
            0,
            file_bytes_max=self.file_bytes,
            backups=self.backups,
            recycled_max=self.recycled_max,
            uncache_bytes_min=8 * PAGE_BYTES,
            end=end,
        )
        self.writer.begin_file()
        return self.writer

    def write(self, *bodies: bytes) -> list[Mark]:
        """One frame each; the marks at which they begin."""
        marks = []
        for body in bodies:
            before = self.writer.position
            end, size, _ = self.writer.write(FrameKind.RECORDS, 1, [body])
            marks.append(Mark(end.file_id, end.offset - size, before.sequence, before.chain))
        return marks

    def clean_stop(self) -> Mark:
        return self.writer.write(FrameKind.CLEAN_STOP, 0, [])[0]

    @property
    def files(self) -> list[str]:
        return [f"{DIRECTORY}/{n}" for n in self.disk.listdir(DIRECTORY) if file_id_of(n) is not None]

    def bytes_of(self, number: int) -> bytes:
        return self.disk.contents(self.files[number])

    def used(self, number: int) -> int:
        """Where the last frame of a file ends, whole pages."""
        return -(-len(self.bytes_of(number).rstrip(b"\0")) // PAGE_BYTES) * PAGE_BYTES

    def replay(self, mark: Mark = START) -> Outcome:
        replay = JournalReader(self.disk, DIRECTORY, 0, mark)
        bodies = [bytes(frame.body) for frame in replay]
        return Outcome(bodies, replay.damages, replay.torn, replay.end)

    def patched(self, number: int, data: bytes, mark: Mark = START) -> Outcome:
        """The replay with other contents of one file, which is as before afterwards."""
        path, before = self.files[number], self.bytes_of(number)
        self.disk.replace(path, data)
        try:
            return self.replay(mark)
        finally:
            self.disk.replace(path, before)

    def flipped(self, number: int, offset: int, mark: Mark = START) -> Outcome:
        """The replay with the bits of one byte inverted."""
        path = self.files[number]
        self.disk.flip(path, offset, 0xFF)
        try:
            return self.replay(mark)
        finally:
            self.disk.flip(path, offset, 0xFF)


def is_subsequence(part: Sequence[bytes], whole: Sequence[bytes]) -> bool:
    rest: Iterator[bytes] = iter(whole)
    return all(body in rest for body in part)


def every_byte(start: int, end: int, stride: int) -> range:
    return range(start, end, stride)


strides = pytest.mark.parametrize("stride", [STRIDE, pytest.param(1, marks=pytest.mark.exhaustive)])


# --- whole journals ---------------------------------------------------------------------------------------------------


@pytest.mark.scenario(44)
def test_a_journal_without_files_is_empty() -> None:
    disk = SimDisk()
    disk.make_dirs(DIRECTORY)
    replay = JournalReader(disk, DIRECTORY, 0, START)
    assert (list(replay), replay.damages, replay.torn, replay.end) == ([], [], None, START)


@pytest.mark.scenario(44)
def test_a_file_with_a_header_only_is_empty_from_either_mark() -> None:
    journal = Journal()
    begin = journal.writer.position
    assert journal.replay() == Outcome([], [], None, begin)
    assert journal.replay(begin) == Outcome([], [], None, begin)


def test_frames_are_read_across_files_from_any_mark() -> None:
    journal = Journal()
    marks = journal.write(*BODIES)
    assert len(journal.files) >= 3
    assert journal.replay() == Outcome(BODIES, [], None, journal.writer.position)
    for i, mark in enumerate(marks):
        assert journal.replay(mark) == Outcome(BODIES[i:], [], None, journal.writer.position)


def test_a_second_run_continues_the_chain() -> None:
    journal = Journal()
    journal.write(*BODIES)
    journal.open(journal.replay().end)
    journal.write(b"after")
    journal.clean_stop()
    journal.open(journal.replay().end)
    journal.write(b"later")
    assert journal.replay() == Outcome([*BODIES, b"after", b"", b"later"], [], None, journal.writer.position)


def test_a_frame_larger_than_a_file_has_a_file_of_its_own() -> None:
    journal = Journal()
    bodies = [b"small", b"L" * 3 * FILE_BYTES, b"small again"]
    journal.write(*bodies)
    assert len(journal.files) == 3
    assert journal.replay() == Outcome(bodies, [], None, journal.writer.position)


def test_an_id_is_above_all_files_and_marks_when_the_clock_goes_back() -> None:
    journal = Journal()
    journal.write(b"a")
    journal.clock.now = 5.0
    journal.open(journal.replay().end)
    journal.write(b"b")
    assert journal.replay().bodies == [b"a", b"b"]
    lonely = Journal()
    lonely.clock.now = 5.0
    lonely.disk.unlink(lonely.files[0])
    lonely.open(Mark(1 << 60, PAGE_BYTES, 8, 3))
    assert [file_id_of(path.rpartition("/")[2]) for path in lonely.files] == [(1 << 60) + 1]


def test_a_file_of_another_journal_is_refused_by_name() -> None:
    journal = Journal()
    journal.write(b"a")
    with pytest.raises(IdentityError, match=r"journal 0.*journal 1"):
        list(JournalReader(journal.disk, DIRECTORY, 1, START))


# --- the end of the journal -------------------------------------------------------------------------------------------


@pytest.mark.scenario(44)
@strides
def test_truncation_at_every_byte_of_the_newest_file_keeps_the_whole_frames_before(stride: int) -> None:
    journal = Journal(file_bytes=ONE_FILE_BYTES)
    marks = journal.write(*BODIES)
    data = journal.bytes_of(0)
    ends = [mark.offset for mark in marks[1:]] + [journal.used(0)]
    for length in every_byte(PAGE_BYTES, journal.used(0), stride):
        outcome = journal.patched(0, data[:length])
        # The last bytes of a frame are padding, which nobody misses.
        whole = sum(
            begin.offset + FRAME_HEADER_BYTES + len(body) <= length for begin, body in zip(marks, BODIES, strict=True)
        )
        assert outcome.bodies == BODIES[:whole], f"truncated to {length} bytes"
        assert not outcome.damages
        begin = PAGE_BYTES if whole == 0 else ends[whole - 1]
        if length >= begin + 24:  # the nonce is there, so it is known to be a frame
            assert outcome.torn == (journal.files[0], begin)


@pytest.mark.scenario(44)
@strides
def test_truncation_below_the_mark_is_damage_and_never_an_end(stride: int) -> None:
    """A mark is a place that was synced: a file that ends before it has lost what was behind it, too."""
    journal = Journal(file_bytes=ONE_FILE_BYTES)
    marks = journal.write(*BODIES)
    data = journal.bytes_of(0)
    mark = marks[-1]
    assert journal.replay(mark).bodies == BODIES[-1:]
    for length in every_byte(0, mark.offset, stride):
        outcome = journal.patched(0, data[:length], mark)
        assert outcome.damages, f"truncated to {length} bytes"
        assert outcome.torn is None
    outcome = journal.patched(0, data[: mark.offset], mark)
    assert (outcome.bodies, outcome.damages, outcome.torn) == ([], [], None)


def test_a_file_of_zeros_that_the_mark_is_in_is_damage() -> None:
    journal = Journal(file_bytes=ONE_FILE_BYTES)
    mark = journal.write(*BODIES)[-1]
    outcome = journal.patched(0, bytes(len(journal.bytes_of(0))), mark)
    assert len(outcome.damages) == 1
    assert "its header can't be read" in outcome.damages[0].what


@pytest.mark.scenario(44)
@strides
def test_truncation_at_every_byte_of_an_older_file_is_damage(stride: int) -> None:
    journal = Journal()
    marks = journal.write(*BODIES)
    data = journal.bytes_of(0)
    in_first = [mark for mark in marks if mark.file_id == marks[0].file_id]
    last_byte = in_first[-1].offset + FRAME_HEADER_BYTES + len(BODIES[len(in_first) - 1])
    for length in every_byte(0, last_byte, stride):
        outcome = journal.patched(0, data[:length])
        assert outcome.damages, f"truncated to {length} bytes"
        assert outcome.torn is None
        assert is_subsequence(outcome.bodies, BODIES)
        assert outcome.bodies[-(len(BODIES) - len(in_first)) :] == BODIES[len(in_first) :], "later files are still read"


@pytest.mark.scenario(44)
@pytest.mark.parametrize("junk", [b"\xff" * 9000, b"bkJF" * 4000, b"\0" * 5000, b"x"], ids=lambda junk: repr(junk[:4]))
def test_junk_after_the_last_frame_is_nothing(junk: bytes) -> None:
    journal = Journal(file_bytes=ONE_FILE_BYTES)
    journal.write(*BODIES)
    outcome = journal.patched(0, journal.bytes_of(0)[: journal.used(0)] + junk)
    assert outcome == Outcome(BODIES, [], None, journal.writer.position)


@pytest.mark.parametrize("length", [0, 1, 55, 56, PAGE_BYTES - 1, PAGE_BYTES, 3 * PAGE_BYTES])
@pytest.mark.parametrize("fill", [b"\0", b"\xa5"])
def test_a_next_file_that_was_never_finished_counts_as_not_there(length: int, fill: bytes) -> None:
    journal = Journal()
    journal.write(*BODIES)
    newer = journal.writer.position.file_id + 1
    journal.disk.replace(f"{DIRECTORY}/{file_name(newer)}", fill * length)
    assert journal.replay() == Outcome(BODIES, [], None, journal.writer.position)
    mark = journal.replay().end
    journal.open(mark)
    journal.write(b"more")
    assert journal.replay().bodies == [*BODIES, b"more"], "the chain goes on behind it"


def test_a_file_that_was_only_renamed_for_recycling_counts_as_not_there() -> None:
    journal = Journal()
    journal.write(*BODIES)
    old = journal.bytes_of(0)
    newer = journal.writer.position.file_id + 1
    journal.disk.replace(f"{DIRECTORY}/{file_name(newer)}", old)
    assert journal.replay() == Outcome(BODIES, [], None, journal.writer.position)


def test_stale_frames_of_a_recycled_file_are_neither_frames_nor_damage() -> None:
    journal = Journal(backups=0)
    journal.write(*BODIES)
    for round_ in range(4):
        mark = journal.writer.position
        journal.writer.retain(mark.file_id)
        count = len(journal.files)
        journal.open(mark)
        assert len(journal.files) <= count + 1
        first = journal.writer.position
        journal.write(*BODIES)
        assert b"bkJF" in journal.bytes_of(len(journal.files) - 1)[journal.used(-1) - PAGE_BYTES :] or round_ == 0
        assert journal.replay(first) == Outcome(BODIES, [], None, journal.writer.position)
        last = journal.files[-1]
        at = journal.writer.position.offset - PAGE_BYTES
        journal.disk.flip(last, at + 60)
        torn = journal.replay(first)
        assert (torn.bodies, torn.damages) == (BODIES[:-1], [])
        assert torn.torn == (last, at)
        journal.disk.flip(last, at + 60)


def test_recycling_keeps_backups_and_at_most_two_files_to_take() -> None:
    journal = Journal(backups=1)
    journal.write(*(BODIES * 4))
    before = journal.files
    journal.writer.retain(journal.writer.position.file_id)
    assert journal.files == before[-4:], "two to be taken, one backup, the one being written"
    journal.write(*BODIES)
    assert set(before[-2:]) <= set(journal.files), "the backup was not taken"


def test_old_files_that_somebody_has_removed_are_no_obstacle() -> None:
    """Nobody needs them, and whoever wants space may see that, too."""
    journal = Journal(backups=0)
    marks = journal.write(*BODIES)
    journal.writer.retain(journal.writer.position.file_id)
    old = journal.files[:-1]
    assert len(old) == 2
    journal.disk.unlink(old[0])
    more = journal.write(b"eighth" * 3000, b"ninth" * 3000)
    assert old[1] not in journal.files, "the other one was taken"
    journal.disk.power_cut()
    found = journal.replay(marks[-1])
    assert found.bodies == [BODIES[-1], b"eighth" * 3000, b"ninth" * 3000]
    assert (found.damages, found.torn) == ([], None)
    assert len(more) == 2


def test_large_writes_to_new_files_do_not_stay_in_the_page_cache() -> None:
    """The pages of a recycled file are written to once more: without them its writes are as slow as a new one's."""
    journal = Journal(file_bytes=64 * PAGE_BYTES, backups=0, recycled_max=1)
    forgotten: list[tuple[str, int, int]] = []

    def uncache(file: SimFile, offset: int, length: int) -> None:
        forgotten.append((file.path, offset, length))

    with patch.object(SimFile, "uncache", uncache):
        journal.write(b"x" * 1000)
        assert not forgotten, "small writes share pages of the cache with the next ones"
        (mark,) = journal.write(b"x" * (8 * PAGE_BYTES))
        new_file = f"{DIRECTORY}/{file_name(mark.file_id)}"
        assert forgotten == [(new_file, mark.offset, 9 * PAGE_BYTES)]
        following = journal.writer.begin_file()
        journal.writer.retain(following.file_id)  # the first may be recycled
        journal.write(b"x" * (8 * PAGE_BYTES))
        assert len(forgotten) == 2
        recycled = journal.writer.begin_file()
        assert journal.disk.listdir(DIRECTORY) == sorted(map(file_name, (following.file_id, recycled.file_id)))
        journal.write(b"x" * (8 * PAGE_BYTES))
        assert len(forgotten) == 2


@pytest.mark.parametrize("recycled_max", range(4))
@pytest.mark.parametrize("backups", range(3))
def test_no_gap_is_left_between_files_whichever_have_another_name(backups: int, recycled_max: int) -> None:
    """What is left can be read from its oldest frame on without damage: a rebuild of the index and a check do that."""
    rng = random.Random(backups * 10 + recycled_max)
    journal = Journal(backups=backups, recycled_max=recycled_max)
    for _ in range(60):
        newest = journal.files[-1]
        if rng.random() < 0.5 and journal.disk.links(newest) == 1:
            journal.disk.link(newest, f"{newest}.kept")
        journal.write(bytes(FILE_BYTES // 2))  # a file each
        if rng.random() < 0.5:
            journal.writer.retain(journal.writer.position.file_id)
        first = oldest_mark(journal.disk, DIRECTORY)
        assert first is not None
        outcome = journal.replay(first)
        assert (outcome.damages, outcome.torn) == ([], None)
    journal.writer.retain(journal.writer.position.file_id)
    own = [path for path in journal.files if journal.disk.links(path) == 1]
    assert len(own) <= 1 + backups + recycled_max


@pytest.mark.parametrize("recycled_max", range(3))
def test_no_gap_is_left_by_a_power_cut_that_brings_some_removed_names_back(recycled_max: int) -> None:
    """Each change of a directory that wasn't synced is kept or not, whatever becomes of the others."""
    for seed in range(20):
        rng = random.Random(seed)
        journal = Journal(backups=0, recycled_max=recycled_max)
        for _ in range(6):
            if rng.random() < 0.3 and journal.disk.links(journal.files[-1]) == 1:
                journal.disk.link(journal.files[-1], f"{journal.files[-1]}.kept")
            journal.write(bytes(FILE_BYTES // 2))  # a file each
        journal.writer.retain(journal.writer.position.file_id)
        if seed % 2:
            journal.writer.begin_file()
        journal.disk.power_cut(lambda item: rng.choice([EntryStatus.KEPT, EntryStatus.DROPPED]))  # noqa: B023
        first = oldest_mark(journal.disk, DIRECTORY)
        assert first is not None
        assert journal.replay(first).damages == []


@pytest.mark.parametrize("backups", range(9))
def test_the_newest_files_are_kept_as_backups_however_many_there_are(backups: int) -> None:
    journal = Journal(backups=backups)
    begun: list[str] = []
    for _ in range(20):
        journal.write(bytes(FILE_BYTES // 2))  # a file each
        begun += [path for path in journal.files if path not in begun]
        journal.writer.retain(journal.writer.position.file_id)
        old = begun[:-1]  # without the one being written
        assert set(old[max(0, len(old) - backups) :]) <= set(journal.files)
        assert len(journal.files) <= 1 + backups + 2, "and two to be taken"


def test_a_payload_that_imitates_frames_is_a_payload() -> None:
    journal = Journal(file_bytes=ONE_FILE_BYTES)
    foreign = Journal(file_bytes=ONE_FILE_BYTES)
    foreign.writer = foreign.open(Mark(1, PAGE_BYTES, 1000, 77))
    foreign.write(b"forged", b"forged too")
    stolen = foreign.bytes_of(len(foreign.files) - 1)
    own = journal.write(b"genuine")[0]
    copied = journal.bytes_of(0)[own.offset : own.offset + PAGE_BYTES]
    padding = bytes(PAGE_BYTES - FRAME_HEADER_BYTES)
    # Both lie where a frame could begin: a foreign one with a later sequence, and a copy of one of this very file.
    mark = journal.write(padding + stolen[PAGE_BYTES : 3 * PAGE_BYTES] + copied)[0]
    good = journal.replay()
    assert (len(good.bodies), good.damages, good.torn) == (2, [], None)
    torn = journal.flipped(0, mark.offset + FRAME_HEADER_BYTES)
    assert (torn.bodies, torn.damages, torn.torn) == ([b"genuine"], [], (journal.files[0], mark.offset))


@pytest.mark.parametrize("seed", range(30))
def test_a_power_cut_while_a_frame_is_written_leaves_it_whole_or_torn(seed: int) -> None:
    journal = Journal(file_bytes=ONE_FILE_BYTES)
    journal.write(*BODIES[:3])
    journal.disk.rng.seed(seed)
    journal.disk.crash_at(1, operation="fdatasync")
    with pytest.raises(SimulatedCrash):
        journal.write(b"".join(b"%08d" % i for i in range(1500)))
    journal.disk.power_cut()
    outcome = journal.replay()
    assert outcome.bodies[:3] == BODIES[:3]
    assert not outcome.damages
    assert len(outcome.bodies) == 3 or outcome.torn is None


def test_a_torn_frame_is_cut_after_a_copy_was_synced() -> None:
    journal = Journal(file_bytes=ONE_FILE_BYTES)
    *_, last = journal.write(*BODIES)
    path = journal.files[0]
    journal.disk.flip(path, last.offset + FRAME_HEADER_BYTES)
    bad = journal.bytes_of(0)[last.offset : last.offset + PAGE_BYTES]
    for operation in range(1, 10):
        disk = journal.disk.clone()
        disk.crash_at(operation)
        try:
            cut_torn_frame(disk, path, last.offset)
            done = True
        except SimulatedCrash:
            done = False
        disk.power_cut(_kept if operation % 2 else _dropped)
        replay = JournalReader(disk, DIRECTORY, 0, START)
        assert [bytes(frame.body) for frame in replay] == BODIES[:-1]
        assert not replay.damages
        if replay.torn is None:
            assert disk.contents(f"{path}.broken")[:PAGE_BYTES] == bad, "cut without a copy"
        else:
            cut_torn_frame(disk, *replay.torn)
            assert disk.contents(f"{path}.broken")[:PAGE_BYTES] == bad
            assert JournalReader(disk, DIRECTORY, 0, START).torn is None
    assert done, "the cut has fewer operations than were tried"


def _kept(item: Dirty) -> EntryStatus:
    return EntryStatus.KEPT


def _dropped(item: Dirty) -> EntryStatus:
    return EntryStatus.DROPPED


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.scenario(44)
@strides
def test_no_flipped_byte_before_the_last_frame_is_cut_silently(stride: int) -> None:
    journal = Journal()
    *_, last = journal.write(*BODIES)
    for number in range(len(journal.files)):
        end = last.offset if number == len(journal.files) - 1 else journal.used(number)
        for offset in every_byte(0, end, stride):
            where = f"byte {offset} of file {number}"
            outcome = journal.flipped(number, offset)
            assert outcome.damages or outcome.bodies == BODIES, where
            assert outcome.torn is None, where
            assert is_subsequence(outcome.bodies, BODIES), where
            assert len(outcome.bodies) >= len(BODIES) - 1, f"{where}: more than the damaged frame is lost"


@pytest.mark.scenario(44)
@strides
def test_no_flipped_byte_of_a_header_loses_the_frames_behind_it(stride: int) -> None:
    """Also where only one frame follows, and where replay begins in that very file."""
    for count in (1, 2, 3):
        journal = Journal(file_bytes=ONE_FILE_BYTES)
        begin = journal.writer.position
        bodies = BODIES[:count]
        journal.write(*bodies)
        for mark in (START, begin):
            for offset in [*range(56), *every_byte(56, PAGE_BYTES, stride)]:
                outcome = journal.flipped(0, offset, mark)
                assert outcome.damages or outcome.bodies == bodies, f"byte {offset}, {count} frames, {mark}"
                assert outcome.bodies == bodies, f"byte {offset}: the frames themselves are sound"


@pytest.mark.scenario(44)
@strides
def test_a_flipped_byte_of_the_last_frame_is_torn_and_nothing_else_is_lost(stride: int) -> None:
    """The ambiguity that stays: an acknowledged last frame that rots looks like one that was never finished."""
    journal = Journal()
    *_, last = journal.write(*BODIES)
    for offset in every_byte(last.offset, journal.writer.position.offset, stride):
        outcome = journal.flipped(-1, offset)
        assert not outcome.damages
        assert outcome.bodies == (
            BODIES if outcome.torn is None and len(outcome.bodies) == len(BODIES) else BODIES[:-1]
        )


def test_a_missing_file_in_the_middle_is_damage() -> None:
    journal = Journal()
    journal.write(*BODIES)
    assert len(journal.files) == 3
    journal.disk.unlink(journal.files[1])
    outcome = journal.replay()
    assert len(outcome.damages) == 1
    assert is_subsequence(outcome.bodies, BODIES)
    assert outcome.bodies[0] == BODIES[0]
    assert outcome.bodies[-1] == BODIES[-1]
    assert outcome.end == journal.writer.position


def test_the_file_of_the_mark_is_missing() -> None:
    journal = Journal()
    marks = journal.write(*BODIES)
    first_of_second = next(mark for mark in marks if mark.file_id != marks[0].file_id)
    end_of_first = first_of_second._replace(file_id=marks[0].file_id, offset=journal.used(0))
    first = journal.files[0]
    journal.disk.unlink(first)
    # All that was after the mark is in the next file: nothing is lost.
    outcome = journal.replay(end_of_first)
    assert (outcome.damages, outcome.bodies) == ([], BODIES[first_of_second.sequence - 1 :])
    # Frames after the mark were in the file that is gone.
    assert [damage.path for damage in journal.replay(marks[0]).damages] == [first]
    for path in journal.files:
        journal.disk.unlink(path)
    assert [damage.path for damage in journal.replay(marks[0]).damages] == [first]


@pytest.mark.scenario(55)
def test_whatever_is_broken_after_a_clean_stop_is_damage() -> None:
    journal = Journal(file_bytes=ONE_FILE_BYTES)
    journal.write(*BODIES)
    end = journal.clean_stop()
    assert journal.replay() == Outcome([*BODIES, b""], [], None, end)
    path = journal.files[0]
    nonce = journal.bytes_of(0)[24:40]
    data = journal.bytes_of(0)
    broken = data[: end.offset] + b"bkJF\x01\x01\0\0" + nonce + data[end.offset + 24 :]
    outcome = journal.patched(0, broken)
    assert outcome.bodies == [*BODIES, b""]
    assert [(damage.path, damage.offset) for damage in outcome.damages] == [(path, end.offset)]
    assert outcome.torn is None


def test_a_broken_clean_stop_frame_loses_nothing() -> None:
    journal = Journal(file_bytes=ONE_FILE_BYTES)
    journal.write(*BODIES)
    at = journal.writer.position.offset
    journal.clean_stop()
    for offset in range(at, at + FRAME_HEADER_BYTES):
        outcome = journal.flipped(0, offset)
        assert (outcome.bodies, outcome.damages) == (BODIES, [])


def test_several_places_are_reported_one_by_one() -> None:
    journal = Journal(file_bytes=ONE_FILE_BYTES)
    marks = journal.write(*BODIES)
    for i in (1, 4):
        journal.disk.flip(journal.files[0], marks[i].offset + FRAME_HEADER_BYTES)
    outcome = journal.replay()
    assert [damage.offset for damage in outcome.damages] == [marks[1].offset, marks[4].offset]
    assert outcome.bodies == [body for i, body in enumerate(BODIES) if i not in (1, 4)]
    error = refuse(outcome.damages)
    assert f"offset {marks[1].offset}" in str(error)
    assert journal.files[0] in str(error)


def test_an_unreadable_file_is_an_error_and_not_its_end() -> None:
    journal = Journal()
    journal.write(*BODIES)
    for nth in range(1, 7):
        journal.disk.fail_at(nth, 5, operation="pread")
        with pytest.raises(OSError, match="Input/output"):
            journal.replay()
        journal.disk.heal()
