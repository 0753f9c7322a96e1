"""Adds and reads of BookKeeper's clients: what they stored comes back byte for byte, and nothing else."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.in_process import DEADLINE_S, InProcess
from tests.unit.bookie.bookkeeper.raw import KEY, LEDGER, V2, V3, Answer, Authority, RawBookKeeper, entry
from tests.unit.storage.support import found_ids
from tests.waiting import eventually

from bkpy.bookie.bookkeeper import adds
from bkpy.protocol.bookkeeper import messages as m
from bkpy.protocol.bookkeeper import packets as p
from bkpy.protocol.bookkeeper.entries import ENTRY_ID_MAX, DigestType, EntryCodec, master_key
from bkpy.protocol.bookkeeper.statuses import StatusCode
from bkpy.protocol.wire import messages as wire
from bkpy.protocol.wire.messages import Flags
from bkpy.storage.space.deletion import hide

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from bkpy.buffers import Bytes
    from bkpy.protocol.wire.messages import AddColumns

OK, DENIED, NO_LEDGER = StatusCode.EOK, StatusCode.ENOENTRY, StatusCode.ENOLEDGER
CAN_NOT_TELL = StatusCode.EUNKNOWNLEDGERSTATE


@pytest.mark.parametrize("digest_type", DigestType)
@pytest.mark.parametrize("size", [0, 1, 1100, 300_000])
async def test_an_entry_comes_back_byte_for_byte(
    cluster: InProcess, raw: RawBookKeeper, digest_type: DigestType, size: int
) -> None:
    body = EntryCodec(LEDGER, digest_type, b"secret").encode(0, -1, size, bytes(i % 251 for i in range(size)))
    assert await raw.add(0, body) == OK
    for _ in range(2):
        found = await raw.read(0)
        assert (found.code, found.entry, found.entry_id) == (OK, body, 0)
        assert await raw.batch(0) == (OK, [body])
        await cluster.storage("a").checkpoint()
    await cluster.restart("a")
    again = await RawBookKeeper.connect(cluster, speaks=raw.speaks)
    assert (await again.read(0)).entry == body
    again.close()


async def test_what_one_protocol_stored_the_other_reads_on_one_connection(cluster: InProcess) -> None:
    raw = await RawBookKeeper.connect(cluster)
    for entry_id, speaks in enumerate([V3, V2, V3, V2]):
        raw.speaks = speaks
        assert await raw.add(entry_id) == OK
    for speaks in (V2, V3):
        raw.speaks = speaks
        assert [(await raw.read(i)).entry for i in range(4)] == [entry(i) for i in range(4)]
    raw.close()


async def test_what_was_never_stored_is_denied(raw: RawBookKeeper) -> None:
    assert (await raw.read(0)).code == NO_LEDGER
    assert (await raw.read(-1)).code == NO_LEDGER
    assert (await raw.batch(0))[0] == NO_LEDGER
    await raw.add(3)
    assert [(await raw.read(i)).code for i in (2, 3, 4)] == [DENIED, OK, DENIED]
    assert [(await raw.batch(i))[0] for i in (2, 3, 4)] == [DENIED, OK, DENIED]
    assert (await raw.read(ENTRY_ID_MAX)).code == DENIED


async def test_the_last_entry(raw: RawBookKeeper) -> None:
    await raw.add(0)
    await raw.add(5, entry(5, lac=3))
    found = await raw.read(-1)
    assert (found.code, found.entry) == (OK, entry(5, lac=3))
    assert found.entry_id == -1, "as it was asked for"
    assert found.lac == (3 if raw.speaks == V3 else None)


async def test_a_known_ledger_without_entries_has_no_last_one(raw: RawBookKeeper) -> None:
    assert (await raw.read(-1, fence=True)).code == DENIED
    assert (await raw.read(-1)).code == DENIED


async def test_an_entry_stored_again_takes_the_place_of_the_old_one(cluster: InProcess, raw: RawBookKeeper) -> None:
    """Java's recovery stores entries again with another last add confirmed."""
    for turn in range(3):
        body = entry(0, lac=-1 + turn)
        assert await raw.add(0, body, recovery=turn == 2) == OK
        assert (await raw.read(0)).entry == body
        if turn == 1:
            await cluster.storage("a").checkpoint()
    await cluster.restart("a")
    again = await RawBookKeeper.connect(cluster, speaks=raw.speaks)
    assert (await again.read(0)).entry == entry(0, lac=1)
    again.close()


