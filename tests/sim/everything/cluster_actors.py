"""What operators do: clean restarts, drains and decommissions, bookies that join, copies that are moved to them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from bkpy.errors import BookKeeperError
from bkpy.storage.identity import COOKIE_NAME
from tests.hooks import has_mender, mender_of
from tests.sim import operators
from tests.sim.coverage_marks import (
    CHECKED_BY_HAND,
    DIRECTORIES_MOVED,
    DRAIN_CANCELLED,
    FORMAT_REFUSED,
    FORMATTED_ANEW,
    JOURNALS_CHANGED,
    REBALANCED,
    RECOVERED_BY_HAND,
    RETIRED,
)
from tests.sim.world import HostDied

from .stage import take_frames_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from bkpy.client.client import Client
    from tests.sim.cluster import Bookie

    from .plan import Actor
    from .stage import Stage


async def restart(stage: Stage, actor: Actor) -> None:
    """Stop the bookie as SIGTERM does, and start it again, perhaps with another limit of its frames."""
    bookie = stage.bookie(actor.options["bookie"])
    if "frame_bytes" in actor.options:
        take_frames_of(bookie, actor.options["frame_bytes"])
    async with stage.busy[bookie.host.name]:
        if bookie.host.up and not stage.is_gone(bookie):
            with contextlib.suppress(HostDied):  # it may give up on its own meanwhile
                await bookie.stop()
            await stage.start(bookie)


async def upgrade(stage: Stage, actor: Actor) -> None:
    """End the bookie's process of the earlier version, and start it with today's code."""
    await stage.take_over(stage.bookie(actor.options["bookie"]), actor.options["how"])


async def change_journals(stage: Stage, actor: Actor) -> None:
    """Give the bookie more or fewer journals, each time that it has stopped in order."""

    async def change(bookie: Bookie, rng: Random, turn: int) -> None:
        with contextlib.suppress(HostDied):  # it may give up on its own meanwhile
            await bookie.stop()
        if bookie.stopped:
            left = bookie.settings.journal_directories[: rng.choice((1, 2))]
            others = [path for n in range(4) if (path := f"/data/journal/{n}") not in left]
            wanted = [*left, *others[: rng.choice((0, 1, 2))]]
            dies_at = rng.choice((None, 1, 2, 3, 5, 8, 13, 20))
            changed = await operators.change_journals(bookie, wanted, dies_at)
            stage.world.marks[JOURNALS_CHANGED] += changed
        await stage.start(bookie)

    await _at_times(stage, actor, change)


async def move_directories(stage: Stage, actor: Actor) -> None:
    """Move some of the bookie's directories to other disks, each time that it is down, however it ended."""

    async def move(bookie: Bookie, rng: Random, turn: int) -> None:
        bookie.grows = 0.0  # directories that are moved and others that join need two starts
        how = rng.choice(("stop", "crash", "power cut"))
        if how == "stop":
            with contextlib.suppress(HostDied):  # it may give up on its own meanwhile
                await bookie.stop()
        elif how == "crash":
            bookie.host.crash()
        else:
            bookie.host.power_cut()
        paths = [*bookie.settings.journal_directories, *bookie.settings.ledger_directories]
        known = [path for path in paths if bookie.host.disk.exists(f"{path}/{COOKIE_NAME}")]
        moved = rng.sample(known, rng.randint(0, len(known)))
        places = {path: f"/disk-{turn}/{number}" for number, path in enumerate(moved)}
        dies_at = rng.choice((None, 1, 2, 3, 5, 8, 13, 20))
        by_command = rng.random() < 0.4 or known != paths
        await operators.move_directories(bookie, places, by_command=by_command, dies_at=dies_at)
        stage.world.marks[DIRECTORIES_MOVED] += bool(places)
        await stage.start(bookie)

    await _at_times(stage, actor, move)


async def _at_times(stage: Stage, actor: Actor, act: Callable[[Bookie, Random, int], Awaitable[None]]) -> None:
    """Do it to the bookie now and then while the storm lasts, if it is up with today's code."""
    bookie, rng = stage.bookie(actor.options["bookie"]), stage.schedule.stream(actor.key)
    for turn in range(actor.options["times"]):
        await asyncio.sleep(rng.random())
        async with stage.busy[bookie.host.name]:
            if stage.ended.is_set():
                return
            if bookie.host.up and bookie.code is None and not stage.is_gone(bookie):
                await act(bookie, rng, turn)


