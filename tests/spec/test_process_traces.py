"""What real processes do while some are killed is a behaviour of the model of a ledger; a planted defect isn't."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

import bkpy
from bkpy.local import LocalCluster
from bkpy.local.process import ManagedProcess
from bkpy.protocol.ledger.acks import Flight
from tests.faults.healing import CONFIG, Healing, until

from . import writers
from .processes import merged, recorded_children
from .recorded import recording
from .traces import CHANGE, RECOVERY, SWAP, explain, refused_at

if TYPE_CHECKING:
    from pathlib import Path

BOOKIES = 6
LEDGERS, ABANDONED, KILLED = 15, 5, 10  # closed by their writers; left by them; their writers' process is killed


@pytest.fixture
def records(tmp_path: Path) -> Path:
    return tmp_path / "records"


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
async def test_the_model_explains_what_real_processes_do(tmp_path: Path, records: Path) -> None:
    """A bookie dies for good, another one returns, the writers of ten ledgers are killed, and the cluster heals."""
    with recorded_children(records), recording(records / "test"):
        async with (
            LocalCluster(tmp_path / "cluster", bookies=BOOKIES, config=CONFIG) as cluster,
            bkpy.connect(cluster.connect_string) as client,
        ):
            healing = Healing(cluster.connect_string, client)
            killed = await _writers(tmp_path, cluster.connect_string)
            lost, other = cluster.bookies[:2]
            await other.kill()
            await other.start()
            writing = asyncio.create_task(healing.write(LEDGERS, entries=40, abandoned=ABANDONED))
            await until(lambda: _there_are(client, KILLED + LEDGERS), "most of them are written")
            await lost.kill()
            await writing
            await killed.kill()
            async with bkpy.connect(cluster.connect_string) as another:
                await asyncio.gather(*(_recover(by, n) for by in (client, another) for n in range(KILLED)))
            await healing.healed(lost.id)
            await healing.demand()

    traces = merged(records).counting()
    verdict = await asyncio.to_thread(explain, traces, tmp_path)
    assert verdict.violated is None, f"refused at {refused_at(traces, verdict)}: {verdict.text}"
    assert len(traces) >= ABANDONED + KILLED
    assert {kind for trace in traces for kind in trace.kinds} == {CHANGE, RECOVERY, SWAP}


async def _writers(directory: Path, uri: str) -> ManagedProcess:
    process = ManagedProcess(directory / "writers.log")
    process.spawn([sys.executable, writers.__file__, uri, str(KILLED)], env=dict(os.environ))

    async def ready() -> bool:
        assert process.running, process.log_tail()
        return writers.READY in process.log_tail()

    await until(ready, writers.READY)
    return process


async def _there_are(client: bkpy.Client, count: int) -> bool:
    return len([ledger_id async for ledger_id in client.list_ledgers()]) >= count


async def _recover(client: bkpy.Client, ledger_id: int) -> None:
    await (await client.recover_ledger(ledger_id)).close()


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
async def test_an_acknowledgement_one_copy_early_is_refused(tmp_path: Path, records: Path) -> None:
    make = Flight.__init__

    def early(flight: Flight, batches: Any, size: int, ack_quorum: int) -> None:
        make(flight, batches, size, max(1, ack_quorum - 1))

    with recorded_children(records), recording(records / "test"), patch.object(Flight, "__init__", early):
        async with (
            LocalCluster(tmp_path / "cluster", bookies=3, config=CONFIG) as cluster,
            bkpy.connect(cluster.connect_string) as client,
        ):
            writer = await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
            metadata = await client.ledger_metadata(writer.ledger_id)
            silent = next(bookie for bookie in cluster.bookies if bookie.id in metadata.fragments[0].bookies)
            silent.suspend()
            await writer.append(b"")
            silent.resume()
            writer.abandon()
            await _recover(client, writer.ledger_id)

    traces = merged(records).counting()
    verdict = await asyncio.to_thread(explain, traces, tmp_path)
    assert verdict.violated == "deadlock"
    assert refused_at(traces, verdict) == "ack"
