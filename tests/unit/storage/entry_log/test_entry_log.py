"""The log that is being filled: what is written when, and what a failed write means."""

from __future__ import annotations

import errno
import struct
from typing import TYPE_CHECKING

import pytest
from crc32c import crc32c
from tests.sim.disk import SimDisk, SimulatedCrash
from tests.unit.storage.support import records

from bkpy.errors import CorruptDataError
from bkpy.storage.entry_log.entry_log import (
    BLOCK_HEADER_BYTES,
    BLOCK_MAGIC,
    LOG_HEADER_BYTES,
    BlockReader,
    BlockWriter,
    decode_block,
    decode_block_head,
    decode_block_ids,
    decode_log_header,
    encode_block,
    encode_log_header,
    log_name,
    place_tag,
    read_footer,
    readable_footer,
    tag_seed,
)
from bkpy.storage.entry_log.scan import LogScan
from bkpy.storage.index.ids import Ids

if TYPE_CHECKING:
    from bkpy.runtime.interfaces import File


def block(log: BlockWriter, entry_id: int, payload: bytes = b"x", lac: int = -1) -> tuple[int, int]:
    data = records(1, (entry_id,), payload=payload, lac=lac)
    place = log.append(1, Ids(entry_id, 1), [(0, 0)], [data])
    return place.offset, place.length


def new_log(disk: SimDisk) -> BlockWriter:
    disk.make_dirs("/d")
    return BlockWriter(disk, "/d", 1, b"u" * 16)


@pytest.mark.thorough
def test_thousands_of_small_blocks_are_readable_where_their_places_say() -> None:
    disk = SimDisk()
    log = new_log(disk)
    data = records(1, (5,))
    places = [log.append(1, Ids(5, 1), [(0, 0)], [data]) for _ in range((2 << 20) // 100)]
    log.finish()
    reader = BlockReader(disk, "/d")
    for place in places:
        assert bytes(decode_block(reader.read(place), 1).data) == data
    reader.close()


def test_a_log_with_a_footer_has_all_of_its_blocks_whatever_a_crash_left() -> None:
    """A rebuild of the index believes a sound footer, and takes what it can't read of such a log for damaged."""
    footers = 0
    for nth in range(1, 6):
        for seed in range(60):
            disk = SimDisk()
            log = new_log(disk)
            disk.sync_dir("/d")
            places = [block(log, i, b"x" * 700) for i in range(3)]
            disk.crash_at(nth)
            try:
                log.finish()
            except SimulatedCrash:
                log.close()
            disk.heal()
            disk.rng.seed(seed)
            disk.power_cut()
            file = disk.open(f"/d/{log_name(1)}", read_only=True)
            if read_footer(file) is not None:
                footers += 1
                for offset, length in places:
                    decode_block(file.pread(length, offset), 1)
            file.close()
    assert footers > 20


def test_after_a_failed_write_a_log_never_says_that_it_is_on_disk() -> None:
    disk = SimDisk()
    log = new_log(disk)
    block(log, 0)
    disk.fail_at(1, errno.EIO, operation="pwritev")
    with pytest.raises(OSError, match="Input/output"):
        log.sync()
    block(log, 1)
    for again in (log.sync, log.sync, log.finish):
        with pytest.raises(OSError, match="an earlier write to this log failed"):
            again()


# --- what has a right checksum and makes no sense ---------------------------------------------------------------------

# Where fields of a block's header lie.
VERSION_AT, CODEC_AT, COUNT_AT, PLAIN_AT = 4, 5, 28, 44


def changed_block(at: int, kind: str, value: int, runs: list[tuple[int, int]] | None = None) -> bytes:
    buffers, _, _ = encode_block(1, Ids(5, 1), [(0, 0)] if runs is None else runs, [records(1, (5,))], tag=0)
    raw = bytearray(b"".join(buffers))
    if kind:
        struct.pack_into(kind, raw, at, value)
    head_bytes = BLOCK_HEADER_BYTES - 4
    struct.pack_into("<I", raw, head_bytes, crc32c(raw[BLOCK_HEADER_BYTES:], crc32c(raw[:head_bytes])))
    return bytes(raw)


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (changed_block(VERSION_AT, "<B", 9), "version 9"),
        (changed_block(CODEC_AT, "<B", 9), "codec 9"),
        (changed_block(PLAIN_AT, "<I", 1), "lengths don't add up"),
        (changed_block(0, "", 0) + b"!", "checksum"),
        (changed_block(COUNT_AT, "<I", 2), "ids don't fit its count"),
        (changed_block(0, "", 0, []), "ids don't fit its count"),
        (changed_block(0, "", 0, [(0, 8)]), "ids don't fit its count"),
    ],
)
def test_a_block_that_makes_no_sense_is_refused_though_its_checksum_is_right(raw: bytes, what: str) -> None:
    decode_block(changed_block(0, "", 0), 1)
    with pytest.raises(CorruptDataError, match=what):
        decode_block(raw, 1)


