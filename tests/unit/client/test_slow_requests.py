"""A request that takes long leaves a line at the client and one at the bookie, with one id, and where the time went."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest
from tests.in_process import InProcess

from bkpy.runtime.slow_requests import INTERVAL_S, LINES_MAX, SlowRequests, client_id_in

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

SLOW_MS = 100
STALL_S = 2.0
ALL = {"ack_quorum": 3}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[InProcess]:
    local = InProcess(tmp_path)
    await local.start("abc", slow_request_ms=SLOW_MS)
    yield local
    await local.stop()


def slow_lines(caplog: pytest.LogCaptureFixture, logger: str) -> list[dict[str, Any]]:
    """The fields of the lines about slow requests."""
    return [vars(record)["bkpy_fields"] for record in caplog.records if record.name == logger and "slow" in record.msg]


async def stall(cluster: InProcess, workers: str) -> None:
    cluster.disks["a"].stall(workers)
    await asyncio.sleep(STALL_S)
    cluster.disks["a"].unstall()


async def test_both_ends_name_the_same_request_and_the_bookie_says_where_the_time_went(
    cluster: InProcess, caplog: pytest.LogCaptureFixture
) -> None:
    client = await cluster.client(slow_request_ms=SLOW_MS)
    writer = await client.create_ledger(**ALL)
    await writer.append(b"quick")
    assert slow_lines(caplog, "bkpy.client") == slow_lines(caplog, "bkpy.bookie") == []
    appended = writer.append_nowait(b"slow")
    await asyncio.gather(appended, stall(cluster, "journal"))
    (at_client,) = slow_lines(caplog, "bkpy.client")
    (at_bookie,) = slow_lines(caplog, "bkpy.bookie")
    assert at_client["request"] == at_bookie["request"]
    assert (at_client["bookie"], at_client["operation"], at_client["ledgers"]) == ("a", "add", [writer.ledger_id])
    assert at_bookie["ledgers"] == [writer.ledger_id]
    assert at_client["took_ms"] == pytest.approx(1000 * STALL_S, rel=0.01)
    assert at_bookie["journal_ms"] == pytest.approx(1000 * STALL_S, rel=0.01)
    parts = ("queued_ms", "journal_ms", "sync_ms", "reply_ms")
    assert sum(at_bookie[part] for part in parts) == pytest.approx(at_bookie["took_ms"], abs=0.5)
    texts = [record.getMessage() for record in caplog.records if "slow" in record.msg]
    assert all(at_client["request"] in text for text in texts)
    await writer.close()


async def test_a_frame_that_waits_for_the_states_of_its_ledgers_is_queued(
    cluster: InProcess, caplog: pytest.LogCaptureFixture
) -> None:
    client = await cluster.client(slow_request_ms=SLOW_MS)
    writer = await client.create_ledger(**ALL)
    await asyncio.gather(writer.append(b"first"), stall(cluster, "read"))
    (at_bookie,) = slow_lines(caplog, "bkpy.bookie")
    assert at_bookie["queued_ms"] == pytest.approx(1000 * STALL_S, rel=0.01)
    assert at_bookie["sync_ms"] < SLOW_MS
    await writer.close()


async def test_a_slow_read_is_named_at_both_ends_and_a_long_poll_is_not(
    cluster: InProcess, caplog: pytest.LogCaptureFixture
) -> None:
    client = await cluster.client(slow_request_ms=SLOW_MS)
    writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
    await writer.append(b"one")
    reader = await client.open_ledger(writer.ledger_id)
    tail = reader.tail()
    assert (await anext(tail)).data == b"one"
    polled = asyncio.ensure_future(anext(tail))
    await asyncio.sleep(STALL_S)
    assert slow_lines(caplog, "bkpy.client") == slow_lines(caplog, "bkpy.bookie") == []
    (name,) = writer.ensemble
    await writer.close()
    await asyncio.gather(polled, return_exceptions=True)
    await tail.aclose()
    await cluster.restart(name)  # its memtable is empty: reads need the disk
    cluster.disks[name].stall("read")
    asyncio.get_running_loop().call_later(STALL_S, cluster.disks[name].unstall)
    assert [entry.data async for entry in reader.read()] == [b"one"]
    ((at_client,), (at_bookie,)) = slow_lines(caplog, "bkpy.client"), slow_lines(caplog, "bkpy.bookie")
    assert at_client["request"] == at_bookie["request"]
    assert at_client["operation"] == at_bookie["operation"] == "read"
    assert at_client["ledgers"] == at_bookie["ledgers"] == [writer.ledger_id]
    assert at_bookie["storage_ms"] == pytest.approx(at_bookie["took_ms"], abs=0.5)
    parts = ("queued_ms", "storage_ms", "reply_ms")
    assert sum(at_bookie[part] for part in parts) == pytest.approx(at_bookie["took_ms"], abs=0.5)


async def test_a_read_that_waits_until_its_ledger_is_fenced_is_queued(
    cluster: InProcess, caplog: pytest.LogCaptureFixture
) -> None:
    writer = await (await cluster.client()).create_ledger(**ALL)
    await writer.append(b"one")
    client = await cluster.client(slow_request_ms=SLOW_MS)
    await asyncio.gather(client.recover_ledger(writer.ledger_id), stall(cluster, "journal"))
    found = [line for line in slow_lines(caplog, "bkpy.bookie") if line["operation"] == "read_lac"]
    assert [line["queued_ms"] for line in found] == [pytest.approx(1000 * STALL_S, rel=0.01)]
    assert found[0]["storage_ms"] + found[0]["reply_ms"] < SLOW_MS


async def test_a_request_without_an_answer_is_named_when_it_is_given_up(
    cluster: InProcess, caplog: pytest.LogCaptureFixture
) -> None:
    client = await cluster.client(slow_request_ms=SLOW_MS, add_timeout_s=1.0)
    writer = await client.create_ledger()
    await writer.append(b"before")
    cluster.hang("a")
    await writer.append(b"after")
    await asyncio.sleep(2.0)
    (at_client,) = slow_lines(caplog, "bkpy.client")
    assert (at_client["operation"], at_client["bookie"]) == ("add without an answer", "a")
    await writer.close()


async def test_nothing_is_logged_where_the_setting_is_0(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cluster = InProcess(tmp_path)
    await cluster.start("abc", slow_request_ms=0)
    client = await cluster.client(slow_request_ms=0)
    writer = await client.create_ledger(**ALL)
    await asyncio.gather(writer.append(b"slow"), stall(cluster, "journal"))
    assert slow_lines(caplog, "bkpy.client") == slow_lines(caplog, "bkpy.bookie") == []
    await writer.close()
    await cluster.stop()


class Hand:
    """A clock that is set by hand."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


