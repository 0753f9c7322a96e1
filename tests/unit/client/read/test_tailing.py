"""Following a ledger: who is woken by what, with nobody polling, and what happens when bookies or metadata are away."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import cluster_of, lose_events, pool_of, tails_of, tasks_of, unanswered_calls
from tests.in_process import DEADLINE_S, InProcess, add, rewrite

import bkpy
from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerState
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Flags, Op, Status
from bkpy.protocol.wire.records import RecordCodec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from bkpy.client.client import Client

NEVER_S = 600.0  # longer than any test: whoever waits for that fails
PATIENT = {"tail_poll_s": NEVER_S, "long_poll_s": NEVER_S}  # only what wakes a tail makes it go on


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[InProcess]:
    local = InProcess(tmp_path)
    await local.start("abc", long_poll_max_s=NEVER_S)
    yield local
    await local.stop()


class Follower:
    """A task that tails a ledger and keeps what it was given."""

    def __init__(self, reader: bkpy.LedgerReader, first: int = 0) -> None:
        self.found: list[bytes] = []
        self._more = asyncio.Event()
        self.task = asyncio.create_task(self._run(reader, first))

    async def _run(self, reader: bkpy.LedgerReader, first: int) -> None:
        async with aclosing(reader.tail(first)) as entries:
            async for entry in entries:
                self.found.append(entry.data)
                self._more.set()

    async def until(self, count: int) -> list[bytes]:
        async with asyncio.timeout(DEADLINE_S):
            while len(self.found) < count:
                self._more.clear()
                await self._more.wait()
        return self.found

    async def end(self) -> list[bytes]:
        async with asyncio.timeout(DEADLINE_S):
            await self.task
        return self.found


async def waiting(cluster: InProcess, ledger_id: int, names: str = "abc", count: int = 1) -> None:
    """Until that many long polls of the ledger wait at each of these bookies."""
    async with asyncio.timeout(DEADLINE_S):
        while any(len(cluster.service(name).waiters.by_ledger.get(ledger_id, ())) < count for name in names):
            await asyncio.sleep(0.005)


async def follow(cluster: InProcess, client: Client, ledger_id: int, *, idle: bool = True) -> Follower:
    follower = Follower(await client.open_ledger(ledger_id))
    if idle:
        await waiting(cluster, ledger_id)
    return follower


def tailing(client: Client) -> list[str]:
    names = [task.get_name() for task in tasks_of(client)]
    return [name for name in names if name.startswith(("long poll", "watch of ledger", "read of ledger"))]


# --- what wakes a tail ------------------------------------------------------------------------------------------------


@pytest.mark.scenario(40)
async def test_a_tail_is_woken_by_progress(cluster: InProcess) -> None:
    client = await cluster.client(**PATIENT, explicit_lac_interval_s=0)
    writer = await client.create_ledger()
    follower = await follow(cluster, client, writer.ledger_id)
    for i in range(50):
        await writer.append(b"%d" % i)
        assert (await follower.until(i))[:i] == [b"%d" % k for k in range(i)]  # each carries the one before
    await writer.close()
    assert await follower.end() == [b"%d" % i for i in range(50)]


@pytest.mark.scenario(40)
async def test_a_tail_gets_the_last_entry_of_an_idle_writer(cluster: InProcess) -> None:
    client = await cluster.client(**PATIENT)
    writer = await client.create_ledger()
    follower = await follow(cluster, client, writer.ledger_id)
    for i in range(3):
        await writer.append(b"%d" % i)
        assert await follower.until(i + 1) == [b"%d" % k for k in range(i + 1)]
    assert not follower.task.done()
    await writer.close()
    await follower.end()


@pytest.mark.scenario(40)
async def test_a_tail_is_woken_by_close(cluster: InProcess) -> None:
    client = await cluster.client(**PATIENT, explicit_lac_interval_s=0)
    writer = await client.create_ledger()
    follower = await follow(cluster, client, writer.ledger_id)
    await writer.append(b"only the end of the ledger tells of it")
    await writer.close()
    assert len(await follower.end()) == 1
    assert tailing(client) == []


@pytest.mark.scenario(40)
async def test_a_tail_is_woken_by_deletion(cluster: InProcess) -> None:
    client = await cluster.client(**PATIENT)
    writer = await client.create_ledger()
    follower = await follow(cluster, client, writer.ledger_id)
    await client.delete_ledger(writer.ledger_id)
    with pytest.raises(bkpy.NoSuchLedgerError):
        await follower.end()
    assert tailing(client) == []


@pytest.mark.scenario(40)
async def test_a_tail_is_woken_by_a_fence_and_looks_at_the_metadata(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store loses the event of the close, so only the fence makes the tail look."""
    client = await cluster.client(**PATIENT, explicit_lac_interval_s=0)
    writer = await client.create_ledger()
    await writer.append(b"x")
    follower = await follow(cluster, client, writer.ledger_id)
    lose_events(cluster.tree, monkeypatch)
    await rewrite(client, writer.ledger_id, state=LedgerState.CLOSED, last_entry=0, length=1)
    rival = await cluster.client()
    pool_of(rival).add_key(writer.ledger_id, writer.metadata.ledger_key)
    await (
        pool_of(rival)
        .channel("b")
        .call(
            Op.READ_LAC, m.pack([int(Flags.RECOVERY), writer.ledger_id]), present=writer.ledger_id, timeout_s=DEADLINE_S
        )
    )
    assert await follower.end() == [b"x"]


