"""A client's connections: what is written to them, what counts as reached, and why there are none."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
from typing import TYPE_CHECKING

import pytest
from tests.hooks import attempts, look_up_by, pool_of, tasks_of, transport_of, unanswered_adds
from tests.in_process import DEADLINE_S, InProcess
from tests.waiting import eventually

import bkpy
from bkpy.client.client import replication_context
from bkpy.errors import BookieUnavailableError
from bkpy.metadata.bookies.cookies import delete_cookie
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Op, Status

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


async def test_nothing_is_written_to_a_connection_that_is_gone(
    cluster: InProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """Until the loop has told of the end, every write would be complained about, a line each."""
    client = await cluster.client()
    writer = await client.create_ledger()
    await writer.append(b"0")
    await eventually(lambda: not unanswered_adds(pool_of(client).channel("a")))
    transport_of(pool_of(client).channel("a")).abort()
    with caplog.at_level(logging.WARNING, logger="asyncio"):
        futures = []
        for i in range(1, 50):
            futures.append(writer.append_nowait(b"%d" % i))
            replication_context(client).parts.dispatcher.send()
        async with asyncio.timeout(DEADLINE_S):
            assert await asyncio.gather(*futures) == list(range(1, 50))
    assert not [record.getMessage() for record in caplog.records if record.name == "asyncio"]
    await writer.close()


async def test_whoever_wants_one_more_attempt_is_not_told_of_one_that_had_begun_before(cluster: InProcess) -> None:
    client = await cluster.client()
    channel = pool_of(client).channel("a")
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def unreachable(bookie_id: str) -> str:
        begun.set()
        await go_on.wait()
        look_up_by(channel, address)
        raise BookieUnavailableError("not yet", bookie=bookie_id)

    address = look_up_by(channel, unreachable)
    first = asyncio.create_task(channel.connect())
    await begun.wait()
    more = asyncio.create_task(channel.connect(again=True))
    await asyncio.sleep(0)
    go_on.set()
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(BookieUnavailableError, match="not yet"):
            await first
        await more
    assert channel.up


async def test_every_request_to_a_bookie_whose_address_is_not_known_gets_an_error_of_its_own(
    cluster: InProcess,
) -> None:
    """A traceback is added to an error each time it is raised: one that all requests share grows with each of them."""
    client = await cluster.client()
    channel = pool_of(client).channel("a")

    async def unknown(bookie_id: str) -> str:
        raise bkpy.MetadataUnavailableError("no session")

    look_up_by(channel, unknown)
    with pytest.raises(BookieUnavailableError, match="no session"):
        await channel.connect()
    errors = []
    for _ in range(2):
        with pytest.raises(bkpy.MetadataUnavailableError, match="no session") as raised:
            await channel.connect()
        errors.append(raised.value)
    assert errors[0] is not errors[1]
    assert [error.bookie for error in errors] == ["a", "a"]


async def test_a_bookie_that_is_silent_is_not_waited_for_twice(cluster: InProcess) -> None:
    client = await cluster.client(connect_timeout_s=0.2)
    cluster.hang("a")
    channel = pool_of(client).channel("a")
    first = asyncio.create_task(channel.connect())
    await eventually(lambda: bool(cluster.connections("a")))
    await asyncio.sleep(0.1)  # it has greeted the bookie, and waits
    more = asyncio.create_task(channel.connect(again=True))
    await asyncio.wait([first])
    done, _ = await asyncio.wait([more], timeout=0)
    assert done
    for task in (first, more):
        with pytest.raises(BookieUnavailableError, match="no answer"):
            await task


async def test_why_a_bookie_hung_up_is_told(cluster: InProcess) -> None:
    client = await cluster.client()
    channel = pool_of(client).channel("a")
    await channel.connect()
    for connection in cluster.connections("a"):
        connection.refuse(bkpy.ProtocolError("it makes no sense"))
    with pytest.raises(BookieUnavailableError, match="it makes no sense"):
        await channel.call(bkpy.protocol.wire.messages.Op.READ_LAC, b"", timeout_s=DEADLINE_S)


@contextlib.contextmanager
def no_file_descriptors() -> Iterator[int]:
    """The process may open no more files, whatever is closed meanwhile: the limit allows its standard ones alone."""
    limits, limit = resource.getrlimit(resource.RLIMIT_NOFILE), 3
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limits[1]))
    try:
        yield limit
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.real("sockets take file descriptors")
async def test_the_end_of_file_descriptors_is_named(cluster: InProcess) -> None:
    client = await cluster.client()
    with no_file_descriptors() as limit, pytest.raises(BookieUnavailableError) as failure:
        await pool_of(client).channel("a").connect()
    assert f"this process is out of file descriptors (limit {limit})" in str(failure.value)
    assert failure.value.bookie == "a"
    async with asyncio.timeout(DEADLINE_S):
        await pool_of(client).channel("a").connect(again=True)


async def test_a_request_that_is_refused_until_its_time_is_up_ends_as_refused(tmp_path: Path) -> None:
    """The bookie is there and answers: nobody should prefer others for being slow."""
    cluster = InProcess(tmp_path)
    await cluster.start("a", requests_in_flight_max=1)
    writer = await (await cluster.client()).create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
    await writer.append(b"0")
    await cluster.restart("a")  # its memtable is empty: reads need the disk
    cluster.disks["a"].stall("read")
    channel = pool_of(await cluster.client()).channel("a")
    ask = m.pack([0, writer.ledger_id])
    first = asyncio.create_task(channel.call(Op.READ_LAC, ask, timeout_s=DEADLINE_S))
    await eventually(lambda: cluster.service("a").requests_in_flight == 1)
    refused = await channel.call(Op.READ_LAC, ask, timeout_s=0.2)
    assert m.reply_status(refused.head) == Status.TOO_MANY_REQUESTS
    assert channel.slow_until == 0.0
    second = asyncio.create_task(channel.call(Op.READ_LAC, ask, timeout_s=DEADLINE_S))
    asyncio.get_running_loop().call_later(0.2, cluster.disks["a"].unstall)
    async with asyncio.timeout(DEADLINE_S):
        for reply in (await first, await second):
            assert m.reply_status(reply.head) == Status.OK
    await cluster.stop()


# --- bookies that are gone --------------------------------------------------------------------------------------------

LONG_S = 600.0  # for more than a channel and a directory remember a bookie that nobody needs


async def gone(cluster: InProcess, name: str, *, cookie: bool = False) -> None:
    """The bookie ends, and its cookie with it unless that stays."""
    await cluster.node(name).stop()
    if not cookie:
        await delete_cookie(cluster.tree.session(), cluster.root, name)


async def attempts_within(client: bkpy.Client, name: str, seconds: float) -> int:
    before = attempts(pool_of(client).channel(name))
    await asyncio.sleep(seconds)
    return attempts(pool_of(client).channel(name)) - before


@pytest.mark.thorough
async def test_a_bookie_that_is_gone_is_not_dialled_for_ever(cluster: InProcess) -> None:
    client = await cluster.client()
    await pool_of(client).channel("c").connect()
    await gone(cluster, "c", cookie=True)
    assert await attempts_within(client, "c", 60) > 30  # it may be back at any time
    await asyncio.sleep(LONG_S)
    assert await attempts_within(client, "c", LONG_S) == 0
    assert not [task for task in tasks_of(client) if task.get_name() == "connection to c"]
    with pytest.raises(BookieUnavailableError):
        await pool_of(client).channel("c").connect()
    assert await attempts_within(client, "c", 60) > 30
    await cluster.start_node("c")
    await eventually(lambda: pool_of(client).channel("c").up, "it is connected to again without a request")
    await gone(cluster, "c", cookie=True)
    await asyncio.sleep(2 * LONG_S)
    await cluster.start_node("c")
    await pool_of(client).channel("c").connect()


@pytest.mark.thorough
async def test_a_bookie_that_is_used_is_dialled_for_as_long(cluster: InProcess) -> None:
    """A writer that may replace nobody waits for the bookie with what it has missed, and sends nothing meanwhile."""
    client = await cluster.client(disable_ensemble_change=True, add_quorum_timeout_s=10 * LONG_S)
    writer = await client.create_ledger(ack_quorum=3)
    await writer.append(b"0")
    await gone(cluster, "c", cookie=True)
    appending = asyncio.create_task(writer.append(b"1"))
    await asyncio.sleep(2 * LONG_S)
    assert not appending.done()
    await cluster.start_node("c")
    async with asyncio.timeout(DEADLINE_S):
        assert await appending == 1
    await writer.close()


async def test_a_directory_forgets_bookies_without_a_cookie(cluster: InProcess) -> None:
    client = await cluster.client()
    directory = replication_context(client).directory
    await gone(cluster, "b", cookie=True)
    await gone(cluster, "c")
    await eventually(lambda: directory.absent_since.keys() == {"b", "c"})
    await asyncio.sleep(LONG_S)
    assert directory.absent_since.keys() == {"b"}
    with pytest.raises(BookieUnavailableError, match="the cluster knows no such bookie"):
        await directory.address_of("c")
    assert await directory.address_of("b")


@pytest.mark.thorough
async def test_a_bookie_that_a_writer_names_is_not_forgotten(cluster: InProcess) -> None:
    """The writer leaves it as soon as another one is there, whether it appends or not."""
    client = await cluster.client()
    directory = replication_context(client).directory
    writer = await client.create_ledger()
    await writer.append(b"0")
    await gone(cluster, "c")
    await asyncio.sleep(LONG_S)
    assert directory.absent_since.keys() == {"c"}
    await cluster.start_node("d")
    await eventually(lambda: "c" not in writer.ensemble)
    await asyncio.sleep(LONG_S)
    assert not directory.absent_since
    await writer.close()
