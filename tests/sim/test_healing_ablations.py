"""The rules of re-replication, each switched off in the healing run, which must notice: by seeds that are known to.

Others have schedules of their own: what the auditor takes for lost (28, 37) in `tests/unit/recovery`, a swap without a
look at the lock (35) in `test_copying_rules.py`, draining (38) in `test_draining_rules.py`. That rules 25, 26, 27, 33
and 35 are needed in every order of steps is shown by `rereplication_model.py`, and 36 by `garbage_collection_model.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from bkpy.metadata.bookies.naming import NamingScan
from bkpy.metadata.replication.locks import LedgerLock, LedgerLocks
from bkpy.metadata.replication.underreplication import UnderreplicationQueue
from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerState
from bkpy.protocol.repair.rereplication import RepairStep, next_step, plan, swapped
from bkpy.replication.auditor import auditor
from bkpy.replication.worker import ledger_repair
from bkpy.replication.worker.fragment_copy import Copied, FragmentCopy

from . import healing
from .runs import Range, play

if TYPE_CHECKING:
    from bkpy.metadata.replication.underreplication import UnderreplicationRecord
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.repair.rereplication import Bookies, Copy, Plan

Ablation = Callable[[], AbstractContextManager[Any]]


def recovering_without_a_grace_period() -> AbstractContextManager[Any]:
    """Rule 25."""

    def step(planned: Plan | None, *, grace_over: bool, **others: bool) -> RepairStep:
        return next_step(planned, grace_over=True, **others)

    return patch.object(ledger_repair, "next_step", step)


def removing_newer_marks() -> AbstractContextManager[Any]:
    """Rule 26: whatever the mark says by now, it goes."""
    remove = UnderreplicationQueue.remove

    async def remove_all(
        marks: UnderreplicationQueue, mark: UnderreplicationRecord, bookie_ids: Collection[str]
    ) -> Any:
        now = await marks.read(mark.ledger_id)
        return await (remove(marks, mark, bookie_ids) if now is None else remove(marks, now, now.lost.keys()))

    return patch.object(UnderreplicationQueue, "remove", remove_all)


def swapping_before_copying() -> AbstractContextManager[Any]:
    """Rule 27."""

    async def run(copy: FragmentCopy) -> Copied:
        return Copied(0)

    return patch.object(FragmentCopy, "run", run)


def swapping_open_fragments() -> AbstractContextManager[Any]:
    """Rule 33: whoever swaps the last fragment of an open ledger knows of none of its entries."""

    def as_if_closed(metadata: LedgerMetadata) -> LedgerMetadata:
        if metadata.state is LedgerState.CLOSED:
            return metadata
        return metadata.closed(metadata.fragments[-1].first_entry - 1, 0)

    def bold_plan(metadata: LedgerMetadata, leaving: Collection[str], bookies: Bookies, **more: Any) -> Plan:
        return plan(as_if_closed(metadata), leaving, bookies, **more)

    def bold_swap(metadata: LedgerMetadata, copy: Copy, new: str) -> LedgerMetadata | None:
        if metadata.state is LedgerState.CLOSED or copy.fragment < len(metadata.fragments) - 1:
            return swapped(metadata, copy, new)
        last = metadata.fragments[-1]
        if copy.old not in last.bookies or new in last.bookies:
            return None
        names = tuple(new if name == copy.old else name for name in last.bookies)
        fragments = (*metadata.fragments[:-1], Fragment(last.first_entry, names))
        return dataclasses.replace(metadata, fragments=fragments)

    patches = ExitStack()
    patches.enter_context(patch.object(ledger_repair, "plan", bold_plan))
    patches.enter_context(patch.object(ledger_repair, "swapped", bold_swap))
    return patches


def ending_writers_for_nothing() -> AbstractContextManager[Any]:
    """Rule 50: an open ledger is closed though no bookie could take the place of the lost one."""

    def eager_plan(metadata: LedgerMetadata, leaving: Collection[str], bookies: Bookies, **more: Any) -> Plan:
        planned = plan(metadata, leaving, bookies, **more)
        if metadata.state is not LedgerState.OPEN:
            return planned
        last = len(metadata.fragments) - 1
        unclosed = tuple(name for name in metadata.fragments[last].bookies if name in leaving)
        stuck = tuple(one for one in planned.stuck if one.fragment < last)
        return planned._replace(stuck=stuck, unclosed=unclosed)

    return patch.object(ledger_repair, "plan", eager_plan)


def moving_by_hand_without_a_lock() -> AbstractContextManager[Any]:
    """Rule 30: who rebalances takes the lock of another ledger."""
    take = LedgerLocks.take

    async def take_another(locks: LedgerLocks, ledger_id: int) -> Any:
        lock = await take(locks, ledger_id + 1000 if locks.holder == "rebalancing" else ledger_id)
        return dataclasses.replace(lock, ledger_id=ledger_id) if isinstance(lock, LedgerLock) else lock

    return patch.object(LedgerLocks, "take", take_another)


def freeing_an_id_beside_copies() -> AbstractContextManager[Any]:
    """A bookie is formatted while somebody may copy to it: a swap names it for what it had."""

    async def wait_for_nobody(scan: NamingScan) -> None:
        return

    return patch.object(NamingScan, "wait_for_movers", wait_for_nobody)


def missing_those_that_nobody_knows() -> AbstractContextManager[Any]:
    """A bookie that ledgers name and that has no cookie isn't lost."""

    look = auditor.look_at_bookies

    async def look_at_known(*args: Any, **more: Any) -> Any:
        return await look(*args, **{**more, "named": ()})

    return patch.object(auditor, "look_at_bookies", look_at_known)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("without", "seeds"),
    [
        (recovering_without_a_grace_period, (4,)),
        (removing_newer_marks, (37,)),
        (swapping_before_copying, (0,)),
        (ending_writers_for_nothing, (8,)),
        (moving_by_hand_without_a_lock, (0,)),
        (swapping_open_fragments, (10,)),
        (freeing_an_id_beside_copies, (38,)),
        (missing_those_that_nobody_knows, (34,)),
    ],
)
def test_without_the_rule_it_is_noticed(without: Ablation, seeds: Sequence[int]) -> None:
    found = Range()
    for seed in seeds:
        # With all rules these seeds heal in 60 s of virtual time: there is no need to wait for the run's usual limit.
        with without(), patch.object(healing, "HEALED_WITHIN_S", 100.0):
            play("healing", seed, found)
    assert found.failed, f"{without.__name__} passed unnoticed"
