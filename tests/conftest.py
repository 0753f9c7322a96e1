"""What the suites share: a running ZooKeeper, and a running cluster.

The fixtures are plain functions that start their processes from an event loop of their own, because no part of a local
cluster is bound to a loop: tests may use them from loops of any scope.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from bkpy.local.zookeeper import ZooKeeperServer
from tests.examples import choose, load_profile
from tests.flakes import ORDER

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Sequence

    from bkpy.local import LocalCluster

T = TypeVar("T")


# Where the suite runs in several processes (`-n 4`). What takes longest begins first, and of each other part as much is
# done as of the others at any time: so tests that mostly wait run beside those that compute, and processors don't rest.
_FIRST = ("containers", "spark", "packaging")
_LAST = "unit"  # at the end only its short tests are left, so that all processes end together
_PACKAGES_SHARING = ("spark",)  # one session and one cluster for all modules
_APART = "/apart/"  # but for these
# Modules that read the source as text, or start bookies, once for all of their tests.
_ONE_PROCESS_EACH = ("tests/unit/test_", "tests/bookkeeper/test_our_client", "tests/bookkeeper/test_shell")
_MODULES_SHARING = ("cluster", "compat", "containers", "faults", "packaging")  # one cluster for the tests of a module
_SHARED_DESCRIPTORS_MAX = 30  # that a cluster or a session of Spark takes, which later modules share


def pytest_configure(config: pytest.Config) -> None:
    choose(few="not exhaustive" in config.option.markexpr)
    if "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(_FailuresAtOnce(config))


class _FailuresAtOnce:
    """Names a test as soon as it fails, where a run may take an hour; why it failed stands at the end of the run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and (terminal := self._config.pluginmanager.get_plugin("terminalreporter")) is not None:
            terminal.write(f"\nfailed: {report.nodeid}\n", red=True)


def pytest_pycollect_makemodule(module_path: Path) -> None:
    """Settings of hypothesis are taken where a test is defined, so they are there before its module is imported."""
    if b"hypothesis" in module_path.read_bytes():
        load_profile()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Of several processes each begins elsewhere: each module is compiled by one of them, and kept for the others."""
    report = yield
    if isinstance(collector, pytest.Directory) and (worker := os.environ.get("PYTEST_XDIST_WORKER")):
        first = len(report.result) * int(worker.removeprefix("gw")) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        report.result = report.result[first:] + report.result[:first]
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path)  # the same order in all processes
    if seed := os.environ.get(ORDER):
        modules = list(dict.fromkeys(item.path for item in items))
        random.Random(seed).shuffle(modules)
        place = {module: number for number, module in enumerate(modules)}
        items.sort(key=lambda item: place[item.path])
        return
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    parts = Counter(_part(item.nodeid) for item in items)
    before: Counter[str] = Counter()
    places: dict[str, tuple[float, str, int]] = {}  # of the scopes, each by its first test
    for item in items:
        part = _part(item.nodeid)
        moment = _moment(item, before[part] / parts[part])
        places.setdefault(_scope(item.nodeid), (moment, part, before[part]))
        before[part] += 1
    items.sort(key=lambda item: places[_scope(item.nodeid)])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What was collected stays, so no garbage collection looks through it; and afterwards there are few."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000, 10, 10)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep tests that share a fixture in one process; others go to whichever is free."""
    from xdist.scheduler import LoadScopeScheduling  # only where it is used

    class Scheduling(LoadScopeScheduling):
        """Looks up each test, and forgets each scope that is done, so that its work doesn't grow with all before."""

        def _split_scope(self, nodeid: str) -> str:
            return _scope(nodeid)

        def schedule(self) -> None:
            super().schedule()
            super().schedule()  # a process runs a test once it knows the next one, also one in place of another

        def remove_node(self, node: Any) -> str | None:
            """The test in which a process died is not tried again, which others would die of as well."""
            work = self.assigned_work.pop(node)
            crashed = next((test for tests in work.values() for test, done in tests.items() if not done), None)
            if crashed is not None:
                work[_scope(crashed)][crashed] = True
                self.workqueue.update({name: tests for name, tests in work.items() if not all(tests.values())})
                super().schedule()
            return crashed

        def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
            super().add_node_collection(node, _Places(collection))

        def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
            super().mark_test_complete(node, item_index, duration)
            scope = _scope(self.registered_collections[node][item_index])
            if all(self.assigned_work[node][scope].values()):
                del self.assigned_work[node][scope]

    config.option.loadscopereorder = False  # the order of the items is the one that is wanted
    return Scheduling(config, log)


