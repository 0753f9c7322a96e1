"""Which bookies a writer takes instead of those that fail, and what else may be lost under it."""

import asyncio
from collections.abc import Collection, Mapping, Sequence

import pytest
from tests.hooks import pool_of
from tests.in_process import DEADLINE_S, ROOT, InProcess, contents, runtime_here
from tests.waiting import eventually

import bkpy
from bkpy.client.bookies.placement import random_placement
from bkpy.client.client import open_client, replication_context
from bkpy.config.client import client_settings
from bkpy.metadata.bookies.registration import BookieInfo
from bkpy.metadata.store.store import SessionState
from bkpy.protocol.wire.messages import Status


class Alphabetical:
    """A policy of a user's own."""

    def choose(self, bookies: Mapping[str, BookieInfo], size: int, avoid: Collection[str]) -> tuple[str, ...]:
        return tuple(sorted(bookies)[:size])

    def replace(
        self,
        bookies: Mapping[str, BookieInfo],
        ensemble: Sequence[str],
        positions: Collection[int],
        avoid: Collection[str],
    ) -> tuple[str, ...]:
        others = iter(sorted(set(bookies) - set(ensemble), reverse=True))
        return tuple(next(others) if i in positions else name for i, name in enumerate(ensemble))


async def test_a_policy_of_the_users_own_decides(five: InProcess) -> None:
    client = await open_client(five.tree.session(), ROOT, runtime_here(), client_settings(), placement=Alphabetical())
    five.clients.append(client)
    writer = await client.create_ledger(ack_quorum=3)
    assert writer.ensemble == ("a", "b", "c")
    five.kill("b")
    await writer.append(b"0")
    assert writer.ensemble == ("a", "e", "c")
    await writer.close()


async def test_a_bookie_that_becomes_read_only_is_replaced(five: InProcess) -> None:
    client = await five.client()
    writer = await client.create_ledger(ack_quorum=3)
    await writer.append(b"0")
    first = writer.ensemble
    await five.node(first[0]).set_read_only(True, "for a test")
    async with asyncio.timeout(DEADLINE_S):
        assert await writer.append(b"1") == 1
    assert first[0] not in writer.ensemble
    await writer.close()
    assert await contents(client, writer.ledger_id) == [b"0", b"1"]


@pytest.mark.scenario(28)
async def test_a_delayed_change_does_not_wait_for_a_bookie_that_takes_no_more_entries(five: InProcess) -> None:
    client = await five.client(delay_ensemble_change=True)
    writer = await client.create_ledger(ack_quorum=2)
    await writer.append(b"0")
    first = writer.ensemble
    await five.node(first[0]).set_read_only(True, "for a test")
    async with asyncio.timeout(DEADLINE_S):
        while first[0] in writer.ensemble:
            await writer.append(b"x")
    await writer.close()


async def test_a_bookie_that_failed_lately_is_taken_last(five: InProcess) -> None:
    client = await five.client(quarantine_s=600)
    writer = await client.create_ledger(ack_quorum=3)
    victim = writer.ensemble[0]
    for connection in five.connections(victim):
        connection.abort()
    await writer.append(b"0")
    await eventually(lambda: victim not in writer.ensemble)
    assert replication_context(client).parts.ensembles.quarantined == {victim}
    await pool_of(client).channel(victim).connect(again=True)  # it is there again
    for _ in range(20):
        other = await client.create_ledger(ensemble_size=4, write_quorum=2, ack_quorum=2)
        assert victim not in other.ensemble
        await other.close()
    all_of_them = await client.create_ledger(ensemble_size=5, write_quorum=2, ack_quorum=2)
    assert victim in all_of_them.ensemble
    await all_of_them.close()
    await writer.close()


