"""Last add confirmed as BookKeeper's clients ask for it: explicit ones, long polls with and without an entry, syncs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.in_process import DEADLINE_S, InProcess
from tests.unit.bookie.bookkeeper.raw import KEY, LEDGER, Authority, RawBookKeeper, entry
from tests.unit.storage.support import found_ids
from tests.waiting import eventually

from bkpy.protocol.bookkeeper import messages as m
from bkpy.protocol.bookkeeper.entries import DigestType, EntryCodec, master_key
from bkpy.protocol.bookkeeper.statuses import StatusCode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

OK, DENIED, NO_LEDGER = StatusCode.EOK, StatusCode.ENOENTRY, StatusCode.ENOLEDGER
ENDLESS_MS = 1 << 40


@pytest.fixture
async def client(cluster: InProcess) -> AsyncIterator[RawBookKeeper]:
    raw = await RawBookKeeper.connect(cluster)
    yield raw
    raw.close()


def lac_body(confirmed: int, digest_type: DigestType = DigestType.HMAC) -> bytes:
    return EntryCodec(LEDGER, digest_type, b"secret").encode_lac(confirmed)


def write(confirmed: int, key: bytes = KEY) -> m.WriteLacRequest:
    return m.WriteLacRequest(LEDGER, confirmed, key, lac_body(confirmed))


def poll(previous: int, timeout_ms: int = ENDLESS_MS, *, piggyback: bool = True, entry_id: int = -1) -> m.Request:
    return m.ReadEntryRequest(LEDGER, entry_id, previous_lac=previous, timeout_ms=timeout_ms, piggyback=piggyback)


def waiting(cluster: InProcess) -> bool:
    return bool(cluster.service("a").waiters.by_ledger)


# --- explicit last add confirmed ------------------------------------------------------------------------------------


@pytest.mark.parametrize("digest_type", DigestType)
async def test_an_explicit_last_add_confirmed_comes_back_byte_for_byte(
    cluster: InProcess, client: RawBookKeeper, digest_type: DigestType
) -> None:
    await client.add(0)
    body = lac_body(0, digest_type)
    assert await client.ask(m.WriteLacRequest(LEDGER, 0, KEY, body)) == (OK, LEDGER)
    assert await client.ask(m.ReadLacRequest(LEDGER)) == (OK, LEDGER, body, entry(0))
    for checkpointed in (False, True):
        if checkpointed:
            await cluster.storage("a").checkpoint()
        await cluster.restart("a")
        again = await RawBookKeeper.connect(cluster)
        assert await again.ask(m.ReadLacRequest(LEDGER)) == (OK, LEDGER, body, entry(0))
        again.close()


async def test_the_highest_explicit_last_add_confirmed_counts(client: RawBookKeeper) -> None:
    await client.add(0)
    for confirmed in (3, 1):
        assert await client.ask(write(confirmed)) == (OK, LEDGER)
    assert (await client.ask(m.ReadLacRequest(LEDGER))).lac_body == lac_body(3)


async def test_a_body_that_is_further_than_its_request_counts(client: RawBookKeeper) -> None:
    """Java's writers take the number of the request first, and that of the body when they send it."""
    await client.add(0)
    assert await client.ask(m.WriteLacRequest(LEDGER, 1, KEY, lac_body(3))) == (OK, LEDGER)
    assert (await client.ask(m.ReadLacRequest(LEDGER))).lac_body == lac_body(3)


async def test_a_body_of_another_ledger_is_refused(client: RawBookKeeper) -> None:
    await client.add(0)
    body = EntryCodec(LEDGER + 1, DigestType.HMAC, b"secret").encode_lac(0)
    assert await client.ask(m.WriteLacRequest(LEDGER, 0, KEY, body)) == StatusCode.EBADREQ
    assert (await client.ask(m.ReadLacRequest(LEDGER))).lac_body is None


async def test_what_there_is_of_a_ledgers_end(client: RawBookKeeper) -> None:
    assert await client.ask(m.ReadLacRequest(LEDGER)) == (NO_LEDGER, LEDGER, None, None)
    assert (await client.read(-1, fence=True)).code == DENIED
    assert await client.ask(m.ReadLacRequest(LEDGER)) == (DENIED, LEDGER, None, None)
    await client.add(4, recovery=True)
    assert await client.ask(m.ReadLacRequest(LEDGER)) == (OK, LEDGER, None, entry(4))
    assert await client.ask(write(4)) == (OK, LEDGER), "also of a fenced ledger"
    assert await client.ask(m.ReadLacRequest(LEDGER)) == (OK, LEDGER, lac_body(4), entry(4))


async def test_an_explicit_last_add_confirmed_makes_its_ledger_known(client: RawBookKeeper) -> None:
    """As an add does: a bookie of a striped ledger may get it first."""
    assert await client.ask(write(2)) == (OK, LEDGER)
    assert await client.ask(m.ReadLacRequest(LEDGER)) == (OK, LEDGER, lac_body(2), None)
    assert await client.add(3) == OK


