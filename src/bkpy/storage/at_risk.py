"""Marks that a bookie may acknowledge entries before a disk has them, so that a start can tell whether some are lost.

Each shard's row has a mark (`ShardRow.at_risk`): nothing; `IN_MEMORY`, where acknowledged entries may be in memory
only; or a boot id, where they may be in the page cache of that boot only.

Invariants: the mark is durable before the first acknowledgement that it is about; it goes when everything is in the
index, after a clean stop or a replay that found everything, or when every ledger is in limbo.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bkpy.storage.index.index import BOOT_ID_BYTES, ShardRow, put_shard
from bkpy.storage.journal.format import RunState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bkpy.config.bookie import BookieSettings
    from bkpy.runtime.interfaces import OrderedStore

NOTHING: Final = b""
IN_MEMORY: Final = bytes(BOOT_ID_BYTES)  # no boot has this id


def mark_of(settings: BookieSettings, boot_id: bytes) -> bytes:
    """The mark of a bookie that runs with these settings."""
    if not settings.journal_write_data:
        return IN_MEMORY
    return NOTHING if settings.journal_sync_data else boot_id


def run_state(settings: BookieSettings, rows: Iterable[ShardRow]) -> RunState:
    """The state that the journals record of a run with these settings and shards: a rebuild of an index reads it."""
    lost = any((row.unknown_in_limbo and not row.unasked) or row.limbo_to >= 0 for row in rows)
    risk = not (settings.journal_write_data and settings.journal_sync_data)
    return RunState.STATED | (RunState.DATA_LOST if lost else 0) | (RunState.AT_RISK if risk else 0)


def is_lost(mark: bytes, boot_id: bytes) -> bool:
    """Whether a start that finds this mark must assume that acknowledged entries are gone."""
    return mark not in (NOTHING, boot_id)


def put_mark(row: ShardRow, store: OrderedStore, mark: bytes) -> ShardRow:
    """Store the mark in a shard's row; the row with it. Blocks."""
    if row.at_risk != mark:
        row = row._replace(at_risk=mark)
        put_shard(store, row)
    return row


def loss(mark: bytes) -> str:
    """Describe the loss, for the log."""
    how = (
        "in a run without a journal (journal_write_data = false): what it had acknowledged and no checkpoint had stored"
        if mark == IN_MEMORY
        else "in a run without the journal's syncs (journal_sync_data = false), and the machine was restarted since: "
        "what it had acknowledged last"
    )
    return f"the bookie stopped uncleanly {how} may be lost; all its ledgers are fenced and in limbo"


def warnings(settings: BookieSettings) -> list[str]:
    """The durability that the settings give up, for the log at each start."""
    if not settings.journal_write_data:
        return [
            "journal_write_data = false: entries are acknowledged while they are only in memory. An unclean stop "
            "(kill -9, a crash, a full or failing disk, a power cut) loses what the last checkpoint has not stored. "
            "The bookie then answers 'unknown' for whatever it hasn't got, of all its ledgers, and takes no new entries"
        ]
    if not settings.journal_sync_data:
        return [
            "journal_sync_data = false: entries are acknowledged before a disk has them. A power cut or a crash of the "
            "machine loses the last ones. The bookie then answers 'unknown' for whatever it hasn't got, of all its "
            "ledgers, and takes no new entries; the end of its process alone loses nothing"
        ]
    return []
