"""The failover run: writers die or go on as zombies, others recover their ledgers, and bookies fail meanwhile.

One host writes several ledgers, another one reads them. At some moment the writing host dies, or loses a part of the
network or the metadata store, or nothing at all happens to it; one or two other hosts recover its ledgers, and the
first of these may die on the way. When all faults have ended, every recovery must end, every writer that lives must
have learnt that it is none any more, and `Stories.check` must be satisfied.
"""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, Any

from bkpy.errors import BookKeeperError

from .cluster import Bookie, Cluster
from .strangers import Stranger
from .users import Users
from .world import Host, World

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from random import Random

    from bkpy.client.write.writer import LedgerWriter

    from .stories import Story

SIZES = ((3, 3, 2), (3, 3, 2), (3, 2, 2), (4, 3, 2), (4, 2, 2), (3, 3, 3), (2, 2, 1), (4, 4, 3))
DEATHS = ("crash", "power cut", "crash at a disk operation", *2 * ("crash in a journal write",), "failed fdatasync")
LINK_FAULTS = ("reset", "cut", "one-way block", "slow")
STORE_FAULTS = ("store away", "replies lost", "a reply lost, then away")
ENDS = ("crash", "crash", "power cut", "cut off", "cut off", "store away", "nothing")
RESCUES = ("one", "one", "two at once", "the first dies", "the first dies")
NEVER = 1 << 60


