"""A cluster that heals, or lets a bookie leave, watched through its metadata; and what it owes to its users."""

from __future__ import annotations

import asyncio
import enum
import urllib.request
from typing import TYPE_CHECKING, Any

import bkpy
from bkpy.errors import MetadataUnavailableError
from bkpy.metadata.replication.election import leader
from bkpy.metadata.replication.locks import held_locks
from bkpy.metadata.replication.underreplication import UnderreplicationQueue
from bkpy.protocol.ledger.ledger_metadata import LedgerState
from tests.command import as_json
from tests.hooks import cluster_of
from tests.unit.replication.repairing import whole
from tests.waiting import DEADLINE_S, eventually

from .load import Load
from .oracle import check, check_replicas

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from bkpy.local import LocalBookie
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata

    from .oracle import Promises

# Soon, and slowly enough to be caught at it.
CONFIG: dict[str, Any] = {
    "metrics_port": 0,
    "session_timeout_s": 2.0,
    "journal_max_size_mb": 4,
    "lost_bookie_settle_s": 0.3,
    "lost_bookie_recovery_delay_s": 0.6,
    "audit_look_interval_s": 0.2,
    "audit_follow_interval_s": 0.3,
    "marks_look_interval_s": 1.0,
    "open_ledger_grace_s": 0.5,
    "repair_pause_max_s": 1.0,
    "copies_at_once": 1,
    "copy_bytes_per_s_max": 100_000,
    "copy_bytes_per_s_min": 100_000,
}
SIZES = ((3, 3, 2), (3, 3, 2), (3, 2, 2), (4, 2, 2), (2, 2, 2))


class Step(enum.Enum):
    """How far the work on a lost bookie's ledgers is."""

    MARKED = "a ledger is marked"
    LOCKED = "somebody has a ledger's lock, and copies"
    SWAPPED = "a ledger names another bookie"
    UNMARKED = "a mark has gone"


