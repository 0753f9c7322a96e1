"""Every public operation, ended at every point at which it waits: cancelled, or its client closed.

Invariants: what was acknowledged is read back; the writer goes on, or has ended with a clear error, and closes; nothing
that belonged to the operation is left running; nothing is reported to nobody.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator
from contextlib import aclosing, contextmanager
from itertools import count, product
from typing import TYPE_CHECKING, Any

import pytest
import uvloop
from tests.hooks import (
    channels_of,
    cluster_of,
    free_slots,
    out_of_order_of,
    pool_of,
    settings_of,
    tasks_of,
    transport_of,
    unanswered_adds,
    unanswered_calls,
    window_of,
)
from tests.in_process import DEADLINE_S, ROOT, InProcess, contents, runtime_here, virtual_loop
from tests.stepping import naming, run_to
from tests.waiting import eventually, turns

import bkpy
from bkpy.client.client import Client, open_client
from bkpy.client.write.append_window import AppendWindow
from bkpy.client.write.ledger_appends import LedgerAppends
from bkpy.client.write.writer import LedgerWriter
from bkpy.config.client import client_settings
from bkpy.metadata.store.memory import MemorySession

if TYPE_CHECKING:
    from pathlib import Path

LASTING = (
    "connection to",
    "bookie directory",
    "leaving bookies",
)  # what a client keeps running, by the beginnings of its names


def on_a_cluster(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
    directory: Path,
    test: Callable[[InProcess], Coroutine[Any, Any, None]],
) -> None:
    """Run the test with four bookies. Nothing may be reported to the loop because nobody else wanted to know."""
    reported: list[dict[str, Any]] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        cluster = InProcess(directory)
        await cluster.start("abcd")
        try:
            await test(cluster)
        finally:
            await cluster.stop()
            gc.collect()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())
    assert not reported


def running(client: Client) -> list[str]:
    return sorted(task.get_name() for task in tasks_of(client) if not task.done())


async def settled(client: Client) -> None:
    """Return when nothing is left of what was done with the client."""
    await eventually(lambda: all(name.startswith(LASTING) for name in running(client)))
    for channel in channels_of(client).values():
        await eventually(lambda channel=channel: not unanswered_calls(channel) and not unanswered_adds(channel))  # type: ignore[misc]
        assert free_slots(channel) == settings_of(client).calls_in_flight_max


async def written(client: Client, **ledger: Any) -> LedgerWriter:
    """A ledger that has the entries 0, 1 and 2."""
    writer = await client.create_ledger(**ledger)
    for i in range(3):
        await writer.append(b"%d" % i, entry_id=i if ledger.get("caller_ids") else None)
    if ledger.get("deferred_sync"):
        await writer.force()
    return writer


async def consume(entries: Any, wanted: int = 3) -> None:
    """Take as many, and leave."""
    async with aclosing(entries):
        async for _ in entries:
            wanted -= 1
            if not wanted:
                break


# --- the operations -----------------------------------------------------------------------------------------------

Operation = Callable[[LedgerWriter, Client], Coroutine[Any, Any, Any]]


async def append_in_a_full_window(writer: LedgerWriter) -> None:
    pending = [writer.append_nowait(b"w") for _ in range(4)]
    await writer.append(b"x")
    await asyncio.gather(*pending)


async def append_out_of_order(writer: LedgerWriter) -> None:
    later = writer.append_nowait(b"4", entry_id=4)
    await writer.append(b"3", entry_id=3)
    await later


async def flush(writer: LedgerWriter) -> None:
    writer.append_nowait(b"x")
    await writer.flush()


async def follow(writer: LedgerWriter, client: Client) -> None:
    reader = await client.open_ledger(writer.ledger_id)
    writer.append_nowait(b"t")
    await consume(reader.tail(), 4)


async def read(writer: LedgerWriter, client: Client, how: str, *range_: int) -> None:
    reader = await client.open_ledger(writer.ledger_id)
    await consume(getattr(reader, how)(*range_))


async def listed(client: Client) -> None:
    async for _ in client.list_ledgers():
        pass


OPERATIONS: dict[str, tuple[dict[str, Any], Operation]] = {
    "append": ({}, lambda writer, client: writer.append(b"x")),
    "append_striped": ({"write_quorum": 2}, lambda writer, client: writer.append(b"x")),
    "append_full": ({}, lambda writer, client: append_in_a_full_window(writer)),
    "append_batch": ({}, lambda writer, client: writer.append_batch([b"x", b"y"])),
    "append_at": ({"caller_ids": True}, lambda writer, client: append_out_of_order(writer)),
    "flush": ({}, lambda writer, client: flush(writer)),
    "force": ({"deferred_sync": True}, lambda writer, client: writer.force()),
    "close": ({}, lambda writer, client: writer.close()),
    "close_deferred": ({"deferred_sync": True}, lambda writer, client: writer.close()),
    "create": ({}, lambda writer, client: client.create_ledger()),
    "open": ({}, lambda writer, client: client.open_ledger(writer.ledger_id)),
    "recover": ({}, lambda writer, client: client.recover_ledger(writer.ledger_id)),
    "recover_striped": ({"write_quorum": 2}, lambda writer, client: client.recover_ledger(writer.ledger_id)),
    "read": ({}, lambda writer, client: read(writer, client, "read")),
    "read_striped": ({"write_quorum": 2}, lambda writer, client: read(writer, client, "read")),
    "read_blocks": ({}, lambda writer, client: read(writer, client, "read_blocks")),
    "read_unconfirmed": ({}, lambda writer, client: read(writer, client, "read_unconfirmed", 0, 2)),
    "tail": ({}, follow),
    "metadata": ({}, lambda writer, client: client.ledger_metadata(writer.ledger_id)),
    "list": ({}, lambda writer, client: listed(client)),
}


async def check_end(writer: LedgerWriter, client: Client) -> None:
    """The writer goes on, unless it was closed or fenced; it closes; what was acknowledged is there."""
    caller_ids = writer.metadata.caller_ids
    # A bookie that was away may have lost what was not forced yet.
    lost = (bkpy.BookieUnavailableError,) if writer.metadata.deferred_sync else ()
    async with asyncio.timeout(DEADLINE_S):
        try:
            entry_id = await writer.append(b"more", entry_id=writer.pending.next_id if caller_ids else None)
        except (bkpy.LedgerClosedError, bkpy.LedgerFencedError):
            entry_id = -1
        try:
            await writer.close()
        except (bkpy.LedgerClosedError, bkpy.LedgerFencedError, *lost):
            entry_id = -1
            await client.recover_ledger(writer.ledger_id)
        found = await contents(client, writer.ledger_id)
    assert found[:3] == [b"0", b"1", b"2"]
    if entry_id >= 0:
        assert found[entry_id] == b"more"


# --- what is out of order meanwhile -------------------------------------------------------------------------------


@contextmanager
def nothing(cluster: InProcess, client: Client, bookie_id: str) -> Iterator[None]:
    yield


@contextmanager
def a_bookie_lost(cluster: InProcess, client: Client, bookie_id: str) -> Iterator[None]:
    cluster.refuse(bookie_id)
    for connection in cluster.connections(bookie_id):
        connection.abort()
    yield
    cluster.admit(bookie_id)


@contextmanager
def a_bookie_hung(cluster: InProcess, client: Client, bookie_id: str) -> Iterator[None]:
    cluster.hang(bookie_id)
    yield
    cluster.admit(bookie_id)
    for connection in cluster.connections(bookie_id):
        connection.resume("hung")


@contextmanager
def metadata_away(cluster: InProcess, client: Client, bookie_id: str) -> Iterator[None]:
    session = cluster_of(client).store
    assert isinstance(session, MemorySession)
    session.suspend()
    yield
    session.resume()


LATES = dict.fromkeys((nothing, a_bookie_lost, a_bookie_hung, metadata_away), (False, True))
SETTINGS = {
    "write_window_entries": 4,
    "explicit_lac_interval_s": 0.01,
    "tail_poll_s": 0.01,
    "quarantine_s": 0.01,
}
IMPATIENT = {"connect_timeout_s": 1.0, "add_timeout_s": 1.0, "read_timeout_s": 1.0}


async def new_client(cluster: InProcess, fault: Any = nothing) -> Client:
    session = cluster.tree.session(call_timeout_s=0.05)
    settings = client_settings(**SETTINGS, **(IMPATIENT if fault is a_bookie_hung else {}))
    return await open_client(session, ROOT, runtime_here(), settings, owns_store=True)


# Not every fault with every loop: the faults are there for the client's ways, and the loops for what is below them.
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("new_loop", "fault"),
    [
        pytest.param(asyncio.new_event_loop, nothing, marks=pytest.mark.exhaustive),
        pytest.param(uvloop.new_event_loop, nothing, marks=pytest.mark.exhaustive),
        (virtual_loop, a_bookie_lost),
        pytest.param(virtual_loop, a_bookie_hung, marks=pytest.mark.exhaustive),
        (virtual_loop, metadata_away),
    ],
)
def test_whatever_is_cancelled_leaves_a_client_and_a_writer_that_go_on(
    new_loop: Any, fault: Any, tmp_path: Path
) -> None:
    async def test(cluster: InProcess) -> None:
        client = await new_client(cluster, fault)
        for (name, (ledger, operation)), late in product(OPERATIONS.items(), LATES[fault]):
            for at in count():
                with naming(name, at, late):
                    writer = await written(client, **ledger)
                    with fault(cluster, client, writer.ensemble[0]):
                        reached = await run_to(operation(writer, client), at, late, None)
                    await settled(client)
                    await check_end(writer, client)
                if not reached:
                    break
            assert at > 0
        await settled(client)
        await client.close()
        await eventually(lambda: not running(client))

    on_a_cluster(new_loop, tmp_path, test)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("new_loop", "fault"),
    [
        (virtual_loop, a_bookie_lost),
        pytest.param(uvloop.new_event_loop, nothing, marks=pytest.mark.exhaustive),
    ],
)
def test_a_client_that_is_closed_ends_whatever_is_under_way(new_loop: Any, fault: Any, tmp_path: Path) -> None:
    async def ended(cluster: InProcess, name: str, at: int, late: bool) -> bool:
        ledger, operation = OPERATIONS[name]
        client = await new_client(cluster)
        writer = await written(client, **ledger)
        closing: list[asyncio.Task[None]] = []
        with fault(cluster, client, writer.ensemble[0]):
            reached = await run_to(
                operation(writer, client), at, late, lambda: closing.append(asyncio.create_task(client.close()))
            )
            async with asyncio.timeout(DEADLINE_S):
                await asyncio.gather(*closing)
                await client.close()
        await eventually(lambda: not running(client))
        if not reached:
            other = await cluster.client()
            await other.recover_ledger(writer.ledger_id)
            assert (await contents(other, writer.ledger_id))[:3] == [b"0", b"1", b"2"]
        return reached

    async def test(cluster: InProcess) -> None:
        for name, late in product(OPERATIONS, LATES[fault]):
            for at in count():
                with naming(name, at, late):
                    if not await ended(cluster, name, at, late):
                        break

    on_a_cluster(new_loop, tmp_path, test)


@pytest.mark.parametrize("late", [False, True])
async def test_closing_a_client_ends_its_session_though_it_is_cancelled(cluster: InProcess, late: bool) -> None:
    for at in count():
        client = await new_client(cluster)
        await written(client)
        reached = await run_to(client.close(), at, late, None)
        with pytest.raises(bkpy.ClientClosedError):
            await cluster_of(client).store.exists("/")
        await eventually(lambda client=client: not running(client))  # type: ignore[misc]
        if not reached:
            break
    assert at > 0


async def test_of_several_who_close_a_client_each_returns_when_all_is_closed(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = MemorySession.close

    async def closed_slowly(session: MemorySession) -> None:
        await asyncio.sleep(1)  # as the end of a session of ZooKeeper, which takes an answer
        await close(session)

    monkeypatch.setattr(MemorySession, "close", closed_slowly)
    for at in count():
        client = await new_client(cluster)
        await written(client)
        first = asyncio.create_task(run_to(client.close(), at, False, None))
        await turns()
        await asyncio.gather(client.close(), client.close())
        await turns()
        assert first.done()
        if not await first:
            break
    assert at > 0


async def test_an_append_that_was_cancelled_while_it_waited_for_room_holds_up_nobody(cluster: InProcess) -> None:
    client = await cluster.client(write_window_bytes=100, add_timeout_s=DEADLINE_S)
    writer = await client.create_ledger()
    await writer.append(b"0")
    for bookie_id in "abc":
        cluster.hang(bookie_id)
    pending = [writer.append_nowait(bytes(60))]
    large = asyncio.create_task(writer.append(bytes(80)))
    small = asyncio.create_task(writer.append(bytes(10)))
    await asyncio.sleep(0)
    large.cancel()
    await eventually(lambda: writer.pending.next_id == 3)  # there is room for the small one
    large = asyncio.create_task(writer.append(bytes(80)))
    await asyncio.sleep(0)
    large.cancel()
    await asyncio.wait([large])
    assert not window_of(writer).waiters  # `close` waits for those: for one that never ends it would spin
    closing = asyncio.create_task(writer.close())
    for connection in [connection for bookie_id in "abc" for connection in cluster.connections(bookie_id)]:
        connection.resume("hung")
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(small, closing, *pending)
    assert await contents(client, writer.ledger_id) == [b"0", bytes(60), bytes(10)]


async def test_an_append_that_is_cancelled_when_it_is_given_room_passes_it_on(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelled in the turn of the loop in which there was room, before it has gone on."""
    client = await cluster.client(write_window_bytes=100, write_window_entries=3)
    given_room: list[asyncio.Task[int]] = []
    give_room = AppendWindow.give_room

    def give_room_and_cancel(self: AppendWindow) -> None:
        give_room(self)
        if self.admitted:
            while given_room:
                given_room.pop().cancel()

    monkeypatch.setattr(AppendWindow, "give_room", give_room_and_cancel)
    writer = await client.create_ledger()
    for _ in range(5):  # each would take its part of the window along
        first = writer.append_nowait(bytes(60))
        given_room.append(asyncio.create_task(writer.append(bytes(60))))
        behind = asyncio.create_task(writer.append(bytes(60)))
        cancelled = given_room[0]
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.wait([first, cancelled, behind])
        assert cancelled.cancelled()
        assert first.result() + 1 == behind.result()
        assert window_of(writer).filled() == (0, 0)
    await writer.close()