async def drain(stage: Stage, actor: Actor) -> None:
    """Drain the bookie, and take it out of the cluster, or let it stay after all."""
    bookie, options = stage.bookie(actor.options["bookie"]), actor.options
    name, left = bookie.settings.bookie_id, False

    async def empty(client: Client) -> None:
        nonlocal left
        left = await operators.drain(client, name, stage.settings, options["cancelled_after_s"])
        stage.world.marks[DRAIN_CANCELLED] += not left

    async def take_out(client: Client) -> None:
        await operators.decommission(client, name, stage.settings, lambda: stage.oracle.gone.add(name))

    await stage.on(stage.operating.name, empty)
    while left and options["leaves"] and stage.operating.up:
        # Who changes its directories at this moment brings it back.
        async with stage.busy[bookie.host.name]:
            await stage.on(stage.operating.name, take_out)
            if stage.is_gone(bookie):
                if bookie.host.up:
                    bookie.host.crash()
                stage.oracle.retired.add(name)
                stage.world.marks[RETIRED] += 1
                return
        await asyncio.sleep(operators.TRY_AGAIN_S)


async def grow(stage: Stage, actor: Actor) -> None:
    """A bookie comes that has nothing yet, and copies are moved to it."""
    bookie = stage.new_bookie
    assert bookie is not None
    stage.cluster.bookies.append(bookie)
    async with stage.busy[bookie.host.name]:
        await stage.start(bookie)

    async def act(client: Client) -> None:
        moves = await operators.rebalance(client, stage.settings, stage.schedule.stream(actor.key))
        stage.world.marks[REBALANCED] += moves

    if actor.options["rebalances"]:
        await stage.on(stage.operating.name, act)


async def make_anew(stage: Stage, actor: Actor) -> None:
    """Stop the bookie that has come, format it if no ledger may need it, and start it under the same id."""
    bookie = stage.new_bookie
    assert bookie is not None
    name = bookie.settings.bookie_id
    while not bookie.host.up:
        if stage.ended.is_set():
            return
        await asyncio.sleep(0.1)
    await asyncio.sleep(actor.options["after_s"])
    agreed = False

    def agree() -> None:
        nonlocal agreed
        agreed = True
        bookie.promises.clear()  # it has nothing any more: a swap that names it for a former copy is noticed
        stage.oracle.in_doubt.add(name)
        stage.oracle.formatted.add(name)

    async with stage.busy[bookie.host.name]:
        while bookie.host.up:
            with contextlib.suppress(HostDied):
                await bookie.stop()
        formatted = False
        while not formatted:
            with contextlib.suppress(HostDied):
                formatted = await operators.format_stopped(bookie, agree)
            if not agreed:
                break
            await asyncio.sleep(operators.TRY_AGAIN_S)
        stage.world.marks[FORMATTED_ANEW if formatted else FORMAT_REFUSED] += 1
        await stage.start(bookie)


async def switch(stage: Stage, actor: Actor) -> None:
    """Switch re-replication off and on; in the end it is on."""

    async def act(client: Client) -> None:
        for off_s, on_s in actor.options["turns"]:
            await operators.switch(client, stage.settings, enabled=False)
            await asyncio.sleep(off_s)
            await operators.switch(client, stage.settings, enabled=True)
            await asyncio.sleep(on_s)

    await stage.on(stage.operating.name, act)


async def recover_by_hand(stage: Stage, actor: Actor) -> None:
    """Recover the bookie as soon as it isn't registered any more."""
    name = stage.bookie(actor.options["bookie"]).settings.bookie_id

    async def act(client: Client) -> None:
        while not stage.ended.is_set():
            try:
                stage.world.marks[RECOVERED_BY_HAND] += await operators.recover_bookie(client, name, stage.settings)
            except BookKeeperError as error:
                stage.world.record("operator", "did not recover a bookie", f"{name} {type(error).__name__}")
                await asyncio.sleep(operators.TRY_AGAIN_S)
            else:
                return

    await stage.on(stage.operating.name, act)


async def check_by_hand(stage: Stage, actor: Actor) -> None:
    """Have the bookie look through all of its ledgers."""
    bookie = stage.bookie(actor.options["bookie"])
    for _ in range(actor.options["times"]):
        while not stage.ended.is_set() and not (bookie.node is not None and has_mender(bookie.node)):
            await asyncio.sleep(0.1)
        if bookie.mends and bookie.node is not None and has_mender(bookie.node):
            stage.world.marks[CHECKED_BY_HAND] += mender_of(bookie.node).begin()
        await asyncio.sleep(0.5)


async def haunt(stage: Stage, actor: Actor) -> None:
    """A stranger presents keys for ids that are still to come, until the storm is over."""
    async with stage.stranger.about():
        await stage.ended.wait()
