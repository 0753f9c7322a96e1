"""The healing run: a bookie never comes back, and workers copy what it had while bookies and workers fail.

Ledgers are written, some of them closed, some left by their writer, and one of the bookies loses its host for good. Two
processes of autorecovery, on hosts of their own, are to elect an auditor, to mark its ledgers and to work them off.

Meanwhile one of them dies, pauses, or loses the network or the metadata store; another bookie dies and comes back; a
client writes on; a ledger is deleted; a bookie is drained and decommissioned, or stays after all; a new one comes, and
copies are moved to it, while it may be formatted, and start anew; and where the lost one had the only copies of an open
ledger's end, their loss is accepted.

When the faults have ended, every mark must go, and every ledger must be closed, and as many living bookies as its write
quorum says must have all of it. What must hold at every moment is in `healing_oracle.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import warnings
from collections import defaultdict
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from prometheus_client import CollectorRegistry

from bkpy.client.client import replication_context
from bkpy.config.recovery import RecoverySettings
from bkpy.errors import BookKeeperError
from bkpy.metadata import paths
from bkpy.metadata.ledgers.layout import LONG_HIERARCHICAL
from bkpy.metadata.replication.underreplication import UnderreplicationQueue
from bkpy.metadata.store.store import NoNode
from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata, LedgerState
from bkpy.protocol.ledger.quorum import write_set
from bkpy.protocol.repair.holdings import holdings
from bkpy.replication.auto_recovery import AutoRecovery
from bkpy.replication.worker.ledger_repair import LedgerRepair

from . import operators
from .buggify import BOOKIE, draw
from .cluster import ROOT, Cluster, Ledger, held_by
from .coverage_marks import (
    COOKIE_LOST,
    DRAIN_CANCELLED,
    FORMAT_REFUSED,
    FORMATTED_ANEW,
    LOSS_ACCEPTED,
    REBALANCED,
    REPLICATED,
    RETIRED,
    WORKER_DIED,
)
from .healing_oracle import HealingOracle
from .scenario import DEATHS, death
from .world import Host, HostDied

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from bkpy.client.client import Client
    from bkpy.client.write.writer import LedgerWriter
    from bkpy.protocol.repair.rereplication import Copy

    from .cluster import Bookie

BOOKIES = 6
SIZES = ((3, 3, 2), (2, 2, 2), (3, 2, 2), (4, 2, 2))
SMALL = SIZES[:3]
FRAGILE = ((2, 2, 1), (1, 1, 1))  # of a ledger whose end only the lost bookie may know
ENTRIES = 30
HEALED_WITHIN_S = 500.0
CANCELLED = 0.4  # of the drains
UNKNOWN = 0.2  # of the lost bookies, whose cookies are gone before an auditor looks
FORMATTED = 0.6  # of the new bookies, while copies are made to them
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
            "drain_look_interval_s": 0.3,
            "decommission_patience_s": 5.0,
        }
        # In some runs a client writes to all bookies there are: no other one takes the place of one that is away. The
        # writer marks what that one misses. Without it, only the check of the replicas could find it.
        self.wide = self.world.stream("short").random() < 0.5
        check_s = 1e6 if self.wide else 10.0
        self.settings = RecoverySettings(**{**quick, **drawn, "replicas_check_interval_s": check_s})
        self.oracle = HealingOracle(cluster, self.settings.open_ledger_grace_s)
        self.new_connection = cluster.bookies.pop() if self.plan.random() < 0.5 else None
        self.small = self.new_connection is not None and self.world.stream("small").random() < 0.5
        if self.small:  # no bookie could take the place of the lost one, until another one comes
            del cluster.bookies[3:]
        self.lost = self.plan.choice(cluster.bookies)
        self.living: list[Bookie] = []
        self.unsent: defaultdict[tuple[str, int], set[int]] = defaultdict(set)  # by bookie and ledger
        self.dying: set[Bookie] = set()
        self.retires = False
        self.over = asyncio.Event()
        self.undisturbed = asyncio.Event()  # else new ledgers would name a bookie before it is formatted
        self.undisturbed.set()
        self.copied = asyncio.Event()  # something, to the new bookie

    async def run(self) -> None:
        with self.oracle.watching(), self.dallying():
            await self.play()
        self.world.record("oracle", "swaps", str(self.oracle.swaps))

    async def play(self) -> None:
        cluster, plan = self.cluster, self.plan
        await cluster.start()
        await cluster.client_host.start(self.write_all(), name="workload")
        self.living = [bookie for bookie in cluster.bookies if bookie is not self.lost]
        name = self.lost.settings.bookie_id
        self.oracle.gone.add(name)
        self.lost.host.crash()
        if self.world.stream("cookie").random() < UNKNOWN:
            await cluster.client_host.start(self.forget(name), name="forgetting")
        for host in self.workers:
            host.boot()
            self.begin(host)
        await asyncio.sleep(plan.random() * 2)
        others = [cluster.client_host.start(self.write_on(), name="a client that writes on")]
        if plan.random() < 0.5:
            others.append(cluster.client_host.start(self.delete_one(), name="deletion"))
        self.retires = plan.random() < 0.5 and not self.small
        if self.retires:
            others.append(cluster.client_host.start(self.retire(plan.choice(self.living)), name="retirement"))
        if self.oracle.may_lose:
            others.append(cluster.client_host.start(self.accept_losses(), name="acceptance"))
        if self.new_connection is not None:
            others.append(self.world.loop.create_task(self.grow(self.new_connection)))
        await asyncio.gather(*(self.misfortune() for _ in range(plan.randrange(5))))
        self.world.net.heal()
        for host in self.workers:
            if not host.up:
                host.boot()
                self.begin(host)
        self.world.record("event", "faults have ended")
        self.over.set()
        try:
            async with asyncio.timeout(HEALED_WITHIN_S):
                await asyncio.gather(*others)
        except TimeoutError:
            raise AssertionError("what was done by hand doesn't end") from None
        await cluster.client_host.start(self.check(), name="the account")

    @contextlib.contextmanager
    def dallying(self) -> Iterator[None]:
        """Whoever has made a copy may pause before the swap, at times longer than its session lives."""
        rng, copy = self.world.stream("dallying"), LedgerRepair.copy

        async def copy_and_dally(repair: LedgerRepair, metadata: LedgerMetadata, what: Copy, target: str) -> Any:
            copied = await copy(repair, metadata, what, target)
            to_newcomer = self.new_connection is not None and target == self.new_connection.settings.bookie_id
            if to_newcomer:
                self.copied.set()
            if not self.over.is_set() and rng.random() < (0.8 if to_newcomer else 0.3):
                await asyncio.sleep(rng.random() ** 3 * 15)
            return copied

        with patch.object(LedgerRepair, "copy", copy_and_dally):
            yield

    # --- ledgers ----------------------------------------------------------------------------------------------------

    async def write_all(self) -> None:
        async with self.cluster.client() as client:
            for number in range(self.plan.randrange(3, 7)):
                sizes = self.plan.choice(SMALL if self.small else SIZES)
                ledger_id = await self.cluster.write_ledger(client, ENTRIES, sizes, password=PASSWORD)
                if not number:
                    self.deleted = ledger_id
        client = await self.cluster.connect(self.cluster.client_host)
        for _ in range(self.plan.randrange(3)):  # these stay open
            with contextlib.suppress(BookKeeperError):
                await self.leave_open(client, self.plan.choice(SMALL if self.small else SIZES))
        if self.plan.random() < 0.4:
            with contextlib.suppress(BookKeeperError):
                writer = await self.leave_open(client, self.plan.choice(FRAGILE))
                self.oracle.may_lose.add(writer.ledger_id)
                (self.lost,) = (b for b in self.cluster.bookies if b.settings.bookie_id == writer.ensemble[0])
        await client.close()

    async def leave_open(self, client: Client, sizes: tuple[int, int, int]) -> LedgerWriter:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what an ack quorum of one means
            writer = await client.create_ledger(
                ensemble_size=sizes[0], write_quorum=sizes[1], ack_quorum=sizes[2], password=PASSWORD
            )
        ledger = self.cluster.ledgers[writer.ledger_id] = Ledger(PASSWORD, tolerates_one=False)
        for i in range(self.plan.randrange(10)):
            ledger.acknowledged[await writer.append(b"%d" % i * 50)] = b"%d" % i * 50
        writer.abandon()
        self.note_unsent(writer.ledger_id, ledger)
        return writer

    def note_unsent(self, ledger_id: int, ledger: Ledger) -> None:
        """Note what an ack quorum has, and a bookie of the write set may never get: its writer has gone.

        No record tells of it, and a recovery writes nothing back that is known to be acknowledged. The check of the
        replicas alone finds it.
        """
        value = self.world.metadata.node(LONG_HIERARCHICAL.path_of(ROOT, ledger_id)).data
        metadata = LedgerMetadata.decode(ledger_id, value)
        for entry_id in ledger.acknowledged:
            bookies = metadata.fragment_of(entry_id).bookies
            for place in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum):
                (bookie,) = (b for b in self.cluster.bookies if b.settings.bookie_id == bookies[place])
                if entry_id not in bookie.promises[ledger_id]:
                    self.unsent[bookies[place], ledger_id].add(entry_id)

    async def write_on(self) -> None:
        """Slowly, so that what is lost or leaves has to be left by the writer; a ledger that was fenced has ended."""
        async with self.cluster.client(ensemble_changes_max=1000) as client:
            rng = self.world.stream("writing on")
            while not self.over.is_set():
                await self.undisturbed.wait()
                with contextlib.suppress(BookKeeperError):
                    # A bookie can't retire from a ledger that all bookies have.
                    size = max(3, len(client.bookies)) if self.wide and not self.retires else 3
                    writer = await client.create_ledger(
                        ensemble_size=size,
                        write_quorum=size,
                        ack_quorum=2,
                        password=PASSWORD,
                        # Of all that are there: no other bookie could take the place of one that never comes.
                        allow_absent_bookies=size == 3,
                    )
                    ledger = self.cluster.ledgers[writer.ledger_id] = Ledger(PASSWORD, tolerates_one=False)
                    while not self.over.is_set() and rng.random() < 0.9:
                        ledger.acknowledged[await writer.append(b"on" * 50)] = b"on" * 50
                        await asyncio.sleep(rng.random())
                    await writer.close()
                    ledger.last_entry = writer.last_add_confirmed
                await asyncio.sleep(rng.random())

    async def delete_one(self) -> None:
        """At any time, from before its mark to after its copies."""
        async with self.cluster.client(calm=True) as client:
            await asyncio.sleep(self.plan.random() * 20)
            await client.delete_ledger(self.deleted)
            del self.cluster.ledgers[self.deleted]

    # --- what is done by hand -----------------------------------------------------------------------------------------

    async def retire(self, bookie: Bookie) -> None:
        """Or let it stay after all."""
        name = bookie.settings.bookie_id
        rng = self.world.stream("retiring")
        async with self.cluster.client(calm=True) as client:
            await asyncio.sleep(rng.random() * 10)
            await self.at_work(*(host.name for host in self.workers))
            cancelled_after_s = rng.random() ** 2 * 20 if rng.random() < CANCELLED else None
            if not await operators.drain(client, name, self.settings, cancelled_after_s):
                self.world.marks[DRAIN_CANCELLED] += 1
                return
            self.living.remove(bookie)
            while bookie in self.dying:
                await asyncio.sleep(0.1)
            while name not in self.oracle.gone:
                await operators.decommission(client, name, self.settings, lambda: self.oracle.gone.add(name))
                await asyncio.sleep(operators.TRY_AGAIN_S)
            bookie.host.crash()
            self.world.marks[RETIRED] += 1

    async def forget(self, bookie_id: str) -> None:
        async with self.cluster.client(calm=True) as client:
            await operators.forget(client, bookie_id)
            self.world.marks[COOKIE_LOST] += 1

    async def accept_losses(self) -> None:
        async with self.cluster.client(calm=True) as client:
            await asyncio.sleep(self.plan.random() * 20)
            for ledger_id in sorted(self.oracle.may_lose):
                metadata = await operators.accept_loss(client, ledger_id, PASSWORD)
                self.world.marks[LOSS_ACCEPTED] += metadata.accepted_loss is not None

    async def grow(self, new_connection: Bookie) -> None:
        """A bookie comes that has nothing yet."""
        rng = self.world.stream("growing")
        await asyncio.sleep(rng.random() * (40 if self.small else 10))
        self.cluster.bookies.append(new_connection)
        formatted = rng.random() < FORMATTED
        if formatted and rng.random() < 0.8:
            self.undisturbed.clear()
        await new_connection.start()
        rebalancing = self.cluster.client_host.start(self.rebalance(), name="rebalancing")
        if formatted:
            with contextlib.suppress(TimeoutError):
                at_once = self.world.stream("formatting").random() < 0.5
                async with asyncio.timeout(0 if at_once else rng.random() * 15):
                    await self.copied.wait()  # what is copied has its swap before it
            await self.make_anew(new_connection)
            self.undisturbed.set()
        self.living.append(new_connection)
        await rebalancing

    async def make_anew(self, bookie: Bookie) -> None:
        """Stop it, format it if no ledger names it or may come to, and start it under the same id."""
        await bookie.stop()
        if await operators.format_stopped(bookie):
            self.world.marks[FORMATTED_ANEW] += 1
            bookie.promises.clear()  # it has nothing any more: a swap that names it for a former copy is noticed
        else:
            self.world.marks[FORMAT_REFUSED] += 1
        await bookie.start()

    async def rebalance(self) -> None:
        async with self.cluster.client(calm=True) as client:
            moves = await operators.rebalance(client, self.settings, self.world.stream("rebalancing"))
            self.world.marks[REBALANCED] += moves

    # --- workers and their misfortunes ------------------------------------------------------------------------------

    def begin(self, host: Host) -> None:
        self.lives[host] = host.start(self.work(host), name="worker")

    async def work(self, host: Host) -> None:
        recovery = AutoRecovery(self.settings, host.session(), ROOT, host.runtime, host.name, CollectorRegistry())
        recovery.start()
        await asyncio.Event().wait()

    async def at_work(self, *holders: str) -> None:
        """Until one of them works on a ledger, though not for ever."""
        folder = f"{ROOT}/{paths.LOCKS}"
        for _ in range(1000):
            with contextlib.suppress(NoNode):
                names = [name for name in self.world.metadata.node(folder).children if "-" not in name]
                held = [self.world.metadata.node(f"{folder}/{name}").data for name in sorted(names)]
                if any(json.loads(data)["holder"] in holders for data in held):
                    return
            await asyncio.sleep(0.01)

    async def misfortune(self) -> None:
        await asyncio.sleep(self.plan.random() ** 2 * 12)
        host, bookie = self.plan.choice(self.workers), self.plan.choice(self.living)
        if self.plan.random() < 0.5:
            await self.at_work(host.name)
        match self.plan.randrange(5):
            case 0 if bookie not in self.dying:
                self.dying.add(bookie)
                await death(self.cluster, bookie, self.plan.choice(DEATHS))
                self.dying.remove(bookie)
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
            case 3:
                for session in list(host.sessions):
                    host.do(session.expire)
            case _:
                await self.cut_off(host, self.plan.random() ** 2 * 20)

    async def cut_off(self, host: Host, seconds: float) -> None:
        """From the metadata store; at times for longer than a session lives, and its locks with it."""
        sessions = list(host.sessions)
        for session in sessions:
            host.do(session.suspend)
        for session in sessions:
            lives_s = min(seconds, session.session_timeout_s)
            await asyncio.sleep(lives_s)
            seconds -= lives_s
            if seconds > 0 and session in host.sessions:
                host.do(session.expire)
        await asyncio.sleep(seconds)
        for session in sessions:
            if session in host.sessions:
                host.do(session.resume)

    # --- the account ------------------------------------------------------------------------------------------------

    async def check(self) -> None:
        async with self.cluster.client(calm=True) as client:
            for ledger_id in self.cluster.ledgers:  # what had nothing on a bookie that is gone may still be open
                reader = await client.recover_ledger(ledger_id, password=PASSWORD)
                await reader.close()
            try:
                async with asyncio.timeout(HEALED_WITHIN_S):
                    while not self.world.loop.errors and (why := await self.incomplete(client)):
                        await asyncio.sleep(0.5)
            except TimeoutError:
                raise AssertionError(f"not healed: {why}") from None
            if not self.world.loop.errors:  # which end the run
                for ledger_id in self.cluster.ledgers:
                    await self.check_ledger(client, ledger_id)

    async def incomplete(self, client: Client) -> str:
        """Why the cluster isn't whole yet: marks that are left, ledgers that aren't on as many living bookies."""
        cluster = replication_context(client).cluster
        marks = UnderreplicationQueue(cluster.store, cluster.root, replication_context(client).parts.runtime)
        if marked := [ledger_id async for ledger_id in marks.list()]:
            return f"ledgers {marked} have marks"
        for name in self.oracle.gone - {self.lost.settings.bookie_id}:
            with contextlib.suppress(NoNode):
                self.world.metadata.node(paths.cookie(ROOT, name))
                return f"{name} still has its cookie"
        for ledger_id in self.cluster.ledgers:
            metadata = await client.ledger_metadata(ledger_id)
            assert metadata.state is LedgerState.CLOSED
            if gone := self.oracle.gone & {name for fragment in metadata.fragments for name in fragment.bookies}:
                return f"ledger {ledger_id} names {', '.join(sorted(gone))}"
            if ledger_id not in self.oracle.may_lose and (why := await self.short(client, metadata)):
                return why
        return ""

    async def short(self, client: Client, metadata: LedgerMetadata) -> str:
        """Which bookie lacks some of its share of a closed ledger."""
        by_name = {bookie.settings.bookie_id: bookie for bookie in self.living}
        reader = await client.open_ledger(metadata.ledger_id, password=PASSWORD)
        try:
            for held in holdings(metadata):
                assert held.last_entry is not None
                for share in held.shares:
                    # One that was formatted denies no older ledger, and can't tell of entries that others have.
                    has = await held_by(reader, {}, by_name[share.bookie_id], held.last_entry, in_limbo=True)
                    wanted = {n for start in share.starts for n in range(start, held.last_entry + 1, share.step)}
                    if self.wide:
                        wanted -= self.unsent[share.bookie_id, metadata.ledger_id]
                    if has is None or not wanted <= has:
                        missing_ranges = sorted(wanted - (has or set()))
                        return f"{share.bookie_id} misses {missing_ranges} of ledger {metadata.ledger_id}"
        except BookKeeperError as error:
            return f"ledger {metadata.ledger_id}: {error}"
        finally:
            await reader.close()
        self.world.marks[REPLICATED] += 1
        return ""

    async def check_ledger(self, client: Client, ledger_id: int) -> None:
        """Nothing is lost of what can be kept."""
        ledger = self.cluster.ledgers[ledger_id]
        reader = await client.open_ledger(ledger_id, password=PASSWORD)
        found = {entry.entry_id: entry.data async for entry in reader.read()}
        kept = {n: data for n, data in ledger.acknowledged.items() if n <= self.oracle.last_kept(ledger_id)}
        assert kept.items() <= found.items(), f"ledger {ledger_id} lost entries"
        assert all(ledger.acknowledged.get(n, data) == data for n, data in found.items())
        assert ledger.last_entry in (None, reader.last_add_confirmed)
        await reader.close()


def healing_run(seed: int) -> tuple[Cluster, Coroutine[Any, Any, None]]:
    cluster = Cluster(seed, bookies=BOOKIES)
    return cluster, Healing(cluster).run()
