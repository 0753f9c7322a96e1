"""The crowd run: one client writes many small ledgers at once, others read, tail and recover them, and bookies fail.

There are many more ledgers than a bookie keeps the states of: most of them idle at any time, several in one frame when
they are not, new ones all the time, some without any entry. Another client recovers some of them meanwhile, old and new
ones, and those that a bookie has never seen. All the time bookies are asked for what they have acknowledged. In the end
all ledgers are closed, and `Stories.check` must be satisfied.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from bkpy.errors import BookKeeperError, NotEnoughBookiesError, TooManyRequestsError

from .cluster import Cluster, check_bookie
from .scenario import BLACKOUT, DEATHS, DISTURBANCES, blackout, death, disturbance
from .stories import PASSWORD, Story
from .users import TRANSIENT, Users
from .world import World

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from bkpy.client.client import Client
    from bkpy.client.write.writer import LedgerWriter

SIZES = ((3, 3, 2), (3, 2, 2), (2, 2, 2), (2, 2, 1))
LEDGERS_MAX = 40
ROUNDS_MIN = 25
EVENTS = (*DEATHS, *DISTURBANCES, BLACKOUT, "clean restart", "clean restart")


class Crowd(Users):
    """One run. `run()` may be called once, in the cluster's `run`."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.rescuing = self.world.add_host("rescuer")
        self.reading = self.world.add_host("reader")
        self.asking = self.world.add_host("asker")
        self.begun = asyncio.Event()
        self.calm = asyncio.Event()  # all misfortunes are over
        self.written = asyncio.Event()

    async def run(self) -> None:
        for host in (self.rescuing, self.reading, self.asking):
            host.boot()
        await self.cluster.start()
        writing = self.writing.start(self.write_all(), name="writers")
        await self.begun.wait()
        reading = self.reading.start(self.read_all(), name="readers")
        asking = self.asking.start(self.ask_bookies(), name="asker")
        rescuing = self.rescuing.start(self.rescue_some(), name="rescuer")
        for _ in range(self.plan.choice((0, 1, 1, 2, 4))):
            await self.misfortune(self.plan.choice(EVENTS))
        self.calm.set()
        await self.in_time(writing, "the crowd of writers")
        self.written.set()
        await self.in_time(rescuing, "the rescuer")
        await self.in_time(reading, "the crowd of readers")
        await self.in_time(asking, "the asker")
        if self.plan.random() < 0.5:
            await blackout(self.cluster)
        await self.rescuing.start(self.check(self.rescuing), name="the account")

    async def misfortune(self, event: str) -> None:
        bookie = self.plan.choice(self.cluster.bookies)
        if event == BLACKOUT:
            await blackout(self.cluster)
        elif event in DISTURBANCES:
            host = self.plan.choice((self.writing, self.rescuing, self.reading))
            await disturbance(self.cluster, bookie, event, host)
        elif event == "clean restart":
            await asyncio.sleep(self.plan.random() * 0.3)
            bookie.host.record("event", event)
            await bookie.stop()
            await bookie.start()
        else:
            await death(self.cluster, bookie, event)

    # --- writing ----------------------------------------------------------------------------------------------------

    async def write_all(self) -> None:
        rng = self.world.stream("writers")
        alive: dict[int, LedgerWriter] = {}
        async with self.client(self.writing, add_timeout_s=rng.choice((0.5, 5.0))) as client:
            for _ in range(rng.choice((3, 8, 15))):
                await self.begin_one(client, alive)
            self.begun.set()
            rounds = 0
            while alive and (rounds < ROUNDS_MIN or not self.calm.is_set()):
                rounds += 1
                some = rng.sample(sorted(alive), rng.randrange(1, min(len(alive), rng.choice((3, 100))) + 1))
                if len(self.writers) < LEDGERS_MAX and rng.random() < 0.5:
                    some += await self.begin_one(client, alive)
                await asyncio.gather(*(self.append_to(alive, i) for i in some))
                if alive and rng.random() < 0.2:
                    ledger_id = rng.choice(sorted(alive))
                    await self.close(self.stories.by_id[ledger_id], alive.pop(ledger_id))
                await asyncio.sleep(rng.random() * (0.5 if rng.random() < 0.1 else 0.02))
            # The others are left open, for the rescuer.
            await asyncio.gather(
                *(self.close(self.stories.by_id[i], w) for i, w in alive.items() if rng.random() < 0.5)
            )

    async def begin_one(self, client: Client, alive: dict[int, LedgerWriter]) -> list[int]:
        """Begin a ledger; its id, if anything is ever to be appended."""
        rng = self.world.stream(f"beginning-{len(self.writers)}")
        while True:
            try:
                writer = await self.begin(client, rng.choice(SIZES))
            except (NotEnoughBookiesError, *TRANSIENT):
                await asyncio.sleep(0.1)
                continue
            if rng.random() < 0.1:
                return []
            alive[writer.ledger_id] = writer
            return [writer.ledger_id]

    async def append_to(self, alive: dict[int, LedgerWriter], ledger_id: int) -> None:
        """Append a little; a writer that fails is closed, or left to the rescuer."""
        if ledger_id not in alive:
            return
        story, writer = self.stories.by_id[ledger_id], alive[ledger_id]
        rng = self.world.stream(f"writer-{ledger_id}-{story.promises.sent}")
        try:
            await self.append_some(story, writer, rng, most=5)
        except BookKeeperError as error:
            self.world.record("writer", "append failed", f"{ledger_id} {type(error).__name__}")
            alive.pop(ledger_id, None)
            await self.append_in_vain(story, writer, rng)
            if rng.random() < 0.5:
                await self.close(story, writer)

    # --- the others -------------------------------------------------------------------------------------------------

    async def rescue_some(self) -> None:
        """Recover ledgers now and then while they are written, and in the end all that are still open."""
        rng = self.world.stream("rescuer")
        async with self.client(self.rescuing, connect_timeout_s=1.0, read_timeout_s=rng.choice((0.5, 5.0))) as client:
            while not self.written.is_set():
                await asyncio.sleep(rng.random() ** 3 * 0.5)
                story = rng.choice(self.open_stories() or list(self.stories.by_id.values()))
                await self.recover(self.rescuing, client, story)
            await asyncio.gather(*(self.recover(self.rescuing, client, story) for story in self.open_stories()))

    def open_stories(self) -> list[Story]:
        return [story for story in self.stories.by_id.values() if not story.closed]

    async def read_all(self) -> None:
        """One looks at the ends of ledgers, others follow one each until it is closed."""
        rng = self.world.stream("reader")
        async with self.client(self.reading, read_timeout_s=2.0) as client:
            tails = [asyncio.ensure_future(self.tail(client, number)) for number in range(rng.randrange(4))]
            while not self.written.is_set():
                await self.stories.look(client, rng.choice(list(self.stories.by_id.values())))
                await asyncio.sleep(rng.random() * 0.2)
            await asyncio.gather(*tails)

    async def ask_bookies(self) -> None:
        """Each bookie has what it has acknowledged, at any time and not only in the end."""
        rng = self.world.stream("asker")
        async with self.client(self.asking, calm=True, read_timeout_s=2.0) as client:
            while not self.written.is_set():
                story = rng.choice(list(self.stories.by_id.values()))
                with contextlib.suppress(TooManyRequestsError, *TRANSIENT):
                    reader = await client.open_ledger(story.ledger_id, password=PASSWORD)
                    await check_bookie(reader, story.payloads, rng.choice(self.cluster.bookies))
                    await reader.close()
                await asyncio.sleep(rng.random() * 0.1)

    async def tail(self, client: Client, number: int) -> None:
        rng = self.world.stream(f"tail-{number}")
        story = rng.choice(list(self.stories.by_id.values()))
        await self.follow(client, story)


def crowd_run(seed: int) -> tuple[Cluster, Coroutine[Any, Any, None]]:
    world = World(seed)
    states = world.stream("states").choice(({"ledger_states_max": 1}, {"ledger_states_max": 3}, {}))
    cluster = Cluster(seed, bookies=3 + seed % 2, world=world, **states)
    return cluster, Crowd(cluster).run()
