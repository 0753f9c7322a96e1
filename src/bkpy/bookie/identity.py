"""A stopped bookie's identity: made by `init`, shown and changed by `cookie`, ended by `format`.

Invariants: commands change nothing while the bookie runs, here (its directories are locked) or elsewhere (it is
registered); they delete nothing before they have counted the ledgers that name the bookie and the operator has agreed;
the id of a bookie that ledgers name, or may come to name, is never free again, because a new bookie would deny what the
old one acknowledged; a new bookie under a freed id denies no ledger that is older than the deletion.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from bkpy.bookie.cookie import encode_cookie, storage_part
from bkpy.config.address import split_address
from bkpy.errors import BookKeeperError, IdentityError
from bkpy.metadata import paths
from bkpy.metadata.audit_trail import ActKind, recorded
from bkpy.metadata.bookies.cookies import delete_cookie, instance_of, read_cookie, storage_instance, write_cookie
from bkpy.metadata.bookies.naming import NamingScan, agreed
from bkpy.metadata.bookies.retired import RetiredBy, read_retired, retire
from bkpy.metadata.cluster import open_cluster
from bkpy.metadata.store.outcome import NotDone, to_error
from bkpy.metadata.store.resolve import read_certainly
from bkpy.storage.cookies import CookieUpdate, FoundCookie, UpdatePlan, look_for_cookie, metadata_cookie
from bkpy.storage.identity import Directories, locked
from bkpy.storage.open import initialise_storage
from bkpy.storage.wipe import OwnedFiles, Owner, belongings, has_cookie, is_owned, wipe

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from bkpy.bookie.background_services import OpenPeers, Peers
    from bkpy.config.bookie import BookieSettings
    from bkpy.metadata.audit_trail import AuditTrail
    from bkpy.metadata.cluster import Cluster
    from bkpy.metadata.store.store import MetadataStore
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.runtime.interfaces import DiskRuntime

_NAMED_MAX: Final = 10  # ledgers that a message names


class NamingLedgers(NamedTuple):
    """The ledgers whose metadata name a bookie. `unreadable`: ledgers with unreadable metadata.

    `in_recovery`: ledgers whose recovery is under way, and may name the bookie when it closes the ledger.
    """

    looked_at: int
    naming: list[int]
    unreadable: list[int]
    in_recovery: list[int]

    @property
    def clear(self) -> bool:
        """Whether no ledger names the bookie, or may come to name it."""
        return not (self.naming or self.unreadable or self.in_recovery)


@dataclass(frozen=True)
class FormatPlan:
    """What `format` deletes once the operator agrees."""

    directories: dict[str, OwnedFiles]
    ledgers: NamingLedgers
    cookie_goes: bool  # the cookie in the metadata store: with `force`, or while a ledger may name the bookie, it stays
    foreign: list[str]  # directories that can't be shown to be this bookie's

    @property
    def files(self) -> int:
        return sum(len(here.data) + len(here.scrubs) + len(here.cookies) for here in self.directories.values())

    @property
    def bytes(self) -> int:
        return sum(here.bytes for here in self.directories.values())


class BookieIdentity:
    """The identity of one bookie, on `store` (its cluster's metadata under `root`).

    `peers` closes ledgers for `format`; without, a ledger IN_RECOVERY keeps it from freeing the id.
    """

    def __init__(
        self,
        settings: BookieSettings,
        store: MetadataStore,
        root: str,
        runtime: DiskRuntime,
        peers: OpenPeers | None = None,
        trail: AuditTrail | None = None,
    ) -> None:
        self._settings = settings
        self._store = store
        self._root = root
        self._runtime = runtime
        self._open_peers = peers
        self._trail = trail

    async def init(self, *, again: bool = False) -> bool:
        """Make the directories and cookies of a new bookie; False if all of them exist.

        `again`: also under the id of a bookie that was decommissioned, with empty directories.
        """
        settings = self._settings
        cluster = await self._cluster()
        known = await read_cookie(self._store, self._root, settings.bookie_id)
        retired = await read_retired(self._store, self._root, settings.bookie_id) if known is None else None
        limbo_to = -1 if retired is None else retired.limbo_to
        if retired is not None and retired.decommissioned:
            if not again:
                retired.check_usable()
            limbo_to = await self._newest_id(cluster)
            details = "a new bookie takes the id of one that was decommissioned"
            async with self._recorded(ActKind.COOKIE, details):
                return await self._init(cluster, known, limbo_to)
        return await self._init(cluster, known, limbo_to)

    async def _init(self, cluster: Cluster, known: tuple[bytes, int] | None, limbo_to: int) -> bool:
        cookie, new = initialise_storage(
            self._settings,
            self._runtime,
            instance_id=cluster.instance_id,
            expected_cookie=None if known is None else storage_part(known[0]),
            limbo_to=limbo_to,
        )
        if known is None:
            await self._write(cluster, cookie, None)
        return new or known is None

    def _recorded(self, act: ActKind, details: str) -> contextlib.AbstractAsyncContextManager[None]:
        return recorded(self._trail, act, self._settings.bookie_id, details)

    async def _newest_id(self, cluster: Cluster) -> int:
        newest = await cluster.catalog.newest_id()
        if isinstance(newest, NotDone):
            raise to_error(newest, bookie=self._settings.bookie_id)
        return newest

    async def _cluster(self) -> Cluster:
        return await open_cluster(self._store, self._root)

    async def _write(self, cluster: Cluster, storage: bytes, version: int | None) -> None:
        settings = self._settings
        host, port = split_address(settings.listen)
        address = settings.advertised_address or f"{'[' + host + ']' if ':' in host else host}:{port}"
        value = encode_cookie(settings.bookie_id, address, cluster.instance_id, storage)
        attempts_max = settings.metadata_write_attempts_max
        await write_cookie(self._store, self._root, settings.bookie_id, value, version, attempts_max=attempts_max)

    # --- cookie -------------------------------------------------------------------------------------------------------

    async def show(self) -> tuple[str, list[FoundCookie]]:
        """(the cluster's instance id, the cookies of the metadata store and of each directory). Changes nothing."""
        cluster = await self._cluster()
        stored = await self._stored()
        directories = Directories(self._settings, self._runtime.files, cluster.instance_id)
        found = [look_for_cookie(self._runtime.files, path) for path in directories.all]
        return cluster.instance_id, [metadata_cookie(stored), *found]

    async def _stored(self) -> bytes | None:
        """The directories' cookie in the metadata store; None if there is none, or an unreadable one."""
        known = await read_cookie(self._store, self._root, self._settings.bookie_id)
        with contextlib.suppress(BookKeeperError):
            return None if known is None else storage_part(known[0])
        return None

    async def update(self, agree: Callable[[UpdatePlan], Awaitable[None] | None]) -> UpdatePlan:
        """Rewrite the cookies to match the settings and the directories. `agree` raises to change nothing."""
        cluster = await self._cluster()
        await self._refuse_if_registered()
        known = await read_cookie(self._store, self._root, self._settings.bookie_id)
        update = CookieUpdate(self._settings, self._runtime, cluster.instance_id)
        with update.locked():
            plan = update.plan(await self._stored())
            if known is None:
                await self._check_same_storage(plan)
            if plan.steps:
                await agreed(agree(plan))
                version = None if known is None else known[1]
                async with self._recorded(ActKind.COOKIE, "; ".join(plan.steps)):
                    await update.carry_out(plan, lambda cookie: self._write(cluster, cookie, version))
        return plan

    async def _check_same_storage(self, plan: UpdatePlan) -> None:
        """Raises `IdentityError` if the id was freed since, by a bookie with other directories."""
        retired = await read_retired(self._store, self._root, self._settings.bookie_id)
        if retired is None:
            return
        instance = storage_instance([directory.uuid for directory in plan.cookie.ledger_directories])
        if not retired.decommissioned or retired.instance != instance:
            raise IdentityError(
                "the id was given up since these directories were used last, by a bookie with other directories: what "
                "these hold is out of date. Use empty directories (`bkpy bookie format` empties these), or another "
                "bookie_id",
                bookie=self._settings.bookie_id,
            )

    async def _refuse_if_registered(self) -> None:
        bookie_id = self._settings.bookie_id
        for read_only in (False, True):
            if await read_certainly(self._store, paths.available(self._root, bookie_id, read_only=read_only)):
                raise IdentityError(
                    "the bookie is registered: it runs, perhaps on another machine; stop it first. If it was killed, "
                    "its registration goes within its session_timeout_s",
                    bookie=bookie_id,
                )

    # --- format -------------------------------------------------------------------------------------------------------

    async def format(
        self,
        *,
        force: bool,
        agree: Callable[[FormatPlan], Awaitable[None] | None],
        looked_at: Callable[[int], None] = lambda count: None,
    ) -> FormatPlan:
        """Delete the bookie's files, and its cookie in the metadata store unless a ledger may name the bookie.

        `agree` raises to delete nothing. With `force` also though ledgers name the bookie, and directories that are not
        known to be its own, never another bookie's; the cookie stays then. Without, ledgers IN_RECOVERY are closed
        first, and locks of ledgers that are held by then are waited for.
        """
        cluster = await self._cluster()
        await self._refuse_if_registered()
        bookie_id = self._settings.bookie_id
        directories = [path for path in self._paths() if self._runtime.files.exists(path)]
        with contextlib.ExitStack() as held:
            for path in directories:
                held.enter_context(locked(self._runtime.files, path))
            owner = Owner(bookie_id, cluster.instance_id)
            foreign = [path for path in directories if not is_owned(self._runtime.files, path, owner)]
            known = await read_cookie(self._store, self._root, bookie_id)
            ledgers = await self._count(cluster, looked_at, settles=not force)
            if known is not None and not any(has_cookie(self._runtime.files, path, owner) for path in directories):
                await self._refuse_if_it_answers()  # it may run elsewhere: these locks don't say that it doesn't
            plan = FormatPlan(
                {path: belongings(self._runtime.files, path) for path in directories},
                ledgers,
                known is not None and ledgers.clear and not force,
                foreign,
            )
            if not force:
                self._refuse_to_format(plan)
            if plan.files or plan.cookie_goes:
                await agreed(agree(plan))
                details = f"{plan.files} files; the cookie {'goes' if plan.cookie_goes else 'stays'}"
                async with self._recorded(ActKind.FORMAT, details):
                    if known is None:  # an interruption must not leave an id that looks as if no bookie ever had it
                        await self._remember(cluster, None)
                    wipe(self._runtime.files, directories, owner, allowed=foreign if force else ())
                    if known is None or plan.cookie_goes:
                        await self._remember(cluster, None if known is None else known[0])
                    if plan.cookie_goes:
                        assert known is not None
                        await delete_cookie(self._store, self._root, bookie_id, known[1])
        return plan

    async def _refuse_if_it_answers(self) -> None:
        if self._open_peers is None:
            return
        peers = await self._open_peers()
        try:
            answered = await peers.answers(self._settings.bookie_id)
        finally:
            await peers.close()
        if answered:
            raise IdentityError(
                "the bookie answers at its address, though it isn't registered and no directory here has its cookie: "
                "it runs elsewhere. Stop it, or correct bookie_id",
                bookie=self._settings.bookie_id,
            )

    async def _remember(self, cluster: Cluster, cookie: bytes | None) -> None:
        """Let the next bookie under the id deny nothing that was there when the files were deleted.

        A writer may have stored entries here before it named the bookie, and names it now.
        """
        bookie_id = self._settings.bookie_id
        former = await read_retired(self._store, self._root, bookie_id)
        decommissioned = cookie is None and former is not None and former.decommissioned
        await retire(
            self._store,
            self._root,
            bookie_id,
            RetiredBy.DECOMMISSION if decommissioned else RetiredBy.FORMAT,
            self._runtime.clock,
            instance="" if cookie is None else instance_of(cookie),
            limbo_to=await self._newest_id(cluster),
            attempts_max=self._settings.metadata_write_attempts_max,
        )

    def _paths(self) -> Sequence[str]:
        return Directories(self._settings, self._runtime.files, "").all

    def _refuse_to_format(self, plan: FormatPlan) -> None:
        bookie_id = self._settings.bookie_id
        if plan.foreign:
            raise IdentityError(
                f"{', '.join(plan.foreign)}: there are files of a bookie here, and no cookie that says that they are "
                "this one's, of this cluster; nothing was deleted. --force deletes them all the same",
                bookie=bookie_id,
            )
        ledgers = plan.ledgers
        if not ledgers.clear:
            named = [*ledgers.naming, *ledgers.in_recovery, *ledgers.unreadable]
            more = f" and {len(named) - _NAMED_MAX} more" if len(named) > _NAMED_MAX else ""
            raise IdentityError(
                f"{len(ledgers.naming)} ledgers of {ledgers.looked_at} name this bookie, {len(ledgers.in_recovery)} "
                "are in recovery and may come to name it (`bkpy ledger recover` ends that), and the metadata of "
                f"{len(ledgers.unreadable)} can't be read: {', '.join(map(str, named[:_NAMED_MAX]))}{more}; nothing "
                "was deleted. Delete them, or wait until their copies are elsewhere. --force deletes this bookie's "
                "copies all the same, and keeps its id from being used again",
                bookie=bookie_id,
            )

    async def _count(self, cluster: Cluster, looked_at: Callable[[int], None], *, settles: bool) -> NamingLedgers:
        """Read the metadata of all ledgers. With `settles`, see first to it that no other ledger comes to name it."""
        async with contextlib.AsyncExitStack() as own:
            peers: Peers | None = None

            async def recover(ledger_id: int) -> LedgerMetadata:
                nonlocal peers
                assert self._open_peers is not None
                if peers is None:
                    peers = await self._open_peers()
                    own.push_async_callback(peers.close)
                return await peers.recover(ledger_id)

            scan = NamingScan(cluster, recover, self._settings.bookie_id, self._settings)
            if settles:
                await scan.wait_for_movers()
            found = await scan.look(looked_at, settles=settles and self._open_peers is not None)
        return NamingLedgers(found.ledgers, list(found.named), list(found.unreadable), list(found.unsettled))
