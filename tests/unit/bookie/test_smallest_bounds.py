"""A bookie whose every bound is as small as it can be: slow, and otherwise like any other."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.in_process import DEADLINE_S, InProcess, contents

import bkpy

if TYPE_CHECKING:
    from pathlib import Path

SMALLEST = {
    "backlog_frames_max": 1,
    "reads_at_once": 1,
    "deferred_sync_bytes_max": 1,
    "presented_ledgers_max": 1,
    "receive_chunk_bytes_min": 1,
    "receive_chunk_bytes_max": 1,
    "receive_room_bytes_min": 1,
    "receive_spare_chunks": 0,
    "listen_backlog": 1,
    "receive_bytes_max": 1,
    "answers_at_once": 1,
    "new_connections_max": 1,
    "keepalive_interval_s": 1,
    "answers_bytes_max": 1,
    "memory_bytes_max": 1,
    "memory_rest_interval_s": 0.001,
    "memtable_rest_bytes_min": 1,
}


# All at once are slower than any one of them; one alone beside others that are large is seldom more.
@pytest.mark.thorough
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(list(SMALLEST), id="all"),
        *(pytest.param([name], id=name, marks=pytest.mark.exhaustive) for name in SMALLEST),
    ],
)
async def test_ledgers_are_written_and_read_within_the_smallest_bounds(tmp_path: Path, names: list[str]) -> None:
    cluster = InProcess(tmp_path)
    await cluster.start(**{name: SMALLEST[name] for name in names})
    client, reader = await cluster.client(), await cluster.client(read_bytes=1000)
    writers = [await client.create_ledger(deferred_sync=i == 0) for i in range(5)]
    entries = [b"%d" % i * size for i, size in enumerate([1, 300_000, 10, 5_000, 100])]

    async def write(writer: object) -> None:
        for entry in entries:
            await writer.append(entry)  # type: ignore[attr-defined]

    async def tail(ledger_id: int) -> list[bytes]:
        return [entry.data async for entry in (await reader.open_ledger(ledger_id)).tail()]

    async with asyncio.timeout(DEADLINE_S):
        tails = [asyncio.create_task(tail(writer.ledger_id)) for writer in writers]
        for _ in range(2):
            await asyncio.gather(*map(write, writers))
        await writers[0].force()
        for writer in writers[:-1]:
            await writer.close()
        await (await cluster.client()).recover_ledger(writers[-1].ledger_id)
        assert await asyncio.gather(*tails) == [entries * 2] * len(writers)
        both = await asyncio.gather(*(contents(reader, writer.ledger_id) for writer in writers))
    assert both == [entries * 2] * len(writers)
    assert all(len(writer.metadata.fragments) == 1 for writer in writers)  # no bookie was taken for failed
    await cluster.stop()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["memory_bytes_max"], id="memory"),
        pytest.param(list(SMALLEST), id="all", marks=pytest.mark.exhaustive),
    ],
)
async def test_the_largest_entries_go_through_the_smallest_budget(tmp_path: Path, names: list[str]) -> None:
    """Each is more than all bounds together. One byte more is refused, in words, and nothing hangs."""
    largest = 2 << 20
    cluster = InProcess(tmp_path)
    sizes = {"entry_bytes_max": largest, "frame_bytes_max": largest + (64 << 10)}
    await cluster.start(**{name: SMALLEST[name] for name in names}, **sizes)
    clients = [await cluster.client() for _ in range(3)]
    writers = [await client.create_ledger() for client in clients]
    entries = [bytes([i]) * largest for i in range(3)]
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*(writer.append(entry) for entry in entries for writer in writers))
        for writer in writers:
            with pytest.raises(bkpy.FrameTooLargeError, match=str(largest)):
                await writer.append(bytes(largest + 1))
            await writer.close()
        read = await asyncio.gather(*(contents(client, writer.ledger_id) for client in clients for writer in writers))
    assert read == [entries] * 9
    await cluster.stop()
