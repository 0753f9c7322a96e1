"""Client and bookies in one process, on the in-memory store: what one may do to the other."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tests.hooks import (
    CHANNEL_CAME_UP,
    accepted_transport,
    cluster_of,
    codec_of,
    connections_of,
    keys_of,
    owed_bytes,
    pool_of,
    takes_answers,
    window_of,
)
from tests.in_process import DEADLINE_S, InProcess, add, contents
from tests.waiting import eventually

import bkpy
from bkpy.bookie.connection import add_handler
from bkpy.client.bookies import channel as client_channel
from bkpy.client.client import replication_context
from bkpy.metadata.ledgers.catalog import LedgerCatalog
from bkpy.metadata.store.outcome import NotDone, PutOutcome
from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
from bkpy.protocol.wire import frame as wire
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Flags, Op, Status
from bkpy.protocol.wire.records import ledger_key


@pytest.mark.thorough
async def test_a_bookie_that_forgets_keys_is_told_again(cluster: InProcess) -> None:
    cluster.settings["presented_ledgers_max"] = 3
    for name in "abc":
        await cluster.restart(name)
    client = await cluster.client()
    writers = [await client.create_ledger(ack_quorum=3) for _ in range(10)]
    for i in range(5):
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*(writer.append(b"%d" % i) for writer in writers[:3]))
            for writer in writers:  # one after the other: each presents, and pushes others out
                await writer.append(b"%d" % i)
    for writer in writers:
        await writer.close()
    assert await contents(client, writers[0].ledger_id) == [b"%d" % (i // 2) for i in range(10)]
    assert await contents(client, writers[9].ledger_id) == [b"%d" % i for i in range(5)]


async def test_a_fenced_ledger_takes_no_append_and_its_writer_fails_for_good(cluster: InProcess) -> None:
    client = await cluster.client()
    writer = await client.create_ledger(password=b"pw")
    other = await client.create_ledger()
    await writer.append(b"before")
    rival = await cluster.client()
    pool_of(rival).add_key(writer.ledger_id, ledger_key(b"pw"))
    for bookie_id in ("a", "b"):
        reply = (
            await pool_of(rival)
            .channel(bookie_id)
            .call(
                Op.READ_LAC,
                m.pack([int(Flags.RECOVERY), writer.ledger_id]),
                present=writer.ledger_id,
                timeout_s=DEADLINE_S,
            )
        )
        assert m.decode_read_lac_reply(reply.head).fenced
    both = await asyncio.gather(writer.append(b"after"), other.append(b"unharmed"), return_exceptions=True)
    assert isinstance(both[0], bkpy.LedgerFencedError)
    assert both[0].outcome_unknown
    assert both[0].ledger_id == writer.ledger_id
    assert both[1] == 0
    with pytest.raises(bkpy.LedgerFencedError):
        await writer.append(b"never")
    with pytest.raises(bkpy.LedgerFencedError):
        await writer.close()
    assert (await client.ledger_metadata(writer.ledger_id)).state == "OPEN"
    await other.close()


async def test_fencing_with_a_wrong_key_is_refused_and_changes_nothing(cluster: InProcess) -> None:
    client = await cluster.client()
    writer = await client.create_ledger(password=b"pw", ack_quorum=3)  # so that "a" knows it
    await writer.append(b"x")
    rival = await cluster.client()
    pool_of(rival).add_key(writer.ledger_id, ledger_key(b"wrong"))
    reply = (
        await pool_of(rival)
        .channel("a")
        .call(
            Op.READ_LAC, m.pack([int(Flags.RECOVERY), writer.ledger_id]), present=writer.ledger_id, timeout_s=DEADLINE_S
        )
    )
    assert m.reply_status(reply.head) == Status.UNAUTHORIZED
    assert await writer.append(b"y") == 1
    await writer.close()


async def test_recovery_adds_pass_the_fence(cluster: InProcess) -> None:
    """What a recovering client writes back is accepted; the same frame without the flag is not."""
    client = await cluster.client()
    writer = await client.create_ledger()
    await writer.append(b"x")
    pool, ledger_id = pool_of(client), writer.ledger_id
    channel = pool.channel("a")
    await channel.call(Op.READ_LAC, m.pack([int(Flags.RECOVERY), ledger_id]), present=ledger_id, timeout_s=DEADLINE_S)
    parts: list[Any] = []
    codec_of(writer).encode(parts, [b"back"], 1, 1, 0, [5])
    body = b"".join(parts)
    for flags, expected in [(0, [int(Status.FENCED)]), (int(Flags.RECOVERY), int(Status.OK))]:
        statuses = await add(channel, [flags, [ledger_id], [1], [1], 1, [len(body)]], body, pool)
        assert statuses == expected


@pytest.mark.scenario(43)
async def test_a_bookie_that_owes_too_much_stops_the_writer_until_it_is_given_up(cluster: InProcess) -> None:
    """Memory stays bounded although the ack quorum answers, and appends go on once the bookie is given up."""
    # Only a bookie that writers wait for is given up so soon, however long it takes them to fill what it may owe.
    client = await cluster.client(
        unacked_bytes_max=100_000, backpressure_stall_timeout_s=0.5, add_timeout_s=2 * DEADLINE_S
    )
    writer = await client.create_ledger()
    await writer.append(b"x")
    slow = pool_of(client).channel("b")
    for connection in connections_of(cluster.nodes[1]):
        connection.pause("test")
    owed = 0
    appended = 0
    generation = slow.generation
    async with asyncio.timeout(DEADLINE_S):
        while slow.up and slow.generation == generation:  # it is soon back, by another connection
            await writer.append(bytes(10_000))
            appended += 1
            owed = max(owed, owed_bytes(slow))
    assert owed < 100_000 + 2 * 10_100
    assert appended >= 9
    assert not slow.congested
    assert await writer.append(b"on") == appended + 1
    await writer.close()


@pytest.mark.scenario(43)
async def test_a_writer_goes_on_when_what_others_added_on_the_same_connections_is_answered(cluster: InProcess) -> None:
    client = await cluster.client(unacked_bytes_max=100_000, add_timeout_s=2 * DEADLINE_S)
    writer, other = await client.create_ledger(ack_quorum=3), await client.create_ledger(ack_quorum=3)
    await asyncio.gather(writer.append(b"x"), other.append(b"x"))
    pool = pool_of(client)
    channel = pool.channel("b")
    parts: list[Any] = []
    codec_of(other).encode(parts, [bytes(200_000)], 1, 1, 0, [200_001])
    body = b"".join(parts)
    order = []
    adding = asyncio.ensure_future(add(channel, [0, [other.ledger_id], [1], [1], 1, [len(body)]], body, pool))
    adding.add_done_callback(lambda _: order.append("added"))
    await asyncio.sleep(0)
    assert channel.congested
    appended = writer.append_nowait(b"y")
    appended.add_done_callback(lambda _: order.append("appended"))
    assert (await adding, await asyncio.wait_for(appended, DEADLINE_S)) == (Status.OK, 1)
    assert order == ["added", "appended"]


@pytest.mark.thorough
async def test_memory_pressure_in_a_bookie_pauses_its_clients_and_loses_nothing(tmp_path: Path) -> None:
    cluster = InProcess(tmp_path)
    await cluster.start(memtable_bytes_max=200_000)
    client = await cluster.client()
    writer = await client.create_ledger(ack_quorum=3)
    payloads = [bytes([i % 256]) * 5000 for i in range(1000)]
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*(writer.append(payload) for payload in payloads))
        await writer.close()
        assert await contents(client, writer.ledger_id) == payloads
    await cluster.stop()


async def test_a_registered_bookie_that_cannot_be_reached_is_avoided(cluster: InProcess) -> None:
    client = await cluster.client(connect_timeout_s=1.0)
    cluster.server("c").stop()  # registered, but nobody listens
    for _ in range(5):
        writer = await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
        assert "c" not in writer.metadata.fragments[0].bookies
        await writer.append(b"x")
        await writer.close()
    with pytest.raises(bkpy.NotEnoughBookiesError, match="c"):
        await client.create_ledger(allow_absent_bookies=False)


async def test_a_part_of_a_turn_is_confirmed_when_its_first_batches_are(cluster: InProcess) -> None:
    """One turn of more than a batch: futures and window follow last add confirmed, batch by batch."""
    client = await cluster.client(batch_bytes_max=1000)
    writer = await client.create_ledger(password=b"p", digest="hmac-sha256")
    futures = [writer.append_nowait(bytes(100)) for _ in range(500)]
    whole = asyncio.create_task(writer.append_batch([bytes(50)] * 300))
    await asyncio.sleep(0)  # it has begun
    async with asyncio.timeout(DEADLINE_S):
        while not whole.done():
            done = sum(f.done() for f in futures)
            assert [f.done() for f in futures] == [True] * done + [False] * (500 - done)
            assert writer.last_add_confirmed + 1 >= done
            assert window_of(writer).filled()[0] == 800 - (writer.last_add_confirmed + 1)
            await asyncio.sleep(0.0005)
    assert await whole == range(500, 800)
    assert writer.length == 500 * 100 + 300 * 50
    await writer.close()
    assert len(await contents(client, writer.ledger_id, b"p")) == 800


@pytest.mark.thorough
def test_a_client_that_asks_and_does_not_read_costs_little_memory(tmp_path: Path) -> None:
    """Hundreds of reads of a megabyte are asked for at once, and none is taken: only a few are prepared."""

    async def check() -> None:
        cluster = InProcess(tmp_path)
        await cluster.start()
        client = await cluster.client()
        writer = await client.create_ledger()
        await writer.append_batch([bytes(10_000)] * 200)
        await writer.flush()
        node = cluster.nodes[0]
        before = set(connections_of(node))
        _, sender = await asyncio.open_connection(*node.address.rsplit(":", 1), limit=1)
        await eventually(lambda: len(connections_of(node)) > len(before))
        head = m.pack([0, writer.ledger_id, 0, 199, 1 << 20])
        requests = [wire.encode(Op.HELLO, 1, m.pack(["test", "", ""]))]
        requests += [wire.encode(Op.READ, 2 + i, head) for i in range(500)]
        sender.writelines([part for request in requests for part in request])
        (connection,) = set(connections_of(node)) - before
        async with asyncio.timeout(DEADLINE_S):
            while takes_answers(connection):
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert connection.requests.in_flight > 400
        assert accepted_transport(connection).get_write_buffer_size() < 10 << 20
        sender.close()
        async with asyncio.timeout(DEADLINE_S):
            while connection.requests.in_flight:
                await asyncio.sleep(0.01)
        await writer.close()
        await cluster.stop()

    # As bookies do: writelines of asyncio's own loop never pauses in Python 3.12.0 to 3.12.8, 3.13.0 and 3.13.1.
    uvloop.run(check())


async def test_closing_an_abandoned_writer_leaves_its_ledger_open(cluster: InProcess) -> None:
    client = await cluster.client()
    writer = await client.create_ledger()
    await writer.append(b"x")
    writer.abandon()
    with pytest.raises(bkpy.ClientClosedError):
        await writer.close()
    assert (await client.ledger_metadata(writer.ledger_id)).state == "OPEN"


@pytest.mark.parametrize("ending", ["abandoned", "client closed", "abandoned when its close had failed"])
async def test_closing_a_writer_that_failed_and_was_abandoned_leaves_its_ledger_open(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    client, other = await cluster.client(), await cluster.client()
    writer = await client.create_ledger()
    await writer.append(b"x")
    writer.pending.replication.failed(bkpy.BookieUnavailableError("too few bookies are left"))
    if ending == "client closed":
        await client.close()
    else:
        if ending == "abandoned when its close had failed":
            with monkeypatch.context() as away:
                away.setattr(type(cluster_of(client).catalog), "write", metadata_away)
                with pytest.raises(bkpy.MetadataUnavailableError):
                    await writer.close()
        writer.abandon()
    for _ in range(2):
        with pytest.raises(bkpy.ClientClosedError) as failure:
            await writer.close()
        assert failure.value.ledger_id == writer.ledger_id
        assert failure.value.outcome_unknown == (ending == "abandoned when its close had failed")
    with pytest.raises(bkpy.BookKeeperError):
        await writer.append(b"y")
    assert (await other.ledger_metadata(writer.ledger_id)).state == "OPEN"
    reader = await other.recover_ledger(writer.ledger_id)
    assert [entry.data async for entry in reader.read()] == [b"x"]


async def metadata_away(catalog: LedgerCatalog, metadata: LedgerMetadata, version: int) -> PutOutcome:
    return NotDone(bkpy.MetadataUnavailableError("the metadata store is away"))


async def test_nothing_is_acknowledged_before_its_own_batch_in_a_large_turn_of_a_striped_ledger(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn of several batches a write set, of which one is not answered: nothing behind its first entry counts."""
    from bkpy.client.write.add_request import AddRequest

    client = await cluster.client(batch_bytes_max=1000)
    writer = await client.create_ledger(ensemble_size=3, write_quorum=2, ack_quorum=2)
    replied = AddRequest.replied
    withheld: list[tuple[AddRequest, int, bytes]] = []

    def withhold(self: AddRequest, index: int, head: memoryview) -> None:
        if any(batch.first_id % 3 == 1 for batch in self.flight.batches):
            withheld.append((self, index, bytes(head)))
        else:
            replied(self, index, head)

    monkeypatch.setattr(AddRequest, "replied", withhold)
    appending = asyncio.create_task(writer.append_batch([bytes(100)] * 300))
    async with asyncio.timeout(DEADLINE_S):
        while len(withheld) < 2 or writer.last_add_confirmed < 0:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)
    assert writer.last_add_confirmed == 0  # entry 1 is on no ack quorum
    monkeypatch.setattr(AddRequest, "replied", replied)
    for flight, index, head in withheld:
        flight.replied(index, memoryview(head))
    async with asyncio.timeout(DEADLINE_S):
        assert await appending == range(300)
        await writer.close()
    assert len(await contents(client, writer.ledger_id)) == 300


