"""The log that is being filled: what is written when, and what a failed write means."""

from __future__ import annotations

import errno

import pytest
from tests.sim.disk import SimDisk, SimulatedCrash
from tests.unit.storage.support import records

from bkpy.storage.entry_log.entry_log import BlockReader, BlockWriter, decode_block, log_name, read_footer
from bkpy.storage.index.ids import Ids


def block(log: BlockWriter, entry_id: int, payload: bytes = b"x") -> tuple[int, int]:
    data = records(1, (entry_id,), payload=payload)
    place = log.append(1, Ids(entry_id, 1), [(0, 0)], [data])
    return place.offset, place.length


def new_log(disk: SimDisk) -> BlockWriter:
    disk.make_dirs("/d")
    return BlockWriter(disk, "/d", 1, b"u" * 16)


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
