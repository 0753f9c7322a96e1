"""What the dashboard reads when somebody asks: pages of ledgers and of logs, and one of each.

Invariant: a request reads a bounded part of the metadata, however many ledgers and logs there are; the names of logs
come with one read.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from typing import TYPE_CHECKING

from bkpy.admin.ledger_description import describe_ledger
from bkpy.admin.ledger_filter import LedgerFilter
from bkpy.batching import batched
from bkpy.dashboard.models import (
    Consumer,
    LedgerDetail,
    LedgerLine,
    LedgerPage,
    LogDetail,
    LogLine,
    LogPage,
    SegmentReport,
)
from bkpy.errors import BookKeeperError, NoSuchLedgerError, NoSuchLogError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from bkpy.admin.client import AdminClient
    from bkpy.metadata.ledgers.catalog import LedgerCatalog

PAGE_MAX = 200
EXAMINED_MAX = 2000  # ledgers looked at for one page, if few of them are as wanted
SEGMENTS_SHOWN = 200
_AT_ONCE = 32
LOG = "bkpy.log"


class LedgerReading:
    """Ledgers of a cluster."""

    def __init__(self, admin: AdminClient, catalog: LedgerCatalog) -> None:
        self._admin = admin
        self._catalog = catalog

    async def page(self, after: int, limit: int, wanted: LedgerFilter) -> LedgerPage:
        """Up to `limit` ledgers with ids above `after` that are as wanted."""
        rows: list[LedgerLine] = []
        examined = 0
        last = after
        async for ids in self._ids(after):
            for some in batched(ids, _AT_ONCE):
                for found in await asyncio.gather(*(self._row(ledger_id, wanted) for ledger_id in some)):
                    examined += 1
                    if found is None:
                        continue
                    row, taken = found
                    if len(rows) == limit:
                        return LedgerPage(ledgers=rows, after=last, examined=examined)
                    last = row.ledger_id
                    if taken:
                        rows.append(row)
                if examined >= EXAMINED_MAX:
                    return LedgerPage(ledgers=rows, after=last, examined=examined)
        return LedgerPage(ledgers=rows, after=None, examined=examined)

    async def _ids(self, after: int) -> AsyncIterator[list[int]]:
        async for partition in self._catalog.partitions(after + 1):
            if wanted := [ledger_id for ledger_id in partition if ledger_id > after]:
                yield wanted

    async def _row(self, ledger_id: int, wanted: LedgerFilter) -> tuple[LedgerLine, bool] | None:
        """The ledger, and whether it is wanted."""
        try:
            metadata, _ = await self._catalog.read(ledger_id)
            record = await self._admin.under_replication(ledger_id)
        except NoSuchLedgerError:
            return None
        except BookKeeperError as error:
            if error.retriable:
                raise
            line = LedgerLine(
                ledger_id=ledger_id, state="unreadable", last_entry=None, length=None, quorums="", created="",
                fragments=0, log="", missing=[],
            )  # fmt: skip
            return line, wanted in (LedgerFilter(), LedgerFilter(state="unreadable"))
        described = describe_ledger(metadata)
        line = LedgerLine(
            ledger_id=ledger_id,
            state=described["state"],
            last_entry=described["last_entry"],
            length=described["length"],
            quorums=f"{metadata.ensemble_size},{metadata.write_quorum},{metadata.ack_quorum}",
            created=described["created"],
            fragments=len(metadata.fragments),
            log=metadata.custom_metadata.get(LOG, b"").decode(errors="replace"),
            missing=[] if record is None else sorted(record.lost),
        )
        return line, wanted.wants(metadata, missing_copies=record is not None)

    async def one(self, ledger_id: int) -> LedgerDetail:
        """Raises `NoSuchLedgerError`."""
        metadata, _ = await self._catalog.read(ledger_id, fresh=True)
        record = await self._admin.under_replication(ledger_id)
        return LedgerDetail(
            ledger=describe_ledger(metadata, record=record),
            missing={} if record is None else {name: str(loss.reason) for name, loss in sorted(record.lost.items())},
            unclosed=metadata.state.value != "CLOSED",
        )


class LogReading:
    """Named logs of a cluster."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    async def page(self, after: str, limit: int) -> LogPage:
        """Up to `limit` logs whose names come after `after`."""
        names = await self._admin.log_names()
        begin = bisect_right(names, after)
        shown = names[begin : begin + limit]
        rows = await asyncio.gather(*(self._row(name) for name in shown))
        more = shown[-1] if begin + limit < len(names) else None
        return LogPage(logs=[row for row in rows if row is not None], after=more)

    async def _row(self, name: str) -> LogLine | None:
        try:
            log_list, writer = await self._admin.describe_log(name, fresh=False)
            consumers = await self._admin.log_consumers(name)
        except NoSuchLogError:
            return None
        except BookKeeperError as error:
            if error.retriable:
                raise
            return LogLine(log=name, first_position=None, known_end=None, ledgers=None, bytes=None, writer=None)
        end = max(log_list.sealed_end, log_list.first_position)
        lags = [max(0, end - max(state.position, log_list.first_position)) for state in consumers.values()]
        return LogLine(
            log=name,
            first_position=log_list.first_position,
            known_end=end,
            ledgers=log_list.ledgers,
            bytes=log_list.payload_bytes,
            writer=writer,
            consumers=len(lags),
            lag=max(lags, default=None),
        )

    async def one(self, name: str) -> LogDetail:
        """Raises `NoSuchLogError`."""
        log_list, writer = await self._admin.describe_log(name)
        consumers = await self._admin.log_consumers(name)
        end = max(log_list.sealed_end, log_list.first_position)
        shown = log_list.segments[-SEGMENTS_SHOWN:]
        return LogDetail(
            log=name,
            first_position=log_list.first_position,
            known_end=end,
            writer=writer,
            retention_s=log_list.retention_s,
            retention_bytes=log_list.retention_bytes,
            segments=[
                SegmentReport(
                    ledger_id=segment.ledger_id,
                    first_position=segment.first_position,
                    entries=segment.entries if segment.sealed else None,
                    bytes=segment.payload_bytes if segment.sealed else None,
                    begun_ms=segment.begun_ms,
                    last_ms=segment.last_ms if segment.sealed else None,
                )
                for segment in shown
            ],
            segments_before=log_list.ledgers - len(shown),
            consumers=[
                Consumer(
                    consumer=consumer,
                    position=state.position,
                    lag=max(0, end - state.position),
                    since_ms=state.since_ms,
                )
                for consumer, state in sorted(consumers.items())
            ],
        )