async def test_another_key_writes_no_last_add_confirmed(client: RawBookKeeper, authority: Authority) -> None:
    authority.keys[LEDGER] = KEY
    for key in (b"", b"short"):
        assert await client.ask(write(0, key)) == (StatusCode.EUA, LEDGER)
    await client.add(0)
    assert await client.ask(write(0, master_key(b"other"))) == (StatusCode.EUA, LEDGER)
    assert (await client.ask(m.ReadLacRequest(LEDGER))).lac_body is None


async def test_a_last_add_confirmed_is_durable_before_it_is_answered(cluster: InProcess, client: RawBookKeeper) -> None:
    await client.add(0)
    cluster.disks["a"].stall("journal")
    writing = asyncio.create_task(client.ask(write(0)))
    await eventually(lambda: cluster.service("a").requests_in_flight == 1)
    other = await RawBookKeeper.connect(cluster)
    await other.read(0)
    assert not writing.done()
    cluster.disks["a"].unstall()
    assert await writing == (OK, LEDGER)
    other.close()


async def test_a_read_only_bookie_makes_no_ledger_known(cluster: InProcess, client: RawBookKeeper) -> None:
    await cluster.node("a").set_read_only(True, "test")
    assert await client.ask(write(2)) == (StatusCode.EREADONLY, LEDGER)
    assert await client.ask(m.ReadLacRequest(LEDGER)) == (NO_LEDGER, LEDGER, None, None)


# --- long polls -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("news", ["an entry", "an explicit one"])
async def test_a_long_poll_is_answered_once_there_is_news(cluster: InProcess, client: RawBookKeeper, news: str) -> None:
    for i in range(3):
        await client.add(i)
    polling = asyncio.create_task(client.ask(poll(1)))
    await eventually(lambda: waiting(cluster))
    other = await RawBookKeeper.connect(cluster)
    if news == "an entry":
        assert await other.add(3) == OK
    else:
        assert await other.ask(write(2)) == (OK, LEDGER)
    async with asyncio.timeout(DEADLINE_S):
        assert await polling == (OK, LEDGER, 2, entry(2), 2, None), "with the entry after the one that was known"
    other.close()


async def test_a_long_poll_whose_news_are_there_waits_for_nothing(client: RawBookKeeper) -> None:
    await client.add(0)
    await client.add(1)
    assert await client.ask(poll(-1)) == (OK, LEDGER, 0, entry(0), 0, None)


async def test_the_entry_of_a_long_poll_may_be_elsewhere(client: RawBookKeeper) -> None:
    """In a striped ledger another bookie has it: there is only last add confirmed to be told."""
    await client.add(5)
    assert await client.ask(poll(2)) == (OK, LEDGER, -1, None, 4, None)


async def test_a_long_poll_whose_time_is_up_is_answered_without_news(client: RawBookKeeper) -> None:
    await client.add(0)
    await client.add(1)
    for timeout_ms in (0, 50):
        assert await client.ask(poll(0, timeout_ms)) == (OK, LEDGER, -1, None, 0, None)


async def test_a_long_poll_without_a_time_is_a_look(client: RawBookKeeper) -> None:
    await client.add(0)
    assert await client.ask(m.ReadEntryRequest(LEDGER, -1, previous_lac=5)) == (OK, LEDGER, -1, entry(0), -1, None)


@pytest.mark.parametrize("entry_id", [-1, 0, 9])
async def test_a_long_poll_that_asks_for_an_entry_gets_that_one(client: RawBookKeeper, entry_id: int) -> None:
    await client.add(0)
    await client.add(1)
    found = await client.ask(poll(-1, piggyback=False, entry_id=entry_id))
    wanted: Any = {-1: (OK, LEDGER, -1, entry(1), 0, None), 0: (OK, LEDGER, 0, entry(0), 0, None)}
    if entry_id == 9:
        assert found.status == DENIED
    else:
        assert found == wanted[entry_id]


async def test_a_long_poll_for_the_next_entry_names_none(client: RawBookKeeper) -> None:
    await client.add(0)
    assert (await client.ask(poll(-1, entry_id=0))).status == StatusCode.EBADREQ


async def test_a_long_poll_of_an_unknown_ledger_ends_at_once(client: RawBookKeeper) -> None:
    assert await client.ask(poll(-1)) == (NO_LEDGER, LEDGER, -1, None, None, None)


async def test_a_read_that_fences_never_waits(client: RawBookKeeper) -> None:
    await client.add(0)
    request = m.ReadEntryRequest(LEDGER, 0, KEY, True, 50, ENDLESS_MS)
    assert (await client.ask(request)).body == entry(0)
    assert await client.add(1) == StatusCode.EFENCED


async def two_wait_and_a_third_is_refused(
    cluster: InProcess, client: RawBookKeeper, **settings: int
) -> tuple[RawBookKeeper, list[int]]:
    """Another client, and the numbers of its long polls that wait, at a bookie that was restarted with the settings."""
    cluster.settings.update(settings)
    await client.add(0)
    await cluster.restart("a")
    raw = await RawBookKeeper.connect(cluster)
    sent = [raw.message(poll(0)) for _ in range(3)]
    raw.send(*(frame for _, frame in sent))
    *waiting, refused = [transaction for transaction, _ in sent]
    assert (await raw.response(refused)).status == StatusCode.ETOOMANYREQUESTS
    return raw, waiting


