"""The process of one bookie: event loop, signals, logging, exit status."""

from __future__ import annotations

import asyncio
import errno
import functools
import gc
import logging
import os
import resource
import signal
import sys
from typing import TYPE_CHECKING, Final

import uvloop

from bkpy.bookie.connection.complaint import Complaint
from bkpy.bookie.files import fit_files
from bkpy.bookie.node import BookieNode
from bkpy.bookie.reloading import SettingsReload
from bkpy.errors import BookKeeperError
from bkpy.metadata.connect import connect_store
from bkpy.runtime.logs import log_to_stderr, logs_json
from bkpy.runtime.process import release_free_memory
from bkpy.runtime.system import real_runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from prometheus_client import CollectorRegistry

    from bkpy.bookie.background_services import BackgroundService, IntegrityChecker
    from bkpy.config.bookie import BookieSettings
    from bkpy.metadata.store.store import MetadataStore
    from bkpy.runtime.interfaces import Clock, DiskRuntime
    from bkpy.storage.losses import Losses

    # Make services that run beside a bookie, in its session with the metadata store.
    MakeBackgroundService = Callable[
        [BookieSettings, MetadataStore, str, DiskRuntime, CollectorRegistry, Callable[[], int]], BackgroundService
    ]
    MakeIntegrityChecker = Callable[
        [BookieSettings, MetadataStore, str, DiskRuntime, Losses, CollectorRegistry], IntegrityChecker
    ]

log = logging.getLogger("bkpy.bookie")

SWITCH_INTERVAL_S: Final = 0.0005


def run_bookie(
    settings: BookieSettings,
    background_service: MakeBackgroundService | None = None,
    integrity_checker: MakeIntegrityChecker | None = None,
    *,
    rebuild: bool = False,
    notices: Sequence[str] = (),
    read_again: Callable[[], BookieSettings] | None = None,
) -> int:
    """Serve, with a background service and an integrity checker beside the bookie, until SIGTERM or SIGINT.

    `rebuild`: the directories may be empty, although the cluster knows the bookie. `notices` about settings are logged.
    `read_again` reads the settings once more, for a reload. The exit status is 0 after a clean stop, 1 if the bookie
    had to give up.
    """
    log_to_stderr(settings.log_level.upper(), settings.log_format, bookie=settings.bookie_id)
    for notice in notices:
        log.warning("%s", notice)
    try:
        given, settings = settings, _with_files(settings)
        reloading = SettingsReload(settings, read_again, given)
        # A thread that wants to run Python waits this long for one that does. While a flush is under way, each request
        # waits several times: at Python's own 5 ms the slowest appends took 70 ms.
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        # What is held here in hundreds of thousands of objects, batches and futures, has no cycles. At Python's own
        # thresholds the collector walks them all again and again, which was half of what a flush took.
        gc.set_threshold(500_000, 50, 1000)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(settings, background_service, integrity_checker, rebuild=rebuild, reloading=reloading))
    except (BookKeeperError, OSError) as e:
        if logs_json():
            log.critical("%s", e)
        else:
            print(f"bkpy: bookie {settings.bookie_id}: {e}", file=sys.stderr)
        return 1
    return 0


def _with_files(settings: BookieSettings) -> BookieSettings:
    """Raise the limit of open files to the user's maximum, and lower the bounds of connections to fit it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    fitting = fit_files(settings, most)
    if fitting is not settings:
        log.warning(
            "this process may open %d files (ulimit -n, LimitNOFILE), and files are kept for the storage: "
            "connections_max is %d instead of %d, new_connections_max %d instead of %d",
            most,
            fitting.connections_max,
            settings.connections_max,
            fitting.new_connections_max,
            settings.new_connections_max,
        )
    return fitting


async def watch_files(settings: BookieSettings, clock: Clock) -> None:
    """Warn when the process can open no further file: the loop then closes new connections without a word."""
    complain = Complaint(log, clock, settings.complaint_interval_s)
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    while True:
        await asyncio.sleep(settings.disk_check_interval_s)
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as e:
            if e.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            complain(
                "failed to open a file (%s; this process may open %d): new connections are closed, and the bookie ends "
                "when its storage needs a file; raise the limit (ulimit -n, LimitNOFILE)",
                e.strerror,
                most,
            )


async def _serve(
    settings: BookieSettings,
    background_service: MakeBackgroundService | None,
    integrity_checker: MakeIntegrityChecker | None,
    *,
    rebuild: bool,
    reloading: SettingsReload,
) -> None:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    serving: BookieNode | None = None
    hung_up = False

    def hang_up() -> None:  # one handler for good: a signal that comes as handlers change would go to the former one
        nonlocal hung_up
        if serving is None:
            hung_up = True
            log.info("SIGHUP: the bookie starts, and reads its files again when it serves")
        else:
            serving.reload()

    loop.add_signal_handler(signal.SIGHUP, hang_up)
    runtime = real_runtime()
    stop = asyncio.ensure_future(stopping.wait())
    starting = asyncio.ensure_future(
        _started(settings, runtime, background_service, integrity_checker, rebuild=rebuild, reloading=reloading)
    )
    await asyncio.wait((stop, starting), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait([starting])
    if starting.cancelled():
        log.info("bookie %s stopped before it served", settings.bookie_id)
        return
    node, store = starting.result()
    try:
        serving = node
        if hung_up:
            node.reload()
        runtime.spawn(watch_files(settings, runtime.clock), name="watch on open files")
        gc.freeze()  # modules and settings: nothing of them will ever be garbage
        await asyncio.wait((stop, node.failed), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if node.failed.done():
            node.failed.result()  # raises: the bookie can promise nothing any more, so it tidies up nothing either
        await node.stop()
    finally:
        await store.close()


async def _started(
    settings: BookieSettings,
    runtime: DiskRuntime,
    background_service: MakeBackgroundService | None,
    integrity_checker: MakeIntegrityChecker | None,
    *,
    rebuild: bool,
    reloading: SettingsReload,
) -> tuple[BookieNode, MetadataStore]:
    """A bookie that serves, and its session. A call that is cancelled leaves nothing open."""
    # Each step may take long on a busy machine: the log says what the start waits for.
    log.info("bookie %s looks for its metadata at %s", settings.bookie_id, settings.metadata_uri)
    store, root = await connect_store(
        settings.metadata_uri,
        runtime,
        session_timeout_s=settings.session_timeout_s,
        refused_timeout_s=None,  # bookies and ZooKeeper may be started at the same time
        settings=settings,
    )
    try:
        beside = (
            None
            if background_service is None
            else functools.partial(background_service, settings, store, root, runtime)
        )
        repairing = (
            None if integrity_checker is None else functools.partial(integrity_checker, settings, store, root, runtime)
        )
        node = BookieNode(
            settings, store, root, runtime, release_free_memory, beside, repairing, rebuild=rebuild, reloading=reloading
        )
        await node.start()
    except BaseException:
        await store.close()
        raise
    return node, store
