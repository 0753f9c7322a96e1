"""Last add confirmed, and what else v3 asks for: explicit ones, long polls, syncs, the disk's space.

Invariants: an explicit last add confirmed is durable before its client hears so; a long poll is registered from before
it looks at its ledger until it is answered, so it misses no news; nothing of a ledger in limbo is denied.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from bkpy.bookie.bookkeeper import replies
from bkpy.bookie.bookkeeper.ledger_keys import open_ledger
from bkpy.bookie.bookkeeper.reads import LAST
from bkpy.bookie.bookkeeper.tasks import RequestGroup
from bkpy.protocol.bookkeeper import messages as m
from bkpy.protocol.bookkeeper.entries import lac_to_record, record_to_lac, to_entry
from bkpy.protocol.bookkeeper.statuses import StatusCode
from bkpy.protocol.wire.messages import Op, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from bkpy.bookie.bookkeeper.adds import EntryAdds
    from bkpy.bookie.bookkeeper.reads import EntryReads
    from bkpy.bookie.bookkeeper.tasks import RequestTasks
    from bkpy.bookie.connection.waiters import Waiter
    from bkpy.bookie.service import BookieService
    from bkpy.protocol.bookkeeper.messages import RequestHeader
    from bkpy.storage.engine import LastEntry


class LacRequests:
    """Serves READ_LAC, WRITE_LAC, FORCE_LEDGER and long polls."""

    def __init__(self, service: BookieService, tasks: RequestTasks, reads: EntryReads, adds: EntryAdds) -> None:
        self._adds = adds
        self._service = service
        self._storage = service.storage
        self._settings = service.settings
        self._tasks = tasks
        self._reads = reads

    def read_lac(self, header: RequestHeader, request: m.ReadLacRequest) -> None:
        unknown = m.ReadLacResponse(StatusCode.EUNKNOWNLEDGERSTATE, request.ledger_id)
        self._start(Op.READ_LAC, header, unknown, partial(self._read_lac, header, request.ledger_id))

    def write_lac(self, header: RequestHeader, request: m.WriteLacRequest) -> None:
        unknown = m.WriteLacResponse(StatusCode.EUNKNOWNLEDGERSTATE, request.ledger_id)
        self._start(Op.WRITE_LAC, header, unknown, partial(self._write_lac, header, request))

    def force(self, header: RequestHeader, request: m.ForceLedgerRequest) -> None:
        unknown = m.ForceLedgerResponse(StatusCode.EUNKNOWNLEDGERSTATE, request.ledger_id)
        self._start(Op.FORCE, header, unknown, partial(self._force, header, request.ledger_id))

    def poll(self, header: RequestHeader, request: m.ReadEntryRequest) -> None:
        """Serve a read that waits for a higher last add confirmed."""
        ledger_id, entry_id = request.ledger_id, request.entry_id
        if request.piggyback and entry_id != LAST:
            self._send(header, m.ReadEntryResponse(StatusCode.EBADREQ, ledger_id, entry_id))
        elif self._tasks.long_polls >= self._settings.long_polls_max or self._service.too_many_requests(long_poll=True):
            self._send(header, m.ReadEntryResponse(StatusCode.ETOOMANYREQUESTS, ledger_id, entry_id))
        else:
            unknown = m.ReadEntryResponse(StatusCode.EUNKNOWNLEDGERSTATE, ledger_id, entry_id)
            self._start(Op.WAIT_LAC, header, unknown, partial(self._poll, header, request))

    def _start(
        self,
        op: Op,
        header: RequestHeader,
        unknown: m.Response,
        serve: Callable[[], Coroutine[None, None, None]],
    ) -> None:
        self._tasks.start(RequestGroup(op, serve, partial(self._send, header, unknown)))

    def _send(self, header: RequestHeader, response: m.Response) -> None:
        self._tasks.connection.send(m.encode_response(header, response))

    async def _read_lac(self, header: RequestHeader, ledger_id: int) -> None:
        async with self._tasks.answers.place(self._settings.block_bytes) as place:
            last = await self._storage.last_entry(ledger_id)
            place.holds([last.entry])
            code = _code_of(last)
            if code != StatusCode.EOK:
                self._send(header, m.ReadLacResponse(code, ledger_id))
                return
            explicit = record_to_lac(ledger_id, last.explicit_lac) if last.explicit_lac else None
            entry = to_entry(ledger_id, last.entry) if last.entry else None
            code = StatusCode.ENOENTRY if explicit is None and entry is None else StatusCode.EOK
            self._send(header, m.ReadLacResponse(code, ledger_id, explicit, entry))

    async def _write_lac(self, header: RequestHeader, request: m.WriteLacRequest) -> None:
        ledger_id = request.ledger_id
        status, state = await open_ledger(self._service, ledger_id, request.key)
        if status == Status.OK and state is None:
            if self._storage.was_deleted(ledger_id):
                status = Status.FENCED
            elif self._service.read_only or self._storage.ledgers.doubts(ledger_id):
                status = Status.READ_ONLY
            else:
                self._storage.create(ledger_id, request.key)
        if status == Status.OK:
            await self._storage.set_explicit_lac(ledger_id, lac_to_record(request.body))
            self._service.waiters.wake((ledger_id,))
        self._send(header, m.WriteLacResponse(replies.code_of(status), ledger_id))

    async def _force(self, header: RequestHeader, ledger_id: int) -> None:
        """Behind the adds that came before it, as in Java's bookies: a client may take all of them for synced."""
        await self._adds.decided()
        await self._storage.force(ledger_id)
        self._send(header, m.ForceLedgerResponse(StatusCode.EOK, ledger_id))

    # --- long polls -------------------------------------------------------------------------------------------------

    async def _poll(self, header: RequestHeader, request: m.ReadEntryRequest) -> None:
        waiters = self._service.waiters
        waiter = waiters.add(request.ledger_id)  # before the first look, so that no news is missed
        self._tasks.waits[waiter] = None
        wait_s = min((request.timeout_ms or 0) / 1000, self._settings.long_poll_max_s)
        timer = asyncio.get_running_loop().call_later(wait_s, waiter.end)
        if self._service.stopping or self._tasks.connection.lost:
            waiter.end()
        try:
            while not await self._answered(header, request, waiter):
                await waiter.changed.wait()
        finally:
            timer.cancel()
            del self._tasks.waits[waiter]
            waiters.remove(request.ledger_id, waiter)

    async def _answered(self, header: RequestHeader, request: m.ReadEntryRequest, waiter: Waiter) -> bool:
        """Answer a long poll if there is news or its time is up; whether it was answered."""
        ledger_id, entry_id, previous = request.ledger_id, request.entry_id, request.previous_lac
        async with self._tasks.answers.place(self._settings.block_bytes) as place:
            waiter.changed.clear()
            last = await self._storage.last_entry(ledger_id)
            place.holds([last.entry])
        code, lac = _code_of(last), max(last.lac, LAST)
        news = previous is None or lac > previous
        if code == StatusCode.EOK and not news and not waiter.over:
            return False
        if code != StatusCode.EOK:
            self._send(header, m.ReadEntryResponse(code, ledger_id, entry_id))
        elif not request.piggyback:
            await self._reads.read_now(ledger_id, entry_id, header)
        elif news and previous is not None:
            await self._reads.piggyback(ledger_id, previous + 1, header, lac)
        else:
            self._send(header, m.ReadEntryResponse(StatusCode.EOK, ledger_id, entry_id, None, lac))
        return True


def _code_of(last: LastEntry) -> StatusCode:
    """EOK: the ledger is known, and what is here is all that this bookie acknowledged."""
    if last.limbo:
        return StatusCode.EUNKNOWNLEDGERSTATE
    return StatusCode.EOK if last.known else StatusCode.ENOLEDGER