def test_ids_that_do_not_fit_the_count_of_their_block_are_refused() -> None:
    raw = changed_block(COUNT_AT, "<I", 2)
    head = decode_block_head(raw)
    assert head is not None
    with pytest.raises(CorruptDataError, match="don't fit its count"):
        decode_block_ids(raw[: head.table_bytes], head)


def test_a_log_of_another_version_is_refused() -> None:
    raw = bytearray(encode_log_header(3, b"u" * 16))
    assert decode_log_header(bytes(raw)).log_id == 3
    raw[8], covered = 9, 40
    struct.pack_into("<I", raw, covered, crc32c(raw[:covered]))
    with pytest.raises(CorruptDataError, match="version 9"):
        decode_log_header(bytes(raw))


# --- sectors that can't be read ---------------------------------------------------------------------------------------


def scanned(file: File, read_bytes: int = 4096) -> tuple[list[int], LogScan]:
    scan = LogScan(file, read_bytes=read_bytes)
    return [found.block.ids.first for found in scan], scan


def three_blocks(*, finish: bool = True) -> tuple[SimDisk, list[tuple[int, int]], File]:
    disk = SimDisk()
    log = new_log(disk)
    places = [block(log, i, b"x" * 10_000) for i in range(3)]
    if finish:
        log.finish()
    else:
        log.sync()
    return disk, places, disk.open(f"/d/{log_name(1)}", read_only=True)


@pytest.mark.parametrize("read_bytes", [4096, 1 << 20])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_scan_passes_an_unreadable_head_of_a_block_and_finds_what_is_behind(number: int, read_bytes: int) -> None:
    disk, places, file = three_blocks()
    offset, length = places[number]
    disk.unreadable.append((".log", range(offset, offset + 1)))
    found, scan = scanned(file, 4096)
    assert found == [i for i in range(3) if i != number]
    assert [(one.offset, one.length) for one in scan.damages] == [(offset, length)]
    assert scan.lost
    disk.unreadable.clear()
    assert scanned(file, read_bytes)[0] == [0, 1, 2]


@pytest.mark.parametrize("at", [-1, -40])
def test_a_footer_that_cannot_be_read_is_a_damaged_one(at: int) -> None:
    disk, _, file = three_blocks()
    end = file.size() + at
    assert read_footer(file) is not None
    disk.unreadable.append((".log", range(end, end + 1)))
    with pytest.raises(OSError, match="Input/output"):
        read_footer(file)
    assert readable_footer(file) is None
    found, scan = scanned(file)
    assert found == [0, 1, 2]
    assert [one.what for one in scan.damages] == ["the footer is damaged; no entry is lost by that"]
    assert not scan.lost


@pytest.mark.parametrize("end", [False, True])
def test_bytes_like_the_begin_of_a_block_do_not_hide_the_next_one(end: bool) -> None:
    disk = SimDisk()
    log = new_log(disk)
    offset, length = block(log, 0, BLOCK_MAGIC * 50)
    block(log, 1)
    log.sync()
    disk.flip(f"/d/{log_name(1)}", offset + length - 1 if end else offset)
    found, scan = scanned(disk.open(f"/d/{log_name(1)}", read_only=True))
    assert found == [1]
    assert [(one.offset, one.length) for one in scan.damages] == [(offset, length)]


# --- images of blocks in what entries carry ---------------------------------------------------------------------------


def an_image(log_id: int, *, tagged: bool) -> bytes:
    """The blocks of a log of the same index: bytes that anybody may append."""
    disk = SimDisk()
    disk.make_dirs("/d")
    log = BlockWriter(disk, "/d", log_id, b"u" * 16)
    for entry_id in (100, 101):
        block(log, entry_id, lac=entry_id - 1)
    log.sync()
    raw = disk.contents(f"/d/{log_name(log_id)}")
    return (raw if tagged else untagged(raw))[LOG_HEADER_BYTES:]


