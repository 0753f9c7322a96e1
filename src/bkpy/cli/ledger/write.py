"""The work of `bkpy ledger write`, and the lines that it prints at the end, however it ends."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

import bkpy
from bkpy.cli.connecting import connect, settings
from bkpy.cli.input import lines_of, source
from bkpy.cli.output.progress import transfer
from bkpy.cli.output.text import entries_acknowledged, human_bytes, human_entries, say

if TYPE_CHECKING:
    from bkpy.client.write.writer import LedgerWriter


class Writing:
    """Writes one ledger from the lines of a file. Its reports are ready at any time, also after a second Ctrl-C."""

    def __init__(self) -> None:
        self._writer: LedgerWriter | None = None
        self._started = self._ended = 0.0
        self._closed = False
        self._under_replicated: dict[str, int] = {}

    async def run(self, uri: str, path: str, creation: dict[str, Any], announce: bool) -> None:
        """Append the lines of the file, or of standard input for `-`, and close the ledger.

        Closes it after Ctrl-C or an error, too: what was appended is kept, and readers see where the ledger ends.
        """
        async with source(path) as (chunks, size), connect(uri) as client:
            self._started = time.monotonic()
            self._writer = writer = await client.create_ledger(**creation)
            try:
                if announce:
                    click.echo(writer.ledger_id)
                    sys.stdout.flush()
                with transfer(f"ledger {writer.ledger_id}", size) as advance:
                    async for lines in lines_of(chunks, settings().entry_bytes_max):
                        await _append(writer, lines)
                        advance(sum(map(len, lines)) + len(lines), self._acknowledged)
                    await writer.flush()
                    advance(0, self._acknowledged)
            finally:
                try:
                    await writer.close()
                    self._closed = True
                finally:
                    # Not later: the end of the client fails requests to the last bookie of each entry.
                    self._under_replicated = dict(writer.under_replicated)
                    self._ended = time.monotonic()

    @property
    def _acknowledged(self) -> int:
        return 0 if self._writer is None else self._writer.last_add_confirmed + 1

    def result(self) -> dict[str, Any]:
        """The result, for JSON."""
        assert self._writer is not None
        return {
            "ledger_id": self._writer.ledger_id,
            "entries": self._acknowledged,
            "bytes": self._writer.length,
            "seconds": self._ended - self._started,
            "under_replicated": self._under_replicated,
        }

    def summary(self) -> str:
        """The result in a line."""
        result = self.result()
        seconds = max(result["seconds"], 1e-6)
        return (
            f"{human_entries(result['entries'])}, {human_bytes(result['bytes'])} in {seconds:.2f} s to ledger "
            f"{result['ledger_id']} ({result['entries'] / seconds:,.0f} entries/s, "
            f"{human_bytes(round(result['bytes'] / seconds))}/s)"
        )

    def tell_of(self, end: BaseException) -> None:
        """Report the number of acknowledged entries when `end` ends the write: in a line, or as an error's note."""
        if self._writer is None:
            return
        what = f"{entries_acknowledged(self._acknowledged)} in ledger {self._writer.ledger_id}"
        if self._closed:
            what += ", which ends there"
        elif isinstance(end, bkpy.LedgerFencedError | bkpy.LedgerClosedError):
            what += "; its recovery decides where it ends"
        else:
            what += f", which was not closed: bkpy ledger recover {self._writer.ledger_id}"
        self.warn()
        if isinstance(end, Exception) and not isinstance(end, BrokenPipeError):
            end.add_note(what)
        else:
            say(f"bkpy: {what}")

    def warn(self) -> None:
        """Name the bookies that may be missing acknowledged entries. None is lost as long as the others are there."""
        if self._writer is None:
            return
        for bookie_id, first in self._under_replicated.items():
            say(
                f"bkpy: warning: ledger {self._writer.ledger_id} has fewer copies than its write quorum: bookie "
                f"{bookie_id} may be missing acknowledged entries from {first} on"
            )


async def _append(writer: LedgerWriter, lines: list[bytes]) -> None:
    """Append the lines without waiting for each; waits while the writer's window is full."""
    for line in lines:
        try:
            writer.append_nowait(line)
        except bkpy.WouldBlock:
            await writer.append(line)
