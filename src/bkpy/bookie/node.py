"""The life of one bookie: a start in phases, each of which owns what it has opened, and a stop that closes them.

    phase          opens                                                                    closes
    AdminPages     metrics, health and administration over HTTP, if there is a port         the pages
    Membership     reads the cookie; writes it and registers once the bookie listens        deregisters
    LedgerStorage  locks the directories, replays the journals                              checkpoints, ends journals
    Listening      the server, and the monitor of the disks                                 answers what it has taken
    Serving        what runs beside the server: collector, replication, watches             ends all of it

A start goes down the table, a stop goes up, and so does a start that fails or is cancelled, from wherever it is. So a
bookie is registered as long as it holds its directories: no other process takes its id meanwhile.

Invariants: the bookie serves clients only after replay has ended; it is registered only from the moment on in which it
can serve; when its storage fails, it acknowledges nothing more and sets `failed`, for the process to end.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from bkpy._version import VERSION
from bkpy.bookie.collector import Collector
from bkpy.bookie.credentials import Credentials
from bkpy.bookie.dialect import NATIVE
from bkpy.bookie.drain_watch import DrainWatch
from bkpy.bookie.membership import Membership
from bkpy.bookie.metrics import BookieMetrics
from bkpy.bookie.reloading import SettingsReload, to_json
from bkpy.bookie.server import BookieServer
from bkpy.bookie.service import BookieService
from bkpy.bookie.state_manager import ReadOnlyReason, ReadOnlyReasons, StateManager
from bkpy.config.address import split_address
from bkpy.errors import ConfigError, IdentityError
from bkpy.metadata.bookies.registration import BookieInfo
from bkpy.metadata.ledgers.metadata_probe import MetadataProbe
from bkpy.metadata.replication.locks import LedgerLocks
from bkpy.metadata.store.store import MetadataStore, SessionState
from bkpy.protocol.restore.restoring import is_confirmed
from bkpy.storage import at_risk
from bkpy.storage.adopt import adopt_storage
from bkpy.storage.busiest import BusiestLedgers
from bkpy.storage.identity import decode_cookie
from bkpy.storage.losses import Losses
from bkpy.storage.open import open_storage
from bkpy.storage.space.disk_monitor import DiskMonitor

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from bkpy.bookie.admin.pages import AdminPages
    from bkpy.bookie.background_services import (
        BackgroundService,
        IntegrityChecker,
        NewBackgroundService,
        NewIntegrityChecker,
    )
    from bkpy.bookie.connection.served import OtherProtocol
    from bkpy.bookie.dialect import Dialect
    from bkpy.bookie.membership import KnownBookie
    from bkpy.config.bookie import BookieSettings
    from bkpy.config.reloading import Comparison
    from bkpy.metadata.bookies.registration import Registration
    from bkpy.metadata.cluster import Cluster
    from bkpy.runtime.interfaces import DiskRuntime
    from bkpy.storage.engine import LedgerStorage

log = logging.getLogger("bkpy.bookie")


class Phase(Protocol):
    """What one phase of the start has opened."""

    async def close(self) -> None:
        """Close it. A second call does what a first one that was cancelled, or that failed, has left."""


P = TypeVar("P", bound=Phase)


class Listening:
    """The server, and what decides whether it takes entries. It listens before the bookie registers the port."""

    def __init__(
        self,
        service: BookieService,
        credentials: Credentials,
        runtime: DiskRuntime,
        instance_id: str,
        protocol: OtherProtocol | None,
    ) -> None:
        self.credentials = credentials
        self.service = service
        self.disk = DiskMonitor(service.settings, runtime)
        connect = None
        if protocol is not None:
            connect = partial(protocol, disk=self.disk, certificates=credentials.certificates)
        self.server = BookieServer(service, credentials, instance_id=instance_id, new_connection=connect)
        self.reasons = ReadOnlyReasons(service)

    async def listen(self, membership: Membership) -> str:
        """Serve clients, after a look at all that could make the bookie read-only. Returns the address for others."""
        settings = self.service.settings
        await self.disk.look()
        if self.disk.low:
            self.reasons.add(ReadOnlyReason.DISK_LOW)
        for warning in at_risk.warnings(settings):
            log.warning("%s", warning)
        if self.service.storage.untrusted:  # new ledgers would be in limbo from the start: they belong elsewhere
            self.reasons.add(ReadOnlyReason.UNTRUSTED)
        if await membership.draining():
            self.reasons.add(ReadOnlyReason.DRAINING)
            self.service.leave()
        port = await self.server.start()
        host, _ = split_address(settings.listen)
        return settings.advertised_address or f"{'[' + host + ']' if ':' in host else host}:{port}"

    async def close(self) -> None:
        try:
            await self.server.finish(self.service.settings.stop_timeout_s)
        finally:
            self.disk.close()


class Serving:
    """What runs while the bookie is registered. A task that fails ends the bookie."""

    def __init__(
        self,
        settings: BookieSettings,
        store: MetadataStore,
        runtime: DiskRuntime,
        listening: Listening,
        registration: Registration,
        on_death: Callable[[BaseException], None],
        on_session_lost: Callable[[], None],
    ) -> None:
        self.state = StateManager(
            listening.service, listening.reasons, registration, listening.disk, self.stop_replication
        )
        self._settings = settings
        self._spawn = partial(runtime.spawn, on_death=on_death)
        self._on_session_lost = on_session_lost
        self._tasks: list[asyncio.Task[Any]] = []
        self._services: list[BackgroundService] = []
        self._replication: list[BackgroundService] = []
        self.on_reload: list[Callable[[], None]] = []  # what waits for a time that settings decide
        self._unsubscribe = store.session_events.subscribe(self._session_changed)

    def run(self, coro: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(self._spawn(coro, name=name))

    def start(self, service: BackgroundService, *, replication: bool = False) -> None:
        """Start the service. One of `replication` ends once the bookie is decommissioned."""
        (self._replication if replication else self._services).append(service)
        service.start()

    async def stop_replication(self) -> None:
        await _stop_all(self._replication)

    async def close(self) -> None:
        self._unsubscribe()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        try:
            await _stop_all(self._replication)
        finally:
            await _stop_all(self._services)

    def _session_changed(self, state: SessionState) -> None:
        """Log and count it. The session and the registration recover by themselves, and serving goes on."""
        bookie_id = self._settings.bookie_id
        if state is SessionState.CONNECTED:
            log.info("bookie %s is connected to the metadata store again", bookie_id)
        elif state is SessionState.SUSPENDED:
            log.warning(
                "bookie %s has lost its connection to the metadata store; it goes on serving clients that are "
                "connected, and reconnects",
                bookie_id,
            )
        else:
            self._on_session_lost()
            log.warning(
                "bookie %s: the session with the metadata store has expired; the bookie will register again", bookie_id
            )


def dialect_of(settings: BookieSettings) -> Dialect:
    """The dialect that the setting `protocol` names. `ConfigError` where a package for it isn't installed."""
    if settings.protocol == "bkpy":
        return NATIVE
    try:
        from bkpy.bookie.bookkeeper.dialect import BOOKKEEPER
    except ModuleNotFoundError as error:
        raise ConfigError(f"protocol = bookkeeper needs {error.name}: install bkpy[bookkeeper]") from error
    return BOOKKEEPER


