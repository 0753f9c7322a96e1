"""Damaged entry logs on real disks: another replica is read, and nothing damaged is denied or returned."""

from collections.abc import Iterator

import pytest
from tests.conftest import run_elsewhere

import bkpy
from bkpy.local import LocalBookie, LocalCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    local = LocalCluster(tmp_path_factory.mktemp("damaged"), bookies=3)
    try:
        run_elsewhere(local.start())
        yield local
    finally:
        run_elsewhere(local.stop())


async def written(client: bkpy.Client) -> tuple[int, list[bytes]]:
    """A ledger, and what only it holds."""
    async with await client.create_ledger(ack_quorum=3) as writer:
        payloads = [b"%d in %d " % (i, writer.ledger_id) * 100 for i in range(500)]
        await writer.append_batch(payloads)
    return writer.ledger_id, payloads


async def damage(bookie: LocalBookie, needle: bytes) -> None:
    """Flip a bit in every copy of `needle` in the bookie's ledger directory, while it is stopped."""
    await bookie.stop()  # with a checkpoint: everything is in the entry log, and nothing is replayed
    flipped = 0
    stored = bookie.directory / "ledgers"
    for path in [*stored.rglob("*.log"), *stored.rglob("*.txn")]:  # large batches stay in their journal files
        data = bytearray(path.read_bytes())
        at = -1
        while (at := data.find(needle, at + 1)) >= 0:
            data[at] ^= 0x10
            flipped += 1
        path.write_bytes(data)
    assert flipped, "the entry is not in the ledger directory"
    await bookie.start()


async def test_a_damaged_replica_is_passed_over(cluster: LocalCluster) -> None:
    async with bkpy.connect(cluster.connect_string) as client:
        ledger_id, payloads = await written(client)
        for bookie in cluster.bookies[:2]:
            await damage(bookie, payloads[77])
        for _ in range(6):  # whichever replica is asked first
            reader = await client.open_ledger(ledger_id)
            assert [e.data async for e in reader.read()] == payloads
            assert [e.data async for e in reader.read(77, 77)] == [payloads[77]]


async def test_when_all_replicas_are_damaged_the_entry_is_never_denied(cluster: LocalCluster) -> None:
    async with bkpy.connect(cluster.connect_string) as client:
        ledger_id, payloads = await written(client)
        logged = {bookie.id: len(bookie.log_path.read_text()) for bookie in cluster.bookies}
        for bookie in cluster.bookies:
            await damage(bookie, payloads[77])
        reader = await client.open_ledger(ledger_id)
        with pytest.raises((bkpy.CorruptDataError, bkpy.DigestMismatchError), match="entry") as caught:
            [e async for e in reader.read(77, 77)]
        for bookie in cluster.bookies:
            assert bookie.id in str(caught.value)
            assert "damage in" in bookie.log_path.read_text()[logged[bookie.id] :]
