"""A writer kept busy in every way there is, with a record of what it was promised."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING

import bkpy

from .oracle import Promises, make_payload

if TYPE_CHECKING:
    from collections.abc import Iterator

DEADLINE_S = 60.0


class Load:
    """`outstanding` calls of one writer under way at any time, until told to stop or until the writer fails.

    `async with Load(writer) as load: await load.more(1000)`; at the end of the block everything under way is waited
    for. The ledger is left as it is: close the writer, or recover the ledger, and then `oracle.check(load.promises)`.
    Each of those calls begins up to `pause_s` after the one before; a test may change that at any time.
    """

    def __init__(
        self,
        writer: bkpy.LedgerWriter,
        *,
        outstanding: int = 100,
        filler_bytes_max: int = 1000,
        pause_s: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.writer = writer
        self.promises = Promises(writer.ledger_id)
        self.error: bkpy.BookKeeperError | None = None  # that ended it
        self.longest_pause_s = 0.0  # between two acknowledgements, since the last `forget_pauses`
        self._outstanding = outstanding
        self._filler_bytes_max = filler_bytes_max
        self.pause_s = pause_s
        self._rng = random.Random(seed)
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._progress = asyncio.Event()
        self._last_ack_s = 0.0

    @property
    def acknowledged(self) -> int:
        return len(self.promises.acknowledged)

    def start(self) -> None:
        self.forget_pauses()
        self._tasks = [asyncio.create_task(self._lane()) for _ in range(self._outstanding)]

    async def stop(self) -> None:
        """Begin nothing new, and wait for all that is under way. Whatever hangs is cancelled and a violation."""
        self._stopping = True
        if self._tasks:
            _, hanging = await asyncio.wait(self._tasks, timeout=DEADLINE_S)
            for task in hanging:
                task.cancel()
            if hanging:
                self.promises.violations.append(f"{len(hanging)} appends have not ended in {DEADLINE_S:g} s")
            results = await asyncio.gather(*self._tasks, return_exceptions=True)
            for result in results:
                if isinstance(result, Exception):
                    raise result

    async def more(self, count: int) -> None:
        """Return after `count` further acknowledgements; raises the writer's error if it fails before."""
        wanted = self.acknowledged + count
        async with asyncio.timeout(DEADLINE_S):
            while self.acknowledged < wanted:
                if self.error is not None:
                    raise self.error
                await self._wait()

    async def fails(self, deadline_s: float | None = DEADLINE_S) -> bkpy.BookKeeperError:
        """Return the error with which the writer ends; None: wait for it for ever."""
        async with asyncio.timeout(deadline_s):
            while self.error is None:
                await self._wait()
        return self.error

    async def _wait(self) -> None:
        self._progress.clear()
        await self._progress.wait()

    def forget_pauses(self) -> None:
        self.longest_pause_s = 0.0
        self._last_ack_s = asyncio.get_running_loop().time()

    async def follow(self, reader: bkpy.LedgerReader) -> None:
        """Tail the ledger to its end, and demand to be shown only what has been acknowledged, in order."""
        expected = 0
        async for entry in reader.tail():
            if entry.entry_id != expected:
                self.promises.violations.append(f"a tail returned entry {entry.entry_id} instead of {expected}")
            if entry.entry_id > max(self.writer.last_add_confirmed, reader.last_add_confirmed if reader.closed else -1):
                self.promises.violations.append(f"a tail returned entry {entry.entry_id} before it was confirmed")
            self.promises.returned(entry.entry_id, entry.data)
            expected = entry.entry_id + 1

    # --- one call after the other -------------------------------------------------------------------------------------

    async def _lane(self) -> None:
        ways = (self._append, self._append, self._append, self._append_batch, self._append_nowait)
        while not self._stopping and self.error is None:
            try:
                await self._rng.choice(ways)()
            except bkpy.BookKeeperError as e:
                self.error = self.error or e
            if self.pause_s:
                await asyncio.sleep(self._rng.uniform(0, self.pause_s))
        self._progress.set()

    async def _append(self) -> None:
        number, payload = self._payload()
        with self._failing(number):
            self._acked(await self.writer.append(payload), payload)

    async def _append_batch(self) -> None:
        made = [self._payload() for _ in range(self._rng.randrange(1, 10))]
        with self._failing(*(number for number, _ in made)):
            ids = await self.writer.append_batch([payload for _, payload in made])
            for entry_id, (_, payload) in zip(ids, made, strict=True):
                self._acked(entry_id, payload)

    async def _append_nowait(self) -> None:
        number, payload = self._payload()
        try:
            with self._failing(number):
                self._acked(await self.writer.append_nowait(payload), payload)
        except bkpy.WouldBlock:
            await asyncio.sleep(0.001)

    def _payload(self) -> tuple[int, bytes]:
        """Made right before the call, so that numbers are in the order of the calls."""
        number = self.promises.next_number()
        return number, make_payload(
            self.writer.ledger_id, number, self._rng, self._rng.randrange(self._filler_bytes_max + 1)
        )

    def _acked(self, entry_id: int, payload: bytes) -> None:
        now = asyncio.get_running_loop().time()
        self.longest_pause_s = max(self.longest_pause_s, now - self._last_ack_s)
        self._last_ack_s = now
        self.promises.acked(entry_id, payload, self.writer.last_add_confirmed)
        self._progress.set()

    @contextlib.contextmanager
    def _failing(self, *numbers: int) -> Iterator[None]:
        try:
            yield
        except bkpy.BookKeeperError as e:
            for number in numbers:
                self.promises.failed(number, e)
            raise

    async def __aenter__(self) -> Load:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
