"""Calls from another thread, event loop or process are refused before anything is done, and `threadsafe` makes them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import inspect
import os
import threading
import warnings
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from tests import api_page
from tests.in_process import InProcess, contents
from tests.unit.log.support import contents as log_contents

import bkpy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.real("threads")

ONE = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}
_NOT_REFUSED_S = 0.2  # what isn't refused at once may never end in a loop that isn't its own
REFUSED = "nothing was done: "
IN_A_THREAD = (
    REFUSED + r"the client belongs to the event loop of another thread than elsewhere: from .* bkpy.threadsafe"
)
# By name of the parameter, for those that have no default and are looked at before the call is refused.
ARGUMENTS: dict[str, Any] = {
    "bookie_id": "a",
    "before": 0,
    "confirmed": 0,
    "consumer": "billing",
    "copy": None,
    "data": b"foreign",
    "enabled": True,
    "entries": [b"foreign"],
    "first": 0,
    "last": 0,
    "last_entry": 0,
    "ledger_id": 0,
    "metadata": None,
    "name": "orders",
    "position": 0,
    "ranges_max": 1,
    "time": 0.0,
    "writer_id": "sink",
}


class World(NamedTuple):
    """A cluster, a client of it, and one of each object that belongs to the client."""

    cluster: InProcess
    client: bkpy.Client
    writer: bkpy.LedgerWriter
    log: bkpy.LogWriter
    objects: tuple[Any, ...]


async def start(directory: Path) -> World:
    cluster = InProcess(directory)
    await cluster.start("a")
    client = await cluster.client()
    writer, log = await client.create_ledger(**ONE), await client.open_log("orders", create=True, **ONE)
    assert (await writer.append(b"own"), await log.append(b"own")) == (0, 0)
    numbered = await client.open_log("numbered", create=True, producer="shop", **ONE)
    assert await numbered.append(b"own", sequence=0) == 0
    reader = await client.read_log("orders")
    consumer = await reader.consumer("billing", create=True)
    ledger = await client.open_ledger(writer.ledger_id)
    return World(
        cluster,
        client,
        writer,
        log,
        (client, bkpy.AdminClient(client), writer, log, numbered, ledger, reader, consumer),
    )


async def intact(world: World, *expected: bytes) -> None:
    """Everything goes on as if nobody had called, and the log and the ledger have just these entries."""
    entries = [b"own", *expected, b"after"]
    for one in (world.writer, world.log):
        assert await one.append(b"after") == len(entries) - 1
        await one.close()
    numbered = next(it for it in world.objects if isinstance(it, bkpy.LogWriter) and it.producer)
    assert await numbered.append(b"after", sequence=1) == 1
    await numbered.close()
    assert await contents(world.client, world.writer.ledger_id) == entries
    assert await log_contents(world.client, "orders") == entries


def calls(world: World) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every public call that the page of the API says belongs to the event loop."""
    for place, it in enumerate(world.objects):
        for name, function in api_page.calls(type(it)):
            if api_page.kind(function) is not api_page.Kind.ANYWHERE:
                needed = [
                    p.name for p in list(inspect.signature(function).parameters.values())[1:] if p.default is p.empty
                ]
                arguments = {parameter: ARGUMENTS.get(parameter) for parameter in needed}
                yield f"{type(it).__name__}.{name} of object {place}", partial(getattr(it, name), **arguments)


async def made(call: Callable[[], Any]) -> None:
    """Carry out a call, whatever it returns."""
    async with asyncio.timeout(_NOT_REFUSED_S):
        result = call()
        if inspect.isawaitable(result):
            await result
        elif hasattr(result, "__anext__"):
            await anext(result)


def refusals(world: World, run: Callable[[Any], Any]) -> dict[str, str]:
    """By call, the message with which it was refused; or what became of it in place of that."""
    found = {}
    for name, call in calls(world):
        try:
            run(made(call))
        except bkpy.WrongEventLoopError as e:
            found[name] = str(e) if (e.retriable, e.outcome_unknown) == (False, False) else repr(vars(e))
        except BaseException as e:
            found[name] = f"not refused: {e!r}"
        else:
            found[name] = "not refused"
    assert len(found) > 60
    return found