class Stored:
    """What the storage was given, add by add."""

    def __init__(self, cluster: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
        self.columns: list[AddColumns] = []
        storage = cluster.storage("a")
        add = storage.add

        def remember(columns: AddColumns, *rest: Any) -> None:
            self.columns.append(columns)
            add(columns, *rest)

        monkeypatch.setattr(storage, "add", remember)


@pytest.mark.parametrize("stride", [1, 3])
async def test_adds_that_arrive_together_are_stored_together(
    cluster: InProcess, raw: RawBookKeeper, monkeypatch: pytest.MonkeyPatch, stride: int
) -> None:
    await raw.add(0)
    stored = Stored(cluster, monkeypatch)
    ids = range(stride, 20 * stride, stride)
    if raw.speaks == V2:
        raw.send(*(p.encode_add(KEY, entry(i)) for i in ids))
        assert [(await raw.packet()).entry_id for _ in ids] == [*ids]
    else:
        sent = [raw.message(m.AddEntryRequest(LEDGER, i, KEY, entry(i))) for i in ids]
        raw.send(*(frame for _, frame in sent))
        assert [(await raw.response(transaction)).status for transaction, _ in sent] == [OK] * len(ids)
    (columns,) = stored.columns
    assert columns.first_ids == [stride]
    assert columns.counts == [19]
    assert [(await raw.read(i)).entry for i in ids] == [entry(i) for i in ids]
    assert found_ids((await cluster.storage("a").read(LEDGER, 0, 100, 1 << 20)).segments) == [0, *ids]


async def test_adds_of_both_protocols_on_one_connection_are_stored_in_their_order(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together where they have the same flags, whatever frames come between them."""
    client = await RawBookKeeper.connect(cluster, speaks=V2)
    for ledger in (7, 8):
        await client.add(0, ledger=ledger)
    stored = Stored(cluster, monkeypatch)

    def packets(*ids: int, ledger: int = LEDGER) -> list[list[Bytes]]:
        return [p.encode_add(KEY, entry(i, bytes(1 + 100 * i), ledger_id=ledger)) for i in ids]

    deferred = [client.message(m.AddEntryRequest(LEDGER, i, KEY, entry(i), False, True)) for i in (4, 5, 6)]
    frames = [*packets(1, 2), p.encode_read(LEDGER, 0), *packets(3), *(frame for _, frame in deferred)]
    client.send(*frames, *packets(7, 9, 11, 12, 13), *packets(2, 1, ledger=8), *packets(14))
    assert {(await client.packet()).code for _ in range(12)} == {0}
    for transaction, _ in deferred:
        assert (await client.response(transaction)).status == OK
    told = [(add.flags, add.ledger_ids, add.first_ids, add.counts) for add in stored.columns]
    assert told == [
        (0, [7], [1], [3]),
        (int(Flags.DEFERRED_SYNC), [7], [4], [3]),
        (0, [7, 7, 8, 8, 7], [7, 12, 2, 1, 14], [3, 2, 1, 1, 1]),
    ]
    assert [(await client.read(i)).entry for i in (3, 9, 14)] == [entry(i, bytes(1 + 100 * i)) for i in (3, 9, 14)]
    client.close()


async def test_adds_of_many_ledgers_go_on_while_new_ones_appear(cluster: InProcess, raw: RawBookKeeper) -> None:
    """Those of unknown ledgers wait for their states, and all are answered."""
    wanted = {(ledger, i) for i in range(10) for ledger in range(20)}
    sent = sorted(wanted, key=lambda add: (add[1], add[0]))
    if raw.speaks == V2:
        raw.send(*(p.encode_add(KEY, entry(i, ledger_id=ledger)) for ledger, i in sent))
        found = {(reply.ledger_id, reply.entry_id) for reply in [await raw.packet() for _ in wanted]}
    else:
        messages = [raw.message(m.AddEntryRequest(ledger, i, KEY, entry(i, ledger_id=ledger))) for ledger, i in sent]
        raw.send(*(frame for _, frame in messages))
        responses = [(await raw.response(transaction)).response for transaction, _ in messages]
        found = {(r.ledger_id, r.entry_id) for r in responses if isinstance(r, m.AddEntryResponse)}
    assert found == wanted
    for ledger in range(20):
        assert found_ids((await cluster.storage("a").read(ledger, 0, 100, 1 << 20)).segments) == [*range(10)]


@pytest.mark.parametrize("speaks", [V2, V3])
async def test_reads_that_arrive_together_are_one_read(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch, speaks: str
) -> None:
    raw = await RawBookKeeper.connect(cluster, speaks=speaks)
    for i in range(30):
        await raw.add(i)
    storage = cluster.storage("a")
    read, ranges = storage.read, []

    async def remember(ledger_id: int, first: int, last: int, bytes_max: int) -> Any:
        ranges.append((first, last))
        return await read(ledger_id, first, last, bytes_max)

    monkeypatch.setattr(storage, "read", remember)
    ids = [*range(0, 30, 2), 29, 100, 3, 0]
    if speaks == V2:
        raw.send(*(p.encode_read(LEDGER, i) for i in ids))
        answers = [raw.answer_of(await raw.packet()) for _ in ids]
    else:
        sent = [raw.message(m.ReadEntryRequest(LEDGER, i)) for i in ids]
        raw.send(*(frame for _, frame in sent))
        found = [(await raw.response(transaction)).response for transaction, _ in sent]
        answers = [Answer(r.status, r.body, r.entry_id) for r in found if isinstance(r, m.ReadEntryResponse)]  # type: ignore[arg-type]
    assert sorted((a.entry_id, a.entry) for a in answers if a.code == OK) == sorted(
        (i, entry(i)) for i in ids if i < 30
    )
    assert [(a.entry_id, a.code) for a in answers if a.code != OK] == [(100, DENIED)]
    assert ranges == [(0, 29), (100, 100)]
    raw.close()


async def test_reads_larger_than_one_answer_are_all_answered(cluster: InProcess, raw: RawBookKeeper) -> None:
    bodies = [entry(i, bytes([i]) * 200_000) for i in range(20)]
    for i, body in enumerate(bodies):
        assert await raw.add(i, body) == OK
    if raw.speaks == V2:
        raw.send(*(p.encode_read(LEDGER, i) for i in range(20)))
        found = {reply.entry_id: bytes(reply.body) for reply in [await raw.packet() for _ in range(20)]}
    else:
        sent = [raw.message(m.ReadEntryRequest(LEDGER, i)) for i in range(20)]
        raw.send(*(frame for _, frame in sent))
        responses = [(await raw.response(transaction)).response for transaction, _ in sent]
        found = {r.entry_id: r.body for r in responses if isinstance(r, m.ReadEntryResponse)}  # type: ignore[misc]
    assert found == dict(enumerate(bodies))


async def test_a_batch_ends_at_its_limits_and_at_the_first_gap(cluster: InProcess) -> None:
    raw = await RawBookKeeper.connect(cluster, speaks=V2)
    for i in (0, 1, 2, 3, 5):
        await raw.add(i)
    each = len(entry(0)) + 4
    assert await raw.batch(0) == (OK, [entry(i) for i in range(4)])
    assert await raw.batch(0, 2) == (OK, [entry(0), entry(1)])
    assert await raw.batch(0, 0) == (OK, [entry(i) for i in range(4)])
    assert await raw.batch(0, -1, 36 + 3 * each) == (OK, [entry(i) for i in range(3)])
    assert await raw.batch(0, 9, 36 + 3 * each - 1) == (OK, [entry(0), entry(1)])
    for least in (-1, 0, 1):
        assert await raw.batch(1, 9, least) == (OK, [entry(1)]), "the first is sent whatever its size"
    assert await raw.batch(5, (1 << 31) - 1, (1 << 63) - 1) == (OK, [entry(5)])
    assert await raw.batch(4) == (DENIED, [])
    raw.close()


# --- keys and fences ------------------------------------------------------------------------------------------------


async def test_another_key_opens_nothing(raw: RawBookKeeper, authority: Authority) -> None:
    authority.keys[LEDGER] = KEY
    await raw.add(0)
    other = master_key(b"other")
    assert await raw.add(1, key=other) == StatusCode.EUA
    assert await raw.add(1, key=other, recovery=True) == StatusCode.EUA
    assert (await raw.read(0, fence=True, key=other)).code == StatusCode.EUA
    assert (await raw.batch(0, fence=True, key=other))[0] == StatusCode.EUA
    assert await raw.add(1) == OK, "nothing was fenced"
    assert (await raw.read(0)).code == OK, "reads need no key"


async def test_a_stranger_who_came_first_gives_way_to_the_key_of_the_metadata(
    raw: RawBookKeeper, authority: Authority
) -> None:
    authority.keys[LEDGER] = KEY
    assert (await raw.read(-1, fence=True, key=master_key(b"stranger"))).code == DENIED
    assert await raw.add(0) == OK, "his fence has gone with his key"


async def test_a_key_of_another_size_is_none(raw: RawBookKeeper) -> None:
    if raw.speaks == V3:
        for key in (b"", b"short", KEY + b"x"):
            assert await raw.add(0, key=key) == StatusCode.EUA
        assert (await raw.read(0, fence=True, key=b"short")).code == StatusCode.EUA
        assert await raw.ask(m.ReadEntryRequest(LEDGER, 0, fence=True)) == (StatusCode.EUA, LEDGER, 0, None, None, None)
    assert (await raw.read(0)).code == NO_LEDGER, "and makes no ledger"


@pytest.mark.parametrize("entry_id", [-1, 0, 9])
async def test_a_fence_stops_the_writer_but_not_a_recovery(
    cluster: InProcess, raw: RawBookKeeper, entry_id: int
) -> None:
    await raw.add(0)
    found = await raw.read(entry_id, fence=True)
    assert found.code == (DENIED if entry_id == 9 else OK)
    assert await raw.add(1) == StatusCode.EFENCED
    assert await raw.add(1, recovery=True) == OK
    await cluster.restart("a")
    again = await RawBookKeeper.connect(cluster, speaks=raw.speaks)
    assert await again.add(2) == StatusCode.EFENCED
    assert (await again.read(1)).code == OK
    again.close()


async def test_a_batch_read_fences_too(cluster: InProcess) -> None:
    raw = await RawBookKeeper.connect(cluster, speaks=V2)
    await raw.add(0)
    assert await raw.batch(0, fence=True) == (OK, [entry(0)])
    assert await raw.add(1) == StatusCode.EFENCED
    raw.close()


@pytest.mark.parametrize("entry_id", [-1, 0, 9])
@pytest.mark.parametrize("known", [True, False])
async def test_no_answer_to_a_fence_comes_before_it_is_durable(
    cluster: InProcess, raw: RawBookKeeper, entry_id: int, known: bool
) -> None:
    """Also where there is no entry, which Java's bookies answer at once."""
    if known:
        await raw.add(0)
    cluster.disks["a"].stall("journal")
    first = asyncio.create_task(raw.read(entry_id, fence=True))
    second = await RawBookKeeper.connect(cluster, speaks=raw.speaks)
    again = asyncio.create_task(second.read(entry_id, fence=True))
    await eventually(lambda: cluster.service("a").requests_in_flight == 2)
    plain = await RawBookKeeper.connect(cluster, speaks=raw.speaks)
    assert (await plain.read(0)).code in (OK, DENIED), "others are answered meanwhile"
    assert not first.done()
    assert not again.done()
    cluster.disks["a"].unstall()
    async with asyncio.timeout(DEADLINE_S):
        assert (await first).code == (await again).code == (OK if known and entry_id < 9 else DENIED)
    for each in (second, plain):
        each.close()


async def test_an_add_is_answered_when_it_is_durable(cluster: InProcess, raw: RawBookKeeper) -> None:
    await raw.add(0)
    cluster.disks["a"].stall("journal")
    adding = asyncio.create_task(raw.add(1))
    other = await RawBookKeeper.connect(cluster, speaks=raw.speaks)
    await eventually(lambda: raw.near.adds.in_flight == 1)
    assert (await other.read(1)).code == OK, "it is in memory"
    assert not adding.done()
    cluster.disks["a"].unstall()
    assert await adding == OK
    other.close()


async def test_a_ledger_that_was_deleted_here_is_fenced(cluster: InProcess, raw: RawBookKeeper) -> None:
    await raw.add(0)
    hidden = await hide(cluster.storage("a"), LEDGER)
    assert hidden is not None
    assert (await raw.read(0)).code == CAN_NOT_TELL
    assert await hidden.delete()
    assert LEDGER not in raw.near.keys.authorised
    assert await raw.add(1) == StatusCode.EFENCED
    assert (await raw.read(0)).code == NO_LEDGER


async def test_a_read_only_bookie_takes_what_recoveries_write_back(cluster: InProcess, raw: RawBookKeeper) -> None:
    await raw.add(0)
    await cluster.node("a").set_read_only(True, "test")
    assert await raw.add(1) == StatusCode.EREADONLY
    assert await raw.add(1, recovery=True) == OK
    assert await raw.add(0, ledger=8) == StatusCode.EREADONLY
    await cluster.node("a").set_read_only(False, "test")
    assert await raw.add(2) == OK


# --- what it can't tell ---------------------------------------------------------------------------------------------


@pytest.fixture
async def doubting(cluster: InProcess) -> AsyncIterator[RawBookKeeper]:
    """A client of a bookie that has found out at its start that entries may be lost."""
    raw = await RawBookKeeper.connect(cluster)
    await raw.add(0)
    cluster.storage("a").ledgers.distrust_everything()
    await cluster.restart("a")
    again = await RawBookKeeper.connect(cluster)
    yield again
    again.close()


@pytest.mark.parametrize("speaks", [V2, V3])
async def test_a_bookie_that_has_lost_entries_denies_none(
    cluster: InProcess, doubting: RawBookKeeper, speaks: str
) -> None:
    doubting.speaks = speaks
    assert [(await doubting.read(i)).code for i in (2, 9, -1)] == [CAN_NOT_TELL] * 3
    assert (await doubting.read(0)).entry == entry(0), "what it has, it has"
    assert (await doubting.batch(9))[0] == CAN_NOT_TELL
    assert (await doubting.read(0, ledger=99)).code == CAN_NOT_TELL, "nor any ledger"
    assert (await doubting.read(9, fence=True)).code == CAN_NOT_TELL
    assert await doubting.add(0, ledger=99) == StatusCode.EREADONLY, "its writer goes on with another bookie"
    read_lac = await doubting.ask(m.ReadLacRequest(LEDGER))
    assert read_lac == (CAN_NOT_TELL, LEDGER, None, None)
    poll = m.ReadEntryRequest(LEDGER, -1, previous_lac=-1, timeout_ms=10_000, piggyback=True)
    assert (await doubting.ask(poll)).status == CAN_NOT_TELL


# --- hostile adds ---------------------------------------------------------------------------------------------------


async def test_whatever_ids_clients_choose_the_bookie_starts_again(
    cluster: InProcess, raw: RawBookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was accepted passes the check of a replay, whatever else was in its turn."""
    stored = Stored(cluster, monkeypatch)
    ids = [0, 1000, 2000, 3000, ENTRY_ID_MAX - 1000, ENTRY_ID_MAX, 5, 4, ENTRY_ID_MAX - 1, 7]
    await raw.add(1, ledger=8)
    bodies = [entry(i, lac=lac) for i, lac in zip(ids, [(1 << 63) - 1, -(1 << 63), 0, *ids], strict=False)]
    if raw.speaks == V2:
        raw.send(*(p.encode_add(KEY, body) for body in bodies))
        for _ in ids:
            assert (await raw.packet()).code == 0
    else:
        for i, body in zip(ids, bodies, strict=True):
            assert await raw.add(i, body) == OK
    for columns in stored.columns:
        assert wire.decode_add(wire.pack(list(columns)), sum(columns.sizes)) == columns
    await cluster.restart("a")
    again = await RawBookKeeper.connect(cluster, speaks=raw.speaks)
    assert [(await again.read(i)).entry for i in ids] == bodies
    again.close()


async def test_what_arrives_at_once_is_stored_in_records_that_a_replay_takes(
    cluster: InProcess, raw: RawBookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call of the socket may bring more batches than a record of the journal has: adds that change the ledger."""
    for module in (adds, wire):
        monkeypatch.setattr(module, "BATCHES_MAX", 3)
    stored = Stored(cluster, monkeypatch)
    ids = [(8 + i % 2, 5 + i // 2) for i in range(20)]
    for _ in range(2):  # first the ledgers are unknown, then they are open
        if raw.speaks == V2:
            raw.send(*(p.encode_add(KEY, entry(i, ledger_id=ledger)) for ledger, i in ids))
            assert [(await raw.packet()).code for _ in ids] == [0] * len(ids)
        else:
            sent = [raw.message(m.AddEntryRequest(ledger, i, KEY, entry(i, ledger_id=ledger))) for ledger, i in ids]
            raw.send(*(frame for _, frame in sent))
            assert [(await raw.response(transaction)).status for transaction, _ in sent] == [OK] * len(ids)
    assert max(len(columns.ledger_ids) for columns in stored.columns) == 3
    for columns in stored.columns:
        assert wire.decode_add(wire.pack(list(columns)), sum(columns.sizes)) == columns
    assert [(await raw.read(i, ledger=ledger)).entry for ledger, i in ids] == [entry(i, ledger_id=n) for n, i in ids]


@pytest.mark.thorough
async def test_what_has_waited_is_stored_in_parts_as_large_as_frames(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame_bytes_max = 5 << 20
    cluster.settings.update(frame_bytes_max=frame_bytes_max, entry_bytes_max=1 << 20)
    await cluster.restart("a")
    client = await RawBookKeeper.connect(cluster, speaks=V2)
    stored, states, held = Stored(cluster, monkeypatch), cluster.storage("a").states, asyncio.Event()

    async def hold(ledger_ids: set[int]) -> object:
        await held.wait()
        return await states(ledger_ids)

    monkeypatch.setattr(cluster.storage("a"), "states", hold)
    size = 1 << 20
    client.send(*(p.encode_add(KEY, entry(i, bytes(size))) for i in range(20)))
    await eventually(lambda: len(client.near.adds.backlog) == 20 - 1)
    held.set()
    assert [(await client.packet()).code for _ in range(20)] == [0] * 20
    assert max(sum(columns.sizes) for columns in stored.columns) < frame_bytes_max + size + 100
    client.close()