def untagged(raw: bytes) -> bytes:
    """A log without a footer as software without tags has written it."""
    changed, at = bytearray(raw), LOG_HEADER_BYTES
    changed[10] = 0
    struct.pack_into("<I", changed, 40, crc32c(changed[:40]))
    while at < len(changed):
        head = decode_block_head(changed[at : at + BLOCK_HEADER_BYTES])
        assert head is not None
        struct.pack_into("<H", changed, at + 6, 0)
        end, checksum = at + head.length, at + BLOCK_HEADER_BYTES - 4
        struct.pack_into("<I", changed, checksum, crc32c(changed[checksum + 4 : end], crc32c(changed[at:checksum])))
        at = end
    return bytes(changed)


class Carrying:
    """A log of three blocks; the second one carries images of another log's blocks, and of its own at other places."""

    def __init__(self, *, finish: bool, tagged: bool = True) -> None:
        self.disk = SimDisk()
        log = new_log(self.disk)
        payload = an_image(9, tagged=tagged) + b"x" * 500 + an_image(1, tagged=tagged)
        self.places = [block(log, 0), block(log, 1, payload), block(log, 2)]
        self.path = f"/d/{log_name(1)}"
        if finish:
            log.finish()
        else:
            log.sync()
        if not tagged:
            self.disk.replace(self.path, untagged(self.disk.contents(self.path)))

    def found(self, read_bytes: int = 64) -> list[tuple[int, bool]]:
        """(entry, whether it is certain) of each block."""
        scan = LogScan(self.disk.open(self.path, read_only=True), read_bytes=read_bytes)
        return [(found.block.ids.first, found.certain) for found in scan]


# In the block's header: its magic, its ledger, its length. Behind it: its runs.
DAMAGED_AT = [0, 8, 40, BLOCK_HEADER_BYTES]


@pytest.mark.parametrize("finish", [True, False], ids=["footer", "no-footer"])
@pytest.mark.parametrize("at", DAMAGED_AT)
def test_an_image_of_a_block_in_a_damaged_one_is_no_block(at: int, finish: bool) -> None:
    log = Carrying(finish=finish)
    assert log.found() == [(0, True), (1, True), (2, True)]
    log.disk.flip(log.path, log.places[1][0] + at)
    assert log.found() == [(0, True), (2, True)]


def test_an_image_of_a_block_in_a_torn_one_is_no_block() -> None:
    log = Carrying(finish=False)
    log.disk.replace(log.path, log.disk.contents(log.path)[: sum(log.places[1]) - 10])
    assert log.found() == [(0, True)]


@pytest.mark.parametrize("at", DAMAGED_AT)
def test_in_a_log_without_tags_what_is_found_behind_a_damaged_header_is_not_certain(at: int) -> None:
    log = Carrying(finish=False, tagged=False)
    assert log.found() == [(0, True), (1, True), (2, True)]
    log.disk.flip(log.path, log.places[1][0] + at)
    images = [(100, False), (101, False)]
    behind = [(0, True), (2, True)] if at in (8, BLOCK_HEADER_BYTES) else [(0, True), *images, *images, (2, False)]
    assert log.found() == behind


def test_a_log_whose_header_is_damaged_still_has_its_blocks_and_none_behind_a_search_is_certain() -> None:
    log = Carrying(finish=False)
    log.disk.flip(log.path, 20)
    assert log.found() == [(0, True), (1, True), (2, True)]
    log.disk.flip(log.path, log.places[1][0])
    assert log.found()[-1] == (2, False)


def test_a_payload_full_of_headers_is_searched_in_time_proportional_to_its_length() -> None:
    read = 0

    class Counted:
        def __init__(self, file: File) -> None:
            self.size = file.size
            self._file = file

        def pread(self, count: int, offset: int) -> bytes:
            nonlocal read
            found = self._file.pread(count, offset)
            read += len(found)
            return found

    disk = SimDisk()
    log = new_log(disk)
    buffers, _, _ = encode_block(1, Ids(5, 1), [(0, 0)], [b"x" * 100_000], tag=7)
    places = [block(log, 0, bytes(buffers[0])[:BLOCK_HEADER_BYTES] * 4000), block(log, 1)]
    log.sync()
    disk.flip(f"/d/{log_name(1)}", places[0][0])
    file = disk.open(f"/d/{log_name(1)}", read_only=True)
    scan = LogScan(Counted(file), read_bytes=4096)  # type: ignore[arg-type]
    assert [found.block.ids.first for found in scan] == [1]
    assert read < 4 * file.size()


def test_each_place_has_its_own_tag_and_none_is_that_of_no_tag() -> None:
    seeds = [tag_seed(b"u" * 16, log_id) for log_id in range(30)]
    tags = [place_tag(seed, offset) for seed in seeds for offset in range(64, 100_000, 977)]
    assert min(tags) > 0
    assert max(tags) < 1 << 16
    assert len(set(tags)) > len(tags) * 0.9
