"""What is copied when a bookie of ours goes, and the appends meanwhile: the commands of PeerHealing.java, for ours.

    store LEDGERS ENTRIES SIZE   writes and closes that many ledgers
    pace RATE SIZE               begins to append at that rate, to a ledger of its own, whatever is acknowledged
    lap                          the waits since the last lap, or since the pace began
    rest                         ends the pace, closes and deletes its ledger
    verify BOOKIE                reads each copy that the bookie should have from it alone

A line of standard input is a command, a line of JSON on standard output its answer. It ends with its standard input.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import uvloop

import bkpy
from bkpy.client.client import replication_context
from bkpy.metadata.ledgers.all_ledgers import all_ledgers
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Op, Status
from bkpy.protocol.wire.records import RecordCodec, walk

if TYPE_CHECKING:
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata

AT_ONCE: Final = 64  # ledgers
BATCH_BYTES: Final = 1 << 20
TICK_S: Final = 0.002
READ_BYTES: Final = 1 << 20
READ_TIMEOUT_S: Final = 30.0
SIZES: Final = {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2}


class Pace:
    """Appends at a steady rate, whatever is acknowledged. A wait begins with the tick at which its append was due."""

    def __init__(self, writer: bkpy.LedgerWriter, rate: int, payload: bytes) -> None:
        self._writer = writer
        self._rate = rate
        self._payload = payload
        self._waits: list[float] = []
        self._sent = 0
        self._running = True
        self._under_way: set[asyncio.Task[None]] = set()
        self._failed: BaseException | None = None
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        began, tick = time.perf_counter(), 0
        while self._running:
            tick += 1
            at = began + tick * TICK_S
            if (left := at - time.perf_counter()) > 0:
                await asyncio.sleep(left)
            for _ in range(int(tick * TICK_S * self._rate) - self._sent):
                task = asyncio.create_task(self._append(at))
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)
                self._sent += 1
            if left <= 0:
                await asyncio.sleep(0)

    async def _append(self, at: float) -> None:
        try:
            await self._writer.append(self._payload)
        except bkpy.BookKeeperError as error:
            self._failed = error
        self._waits.append(time.perf_counter() - at)

    def lap(self) -> dict[str, Any]:
        if self._failed is not None:
            raise self._failed
        waits, self._waits = sorted(self._waits), []
        shares = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999, "longest_ms": 1.0}
        found = {
            name: round(waits[min(len(waits) - 1, int(len(waits) * share))] * 1000, 3) for name, share in shares.items()
        }
        return {"calls": len(waits), **found}

    async def rest(self) -> int:
        self._running = False
        await self._task
        await asyncio.gather(*self._under_way)
        if self._failed is not None:
            raise self._failed
        await self._writer.close()
        if self._writer.last_add_confirmed + 1 != self._sent:
            last = self._writer.last_add_confirmed
            raise RuntimeError(f"{self._sent} entries were acknowledged, the ledger has {last + 1}")
        return self._sent


class OurHealing:
    """The commands, on one client."""

    def __init__(self, client: bkpy.Client) -> None:
        self._client = client
        self._pace: Pace | None = None

    async def command(self, words: list[str]) -> dict[str, Any]:
        name, *arguments = words
        if name == "verify":
            return await self._verify(arguments[0])
        numbers = [int(argument) for argument in arguments]
        match name:
            case "store":
                return await self._store(*numbers)
            case "pace":
                return await self._begin(*numbers)
            case "lap":
                assert self._pace is not None
                return self._pace.lap()
            case "rest":
                return await self._rest()
            case _:
                raise ValueError(f"no such command: {name}")

    async def _store(self, ledgers: int, entries: int, size: int) -> dict[str, Any]:
        payload = bytes(size)
        count = max(1, min(entries, BATCH_BYTES // size))

        async def some(numbers: range) -> None:
            for _ in numbers:
                async with await self._client.create_ledger(**SIZES) as writer:
                    for start in range(0, entries, count):
                        await writer.append_batch([payload] * min(count, entries - start))

        await asyncio.gather(*(some(range(first, ledgers, AT_ONCE)) for first in range(min(AT_ONCE, ledgers))))
        return {"ledgers": ledgers}

    async def _begin(self, rate: int, size: int) -> dict[str, Any]:
        self._pace_writer = await self._client.create_ledger(**SIZES)
        self._pace = Pace(self._pace_writer, rate, bytes(size))
        return {"rate": rate}

    async def _rest(self) -> dict[str, Any]:
        assert self._pace is not None
        entries = await self._pace.rest()
        await self._client.delete_ledger(self._pace_writer.ledger_id)
        return {"entries": entries}

    # --- the copies that were made ----------------------------------------------------------------------------------

    async def _verify(self, bookie_id: str) -> dict[str, Any]:
        """The ledgers that name the bookie, and the entries that it holds of them; an error if one is missing."""
        ledgers = entries = 0
        async for some in all_ledgers(replication_context(self._client).cluster.catalog, reads_at_once=AT_ONCE):
            named = [
                metadata
                for _, metadata in some
                if metadata is not None and any(bookie_id in fragment.bookies for fragment in metadata.fragments)
            ]
            for start in range(0, len(named), AT_ONCE):
                found = await asyncio.gather(
                    *(self._whole(metadata, bookie_id) for metadata in named[start : start + AT_ONCE])
                )
                ledgers, entries = ledgers + len(found), entries + sum(found)
        return {"ledgers": ledgers, "entries": entries}

    async def _whole(self, metadata: LedgerMetadata, bookie_id: str) -> int:
        """All entries of a ledger, as this bookie has them: read, verified, counted."""
        ledger_id, last = metadata.ledger_id, metadata.last_entry
        assert last is not None
        channel = replication_context(self._client).parts.pool.channel(bookie_id)
        codec, following = RecordCodec(ledger_id), 0
        while following <= last:
            head = m.pack([0, ledger_id, following, last, READ_BYTES])
            frame = await channel.call(Op.READ, head, timeout_s=READ_TIMEOUT_S)
            if m.reply_status(frame.head) != Status.OK:
                raise RuntimeError(f"{bookie_id} is missing entry {following} of ledger {ledger_id}")
            before = following
            for header in walk(frame.body):
                codec.check(frame.body, header.offset, header.end)
                if header.entry_id != following:
                    raise RuntimeError(f"{bookie_id} is missing entry {following} of ledger {ledger_id}")
                following += 1
            if following == before:
                raise RuntimeError(f"{bookie_id} returns nothing of ledger {ledger_id} from entry {following} on")
        return last + 1


async def serve(uri: str) -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with bkpy.connect(uri) as client:
        healing = OurHealing(client)
        print(json.dumps({"ready": True}), flush=True)
        while line := await reader.readline():
            try:
                answer = await healing.command(line.decode().split())
            except Exception as error:
                answer = {"error": repr(error)}
            print(json.dumps(answer), flush=True)


def main() -> None:
    gc.set_threshold(100_000, 20, 100)  # as docs/explanation/performance.md advises
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(sys.argv[1]))


if __name__ == "__main__":
    main()
