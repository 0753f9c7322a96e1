"""The writer of a log, with real bookies in one process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.unit.log.support import contents, positions_of

from bkpy.client.client import log_parts
from bkpy.errors import ClientClosedError, ConfigError, LogFencedError

if TYPE_CHECKING:
    from tests.in_process import InProcess


async def test_appends_get_positions_that_ascend_by_one(cluster: InProcess) -> None:
    client = await cluster.client()
    async with await client.open_log("orders", create=True) as log:
        assert [await log.append(b"%d" % i) for i in range(5)] == list(range(5))
        assert await log.append_batch([b"5", b"6"]) == range(5, 7)
        assert await log.append_nowait(b"7") == 7
        assert log.next_position == 8
    assert await contents(client, "orders") == [b"%d" % i for i in range(8)]


@pytest.mark.thorough
@pytest.mark.parametrize("every", [1, 3])
async def test_positions_go_on_across_rolls(cluster: InProcess, every: int) -> None:
    client = await cluster.client()
    async with await client.open_log("orders", create=True, roll_entries=every) as log:
        appended = []
        for i in range(30):
            appended.append(await log.append(b"%d" % i))
            await asyncio.sleep(0.01)
    assert appended == list(range(30))
    assert await contents(client, "orders") == [b"%d" % i for i in range(30)]
    log_list, _ = await log_parts(client).logs.read("orders")
    assert len(log_list.segments) > 5
    assert not log_list.open_segments


async def test_the_next_writer_fences_the_one_before(cluster: InProcess) -> None:
    first, second = await cluster.client(), await cluster.client()
    old = await first.open_log("orders", create=True)
    await old.append(b"0")
    new = await second.open_log("orders")
    assert new.next_position == 1
    with pytest.raises(LogFencedError):
        await old.append(b"lost")
    assert not old.usable
    assert await new.append(b"1") == 1
    await new.close()
    old.abandon()
    assert await contents(second, "orders") == [b"0", b"1"]


async def test_a_closed_writer_takes_nothing(cluster: InProcess) -> None:
    client = await cluster.client()
    log = await client.open_log("orders", create=True)
    await log.close()
    await log.close()
    with pytest.raises(ClientClosedError):
        await log.append(b"late")
    assert positions_of((await log_parts(client).logs.read("orders"))[0]) == []


@pytest.mark.parametrize("name", ["roll_bytes", "roll_entries", "roll_s"])
async def test_a_log_that_would_roll_after_nothing_is_refused_by_the_name_of_the_argument(
    name: str, cluster: InProcess
) -> None:
    client = await cluster.client()
    with pytest.raises(ConfigError, match=f"{name} must be more than 0, not 0"):
        await client.open_log("orders", create=True, **{name: 0})  # type: ignore[arg-type]
    assert [log async for log in client.list_logs()] == []


async def test_a_writer_says_which_log_it_writes(cluster: InProcess) -> None:
    client = await cluster.client()
    async with await client.open_log("orders", create=True) as log:
        await log.append(b"0")
        assert log.name == "orders"
        assert repr(log) == "<LogWriter log=orders next_position=1>"


async def test_a_writer_takes_whatever_holds_bytes_and_keeps_a_copy(cluster: InProcess) -> None:
    client = await cluster.client()
    async with await client.open_log("orders", create=True) as log:
        data = bytearray(b"0")
        appending = [
            asyncio.create_task(log.append(data)),
            asyncio.create_task(log.append_batch([memoryview(b"1")])),
        ]
        await asyncio.sleep(0)
        pending = log.append_nowait(data)
        data[:] = b"x"
        assert [await one for one in (*appending, pending)] == [0, range(1, 2), 2]
        for refused in ("text", 1):
            with pytest.raises(ConfigError, match="an entry is bytes, not"):
                await log.append(refused)  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match="an entry is bytes, not"):
                await log.append_batch([refused])  # type: ignore[list-item]
        with pytest.raises(ConfigError, match="entries are a sequence of bytes, not int"):
            await log.append_batch(5)  # type: ignore[arg-type]
    assert await contents(client, "orders") == [b"0", b"1", b"0"]


async def test_an_empty_batch_is_an_empty_range_and_changes_nothing(cluster: InProcess) -> None:
    client = await cluster.client()
    async with await client.open_log("orders", create=True) as log:
        assert await log.append_batch([b"0"]) == range(1)
        assert await log.append_batch([]) == range(1, 1)
        assert log.next_position == 1


async def test_an_error_in_the_body_abandons_the_writer(cluster: InProcess) -> None:
    """The next writer finds out where the log ends: what is pending may be of no use without what did not come."""
    client = await cluster.client()
    log = await client.open_log("orders", create=True)

    async def fail_in_the_body() -> None:
        async with log:
            await log.append(b"0")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_in_the_body()
    lst, _ = await log_parts(client).logs.read("orders")
    assert lst.writer
    assert positions_of(lst) == [(0, -1)]
    assert not log.usable


@pytest.mark.parametrize(
    ("field", "value", "refused"),
    [
        ("digest", "md5", "digest 'md5' is not one of"),
        ("retention_bytes", -1, "retention_bytes must be from 0 to 9223372036854775807"),
    ],
)
async def test_a_log_is_not_made_with_what_makes_no_sense(
    cluster: InProcess, field: str, value: object, refused: str
) -> None:
    client = await cluster.client()
    with pytest.raises(ConfigError, match=refused):
        await client.open_log("orders", create=True, **{field: value})  # type: ignore[arg-type]
    assert [log async for log in client.list_logs()] == []
