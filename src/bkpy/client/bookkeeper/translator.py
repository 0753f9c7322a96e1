"""Translates between a channel's frames, of bkpy's own protocol, and the requests of BookKeeper's v3 protocol.

    a channel's frame         requests to the bookie                                   its reply
    HELLO, PRESENT            none                                                     this client's own limits; none
    READ first..last          READ_ENTRY of each entry, some at a time                 records, denials, unknown ids
    READ, with RECOVERY       the same, fencing, with the ledger's key                 the same
    READ_LAC                  READ_LAC                                                 the last entry, the explicit one
    READ_LAC, with RECOVERY   a fencing READ_ENTRY of the last entry, then READ_LAC    the same, and that it is fenced
    WAIT_LAC                  READ_ENTRY that waits, then READ_LAC                     the same
    ADD                       ADD_ENTRY of each entry                                  a status for each batch
    WRITE_LAC, FORCE          WRITE_LAC, FORCE_LEDGER                                  a status

Invariants: an entry whose digest doesn't match is handed up as a record that doesn't verify. A bookie denies an entry
only by ENOENTRY or ENOLEDGER. Last add confirmed is taken from what a digest covers, never from `maxLAC`. The reply to
a READ is about the range's first entries, at least one, and the bookie has answered each of them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from bkpy.errors import CorruptDataError, DigestMismatchError, FrameTooLargeError
from bkpy.protocol.bookkeeper.entries import ENTRY_HEADER_BYTES, check_entry
from bkpy.protocol.bookkeeper.messages import (
    HIGH_PRIORITY,
    AddEntryRequest,
    ForceLedgerRequest,
    ReadEntryRequest,
    ReadEntryResponse,
    ReadLacRequest,
    ReadLacResponse,
    WriteLacRequest,
)
from bkpy.protocol.bookkeeper.statuses import StatusCode, denies_entry, status_of_v3
from bkpy.protocol.wire import frame as wire
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Flags, Op, Status
from bkpy.protocol.wire.records import HEADER_BYTES, RecordCodec, last_add_confirmed_at, walk

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.buffers import Bytes
    from bkpy.client.bookkeeper.ledgers import UsedLedgers, VerifyingCodecs
    from bkpy.config.client import ClientSettings
    from bkpy.protocol.bookkeeper.messages import Request, ResponseMessage

# What a request takes besides an entry's data: the frame, the message, the key, the entry's header and digest.
_REQUEST_BYTES: Final = 256
_WANTS_AUTHENTICATION: Final = m.message_of(Status.TLS_REQUIRED)
_NOBODY_WAITS: Final = "the ledger's reader or writer is gone"
_LAST_ENTRY: Final = -1
_UNKNOWN_LENGTH: Final = -1
# Parts of the time that a reader gives one replica. A range asks for the entries that the bookie is expected to answer
# in the first part. After the second part it ends with what the bookie has answered.
_ASKS_FOR: Final = 0.375
_ENDS_AFTER: Final = 0.75


class Send(Protocol):
    """Sends a request; see `TranslatingConnection.send`."""

    def __call__(
        self,
        request: Request,
        answered: Callable[[ResponseMessage], None],
        *,
        priority: int = 0,
        wait_s: float = 0.0,
    ) -> None: ...


class Translator:
    """Of one connection. `send` sends a request, `reply` hands a reply to the channel."""

    def __init__(
        self,
        bookie_id: str,
        ledgers: UsedLedgers,
        settings: ClientSettings,
        now: Callable[[], float],
        send: Send,
        reply: Callable[[wire.Frame], None],
    ) -> None:
        self._bookie_id = bookie_id
        self._ledgers = ledgers
        self._settings = settings
        self._now = now
        self._send = send
        self._reply = reply
        self._pace = _Pace()

    def take(self, buffers: list[Bytes]) -> None:
        """Take one of the channel's frames."""
        opcode, correlation_id, head, body = wire.parts(buffers)
        match opcode:
            case Op.HELLO:
                limit = self._settings.bookkeeper_frame_bytes_max
                values = [Status.OK, "", self._bookie_id, limit, max(0, limit - _REQUEST_BYTES)]
                self._answer(opcode, correlation_id, values)
            case Op.PRESENT:
                pass  # each request has the key of its ledger
            case Op.ADD:
                self._add(correlation_id, m.decode_add(head, sum(map(len, body))), memoryview(b"".join(body)))
            case Op.READ:
                self._read(correlation_id, m.decode_read(head))
            case Op.READ_LAC:
                asked = m.decode_read_lac(head)
                if asked.flags & Flags.RECOVERY:
                    self._fence(correlation_id, asked.ledger_id)
                else:
                    self._read_lac(Op.READ_LAC, correlation_id, asked.ledger_id, fenced=False)
            case Op.WAIT_LAC:
                self._wait_lac(correlation_id, m.decode_wait_lac(head))
            case Op.WRITE_LAC:
                self._write_lac(correlation_id, m.decode_write_lac(head).ledger_id, b"".join(body))
            case _:
                self._force(correlation_id, m.decode_force(head).ledger_id)

    def _answer(self, opcode: int, correlation_id: int, head: Any, body: Bytes = b"") -> None:
        packed = memoryview(m.pack(head))
        self._reply(wire.Frame(opcode | wire.REPLY, correlation_id, packed, memoryview(body)))

    def _refuse(self, opcode: int, correlation_id: int, status: Status, message: str = "") -> None:
        self._answer(opcode, correlation_id, [int(status), message])

    # --- reads ------------------------------------------------------------------------------------------------------

    def _read(self, correlation_id: int, asked: m.Read) -> None:
        codecs = self._ledgers.get(asked.ledger_id)
        if codecs is None:
            self._refuse(Op.READ, correlation_id, Status.UNKNOWN, _NOBODY_WAITS)
            return
        key = codecs.key if asked.flags & Flags.RECOVERY else b""
        answer = partial(self._answer, Op.READ, correlation_id)
        reading = _Reading(asked, codecs, key, self._settings, self._now, self._pace, self._send, answer)
        reading.go_on()

    # --- last add confirmed -----------------------------------------------------------------------------------------

    def _fence(self, correlation_id: int, ledger_id: int) -> None:
        codecs = self._ledgers.get(ledger_id)
        if codecs is None:
            self._answer(Op.READ_LAC, correlation_id, [int(Status.UNKNOWN), 0, False])
            return
        request = ReadEntryRequest(ledger_id, _LAST_ENTRY, codecs.key, fence=True)

        def fenced(response: ResponseMessage) -> None:
            if response.status == StatusCode.EOK or denies_entry(response.status):
                self._read_lac(Op.READ_LAC, correlation_id, ledger_id, fenced=True)
            else:
                self._refuse(Op.READ_LAC, correlation_id, _refusal(_status_of(response)))

        self._send(request, fenced, priority=HIGH_PRIORITY)

    def _read_lac(self, opcode: Op, correlation_id: int, ledger_id: int, *, fenced: bool) -> None:
        def answered(response: ResponseMessage) -> None:
            status = response.status
            found = response.response
            if status == StatusCode.EUA:
                self._refuse(opcode, correlation_id, Status.FORBIDDEN, _WANTS_AUTHENTICATION)
            elif status == StatusCode.ENOENTRY:
                self._answer(opcode, correlation_id, [int(Status.OK), 0, fenced])
            elif status == StatusCode.ENOLEDGER:
                self._answer(opcode, correlation_id, [int(Status.NO_SUCH_LEDGER), 0, fenced])
            elif status != StatusCode.EOK or not isinstance(found, ReadLacResponse):
                self._answer(opcode, correlation_id, [int(Status.UNKNOWN), 0, fenced])
            else:
                entry, explicit = self._lac_records(ledger_id, found)
                self._answer(opcode, correlation_id, [int(Status.OK), len(entry), fenced], entry + explicit)

        self._send(ReadLacRequest(ledger_id), answered)

    def _lac_records(self, ledger_id: int, found: ReadLacResponse) -> tuple[bytes, bytes]:
        codecs = self._ledgers.get(ledger_id)
        entry = explicit = b""
        if codecs is None:  # an operator asks what a bookie has, without the password, and believes nothing
            if found.last_entry is not None and len(found.last_entry) >= ENTRY_HEADER_BYTES:
                entry = _header_alone(bytes(found.last_entry))
            return entry, b""
        if found.last_entry is not None:
            entry = record_of(codecs, bytes(found.last_entry))
        if found.lac_body is not None:
            try:
                confirmed = codecs.entries.decode_lac(bytes(found.lac_body))
            except DigestMismatchError:
                explicit = _unsound(codecs.records.explicit_lac(-1, _UNKNOWN_LENGTH))
            else:
                explicit = codecs.records.explicit_lac(confirmed, _UNKNOWN_LENGTH)
        return entry, explicit

    def _wait_lac(self, correlation_id: int, asked: m.WaitLac) -> None:
        request = ReadEntryRequest(asked.ledger_id, _LAST_ENTRY, previous_lac=asked.known_lac, timeout_ms=asked.wait_ms)

        def woken(response: ResponseMessage) -> None:
            if response.status == StatusCode.EOK:
                self._read_lac(Op.WAIT_LAC, correlation_id, asked.ledger_id, fenced=False)
            else:  # it doesn't wait: the tail asks again after a while
                self._answer(Op.WAIT_LAC, correlation_id, [int(Status.UNKNOWN), 0, False])

        self._send(request, woken, wait_s=asked.wait_ms / 1000)

    # --- adds -------------------------------------------------------------------------------------------------------

    def _add(self, correlation_id: int, columns: m.AddColumns, body: memoryview) -> None:
        adding = _Adding(len(columns.ledger_ids), partial(self._answer, Op.ADD, correlation_id))
        recovery = bool(columns.flags & Flags.RECOVERY)
        deferred = bool(columns.flags & Flags.DEFERRED_SYNC)
        priority = HIGH_PRIORITY if recovery else 0
        at = 0
        for batch, (ledger_id, size) in enumerate(zip(columns.ledger_ids, columns.sizes, strict=True)):
            records, at = body[at : at + size], at + size
            codecs = self._ledgers.get(ledger_id)
            if codecs is None:
                adding.refused(batch, Status.UNKNOWN)
                continue
            for header in walk(records):
                data = records[header.offset + HEADER_BYTES : header.end]
                entry = codecs.entries.encode(header.entry_id, header.last_add_confirmed, header.length, data)
                request = AddEntryRequest(ledger_id, header.entry_id, codecs.key, entry, recovery, deferred)
                try:
                    self._send(request, adding.sent(batch), priority=priority)
                except FrameTooLargeError:
                    adding.refused(batch, Status.TOO_LARGE)
                    adding.all_sent()
        adding.all_sent()

    def _write_lac(self, correlation_id: int, ledger_id: int, record: bytes) -> None:
        codecs = self._ledgers.get(ledger_id)
        if codecs is None:
            self._refuse(Op.WRITE_LAC, correlation_id, Status.UNKNOWN, _NOBODY_WAITS)
            return
        confirmed = last_add_confirmed_at(record, 0)
        request = WriteLacRequest(ledger_id, confirmed, codecs.key, codecs.entries.encode_lac(confirmed))
        self._send(request, partial(self._status_alone, Op.WRITE_LAC, correlation_id))

    def _force(self, correlation_id: int, ledger_id: int) -> None:
        self._send(ForceLedgerRequest(ledger_id), partial(self._status_alone, Op.FORCE, correlation_id))

    def _status_alone(self, opcode: Op, correlation_id: int, response: ResponseMessage) -> None:
        self._refuse(opcode, correlation_id, _status_of(response))


