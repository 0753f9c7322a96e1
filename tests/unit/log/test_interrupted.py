"""What is done with a log, cancelled at each point at which it waits, or with the client's session lost there.

Invariants: nothing acknowledged is lost, whoever comes next; what can go on goes on; nothing is left running.
"""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import cluster_of, roller_of, steps_of_tail
from tests.in_process import DEADLINE_S
from tests.stepping import naming, run_to
from tests.unit.log.support import contents, left_running
from tests.unit.log.test_takeovers import FAST
from tests.waiting import eventually

from bkpy.client.client import log_parts
from bkpy.errors import LogFencedError, LogLockedError
from bkpy.metadata.store.memory import MemorySession

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.in_process import InProcess

    from bkpy.client.client import Client
    from bkpy.log.writer import LogWriter

LATE = pytest.param(True, marks=pytest.mark.exhaustive)
HOW = ["cancelled", "session lost"]


def ending(client: Client, how: str) -> Callable[[], Any] | None:
    """What happens at the point; None is that the call is cancelled."""
    session = cluster_of(client).store
    assert isinstance(session, MemorySession)
    return session.expire if how == "session lost" else None


async def with_entries(client: Client, name: str) -> LogWriter:
    """Two sealed ledgers, and one that is open; positions 0 to 4."""
    log = await client.open_log(name, create=True, ensemble_size=1, write_quorum=1, ack_quorum=1)
    for position in range(5):
        assert await log.append(b"%d" % position) == position
        if position in (1, 3):
            await roller_of(log).roll()
    return log


async def finished(client: Client, name: str, acknowledged: int) -> None:
    """The next writer appends behind what was acknowledged, and all of that is there."""
    async with asyncio.timeout(DEADLINE_S), await client.open_log(name) as log:
        assert await log.append(b"last") == acknowledged
    assert await contents(client, name) == [*(b"%d" % i for i in range(acknowledged)), b"last"]


