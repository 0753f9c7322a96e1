"""What goes wrong: each fault of a plan begins at its time, and is over when it says so."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING

from tests.sim.coverage_marks import DIED_AT_A_WRITE, DIED_IN_BOOKKEEPERS, struck
from tests.sim.disk import PLENTY_BYTES

from .drawing import DEATHS, LINKS
from .restored import make_backup
from .rot import rot, rot_in_a_journal, rot_in_an_index

if TYPE_CHECKING:
    from random import Random

    from .plan import Fault
    from .stage import Stage


async def strike(stage: Stage, fault: Fault) -> None:
    """The whole of one fault."""
    await asyncio.sleep(fault.at_s)
    rng = stage.schedule.stream(fault.key)
    stage.world.record("event", fault.kind, f"{fault.key} {dict(fault.options)}")
    if fault.kind in DEATHS:
        await _death(stage, fault, rng)
        stage.world.marks[DIED_IN_BOOKKEEPERS] += stage.cluster.tree.of_bookkeeper
    elif fault.kind in LINKS:
        await _link(stage, fault, rng)
    else:
        await _OTHERS[fault.kind](stage, fault, rng)
    stage.world.marks[struck(fault.kind, of_bookkeeper=stage.cluster.tree.of_bookkeeper)] += 1


# --- bookies ----------------------------------------------------------------------------------------------------------


async def _death(stage: Stage, fault: Fault, rng: Random) -> None:
    """Let the bookie die, now or soon, and start it again."""
    bookie = stage.bookie(fault.options["bookie"])
    host, kind = bookie.host, fault.kind
    async with stage.busy[host.name]:
        if stage.is_gone(bookie) or not host.up:
            return
        boot = host.boots
        if kind == "crash":
            host.crash()
        elif kind == "power cut":
            host.power_cut()
        elif kind == "crash at a disk operation":
            host.disk.crash_at(fault.options["nth"])
        elif kind == "crash in a journal write":
            host.disk.crash_at(fault.options["nth"], operation="pwritev", path="/journal/")
        elif kind == "failed fdatasync":
            host.disk.fail_at(fault.options["nth"], errno.EIO, operation="fdatasync")
        else:
            host.disk.fail_at(1, errno.ENOSPC, path="/journal/", repeat=True)
        await asyncio.sleep(fault.lasts_s)
        host.disk.heal()
        if host.up and host.boots == boot:
            host.crash()  # what should have killed it didn't come, or left it in a state of no use
        if rng.random() < 0.5:
            host.power_cut()
        await stage.start(bookie)


async def _blackout(stage: Stage, fault: Fault, rng: Random) -> None:
    """All bookies lose power in the same instant."""
    victims = [bookie for bookie in stage.cluster.bookies if bookie.host.up and not stage.is_gone(bookie)]
    for bookie in victims:
        bookie.host.power_cut()
    await asyncio.sleep(fault.lasts_s)
    for bookie in victims:
        async with stage.busy[bookie.host.name]:
            if not bookie.host.up and not stage.is_gone(bookie):
                await stage.start(bookie)


async def _cut_at_a_fence(stage: Stage, fault: Fault, rng: Random) -> None:
    """The next bookie that answers that a ledger is fenced loses power right behind its answer."""
    answers = {bookie.next_fence: bookie for bookie in stage.cluster.bookies}
    await asyncio.wait(answers, timeout=fault.lasts_s, return_when=asyncio.FIRST_COMPLETED)
    bookie = next((bookie for answer, bookie in answers.items() if answer.done()), None)
    if bookie is not None:
        await asyncio.sleep(fault.options["after_s"])
        if bookie.host.up and not stage.is_gone(bookie):
            bookie.host.power_cut()


async def _slow_disk(stage: Stage, fault: Fault, rng: Random) -> None:
    disk = stage.bookie(fault.options["bookie"]).host.disk
    disk.stall()
    await asyncio.sleep(fault.lasts_s)
    disk.unstall()


async def _full_disk(stage: Stage, fault: Fault, rng: Random) -> None:
    """Something else has filled the disk, until an operator makes room, whatever else has filled it meanwhile."""
    disk = stage.bookie(fault.options["bookie"]).host.disk
    disk.capacity_bytes = disk.used_bytes() + fault.options["free_bytes"]
    await asyncio.sleep(fault.lasts_s)
    disk.capacity_bytes = PLENTY_BYTES


async def _read_errors(stage: Stage, fault: Fault, rng: Random) -> None:
    """Some reads of the disk fail."""
    stage.world.rots = True
    disk = stage.bookie(fault.options["bookie"]).host.disk
    for nth in range(fault.options["nth"]):
        disk.fail_at(1 + nth * 3, errno.EIO, operation="pread", path="/ledgers/")
    await asyncio.sleep(fault.lasts_s)


async def _host_lost(stage: Stage, fault: Fault, rng: Random) -> None:
    """The unlucky bookie never comes back."""
    bookie = stage.unlucky
    async with stage.busy[bookie.host.name]:
        stage.oracle.gone.add(bookie.settings.bookie_id)
        if bookie.host.up:
            bookie.host.crash()


async def _disks_lost(stage: Stage, fault: Fault, rng: Random) -> None:
    await stage.rebuild(stage.unlucky, fault.lasts_s)


# --- links ------------------------------------------------------------------------------------------------------------


async def _link(stage: Stage, fault: Fault, rng: Random) -> None:
    net, options = stage.world.net, fault.options
    here, there = stage.world.hosts[options["host"]].address, stage.bookie(options["bookie"]).host.address
    if here == there:
        return
    if fault.kind == "reset":
        net.reset(here, there)
        return
    if fault.kind == "partition":
        net.partition(here, there)
    elif fault.kind == "one-way block":
        net.block(*((here, there) if rng.random() < 0.5 else (there, here)))
    else:
        net.slow(here, there, options["extra_s"])
        net.slow(there, here, options["extra_s"] * rng.random())
    await asyncio.sleep(fault.lasts_s)
    net.mend(here, there)


async def _duplicated_connections(stage: Stage, fault: Fault, rng: Random) -> None:
    """The host connects again to all bookies, and all that it sends reaches them twice."""
    net, here = stage.world.net, stage.world.hosts[fault.options["host"]].address
    others = [bookie.host.address for bookie in stage.cluster.bookies if bookie.host.address != here]
    for there in others:
        net.duplicate(here, there, fault.options["late_s"])
        net.reset(here, there)
    await asyncio.sleep(fault.options["late_s"] + fault.lasts_s)
    for there in others:
        net.mend(here, there)


# --- the metadata store -----------------------------------------------------------------------------------------------


async def _store_away(stage: Stage, fault: Fault, rng: Random) -> None:
    """The host can't reach the metadata store for a while, at times for so long that its sessions expire."""
    host = stage.world.hosts[fault.options["host"]]
    sessions = list(host.sessions)
    for session in sessions:
        host.do(session.suspend)
    await asyncio.sleep(fault.lasts_s)
    for session in sessions:
        if session in host.sessions:  # the process still lives
            if fault.lasts_s > session.session_timeout_s:
                host.do(session.expire)
            host.do(session.resume)


