"""Inspects the bytes that rows of the index name: blocks of entry logs, batches that stayed in journal files.

Of a journal file that has stayed only the named batches are inspected: the rest of it is nobody's.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from bkpy.errors import CorruptDataError
from bkpy.storage.entry_log.entry_log import BlockReader, log_id_of, log_name
from bkpy.storage.index import index
from bkpy.storage.reads.blocks import read_block
from bkpy.storage.tools.inspect.finding import COPIES, Finding, damage, note, some
from bkpy.storage.tools.inspect.index import NOT_READABLE, block_facts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bkpy.runtime.interfaces import Files, OrderedStore
    from bkpy.storage.index.index import BlockRow


def stored_block(directory: str, reader: BlockReader, ledger_id: int, row: BlockRow) -> Finding:
    """What is where the row says."""
    facts = block_facts(ledger_id, row)
    path = f"{directory}/{log_name(row.place.log_id)}"
    advice = f"{COPIES}; reads of these entries are answered *unknown* here"
    try:
        block = read_block(reader, ledger_id, row, row.place.length)
    except FileNotFoundError:
        what = "the entry log is gone, unless the bookie runs and has just moved it"
        return damage(path, None, what, advice, **facts)
    except OSError as e:
        return damage(path, row.place.offset, f"can't be read: {e.strerror}", advice, **facts)
    except CorruptDataError as e:
        return damage(path, row.place.offset, e.message, advice, **facts)
    base, end = row.ids.first, row.ids.last
    if row.ids.bits(base, end) & ~block.ids.bits(base, end):
        return damage(path, row.place.offset, "the row names ids that are not in the block", advice, **facts)
    return Finding("block", path, row.place.offset, {**facts, "checked": True})


def inspect_kept_file(
    files: Files, directory: str, name: str, store: OrderedStore | None, *, ledger: int | None, offset: int
) -> Iterator[Finding]:
    """The batches that have stayed in a journal file, from that offset on; `ledger`: only this one's."""
    path = f"{directory}/{name}"
    if store is None:
        yield note(path, None, "a journal file, of which batches have stayed; only the index knows which")
        return
    yield note(path, None, "a journal file: here is what the index says has stayed in it")
    log_id = log_id_of(name)
    reader = BlockReader(files, directory)
    try:
        with store.read() as txn:
            for key, value in index.block_rows(txn):
                try:
                    row = index.decode_block_row(key, value)
                except NOT_READABLE:
                    continue  # the inspection of the index reports it
                ledger_id = index.ledger_of_block(key)
                if row.place.log_id == log_id and row.place.offset >= offset and ledger in (None, ledger_id):
                    finding = stored_block(directory, reader, ledger_id, row)
                    if finding.damage and not files.exists(path):
                        yield note(path, None, "this file was let go meanwhile")
                        return
                    yield finding
    finally:
        reader.close()


def missing_logs(files: Files, directory: str, store: OrderedStore, *, ledger: int | None) -> Iterator[Finding]:
    """Damage for each entry log that rows of the index name and that is gone; `ledger`: only this ledger's entries.

    A log is missing only if a snapshot that was opened after its file was looked for still names it: a running bookie
    lets rows point elsewhere first, and removes the file after that.
    """
    named = {row.place.log_id for _, row in _sound_rows(store, None)}
    gone = {log_id for log_id in named if not files.exists(f"{directory}/{log_name(log_id)}")}
    if not gone:
        return
    entries: defaultdict[int, list[str]] = defaultdict(list)
    for ledger_id, row in _sound_rows(store, ledger):
        if row.place.log_id in gone:
            entries[row.place.log_id].append(f"ledger {ledger_id}: {row.ids.first}-{row.ids.last}")
    for log_id, lost in sorted(entries.items()):
        advice = (
            f"restore the file; {COPIES}, and reads of these entries are answered *unknown* here; `bkpy bookie "
            "rebuild-index`, with the bookie stopped, makes an index of what is there"
        )
        what = "this entry log is gone, and rows of the index name what was in it"
        yield damage(f"{directory}/{log_name(log_id)}", None, what, advice, **some("entries", lost))


def _sound_rows(store: OrderedStore, ledger: int | None) -> Iterator[tuple[int, BlockRow]]:
    """(ledger, row) of the block rows that can be read, as of now."""
    with store.read() as txn:
        for key, value in index.block_rows(txn):
            ledger_id = index.ledger_of_block(key)
            if ledger not in (None, ledger_id):
                continue
            try:
                row = index.decode_block_row(key, value)
            except NOT_READABLE:
                continue  # the inspection of the index reports it
            yield ledger_id, row
