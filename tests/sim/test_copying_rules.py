"""Rules 30 and 35: who moves copies holds the ledger's lock, and the swap sees to it. Each with a schedule.

Versions of the metadata keep two from swapping at once. What the lock is for is the bookie that is copied to: what it
has of a ledger that doesn't name it yet is spare, and its collector may remove it, under the lock, until the swap. That
takes a session that ends between the two and a collection at that moment, which hardly any seed of the healing run has.

Each schedule is played with the rule, and then with the real code robbed of it, which must be noticed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import pytest

from bkpy.client.client import replication_context
from bkpy.config.recovery import RecoverySettings
from bkpy.metadata.replication.locks import LedgerLocks
from bkpy.protocol.repair.rereplication import RepairScope
from bkpy.replication.worker.fragment_copy import CopyCount
from bkpy.replication.worker.ledger_repair import LedgerRepair
from bkpy.replication.worker.pacing import CopyRate

from .ablations.switches import people_take_no_lock, swaps_do_not_check_the_lock
from .cluster import Cluster, held_by

if TYPE_CHECKING:
    from bkpy.client.client import Client

    from .ablations import Switch

ENTRIES = 5
COLLECTING_S = 20.0  # many looks at what is spare
SETTINGS = RecoverySettings()


class Scene:
    """Four bookies: a closed ledger is on three of them, and is copied to the fourth, which collects often."""

    def __init__(self) -> None:
        self.cluster = Cluster(0, bookies=4, calm=True, gc_interval_s=0.5, gc_over_replicated_interval_s=0.5)
        self.copied = asyncio.Event()
        self.go = asyncio.Event()

    async def begin(self) -> None:
        self.client = await self.cluster.connect(self.cluster.client_host)
        writer = await self.client.create_ledger()
        for _ in range(ENTRIES):
            await writer.append(b"x" * 100)
        await writer.close()
        self.ledger_id, self.old = writer.ledger_id, writer.ensemble[0]
        (self.target,) = (b for b in self.cluster.bookies if b.settings.bookie_id not in writer.ensemble)

    async def copy(self, client: Client) -> None:
        """To the fourth bookie; it is swapped in when told to go."""
        context = replication_context(client)
        runtime = context.parts.runtime
        locks = LedgerLocks(context.cluster.store, context.cluster.root, "mover", runtime)
        rate = CopyRate(SETTINGS, runtime)
        repair = LedgerRepair(context, locks, SETTINGS, rate, CopyCount(), target=self.target.settings.bookie_id)
        copy = repair.copy

        async def copy_and_wait(*args: Any) -> Any:
            done = await copy(*args)
            self.copied.set()
            await self.go.wait()
            return done

        repair.copy = copy_and_wait  # type: ignore[method-assign]
        await repair.run(self.ledger_id, RepairScope(frozenset({self.old})))

    async def account(self) -> None:
        """Whoever is named has all of it."""
        reader = await self.client.open_ledger(self.ledger_id)
        for bookie in self.cluster.bookies:
            if bookie.settings.bookie_id in reader.metadata.fragments[0].bookies:
                assert await held_by(reader, {}, bookie, ENTRIES - 1) == set(range(ENTRIES))
        await self.client.close()


async def copy_in_a_session_that_ends(scene: Scene) -> None:
    """The lock is lost when the copy is made, and the bookie removes what nobody names."""
    await scene.begin()
    mover = await scene.cluster.connect(scene.cluster.client_host)
    session = scene.cluster.client_host.sessions[-1]
    copying = asyncio.ensure_future(scene.copy(mover))
    await scene.copied.wait()
    session.expire()
    async with asyncio.timeout(COLLECTING_S):
        while scene.ledger_id in await scene.target.held():
            await asyncio.sleep(0.1)
    scene.go.set()
    await copying
    await mover.close()
    await scene.account()


async def copy_while_spare_copies_are_collected(scene: Scene) -> None:
    """The lock keeps the collector away for as long as it takes."""
    await scene.begin()
    copying = asyncio.ensure_future(scene.copy(scene.client))
    await scene.copied.wait()
    await asyncio.sleep(COLLECTING_S)
    scene.go.set()
    await copying
    await scene.account()


Story = Callable[[Scene], Coroutine[Any, Any, None]]


async def play_in(scene: Scene, story: Story) -> None:
    """On the client's host, which boots with the cluster."""
    await scene.cluster.start()
    await scene.cluster.client_host.start(story(scene))


def play(story: Story) -> None:
    scene = Scene()
    scene.cluster.run(play_in(scene, story))


@pytest.mark.thorough
@pytest.mark.scenario(59)
@pytest.mark.parametrize(
    ("story", "without"),
    [
        (copy_in_a_session_that_ends, swaps_do_not_check_the_lock),
        (copy_while_spare_copies_are_collected, people_take_no_lock),
    ],
)
def test_the_rule_holds_and_is_needed(story: Story, without: Switch) -> None:
    play(story)
    with without(), pytest.raises(AssertionError):
        play(story)