class _Places(list[str]):
    """Ids of tests, whose places are known."""

    def __init__(self, nodeids: Sequence[str]) -> None:
        super().__init__(nodeids)
        self._places = {nodeid: place for place, nodeid in enumerate(self)}

    def index(self, nodeid: str, *_: Any) -> int:
        return self._places[nodeid]


def _part(nodeid: str) -> str:
    return Path(nodeid.partition("::")[0]).parts[1]


def _scope(nodeid: str) -> str:
    """What runs in one process."""
    part = _part(nodeid)
    if part in _PACKAGES_SHARING and _APART not in nodeid:
        return part
    if part in (*_MODULES_SHARING, *_PACKAGES_SHARING) or nodeid.startswith(_ONE_PROCESS_EACH):
        return nodeid.partition("::")[0]
    return nodeid.partition("[")[0] if part == _LAST else nodeid


def _moment(item: pytest.Item, done: float) -> float:
    """When its scope begins, before which this share of its part was done: 0 at the begin of the run, 1 at its end."""
    part = _part(item.nodeid)
    if part in _FIRST:
        return 0.0
    if part != _LAST:
        return 0.01 + 0.79 * done
    if item.nodeid.startswith(_ONE_PROCESS_EACH):
        return 0.02
    return 0.9 * done if item.get_closest_marker("thorough") else done


def run_elsewhere(coroutine: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result, from a loop in a thread of its own: the caller may be inside a running loop."""
    outcome: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(asyncio.run(coroutine))
        except BaseException as e:  # raised in the caller's thread
            errors.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return outcome[0]


def alive(pid: int) -> bool:
    """Whether the process exists and has not ended; a zombie, whose parent has not looked yet, has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def all_threads_stopped(pid: int | None) -> bool:
    """Whether SIGSTOP has reached the whole process: those of its threads that run on other processors stop later."""
    states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return bool(states) and all(state in "TtZX" for state in states)


@pytest.fixture(scope="module", autouse=True)
def closed_descriptors() -> Iterator[None]:
    """What a module opens it closes: `select`, which some libraries use, knows no descriptor above 1,023."""
    before = _descriptors()
    yield
    if _descriptors() - before >= _SHARED_DESCRIPTORS_MAX:
        gc.collect()
    opened = _descriptors() - before
    assert opened < _SHARED_DESCRIPTORS_MAX, f"{opened} files or sockets more are open than before this module"


@pytest.fixture(scope="module", autouse=True)
def ended_loops() -> Iterator[None]:
    """A thread with an event loop that a module leaves behind works beside later tests, some of which count memory."""
    from tests.hooks import threads_with_loops

    before = threads_with_loops()
    yield
    assert not threads_with_loops() - before


@pytest.fixture(scope="module", autouse=True)
def same_log_level() -> Iterator[None]:
    """What a module logs is no other one's: tests look at all records of a level."""
    before = logging.getLogger().level
    yield
    assert logging.getLogger().level == before


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def no_collection() -> Iterator[None]:
    """For tests that go to the limit of recursion: no finalizer of another test's garbage has to run up there."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def forked_bookies() -> Iterator[None]:
    """Bookies of local clusters are forked from a process that has loaded them; ZooKeepers have an archive to load."""
    from tests.command import PRELOADED
    from tests.hooks import children_started_by, zookeepers_with
    from tests.zookeeper_classes import OPTIONS

    with children_started_by(PRELOADED.bookie), zookeepers_with(*OPTIONS):
        yield


@pytest.fixture(scope="module")
def real_bookies(forked_bookies: None) -> Iterator[None]:
    """The bookies that the module's tests start are started as they are for users."""
    from tests.hooks import children_started_by

    with children_started_by(None):
        yield


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """A ZooKeeper for the whole session. Tests use roots of their own in it, and leave it running."""
    server = ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"))
    try:
        run_elsewhere(server.start())
        yield server
    finally:
        run_elsewhere(server.stop())


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster of three bookies for the whole session. A test that stops a part of it starts it again."""
    from bkpy.local import LocalCluster  # not at the top: unit tests need none of what it brings

    local = LocalCluster(tmp_path_factory.mktemp("cluster"))
    try:
        run_elsewhere(local.start())
        yield local
    finally:
        run_elsewhere(local.stop())
