"""Carries over from an old index to a rebuilt one whether this bookie lost data, and which ledgers are in limbo for it.

Invariants: if the old index can't be read, the newest journal files say how the last run began, and today's settings
count as well; a run that could lose acknowledged entries counts as one that did; if journal files don't say it, as
those of 0.2.0, data counts as lost; if the old index is gone, logs and journal files may be gone too, as after an
interrupted `format`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bkpy.errors import CorruptDataError
from bkpy.storage.at_risk import IN_MEMORY, NOTHING, run_state
from bkpy.storage.file_names import INDEX_NAME, NEW_INDEX_NAME
from bkpy.storage.index.index import decode_ledger, ledger_rows, load_shard
from bkpy.storage.journal.format import RunState
from bkpy.storage.journal.reader import newest_header

if TYPE_CHECKING:
    from bkpy.config.bookie import BookieSettings
    from bkpy.runtime.interfaces import DiskRuntime, Files, OrderedStore


class Standing(NamedTuple):
    """The losses that an old index knew of.

    `at_risk`: the mark of the last run, see `bkpy.storage.at_risk`. `limbo`: all ledgers without a row were in limbo;
    `limbo_to`: only those up to this id, -1 for none. `in_limbo`: ledgers whose own rows had them in limbo.
    """

    at_risk: bytes
    limbo: bool
    limbo_to: int
    in_limbo: frozenset[int] = frozenset()


def standing_of(runtime: DiskRuntime, directory: str, settings: BookieSettings) -> Standing:
    """Read it from a ledger directory's index. Blocks."""
    path = f"{directory}/{INDEX_NAME}"
    if not runtime.files.exists(path):  # then the new one of a rebuild that was interrupted is whole
        path = f"{directory}/{NEW_INDEX_NAME}"
    try:
        runtime.store.check(path)
        store = runtime.store.open(
            path, bytes_max=settings.index_bytes_max, readers_max=settings.index_readers_max, read_only=True
        )
        try:
            row = load_shard(store)
            # Where everything is in limbo, so will be all of the new index, or else it was only that nobody was asked.
            in_limbo = frozenset() if row is None or row.unknown_in_limbo else _in_limbo(store)
        finally:
            store.close()
    except FileNotFoundError:
        return _without_index(runtime.files, settings)._replace(limbo=True)
    except (CorruptDataError, OSError):
        row = None
    if row is None:
        return _without_index(runtime.files, settings)
    return Standing(row.at_risk, row.unknown_in_limbo and not row.unasked, row.limbo_to, in_limbo)


def _in_limbo(store: OrderedStore) -> frozenset[int]:
    found = set()
    with store.read() as txn:
        for ledger_id, key, value in ledger_rows(txn):
            try:
                limbo = decode_ledger(key, value).limbo
            except CorruptDataError:
                limbo = True
            if limbo:
                found.add(ledger_id)
    return frozenset(found)


def _without_index(files: Files, settings: BookieSettings) -> Standing:
    """Conclude it from journals and settings. Ledgers that were in doubt up to some id are all in doubt then."""
    headers = [newest_header(files, path) for path in settings.journal_directories]
    state = run_state(settings, ())
    for header in headers:
        state |= header.run if header is not None and header.run & RunState.STATED else RunState.DATA_LOST
    return Standing(IN_MEMORY if state & RunState.AT_RISK else NOTHING, bool(state & RunState.DATA_LOST), -1)
