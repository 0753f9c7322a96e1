"""Logs written one step at a time: ledgers with stamped entries, and a list that says what a test wants it to say."""

from __future__ import annotations

import asyncio
import dataclasses
import struct
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from tests.in_process import DEADLINE_S, InProcess, stored

from bkpy.client.client import log_parts
from bkpy.metadata.store.outcome import Done
from bkpy.metadata.store.store import Delete
from bkpy.protocol.log.log_list import LogList, Segment
from bkpy.protocol.wire.records import ledger_key

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    import bkpy
    from bkpy.client.client import Client
    from bkpy.client.write.writer import LedgerWriter
    from bkpy.log.entries import LogEntry

NAME = "orders"
NEVER_S = 600.0  # longer than any test: whoever waits for that fails
PATIENT = {"tail_poll_s": NEVER_S, "long_poll_s": NEVER_S}  # only what wakes a tail makes it go on


def stamped(data: bytes, ms: int) -> bytes:
    """What a ledger of a log has of an entry."""
    return struct.pack("<q", ms) + data


class StepwiseLog:
    """The writer's part of a log, one step at a time. Entry at position p is `b"%d" % p`, of the time p seconds."""

    def __init__(self, client: Client, *, name: str = NAME, password: bytes = b"", digest: str = "crc32c") -> None:
        self.client = client
        self.name = name
        self.password = password
        self.digest = digest
        self.position = 0
        self.writer: LedgerWriter | None = None

    async def make(self, **fields: Any) -> StepwiseLog:
        key = ledger_key(self.password)
        log_list = LogList(log_parts(self.client).logs.new_token(), 3, 3, 2, self.digest, key, **fields)
        assert isinstance(await log_parts(self.client).logs.create(self.name, log_list), Done)
        return self

    async def change(self, change: Callable[[LogList], LogList]) -> LogList:
        """One write of the list."""
        log_list, version = await log_parts(self.client).logs.read(self.name, fresh=True, include_deleted=True)
        log_list = change(log_list)
        stored(await log_parts(self.client).logs.write(self.name, log_list, version))
        return log_list

    async def ledger(self, **options: Any) -> LedgerWriter:
        return await self.client.create_ledger(password=self.password, digest=self.digest, **options)

    async def begin(self, *, begun_ms: int | None = None, at: int | None = None) -> LedgerWriter:
        """A new segment at the position, or `at`, in the list, and open."""
        writer = await self.ledger()
        first = self.position if at is None else at
        segment = Segment(writer.ledger_id, first, first * 1000 if begun_ms is None else begun_ms)
        await self.change(lambda log_list: dataclasses.replace(log_list, segments=(*log_list.segments, segment)))
        self.writer = writer
        return writer

    async def append(self, count: int, *, ms: int | None = None) -> None:
        """So many entries to the segment that was begun last."""
        assert self.writer is not None
        first, self.position = self.position, self.position + count
        times = [p * 1000 if ms is None else ms for p in range(first, self.position)]
        await self.writer.append_batch(
            [stamped(b"%d" % p, time) for p, time in zip(range(first, self.position), times, strict=True)]
        )

    async def end(self, writer: LedgerWriter | None = None) -> LedgerWriter:
        """Close the ledger of the segment; it isn't sealed yet."""
        writer = writer or self.writer
        assert writer is not None
        await writer.close()
        return writer

    async def seal(self, writer: LedgerWriter | None = None) -> None:
        """Say in the list where the segment has ended."""
        writer = await self.end(writer)
        entries, length = writer.last_add_confirmed + 1, writer.length

        def sealed(log_list: LogList) -> LogList:
            segments = tuple(
                s.seal(entries, length, (s.first_position + entries - 1) * 1000)
                if s.ledger_id == writer.ledger_id
                else s
                for s in log_list.segments
            )
            return dataclasses.replace(log_list, segments=segments)

        await self.change(sealed)

    async def segment(self, count: int) -> None:
        """A whole segment of so many entries, sealed."""
        await self.begin()
        await self.append(count)
        await self.seal()

    async def truncate(self, before: int, *, delete: bool = True) -> None:
        log_list = await self.change(lambda log_list: log_list.truncated(before))
        if delete:
            await self.delete_doomed(log_list)

    async def delete_doomed(self, log_list: LogList) -> None:
        for ledger_id in log_list.pending_delete:
            await self.client.delete_ledger(ledger_id)
        await self.change(lambda log_list: log_list.without_pending_delete(log_list.pending_delete))

    async def delete(self, cluster: InProcess, *, mark: bool = True) -> None:
        """Delete all of it; without `mark` so fast that nobody sees the list say so."""
        log_list, _ = await log_parts(self.client).logs.read(self.name, fresh=True)
        if mark:
            await self.change(lambda log_list: dataclasses.replace(log_list, deleted=True))
        for node in reversed(below(cluster, self.name)):
            cluster.tree.apply(Delete(node), 0)
        for segment in log_list.segments:
            await self.client.delete_ledger(segment.ledger_id)


def below(cluster: InProcess, name: str) -> list[str]:
    top = f"/ledgers/logs/{name}"
    return [path for path in sorted(cluster.tree.paths) if path == top or path.startswith(f"{top}/")]


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % p for p in range(first, last)]


def check(entries: Sequence[LogEntry], first: int, end: int) -> None:
    """That these are just the entries first..end - 1 of such a log."""
    assert [entry.position for entry in entries] == list(range(first, end))
    assert [entry.data for entry in entries] == numbers(first, end)
    assert [entry.time for entry in entries] == [float(p) for p in range(first, end)]


async def all_of(entries: AsyncGenerator[LogEntry, None]) -> list[LogEntry]:
    return [entry async for entry in entries]


class Follower:
    """A task that tails a log and keeps what it was given."""

    def __init__(self, reader: bkpy.LogReader, first: int | None = None) -> None:
        self.found: list[LogEntry] = []
        self._more = asyncio.Event()
        self.task = asyncio.create_task(self._run(reader, first))

    async def _run(self, reader: bkpy.LogReader, first: int | None) -> None:
        async with aclosing(reader.tail(first)) as entries:
            async for entry in entries:
                self.found.append(entry)
                self._more.set()

    async def until(self, end: int, first: int = 0) -> None:
        """Return once it was given the entries first..end - 1; it must not have been given any other one."""
        async with asyncio.timeout(DEADLINE_S):
            while not self.found or self.found[-1].position < end - 1:
                if self.task.done():
                    await self.task
                self._more.clear()
                await self._more.wait()
        check(self.found, first, end)

    async def ended(self) -> None:
        """Raise what has ended it."""
        async with asyncio.timeout(DEADLINE_S):
            await self.task

    async def cancel(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