@pytest.mark.scenario(40)
async def test_a_tail_goes_over_to_the_bookies_of_a_new_fragment(cluster: InProcess) -> None:
    client = await cluster.client(**PATIENT, explicit_lac_interval_s=0)
    writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
    await writer.append(b"old")
    old = writer.metadata.fragments[0].bookies[0]
    new = "b" if old == "a" else "a"
    follower = Follower(await client.open_ledger(writer.ledger_id))
    await waiting(cluster, writer.ledger_id, old)
    await rewrite(client, writer.ledger_id, fragments=(Fragment(0, (old,)), Fragment(1, (new,))))
    await waiting(cluster, writer.ledger_id, new)
    assert await follower.until(1) == [b"old"]  # a fragment begins behind an acknowledged entry
    parts: list[Any] = []
    RecordCodec(writer.ledger_id).encode_run(parts, [b"new", b"newer"], 1, 1, 3)
    body = b"".join(parts)
    columns = [0, [writer.ledger_id], [1], [2], 1, [len(body)]]
    assert await add(pool_of(client).channel(new), columns, body, pool_of(client)) == 0
    assert await follower.until(2) == [b"old", b"new"]
    follower.task.cancel()


# --- what is left behind ----------------------------------------------------------------------------------------------


@pytest.mark.scenario(40)
async def test_a_cancelled_tail_leaves_nothing_behind(cluster: InProcess) -> None:
    client = await cluster.client(**PATIENT)
    writer = await client.create_ledger()
    follower = await follow(cluster, client, writer.ledger_id)
    assert len(tailing(client)) == 4
    follower.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await follower.task
    assert tailing(client) == []
    await asyncio.sleep(0)
    assert not any(unanswered_calls(pool_of(client).channel(name)) for name in "abc")
    assert not cluster.tree.watched(cluster_of(client).catalog.path_of(writer.ledger_id))
    await client.close()  # and with the connection, the bookies' waiters go
    async with asyncio.timeout(DEADLINE_S):
        while any(cluster.service(name).waiters.by_ledger for name in "abc"):
            await asyncio.sleep(0.005)


@pytest.mark.scenario(40)
async def test_an_iteration_that_is_given_up_leaves_nothing_behind(cluster: InProcess) -> None:
    client = await cluster.client(**PATIENT)
    writer = await client.create_ledger()
    await writer.append_batch([b"x"] * 1000)
    reader = await client.open_ledger(writer.ledger_id)
    async for _ in reader.tail():
        break
    async with asyncio.timeout(DEADLINE_S):
        while tailing(client) or tails_of(reader):
            await asyncio.sleep(0.005)
    await writer.close()


async def test_a_tail_ends_with_its_reader_and_with_its_client(cluster: InProcess) -> None:
    client = await cluster.client(**PATIENT)
    writer = await (await cluster.client()).create_ledger()
    reader = await client.open_ledger(writer.ledger_id)
    with_reader, with_client = Follower(reader), await follow(cluster, client, writer.ledger_id)
    await waiting(cluster, writer.ledger_id, count=2)
    await reader.close()
    with pytest.raises(bkpy.ClientClosedError):
        await with_reader.end()
    await client.close()
    await cluster_of(client).store.close()
    with pytest.raises(bkpy.ClientClosedError):
        await with_client.end()
    assert tailing(client) == []


# --- when something is away -------------------------------------------------------------------------------------------


@pytest.mark.scenario(40)
async def test_a_tail_goes_on_while_the_metadata_store_is_away(cluster: InProcess) -> None:
    client = await cluster.client(**PATIENT)
    writer = await (await cluster.client()).create_ledger()
    follower = await follow(cluster, client, writer.ledger_id)
    store: Any = cluster_of(client).store
    store.suspend()
    for i in range(3):
        await writer.append(b"%d" % i)
        await follower.until(i + 1)
    await writer.close()
    assert not follower.task.done()
    store.resume()
    assert await follower.end() == [b"0", b"1", b"2"]


