"""The ledgers that a dashboard follows: the busiest ones, and those under recovery.

A million ledgers can't be watched. Bookies report which ones they store most of, and which ones were fenced; only the
metadata of these are read, look by look.

Invariants: a look reads the metadata of at most `READS_MAX` ledgers; what is remembered is bounded.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from bkpy.batching import batched
from bkpy.dashboard.models import BusyLedger, BusyLog
from bkpy.errors import BookKeeperError, NoSuchLedgerError
from bkpy.metadata.logs.maintenance import LOG_NAME
from bkpy.protocol.ledger.ledger_metadata import LedgerState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from bkpy.admin.bookie_pages import PageReport
    from bkpy.metadata.ledgers.catalog import LedgerCatalog
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata

BUSY_MAX: Final = 64  # ledgers of which the metadata are read
RECOVERIES_MAX: Final = 64  # ledgers that are followed until they are closed
READS_MAX: Final = BUSY_MAX + RECOVERIES_MAX
_AT_ONCE: Final = 32
_LOOKS_MAX: Final = 150  # at a fenced ledger that nobody closes
_ENDED_MAX: Final = 1024  # recoveries that have ended: a bookie that was away may report its fence much later

Event = tuple[str, str]


class _Stored(NamedTuple):
    """What bookies store of a ledger in a second: each counts its copies."""

    entries: float
    bytes: float


class LedgerFollower:
    """`look` once an interval; the rest returns what the last look found."""

    def __init__(self, catalog: LedgerCatalog) -> None:
        self._catalog = catalog
        self._known: dict[int, LedgerMetadata] = {}  # of the last look
        self._fences: dict[str, frozenset[tuple[int, float]]] = {}  # by bookie, the fences seen so far
        self._recoveries: dict[int, int] = {}  # how many looks each was followed
        self._ended: dict[int, None] = {}  # recoveries that need no event any more, the oldest first
        self.ledgers: list[BusyLedger] = []
        self.logs: list[BusyLog] = []

    def log(self, name: str) -> BusyLog | None:
        """What is appended to the log; None if it isn't among the busiest."""
        return next((log for log in self.logs if log.log == name), None)

    async def look(self, pages: Mapping[str, PageReport | None]) -> list[Event]:
        """Follow what the bookies report; what has changed since the last look."""
        stored = _stored(pages)
        busiest = sorted(stored, key=lambda ledger_id: (-stored[ledger_id].bytes, ledger_id))[:BUSY_MAX]
        for ledger_id in self._new_fences(pages):
            if ledger_id not in self._ended and len(self._recoveries) < RECOVERIES_MAX:
                self._recoveries.setdefault(ledger_id, 0)
        found = await self._read({*busiest, *self._recoveries})
        events = [event for ledger_id in sorted(found) for event in self._changes(ledger_id, found[ledger_id])]
        for ledger_id, looks in list(self._recoveries.items()):
            metadata = found.get(ledger_id)
            self._recoveries[ledger_id] = looks + 1
            ended = metadata is None or metadata.state is LedgerState.CLOSED
            if ended or looks >= _LOOKS_MAX:
                del self._recoveries[ledger_id]
            if ended:
                self._ended[ledger_id] = None
        while len(self._ended) > _ENDED_MAX:
            del self._ended[next(iter(self._ended))]
        self._known = found
        self.ledgers = [
            _busy(ledger_id, stored[ledger_id], found[ledger_id]) for ledger_id in busiest if ledger_id in found
        ]
        self.logs = _by_log(self.ledgers)
        return events

    def _new_fences(self, pages: Mapping[str, PageReport | None]) -> list[int]:
        """Ledgers that were fenced since the last look. Of a bookie that is seen for the first time all are old."""
        new: list[int] = []
        for bookie_id, page in sorted(pages.items()):
            if page is None or page.activity is None:
                continue
            before, now = self._fences.get(bookie_id), frozenset(page.activity.fences)
            if before is not None:
                new += sorted(ledger_id for ledger_id, _ in now - before)
            self._fences[bookie_id] = now
        for gone in self._fences.keys() - pages.keys():
            del self._fences[gone]
        return new

    async def _read(self, ledger_ids: Iterable[int]) -> dict[int, LedgerMetadata]:
        """The metadata of the ledgers that exist and are readable."""
        found: dict[int, LedgerMetadata] = {}
        for some in batched(sorted(ledger_ids), _AT_ONCE):
            for ledger_id, metadata in zip(some, await asyncio.gather(*map(self._one, some)), strict=True):
                if metadata is not None:
                    found[ledger_id] = metadata
        return found

    async def _one(self, ledger_id: int) -> LedgerMetadata | None:
        try:
            return (await self._catalog.read(ledger_id))[0]
        except NoSuchLedgerError:
            return None
        except BookKeeperError as error:
            if error.retriable:
                raise
            return None

    def _changes(self, ledger_id: int, now: LedgerMetadata) -> Iterator[Event]:
        before = self._known.get(ledger_id)
        name = _named(ledger_id, now)
        if before is not None and before.state is not LedgerState.CLOSED:
            yield from (("ledger", f"{name}: {text}") for text in _ensemble_changes(before, now))
        if ledger_id not in self._recoveries or (before is not None and before.state is now.state):
            return
        if now.state is LedgerState.IN_RECOVERY:
            yield "ledger", f"{name} is being recovered: its writer is fenced"
        elif now.state is LedgerState.CLOSED and (before is None or before.state is not LedgerState.CLOSED):
            yield "ledger", f"{name} was recovered, and closed at entry {now.last_entry}"


