"""Writers that are open and do nothing: they cost some memory, and no work at all."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import batch_queues, pool_of, publishing
from tests.in_process import DEADLINE_S, InProcess, contents
from tests.waiting import eventually

from bkpy.client.client import replication_context
from bkpy.client.write.batcher import AppendBatcher
from bkpy.client.write.explicit_lac import ExplicitLac
from bkpy.client.write.progress import Progress
from bkpy.client.write.replication import Replication

if TYPE_CHECKING:
    from bkpy.client.client import Client
    from bkpy.client.write.writer import LedgerWriter

WRITERS = 60
TOLD = "last add confirmed"  # tasks that tell bookies


async def idle(client: Client, count: int = WRITERS) -> list[LedgerWriter]:
    """Writers that have each appended once, and have told bookies so."""
    writers = [await client.create_ledger() for _ in range(count)]
    await asyncio.gather(*(writer.append(b"x") for writer in writers))
    await eventually(lambda: all(writer.pending.lac.sent == 0 for writer in writers))
    await eventually(lambda: not publishing(client) and not replication_context(client).parts.dispatcher.watched())
    return writers


def sent_of(writer: LedgerWriter) -> int:
    return writer.pending.lac.sent


def spawned(client: Client, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the tasks that the client starts from now on."""
    names: list[str] = []
    runtime = replication_context(client).parts.runtime
    spawn = runtime.spawn

    def recorded(coro: Any, *, name: str, **rest: Any) -> Any:
        names.append(name)
        return spawn(coro, name=name, **rest)

    object.__setattr__(runtime, "spawn", recorded)
    return names


