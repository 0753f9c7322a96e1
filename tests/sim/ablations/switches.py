"""The switches that are more than a changed line: each robs the real code of a rule for as long as it is entered."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from bkpy.bookie.connection import add_handler
from bkpy.bookie.connection.keys import Keys
from bkpy.log import opening
from bkpy.log.appends import LogAppends
from bkpy.metadata.bookies import naming
from bkpy.metadata.bookies.naming import NamingScan
from bkpy.metadata.ledgers.catalog import LedgerCatalog
from bkpy.metadata.replication.locks import LedgerLock, LedgerLocks
from bkpy.metadata.replication.underreplication import UnderreplicationQueue
from bkpy.metadata.store import resolve
from bkpy.metadata.store.outcome import NotDone, PutOutcome, Unknown
from bkpy.protocol.ledger.acks import LedgerAcks
from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerState
from bkpy.protocol.ledger.recovery import Forward, Reply
from bkpy.protocol.log.log_opening import SegmentEnd
from bkpy.protocol.repair.draining import BookieReference, reference_of
from bkpy.protocol.repair.rereplication import RepairStep, next_step, plan, swapped
from bkpy.replication.auditor import auditor
from bkpy.replication.worker import ledger_repair
from bkpy.replication.worker.fragment_copy import Copied, FragmentCopy
from bkpy.storage import shard
from bkpy.storage.checkpoint import flush
from bkpy.storage.ledgers.ledgers import Ledgers
from tests.hooks import (
    ADD_TO_LIST,
    ATTEMPT_TO_OPEN,
    FENCE,
    FETCH,
    LOOK_FOR_LEAVERS,
    WAIT_FOR_MOVERS,
    cache_of,
    go_by,
    load_states,
    loading_of,
    metadata_of,
    take_for_unseen,
)
from tests.mutants.in_process import mutant, planted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from bkpy.admin.decommission import Decommission
    from bkpy.client.write.leaving import Leaving
    from bkpy.metadata.replication.underreplication import UnderreplicationRecord
    from bkpy.metadata.store.store import MetadataStore
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.log.log_list import LogList, Segment
    from bkpy.protocol.repair.rereplication import Bookies, Copy, Plan
    from bkpy.recovery.ledger_recovery import LedgerRecovery
    from bkpy.storage.ledgers.info import LedgerInfo


def not_frozen() -> AbstractContextManager[Any]:
    return patch.object(LedgerAcks, "freeze", lambda acks: None)


def reading_without_fencing() -> AbstractContextManager[Any]:
    defaults = getattr(*FETCH).__kwdefaults__
    assert defaults is not None
    return patch.dict(defaults, flags=0)


def reading_from_the_answers_alone() -> AbstractContextManager[Any]:
    fence = getattr(*FENCE)

    async def unaided(recovery: LedgerRecovery) -> int:
        metadata = metadata_of(recovery)
        everything = Fragment(0, metadata.fragments[-1].bookies)
        go_by(recovery, dataclasses.replace(metadata, fragments=(everything,)))
        try:
            return await fence(recovery)
        finally:
            go_by(recovery, metadata)

    return patch.object(*FENCE, unaided)


def failures_as_denials() -> AbstractContextManager[Any]:
    def deny(forward: Forward, index: int) -> None:
        forward.answer(index, Reply(0, forward.last, ()))

    return patch.object(Forward, "fail", deny)


@contextlib.contextmanager
def evicting_what_is_asked_for() -> Iterator[None]:
    """A ledger's state is evicted for the sake of another one of the same request, and then it counts as never seen."""

    async def load(ledgers: Ledgers, ledger_ids: Collection[int]) -> dict[int, LedgerInfo | None]:
        cached = cache_of(ledgers).get
        missing = [ledger_id for ledger_id in ledger_ids if cached(ledger_id) is None]
        if missing:
            async with loading_of(ledgers):
                cache_of(ledgers).trim()
                await load_states(ledgers, {ledger_id for ledger_id in missing if cached(ledger_id) is None})
        return {ledger_id: cached(ledger_id) for ledger_id in ledger_ids}

    introduce = Ledgers.introduce

    def introduced(ledgers: Ledgers, ledger_id: int, key: bytes, shard: int | None = None) -> LedgerInfo:
        take_for_unseen(ledgers, ledger_id)
        return introduce(ledgers, ledger_id, key, shard)

    def authorise(keys: Keys, ledger_id: int) -> None:
        keys.authorised.add(ledger_id)

    with (
        patch.object(Ledgers, "load", load),
        # A second line: a connection that has shown a ledger's key isn't believed that the ledger is new.
        patch.object(Keys, "authorise", authorise),
        # And a third: a state that is made up is refused, and never written.
        patch.object(Ledgers, "introduce", introduced),
        patch.object(flush, "check_no_less", lambda ledger_id, state, row: None),
    ):
        yield


@contextlib.contextmanager
def doubt_taken_for_failure() -> Iterator[None]:
    """A change was stored and its reply lost, and the store is away when it is read back: nothing was stored, then."""
    whose_value = resolve.whose_value

    async def answered(store: MetadataStore, path: str, data: bytes, expected_version: int) -> PutOutcome:
        outcome = await whose_value(store, path, data, expected_version)
        return NotDone(outcome.error) if isinstance(outcome, Unknown) else outcome

    with patch.object(resolve, "whose_value", answered):
        yield