@pytest.mark.parametrize("leaving", ["cancelled", "too large by now"])
async def test_an_append_with_its_own_id_that_leaves_when_it_is_given_room_passes_it_on(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch, leaving: str
) -> None:
    """It leaves in the tick of the loop in which there was room, and nothing that is on its way will make more."""
    client = await cluster.client(write_window_entries=1)
    given_room: list[asyncio.Task[int]] = []
    on_confirmed = LedgerAppends.on_confirmed

    def give_room_and_leave(self: LedgerAppends) -> None:
        on_confirmed(self)
        if leaving == "cancelled":
            given_room[0].cancel()
        else:  # as when another bookie of the ensemble takes smaller entries
            self.batcher.replication.entry_bytes_max = 10

    monkeypatch.setattr(LedgerAppends, "on_confirmed", give_room_and_leave)
    writer = await client.create_ledger(caller_ids=True)
    first = writer.append_nowait(b"0", entry_id=0)
    given_room.append(asyncio.create_task(writer.append(bytes(60), entry_id=1)))
    behind = asyncio.create_task(writer.append(b"2", entry_id=2))
    await asyncio.sleep(0)
    assert list(out_of_order_of(writer).room_waiters) == [1, 2]
    await first
    await asyncio.wait(given_room)
    assert given_room[0].cancelled() or isinstance(given_room[0].exception(), bkpy.FrameTooLargeError)
    await eventually(lambda: 2 in out_of_order_of(writer).early)
    async with asyncio.timeout(DEADLINE_S):
        await writer.append(b"1", entry_id=1)
        await behind
        await writer.close()
    assert window_of(writer).filled() == (0, 0)
    assert await contents(client, writer.ledger_id) == [b"0", b"1", b"2"]


