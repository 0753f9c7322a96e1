"""The rebuilding run: a bookie comes back without what it had, and gets it back while bookies and a worker fail.

Ledgers are written, some of them closed, some left by their writer, and then one bookie loses its disks, or the last
entries that it had only in memory. It is started again, and all the while it is asked for everything that it had
acknowledged: it may say that it can't tell, but it denies nothing that ledgers name it for. Meanwhile ledgers are
recovered by others, bookies die and come back, this one too, and a worker copies what the auditor takes for lost. When
the faults have ended, the bookie must be sure of itself again, no ledger has a mark, and nothing is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from bkpy.client.client import replication_context
from bkpy.config.recovery import RecoverySettings
from bkpy.errors import BookKeeperError, LedgerRecoveryError
from bkpy.metadata.ledgers.layout import LONG_HIERARCHICAL
from bkpy.metadata.replication.underreplication import UnderreplicationQueue
from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
from bkpy.protocol.ledger.quorum import write_set
from bkpy.protocol.repair.holdings import holdings
from bkpy.protocol.wire.messages import Op, Status, decode_read_reply, pack, reply_status
from bkpy.protocol.wire.records import walk
from bkpy.replication.auto_recovery import AutoRecovery
from tests.hooks import mender_of, pool_of

from .buggify import BOOKIE, draw
from .cluster import ROOT, Cluster, Ledger, held_by
from .coverage_marks import REBUILT, REBUILT_FROM_PARTS
from .scenario import DEATHS, death
from .world import HostDied

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from bkpy.client.client import Client
    from bkpy.client.read.reader import LedgerReader

    from .cluster import Bookie
    from .world import Host

BOOKIES = 4
SIZES = ((3, 3, 2), (2, 2, 2), (3, 2, 2), (4, 3, 2))
ENTRIES = 30
WHOLE_WITHIN_S = 500.0
READ_TIMEOUT_S = 5.0
PASSWORD = b"secret"


class Rebuilding:
    """One run. `run()` may be called once, in the cluster's `run`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.plan = self.world.stream("plan")
        self.worker = self.world.add_host("worker")
        self.deaths: defaultdict[Bookie, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.watcher = self.world.add_host("watcher")
        drawn = draw(self.world, "workers", {k: v for k, v in BOOKIE.items() if k in RecoverySettings.model_fields})
        quick = {
            "open_ledger_grace_s": 2.0,
            "repair_pause_max_s": 5.0,
            "marks_look_interval_s": 5.0,
            "lost_bookie_settle_s": 2.0,
            "lost_bookie_recovery_delay_s": self.plan.choice((0.0, 5.0, 3600.0)),
            "audit_look_interval_s": 1.0,
            "audit_follow_interval_s": 2.0,
        }
        self.settings = RecoverySettings(**{**drawn, **quick})
        self.lost = self.plan.choice(cluster.bookies)
        self.keeps_a_part = self.plan.random() < 0.3  # of what it had: it has no journal
        self.promised: dict[int, set[int]] = {}  # by ledger, what it had acknowledged when it lost it
        self.closed: set[int] = set()  # before the loss
        for bookie in cluster.bookies:
            bookie.mends = True
            bookie.settings = bookie.settings.model_copy(update={"open_ledger_grace_s": self.plan.choice((0.5, 3.0))})
        if self.keeps_a_part:
            self.lost.settings = self.lost.settings.model_copy(update={"journal_write_data": False})

    async def run(self) -> None:
        cluster = self.cluster
        await cluster.start()
        await cluster.client_host.start(self.write_all(), name="workload")
        self.promised = {ledger_id: set(ids) for ledger_id, ids in self.lost.promises.items()}
        self.lost.host.crash()
        if not self.keeps_a_part:
            self.lost.host.disk.swap_out()
            self.lost.rebuilds = True
        over = asyncio.Event()
        self.watcher.boot()
        watching = self.watcher.start(self.deny_nothing(over), name="watcher")
        self.worker.boot()
        self.worker.start(self.work(self.worker), name="worker")
        await asyncio.sleep(self.plan.random() * self.plan.choice((0.1, 10)))
        await self.lost.start()
        self.world.marks[REBUILT_FROM_PARTS if self.keeps_a_part else REBUILT] += 1
        await asyncio.gather(
            *(self.misfortune() for _ in range(self.plan.randrange(4))),
            cluster.client_host.start(self.recover_some(), name="recoveries"),
        )
        self.world.net.heal()
        self.world.record("event", "faults have ended")
        await cluster.client_host.start(self.check(), name="the account")
        over.set()
        await watching

    # --- ledgers ----------------------------------------------------------------------------------------------------

    async def write_all(self) -> None:
        async with self.cluster.client() as client:
            for _ in range(self.plan.randrange(2, 6)):
                sizes = self.plan.choice(SIZES)
                self.closed.add(await self.cluster.write_ledger(client, ENTRIES, sizes, password=PASSWORD))
        client = await self.cluster.connect(self.cluster.client_host)
        for _ in range(self.plan.randrange(1, 4)):  # these stay open
            with contextlib.suppress(BookKeeperError):
                await self.leave_open(client)
        await client.close()

    async def leave_open(self, client: Client) -> None:
        size, write_quorum, ack_quorum = self.plan.choice(SIZES)
        writer = await client.create_ledger(
            ensemble_size=size, write_quorum=write_quorum, ack_quorum=ack_quorum, password=PASSWORD
        )
        ledger = self.cluster.ledgers[writer.ledger_id] = Ledger(PASSWORD, tolerates_one=False)
        for i in range(self.plan.randrange(10)):
            data = b"%d" % i * 50
            ledger.acknowledged[await writer.append(data)] = data
        writer.abandon()

    async def recover_some(self) -> None:
        """As readers do, who are in a hurry: at any time, and with what bookies answer then."""
        async with self.cluster.client() as client:
            for ledger_id in sorted(self.cluster.ledgers.keys() - self.closed):
                await asyncio.sleep(self.plan.random() * 2)
                if self.plan.random() < 0.5:
                    with contextlib.suppress(BookKeeperError):
                        await client.recover_ledger(ledger_id, password=PASSWORD)

    # --- misfortunes --------------------------------------------------------------------------------------------------

    async def work(self, host: Host) -> None:
        recovery = AutoRecovery(self.settings, host.session(), ROOT, host.runtime, host.name, CollectorRegistry())
        recovery.start()
        await asyncio.Event().wait()

    async def misfortune(self) -> None:
        await asyncio.sleep(self.plan.random() ** 2 * 5)
        bookie = self.plan.choice((self.lost, *self.cluster.bookies))
        match self.plan.randrange(3):
            case 0 | 1:
                async with self.deaths[bookie]:  # one after the other: a death ends with a start
                    await death(self.cluster, bookie, self.plan.choice(DEATHS))
            case _:
                other = self.plan.choice(self.cluster.bookies)
                self.world.net.partition(other.host.address, self.lost.host.address)
                await asyncio.sleep(self.plan.random() * 5)
                self.world.net.mend(other.host.address, self.lost.host.address)

    # --- what it says meanwhile -------------------------------------------------------------------------------------

    async def deny_nothing(self, over: asyncio.Event) -> None:
        """Ask it for all it had, until the end."""
        client = await self.cluster.connect(self.watcher, calm=True)
        while not over.is_set():
            for ledger_id, ids in self.promised.items():
                before = self.named(ledger_id, ids)
                try:
                    denied = before & await denied_by(client, self.lost, ledger_id, ids) if before else set()
                except (BookKeeperError, HostDied):
                    await asyncio.sleep(0.1)
                    continue
                denied &= self.named(ledger_id, ids)
                assert not denied, f"{self.lost.host.name} denies {sorted(denied)} of ledger {ledger_id}"
            await asyncio.sleep(0.3)
        await client.close()

    def named(self, ledger_id: int, ids: set[int]) -> set[int]:
        """Of these entries of the ledger, those that its metadata, as they are now, name the bookie for."""
        value = self.world.metadata.node(LONG_HIERARCHICAL.path_of(ROOT, ledger_id)).data
        metadata = LedgerMetadata.decode(ledger_id, value)
        found = set()
        for entry_id in ids:
            if entry_id > metadata.last_entry >= 0:
                continue
            fragment = next(one for one in reversed(metadata.fragments) if one.first_entry <= entry_id)
            places = write_set(entry_id, metadata.ensemble_size, metadata.write_quorum)
            if self.lost.settings.bookie_id in [fragment.bookies[place] for place in places]:
                found.add(entry_id)
        return found

    # --- the account ------------------------------------------------------------------------------------------------

    async def check(self) -> None:
        async with self.cluster.client(calm=True) as client:
            cluster = replication_context(client).cluster
            marks = UnderreplicationQueue(cluster.store, cluster.root, replication_context(client).parts.runtime)
            try:
                async with asyncio.timeout(WHOLE_WITHIN_S):
                    while not self.sure() or [ledger_id async for ledger_id in marks.list()]:
                        await asyncio.sleep(0.5)
            except TimeoutError:
                marked = [ledger_id async for ledger_id in marks.list()]
                raise AssertionError(f"the bookie is in doubt: {self.told()}; marked: {marked}") from None
            for ledger_id in self.cluster.ledgers:
                await self.check_ledger(client, ledger_id)

    def told(self) -> dict[str, Any]:
        assert self.lost.node is not None
        return mender_of(self.lost.node).status()

    def sure(self) -> bool:
        told = self.told()
        return self.lost.host.up and not (told["in_doubt"] or told["left"] or told["waiting"])

    async def check_ledger(self, client: Client, ledger_id: int) -> None:
        """Nothing is lost; and of what was closed before the loss the bookie has all that it is named for."""
        ledger = self.cluster.ledgers[ledger_id]
        reader = await self.recovered(client, ledger_id)
        metadata = await client.ledger_metadata(ledger_id)
        found = {entry.entry_id: entry.data async for entry in reader.read()}
        assert ledger.acknowledged.items() <= found.items(), f"ledger {ledger_id} lost entries"
        assert ledger.last_entry in (None, metadata.last_entry)
        name = self.lost.settings.bookie_id
        for held in holdings(metadata):
            for share in held.shares:
                if share.bookie_id == name and ledger_id in self.closed:
                    assert held.last_entry is not None
                    has = await held_by(reader, found, self.lost, held.last_entry)
                    wanted = {n for start in share.starts for n in range(start, held.last_entry + 1, share.step)}
                    assert has is not None, f"{name} can't tell what it has of ledger {ledger_id}"
                    assert wanted <= has, f"{name} lacks {sorted(wanted - has)} of ledger {ledger_id}"
        await reader.close()

    async def recovered(self, client: Client, ledger_id: int) -> LedgerReader:
        """Bookies that take few requests at once refuse some, which others use meanwhile: tried again, it goes well."""
        try:
            async with asyncio.timeout(WHOLE_WITHIN_S):
                while True:
                    try:
                        return await client.recover_ledger(ledger_id, password=PASSWORD)
                    except LedgerRecoveryError as error:
                        why = str(error)
                        await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"the ledger can't be recovered: {why}") from None


async def denied_by(client: Client, bookie: Bookie, ledger_id: int, ids: set[int]) -> set[int]:
    """Of these entries, those that the bookie says it hasn't. Raises what a call raises."""
    denied = set(ids)
    first, last = min(ids), max(ids)
    while first <= last:
        head = pack([0, ledger_id, first, last, 1 << 20])
        frame = (
            await pool_of(client)
            .channel(bookie.settings.bookie_id)
            .call(Op.READ, head, timeout_s=READ_TIMEOUT_S, again=True)
        )
        if reply_status(frame.head) != Status.OK:
            return denied if reply_status(frame.head) == Status.NO_SUCH_LEDGER else set()
        reply = decode_read_reply(frame.head)
        denied -= {header.entry_id for header in walk(frame.body)}
        denied -= {i for i in ids if any(low <= i <= high for low, high in reply.unknown)}
        first = reply.examined_to + 1
    return denied


def rebuilding_run(seed: int) -> tuple[Cluster, Coroutine[Any, Any, None]]:
    cluster = Cluster(seed, bookies=BOOKIES)
    return cluster, Rebuilding(cluster).run()
