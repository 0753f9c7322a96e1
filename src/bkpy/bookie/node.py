"""The life of one bookie: identity, storage, server, metrics page and registration, started and stopped in that order.

Invariants: clients are served only after replay has ended; the bookie is registered only while it serves; it takes new
entries only while it is registered as writable, though for a moment it may refuse them before it has moved; when the
storage fails, nothing more is acknowledged and `failed` is set, for the process to end.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from typing import TYPE_CHECKING, Any, Final

from bkpy._version import VERSION
from bkpy.bookie.collection_metrics import CollectionMetrics
from bkpy.bookie.collector import Collector
from bkpy.bookie.cookie import encode_cookie, storage_part, with_storage
from bkpy.bookie.credentials import Credentials
from bkpy.bookie.drain_watch import DrainWatch
from bkpy.bookie.metrics import BookieMetrics
from bkpy.bookie.server import BookieServer
from bkpy.bookie.service import BookieService
from bkpy.config.address import split_address
from bkpy.errors import IdentityError, MetadataUnavailableError
from bkpy.metadata.bookies.cookies import read_cookie, write_cookie
from bkpy.metadata.bookies.registration import TAKEOVER_TIMEOUTS, BookieDirectory, BookieInfo, Registration
from bkpy.metadata.bookies.retired import read_retired
from bkpy.metadata.cluster import open_cluster
from bkpy.metadata.ledgers.metadata_probe import MetadataProbe
from bkpy.metadata.replication.locks import LedgerLocks
from bkpy.metadata.store.store import MetadataStore, SessionState
from bkpy.protocol.repair.draining import Tenure
from bkpy.storage import at_risk
from bkpy.storage.identity import decode_cookie
from bkpy.storage.losses import Losses
from bkpy.storage.open import open_storage
from bkpy.storage.space.disk_monitor import DiskMonitor

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.bookie.admin.pages import ServedPages
    from bkpy.bookie.background_services import (
        BackgroundService,
        IntegrityChecker,
        NewBackgroundService,
        NewIntegrityChecker,
    )
    from bkpy.config.bookie import BookieSettings
    from bkpy.metadata.cluster import Cluster
    from bkpy.runtime.interfaces import DiskRuntime
    from bkpy.storage.engine import LedgerStorage

_FREE_CHANGE_MIN: Final = 0.05  # part of the free space that has to change before the registration does

# Reasons to take no new entries.
_DISK_LOW: Final = "too little disk space"
_UNTRUSTED: Final = "data was lost here"
_DRAINING: Final = "draining"
_DECOMMISSIONED: Final = "decommissioned"


class BookieNode:
    """One bookie on `store` (its cluster's metadata under `root`).

    `give_back_memory` is called when the bookie has freed memory that it doesn't need again soon. `companion` makes
    what runs beside it as long as it serves, with metrics in the bookie's registry; so does `integrity_checker` of what
    mends it. `rebuild`: the directories may be empty, although the cluster knows the bookie: its disks were lost.
    """

    def __init__(
        self,
        settings: BookieSettings,
        store: MetadataStore,
        root: str,
        runtime: DiskRuntime,
        give_back_memory: Callable[[], None] = lambda: None,
        background_service: NewBackgroundService | None = None,
        integrity_checker: NewIntegrityChecker | None = None,
        *,
        rebuild: bool = False,
    ) -> None:
        self.settings = settings
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.address = ""
        self.metrics_port = -1
        self._store = store
        self._root = root
        self._runtime = runtime
        self._log = logging.getLogger("bkpy.bookie")
        self._metrics = BookieMetrics(runtime.clock)
        self._storage: LedgerStorage | None = None
        self._service: BookieService | None = None
        self._server: BookieServer | None = None
        self._credentials: Credentials | None = None
        self._registration: Registration | None = None
        self._pages: ServedPages | None = None
        self._serving_pages = contextlib.AsyncExitStack()
        self._disk: DiskMonitor | None = None
        self._give_back_memory = give_back_memory
        self._new_background_service = background_service
        self._background_service: BackgroundService | None = None
        self._new_integrity_checker = integrity_checker
        self._integrity_checker: IntegrityChecker | None = None
        self._rebuild = rebuild
        self._collector: Collector | None = None
        self._watching: asyncio.Task[Any] | None = None
        self._leaving: asyncio.Task[Any] | None = None
        self._resting: asyncio.Task[Any] | None = None
        self._reloading: asyncio.Task[Any] | None = None
        self._telling: asyncio.Task[Any] | None = None
        self._telling_of_trust: asyncio.Task[Any] | None = None
        self._serving = False
        self._away = False  # the metadata store
        self._unsubscribe: Callable[[], None] = lambda: None
        self._refusals: set[str] = set()  # why no new entries are taken
        self._moving = asyncio.Lock()

    async def start(self) -> None:
        """Replay, listen, register. Any error leaves nothing running."""
        try:
            await self._start()
        except BaseException:
            await self._abandon()
            raise

    async def _start(self) -> None:
        settings = self.settings
        self._credentials = credentials = Credentials(settings)
        if credentials.certificates is not None:
            self._metrics.watch_certificate(lambda: credentials.certificate_ends_s)
        await self._serve_pages(credentials)
        cluster = await open_cluster(self._store, self._root)
        known = await read_cookie(self._store, self._root, settings.bookie_id)
        retired = await read_retired(self._store, self._root, settings.bookie_id) if known is None else None
        if retired is not None:
            retired.check_usable()
        directories = dict.fromkeys([*settings.journal_directories, *settings.ledger_directories])
        self._log.info("looking through %s", ", ".join(directories))
        self._storage = storage = await open_storage(
            settings,
            self._runtime,
            instance_id=cluster.instance_id,
            expected_cookie=None if known is None else storage_part(known[0]),
            observer=self._metrics,
            on_moved=self._directories_moved,
            on_restart=self._directories_restarted if self._rebuild else None,
            limbo_to=-1 if retired is None else retired.limbo_to,
        )
        known = await read_cookie(self._store, self._root, settings.bookie_id)
        storage.failed.add_done_callback(self._storage_failed)
        # Of the cluster that the directories belong to, whatever the metadata store is later.
        instance_id = decode_cookie(storage.cookie, "the storage").instance_id
        layout = cluster.catalog.layout
        metadata = MetadataProbe(self._store, self._root, layout, instance_id=instance_id, bookie_id=settings.bookie_id)
        self._service = service = BookieService(settings, storage, self._runtime, self._metrics, metadata)
        self._server = BookieServer(service, credentials, instance_id=cluster.instance_id)
        self._collector = self._new_collector(cluster, storage, metadata)
        self._disk = DiskMonitor(settings, self._runtime)
        await self._disk.look()
        if self._disk.low:
            self._refuse(_DISK_LOW)
        for warning in at_risk.warnings(settings):
            self._log.warning("%s", warning)
        if storage.untrusted:  # new ledgers would be in limbo from the start: they belong elsewhere
            self._refuse(_UNTRUSTED)
        drain_watch = DrainWatch(settings, self._store, self._root, self._runtime, self._stand)
        if await drain_watch.draining():
            self._refuse(_DRAINING)
            service.leave()
        port = await self._server.start()
        host, _ = split_address(settings.listen)
        self.address = settings.advertised_address or f"{'[' + host + ']' if ':' in host else host}:{port}"
        # The cookie is the durable word of where the bookie is to be found: written before the first registration.
        cookie = encode_cookie(settings.bookie_id, self.address, cluster.instance_id, storage.cookie)
        if known is None or known[0] != cookie:
            version = await write_cookie(
                self._store,
                self._root,
                settings.bookie_id,
                cookie,
                None if known is None else known[1],
                attempts_max=settings.metadata_write_attempts_max,
            )
        else:
            version = known[1]
        if self._new_integrity_checker is not None:
            losses = Losses(storage, settings, self._runtime, self._trusted)
            self._integrity_checker = self._new_integrity_checker(losses, self._metrics.registry)
        if self._pages is not None:
            self._pages.administer(self._collector, storage.scrub, self._integrity_checker)
        info = BookieInfo(
            bookie_id=settings.bookie_id,
            address=self.address,
            rack=settings.rack,
            region=settings.region,
            version=VERSION,
            free_bytes=self._disk.free_bytes,
            metrics_port=max(self.metrics_port, 0),
            metrics_tls=settings.metrics_tls,
            read_only=service.read_only,
            read_only_reason=self._why_read_only,
            in_limbo=storage.untrusted,
        )
        self._registration = Registration(
            self._store,
            self._root,
            info,
            self._runtime,
            identity=hashlib.sha256(storage.cookie).hexdigest(),
            cookie=(cookie, version),
            on_death=self._give_up,
            settings=settings,
        )
        await self._registration.register()
        self._serving = True
        self._unsubscribe = self._store.session_events.subscribe(self._session_changed)
        self._watching = self._runtime.spawn(
            self._disk.watch(self._looked_at_disks), name="disk monitor", on_death=self._give_up
        )
        self._reloading = self._runtime.spawn(credentials.watch(), name="credentials", on_death=self._give_up)
        self._leaving = self._runtime.spawn(drain_watch.run(), name="drain watch", on_death=self._give_up)
        self._collector.start()
        if self._integrity_checker is not None:
            self._integrity_checker.start()
        if self._new_background_service is not None:
            self._background_service = self._new_background_service(
                self._metrics.registry, lambda: self._metrics.appended
            )
            self._background_service.start()
        self._resting = self._runtime.spawn(self._rest(service), name="rest", on_death=self._give_up)
        self._log.info("bookie %s serves at %s", settings.bookie_id, self.address)

    async def _rest(self, service: BookieService) -> None:
        """Shrink again after load. Memory is let go of at any time, but given back when that holds up nobody."""
        freed = False
        while True:
            await asyncio.sleep(self.settings.memory_rest_interval_s)
            if service.rest():
                freed = True
            elif freed and service.idle:
                self._give_back_memory()
                freed = False

    def _new_collector(self, cluster: Cluster, storage: LedgerStorage, metadata: MetadataProbe) -> Collector:
        settings = self.settings
        return Collector(
            storage,
            cluster.catalog,
            metadata,
            LedgerLocks(self._store, self._root, settings.bookie_id, self._runtime, settings),
            settings,
            self._runtime,
            CollectionMetrics(self._metrics.registry),
        )

    async def _directories_moved(self, identity: bytes) -> None:
        """Store where they are now: from then on a copy that is left where they were is refused."""
        await self._store_identity(identity)
        self._log.warning("directories were moved to %s", ", ".join(decode_cookie(identity, "the storage").paths))

    async def _store_identity(self, identity: bytes) -> None:
        known = await read_cookie(self._store, self._root, self.settings.bookie_id)
        assert known is not None  # it had other directories
        value = with_storage(known[0], identity)
        await write_cookie(self._store, self._root, self.settings.bookie_id, value, known[1])

    def reload(self) -> None:
        """Look now whether certificates have changed, instead of after `tls_reload_interval_s`."""
        if self.settings.tls_certificate_file is None:
            self._log.info("there is nothing to be read again: this bookie has no certificate")
        elif self._credentials is not None:
            self._credentials.look()

    async def _directories_restarted(self, identity: bytes) -> None:
        """Store that they are new, once no other process can have the id: its cookie would be wrong."""
        directory = BookieDirectory(self._store, self._root, self._runtime)
        deadline = self._runtime.clock.monotonic() + TAKEOVER_TIMEOUTS * self._store.session_timeout_s
        while True:
            await directory.refresh()
            if self.settings.bookie_id not in directory.bookies | directory.read_only:
                break
            if self._runtime.clock.monotonic() >= deadline:
                raise IdentityError(
                    "it is registered, so its process runs somewhere, and it can't be rebuilt beside that; stop it, or "
                    "correct bookie_id",
                    bookie=self.settings.bookie_id,
                )
            await asyncio.sleep(self.settings.metadata_retry_pause_s)
        await self._store_identity(identity)

    def _trusted(self) -> None:
        """What was lost is known, ledger by ledger: others can be taken again."""
        self._telling_of_trust = self._runtime.spawn(
            self._tell_of_trust(), name="telling of trust", on_death=self._give_up
        )

    async def _tell_of_trust(self) -> None:
        assert self._registration is not None
        await self._registration.set_in_limbo(in_limbo=False)
        await self.set_read_only(False, _UNTRUSTED)

    async def stop(self) -> None:
        """Stop accepting, answer what is in flight, checkpoint, deregister."""
        self._unsubscribe()
        await self._end_background_service()
        await self._end_collection()
        await self._end_watches()
        if self._server is not None:
            await self._server.finish(self.settings.stop_timeout_s)
        try:
            if self._storage is not None:
                await self._storage.close()
        finally:
            if self._registration is not None:
                try:
                    async with self._store.session_events.while_there(self.settings.metadata_close_timeout_s):
                        await self._registration.unregister()
                except (MetadataUnavailableError, TimeoutError) as e:
                    why = str(e) or "the metadata store is away"
                    self._log.warning("not deregistered, the session's end will do that: %s", why)
            await self._serving_pages.aclose()
        self._log.info("bookie %s stopped", self.settings.bookie_id)

    async def _abandon(self) -> None:
        await self._end_background_service()
        await self._end_collection()
        await self._end_watches()
        if self._server is not None:
            self._server.stop()
        await self._serving_pages.aclose()
        if self._storage is not None:
            await self._storage.close()

    async def _end_background_service(self) -> None:
        integrity_checker, background_service, self._integrity_checker, self._background_service = (
            self._integrity_checker,
            self._background_service,
            None,
            None,
        )
        if integrity_checker is not None:
            await integrity_checker.stop()
        if background_service is not None:
            await background_service.stop()

    async def _end_collection(self) -> None:
        if self._collector is not None:
            await self._collector.stop()

    # --- read-only --------------------------------------------------------------------------------------------------

    async def set_read_only(self, read_only: bool, reason: str) -> None:
        """Take no new entries for `reason`, or take that reason back: while there is any, the bookie is read-only.

        A read-only bookie still stores what recoveries write back, fences and answers. Entries are refused from this
        call on; the registration moves before it returns, and before entries are taken again. While the metadata store
        is away, waits for it.
        """
        assert self._service is not None
        assert self._registration is not None  # the bookie has started
        if read_only:
            self._refuse(reason)
        else:
            self._refusals.discard(reason)
        async with self._moving:
            wanted = bool(self._refusals)
            await self._registration.set_read_only(wanted, self._why_read_only)
            if not wanted and not self._refusals and self._service.read_only:
                self._service.take_entries()
                self._log.info("taking entries again")

    @property
    def _why_read_only(self) -> str:
        return ", ".join(sorted(self._refusals))

    def _refuse(self, reason: str) -> None:
        assert self._service is not None
        if reason not in self._refusals:
            self._log.warning("read-only: %s", reason)
        self._refusals.add(reason)
        self._service.refuse_entries()

    async def _stand(self, tenure: Tenure) -> None:
        """Take entries, or none, not even of recoveries; returns when the registration says so."""
        assert self._service is not None
        if tenure is Tenure.TAKES:
            self._service.stay()
            self._refusals.discard(_DRAINING)
            await self.set_read_only(False, _DECOMMISSIONED)
            return
        reason = _DRAINING if tenure is Tenure.LEAVES else _DECOMMISSIONED
        self._refuse(reason)
        self._service.leave()
        if tenure is Tenure.GONE:
            await self._end_background_service()  # no process outside the cluster stands for auditor, or moves copies
        self._refusals -= {_DRAINING, _DECOMMISSIONED} - {reason}
        await self.set_read_only(True, reason)

    def _looked_at_disks(self) -> None:
        """Refuse at once what there is no space for. Telling others may take as long as the metadata store is away."""
        assert self._disk is not None
        if self._disk.low:
            self._refuse(_DISK_LOW)
        if self._telling is None or self._telling.done():
            self._telling = self._runtime.spawn(
                self._tell_of_disks(self._disk), name="telling of disks", on_death=self._give_up
            )

    async def _tell_of_disks(self, disk: DiskMonitor) -> None:
        await self.set_read_only(disk.low, _DISK_LOW)
        assert self._registration is not None
        registered = self._registration.info.free_bytes
        if abs(disk.free_bytes - registered) > _FREE_CHANGE_MIN * registered:
            await self._registration.set_free_bytes(disk.free_bytes)

    async def _end_watches(self) -> None:
        watches = (self._watching, self._telling, self._telling_of_trust, self._resting, self._leaving, self._reloading)
        tasks = [task for task in watches if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._disk is not None:
            self._disk.close()

    def _session_changed(self, state: SessionState) -> None:
        """Log it. The session and the registration look after themselves, and serving goes on."""
        self._away = state is not SessionState.CONNECTED
        if state is SessionState.CONNECTED:
            self._log.info("connected to the metadata store again")
        elif state is SessionState.SUSPENDED:
            self._log.warning("the metadata store is away; the bookie serves those who are connected to it")
        else:
            self._log.warning("the session with the metadata store has expired; the bookie will register again")

    # --- failure ----------------------------------------------------------------------------------------------------

    def _storage_failed(self, failed: asyncio.Future[None]) -> None:
        error = None if failed.cancelled() else failed.exception()
        if error is not None:
            self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        """The storage or the registration can't go on: serve no more clients, and let the process end."""
        if self._server is not None:
            self._server.stop()
        if not self.failed.done():
            self.failed.set_exception(error)

    # --- pages ------------------------------------------------------------------------------------------------------

    async def _serve_pages(self, credentials: Credentials) -> None:
        settings = self.settings
        if settings.metrics_port < 0:
            return
        # They take a third of the time to load a bookie, and most have no page.
        from bkpy.bookie.admin.pages import ServedPages
        from bkpy.runtime.metrics_page import metrics_page

        self._pages = ServedPages(settings, credentials, self._unready)
        certificates = credentials.certificates if settings.metrics_tls else None
        self.metrics_port = await self._serving_pages.enter_async_context(
            metrics_page(
                self._metrics.render,
                settings.metrics_listen,
                settings.metrics_port,
                self._pages.add_to,
                None if certificates is None else certificates.following(),
                connections_max=settings.metrics_connections_max,
                handshake_timeout_s=settings.tls_handshake_timeout_s,
            )
        )
        scheme = "http" if certificates is None else "https"
        self._log.info("metrics at %s://%s:%d/metrics", scheme, settings.metrics_listen, self.metrics_port)

    def _unready(self) -> str | None:
        """Why clients can't find the bookie or aren't served; None if it is ready."""
        if self.failed.done():
            return "it has failed"
        if self._service is not None and self._service.stopping:
            return "it stops"
        if not self._serving:
            return "it starts"
        if self._away:
            return "the metadata store is away"
        return None
