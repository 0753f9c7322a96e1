"""Ledgers that both clients write and read: what is in them, and how each client sees them."""

from __future__ import annotations

import asyncio
import hashlib
import struct
from typing import TYPE_CHECKING

import bkpy

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.bookkeeper.java_cluster import JavaClient

ENTRIES = 200  # of each ledger of `Ledgers.java make`
PASSWORD = b"secret"
DIGESTS = {"CRC32C": "crc32c", "CRC32": "crc32", "MAC": "hmac-sha1", "DUMMY": "dummy"}  # Java's names and ours


def entry_of(ledger_id: int, number: int) -> bytes:
    return f"entry {number} of {ledger_id}".encode()


def entries_of(ledger_id: int, count: int = ENTRIES) -> list[bytes]:
    return [entry_of(ledger_id, n) for n in range(count)]


def closed(entries: Sequence[bytes]) -> list[str]:
    """What `Ledgers.java` says of a closed ledger with these entries."""
    found = hashlib.sha256()
    for entry in entries:
        found.update(struct.pack(">i", len(entry)) + entry)
    return ["true", str(len(entries) - 1), str(sum(map(len, entries))), found.hexdigest()]


def as_java_reads(
    java: JavaClient, ledgers: Iterable[tuple[int, str]], *, recover: bool = False
) -> dict[int, list[str]]:
    """By id: whether the ledger is closed, its last entry, its length and its hash."""
    words = [word for ledger in ledgers for word in ledger]
    command = ("recover", "v3") if recover else ("read",)
    return {int(line[0]): line[1:] for line in java.run(*command, *words)}


async def check_what_java_makes(uri: str, java: JavaClient) -> None:
    """Our client reads, tails and recovers ledgers of every kind, and Java reads what it has left."""
    made = [(int(i), digest, int(quorum), end) for i, digest, quorum, end in await asyncio.to_thread(java.run, "make")]
    assert len(made) == 32
    async with bkpy.connect(uri) as client:
        assert {ledger[0] for ledger in made} <= {ledger_id async for ledger_id in client.list_ledgers()}
        for ledger_id, _, quorum, end in made:
            expected = entries_of(ledger_id)
            reader = await client.open_ledger(ledger_id, password=PASSWORD)
            assert reader.metadata.write_quorum == quorum
            found = [entry.data async for entry in reader.read()]
            assert found == (expected if end == "closed" else expected[:-1])
            following = asyncio.ensure_future(_tailed(reader))
            if end == "open":
                recovered = await client.recover_ledger(ledger_id, password=PASSWORD)
                assert recovered.last_add_confirmed == ENTRIES - 1
            assert await following == expected
    read = await asyncio.to_thread(as_java_reads, java, [ledger[:2] for ledger in made])
    assert read == {ledger[0]: closed(entries_of(ledger[0])) for ledger in made}


async def _tailed(reader: bkpy.LedgerReader) -> list[bytes]:
    return [entry.data async for entry in reader.tail()]


async def written_by_us(uri: str, payloads: Sequence[bytes], *, close: bool = True) -> list[tuple[int, str]]:
    """A ledger of each digest and write quorum, with its digest as Java names it."""
    written = []
    half = len(payloads) // 2
    async with bkpy.connect(uri) as client:
        for name, digest in DIGESTS.items():
            for quorum in (2, 3):
                writer = await client.create_ledger(write_quorum=quorum, digest=digest, password=PASSWORD)
                await writer.append_batch(payloads[:half])
                await asyncio.gather(*map(writer.append, payloads[half:]))
                if close:
                    await writer.close()
                written.append((writer.ledger_id, name))
    return written
