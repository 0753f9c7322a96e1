"""Rolling a log: the next ledger, the list that names it, and the end of the one before.

    due -> the former but one is CLOSED -> create, beside appends -> appends wait -> write the list -> appends go on
        -> the former is closed behind -> its segment is sealed in the list

Invariants: appends go to a ledger only once the list names it at the position where they begin; at most two of the
log's ledgers are open; while it is unknown whether the list names the next ledger, nothing is appended; the times that
a ledger's entries get are not earlier than those of the ledger before.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from typing import TYPE_CHECKING, Final, NamedTuple, assert_never

from bkpy.errors import (
    BookKeeperError,
    ClientClosedError,
    ConfigError,
    LogFencedError,
    MetadataConflictError,
    MetadataUnavailableError,
    NoSuchLogError,
)
from bkpy.log.appends import LogAppends, log_fenced
from bkpy.log.opening import discard, drop_lease, drop_lease_later, list_write_of, new_ledger
from bkpy.metadata.logs.maintenance import LogMaintenance
from bkpy.metadata.logs.pages import PageMissingError
from bkpy.metadata.store.outcome import Changed, Done, Missing, NotDone, Superseded, Unknown, escalate_unknown, to_error
from bkpy.protocol.log.client_info import writer_of
from bkpy.protocol.log.log_opening import (
    AFTER_ROLLING,
    TURNS_SAID,
    ListState,
    OpeningStep,
    SegmentEnd,
    begun,
    ended,
    list_state,
    longest_opened,
    sealed,
    with_room,
)
from bkpy.protocol.log.log_position import LogPosition, positions_in
from bkpy.protocol.log.log_producers import Numbering
from bkpy.protocol.log.log_writer_state import LogEvent, LogWriterState
from bkpy.protocol.wire.records import NUMBERED, PLAIN, STAMP_SIZES, RecordCodec, digest_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.client.write.writer import LedgerWriter
    from bkpy.errors import ClientInfo
    from bkpy.log.opening import Opened
    from bkpy.log.parts import LogParts
    from bkpy.metadata.ledgers.catalog import Created
    from bkpy.protocol.log.log_list import LogList
    from bkpy.runtime.interfaces import Clock

log = logging.getLogger("bkpy.client")

_ACTIVE_WRITES: Final = 8  # times in `log_producer_idle_s`


class RollLimits(NamedTuple):
    """When a log rolls: as soon as its last ledger has so many bytes or entries, or is so old and not empty."""

    bytes: int
    entries: int
    seconds: float


class WriterClock:
    """The times of one writer's entries, in milliseconds since the epoch: they never fall."""

    __slots__ = ("_clock", "last_ms")

    def __init__(self, clock: Clock, last_ms: int) -> None:
        self._clock = clock
        self.last_ms = last_ms

    def __call__(self) -> int:
        """The time now."""
        now_ms = int(self._clock.time() * 1000)
        if now_ms > self.last_ms:
            self.last_ms = now_ms
        return self.last_ms