@pytest.mark.scenario(40)
async def test_a_tail_that_begins_while_the_metadata_store_is_away_goes_on(cluster: InProcess) -> None:
    client = await cluster.client(**PATIENT | {"tail_poll_s": 0.01})
    writer = await (await cluster.client()).create_ledger()
    reader = await client.open_ledger(writer.ledger_id)
    store: Any = cluster_of(client).store
    store.call_timeout_s = 0.01
    store.suspend()
    follower = Follower(reader)
    await waiting(cluster, writer.ledger_id)
    await writer.append(b"x")
    await follower.until(1)
    await writer.close()
    await asyncio.sleep(0.05)  # some calls have failed meanwhile
    store.resume()
    assert await follower.end() == [b"x"]


@pytest.mark.scenario(40)
async def test_a_tail_goes_on_with_the_bookies_that_are_there_and_with_those_that_come_back(cluster: InProcess) -> None:
    client = await cluster.client(**PATIENT | {"tail_poll_s": 0.02})
    writer = await client.create_ledger(ack_quorum=2)
    follower = await follow(cluster, client, writer.ledger_id)
    await cluster.nodes[0].stop()
    await writer.append(b"0")
    assert await follower.until(1) == [b"0"]
    for name in "abc":
        await cluster.restart(name)
    assert not follower.task.done()
    async with asyncio.timeout(DEADLINE_S):
        while not all(pool_of(client).channel(name).up for name in "abc"):
            await asyncio.sleep(0.01)
    await waiting(cluster, writer.ledger_id)
    parts: list[Any] = []
    RecordCodec(writer.ledger_id).encode_run(parts, [b"1", b"2"], 1, 1, 1)
    body = b"".join(parts)
    for name in "bc":  # entry 2 tells that entry 1 is confirmed
        columns = [0, [writer.ledger_id], [1], [2], 1, [len(body)]]
        assert await add(pool_of(client).channel(name), columns, body, pool_of(client)) == 0
    assert await follower.until(2) == [b"0", b"1"]
    follower.task.cancel()


@pytest.mark.scenario(40)
async def test_a_tail_polls_where_bookies_refuse_to_wait(tmp_path: Path) -> None:
    cluster = InProcess(tmp_path)
    await cluster.start("abc", long_polls_max=1, long_poll_max_s=NEVER_S)
    client = await cluster.client(long_poll_s=NEVER_S, tail_poll_s=0.01)
    blocker = await client.create_ledger()
    first = await follow(cluster, client, blocker.ledger_id)  # takes what there is
    writer = await client.create_ledger()
    second = await follow(cluster, client, writer.ledger_id, idle=False)
    await writer.append(b"x")
    assert await second.until(1) == [b"x"]
    assert all(writer.ledger_id not in cluster.service(name).waiters.by_ledger for name in "abc")
    await blocker.append(b"y")
    assert await first.until(1) == [b"y"]
    await writer.close()
    assert await second.end() == [b"x"]
    first.task.cancel()
    await cluster.stop()


async def test_long_polls_leave_room_for_requests(cluster: InProcess) -> None:
    client = await cluster.client(**PATIENT, calls_in_flight_max=2)
    writers = [await client.create_ledger() for _ in range(5)]
    followers = [await follow(cluster, client, writer.ledger_id) for writer in writers]
    for writer, follower in zip(writers, followers, strict=True):
        await writer.append(b"x")
        assert await follower.until(1) == [b"x"]
        await writer.close()
        await follower.end()


# --- last add confirmed -----------------------------------------------------------------------------------------------


@pytest.mark.scenario(40)
async def test_explicit_and_piggybacked_last_add_confirmed_survive_restarts(cluster: InProcess) -> None:
    client = await cluster.client()
    writer = await client.create_ledger(ack_quorum=3)
    silent = await (await cluster.client(explicit_lac_interval_s=0)).create_ledger(ack_quorum=3)
    for i in range(3):
        await writer.append(b"%d" % i)
        await silent.append(b"%d" % i)
    reader = await client.open_ledger(writer.ledger_id)
    async with asyncio.timeout(DEADLINE_S):
        while await reader.read_last_add_confirmed() < 2:
            await asyncio.sleep(0.01)
    for name in "abc":
        await cluster.restart(name)
    other = await cluster.client()
    again = await other.open_ledger(writer.ledger_id)
    assert (again.last_add_confirmed, again.length) == (2, 3)
    assert (await other.open_ledger(silent.ledger_id)).last_add_confirmed == 1  # carried by entry 2


# --- the bookie's side ------------------------------------------------------------------------------------------------


async def wait_lac(
    client: Client, ledger_id: int, known: int = -1, fenced: bool = False, wait_ms: int = 600_000
) -> m.ReadLacReply:
    reply = (
        await pool_of(client)
        .channel("a")
        .call(Op.WAIT_LAC, m.pack([ledger_id, known, fenced, wait_ms]), timeout_s=DEADLINE_S, long_poll=True)
    )
    return m.decode_read_lac_reply(reply.head)