async def test_of_two_who_close_a_writer_one_may_be_cancelled(cluster: InProcess) -> None:
    client = await cluster.client()
    for at in count():
        writer = await written(client)
        first = asyncio.create_task(run_to(writer.close(), at, False, None))
        await asyncio.sleep(0)
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(writer.close(), writer.close())
        assert (await client.ledger_metadata(writer.ledger_id)).last_entry == 2
        if not await first:
            break
    assert at > 0


@pytest.mark.thorough
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_client_that_is_closed_keeps_no_connection_to_a_bookie_that_reads_nothing(
    new_loop: Any, tmp_path: Path
) -> None:
    async def test(cluster: InProcess) -> None:
        client = await cluster.client()
        writer = await written(client)
        hung = pool_of(client).channel(writer.ensemble[0])
        cluster.hang(hung.bookie_id)
        transport = transport_of(hung)
        while transport.get_write_buffer_size() < 1 << 20:  # what the kernel doesn't take
            await writer.append(bytes(1 << 20))
        await client.close()
        await eventually(lambda: not transport.get_write_buffer_size())
        for connection in cluster.connections(hung.bookie_id):
            connection.resume("hung")
        await eventually(lambda: not cluster.connections(hung.bookie_id))

    on_a_cluster(new_loop, tmp_path, test)


def slow(session: MemorySession) -> MemorySession:
    """The same, with 10 ms to the store and 10 ms back."""
    perform = session.perform

    async def delayed(*args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0.01)
        result = await perform(*args, **kwargs)
        await asyncio.sleep(0.01)
        return result

    session.perform = delayed  # type: ignore[method-assign]
    return session


@pytest.mark.parametrize("late", [False, True])
async def test_a_client_that_is_closed_behind_a_cancelled_creation_leaves_no_ledger(
    cluster: InProcess, late: bool
) -> None:
    """As a time limit inside of `async with` does. The store takes a while for each request."""
    other = await cluster.client()
    await (await other.create_ledger()).close()  # the first one has nodes made above it, one after the other
    made, at, reached = 1, 0, True
    while reached:
        session = slow(cluster.tree.session())
        client = await open_client(session, ROOT, runtime_here(), client_settings(), owns_store=True)
        reached = await run_to(client.create_ledger(), at, late, None)
        made += not reached
        await client.close()
        assert len([ledger_id async for ledger_id in other.list_ledgers()]) == made, at
        at += 1
    assert at > 3
