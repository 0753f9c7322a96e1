"""A journal that is read while it is written, as an inspection does."""

from __future__ import annotations

from tests.sim.disk import SimDisk
from tests.unit.storage.support import sim_runtime

from bkpy.storage.journal.format import START, FrameKind
from bkpy.storage.journal.journal import JournalWriter
from bkpy.storage.journal.reader import JournalReader


def test_frames_that_come_while_it_is_read_are_no_damage() -> None:
    disk = SimDisk()
    disk.make_dirs("/j")
    writer = JournalWriter(
        sim_runtime(disk),
        "/j",
        0,
        file_bytes_max=1 << 20,
        backups=0,
        recycled_max=0,
        uncache_bytes_min=1 << 16,
        end=START,
    )
    writer.begin_file()
    bodies = [b"frame %d" % i for i in range(40)]
    left = list(bodies)
    writer.write(FrameKind.RECORDS, 1, [left.pop(0)])
    journal = JournalReader(disk, "/j", 0, START)
    read = []
    for frame in journal:
        read.append(bytes(frame.body))
        for _ in range(2):  # behind what was read ahead
            if left:
                writer.write(FrameKind.RECORDS, 1, [left.pop(0)])
    assert read == bodies
    assert (journal.damages, journal.torn) == ([], None)
    assert journal.end == writer.position
