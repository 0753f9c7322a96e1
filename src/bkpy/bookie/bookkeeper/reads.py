"""The reads of one connection, of v2 and v3: single entries, the last one, batches; fencing ones first fence.

Clients read entry by entry. All reads that one call of the socket brought are taken together by ledger, and one read of
the storage answers reads of neighbouring entries. An entry is answered as the storage holds it: no digest is looked at,
and its bytes are not copied, but for a batch of small ones.

Invariants: a fence is durable before any answer to its read, also to one whose entry isn't here; an entry is denied
only where the storage promises that it never acknowledged it; the answers in memory are bounded, for each connection
and for the bookie.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from bkpy.bookie.bookkeeper import replies
from bkpy.bookie.bookkeeper.ledger_keys import fence
from bkpy.bookie.bookkeeper.replies import FoundEntry
from bkpy.bookie.bookkeeper.tasks import RequestGroup
from bkpy.protocol.bookkeeper import packets as p
from bkpy.protocol.bookkeeper.entries import ENTRY_ID_MAX, sized_entries
from bkpy.protocol.bookkeeper.statuses import PACKET_CODES, StatusCode
from bkpy.protocol.wire.messages import Op, Status
from bkpy.protocol.wire.records import HEADER_BYTES, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bkpy.bookie.bookkeeper.tasks import RequestTasks
    from bkpy.bookie.service import BookieService
    from bkpy.protocol.bookkeeper.messages import RequestHeader
    from bkpy.storage.engine import ReadResult

LAST: Final = -1  # the id by which clients ask for the last entry
_COPIED_BYTES: Final = 8 << 10  # smaller buffers are copied into one: the kernel takes longer for many
_GAP_MAX: Final = 4  # ids between two reads that one read of the storage still spans


class EntryRead(NamedTuple):
    """A read of one entry. `header`: of v3; None in v2."""

    entry_id: int
    header: RequestHeader | None


class EntryReads:
    """Takes reads as they come, and starts them at the end of a turn. `taken`: how many wait for that."""

    def __init__(self, service: BookieService, tasks: RequestTasks) -> None:
        self._service = service
        self._storage = service.storage
        self._settings = service.settings
        self._tasks = tasks
        self.taken = 0
        self._turn: dict[tuple[int, bytes | None], list[EntryRead]] = {}  # by ledger, and key where they fence

    def read(self, ledger_id: int, entry_id: int, key: bytes | None, header: RequestHeader | None) -> None:
        """Take a read of one entry. With a key it fences the ledger."""
        self._turn.setdefault((ledger_id, key), []).append(EntryRead(entry_id, header))
        self.taken += 1

    def batch(self, packet: p.BatchReadPacket) -> None:
        """Serve a BATCH_READ."""
        give_up = partial(self._refuse_batch, packet, StatusCode.EUNKNOWNLEDGERSTATE)
        self._tasks.start(RequestGroup(Op.READ, partial(self._batch, packet), give_up))

    def end_turn(self) -> None:
        """Serve what has come since the last call."""
        turn, self._turn = self._turn, {}
        self.taken = 0
        for (ledger_id, key), reads in turn.items():
            unanswered = sorted(reads, key=lambda read: read.entry_id, reverse=True)
            serving = partial(self._serve, ledger_id, key, unanswered)
            give_up = partial(self._refuse, ledger_id, unanswered, StatusCode.EUNKNOWNLEDGERSTATE)
            self._tasks.start(RequestGroup(Op.READ, serving, give_up, len(reads)))

    async def read_now(self, ledger_id: int, entry_id: int, header: RequestHeader) -> None:
        """Answer a read of one entry, for a request that has waited."""
        await self._serve(ledger_id, None, [EntryRead(entry_id, header)])

    async def piggyback(self, ledger_id: int, entry_id: int, header: RequestHeader, lac: int) -> None:
        """Answer a long poll with the entry, if it is here, and last add confirmed."""
        limit = self._settings.block_bytes
        async with self._tasks.answers.place(limit) as place:
            result = await self._storage.read(ledger_id, entry_id, entry_id, limit)
            place.holds(result.segments)
            entries = (entry for segment in result.segments for entry in _entries(memoryview(segment)))
            found = next((entry for entry in entries if entry.entry_id == entry_id), None)
            answered = LAST if found is None else entry_id
            self._tasks.connection.send(replies.read(header, ledger_id, answered, StatusCode.EOK, found, lac))

    async def _serve(self, ledger_id: int, key: bytes | None, unanswered: list[EntryRead]) -> None:
        """Answer the reads, the lowest entry first; each leaves the list, from its end, as it is answered."""
        if key is not None:
            status = await fence(self._service, ledger_id, key)
            if status != Status.OK:
                self._refuse(ledger_id, unanswered, replies.code_of(status))
                return
        while unanswered and not self._tasks.connection.lost:
            if unanswered[-1].entry_id == LAST:
                await self._answer_last(ledger_id, unanswered)
            else:
                await self._answer_some(ledger_id, unanswered)

    def _refuse(self, ledger_id: int, unanswered: list[EntryRead], code: StatusCode) -> None:
        while unanswered:
            read = unanswered.pop()
            self._tasks.connection.send(replies.read(read.header, ledger_id, read.entry_id, code))

    async def _answer_last(self, ledger_id: int, unanswered: list[EntryRead]) -> None:
        limit = self._settings.block_bytes
        async with self._tasks.answers.place(limit) as place:
            last = await self._storage.last_entry(ledger_id)
            found = None
            if last.limbo:
                code = StatusCode.EUNKNOWNLEDGERSTATE
            elif not last.known:
                code = StatusCode.ENOLEDGER
            elif not last.entry:
                code = StatusCode.ENOENTRY
            else:
                code, found = StatusCode.EOK, next(_entries(memoryview(last.entry)))
            sent = 0
            while unanswered and unanswered[-1].entry_id == LAST and sent < limit:
                header = unanswered.pop().header
                sent += len(last.entry)
                self._tasks.connection.send(
                    replies.read(header, ledger_id, LAST, code, found, last.lac if found else None)
                )
            place.takes(sent)

    async def _answer_some(self, ledger_id: int, unanswered: list[EntryRead]) -> None:
        """Answer reads of entries that are next to each other, as many as fit into one answer of the storage."""
        first = last = unanswered[-1].entry_id
        for read in reversed(unanswered):
            if read.entry_id > last + _GAP_MAX:
                break
            last = read.entry_id
        limit = self._settings.read_bytes_max
        async with self._tasks.answers.place(max(limit, self._settings.block_bytes)) as place:
            result = await self._storage.read(ledger_id, first, last, limit)
            found = {entry.entry_id: entry for segment in result.segments for entry in _entries(memoryview(segment))}
            missing = await self._code_of_missing(ledger_id, result)
            send, answer = self._tasks.connection.send, replies.read
            sent, held = 0, sum(map(len, result.segments))
            while unanswered and unanswered[-1].entry_id <= result.examined_to and sent < max(limit, held):
                entry_id, header = unanswered.pop()
                if (entry := found.get(entry_id)) is not None:
                    sent += HEADER_BYTES + len(entry.rest)
                    send(answer(header, ledger_id, entry_id, StatusCode.EOK, entry, result.lac))
                else:
                    code = StatusCode.EUNKNOWNLEDGERSTATE if _is_unknown(result, entry_id) else missing
                    send(answer(header, ledger_id, entry_id, code))
            if sent <= held:
                place.holds(result.segments)
            else:  # an entry was asked for several times
                place.takes(sent)
            self._service.metrics.read_done(sent)

    async def _code_of_missing(self, ledger_id: int, result: ReadResult) -> StatusCode:
        """How an entry is denied that was never acknowledged here: whether anything of its ledger was."""
        if result.segments:
            return StatusCode.ENOENTRY
        known = await self._storage.looked_up(ledger_id) is not None
        return StatusCode.ENOENTRY if known else StatusCode.ENOLEDGER

    # --- batches ----------------------------------------------------------------------------------------------------

    def _refuse_batch(self, packet: p.BatchReadPacket, code: StatusCode) -> None:
        _, ledger_id, first, request_id, *_ = packet
        self._tasks.connection.send(p.encode_batch_read_reply(PACKET_CODES[code], ledger_id, first, request_id))

    async def _batch(self, packet: p.BatchReadPacket) -> None:
        ledger_id, first = packet.ledger_id, packet.first
        if packet.flags & p.PacketFlags.FENCE:
            status = await fence(self._service, ledger_id, packet.key)
            if status != Status.OK:
                self._refuse_batch(packet, replies.code_of(status))
                return
        last = min(ENTRY_ID_MAX, first + packet.entries_max - 1) if packet.entries_max > 0 else ENTRY_ID_MAX
        limit = max(1, min(packet.bytes_max, self._settings.read_bytes_max))
        async with self._tasks.answers.place(max(limit, self._settings.block_bytes)) as place:
            result = await self._storage.read(ledger_id, first, last, limit)
            entries, size = sized_entries(ledger_id, result.segments, first, limit - p.BATCH_REPLY_BYTES - 4)
            if not entries:
                unknown = _is_unknown(result, first) or result.examined_to < first
                code = StatusCode.EUNKNOWNLEDGERSTATE if unknown else await self._code_of_missing(ledger_id, result)
                self._refuse_batch(packet, code)
                return
            self._service.metrics.read_done(size)
            if size < _COPIED_BYTES * len(entries):
                entries = [b"".join(entries)]
                place.takes(size)
            else:
                place.holds(result.segments)
            ok = PACKET_CODES[StatusCode.EOK]
            self._tasks.connection.send(p.encode_batch_read_reply(ok, ledger_id, first, packet.request_id, entries))


def _entries(segment: memoryview) -> Iterator[FoundEntry]:
    for header in walk(segment):
        rest = segment[header.offset + HEADER_BYTES : header.end]
        yield FoundEntry(header.entry_id, header.last_add_confirmed, header.length, rest)


def _is_unknown(result: ReadResult, entry_id: int) -> bool:
    return any(first <= entry_id <= last for first, last in result.unknown)
