"""Rules 38 and 51: a bookie that leaves is never needed once it is gone. Each part of it with a schedule that needs it.

Each schedule is played with the rule, and then with the real code robbed of that part, which must be noticed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from bkpy.admin.decommission import Decommission
from bkpy.admin.drain import BookieDrain
from bkpy.client.client import replication_context
from bkpy.config.recovery import RecoverySettings
from bkpy.errors import BookKeeperError
from bkpy.metadata.bookies.cookies import read_cookie
from bkpy.metadata.ledgers.catalog import LedgerCatalog
from bkpy.metadata.replication.locks import LedgerLocks
from bkpy.protocol.repair.rereplication import RepairScope
from bkpy.recovery import ledger_recovery
from bkpy.replication.worker.fragment_copy import CopyCount
from bkpy.replication.worker.ledger_repair import LedgerRepair
from bkpy.replication.worker.pacing import CopyRate

from .ablations.switches import (
    absent_bookies_may_leave,
    locks_are_not_waited_for,
    recoveries_are_not_settled,
    recoveries_are_taken,
    writers_at_rest_stay,
)
from .cluster import Cluster

if TYPE_CHECKING:
    from bkpy.client.client import Client

    from .ablations import Switch

SETTINGS = RecoverySettings(decommission_patience_s=2.0)


class Scene:
    """Four bookies: a ledger is on three of them, and the fourth, which could take another's place, is to leave."""

    def __init__(self) -> None:
        self.cluster = Cluster(0, bookies=4, calm=True)
        self.go = asyncio.Event()

    async def begin(self, *, close: bool) -> None:
        self.client = await self.cluster.connect(self.cluster.client_host)
        writer = await self.client.create_ledger()
        await writer.append(b"x" * 100)
        if close:
            await writer.close()
        else:
            writer.abandon()
        self.ledger_id = writer.ledger_id
        self.stays = writer.ensemble
        (self.leaver,) = {bookie.settings.bookie_id for bookie in self.cluster.bookies} - set(writer.ensemble)

    async def drain(self) -> None:
        """Return when the bookie refuses entries."""
        one = BookieDrain(replication_context(self.client), self.leaver, SETTINGS)
        await one.begin()
        while not (await one.look()).refuses:
            await asyncio.sleep(0.1)

    async def decommission(self) -> None:
        with contextlib.suppress(BookKeeperError):
            await Decommission(replication_context(self.client), self.leaver, SETTINGS, lost=False).run(
                lambda looked: None
            )

    async def behind_the_times(self) -> Client:
        """A client whose list of bookies stays as it is now."""
        client = await self.cluster.connect(self.cluster.client_host)

        async def nothing(*, whole: bool = True) -> None:
            pass

        replication_context(client).directory.refresh = nothing  # type: ignore[method-assign]
        return client

    async def copy(self, client: Client, copied: asyncio.Event) -> None:
        """Somebody copies to the bookie that leaves, and swaps it in when told to go."""
        context = replication_context(client)
        runtime = context.parts.runtime
        locks = LedgerLocks(context.cluster.store, context.cluster.root, "mover", runtime)
        rate = CopyRate(SETTINGS, runtime)
        repair = LedgerRepair(context, locks, SETTINGS, rate, CopyCount(), target=self.leaver)
        copy = repair.copy

        async def copy_and_wait(*args: Any) -> Any:
            done = await copy(*args)
            copied.set()
            await self.go.wait()
            return done

        repair.copy = copy_and_wait  # type: ignore[method-assign]
        await repair.run(self.ledger_id, RepairScope(frozenset({self.stays[0]})))

    async def account(self, *, gone: bool) -> None:
        store, root = replication_context(self.client).cluster.store, replication_context(self.client).cluster.root
        is_gone = await read_cookie(store, root, self.leaver) is None
        metadata = await self.client.ledger_metadata(self.ledger_id)
        named = any(self.leaver in fragment.bookies for fragment in metadata.fragments)
        assert not (is_gone and named), "a ledger names a bookie that is gone"
        assert is_gone is gone
        await self.client.close()


