"""A bookie in limbo refuses a writer's entries, and ends no writer: nobody has asked it for a fence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.hooks import pool_of
from tests.unit.admin.test_drain_work import stored
from tests.unit.client.support import payload
from tests.unit.replication.test_integrity import done, lost, quick, rebuilt
from tests.waiting import eventually

from bkpy.protocol.ledger.ledger_metadata import LedgerState
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Flags, Op, Status

if TYPE_CHECKING:
    from tests.in_process import InProcess

    from bkpy.client.client import Client

__all__ = ["quick"]


async def fence(client: Client, bookie_id: str, ledger_id: int) -> None:
    """Ask one bookie for a fence, as a recovery does."""
    metadata = await client.ledger_metadata(ledger_id)
    pool = pool_of(client)
    pool.add_key(ledger_id, metadata.ledger_key)
    head = m.pack([int(Flags.RECOVERY), ledger_id])
    frame = await pool.channel(bookie_id).call(Op.READ_LAC, head, present=ledger_id, timeout_s=10.0, again=True)
    assert m.reply_status(frame.head) in (Status.OK, Status.UNKNOWN)


async def doubting(cluster: InProcess, name: str) -> None:
    """The bookie has lost its disks, is trusted again, and can't tell what it had of older ledgers."""
    await lost(cluster, name)
    node = await rebuilt(cluster, name)
    await eventually(lambda: done(node) and not cluster.service(name).read_only)


@pytest.mark.parametrize("restarted", [False, True])
async def test_the_writer_of_an_older_ledger_goes_on_without_it(quick: InProcess, restarted: bool) -> None:
    """A copy, or an entry of a recovery, has made the ledger known there."""
    client = await quick.client(no_bookies_timeout_s=0.0, quarantine_s=0.01)
    writer = await client.create_ledger()
    await writer.append(payload(0))
    (outside,) = set("abcd") - set(writer.ensemble)
    await doubting(quick, outside)
    other = await quick.client()
    assert await stored(other, outside, writer.ledger_id, recovery=True) == Status.OK
    if restarted:
        await quick.restart(outside)
    assert await stored(await quick.client(), outside, writer.ledger_id, recovery=False) == [Status.READ_ONLY]
    await quick.node(writer.ensemble[2]).stop()  # the bookie in limbo is the only one in whose stead it could go on
    for i in range(1, 30):
        await writer.append(payload(i))
    assert writer.usable
    assert (await client.ledger_metadata(writer.ledger_id)).state is LedgerState.OPEN
    await fence(other, outside, writer.ledger_id)
    assert await stored(await quick.client(), outside, writer.ledger_id, recovery=False) == [Status.FENCED]
    if restarted:
        await quick.restart(outside)
        assert await stored(await quick.client(), outside, writer.ledger_id, recovery=False) == [Status.FENCED]
    writer.abandon()


async def test_a_closed_ledger_whose_limbo_has_ended_is_fenced(quick: InProcess) -> None:
    client = await quick.client()
    writer = await client.create_ledger()
    await writer.append(payload(0))
    await writer.close()
    await doubting(quick, writer.ensemble[0])
    assert await stored(await quick.client(), writer.ensemble[0], writer.ledger_id, recovery=False) == [Status.FENCED]