async def test_a_replacement_that_can_not_be_reached_is_passed_over(five: InProcess) -> None:
    client = await five.client()
    writer = await client.create_ledger(ack_quorum=3)
    await writer.append(b"0")
    first = writer.ensemble
    spare = sorted(set("abcde") - set(first))
    five.kill(spare[0])  # registered, but gone
    five.kill(first[0])
    async with asyncio.timeout(DEADLINE_S):
        assert await writer.append(b"1") == 1
    assert writer.ensemble == (spare[1], *first[1:])
    await writer.close()


def refuses_the_client(cluster: InProcess, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a bookie does whose file of rights doesn't have the client's name."""
    monkeypatch.setattr(cluster.server(name), "greet", lambda *_: (Status.FORBIDDEN, "this name may do nothing"))


async def test_a_bookie_that_allows_the_client_nothing_is_passed_over(
    five: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file of rights is another one than the others'."""
    client = await open_client(five.tree.session(), ROOT, runtime_here(), client_settings(), placement=Alphabetical())
    five.clients.append(client)
    refuses_the_client(five, "a", monkeypatch)
    refuses_the_client(five, "e", monkeypatch)
    writer = await client.create_ledger(ack_quorum=3)
    assert writer.ensemble == ("b", "c", "d")
    await writer.append(b"0")
    monkeypatch.undo()
    refuses_the_client(five, "e", monkeypatch)
    five.kill("c")
    assert await writer.append(b"1") == 1
    assert writer.ensemble == ("b", "a", "d")
    await writer.close()


async def test_a_client_that_too_few_bookies_allow_anything_hears_that(
    five: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        refuses_the_client(five, name, monkeypatch)
    client = await five.client()
    with pytest.raises(bkpy.UnauthorizedError, match="this name may do nothing"):
        await client.create_ledger()
    five.kill("d")
    with pytest.raises(bkpy.NotEnoughBookiesError, match=r"b \(this name may do nothing\)"):
        await client.create_ledger(allow_absent_bookies=False)


async def test_an_ack_quorum_of_one_is_warned_of(cluster: InProcess) -> None:
    client = await cluster.client()
    with pytest.warns(UserWarning, match="ack quorum of 1"):
        writer = await client.create_ledger(ack_quorum=1)
    await writer.append(b"0")
    await writer.close()
    assert await contents(client, writer.ledger_id) == [b"0"]


async def test_a_lost_session_costs_nobody_an_entry(five: InProcess) -> None:
    """Appends go on; a bookie that dies meanwhile is replaced, and the ledger closed, in the new session."""
    store = five.tree.session()
    client = await open_client(
        store, ROOT, runtime_here(), client_settings(), placement=random_placement(runtime_here().rng)
    )
    five.clients.append(client)
    writer = await client.create_ledger(ack_quorum=2)
    session = store.session_id
    appends = [asyncio.create_task(writer.append(b"%d" % i)) for i in range(50)]
    store.expire()
    appends += [asyncio.create_task(writer.append(b"%d" % i)) for i in range(50, 100)]
    victim = writer.ensemble[0]
    five.kill(victim)
    appends += [asyncio.create_task(writer.append(b"%d" % i)) for i in range(100, 150)]
    async with asyncio.timeout(DEADLINE_S):
        assert await asyncio.gather(*appends) == list(range(150))
        await eventually(lambda: store.state is SessionState.CONNECTED and store.session_id != session)
        await eventually(lambda: victim not in writer.ensemble)
        await writer.close()
    assert await contents(client, writer.ledger_id) == [b"%d" % i for i in range(150)]


async def test_a_deleted_ledger_fails_its_writer_at_the_next_change(five: InProcess) -> None:
    client, other = await five.client(), await five.client()
    writer = await client.create_ledger(ack_quorum=3)
    await writer.append(b"0")
    await other.delete_ledger(writer.ledger_id)
    five.kill(writer.ensemble[0])
    with pytest.raises(bkpy.NoSuchLedgerError) as failure:
        async with asyncio.timeout(DEADLINE_S):
            await writer.append(b"1")
    assert failure.value.outcome_unknown