async def copy_that_was_made_before(scene: Scene) -> None:
    """A share was copied to the bookie before it drained, and is swapped in when all ledgers have been looked at."""
    await scene.begin(close=True)
    copied = asyncio.Event()
    copying = asyncio.ensure_future(scene.copy(scene.client, copied))
    await copied.wait()
    await scene.drain()
    await scene.decommission()
    scene.go.set()
    await copying
    await scene.account(gone=False)


async def copy_by_an_old_list(scene: Scene) -> None:
    """Somebody who knows of nothing copies to the bookie when it is gone."""
    await scene.begin(close=True)
    client = await scene.behind_the_times()
    await scene.drain()
    await scene.decommission()
    scene.go.set()
    await scene.copy(client, asyncio.Event())
    await client.close()
    await scene.account(gone=True)


async def recovery_that_closes_late(scene: Scene) -> None:
    """A recovery has written back to the bookie before it drained, and names it with its closing write."""
    await scene.begin(close=False)
    down = next(bookie for bookie in scene.cluster.bookies if bookie.settings.bookie_id == scene.stays[1])
    down.host.crash()
    arrived = asyncio.Event()
    close = ledger_recovery.close_ledger

    async def close_late(*args: Any, **options: Any) -> Any:
        if not arrived.is_set():
            arrived.set()
            await scene.go.wait()
        return await close(*args, **options)

    with patch.object(ledger_recovery, "close_ledger", close_late):
        recovery = asyncio.ensure_future(scene.client.recover_ledger(scene.ledger_id))
        await arrived.wait()
        await down.start()
        await scene.drain()
        await scene.decommission()
        scene.go.set()
        await asyncio.wait([recovery])
    await scene.account(gone=True)


async def writer_at_rest(scene: Scene) -> None:
    """A writer that appends nothing has the bookie in its ensemble."""
    await scene.begin(close=True)
    idle = await scene.client.create_ledger()
    await idle.append(b"x")
    scene.leaver = idle.ensemble[0]
    await scene.drain()
    await asyncio.sleep(5.0)
    assert scene.leaver not in idle.ensemble
    await idle.close()
    await scene.client.close()


async def creation_without_the_bookie(scene: Scene) -> None:
    """A client is about to create a ledger without the bookie, which is down, when it is decommissioned as lost."""
    await scene.begin(close=True)
    (leaver,) = (one for one in scene.cluster.bookies if one.settings.bookie_id == scene.leaver)
    leaver.host.crash()
    while scene.leaver in scene.client.bookies:
        await asyncio.sleep(0.1)
    chosen, create = asyncio.Event(), LedgerCatalog.create

    async def create_late(catalog: LedgerCatalog, build: Any, absent: Any = ()) -> Any:
        if absent:
            chosen.set()
            await scene.go.wait()
        return await create(catalog, build, absent)

    with patch.object(LedgerCatalog, "create", create_late):
        creating = asyncio.ensure_future(scene.client.create_ledger(ensemble_size=4, write_quorum=4, ack_quorum=3))
        await chosen.wait()
        # All ledgers have been looked at, and the bookie still has its cookie.
        await Decommission(replication_context(scene.client), scene.leaver, SETTINGS, lost=True).run(
            lambda looked: scene.go.set()
        )
        await asyncio.wait([creating])
    if creating.exception() is None:
        scene.ledger_id = creating.result().ledger_id
        creating.result().abandon()
    await scene.account(gone=True)


Story = Callable[[Scene], Coroutine[Any, Any, None]]
STORIES = [
    (copy_that_was_made_before, locks_are_not_waited_for),
    (copy_by_an_old_list, recoveries_are_taken),
    (recovery_that_closes_late, recoveries_are_not_settled),
    (writer_at_rest, writers_at_rest_stay),
    (creation_without_the_bookie, absent_bookies_may_leave),
]


async def play_in(scene: Scene, story: Story) -> None:
    """On the client's host, which boots with the cluster."""
    await scene.cluster.start()
    await scene.cluster.client_host.start(story(scene))


def play(story: Story) -> None:
    scene = Scene()
    scene.cluster.run(play_in(scene, story))


@pytest.mark.scenario(60)
@pytest.mark.parametrize(("story", "without"), STORIES)
def test_the_rule_holds_and_is_needed(story: Story, without: Switch) -> None:
    play(story)
    with without(), pytest.raises(AssertionError):
        play(story)
