"""The work of `bkpy log write`, and the lines that it prints at the end, however it ends."""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import click

import bkpy
from bkpy.cli.connecting import connect, settings
from bkpy.cli.input import lines_of, source
from bkpy.cli.output.progress import transfer
from bkpy.cli.output.text import entries_acknowledged, human_bytes, human_entries, say
from bkpy.protocol.wire.records import STAMP_BYTES

if TYPE_CHECKING:
    import asyncio


class Appending:
    """Appends the lines of a file to a log. Its reports are ready at any time, also after a second Ctrl-C."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._writer: bkpy.LogWriter | None = None
        self._first = 0
        self._acknowledged = 0
        self._pending: deque[asyncio.Future[bkpy.LogPosition]] = deque()
        self._bytes = 0
        self._started = self._ended = 0.0
        self._closed = False

    async def run(self, uri: str, path: str, opening: dict[str, Any], announce: bool) -> None:
        """Append the lines of the file, or of standard input for `-`, and close the log.

        After Ctrl-C or an error, too, it keeps what was appended.
        """
        async with source(path) as (chunks, size), connect(uri) as client:
            self._started = time.monotonic()
            self._writer = writer = await client.open_log(self._name, **opening)
            self._first = writer.next_position
            try:
                if announce:
                    click.echo(self._first)
                    sys.stdout.flush()
                with transfer(f"log {self._name}", size) as advance:
                    async for lines in lines_of(chunks, settings().entry_bytes_max - STAMP_BYTES):
                        await self._append(writer, lines)
                        advance(sum(map(len, lines)) + len(lines), self._count())
                    await writer.flush()
                    advance(0, self._count())
            finally:
                try:
                    await writer.close()
                    self._closed = True
                finally:
                    self._count()
                    self._ended = time.monotonic()

    async def _append(self, writer: bkpy.LogWriter, lines: list[bytes]) -> None:
        """Append the lines without waiting for each; waits while the writer's window is full."""
        for line in lines:
            self._bytes += len(line)
            try:
                self._pending.append(writer.append_nowait(line))
            except bkpy.WouldBlock:
                await writer.append(line)
                self._count()
                self._acknowledged += 1

    def _count(self) -> int:
        """How many entries are acknowledged; that happens in their order."""
        pending = self._pending
        while pending and pending[0].done():
            future = pending.popleft()
            self._acknowledged += not future.cancelled() and future.exception() is None
        return self._acknowledged

    def result(self) -> dict[str, Any]:
        """The result, for JSON."""
        return {
            "log": self._name,
            "first_position": self._first,
            "next_position": self._first + self._acknowledged,
            "entries": self._acknowledged,
            "bytes": self._bytes,
            "seconds": self._ended - self._started,
        }

    def summary(self) -> str:
        """The result in a line."""
        seconds = max(self._ended - self._started, 1e-6)
        return (
            f"{human_entries(self._acknowledged)}, {human_bytes(self._bytes)} in {seconds:.2f} s to log {self._name}, "
            f"from position {self._first} on ({self._acknowledged / seconds:,.0f} entries/s, "
            f"{human_bytes(round(self._bytes / seconds))}/s)"
        )

    def tell_of(self, end: BaseException) -> None:
        """Report the number of acknowledged entries when `end` ends the write: in a line, or as an error's note."""
        if self._writer is None:
            return
        what = f"{entries_acknowledged(self._acknowledged)} in log {self._name}, from position {self._first} on"
        if not self._closed:
            what += "; its next writer decides how many more there are"
        if isinstance(end, Exception) and not isinstance(end, BrokenPipeError):
            end.add_note(what)
        else:
            say(f"bkpy: {what}")
