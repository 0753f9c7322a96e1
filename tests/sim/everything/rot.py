"""Bytes that rot at rest, of the unlucky bookie: in an entry log, in a journal, in an index.

A flipped byte of an entry log costs the entries of its block. Where a start refuses a journal, an operator starts
without it: then all that the bookie had is in doubt. An index is made anew, and nothing is lost; but nobody can tell
any more whose a block was whose header has rotted, so the bookie may be in doubt of every older ledger.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bkpy.bookie.rebuild import rebuild_with_metadata
from bkpy.errors import BookKeeperError, CorruptDataError
from bkpy.storage.entry_log.entry_log import LOG_HEADER_BYTES
from bkpy.storage.entry_log.scan import LogScan
from bkpy.storage.file_names import INDEX_NAME
from bkpy.storage.journal.format import PAGE_BYTES, decode_file_header, decode_frame_header, file_id_of
from bkpy.storage.observer import NO_OBSERVER
from tests.sim.cluster import ROOT
from tests.sim.coverage_marks import INDEX_REBUILT, ROTTEN
from tests.sim.operators import TRY_AGAIN_S
from tests.sim.world import HostDied

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from tests.sim.cluster import Bookie
    from tests.sim.disk import SimDisk

    from .plan import Fault
    from .stage import Stage


async def rot(stage: Stage, fault: Fault, rng: Random) -> None:
    """A byte of an entry log flips."""
    stage.world.rots = True
    disk = stage.unlucky.host.disk
    paths = [f"{at}/{name}" for at in sorted(disk.directories) for name in disk.listdir(at) if name.endswith(".log")]
    used = {path: len(disk.contents(path).rstrip(b"\0")) for path in paths if "/ledgers/" in path}
    if found := [path for path, size in used.items() if size]:
        path = rng.choice(found)
        at, bits = rng.randrange(used[path]), rng.randrange(1, 256)
        rotten = stage.oracle.rot[stage.unlucky.settings.bookie_id]
        for ledger_id, entry_ids in _entries_at(disk, path, at):
            rotten[ledger_id].update(entry_ids)
        disk.flip(path, at, bits)
        stage.oracle.rotten.add(stage.unlucky.settings.bookie_id)
        stage.world.marks[ROTTEN] += 1


def _entries_at(disk: SimDisk, path: str, offset: int) -> Iterator[tuple[int, range]]:
    """The entries that a flipped byte of an entry log costs: its block's, or all if it is in the log's header."""
    for found in LogScan(_Contents(disk.contents(path)), read_bytes=1 << 16):  # type: ignore[arg-type]
        if offset < LOG_HEADER_BYTES or found.offset <= offset < found.offset + found.length:
            ids = [*found.block.ids.from_rank(0)]
            yield found.ledger_id, range(ids[0], ids[-1] + 1)


class _Contents:
    """A file to read, also while its host is down."""

    path = ""

    def __init__(self, contents: bytes) -> None:
        self._contents = contents

    def size(self) -> int:
        return len(self._contents)

    def pread(self, count: int, offset: int) -> bytes:
        return self._contents[offset : offset + count]


async def rot_in_a_journal(stage: Stage, fault: Fault, rng: Random) -> None:
    """The bookie loses power, and a byte of its journal flips before it starts again.

    Of no last frame: that one would look torn, which is an accepted loss.
    """
    bookie = stage.unlucky
    async with stage.busy[bookie.host.name]:
        if stage.is_gone(bookie) or not bookie.host.up:
            return
        bookie.host.power_cut()
        disk = bookie.host.disk
        # Those before it are the ones that a start reads: no checkpoint has them yet.
        if frames := [one for at in bookie.settings.journal_directories for one in [*_frames(disk, at)][-5:-1]]:
            path, first, length = rng.choice(frames)
            disk.flip(path, first + rng.randrange(length), rng.randrange(1, 256))
            stage.world.rots = True
            stage.oracle.rotten.add(bookie.settings.bookie_id)
            stage.rotten_journals.add(bookie.host.name)
        await stage.start(bookie)


def _frames(disk: SimDisk, directory: str) -> Iterator[tuple[str, int, int]]:
    """Path, offset and bytes of each frame, in order. Files with batches that stay in them are not among them."""
    if not disk.exists(directory):
        return
    for path in (f"{directory}/{name}" for name in disk.listdir(directory) if file_id_of(name) is not None):
        contents = disk.contents(path)
        header = decode_file_header(contents[:PAGE_BYTES])
        offset = PAGE_BYTES
        while header and disk.links(path) == 1 and (frame := decode_frame_header(contents, offset, header.nonce)):
            yield path, offset, frame.frame_bytes
            offset += frame.frame_bytes


async def rot_in_an_index(stage: Stage, fault: Fault, rng: Random) -> None:
    """The bookie dies, an index of it can't be read any more, and an operator makes a new one."""
    bookie = stage.unlucky
    async with stage.busy[bookie.host.name]:
        if stage.is_gone(bookie) or not bookie.host.up:
            return
        bookie.host.crash()
        bookie.host.disk.heal()
        indexes = [f"{at}/{INDEX_NAME}/data.mdb" for at in bookie.settings.ledger_directories]
        there = [path for path in indexes if bookie.host.disk.exists(path)]
        if not there:
            return
        bookie.host.disk.replace(rng.choice(there), b"page 7 is rotten")
        while not await _rebuilt(stage, bookie) and not stage.is_gone(bookie):
            await asyncio.sleep(TRY_AGAIN_S)
        if bookie.settings.bookie_id in stage.oracle.rotten:
            stage.oracle.in_doubt.add(bookie.settings.bookie_id)
        stage.world.marks[INDEX_REBUILT] += 1
        await stage.start(bookie)


async def _rebuilt(stage: Stage, bookie: Bookie) -> bool:
    """Whether it was made anew. The process ends then."""
    host = bookie.host
    host.boot()
    try:
        await host.start(
            rebuild_with_metadata(bookie.settings, host.session(), ROOT, host.runtime, observer=NO_OBSERVER),
            name="rebuild-index",
        )
    except HostDied:
        return False
    except (BookKeeperError, OSError) as error:  # its disk may fail while it reads
        host.record("rebuild failed", f"{type(error).__name__}: {error}")
        if isinstance(error, CorruptDataError) and host.name in stage.rotten_journals:
            stage.do_without_its_journal(bookie)
        host.crash()
        return False
    host.crash()
    return True
