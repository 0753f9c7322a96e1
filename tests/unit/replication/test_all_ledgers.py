"""All ledgers are read for those who look for what names a bookie, whatever can't be read among them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.hooks import cluster_of
from tests.unit.replication.worker.test_ledger_repair import closed

from bkpy.errors import UnauthorizedError
from bkpy.metadata.ledgers.all_ledgers import all_ledgers
from bkpy.metadata.ledgers.catalog import LedgerCatalog

if TYPE_CHECKING:
    import pytest
    from tests.in_process import InProcess

    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata


async def test_one_that_may_not_be_read_holds_up_no_other(cluster: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await cluster.client()
    forbidden, other = [(await closed(client, 1)).ledger_id for _ in range(2)]
    read = LedgerCatalog.read

    async def read_if_allowed(catalog: LedgerCatalog, ledger_id: int) -> tuple[LedgerMetadata, int]:
        if ledger_id == forbidden:
            raise UnauthorizedError("ZooKeeper's access control forbids this")
        return await read(catalog, ledger_id)

    monkeypatch.setattr(LedgerCatalog, "read", read_if_allowed)
    found = {i: found async for some in all_ledgers(cluster_of(client).catalog, reads_at_once=10) for i, found in some}
    assert found == {forbidden: None, other: await client.ledger_metadata(other)}