async def _session_lost(stage: Stage, fault: Fault, rng: Random) -> None:
    host = stage.world.hosts[fault.options["host"]]
    for session in list(host.sessions):
        host.do(session.expire)


async def _replies_lost(stage: Stage, fault: Fault, rng: Random) -> None:
    host = stage.world.hosts[fault.options["host"]]
    host.faults.chances = {"metadata.request_lost": 0.2, "metadata.reply_lost": 0.2}
    await asyncio.sleep(fault.lasts_s)
    host.faults.chances = {}


async def _lagging_follower(stage: Stage, fault: Fault, rng: Random) -> None:
    """The host, in this life and the next ones, is connected to a server of the store that is behind the others."""
    host = stage.world.hosts[fault.options["host"]]
    host.follow(fault.options["lag_s"])
    await asyncio.sleep(fault.lasts_s)
    host.follow(0.0)


async def _copy_taken(stage: Stage, fault: Fault, rng: Random) -> None:
    """Of the metadata, to which the store goes back in the end."""
    stage.older = stage.world.metadata.copy()


async def _backup_made(stage: Stage, fault: Fault, rng: Random) -> None:
    """Of the metadata, which are lost in the end."""
    for n in range(5):
        stage.backup = await make_backup(stage, f"/backups/{n}")
        if stage.backup is not None:
            return
        await asyncio.sleep(0.3)


