"""The standard run of a cluster: write while bookies die, cut the power of all, read everything back.

The quick run is the same in a small world: some 200 appends, three faults in the median, and no time in which nothing
happens. Its seeds are many.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from typing import TYPE_CHECKING, Any

from bkpy.errors import (
    BookieUnavailableError,
    BookKeeperError,
    LedgerFencedError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
)

from .cluster import Bookie, Cluster, Ledger
from .coverage_marks import MOVED_COPY, THREE_FAULTS, ZOMBIE_REFUSED
from .mover import move
from .strangers import Stranger
from .world import World

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from random import Random

    from bkpy.client.client import Client

    from .world import Host

DEATHS = (
    "crash",
    "power cut",
    "crash at a disk operation",
    "crash in a journal write",
    "crash in a journal write",
    "failed fdatasync",
    "full journal disk",
)
DISTURBANCES = ("reset", "partition", "one-way block", "disk stall")
BLACKOUT = "power cut of all"
SIZES = ((3, 3, 2), (3, 3, 2), (3, 2, 2))  # ensemble, write quorum, ack quorum
ENSEMBLE_SIZE = 3
LEDGER_ENTRIES = 100
DELETED = 0.3  # of the ledgers
MOVED = 0.7  # of those whose copies are whole
MOVED_SIZES = (3, 3, 2)
ZOMBIE_APPENDS_MAX = 100


QUICK_PACE = 0.05  # of the standard run's pauses
QUICK_FAULTS = (1, 2, 3, 3, 3, 4, 5)
QUICK_LEDGER_ENTRIES = (20, 30, 50, 50, 80)
QUICK_SIZES = (*SIZES, (3, 3, 3), (3, 3, 2))


def standard_run(seed: int) -> tuple[Cluster, Coroutine[Any, Any, None]]:
    cluster = Cluster(seed, bookies=ENSEMBLE_SIZE + (seed % 3 == 2))
    return cluster, run_on(cluster)


def quick_run(seed: int) -> tuple[Cluster, Coroutine[Any, Any, None]]:
    world = World(
        seed,
        session_timeout_s=0.3,
        metadata_timeout_s=0.3,
        disk_latency_s=(0.00001, 0.0002),
        metadata_latency_s=(0.00005, 0.0005),
    )
    # Most of what a bookie costs is its start, and of that its directories; most of its idle time is collection.
    rng = world.stream("quick")
    cluster = Cluster(
        seed,
        bookies=ENSEMBLE_SIZE + (rng.random() < 0.2),
        world=world,
        journal_directories=[f"/data/journal/{i}" for i in range(rng.choice((1, 1, 1, 2)))],
        ledger_directories=[f"/data/ledgers/{i}" for i in range(rng.choice((1, 1, 1, 2)))],
        gc_interval_s=rng.choice((0.1, 0.3, 1.0)),
    )
    for bookie in cluster.bookies:
        bookie.grows = 0.05
    return cluster, run_quickly(cluster)


async def run_on(cluster: Cluster) -> None:
    """Three writers, one misfortune or several, perhaps a clean stop, power cuts for all, and the reading."""
    world = cluster.world
    plan = world.stream("plan")
    await cluster.start()
    async with Stranger(cluster).about():
        await write_among(cluster, plan)
    if plan.random() < 0.5:
        stopped = plan.choice(cluster.bookies)
        await stopped.stop()
        await stopped.start()
    await blackout(cluster)
    await cluster.client_host.start(cluster.check())
    await cluster.check_with_one_down(plan.choice(cluster.bookies))
    await cluster.check_deleted()


async def run_quickly(cluster: Cluster) -> None:
    """Four writers, one ledger each, three misfortunes in the median, a power cut for all, and the reading."""
    plan = cluster.world.stream("plan")
    await cluster.start()
    events = [plan.choice((*DEATHS, *DISTURBANCES, BLACKOUT)) for _ in range(plan.choice(QUICK_FAULTS))]
    writing = cluster.client_host.start(_write_some(cluster, plan), name="workload")
    for event in events:
        await misfortune(cluster, plan, event, QUICK_PACE)
    await writing
    cluster.world.marks[THREE_FAULTS] += len(events) >= 3
    await blackout(cluster, QUICK_PACE)
    await cluster.client_host.start(cluster.check())


async def _write_some(cluster: Cluster, plan: Random) -> None:
    async with cluster.client(ensemble_changes_max=100, add_timeout_s=0.3, read_timeout_s=1.0) as client:
        ledgers = [(plan.choice(QUICK_LEDGER_ENTRIES), plan.choice(QUICK_SIZES)) for _ in range(4)]
        await asyncio.gather(*(_write_one(cluster, client, *ledger) for ledger in ledgers))


async def _write_one(cluster: Cluster, client: Client, entries: int, sizes: tuple[int, int, int]) -> None:
    deleting = cluster.world.stream(f"deleting-{entries}-{sizes}")
    while True:
        try:
            ledger_id = await cluster.write_ledger(client, entries, sizes, password=b"secret")
            break
        except (NotEnoughBookiesError, BookieUnavailableError):
            await asyncio.sleep(0.02)
    if deleting.random() < DELETED:
        await client.delete_ledger(ledger_id)
        cluster.ledgers[ledger_id].deleted = True


async def misfortune(cluster: Cluster, plan: Random, event: str, pace: float = 1.0) -> None:
    if event == BLACKOUT:
        await blackout(cluster, pace)
    elif event in DISTURBANCES:
        await disturbance(cluster, plan.choice(cluster.bookies), event, pace=pace)
    else:
        await death(cluster, plan.choice(cluster.bookies), event, pace)


async def write_among(cluster: Cluster, plan: Random) -> None:
    """Write until all misfortunes are over."""
    over = asyncio.Event()
    writing = cluster.client_host.start(write_until(cluster, over), name="workload")
    for _ in SIZES:
        await cluster.created.acquire()
    events = [plan.choice((*DEATHS, *DISTURBANCES, BLACKOUT)) for _ in range(plan.choice((0, 1, 1, 1, 2, 4)))]
    for event in events:
        await misfortune(cluster, plan, event)
    over.set()
    await writing
    for ledger_id, ledger in cluster.ledgers.items():
        # Without one bookie a write quorum of three still has its ack quorum of two, and a spare one takes its place.
        spare = len(cluster.bookies) > ENSEMBLE_SIZE
        if not ledger.deleted and len(events) < 2 and BLACKOUT not in events and (ledger.tolerates_one or spare):
            assert ledger.failure is None, f"the writer of ledger {ledger_id} failed"


async def blackout(cluster: Cluster, pace: float = 1.0) -> None:
    """All bookies lose power in the same instant, and are started again: one after the other, or in haste together."""
    rng = cluster.world.stream(f"blackout-{cluster.bookies[0].host.boots}")
    await asyncio.sleep(rng.random() * 0.3 * pace)
    for bookie in cluster.bookies:
        bookie.host.record("event", BLACKOUT)
        bookie.host.power_cut()
    await asyncio.sleep(rng.random() * 20.0 * pace)  # sessions may have expired, or not
    if pace == 1.0:
        for bookie in cluster.bookies:
            await bookie.start()
    else:
        await asyncio.gather(*(bookie.start() for bookie in cluster.bookies))


async def disturbance(
    cluster: Cluster, bookie: Bookie, event: str, host: Host | None = None, *, pace: float = 1.0
) -> None:
    """Let `event` come between the client (or `host`) and the bookie, or the bookie and its disk, for a while."""
    net, here, there = cluster.world.net, (host or cluster.client_host).address, bookie.host.address
    rng = cluster.world.stream(f"disturbance-{cluster.world.loop.time()}")
    await asyncio.sleep(rng.random() * 0.3 * pace)
    bookie.host.record("event", event)
    if event == "reset":
        net.reset(here, there)
    elif event == "partition":
        net.partition(here, there)
    elif event == "one-way block":
        net.block(*((here, there) if rng.random() < 0.5 else (there, here)))
    else:
        bookie.host.disk.stall()
    await asyncio.sleep(rng.random() ** 3 * 10 * pace)
    net.heal()
    bookie.host.disk.unstall()


async def death(cluster: Cluster, bookie: Bookie, event: str, pace: float = 1.0) -> None:
    """Let the bookie die of `event` at some time, and have it running again in the end."""
    rng = cluster.world.stream(f"death-{bookie.host.boots}")
    host, boot = bookie.host, bookie.host.boots
    await asyncio.sleep(rng.random() * 0.3 * pace)
    host.record("event", event)
    if event == "crash":
        host.crash()
    elif event == "power cut":
        host.power_cut()
    elif event == "crash at a disk operation":
        host.disk.crash_at(rng.randrange(1, 60))
    elif event == "crash in a journal write":
        host.disk.crash_at(rng.randrange(1, 20), operation="pwritev", path="/journal/")
    elif event == "failed fdatasync":
        host.disk.fail_at(rng.randrange(1, 10), errno.EIO, operation="fdatasync")
    else:
        host.disk.fail_at(1, errno.ENOSPC, path="/journal/", repeat=True)
    await asyncio.sleep(rng.random() ** 3 * pace)
    host.disk.heal()
    if host.up and host.boots == boot:
        host.crash()  # what should have killed it didn't come, or left it in a state of no use
    if rng.random() < 0.5:
        host.power_cut()
    await bookie.start()


async def write_until(cluster: Cluster, over: asyncio.Event) -> None:
    async with cluster.client(ensemble_changes_max=100) as client:
        await asyncio.gather(
            *(_write_ledgers(cluster, client, sizes, over) for sizes in SIZES), _write_in_vain(cluster, client, over)
        )


async def _write_ledgers(cluster: Cluster, client: Client, sizes: tuple[int, int, int], over: asyncio.Event) -> None:
    """One ledger after the other. A ledger can't be created while there are fewer than three bookies."""
    deleting = cluster.world.stream(f"deleting-{sizes}")
    while True:
        try:
            ledger_id = await cluster.write_ledger(client, LEDGER_ENTRIES, sizes, password=b"secret")
        except (NotEnoughBookiesError, BookieUnavailableError):
            await asyncio.sleep(0.1)
            continue
        if sizes == MOVED_SIZES and deleting.random() < MOVED:
            for _ in range(deleting.choice((1, 2, 4))):  # to and fro
                cluster.world.marks[MOVED_COPY] += await move(client, ledger_id, deleting)
                await asyncio.sleep(deleting.random())
        if deleting.random() < DELETED:
            await client.delete_ledger(ledger_id)
            cluster.ledgers[ledger_id].deleted = True
        if over.is_set():
            return
        await asyncio.sleep(cluster.rng.random())