@contextlib.contextmanager
def collected_ledgers_forgotten() -> Iterator[None]:
    """S12: a ledger that was collected is one that was never seen."""
    with patch.object(shard, "has_tombstone", lambda txn, ledger_id: False):
        yield


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


def swaps_do_not_check_the_lock() -> AbstractContextManager[Any]:
    """Rule 35."""

    async def write(catalog: LedgerCatalog, metadata: LedgerMetadata, version: int, lock: LedgerLock) -> PutOutcome:
        return await catalog.write(metadata, version)

    return patch.object(LedgerCatalog, "write_locked", write)


def people_take_no_lock() -> AbstractContextManager[Any]:
    """Rule 30: who moves copies by hand takes the lock of another ledger."""
    take = LedgerLocks.take

    async def take_another(locks: LedgerLocks, ledger_id: int) -> Any:
        """That of a ledger which isn't there: it keeps nobody away."""
        lock = await take(locks, ledger_id + 1000 if locks.holder in ("mover", "rebalancing") else ledger_id)
        return dataclasses.replace(lock, ledger_id=ledger_id) if isinstance(lock, LedgerLock) else lock

    return patch.object(LedgerLocks, "take", take_another)


def recoveries_are_taken() -> AbstractContextManager[Any]:
    def takes(*, leaves: bool, read_only: bool, recovery: bool) -> bool:
        return recovery or not read_only

    return patch.object(add_handler, "takes_entries", takes)


def locks_are_not_waited_for() -> AbstractContextManager[Any]:
    async def nothing(one: Decommission) -> None:
        pass

    return patch.object(*WAIT_FOR_MOVERS, nothing)


def recoveries_are_not_settled() -> AbstractContextManager[Any]:
    def need(metadata: LedgerMetadata, bookie_id: str) -> BookieReference:
        found = reference_of(metadata, bookie_id)
        return BookieReference.NONE if found is BookieReference.UNSETTLED else found

    return patch.object(naming, "reference_of", need)


def writers_at_rest_stay() -> AbstractContextManager[Any]:
    async def nothing(leaving: Leaving) -> None:
        pass

    return patch.object(*LOOK_FOR_LEAVERS, nothing)


def absent_bookies_may_leave() -> AbstractContextManager[Any]:
    """Rule 51: a creation names a bookie that is absent, and is to leave."""
    one = mutant("a creation doesn't check that its absent bookie stays")
    return planted(one.find, one.replace)


@contextlib.contextmanager
def nobody_locks() -> Iterator[None]:
    """S11: collection and re-replication of one ledger go on at the same time."""

    async def take(locks: LedgerLocks, ledger_id: int) -> LedgerLock:
        return LedgerLock(ledger_id, "/", "/")  # a proof that is always there

    async def release(locks: LedgerLocks, lock: LedgerLock) -> None:
        pass

    with patch.object(LedgerLocks, "take", take), patch.object(LedgerLocks, "release", release):
        yield


@contextlib.contextmanager
def telling_at_once() -> Iterator[None]:
    """The next ledger doesn't wait for the one before."""
    switch = LogAppends.switch

    def switch_and_release(appends: LogAppends, following: Any, *due: int) -> None:
        switch(appends, following, *due)
        following.release()

    with patch.object(LogAppends, "switch", switch_and_release):
        yield


@contextlib.contextmanager
def keeping_what_lies_behind_a_hole() -> Iterator[None]:
    """A ledger that begins behind the end of the one before it stays, and moves up."""
    settled = opening.settled

    def moved_up(log_list: LogList, ends: Mapping[int, SegmentEnd], runs_max: int) -> LogList:
        if len(log_list.open_segments) == 2:
            first, second = log_list.segments[-2:]
            second = dataclasses.replace(second, first_position=first.first_position + ends[first.ledger_id].entries)
            log_list = dataclasses.replace(log_list, segments=(*log_list.segments[:-1], second))
        return settled(log_list, ends, runs_max)

    with patch.object(opening, "settled", moved_up):
        yield


@contextlib.contextmanager
def recovering_the_last_ledger_alone() -> Iterator[None]:
    """The one before it is taken for closed where the last one begins."""
    attempt, closed_end = getattr(*ATTEMPT_TO_OPEN), opening.closed_end
    lists: list[LogList] = []

    async def attempt_on(one: Any, log_list: LogList, version: int) -> Any:
        lists.append(log_list)
        return await attempt(one, log_list, version)

    async def end_of_last(parts: Any, password: bytes, segment: Segment) -> Any:
        last = lists[-1].segments[-1]
        if segment.ledger_id == last.ledger_id:
            return await closed_end(parts, password, segment)
        return SegmentEnd(last.first_position - segment.first_position, 0, 0)

    with patch.object(*ATTEMPT_TO_OPEN, attempt_on), patch.object(opening, "closed_end", end_of_last):
        yield


@contextlib.contextmanager
def serving_before_the_list_is_written() -> Iterator[None]:
    """Appends go to the next ledger while the list still has to be written."""
    with patch.object(*ADD_TO_LIST, lambda roller, created: asyncio.sleep(0)):
        yield