async def _reply_lost_then_away(stage: Stage, fault: Fault, rng: Random) -> None:
    """A change of the ensemble is stored, but the reply is lost, and the host soon loses the store altogether.

    Meanwhile the bookie comes back whose death was the reason for the change.
    """
    host, bookie = stage.world.hosts[fault.options["host"]], stage.bookie(fault.options["bookie"])
    if host is bookie.host:
        return
    sessions = list(host.sessions)
    lost = [host.do(session.lose_reply, fault.options["calls"]) for session in sessions]
    async with stage.busy[bookie.host.name]:
        if bookie.host.up and not stage.is_gone(bookie):
            bookie.host.crash()
            if lost:
                await asyncio.wait(lost, timeout=3.0)
            await asyncio.sleep(rng.random() ** 3 * 3)
            await stage.start(bookie)
    await asyncio.sleep(fault.lasts_s)
    for session in sessions:
        if session in host.sessions:
            session.keep_replies()
            host.do(session.resume)


# --- clients, workers, clocks -----------------------------------------------------------------------------------------


async def _host_dies(stage: Stage, fault: Fault, rng: Random) -> None:
    host = stage.world.hosts[fault.options["host"]]
    if host.up:
        stage.dies(host, power=rng.random() < 0.5)
        await asyncio.sleep(fault.lasts_s)
        if not host.up:
            stage.boot(host)


async def _dies_at_a_write(stage: Stage, fault: Fault, rng: Random) -> None:
    """The host dies right behind its nth change of the metadata from now on, before that is answered."""
    host = stage.world.hosts[fault.options["host"]]
    left, struck_now = fault.options["nth"], stage.world.loop.create_future()

    def wrote() -> None:
        nonlocal left
        left -= 1
        if not left:
            struck_now.set_result(None)

    sessions = list(host.sessions)
    for session in sessions:
        session.on_write = wrote
    await asyncio.wait([struck_now], timeout=fault.lasts_s)
    for session in sessions:
        session.on_write = None
    if not struck_now.done() or not host.up:
        return
    stage.world.marks[DIED_AT_A_WRITE] += 1
    bookie = next((bookie for bookie in stage.cluster.bookies if bookie.host is host), None)
    if bookie is None:
        stage.dies(host, power=rng.random() < 0.5)
        await asyncio.sleep(rng.random() ** 2 * 3)
        if not host.up:
            stage.boot(host)
        return
    host.crash()
    async with stage.busy[host.name]:
        await asyncio.sleep(rng.random() ** 2 * 3)
        if not host.up and not stage.is_gone(bookie):
            await stage.start(bookie)


async def _clock_jump(stage: Stage, fault: Fault, rng: Random) -> None:
    stage.world.hosts[fault.options["host"]].clock.skew_s += fault.options["skew_s"]


async def _clock_drift(stage: Stage, fault: Fault, rng: Random) -> None:
    """The host's wall clock is fast, or slow, for a while."""
    clock = stage.world.hosts[fault.options["host"]].clock
    for _ in range(10):
        clock.skew_s += rng.choice((-1, 1)) * fault.lasts_s / 20
        await asyncio.sleep(fault.lasts_s / 10)


async def _cancelled_calls(stage: Stage, fault: Fault, rng: Random) -> None:
    """A client's tasks are cancelled while they wait."""
    host = fault.options["host"]
    for _ in range(3):
        stage.cancel_calls(host)
        await asyncio.sleep(rng.random() * 0.1)


_OTHERS = {
    "duplicated connections": _duplicated_connections,
    "blackout": _blackout,
    "power cut at a fence": _cut_at_a_fence,
    "slow disk": _slow_disk,
    "full disk": _full_disk,
    "read errors": _read_errors,
    "rot": rot,
    "rot in a journal": rot_in_a_journal,
    "rot in an index": rot_in_an_index,
    "host lost": _host_lost,
    "disks lost": _disks_lost,
    "store away": _store_away,
    "session lost": _session_lost,
    "lagging follower": _lagging_follower,
    "copy taken": _copy_taken,
    "backup made": _backup_made,
    "replies lost": _replies_lost,
    "reply lost, then away": _reply_lost_then_away,
    "client dies": _host_dies,
    "worker dies": _host_dies,
    "death at a write of the metadata": _dies_at_a_write,
    "clock jump": _clock_jump,
    "clock drift": _clock_drift,
    "cancelled calls": _cancelled_calls,
}
