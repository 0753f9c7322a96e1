"""The adds of one connection, of v2 and v3: all that one call of the socket brought are stored at once.

An add whose key was found right before, of a ledger that isn't fenced, becomes a record in the turn's columns, and its
answer is ready before it is stored. Any other waits in the backlog until the states of its ledgers have been read, for
all that wait together; so do all adds behind it, since those of a ledger are stored in the order of their arrival.

Invariants: an add is answered OK only from the storage's own callback, after the sync, unless its client asked for
less; nothing else happens between reading a ledger's state and deciding by it; waiting bytes count towards the
receive budget, and nothing that waits is a slice of the receive buffer; columns pass the check that a replay makes, and
what is stored at once is not much larger than the largest frame.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from crc32c import crc32c

from bkpy.bookie.bookkeeper import replies
from bkpy.bookie.bookkeeper.ledger_keys import check_key, may_be_decided
from bkpy.errors import BookKeeperError, CorruptDataError
from bkpy.protocol.bookkeeper import packets as p
from bkpy.protocol.bookkeeper.entries import ENTRY_ID_MAX
from bkpy.protocol.bookkeeper.frames import PACKET_VERSION, PREFIX_BYTES
from bkpy.protocol.bookkeeper.statuses import PACKET_CODES, StatusCode
from bkpy.protocol.repair.draining import takes_entries
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import BATCHES_MAX, AddColumns, Flags, Status
from bkpy.protocol.wire.records import HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bkpy.bookie.bookkeeper.ledger_keys import OpenedLedgers
    from bkpy.bookie.service import BookieService
    from bkpy.buffers import Bytes
    from bkpy.protocol.bookkeeper.messages import AddEntryRequest, RequestHeader
    from bkpy.storage.ledgers.info import LedgerInfo

_NONE: Final = int(Flags.NONE)
_RECOVERY: Final = int(Flags.RECOVERY)
_DEFERRED: Final = int(Flags.DEFERRED_SYNC)
_STRIDE_MAX: Final = 1000  # between two entries of a ledger that lie in one batch: more than any ensemble has bookies
_COPY_BYTES_MAX: Final = 1024  # below this, one checksum over a copy is quicker than two

_FRAME = struct.Struct(">II20sqqqq")  # of an ADD of v2, with its length, up to the entry's digest
_FRAME_BYTES: Final = _FRAME.size
_PACKET_BYTES: Final = _FRAME_BYTES - PREFIX_BYTES
_PACKET_RECOVERY: Final = int(p.PacketFlags.RECOVERY)
_WORD: Final = PACKET_VERSION << 24 | int(p.PacketOp.ADD) << 16
_WORD_MASK: Final = 0xFFFF << 16 | _PACKET_RECOVERY  # version, opcode, and the only flag that means anything here
_OK_REPLY = struct.Struct(">12sqq")
_OK_REPLY_HEAD: Final = b"".join(p.encode_add_reply(PACKET_CODES[StatusCode.EOK], 0, 0))[:12]
_HEAD = struct.Struct("<II")
_TAIL = struct.Struct("<qqq")
_ENTRY_TAIL = struct.Struct(">16xqq")


class EntryConnection(Protocol):
    """The connection whose adds these are."""

    address: str

    def send(self, buffers: list[Bytes]) -> None: ...

    def refuse(self, error: BookKeeperError) -> None: ...

    def memory_full(self) -> None: ...

    def pause(self, reason: str) -> None: ...

    def resume(self, reason: str) -> None: ...

    def abort(self) -> None: ...


class LostEntryConnection:
    """Stands in for a connection that is gone, in requests that are still under way: it drops their answers."""

    lost = True

    def __init__(self, address: str) -> None:
        self.address = address

    def _nothing(self, *args: object) -> None:
        pass

    send = refuse = memory_full = pause = resume = abort = flush = _nothing


class WaitingAdd(NamedTuple):
    """An add that can't be stored at once. `header`: of v3; None in v2. `entry` is nobody's buffer."""

    ledger_id: int
    entry_id: int
    key: bytes
    entry: bytes
    flags: int
    header: RequestHeader | None


class _Turn:
    """The adds that are stored together, as columns, with their answers. All have the same flags."""

    __slots__ = (
        "answers",
        "bytes",
        "counts",
        "first_ids",
        "flags",
        "ledger_ids",
        "next_id",
        "parts",
        "sizes",
        "strides",
    )

    def __init__(self, flags: int) -> None:
        self.flags = flags
        self.bytes = 0
        self.ledger_ids: list[int] = []
        self.first_ids: list[int] = []
        self.counts: list[int] = []
        self.strides: list[int] = []
        self.sizes: list[int] = []
        self.parts: list[Bytes] = []
        self.answers: list[bytes] = []
        self.next_id = -1  # that would lie in the last batch

    def begin_batch(self, ledger_id: int, entry_id: int, size: int) -> None:
        """An entry that isn't the last batch's next one. The second one of a batch says what lies between its ids."""
        if self.ledger_ids and self.ledger_ids[-1] == ledger_id and self.counts[-1] == 1:
            stride = entry_id - self.first_ids[-1]
            if 0 < stride <= _STRIDE_MAX:  # in a striped ledger it isn't 1
                self.counts[-1] = 2
                self.sizes[-1] += size
                self.strides[-1] = stride
                self.next_id = entry_id + stride
                return
        self.ledger_ids.append(ledger_id)
        self.first_ids.append(entry_id)
        self.counts.append(1)
        self.strides.append(1)
        self.sizes.append(size)
        self.next_id = entry_id + 1

    def columns(self) -> AddColumns:
        strides: int | list[int] = self.strides
        if self.strides.count(1) == len(self.strides):
            strides = 1
        return AddColumns(self.flags, self.ledger_ids, self.first_ids, self.counts, strides, self.sizes)


class EntryAdds:
    """`in_flight`: how many turns are being stored. `backlogged`: whether adds wait, or are being decided."""

    def __init__(self, service: BookieService, connection: EntryConnection, ledgers: OpenedLedgers) -> None:
        self.in_flight = 0
        self.backlogged = False
        # With the times of arrival. A future is done when the adds before it have been decided.
        self.backlog: deque[tuple[WaitingAdd | asyncio.Future[None], float]] = deque()
        self._service = service
        self._storage = service.storage
        self._metrics = service.metrics
        self._waiters = service.waiters
        self._slow = service.slow
        self._waiting_max = service.settings.requests_in_flight_max
        self._unsynced_max = service.settings.deferred_sync_bytes_max
        self._turn_bytes_max = service.settings.frame_bytes_max
        self._undecided: set[asyncio.Future[None]] = set()  # adds that wait for the metadata, and don't block others
        self._connection = connection
        self._ledgers = ledgers
        self._turn: _Turn | None = None

    @property
    def busy(self) -> bool:
        """Whether an accepted add has no answer yet."""
        return self.in_flight > 0 or self.backlogged

    def packets(self, view: memoryview, start: int, end: int) -> int:
        """Take the ADDs of v2 at start..end that can be stored at once, up to any other frame; where that begins."""
        while end - start >= _FRAME_BYTES and view[start + PREFIX_BYTES] == PACKET_VERSION:
            taken_to = self._take_run(view, start, end)
            if taken_to == start:
                break
            start = taken_to
        return start

    def packet(self, packet: memoryview) -> None:
        """Take an ADD of v2 that `packets` left. Raises `ProtocolError` if it is none."""
        add = p.decode_request(packet)
        assert isinstance(add, p.AddPacket)
        flags = _RECOVERY if add.flags & _PACKET_RECOVERY else _NONE
        self._wait(WaitingAdd(add.ledger_id, add.entry_id, add.key, bytes(add.entry), flags, None))

    def request(self, header: RequestHeader, request: AddEntryRequest) -> None:
        """Take an ADD_ENTRY of v3."""
        ledger_id, entry_id, key, entry, recovery, deferred = request
        flags = (_RECOVERY if recovery else _NONE) | (_DEFERRED if deferred else _NONE)
        opened = self._ledgers.by_id.get(ledger_id)
        if (
            opened is not None
            and opened[0] == key
            and not recovery
            and not self.backlogged
            and not self._service.read_only
            and ledger_id not in self._storage.fenced
        ):
            self._put_entry(flags, ledger_id, opened[1], entry_id, entry, replies.added(header, ledger_id, entry_id))
            return
        self._wait(WaitingAdd(ledger_id, entry_id, key, entry, flags, header))

    def end_turn(self) -> None:
        """Store what has come since the last call; it is answered when it is durable."""
        turn, self._turn = self._turn, None
        if turn is not None:
            self._store(turn)

    async def decided(self) -> None:
        """Return when all adds that have come until now are stored, or refused."""
        if self.backlogged:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.backlog.append((turn, 0.0))
            await turn
        if self._undecided:
            await asyncio.wait(self._undecided.copy())

    def close(self) -> None:
        """The connection is gone: drop what waits."""
        self._turn = None
        while self.backlog:
            self._leave(self.backlog.popleft()[0])
        self._connection = LostEntryConnection(self._connection.address)

    # --- storing ----------------------------------------------------------------------------------------------------

    def _take_run(self, view: memoryview, start: int, end: int) -> int:
        """As `packets`, up to where the turn is full. What `_put` does, for many: this loop is what an entry costs."""
        if self.backlogged or self._service.read_only:
            return start
        turn = self._turn
        if turn is None or turn.flags != _NONE or self._is_full(turn):
            turn = _Turn(_NONE)
        by_id, fenced, bytes_max = self._ledgers.by_id, self._storage.fenced, self._turn_bytes_max
        parts, answers, ledger_ids, stored = turn.parts, turn.answers, turn.ledger_ids, turn.bytes
        unpack, pack_tail, pack_head, pack_reply = _FRAME.unpack_from, _TAIL.pack, _HEAD.pack, _OK_REPLY.pack
        at, count = start, 0
        ledger_id, key, seed = -1, b"", 0
        more, more_bytes = 0, 0  # entries of the turn's last batch that its columns don't have yet
        next_id = turn.next_id if ledger_ids else -1
        step = turn.strides[-1] if ledger_ids else 1
        last_ledger_id = ledger_ids[-1] if ledger_ids else -1
        while end - at >= _FRAME_BYTES:
            size, word, given, of_ledger, entry_id, confirmed, length = unpack(view, at)
            to = at + PREFIX_BYTES + size
            if to > end or size < _PACKET_BYTES or to - at > bytes_max or word & _WORD_MASK != _WORD:
                break
            if of_ledger != ledger_id:
                opened = by_id.get(of_ledger)
                if opened is None or of_ledger in fenced:
                    break
                ledger_id = of_ledger
                key, seed = opened
            if given != key or not 0 <= entry_id <= ENTRY_ID_MAX:
                break
            payload = view[at + _FRAME_BYTES : to]
            body = pack_tail(entry_id, confirmed, length)
            size -= _PACKET_BYTES
            if size < _COPY_BYTES_MAX:
                body += payload
                parts += (pack_head(size, crc32c(body, seed)), body)
            else:
                parts += (pack_head(size, crc32c(payload, crc32c(body, seed))) + body, payload)
            answers.append(pack_reply(_OK_REPLY_HEAD, ledger_id, entry_id))
            size += HEADER_BYTES
            stored += size
            count += 1
            at = to
            if entry_id == next_id and ledger_id == last_ledger_id:
                more += 1
                more_bytes += size
                next_id += step
            else:
                if more:
                    turn.counts[-1] += more
                    turn.sizes[-1] += more_bytes
                    turn.next_id = next_id
                    more = more_bytes = 0
                turn.begin_batch(ledger_id, entry_id, size)
                last_ledger_id, next_id, step = ledger_id, turn.next_id, turn.strides[-1]
                if len(ledger_ids) == BATCHES_MAX:
                    break
            if stored >= bytes_max:
                break
        if more:
            turn.counts[-1] += more
            turn.sizes[-1] += more_bytes
            turn.next_id = next_id
        if count:
            if turn is not self._turn:
                self.end_turn()
                self._turn = turn
            turn.bytes = stored
            self._metrics.packets += count
        return at

    def _is_full(self, turn: _Turn) -> bool:
        return len(turn.ledger_ids) == BATCHES_MAX or turn.bytes >= self._turn_bytes_max

    def _put_entry(self, flags: int, ledger_id: int, seed: int, entry_id: int, entry: bytes, answer: bytes) -> None:
        confirmed, length = _ENTRY_TAIL.unpack_from(entry)
        self._put(flags, ledger_id, seed, entry_id, confirmed, length, memoryview(entry)[HEADER_BYTES:], answer)

    def _put(
        self,
        flags: int,
        ledger_id: int,
        seed: int,
        entry_id: int,
        confirmed: int,
        length: int,
        payload: memoryview,
        answer: bytes,
    ) -> None:
        """Add an entry to the turn, as a record."""
        turn = self._turn
        if turn is None or turn.flags != flags or self._is_full(turn):
            self.end_turn()
            turn = self._turn = _Turn(flags)
        body = _TAIL.pack(entry_id, confirmed, length)
        size = len(payload)
        if size < _COPY_BYTES_MAX:
            body += payload
            turn.parts += (_HEAD.pack(size, crc32c(body, seed)), body)
        else:
            turn.parts += (_HEAD.pack(size, crc32c(payload, crc32c(body, seed))) + body, payload)
        turn.answers.append(answer)
        size += HEADER_BYTES
        turn.bytes += size
        if turn.ledger_ids and turn.ledger_ids[-1] == ledger_id and entry_id == turn.next_id:
            turn.counts[-1] += 1
            turn.sizes[-1] += size
            turn.next_id += turn.strides[-1]
        else:
            turn.begin_batch(ledger_id, entry_id, size)

    def _store(self, turn: _Turn) -> None:
        columns, body, answers = turn.columns(), b"".join(turn.parts), turn.answers
        connection, metrics, waiters, storage = self._connection, self._metrics, self._waiters, self._storage
        service = self._service
        began = metrics.add_started(columns, len(body))
        slow_at = began + self._slow.over_s
        self.in_flight += 1

        def done() -> None:
            ended = metrics.add_done(began)
            if ended >= slow_at:
                self._note_slow(connection, columns, began, ended)
            connection.send([b"".join(answers)])
            if waiters.by_ledger:
                waiters.wake(columns.ledger_ids)
            self.in_flight -= 1
            service.request_ended()

        head = m.pack(list(columns))
        if columns.flags & _DEFERRED and storage.unsynced_bytes < self._unsynced_max and not storage.failed.done():
            storage.add(columns, head, body, _nothing)
            done()
        else:
            storage.add(columns, head, body, done)
        if storage.full:
            connection.memory_full()

    def _note_slow(self, connection: EntryConnection, columns: AddColumns, began: float, ended: float) -> None:
        """Say where the time went. Called while the callbacks of the journal group run."""
        write = self._storage.last_write
        parts = {}
        if write is not None and write.ended >= began:
            parts = {"journal": max(0.0, write.began - began), "sync": write.ended - max(write.began, began)}
            parts["reply"] = ended - write.ended
        address = connection.address
        self._slow.note(address, "add", ended - began, set(columns.ledger_ids), parts, client=address)

    # --- the backlog ------------------------------------------------------------------------------------------------

    def _wait(self, add: WaitingAdd) -> None:
        self.end_turn()  # an add of a ledger is stored before what comes after it
        self.backlog.append((add, self._service.now()))
        budget = self._service.receive_budget
        budget.change(len(add.entry))
        if len(self.backlog) + len(self._undecided) >= self._waiting_max or budget.exhausted:
            self._connection.pause("backlog")
        if not self.backlogged:
            self.backlogged = True
            self._service.spawn(self._work_off(), f"adds of {self._connection.address}", self._connection.abort)

    async def _work_off(self) -> None:
        try:
            while self.backlog:
                waiting = [one for one, _ in self.backlog]
                self.backlog.clear()
                try:
                    await self._decide_all([add for add in waiting if isinstance(add, WaitingAdd)])
                finally:
                    for one in waiting:
                        self._leave(one)
                self._read_on()
        except BookKeeperError as e:
            self._connection.refuse(e)
        finally:
            self.backlogged = False
            self._service.request_ended()

    def _leave(self, one: WaitingAdd | asyncio.Future[None]) -> None:
        """It waits no more."""
        if isinstance(one, WaitingAdd):
            self._service.receive_budget.change(-len(one.entry))
        elif not one.done():
            one.set_result(None)

    async def _decide_all(self, waiting: Sequence[WaitingAdd]) -> None:
        """Store the adds that may be stored, and answer the others, in their order."""
        try:
            states = await self._storage.states({add.ledger_id for add in waiting})
        except CorruptDataError as e:
            if len(waiting) > 1:  # the other ledgers are sound
                for add in waiting:
                    await self._decide_all([add])
                return
            self._service.log.error("refused an append from %s: %s", self._connection.address, e)
            self._answer(waiting[0], Status.UNKNOWN)
            return
        if self._service.stopping:
            return  # the connection is closed without their answers, as one to a bookie that failed
        for add in waiting:
            status = self._decide(add, states)
            if status == Status.UNAUTHORIZED and may_be_decided(add.key):
                self._dispute(add)
            elif status != Status.OK:
                self._answer(add, status)
        self.end_turn()

    def _decide(self, add: WaitingAdd, states: Mapping[int, LedgerInfo | None]) -> Status:
        """OK: it is in the turn. UNAUTHORIZED: its key isn't the one that the ledger has here."""
        service, storage, ledger_id = self._service, self._storage, add.ledger_id
        recovery = bool(add.flags & _RECOVERY)
        if not takes_entries(leaves=service.leaves, read_only=service.read_only, recovery=recovery):
            return Status.READ_ONLY
        state = states[ledger_id] or storage.ledgers.get(ledger_id)  # an earlier add may have made it
        status = check_key(add.key, state)
        if status != Status.OK:
            return status
        if state is None:
            if not recovery and storage.was_deleted(ledger_id):
                return Status.FENCED  # its writer was cut off for long
            if not recovery and storage.ledgers.doubts(ledger_id):
                return Status.READ_ONLY  # its writer uses another bookie: here the ledger would be fenced
            storage.create(ledger_id, add.key)
        seed = self._ledgers.open(ledger_id, add.key)
        if not recovery and ledger_id in storage.fenced:
            return Status.READ_ONLY if storage.ledgers.is_fenced_by_limbo(ledger_id) else Status.FENCED
        answer = replies.added(add.header, ledger_id, add.entry_id)
        self._put_entry(add.flags, ledger_id, seed, add.entry_id, add.entry, answer)
        return Status.OK

    def _dispute(self, add: WaitingAdd) -> None:
        """The metadata have to decide whose key is right. The adds behind it go on."""
        decision = asyncio.get_running_loop().create_future()
        self._undecided.add(decision)
        self.in_flight += 1
        self._service.receive_budget.change(len(add.entry))
        deciding = self._decide_by_metadata(add, decision)
        self._service.spawn(deciding, f"key of {self._connection.address}", self._connection.abort)

    async def _decide_by_metadata(self, add: WaitingAdd, decision: asyncio.Future[None]) -> None:
        try:
            status = await self._service.key_authority.decide(add.ledger_id, add.key)
            if status == Status.OK:
                await self._decide_all([add])  # once more, if meanwhile the ledger has got another key again
            else:
                self._answer(add, status)
        except BookKeeperError as e:
            self._connection.refuse(e)
        finally:
            self._undecided.discard(decision)
            decision.set_result(None)
            self.in_flight -= 1
            self._service.receive_budget.change(-len(add.entry))
            self._read_on()
            self._service.request_ended()

    def _answer(self, add: WaitingAdd, status: Status) -> None:
        self._connection.send([replies.added(add.header, add.ledger_id, add.entry_id, replies.code_of(status))])

    def _read_on(self) -> None:
        if len(self.backlog) + len(self._undecided) <= self._waiting_max // 2:
            self._connection.resume("backlog")


def _nothing() -> None:
    pass