class _Adding:
    """The entries of one ADD frame: a status for each batch, once all are answered."""

    def __init__(self, batches: int, answer: Callable[[Any], None]) -> None:
        self._statuses = [Status.OK] * batches
        self._answer = answer
        self._unanswered = 1  # the frame itself, until all is sent

    def sent(self, batch: int) -> Callable[[ResponseMessage], None]:
        self._unanswered += 1
        return partial(self._answered, batch)

    def _answered(self, batch: int, response: ResponseMessage) -> None:
        status = _status_of(response)
        if status != Status.OK:
            self.refused(batch, status)
        self.all_sent()

    def refused(self, batch: int, status: Status) -> None:
        if self._statuses[batch] not in m.ENDS_WRITER:
            self._statuses[batch] = status

    def all_sent(self) -> None:
        self._unanswered -= 1
        if not self._unanswered:
            self._answer(list(map(int, self._statuses)))


@dataclass
class _Pace:
    """How fast the bookie answers reads, as a range has last seen it; 0 before the first answer."""

    seconds_each: float = 0.0


class _Reading:
    """The entries first..last of one READ frame, some of which are asked for at a time.

    A bookie may answer the reads of a ledger one after the other. So no more are outstanding than it answers in the
    range's time at the pace of its answers so far. A range that it answers more slowly ends without the rest. The
    answers to these requests are ignored.
    """

    def __init__(
        self,
        asked: m.Read,
        codecs: VerifyingCodecs,
        key: bytes,
        settings: ClientSettings,
        now: Callable[[], float],
        pace: _Pace,
        send: Send,
        answer: Callable[..., None],
    ) -> None:
        self._asked = asked
        self._codecs = codecs
        self._key = key
        self._now = now
        self._began = now()
        timeout_s = settings.replica_timeout_s(codecs.write_quorum)
        self._until = self._began + _ASKS_FOR * timeout_s
        self._late = False
        self._timer: asyncio.TimerHandle | None = None
        if asked.last > asked.first:  # a single entry is all or nothing
            self._timer = asyncio.get_running_loop().call_later(_ENDS_AFTER * timeout_s, self._time_is_up)
        self._pace = pace
        self._seconds_each = pace.seconds_each
        self._send = send
        self._answer = answer
        self._at_once_max = settings.bookkeeper_reads_at_once
        self._at_once = min(settings.bookkeeper_reads_first, self._at_once_max)
        self._following = asked.first
        self._records: dict[int, bytes] = {}
        self._bytes = 0
        self._largest = 0
        self._last_found = asked.first - 1
        self._denied: list[int] = []  # behind the last one that was found: the ledger may end there
        self._failed: dict[int, int] = {}  # the status of each entry that the bookie can't tell
        self._no_ledger = False
        self._unwelcome = False
        self._waiting: set[int] = set()
        self._answers = 0
        self._ended = False

    def go_on(self) -> None:
        """Ask for more entries, or answer."""
        asked = self._asked
        while self._following <= asked.last and len(self._waiting) < self._at_once and self._has_room():
            entry_id = self._following
            self._following += 1
            self._waiting.add(entry_id)
            request = ReadEntryRequest(asked.ledger_id, entry_id, self._key, fence=bool(self._key))
            self._send(request, partial(self._answered, entry_id), priority=HIGH_PRIORITY if self._key else 0)
        # A reply about no entry says nothing: a late range waits for its first one, too.
        if not self._waiting or (self._late and asked.first not in self._waiting):
            self._end()

    def _time_is_up(self) -> None:
        self._late = True
        self.go_on()

    def _has_room(self) -> bool:
        """Whether one more entry, as large as the largest one so far, fits the reply and its time; the first does."""
        if self._failed or self._no_ledger or len(self._denied) >= self._codecs.stride:
            return False
        if self._following == self._asked.first:
            return True
        waiting = len(self._waiting) + 1
        if self._bytes + waiting * self._largest > self._asked.bytes_max:
            return False
        return self._now() + waiting * self._seconds_each <= self._until

    def _answered(self, entry_id: int, response: ResponseMessage) -> None:
        if self._ended:
            return  # the reply has left this entry out
        self._waiting.remove(entry_id)
        self._answers += 1
        self._seconds_each = self._pace.seconds_each = (self._now() - self._began) / self._answers
        found = response.response
        if response.status == StatusCode.EOK and isinstance(found, ReadEntryResponse) and found.body is not None:
            record = record_of(self._codecs, bytes(found.body), entry_id)
            self._records[entry_id] = record
            if entry_id > self._last_found:
                self._last_found = entry_id
                self._denied = [one for one in self._denied if one > entry_id]
            self._bytes += len(record)
            self._largest = max(self._largest, len(record))
            self._at_once = min(self._at_once * 2, self._at_once_max)
        elif response.status == StatusCode.ENOLEDGER:
            self._no_ledger = True
        elif response.status == StatusCode.ENOENTRY:
            if entry_id > self._last_found:
                self._denied.append(entry_id)
        else:
            self._unwelcome |= _refuses_client(response)
            self._failed[entry_id] = response.status if response.status != StatusCode.EOK else StatusCode.EIO
        self.go_on()

    def _end(self) -> None:
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
        first, last = self._asked.first, min(self._waiting, default=self._following) - 1
        unknown: list[list[int]] = []
        if self._failed:
            worst = self._failed.get(first)
            if (
                worst is not None
                and not self._records
                and worst not in (StatusCode.EIO, StatusCode.EUNKNOWNLEDGERSTATE)
            ):
                if worst != StatusCode.EUA:
                    self._answer([int(_refusal(status_of_v3(worst))), ""])
                elif not self._key:  # then EUA is never about a key
                    self._answer([int(Status.FORBIDDEN), _WANTS_AUTHENTICATION])
                else:
                    self._answer([int(Status.TLS_REQUIRED if self._unwelcome else Status.UNAUTHORIZED), ""])
                return
            unknown = [[entry_id, entry_id] for entry_id in sorted(self._failed) if entry_id <= last]
        elif self._no_ledger and not self._records and not self._waiting:
            last = self._asked.last  # it denies all of them
        body = b"".join(self._records[entry_id] for entry_id in sorted(self._records) if entry_id <= last)
        self._records.clear()  # unanswered requests keep this object
        self._answer([int(Status.OK), last, unknown, -1], body)