async def test_a_long_poll_is_answered_at_once_where_there_is_news_and_else_when_its_time_is_up(
    cluster: InProcess,
) -> None:
    client = await cluster.client(explicit_lac_interval_s=0)
    writer = await client.create_ledger(ack_quorum=3)
    await writer.append(b"x")
    await writer.append(b"y")
    assert (await wait_lac(client, writer.ledger_id)).entry_bytes == 33
    assert (await wait_lac(client, writer.ledger_id, known=0, wait_ms=1)).entry_bytes == 33
    assert not cluster.service("a").waiters.by_ledger


async def test_a_ledger_that_a_bookie_never_saw_is_waited_for(cluster: InProcess) -> None:
    client = await cluster.client(explicit_lac_interval_s=0)
    assert (await wait_lac(client, 10**6, wait_ms=1)).status == Status.NO_SUCH_LEDGER
    writer = await client.create_ledger(ack_quorum=3)
    poll = asyncio.create_task(wait_lac(client, writer.ledger_id))
    await waiting(cluster, writer.ledger_id, "a")
    await writer.append(b"its last add confirmed is -1, as was known")
    await writer.append(b"news")
    assert (await poll).status == Status.OK


@pytest.mark.scenario(40)
async def test_a_long_poll_is_woken_by_a_fence_once(cluster: InProcess) -> None:
    client = await cluster.client(explicit_lac_interval_s=0)
    writer = await client.create_ledger(ack_quorum=3)
    await writer.append(b"x")
    poll = asyncio.create_task(wait_lac(client, writer.ledger_id))
    knowing = asyncio.create_task(wait_lac(client, writer.ledger_id, fenced=True))
    await waiting(cluster, writer.ledger_id, "a", count=2)
    reply = await pool_of(client).channel("a").call(
        Op.READ, m.pack([int(Flags.RECOVERY), writer.ledger_id, 5, 5, 100]), present=writer.ledger_id,
        timeout_s=DEADLINE_S,
    )  # fmt: skip
    assert m.reply_status(reply.head) == Status.OK
    assert (await poll).fenced
    assert (await wait_lac(client, writer.ledger_id)).fenced
    assert len(cluster.service("a").waiters.by_ledger[writer.ledger_id]) == 1
    knowing.cancel()


async def test_a_bookie_that_stops_answers_those_that_wait(cluster: InProcess) -> None:
    client = await cluster.client()
    polls = [asyncio.create_task(wait_lac(client, ledger_id)) for ledger_id in (1, 1, 2)]
    await waiting(cluster, 1, "a", count=2)
    await waiting(cluster, 2, "a")
    async with asyncio.timeout(DEADLINE_S):
        await cluster.nodes[0].stop()
        assert [(await poll).status for poll in polls] == [Status.NO_SUCH_LEDGER] * 3
    cluster.nodes.pop(0)


async def test_long_polls_of_a_connection_are_bounded_and_count_for_nothing_else(tmp_path: Path) -> None:
    cluster = InProcess(tmp_path)
    await cluster.start("abc", long_polls_max=5, requests_in_flight_max=3)
    client = await cluster.client()
    polls = [asyncio.create_task(wait_lac(client, 1)) for _ in range(5)]
    await waiting(cluster, 1, "a", count=5)
    reply = await pool_of(client).channel("a").call(Op.WAIT_LAC, m.pack([1, -1, False, 1000]), timeout_s=DEADLINE_S)
    assert m.reply_status(reply.head) == Status.TOO_MANY_REQUESTS
    reply = await pool_of(client).channel("a").call(Op.READ_LAC, m.pack([0, 1]), timeout_s=DEADLINE_S)
    assert m.reply_status(reply.head) == Status.NO_SUCH_LEDGER
    other = await cluster.client()  # a connection of its own
    assert (await wait_lac(other, 1, wait_ms=1)).status == Status.NO_SUCH_LEDGER
    for poll in polls:
        poll.cancel()
    await cluster.stop()


async def test_the_last_entry_is_told_to_bookies_that_have_forgotten_the_key(tmp_path: Path) -> None:
    cluster = InProcess(tmp_path)
    await cluster.start(presented_ledgers_max=1)
    client = await cluster.client(explicit_lac_interval_s=0.2)
    paused, other = [await client.create_ledger() for _ in range(2)]
    await paused.append(b"x")
    await other.append(b"x")  # with its key the first one's is forgotten
    reader = await (await cluster.client()).open_ledger(paused.ledger_id)
    async with asyncio.timeout(DEADLINE_S):
        async for entry in reader.tail():
            assert entry.data == b"x"
            break
    await cluster.stop()
