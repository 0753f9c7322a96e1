"""What runs beside a bookie is told of the appends of its clients, and copies are none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.in_process import InProcess
from tests.unit.replication.repairing import Repairs
from tests.unit.replication.worker.test_ledger_repair import ENTRIES, closed

from bkpy.replication.worker.ledger_repair import RepairOutcome

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from prometheus_client import CollectorRegistry


class Listening:
    """A companion that only keeps what it is told by."""

    def __init__(self, registry: CollectorRegistry, appended: Callable[[], int]) -> None:
        self.appended = appended

    def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass


async def test_appends_of_clients_are_counted_and_copies_are_not(tmp_path: Path) -> None:
    cluster = InProcess(tmp_path)
    await cluster.start("ab")
    beside: list[Listening] = []

    def background_service(registry: CollectorRegistry, appended: Callable[[], int]) -> Listening:
        beside.append(Listening(registry, appended))
        return beside[0]

    client = await cluster.client()
    writer = await closed(client, ensemble_size=2, write_quorum=2, ack_quorum=2)
    node = cluster.new_node("c", background_service=background_service)
    await node.start()
    cluster.nodes.append(node)
    repairs = Repairs(await cluster.client(), target="c")
    assert (await repairs.run(writer.ledger_id, {"a"})).how is RepairOutcome.DONE
    assert repairs.count.entries == ENTRIES
    assert beside[0].appended() == 0
    await closed(await cluster.client(), ensemble_size=3, write_quorum=3, ack_quorum=3)
    assert beside[0].appended() > 0
    await cluster.stop()
