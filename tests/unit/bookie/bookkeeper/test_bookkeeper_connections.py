"""Connections of BookKeeper's clients: what closes them, what is answered so, and how little slow ones hold."""

from __future__ import annotations

import asyncio
import gc
import struct
import weakref
from typing import TYPE_CHECKING

import pytest
from tests.hooks import accepted_transport, pauses_of
from tests.in_process import DEADLINE_S, InProcess
from tests.unit.bookie.bookkeeper.raw import KEY, LEDGER, PASSWORD, V2, V3, RawBookKeeper, entry
from tests.waiting import eventually

from bkpy.protocol.bookkeeper import messages as m
from bkpy.protocol.bookkeeper import packets as p
from bkpy.protocol.bookkeeper.entries import DigestType, EntryCodec
from bkpy.protocol.bookkeeper.messages import Operation, RequestHeader
from bkpy.protocol.bookkeeper.packets import PacketOp
from bkpy.protocol.bookkeeper.schema import message_class
from bkpy.protocol.bookkeeper.statuses import StatusCode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

OK = StatusCode.EOK


def framed(message: bytes) -> list[bytes]:
    return [struct.pack(">I", len(message)), message]


# --- what makes no sense --------------------------------------------------------------------------------------------

CLOSING = {
    "nothing in a frame": framed(b""),
    "another protocol": framed(b"GET / HTTP/1.1"),
    "bkpy's own protocol": [b"bk\x01\x01" + bytes(60)],
    "a large frame": [struct.pack(">I", 1 << 31)],
    "an unknown opcode of v2": framed(b"\x02\x09\x00\x00" + bytes(60)),
    "READ_LAC of v2": framed(b"\x02\x04\x00\x00" + bytes(60)),
    "another version": framed(b"\x01\x02\x00\x00" + bytes(60)),
    "an add without an entry": framed(b"\x02\x01\x00\x00" + bytes(20)),
    "half an entry": framed(b"\x02\x01\x00\x00" + bytes(51)),
    "an entry with a negative id": framed(b"\x02\x01\x00\x00" + KEY + struct.pack(">qqqq", 7, -1, 0, 0)),
    "a read that fences without a key": framed(b"\x02\x02\x00\x01" + bytes(16)),
    "no AuthMessage": framed(b"\x02\x03\x00\x00\xff\xff"),
    "no message of v3": framed(b"\x0a\xff\xff\xff"),
    "a message without a header": framed(b"\x0a\x00"),
    "an unknown operation": framed(b"\x0a\x06\x08\x03\x10\x63\x18\x01"),
    "a version of the future": framed(b"\x0a\x06\x08\x04\x10\x01\x18\x01"),
}


@pytest.mark.parametrize("what", CLOSING)
async def test_what_makes_no_sense_closes_the_connection(cluster: InProcess, what: str) -> None:
    raw, other = await RawBookKeeper.connect(cluster), await RawBookKeeper.connect(cluster, speaks=V2)
    assert await raw.add(0) == OK
    raw.send(CLOSING[what])  # type: ignore[arg-type]
    assert await raw.hung_up()
    assert await other.add(1) == OK, "others go on"
    assert (await other.read(0)).entry == entry(0), "what came before is stored"
    await eventually(lambda: len(cluster.connections("a")) == 1)
    raw.close()
    other.close()


async def test_what_came_before_nonsense_is_stored_all_the_same(cluster: InProcess) -> None:
    raw = await RawBookKeeper.connect(cluster, speaks=V2)
    await raw.add(0)
    raw.send(p.encode_add(KEY, entry(1)), framed(b"nonsense"))  # type: ignore[arg-type]
    assert await raw.hung_up()
    again = await RawBookKeeper.connect(cluster)
    assert (await again.read(1)).entry == entry(1)
    again.close()


@pytest.mark.parametrize("operation", [Operation.RANGE_ADD_ENTRY, Operation.BATCH_READ_ENTRY, Operation.ADD_ENTRY])
async def test_a_request_that_makes_no_sense_is_answered_so(cluster: InProcess, operation: Operation) -> None:
    raw = await RawBookKeeper.connect(cluster)
    request = message_class("Request")()
    request.header.version, request.header.operation, request.header.txnId = 3, operation, 99
    raw.send(framed(request.SerializeToString()))  # type: ignore[arg-type]
    assert await raw.response(99) == (operation, 99, StatusCode.EBADREQ, None)
    assert await raw.add(0) == OK
    raw.close()