class Failover(Users):
    """One run. `run()` may be called once, in the cluster's `run`."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        world = self.world
        self.rescuers = [world.add_host("rescuer-1"), world.add_host("rescuer-2")]
        self.reading = world.add_host("reader")
        self.stranger = Stranger(cluster)
        self.created = asyncio.Event()
        self.over = asyncio.Event()  # for the reader
        self.healed = False
        self.busy: dict[Bookie, asyncio.Lock] = {bookie: asyncio.Lock() for bookie in cluster.bookies}

    async def run(self) -> None:
        for host in (*self.rescuers, self.reading):
            host.boot()
        await self.cluster.start()
        async with self.stranger.about():
            await self.run_among_strangers()

    async def run_among_strangers(self) -> None:
        writing = self.writing.start(self.write_all(), name="writers")
        reading = self.reading.start(self.read_all(), name="reader")
        await self.created.wait()
        self.lag()
        faults = [asyncio.create_task(self.misfortunes(number)) for number in range(self.plan.randrange(4))]
        await asyncio.sleep(self.plan.random() ** 2 * 2)
        doubt = self.world.stream("doubt")
        if doubt.random() < 0.5:
            await self.reply_lost_then_away(self.writing, self.in_use(doubt), doubt)
            await asyncio.sleep(doubt.random() ** 2 * 3)
        lame = asyncio.create_task(self.end_of_the_writer(self.plan.choice(ENDS)))
        await asyncio.sleep(self.plan.random() ** 4 * 3)
        rescue = asyncio.create_task(self.rescue(self.plan.choice(RESCUES)))
        await asyncio.gather(lame, *faults)
        self.healed = True
        self.world.net.heal()
        self.world.record("event", "faults have ended")
        await self.in_time(rescue, "recovery")
        await self.in_time(writing, "the zombie writer")
        self.over.set()
        await self.in_time(reading, "the reader")
        if self.plan.random() < 0.5:
            await self.blackout()
        self.rescuers[1].crash()
        self.rescuers[1].boot()
        await self.rescuers[1].start(self.check(self.rescuers[1]), name="the account")

    def lag(self) -> None:
        """Some clients have a bookie that is farther away than the others, until faults end."""
        for host in (self.writing, *self.rescuers):
            if self.plan.random() < 0.5:
                bookie, extra_s = self.plan.choice(self.cluster.bookies), self.plan.choice((0.005, 0.05, 0.3))
                self.world.net.slow(host.address, bookie.host.address, extra_s)
                self.world.net.slow(bookie.host.address, host.address, extra_s * self.plan.random())

    # --- the writers' host ------------------------------------------------------------------------------------------

    async def write_all(self) -> None:
        rng = self.world.stream("ledgers")
        settings = {
            "add_timeout_s": rng.choice((0.3, 1.0, 3.0)),
            "connect_timeout_s": rng.choice((0.3, 3.0)),
            "add_quorum_timeout_s": rng.choice((2.0, 30.0)),
            "no_bookies_timeout_s": rng.choice((0.5, 10.0)),
            "delay_ensemble_change": rng.random() < 0.2,
        }
        async with self.cluster.client(self.writing, **settings) as client:
            for _ in range(rng.randrange(1, 4)):
                await self.begin(client, rng.choice(SIZES))
            self.created.set()
            await asyncio.gather(*(self.write(self.stories.by_id[i], w) for i, w in self.writers.items()))

    async def write(self, story: Story, writer: LedgerWriter) -> None:
        """Append until that fails, or close at some time; once it has failed, no append may succeed."""
        rng = self.world.stream(f"writer-{writer.ledger_id}")
        closes_at = rng.choice((50, 400, NEVER, NEVER, NEVER))
        try:
            while writer.last_add_confirmed < closes_at - 1:
                await self.append_some(story, writer, rng)
                # The longer it lasts the slower: a zombie may have to wait until the faults have ended.
                await asyncio.sleep(rng.random() * (0.02 if writer.last_add_confirmed < 300 else 1.0))
        except BookKeeperError as error:
            story.failure = error
            self.world.record("writer", "append failed", f"{writer.ledger_id} {type(error).__name__}")
            await self.append_in_vain(story, writer, rng)
        if story.failure is None or rng.random() < 0.5:
            await self.close(story, writer)
            await self.append_in_vain(story, writer, rng)

    async def end_of_the_writer(self, end: str) -> None:
        self.world.record("event", f"end of the writer: {end}")
        if end == "crash":
            self.writing.crash()
        elif end == "power cut":
            self.writing.power_cut()
        elif end == "cut off":
            for bookie in self.plan.sample(self.cluster.bookies, self.plan.randrange(1, len(self.cluster.bookies) + 1)):
                self.world.net.partition(self.writing.address, bookie.host.address)
            await asyncio.sleep(self.plan.random() ** 2 * 20)
        elif end == "store away":
            await self.store_away(self.writing, self.plan.random() * 20)

    # --- the other hosts --------------------------------------------------------------------------------------------

    async def read_all(self) -> None:
        rng = self.world.stream("reader")
        await self.created.wait()
        async with self.client(self.reading, read_timeout_s=2.0) as client:
            while not self.over.is_set():
                await self.stories.look(client, rng.choice(list(self.stories.by_id.values())))
                await asyncio.sleep(rng.random() * 0.5)

    async def rescue(self, how: str) -> None:
        """Recover all ledgers, in one of several ways."""
        self.world.record("event", f"rescue: {how}")
        first, second = self.rescuers
        recovering = first.start(self.recover_all(first), name="recovery")
        if how == "one":
            await recovering
            return
        await asyncio.sleep(self.plan.random() ** 3)
        following = second.start(self.recover_all(second), name="recovery")
        if how == "the first dies":
            await asyncio.sleep(self.plan.choice((0.0, self.plan.random() * 0.1)))
            if not recovering.done():
                self.plan.choice((first.crash, first.power_cut))()
        await asyncio.gather(recovering, following, return_exceptions=True)
        following.result()
        if how == "two at once":
            recovering.result()

    async def recover_all(self, host: Host) -> None:
        settings = {"add_timeout_s": 1.0, "connect_timeout_s": 1.0, "read_timeout_s": self.plan.choice((0.5, 5.0))}
        async with self.client(host, **settings) as client:
            await asyncio.gather(*(self.recover(host, client, story) for story in self.stories.by_id.values()))

    # --- misfortunes ------------------------------------------------------------------------------------------------

    async def misfortunes(self, number: int) -> None:
        rng = self.world.stream(f"misfortunes-{number}")
        for _ in range(rng.choice((1, 2, 4))):
            # Much depends on what happens between two writes of the metadata.
            if rng.random() < 0.6:
                await asyncio.wait([self.stories.moved], timeout=3.0)
                await asyncio.sleep(rng.random() ** 3 * 0.1)
            else:
                await asyncio.sleep(rng.random() ** 2)
            event = rng.choice((*DEATHS, *DEATHS, *LINK_FAULTS, *STORE_FAULTS, "disk stall"))
            bookie = rng.choice(self.cluster.bookies)
            host = rng.choice((self.writing, self.writing, *self.rescuers, self.reading))
            self.world.record("event", f"{event}: {host.name}, {bookie.host.name}")
            if event in DEATHS:
                async with self.busy[bookie]:
                    await self.death(bookie, event, rng)
            elif event in LINK_FAULTS:
                await self.link_fault(host.address, bookie.host.address, event, rng)
            elif event == "store away":
                await self.store_away(host, rng.random() ** 2 * 12)
            elif event == "a reply lost, then away":
                await self.reply_lost_then_away(host, bookie, rng)
            elif event == "replies lost":
                host.faults.chances = {"metadata.request_lost": 0.2, "metadata.reply_lost": 0.2}
                await asyncio.sleep(rng.random() * 3)
                host.faults.chances = {}
            else:
                bookie.host.disk.stall()
                await asyncio.sleep(rng.random() ** 2 * 8)
                bookie.host.disk.unstall()

    def in_use(self, rng: Random) -> Bookie:
        """A bookie that some ledger's last entries are on."""
        names = {name for story in self.stories.by_id.values() for name in story.stored.fragments[-1].bookies}
        return rng.choice([bookie for bookie in self.cluster.bookies if bookie.host.name in names])

    async def death(self, bookie: Bookie, event: str, rng: Random) -> None:
        """Let the bookie die, now or soon, and start it again."""
        host, boot = bookie.host, bookie.host.boots
        if event == "crash":
            host.crash()
        elif event == "power cut":
            host.power_cut()
        elif event == "crash at a disk operation":
            host.disk.crash_at(rng.randrange(1, 60))
        elif event == "crash in a journal write":
            host.disk.crash_at(rng.randrange(1, 20), operation="pwritev", path="/journal/")
        else:
            host.disk.fail_at(rng.randrange(1, 10), errno.EIO, operation="fdatasync")
        await asyncio.sleep(rng.random() ** 2 * 5)
        host.disk.heal()
        if host.up and host.boots == boot:
            host.crash()
        if rng.random() < 0.5:
            host.power_cut()
        await bookie.start()

    async def link_fault(self, here: str, there: str, event: str, rng: Random) -> None:
        net = self.world.net
        if event == "reset":
            net.reset(here, there)
            return
        if event == "cut":
            net.partition(here, there)
        elif event == "one-way block":
            net.block(*((here, there) if rng.random() < 0.5 else (there, here)))
        else:
            extra = rng.choice((0.01, 0.1, 1.0))
            net.slow(here, there, extra)
            net.slow(there, here, extra * rng.random())
        await asyncio.sleep(rng.random() ** 2 * 8)
        net.mend(here, there)

    async def store_away(self, host: Host, seconds: float) -> None:
        """The host can't reach the metadata store for a while, at times for so long that its sessions expire."""
        sessions = list(host.sessions)
        for session in sessions:
            host.do(session.suspend)
        await asyncio.sleep(seconds)
        for session in sessions:
            if session in host.sessions:  # the process still lives
                if seconds > session.session_timeout_s:
                    host.do(session.expire)
                host.do(session.resume)

    async def reply_lost_then_away(self, host: Host, bookie: Bookie, rng: Random) -> None:
        """A change of the ensemble is stored, but the host isn't told, and soon loses the store altogether.

        Meanwhile the bookie comes back whose death was the reason for the change.
        """
        self.world.record("event", f"a change stored and not told: {host.name}, {bookie.host.name}")
        sessions = list(host.sessions)
        lost = [host.do(session.lose_reply, rng.choice((0, 1, 1, 1, 2))) for session in sessions]
        async with self.busy[bookie]:
            bookie.host.crash()
            if lost:
                await asyncio.wait(lost, timeout=3.0)
            await asyncio.sleep(rng.random() ** 3 * 3)
            await bookie.start()
        # The longest is too long for the session, and all are for calls, where these have little time.
        await asyncio.sleep(rng.choice((0.5, 3.0, 11.0)) + rng.random() ** 2 * 4)
        for session in sessions:
            if session in host.sessions:
                session.keep_replies()
                host.do(session.resume)

    async def blackout(self) -> None:
        """All bookies lose power in the same instant."""
        for bookie in self.cluster.bookies:
            bookie.host.power_cut()
        await asyncio.sleep(self.plan.random() * 5)
        for bookie in self.cluster.bookies:
            await bookie.start()


def failover_run(seed: int) -> tuple[Cluster, Coroutine[Any, Any, None]]:
    # Where everything is far away, more can happen on the way.
    world = World(
        seed,
        network_latency_s=((0.00005, 0.0005), (0.0005, 0.02))[seed // 2 % 2],
        metadata_latency_s=((0.0002, 0.002), (0.01, 0.1))[seed // 4 % 2],
        metadata_timeout_s=(0.3, 2.0, 10.0)[seed % 3],
    )
    cluster = Cluster(seed, bookies=4 + seed % 2, world=world)
    return cluster, Failover(cluster).run()