class Healing:
    """By one client of the cluster `uri`. `promises`, by ledger: all have to be kept, on bookies that live."""

    def __init__(self, uri: str, client: bkpy.Client) -> None:
        self.promises: dict[int, Promises] = {}
        self.uri = uri
        self._settled: set[int] = set()  # closed while all of their bookies were there
        self._client = client
        cluster = cluster_of(client)
        self.catalog = cluster.catalog
        self._store, self._root = cluster.store, cluster.root
        self.marks = UnderreplicationQueue(cluster.store, cluster.root, cluster.store.runtime)

    # --- ledgers ----------------------------------------------------------------------------------------------------

    async def write(self, count: int, *, entries: int = 60, abandoned: int = 0) -> None:
        """`count` ledgers that are closed, and some whose writers end as those do that are killed."""

        async def one(number: int) -> None:
            ensemble, write, ack = SIZES[number % len(SIZES)]
            writer = await self._client.create_ledger(ensemble_size=ensemble, write_quorum=write, ack_quorum=ack)
            async with Load(writer, outstanding=4, filler_bytes_max=2000, seed=writer.ledger_id) as load:
                await load.more(entries)
            if number < count:
                await writer.close()
                self._settled.add(writer.ledger_id)
            else:
                writer.abandon()
            self.promises[writer.ledger_id] = load.promises

        await asyncio.gather(*(one(number) for number in range(count + abandoned)))

    async def begin(self, *, pause_s: float) -> Load:
        """A ledger that is being written from now on, until `end`."""
        writer = await self._client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        load = Load(writer, outstanding=2, filler_bytes_max=500, pause_s=pause_s, seed=writer.ledger_id)
        load.start()
        return load

    async def end(self, load: Load) -> None:
        """It was written through all of it without an error."""
        await load.stop()
        if load.error is not None:
            raise load.error
        await load.writer.close()
        self.promises[load.writer.ledger_id] = load.promises

    # --- how it gets on -----------------------------------------------------------------------------------------------

    async def all_metadata(self) -> list[LedgerMetadata]:
        return [(await self.catalog.read(ledger_id, fresh=True))[0] for ledger_id in sorted(self.promises)]

    async def all_closed(self) -> dict[int, LedgerMetadata]:
        """Those of closed ledgers, which nobody but who moves copies changes."""
        return {one.ledger_id: one for one in await self.all_metadata() if one.state is LedgerState.CLOSED}

    async def naming(self, *bookies: str) -> list[LedgerMetadata]:
        """The ledgers that name one of these."""
        found = await self.all_metadata()
        return [one for one in found if any(set(bookies) & set(fragment.bookies) for fragment in one.fragments)]

    async def marked(self) -> list[int]:
        return [ledger_id async for ledger_id in self.marks.list()]

    async def open_after_return(self) -> set[int]:
        """The open ledgers whose marks name only bookies that returned: workers leave these to a writer or reader."""
        found = set[int]()
        for ledger_id in await self.marked():
            mark = await self.marks.read(ledger_id)
            if mark is not None and mark.returned == mark.lost.keys():
                metadata, _ = await self.catalog.read(ledger_id, fresh=True)
                found |= {ledger_id} if metadata.state is LedgerState.OPEN else set()
        return found

    async def at(self, step: Step, victim: str) -> None:
        """Return when the work has come so far, or has come to its end unseen."""
        first = len(await self.naming(victim))
        most = 0

        async def there() -> bool:
            marked = len(await self.marked())
            nonlocal most
            most = max(most, marked)
            if step is Step.MARKED and marked:
                return True
            if step is Step.LOCKED and await held_locks(self._store, self._root):
                return True
            if step is Step.UNMARKED and marked < most:
                return True
            left = len(await self.naming(victim))
            return left == 0 or (step is Step.SWAPPED and left < first)

        await until(there, step.value, pause_s=0.01)

    async def auditor(self) -> str:
        """The bookie whose process it is in."""

        async def elected() -> bool:
            return await leader(self._store, self._root) is not None

        await until(elected, "there is an auditor")
        found = await leader(self._store, self._root)
        return "" if found is None else found.candidate

    async def worker(self) -> str:
        """One that has a lock, if there is one; else any."""
        for lock in await held_locks(self._store, self._root):
            return lock.holder
        return await self.auditor()

    async def concerned(self, victim: str, *, target: bool) -> str:
        """A bookie that may be copied from, or to, for a ledger that names the victim, if there is one."""
        bookies = set(self._client.bookies) - {victim}
        for metadata in await self.naming(victim):
            named = set(metadata.fragments[-1].bookies)
            if some := sorted(bookies - named if target else bookies & named):
                return some[0]
        return min(bookies)

    async def switched_off(self, running: Iterable[LocalBookie]) -> None:
        """Return when no worker of these bookies has a ledger in hand, nor takes another one."""

        async def at_rest(bookie_id: str) -> bool:
            there = self._client.bookies | self._client.read_only_bookies
            told = await asyncio.to_thread(metrics, there[bookie_id].metrics_port)
            return not (told["bkpy_replication_enabled"] or told["bkpy_replication_working"])

        unseen = (KeyError, OSError)  # a bookie that has just started, or its new port
        for bookie in running:
            if bookie.pid is not None:
                what = f"the worker of {bookie.id} rests"
                await eventually(lambda name=bookie.id: at_rest(name), what, pause_s=0.05, meanwhile=unseen)

    # --- what is demanded ---------------------------------------------------------------------------------------------

    async def healed(self, *victims: str) -> None:
        """Return when nothing names these, and neither mark nor lock is left. Every writer has ended by now.

        A bookie that returned is verified in a ledger once the ledger is closed: a reader closes what no writer did.
        """

        async def all_of_it() -> bool:
            await self._close_returned()
            named = await self.naming(*victims)
            return not (named or await self.marked() or await held_locks(self._store, self._root))

        try:
            await until(all_of_it, f"nothing misses {victims} any more")
        except AssertionError as error:
            left = {one.ledger_id: (one.state.value, one.fragments) for one in await self.naming(*victims)}
            told = await asyncio.to_thread(as_json, "autorecovery", "status", uri=self.uri)
            raise AssertionError(f"{error}: {left}; marked: {await self.marked()}; {told}") from None

    async def _close_returned(self) -> None:
        for ledger_id in await self.open_after_return():
            await (await self._client.recover_ledger(ledger_id)).close()

    async def demand(self) -> None:
        """Every promise is kept, and the bookies that are named have what they are named for, intact.

        Of an entry that was written while one of its bookies died, that is an ack quorum of them.
        """
        async with bkpy.connect(self.uri) as fresh:
            living = fresh.bookies.keys() | fresh.read_only_bookies.keys()
            for ledger_id, promises in self.promises.items():
                if (await fresh.ledger_metadata(ledger_id)).state != LedgerState.CLOSED:
                    await (await fresh.recover_ledger(ledger_id)).close()  # it missed nobody, so nobody has closed it
                if ledger_id in self._settled:
                    await whole(fresh, ledger_id)
                else:
                    await check_replicas(fresh, ledger_id)
                metadata = await fresh.ledger_metadata(ledger_id)
                assert all(living >= set(fragment.bookies) for fragment in metadata.fragments)
                await check(fresh, promises)


def metrics(port: int) -> dict[str, float]:
    """What the process at that port tells of itself; of metrics with labels, one."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE_S) as page:
        lines = [line.rpartition(" ") for line in page.read().decode().splitlines() if not line.startswith("#")]
    return {name.partition("{")[0]: float(value) for name, _, value in lines}


async def until(condition: Callable[[], Awaitable[bool]], what: str, *, pause_s: float = 0.05) -> None:
    """Return when that is so. While the metadata can't be read it isn't."""
    await eventually(condition, what, pause_s=pause_s, meanwhile=MetadataUnavailableError)
