"""Two processes of one service fight for a log, hang, and are killed; they repeat what may be in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import bkpy as bkpy_library
from tests.command import as_json, bkpy
from tests.waiting import eventually

from .ordering import PRODUCER, OrderingProcess

if TYPE_CHECKING:
    from pathlib import Path

    from bkpy.local import LocalCluster


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=pytest.mark.long)])
async def test_each_order_is_in_the_log_once(cluster: LocalCluster, tmp_path: Path, rounds: int) -> None:
    name, uri = f"orders-{rounds}", cluster.connect_string
    first, second = (OrderingProcess(tmp_path, which, uri, name) for which in ("first", "second"))

    async def goes_on(service: OrderingProcess, count: int = 300) -> None:
        before = len(service.acknowledged())
        await eventually(lambda: len(service.acknowledged()) >= before + count, f"{count} more orders", deadline_s=60)

    try:
        first.start()
        for _ in range(rounds):
            await goes_on(first)
            first.process.suspend()  # it finds out later that the log isn't its own any more
            second.start()
            await goes_on(second)
            first.process.resume()
            await goes_on(first)  # it has taken the log back
            await goes_on(second)
            await second.process.kill()
            await goes_on(first)
            await first.process.kill()
            first.start()
        await goes_on(first)
    finally:
        await first.process.kill()
        await second.process.kill()
    async with bkpy_library.connect(uri) as client:
        async with await client.open_log(name, producer=PRODUCER) as log:
            last = log.last_sequence
            assert await log.append(b"last", sequence=last + 1) == log.next_position - 1
        async with await client.read_log(name) as reader:
            found = [entry async for entry in reader.read()]
    assert [entry.data for entry in found] == [*(b"order %d" % n for n in range(last + 1)), b"last"]
    assert [entry.sequence for entry in found] == list(range(last + 2))
    assert {entry.producer for entry in found} == {PRODUCER}
    told = first.acknowledged() + second.acknowledged()
    assert len(told) > len(set(told)), "nothing was repeated"
    assert [(number, position) for number, position in told if position != number] == []
    assert max(number for number, _ in told) <= last
    (row,) = as_json("log", "producers", name, uri=uri)
    assert (row["producer"], row["last_sequence"], row["last_position"]) == (PRODUCER, last + 1, last + 1)
    assert as_json("log", "producers", name, "--delete", PRODUCER, "--yes", uri=uri) == []
    refused = bkpy("log", "producers", name, "--delete", PRODUCER, "--yes", uri=uri, status=1)
    assert b"has no producer orders-service" in refused.stderr
