"""Our client on Java's bookies: it reads, tails and recovers what Java wrote, and Java reads what it has left."""

from __future__ import annotations

import asyncio
import hashlib
import struct
from typing import TYPE_CHECKING

import pytest

import bkpy
from tests.bookkeeper.java_cluster import said

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.bookkeeper.java_cluster import JavaBookies, JavaClient

pytestmark = pytest.mark.exhaustive

ENTRIES = 200
PASSWORD = b"secret"
DIGESTS = {"CRC32C": "crc32c", "CRC32": "crc32", "MAC": "hmac-sha1", "DUMMY": "dummy"}


def entries_of(ledger_id: int, count: int = ENTRIES) -> list[bytes]:
    return [f"entry {n} of {ledger_id}".encode() for n in range(count)]


def hash_of(entries: Sequence[bytes]) -> str:
    found = hashlib.sha256()
    for entry in entries:
        found.update(struct.pack(">i", len(entry)) + entry)
    return found.hexdigest()


def as_java_reads(java: JavaClient, ledgers: Sequence[tuple[int, str]]) -> dict[int, list[str]]:
    """By id: whether the ledger is closed, its last entry, its length and its hash."""
    words = [str(word) for ledger in ledgers for word in ledger]
    return {int(line[0]): line[1:] for line in java.run("read", *words)}


def closed(entries: Sequence[bytes]) -> list[str]:
    return ["true", str(len(entries) - 1), str(sum(map(len, entries))), hash_of(entries)]


async def test_ledgers_of_every_kind_are_read_tailed_and_recovered(java: JavaBookies) -> None:
    made = [
        (int(i), digest, int(quorum), end)
        for i, digest, quorum, end in await asyncio.to_thread(java.client.run, "make")
    ]
    assert len(made) == 32
    async with bkpy.connect(java.uri) as client:
        assert {ledger[0] for ledger in made} <= {ledger_id async for ledger_id in client.list_ledgers()}
        for ledger_id, _, quorum, end in made:
            expected = entries_of(ledger_id)
            reader = await client.open_ledger(ledger_id, password=PASSWORD)
            assert reader.metadata.write_quorum == quorum
            found = [entry.data async for entry in reader.read()]
            assert found == (expected if end == "closed" else expected[:-1])
            following = asyncio.ensure_future(tailed(reader))
            if end == "open":
                recovered = await client.recover_ledger(ledger_id, password=PASSWORD)
                assert recovered.last_add_confirmed == ENTRIES - 1
            assert await following == expected
    read = await asyncio.to_thread(as_java_reads, java.client, [ledger[:2] for ledger in made])
    assert read == {ledger[0]: closed(entries_of(ledger[0])) for ledger in made}


async def tailed(reader: bkpy.LedgerReader) -> list[bytes]:
    return [entry.data async for entry in reader.tail()]


@pytest.mark.parametrize(("protocol", "quorum", "digest"), [("v2", 2, "CRC32C"), ("v3", 3, "MAC")])
async def test_what_a_killed_writer_was_told_is_there(
    java: JavaBookies, protocol: str, quorum: int, digest: str
) -> None:
    def written() -> tuple[int, int]:
        """The ledger, and what was acknowledged when its writer was killed."""
        with java.client.running("write", protocol, quorum, digest) as process:
            assert process.stdout is not None
            lines = (said(line) for line in process.stdout)
            ledger_id = int(next(line for line in lines if line)[0][1])
            return ledger_id, next(int(line[0][1]) for line in lines if line and int(line[0][1]) >= 1000)

    ledger_id, acknowledged = await asyncio.to_thread(written)
    async with bkpy.connect(java.uri) as client:
        reader = await client.recover_ledger(ledger_id, password=PASSWORD)
        found = [entry.data async for entry in reader.read()]
    assert len(found) > acknowledged
    assert found == entries_of(ledger_id, len(found))
    assert await asyncio.to_thread(as_java_reads, java.client, [(ledger_id, digest)]) == {ledger_id: closed(found)}


async def test_java_reads_what_is_written(java: JavaBookies) -> None:
    payloads = [bytes([n % 256]) * (n % 300) for n in range(400)]
    written: list[tuple[int, str]] = []
    async with bkpy.connect(java.uri) as client:
        for name, digest in DIGESTS.items():
            for quorum in (2, 3):
                writer = await client.create_ledger(write_quorum=quorum, digest=digest, password=PASSWORD)
                await writer.append_batch(payloads[:200])
                await asyncio.gather(*map(writer.append, payloads[200:]))
                await writer.close()
                written.append((writer.ledger_id, name))
        deleted = await client.create_ledger(password=PASSWORD)
        await deleted.close()
        await client.delete_ledger(deleted.ledger_id)
        assert deleted.ledger_id not in {ledger_id async for ledger_id in client.list_ledgers()}
    read = await asyncio.to_thread(as_java_reads, java.client, written)
    assert read == {ledger_id: closed(payloads) for ledger_id, _ in written}
