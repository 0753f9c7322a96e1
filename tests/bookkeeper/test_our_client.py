"""Our client on Java's bookies: it reads, tails and recovers what Java wrote, and Java reads what it has left."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import bkpy
from bkpy.protocol.bookkeeper import packets
from bkpy.protocol.bookkeeper.entries import DigestType, EntryCodec, master_key
from tests.bookkeeper.java_cluster import said
from tests.bookkeeper.ledgers import PASSWORD, as_java_reads, check_what_java_makes, closed, entries_of, written_by_us

if TYPE_CHECKING:
    from tests.bookkeeper.java_cluster import JavaBookies

pytestmark = pytest.mark.exhaustive

PAUSE_MS = 2


async def test_ledgers_of_every_kind_are_read_tailed_and_recovered(java: JavaBookies) -> None:
    await check_what_java_makes(java.uri, java.client)


@pytest.mark.parametrize(("protocol", "quorum", "digest"), [("v2", 2, "CRC32C"), ("v3", 3, "MAC")])
async def test_what_a_killed_writer_was_told_is_there(
    java: JavaBookies, protocol: str, quorum: int, digest: str
) -> None:
    def written() -> tuple[int, int]:
        """The ledger, and what was acknowledged when its writer was killed."""
        with java.client.running("write", protocol, digest, PAUSE_MS, quorum) as process:
            assert process.stdout is not None
            lines = (said(line) for line in process.stdout)
            ledger_id = int(next(line for line in lines if line)[0][1])
            return ledger_id, next(int(line[0][2]) for line in lines if line and int(line[0][2]) >= 1000)

    ledger_id, acknowledged = await asyncio.to_thread(written)
    async with bkpy.connect(java.uri) as client:
        reader = await client.recover_ledger(ledger_id, password=PASSWORD)
        found = [entry.data async for entry in reader.read()]
    assert len(found) > acknowledged
    assert found == entries_of(ledger_id, len(found))
    assert await asyncio.to_thread(as_java_reads, java.client, [(ledger_id, digest)]) == {ledger_id: closed(found)}


async def test_java_reads_what_is_written(java: JavaBookies) -> None:
    payloads = [bytes([n % 256]) * (n % 300) for n in range(400)]
    written = await written_by_us(java.uri, payloads)
    async with bkpy.connect(java.uri) as client:
        deleted = await client.create_ledger(password=PASSWORD)
        await deleted.close()
        await client.delete_ledger(deleted.ledger_id)
        assert deleted.ledger_id not in {ledger_id async for ledger_id in client.list_ledgers()}
    read = await asyncio.to_thread(as_java_reads, java.client, written)
    assert read == {ledger_id: closed(payloads) for ledger_id, _ in written}


@pytest.mark.parametrize("by_java", [True, False])
async def test_a_recovery_by_java_counts_bytes_of_an_entry_that_it_leaves_out_and_ours_does_not(
    java: JavaBookies, by_java: bool
) -> None:
    """The entry is on one bookie, and none of those before it is anywhere: it says how far they were acknowledged."""
    there = [b"one", b"two"]
    last, length = len(there) - 1, sum(map(len, there))
    async with bkpy.connect(java.uri, explicit_lac_interval_s=0) as client:  # or else a bookie knows the true length
        # Where one acknowledgement is enough, a recovery has to ask all three bookies, whoever answers first.
        writer = await client.create_ledger(ensemble_size=3, write_quorum=2, ack_quorum=1, password=PASSWORD)
        for payload in there:
            await writer.append(payload)
        bookie, ledger_id = writer.metadata.fragments[0].bookies[2], writer.ledger_id
        writer.abandon()
        entry = EntryCodec(ledger_id, DigestType.CRC32C, PASSWORD).encode(5, last, 1000, b"five")
        host, port = bookie.rsplit(":", 1)
        reading, writing = await asyncio.open_connection(host, int(port))
        writing.writelines(packets.encode_add(master_key(PASSWORD), entry))
        async with asyncio.timeout(60):
            size = int.from_bytes(await reading.readexactly(4), "big")
            assert packets.decode_reply(memoryview(await reading.readexactly(size))).code == 0
        writing.close()
        if by_java:
            ((found_id, *found),) = await asyncio.to_thread(java.client.run, "recover", "v3", ledger_id, "CRC32C")
            assert (int(found_id), found[:3]) == (ledger_id, ["true", str(last), "1000"])
        else:
            await client.recover_ledger(ledger_id, password=PASSWORD)
        reader = await client.open_ledger(ledger_id, password=PASSWORD)
        assert (reader.closed, reader.last_add_confirmed) == (True, last)
        assert reader.length == (1000 if by_java else length)
        assert [read.data async for read in reader.read()] == there