def _refusal(status: Status) -> Status:
    """The status of a request that was not answered as it should be."""
    return Status.UNKNOWN if status == Status.OK else status


def _refuses_client(response: ResponseMessage) -> bool:
    """Whether the bookie wants to know who asks. EUA for a ledger's key is in the answer to the request itself."""
    return response.status == StatusCode.EUA and response.response is None


def _status_of(response: ResponseMessage) -> Status:
    """Of a request that had the ledger's key, and is answered by a status alone."""
    return Status.TLS_REQUIRED if _refuses_client(response) else status_of_v3(response.status)


# --- records ----------------------------------------------------------------------------------------------------------


def record_of(codecs: VerifyingCodecs, entry: bytes, entry_id: int | None = None) -> bytes:
    """The record of an entry. It doesn't verify if the entry's digest doesn't, or if it isn't the one asked for."""
    parts: list[Bytes] = []
    try:
        found = codecs.entries.decode(entry)
        if found.entry_id < 0 or entry_id not in (None, found.entry_id):
            raise CorruptDataError("another entry than the one asked for")
        codecs.records.encode(parts, (bytes(found.data),), found.entry_id, 1, found.last_add_confirmed, (found.length,))
    except (CorruptDataError, DigestMismatchError):
        codecs.records.encode(parts, (b"",), entry_id or 0, 1, -1, (0,))
        return _unsound(b"".join(parts))
    return b"".join(parts)


def _header_alone(entry: bytes) -> bytes:
    """A record with what an entry's header says."""
    ledger_id, entry_id = check_entry(entry)
    parts: list[Bytes] = []
    RecordCodec(ledger_id).encode(parts, (b"",), entry_id, 1, -1, (0,))
    return b"".join(parts)


def _unsound(record: bytes) -> bytes:
    """The record with another checksum."""
    return record[:4] + bytes(byte ^ 0xFF for byte in record[4:8]) + record[8:]
