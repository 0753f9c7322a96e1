"""Living bytes: the bytes of each entry log that rows of the index name. Compaction and the removal of logs use them.

Invariant: in every committed state a log's row says how many of its bytes rows name, or that this isn't known. Then
they are counted in a snapshot, some rows at a time, and changes in the meantime are added.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from bkpy.errors import CorruptDataError
from bkpy.storage.index.index import LogRow, block_rows, decode_block_row, decode_log, encode_log, log_key, log_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from bkpy.runtime.interfaces import OrderedStore, WriteTransaction


class LivingBytes:
    """The living bytes of one shard's logs. All of it runs on the flush worker, which alone writes to the index.

    In each transaction that moves blocks: `change`, then `finish` for logs that are full, and `committed` after it.
    """

    def __init__(self) -> None:
        self._filling: dict[int, int] = {}  # of logs that have no row yet
        self._since: dict[int, int] | None = None  # by how much they changed since the count began, if one is under way
        self._uncommitted: tuple[dict[int, int], dict[int, int] | None] = ({}, None)

    def change(self, txn: WriteTransaction, changes: Mapping[int, int]) -> None:
        """Add these numbers of bytes, by log, to what lives."""
        filling = dict(self._filling)
        since = None if self._since is None else defaultdict(int, self._since)
        self._uncommitted = filling, since
        for log_id, change in changes.items():
            if since is not None:
                since[log_id] += change
            key = log_key(log_id)
            value = txn.get(key)
            if value is None:
                filling[log_id] = filling.get(log_id, 0) + change
                continue
            try:
                row = decode_log(key, value)
            except CorruptDataError:
                continue  # the next count replaces it
            if row.living is not None:
                txn.put(key, encode_log(log_id, _with_living(log_id, row, row.living + change)))

    def finish(self, txn: WriteTransaction, log_id: int, row: LogRow) -> None:
        """Add the row of a complete log."""
        living = self._uncommitted[0].pop(log_id, 0)
        txn.put(log_key(log_id), encode_log(log_id, _with_living(log_id, row, living)))

    def reset(self, txn: WriteTransaction, log_id: int, row: LogRow) -> None:
        """Add the row of a log that an earlier run left without one; its living bytes are counted later."""
        self._uncommitted[0].pop(log_id, None)
        txn.put(log_key(log_id), encode_log(log_id, row._replace(living=None)))

    def committed(self) -> None:
        """The transaction is in the index."""
        self._filling, self._since = self._uncommitted

    def count(self, store: OrderedStore, rows_max: int, size_of: Callable[[int], int]) -> Generator[bool]:
        """Count the living bytes of logs where they aren't known, that many rows at a time; True if there are any.

        `size_of` returns the size of a log's file where the log's row is damaged.
        """
        with store.read() as txn:
            rows = log_rows(txn)
            counts = dict.fromkeys((i for i, row in rows.items() if row is None or row.living is None), 0)
            if not counts:
                return
            self._since = {}
            try:
                for number, (key, value) in enumerate(block_rows(txn)):
                    if number % rows_max == 0:
                        yield True
                    try:
                        place = decode_block_row(key, value).place
                    except CorruptDataError:
                        continue  # its place isn't known; its ledger is in limbo
                    if place.log_id in counts:
                        counts[place.log_id] += place.length
            except GeneratorExit:
                self._since = None
                raise
        since, self._since = self._since, None
        with store.write() as txn:
            for log_id, counted in counts.items():
                row = rows[log_id] or LogRow(size_of(log_id), 0, False)
                living = counted + since.get(log_id, 0)
                txn.put(log_key(log_id), encode_log(log_id, _with_living(log_id, row, living)))


def _with_living(log_id: int, row: LogRow, living: int) -> LogRow:
    if living < 0:
        raise AssertionError(f"{living} bytes of log {log_id} would live")
    return row._replace(living=living)
