"""The blocking client: its calls, from one thread and from many, interrupted, forked, in a loop and at the end."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
import uvloop
from prometheus_client import CollectorRegistry
from tests.hooks import is_waited_for, thread_of
from tests.in_process import DEADLINE_S, InProcess
from tests.unit.client.test_threads import in_a_fork
from tests.waiting import eventually

import bkpy
from bkpy.blocking.base import ClientThread
from bkpy.client.client import Client
from bkpy.client.iteration import Stepwise
from bkpy.log.reader import LogReader

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

ONE = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}
THREAD = "bkpy client"


async def connecting(directory: Path, clusters: list[InProcess] | None = None) -> Client:
    """A client whose cluster runs on the client's own event loop."""
    cluster = InProcess(directory)
    await cluster.start("a")
    if clusters is not None:
        clusters.append(cluster)
    return await cluster.client()


@contextmanager
def connected(directory: Path) -> Iterator[bkpy.BlockingClient]:
    clusters: list[InProcess] = []
    thread = ClientThread(connecting(directory, clusters))
    with bkpy.BlockingClient(thread.client, thread) as client:
        yield client
        for node in clusters[0].nodes:
            with suppress(bkpy.ClientClosedError):  # the test has closed it
                thread.call(node.stop)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == THREAD]


@pytest.mark.thorough
def test_it_does_what_the_client_does(tmp_path: Path) -> None:
    with connected(tmp_path) as client:
        with client.create_ledger(**ONE) as ledger:
            assert (ledger.append(b"0"), ledger.append_batch([b"1", b"2"])) == (0, range(1, 3))
            assert ledger.append_nowait(b"3").result(30) == 3
        with client.open_ledger(ledger.ledger_id) as entries:
            assert [entry.data for entry in entries.read()] == [b"0", b"1", b"2", b"3"]
        admin = bkpy.BlockingAdminClient(client)
        with client.open_log("orders", create=True, **ONE) as log:
            assert log.append_batch([b"%d" % n for n in range(3000)]) == range(3000)
            with client.read_log("orders") as reader, reader.tail(first=1) as tail:
                assert [int(entry.data) for entry in reader.read()] == list(range(3000))
                assert next(tail).data == b"1"
                reader.seek(2998)
                assert [entry.data for entry in reader.poll()] == [b"2998", b"2999"]
                with reader.consumer("billing", create=True, position=datetime.now(UTC)) as consumer:
                    consumer.commit(10)
                    assert consumer.lag().entries == 2990
                assert [status.name for status in reader.consumers()] == ["billing"]
            assert list(tail) == []
            assert admin.describe_log("orders").writer is not None
            assert admin.client.instance_id == client.instance_id
        assert list(client.list_logs()) == ["orders"]
        assert admin.truncate_log("orders", 5).first_position == 5
        with pytest.raises(bkpy.NoSuchLogError, match="none"):
            client.read_log("none")
    assert threads() == []
    with pytest.raises(bkpy.ClientClosedError, match="the client is closed"):
        log.append(b"late")
    client.close()


def test_an_entry_is_what_its_buffer_had_at_the_call(tmp_path: Path) -> None:
    with connected(tmp_path) as client, client.open_log("orders", create=True, **ONE) as log:
        with client.create_ledger(**ONE) as ledger, _loop_that_waits(client):
            buffer = bytearray(b"before")
            appended = [log.append_nowait(buffer), ledger.append_nowait(memoryview(buffer))]  # type: ignore[arg-type]
            buffer[:] = b"behind"
        assert [one.result(DEADLINE_S) for one in appended] == [0, 0]
        with client.open_ledger(ledger.ledger_id) as entries, client.read_log("orders") as reader:
            reader.refresh(confirmed=0)
            assert [entry.data for entry in (*entries.read(), *reader.read())] == [b"before", b"before"]


@contextmanager
def _loop_that_waits(client: bkpy.BlockingClient) -> Iterator[None]:
    """The client's loop begins nothing meanwhile."""
    go_on = threading.Event()

    async def wait() -> None:
        go_on.wait(DEADLINE_S)

    waiting = thread_of(client).submit(wait)
    try:
        yield
    finally:
        go_on.set()
        waiting.result(DEADLINE_S)


