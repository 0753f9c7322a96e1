"""What an operator does while a cluster heals by itself: drains, decommissions and moves, a loss that is accepted.

Each of them is tried again until it is done, as people do.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from typing import TYPE_CHECKING

from bkpy.admin.bookie_recovery import BookieRecovery
from bkpy.admin.decommission import Decommission
from bkpy.admin.drain import BookieDrain
from bkpy.admin.rebalance import Rebalancer
from bkpy.bookie.identity import BookieIdentity
from bkpy.cli.bookie.identity import open_peers
from bkpy.client.client import replication_context
from bkpy.errors import BookKeeperError, IdentityError, LedgerClosedError
from bkpy.metadata.bookies.cookies import delete_cookie
from bkpy.metadata.replication.locks import LedgerLocks
from bkpy.metadata.replication.manual import manual_moves
from bkpy.metadata.replication.underreplication import UnderreplicationQueue
from bkpy.metadata.store.outcome import Done
from bkpy.protocol.ledger.ledger_metadata import LedgerState

from .cluster import ROOT
from .users import TRANSIENT
from .world import HostDied

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from random import Random

    from bkpy.client.client import Client
    from bkpy.config.recovery import RecoverySettings
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata

    from .cluster import Bookie

TRY_AGAIN_S = 0.3


async def again(act: Callable[[], Awaitable[None]]) -> None:
    """Until it goes well. What may go wrong is a `BookKeeperError`."""
    while True:
        try:
            await act()
            return
        except BookKeeperError:
            await asyncio.sleep(TRY_AGAIN_S)


async def drain(client: Client, bookie_id: str, settings: RecoverySettings, cancelled_after_s: float | None) -> bool:
    """Have the bookie drain, until nothing names it; whether it was not cancelled before."""
    one = BookieDrain(replication_context(client), bookie_id, settings)
    await again(one.begin)
    left = False

    async def run() -> None:
        nonlocal left
        progress = await one.run(lambda progress: None)
        left = progress.draining and not progress.ledgers and not progress.blocked

    async def whole() -> None:
        while not left:
            await again(run)

    if cancelled_after_s is None:
        await whole()
        return True
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(cancelled_after_s):
            await whole()

    async def cancel() -> None:
        await one.cancel()

    await again(cancel)
    return False


async def decommission(client: Client, bookie_id: str, settings: RecoverySettings, gone: Callable[[], None]) -> None:
    """Try once to take it out of the cluster. `gone` is called as soon as it is done."""
    with contextlib.suppress(BookKeeperError):
        looked = await Decommission(replication_context(client), bookie_id, settings, lost=False).run(
            lambda looked: None
        )
        if looked.scan.clear:
            gone()


async def forget(client: Client, bookie_id: str) -> None:
    """Delete the cookie of a bookie though ledgers name it."""
    cluster = replication_context(client).cluster
    await delete_cookie(cluster.store, cluster.root, bookie_id)


async def format_stopped(bookie: Bookie, agree: Callable[[], None] = lambda: None) -> bool:
    """Format the bookie, which is stopped, if no ledger may need it; whether that was done. Its process ends then.

    `agree` is called before anything is deleted. Raises `HostDied`.
    """
    host = bookie.host
    host.boot()
    session, runtime = host.session(), host.runtime
    peers = functools.partial(open_peers, session, ROOT, runtime, bookie.settings)
    identity = BookieIdentity(bookie.settings, session, ROOT, runtime, peers)
    try:
        await host.start(identity.format(force=False, agree=lambda plan: agree()), name="format")
        done = True
    except BookKeeperError:
        done = False
    host.crash()
    return done


async def change_journals(bookie: Bookie, directories: Sequence[str], dies_at: int | None) -> bool:
    """Give the bookie, which has stopped in order, these journal directories; whether it may have them.

    `dies_at`: the process dies at that operation of its disk, and the command is run again. Its process ends then.
    """
    former = bookie.settings
    bookie.settings = former.model_copy(update={"journal_directories": list(directories)})
    changed = await _update_cookies(bookie, dies_at)
    if not changed:  # it was registered a moment ago, or has something to replay
        bookie.settings = former
    return changed


async def move_directories(bookie: Bookie, places: Mapping[str, str], *, by_command: bool, dies_at: int | None) -> None:
    """Move directories of the bookie, which is down, to other places, by their former ones.

    `by_command`: its cookies are updated at once, else by its next start; see `change_journals`.
    """
    disk, settings = bookie.host.disk, bookie.settings
    for path, place in places.items():
        disk.move_directory(path, place)
    bookie.settings = settings.model_copy(
        update={
            "journal_directories": [places.get(path, path) for path in settings.journal_directories],
            "ledger_directories": [places.get(path, path) for path in settings.ledger_directories],
        }
    )
    while by_command and not await _update_cookies(bookie, dies_at):
        await asyncio.sleep(TRY_AGAIN_S)  # it is registered until its session is over


async def _update_cookies(bookie: Bookie, dies_at: int | None) -> bool:
    """Run `bkpy bookie cookie update` until it is done, or refused."""
    host = bookie.host
    while True:
        host.boot()
        for path in (*bookie.settings.journal_directories, *bookie.settings.ledger_directories):
            host.disk.make_dirs(path)
        if dies_at is not None:
            host.disk.crash_at(dies_at)
        session, runtime = host.session(), host.runtime
        peers = functools.partial(open_peers, session, ROOT, runtime, bookie.settings)
        identity = BookieIdentity(bookie.settings, session, ROOT, runtime, peers)
        try:
            await host.start(identity.update(lambda plan: None), name="cookie update")
            return True
        except HostDied:
            dies_at = None
        except IdentityError:
            return False
        except (BookKeeperError, OSError):  # the disk may fail to read
            await asyncio.sleep(TRY_AGAIN_S)
        finally:
            if host.up:
                host.crash()
            host.disk.heal()


async def recover(client: Client, ledger_id: int, password: bytes) -> None:
    """Close the ledger, by as many tries as it takes while a later one may succeed.

    The first one after bookies lost power may find nothing but connections of before.
    """
    while True:
        try:
            await client.recover_ledger(ledger_id, password=password)
            return
        except TRANSIENT:
            await asyncio.sleep(TRY_AGAIN_S)


async def accept_loss(client: Client, ledger_id: int, password: bytes) -> LedgerMetadata:
    """Close the ledger without the bookies that are gone; returns its metadata."""

    async def run() -> None:
        try:
            survey = await (await replication_context(client).recovery_giving_up(ledger_id, password, -1)).survey()
        except LedgerClosedError:
            return  # nothing had to be given up
        await (await replication_context(client).recovery_giving_up(ledger_id, password, survey.last_entry)).run()

    await again(run)
    metadata = await client.ledger_metadata(ledger_id)
    assert metadata.state is LedgerState.CLOSED
    return metadata


async def switch(client: Client, settings: RecoverySettings, *, enabled: bool) -> None:
    """Switch re-replication on or off."""
    cluster = replication_context(client).cluster
    queue = UnderreplicationQueue(cluster.store, cluster.root, replication_context(client).parts.runtime, settings)
    while not isinstance(await queue.set_enabled(enabled), Done):
        await asyncio.sleep(TRY_AGAIN_S)


async def recover_bookie(client: Client, bookie_id: str, settings: RecoverySettings) -> int:
    """Have its ledgers copied to others, unless it is here; how many were."""
    recovery = BookieRecovery(replication_context(client), bookie_id, settings, target=None)
    recovery.check()
    named, _ = await recovery.scan(lambda count: None)
    return (await recovery.run(named, lambda progress: None)).ledgers


async def rebalance(client: Client, settings: RecoverySettings, rng: Random) -> int:
    """Move copies to where there are fewer; how many moves there were."""
    context = replication_context(client)
    cluster, runtime = context.cluster, context.parts.runtime
    locks = LedgerLocks(cluster.store, cluster.root, "rebalancing", runtime, settings)
    moves = 0

    async def run() -> None:
        nonlocal moves
        rebalancer = Rebalancer(context, locks, settings, runtime)
        balance = await rebalancer.look()
        await asyncio.sleep(rng.random())  # a person looks at it
        async with manual_moves(cluster.store, cluster.root, locks.holder, runtime, settings):
            await rebalancer.run(balance)
        moves += rebalancer.moves

    await again(run)
    return moves
