"""The writer of one ledger: its metadata, its syncs and its end, around the appends of `appends.py`.

Invariants: the ledger is closed at last add confirmed, never beyond; the first entry of a new ensemble is stored before
anything is acknowledged on it; a writer never closes a ledger that somebody is recovering.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, assert_never

from bkpy.client.close import Closed, close_ledger
from bkpy.client.lifetime import OfThisProcess, warn_unclosed
from bkpy.client.write.appends import Appends
from bkpy.client.write.replication import log
from bkpy.errors import (
    BookieUnavailableError,
    BookKeeperError,
    ClientClosedError,
    ConfigError,
    LedgerClosedError,
    LedgerFencedError,
    MetadataConflictError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    QuorumTimeoutError,
)
from bkpy.metadata.outcome import Changed, Done, Missing, NotDone, Overtaken, Unknown, doubted, told
from bkpy.protocol import messages as m
from bkpy.protocol.closing import Closer
from bkpy.protocol.ensemble_change import Conflict, on_conflict
from bkpy.protocol.messages import Op, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from types import TracebackType

    from bkpy.client.write.lac_publisher import Publisher
    from bkpy.metadata.ledgers import LedgerCatalog
    from bkpy.protocol.ledger_metadata import Fragment, LedgerMetadata


class LedgerWriter(Appends, OfThisProcess):
    """Appends to one ledger; made by `Client.create_ledger`. Not to be shared between event loops."""

    __slots__ = (
        "_abandoned",
        "_catalog",
        "_closing",
        "_end_in_doubt",
        "_epochs",
        "_forced_length",
        "_on_closed",
        "_publisher",
        "_version",
    )

    def __init__(
        self,
        metadata: LedgerMetadata,
        version: int,
        *,
        catalog: LedgerCatalog,
        publisher: Publisher,
        on_closed: Callable[[LedgerWriter], None],
        **parts: Any,
    ) -> None:
        super().__init__(metadata, **parts)
        self._version = version
        self._catalog = catalog
        self._publisher = publisher
        self._on_closed = on_closed
        self._abandoned = False
        self._forced_length = 0  # up to `_lac`, where syncs are deferred
        self._epochs = self._connections() if self._deferred else {}
        self._closing: asyncio.Future[None] | None = None
        self._end_in_doubt = False  # whether an earlier `close` may have closed the ledger

    @property
    def under_replicated(self) -> Mapping[str, int]:
        """The bookies that may lack acknowledged entries which they are to hold, each with the first of those.

        An entry is acknowledged once `ack_quorum` bookies have it. One that could not take it (its disk is full, it
        died) and that nobody could replace in time lacks it, until somebody copies it there. Empty if every
        acknowledged entry is on its whole write set, or still on its way to the rest of it, as far as this writer
        knows: a bookie that has not answered yet counts as one that will. Nothing is lost with it while the others
        are there; the property keeps its value after `close`, which logs a warning that says the same.
        """
        return {} if self._shortfall is None else self._shortfall.up_to(self._confirmed)

    # --- syncing and publishing -------------------------------------------------------------------------------------

    async def force(self) -> int:
        """Make durable what was acknowledged so far, on the whole ensemble; returns last add confirmed, which moves.

        For ledgers created with `deferred_sync=True`, where an append is acknowledged before it is on disk. Raises
        `BookieUnavailableError` if a bookie can't say so. If a bookie's connection was lost since the last call and
        something was sent since, that may be lost: then the writer has failed, and its ledger ends where the last call
        left it.
        """
        if not self._deferred:
            raise ConfigError("force is for ledgers created with deferred_sync=True", ledger_id=self._ledger_id)
        if self._error is not None:
            raise self._failure()
        target, length = self._confirmed, self._length
        await asyncio.gather(*(self._force(bookie_id) for bookie_id in self.ensemble))
        if self._error is not None:
            raise self._failure()
        if self._acks.last_sent == self._lac:
            self._epochs = self._connections()  # nothing was sent that could have been lost with another one
        for bookie_id, epoch in self._connections().items():
            if epoch != self._epochs[bookie_id]:
                self.failed(
                    BookieUnavailableError(
                        f"the connection was lost before everything was synced: entries behind {self._lac} may be lost",
                        bookie=bookie_id,
                        retriable=False,
                        outcome_unknown=True,
                    )
                )
                raise self._failure(self._lac + 1)
        if target > self._lac:
            self._lac, self._forced_length = target, length
            self._dispatcher.watch(self)
        return self._lac

    async def _force(self, bookie_id: str) -> None:
        reply = await self._pool.peer(bookie_id).call_as_owner(
            Op.FORCE, m.pack([self._ledger_id]), ledger_id=self._ledger_id, timeout_s=self._settings.add_timeout_s
        )
        status = m.reply_status(reply.head)
        if status in (Status.FENCED, Status.UNAUTHORIZED):
            self.failed(m.error_of(status, ledger_id=self._ledger_id, bookie=bookie_id))
        elif status != Status.OK:
            raise m.error_of(status, ledger_id=self._ledger_id, bookie=bookie_id)

    def _connections(self) -> dict[str, int]:
        """Which connection to each bookie this is: another one means that something may have been lost."""
        return {bookie_id: self._pool.peer(bookie_id).epoch for bookie_id in self.ensemble}

    def publish_lac(self) -> None:
        if self._error is None and not self._shut and self._lac > self._lac_sent:
            self._lac_sent = self._lac
            self._publisher.publish(self, self.ensemble)

    async def publish_to(self, bookie_id: str) -> None:
        """Tell one bookie what is confirmed; one that can't be told will hear of it from the next entry."""
        if self._error is not None or self._shut:
            return
        length = self._forced_length if self._deferred else self._length
        record = self._codec.explicit_lac(self._lac, length)
        try:
            reply = await self._pool.peer(bookie_id).call_as_owner(
                Op.WRITE_LAC,
                m.pack([self._ledger_id]),
                (record,),
                ledger_id=self._ledger_id,
                timeout_s=self._settings.add_timeout_s,
                again=False,
            )
            status = m.reply_status(reply.head)
        except BookKeeperError as e:
            # It is a hint: readers ask several bookies, and the next entry carries it too.
            log.debug("ledger %d: last add confirmed not published to %s: %s", self._ledger_id, bookie_id, e)
            return
        if status in (Status.FENCED, Status.UNAUTHORIZED):
            self.failed(m.error_of(status, ledger_id=self._ledger_id, bookie=bookie_id))

    # --- the ensemble -----------------------------------------------------------------------------------------------

    @property
    def _may_change(self) -> bool:
        # What a bookie that has gone had not synced yet can't be sent to its successor: it is not kept here.
        return super()._may_change and not self._deferred

    async def _store(self, ensemble: Sequence[str], replaced: Collection[str]) -> bool:
        doubt = False  # whether an attempt may have been stored: then nothing counts until that is known
        while self._error is None:
            if not self._catalog.reachable and not doubt:
                return False  # without the store, the bookies that are left have to do
            wanted = self._metadata.new_fragment(self._confirmed + 1, tuple(ensemble))
            outcome = await self._catalog.write(wanted, self._version)
            match outcome:
                case Done():
                    self._metadata, self._version = wanted, outcome.version
                    return True
                case Changed() | Overtaken():
                    return await self._other_fragment(replaced)
                case Missing():
                    raise NoSuchLedgerError("the ledger was deleted while it was open", ledger_id=self._ledger_id)
                case NotDone():
                    if not doubt:
                        return False
                case Unknown():
                    doubt = True
                case _:
                    assert_never(outcome)
            # Only a write that is refused, or a second one that is not, will tell.
            await asyncio.sleep(self._settings.metadata_write_pause_s)
        return False

    async def _other_fragment(self, replaced: Collection[str]) -> bool:
        """Somebody has changed the metadata: whether their ensemble is the one to go on with."""
        fresh, version = await self._read_certainly()
        conflict = on_conflict(fresh, replaced)
        if conflict is Conflict.FENCED:
            raise LedgerFencedError("somebody else is recovering the ledger", ledger_id=self._ledger_id)
        if conflict is Conflict.CLOSED:
            raise LedgerClosedError(
                f"somebody else closed the ledger at entry {fresh.last_entry}",
                ledger_id=self._ledger_id,
                outcome_unknown=True,
            )
        present, found = self._metadata.fragments[-1], fresh.fragment_of(max(self._confirmed, 0))
        if fresh.fragments[-1].first_entry > self._confirmed + 1 or (
            # What was acknowledged must be where it was. Nothing was, of a fragment that begins behind it.
            present.first_entry <= self._confirmed and (found.first_entry, found.bookies) != _place(present)
        ):
            raise MetadataConflictError(
                "somebody else has changed the bookies of entries that this writer has written",
                ledger_id=self._ledger_id,
                outcome_unknown=True,
            )
        self._metadata, self._version = fresh, version
        return True

    async def _read_certainly(self) -> tuple[LedgerMetadata, int]:
        """The metadata, which there must be; waits for a store that is away (`stalled` ends that)."""
        while True:
            try:
                return await self._catalog.read(self._ledger_id, fresh=True)
            except MetadataUnavailableError:
                if self._error is not None:
                    raise
                await asyncio.sleep(self._settings.metadata_write_pause_s)

    @property
    def usable(self) -> bool:
        """Whether appends can go on: it was neither closed nor abandoned, and has not failed."""
        return self._error is None and not self._shut

    # --- closing ----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Wait for what is pending, then close the ledger at last add confirmed. Closing twice is once.

        If appends have failed for lack of bookies, the ledger is closed behind the last acknowledged one. With deferred
        sync, everything is forced before, which needs the whole ensemble. Raises `LedgerFencedError` if somebody else
        is recovering the ledger, `LedgerClosedError` if it was closed elsewhere at a different entry,
        `ClientClosedError` if the writer was abandoned before.
        """
        while (others := self._closing) is not None:
            await asyncio.wait([others])
            if not others.cancelled():  # else whoever closed has gone, and this call takes its place
                return others.result()
        if isinstance(self._error, ClientClosedError):
            raise self._failure()  # it was abandoned, with the ledger left open
        self._shut = self._gate = True
        self._closing = closing = self._loop.create_future()
        try:
            await self._drain()
            await self._mended()
            await self._close_at(*await self._end())
        except BaseException as e:
            if isinstance(e, Exception):
                closing.set_exception(e)
                closing.exception()  # retrieved: nobody else may be waiting
            else:
                closing.cancel()
            if isinstance(e, BookKeeperError) and not e.retriable:
                self.abandon()
            else:
                self._closing = None  # may be tried again; appends stay refused, for the write may have happened
            raise
        closing.set_result(None)
        self.abandon()

    async def _drain(self) -> None:
        """Wait until every append has ended, one way or the other."""
        self._drop_early(LedgerClosedError("the writer was closed before the entries below this one were appended"))
        self._wake_crowd()
        while self._waiters or self._admitted:  # the latter are assigned their ids in this loop's next turn
            if self._waiters:
                await asyncio.wait([admitted for _, _, admitted in self._waiters])
            await asyncio.sleep(0)
        target = self._next_id - 1
        if self._error is None and target > self._confirmed:
            flushed: asyncio.Future[None] = self._loop.create_future()
            self._flushing.append((target, flushed))
            try:
                await flushed
            except (BookieUnavailableError, QuorumTimeoutError):
                return  # those appends have failed; the ledger ends before them
        if isinstance(self._error, LedgerFencedError):
            raise self._failure()

    async def _end(self) -> tuple[int, int]:
        """The last entry and the length to close the ledger with."""
        if self._deferred and self._error is None and self._lac < self._confirmed:
            await self.force()
        if lacking := self.under_replicated:
            log.warning(
                "ledger %d: closed with acknowledged entries on fewer bookies than its write quorum: %s",
                self._ledger_id,
                ", ".join(f"bookie {bookie_id} may lack those from {first} on" for bookie_id, first in lacking.items()),
            )
        return self._lac, self._forced_length if self._deferred else self._length

    async def _close_at(self, last_entry: int, length: int) -> None:
        closed = await close_ledger(
            self._catalog,
            self._metadata,
            self._version,
            last_entry,
            length,
            Closer.WRITER,
            conflicts_max=self._settings.metadata_conflicts_max,
        )
        match closed:
            case Closed():
                self._metadata, self._version = closed.metadata, closed.version
            case NotDone() | Unknown():
                # A later call that can't write anything does not make certain what an earlier one has written.
                closed = doubted(closed, self._end_in_doubt)
                self._end_in_doubt = isinstance(closed, Unknown)
                raise told(closed, ledger_id=self._ledger_id)
            case _:
                assert_never(closed)

    def abandon(self) -> None:
        """Stop without closing the ledger: it stays open, for somebody else to recover."""
        if self._abandoned:
            return
        self._abandoned = True
        self.failed(ClientClosedError("the writer is closed", outcome_unknown=True))
        if self._mending is not None:
            self._mending.cancel()
        self._dispatcher.forget(self)
        self._pool.forget_key(self._ledger_id)
        self._on_closed(self)

    def __del__(self) -> None:
        if not getattr(self, "_abandoned", True) and self.usable:  # the former: it was made
            warn_unclosed(f"{self!r} was not closed", self)

    async def __aenter__(self) -> LedgerWriter:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.close()
        else:
            self.abandon()


def _place(fragment: Fragment) -> tuple[int, tuple[str, ...]]:
    return fragment.first_entry, fragment.bookies
