"""The healing run: a bookie never comes back, and workers copy what it had while bookies and workers fail.

Ledgers are written, some of them closed, some left by their writer, and one of five bookies loses its host for good.
Two processes of autorecovery, on hosts of their own, are to elect an auditor, to mark its ledgers and to work them off.
Meanwhile one of them dies, or loses the network or the metadata store; another bookie dies and comes back; a client
writes on; a ledger is deleted, or read all the while. When the faults have ended, every mark must go, every ledger must
be closed where it was promised to be or later, and on as many living bookies as its write quorum says, all of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from bkpy.config.recovery import RecoverySettings
from bkpy.errors import BookKeeperError
from bkpy.metadata.marks import Marks
from bkpy.protocol.holdings import holdings
from bkpy.recovery.auto_recovery import AutoRecovery

from .buggify import BOOKIE, draw
from .cluster import ROOT, Cluster, Ledger, held_by
from .marks import REPLICATED, WORKER_DIED
from .scenario import DEATHS, death
from .world import Host, HostDied

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from bkpy.client.client import Client

BOOKIES = 5
SIZES = ((3, 3, 2), (2, 2, 2), (3, 2, 2), (4, 2, 2))
ENTRIES = 30
HEALED_WITHIN_S = 500.0
PASSWORD = b"secret"


class Healing:
    """One run. `run()` may be called once, in the cluster's `run`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.plan = self.world.stream("plan")
        self.workers = [self.world.add_host("worker-1"), self.world.add_host("worker-2")]
        self.lives: dict[Host, asyncio.Future[None]] = {}
        drawn = draw(self.world, "workers", {k: v for k, v in BOOKIE.items() if k in RecoverySettings.model_fields})
        quick = {
            "open_ledger_grace_s": 2.0,
            "repair_pause_max_s": 5.0,
            "marks_look_interval_s": 5.0,
            "lost_bookie_settle_s": 2.0,
            "lost_bookie_recovery_delay_s": 5.0,
            "audit_look_interval_s": 1.0,
            "audit_follow_interval_s": 2.0,
        }
        self.settings = RecoverySettings(**{**quick, **drawn})
        self.lost = self.plan.choice(cluster.bookies)
        self.named: dict[int, set[str]] = {}  # by ledger that was closed before the loss
        self.living = [bookie for bookie in cluster.bookies if bookie is not self.lost]

    async def run(self) -> None:
        cluster = self.cluster
        await cluster.start()
        await cluster.client_host.start(self.write_all(), name="workload")
        self.lost.host.crash()
        for host in self.workers:
            host.boot()
            self.begin(host)
        await asyncio.sleep(self.plan.random() * 2)
        if self.plan.random() < 0.5:
            await cluster.client_host.start(self.delete_one(), name="deletion")
        await asyncio.gather(*(self.misfortune() for _ in range(self.plan.randrange(4))))
        self.world.net.heal()
        for host in self.workers:
            if not host.up:
                host.boot()
                self.begin(host)
        self.world.record("event", "faults have ended")
        await cluster.client_host.start(self.check(), name="the account")

    # --- ledgers ----------------------------------------------------------------------------------------------------

    async def write_all(self) -> None:
        async with self.cluster.client() as client:
            for number in range(self.plan.randrange(3, 7)):
                sizes = self.plan.choice(SIZES)
                ledger_id = await self.cluster.write_ledger(client, ENTRIES, sizes, password=PASSWORD)
                metadata = await client.ledger_metadata(ledger_id)
                self.named[ledger_id] = {name for fragment in metadata.fragments for name in fragment.bookies}
                if not number:
                    self.deleted = ledger_id
        client = await self.cluster.connect(self.cluster.client_host)
        for _ in range(self.plan.randrange(3)):  # these stay open
            with contextlib.suppress(BookKeeperError):
                await self.leave_open(client)
        await client.close()

    async def leave_open(self, client: Client) -> None:
        sizes = self.plan.choice(SIZES)
        writer = await client.create_ledger(
            ensemble_size=sizes[0], write_quorum=sizes[1], ack_quorum=sizes[2], password=PASSWORD
        )
        ledger = self.cluster.ledgers[writer.ledger_id] = Ledger(PASSWORD, tolerates_one=False)
        for i in range(self.plan.randrange(10)):
            ledger.acknowledged[await writer.append(b"%d" % i * 50)] = b"%d" % i * 50
        writer.abandon()

    async def delete_one(self) -> None:
        """At any time, from before its mark to after its copies."""
        async with self.cluster.client(calm=True) as client:
            await asyncio.sleep(self.plan.random() * 20)
            await client.delete_ledger(self.deleted)
            del self.cluster.ledgers[self.deleted]

    # --- workers and their misfortunes ------------------------------------------------------------------------------

    def begin(self, host: Host) -> None:
        self.lives[host] = host.start(self.work(host), name="worker")

    async def work(self, host: Host) -> None:
        recovery = AutoRecovery(self.settings, host.session(), ROOT, host.runtime, host.name, CollectorRegistry())
        recovery.start()
        await asyncio.Event().wait()

    async def misfortune(self) -> None:
        await asyncio.sleep(self.plan.random() ** 2 * 3)
        host, bookie = self.plan.choice(self.workers), self.plan.choice(self.living)
        match self.plan.randrange(4):
            case 0:
                await death(self.cluster, bookie, self.plan.choice(DEATHS))
            case 1 if host.up:
                host.crash()
                self.world.marks[WORKER_DIED] += 1
                with contextlib.suppress(HostDied):
                    await self.lives[host]
                await asyncio.sleep(self.plan.random())
                if not host.up:
                    host.boot()
                    self.begin(host)
            case 2:
                self.world.net.partition(host.address, bookie.host.address)
                await asyncio.sleep(self.plan.random() * 5)
                self.world.net.mend(host.address, bookie.host.address)
            case _:
                sessions = list(host.sessions)
                for session in sessions:
                    host.do(session.suspend)
                # Sometimes longer than a session lives, and its locks with it.
                await asyncio.sleep(self.plan.random() ** 2 * 20)
                for session in sessions:
                    if session in host.sessions:
                        host.do(session.resume)

    # --- the account ------------------------------------------------------------------------------------------------

    async def check(self) -> None:
        async with self.cluster.client(calm=True) as client:
            cluster = client.upkeep.cluster
            marks = Marks(cluster.store, cluster.root, client.upkeep.parts.runtime)
            try:
                async with asyncio.timeout(HEALED_WITHIN_S):
                    while left := {*[ledger_id async for ledger_id in marks.list()], *await self.unhealed(client)}:
                        await asyncio.sleep(0.5)
            except TimeoutError:
                raise AssertionError(f"ledgers {left} stay under-replicated") from None
            for ledger_id in self.cluster.ledgers:
                await self.check_ledger(client, ledger_id)

    async def unhealed(self, client: Client) -> list[int]:
        """The ledgers that name the lost bookie."""
        lost = self.lost.settings.bookie_id
        found = []
        for ledger_id in self.cluster.ledgers:
            metadata = await client.ledger_metadata(ledger_id)
            if any(lost in fragment.bookies for fragment in metadata.fragments):
                found.append(ledger_id)
        return found

    async def check_ledger(self, client: Client, ledger_id: int) -> None:
        """Nothing is lost, all that are named live, and whoever is new has all that it is named for."""
        ledger = self.cluster.ledgers[ledger_id]
        # One that had nothing on the lost bookie may still be open.
        reader = await client.recover_ledger(ledger_id, password=PASSWORD)
        metadata = await client.ledger_metadata(ledger_id)
        found = {entry.entry_id: entry.data async for entry in reader.read()}
        assert ledger.acknowledged.items() <= found.items(), f"ledger {ledger_id} lost entries"
        assert ledger.last_entry in (None, metadata.last_entry)
        by_name = {bookie.settings.bookie_id: bookie for bookie in self.living}
        for held in holdings(metadata):
            assert held.last_entry is not None
            for share in held.shares:
                name = share.bookie_id
                assert name in by_name, f"ledger {ledger_id} names {name}, which is gone"
                if name in self.named.get(ledger_id, (name,)):
                    continue  # it may lack what was acknowledged without it
                has = await held_by(reader, found, by_name[name], held.last_entry)
                wanted = {n for start in share.starts for n in range(start, held.last_entry + 1, share.step)}
                assert has is not None, f"{name} can't tell what it has of ledger {ledger_id}"
                self.world.marks[REPLICATED] += 1
                assert wanted <= has, f"{name} lacks {sorted(wanted - has)} of ledger {ledger_id}"
        await reader.close()


def healing_run(seed: int) -> tuple[Cluster, Coroutine[Any, Any, None]]:
    cluster = Cluster(seed, bookies=BOOKIES)
    return cluster, Healing(cluster).run()
