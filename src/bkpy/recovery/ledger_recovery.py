"""Recovery of a ledger: IN_RECOVERY, fence, read forward, write back, close.

    metadata: IN_RECOVERY  ->  fence the last ensemble until no ack quorum is left unfenced  ->  last add confirmed
    ranges of entries behind it, read in parallel, decided in order  ->  written back to their write sets  ->  CLOSED

Invariants: a recovery reads entries from the ensembles that the metadata named when they became IN_RECOVERY; every read
of the last fragment fences; an entry is the last one only if so many bookies explicitly deny the next one that it can't
have been acknowledged; the closing write stores changed ensembles, and no write before it. A recovery that fails leaves
the ledger IN_RECOVERY, for a later try. A ledger that is closed while a bookie misses entries that were written back is
recorded as under-replicated, by the recovery's client (`client/write/stragglers.py`) if the bookie is merely slow.

A recovery reads through the same pipeline of ranges as a reader, and gets the same replies. It counts them more
strictly, because its decision is final: docs/explanation/protocol.md compares the two.
"""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import aclosing
from typing import TYPE_CHECKING, NamedTuple, assert_never

from bkpy.client.close import Closed, close_ledger, read_again
from bkpy.client.iteration import raised_where_awaited
from bkpy.client.read.range_pipeline import RangePipeline
from bkpy.errors import (
    BookKeeperError,
    ClientClosedError,
    CorruptDataError,
    DigestMismatchError,
    LedgerClosedError,
    LedgerRecoveryError,
    MetadataConflictError,
    NoSuchLedgerError,
    UnauthorizedError,
)
from bkpy.metadata.store.outcome import Changed, Done, Missing, NotDone, Superseded, Unknown, to_error
from bkpy.protocol.ledger.accepted_loss import AcceptedLoss
from bkpy.protocol.ledger.close_conflict import Closer, rebased
from bkpy.protocol.ledger.giving_up import length_candidates
from bkpy.protocol.ledger.ledger_metadata import ENTRY_ID_MAX, LedgerMetadata, LedgerState
from bkpy.protocol.ledger.quorum import stripe_bookies
from bkpy.protocol.ledger.recovery import EntryAnswer, EntryStatus, Fencing, Forward, Reply
from bkpy.protocol.restore.restoring import widened, written_back_to
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.lac_reply import parse_lac_reply
from bkpy.protocol.wire.messages import Flags, Op, Status
from bkpy.protocol.wire.records import RecordCodec, walk
from bkpy.recovery.write_back import RecoveredEntry, WriteBack

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.client.write.interfaces import ReplicationParts
    from bkpy.metadata.ledgers.catalog import LedgerCatalog


class _RangeEntries(NamedTuple):
    """The first entries of a range, in order, and whether the ledger ends behind them."""

    entries: list[RecoveredEntry]
    ends: bool


class _BookieAnswer(NamedTuple):
    """One bookie's reply about a range, and the records that it returned, all verified."""

    reply: Reply
    found: dict[int, RecoveredEntry]


class GivingUp(NamedTuple):
    """An operator's decision, made at `at_ms`, that all bookies but the `registered` ones are gone for good.

    Registered bookies that answer that they can't tell are given up, too. The ledger keeps its entries up to
    `at_least`.
    """

    registered: frozenset[str]
    at_ms: int
    at_least: int = -1


class Everywhere(NamedTuple):
    """Metadata that were restored from a backup: copies may be on any of `bookies`, all of which have to answer.

    Without a copy on any of them an entry is missing, even if they can't tell: all of them are in limbo. It isn't where
    one has a damaged copy. A recovery's error is `retriable` unless it follows from the answers of all. `leaves_gap`:
    the ledger's log may have had later ledgers, so it gets the record of an accepted loss.
    """

    bookies: tuple[str, ...]
    leaves_gap: bool


