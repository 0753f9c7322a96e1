"""The bench measures what it says."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest
from tests.in_process import InProcess

from bkpy.bench import memory, workloads
from bkpy.errors import BookKeeperError

if TYPE_CHECKING:
    from pathlib import Path


def options(ledgers: int, outstanding: int, api: str = "append") -> workloads.Options:
    return workloads.Options("append", 10, outstanding, ledgers, (1, 1, 1), 0.02, api)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("ledgers", "outstanding", "api"),
    [
        *((7, 3, api) for api in workloads.APPEND_APIS),
        *((ledgers, outstanding, "append") for ledgers, outstanding in ((3, 7), (1, 5), (5, 1))),
    ],
)
async def test_every_ledger_is_used(tmp_path: Path, ledgers: int, outstanding: int, api: str) -> None:
    cluster = InProcess(tmp_path)
    await cluster.start("a")
    client = await cluster.client()
    after: list[list[int]] = []

    async def look() -> None:
        ledger_ids = [ledger_id async for ledger_id in client.list_ledgers()]
        lasts = [await cluster.storage("a").last_entry(ledger_id) for ledger_id in ledger_ids]
        after.append([ledger_id for ledger_id, last in zip(ledger_ids, lasts, strict=True) if last.entry])

    shares: list[float] = []
    result = await workloads.run(client, options(ledgers, outstanding, api), shares.append, after_load=look)
    assert [len(used) for used in after] == [ledgers]
    assert result["entries_per_s"] > 0
    assert shares[-1] == 1.0
    assert [ledger_id async for ledger_id in client.list_ledgers()] == []
    await cluster.stop()


@pytest.mark.parametrize("late_s", [10.0, 100.0])
async def test_a_run_that_is_shorter_than_a_call_goes_on_until_one_has_come_back(tmp_path: Path, late_s: float) -> None:
    """Or until the client gives it up."""
    cluster = InProcess(tmp_path)
    await cluster.start("a")
    client = await cluster.client(add_timeout_s=50.0)
    async with await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1) as writer:
        await writer.append(b"connected")
    for connection in cluster.connections("a"):
        connection.pause("busy")
        asyncio.get_running_loop().call_later(late_s, connection.resume, "busy")
    running = workloads.run(client, options(1, 2), lambda share: None)
    if late_s < 50.0:
        assert (await running)["entries_per_s"] > 0
    else:
        with pytest.raises(ExceptionGroup) as failed:
            await running
        assert failed.group_contains(BookKeeperError)
    await cluster.stop()


async def test_memory_is_noted_in_the_course_of_a_run_and_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "REST_S", 0.01)
    course = memory.MemoryProfile(lambda: [os.getpid(), None])
    for share in (0.02, 0.11, 0.4, 0.7, 1.0):
        course.at(share)
        await asyncio.sleep(0)
    await course.rest()
    assert list(course.mb) == ["10 %", "50 %", "100 %", "after 0 s"]
    assert list(course.files_mb) == list(course.mb)
    assert all(mb is not None and mb > 1 for mb in (*course.mb.values(), *course.files_mb.values()))
