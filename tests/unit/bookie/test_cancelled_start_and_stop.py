"""A bookie in somebody's own process, whose start or stop is cancelled wherever it waits."""

from __future__ import annotations

import gc
import threading
from itertools import count
from typing import TYPE_CHECKING

import pytest
from tests.examples import stride
from tests.hooks import storage_of, store_of, tasks_of
from tests.in_process import InProcess
from tests.stepping import naming, run_to
from tests.unit.storage.support import Batch, add, read_all
from tests.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from bkpy.bookie.node import BookieNode


async def left_nothing(node: BookieNode, threads: int) -> None:
    await eventually(lambda: not tasks_of(node))
    assert threading.active_count() == threads
    await store_of(node).close()


@pytest.mark.thorough
@pytest.mark.parametrize("of_bookkeeper", [False, True])
@pytest.mark.parametrize("late", [False, True])
async def test_a_cancelled_start_leaves_nothing_behind(tmp_path: Path, late: bool, of_bookkeeper: bool) -> None:
    cluster = InProcess(tmp_path, of_bookkeeper=of_bookkeeper)
    await cluster.start("")
    threads = threading.active_count()
    for at in count(0, stride()):
        with naming("start", at, late):
            node = cluster.new_node("a")
            if not await run_to(node.start(), at, late, None):
                break
            await left_nothing(node, threads)
    assert at > 0
    await node.stop()
    gc.collect()


@pytest.mark.parametrize("late", [False, True])
async def test_a_stop_that_is_cancelled_can_be_called_again(tmp_path: Path, late: bool) -> None:
    cluster = InProcess(tmp_path)
    await cluster.start("")
    threads = threading.active_count()
    for at in count():
        with naming("stop", at, late):
            node = cluster.new_node("a")
            await node.start()
            reached = await run_to(node.stop(), at, late, None)
            await node.stop()
            await left_nothing(node, threads)
            if not reached:
                break
    assert at > 0


@pytest.mark.thorough
@pytest.mark.parametrize("late", [False, True])
async def test_a_stop_that_is_cancelled_and_called_again_is_a_clean_one(tmp_path: Path, late: bool) -> None:
    """Without a journal, an unclean stop loses entries, and puts all ledgers in limbo."""
    cluster = InProcess(tmp_path)
    await cluster.start("", journal_write_data=False)
    for at in count():
        with naming("stop", at, late):
            node = cluster.new_node("a")
            await node.start()
            storage = storage_of(node)
            assert not storage.untrusted
            assert (await read_all(storage, 1, 0, at)) == (dict.fromkeys(range(at), b"data"), set())
            await storage.states((1,))
            await add(storage, Batch(1, at))
            reached = await run_to(node.stop(), at, late, None)
            await node.stop()
            await store_of(node).close()
            if not reached:
                break
    assert at > 0


@pytest.mark.thorough
@pytest.mark.parametrize("directories", [1, 2])
@pytest.mark.parametrize("late", [False, True])
async def test_a_start_that_is_cancelled_puts_nothing_at_risk(tmp_path: Path, late: bool, directories: int) -> None:
    """Without a journal, a start that ends uncleanly after it has served puts all ledgers in limbo."""
    cluster = InProcess(tmp_path)
    ledgers = ",".join(str(tmp_path / f"ledgers{number}") for number in range(directories))
    await cluster.start("", journal_write_data=False, ledger_directories=ledgers)
    for at in count(0, stride()):
        with naming("start", at, late):
            node = cluster.new_node("a")
            reached = await run_to(node.start(), at, late, None)
            if reached:
                await store_of(node).close()
                node = cluster.new_node("a")
                await node.start()
            assert not storage_of(node).untrusted
            await node.stop()
            await store_of(node).close()
            if not reached:
                break
    assert at > 0
