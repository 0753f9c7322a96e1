"""A bookie that gets back itself what it lost, while an auditor and workers look after its ledgers."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry
from tests.hooks import cluster_of
from tests.in_process import ROOT, InProcess, runtime_here
from tests.unit.replication.repairing import whole
from tests.unit.replication.test_integrity import QUICK, done, lost, rebuilt, written
from tests.waiting import eventually

from bkpy.config.recovery import RecoverySettings
from bkpy.metadata.replication.audit_record import AuditRecords
from bkpy.metadata.replication.underreplication import UnderreplicationQueue
from bkpy.replication.auto_recovery import AutoRecovery

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from bkpy.client.client import Client

QUICKLY = {"lost_bookie_settle_s": 0.05, "audit_look_interval_s": 0.05, "audit_follow_interval_s": 0.1, **QUICK}
LEDGERS = 12


@contextlib.asynccontextmanager
async def recovering(cluster: InProcess, **settings: Any) -> AsyncIterator[CollectorRegistry]:
    """An auditor and a worker; their metrics."""
    registry = CollectorRegistry()
    recovery = AutoRecovery(
        RecoverySettings(**{**QUICKLY, **settings}), cluster.tree.session(), ROOT, runtime_here(), "worker", registry
    )
    recovery.start()
    await eventually(lambda: registry.get_sample_value("bkpy_auditor_leading") == 1)
    yield registry
    await recovery.stop()


async def all_marks(client: Client) -> set[int]:
    marks = UnderreplicationQueue(cluster_of(client).store, ROOT, runtime_here())
    return {ledger_id async for ledger_id in marks.list()}


async def ensembles(client: Client, ledgers: list[int]) -> list[tuple[str, ...]]:
    return [(await client.ledger_metadata(ledger_id)).fragments[0].bookies for ledger_id in ledgers]


@pytest.fixture
async def cluster(tmp_path: Any) -> Any:
    local = InProcess(tmp_path)
    yield local
    await local.stop()


@pytest.mark.thorough
@pytest.mark.scenario(57)
async def test_it_is_left_alone_as_long_as_one_that_is_away(cluster: InProcess) -> None:
    await cluster.start("abcd", **QUICK)
    client = await cluster.client()
    ledgers = [await written(client, (3, 3, 2)) for _ in range(LEDGERS)]
    before = await ensembles(client, ledgers)
    async with recovering(cluster, lost_bookie_recovery_delay_s=3600) as metrics:
        await lost(cluster, "a")
        node = await rebuilt(cluster, "a")
        await eventually(lambda: done(node) and not cluster.service("a").read_only)
        client = await cluster.client()
        assert await ensembles(client, ledgers) == before
        assert not await all_marks(client)
        assert metrics.get_sample_value("bkpy_replication_copied_entries_total") == 0
        assert metrics.get_sample_value("bkpy_auditor_marks_total") == 0
        for ledger_id in ledgers:
            await whole(client, ledger_id)


@pytest.mark.thorough
@pytest.mark.scenario(59)
@pytest.mark.parametrize("names", ["abcd", "abc"])
async def test_others_at_the_same_ledgers_do_no_harm(cluster: InProcess, names: str) -> None:
    """With as many bookies as an ensemble has, nobody can take its place: it takes the marks away itself."""
    await cluster.start(names, **QUICK)
    client = await cluster.client()
    ledgers = [await written(client, (3, 3, 2)) for _ in range(LEDGERS)]
    async with recovering(cluster, lost_bookie_recovery_delay_s=0):
        await lost(cluster, "a")
        node = await rebuilt(cluster, "a")
        await eventually(lambda: done(node) and not cluster.service("a").read_only)
        client = await cluster.client()
        left = {*ledgers}
        while left:
            await asyncio.sleep(0.01)
            left = await all_marks(client)
        for ledger_id in ledgers:
            await whole(client, ledger_id)


@pytest.mark.thorough
async def test_marks_that_came_when_it_was_done_go_as_well(cluster: InProcess) -> None:
    """An auditor that has not seen it in limbo."""
    await cluster.start("abc", **QUICK)
    client = await cluster.client()
    ledgers = [await written(client, (3, 3, 2)) for _ in range(LEDGERS)]
    records = AuditRecords(cluster.tree.session(), ROOT)
    async with recovering(cluster, lost_bookie_recovery_delay_s=3600):
        while "a" not in (await records.read()).instances:
            await asyncio.sleep(0.01)
    await lost(cluster, "a")
    node = await rebuilt(cluster, "a")
    await eventually(lambda: done(node) and not cluster.service("a").read_only)
    client = await cluster.client()
    async with recovering(cluster, lost_bookie_recovery_delay_s=3600) as metrics:
        # Counted, since marks may be gone again before anybody looks.
        await eventually(lambda: (metrics.get_sample_value("bkpy_auditor_marks_total") or 0) >= LEDGERS)
        while await all_marks(client):
            await asyncio.sleep(0.01)
        for ledger_id in ledgers:
            await whole(client, ledger_id)
