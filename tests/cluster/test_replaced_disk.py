"""A real bookie whose directories are deleted: with --rebuild it gets back all it had, and denies nothing meanwhile."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING

import pytest
from tests.cluster.test_without_journal import asked
from tests.command import as_json

import bkpy
from bkpy.local import LocalCluster
from bkpy.protocol.ledger.quorum import write_set
from bkpy.protocol.wire.messages import Status

if TYPE_CHECKING:
    from pathlib import Path

    from bkpy.local import LocalBookie

ENTRIES = 100
LEDGERS = 12
PAUSE_S = 0.02  # leaves the processor to the copying
SIZES = ((3, 3, 2), (3, 2, 2))
PAYLOADS = [b"%d" % i * 200 for i in range(ENTRIES)]


async def written(client: bkpy.Client, sizes: tuple[int, int, int], *, close: bool = True) -> int:
    ensemble_size, write_quorum, ack_quorum = sizes
    writer = await client.create_ledger(ensemble_size=ensemble_size, write_quorum=write_quorum, ack_quorum=ack_quorum)
    await writer.append_batch(PAYLOADS)
    if close:
        await writer.close()
    return writer.ledger_id


async def wanted_of(client: bkpy.Client, bookie: LocalBookie, ledger_id: int) -> set[int]:
    """What the bookie is named for, of a ledger with one fragment."""
    metadata = await client.ledger_metadata(ledger_id)
    (fragment,) = metadata.fragments
    place = fragment.bookies.index(bookie.id)
    return {i for i in range(ENTRIES) if place in write_set(i, metadata.ensemble_size, metadata.write_quorum)}


async def denies_nothing(uri: str, bookie: LocalBookie, wanted: dict[int, set[int]], over: asyncio.Event) -> int:
    """Ask the bookie itself for everything, again and again; how often."""
    rounds = 0
    async with bkpy.connect(uri) as client:
        while not over.is_set():
            for ledger_id, ids in wanted.items():
                status, found, unknown = await asked(client, bookie, ledger_id)
                assert status == Status.OK, f"ledger {ledger_id} is denied"
                assert ids <= found | unknown, f"{sorted(ids - found - unknown)} of ledger {ledger_id} are denied"
            reader = await client.open_ledger(next(iter(wanted)))
            assert [entry.data async for entry in reader.read()] == PAYLOADS
            rounds += 1
            await asyncio.sleep(PAUSE_S)
    return rounds


@pytest.mark.exhaustive
@pytest.mark.scenario(52)
async def test_a_bookie_whose_disks_were_replaced_gets_everything_back(tmp_path: Path) -> None:
    config = {"metrics_port": 0, "open_ledger_grace_s": 1.0, "integrity_retry_interval_s": 0.5}
    async with LocalCluster(tmp_path, bookies=3, config=config) as cluster:
        uri, bookie = cluster.connect_string, cluster.bookies[0]
        async with bkpy.connect(uri) as client:
            ledgers = [await written(client, SIZES[i % 2]) for i in range(LEDGERS)]
            wanted = {ledger_id: await wanted_of(client, bookie, ledger_id) for ledger_id in ledgers}
            left_open = await written(client, SIZES[0], close=False)
            await bookie.kill()
        for name in ("journal", "ledgers"):
            shutil.rmtree(bookie.directory / name)
        with pytest.raises(bkpy.BookieUnavailableError, match="--rebuild"):
            await bookie.start()

        await bookie.start(rebuild=True)
        over = asyncio.Event()
        asking = asyncio.create_task(denies_nothing(uri, bookie, wanted, over))
        which = ("--bookie", bookie.id)
        told = await asyncio.to_thread(as_json, "bookie", "integrity", "--wait", *which, uri=uri)
        over.set()
        assert await asking >= 1
        log = bookie.log_path.read_text()
        assert log.index("read-only: data was lost here") < log.index("new ones may be stored here")
        assert (told["in_doubt"], told["left"], told["waiting"]) == (False, [], [])
        assert told["copied_entries"] >= sum(map(len, wanted.values()))

        for restarts in (False, True):
            if restarts:
                await bookie.stop()
                await bookie.start()
            async with bkpy.connect(uri) as client:
                for ledger_id, ids in wanted.items():
                    status, found, unknown = await asked(client, bookie, ledger_id)
                    assert (status, found, unknown) == (Status.OK, ids, set())
                assert (await client.ledger_metadata(left_open)).last_entry == ENTRIES - 1
                later = await written(client, SIZES[0])  # it takes entries again
                assert (await asked(client, bookie, later))[1] == set(range(ENTRIES))


@pytest.mark.exhaustive
@pytest.mark.scenario(55)
async def test_a_bookie_without_a_journal_gets_back_what_kill_9_took(tmp_path: Path) -> None:
    config = {"metrics_port": 0, "journal_write_data": False, "checkpoint_interval_s": 3600}
    async with LocalCluster(tmp_path, bookies=3, config=config) as cluster:
        uri, bookie = cluster.connect_string, cluster.bookies[0]
        async with bkpy.connect(uri) as client:
            ledgers = [await written(client, SIZES[i % 2]) for i in range(LEDGERS)]
            wanted = {ledger_id: await wanted_of(client, bookie, ledger_id) for ledger_id in ledgers}
        await bookie.kill()
        await bookie.start()
        which = ("--bookie", bookie.id)
        told = await asyncio.to_thread(as_json, "bookie", "integrity", "--wait", *which, uri=uri)
        assert told["copied_entries"] >= sum(map(len, wanted.values()))
        async with bkpy.connect(uri) as client:
            for ledger_id, ids in wanted.items():
                assert await asked(client, bookie, ledger_id) == (Status.OK, ids, set())
            assert (await asked(client, bookie, await written(client, SIZES[0])))[1] == set(range(ENTRIES))