def test_its_metrics_are_the_clients(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    with connected(tmp_path) as client, client.create_ledger(**ONE) as ledger:
        registry.register(client.metrics)
        ledger.append(b"0")
        assert registry.get_sample_value("bkpy_client_appends_total") == 1
        assert registry.get_sample_value("bkpy_client_append_seconds_count") == 1


@pytest.mark.thorough
def test_threads_share_it(tmp_path: Path) -> None:
    with connected(tmp_path) as client, client.open_log("orders", create=True, **ONE) as log:
        with ThreadPoolExecutor(8) as pool:
            positions = list(pool.map(lambda n: log.append(b"%d" % n), range(200)))
        assert sorted(positions) == list(range(200))
        with client.read_log("orders") as reader:
            reader.refresh(confirmed=log.last_acknowledged or 0)
            shared = reader.read()
            with ThreadPoolExecutor(8) as pool:
                parts = list(pool.map(lambda _: [entry.position for entry in shared], range(8)))
        assert sorted(position for part in parts for position in part) == list(range(200))


def test_threads_that_wait_for_one_iterator_take_turns(tmp_path: Path) -> None:
    begun = threading.Barrier(9)

    def take(tail: Iterator[bkpy.LogEntry]) -> int:
        begun.wait(30)
        return next(tail).position

    with (
        connected(tmp_path) as client,
        client.open_log("orders", create=True, **ONE) as log,
        client.read_log("orders") as reader,
        reader.tail() as tail,
        ThreadPoolExecutor(8) as pool,
    ):
        waiting = [pool.submit(take, tail) for _ in range(8)]
        begun.wait(30)
        for n in range(8):
            log.append(b"%d" % n)
        assert sorted(one.result() for one in waiting) == list(range(8))


@contextmanager
def interrupted_soon(begun: threading.Event) -> Iterator[None]:
    """Ctrl-C for the main thread, which waits in a call, once that has begun on the loop."""

    def interrupt() -> None:
        begun.wait(30)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # in a job of the background it is ignored
    try:
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it may come at once
            thread.start()
            yield
        thread.join()
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.timeout(60)
def test_ctrl_c_cancels_the_call_and_loses_no_element(tmp_path: Path) -> None:
    with connected(tmp_path) as client, client.open_log("orders", create=True, **ONE) as log:
        log.append(b"0")
        with client.read_log("orders") as reader:
            tail, begun, cancelled = reader.tail(), threading.Event(), threading.Event()
            assert next(tail).data == b"0"

            async def waits() -> None:
                begun.set()
                try:
                    await asyncio.get_running_loop().create_future()
                finally:
                    cancelled.set()

            with interrupted_soon(begun):
                thread_of(client).call(waits)
            assert cancelled.wait(30)
            begun.clear()
            looking = thread_of(client).submit(_when_it_waits, tail, begun)
            with interrupted_soon(begun):
                next(tail)
            looking.result(30)
            log.append(b"1")
            log.append(b"2")
            assert (next(tail).data, next(tail).data) == (b"1", b"2")
            tail.close()
    assert threads() == []


@contextmanager
def interrupts() -> Iterator[None]:
    """Ctrl-C raises in the main thread, as it does for a program that nothing has begun in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def interrupt() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


@pytest.mark.timeout(60)
def test_what_a_poll_has_fetched_as_ctrl_c_comes_is_for_the_next_one(tmp_path: Path) -> None:
    poll = LogReader.poll

    async def interrupted(reader: LogReader, **arguments: Any) -> list[bkpy.LogEntry]:
        found = await poll(reader, **arguments)
        interrupt()
        return found

    with connected(tmp_path) as client, client.open_log("orders", create=True, **ONE) as log:
        log.append_batch([b"%d" % n for n in range(5)])
        reader = client.read_log("orders")

        def fetched_in_vain() -> None:
            with interrupts(), patch.object(LogReader, "poll", interrupted), pytest.raises(KeyboardInterrupt):
                reader.poll()

        fetched_in_vain()
        with pytest.raises(bkpy.ConfigError, match="max_entries"):
            reader.poll(max_entries=0)
        assert [entry.data for entry in reader.poll(max_entries=2, timeout=0)] == [b"0", b"1"]
        assert [entry.data for entry in reader.poll()] == [b"2", b"3", b"4"]
        log.append(b"5")
        fetched_in_vain()
        reader.seek(3)
        assert [entry.data for entry in reader.poll()] == [b"3", b"4", b"5"]
        assert reader.poll(timeout=0) == []


@pytest.mark.timeout(60)
@pytest.mark.parametrize("polled", [False, True])
def test_a_call_behind_an_interrupted_one_waits_until_that_has_ended(tmp_path: Path, polled: bool) -> None:
    following, begun = Stepwise.following, threading.Event()

    async def reluctant(source: Stepwise) -> Any:
        begun.set()
        try:
            return await following(source)
        except asyncio.CancelledError:
            await asyncio.sleep(0.2)
            raise

    with connected(tmp_path) as client, client.open_log("orders", create=True, **ONE) as log:
        reader = client.read_log("orders")
        tail = reader.tail()
        with patch.object(Stepwise, "following", reluctant):
            with interrupted_soon(begun):
                reader.poll() if polled else next(tail)
            appended = log.append_nowait(b"0")
            assert (reader.poll() if polled else [next(tail)])[0].data == b"0"
        assert appended.result(DEADLINE_S) == 0


@pytest.mark.timeout(60)
def test_a_second_thread_can_not_poll_meanwhile(tmp_path: Path) -> None:
    with connected(tmp_path) as client, client.open_log("orders", create=True, **ONE) as log:
        reader, begun = client.read_log("orders"), threading.Event()
        poll = LogReader.poll

        async def noticed(reader: LogReader, **arguments: Any) -> list[bkpy.LogEntry]:
            begun.set()
            return await poll(reader, **arguments)

        with ThreadPoolExecutor(1) as pool, patch.object(LogReader, "poll", noticed):
            polling = pool.submit(reader.poll)
            assert begun.wait(DEADLINE_S)
            for call in (reader.poll, lambda: reader.seek(0)):
                with pytest.raises(RuntimeError, match="another thread polls"):
                    call()
            log.append(b"0")
            assert [entry.data for entry in polling.result(DEADLINE_S)] == [b"0"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("deaf", [False, True])
def test_what_an_interrupted_call_has_made_ends(tmp_path: Path, deaf: bool) -> None:
    """Whether Ctrl-C comes as the call ends, or earlier in a call that a cancellation does not end."""

    def at_its_end(function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def interrupted(*args: Any, **kwargs: Any) -> Any:
            made = await function(*args, **kwargs)
            interrupt()
            if deaf:
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(DEADLINE_S)
                await asyncio.sleep(0.1)
            return made

        return interrupted

    def of_another(call: Callable[[], Any]) -> Any:
        """What the call returns once nobody has the lock any more."""
        deadline = monotonic() + DEADLINE_S
        while True:
            try:
                return call()
            except (bkpy.LogLockedError, bkpy.ConsumerLockedError):
                assert monotonic() < deadline

    with connected(tmp_path) as client:
        client.open_log("orders", create=True, **ONE).close()
        reader = client.read_log("orders")
        with (
            interrupts(),
            patch.object(Client, "open_log", at_its_end(Client.open_log)),
            pytest.raises(KeyboardInterrupt),
        ):
            client.open_log("orders")
        with (
            interrupts(),
            patch.object(LogReader, "consumer", at_its_end(LogReader.consumer)),
            pytest.raises(KeyboardInterrupt),
        ):
            reader.consumer("billing", create=True, lease=True)
        of_another(lambda: client.open_log("orders", wait=False)).close()
        of_another(lambda: reader.consumer("billing", lease=True)).close()


async def _when_it_waits(iterator: bkpy.BlockingIterator[bkpy.LogEntry], begun: threading.Event) -> None:
    while not is_waited_for(iterator):
        await asyncio.sleep(0)
    begun.set()


@pytest.mark.timeout(60)
def test_ctrl_c_while_it_connects_leaves_no_thread(tmp_path: Path) -> None:
    begun, cancelled = threading.Event(), threading.Event()

    async def never() -> Client:
        begun.set()
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            cancelled.set()

    with interrupted_soon(begun):
        ClientThread(never())
    assert cancelled.is_set()
    assert threads() == []


def test_it_works_where_a_loop_runs_as_in_a_notebook(tmp_path: Path) -> None:
    async def cell() -> list[str]:
        with connected(tmp_path) as client:
            client.open_log("orders", create=True, **ONE).close()
            return list(client.list_logs())

    assert asyncio.run(cell()) == ["orders"]


def test_a_forked_process_gets_an_error_and_ends_nothing(tmp_path: Path) -> None:
    with connected(tmp_path) as client, client.open_log("orders", create=True, **ONE) as log:
        log.append(b"0")
        with client.read_log("orders") as reader:
            entries = reader.read()

            def child() -> None:
                for call in (lambda: log.append(b"x"), lambda: next(entries), client.close, log.close):
                    with pytest.raises(bkpy.WrongEventLoopError, match="connect in this process"):
                        call()

            in_a_fork(child)
            assert next(entries).data == b"0"
        assert log.append(b"1") == 1


def test_a_call_that_the_end_of_the_client_interrupts_says_so(tmp_path: Path) -> None:
    begun = threading.Event()

    async def waits() -> None:
        begun.set()
        await asyncio.get_running_loop().create_future()

    with connected(tmp_path) as client, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(thread_of(client).call, waits)
        assert begun.wait(30)
        client.close()
        error = waiting.exception(30)
    assert isinstance(error, bkpy.ClientClosedError)
    assert error.outcome_unknown


@pytest.mark.timeout(60)
@pytest.mark.parametrize("schedule", ["before the loop is closed", "seen late", "after it is closed"])
@pytest.mark.filterwarnings("error::RuntimeWarning", "error::pytest.PytestUnraisableExceptionWarning")
def test_a_call_that_is_submitted_as_another_thread_closes_the_client_ends(tmp_path: Path, schedule: str) -> None:
    """It has looked whether it can be made, and goes on when the loop has run for the last time."""
    looked, ran, submitted, closed = (threading.Event() for _ in range(4))
    submit = asyncio.run_coroutine_threadsafe

    class Loop(uvloop.Loop):
        def close(self) -> None:
            if schedule != "after it is closed":
                ran.set()
                submitted.wait(DEADLINE_S)
            super().close()
            ran.set()

    def preempted(work: Any, loop: asyncio.AbstractEventLoop) -> Any:
        if not threading.current_thread().name.startswith("caller"):
            return submit(work, loop)
        looked.set()
        ran.wait(DEADLINE_S)
        future = submit(work, loop)
        submitted.set()
        if schedule == "seen late":
            closed.wait(DEADLINE_S)
        return future

    clusters: list[InProcess] = []
    with (
        patch("bkpy.blocking.base.uvloop.new_event_loop", Loop),
        patch("asyncio.run_coroutine_threadsafe", preempted),
        ThreadPoolExecutor(1, "caller") as pool,
    ):
        thread = ClientThread(connecting(tmp_path, clusters))
        thread.call(clusters[0].nodes[0].stop)
        calling = pool.submit(thread.submit, asyncio.sleep, 0)
        assert looked.wait(DEADLINE_S)
        thread.close()
        closed.set()
        if schedule == "after it is closed":
            error = calling.exception(DEADLINE_S)
        else:
            error = calling.result(DEADLINE_S).exception(DEADLINE_S)
    assert isinstance(error, bkpy.ClientClosedError)
    assert error.outcome_unknown == (schedule != "after it is closed")


def test_two_threads_that_close_it_at_once_wait_for_one_end(tmp_path: Path) -> None:
    """For the client the second call has nothing to do, and so it is the first to return."""
    leave = Client.__aexit__
    closing, calls, closed = threading.Event(), [], []

    async def leave_later(client: Client, *error: Any) -> None:
        calls.append(client)
        first = len(calls) == 1
        closing.set()
        if first:
            with suppress(AssertionError):  # there is no second call
                await eventually(lambda: len(calls) > 1, deadline_s=1.0)
                await asyncio.Event().wait()  # until the second call ends the loop
        await leave(client, *error)
        closed.append(first)

    with (
        connected(tmp_path) as client,
        ThreadPoolExecutor() as pool,
        patch.object(Client, "__aexit__", leave_later),
    ):
        first = pool.submit(client.close)
        assert closing.wait(DEADLINE_S)
        second = pool.submit(client.close)
        for one in (first, second):
            one.result(DEADLINE_S)
    assert closed == [True]


@pytest.mark.thorough
def test_a_client_that_nobody_has_any_more_ends_its_thread(tmp_path: Path) -> None:
    thread = ClientThread(connecting(tmp_path))
    (running,) = threads()
    gc.collect()  # what other tests have left
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del thread
        gc.collect()
    running.join(30)
    assert not running.is_alive()
    assert [warning.category for warning in caught if "was not closed" in str(warning.message)] == [ResourceWarning]


SCRIPT = """
import atexit, sys, threading
from pathlib import Path
from tests.in_process import InProcess

def late():
    try:
        log.append(b"late")
    except Exception as e:
        print(f"{type(e).__name__}: {e}")

async def connecting():
    cluster = InProcess(Path(sys.argv[1]))
    await cluster.start("a")
    return await cluster.client()

assert "bkpy.blocking.base" not in sys.modules
atexit.register(late)  # before the blocking client is loaded: it runs behind that one's end
import bkpy
from bkpy.blocking.base import ClientThread
thread = ClientThread(connecting())
client = bkpy.BlockingClient(thread.client, thread)
log = client.open_log("orders", create=True, ensemble_size=1, write_quorum=1, ack_quorum=1)
print(log.append(b"0"))
threading.Thread(target=lambda: list(client.read_log("orders").tail()), daemon=True).start()
"""


@pytest.mark.thorough
@pytest.mark.timeout(60)
def test_the_end_of_the_interpreter_ends_it_and_refuses_later_calls(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    command = [sys.executable, "-W", "default::ResourceWarning", "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout == "0\nClientClosedError: the client is closed\n"
    assert "was not closed" in done.stderr


def test_with_without_async_names_the_blocking_client() -> None:
    with pytest.raises(TypeError, match=r"with bkpy\.connect_sync\(uri\)"), bkpy.connect("zk://127.0.0.1:1/none"):
        pass
    with pytest.raises(bkpy.ConfigError, match="nonsense"):
        bkpy.connect_sync("nonsense")
    assert threads() == []
