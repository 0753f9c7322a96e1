"""Writers that append nothing leave bookies that are lost, or are to leave, and go on where they were if they can't."""

from __future__ import annotations

import asyncio

import pytest
from tests.hooks import pool_of
from tests.in_process import InProcess, contents
from tests.unit.client.support import payload
from tests.waiting import eventually

from bkpy.client.client import replication_context

QUICK = {"absent_bookie_replace_delay_s": 0.2, "leave_look_interval_s": 0.02, "leaves_at_once": 2}


@pytest.mark.scenario(60)
async def test_writers_at_rest_leave_a_bookie_that_has_been_away_for_long(five: InProcess) -> None:
    client = await five.client(**QUICK)
    writers = [await client.create_ledger() for _ in range(6)]
    for writer in writers:
        await writer.append(payload(0))
    victim = writers[0].ensemble[0]
    concerned = [writer for writer in writers if victim in writer.ensemble]
    await five.node(victim).stop()
    await eventually(lambda: all(victim not in writer.ensemble for writer in concerned))
    for writer in writers:
        assert len(writer.metadata.fragments) == (2 if writer in concerned else 1)
        await writer.append(payload(1))
        await writer.close()
        assert await contents(client, writer.ledger_id) == [payload(0), payload(1)]


async def test_a_restart_moves_nobody(five: InProcess) -> None:
    client = await five.client(**{**QUICK, "absent_bookie_replace_delay_s": 20.0})
    writer = await client.create_ledger()
    await five.restart(writer.ensemble[0])
    await eventually(lambda: writer.ensemble[0] in client.bookies)
    await asyncio.sleep(0.1)
    assert len(writer.metadata.fragments) == 1
    assert not replication_context(client).directory.absent_since
    await writer.close()


async def test_without_another_bookie_a_writer_goes_on_however_many_are_gone(cluster: InProcess) -> None:
    """Nothing is pending, so nothing fails for lack of bookies: they may come back before anything is appended."""
    client = await cluster.client(**{**QUICK, "no_bookies_timeout_s": 0.0})
    writer = await client.create_ledger()
    await writer.append(payload(0))
    for name in "ab":
        await cluster.node(name).stop()
    await eventually(lambda: {"a", "b"} <= replication_context(client).directory.absent_since.keys())
    await asyncio.sleep(0.5)
    assert writer.usable
    for name in "ab":
        await cluster.start_node(name)
        await pool_of(client).channel(name).connect(again=True)
    await writer.append(payload(1))
    await writer.close()


async def test_nobody_leaves_where_ensembles_may_not_change(five: InProcess) -> None:
    client = await five.client(**{**QUICK, "disable_ensemble_change": True})
    writer = await client.create_ledger()
    await writer.append(payload(0))
    victim = writer.ensemble[0]
    await five.node(victim).stop()
    await eventually(lambda: victim in replication_context(client).directory.absent_since)
    await asyncio.sleep(0.5)
    assert victim in writer.ensemble
    await writer.close()