def in_a_thread(function: Callable[[], Any]) -> Any:
    """What the function returns in a thread of its own; the caller blocks, as an event loop does in a long turn."""
    done: list[Any] = []

    def run() -> None:
        try:
            done.append(function())
        except BaseException as e:
            done.append(e)

    thread = threading.Thread(target=run, name="elsewhere")
    thread.start()
    thread.join()
    if isinstance(done[0], BaseException):
        raise done[0]
    return done[0]


def in_a_fork(function: Callable[[], None]) -> None:
    """Carry out the function in a forked process, in which it must not raise."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        error = ""
        try:
            function()
        except BaseException as e:
            error = repr(e)
        finally:
            os.write(writable, error.encode()[:60_000])
            os._exit(0)
    os.close(writable)
    with open(readable, encoding="utf-8") as answer:
        error = answer.read()
    os.waitpid(child, 0)
    assert error == ""


def all_refused(found: dict[str, str], why: str) -> None:
    assert {name: message for name, message in found.items() if not message.startswith(REFUSED + why)} == {}


@contextmanager
def running(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """As if the loop ran, for what asks which one does."""
    asyncio._set_running_loop(loop)
    try:
        yield
    finally:
        asyncio._set_running_loop(None)


# --- elsewhere --------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_every_call_in_another_thread_is_refused_and_does_nothing(tmp_path: Path) -> None:
    with asyncio.Runner() as runner:
        world = runner.run(start(tmp_path))

        async def while_it_runs() -> None:
            loop_of_thread = partial(in_a_thread, lambda: refusals(world, asyncio.run))
            all_refused(loop_of_thread(), "the client belongs to the event loop of another thread than elsewhere: from")
            await intact(world)

        runner.run(while_it_runs())
        runner.run(world.cluster.stop())


def test_every_call_in_a_second_event_loop_is_refused_and_does_nothing(tmp_path: Path) -> None:
    with asyncio.Runner() as runner:
        world = runner.run(start(tmp_path))
        with asyncio.Runner() as second:
            found = refusals(world, second.run)
        all_refused(found, "the client belongs to another event loop of this thread: connect in each event loop")
        with pytest.raises(bkpy.WrongEventLoopError, match="does not run: call this in a coroutine"):
            world.log.append_nowait(b"foreign")
        runner.run(intact(world))
        runner.run(world.cluster.stop())


@pytest.mark.thorough
def test_every_call_after_its_event_loop_has_ended_says_so(tmp_path: Path) -> None:
    with asyncio.Runner() as runner:
        world = runner.run(start(tmp_path))
        for node in world.cluster.nodes:
            runner.run(node.stop())
    found = refusals(world, asyncio.run)
    all_refused(found, "the event loop of the client is closed, as asyncio.run closes its own when it returns: connect")
    with pytest.raises(bkpy.WrongEventLoopError, match="the event loop of the client is closed"):
        bkpy.threadsafe(world.client).call(world.log.append, b"foreign")
    with warnings.catch_warnings():  # nobody can close them any more
        warnings.simplefilter("ignore", ResourceWarning)
        del world
        gc.collect()


@pytest.mark.thorough
def test_every_call_in_a_forked_process_is_refused_and_does_nothing(tmp_path: Path) -> None:
    with asyncio.Runner() as runner:
        world = runner.run(start(tmp_path))

        def child() -> None:
            all_refused(refusals(world, asyncio.run), "the process was forked after the client was made")
            # Its own loop is refused as well: the sockets that it waits for are the parent's.
            with running(runner.get_loop()), pytest.raises(bkpy.WrongEventLoopError, match="connect in this process"):
                world.log.append_nowait(b"foreign")
            with pytest.raises(bkpy.WrongEventLoopError, match="connect in this process"):
                bkpy.threadsafe(world.client).call(world.log.append, b"foreign")

        in_a_fork(child)
        runner.run(intact(world))
        runner.run(world.cluster.stop())


async def test_an_append_in_another_thread_beside_one_of_the_loop_writes_nothing(tmp_path: Path) -> None:
    world = await start(tmp_path)
    for writer in (world.writer, world.log):
        own = writer.append_nowait(b"beside")  # its batch is open until the next turn of the loop
        for refused in (writer.append_nowait, lambda data, to=writer: asyncio.run(to.append(data))):
            with pytest.raises(bkpy.WrongEventLoopError, match=IN_A_THREAD):
                in_a_thread(partial(refused, b"foreign"))
        assert await own == 1
    await intact(world, b"beside")
    await world.cluster.stop()


@pytest.mark.thorough
async def test_an_append_in_a_process_that_was_forked_beside_one_writes_nothing(tmp_path: Path) -> None:
    world = await start(tmp_path)
    for writer in (world.writer, world.log):
        own = writer.append_nowait(b"beside")

        def child(writer: Any = writer) -> None:
            with pytest.raises(bkpy.WrongEventLoopError, match="the process was forked"):
                writer.append_nowait(b"foreign")

        in_a_fork(child)
        assert await own == 1
    await intact(world, b"beside")
    await world.cluster.stop()


# --- threadsafe -------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(30)  # what waits for itself never ends
async def test_threads_append_and_read_by_threadsafe(tmp_path: Path) -> None:
    world = await start(tmp_path)
    threads = bkpy.threadsafe(world.client)

    def work() -> list[Any]:
        log = threads.call(world.client.open_log, "others", create=True, **ONE)
        positions = [threads.call(log.append, b"%d" % n) for n in range(3)]
        positions.append(threads.submit(log.append_nowait, b"3").result(30))
        threads.call(log.close)
        reader = threads.call(world.client.read_log, "others")
        entries = [entry.data for entry in threads.iterate(reader.read, first=1)]
        tail = threads.iterate(reader.tail)
        entries.append(next(tail).data)
        tail.close()  # type: ignore[attr-defined]
        with pytest.raises(bkpy.NoSuchLogError):
            threads.call(world.client.read_log, "none")
        with pytest.raises(TypeError, match="unexpected keyword argument 'passwort'"):
            threads.call(world.client.read_log, "others", passwort=b"")  # type: ignore[call-arg]
        return [positions, entries]

    assert await asyncio.to_thread(work) == [[0, 1, 2, 3], [b"1", b"2", b"3", b"0"]]
    with pytest.raises(bkpy.WrongEventLoopError, match="would wait for itself: await the call"):
        threads.call(world.log.append, b"foreign")
    await intact(world)
    await world.cluster.stop()


@pytest.mark.timeout(30)  # nor what is waited for again and again
async def test_an_error_of_time_of_the_call_itself_is_raised(tmp_path: Path) -> None:
    world = await start(tmp_path)

    async def out_of_time() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        await asyncio.to_thread(bkpy.threadsafe(world.client).call, out_of_time)
    await world.log.close()
    await world.writer.close()
    await world.cluster.stop()


class Deaf(asyncio.SelectorEventLoop):
    """A loop that, once it is `deaf`, drops what threads ask for, as one does that ends before it gets to it."""

    deaf = False

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        if self.deaf:
            self.dropped.set()
            return asyncio.Handle(callback, args, self)
        return super().call_soon_threadsafe(callback, *args, context=context)

    def __init__(self) -> None:
        super().__init__()
        self.dropped = threading.Event()


@pytest.mark.filterwarnings("error::RuntimeWarning", "error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("deaf", [False, True])
def test_a_thread_that_waits_for_a_loop_that_ends_is_released(tmp_path: Path, deaf: bool) -> None:
    ended: list[BaseException] = []

    async def main(world: World) -> threading.Thread:
        begun = asyncio.Event()

        async def never() -> None:
            begun.set()
            await asyncio.get_running_loop().create_future()

        def wait() -> None:
            try:
                bkpy.threadsafe(world.client).call(never)
            except BaseException as e:
                ended.append(e)

        await world.log.close()
        await world.writer.close()
        await world.cluster.stop()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Deaf)
        loop.deaf = deaf
        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        if deaf:
            assert loop.dropped.wait(30)
        else:
            await begun.wait()
        return thread

    with asyncio.Runner(loop_factory=Deaf) as runner:
        thread = runner.run(main(runner.run(start(tmp_path))))
    thread.join(30)
    assert not thread.is_alive()
    (error,) = ended
    assert isinstance(error, bkpy.WrongEventLoopError if deaf else concurrent.futures.CancelledError), repr(error)