async def test_long_polls_are_bounded_and_end_with_their_bookie(cluster: InProcess, client: RawBookKeeper) -> None:
    raw, sent = await two_wait_and_a_third_is_refused(cluster, client, long_polls_max=2)
    assert (await raw.read(0)).code == OK, "other requests go on"
    stopping = asyncio.create_task(cluster.node("a").stop())
    for transaction in sent:
        assert (await raw.response(transaction)).status == OK
    assert await raw.hung_up()
    await stopping
    await cluster.start_node("a")
    raw.close()


async def test_clients_that_poll_leave_places_for_others(cluster: InProcess, client: RawBookKeeper) -> None:
    raw, _ = await two_wait_and_a_third_is_refused(cluster, client, requests_in_flight_total_max=4)
    assert cluster.service("a").requests_in_flight == 2
    raw.close()


async def test_a_client_that_hangs_up_polls_no_more(cluster: InProcess, client: RawBookKeeper) -> None:
    await client.add(0)
    other = await RawBookKeeper.connect(cluster)
    other.send(other.message(poll(0))[1])
    await eventually(lambda: waiting(cluster))
    other.close()
    await eventually(lambda: not waiting(cluster))
    await eventually(lambda: cluster.service("a").requests_in_flight == 0)


# --- deferred syncs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("disputed", [False, True])
async def test_force_waits_for_the_adds_before_it(
    cluster: InProcess, client: RawBookKeeper, authority: Authority, monkeypatch: pytest.MonkeyPatch, disputed: bool
) -> None:
    """Their ledger's state has yet to be read, or the metadata have to say whose key is right."""
    may_go_on = asyncio.Event()
    authority.keys[LEDGER] = KEY
    owner, name = (authority, "look") if disputed else (cluster.storage("a"), "states")
    look = getattr(owner, name)

    async def late(asked: Any) -> Any:
        await may_go_on.wait()
        return await look(asked)

    if disputed:
        assert await client.add(7, key=b"another key, of a stranger"[: len(KEY)]) == OK
    monkeypatch.setattr(owner, name, late)
    adding, add = client.message(m.AddEntryRequest(LEDGER, 0, KEY, entry(0), deferred_sync=True))
    transaction, force = client.message(m.ForceLedgerRequest(LEDGER))
    client.send(add, force)
    forcing = asyncio.create_task(client.response(transaction))
    await asyncio.sleep(0.1)
    assert not forcing.done()
    may_go_on.set()
    assert (await forcing).status == OK
    assert client.has_response(adding)


async def test_a_force_that_waits_ends_with_its_connection(
    cluster: InProcess, client: RawBookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on = asyncio.Event()
    storage = cluster.storage("a")
    states = storage.states

    async def late(ledger_ids: Any) -> Any:
        await may_go_on.wait()
        return await states(ledger_ids)

    monkeypatch.setattr(storage, "states", late)
    requests = [m.AddEntryRequest(LEDGER, 0, KEY, entry(0), deferred_sync=True), m.ForceLedgerRequest(LEDGER)]
    client.send(*(client.message(request)[1] for request in requests))
    await eventually(lambda: cluster.service("a").requests_in_flight == 1)
    client.close()
    await eventually(lambda: not cluster.connections("a"))
    may_go_on.set()
    await eventually(lambda: cluster.service("a").requests_in_flight == 0)


async def test_what_is_deferred_is_durable_once_it_was_forced(cluster: InProcess, client: RawBookKeeper) -> None:
    await client.add(0)
    cluster.disks["a"].stall("journal")
    assert await client.ask(m.AddEntryRequest(LEDGER, 1, KEY, entry(1), deferred_sync=True)) == (OK, LEDGER, 1)
    plain = asyncio.create_task(client.add(2))
    other = await RawBookKeeper.connect(cluster)
    forcing = asyncio.create_task(other.ask(m.ForceLedgerRequest(LEDGER)))
    await eventually(lambda: cluster.service("a").requests_in_flight == 1)
    await eventually(lambda: client.near.adds.in_flight == 1)
    assert not forcing.done()
    assert not plain.done()
    cluster.disks["a"].unstall()
    assert await forcing == (OK, LEDGER)
    assert await plain == OK
    assert found_ids((await cluster.storage("a").read(LEDGER, 0, 9, 1 << 20)).segments) == [0, 1, 2]
    other.close()


async def test_the_space_of_the_disks(cluster: InProcess, client: RawBookKeeper) -> None:
    status, total, free = await client.ask(m.BookieInfoRequest(3))
    assert status == OK
    assert 0 < free <= total
    assert await client.ask(m.BookieInfoRequest(1)) == (OK, total, None)
    assert await client.ask(m.BookieInfoRequest(0)) == (OK, None, None)
