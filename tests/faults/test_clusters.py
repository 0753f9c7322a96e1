"""Clients of proxied clusters go through the proxies, and the processes behind them do what they are told."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import bkpy
from tests.waiting import eventually

from ..conftest import alive
from .clusters import ProxiedCluster, ProxiedNodes

DEADLINE_S = 60.0


async def write_and_read(client: bkpy.Client, entries: int = 20, **options: int) -> bkpy.LedgerMetadata:
    writer = await client.create_ledger(**options)
    payloads = [b"%d" % i for i in range(entries)]
    async with asyncio.timeout(DEADLINE_S):
        await writer.append_batch(payloads)
        await writer.close()
        reader = await client.open_ledger(writer.ledger_id)
        assert [entry.data async for entry in reader.read()] == payloads
    return await client.ledger_metadata(writer.ledger_id)


def process_state(pid: int) -> str:
    """R, S, T (stopped) ..., as in proc(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def test_all_that_a_client_of_nodes_sends_goes_through_the_proxies(tmp_path: Path) -> None:
    async with ProxiedNodes(tmp_path, bookies=4) as cluster:
        client = await cluster.client()
        metadata = await write_and_read(client)
        for bookie_id in metadata.fragments[0].bookies:
            proxy = cluster.proxies[bookie_id]
            assert proxy.accepted >= 1  # others than this client may connect as well
            assert client.bookies[bookie_id].address == proxy.address
            assert proxy.requests.bytes_passed > 20
            assert proxy.replies.bytes_passed > 0


async def test_a_node_that_was_stopped_comes_back_with_its_data(tmp_path: Path) -> None:
    async with ProxiedNodes(tmp_path) as cluster:
        client = await cluster.client()
        metadata = await write_and_read(client)
        for bookie_id in "abc":
            await cluster.stop_bookie(bookie_id)
        for bookie_id in "abc":
            await cluster.start_bookie(bookie_id)
        reader = await client.open_ledger(metadata.ledger_id)
        assert len([entry async for entry in reader.read()]) == 20


async def test_settings_reach_the_nodes(tmp_path: Path) -> None:
    async with ProxiedNodes(tmp_path, bookies=1, entry_bytes_max=1000) as cluster:
        client = await cluster.client()
        writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        with pytest.raises(bkpy.FrameTooLargeError):
            await writer.append(bytes(1001))


@pytest.mark.exhaustive
async def test_processes_behind_proxies_are_suspended_killed_and_started(tmp_path: Path) -> None:
    async with (
        ProxiedCluster(tmp_path, bookies=3) as cluster,
        bkpy.connect(cluster.connect_string) as client,
    ):
        assert sorted(cluster.proxies) == [bookie.id for bookie in cluster.bookies]
        metadata = await write_and_read(client)
        for bookie_id, proxy in cluster.proxies.items():
            assert client.bookies[bookie_id].address == proxy.address
            assert proxy.accepted >= 1  # others than this client may connect as well

        first, second, _ = cluster.bookies
        assert cluster.bookie(second.id) is second
        pid = first.pid
        assert pid is not None
        first.suspend()
        await eventually(lambda: process_state(pid), until=lambda state: state == "T")
        first.resume()
        await first.kill()
        assert not alive(pid)
        await first.start()
        assert first.pid not in (None, pid)

        fourth = await cluster.add_bookie()
        assert cluster.proxies[fourth.id].upstream_port == fourth.port
        await eventually(lambda: fourth.id in client.bookies, "the fourth is seen")
        await write_and_read(client, ensemble_size=4, write_quorum=4, ack_quorum=4)
        assert cluster.proxies[fourth.id].requests.bytes_passed > 0

        await cluster.kill()
        await cluster.start()
        async with asyncio.timeout(DEADLINE_S):
            reader = await client.open_ledger(metadata.ledger_id)
            assert len([entry async for entry in reader.read()]) == 20
