"""A log's writer in trouble at each of its steps: opening, rolling, closing. Others take over, then or later."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from tests.examples import stride
from tests.in_process import DEADLINE_S, ROOT, InProcess, open_client, runtime_here
from tests.unit.log.stories import Tale, check
from tests.unit.log.support import contents

from bkpy.client.client import log_parts
from bkpy.config.client import client_settings
from bkpy.errors import BookKeeperError, MetadataUnavailableError
from bkpy.metadata.store.memory import MemorySession

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import bkpy
    from bkpy.client.client import Client

T = TypeVar("T")

FAST = {
    "log_roll_retry_s": 0.005,
    "log_open_pause_min_s": 0.001,
    "log_open_pause_max_s": 0.005,
    "metadata_write_pause_s": 0.001,
    "metadata_retry_pause_s": 0.001,
}
REQUEST_LOST, REPLY_LOST, AWAY, GONE = "request lost", "reply lost", "away", "gone for good"


class Faulty(MemorySession):
    """A session whose call number `at`, once `count` was called, goes wrong, or is preceded by somebody else's act."""

    def __init__(self, cluster: InProcess) -> None:
        super().__init__(cluster.tree, 10.0, 10.0)
        self.calls = -1  # not counting
        self.at = 0
        self.trouble: str | Callable[[], Awaitable[None]] = ""

    def count(self, at: int, trouble: str | Callable[[], Awaitable[None]]) -> None:
        self.calls, self.at, self.trouble = 0, at, trouble

    async def _call(self, function: Callable[[], T], *, write: bool) -> T:
        if self.calls < 0:
            return await super()._call(function, write=write)
        self.calls += 1
        trouble = self.trouble if self.calls == self.at else ""
        if trouble == AWAY or (self.trouble == GONE and self.calls >= self.at):
            raise MetadataUnavailableError("the store is away")
        if trouble == REQUEST_LOST and write:
            raise MetadataUnavailableError("the request was lost", outcome_unknown=True)
        if callable(trouble):
            await trouble()
        result = await super()._call(function, write=write)
        if trouble == REPLY_LOST and write:
            raise MetadataUnavailableError("the reply was lost", outcome_unknown=True)
        return result


async def faulty_client(cluster: InProcess, **settings: Any) -> tuple[Client, Faulty]:
    session = Faulty(cluster)
    client = await open_client(session, ROOT, runtime_here(), client_settings(**{**FAST, **settings}))
    cluster.clients.append(client)
    return client, session


async def use(client: Client, name: str, tale: Tale, patience_s: float) -> None:
    """Open, append, roll twice, close."""
    try:
        log = await client.open_log(name)
    except BookKeeperError as error:
        tale.failure = error
        return
    try:
        await tale.append(log, 2)
        await tale.roll(log, patience_s)
        await tale.append(log, 2)
        await tale.roll(log, patience_s)
        await tale.append(log, 1)
        await log.close()
    except BookKeeperError as error:
        tale.failure = error
        log.abandon()


async def play(cluster: InProcess, name: str, at: int, trouble: str, **settings: Any) -> bool:
    """One writer before, one in trouble at its store's `at`th call, and one after; whether the trouble came."""
    steady = cluster.clients[0]
    before, troubled, between, after = Tale("before"), Tale("troubled"), Tale("between"), Tale("after")
    log = await steady.open_log(name, create=True)
    await before.append(log, 3)  # and is left open
    client, session = await faulty_client(cluster, **settings)

    async def take_over() -> None:
        with contextlib.suppress(BookKeeperError):  # the one in trouble may go on beside this, and take over in turn
            another = await steady.open_log(name)
            await between.append(another, 2)

    acts: list[asyncio.Task[None]] = []

    async def act() -> None:
        acts.append(asyncio.create_task(take_over()))
        await asyncio.shield(acts[0])

    session.count(at, act if trouble == "another writer" else trouble)
    await use(client, name, troubled, 0.1 if trouble == GONE else DEADLINE_S)
    reached = session.calls >= at
    session.calls = -1
    await asyncio.gather(*acts)
    await client.close()
    cluster.clients.remove(client)
    last = await steady.open_log(name)
    await after.append(last, 2)
    assert len((await log_parts(steady).logs.read(name, fresh=True))[0].open_segments) <= 2
    await last.close()
    log.abandon()
    found = await contents(steady, name)
    check([before, troubled, between, after], found)
    if not reached:
        assert troubled.failure is None
    return reached


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of clients that are closed with writers in trouble
@pytest.mark.parametrize("attempts", [1, pytest.param(3, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(
    "trouble",
    [
        "another writer",
        *(pytest.param(it, marks=pytest.mark.exhaustive) for it in (REPLY_LOST, REQUEST_LOST, AWAY, GONE)),
    ],
)
async def test_a_writer_in_trouble_at_any_step_loses_nothing(cluster: InProcess, trouble: str, attempts: int) -> None:
    await cluster.client(**FAST)
    at = 1
    while await play(cluster, f"log-{at}", at, trouble, metadata_write_attempts_max=attempts):
        at += stride()
    assert at > 40


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of clients that are closed with writers in trouble
async def test_the_lease_is_that_of_the_writer_whenever_another_client_comes_in_between(cluster: InProcess) -> None:
    """Else `open_log(wait=False)` doesn't find the writer, and fences it."""
    first, other = await cluster.client(**FAST), await cluster.client(**FAST, client_name="other")
    taken_over = 0
    for at in itertools.count(1):
        name = f"log-{at}"
        writers = [await first.open_log(name, create=True)]
        client, session = await faulty_client(cluster, client_name="overtaken")

        async def take_over(name: str = name, writers: list[bkpy.LogWriter] = writers) -> None:
            writers.append(await other.open_log(name))

        session.count(at, take_over)
        writers.append(await client.open_log(name))
        reached, session.calls = session.calls >= at, -1
        logs = log_parts(first).logs
        log_list, _ = await logs.read(name, fresh=True)
        assert await logs.lease_holder(name, log_list.uid) == log_list.writer_label, at
        taken_over += " other " in log_list.writer_label
        for log in writers:
            log.abandon()
        await client.close()
        cluster.clients.remove(client)
        if not reached:
            break
    assert at > 20
    assert taken_over > 3
