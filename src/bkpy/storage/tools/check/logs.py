"""Checks entry logs: headers, every block and every record in it, footers.

Invariant: reads only, one block in memory at a time. Everything here blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bkpy.errors import CorruptDataError
from bkpy.protocol.wire.records import RecordCodec, walk
from bkpy.storage.entry_log.entry_log import LOG_HEADER_BYTES, decode_log_header, log_name, readable_footer
from bkpy.storage.entry_log.scan import LogScan
from bkpy.storage.reads.ranges import verifies
from bkpy.storage.tools.check.defects import OTHER_COPIES, RESTORE, Defect

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.runtime.interfaces import File, Files
    from bkpy.storage.entry_log.scan import LogDamage, ScannedBlock
    from bkpy.storage.index.index import LogRow


def check_log(
    files: Files,
    directory: str,
    log_id: int,
    row: LogRow | None,
    named_end: int | None,
    *,
    read_bytes: int,
    found: Callable[[Defect], None],
    progress: Callable[[int], None],
) -> tuple[int, list[LogDamage]]:
    """Check the log against itself and against its row of the index; (number of its sound blocks, what is damaged).

    `named_end`: where the last block ends that a row names, 0 if none does, None if no index says. What a crash or a
    full disk has cut lies behind that, in a log without a footer, and is no defect: no later write goes there, and the
    log is removed when nothing lives in it. `progress` is called with the bytes of it that are done.
    """
    path = f"{directory}/{log_name(log_id)}"
    file = files.open(path, read_only=True)
    try:
        size = file.size()
        begun = None if row is not None and row.footer else named_end  # where a write may have been cut
        _check_header(path, file, log_id, found, may_be_cut=begun == 0)
        footer = readable_footer(file)
        listed = iter(()) if footer is None else footer.blocks()
        scan = LogScan(file, read_bytes=read_bytes)
        for block in scan:
            _check_records(path, block, found)
            if footer is not None:
                while (entry := next(listed, None)) is not None and entry.offset < block.offset:
                    pass  # a damaged one, which the scan reports
                indexed = None if entry is None else (entry.offset, entry.length, entry.ledger_id, entry.checksum)
                if indexed != (block.offset, block.length, block.ledger_id, block.checksum):
                    what = "the footer names another block here"
                    found(Defect(path, block.offset, block.ledger_id, what, RESTORE))
            progress(block.offset + block.length)
        for damage in scan.damages:
            if begun is not None and damage.offset >= begun:
                continue
            what = f"{damage.length} bytes: {damage.what}"
            found(Defect(path, damage.offset, None, what, OTHER_COPIES if scan.lost else "none is needed"))
        if row is not None:
            _check_row(path, row, size, begun or 0, scan, found)
        return scan.blocks, scan.damages
    finally:
        file.close()


def _check_header(path: str, file: File, log_id: int, found: Callable[[Defect], None], *, may_be_cut: bool) -> None:
    try:
        header = decode_log_header(file.pread(LOG_HEADER_BYTES, 0))
        what = "" if header.log_id == log_id else "the log has another log's header"
    except CorruptDataError as e:
        what = "" if may_be_cut else e.message
    except OSError as e:
        what = f"the log's header can't be read: {e}"
    if what:
        found(Defect(path, 0, None, what, RESTORE))


def _check_records(path: str, block: ScannedBlock, found: Callable[[Defect], None]) -> None:
    """Each record: that it is the entry that the block's ids say, and its checksum."""
    data = block.block.data  # empty where records came in no readable form
    codec = RecordCodec(block.ledger_id)
    expected = block.block.ids.from_rank(0)
    try:
        for header in walk(data):
            if header.entry_id != next(expected, None):
                raise CorruptDataError(f"entry {header.entry_id} is not one of the block's")
            if not verifies(codec, data, header):
                raise CorruptDataError(f"the checksum of entry {header.entry_id} is wrong")
    except CorruptDataError as e:
        what = f"a batch was sent, and stored, with records that are no sound entries: {e.message}"
        found(Defect(path, block.offset, block.ledger_id, what, OTHER_COPIES))


def _check_row(path: str, row: LogRow, size: int, begun: int, scan: LogScan, found: Callable[[Defect], None]) -> None:
    """Without a footer, power may have taken what was not synced when a start counted it, from `begun` on."""
    if row.bytes != size and (row.footer or not begun <= size < row.bytes):
        what = f"the log has {size} bytes, and the index says {row.bytes}"
        found(Defect(path, None, None, what, RESTORE))
    if row.footer and not scan.footer and not scan.damages:
        found(Defect(path, None, None, "the log has no footer, and the index says that it has one", RESTORE))
    if row.blocks and row.blocks != scan.blocks and not scan.lost:
        what = f"the log has {scan.blocks} blocks, and the index says {row.blocks}"
        found(Defect(path, None, None, what, RESTORE))
