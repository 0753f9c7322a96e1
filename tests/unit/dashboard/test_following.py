"""What a dashboard says of the ledgers that bookies report: the busiest, changes of ensembles, recoveries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests import hooks
from tests.in_process import InProcess, rewrite
from tests.waiting import eventually

from bkpy.admin.bookie_pages import BookieActivity, PageReport
from bkpy.dashboard import following
from bkpy.dashboard.following import LedgerFollower
from bkpy.errors import MetadataUnavailableError
from bkpy.protocol.ledger.ledger_metadata import LedgerState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import bkpy

Rate = tuple[int, float, float]


def pages(*busiest: Rate, fences: tuple[tuple[int, float], ...] = (), names: str = "abc") -> dict[str, Any]:
    """All bookies report the same."""
    return {name: PageReport(True, None, 0.0, {}, BookieActivity(busiest, fences)) for name in names}


class Followed:
    def __init__(self, cluster: InProcess, client: bkpy.Client) -> None:
        self.cluster = cluster
        self.client = client
        self.follower = LedgerFollower(hooks.cluster_of(client).catalog)

    async def look(self, *busiest: Rate, **others: Any) -> list[str]:
        return [text for _, text in await self.follower.look(pages(*busiest, **others))]


@pytest.fixture
async def followed(tmp_path: Path) -> AsyncIterator[Followed]:
    cluster = InProcess(tmp_path)
    await cluster.start("abcd")
    try:
        yield Followed(cluster, await cluster.client())
    finally:
        await cluster.stop()


@pytest.mark.thorough
async def test_rates_are_those_of_appends_and_logs_have_those_of_their_ledgers(followed: Followed) -> None:
    plain = await followed.client.create_ledger()
    async with await followed.client.open_log("orders", create=True) as log:
        await log.append(b"order")
        ids = [ledger_id async for ledger_id in followed.client.list_ledgers() if ledger_id != plain.ledger_id]
        await followed.look((plain.ledger_id, 3.0, 300.0), (ids[0], 6.0, 600.0), (999, 1.0, 100.0), (998, 0.0, 0.0))
    # Three bookies report, and each entry has three copies.
    assert [(one.ledger_id, one.log, one.entries, one.bytes) for one in followed.follower.ledgers] == [
        (ids[0], "orders", 6.0, 600),
        (plain.ledger_id, "", 3.0, 300),
    ]
    assert sorted(followed.follower.ledgers[1].bookies) == sorted(plain.ensemble)
    orders = followed.follower.log("orders")
    assert orders is not None
    assert (orders.entries, orders.bytes) == (6.0, 600)
    assert followed.follower.log("others") is None
    await followed.look()
    assert (followed.follower.ledgers, followed.follower.logs) == ([], [])


@pytest.mark.thorough
async def test_a_changed_ensemble_is_told_once_with_where_it_begins(followed: Followed) -> None:
    writer = await followed.client.create_ledger()
    await writer.append_batch([b"entry"] * 4)
    rate = (writer.ledger_id, 1.0, 1.0)
    assert await followed.look(rate) == []
    gone = writer.ensemble[0]
    (come,) = set("abcd") - set(writer.ensemble)
    await followed.cluster.node(gone).stop()
    await writer.append(b"another")
    await eventually(lambda: come in writer.ensemble, "the ensemble has changed")
    assert await followed.look(rate) == [
        f"ledger {writer.ledger_id}: {come} in place of {gone}, from entry {writer.metadata.fragments[-1].first_entry}"
    ]
    assert await followed.look(rate) == []


@pytest.mark.thorough
async def test_recoveries_are_told_and_those_before_the_first_look_are_not(followed: Followed) -> None:
    old, new = [await followed.client.create_ledger() for _ in range(2)]
    await new.append_batch([b"entry"] * 3)
    await followed.client.recover_ledger(old.ledger_id)
    before = ((old.ledger_id, 1.0),)
    assert await followed.look(fences=before) == []
    fences = (*before, (new.ledger_id, 2.0))
    assert await followed.look(fences=fences) == []  # nothing but the fence has happened
    await followed.client.recover_ledger(new.ledger_id)
    text = f"ledger {new.ledger_id} was recovered, and closed at entry 2"
    assert await followed.look(fences=fences) == [text]
    assert await followed.look(fences=fences) == []


@pytest.mark.thorough
async def test_a_recovery_that_takes_long_is_told_when_it_begins(followed: Followed) -> None:
    writer = await followed.client.create_ledger()
    await followed.look()
    await rewrite(followed.client, writer.ledger_id, state=LedgerState.IN_RECOVERY)
    fences = ((writer.ledger_id, 1.0),)
    assert await followed.look(fences=fences) == [f"ledger {writer.ledger_id} is being recovered: its writer is fenced"]
    assert await followed.look(fences=fences) == []


@pytest.mark.thorough
async def test_a_recovery_is_told_once_though_a_bookie_tells_of_its_fence_later(followed: Followed) -> None:
    writer = await followed.client.create_ledger()
    await followed.look()
    await followed.client.recover_ledger(writer.ledger_id)
    fences = ((writer.ledger_id, 1.0),)
    first = pages(fences=fences, names="a") | pages(names="bc")
    assert len(await followed.follower.look(first)) == 1
    assert await followed.follower.look(first) == []
    assert await followed.look(fences=fences) == []


@pytest.mark.thorough
async def test_without_metadata_a_fence_is_told_later(followed: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = await followed.client.create_ledger()
    await followed.look()
    await followed.client.recover_ledger(writer.ledger_id)
    fences = ((writer.ledger_id, 1.0),)

    async def away(ledger_id: int, **_: Any) -> Any:
        raise MetadataUnavailableError("it is away")

    with monkeypatch.context() as patch:
        patch.setattr(hooks.cluster_of(followed.client).catalog, "read", away)
        with pytest.raises(MetadataUnavailableError):
            await followed.look(fences=fences)
    assert await followed.look(fences=fences) == [f"ledger {writer.ledger_id} was recovered, and closed at entry -1"]


@pytest.mark.thorough
async def test_a_look_reads_few_ledgers(followed: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "BUSY_MAX", 2)
    monkeypatch.setattr(following, "RECOVERIES_MAX", 1)
    ids = [(await followed.client.create_ledger()).ledger_id for _ in range(5)]
    read: list[int] = []
    catalog = hooks.cluster_of(followed.client).catalog
    original = catalog.read

    async def counted(ledger_id: int, **given: Any) -> Any:
        read.append(ledger_id)
        return await original(ledger_id, **given)

    monkeypatch.setattr(catalog, "read", counted)
    await followed.look()
    fences = tuple((ledger_id, 1.0) for ledger_id in ids[3:])
    await followed.look(*((ledger_id, 1.0, float(ledger_id + 1)) for ledger_id in ids[:3]), fences=fences)
    assert sorted(read) == [ids[1], ids[2], ids[3]]
