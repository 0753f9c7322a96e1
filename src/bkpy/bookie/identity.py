"""A stopped bookie's identity: made by `init`, shown and changed by `cookie`, ended by `format`.

Invariants: nothing is changed while the bookie runs, here (its directories are locked) or elsewhere (it is registered);
nothing is deleted before the ledgers that name the bookie were counted and somebody has agreed; the id of a bookie that
ledgers name is never free again, because a new one under it would deny what the old one acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from bkpy.bookie.cookie import encode_cookie, storage_part
from bkpy.config.address import split_address
from bkpy.errors import BookKeeperError, CorruptDataError, IdentityError, NoSuchLedgerError
from bkpy.metadata import paths
from bkpy.metadata.cluster import open_cluster
from bkpy.metadata.cookies import delete_cookie, read_cookie, write_cookie
from bkpy.metadata.resolve import read_certainly
from bkpy.protocol.ledger_metadata import UnsupportedVersionError
from bkpy.storage.cookies import CookieUpdate, FoundCookie, UpdatePlan, look_for_cookie, metadata_cookie
from bkpy.storage.identity import Directories, locked
from bkpy.storage.open import initialise_storage
from bkpy.storage.wipe import Belongings, belongings, wipe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bkpy.config.bookie import BookieSettings
    from bkpy.metadata.cluster import Cluster
    from bkpy.metadata.store import MetadataStore
    from bkpy.runtime.interfaces import DiskRuntime

_NAMED_MAX: Final = 10  # ledgers that a message names


class NamingLedgers(NamedTuple):
    """How many ledgers' metadata name a bookie. `unreadable`: those of which nobody can tell."""

    looked_at: int
    naming: list[int]
    unreadable: list[int]


@dataclass(frozen=True)
class FormatPlan:
    """What `format` is going to delete."""

    directories: dict[str, Belongings]
    ledgers: NamingLedgers
    cookie_goes: bool  # the cookie in the metadata store: it stays while a ledger may name the bookie
    foreign: list[str]  # directories that are not known to be this bookie's

    @property
    def files(self) -> int:
        return sum(len(here.data) + len(here.scrubs) + len(here.cookies) for here in self.directories.values())

    @property
    def bytes(self) -> int:
        return sum(here.bytes for here in self.directories.values())