class Survey(NamedTuple):
    """What can still be read of a ledger. It would be closed at `last_entry`, with `length` bytes of payload.

    Every entry up to `acknowledged` was certainly acknowledged. `seen` gives, for each bookie of the last fragment, the
    last entry that it holds (-1 for none), or the reason why that is unknown. `decided`: nothing has to be given up.
    """

    metadata: LedgerMetadata
    acknowledged: int
    last_entry: int
    length: int
    seen: dict[str, int | str]
    decided: bool


class LedgerRecovery:
    """One recovery of one ledger that isn't CLOSED; `metadata` and `version` as just read.

    Without `giving_up`, the recovery closes the ledger only where no acknowledged entry can lie behind its end.
    """

    def __init__(
        self,
        metadata: LedgerMetadata,
        version: int,
        *,
        codec: RecordCodec,
        catalog: LedgerCatalog,
        parts: ReplicationParts,
        on_begun: Callable[[WriteBack], None],
        on_ended: Callable[[WriteBack], None],
        giving_up: GivingUp | None = None,
        everywhere: Everywhere | None = None,
    ) -> None:
        self._metadata = metadata
        self._everywhere = everywhere
        self._acknowledged = -1  # every entry up to here was acknowledged, as some bookie has proved
        self._version = version
        self._codec = codec
        self._catalog = catalog
        self._parts = parts
        self._pool, self._settings, self._runtime = parts.pool, parts.settings, parts.runtime
        self._on_begun = on_begun
        self._on_ended = on_ended
        self._ledger_id = metadata.ledger_id
        self._giving_up = giving_up
        self._gave_up = False  # and only that has decided
        self._answers: dict[str, str] = {}  # the last one of each bookie, for errors
        self._without_answer = False  # a bookie gave none, and another time it may
        self._refused = False  # a bookie does not allow this client to ask
        self._seen: dict[str, int | str] = {}
        self._ranges = RangePipeline(
            self._range,
            name=f"recovery of ledger {metadata.ledger_id}",
            at_once=self._settings.recovery_ranges_at_once,
            rest_ahead=False,  # many clients crash together: each recovery needs its memory
            first_entries=self._settings.recovery_first_entries,
            range_entries_max=self._settings.recovery_range_entries_max,
            range_bytes=self._settings.read_bytes,
            runtime=self._runtime,
        )
        self._rotation = self._runtime.rng.randrange(1 << 16)
        self._explicit: tuple[int, int] = (-1, 0)  # last add confirmed and its length, as the writer published it

    async def run(self) -> LedgerMetadata:
        """Recover the ledger, and return its CLOSED metadata. Raises `LedgerRecoveryError`, `UnauthorizedError`."""
        await self._mark()
        if self._metadata.state is LedgerState.CLOSED:
            return self._metadata
        self._pool.add_key(self._ledger_id, self._metadata.ledger_key)
        write_back = None
        try:
            confirmed = await self._fence()
            write_back = WriteBack(
                self._written_to(),
                confirmed=confirmed,
                parts=self._parts,
            )
            self._on_begun(write_back)
            await self._copy(write_back)
            last = write_back.last_entry
            length = await self._length(last) if write_back.length is None else write_back.length
            loss = self._loss(confirmed, last)
            stragglers, written = self._parts.stragglers, write_back
            with stragglers.closing(self._ledger_id, lambda: written.under_replicated):
                closed = await close_ledger(
                    self._catalog,
                    dataclasses.replace(written.metadata, accepted_loss=loss),
                    self._version,
                    last,
                    length,
                    Closer.RECOVERY,
                    conflicts_max=self._settings.metadata_conflicts_max,
                    rebase=lambda fresh: dataclasses.replace(
                        rebased(fresh, self._metadata, written.metadata), accepted_loss=loss
                    ),
                )
                if not isinstance(closed, Closed):
                    raise to_error(closed, ledger_id=self._ledger_id)
            # No recovery waits for a bookie that is slower than the ack quorum: a takeover would.
            failed = written.under_replicated
            stragglers.follow(closed.metadata, lambda: written.under_replicated, recorded=failed)
            if failed:
                await stragglers.record(self._ledger_id, failed)
            return closed.metadata
        finally:
            if write_back is not None:
                write_back.abandon()
                self._on_ended(write_back)
            self._pool.forget_key(self._ledger_id)

    async def fence(self) -> None:
        """Only fence the ledger: no append of its writer is acknowledged from now on. Raises what `run` does."""
        await self._mark()
        if self._metadata.state is LedgerState.CLOSED:
            return
        self._pool.add_key(self._ledger_id, self._metadata.ledger_key)
        try:
            await self._fence()
        finally:
            self._pool.forget_key(self._ledger_id)

    async def survey(self) -> Survey:
        """Fence the ledger and read it, and close nothing. Raises what `run` does; `LedgerClosedError` if CLOSED."""
        await self._mark()
        if self._metadata.state is LedgerState.CLOSED:
            raise LedgerClosedError("the ledger is closed already", ledger_id=self._ledger_id)
        self._pool.add_key(self._ledger_id, self._metadata.ledger_key)
        try:
            confirmed = last = await self._fence()
            length = -1
            async with aclosing(self._ranges.run(confirmed + 1, ENTRY_ID_MAX)) as ranges:
                async for found in ranges:
                    last += len(found.entries)
                    length = found.entries[-1].length if found.entries else length
                    if found.ends:
                        break
            if length < 0:
                length = await self._length(last)
        finally:
            self._pool.forget_key(self._ledger_id)
        return Survey(self._metadata, confirmed, last, length, self._seen, not self._gave_up)

    def _loss(self, confirmed: int, last: int) -> AcceptedLoss | None:
        """The loss to record in the metadata, if anything was given up."""
        if self._everywhere is not None and self._everywhere.leaves_gap:
            return AcceptedLoss(int(self._runtime.clock.time() * 1000), self._acknowledged, last, {})
        giving_up = self._giving_up
        if giving_up is None or not self._gave_up:
            return None
        if last < giving_up.at_least:
            raise self._undecided(f"entries up to {giving_up.at_least} could be read before, now {last} is the end")
        fragments = self._metadata.fragments
        unknown = {
            bookie: "it is not registered"
            for fragment in fragments[:-1]
            for bookie in fragment.bookies
            if self._is_given_up(bookie)
        }
        unknown |= {bookie: why for bookie, why in self._seen.items() if isinstance(why, str)}
        seen = max([last, *(entry for entry in self._seen.values() if isinstance(entry, int))])
        return AcceptedLoss(giving_up.at_ms, confirmed, seen, unknown)

    async def _mark(self) -> None:
        """Store IN_RECOVERY: from then on the writer can't change the ensemble. The metadata of then count."""
        for _ in range(self._settings.metadata_conflicts_max + 1):
            if self._metadata.state is not LedgerState.OPEN:
                return
            marked = self._metadata.in_recovery()
            outcome = await self._catalog.write(marked, self._version)
            match outcome:
                case Done():
                    self._metadata, self._version = marked, outcome.version
                case Changed() | Superseded():
                    self._metadata, self._version = await read_again(self._catalog, self._ledger_id, outcome)
                case Missing():
                    raise NoSuchLedgerError("there is no such ledger", ledger_id=self._ledger_id)
                case NotDone() | Unknown():
                    raise to_error(outcome, ledger_id=self._ledger_id)
                case _:
                    assert_never(outcome)
        if self._metadata.state is LedgerState.OPEN:
            raise MetadataConflictError("the ledger's metadata kept changing", ledger_id=self._ledger_id)

    def _note_failure(self, error: BookKeeperError) -> None:
        """The bookie's file of rights may not be the others': it counts as one that failed, while others are enough.

        Who gives up a bookie's word, or asks for that of all, has to be allowed to hear it. The end of the client is
        raised.
        """
        if isinstance(error, ClientClosedError):
            raise error
        if isinstance(error, UnauthorizedError):
            if self._giving_up is not None or self._everywhere is not None:
                raise error
            self._refused = True

    def _undecided(self, what: str, entry_id: int | None = None) -> LedgerRecoveryError | UnauthorizedError:
        failures = "; ".join(f"{bookie_id}: {text}" for bookie_id, text in sorted(self._answers.items()))
        if self._refused and not self._without_answer:  # no other try changes that
            return UnauthorizedError(f"{what} ({failures})", ledger_id=self._ledger_id, entry_id=entry_id)
        # What every bookie has answered stays as it is until somebody starts another one.
        retriable = self._without_answer if self._everywhere is not None else None
        return LedgerRecoveryError(
            f"{what} ({failures})", ledger_id=self._ledger_id, entry_id=entry_id, retriable=retriable
        )

    def _asked(self) -> LedgerMetadata:
        """The metadata, with the bookies to ask."""
        return self._metadata if self._everywhere is None else widened(self._metadata, self._everywhere.bookies)

    def _written_to(self) -> LedgerMetadata:
        """The metadata, with a last ensemble that gets what is written back: bookies of a restored one may be gone."""
        if self._everywhere is None:
            return self._metadata
        last = self._metadata.fragments[-1]
        ensemble = written_back_to(last.bookies, self._everywhere.bookies)
        if ensemble is None:
            raise self._undecided(f"only {len(self._everywhere.bookies)} bookies are left to write it back to")
        return self._metadata.new_fragment(last.first_entry, ensemble)

    # --- fencing ----------------------------------------------------------------------------------------------------

    async def _fence(self) -> int:
        """Fence the last ensemble. Returns the highest id that is known to be acknowledged, and need not be read.

        With restored metadata that is the one before the last fragment, whose ensemble may have nothing of it.
        """
        metadata = self._asked()
        fragment = metadata.fragments[-1]
        fencing = Fencing(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
        confirmed = fragment.first_entry - 1  # a fragment begins right behind an acknowledged entry
        tasks = {
            self._runtime.spawn(
                self._fence_one(bookie_id), name=f"fence of ledger {self._ledger_id}", on_death=raised_where_awaited
            ): (
                index,
                bookie_id,
            )
            for index, bookie_id in enumerate(fragment.bookies)
        }
        waiting = set(tasks)
        try:
            # Before it gives anything up, a recovery waits for every bookie's answer.
            while not fencing.complete or (waiting and self._giving_up is not None):
                if fencing.impossible:
                    for task in waiting:
                        self._answers[tasks[task][1]] = "no answer yet"
                    raise self._undecided("too few bookies could be fenced")
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    index, bookie_id = tasks[task]
                    try:
                        confirmed = max(confirmed, task.result())
                        self._answers[bookie_id] = "fenced"
                        fencing.fenced(index)
                    except BookKeeperError as e:
                        self._note_failure(e)
                        self._answers[bookie_id] = self._seen[bookie_id] = e.message
                        self._without_answer |= e.retriable
                        if self._is_given_up(bookie_id) or self._cannot_tell(e):
                            fencing.given_up(index)
                        else:
                            fencing.failed(index)
            self._gave_up |= fencing.gave_up
        finally:
            for task in tasks:
                task.cancel()
        self._acknowledged = confirmed
        return confirmed if self._everywhere is None else fragment.first_entry - 1

    def _is_given_up(self, bookie_id: str) -> bool:
        return self._giving_up is not None and bookie_id not in self._giving_up.registered

    def _cannot_tell(self, error: BookKeeperError) -> bool:
        """Whether to give up a bookie's answer: the bookie says that it lost or damaged the ledger's data."""
        return self._giving_up is not None and isinstance(error, CorruptDataError)

    async def _fence_one(self, bookie_id: str) -> int:
        """Fence one bookie. Returns the last add confirmed that it knows, -1 if it can't say."""
        reply = await self._pool.channel(bookie_id).call_as_owner(
            Op.READ_LAC,
            m.pack([int(Flags.RECOVERY), self._ledger_id]),
            ledger_id=self._ledger_id,
            timeout_s=self._settings.read_timeout_s,
        )
        answer = parse_lac_reply(self._codec, reply, self._ledger_id, bookie_id)
        # A bookie that lost or damaged entries has fenced the ledger all the same. Its entries are read one by one, and
        # other copies are found.
        if not answer.proven.fenced:
            raise CorruptDataError("the bookie did not fence the ledger", ledger_id=self._ledger_id, bookie=bookie_id)
        if answer.explicit[1] >= 0:
            self._explicit = max(self._explicit, answer.explicit)
        self._seen[bookie_id] = answer.last_entry if answer.flaw is None else answer.flaw.message
        return answer.proven.entry_id

    # --- reading forward --------------------------------------------------------------------------------------------

    async def _copy(self, write_back: WriteBack) -> None:
        """Find all entries behind last add confirmed, and write each to its ack quorum again."""
        async with aclosing(self._ranges.run(write_back.last_entry + 1, ENTRY_ID_MAX)) as ranges:
            async for found in ranges:
                for entry in found.entries:
                    await write_back.add(entry)
                if found.ends:
                    break
        await write_back.finish()

    async def _range(self, first: int, last: int) -> tuple[_RangeEntries, int]:
        found = await self._fetch(first, last)
        # Behind the ledger's end there is nothing to ask for.
        return found, last if found.ends else first + len(found.entries) - 1

    async def _fetch(self, first: int, last: int, *, flags: int = int(Flags.RECOVERY)) -> _RangeEntries:
        """Entries first..last as far as the ledger has them. Raises `LedgerRecoveryError` if that can't be decided.

        Asks one bookie of the write set first, for the bytes, and the others when it denies an entry or is late.
        """
        metadata = self._asked()
        bookies = metadata.fragment_of(first).bookies
        size, quorum = metadata.ensemble_size, metadata.write_quorum
        if self._everywhere is not None:
            flags = 0  # every bookie is fenced by now, and one that has lost the ledger's key shows what it has
        given_up = None
        if self._giving_up is not None:
            given_up = {index for index, name in enumerate(bookies) if self._is_given_up(name)}
        forward = Forward(first, last, size, quorum, metadata.ack_quorum, given_up)
        records: dict[int, RecoveredEntry] = {}
        self._rotation += 1
        rotation = self._rotation
        wanted = set(stripe_bookies(rotation, size, quorum))
        asked: dict[asyncio.Task[_BookieAnswer], int] = {}
        held = 0
        try:
            while (entry_status := forward.decide()) is EntryStatus.OPEN:
                if held > self._settings.recovery_range_bytes_max and forward.next > first:
                    break  # enough for one range
                busy = set(asked.values())
                silent = [i for i in forward.members(forward.next) if forward.word(i, forward.next) is EntryAnswer.NONE]
                if len(silent) < quorum:  # one has answered or failed, which decided nothing
                    wanted = set(silent)
                elif not wanted and not busy.intersection(silent):
                    wanted = {silent[rotation % quorum]}
                for index in sorted(wanted - busy):
                    task = self._runtime.spawn(
                        self._ask(bookies[index], forward.next, last, flags),
                        name=f"recovery read of {bookies[index]}",
                        on_death=raised_where_awaited,
                    )
                    asked[task] = index
                wanted = set()
                patience_s = self._settings.recovery_patience_s
                done, _ = await asyncio.wait(asked, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    wanted = set(silent)
                for task in done:
                    index = asked.pop(task)
                    found = self._take(task, forward, index, bookies[index])
                    records.update(found)
                    held += sum(len(entry.record) for entry in found.values())
        finally:
            for task in asked:
                task.cancel()
        if entry_status is EntryStatus.UNDECIDABLE:
            for index in forward.members(forward.next):
                if not forward.is_failed(index):
                    self._answers[bookies[index]] = forward.word(index, forward.next).value
            raise self._undecided("too few bookies can tell whether the entry exists", forward.next)
        if entry_status is EntryStatus.MISSING and forward.next <= self._acknowledged and self._everywhere is not None:
            raise self._undecided("the entry was acknowledged, and no bookie has it", forward.next)
        self._gave_up |= entry_status is EntryStatus.GIVEN_UP
        return _RangeEntries(
            [records[i] for i in range(first, forward.next)],
            entry_status in (EntryStatus.MISSING, EntryStatus.GIVEN_UP),
        )

    def _take(
        self, asked: asyncio.Task[_BookieAnswer], forward: Forward, index: int, bookie_id: str
    ) -> dict[int, RecoveredEntry]:
        """Count a bookie's answer or failure. Returns the records that it returned."""
        try:
            reply, found = asked.result()
        except BookKeeperError as e:
            self._note_failure(e)
            self._answers[bookie_id] = e.message
            if self._cannot_tell(e):
                rest = (forward.next, forward.last)
                forward.answer(index, Reply(*rest, present=(), unknown=(rest,)))
            else:
                forward.fail(index)
                self._without_answer |= e.retriable
            return {}
        self._answers[bookie_id] = f"entries {reply.first} to {reply.examined_to} answered"
        forward.answer(index, reply)
        return found

    async def _ask(self, bookie_id: str, first: int, last: int, flags: int) -> _BookieAnswer:
        """Ask one bookie for first..last: its reply, and the verified records that it returned."""
        head = m.pack([flags, self._ledger_id, first, last, self._settings.read_bytes])
        reply = await self._pool.channel(bookie_id).call_as_owner(
            Op.READ, head, ledger_id=self._ledger_id, timeout_s=self._settings.read_timeout_s
        )
        status = m.reply_status(reply.head)
        if status != Status.OK:
            raise m.error_of(status, m.decode_error(reply.head).message, ledger_id=self._ledger_id, bookie=bookie_id)
        answer = m.decode_read_reply(reply.head)
        if answer.examined_to < first:
            raise CorruptDataError("the bookie has examined nothing", ledger_id=self._ledger_id, bookie=bookie_id)
        found: dict[int, RecoveredEntry] = {}
        unknown = list(answer.unknown)
        if self._everywhere is not None and unknown[:1] == [(first, answer.examined_to)]:
            del unknown[0]  # as any bookie in limbo says; what it says beside that was stored there, and is damaged
        view = reply.body
        try:
            for header in walk(view):
                try:
                    self._codec.check(view, header.offset, header.end)
                except DigestMismatchError:
                    # Damaged bytes don't show whose record it was. So this bookie denies no entry of the range.
                    unknown.append((first, last))
                    continue
                found[header.entry_id] = RecoveredEntry(
                    header.entry_id, view[header.offset : header.end], header.length
                )
        except CorruptDataError:
            unknown.append((first, last))
        if found:
            self._ranges.record_bytes = len(view) / len(found)
        return _BookieAnswer(Reply(first, min(answer.examined_to, last), found, unknown), found)

    async def _length(self, last: int) -> int:
        """The ledger's length up to `last`, an entry acknowledged before the recovery. The entry records it."""
        if last < 0:
            return 0
        if self._explicit[0] == last:
            return self._explicit[1]
        # If that entry can't be read any more, the length is that up to an earlier one.
        candidates = [last] if self._giving_up is None else length_candidates(self._metadata, last)
        for entry_id in candidates:
            found = await self._fetch(entry_id, entry_id, flags=0)
            if found.entries:
                return found.entries[0].length
        if self._giving_up is None:
            raise self._undecided("the last acknowledged entry is on none of its bookies", last)
        return 0
