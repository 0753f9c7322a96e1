"""Becoming the writer of a log: those before it are fenced, their ledgers closed, and the list names a new one.

Invariants: nobody is fenced before it is certain that the list has room for the new ledger, unless the list changes
meanwhile; nothing is served before the list names the new ledger and its writer; a ledger that was made in vain is
deleted again if it is certain that no list names it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from contextlib import aclosing
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, assert_never

from bkpy.client.creation import NewLedger
from bkpy.client.iteration import ended
from bkpy.client.read.reader import LedgerReader
from bkpy.errors import (
    BookKeeperError,
    CorruptDataError,
    LogLockedError,
    MetadataConflictError,
    NoSuchLedgerError,
    NoSuchLogError,
    UnauthorizedError,
)
from bkpy.metadata.logs.catalog import HeldBy, Taken
from bkpy.metadata.logs.deletions import LogDeletions
from bkpy.metadata.logs.maintenance import LOG_NAME, LOG_PRODUCER, LOG_UID
from bkpy.metadata.store.outcome import Changed, Done, Gone, Missing, NotDone, Superseded, Unknown, to_error
from bkpy.protocol.log.client_info import client_info
from bkpy.protocol.log.log_opening import (
    AFTER_OPENING,
    ListState,
    ListWrite,
    OpeningStep,
    SegmentEnd,
    begun,
    list_state,
    longest_opened,
    settled,
)
from bkpy.protocol.log.log_producers import Numbering
from bkpy.protocol.wire.records import NUMBERED, RecordCodec, digest_key, ledger_key, number_at, stamp_at

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bkpy.log.parts import LogParts
    from bkpy.metadata.ledgers.catalog import Created
    from bkpy.metadata.store.outcome import PutOutcome
    from bkpy.protocol.log.log_list import LogList, Segment

log = logging.getLogger("bkpy.client")


class Opened(NamedTuple):
    """A log whose writer is the one with `token`; `created` is its new last ledger."""

    log_list: LogList
    version: int
    token: str
    created: Created
    producer: str = ""


def new_ledger(name: str, log_list: LogList, producer: str = "") -> NewLedger:
    """What the next ledger of the log is to be; the `producer` of its entries is for readers."""
    numbered = {LOG_PRODUCER: producer.encode()} if producer else {}
    return NewLedger(
        log_list.ensemble_size,
        log_list.write_quorum,
        log_list.ack_quorum,
        log_list.digest,
        log_list.ledger_key,
        {LOG_NAME: name.encode(), LOG_UID: log_list.uid.encode(), **numbered},
    )


async def closed_end(parts: LogParts, password: bytes, segment: Segment) -> SegmentEnd:
    """Where a log's ledger ends. Recovers the ledger, unless it is CLOSED."""
    metadata = await parts.recover(segment.ledger_id, password)
    last = metadata.last_entry
    lost = metadata.accepted_loss is not None
    if last < 0:
        return SegmentEnd(0, 0, 0, lost)
    shared = parts.shared
    reader = LedgerReader(
        metadata,
        codec=RecordCodec(segment.ledger_id, metadata.digest, digest_key(password), stamp_format=segment.stamp),
        catalog=parts.catalog,
        pool=shared.pool,
        settings=shared.settings,
        runtime=shared.runtime,
    )
    last_ms, numbering = 0, None
    async with aclosing(reader.read_blocks(last, last)) as blocks:
        async for block in blocks:
            last_ms = stamp_at(block.buffer, block.starts[0])
            if segment.stamp == NUMBERED:
                producer, sequence = number_at(block.buffer, block.starts[0])
                numbering = Numbering(producer, sequence - last)
    return SegmentEnd(last + 1, metadata.length, last_ms, lost, numbering)


def list_write_of(outcome: PutOutcome) -> ListWrite:
    """The outcome of a write that adds a ledger to a list, as the tables know it."""
    match outcome:
        case Done():
            return ListWrite.DONE
        case Missing():
            return ListWrite.LEDGER_GONE if outcome.index else ListWrite.LOG_GONE
        case Changed():
            return ListWrite.CHANGED
        case Superseded():
            return ListWrite.SUPERSEDED
        case NotDone():
            return ListWrite.NOT_DONE
        case Unknown():
            return ListWrite.UNKNOWN
        case _:
            assert_never(outcome)