@pytest.mark.thorough
@pytest.mark.parametrize("late", [False, LATE])
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("wait", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
async def test_opening(cluster: InProcess, wait: bool, how: str, late: bool) -> None:
    client, other = await cluster.client(**FAST), await cluster.client(**FAST)
    for at in count():
        name = f"log-{at}"
        before = await other.open_log(name, create=True, ensemble_size=1, write_quorum=1, ack_quorum=1)
        await before.append(b"0")
        before.abandon()
        await log_parts(other).logs.drop_lease(name, roller_of(before).log_list.uid, roller_of(before).log_list.writer)
        opened: list[LogWriter] = []

        async def open_it(name: str = name, opened: list[LogWriter] = opened) -> None:
            opened.append(await client.open_log(name, wait=wait))

        with naming(name, at, late):
            reached = await run_to(open_it(), at, late, ending(client, how))
            entries = 1
            assert opened or (how == "cancelled" and reached)
            if opened:
                entries += await opened[0].append(b"1")
                await opened[0].close()
            else:  # what was taken is given back, so that others need not wait for the session's end
                await eventually(lambda: not left_running(client))
                async with asyncio.timeout(DEADLINE_S):
                    while True:
                        try:
                            await (await other.open_log(name, wait=False)).close()
                            break
                        except LogLockedError:
                            await asyncio.sleep(0.001)
            await finished(other, name, entries)
            await eventually(lambda: not left_running(client))
        if not reached:
            break
    assert at > 10


@pytest.mark.thorough
@pytest.mark.parametrize("late", [False, LATE])
@pytest.mark.parametrize("how", HOW)
async def test_closing(cluster: InProcess, how: str, late: bool) -> None:
    client, other = await cluster.client(**FAST), await cluster.client(**FAST)
    for at in count():
        name = f"log-{at}"
        log = await client.open_log(name, create=True, ensemble_size=1, write_quorum=1, ack_quorum=1)
        await log.append(b"0")
        with naming(name, at, late):
            reached = await run_to(log.close(), at, late, ending(client, how))
            async with asyncio.timeout(DEADLINE_S):
                await log.close()  # again, or for the first time
            assert (await log_parts(other).logs.read(name, fresh=True))[0].open_segments == ()
            await eventually(lambda: not left_running(client))
            await finished(other, name, 1)
        if not reached:
            break
    assert at > 3


@pytest.mark.thorough
@pytest.mark.parametrize("late", [False, LATE])
async def test_a_roll_whose_session_is_lost(cluster: InProcess, late: bool) -> None:
    client, other = await cluster.client(**FAST), await cluster.client(**FAST)
    for at in count():
        name = f"log-{at}"
        log = await client.open_log(name, create=True, ensemble_size=1, write_quorum=1, ack_quorum=1)
        await log.append(b"0")
        with naming(name, at, late):
            reached = await run_to(roller_of(log).roll(), at, late, ending(client, "session lost"))
            assert len(roller_of(log).log_list.segments) == 2
            assert await log.append(b"1") == 1
            await log.close()
            await finished(other, name, 2)
        if not reached:
            break
    assert at > 3


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("how", HOW)
async def test_a_commit(cluster: InProcess, how: str, late: bool) -> None:
    """On and back. Whoever made it can make the next one, whatever became of this one."""
    client = await cluster.client(**FAST)
    async with await with_entries(client, "orders"), await client.read_log("orders") as reader:
        for to in (4, 1):
            for at in count():
                billing = await reader.consumer(f"c{to}-{at}", position=2, create=True)
                with naming("commit", at, late):
                    reached = await run_to(billing.commit(to), at, late, ending(client, how))
                    assert billing.position in (2, to)
                    if how == "session lost" or not reached:
                        assert billing.position == to
                    for position in (3, 1):
                        await billing.commit(position)
                        assert (await reader.consumer(billing.name)).position == position
                if not reached:
                    break
            assert at > 3


@pytest.mark.parametrize("late", [False, LATE])
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("first", [0, 4])
async def test_a_tail(cluster: InProcess, first: int, how: str, late: bool) -> None:
    client = await cluster.client(**FAST, tail_poll_s=0.01)
    log = await with_entries(client, "orders")
    await eventually(lambda: len([s for s in roller_of(log).log_list.segments if s.sealed]) == 2)
    idle = left_running(client)
    for at in count():
        async with await client.read_log("orders") as reader:
            found: list[bytes] = []

            async def follow(found: list[bytes] = found, reader: Any = reader) -> None:
                tail = steps_of_tail(reader, first)
                try:
                    while len(found) < 5 - first:
                        found += [entry.data for entry in await anext(tail)]
                finally:
                    await tail.aclose()

            with naming("tail", at, late):
                reached = await run_to(follow(), at, late, ending(client, how))
                if how == "session lost" or not reached:
                    assert len(found) == 5 - first
                assert found == [b"%d" % i for i in range(first, first + len(found))]
                await eventually(lambda: left_running(client) == idle)
                found.clear()
                async with asyncio.timeout(DEADLINE_S):
                    await follow()
                assert len(found) == 5 - first
        if not reached:
            break
    assert at > 3
    await log.close()


async def test_a_client_that_opens_a_log_twice_at_once_has_one_writer(cluster: InProcess) -> None:
    client, other = await cluster.client(**FAST), await cluster.client(**FAST)
    await (await other.open_log("orders", create=True)).close()
    logs = await asyncio.gather(*(client.open_log("orders") for _ in range(2)))
    told = await asyncio.gather(*(log.append(b"0") for log in logs), return_exceptions=True)
    assert sorted(isinstance(one, LogFencedError) for one in told) == [False, True]
    for log, result in zip(logs, told, strict=True):
        if isinstance(result, int):
            assert result == 0
            await log.close()
        else:
            log.abandon()
    await finished(other, "orders", 1)


async def test_of_two_in_one_client_that_want_to_be_alone_one_is(cluster: InProcess) -> None:
    client, other = await cluster.client(**FAST), await cluster.client(**FAST)
    await (await other.open_log("orders", create=True)).close()
    told = await asyncio.gather(*(client.open_log("orders", wait=False) for _ in range(2)), return_exceptions=True)
    (log,) = [one for one in told if not isinstance(one, BaseException)]
    assert [type(one) for one in told if isinstance(one, BaseException)] == [LogLockedError]
    assert await log.append(b"0") == 0
    with pytest.raises(LogLockedError):  # that of the other one is not given back
        await other.open_log("orders", wait=False)
    await log.close()
    await finished(other, "orders", 1)
