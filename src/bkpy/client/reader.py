"""The reader of one ledger: ranged reads from one replica at a time, with prefetch, verification and fail-over.

A scan is cut into ranges of about `read_bytes`, of which `prefetch_depth` are in flight. A range is asked of one
bookie; what that one doesn't have, can't tell or has damaged is asked of the next one of the write set.

Invariants: nothing past last add confirmed (open) or the last entry (closed) is returned; nothing whose digests don't
match is returned; `NoSuchEntryError` needs an explicit negative from every bookie of the entry's write set.
"""

from __future__ import annotations

import asyncio
import enum
from array import array
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from typing import Final, TypeVar

from bkpy.client.block import Block, Entry
from bkpy.client.pool import BookiePool
from bkpy.config import ClientSettings
from bkpy.errors import (
    BookieUnavailableError,
    BookKeeperError,
    ClientClosedError,
    ConfigError,
    CorruptDataError,
    DigestMismatchError,
    MetadataUnavailableError,
    NoSuchEntryError,
    ProtocolError,
    TooManyRequestsError,
)
from bkpy.metadata.ledgers import LedgerCatalog
from bkpy.protocol import messages as m
from bkpy.protocol.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bkpy.protocol.messages import Op, Status
from bkpy.protocol.quorum import covered, write_set
from bkpy.protocol.records import EXPLICIT_LAC_ENTRY, HEADER_BYTES, RecordCodec, walk
from bkpy.runtime import Runtime

T = TypeVar("T")

_FIRST_RANGE_ENTRIES: Final = 64  # asked for while nothing is known of the entries' sizes
_RANGE_ENTRIES_MAX: Final = 65_536
_ROUNDS_PAUSE_S: Final = 0.05  # between two rounds over the replicas of an entry, while some can't be reached


class _Answer(enum.Enum):
    """What a bookie said of an entry that it didn't return."""

    NEGATIVE = "it never acknowledged the entry"
    UNKNOWN = "it can't tell"
    DAMAGED = "its copy doesn't match the digest"
    UNAVAILABLE = "it can't be reached"


