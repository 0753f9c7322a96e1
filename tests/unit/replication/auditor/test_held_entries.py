"""Which entries nobody returns: all of them are found, as ranges, and no more than are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.unit.replication.worker.test_ledger_repair import closed, damage, lose

import bkpy
from bkpy.admin.client import AdminClient
from bkpy.client.client import replication_context
from bkpy.protocol.repair.rereplication import plan
from bkpy.replication.auditor.held_entries import unreadable

if TYPE_CHECKING:
    from tests.in_process import InProcess

    from bkpy.client.client import Client
    from bkpy.client.write.writer import LedgerWriter

COUNT = 12


async def ranges(
    client: Client, writer: LedgerWriter, away: str, *, read_bytes: int, ranges_max: int = 9
) -> list[tuple[int, int]]:
    metadata = await client.ledger_metadata(writer.ledger_id)
    (copy,) = plan(metadata, {away}, replication_context(client).bookies()).copies
    seen: list[int] = []
    found = await unreadable(
        replication_context(client), metadata, copy, read_bytes=read_bytes, ranges_max=ranges_max, looked_at=seen.append
    )
    assert seen == sorted(seen)
    assert found.doubt is None
    return found.ranges


@pytest.mark.parametrize("read_bytes", [1, 100, 1 << 20])
async def test_entries_that_are_damaged_everywhere_are_named_and_no_others(five: InProcess, read_bytes: int) -> None:
    client = await five.client()
    writer = await closed(client, COUNT)
    a, b, c = writer.ensemble
    await lose(five, client, a)
    assert await ranges(client, writer, a, read_bytes=read_bytes) == []
    for entry_id in (0, 3, 4, 11):
        damage(five, b, writer.ledger_id, entry_id)
    damage(five, c, writer.ledger_id, 7)
    assert await ranges(client, writer, a, read_bytes=read_bytes) == []
    for entry_id in (0, 3, 4, 11):
        damage(five, c, writer.ledger_id, entry_id)
    assert await ranges(client, writer, a, read_bytes=read_bytes) == [(0, 0), (3, 4), (11, 11)]
    assert await ranges(client, writer, a, read_bytes=read_bytes, ranges_max=2) == [(0, 0), (3, 4)]


async def test_of_a_striped_ledger_only_the_share_counts(five: InProcess) -> None:
    client = await five.client()
    writer = await closed(client, COUNT, ensemble_size=3, write_quorum=2, ack_quorum=2)
    a, b, c = writer.ensemble
    await lose(five, client, a)
    for entry_id in (0, 1, 3):  # 1 is on b and c, and no part of a's share
        damage(five, b, writer.ledger_id, entry_id)
        damage(five, c, writer.ledger_id, entry_id)
    assert await ranges(client, writer, a, read_bytes=1 << 20) == [(0, 0), (3, 3)]


async def test_where_nobody_answers_all_is_in_doubt(five: InProcess) -> None:
    client = await five.client(read_timeout_s=0.2)
    writer = await closed(client, COUNT)
    a, b, c = writer.ensemble
    await lose(five, client, a)
    five.hang(b)
    assert await ranges(client, writer, a, read_bytes=1 << 20) == []
    five.hang(c)
    metadata = await client.ledger_metadata(writer.ledger_id)
    (copy,) = plan(metadata, {a}, replication_context(client).bookies()).copies
    found = await unreadable(replication_context(client), metadata, copy, read_bytes=1 << 20, ranges_max=9)
    assert (found.ranges, type(found.doubt)) == ([], bkpy.BookieUnavailableError)
    for name in (b, c):
        for connection in five.connections(name):
            connection.resume("hung")


async def test_what_a_silent_bookie_may_have_is_in_doubt(five: InProcess) -> None:
    """Of a striped ledger: entries 1, 4, 7 and 10 are on the two bookies that are left, and nowhere else."""
    client = await five.client(read_timeout_s=2.0)
    writer = await closed(client, COUNT, ensemble_size=3, write_quorum=2, ack_quorum=2)
    a, b, c = writer.ensemble
    await lose(five, client, a)
    damage(five, c, writer.ledger_id, 2)  # the other copy was the lost bookie's
    five.hang(b)  # so were those of entries 0, 3, 6 and 9
    metadata = await client.ledger_metadata(writer.ledger_id)
    (copy,) = plan(metadata, {a}, replication_context(client).bookies()).copies
    found = await unreadable(replication_context(client), metadata, copy, read_bytes=1 << 20, ranges_max=9)
    assert found.ranges == [(2, 2)]
    assert isinstance(found.doubt, bkpy.BookieUnavailableError)
    with pytest.raises(bkpy.BookieUnavailableError, match=f"it is not known .* no answer within 2 s .*{b}"):
        await AdminClient(client).unreadable_entries(metadata, copy, ranges_max=9)
