"""The exposed run: bookies that don't write entries to their journals, or don't sync them, lose power.

What such a bookie acknowledged may be *unknown* to it afterwards. It is never denied: not by the bookie, and so no
recovery cuts a ledger short. Settings change from one start to the next.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from bkpy.errors import BookieUnavailableError, LedgerFencedError, LedgerRecoveryError, NotEnoughBookiesError
from bkpy.protocol.wire.messages import Op, Status, decode_read_reply, error_of, pack, reply_status
from bkpy.protocol.wire.records import HEADER_BYTES, walk
from tests.hooks import pool_of, settings_of

from .cluster import Cluster
from .coverage_marks import CUT_SHORT_REFUSED
from .scenario import DEATHS, LEDGER_ENTRIES, SIZES, blackout, death
from .world import HostDied

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping
    from random import Random

    from bkpy.client.client import Client

    from .cluster import Bookie

BOOKIES = 5
PASSWORD = b"secret"
MODES: tuple[Mapping[str, bool], ...] = (
    {"journal_write_data": True, "journal_sync_data": True},
    {"journal_write_data": False, "journal_sync_data": True},
    {"journal_write_data": True, "journal_sync_data": False},
)


def exposed_run(seed: int) -> tuple[Cluster, Coroutine[Any, Any, None]]:
    cluster = Cluster(seed, bookies=BOOKIES)
    return cluster, run_on(cluster)


async def run_on(cluster: Cluster) -> None:
    """Three writers, some deaths, perhaps the writers' own, perhaps a power cut for all, and the account."""
    plan = cluster.world.stream("plan")
    for bookie in cluster.bookies:
        change_mode(bookie, plan)
    await cluster.start()
    over = asyncio.Event()
    writing = cluster.client_host.start(write_until(cluster, over), name="workload")
    for _ in SIZES:
        await cluster.created.acquire()
    for _ in range(plan.choice((0, 1, 2))):
        bookie = plan.choice(cluster.bookies)
        if plan.random() < 0.3:
            change_mode(bookie, plan)  # from its next start on
        await death(cluster, bookie, plan.choice(DEATHS))
    await asyncio.sleep(plan.random() * 0.5)
    if plan.random() < 0.7:
        cluster.client_host.crash()  # ledgers stay open
    over.set()
    try:
        await writing
    except HostDied:
        cluster.client_host.boot()
    if plan.random() < 0.7:
        await blackout(cluster)
    await cluster.client_host.start(check(cluster), name="the account")


def change_mode(bookie: Bookie, plan: Random) -> None:
    mode = plan.choice(MODES)
    bookie.settings = bookie.settings.model_copy(update=mode)
    bookie.host.record("mode", str(mode))


async def write_until(cluster: Cluster, over: asyncio.Event) -> None:
    async with cluster.client(ensemble_changes_max=100) as client:
        await asyncio.gather(*(write_ledgers(cluster, client, sizes, over) for sizes in SIZES))


async def write_ledgers(cluster: Cluster, client: Client, sizes: tuple[int, int, int], over: asyncio.Event) -> None:
    """One after the other; there may be too few bookies for one, and for good."""
    while not over.is_set():
        try:
            await cluster.write_ledger(client, LEDGER_ENTRIES, sizes, password=PASSWORD)
        except (NotEnoughBookiesError, BookieUnavailableError, LedgerFencedError):  # limbo fences
            await asyncio.sleep(0.1)


async def check(cluster: Cluster) -> None:
    async with cluster.client(calm=True) as client:
        for ledger_id, ledger in cluster.ledgers.items():
            for bookie in cluster.bookies:
                await denies_nothing(client, ledger_id, ledger.acknowledged, bookie)
            try:
                reader = await client.recover_ledger(ledger_id, password=PASSWORD)
            except LedgerRecoveryError:
                cluster.world.marks[CUT_SHORT_REFUSED] += 1
                continue
            assert reader.last_add_confirmed >= max(ledger.acknowledged, default=-1), f"ledger {ledger_id} is cut short"
            assert ledger.last_entry in (None, reader.last_add_confirmed)
            await reader.close()


async def denies_nothing(client: Client, ledger_id: int, acknowledged: Mapping[int, bytes], bookie: Bookie) -> None:
    """Whatever the bookie acknowledged is there as it was, or unknown; what it fenced, it kept closed to appends."""
    denied = set(bookie.promises[ledger_id])
    first, last = 0, max(denied, default=-1)
    while first <= last:
        head = pack([0, ledger_id, first, last, settings_of(client).read_bytes])
        channel = pool_of(client).channel(bookie.settings.bookie_id)
        frame = await channel.call(Op.READ, head, timeout_s=settings_of(client).read_timeout_s)
        if (status := reply_status(frame.head)) != Status.OK:
            raise error_of(status, ledger_id=ledger_id, bookie=bookie.host.name)
        reply = decode_read_reply(frame.head)
        for header in walk(frame.body):
            data = frame.body[header.offset + HEADER_BYTES : header.end]
            assert data == acknowledged.get(header.entry_id, data)
            denied.discard(header.entry_id)
        for low, high in reply.unknown:
            denied.difference_update(range(low, high + 1))
        first = reply.examined_to + 1
    assert not denied, f"{bookie.host.name} acknowledged and denies {sorted(denied)} of ledger {ledger_id}"
    assert ledger_id not in bookie.taken_late, f"{bookie.host.name} took an append to a ledger it had fenced"
