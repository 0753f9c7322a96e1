"""What bookies say of the last entry that they have of a ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import bkpy

if TYPE_CHECKING:
    from bkpy.local import LocalCluster


@pytest.mark.parametrize("digest", ["crc32c", "hmac-sha256"])
async def test_each_bookie_tells_its_last_entry(cluster: LocalCluster, digest: str) -> None:
    """Also without the ledger's password, and whoever published how far readers may read."""
    async with bkpy.connect(cluster.connect_string, explicit_lac_interval_s=0.01) as client:
        writer = await client.create_ledger(write_quorum=2, password=b"secret", digest=digest)
        assert await bkpy.AdminClient(client).last_entries(writer.metadata) == dict.fromkeys(
            writer.metadata.fragments[0].bookies, -1
        )
        await writer.append_batch([b"x"] * 4)
        reader = await client.open_ledger(writer.ledger_id, password=b"secret")
        async for entry in reader.tail():
            if entry.entry_id == 3:  # it was published by a record of its own
                break
        await writer.close()
        bookies = writer.metadata.fragments[0].bookies
        # Entries 0 and 3 are on the first two, 1 on the last two, 2 on the last and the first.
        assert await bkpy.AdminClient(client).last_entries(writer.metadata) == dict(
            zip(bookies, (3, 3, 2), strict=True)
        )


async def test_a_bookie_that_is_away_is_told_of_beside_the_others(cluster: LocalCluster) -> None:
    async with bkpy.connect(cluster.connect_string) as client, await client.create_ledger(ack_quorum=3) as writer:
        await writer.append(b"x")
        away = cluster.bookies[0]
        await away.kill()
        try:
            told = await bkpy.AdminClient(client).last_entries(writer.metadata)
        finally:
            await away.start()
        error = told.pop(away.id)
        assert isinstance(error, bkpy.BookKeeperError)
        assert away.id in str(error)
        assert set(told.values()) == {0}
