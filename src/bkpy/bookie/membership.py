"""A bookie's place in its cluster: its cookie, which outlives the process, and its registration, which doesn't.

Invariants: the cookie says where the bookie is before the bookie is registered for the first time; directories that
have moved, or that are new, are in the cookie before the bookie serves; a bookie on new directories waits until no
other process is registered with its id; a start replaces only the cookie that it has compared its directories with.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from typing import TYPE_CHECKING, NamedTuple

from bkpy.errors import ConfigError, IdentityError, MetadataUnavailableError, UnauthorizedError
from bkpy.metadata import paths
from bkpy.metadata.bookies.cookies import cookie_fields, read_cookie, write_cookie
from bkpy.metadata.bookies.draining import Drains
from bkpy.metadata.bookies.registration import TAKEOVER_TIMEOUTS, Registration
from bkpy.metadata.bookies.retired import read_retired
from bkpy.metadata.cluster import open_cluster
from bkpy.metadata.restore_record import read_restore, withdraw_report
from bkpy.metadata.store.outcome import NotDone, to_error
from bkpy.metadata.store.resolve import ensure_path
from bkpy.storage.identity import decode_cookie

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.bookie.dialect import Dialect
    from bkpy.config.bookie import BookieSettings
    from bkpy.metadata.bookies.registration import BookieInfo
    from bkpy.metadata.cluster import Cluster
    from bkpy.metadata.store.store import MetadataStore
    from bkpy.protocol.restore.restoring import Restore
    from bkpy.runtime.interfaces import Runtime

log = logging.getLogger("bkpy.bookie")

VersionedCookie = tuple[bytes, int]  # the value in the metadata store, and its version


class KnownBookie(NamedTuple):
    """What the metadata say of the bookie before its storage is open.

    `storage_cookie` is what its directories should have, None for a new bookie; `limbo_to` is -1, or the highest ledger
    that an earlier bookie of the same id may have had.
    """

    cluster: Cluster
    storage_cookie: bytes | None
    limbo_to: int


class Membership:
    """Of the bookie `settings.bookie_id`, in the cluster whose metadata `store` has under `root`."""

    def __init__(
        self, settings: BookieSettings, store: MetadataStore, root: str, runtime: Runtime, dialect: Dialect
    ) -> None:
        self._settings = settings
        self._dialect = dialect
        self._store = store
        self._root = root
        self._runtime = runtime
        self._registration: Registration | None = None
        self._known: VersionedCookie | None = None  # the cookie as this start has read or written it last

    async def look_up(self) -> KnownBookie:
        """Read the metadata. Raises `IdentityError` for an id that must not be used again."""
        of_bookkeeper = self._dialect.of_bookkeeper
        cluster = await open_cluster(self._store, self._root, of_bookkeeper=of_bookkeeper)
        if cluster.of_bookkeeper != of_bookkeeper:
            raise ConfigError(
                f"the cluster under {self._root} is bkpy's own, and protocol = bookkeeper is for one of BookKeeper's"
            )
        cookie = self._known = await self.cookie()
        if cookie is not None:
            return KnownBookie(cluster, self._dialect.cookie.storage_part(cookie[0]), limbo_to=-1)
        if of_bookkeeper:
            return KnownBookie(cluster, None, limbo_to=-1)
        retired = await read_retired(self._store, self._root, self._settings.bookie_id)
        if retired is None:
            return KnownBookie(cluster, None, limbo_to=-1)
        retired.check_usable()
        return KnownBookie(cluster, None, retired.limbo_to)

    async def restore(self) -> Restore | None:
        """The restore that the cluster comes from; None if it was never restored from a backup."""
        found = await read_restore(self._store, self._root)
        return None if found is None else found.restore

    async def withdraw_report(self) -> None:
        """Withdraw what an earlier process has reported to the restore: the disks may be others now."""
        await withdraw_report(self._store, self._root, self._settings.bookie_id)

    async def stored_storage_cookie(self) -> bytes | None:
        """What the metadata store has of the directories' cookie; None if the bookie has no cookie there."""
        known = await self.cookie()
        return None if known is None else self._dialect.cookie.storage_part(known[0])

    async def join(self, instance_id: str, storage: bytes) -> None:
        """Store the cookie of a bookie of the former cluster that joins a restored one, where it was before.

        Its address is that in the backup; the start corrects it. Raises `IdentityError` if another process has the id:
        one on other directories, as these have not joined.
        """
        await self._await_free("it has joined the restored cluster with other directories; stop it")
        known = await self.cookie()
        address = self._settings.advertised_address or self._settings.listen
        if known is not None:
            with contextlib.suppress(ConfigError):
                address = cookie_fields(known[0])["address"]
        await self.store_address(known, address, instance_id, storage)

    async def cookie(self) -> VersionedCookie | None:
        """The cookie that the metadata store has now; None if it has none."""
        return await read_cookie(self._store, self._root, self._settings.bookie_id)

    async def unchanged_cookie(self) -> VersionedCookie | None:
        """The cookie as this start has read or written it last, None if there was none.

        Raises `IdentityError` if another process has written or deleted it since. To replace a cookie of other
        directories would shut these out, with all that they hold. To make a deleted one again would bring a bookie back
        that was given up.
        """
        cookie = await self.cookie()
        if cookie is None and self._known is not None:
            raise self._deleted()
        if cookie != self._known:
            raise IdentityError(
                "its cookie was written while it started: another process has taken the bookie's id, perhaps with "
                "other directories. Stop one of them, or give it another --bookie_id",
                bookie=self._settings.bookie_id,
            )
        return cookie

    def _deleted(self) -> IdentityError:
        return IdentityError(
            "its cookie was deleted while it started: it was decommissioned or formatted at the same time",
            bookie=self._settings.bookie_id,
        )

    async def draining(self) -> bool:
        """Whether the bookie is draining. Raises `MetadataUnavailableError`."""
        if self._dialect.of_bookkeeper:
            return False
        drains = Drains(self._store, self._root, self._runtime, self._settings)
        return await drains.read(self._settings.bookie_id) is not None

    # --- the cookie -------------------------------------------------------------------------------------------------

    async def directories_moved(self, identity: bytes) -> None:
        """Store where they are now: from then on a copy that was left at the old place is refused."""
        await self._store_identity(identity)
        log.warning(
            "bookie %s: the directories were moved to %s",
            self._settings.bookie_id,
            ", ".join(decode_cookie(identity, "the storage").paths),
        )

    async def directories_restarted(self, identity: bytes) -> None:
        """Store that they are new, once no other process can have the id: its cookie would be wrong."""
        await self._await_free("it can't be rebuilt beside that; stop it, or correct bookie_id")
        await self._store_identity(identity)

    async def _await_free(self, refused: str) -> None:
        deadline = self._runtime.clock.monotonic() + TAKEOVER_TIMEOUTS * self._store.session_timeout_s
        while await self._registered_somewhere():
            if self._runtime.clock.monotonic() >= deadline:
                raise IdentityError(
                    f"it is registered, so its process runs somewhere, and {refused}", bookie=self._settings.bookie_id
                )
            await asyncio.sleep(self._settings.metadata_retry_pause_s)

    async def _registered_somewhere(self) -> bool:
        """Whether there is a registration under the id, also one that can't be read: a process holds it."""
        await self._store.sync(self._root)
        # A bookie that moves has both for a moment; one that moves twice meanwhile is where it was looked for first.
        places = [paths.available(self._root, self._settings.bookie_id, read_only=place) for place in (False, True)]
        for path in (*places, places[0]):
            if await self._store.exists(path):
                return True
        return False

    async def _store_identity(self, identity: bytes) -> None:
        known = await self.unchanged_cookie()
        if known is None:
            raise self._deleted()
        value = self._dialect.cookie.with_storage(known[0], identity)
        await self._write_cookie(value, known[1])

    async def store_address(
        self, known: VersionedCookie | None, address: str, instance_id: str, identity: bytes
    ) -> bytes:
        """Make the cookie say that the bookie is at `address`, on the directories `identity`. `known`: what it was."""
        cookie = self._dialect.cookie.encode(self._settings.bookie_id, address, instance_id, identity)
        if known is not None and known[0] == cookie:
            return cookie
        former = "" if known is None else self._dialect.cookie.address(known[0])
        if former not in ("", address):
            log.warning("bookie %s has moved from %s to %s", self._settings.bookie_id, former, address)
        await self._write_cookie(cookie, None if known is None else known[1])
        return cookie

    async def _write_cookie(self, cookie: bytes, expected_version: int | None) -> None:
        attempts_max = self._settings.metadata_write_attempts_max
        if self._dialect.of_bookkeeper:  # whose own bookies make these nodes, too
            for parent in (paths.COOKIES, paths.READ_ONLY):
                made = await ensure_path(self._store, f"{self._root}/{parent}", attempts_max=attempts_max)
                if isinstance(made, NotDone):
                    raise to_error(made, bookie=self._settings.bookie_id)
        version = await write_cookie(
            self._store,
            self._root,
            self._settings.bookie_id,
            cookie,
            expected_version,
            attempts_max=attempts_max,
            fields_of=self._dialect.cookie.fields,
        )
        self._known = cookie, version

    # --- the registration -------------------------------------------------------------------------------------------

    async def register(
        self, info: BookieInfo, cookie: bytes, identity: bytes, on_death: Callable[[BaseException], None]
    ) -> Registration:
        """Register the bookie, and keep it registered until `close`.

        `on_death` is called when the registration can't be kept: the id has another process or cookie now.
        """
        self._registration = Registration(
            self._store,
            self._root,
            info,
            self._runtime,
            identity=hashlib.sha256(identity).hexdigest(),
            cookie=cookie,
            on_death=on_death,
            settings=self._settings,
            stored_as=self._dialect.registration,
        )
        await self._registration.register()
        return self._registration

    async def close(self) -> None:
        """Deregister. Waits for a metadata store that is away no longer than `metadata_close_timeout_s`."""
        if self._registration is None:
            return
        try:
            async with self._store.session_events.while_there(self._settings.metadata_close_timeout_s):
                await self._registration.unregister()
        except (MetadataUnavailableError, UnauthorizedError, TimeoutError) as error:
            log.warning(
                "failed to deregister bookie %s: %s; its registration ends with its session",
                self._settings.bookie_id,
                str(error) or "the metadata store is unavailable",
            )
