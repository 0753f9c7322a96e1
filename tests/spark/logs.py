"""Logs for tests, whose entries tell their positions: any that is missing, doubled or misplaced shows."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from typing import TYPE_CHECKING, Any

from tests.unit.log.test_given_up import give_up
from tests.waiting import eventually

import bkpy
from bkpy.client.client import log_parts
from bkpy.protocol.wire.records import STAMP_BYTES
from bkpy.runtime.background import BackgroundLoop

if TYPE_CHECKING:
    from collections.abc import Iterable

PATIENCE_S = 600.0  # Spark and its executors start and work meanwhile
_names = itertools.count()


def entry(position: int) -> bytes:
    """What is at a position."""
    return b"%d" % position + b"." * (position % 50)


def assert_exactly(rows: Iterable[Any], first: int, end: int) -> None:
    """The rows, which have a position and a payload, are the entries at first..end, each of them once."""
    found = [(row["position"], bytes(row["payload"])) for row in rows]
    doubled = [position for position, times in Counter(position for position, _ in found).items() if times > 1]
    assert not doubled, f"twice: {doubled[:10]}"
    assert sorted(found) == [(position, entry(position)) for position in range(first, end)]


class TestLog:
    """A log with one writer, which lives on a thread of its own between calls. Closed by `close`."""

    __test__ = False

    def __init__(self, uri: str, *, roll_entries: int | None = None, **attributes: Any) -> None:
        self.uri = uri
        self.name = f"log-{next(_names)}"
        self.end = 0
        self._attributes = attributes
        self._roll_entries = roll_entries
        self._loop = BackgroundLoop("writer")
        self._loop.call(self._open(create=True))

    async def _open(self, *, create: bool = False) -> None:
        self.client = await bkpy.connect(self.uri)
        self._writer = await self.client.open_log(
            self.name, create=create, roll_entries=self._roll_entries, **self._attributes
        )
        self.end = self._writer.next_position
        reader = await self.client.read_log(self.name, password=self._attributes.get("password", b""))
        self.uid, self.instance_id, self.first = reader.uid, self.client.instance_id, reader.first_position
        await reader.close()

    def append(self, count: int, at_once: int = 500, *, seen: bool = True) -> None:
        """So many entries more, acknowledged; readers see all of them afterwards, unless that isn't needed."""
        self._loop.call(self._append(count, at_once))
        if seen:
            self._loop.call(self._seen())

    async def _seen(self) -> None:
        """A writer that pauses tells the bookies of its last entries a little later."""
        reader = await self.client.read_log(self.name, password=self._attributes.get("password", b""))

        async def seen() -> int:
            await reader.refresh()
            return reader.next_position

        await eventually(seen, until=lambda end: end >= self.end, deadline_s=PATIENCE_S)
        await reader.close()

    async def _append(self, count: int, at_once: int) -> None:
        end = self.end + count
        while self.end < end:
            some = range(self.end, min(end, self.end + at_once))
            await self._writer.append_batch([entry(position) for position in some])
            self.end = some.stop

    def append_for(self, seconds: float, pause_s: float = 0.005) -> None:
        """More and more of them, for a while; returns at once."""
        self._enough = False
        self._appending = self._loop.submit(self._append_for(seconds, pause_s))

    async def _append_for(self, seconds: float, pause_s: float) -> None:
        loop = asyncio.get_running_loop()
        stop = loop.time() + seconds
        while loop.time() < stop and not self._enough:
            await self._append(37, 37)
            await asyncio.sleep(pause_s)

    def appended(self, *, at_once: bool = False) -> int:
        """The end of the log, when `append_for` is done, or told to be, and readers see all of it."""
        self._enough = at_once
        self._appending.result()
        self._loop.call(self._seen())
        return self.end

    def die(self) -> None:
        """The writer ends without closing anything, and another one takes over."""
        self._loop.call(self._die())

    async def _die(self) -> None:
        self._writer.abandon()
        await self.client.close()
        await self._open()

    def truncate(self, before: int) -> None:
        """The entries below that position are gone."""
        self._loop.call(self._writer.truncate(before=before))
        self.first = before

    def starts(self) -> list[int]:
        """Where the ledgers of the log's list begin. A ledger gets more entries while the next one is being created."""
        log_list, _ = self._loop.call(log_parts(self.client).logs.read(self.name, fresh=True))
        return [segment.first_position for segment in log_list.segments]

    def lose_all_but(self, entries: int) -> None:
        """The writer dies, only so many entries of its ledger are left, that is accepted, and another takes over."""
        self._loop.call(self._lose_all_but(entries))

    async def _lose_all_but(self, entries: int) -> None:
        self._writer.abandon()
        length = sum(len(entry(i)) + STAMP_BYTES for i in range(entries))
        await give_up(self.client, self._writer.ledger_id, entries, length)
        await self._open()

    def replace(self, count: int) -> None:
        """The log is deleted, and another one of its name made with so many entries."""
        self._loop.call(self._replace())
        self.append(count)

    async def _replace(self) -> None:
        self._writer.abandon()
        await self.client.delete_log(self.name)
        await self.client.close()
        await self._open(create=True)

    def close(self) -> None:
        try:
            self._loop.call(self._close())
        finally:
            self._loop.close()

    async def _close(self) -> None:
        try:
            await self._writer.close()
        finally:
            await self.client.close()

    def __enter__(self) -> TestLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
