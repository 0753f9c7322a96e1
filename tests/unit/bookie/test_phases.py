"""A phase of a bookie's start closes what it has opened, in reverse order, when a start fails there and at a stop."""

from __future__ import annotations

import threading
from itertools import count
from typing import TYPE_CHECKING

import pytest
from tests.hooks import store_of, tasks_of
from tests.in_process import ROOT, InProcess
from tests.stepping import naming, run_to
from tests.waiting import eventually

from bkpy.bookie.server import BookieServer
from bkpy.errors import ConfigError, StorageFailedError
from bkpy.storage.engine import LedgerStorage

if TYPE_CHECKING:
    from pathlib import Path

    from bkpy.bookie.background_services import BackgroundService


class Beside:
    """What runs beside a bookie. A stop takes a turn of the loop, so that it can be cancelled."""

    def __init__(self, cluster: InProcess, *, broken: bool = False) -> None:
        self.cluster = cluster
        self.broken = broken
        self.running = False
        self.registered_at_start = False

    def start(self) -> None:
        self.registered_at_start = registered(self.cluster)
        if self.broken:
            raise ConfigError("broken")
        self.running = True

    async def stop(self) -> None:
        await self.cluster.tree.session().exists(ROOT)
        self.running = False


def registered(cluster: InProcess) -> bool:
    return "a" in cluster.tree.node(f"{ROOT}/available").children


async def empty(tmp_path: Path) -> InProcess:
    cluster = InProcess(tmp_path)
    await cluster.start("")
    return cluster


async def test_a_start_that_fails_in_its_last_phase_leaves_nothing_and_no_registration(tmp_path: Path) -> None:
    cluster = await empty(tmp_path)
    threads = threading.active_count()
    beside = Beside(cluster, broken=True)
    node = cluster.new_node("a", background_service=lambda registry, appended: beside)
    with pytest.raises(ConfigError, match="broken"):
        await node.start()
    assert beside.registered_at_start
    assert not registered(cluster)  # though the session goes on
    await eventually(lambda: not tasks_of(node))
    assert threading.active_count() == threads
    await node.stop()  # nothing is left to be stopped
    await cluster.start_node("a")  # on the same directories, at the same port
    await cluster.stop()


@pytest.mark.parametrize("failing", [False, True])
async def test_the_registration_ends_after_the_storage_which_ends_after_the_server(
    tmp_path: Path, failing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others take the id only when its directories are free. An error that closes one keeps none of the others open."""
    cluster = await empty(tmp_path)
    beside = Beside(cluster)
    node = cluster.new_node("a", background_service=lambda registry, appended: beside)
    seen = []
    finish, close = BookieServer.finish, LedgerStorage.close

    async def finishing(server: BookieServer, timeout_s: float) -> None:
        await finish(server, timeout_s)
        seen.append(("server", beside.running, registered(cluster)))

    async def closing(storage: LedgerStorage) -> None:
        await close(storage)
        seen.append(("storage", beside.running, registered(cluster)))
        if failing:
            raise StorageFailedError("the disk is gone")

    monkeypatch.setattr(BookieServer, "finish", finishing)
    monkeypatch.setattr(LedgerStorage, "close", closing)
    await node.start()
    assert beside.running
    if failing:
        with pytest.raises(StorageFailedError, match="the disk is gone"):
            await node.stop()
    else:
        await node.stop()
    assert seen == [("server", False, True), ("storage", False, True)]
    assert not registered(cluster)
    await eventually(lambda: not tasks_of(node))


@pytest.mark.parametrize("late", [False, True])
async def test_a_stop_that_was_cancelled_goes_on_where_it_was(tmp_path: Path, late: bool) -> None:
    cluster = await empty(tmp_path)
    threads = threading.active_count()
    for at in count():
        with naming("stop", at, late):
            beside: list[BackgroundService] = []

            def make(registry: object, appended: object, made: list[BackgroundService] = beside) -> BackgroundService:
                made.append(Beside(cluster))
                return made[-1]

            node = cluster.new_node("a", background_service=make)
            await node.start()
            reached = await run_to(node.stop(), at, late, None)
            await node.stop()
            assert [each.running for each in beside if isinstance(each, Beside)] == [False]
            assert not registered(cluster)
            await eventually(lambda node=node: not tasks_of(node))
            assert threading.active_count() == threads
            await store_of(node).close()
            if not reached:
                break
    assert at > 3


async def test_a_service_that_fails_to_stop_keeps_no_other_one_running(tmp_path: Path) -> None:
    class Stubborn(Beside):
        async def stop(self) -> None:
            raise ConfigError("stubborn")

    cluster = await empty(tmp_path)
    node = cluster.new_node("a", background_service=lambda registry, appended: Stubborn(cluster))
    await node.start()
    with pytest.raises(ConfigError, match="stubborn"):
        await node.stop()
    assert not registered(cluster)
    await eventually(lambda: not tasks_of(node))  # the collector's among them
