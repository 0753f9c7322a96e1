"""A bookie in somebody's own process, whose start or stop is cancelled wherever it waits."""

from __future__ import annotations

import gc
import threading
from itertools import count
from typing import TYPE_CHECKING

import pytest
from tests.hooks import store_of, tasks_of
from tests.in_process import InProcess
from tests.stepping import naming, run_to
from tests.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from bkpy.bookie.node import BookieNode


async def left_nothing(node: BookieNode, threads: int) -> None:
    await eventually(lambda: not tasks_of(node))
    assert threading.active_count() == threads
    await store_of(node).close()


@pytest.mark.parametrize("of_bookkeeper", [False, True])
@pytest.mark.parametrize("late", [False, True])
async def test_a_cancelled_start_leaves_nothing_behind(tmp_path: Path, late: bool, of_bookkeeper: bool) -> None:
    cluster = InProcess(tmp_path, of_bookkeeper=of_bookkeeper)
    await cluster.start("")
    threads = threading.active_count()
    for at in count():
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