class Roller:
    """The ledgers of one log's writer, and its list as this writer last wrote or read it."""

    def __init__(self, name: str, opened: Opened, password: bytes, limits: RollLimits, parts: LogParts) -> None:
        self.log_list = opened.log_list
        self._name = name
        self._version = opened.version
        self._token = opened.token
        self._mac_key = digest_key(password)
        self._limits = limits
        self._parts = parts
        self._logs = parts.logs
        self._settings, self._runtime = parts.shared.settings, parts.shared.runtime
        self.producer = opened.producer
        numbered = opened.log_list.producers.numbered(opened.producer)
        self._producer_index = None if numbered is None else numbered.index
        stamp_bytes = STAMP_SIZES[PLAIN if numbered is None else NUMBERED]
        uid = opened.log_list.uid
        self.appends = LogAppends(name, uid, self._settings, stamp_bytes, self._is_due, self._stop, self._fenced)
        self._opened_at = self._runtime.clock.monotonic()
        self._clock = WriterClock(self._runtime.clock, opened.log_list.segments[-1].begun_ms)
        self._lock = asyncio.Lock()  # of the task that rolls, seals or closes
        self._present = self._writer(opened.created)
        self._former: LedgerWriter | None = None  # until it is CLOSED
        self._ending: asyncio.Task[None] | None = None
        self._unsealed: dict[int, SegmentEnd] = {}  # ledgers that are CLOSED there, as the list has yet to say
        self._rolling: asyncio.Task[None] | None = None
        self._timer = self._armed()
        self._log_maintenance = LogMaintenance(parts.logs, parts.catalog)
        self._rolled = asyncio.Event()
        self._rolled.set()  # retention deletes what is pending delete when the log is opened, too
        self._keeping = self._runtime.spawn(self._keep(), name=f"retention of log {name}", on_death=self._died)
        self._watch = self._logs.watch(name)
        self._hearing = self._runtime.spawn(self._hear(), name=f"news of log {name}", on_death=self._died)
        self.appends.begin(self._present.pending, self.log_list.segments[-1].first_position, *self._due)

    @property
    def ledger_id(self) -> int:
        """The ledger that appends go to."""
        return self._present.ledger_id

    def _writer(self, created: Created) -> LedgerWriter:
        metadata = created.metadata
        codec = RecordCodec(
            metadata.ledger_id, metadata.digest, self._mac_key, stamp=self._clock, producer=self._producer_index
        )
        return self._parts.writer(created, codec, self.appends)

    # --- when -------------------------------------------------------------------------------------------------------

    @property
    def _due(self) -> tuple[int, int]:
        return self._limits.entries, self._limits.bytes

    def _armed(self) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(self._limits.seconds, self._is_old)

    def _is_old(self) -> None:
        if self._present.pending.next_id:
            self._is_due()
        else:
            self._timer = self._armed()

    def _is_due(self) -> None:
        """The present ledger is large or old enough: roll, unless that is under way."""
        if self.appends.state.takes_appends and (self._rolling is None or self._rolling.done()):
            self._rolling = self._runtime.spawn(self._roll(), name=f"roll of log {self._name}", on_death=self._died)

    def _died(self, error: BaseException) -> None:
        log.error("log %s: rolling failed", self._name, exc_info=error)
        self.appends.fail(BookKeeperError(f"rolling log {self._name} failed: {error!r}"))

    async def _roll(self) -> None:
        """Roll, and where that isn't possible now, try again: until then the present ledger grows."""
        while self.appends.state.takes_appends:
            try:
                await self.roll()
            except BookKeeperError as error:
                if self.appends.error is not None:
                    return
                log.warning("log %s goes on in ledger %d, which is due: %s", self._name, self.ledger_id, error)
            else:
                return
            await asyncio.sleep(self._settings.log_roll_retry_s)

    # --- rolling ----------------------------------------------------------------------------------------------------

    async def roll(self) -> None:
        """Go on in a new ledger, unless the present one has no entries. Raises why that isn't possible now."""
        if self._ending is not None:
            await asyncio.wait([self._ending])  # without the lock: a call that closes the log doesn't wait for that
        async with self._lock:
            if self.appends.state is not LogWriterState.SERVING or not self._present.pending.next_id:
                return
            await self._check_room()
            created = await self._parts.create(new_ledger(self._name, self.log_list, self.producer))
            following = self._writer(created)
            writing = False
            try:
                await self.appends.stop()
                writing = True
                await self._add(created)
            except BaseException as error:
                following.abandon()
                if writing and not isinstance(error, BookKeeperError):  # cancelled: the list may name the ledger
                    self.appends.fail(ClientClosedError(f"log {self._name} was interrupted while it rolled"))
                if self.appends.state.switching:
                    self.appends.resume()
                if not writing or self.appends.error is None:  # the list will never name it
                    discarding = discard(created.metadata.ledger_id, self._name, self._parts)
                    self._runtime.spawn(discarding, name="delete an unused ledger")
                raise
            self._switch(following)

    async def _check_room(self) -> None:
        """Raise `ConfigError` if the list has no room for one more ledger, and behind it for that of the next opener.

        No ledger is made then, at each attempt.
        """
        try:
            self._try_room()
        except ConfigError:
            log_list, version = await self._logs.read(self._name, fresh=True)
            if version == self._version or log_list.writer != self._token:
                raise
            self._know(log_list, version)  # perhaps it has been truncated
            self._try_room()

    def _try_room(self) -> None:
        log_list, position = self._sealed(self.log_list), self.appends.next_position
        numbered = bool(self.producer)
        rolled = with_room(log_list, position, self._clock(), self._token, log_list.writer_label, numbered=numbered)
        self._logs.check_fits(self._name, longest_opened(rolled, self._clock()))

    def _switch(self, following: LedgerWriter) -> None:
        self._former, self._present = self._present, following
        self.appends.switch(following.pending, *self._due)
        self._ending = self._runtime.spawn(
            self._end(self._former), name=f"end of ledger {self._former.ledger_id}", on_death=self._died
        )
        self._timer.cancel()
        self._timer = self._armed()

    async def _add(self, created: Created) -> None:
        """Have the list name the ledger, behind what was appended.

        Raises an error, without the writer having failed, only if the list will certainly never name it.
        """
        ledger_id, position = created.metadata.ledger_id, self.appends.next_position
        check = self._logs.ledger_check(ledger_id, created.version)
        until = self._runtime.clock.monotonic() + self._settings.add_quorum_timeout_s
        doubt = False
        while True:
            wanted = begun(
                self._sealed(self.log_list),
                ledger_id,
                position,
                self._clock(),
                self._token,
                self.log_list.writer_label,
                numbered=bool(self.producer),
            )
            token = self._logs.new_token()
            act = OpeningStep.WAIT
            while act is OpeningStep.WAIT:
                try:
                    outcome = await self._logs.write(self._name, wanted, self._version, check, token=token)
                except ConfigError:  # the list is too long, unless it has been truncated since
                    if (await self._logs.read(self._name, fresh=True))[1] == self._version:
                        raise
                    outcome = Changed()
                if isinstance(outcome, NotDone):
                    outcome = escalate_unknown(outcome, doubt)
                doubt = doubt or isinstance(outcome, Unknown)
                act = AFTER_ROLLING[list_write_of(outcome), ListState.NOTHING]
                if act is OpeningStep.WAIT:
                    await self._pause(until)
            found, version = self._logs.stored_form(wanted), self._version
            if isinstance(outcome, Done):
                version = outcome.version
            if act is OpeningStep.LOOK:
                found, version, says = await self._look(ledger_id, until)
                act = AFTER_ROLLING[list_write_of(outcome), says]
            match act:
                case OpeningStep.SERVE:
                    self._know(found, version)
                    if self.appends.error is not None:  # meanwhile
                        raise self.appends.error
                    return
                case OpeningStep.AGAIN:
                    self._know(found, version)
                    doubt = False  # no write before can take effect any more
                case OpeningStep.BACK:
                    if isinstance(outcome, NotDone):
                        raise to_error(outcome)
                    raise MetadataConflictError("somebody has changed the next ledger of the log", ledger_id=ledger_id)
                case OpeningStep.FENCED:
                    raise self._failed_by(found)
                case OpeningStep.NO_LOG:
                    raise self._failed(NoSuchLogError(f"log {self._name} was deleted"))
                case OpeningStep.WAIT | OpeningStep.LOOK | OpeningStep.RESTART | OpeningStep.FAIL:
                    raise AssertionError(f"{act} while rolling")
                case _:
                    assert_never(act)

    async def _pause(self, until: float) -> None:
        """Before the store is asked again, for as long as that makes sense."""
        if self.appends.error is not None:
            raise self.appends.error
        if self._runtime.clock.monotonic() > until:
            waited = f"{self._settings.add_quorum_timeout_s:g} s"
            raise self._failed(
                MetadataUnavailableError(
                    f"it is not known after {waited} whether the list of log {self._name} names its next ledger: the "
                    "metadata store can't be reached"
                )
            )
        await asyncio.sleep(self._settings.metadata_write_pause_s)

    async def _look(self, ledger_id: int, until: float) -> tuple[LogList, int, ListState]:
        while True:
            try:
                log_list, version = await self._logs.read(self._name, fresh=True)
            except NoSuchLogError:
                return self.log_list, self._version, ListState.GONE
            except MetadataUnavailableError:
                await self._pause(until)
            except BookKeeperError as error:
                raise self._failed(error) from None
            else:
                return log_list, version, list_state(log_list, self._token, ledger_id)

    def _failed(self, error: BookKeeperError) -> BookKeeperError:
        self.appends.fail(error)
        return error

    def _failed_by(self, log_list: LogList) -> BookKeeperError:
        """The list has another writer, or none."""
        writer = writer_of(log_list)
        if writer is not None:
            self.appends.succeeded_by(writer)
        error = self._failed(log_fenced(self._name, writer=writer))
        return self.appends.error or error

    def _fenced(self) -> int:
        """Another client has fenced this writer. Returns how many times in a row that was early."""
        turns = self._parts.turns.fenced(self._name, self._runtime.clock.monotonic() - self._opened_at)
        if turns >= TURNS_SAID:
            log.warning(
                "log %s: two writers take turns: the one of this client was fenced %d times in a row just after it had "
                "opened the log",
                self._name,
                turns,
            )
        return turns

    def _know(self, log_list: LogList, version: int) -> None:
        """The list is stored at this version."""
        self.log_list, self._version = log_list, version
        # A ledger may have been closed while the list was written: then it is there without that end.
        still_open = {segment.ledger_id for segment in log_list.open_segments}
        self._unsealed = {ledger_id: end for ledger_id, end in self._unsealed.items() if ledger_id in still_open}

    def _sealed(self, log_list: LogList) -> LogList:
        """With what is known of the ends of ledgers."""
        for ledger_id, end in self._unsealed.items():
            log_list = sealed(log_list, ledger_id, end, self._settings.log_producer_runs_max)
        return log_list

    # --- the former ledger ------------------------------------------------------------------------------------------

    async def _end(self, former: LedgerWriter) -> None:
        """Close it when all of it is acknowledged, and have the list say where it ends."""
        level = logging.WARNING
        while self.appends.state.takes_appends:  # else `close` does it
            try:
                await self._close_former(former)
                break
            except BookKeeperError as error:
                if not error.retriable:
                    self.appends.fail(self.appends.as_error(error))
                    return
                log.log(level, "failed to close ledger %d of log %s, retrying: %s", former.ledger_id, self._name, error)
                level = logging.INFO
                await asyncio.sleep(self._settings.log_roll_retry_s)
        if self.appends.error is None:
            async with self._lock:
                await self._write(lambda log_list: log_list)
        self._rolled.set()

    async def _close_former(self, former: LedgerWriter) -> None:
        await former.close()
        if self.appends.error is None:  # else perhaps of this ledger, which then ends before what was appended to it
            self._ended(former, self.log_list.segments[-1].begun_ms)  # the times of all its entries lie before that
            self._former = None
            self.appends.move(LogEvent.FORMER_CLOSED)

    def _ended(self, writer: LedgerWriter, last_ms: int) -> None:
        metadata, index = writer.metadata, self._producer_index
        assert metadata.last_entry is not None
        numbering = None if index is None else Numbering(index, writer.pending.first_sequence)
        self._unsealed[writer.ledger_id] = SegmentEnd(
            metadata.last_entry + 1, metadata.length, last_ms, numbering=numbering
        )

    async def _write(self, change: Callable[[LogList], LogList], *, closing: bool = False) -> None:
        """Write the list, with the ledgers that it has, if that is possible now. Nothing depends on it."""
        try:
            await self._try_to_write(change, closing=closing)
        except BookKeeperError as error:
            log.info("failed to write the list of log %s: %s", self._name, error)

    async def _try_to_write(self, change: Callable[[LogList], LogList], *, closing: bool) -> None:
        for _ in range(self._settings.log_conflicts_max):
            wanted = change(self._sealed(self.log_list))
            outcome = await self._logs.write_anyway(self._name, wanted, self._version)
            match outcome:
                case Done():
                    self._know(self._logs.stored_form(wanted), outcome.version)
                    return
                case Missing():
                    raise self._failed(NoSuchLogError(f"log {self._name} was deleted"))
                case NotDone() | Unknown():
                    raise to_error(outcome)
                case Changed() | Superseded():
                    log_list, version = await self._logs.read(self._name, fresh=True)
                    if log_list.writer != self._token and not (closing and not log_list.writer):
                        raise self._failed_by(log_list)
                    self._know(log_list, version)
                    if not log_list.writer:  # a call of `close` that was cancelled has written it
                        return
                case _:
                    assert_never(outcome)

    async def located(self, position: int) -> LogPosition:
        """The position of an acknowledged entry, as `append` has returned it. Its ledger is -1 if it was truncated."""
        segment, log_list = None, self.log_list
        if position >= log_list.first_position:
            with contextlib.suppress(PageMissingError):  # truncated since the list was read
                segment = await self._logs.pages.segment_at(self._name, log_list, position)
        if segment is None:
            return LogPosition.of(position, log_uid=log_list.uid, ledger_id=-1, entry_id=0)
        return positions_in(log_list.uid, segment.ledger_id, segment.first_position)(position)

    # --- what is kept -----------------------------------------------------------------------------------------------

    async def truncate(self, before: int, *, ignore_consumers: bool) -> None:
        """See `LogWriter.truncate`."""
        end, uid = self.appends.acknowledged, self.log_list.uid
        log_list = await self._log_maintenance.truncate(
            self._name, before, end=end, uid=uid, ignore_consumers=ignore_consumers
        )
        if log_list.writer == self._token:
            self.log_list = dataclasses.replace(self.log_list, first_position=max(before, self.log_list.first_position))

    async def _keep(self) -> None:
        """Delete what retention doesn't keep, after each roll and periodically, and renew the lease."""
        pause_s = self._settings.log_retention_interval_s
        if self.producer:
            pause_s = min(pause_s, self._settings.log_producer_idle_s / _ACTIVE_WRITES)
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._rolled.wait()
            self._rolled.clear()
            try:
                if self._is_ended_by(await self._retained()):
                    return
                await self._logs.take_lease(self._name, self.log_list.uid, self._token, self._parts.label)
                await self._stay_known()
            except NoSuchLogError as error:
                self._failed(error)
                return
            except BookKeeperError as error:
                log.info("failed to maintain log %s, retrying later: %s", self._name, error)

    async def _retained(self) -> LogList:
        """The list, when what retention doesn't keep is deleted as far as that is possible."""
        try:
            return await self._log_maintenance.retain(self._name)
        except (MetadataUnavailableError, NoSuchLogError):
            raise
        except BookKeeperError as error:  # of one ledger or page: the lease and the producer don't depend on it
            log.info("failed to apply the retention of log %s, retrying later: %s", self._name, error)
            return (await self._logs.read(self._name, fresh=True))[0]

    async def _stay_known(self) -> None:
        """Say in the list now and then that the producer has the log open: it isn't idle."""
        now_ms, producer = self._clock(), self.log_list.producers.numbered(self.producer)
        idle_ms = self._settings.log_producer_idle_s * 1000
        if producer is None or (now_ms - producer.active_ms) * _ACTIVE_WRITES < idle_ms or self._lock.locked():
            return
        async with self._lock:
            await self._write(
                lambda log_list: dataclasses.replace(
                    log_list, producers=log_list.producers.active(self.producer, now_ms)
                )
            )

    async def _hear(self) -> None:
        """Read the list whenever it has changed: so an idle writer learns at once of another one, or of a deletion."""
        async for _ in self._watch:
            try:
                log_list, version = await self._logs.read(self._name)
                if (version > self._version or log_list.uid != self.log_list.uid) and self._is_ended_by(log_list):
                    return
            except NoSuchLogError as error:
                self._failed(error)
                return
            except BookKeeperError as error:  # the retention reads it periodically all the same
                log.info("failed to read the list of log %s: %s", self._name, error)

    def _is_ended_by(self, log_list: LogList) -> bool:
        """Whether this list, the latest of that name, ends this writer."""
        if log_list.uid != self.log_list.uid:
            self._failed(NoSuchLogError(f"log {self._name} was deleted, and there is another one of that name"))
        elif log_list.writer != self._token:
            self._failed_by(log_list)
        else:  # a writer that was fenced waits until the list says by which client
            return False
        return True

    @property
    def writer(self) -> ClientInfo | None:
        """See `LogWriter.writer_info`."""
        return writer_of(self.log_list) if self.appends.state.takes_appends else self.appends.successor

    # --- the end ----------------------------------------------------------------------------------------------------

    def abandon(self) -> None:
        """See `LogWriter.abandon`."""
        self.appends.abandon()
        self._stop_rolling()

    async def close(self) -> None:
        """Close the present ledger, and give up the log. See `LogWriter.close`."""
        if self.appends.state.over:
            return
        await self.appends.close()
        self._stop_rolling()
        await self._stop_ending()  # a roll may wait for it
        async with self._lock:
            if self.appends.state.over:
                return
            await self.appends.flush()
            await self._stop_ending()  # that of a roll which came before
            try:
                if self._former is not None:
                    await self._close_former(self._former)
                await self._present.close()
            except BookKeeperError as error:
                raise self.appends.as_error(error) from error
            self._ended(self._present, self._clock.last_ms)
            await self._write(lambda log_list: ended(log_list, self.ledger_id), closing=True)
            self.appends.move(LogEvent.ENDED)
        await drop_lease(self._name, self.log_list.uid, self._token, self._parts)
        if self.log_list.pending_delete:
            try:
                await self._log_maintenance.finish(self._name)
            except BookKeeperError as error:
                log.info("failed to delete ledgers that log %s no longer has, the auditor will: %s", self._name, error)

    async def _stop_ending(self) -> None:
        if self._ending is not None:
            self._ending.cancel()  # it would try for ever
            await asyncio.wait([self._ending])

    def _stop(self) -> None:
        """The writer has failed, or was abandoned."""
        error = self.appends.error
        if isinstance(error, LogFencedError) and error.writer is None:
            # A ledger was fenced. Soon the list names the client that did it, which later errors then name.
            self._stop_keeping()
            self._timer = asyncio.get_running_loop().call_later(
                self._settings.add_quorum_timeout_s, self._stop_listening
            )
        else:
            self._stop_rolling()
        drop_lease_later(self._name, self.log_list.uid, self._token, self._parts)
        asyncio.get_running_loop().call_soon(self._let_go)  # not in the midst of what has failed

    def _stop_rolling(self) -> None:
        self._stop_keeping()
        self._stop_listening()

    def _stop_keeping(self) -> None:
        self._keeping.cancel()
        self._timer.cancel()

    def _stop_listening(self) -> None:
        self._hearing.cancel()
        self._watch.close()

    def _let_go(self) -> None:
        for writer in (self._former, self._present):
            if writer is not None:
                writer.abandon()
