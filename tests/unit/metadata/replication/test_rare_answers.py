"""Locks, records and announcements of moves in trouble at every call: their callers know what there is afterwards."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
from tests.in_process import ROOT, runtime_here
from tests.unit.metadata.store.troubled import AWAY, REPLY_LOST, REQUEST_LOST, Troubled

from bkpy.config.recovery import RecoverySettings
from bkpy.metadata.replication.locks import LedgerLock, LedgerLocks, held_locks
from bkpy.metadata.replication.underreplication import LossReason, LostBookie, UnderreplicationQueue
from bkpy.metadata.store.outcome import Done, Exists, Missing, NotDone, Unknown

if TYPE_CHECKING:
    from bkpy.metadata.store.memory import MemoryStore

SETTINGS = RecoverySettings(metadata_write_attempts_max=2)
TROUBLES = pytest.mark.parametrize(
    "troubles",
    [
        *([trouble] * times for trouble in (AWAY, REQUEST_LOST, REPLY_LOST) for times in (1, 2, 4)),
        [REPLY_LOST, AWAY],
        [REPLY_LOST, REQUEST_LOST],
        [REPLY_LOST, None, AWAY],
        [REQUEST_LOST, AWAY],
    ],
    ids=lambda troubles: ", ".join(map(str, troubles)),
)
AT = pytest.mark.parametrize("at", range(7))
ABSENT = LostBookie(1, LossReason.ABSENT, "i", absent_at_creation=True)


@TROUBLES
@AT
async def test_who_has_no_lock_leaves_none(tree: MemoryStore, troubles: list[str | None], at: int) -> None:
    store = Troubled(tree, [None] * at + troubles)
    taken = await LedgerLocks(store, ROOT, "me", runtime_here(), SETTINGS).take(7)
    store.script.clear()
    held = await held_locks(tree.session(), ROOT)
    assert isinstance(taken, LedgerLock | NotDone)
    assert bool(held) is isinstance(taken, LedgerLock)
    other = await LedgerLocks(tree.session(), ROOT, "other", runtime_here(), SETTINGS).take(7)
    assert isinstance(other, Exists if isinstance(taken, LedgerLock) else LedgerLock)


@TROUBLES
@AT
async def test_a_bookie_that_was_taken_in_is_recorded_unless_the_answer_says_otherwise(
    tree: MemoryStore, troubles: list[str | None], at: int
) -> None:
    steady = UnderreplicationQueue(tree.session(), ROOT, runtime_here(), SETTINGS)
    assert isinstance(await steady.add(7, {"a": ABSENT, "b": ABSENT}), Done)
    store = Troubled(tree, [None] * at + troubles)
    outcome = await UnderreplicationQueue(store, ROOT, runtime_here(), SETTINGS).taken_in(7, {"a"}, 20)
    record = await steady.read(7)
    assert record is not None
    recorded = record.lost["a"].whole_from == 20
    assert dataclasses.replace(record.lost["a"], whole_from=ABSENT.whole_from) == record.lost["b"] == ABSENT
    match outcome:
        case Done():
            assert recorded
        case NotDone():
            assert not recorded
        case _:
            assert isinstance(outcome, Unknown)
    assert isinstance(await steady.taken_in(8, {"a"}, 20), Missing)