def _stored(pages: Mapping[str, PageReport | None]) -> dict[int, _Stored]:
    stored: dict[int, _Stored] = {}
    for page in pages.values():
        for ledger_id, entries, size in () if page is None or page.activity is None else page.activity.busiest:
            if size > 0:
                before = stored.get(ledger_id, _Stored(0.0, 0.0))
                stored[ledger_id] = _Stored(before.entries + entries, before.bytes + size)
    return stored


def _busy(ledger_id: int, stored: _Stored, metadata: LedgerMetadata) -> BusyLedger:
    copies = metadata.write_quorum
    return BusyLedger(
        ledger_id=ledger_id,
        log=_log_of(metadata),
        entries=round(stored.entries / copies, 3),
        bytes=round(stored.bytes / copies),
        bookies=list(metadata.fragments[-1].bookies),
    )


def _by_log(ledgers: Iterable[BusyLedger]) -> list[BusyLog]:
    logs: dict[str, BusyLog] = {}
    for ledger in ledgers:
        if ledger.log:
            log = logs.setdefault(ledger.log, BusyLog(log=ledger.log, entries=0.0, bytes=0))
            log.entries = round(log.entries + ledger.entries, 3)
            log.bytes += ledger.bytes
    return sorted(logs.values(), key=lambda log: (-log.bytes, log.log))


def _log_of(metadata: LedgerMetadata) -> str:
    return metadata.custom_metadata.get(LOG_NAME, b"").decode(errors="replace")


def _named(ledger_id: int, metadata: LedgerMetadata) -> str:
    log = _log_of(metadata)
    return f"ledger {ledger_id} of log {log}" if log else f"ledger {ledger_id}"


def _ensemble_changes(before: LedgerMetadata, now: LedgerMetadata) -> Iterator[str]:
    """What has happened to the ensemble that is written to."""
    last = before.fragments[-1]
    for fragment in now.fragments:
        if fragment.first_entry < last.first_entry or fragment == last:
            continue
        come = [bookie for bookie in fragment.bookies if bookie not in last.bookies]
        gone = [bookie for bookie in last.bookies if bookie not in fragment.bookies]
        if come or gone:
            places = f"{', '.join(come) or 'nobody'} in place of {', '.join(gone) or 'nobody'}"
            yield f"{places}, from entry {fragment.first_entry}"
        last = fragment