class BookieIdentity:
    """The identity of one bookie, on `store` (its cluster's metadata under `root`)."""

    def __init__(self, settings: BookieSettings, store: MetadataStore, root: str, runtime: DiskRuntime) -> None:
        self._settings = settings
        self._store = store
        self._root = root
        self._runtime = runtime

    async def init(self) -> bool:
        """Make directories and cookies of a new bookie; False if all of it was there already."""
        settings = self._settings
        cluster = await self._cluster()
        known = await read_cookie(self._store, self._root, settings.bookie_id)
        cookie, new = initialise_storage(
            settings,
            self._runtime,
            instance_id=cluster.instance_id,
            expected_cookie=None if known is None else storage_part(known[0]),
        )
        if known is None:
            await self._write(cluster, cookie, None)
        return new or known is None

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
        """The directories' cookie as the metadata store has it; one that makes no sense is none."""
        known = await read_cookie(self._store, self._root, self._settings.bookie_id)
        with contextlib.suppress(BookKeeperError):
            return None if known is None else storage_part(known[0])
        return None

    async def update(self, agree: Callable[[UpdatePlan], None]) -> UpdatePlan:
        """Write the cookies anew as the settings and the directories are now. `agree` raises to change nothing."""
        cluster = await self._cluster()
        await self._refuse_if_registered()
        known = await read_cookie(self._store, self._root, self._settings.bookie_id)
        update = CookieUpdate(self._settings, self._runtime, cluster.instance_id)
        with update.locked():
            plan = update.plan(await self._stored())
            if plan.steps:
                agree(plan)
                version = None if known is None else known[1]
                await update.carry_out(plan, lambda cookie: self._write(cluster, cookie, version))
        return plan

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
        agree: Callable[[FormatPlan], None],
        looked_at: Callable[[int], None] = lambda count: None,
    ) -> FormatPlan:
        """Delete the bookie's files, and its cookie in the metadata store unless a ledger may name the bookie.

        `agree` raises to delete nothing. With `force` also though ledgers name the bookie, and directories that are not
        known to be its own; never another bookie's.
        """
        cluster = await self._cluster()
        await self._refuse_if_registered()
        bookie_id = self._settings.bookie_id
        directories = [path for path in self._paths() if self._runtime.files.exists(path)]
        with contextlib.ExitStack() as held:
            for path in directories:
                held.enter_context(locked(self._runtime.files, path))
            foreign = self._foreign(directories, cluster.instance_id)
            known = await read_cookie(self._store, self._root, bookie_id)
            ledgers = await self._count(cluster, looked_at)
            free = not ledgers.naming and not ledgers.unreadable
            plan = FormatPlan(
                {path: belongings(self._runtime.files, path) for path in directories},
                ledgers,
                known is not None and free,
                foreign,
            )
            if not force:
                self._refuse_to_format(plan)
            if plan.files or plan.cookie_goes:
                agree(plan)
                wipe(self._runtime.files, directories)
                if plan.cookie_goes:
                    assert known is not None
                    await delete_cookie(self._store, self._root, bookie_id, known[1])
        return plan

    def _paths(self) -> Sequence[str]:
        return Directories(self._settings, self._runtime.files, "").all

    def _foreign(self, directories: Sequence[str], instance_id: str) -> list[str]:
        """The directories with data that no cookie says is this bookie's; `IdentityError` if one is another's."""
        foreign = []
        for path in directories:
            cookie = look_for_cookie(self._runtime.files, path).cookie
            if cookie is not None and cookie.bookie_id != self._settings.bookie_id:
                raise IdentityError(
                    f"the directory is that of bookie {cookie.bookie_id}, and bookie_id is {self._settings.bookie_id}: "
                    "nothing was deleted; correct one or the other",
                    path=path,
                )
            owned = cookie is not None and cookie.instance_id == instance_id
            if not owned and belongings(self._runtime.files, path).data:
                foreign.append(path)
        return foreign

    def _refuse_to_format(self, plan: FormatPlan) -> None:
        bookie_id = self._settings.bookie_id
        if plan.foreign:
            raise IdentityError(
                f"{', '.join(plan.foreign)}: there are files of a bookie here, and no cookie that says that they are "
                "this one's, of this cluster; nothing was deleted. --force deletes them all the same",
                bookie=bookie_id,
            )
        if named := [*plan.ledgers.naming, *plan.ledgers.unreadable]:
            more = f" and {len(named) - _NAMED_MAX} more" if len(named) > _NAMED_MAX else ""
            raise IdentityError(
                f"{len(plan.ledgers.naming)} ledgers of {plan.ledgers.looked_at} name this bookie, and of "
                f"{len(plan.ledgers.unreadable)} nobody can tell: {', '.join(map(str, named[:_NAMED_MAX]))}{more}; "
                "nothing was deleted. Delete them, or wait until their copies are elsewhere. --force deletes this "
                "bookie's copies all the same, and keeps its id from being used again",
                bookie=bookie_id,
            )

    async def _count(self, cluster: Cluster, looked_at: Callable[[int], None]) -> NamingLedgers:
        """Read the metadata of all ledgers, several at a time."""
        naming: list[int] = []
        unreadable: list[int] = []
        count = 0

        async def look(ledger_id: int) -> None:
            try:
                metadata, _ = await cluster.catalog.read(ledger_id)
            except NoSuchLedgerError:
                return  # deleted meanwhile
            except (CorruptDataError, UnsupportedVersionError):
                unreadable.append(ledger_id)
                return
            if any(self._settings.bookie_id in fragment.bookies for fragment in metadata.fragments):
                naming.append(ledger_id)

        batch: list[int] = []

        async def look_at_batch() -> None:
            nonlocal count
            await asyncio.gather(*map(look, batch))
            count += len(batch)
            batch.clear()
            looked_at(count)

        async for ledger_id in cluster.catalog.ids():
            batch.append(ledger_id)
            if len(batch) >= self._settings.metadata_requests_in_flight_max:
                await look_at_batch()
        await look_at_batch()
        return NamingLedgers(count, sorted(naming), sorted(unreadable))
