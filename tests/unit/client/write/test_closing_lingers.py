"""Closing a ledger waits a little for the bookies that the ack quorum was quicker than: its client may end at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.unit.replication.repairing import whole
from tests.waiting import eventually

from bkpy.admin.client import AdminClient
from bkpy.metadata.replication.underreplication import LossReason

if TYPE_CHECKING:
    from tests.in_process import InProcess

    from bkpy.client.client import Client


async def recorded(client: Client, ledger_id: int) -> dict[str, str]:
    """Which bookies the ledger's under-replication record names, and why."""
    record = await AdminClient(client).under_replication(ledger_id)
    return {} if record is None else {name: lost.reason for name, lost in record.lost.items()}


async def test_a_bookie_that_is_slower_than_the_ack_quorum_has_everything_when_the_client_is_closed(
    cluster: InProcess,
) -> None:
    client = await cluster.client()
    async with await client.create_ledger() as writer:
        slow = cluster.connections("b")
        for connection in slow:
            connection.pause("busy")
        await writer.append_batch([b"entry"] * 10)
        for connection in slow:
            asyncio.get_running_loop().call_later(0.05, connection.resume, "busy")
    assert await recorded(client, writer.ledger_id) == {}
    await client.close()
    await whole(await cluster.client(), writer.ledger_id)


@pytest.mark.parametrize("linger_s", [0.0, 0.1])
async def test_a_bookie_that_does_not_answer_is_waited_for_so_long(cluster: InProcess, linger_s: float) -> None:
    client = await cluster.client(close_linger_s=linger_s, add_timeout_s=60.0)
    async with await client.create_ledger() as writer:
        cluster.hang("b")
        await writer.append(b"entry")
        began = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began >= linger_s
    assert (await client.ledger_metadata(writer.ledger_id)).last_entry == 0
    # What it was sent may never get there, and nobody else would know.
    assert await recorded(client, writer.ledger_id) == {"b": LossReason.RETURNED}


async def test_a_bookie_that_fails_behind_the_end_of_the_ledger_is_recorded(cluster: InProcess) -> None:
    client = await cluster.client(close_linger_s=60.0, add_timeout_s=60.0)
    writer = await client.create_ledger()
    cluster.hang("b")
    await writer.append(b"entry")
    closing = asyncio.create_task(writer.close())
    await eventually(lambda: not writer.usable)
    assert not closing.done()
    cluster.kill("b")
    await closing
    assert await recorded(client, writer.ledger_id) == {"b": LossReason.RETURNED}
