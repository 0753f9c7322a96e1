"""Looks for entry logs that rows of the index name and that are gone.

Invariant: a log is missing only if a snapshot that was opened after its file was looked for still names it: a bookie
that runs lets rows point elsewhere first, and removes the file after that.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from bkpy.storage.entry_log.entry_log import log_name
from bkpy.storage.index import index
from bkpy.storage.tools.inspect.finding import COPIES, Finding, damage, some
from bkpy.storage.tools.inspect.index import NOT_READABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bkpy.runtime.interfaces import Files, OrderedStore
    from bkpy.storage.index.index import BlockRow


def missing_logs(files: Files, directory: str, store: OrderedStore, *, ledger: int | None) -> Iterator[Finding]:
    """Damage for each; `ledger`: the only one whose entries are looked for."""
    named = {row.place.log_id for _, row in _rows(store, None)}
    gone = {log_id for log_id in named if not files.exists(f"{directory}/{log_name(log_id)}")}
    if not gone:
        return
    entries: defaultdict[int, list[str]] = defaultdict(list)
    for ledger_id, row in _rows(store, ledger):
        if row.place.log_id in gone:
            entries[row.place.log_id].append(f"ledger {ledger_id}: {row.ids.first}-{row.ids.last}")
    for log_id, lost in sorted(entries.items()):
        advice = (
            f"restore the file; {COPIES}, and reads of these entries are answered *unknown* here; `bkpy bookie "
            "rebuild-index`, with the bookie stopped, makes an index of what is there"
        )
        what = "this entry log is gone, and rows of the index name what was in it"
        yield damage(f"{directory}/{log_name(log_id)}", None, what, advice, **some("entries", lost))


def _rows(store: OrderedStore, ledger: int | None) -> Iterator[tuple[int, BlockRow]]:
    """(ledger, row) of the block rows that can be read, as of now."""
    with store.read() as txn:
        for key, value in index.block_rows(txn):
            ledger_id = index.ledger_of_block(key)
            if ledger not in (None, ledger_id):
                continue
            try:
                row = index.decode_block_row(key, value)
            except NOT_READABLE:
                continue  # told where the index is inspected
            yield ledger_id, row
