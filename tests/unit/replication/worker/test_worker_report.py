"""What a worker tells of itself, in the metadata and as metrics, while it works and while it can't."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry
from tests.hooks import cluster_of
from tests.in_process import DEADLINE_S, InProcess
from tests.unit.replication.worker.test_ledger_repair import closed, lose
from tests.unit.replication.worker.test_worker import QUICK, healer
from tests.waiting import eventually

from bkpy.config.recovery import RecoverySettings
from bkpy.metadata.replication.worker_nodes import WorkerNode, worker_reports
from bkpy.replication.overview import overview
from bkpy.replication.worker.worker_metrics import WorkerMetrics
from bkpy.replication.worker.worker_report import WorkerReport

if TYPE_CHECKING:
    import pytest
    from tests.unit.replication.worker.test_worker import Healer


def report_of(of: Healer, **given: Any) -> WorkerReport:
    cluster = cluster_of(of.client)
    settings = RecoverySettings(**{**QUICK, "worker_report_interval_s": 0.02, **given})
    node = WorkerNode(cluster.store, cluster.root, settings)
    return WorkerReport(of.worker, node, cluster.store.runtime, settings, of.worker.status()["holder"])


async def told_when(of: Healer, **expected: Any) -> dict[str, Any]:
    """What the only worker tells, as soon as it tells this."""
    cluster = cluster_of(of.client)
    async with asyncio.timeout(DEADLINE_S):
        while True:
            found = await worker_reports(cluster.store, cluster.root)
            assert len(found) <= 1
            if found and expected.items() <= found[0].items():
                return found[0]
            await asyncio.sleep(0.02)


async def test_metrics_count_ledgers_by_copies_left_until_all_is_done(four: InProcess) -> None:
    client = await four.client()
    writers = [await closed(client, 20) for _ in range(6)]
    await lose(four, client, "b")
    async with healer(four) as one:
        registry = CollectorRegistry()
        runtime = cluster_of(client).store.runtime
        metrics = WorkerMetrics(registry, runtime.clock)

        def value(name: str, **labels: str) -> float | None:
            return registry.get_sample_value(f"bkpy_replication_{name}", labels)

        assert (value("ledgers", copies_left="1"), value("marked"), value("enabled")) == (0, 0, 1)
        metrics.watch(one.worker)
        named = [writer for writer in writers if "b" in writer.ensemble]
        assert named
        for writer in named:
            await one.mark(writer.ledger_id, "b", since_ms=int(runtime.clock.time() * 1000) - 5000)
        await one.marks.set_enabled(False)
        one.start()
        await eventually(lambda: value("marked") == len(named))
        assert value("enabled") == 0
        assert value("ledgers", copies_left="2") == len(named)
        age = value("oldest_mark_age_seconds")
        assert age is not None
        assert 5 <= age < 60
        await one.marks.set_enabled(True)
        await one.unmarked()
        await eventually(lambda: value("done_ledgers_total") == len(named))
        assert value("marked") == value("oldest_mark_age_seconds") == value("ledgers", copies_left="1") == 0
        assert value("copied_fragments_total") == len(named)
        assert value("copied_entries_total") == 20 * len(named)
        copied = value("copied_bytes_total")
        assert copied is not None
        assert copied > 0


async def test_a_report_says_what_is_stuck_and_why_and_is_bounded(cluster: InProcess) -> None:
    client = await cluster.client()
    writers = [await closed(client, 10) for _ in range(3)]
    await lose(cluster, client, "b")
    async with healer(cluster) as one:
        for writer in writers:
            await one.mark(writer.ledger_id, "b")
        reporting = asyncio.create_task(report_of(one, worker_report_ledgers_max=1).run())
        one.start()
        found = await told_when(one, stuck=3)
        assert len(found["stuck_ledgers"]) == 1
        assert found["marked_by_copies_left"] == {"2": 3}
        seen = await overview(cluster_of(one.client), RecoverySettings())
        assert (seen["ledgers"], seen["stuck"], seen["bytes_left"], seen["eta_s"]) == (3, 3, 0, None)
        assert seen["ledgers_by_copies_left"] == {"2": 3}
        for reason in (*found["stuck_ledgers"].values(), *seen["stuck_ledgers"].values()):
            assert "no writable bookie is outside the ensemble" in reason
        await cluster.start_node("d")
        await one.unmarked()
        found = await told_when(one, stuck=0, ledgers_done=3)
        assert found["bytes_copied"] > 0
        seen = await overview(cluster_of(one.client), RecoverySettings())
        assert (seen["ledgers"], seen["stuck_ledgers"], seen["eta_s"]) == (0, {}, 0)
        reporting.cancel()
        await asyncio.wait([reporting])


async def test_what_is_left_to_be_copied_and_how_long_that_takes(four: InProcess) -> None:
    client = await four.client()
    writer = await closed(client, 40)
    victim = writer.ensemble[0]
    metadata = await client.ledger_metadata(writer.ledger_id)
    await lose(four, client, victim)
    async with healer(four) as one:
        await one.mark(writer.ledger_id, victim)
        cluster = cluster_of(one.client)
        seen = await overview(cluster, RecoverySettings())
        assert (seen["bytes_left"], seen["stuck"], seen["eta_s"]) == (metadata.length, 0, None)
        for rate in (0, 100):
            node = WorkerNode(cluster.store, cluster.root, RecoverySettings())
            await node.tell({"name": "another", "bytes_per_s": rate, "ledgers_per_s": 0.0})
        seen = await overview(cluster, RecoverySettings())
        assert (seen["bytes_per_s"], seen["eta_s"]) == (100, round(metadata.length / 100, 1))


async def test_a_long_reason_is_cut_off(four: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    async with healer(four) as one:
        status = one.worker.status()
        monkeypatch.setattr(
            one.worker, "status", lambda: {**status, "enabled": True, "stuck_ledgers": {"7": "x" * 5000}}
        )
        reporting = asyncio.create_task(report_of(one).run())
        found = await told_when(one, enabled=True)
        assert len(found["stuck_ledgers"]["7"]) < 400
        reporting.cancel()
        await asyncio.wait([reporting])
