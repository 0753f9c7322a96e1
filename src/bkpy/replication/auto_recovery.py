"""Autorecovery: a candidate for auditor and a worker, in a bookie or alone, in the session that they are given.

Invariants: a failure in here is logged and tried again, and harms nothing else in the process; while the metadata store
is away, a stop takes no longer than `metadata_close_timeout_s`, and behind a recovery as long again and
`close_linger_s`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

from bkpy.client.client import Client, open_client, replication_context
from bkpy.config.client import client_settings
from bkpy.config.shared import MetadataSettings
from bkpy.errors import BookKeeperError
from bkpy.log.keeper import LogKeeper
from bkpy.metadata.replication.election import Election
from bkpy.metadata.replication.locks import LedgerLocks
from bkpy.metadata.replication.underreplication import UnderreplicationQueue
from bkpy.metadata.replication.worker_nodes import WorkerNode
from bkpy.replication.auditor.auditor import Auditor
from bkpy.replication.auditor.auditor_metrics import AuditorMetrics
from bkpy.replication.auditor.checks import PLACEMENT, REPLICAS, CheckMetrics, PeriodicChecks
from bkpy.replication.worker.pacing import no_clients
from bkpy.replication.worker.worker import ReplicationWorker
from bkpy.replication.worker.worker_metrics import WorkerMetrics
from bkpy.replication.worker.worker_report import WorkerReport

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from prometheus_client import CollectorRegistry

    from bkpy.config.recovery import RecoverySettings
    from bkpy.metadata.store.store import MetadataStore
    from bkpy.runtime.interfaces import Runtime

log = logging.getLogger("bkpy.recovery")


class AutoRecovery:
    """On `store`, whose owner ends the session after `stop`, and with it the locks of work that was cut short.

    `name` is what the locks and the election are known by: the bookie's id, for people to read. `appended` counts what
    clients have appended to the bookie that it is beside.
    """

    def __init__(
        self,
        settings: RecoverySettings,
        store: MetadataStore,
        root: str,
        runtime: Runtime,
        name: str,
        registry: CollectorRegistry,
        appended: Callable[[], int] = no_clients,
    ) -> None:
        self._settings = settings
        self._store = store
        self._root = root
        self._runtime = runtime
        self._name = name
        self._appended = appended
        self._metrics = AuditorMetrics(registry)
        self._check_metrics = CheckMetrics(registry, (REPLICAS, PLACEMENT))
        self._worker_metrics = WorkerMetrics(registry, runtime.clock)
        self._election = Election(store, root, name, runtime, settings)
        self._client: Client | None = None
        self._records: UnderreplicationQueue | None = None
        self._task: asyncio.Task[Any] | None = None

    def start(self) -> None:
        """Begin. Returns at once, whatever the metadata store does."""
        self._task = self._runtime.spawn(self._run(), name=f"autorecovery of {self._name}")

    async def stop(self) -> None:
        """End all work and leave the election. Copies that were cut short are made again by another worker."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.metadata_close_timeout_s):
                await self._election.withdraw()
        if self._records is not None:
            self._records.close()
        if self._client is not None:
            await self._client.close()

    async def _run(self) -> None:
        await self._kept_up("autorecovery failed to start", self._connect)
        assert self._client is not None
        context, settings = replication_context(self._client), self._settings
        cluster = context.cluster
        auditor = Auditor(cluster, self._runtime, settings, self._metrics)

        async def lead(node: str) -> None:
            checks = PeriodicChecks(context, node, self._runtime, settings, self._check_metrics, auditor.named)
            keeper = LogKeeper(cluster, context.fence, self._runtime, settings)
            beside = [
                self._runtime.spawn(self._kept_up("the checks failed", checks.run), name="periodic checks"),
                self._runtime.spawn(self._kept_up("the maintenance of logs failed", keeper.run), name="keeper of logs"),
            ]
            try:
                await auditor.audit(node)
            finally:
                for task in beside:
                    task.cancel()
                await asyncio.wait(beside)

        self._records = UnderreplicationQueue(self._store, self._root, self._runtime, settings)
        locks = LedgerLocks(self._store, self._root, self._name, self._runtime, settings)
        node = WorkerNode(self._store, self._root, settings)
        worker = ReplicationWorker(
            context, self._records, locks, self._runtime, settings, self._name, node=node, appended=self._appended
        )
        self._worker_metrics.watch(worker)
        report = WorkerReport(worker, node, self._runtime, settings, self._name)
        tasks = [
            self._runtime.spawn(
                self._kept_up("the election failed", lambda: self._election.stand(lead)), name="election"
            ),
            self._runtime.spawn(self._kept_up("the replication worker failed", worker.run), name="replication worker"),
            self._runtime.spawn(
                self._kept_up("the reports of the worker failed", report.run), name="report of the worker"
            ),
        ]
        try:
            await asyncio.wait(tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _connect(self) -> None:
        shared = {name: getattr(self._settings, name) for name in MetadataSettings.model_fields}
        self._client = await open_client(self._store, self._root, self._runtime, client_settings(**shared))

    async def _kept_up(self, what: str, act: Callable[[], Awaitable[None]]) -> None:
        """Run `act` until it returns; restart it when it fails."""
        pause_s = self._settings.audit_look_interval_s
        while True:
            try:
                await act()
                return
            except BookKeeperError as error:
                log.warning("%s, retrying in %.1f s: %s", what, pause_s, error)
            except Exception:
                log.exception("%s, retrying in %.1f s", what, pause_s)
            await asyncio.sleep(pause_s)