@pytest.mark.thorough
async def test_a_restart_of_bookies_is_no_work_for_idle_writers(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await cluster.client(progress_check_interval_s=0.01)
    writers = await idle(client)
    calls: list[str] = []
    for of, names in (
        (Replication, ("busy", "stalled", "bookie_failed", "rest")),
        (AppendBatcher, ("drain",)),
        (ExplicitLac, ("publish",)),
    ):
        for name in names:
            method = getattr(of, name)

            def counted(self: Any, *args: Any, name: str = name, method: Any = method) -> Any:
                calls.append(name)
                return method(self, *args)

            monkeypatch.setattr(of, name, counted)
    tasks = spawned(client, monkeypatch)
    looks = 0
    look = Progress.look

    def counted_look(self: Progress, *args: Any) -> None:
        nonlocal looks
        looks += 1
        look(self, *args)

    monkeypatch.setattr(Progress, "look", counted_look)
    for name in "abc":
        await cluster.restart(name)
        await pool_of(client).channel(name).connect(again=True)
    await eventually(lambda: looks >= 3)
    assert calls == []
    assert len(tasks) <= 3  # of the bookies, not of the writers
    assert await asyncio.gather(*(writer.append(b"y") for writer in writers)) == [1] * WRITERS
    for writer in writers:
        await writer.close()


@pytest.mark.thorough
async def test_thousands_that_pause_at_once_leave_room_for_reads(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bookies that answer nothing of what they are told of idle writers hold up nothing else."""
    client = await cluster.client(lac_writes_in_flight_max=2, calls_in_flight_max=4, add_timeout_s=2 * DEADLINE_S)
    closed = await client.create_ledger()
    await closed.append(b"x")
    await closed.close()
    go_on = asyncio.Event()
    at_bookies = 0

    async def held(set_explicit_lac: Any, *args: Any) -> None:
        nonlocal at_bookies
        at_bookies += 1
        await go_on.wait()
        await set_explicit_lac(*args)

    for name in "abc":
        storage = cluster.storage(name)
        monkeypatch.setattr(storage, "set_explicit_lac", partial(held, storage.set_explicit_lac))
    tasks = spawned(client, monkeypatch)
    writers = [await client.create_ledger() for _ in range(WRITERS)]
    await asyncio.gather(*(writer.append(b"x") for writer in writers))
    await eventually(lambda: all(writer.pending.lac.sent == 0 for writer in writers) and at_bookies == 6)
    assert sum("last add confirmed" in name for name in tasks) == 6
    async with asyncio.timeout(DEADLINE_S):
        assert await contents(client, closed.ledger_id) == [b"x"]
    go_on.set()
    for writer in writers:
        reader = await client.open_ledger(writer.ledger_id)
        async with asyncio.timeout(DEADLINE_S):
            while await reader.read_last_add_confirmed() < 0:
                await asyncio.sleep(0.01)
    await eventually(lambda: at_bookies == 3 * WRITERS)
    await eventually(lambda: not publishing(client))


async def test_what_is_told_is_what_is_confirmed_by_then(cluster: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await cluster.client(lac_writes_in_flight_max=1)
    told: list[tuple[str, int, int]] = []
    publish_to = ExplicitLac.publish_to
    go_on = asyncio.Event()

    first, second = await client.create_ledger(), await client.create_ledger()
    ledgers = {writer.pending.lac: writer.ledger_id for writer in (first, second)}

    async def recorded(self: ExplicitLac, bookie_id: str) -> None:
        await go_on.wait()
        told.append((bookie_id, ledgers[self], self.entry))
        await publish_to(self, bookie_id)

    monkeypatch.setattr(ExplicitLac, "publish_to", recorded)
    for i in range(3):
        await asyncio.gather(first.append(b"x"), second.append(b"x"))
        await eventually(lambda i=i: sent_of(first) == sent_of(second) == i)  # type: ignore[misc]
    go_on.set()
    await eventually(lambda: not publishing(client))
    # The first of each bookie had been taken up before the later appends, and waits again for those.
    assert {entry_id for _, _, entry_id in told} == {2}
    assert len(told) <= 9
    assert {ledger_id for _, ledger_id, _ in told} == {first.ledger_id, second.ledger_id}


async def test_what_too_few_bookies_were_told_is_told_again(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, other = await cluster.client(), await cluster.client()
    names = spawned(client, monkeypatch)
    writer = await client.create_ledger()
    await writer.append_batch([b"x"])
    for name in "abc":
        cluster.refuse(name)
        for connection in cluster.connections(name):
            connection.abort()
    await asyncio.sleep(30)
    assert len([name for name in names if name.startswith(TOLD)]) < 50  # it doesn't try all the time
    for name in "ab":
        cluster.admit(name)
    reader = await other.open_ledger(writer.ledger_id)
    async with asyncio.timeout(DEADLINE_S):
        assert (await anext(reader.tail())).data == b"x"
    await asyncio.sleep(10)
    names.clear()
    await asyncio.sleep(10)
    assert not [name for name in names if name.startswith(TOLD)]
    await writer.close()


@pytest.mark.thorough
@pytest.mark.real("what objects of the real loop take")
async def test_an_idle_writer_is_small(cluster: InProcess) -> None:
    """What the metadata store in memory keeps of its ledger, about 850 bytes, is in the figure."""
    client = await cluster.client(explicit_lac_interval_s=0.01)
    warm = await idle(client)
    gc.collect()
    tracemalloc.start()
    try:
        writers = [await client.create_ledger() for _ in range(300)]
        gc.collect()
        fresh = tracemalloc.get_traced_memory()[0] / len(writers)
    finally:
        tracemalloc.stop()
    assert fresh < 4_000
    used = await idle(client, 3)
    for writer in (*warm, *used):
        assert batch_queues(writer) == ((), ())
    assert await used[0].append(b"y") == 1


class Writer:
    """Busy until it is told not to be; remembers for how long it was said to be stalled."""

    def __init__(self) -> None:
        self.confirmed = -1
        self.waits = True
        self.seconds: list[float] = []

    def busy(self) -> bool:
        return self.waits

    def stalled(self, seconds: float) -> None:
        self.seconds.append(seconds)


def test_time_counts_from_the_first_look_at_which_a_writer_was_busy() -> None:
    progress, writer = Progress(), Writer()
    writer.waits = False
    progress.look(0, [writer])
    progress.look(100, [])
    writer.waits = True
    for now in (200, 205, 215):
        progress.look(now, [writer])
    assert writer.seconds == [0, 5, 15]
    writer.confirmed = 3
    progress.look(220, [writer])
    progress.look(230, [writer])
    assert writer.seconds[3:] == [0, 10]
    writer.waits = False
    progress.look(240, [writer])
    writer.waits = True
    progress.look(250, [writer])
    assert writer.seconds[5:] == [0]
