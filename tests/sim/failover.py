"""The failover run: writers die or go on as zombies, others recover their ledgers, and bookies fail meanwhile.

One host writes several ledgers, another one reads them. At some moment the writing host dies, or loses a part of the
network or the metadata store, or nothing at all happens to it; one or two other hosts recover its ledgers, and the
first of these may die on the way. When all faults have ended, every recovery must end, every writer that lives must
have learnt that it is none any more, and `Stories.check` must be satisfied.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import warnings
from collections.abc import AsyncIterator, Coroutine
from random import Random
from typing import Any

from bkpy.client.connect import Client
from bkpy.client.writer import LedgerWriter
from bkpy.errors import (
    BookieUnavailableError,
    BookKeeperError,
    LedgerRecoveryError,
    MetadataConflictError,
    MetadataUnavailableError,
)
from tests.faults.oracle import make_payload

from .cluster import Bookie, Cluster
from .stories import PASSWORD, Stories, Story
from .world import Host, HostDied, World

SIZES = ((3, 3, 2), (3, 3, 2), (3, 2, 2), (4, 3, 2), (4, 2, 2), (3, 3, 3), (2, 2, 1), (4, 4, 3))
DEATHS = ("crash", "crash", "power cut", "crash at a disk operation", "failed fdatasync")
LINK_FAULTS = ("reset", "cut", "one-way block", "slow")
STORE_FAULTS = ("store away", "replies lost")
ENDS = ("crash", "crash", "power cut", "cut off", "cut off", "store away", "nothing")
RESCUES = ("one", "one", "two at once", "the first dies", "the first dies")
NEVER = 1 << 60
PATIENCE_S = 200.0  # within which everything ends once the faults have

TRANSIENT = (LedgerRecoveryError, BookieUnavailableError, MetadataConflictError, MetadataUnavailableError)


class Failover:
    """One run. `run()` may be called once, in the cluster's `run`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.world = world = cluster.world
        self.plan = world.stream("plan")
        self.writing = cluster.client_host
        self.rescuers = [world.add_host("rescuer-1"), world.add_host("rescuer-2")]
        self.reading = world.add_host("reader")
        self.stories = Stories(world)
        self.writers: dict[int, LedgerWriter] = {}
        self.created = asyncio.Event()
        self.over = asyncio.Event()  # for the reader
        self.healed = False
        self.busy: dict[Bookie, asyncio.Lock] = {bookie: asyncio.Lock() for bookie in cluster.bookies}

    async def run(self) -> None:
        for host in (*self.rescuers, self.reading):
            host.boot()
        await self.cluster.start()
        writing = self.writing.start(self.write_all(), name="writers")
        reading = self.reading.start(self.read_all(), name="reader")
        await self.created.wait()
        self.lag()
        faults = [asyncio.create_task(self.misfortunes(number)) for number in range(self.plan.randrange(4))]
        await asyncio.sleep(self.plan.random() ** 2 * 2)
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
        await self.rescuers[1].start(self.check(), name="the account")

    def lag(self) -> None:
        """Some clients have a bookie that is farther away than the others, until faults end."""
        for host in (self.writing, *self.rescuers):
            if self.plan.random() < 0.5:
                bookie, extra_s = self.plan.choice(self.cluster.bookies), self.plan.choice((0.005, 0.05, 0.3))
                self.world.net.slow(host.address, bookie.host.address, extra_s)
                self.world.net.slow(bookie.host.address, host.address, extra_s * self.plan.random())

    async def in_time(self, future: asyncio.Future[Any], who: str) -> None:
        done, _ = await asyncio.wait([future], timeout=PATIENCE_S)
        assert done, f"{who} does not end"
        try:
            future.result()
        except HostDied:
            self.world.record("event", f"{who} died")

    async def check(self) -> None:
        async with self.cluster.client(self.rescuers[1]) as client:
            await self.stories.check(client, self.cluster.bookies)

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
                ensemble_size, write_quorum, ack_quorum = rng.choice(SIZES)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # an ack quorum of 1 is what is wanted
                    writer = await client.create_ledger(
                        ensemble_size=ensemble_size,
                        write_quorum=write_quorum,
                        ack_quorum=ack_quorum,
                        password=PASSWORD,
                    )
                self.writers[writer.ledger_id] = writer
                self.stories.begin(client, writer)
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

    async def close(self, story: Story, writer: LedgerWriter) -> None:
        """As its user would, who tries again while that may help."""
        while True:
            try:
                await writer.close()
            except BookKeeperError as error:
                self.world.record("writer", "close failed", f"{writer.ledger_id} {type(error).__name__}")
                if not error.retriable:
                    return
                await asyncio.sleep(0.2)
            else:
                self.world.record("writer", "closed", f"{writer.ledger_id} {writer.last_add_confirmed}")
                story.ends.append(writer.last_add_confirmed)
                return

    async def append_in_vain(self, story: Story, writer: LedgerWriter, rng: Random) -> None:
        try:
            entry_id = await self.append(story, writer, rng)
        except BookKeeperError:
            return
        story.broken.append(f"a writer that had ended was told that entry {entry_id} was acknowledged")

    async def append(self, story: Story, writer: LedgerWriter, rng: Random) -> int:
        number = story.promises.next_number()
        payload = make_payload(writer.ledger_id, number, rng, rng.choice((0, 10, 1000, 5000)))
        try:
            entry_id = await writer.append(payload)
        except BookKeeperError as error:
            story.promises.failed(number, error)
            raise
        self.acknowledged(story, writer, entry_id, payload)
        return entry_id

    async def append_some(self, story: Story, writer: LedgerWriter, rng: Random) -> None:
        """One append, a batch, or several at once, of which some are not waited for."""
        way = rng.randrange(3)
        if way == 0:
            await self.append(story, writer, rng)
            return
        numbers = [story.promises.next_number() for _ in range(rng.randrange(1, 20))]
        payloads = [make_payload(writer.ledger_id, n, rng, rng.choice((0, 10, 1000, 5000))) for n in numbers]
        if way == 1:
            try:
                ids = await writer.append_batch(payloads)
            except BookKeeperError as error:
                for number in numbers:
                    story.promises.failed(number, error)
                raise
            for entry_id, payload in zip(ids, payloads, strict=True):
                self.acknowledged(story, writer, entry_id, payload)
            return
        futures = []
        for number, payload in zip(numbers, payloads, strict=True):
            try:
                future = writer.append_nowait(payload)
            except BookKeeperError as error:
                story.promises.failed(number, error)
                raise
            future.add_done_callback(lambda done, n=number, p=payload: self.settled(story, writer, n, p, done))
            futures.append(future)
        await rng.choice(futures)

    def settled(
        self, story: Story, writer: LedgerWriter, number: int, payload: bytes, future: asyncio.Future[int]
    ) -> None:
        error = future.exception()
        if error is None:
            self.acknowledged(story, writer, future.result(), payload)
        elif isinstance(error, BookKeeperError):
            story.promises.failed(number, error)
        else:
            raise error

    def acknowledged(self, story: Story, writer: LedgerWriter, entry_id: int, payload: bytes) -> None:
        story.acknowledged(writer, entry_id, payload)
        self.world.record("writer", "acknowledged", f"{writer.ledger_id} {entry_id}")

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

    @contextlib.asynccontextmanager
    async def client(self, host: Host, **settings: Any) -> AsyncIterator[Client]:
        """A client, made as soon as the metadata store can be reached."""
        while True:
            try:
                client = await self.cluster.connect(host, **settings)
                break
            except MetadataUnavailableError:
                await asyncio.sleep(0.1)
        try:
            yield client
        finally:
            await client.close()

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

    async def recover(self, host: Host, client: Client, story: Story) -> None:
        while True:
            try:
                reader = await client.recover_ledger(story.ledger_id, password=PASSWORD)
            except TRANSIENT as error:
                host.record("recovery failed", f"{story.ledger_id} {type(error).__name__}")
                await asyncio.sleep(0.3)
                continue
            host.record("recovered", f"{story.ledger_id} {reader.last_add_confirmed}")
            story.ends.append(reader.last_add_confirmed)
            if reader.length != story.stored.length:
                story.broken.append(f"recovery found {reader.length} bytes, the metadata say {story.stored.length}")
            return

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
            elif event == "replies lost":
                host.faults.chances = {"metadata.request_lost": 0.2, "metadata.reply_lost": 0.2}
                await asyncio.sleep(rng.random() * 3)
                host.faults.chances = {}
            else:
                bookie.host.disk.stall()
                await asyncio.sleep(rng.random() ** 2 * 8)
                bookie.host.disk.unstall()

    async def death(self, bookie: Bookie, event: str, rng: Random) -> None:
        """Let the bookie die, now or soon, and start it again."""
        host, boot = bookie.host, bookie.host.boots
        if event == "crash":
            host.crash()
        elif event == "power cut":
            host.power_cut()
        elif event == "crash at a disk operation":
            host.disk.crash_at(rng.randrange(1, 60))
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
    )
    cluster = Cluster(seed, bookies=4 + seed % 2, world=world)
    return cluster, Failover(cluster).run()
