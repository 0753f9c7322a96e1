"""What is to outlive an old index in the new one: whether this bookie had lost data, or may have in its last run.

Invariants: where the old index can't be read, today's settings count, and those that give something up count as if it
was lost; where it is gone, so may be logs and journal files, as after a `format` that was interrupted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bkpy.errors import CorruptDataError
from bkpy.storage.at_risk import IN_MEMORY, mark_of
from bkpy.storage.file_names import INDEX_NAME, NEW_INDEX_NAME
from bkpy.storage.index.index import load_shard

if TYPE_CHECKING:
    from bkpy.config.bookie import BookieSettings
    from bkpy.runtime.interfaces import DiskRuntime


class Standing(NamedTuple):
    """`at_risk`: the mark of the last run, see `bkpy.storage.at_risk`.

    `limbo`: ledgers without a row were in limbo, all of them. `limbo_to`: those up to this id, -1 for none.
    """

    at_risk: bytes
    limbo: bool
    limbo_to: int


def standing_of(runtime: DiskRuntime, directory: str, settings: BookieSettings) -> Standing:
    """What is to be kept of a ledger directory's index. Blocks."""
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
        finally:
            store.close()
    except FileNotFoundError:
        return Standing(mark_of(settings, IN_MEMORY), True, -1)
    except (CorruptDataError, OSError):
        row = None
    if row is None:
        return Standing(mark_of(settings, IN_MEMORY), False, -1)
    return Standing(row.at_risk, row.unknown_in_limbo and not row.unasked, row.limbo_to)
