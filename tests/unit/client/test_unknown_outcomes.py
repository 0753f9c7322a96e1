"""A change of the ensemble whose outcome nobody told the writer, while the metadata store stays away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.in_process import DEADLINE_S, InProcess, eventually

from bkpy.errors import MetadataUnavailableError
from bkpy.metadata.ledgers import LedgerCatalog
from bkpy.metadata.outcome import NotDone, PutOutcome, Unknown
from bkpy.protocol.ledger_metadata import LedgerMetadata


class Vanishing:
    """A writer's catalog. From `armed` on, one write is applied, and then the store is away until `back`."""

    def __init__(self, catalog: LedgerCatalog) -> None:
        self._catalog = catalog
        self.armed = False
        self.away = False

    @property
    def reachable(self) -> bool:
        return not self.away

    async def write(self, metadata: LedgerMetadata, expected_version: int) -> PutOutcome:
        if self.away:
            return NotDone(MetadataUnavailableError("the store is away"))
        outcome = await self._catalog.write(metadata, expected_version)
        if self.armed:
            self.armed, self.away = False, True
            return Unknown(MetadataUnavailableError("the store went away"))
        return outcome

    async def read(self, ledger_id: int, *, fresh: bool = False) -> tuple[LedgerMetadata, int]:
        if self.away:
            raise MetadataUnavailableError("the store is away")
        return await self._catalog.read(ledger_id, fresh=fresh)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[InProcess]:
    local = InProcess(tmp_path)
    await local.start("abcd")
    yield local
    await local.stop()


async def test_nothing_is_acknowledged_on_bookies_that_the_stored_change_does_not_name(cluster: InProcess) -> None:
    client = await cluster.client(add_timeout_s=1)
    writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
    writer._catalog = catalog = Vanishing(writer._catalog)  # type: ignore[assignment]
    await writer.append(b"0")
    replaced, slow, fast = writer.ensemble
    catalog.armed = True
    cluster.kill(replaced)
    first = asyncio.create_task(writer.append(b"1"))
    await eventually(lambda: catalog.away)  # and the metadata name the fourth bookie instead

    # The replaced bookie returns, and another one goes.
    await cluster.node(replaced).stop()
    await cluster.start_node(replaced)
    cluster.kill(slow)
    second = asyncio.create_task(writer.append(b"2"))
    await asyncio.wait([second], timeout=3)  # it must not be acknowledged yet: the writer can't know by whom
    acknowledged = writer.last_add_confirmed
    if second.done():
        cluster.kill(fast)
        await cluster.node(slow).stop()
        await cluster.start_node(slow)
        writer.abandon()
    else:
        catalog.away = False
        async with asyncio.timeout(DEADLINE_S):
            acknowledged = await second
        writer.abandon()
    await asyncio.wait([first])
    other = await cluster.client()
    reader = await other.recover_ledger(writer.ledger_id)
    assert reader.last_add_confirmed >= acknowledged