@pytest.mark.scenario(34)
async def test_close_waits_for_an_append_that_has_just_been_given_room(cluster: InProcess) -> None:
    """The append that waited is acknowledged before the end of the ledger is written, or not at all."""
    client = await cluster.client(write_window_entries=1)
    for _ in range(30):
        writer = await client.create_ledger()
        first = writer.append_nowait(b"first")
        waiting = asyncio.create_task(writer.append(b"waited"))
        await asyncio.sleep(0)
        await first  # this task is woken before the one that was given room
        await writer.close()
        assert await waiting == 1
        assert await contents(client, writer.ledger_id) == [b"first", b"waited"]


@pytest.mark.scenario(34)
async def test_close_ends_when_an_append_was_cancelled_as_its_writer_failed(cluster: InProcess) -> None:
    """Before the append that waits for room hears of the failure, whoever hears first cancels it."""
    client = await cluster.client(write_window_entries=1, add_timeout_s=2 * DEADLINE_S)
    writer = await client.create_ledger()
    for name in writer.ensemble:
        cluster.hang(name)
    first = writer.append_nowait(b"first")
    waiting = asyncio.create_task(writer.append(b"waited"))
    first.add_done_callback(lambda _: waiting.cancel())
    await asyncio.sleep(0)
    assert window_of(writer).waiters
    writer.pending.replication.failed(bkpy.QuorumTimeoutError("nothing was acknowledged"))
    with pytest.raises(asyncio.CancelledError):
        await waiting
    async with asyncio.timeout(DEADLINE_S):
        await writer.close()
    assert (await client.ledger_metadata(writer.ledger_id)).last_entry == -1


