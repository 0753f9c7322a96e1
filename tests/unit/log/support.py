"""What tests of logs share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.hooks import tasks_of

from bkpy.client.client import log_parts
from bkpy.protocol.wire.records import STAMP_BYTES

if TYPE_CHECKING:
    from bkpy.client.client import Client
    from bkpy.protocol.log.log_list import LogList


def positions_of(log_list: LogList) -> list[tuple[int, int]]:
    """Where each segment begins, and how many entries it has; -1 for those that are not sealed."""
    return [(segment.first_position, segment.entries) for segment in log_list.segments]


async def contents(client: Client, name: str) -> list[bytes]:
    """All entries of a log that was closed, read ledger by ledger."""
    log_list, _ = await log_parts(client).logs.read(name, fresh=True)
    found: list[bytes] = []
    async for segment in log_parts(client).logs.pages.segments(name, log_list):
        reader = await client.open_ledger(segment.ledger_id)
        assert segment.sealed
        assert reader.closed
        entries = [entry.data[STAMP_BYTES:] async for entry in reader.read()]
        assert len(entries) == segment.entries
        assert segment.first_position == len(found)
        found += entries
    return found


def left_running(client: Client) -> list[str]:
    """Of what belongs to one call, or to a log."""
    lasting = ("connection to", "bookie directory", "leaving bookies", "lease of", "delete an unused")
    return sorted(task.get_name() for task in tasks_of(client) if not task.get_name().startswith(lasting))