async def _write_in_vain(cluster: Cluster, client: Client, over: asyncio.Event) -> None:
    """Append to a ledger that was deleted: its writer learns of it when bookies have collected it, if not before."""
    rng = cluster.world.stream("zombie")
    while True:
        try:
            writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2, password=b"secret")
            break
        except (NotEnoughBookiesError, BookieUnavailableError):
            await asyncio.sleep(0.1)
    cluster.ledgers[writer.ledger_id] = Ledger(b"secret", tolerates_one=True, deleted=True)
    try:
        await writer.append(b"before")
        await client.delete_ledger(writer.ledger_id)
        for _ in range(ZOMBIE_APPENDS_MAX):
            await asyncio.sleep(rng.random())
            await writer.append(b"after")
            if over.is_set():
                break
    except LedgerFencedError:
        cluster.world.marks[ZOMBIE_REFUSED] += 1
    except BookKeeperError as error:  # it needed another ensemble, say, and there is no ledger to store that for
        cluster.world.record("writer", "append failed", f"{writer.ledger_id} {type(error).__name__}")
    with contextlib.suppress(NoSuchLedgerError):
        await client.delete_ledger(writer.ledger_id)


def run_seed(seed: int) -> Cluster:
    cluster, run = standard_run(seed)
    cluster.run(run)
    return cluster