class LedgerReader:
    """Reads one ledger; made by `Client.open_ledger`. Ranges are inclusive; -1 means no entry yet."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        *,
        codec: RecordCodec,
        catalog: LedgerCatalog,
        pool: BookiePool,
        settings: ClientSettings,
        runtime: Runtime,
    ) -> None:
        self._metadata = metadata
        self._codec = codec
        self._catalog = catalog
        self._pool = pool
        self._settings = settings
        self._runtime = runtime
        self._confirmed = metadata.last_entry if metadata.state is LedgerState.CLOSED else -1
        self._length = metadata.length
        self._turn = runtime.rng.randrange(1 << 16)  # spreads the reads of many readers over the bookies
        self._record_bytes = 0.0  # average seen
        self._closed = False

    # --- what is known ----------------------------------------------------------------------------------------------

    @property
    def ledger_id(self) -> int:
        return self._metadata.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._metadata

    @property
    def last_add_confirmed(self) -> int:
        """The highest id this reader may read, as far as it knows; the last entry, for a closed ledger."""
        return self._confirmed

    @property
    def length(self) -> int:
        """Payload bytes up to last add confirmed; while the ledger is open, as last published by its writer."""
        return self._length

    @property
    def closed(self) -> bool:
        """Whether the ledger is CLOSED, as of the last look at its metadata: it will never grow again."""
        return self._metadata.state is LedgerState.CLOSED

    def __repr__(self) -> str:
        return f"<LedgerReader ledger={self.ledger_id} last_add_confirmed={self._confirmed} closed={self.closed}>"

    async def close(self) -> None:
        """The reader can't be used any more. The ledger isn't touched."""
        self._closed = True

    async def __aenter__(self) -> LedgerReader:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosedError("the reader is closed", ledger_id=self.ledger_id)

    # --- last add confirmed -----------------------------------------------------------------------------------------

    async def read_last_add_confirmed(self) -> int:
        """Ask the bookies how far the ledger may be read, and look whether it was closed; returns the id."""
        self._check_open()
        if self.closed:
            return self._confirmed
        self._metadata, _ = await self._catalog.read(self.ledger_id)
        if self.closed:
            self._confirmed, self._length = self._metadata.last_entry, self._metadata.length
            return self._confirmed
        await self._ask_last_add_confirmed()
        return self._confirmed

    async def _ask_last_add_confirmed(self) -> None:
        """The highest answer of the last fragment's bookies, once every ack quorum is represented."""
        metadata = self._metadata
        fragment = metadata.fragments[-1]
        # A fragment begins right behind an acknowledged entry.
        if fragment.first_entry - 1 > self._confirmed:
            self._confirmed = fragment.first_entry - 1
        answered: set[int] = set()
        errors: list[BookKeeperError] = []
        tasks = [
            self._runtime.spawn(self._ask_one(i, bookie_id), name=f"last add confirmed of ledger {self.ledger_id}")
            for i, bookie_id in enumerate(fragment.bookies)
        ]
        try:
            for task in asyncio.as_completed(tasks):
                index, answer = await task
                if isinstance(answer, BookKeeperError):
                    errors.append(answer)
                    continue
                answered.add(index)
                if answer is not None and answer[0] > self._confirmed:
                    self._confirmed, self._length = answer
                if covered(answered, metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum):
                    return
        finally:
            for task in tasks:
                task.cancel()
        raise BookieUnavailableError(
            f"too few of the ledger's bookies tell its last add confirmed: {'; '.join(map(str, errors))}",
            ledger_id=self.ledger_id,
        )

    async def _ask_one(self, index: int, bookie_id: str) -> tuple[int, tuple[int, int] | BookKeeperError | None]:
        """(index, (last add confirmed, length) or None for no entry, or the error)."""
        try:
            reply = await self._pool.peer(bookie_id).call(
                Op.READ_LAC, m.pack([0, self.ledger_id]), timeout_s=self._settings.read_timeout_s
            )
            status = m.reply_status(reply.head)
            if status == Status.NO_SUCH_LEDGER:
                return index, None
            if status not in (Status.OK, Status.UNKNOWN):
                raise m.error_of(status, m.decode_error(reply.head).message, bookie=bookie_id)
            best: tuple[int, int] | None = None
            for header in walk(reply.body):
                self._codec.check(reply.body, header.offset, header.end)
                # An entry carries the length up to itself; what its last add confirmed had is at most that.
                exact = header.entry_id == EXPLICIT_LAC_ENTRY
                found = (header.last_add_confirmed, header.length if exact else self._length)
                best = found if best is None or found[0] > best[0] else best
            if best is None and status == Status.UNKNOWN:
                raise CorruptDataError("the bookie can't tell", ledger_id=self.ledger_id, bookie=bookie_id)
            return index, best
        except BookKeeperError as e:
            return index, e

    # --- reading ----------------------------------------------------------------------------------------------------

    async def read(self, first: int = 0, last: int | None = None) -> AsyncIterator[Entry]:
        """Entries first..last in order; `last=None` is last add confirmed as of the call, negative is *no entry*.

        Raises `NoSuchEntryError` for a `last` past last add confirmed, `DigestMismatchError` if no replica of an entry
        verifies, `BookieUnavailableError` if the replicas can't be reached within `read_timeout_s`.
        """
        async for block in self.read_blocks(first, last):
            for entry in block:
                yield entry

    async def read_blocks(self, first: int = 0, last: int | None = None) -> AsyncIterator[Block]:
        """Like `read`, many entries at once, with no object per entry."""
        self._check_open()
        end = self._confirmed if last is None else last
        self._check_range(first, end)
        in_flight: deque[tuple[asyncio.Task[Block], int]] = deque()
        next_first = first
        try:
            while next_first <= end or in_flight:
                # Without any idea of the sizes, one short range goes ahead alone.
                depth = self._settings.prefetch_depth if self._size_known() else 1
                while next_first <= end and len(in_flight) < depth:
                    range_last = min(end, next_first + self._range_entries() - 1)
                    in_flight.append((self._begin(next_first, range_last), range_last))
                    next_first = range_last + 1
                task, range_last = in_flight.popleft()
                block = await task
                if block.last_entry < range_last:  # larger entries than expected: the rest is still to be asked for
                    in_flight.appendleft((self._begin(block.last_entry + 1, range_last), range_last))
                yield block
        finally:
            for task, _ in in_flight:
                task.cancel()

    def _begin(self, first: int, last: int) -> asyncio.Task[Block]:
        return self._runtime.spawn(
            self._range(first, last),
            name=f"read of ledger {self.ledger_id}, entries {first} to {last}",
            on_death=_ignore,  # the error is raised where the range is awaited
        )

    def _check_range(self, first: int, last: int) -> None:
        if first < 0:
            raise ConfigError(f"a range can't begin at entry {first}", ledger_id=self.ledger_id)
        if last > self._confirmed:
            what = "last entry" if self.closed else "last add confirmed"
            raise NoSuchEntryError(
                f"entry {last} is past the {what}, {self._confirmed}", ledger_id=self.ledger_id, entry_id=last
            )

    def _size_known(self) -> bool:
        if not self._record_bytes and self.closed and self._confirmed >= 0:
            overhead = HEADER_BYTES + self._codec.mac_bytes
            self._record_bytes = self._length / (self._confirmed + 1) + overhead
        return self._record_bytes > 0

    def _range_entries(self) -> int:
        if not self._size_known():
            return _FIRST_RANGE_ENTRIES
        return max(1, min(_RANGE_ENTRIES_MAX, int(self._settings.read_bytes / self._record_bytes)))

    async def _range(self, first: int, last: int) -> Block:
        """What one reply holds of first..last, at least `first`, from whoever has it."""
        fragment, fragment_last = self._fragment(first)
        last = min(last, fragment_last)
        if self._metadata.ensemble_size == self._metadata.write_quorum:
            block = await self._consecutive(fragment, first, last)
        else:
            block = await self._striped(fragment, first, last)
        self._record_bytes = len(block.buffer) / len(block)
        return block

    def _fragment(self, entry_id: int) -> tuple[Fragment, int]:
        """The fragment that holds the entry, and its last entry."""
        fragments = self._metadata.fragments
        for fragment, following in pairwise(fragments):
            if entry_id < following.first_entry:
                return fragment, following.first_entry - 1
        return fragments[-1], 1 << 62

    async def _consecutive(self, fragment: Fragment, first: int, last: int) -> Block:
        """The longest verified run from `first` that the first willing replica returns; at least one entry."""

        async def attempt(bookie_id: str) -> Block | _Answer:
            reply, view = await self._ask(bookie_id, first, last)
            return self._scan(reply, view, first, last)

        return await self._fail_over(fragment, first, attempt)

    def _scan(self, reply: m.ReadReply, view: memoryview, first: int, last: int) -> Block | _Answer:
        starts, ends = array("q"), array("q")
        following = self._codec.scan(view, first, last, starts, ends)
        if following > first:
            return Block(self.ledger_id, first, view[: ends[-1] + self._codec.mac_bytes], starts, ends)
        if any(low <= first <= high for low, high in reply.unknown) or reply.examined_to < first:
            return _Answer.UNKNOWN
        # Something was returned for the entry, but it isn't the entry; or nothing was.
        headers = _headers(view)
        return _Answer.DAMAGED if first in headers or headers is _BROKEN else _Answer.NEGATIVE

    async def _striped(self, fragment: Fragment, first: int, last: int) -> Block:
        """first..last of a striped ledger, gathered from as many bookies as it takes and put in order."""
        size, quorum = self._metadata.ensemble_size, self._metadata.write_quorum
        records: dict[int, memoryview] = {}
        # One bookie holds Qw of every E consecutive entries: every Qw-th one, asked together, hold them all.
        self._turn += 1
        offset = self._turn % size
        asked = {(offset + k) % size for k in range(0, size, quorum)}
        wholly = await asyncio.gather(*(self._stripe(fragment.bookies[i], first, last) for i in sorted(asked)))
        for found in wholly:
            records.update(found)
        entry_id = first
        while entry_id in records and entry_id <= last:
            entry_id += 1
        if entry_id == first:  # none of those had it: ask the entry's own write set, one after the other
            records[first] = await self._fail_over(fragment, first, lambda bookie_id: self._one(bookie_id, first))
            entry_id = first + 1
        parts = [records[i] for i in range(first, entry_id)]
        view = memoryview(b"".join(parts))
        starts, ends = array("q"), array("q")
        offset = 0
        for part in parts:
            starts.append(offset + HEADER_BYTES)
            offset += len(part)
            ends.append(offset - self._codec.mac_bytes)
        return Block(self.ledger_id, first, view, starts, ends)

    async def _stripe(self, bookie_id: str, first: int, last: int) -> dict[int, memoryview]:
        """What one bookie returns of first..last, verified; nothing if it fails."""
        try:
            _, view = await self._ask(bookie_id, first, last)
        except ClientClosedError:
            raise
        except BookKeeperError:
            return {}
        found: dict[int, memoryview] = {}
        try:
            for header in walk(view):
                self._codec.check(view, header.offset, header.end)
                found[header.entry_id] = view[header.offset : header.end]
        except (CorruptDataError, DigestMismatchError):
            return found  # the rest is asked of other replicas
        return found

    async def _one(self, bookie_id: str, entry_id: int) -> memoryview | _Answer:
        reply, view = await self._ask(bookie_id, entry_id, entry_id)
        answer = self._scan(reply, view, entry_id, entry_id)
        return answer.buffer if isinstance(answer, Block) else answer

    async def _fail_over(
        self, fragment: Fragment, entry_id: int, attempt: Callable[[str], Awaitable[T | _Answer]]
    ) -> T:
        """The first good answer of the entry's write set, asked in turn, and again while some can't be reached."""
        self._turn += 1
        size, quorum = self._metadata.ensemble_size, self._metadata.write_quorum
        members = sorted(write_set(entry_id, size, quorum))  # rotated by the turn alone, so that all get their share
        order = [fragment.bookies[members[(self._turn + k) % quorum]] for k in range(quorum)]
        now = self._runtime.clock.monotonic()
        order.sort(key=lambda bookie_id: self._pool.peer(bookie_id).slow_until > now)
        deadline = now + self._settings.read_timeout_s
        answers: dict[str, tuple[_Answer, str]] = {}
        while True:
            for bookie_id in order:
                try:
                    answer = await attempt(bookie_id)
                except ClientClosedError:
                    raise
                except (BookieUnavailableError, MetadataUnavailableError, ProtocolError, TooManyRequestsError) as e:
                    answers[bookie_id] = (_Answer.UNAVAILABLE, e.message)
                    continue
                except BookKeeperError as e:
                    answers[bookie_id] = (_Answer.UNKNOWN, e.message)
                    continue
                if not isinstance(answer, _Answer):
                    return answer
                answers[bookie_id] = (answer, answer.value)
            waiting = any(answer is _Answer.UNAVAILABLE for answer, _ in answers.values())
            if not waiting or self._runtime.clock.monotonic() >= deadline:
                raise self._verdict(entry_id, answers)
            await asyncio.sleep(_ROUNDS_PAUSE_S)

    def _verdict(self, entry_id: int, answers: dict[str, tuple[_Answer, str]]) -> BookKeeperError:
        """The error for an entry that no replica returned."""
        kinds = {answer for answer, _ in answers.values()}
        told = "; ".join(f"{bookie_id}: {text}" for bookie_id, (_, text) in sorted(answers.items()))
        if kinds == {_Answer.NEGATIVE}:
            return NoSuchEntryError(
                f"no bookie of its write set has the entry ({told})", ledger_id=self.ledger_id, entry_id=entry_id
            )
        if kinds <= {_Answer.DAMAGED, _Answer.NEGATIVE}:
            return DigestMismatchError(
                f"no replica has an intact copy ({told})", ledger_id=self.ledger_id, entry_id=entry_id
            )
        if _Answer.UNAVAILABLE in kinds:
            return BookieUnavailableError(
                f"no replica of the entry could be read ({told})", ledger_id=self.ledger_id, entry_id=entry_id
            )
        return CorruptDataError(
            f"no replica of the entry could be read ({told})", ledger_id=self.ledger_id, entry_id=entry_id
        )

    async def _ask(self, bookie_id: str, first: int, last: int) -> tuple[m.ReadReply, memoryview]:
        """One READ of one bookie."""
        head = m.pack([0, self.ledger_id, first, last, self._settings.read_bytes])
        # A share of the time, so that a bookie that hangs leaves some for the others.
        timeout_s = self._settings.read_timeout_s / self._metadata.write_quorum
        reply = await self._pool.peer(bookie_id).call(Op.READ, head, timeout_s=timeout_s)
        status = m.reply_status(reply.head)
        if status != Status.OK:
            raise m.error_of(status, m.decode_error(reply.head).message, ledger_id=self.ledger_id, bookie=bookie_id)
        return m.decode_read_reply(reply.head), reply.body

    # --- tailing ----------------------------------------------------------------------------------------------------

    async def tail(self, first: int = 0) -> AsyncIterator[Entry]:
        """Entries from `first` on as they are confirmed; ends when the ledger is closed and all was returned."""
        self._check_open()
        while True:
            if self._confirmed >= first:
                last = self._confirmed
                async for entry in self.read(first, last):
                    yield entry
                first = last + 1
            if self.closed and first > self._confirmed:
                return
            before = self._confirmed
            await self.read_last_add_confirmed()
            if self._confirmed == before and not self.closed:
                await asyncio.sleep(self._settings.tail_poll_s)


_BROKEN: Final[frozenset[int]] = frozenset()


def _headers(view: memoryview) -> frozenset[int]:
    """The entry ids in a reply, or `_BROKEN` if it isn't made of records."""
    try:
        return frozenset(header.entry_id for header in walk(view)) or frozenset((-1,))
    except CorruptDataError:
        return _BROKEN


def _ignore(error: BaseException) -> None:
    pass
