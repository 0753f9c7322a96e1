"""What bookies and clients of one process do, told in values as the steps of `spec/Ledger.tla` take effect.

It is seen from outside, by public methods that their parts call of each other; production code doesn't know of it. A
bookie's step is told when the bookie may say so, before it does; an acknowledgement when the writer counts it.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import os
from typing import TYPE_CHECKING, Any, Protocol
from unittest.mock import patch

from bkpy.protocol.ledger.acks import LedgerAcks
from bkpy.protocol.wire.messages import Flags, decode_add
from bkpy.protocol.wire.records import walk
from bkpy.recovery.write_back import WriteBack
from bkpy.storage.engine import LedgerStorage
from bkpy.storage.journal.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from bkpy.buffers import Bytes
    from bkpy.protocol.ledger.acks import Batch
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.wire.messages import AddColumns
    from bkpy.recovery.write_back import RecoveredEntry
    from bkpy.storage.journal.journal import Position


class Listener(Protocol):
    """Who is told. `writer`, `recovery` and `read` are tokens that stand for one of them, the same at each call."""

    def sent(self, writer: Hashable, ledger_id: int, first: int, last: int, striped: bool) -> None: ...
    def acknowledged(self, writer: Hashable, confirmed: int) -> None: ...
    def begins(
        self, recovery: Hashable, ledger_id: int, first: int, ensemble: Sequence[str], confirmed: int
    ) -> None: ...
    def found(self, recovery: Hashable, entry_id: int) -> None: ...
    def spare(self, recovery: Hashable, confirmed: int, ensemble: Sequence[str]) -> None: ...
    def stored(self, bookie: str, back: bool, ledger_id: int, first: int, count: int, stride: int) -> None: ...
    def fenced(self, bookie: str, ledger_id: int, key: bytes) -> None: ...
    def reads(self, bookie: str, ledger_id: int, read: Hashable) -> None: ...

    def answers(self, read: Hashable, first: int, last: int, there: list[int], unknown: list[list[int]]) -> None:
        """What is denied of `first` to `last` was not there when the read began, and may come before it ends."""


@contextlib.contextmanager
def telling(listener: Listener, here: Callable[[], str]) -> Iterator[None]:
    """Meanwhile it is told. `here`: the id of the bookie that runs."""
    add, fence, read = Journal.add, LedgerStorage.fence, LedgerStorage.read
    sent, done, thaw = LedgerAcks.sent, LedgerAcks.done, LedgerAcks.thaw
    begin, found, store = WriteBack.__init__, WriteBack.add, WriteBack.store
    numbers = itertools.count(os.getpid() << 32)  # no other process tells of the same ones
    known: dict[int, tuple[object, int]] = {}  # by its identity, while it is kept: its token
    fencing: contextvars.ContextVar[bool] = contextvars.ContextVar("fencing", default=False)

    def token(of: object) -> int:
        return known.setdefault(id(of), (of, next(numbers)))[1]

    def stored(columns: AddColumns) -> None:
        back = bool(columns.flags & Flags.RECOVERY)
        for i, ledger_id in enumerate(columns.ledger_ids):
            stride = columns.strides if isinstance(columns.strides, int) else columns.strides[i]
            listener.stored(here(), back, ledger_id, columns.first_ids[i], columns.counts[i], stride)

    def watched_add(journal: Journal, head: Bytes, body: Bytes, on_durable: Callable[[], None]) -> Position:
        # The answer waits for all journals that the frame goes to; a fence for its own ledger's alone.
        columns = decode_add(head, len(body))

        def durable() -> None:
            stored(columns)
            on_durable()

        return add(journal, head, body, durable)

    async def watched_fence(storage: LedgerStorage, ledger_id: int, key: bytes) -> bool:
        durable = await fence(storage, ledger_id, key)
        if durable:
            listener.fenced(here(), ledger_id, key)
            fencing.set(True)  # the rest of the request's task answers a recovery
        return durable

    async def watched_read(storage: LedgerStorage, ledger_id: int, first: int, last: int, bytes_max: int) -> Any:
        if not fencing.get():
            return await read(storage, ledger_id, first, last, bytes_max)
        number = next(numbers)
        listener.reads(here(), ledger_id, number)
        result = await read(storage, ledger_id, first, last, bytes_max)
        there = [header.entry_id for header in walk(memoryview(b"".join(result.segments)))]
        listener.answers(number, first, result.examined_to, there, [list(ids) for ids in result.unknown])
        return result

    def watched_sent(acks: LedgerAcks, batch: Batch) -> None:
        replication = batch.owner
        if not isinstance(replication.source, WriteBack):  # `found` has told
            listener.sent(token(acks), batch.ledger_id, batch.first_id, batch.last_id, replication.striped)
        sent(acks, batch)

    def counted(acks: LedgerAcks, before: int) -> None:
        if acks.last_add_confirmed > before and id(acks) in known:
            listener.acknowledged(token(acks), acks.last_add_confirmed)

    def watched_done(acks: LedgerAcks, batch: Batch) -> int:
        before = acks.last_add_confirmed
        confirmed = done(acks, batch)
        counted(acks, before)
        return confirmed

    def watched_thaw(acks: LedgerAcks) -> int:
        before = acks.last_add_confirmed
        confirmed = thaw(acks)
        counted(acks, before)
        return confirmed

    def watched_begin(recovery: WriteBack, metadata: LedgerMetadata, **options: Any) -> None:
        begin(recovery, metadata, **options)
        last = metadata.fragments[-1]
        confirmed = options["confirmed"]
        listener.begins(token(recovery), metadata.ledger_id, last.first_entry, list(last.bookies), confirmed)

    async def watched_found(recovery: WriteBack, run: RecoveredEntry) -> None:
        listener.found(token(recovery), run.entry_id)
        await found(recovery, run)

    async def watched_store(recovery: WriteBack, fragment: Any, ensemble: Sequence[str], replaced: Any) -> Any:
        listener.spare(token(recovery), fragment.confirmed, list(ensemble))
        return await store(recovery, fragment, ensemble, replaced)

    with (
        patch.object(Journal, "add", watched_add),
        patch.object(LedgerStorage, "fence", watched_fence),
        patch.object(LedgerStorage, "read", watched_read),
        patch.object(LedgerAcks, "sent", watched_sent),
        patch.object(LedgerAcks, "done", watched_done),
        patch.object(LedgerAcks, "thaw", watched_thaw),
        patch.object(WriteBack, "__init__", watched_begin),
        patch.object(WriteBack, "add", watched_found),
        patch.object(WriteBack, "store", watched_store),
    ):
        yield