@pytest.mark.scenario(34)
async def test_close_rests_while_an_append_that_was_cancelled_is_still_in_line(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted are the turns of the loop that whoever asks again and again would take."""
    client = await cluster.client(write_window_entries=1, add_timeout_s=2 * DEADLINE_S)
    writer = await client.create_ledger()
    for name in writer.ensemble:
        cluster.hang(name)
    first = writer.append_nowait(b"first")
    waiting = asyncio.create_task(writer.append(b"never"))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    turns = 0
    sleep = asyncio.sleep

    async def counted(delay: float) -> None:
        nonlocal turns
        turns += 1
        await sleep(delay)

    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "sleep", counted)
        closing = asyncio.create_task(writer.close())
        for _ in range(100):
            await sleep(0)
    assert turns <= 1
    for name in writer.ensemble:
        for connection in cluster.connections(name):
            connection.resume("hung")
    async with asyncio.timeout(DEADLINE_S):
        await closing
    assert await first == 0
    assert await contents(client, writer.ledger_id) == [b"first"]


async def test_abandoning_a_writer_twice_leaves_a_recovery_its_key(cluster: InProcess) -> None:
    """Of the same ledger, by the same client: the key is needed until both have ended."""
    client = await cluster.client()
    writer = await client.create_ledger(password=b"p")
    await writer.append(b"x")
    pool_of(client).add_key(writer.ledger_id, writer.metadata.ledger_key)  # as a recovery does
    writer.abandon()
    writer.abandon()
    assert keys_of(client) == {writer.ledger_id: writer.metadata.ledger_key}
    pool_of(client).forget_key(writer.ledger_id)
    assert not keys_of(client)


@pytest.mark.scenario(40)
async def test_an_idle_writer_publishes_last_add_confirmed_though_it_was_asked_for_more_to_send(
    cluster: InProcess,
) -> None:
    """A writer that was held, or whose bookies have changed, is asked; if it has nothing it has told nobody."""
    client, other = await cluster.client(), await cluster.client()
    writer = await client.create_ledger()
    await writer.append(b"x")
    replication_context(client).parts.dispatcher.schedule(writer.pending.replication)
    reader = await other.open_ledger(writer.ledger_id)
    async with asyncio.timeout(DEADLINE_S):
        while await reader.read_last_add_confirmed() < 0:
            await asyncio.sleep(0.01)
    await writer.close()


async def test_a_bookie_that_is_lost_between_connecting_and_sending_is_unavailable(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waited for the connection is woken a turn of the loop after it came up."""
    client = await cluster.client()
    channel = pool_of(client).channel("a")
    came_up = getattr(*CHANNEL_CAME_UP)

    def come_and_go(self: client_channel.BookieChannel, connection: Any) -> None:
        came_up(self, connection)
        connection.transport.abort()
        self.connection_lost(connection, None)

    with monkeypatch.context() as patched:
        patched.setattr(*CHANNEL_CAME_UP, come_and_go)
        with pytest.raises(bkpy.BookieUnavailableError, match="lost") as failure:
            await channel.call(Op.READ_LAC, m.pack([0, 1]), timeout_s=DEADLINE_S)
        assert failure.value.bookie == "a"
    reply = await channel.call(Op.READ_LAC, m.pack([0, 1]), timeout_s=DEADLINE_S, again=True)
    assert m.reply_status(reply.head) == Status.NO_SUCH_LEDGER


async def test_a_reply_that_makes_no_sense_fails_the_append_and_not_only_the_connection(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(add_handler, "OK_HEAD", m.pack("nonsense"))
    client = await cluster.client(no_bookies_timeout_s=0.2)
    writer = await client.create_ledger()
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(bkpy.BookieUnavailableError):
            await writer.append(b"x")
        await writer.close()


async def test_the_end_of_one_writer_harms_no_other_when_keys_are_asked_for_again(cluster: InProcess) -> None:
    client = await cluster.client()
    staying = await client.create_ledger(ack_quorum=3)
    for _ in range(5):
        leaving = await client.create_ledger(ack_quorum=3)  # in the same flights
        await asyncio.gather(staying.append(b"x"), leaving.append(b"x"))
        for node in cluster.nodes:
            for connection in connections_of(node):
                connection.keys.authorised.clear()
        both = [asyncio.create_task(writer.append(b"y")) for writer in (staying, leaving)]
        await asyncio.sleep(0)
        leaving.abandon()
        async with asyncio.timeout(DEADLINE_S):
            done = await asyncio.gather(*both, return_exceptions=True)
        assert isinstance(done[0], int)
        assert isinstance(done[1], bkpy.ClientClosedError)
    await staying.close()


@pytest.mark.thorough
async def test_more_reads_at_once_than_a_bookie_takes_all_succeed(tmp_path: Path) -> None:
    cluster = InProcess(tmp_path)
    await cluster.start(requests_in_flight_max=150)
    client = await cluster.client()
    writer = await client.create_ledger()
    await writer.append_batch([b"%d" % i for i in range(1000)])
    await writer.close()
    reader = await client.open_ledger(writer.ledger_id)

    async def one(i: int) -> bytes:
        return [entry.data async for entry in reader.read(i, i)][0]  # noqa: RUF015 - an asynchronous generator

    assert await asyncio.gather(*(one(i) for i in range(1000))) == [b"%d" % i for i in range(1000)]
    await cluster.stop()


async def test_reading_with_a_closed_client_says_so(cluster: InProcess) -> None:
    client = await cluster.client()
    writer = await client.create_ledger()
    await writer.append(b"x")
    await writer.close()
    reader = await client.open_ledger(writer.ledger_id)
    await client.close()
    with pytest.raises(bkpy.ClientClosedError):
        [entry async for entry in reader.read()]


async def test_a_scan_holds_no_more_than_its_ranges(cluster: InProcess) -> None:
    """Small entries first, then large ones: what is asked for by the small ones' size comes in pieces."""
    client = await cluster.client(read_bytes=100_000)
    writer = await client.create_ledger()
    await writer.append_batch([b"s" * 10] * 10_000)
    await writer.append_batch([b"l" * 50_000] * 60)
    await writer.close()
    reader = await client.open_ledger(writer.ledger_id)
    sizes = [len(block.buffer) async for block in reader.read_blocks()]
    assert max(sizes) <= 200_000
    assert sum(sizes) == 10_000 * 42 + 60 * 50_032


async def test_an_explicit_lac_that_is_none_is_refused(cluster: InProcess) -> None:
    client = await cluster.client()
    writer = await client.create_ledger()
    await writer.append(b"x")
    good = codec_of(writer).explicit_lac(0, 1)
    bad = [b"", bytes(32), good[:-1], good + bytes(1), good[:31] + b"\1", b"x" * 100_000]
    for record, expected in [*((record, Status.BAD_REQUEST) for record in bad), (good, Status.OK)]:
        reply = (
            await pool_of(client)
            .channel("a")
            .call(Op.WRITE_LAC, m.pack([writer.ledger_id]), (record,), present=writer.ledger_id, timeout_s=DEADLINE_S)
        )
        assert m.reply_status(reply.head) == expected
    await writer.close()


async def test_the_smallest_limit_of_the_bookies_holds_at_the_call(tmp_path: Path) -> None:
    cluster = InProcess(tmp_path)
    await cluster.start(entry_bytes_max=10_000)
    client = await cluster.client()
    writer = await client.create_ledger()
    with pytest.raises(bkpy.FrameTooLargeError, match="10000"):
        await writer.append(bytes(10_001))
    assert await writer.append(bytes(10_000)) == 0
    await writer.close()
    await cluster.stop()
