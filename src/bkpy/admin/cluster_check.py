"""Whether a cluster can be used from here: ledgers on each bookie, written, read, fenced, recovered and deleted.

Each *round* has a ledger of its own, and all of a round's bookies have to acknowledge each of its entries. The rounds
overlap, and together they have every bookie that takes entries. Invariant: whatever ends a round, its ledger is
deleted, unless the cluster can't be reached any more; then the round says so.
"""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bkpy.errors import BookKeeperError, LedgerFencedError, NoSuchLedgerError, NotEnoughBookiesError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from bkpy.client.bookies.placement import Placement
    from bkpy.client.client import Client
    from bkpy.client.write.writer import LedgerWriter
    from bkpy.metadata.bookies.registration import BookieInfo
    from bkpy.runtime.interfaces import Clock

    Connect = Callable[[Placement], AbstractAsyncContextManager[Client]]

SIZE: Final = 3
ENTRIES: Final = 20
ENTRY_BYTES: Final = 1000
MARK: Final = {"check": b"bkpy cluster check"}  # custom metadata, by which people know a ledger that was left


@dataclass
class CheckRound:
    """What happened to one ledger. Times are seconds, None for what wasn't reached; `error` is empty if all went well.

    `appended_s` is the slowest of its appends, one at a time.
    """

    bookies: tuple[str, ...]
    ledger_id: int | None = None
    created_s: float | None = None
    appended_s: float | None = None
    read_s: float | None = None
    recovered_s: float | None = None
    deleted_s: float | None = None
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


class ChosenPlacement:
    """These bookies and no others: an ensemble that loses one gets none in its place."""

    def __init__(self, chosen: tuple[str, ...]) -> None:
        self._chosen = chosen

    def choose(self, bookies: Mapping[str, BookieInfo], size: int, avoid: Collection[str]) -> tuple[str, ...]:
        missing = [bookie_id for bookie_id in self._chosen if bookie_id not in bookies]
        if missing:
            raise NotEnoughBookiesError(f"the ensemble needs {', '.join(missing)}")
        return self._chosen

    def replace(
        self,
        bookies: Mapping[str, BookieInfo],
        ensemble: Sequence[str],
        positions: Collection[int],
        avoid: Collection[str],
    ) -> tuple[str, ...]:
        raise NotEnoughBookiesError(f"no answer from {', '.join(ensemble[i] for i in sorted(positions))}")


def rounds(writable: Collection[str], size: int = SIZE) -> list[tuple[str, ...]]:
    """Ensembles that overlap by one bookie, around a circle of all of them; each bookie is in one at least."""
    names = sorted(writable)
    if len(names) <= size:
        return [tuple(names)] if names else []
    step = max(1, size - 1)
    return [tuple(names[(start + i) % len(names)] for i in range(size)) for start in range(0, len(names), step)]


async def check_cluster(connect: Connect, clock: Clock, writable: Collection[str]) -> AsyncIterator[CheckRound]:
    """One round after the other. `connect` makes a client with a placement. Raises no error of a round."""
    for bookies in rounds(writable):
        yield await _round(connect, clock, bookies)


async def _round(connect: Connect, clock: Clock, bookies: tuple[str, ...]) -> CheckRound:
    done = CheckRound(bookies)
    try:
        async with connect(ChosenPlacement(bookies)) as writing, connect(ChosenPlacement(bookies)) as reading:
            await _Round(done, clock, writing, reading).run()
    except BookKeeperError as error:
        done.error = done.error or str(error)
    return done


class _Round:
    """A round, by a client that writes and another one that reads and recovers."""

    def __init__(self, done: CheckRound, clock: Clock, writing: Client, reading: Client) -> None:
        self._done = done
        self._clock = clock
        self._writing = writing
        self._reading = reading

    async def run(self) -> None:
        done, size = self._done, len(self._done.bookies)
        began = self._clock.monotonic()
        writer = await self._writing.create_ledger(
            ensemble_size=size, write_quorum=size, ack_quorum=size, custom_metadata=MARK
        )
        done.ledger_id, done.created_s = writer.ledger_id, self._clock.monotonic() - began
        try:
            await self._use(writer)
        except BookKeeperError as error:
            done.error = str(error)
        finally:
            writer.abandon()
            began = self._clock.monotonic()
            await asyncio.shield(self._delete(writer.ledger_id))
            done.deleted_s = self._clock.monotonic() - began

    async def _use(self, writer: LedgerWriter) -> None:
        done = self._done
        payloads = [b"%06d" % i + bytes(ENTRY_BYTES - 6) for i in range(ENTRIES)]
        slowest = 0.0
        for payload in payloads:
            began = self._clock.monotonic()
            await writer.append(payload)
            slowest = max(slowest, self._clock.monotonic() - began)
        done.appended_s = slowest
        began = self._clock.monotonic()
        async with await self._reading.open_ledger(writer.ledger_id) as reader:
            await reader.read_last_add_confirmed()
            read = [entry.data async for entry in reader.read(0, reader.last_add_confirmed)]
        if read != payloads[: len(read)] or len(read) < ENTRIES - 1:
            raise BookKeeperError("what was read is not what was written", ledger_id=writer.ledger_id)
        done.read_s = self._clock.monotonic() - began
        began = self._clock.monotonic()
        async with await self._reading.recover_ledger(writer.ledger_id) as reader:
            read = [entry.data async for entry in reader.read()]
        done.recovered_s = self._clock.monotonic() - began
        if read != payloads:
            raise BookKeeperError("after a recovery, what was read is not what was written", ledger_id=writer.ledger_id)
        try:
            await writer.append(b"after the fence")
        except LedgerFencedError:
            return
        raise BookKeeperError("an append was acknowledged after a recovery", ledger_id=writer.ledger_id)

    async def _delete(self, ledger_id: int) -> None:
        try:
            await self._writing.delete_ledger(ledger_id)
        except NoSuchLedgerError:
            return
        except BookKeeperError as error:
            self._done.error = self._done.error or f"ledger {ledger_id} was left behind: {error}"