async def _stop_all(services: list[BackgroundService]) -> None:
    """Stop the latest first; raise the first error of one, after the others were stopped.

    A call that is cancelled leaves the services in the list that it has not stopped.
    """
    first: Exception | None = None
    while services:
        service = services.pop()
        try:
            await service.stop()
        except Exception as error:
            first = first or error
        except BaseException:
            services.append(service)
            raise
    if first is not None:
        raise first


class BookieNode:
    """One bookie on `store` (its cluster's metadata under `root`).

    `release_memory` is called when the bookie has freed memory that it doesn't need again soon. `background_service`
    makes what runs beside the bookie as long as it serves, with metrics in the bookie's registry, and
    `integrity_checker` makes what restores lost entries. `rebuild`: the directories may be empty, although the cluster
    knows the bookie: its disks were lost.
    """

    def __init__(
        self,
        settings: BookieSettings,
        store: MetadataStore,
        root: str,
        runtime: DiskRuntime,
        release_memory: Callable[[], None] = lambda: None,
        background_service: NewBackgroundService | None = None,
        integrity_checker: NewIntegrityChecker | None = None,
        *,
        rebuild: bool = False,
        reloading: SettingsReload | None = None,
    ) -> None:
        self.settings = settings
        self._reloading = reloading or SettingsReload(settings)
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.failed.add_done_callback(lambda done: done.cancelled() or done.exception())  # a stop has no waiter
        self.address = ""
        self.metrics_port = -1
        self._store = store
        self._root = root
        self._runtime = runtime
        self._release_memory = release_memory
        self._new_background_service = background_service
        self._new_integrity_checker = integrity_checker
        self._rebuild = rebuild
        self._metrics = BookieMetrics(runtime.clock)
        self._phases: list[Phase] = []
        self._closing = asyncio.Lock()
        self._not_serving: str | None = "it starts"  # why; None while clients are served

    async def start(self) -> None:
        """Replay, listen, register. A start that fails or is cancelled closes what it has opened."""
        try:
            await self._start()
        except BaseException:
            error = await self._close()
            if error is not None:
                log.warning("bookie %s: failed to close after a failed start: %s", self.settings.bookie_id, error)
            raise

    async def stop(self) -> None:
        """Stop accepting, answer what is in flight, checkpoint, deregister.

        Raises the first error of these, after the others, or why the bookie has failed meanwhile. A stop that was
        cancelled can be called again.
        """
        self._not_serving = "it stops"
        had_failed = self.failed.done()
        error: BaseException | None = await self._close()
        if error is None and self.failed.done() and not had_failed:
            error = self.failed.exception()
        if error is not None:
            raise error
        log.info("bookie %s stopped", self.settings.bookie_id)

    async def _close(self) -> Exception | None:
        """Close all phases, the latest first; returns the first error of one, which keeps no other open.

        A call that is cancelled keeps its phase: the next call goes on there.
        """
        first: Exception | None = None
        async with self._closing:
            while self._phases:
                try:
                    await self._phases[-1].close()
                except Exception as error:
                    first = first or error
                self._phases.pop()
        return first

    # --- the phases of a start --------------------------------------------------------------------------------------

    def _enter(self, phase: P) -> P:
        """From here on `_close` closes it, even if it is only half open."""
        self._phases.append(phase)
        return phase

    def _phase(self, kind: type[P]) -> P | None:
        """The phase of that kind, None while it is not open."""
        return next((phase for phase in self._phases if isinstance(phase, kind)), None)

    async def _start(self) -> None:
        settings, store = self.settings, self._store
        credentials = Credentials(settings)
        if credentials.certificates is not None:
            self._metrics.watch_certificate(lambda: credentials.certificate_ends_s)
        pages = await self._serve_pages(credentials)
        dialect = dialect_of(settings)
        if dialect.of_bookkeeper and self._rebuild:
            raise ConfigError("--rebuild copies from bookies of bkpy's own: `bookkeeper shell recover` heals this one")
        membership = self._enter(Membership(settings, store, self._root, self._runtime, dialect))
        restore = await membership.restore()
        if restore is not None and await adopt_storage(
            settings,
            self._runtime,
            restore,
            await membership.stored_storage_cookie(),
            partial(membership.join, restore.instance_id),
        ):
            log.warning(
                "bookie %s joins the cluster %s, which was restored from a backup of %s: all its ledgers are in limbo",
                settings.bookie_id,
                restore.instance_id,
                restore.former,
            )
        known = await membership.look_up()
        if known.storage_cookie is None and not is_confirmed(restore):
            raise IdentityError(
                "a new bookie can't join a restored cluster before that is confirmed: `bkpy cluster restore --confirm`",
                bookie=settings.bookie_id,
            )
        storage = self._enter(await self._open_storage(membership, known))
        storage.failed.add_done_callback(self._storage_failed)
        cookie = await membership.unchanged_cookie()  # by any other process: opening may have written it

        # Of the cluster that the directories belong to, whatever the metadata store is later.
        instance_id = decode_cookie(storage.cookie, "the storage").instance_id
        layout = known.cluster.catalog.layout
        probe = MetadataProbe(
            store,
            self._root,
            layout,
            instance_id=instance_id,
            bookie_id=settings.bookie_id,
            restored=restore is not None,
            codec=dialect.codec,
            ids_ascend=not dialect.of_bookkeeper,
        )
        service = BookieService(settings, storage, self._runtime, self._metrics, probe)
        instance = known.cluster.instance_id
        listening = self._enter(Listening(service, credentials, self._runtime, instance, dialect.connect))
        self.failed.add_done_callback(lambda _: listening.server.stop())
        self.address = await listening.listen(membership)

        # The cookie is the durable word of where the bookie is: written before the first registration.
        value = await membership.store_address(cookie, self.address, known.cluster.instance_id, storage.cookie)
        if not is_confirmed(restore):  # a confirmation counts the reports of bookies that are registered
            await membership.withdraw_report()
        info = self._registered_as(listening)
        registration = await membership.register(info, value, storage.cookie, self._give_up)
        serving = self._enter(
            Serving(settings, store, self._runtime, listening, registration, self._give_up, self._metrics.session_lost)
        )
        collector = self._start_collector(serving, storage, known.cluster, probe)
        integrity_checker = None
        if dialect.of_bookkeeper:  # whose own auditor and workers repair, and whose shell takes bookies out
            self._metrics.watch_protocols()
        else:
            integrity_checker = self._start_replication(serving, storage)
            drain_watch = DrainWatch(settings, store, self._root, self._runtime, serving.state.follow_tenure)
            serving.run(drain_watch.run(), "drain watch")
        serving.run(listening.disk.watch(serving.state.disk_checked), "disk monitor")
        serving.run(serving.state.follow_disk(), "registration of disk space")
        serving.run(serving.state.follow_trust(), "registration of trust")
        serving.run(credentials.watch(), "credentials")
        serving.run(self._release_idle(service), "release of idle memory")
        if pages is not None:
            runtime = self._runtime
            busiest = BusiestLedgers(storage.shards, settings, runtime.clock, runtime.rng, self._metrics.added)
            pages.administer(collector, storage.scrub, integrity_checker, busiest, storage.fences)
        self._not_serving = None
        log.info("bookie %s serves at %s", settings.bookie_id, self.address)

    async def _serve_pages(self, credentials: Credentials) -> AdminPages | None:
        if self.settings.metrics_port < 0:
            return None
        # They take a third of the time to load a bookie, and most have no page.
        from bkpy.bookie.admin.pages import AdminPages

        pages = self._enter(AdminPages(self.settings, self.read_again, credentials, self._metrics, self._unready))
        self.metrics_port = await pages.serve()
        return pages

    async def _open_storage(self, membership: Membership, known: KnownBookie) -> LedgerStorage:
        settings = self.settings
        directories = dict.fromkeys([*settings.journal_directories, *settings.ledger_directories])
        log.info("bookie %s opens %s", settings.bookie_id, ", ".join(directories))
        return await open_storage(
            settings,
            self._runtime,
            instance_id=known.cluster.instance_id,
            expected_cookie=known.storage_cookie,
            observer=self._metrics,
            on_moved=membership.directories_moved,
            on_restart=membership.directories_restarted if self._rebuild else None,
            limbo_to=known.limbo_to,
        )

    def _registered_as(self, listening: Listening) -> BookieInfo:
        settings = self.settings
        return BookieInfo(
            bookie_id=settings.bookie_id,
            address=self.address,
            rack=settings.rack,
            region=settings.region,
            version=VERSION,
            free_bytes=listening.disk.free_bytes,
            metrics_port=max(self.metrics_port, 0),
            metrics_tls=settings.metrics_tls,
            read_only=listening.service.read_only,
            read_only_reason=str(listening.reasons),
            in_limbo=listening.service.storage.untrusted,
        )

    def _start_collector(
        self, serving: Serving, storage: LedgerStorage, cluster: Cluster, probe: MetadataProbe
    ) -> Collector:
        settings, runtime = self.settings, self._runtime
        locks = LedgerLocks(self._store, self._root, settings.bookie_id, runtime, settings)
        registry = self._metrics.registry
        collector = Collector(
            storage,
            cluster.catalog,
            probe,
            locks,
            settings,
            runtime,
            registry,
            over_replicated=not cluster.of_bookkeeper,  # whose own replicator keeps them, under locks of its own
            ids_ascend=not cluster.of_bookkeeper,
        )
        serving.start(collector)
        serving.on_reload += [collector.settings_changed, storage.settings_changed]
        return collector

    def _start_replication(self, serving: Serving, storage: LedgerStorage) -> IntegrityChecker | None:
        """Start what the layers above run beside the bookie."""
        registry, integrity_checker = self._metrics.registry, None
        if self._new_integrity_checker is not None:
            losses = Losses(storage, self.settings, self._runtime, serving.state.trusted.set)
            integrity_checker = self._new_integrity_checker(losses, registry)
            serving.start(integrity_checker, replication=True)
        if self._new_background_service is not None:
            background_service = self._new_background_service(registry, lambda: self._metrics.appended)
            serving.start(background_service, replication=True)
        return integrity_checker

    async def _release_idle(self, service: BookieService) -> None:
        """Shrink again after load: release memory at any time, but return it to the system while no client waits."""
        freed = False
        while True:
            await asyncio.sleep(self.settings.memory_rest_interval_s)
            if service.release_idle():
                freed = True
            elif freed and service.idle:
                self._release_memory()
                freed = False

    # --- while it serves --------------------------------------------------------------------------------------------

    async def set_read_only(self, read_only: bool, reason: str) -> None:
        """Refuse new entries for `reason`, or withdraw it: a bookie that serves is read-only while there is any."""
        serving = self._phase(Serving)
        assert serving is not None
        await serving.state.set_read_only(read_only, reason)

    def read_again(self) -> dict[str, Any]:
        """Read settings, certificates and rights again; what has changed, and what needs a restart.

        Raises `ConfigError` for unusable ones. An unusable file of settings changes nothing.
        """
        given = self._reloading.read()
        listening = self._phase(Listening)
        reloaded = [] if listening is None else listening.credentials.reload()
        return {"reloaded": reloaded, **to_json(self._take_over(given))}

    def _take_over(self, given: BookieSettings | None) -> Comparison:
        found = self._reloading.apply(given)
        if (listening := self._phase(Listening)) is not None:
            listening.service.slow.limit(self.settings.slow_request_ms)
        if (serving := self._phase(Serving)) is not None:
            for changed in serving.on_reload:
                changed()
        return found

    def reload(self) -> None:
        """SIGHUP: read settings, certificates and rights again, and log an error, that of the latter once."""
        if (listening := self._phase(Listening)) is not None:
            listening.credentials.look()
        try:
            found = self._take_over(self._reloading.read())
        except ConfigError as e:
            log.error("failed to reload the settings: %s; the bookie goes on with its former ones", e)
            return
        if not found.changed and not found.needs_restart:
            log.info("bookie %s: no setting has changed", self.settings.bookie_id)

    def _unready(self) -> str | None:
        """Why clients can't find the bookie or aren't served; None if it is ready."""
        if self.failed.done():
            return "it has failed"
        if self._not_serving is not None:
            return self._not_serving
        return None if self._store.state is SessionState.CONNECTED else "the metadata store is away"

    def _storage_failed(self, failed: asyncio.Future[None]) -> None:
        error = None if failed.cancelled() else failed.exception()
        if error is not None:
            self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        """The storage, the registration or a task can't go on: accept no more clients, and let the process end."""
        if not self.failed.done():
            self.failed.set_exception(error)
