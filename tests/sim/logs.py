"""The logs run: two to four hosts want to write one log, take it from each other, die and come back; another tails it.

They roll at every few entries, close, abandon, truncate what was read, and append until somebody else has taken the log
from them. For some of them the log's list is full after a few ledgers, or moves them into pages of two. Bookies die,
links are cut and the metadata store goes away meanwhile; an operator accepts the loss of what open ledgers have. A
keeper of logs maintains this log and two others, one of which it may not read. When all of that has ended, the log is
opened once more, closed and read, and has to be what `Account.check` says.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

from bkpy.client.client import log_parts, replication_context
from bkpy.config.recovery import RecoverySettings
from bkpy.errors import BookKeeperError, LogFencedError, LogLockedError, MetadataUnavailableError
from bkpy.log.keeper import LogKeeper
from bkpy.metadata import paths
from bkpy.metadata.store.outcome import Done
from bkpy.protocol.ledger.accepted_loss import AcceptedLoss
from bkpy.protocol.ledger.ledger_metadata import LedgerState
from bkpy.protocol.log.log_list import LogList
from bkpy.protocol.log.log_opening import LEDGER_ENTRIES_MAX
from bkpy.protocol.wire.records import STAMP_SIZES, ledger_key

from .cluster import ROOT, Cluster
from .coverage_marks import LOG_LOST, LOG_TAKEN
from .failover import SIZES, Failover
from .log_users import PASSWORD, LogUsers, noting_fences, noting_pages
from .users import PATIENCE_S
from .world import Host, HostDied, World

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from random import Random

    from bkpy.client.client import Client
    from bkpy.protocol.log.log_list import Segment

UNREADABLE, DELETED = "a-log-of-others", "a-log-that-was-deleted"  # they come before the log
NAME = "orders"


class Logs(Failover):
    """One run. `run()` may be called once, in the cluster's `run`."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        leaders = [self.writing, *self.rescuers, self.world.add_host("rescuer-3")]
        self.leaders = leaders[: self.plan.choice((2, 2, 3, 4))]
        sizes = self.plan.choice(SIZES)
        self.keeping = self.world.add_host("keeper")
        self.users = LogUsers(self.world, NAME, sizes, self.world.stream("retention").choice((None, None, 0.2)))
        if self.users.retention_s is not None:
            self.users.expiry_s = self.world.stream("expiry").choice((1.0, 1.0, None))
        self.account = self.users.account
        # Of all that write: a roll leaves room for the next opener by its own bound.
        self.room = self.world.stream("room").choice((None, None, 1000, 2000, 4000))
        self.page_rows = self.world.stream("pages").choice((2, 2, 2, 3, 128))

    async def run(self) -> None:
        with noting_fences(), noting_pages(self.world.marks):
            await self.play()

    async def play(self) -> None:
        hosts = {*self.rescuers, *self.leaders, self.reading, self.keeping} - {self.writing}
        for host in sorted(hosts, key=lambda host: host.name):
            host.boot()
        await self.cluster.start()
        async with self.stranger.about():
            await self.run_among_strangers()

    async def run_among_strangers(self) -> None:
        leading = [asyncio.create_task(self.keep_leading(host)) for host in self.leaders]
        await self.created.wait()
        reading = self.reading.start(self.tail(), name="tail")
        rivals = [self.reading.start(self.compete(number), name=f"rival {number}") for number in range(2)]
        keeping = self.keeping.start(self.keep(), name="keeper")
        self.lag()
        faults = [asyncio.create_task(self.misfortunes(number)) for number in range(self.plan.randrange(3))]
        faults.append(asyncio.create_task(self.deaths()))
        faults.append(asyncio.create_task(self.losses()))
        await asyncio.gather(*faults)
        await asyncio.sleep(self.plan.random() * 3)
        self.world.net.heal()
        self.world.record("event", "faults have ended")
        self.healed = self.users.healed = True
        for task in leading:
            await self.in_time(task, "a leader")
        for task in rivals:
            await self.in_time(task, "a client that wants a lease")
        last = self.plan.choice([host for host in self.leaders if host.up])
        await self.in_time(last.start(self.settle(last), name="the last writer"), "the last writer")
        try:
            async with asyncio.timeout(PATIENCE_S):
                while self.account.tailed < self.account.end:
                    assert not reading.done(), reading.exception()
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"the tail stays at {self.account.tailed} of {self.account.end}") from None
        reading.cancel()
        await self.in_time(keeping, "the keeper of logs")

    # --- those who write ----------------------------------------------------------------------------------------------

    async def keep_leading(self, host: Host) -> None:
        """Be there again after each death."""
        for life in itertools.count():
            if not host.up:
                host.boot()
            try:
                await host.start(self.lead(host, f"{host.name}.{life}"), name="leader")
            except HostDied:
                await asyncio.sleep(self.world.stream(f"rest-{host.name}-{life}").random() * 2)
                if self.healed:
                    if not host.up:
                        host.boot()
                    return
            else:
                return

    async def lead(self, host: Host, name: str) -> None:
        rng = self.world.stream(f"leader-{name}")
        settings = {
            "add_timeout_s": rng.choice((0.3, 1.0, 3.0)),
            "connect_timeout_s": rng.choice((0.3, 3.0)),
            "add_quorum_timeout_s": rng.choice((2.0, 30.0)),
            "no_bookies_timeout_s": rng.choice((0.5, 10.0)),
            "log_retention_interval_s": 0.2,
            "log_turn_pause_max_s": rng.choice((0.05, 1.0)),
            "log_page_rows": self.page_rows,
        }
        settings |= self.users.bounds
        if self.room is not None:
            settings["log_write_bytes_max"] = self.room
        async with self.client(host, **settings) as client:
            for turn in itertools.count():
                if self.healed:
                    return
                try:
                    log = await self.users.open(client, rng)
                except (LogLockedError, LogFencedError):
                    await asyncio.sleep(rng.random())
                    continue
                except BookKeeperError as error:
                    host.record("log not opened", type(error).__name__)
                    await asyncio.sleep(rng.random() * 0.3)
                    continue
                self.created.set()
                self.world.marks[LOG_TAKEN] += 1
                host.record("log opened", f"at {log.next_position}")
                await self.users.write_log(host, log, self.account.begin(f"{name}.{turn}"), rng)
                await asyncio.sleep(rng.random() ** 2)

    async def deaths(self) -> None:
        """Now and then one of the hosts that write dies, also in the midst of a roll."""
        rng = self.world.stream("deaths")
        for _ in range(rng.choice((0, 1, 2, 4))):
            await asyncio.sleep(rng.random() ** 2 * 4)
            host = rng.choice(self.leaders)
            if host.up:
                self.world.record("event", f"{host.name} dies")
                rng.choice((host.crash, host.power_cut))()

    # --- an operator, and the auditor's part --------------------------------------------------------------------------

    async def losses(self) -> None:
        """Now and then what the log's open ledgers have is given up, several times in a row perhaps."""
        rng = self.world.stream("losses")
        for _ in range(rng.choice((0, 1, 2, 3))):
            await asyncio.sleep(rng.random() ** 2 * 3)
            await self.keeping.start(self.give_up(rng), name="operator")

    async def give_up(self, rng: Random) -> None:
        async with self.cluster.client(self.keeping, calm=True) as client:
            losses = rng.choice((1, 2, 3))
            for _ in range(50):  # until a writer has come, and again until the next one has, in vain perhaps
                with contextlib.suppress(BookKeeperError):
                    log_list, _ = await log_parts(client).logs.read(NAME, fresh=True)
                    if log_list.open_segments:
                        losses -= await self.give_up_one(client, rng.choice(log_list.open_segments), rng)
                if not losses:
                    return
                await asyncio.sleep(rng.random() ** 3 * 0.3)

    async def give_up_one(self, client: Client, segment: Segment, rng: Random) -> bool:
        """End the ledger before an entry that was acknowledged, perhaps, as one whose bookies are gone is ended."""
        await replication_context(client).fence(segment.ledger_id)
        catalog = replication_context(client).cluster.catalog
        metadata, version = await catalog.read(segment.ledger_id, fresh=True)
        if metadata.state is LedgerState.CLOSED:
            return False
        first = segment.first_position
        there = self.account.acknowledged(first, first + LEDGER_ENTRIES_MAX)
        # Read behind that: what is acknowledged behind a roll is so when the roll is in the list.
        log_list, _ = await log_parts(client).logs.read(NAME, fresh=True)
        following = [other.first_position for other in log_list.segments if other.first_position > first]
        behind = min(following, default=first + LEDGER_ENTRIES_MAX)
        there = there[: behind - first]
        left = there[: rng.choice((0, rng.randrange(len(there) + 1)))]
        wanted = dataclasses.replace(
            metadata,
            state=LedgerState.CLOSED,
            last_entry=len(left) - 1,
            length=sum(map(len, left)) + STAMP_SIZES[segment.stamp] * len(left),
            accepted_loss=AcceptedLoss(
                log_parts(client).logs.now_ms(), -1, len(there) - 1, {"gone": "its disks are lost"}
            ),
        )
        outcome = await catalog.write(wanted, version)
        if isinstance(outcome, Done):
            self.account.lose(range(first + len(left), behind))
            self.world.marks[LOG_LOST] += 1
            self.world.record("event", "a loss was accepted", f"of ledger {segment.ledger_id}, {len(left)} are left")
        return isinstance(outcome, Done)

    async def keep(self) -> None:
        """Maintain logs until the faults have ended, and the log that was deleted is gone."""
        store = self.keeping.session()
        store.forbidden.add(f"{ROOT}/{paths.LOGS}/{UNREADABLE}")
        async with self.client(self.keeping, store=store) as client:
            for name in (UNREADABLE, DELETED):
                log_list = LogList(name, 3, 3, 2, "crc32c", ledger_key(PASSWORD), deleted=name == DELETED)
                while not isinstance(await log_parts(client).logs.create(name, log_list), Done):
                    await asyncio.sleep(0.1)
            settings = RecoverySettings(
                log_retention_interval_s=0.3, log_orphan_interval_s=1.0, log_orphan_grace_s=60.0
            )
            keeper = LogKeeper(
                replication_context(client).cluster, replication_context(client).fence, self.keeping.runtime, settings
            )
            keeping = self.keeping.runtime.spawn(keeper.run(), name="keeper of logs")
            while not self.healed or DELETED in await self.names(client):
                await asyncio.sleep(0.3)
                assert not keeping.done(), keeping
            keeping.cancel()
            await asyncio.wait([keeping])

    async def names(self, client: Client) -> list[str]:
        try:
            assert UNREADABLE in [name async for name in client.list_logs()]
            return await log_parts(client).logs.names()
        except MetadataUnavailableError:
            return [DELETED]

    # --- those who read -----------------------------------------------------------------------------------------------

    async def tail(self) -> None:
        async with self.client(self.reading, read_timeout_s=2.0) as client:
            await self.users.follow(self.reading, client)

    async def compete(self, number: int) -> None:
        async with self.client(self.reading, read_timeout_s=2.0) as client:
            await self.users.compete(self.reading, client, number)

    async def settle(self, host: Host) -> None:
        async with self.cluster.client(host, calm=True) as client:
            await self.users.settle(client)


def logs_run(seed: int) -> tuple[Cluster, Coroutine[Any, Any, None]]:
    world = World(
        seed,
        network_latency_s=((0.00005, 0.0005), (0.0005, 0.02))[seed // 2 % 2],
        metadata_latency_s=((0.0002, 0.002), (0.01, 0.1))[seed // 4 % 2],
        metadata_timeout_s=(0.3, 2.0, 10.0)[seed % 3],
    )
    cluster = Cluster(seed, bookies=4 + seed % 2, world=world)
    return cluster, Logs(cluster).run()
