"""What an operator of a simulated run tries again, and what not."""

from __future__ import annotations

import pytest

from bkpy.errors import LedgerRecoveryError, NoSuchLedgerError
from bkpy.protocol.ledger.ledger_metadata import LedgerState

from . import operators
from .cluster import Cluster
from .stories import PASSWORD
from .users import Users


@pytest.mark.thorough
def test_a_recovery_by_connections_of_before_a_power_cut_is_tried_again() -> None:
    """A host without power closes no connection: who has one learns by its next request that the other end is gone."""
    cluster = Cluster(0, calm=True)
    users = Users(cluster)

    async def lose_power() -> None:
        for bookie in cluster.bookies:
            bookie.host.power_cut()
            await bookie.start()

    async def play() -> None:
        async with cluster.client(calm=True) as client:
            writers = [await users.begin(client, (3, 3, 2)) for _ in range(2)]
            for writer in writers:
                await writer.append(b"by every connection")
            first, second = (writer.ledger_id for writer in writers)
            await lose_power()
            with pytest.raises(LedgerRecoveryError, match="the connection was lost"):
                await client.recover_ledger(first, password=PASSWORD)
            await client.recover_ledger(first, password=PASSWORD)
            await lose_power()
            await operators.recover(client, second, PASSWORD)
            assert (await client.ledger_metadata(second)).state is LedgerState.CLOSED
            with pytest.raises(NoSuchLedgerError):
                await operators.recover(client, second + 1, PASSWORD)

    async def whole() -> None:
        await cluster.start()
        await cluster.client_host.start(play())

    cluster.run(whole())
