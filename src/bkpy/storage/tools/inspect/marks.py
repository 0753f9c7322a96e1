"""Compares the marks of the ledger directories with the journals: what is behind them is what a start would replay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bkpy.errors import CorruptDataError
from bkpy.storage.file_names import INDEX_NAME
from bkpy.storage.index import index
from bkpy.storage.journal.format import START, file_name
from bkpy.storage.tools.inspect.finding import COPIES, Finding, damage
from bkpy.storage.tools.inspect.index import mark_facts
from bkpy.storage.tools.inspect.journal import JournalInspection

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bkpy.runtime.interfaces import Files, OrderedStore
    from bkpy.storage.index.index import ShardRow
    from bkpy.storage.journal.format import Mark


def read_marks(indexes: Mapping[str, OrderedStore]) -> tuple[dict[str, ShardRow], list[Finding]]:
    """(the rows with the marks by ledger directory, damage to others)."""
    rows: dict[str, ShardRow] = {}
    damaged: list[Finding] = []
    for directory, store in indexes.items():
        path = f"{directory}/{INDEX_NAME}"
        try:
            row = index.load_shard(store)
        except CorruptDataError as e:
            row, what = None, e.message
        else:
            what = "the index has no row of its own"
        if row is not None:
            rows[directory] = row
        else:
            advice = f"the bookie doesn't start with this; {COPIES}"
            damaged.append(damage(path, None, f"the marks can't be read: {what}", advice))
    return rows, damaged


def lowest_mark(rows: Mapping[str, ShardRow], number: int) -> Mark | None:
    """The mark from which a start reads a journal, None if no directory has one."""
    marks = [row.marks[number] for row in rows.values() if number < len(row.marks)]
    return min(marks, key=lambda mark: mark.sequence, default=None)


def inspect_marks(
    files: Files, indexes: Mapping[str, OrderedStore], journals: Sequence[str], *, read_bytes: int
) -> Iterator[Finding]:
    """The marks of each ledger directory, and for each journal what lies behind the lowest of them."""
    rows, damaged = read_marks(indexes)
    if any(_is_gone(files, journals, rows, number) for number in range(len(journals))):
        rows, damaged = read_marks(indexes)  # a bookie that runs has moved them, and let files go
    yield from damaged
    for directory, row in rows.items():
        for number, mark in enumerate(row.marks):
            yield Finding("mark", f"{directory}/{INDEX_NAME}", None, {"journal": number, **mark_facts(mark)})
        if len(row.marks) != len(journals):
            what = f"there are marks of {len(row.marks)} journals, and {len(journals)} journal directories"
            yield damage(f"{directory}/{INDEX_NAME}", None, what, "run `bkpy bookie cookie update`")
    for number, directory in enumerate(journals):
        lowest = lowest_mark(rows, number)
        if lowest is not None:
            yield from _behind(files, directory, number, lowest, read_bytes)


def _is_gone(files: Files, journals: Sequence[str], rows: Mapping[str, ShardRow], number: int) -> bool:
    mark = lowest_mark(rows, number)
    return mark not in (None, START) and not files.exists(f"{journals[number]}/{file_name(mark.file_id)}")


def _behind(files: Files, directory: str, number: int, mark: Mark, read_bytes: int) -> Iterator[Finding]:
    frames = records = size = 0
    inspection = JournalInspection(files, directory, number, read_bytes=read_bytes, mark=mark)
    for frame, finding in inspection.frames(mark):
        if frame is not None:
            frames, records, size = frames + 1, records + frame.records, size + len(frame.body)
        else:
            assert finding is not None
            yield finding
    facts: dict[str, object] = {"journal": number, "frames": frames, "records": records, "bytes": size}
    yield Finding("to replay", directory, None, {**facts, "from": mark_facts(mark)})