def test_the_lines_are_bounded_and_say_how_many_there_were(caplog: pytest.LogCaptureFixture) -> None:
    clock = Hand()
    slow = SlowRequests(logging.getLogger("bkpy.client"), clock, SLOW_MS)
    for number in range(3 * LINES_MAX):
        slow.note(f"c-{number}", "add", 1.0, range(1000), {}, bookie="a")
    assert [line["request"] for line in slow_lines(caplog, "bkpy.client")] == [f"c-{n}" for n in range(LINES_MAX)]
    assert "not logged" not in caplog.text
    clock.now += INTERVAL_S
    slow.note("c-last", "add", 1.0, range(1000), {}, bookie="a")
    assert f"{2 * LINES_MAX} slow requests before it were not logged" in caplog.text
    assert all(len(line["ledgers"]) < 10 for line in slow_lines(caplog, "bkpy.client"))


@pytest.mark.parametrize(
    "software", ["", "bkpy/0.2.0", "x ", "x \n", "x a b", "x a\x1b", "x ä", f"x {'a' * 17}", "x a-b"]
)
def test_an_id_that_a_stranger_has_made_up_is_not_logged(software: str) -> None:
    assert client_id_in(software) == ""


def test_the_id_of_a_client_is_behind_its_software() -> None:
    assert client_id_in("bkpy/0.3.0 1a2b3c4d") == "1a2b3c4d"
