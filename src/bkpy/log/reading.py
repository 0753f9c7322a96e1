"""What a client does with named logs, put together from its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bkpy.client.arguments import check_password
from bkpy.errors import UnauthorizedError
from bkpy.log.reader import LogReader
from bkpy.log.segments import Segments
from bkpy.log.snapshot import LogSnapshot
from bkpy.protocol.log.log_list import checked_name
from bkpy.protocol.wire.records import ledger_key

if TYPE_CHECKING:
    from bkpy.client.bookies.pool import BookiePool
    from bkpy.config.client import ClientSettings
    from bkpy.metadata.ledgers.catalog import LedgerCatalog
    from bkpy.metadata.logs.catalog import LogStore
    from bkpy.runtime.interfaces import Runtime


class LogReading:
    """Opens logs, and single ledgers of them, for reading."""

    def __init__(
        self, logs: LogStore, catalog: LedgerCatalog, pool: BookiePool, settings: ClientSettings, runtime: Runtime
    ) -> None:
        self.segments = Segments(catalog, pool, settings, runtime)
        self._logs = logs
        self._settings = settings
        self._runtime = runtime

    async def open(self, name: str, password: bytes) -> LogReader:
        """See `Client.read_log`."""
        check_password(password)
        log_list, version = await self._logs.read(checked_name(name))
        if log_list.ledger_key != ledger_key(password):
            why = "the password is not the log's" if password else "the log has a password, and none was given"
            raise UnauthorizedError(f"log {name}: {why}")
        reader = LogReader(
            LogSnapshot(name, log_list, version),
            password,
            logs=self._logs,
            segments=self.segments,
            settings=self._settings,
            runtime=self._runtime,
        )
        await reader.refresh()
        return reader
