"""Reports the progress of a replication worker, now and then, in a node in the metadata.

Invariant: the size of a report is bounded, however many ledgers are under-replicated.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from bkpy.errors import BookKeeperError

if TYPE_CHECKING:
    from bkpy.config.recovery import RecoverySettings
    from bkpy.metadata.replication.worker_nodes import WorkerNode
    from bkpy.replication.worker.worker import ReplicationWorker
    from bkpy.runtime.interfaces import Runtime

log = logging.getLogger("bkpy.recovery")

_REASON_CHARACTERS_MAX = 300
_BY_LEDGER = ("working_on", "postponed_ledgers", "stuck_ledgers")


class WorkerReport:
    """The reports of `worker`, as `name`, in its node. Rates are those since the report before."""

    def __init__(
        self,
        worker: ReplicationWorker,
        node: WorkerNode,
        runtime: Runtime,
        settings: RecoverySettings,
        name: str,
    ) -> None:
        self._worker = worker
        self._node = node
        self._now = runtime.clock.monotonic
        self._settings = settings
        self._name = name
        self._at, self._bytes, self._ledgers = self._now(), worker.count.bytes, worker.ledgers_done

    async def run(self) -> None:
        """Report until cancelled. While the metadata store is away, a report is left out."""
        while True:
            try:
                await self._node.tell(self._fields())
            except BookKeeperError as error:
                log.debug("failed to store the report of the worker: %s", error)
            await asyncio.sleep(self._settings.worker_report_interval_s)

    def _fields(self) -> dict[str, Any]:
        now, worker = self._now(), self._worker
        seconds = max(now - self._at, 1e-9)
        bytes_per_s = (worker.count.bytes - self._bytes) / seconds
        ledgers_per_s = (worker.ledgers_done - self._ledgers) / seconds
        self._at, self._bytes, self._ledgers = now, worker.count.bytes, worker.ledgers_done
        status = worker.status()
        for kind in _BY_LEDGER:
            some = list(status[kind].items())[: self._settings.worker_report_ledgers_max]
            status[kind] = {ledger_id: _short(value) for ledger_id, value in some}
        return {
            "name": self._name,
            **status,
            "bytes_per_s": round(bytes_per_s),
            "ledgers_per_s": round(ledgers_per_s, 1),
        }


def _short(value: Any) -> Any:
    if not isinstance(value, str) or len(value) <= _REASON_CHARACTERS_MAX:
        return value
    return f"{value[:_REASON_CHARACTERS_MAX]} ..."