class Opening:
    """One call of `open_log`."""

    def __init__(
        self, name: str, password: bytes, parts: LogParts, *, wait: bool, made: bool, producer: str, new_producer: bool
    ) -> None:
        self._name = name
        self._password = password
        self._parts = parts
        self._logs = parts.logs
        self._wait = wait
        self._producer = producer
        self._new_producer = new_producer
        self._made = made  # by the same call
        self._token = parts.logs.new_token()
        self._created: Created | None = None  # a ledger that no list names
        self._uid = ""  # of the log, once its list was read
        self._writer = ""  # of the list that was read last
        self._judged_ms: int | None = None  # when the first attempt judged which producers are idle

    async def run(self) -> Opened:
        """Raises `NoSuchLogError`, `UnauthorizedError`, `LogLockedError`, and whatever `recover_ledger` raises.

        `MetadataConflictError` if other writers come in between all the time.
        """
        try:
            return await self._run()
        except BookKeeperError:
            # In a task, which goes on if the call is cancelled meanwhile.
            await ended(self._parts.shared.runtime.spawn(self._undo(), name=f"end of opening log {self._name}"))
            raise
        except BaseException:
            if self._uid and not self._wait:
                drop_lease_later(self._name, self._uid, self._token, self._parts)
            raise
        finally:
            if self._created is not None:
                self._parts.shared.runtime.spawn(self._discard(self._created), name="delete an unused ledger")

    async def _run(self) -> Opened:
        settings, rng = self._parts.shared.settings, self._parts.shared.runtime.rng
        await self._parts.turns.wait(self._name)
        log_list, version = await self._read()
        if not self._wait:
            await self._lock()
        pause_s = settings.log_open_pause_min_s
        for _ in range(settings.log_conflicts_max):
            self._writer = log_list.writer
            opened = await self._attempt(log_list, version)
            if opened is not None:
                return opened
            log_list, version = await self._read()
            if log_list.writer != self._writer:  # another one came in between: the next to come gives it some time
                await asyncio.sleep(pause_s * (1 + rng.random()) / 2)
                pause_s = min(pause_s * 2, settings.log_open_pause_max_s)
                log_list, version = await self._read()
        raise MetadataConflictError(f"the writers of log {self._name} take its place from each other all the time")

    async def _read(self) -> tuple[LogList, int]:
        log_list, version = await self._logs.read(self._name, fresh=True)
        if self._uid not in ("", log_list.uid):
            raise NoSuchLogError(f"log {self._name} was deleted while it was opened, and there is another one")
        self._uid = log_list.uid
        if log_list.ledger_key != ledger_key(self._password):
            raise UnauthorizedError(f"this is not the password of log {self._name}")
        return log_list, version

    async def _lock(self) -> None:
        """Take the lease. An opener that doesn't wait has it before it fences any writer."""
        outcome = await self._logs.take_lease(self._name, self._uid, self._token, self._parts.label)
        match outcome:
            case Taken():
                return
            case HeldBy():
                begun = datetime.fromtimestamp(outcome.since_ms / 1000, UTC).isoformat(timespec="seconds")
                since = f" since {begun}" if outcome.since_ms else ""
                error = LogLockedError(f"log {self._name} has a writer{since}: {outcome.label}")
                error.writer = client_info(outcome.label, outcome.since_ms)
                raise error
            case NotDone() | Unknown():
                raise to_error(outcome)
            case _:
                assert_never(outcome)

    async def _attempt(self, log_list: LogList, version: int) -> Opened | None:
        """None if the list has changed meanwhile."""
        # Before anybody is fenced: without room for a ledger or producer, or bookies, the log's writer goes on.
        settings, now_ms = self._parts.shared.settings, self._logs.now_ms()
        # Of idle producers by the time of the first attempt: the next one must not forget what that one fenced for.
        self._judged_ms = now_ms if self._judged_ms is None else self._judged_ms
        limits = self._judged_ms, settings.log_producer_idle_s, settings.log_producers_max
        if self._producer:
            log_list.producers.check(self._name, self._producer, *limits, new=self._new_producer)
        with_producer = dataclasses.replace(log_list, producers=log_list.producers.opened(self._producer, *limits))
        self._logs.check_fits(self._name, longest_opened(with_producer, now_ms))
        created = self._created or await self._parts.create(new_ledger(self._name, log_list, self._producer))
        self._created = created
        ledger_id = created.metadata.ledger_id
        try:
            ends = {
                segment.ledger_id: await closed_end(self._parts, self._password, segment)
                for segment in log_list.open_segments
            }
        except NoSuchLedgerError as error:
            if await self._logs.read(self._name, fresh=True) != (log_list, version):
                return None  # somebody else has dropped it
            raise CorruptDataError(
                f"the ledger is gone, and the list of log {self._name} names it", ledger_id=error.ledger_id
            ) from error
        ready = settled(log_list, ends, settings.log_producer_runs_max)
        producers = ready.producers.opened(self._producer, *limits).active(self._producer, now_ms)
        ready = dataclasses.replace(ready, producers=producers)
        self._tell_of_dropped(log_list, ends)
        self._tell_of_lost(log_list, ends, ready)
        ready = ready.without_pending_delete(await self._delete_some(log_list.pending_delete))
        # Not what is ready: of what was dropped, or is lost, readers may have seen the times.
        begun_ms = max(self._logs.now_ms(), log_list.last_ms)
        wanted = begun(
            ready,
            ledger_id,
            ready.sealed_end,
            begun_ms,
            self._token,
            self._parts.label,
            numbered=bool(self._producer),
        )
        self._created = None  # if the call ends here, it is not known whether the list names it
        check = self._logs.ledger_check(ledger_id, created.version)
        outcome = await self._logs.write(self._name, wanted, version, check)
        what, says = list_write_of(outcome), ListState.NOTHING
        if AFTER_OPENING[what, says] is OpeningStep.LOOK:
            wanted, version, says = await self._look(wanted, ledger_id)
        elif isinstance(outcome, Done):
            version = outcome.version
        match act := AFTER_OPENING[what, says]:
            case OpeningStep.SERVE:
                return Opened(self._logs.stored_form(wanted), version, self._token, created, self._producer)
            case OpeningStep.AGAIN:
                self._created = created
            case OpeningStep.RESTART:
                pass
            case OpeningStep.NO_LOG:
                raise NoSuchLogError(f"log {self._name} was deleted while it was opened")
            case OpeningStep.FAIL:
                assert isinstance(outcome, NotDone | Unknown)
                if isinstance(outcome, NotDone):
                    self._created = created  # to be deleted
                raise to_error(outcome)
            case OpeningStep.LOOK | OpeningStep.BACK | OpeningStep.WAIT | OpeningStep.FENCED:
                raise AssertionError(f"{act} while opening")
            case _:
                assert_never(act)
        return None

    async def _delete_some(self, pending: tuple[int, ...]) -> tuple[int, ...]:
        """Delete some ledgers that former openings or truncations have left, and return the ones that are gone.

        Otherwise openers that take the log from each other would add ledgers faster than a writer deletes them.
        """
        some = pending[: self._logs.settings.log_deletes_at_once]
        outcomes = await asyncio.gather(*map(self._parts.catalog.delete, some))
        return tuple(
            ledger_id for ledger_id, outcome in zip(some, outcomes, strict=True) if isinstance(outcome, Gone | Missing)
        )

    def _tell_of_dropped(self, log_list: LogList, ends: Mapping[int, SegmentEnd]) -> None:
        for before, after in pairwise(log_list.open_segments):
            end, entries = before.first_position + ends[before.ledger_id].entries, ends[after.ledger_id].entries
            if end < after.first_position and entries and not ends[before.ledger_id].lost:
                log.warning(
                    "%d entries of ledger %d are no part of log %s: ledger %d before it ends at position %d, not %d",
                    entries,
                    after.ledger_id,
                    self._name,
                    before.ledger_id,
                    end,
                    after.first_position,
                )

    def _tell_of_lost(self, log_list: LogList, ends: Mapping[int, SegmentEnd], ready: LogList) -> None:
        for segment in log_list.open_segments:
            if ends[segment.ledger_id].lost:
                end = segment.first_position + ends[segment.ledger_id].entries
                log.warning(
                    "entries that log %s may have had from position %d on were given up with ledger %d: it goes on at "
                    "position %d",
                    self._name,
                    end,
                    segment.ledger_id,
                    max(ready.behind(end), ready.first_position),
                )

    async def _look(self, wanted: LogList, ledger_id: int) -> tuple[LogList, int, ListState]:
        try:
            log_list, version = await self._logs.read(self._name, fresh=True)
        except NoSuchLogError:
            return wanted, -1, ListState.GONE
        return log_list, version, list_state(log_list, self._token, ledger_id)

    async def _undo(self) -> None:
        if self._uid and not self._wait:
            await drop_lease(self._name, self._uid, self._token, self._parts)
        if self._uid and self._made:
            await self._unmake()

    async def _unmake(self) -> None:
        """Remove the log that the same call has made, unless another client has used it since."""
        try:
            # Together: a ledger that was made may still be there, whenever this client ends.
            note = await LogDeletions(self._logs).prepared(self._name, self._uid)
            await self._logs.unmake(self._name, self._uid, note)
        except BookKeeperError as error:
            log.info("log %s, which was made in vain, is still there: %s", self._name, error)

    async def _discard(self, created: Created) -> None:
        await discard(created.metadata.ledger_id, self._name, self._parts)


async def drop_lease(name: str, uid: str, token: str, parts: LogParts) -> None:
    """Give up the lease now. If that fails, go on in the background: it would stay as long as the session."""
    try:
        await parts.logs.drop_lease(name, uid, token)
    except BookKeeperError as error:
        log.info("failed to give up the lease of log %s, retrying: %s", name, error)
        drop_lease_later(name, uid, token, parts)
    except asyncio.CancelledError:
        drop_lease_later(name, uid, token, parts)
        raise


def drop_lease_later(name: str, uid: str, token: str, parts: LogParts) -> None:
    """Give up the lease in the background, for an end that doesn't wait for the store."""
    dropping = parts.logs.drop_lease_at_last(name, uid, token, parts.shared.settings.tail_poll_s)
    parts.shared.runtime.spawn(dropping, name=f"lease of log {name}")


async def discard(ledger_id: int, name: str, parts: LogParts) -> None:
    """Delete a ledger that no list names. Where that fails, somebody who looks for such ledgers will."""
    outcome = await parts.catalog.delete(ledger_id)
    if isinstance(outcome, NotDone | Unknown):
        log.info("ledger %d, made for log %s and not used, is still there: %s", ledger_id, name, outcome.error)