async def test_what_is_not_offered_is_answered_so(cluster: InProcess) -> None:
    raw = await RawBookKeeper.connect(cluster)
    for request in (m.StartTlsRequest(), m.EntryListRequest(LEDGER)):
        assert await raw.ask(request) == StatusCode.EBADREQ
    raw.close()


async def test_a_client_that_would_authenticate_hears_that_it_needs_not(
    raw: RawBookKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    """And the operator of the bookie that it does not."""
    asked, wanted = m.AuthExchange("org.example.Plugin\n", b"token"), m.AuthExchange("AuthDisabledPlugin", b"")
    if raw.speaks == V3:
        assert await raw.ask(asked) == wanted
    else:
        raw.send(p.encode_auth(m.encode_auth_message(asked)))
        reply = await raw.packet()
        assert reply.op == PacketOp.AUTH
        assert m.decode_auth_message(reply.body) == wanted
    assert "asks for authentication by plugin org.example.Plugin\\n, which bkpy doesn't have" in caplog.text


@pytest.mark.parametrize("step", [1, 3, 50])
async def test_frames_may_come_in_any_pieces(cluster: InProcess, step: int) -> None:
    raw = await RawBookKeeper.connect(cluster)
    _, message = raw.message(m.AddEntryRequest(LEDGER, 1, KEY, entry(1)))
    sent = b"".join([*p.encode_add(KEY, entry(0)), *message, *p.encode_read(LEDGER, 0)])
    for at in range(0, len(sent), step):
        raw.send([sent[at : at + step]])
        await asyncio.sleep(0)
    assert (await raw.response(1)).status == OK
    # Reads may overtake adds.
    assert {(await raw.packet()).op for _ in range(2)} == {PacketOp.ADD, PacketOp.READ}
    raw.close()


async def test_requests_are_counted_by_protocol(cluster: InProcess) -> None:
    raw = await RawBookKeeper.connect(cluster)
    for speaks in (V3, V2, V3):
        raw.speaks = speaks
        await raw.add(0)
        await raw.read(0)
    page = cluster.service("a").metrics.render().decode()
    assert 'bkpy_bookie_bookkeeper_requests{protocol="v2"} 2.0' in page
    assert 'bkpy_bookie_bookkeeper_requests{protocol="v3"} 4.0' in page
    raw.close()


async def test_an_idle_client_stays(cluster: InProcess) -> None:
    """Java's connect to all bookies ahead of use, and send nothing for long."""
    cluster.settings["gc_interval_s"] = 0  # the test's ledger is in no metadata
    await cluster.restart("a")
    raw = await RawBookKeeper.connect(cluster)
    await asyncio.sleep(600)
    assert await raw.add(0) == OK
    await asyncio.sleep(600)
    assert await raw.add(1) == OK
    raw.close()


# --- bounds ---------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("speaks", [V2, V3])
async def test_no_read_is_refused_because_there_are_many(cluster: InProcess, speaks: str) -> None:
    """Java's client asks for all entries of a range at once."""
    cluster.settings["requests_in_flight_max"] = 10
    await cluster.restart("a")
    raw = await RawBookKeeper.connect(cluster, speaks=speaks)
    for i in range(5):
        await raw.add(i)
    for _ in range(20):
        if speaks == V2:
            raw.send(*(p.encode_read(LEDGER, i % 5) for i in range(100)))
        else:
            raw.send(*(raw.message(m.ReadEntryRequest(LEDGER, i % 5))[1] for i in range(100)))
    first = 6  # of the transactions: five adds came before
    for i in range(2000):
        if speaks == V2:
            assert (await raw.packet()).code == 0
        else:
            assert (await raw.response(first + i)).status == OK
    await eventually(lambda: not pauses_of(raw.near))  # type: ignore[arg-type]
    raw.close()


@pytest.mark.thorough
async def test_reads_of_many_ledgers_at_once_become_few_tasks(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.settings.update(requests_in_flight_max=50, requests_in_flight_total_max=20)
    await cluster.restart("a")
    raw, other = await RawBookKeeper.connect(cluster, speaks=V2), await RawBookKeeper.connect(cluster, speaks=V2)
    service, most = cluster.service("a"), 0
    look = cluster.storage("a").looked_up

    async def count(ledger_id: int) -> object:
        nonlocal most
        most = max(most, service.requests_in_flight)
        return await look(ledger_id)

    monkeypatch.setattr(cluster.storage("a"), "looked_up", count)
    raw.send(*(p.encode_read(ledger, 0) for ledger in range(500)))
    other.send(*(p.encode_batch_read(ledger, 0, ledger, 1, 1) for ledger in range(500)))
    assert {(await raw.packet()).ledger_id for _ in range(500)} == {*range(500)}
    assert {(await other.packet()).request_id for _ in range(500)} == {*range(500)}
    assert 10 < most <= 21, "the bound, and one of the connection that has none yet"
    for each in (raw, other):
        each.close()
    await eventually(lambda: service.requests_in_flight == 0)


@pytest.mark.parametrize("speaks", [V2, V3])
@pytest.mark.parametrize("adds_first", [True, False])
async def test_what_a_client_sends_at_once_is_taken_as_it_is_served(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch, speaks: str, adds_first: bool
) -> None:
    """A request that waits takes many times the memory of its bytes, and nothing counts it."""
    cluster.settings["requests_in_flight_max"] = 4
    await cluster.restart("a")
    raw = await RawBookKeeper.connect(cluster, speaks=speaks)
    storage, held, decided = cluster.storage("a"), asyncio.Event(), []
    read, states = storage.read, storage.states

    async def hold(*args: int) -> object:
        await held.wait()
        return await read(*args)

    async def hold_states(ledger_ids: set[int]) -> object:
        decided.append(len(ledger_ids))
        await held.wait()
        return await states(ledger_ids)

    monkeypatch.setattr(storage, "read", hold)
    monkeypatch.setattr(storage, "states", hold_states)
    reads, adds = range(100, 200), range(200, 300)
    if speaks == V2:
        sent = [p.encode_read(ledger, 0) for ledger in reads]
        sent += [p.encode_add(KEY, entry(0, ledger_id=ledger)) for ledger in adds]
    else:
        requests = [m.ReadEntryRequest(ledger, 0) for ledger in reads]
        requests += [m.AddEntryRequest(ledger, 0, KEY, entry(0, ledger_id=ledger)) for ledger in adds]
        sent = [raw.message(request)[1] for request in requests]
    raw.send(*(reversed(sent) if adds_first else sent))
    near = raw.near
    await eventually(lambda: near.tasks.in_flight > 0 or bool(decided))
    await asyncio.sleep(1)
    assert near.tasks.in_flight <= 4
    held.set()
    if speaks == V2:
        found = [await raw.packet() for _ in range(200)]
        assert {(reply.ledger_id, reply.code) for reply in found} == {(i, 1) for i in reads} | {(i, 0) for i in adds}
    else:
        codes = [(await raw.response(1 + i)).status for i in range(200)]
        assert codes == [StatusCode.ENOLEDGER] * 100 + [OK] * 100
    assert max(decided) <= 4
    await eventually(lambda: not pauses_of(near))
    raw.close()


async def test_a_client_that_goes_takes_what_waits_along(cluster: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.settings.update(requests_in_flight_max=100, requests_in_flight_total_max=2)
    await cluster.restart("a")
    raw = await RawBookKeeper.connect(cluster, speaks=V2)
    held = asyncio.Event()
    read = cluster.storage("a").read

    async def hold(*args: int) -> object:
        await held.wait()
        return await read(*args)

    monkeypatch.setattr(cluster.storage("a"), "read", hold)
    tasks = raw.near.tasks
    raw.send(*(p.encode_read(ledger, 0) for ledger in range(100)))
    await eventually(lambda: tasks.in_flight == 100)
    assert cluster.service("a").requests_in_flight == 2
    raw.near.abort()  # as when the kernel says that the client is gone
    await eventually(lambda: tasks.in_flight == 2)
    held.set()
    await eventually(lambda: tasks.in_flight == 0)
    assert cluster.service("a").requests_in_flight == 0
    raw.close()


async def test_a_client_that_sends_more_than_is_served_waits(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.settings["requests_in_flight_max"] = 4
    await cluster.restart("a")
    raw = await RawBookKeeper.connect(cluster, speaks=V2)
    await raw.add(0)
    storage, held = cluster.storage("a"), asyncio.Event()
    read = storage.read

    async def hold(*args: int) -> object:
        await held.wait()
        return await read(*args)

    monkeypatch.setattr(storage, "read", hold)
    for _ in range(20):
        raw.send(p.encode_read(LEDGER, 0))
        await asyncio.sleep(0.01)
    assert raw.near.tasks.in_flight == 4
    held.set()
    for _ in range(20):
        assert (await raw.packet()).code == 0
    raw.close()


@pytest.mark.thorough
@pytest.mark.parametrize("speaks", [V2, V3])
async def test_a_client_that_reads_no_answers_holds_few_of_them(cluster: InProcess, speaks: str) -> None:
    raw = await RawBookKeeper.connect(cluster, speaks=speaks)
    for i in range(40):
        await raw.add(i, entry(i, bytes(100_000)))
    raw.stop_reading()
    for _ in range(20):
        for i in range(40):
            raw.send(p.encode_read(LEDGER, i) if speaks == V2 else raw.message(m.ReadEntryRequest(LEDGER, i))[1])
        await asyncio.sleep(0.1)
    await eventually(lambda: "writing" in pauses_of(raw.near))  # type: ignore[arg-type]
    held = accepted_transport(raw.near).get_write_buffer_size()  # type: ignore[arg-type]
    settings = cluster.node("a").settings
    assert held <= (settings.reads_at_once + 1) * settings.read_bytes_max * 1.1
    raw.resume_reading()
    for i in range(800):
        if speaks == V2:
            assert (await raw.packet()).code == 0
        else:
            assert (await raw.response(41 + i)).status == OK
    raw.close()


@pytest.mark.thorough
@pytest.mark.parametrize("speaks", [V2, V3])
@pytest.mark.parametrize("entry_id", [0, -1])
async def test_a_client_that_asks_for_one_entry_again_and_again_holds_few_copies(
    cluster: InProcess, speaks: str, entry_id: int
) -> None:
    raw = await RawBookKeeper.connect(cluster, speaks=speaks)
    await raw.add(0, entry(0, bytes(200_000)))
    raw.stop_reading()
    many = 300
    if speaks == V2:
        raw.send(*(p.encode_read(LEDGER, entry_id) for _ in range(many)))
    else:
        raw.send(*(raw.message(m.ReadEntryRequest(LEDGER, entry_id))[1] for _ in range(many)))
    await eventually(lambda: "writing" in pauses_of(raw.near))
    settings = cluster.node("a").settings
    held = accepted_transport(raw.near).get_write_buffer_size()
    assert held <= (settings.reads_at_once + 1) * settings.read_bytes_max * 1.3
    raw.resume_reading()
    for i in range(many):
        if speaks == V2:
            assert (await raw.packet()).code == 0
        else:
            assert (await raw.response(2 + i)).status == OK
    raw.close()


@pytest.mark.parametrize("speaks", [V2, V3])
@pytest.mark.parametrize("entry_id", [0, -1])
async def test_all_answers_that_clients_have_yet_to_read_are_counted(
    cluster: InProcess, speaks: str, entry_id: int
) -> None:
    """Also where an entry was asked for several times: else many clients would take more than the bookie reserves."""
    writer = await RawBookKeeper.connect(cluster)
    await writer.add(0, entry(0, bytes(900_000)))
    readers = [await RawBookKeeper.connect(cluster, speaks=speaks) for _ in range(5)]
    for raw in readers:
        raw.stop_reading()
        if speaks == V2:
            raw.send(*(p.encode_read(LEDGER, entry_id) for _ in range(5)))
        else:
            raw.send(*(raw.message(m.ReadEntryRequest(LEDGER, entry_id))[1] for _ in range(5)))
    await eventually(lambda: all("writing" in pauses_of(raw.near) for raw in readers))
    held = sum(accepted_transport(raw.near).get_write_buffer_size() for raw in readers)
    assert held > 3_000_000
    assert cluster.storage("a").memory.by_name()["answers"] >= held
    for raw in (writer, *readers):
        raw.near.abort()
        raw.close()
    await eventually(lambda: cluster.storage("a").memory.by_name()["answers"] == 0)


async def test_a_client_that_stalls_within_a_frame_is_disconnected(cluster: InProcess) -> None:
    cluster.settings["frame_stall_timeout_s"] = 2
    await cluster.restart("a")
    raw = await RawBookKeeper.connect(cluster)
    await raw.add(0)
    raw.send([b"".join(p.encode_add(KEY, entry(1)))[:40]])
    assert await raw.hung_up()


async def test_a_client_that_goes_while_its_adds_are_decided_leaves_no_keys(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = await RawBookKeeper.connect(cluster, speaks=V2)
    storage, held = cluster.storage("a"), asyncio.Event()
    states = storage.states

    async def hold(ledger_ids: object) -> object:
        await held.wait()
        return await states(ledger_ids)  # type: ignore[arg-type]

    monkeypatch.setattr(storage, "states", hold)
    adds, ledgers = raw.near.adds, range(100, 400)
    raw.send(*(p.encode_add(KEY, entry(0, ledger_id=ledger)) for ledger in ledgers))
    await eventually(lambda: adds.backlogged and not adds.backlog)
    raw.near.abort()
    await eventually(lambda: not cluster.connections("a"))
    held.set()
    await eventually(lambda: not adds.busy)
    assert storage.memory.by_name()["presented keys"] == 0
    raw.close()


async def test_a_writer_is_not_read_from_while_memory_is_full(cluster: InProcess) -> None:
    """What has arrived is stored, never refused: a writer would take another bookie."""
    cluster.settings["journal_queue_bytes_max"] = 1
    await cluster.restart("a")
    raw, reader = await RawBookKeeper.connect(cluster), await RawBookKeeper.connect(cluster)
    await raw.add(0)
    await reader.read(0)
    cluster.disks["a"].stall("journal")
    raw.send(*(raw.message(m.AddEntryRequest(LEDGER, i, KEY, entry(i)))[1] for i in range(1, 4)))
    await eventually(lambda: "memory" in pauses_of(raw.near))  # type: ignore[arg-type]
    assert (await reader.read(3)).code == OK, "readers are served"
    raw.send(raw.message(m.AddEntryRequest(LEDGER, 4, KEY, entry(4)))[1])
    assert (await reader.read(4)).code == StatusCode.ENOENTRY
    cluster.disks["a"].unstall()
    assert [(await raw.response(transaction)).status for transaction in range(2, 6)] == [OK] * 4
    for each in (raw, reader):
        each.close()


SMALLEST = {
    "requests_in_flight_max": 1,
    "reads_at_once": 1,
    "read_bytes_max": 1,
    "deferred_sync_bytes_max": 1,
    "presented_ledgers_max": 1,
    "presented_keys_bytes_max": 1,
    "receive_chunk_bytes_min": 1,
    "receive_chunk_bytes_max": 1,
    "receive_room_bytes_min": 1,
    "receive_bytes_max": 1,
    "answers_at_once": 1,
    "answers_bytes_max": 1,
    "long_polls_max": 1,
    "memory_bytes_max": 1,
}


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(list(SMALLEST), id="all"),
        *(pytest.param([name], id=name, marks=pytest.mark.exhaustive) for name in SMALLEST),
    ],
)
async def test_entries_are_stored_and_read_within_the_smallest_bounds(tmp_path: Path, names: list[str]) -> None:
    cluster = InProcess(tmp_path, of_bookkeeper=True)
    await cluster.start("a", **{name: SMALLEST[name] for name in names})
    sizes = [1, 300_000, 10, 5_000, 100]

    async def use(ledger: int, speaks: str) -> None:
        raw = await RawBookKeeper.connect(cluster, speaks=speaks)
        bodies = [
            EntryCodec(ledger, DigestType.CRC32, PASSWORD).encode(i, i - 1, sum(sizes[: i + 1]), bytes(size))
            for i, size in enumerate(sizes)
        ]
        for i, body in enumerate(bodies):
            assert await raw.add(i, body, ledger=ledger) == OK
        assert [(await raw.read(i, ledger=ledger)).entry for i in range(5)] == bodies
        assert (await raw.read(-1, ledger=ledger, fence=True)).entry == bodies[-1]
        raw.close()

    async with asyncio.timeout(DEADLINE_S):
        for ledger in range(3):
            await use(ledger, V2 if ledger % 2 else V3)
    await cluster.stop()


# --- ends -----------------------------------------------------------------------------------------------------------


async def test_a_bookie_that_stops_answers_what_it_has_taken(cluster: InProcess, raw: RawBookKeeper) -> None:
    await raw.add(0)
    cluster.disks["a"].stall("journal")
    adding = asyncio.create_task(raw.add(1))
    await eventually(lambda: raw.near.adds.in_flight == 1)
    stopping = asyncio.create_task(cluster.node("a").stop())
    await eventually(lambda: cluster.service("a").stopping)
    cluster.disks["a"].unstall()
    assert await adding == OK
    assert await raw.hung_up()
    await stopping
    await cluster.start_node("a")


async def test_a_client_that_goes_in_the_middle_leaves_nothing(cluster: InProcess, raw: RawBookKeeper) -> None:
    await raw.add(0)
    cluster.disks["a"].stall("journal")
    raw.send(
        p.encode_add(KEY, entry(1)),
        p.encode_add(KEY, entry(0, ledger_id=8)),
        p.encode_read(LEDGER, -1, p.PacketFlags.FENCE, KEY),
        raw.message(m.ReadEntryRequest(LEDGER, -1, previous_lac=5, timeout_ms=1 << 40))[1],
        raw.message(m.WriteLacRequest(9, 0, KEY, EntryCodec(9, DigestType.DUMMY).encode_lac(0)))[1],
    )
    await eventually(lambda: cluster.service("a").requests_in_flight == 3)
    raw.close()
    await eventually(lambda: not cluster.connections("a"))
    cluster.disks["a"].unstall()
    service = cluster.service("a")
    await eventually(lambda: service.requests_in_flight == 0)
    assert not service.waiters.by_ledger
    assert service.receive_budget.used == 0
    again = await RawBookKeeper.connect(cluster)
    assert await again.add(2) == StatusCode.EFENCED, "it has fenced"
    again.close()


ENDINGS: dict[str, Callable[[], list[bytes]]] = {
    "said nothing": list,
    "an add": lambda: [b"".join(p.encode_add(KEY, entry(0)))],
    "a read": lambda: [b"".join(p.encode_read(LEDGER, 0))],
    "a fence": lambda: [b"".join(p.encode_read(LEDGER, 0, p.PacketFlags.FENCE, KEY))],
    "a batch read": lambda: [b"".join(p.encode_batch_read(LEDGER, 0, 1, 1, 1))],
    "a long poll": lambda: [
        b"".join(m.encode_request(m.ReadEntryRequest(LEDGER, -1, previous_lac=1, timeout_ms=1 << 40), 1))
    ],
    "a bad request": lambda: [b"".join(m.encode_refusal(RequestHeader(Operation.AUTH, 1), OK))],
    "no frame": lambda: [b"x" * 100],
    "half a frame": lambda: [b"".join(p.encode_add(KEY, entry(0, bytes(100_000))))[:50_000]],
}


@pytest.fixture
async def real(tmp_path: Path) -> AsyncIterator[InProcess]:
    local = InProcess(tmp_path, of_bookkeeper=True)
    await local.start("a", memory_bytes_max=16 << 20)
    yield local
    await local.stop()


@pytest.mark.thorough
@pytest.mark.real("transports of the kernel's sockets are freed")
@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_closed_connection_is_freed_without_the_cycle_collector(real: InProcess, ending: str) -> None:
    gc.disable()
    try:
        raw = await RawBookKeeper.connect(real)
        raw.send(ENDINGS[ending]())  # type: ignore[arg-type]
        await eventually(lambda: raw.near.received_bytes >= len(b"".join(ENDINGS[ending]())))
        near = raw.near
        parts = [weakref.ref(part) for part in (near, near.adds, near.tasks, near.reads, near.lac, near.keys)]
        del near, raw.near
        raw.writer.close()
        await eventually(lambda: not real.connections("a"))
        await eventually(lambda: not any(part() for part in parts))
    finally:
        gc.enable()
