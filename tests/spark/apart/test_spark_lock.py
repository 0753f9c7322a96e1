"""One export at a time into one place: the second is refused, a dead one is forgotten, a lost lock is noticed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.cluster.zookeeper_proxy import ZooKeeperProxy
from tests.hooks import lose_lock

from bkpy.cli.endings import Terminated
from bkpy.errors import BookKeeperError, ConfigError, MetadataUnavailableError
from bkpy.local.process import poll
from bkpy.spark.lock import TargetLock, is_uri, normalised

if TYPE_CHECKING:
    from bkpy.local.zookeeper import ZooKeeperServer


@pytest.fixture
def uri(zookeeper: ZooKeeperServer, tmp_path: Path) -> str:
    """A root of this test's own."""
    return f"zk://{zookeeper.address}/{tmp_path.name}-{os.getpid()}"


def lock(uri: str, to: str | Path, timeout_s: float = 10.0) -> TargetLock:
    return TargetLock(uri, to, session_timeout_s=timeout_s, connect_timeout_s=10.0)


def can_be_taken(one: TargetLock) -> bool:
    try:
        with one.held():
            return True
    except ConfigError:
        return False


def test_the_second_is_refused_at_once_and_told_who_has_it(uri: str, tmp_path: Path) -> None:
    with lock(uri, tmp_path / "out").held():
        with (
            pytest.raises(
                ConfigError, match=rf"another export .* process {os.getpid()} of \S+ on \S+, since 2"
            ) as caught,
            lock(uri, tmp_path / "out").held(),
        ):
            pytest.fail("two have it")
        assert str(caught.value).endswith(f"[file {tmp_path / 'out'}]")
        with lock(uri, tmp_path / "other").held():
            pass
    with lock(uri, tmp_path / "out").held():
        pass


def test_of_many_at_once_one_has_it(uri: str, tmp_path: Path) -> None:
    at_once, all_tried = threading.Barrier(8), threading.Barrier(8)
    outcomes: list[str] = []

    def take() -> None:
        at_once.wait()
        try:
            with lock(uri, tmp_path).held():
                outcomes.append("taken")
                all_tried.wait()
        except ConfigError:
            outcomes.append("refused")
            all_tried.wait()

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["refused"] * 7 + ["taken"]


HOLDER = """\
import sys, time
from bkpy.spark.lock import TargetLock
with TargetLock(sys.argv[1], sys.argv[2], session_timeout_s=4.0, connect_timeout_s=10.0).held():
    print("held", flush=True)
    time.sleep(3600)
"""


def test_the_lock_of_a_dead_process_is_forgotten(uri: str, tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, uri, str(tmp_path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(ConfigError, match=f"process {holder.pid} "), lock(uri, tmp_path).held():
        pytest.fail("two have it")
    holder.send_signal(signal.SIGKILL)
    holder.communicate()

    asyncio.run(poll(lambda: asyncio.to_thread(can_be_taken, lock(uri, tmp_path)), None))


@pytest.mark.exhaustive
async def test_a_lost_lock_is_told_and_fails_what_it_was_for(zookeeper: ZooKeeperServer, uri: str) -> None:
    """The holder is cut off until the store has forgotten it, and somebody else has the lock."""
    proxy = ZooKeeperProxy(zookeeper.port)
    await proxy.start()
    held, told, go_on = threading.Event(), threading.Event(), threading.Event()
    mine = lock(uri.replace(zookeeper.address, proxy.connect_string), "/out", 4.0)

    def hold() -> None:
        with mine.held(), mine.telling(told.set):
            held.set()
            go_on.wait()

    holding = asyncio.create_task(asyncio.to_thread(hold))
    await asyncio.to_thread(held.wait)
    await proxy.cut()

    await poll(lambda: asyncio.to_thread(can_be_taken, lock(uri, "/out")), None)
    assert not told.is_set()
    tries = len(proxy.handshakes)
    await proxy.start()

    async def has_a_new_session() -> bool:
        return any(session_id == 0 for _, session_id in proxy.handshakes[tries:])

    await poll(has_a_new_session, None)
    go_on.set()
    with pytest.raises(BookKeeperError, match=r"session was lost, .* other exports out \[file /out\]"):
        await holding
    assert told.is_set()
    begun = False
    with pytest.raises(BookKeeperError, match="session was lost"), mine.telling(told.clear):
        begun = True
    assert not begun, "after the loss nothing is begun"
    await proxy.stop()


@pytest.mark.parametrize("signal_of", [KeyboardInterrupt, Terminated])
def test_a_signal_ends_an_export_that_has_lost_its_lock(
    uri: str, tmp_path: Path, signal_of: type[BaseException]
) -> None:
    """Not as a failure, after which an export that goes on tries again: nobody would end it."""
    mine = lock(uri, tmp_path)

    def interrupted() -> None:
        with mine.held(), mine.telling(lambda: None):
            lose_lock(mine)
            raise signal_of

    with pytest.raises(signal_of):
        interrupted()


def test_without_a_metadata_store_there_is_no_lock(tmp_path: Path) -> None:
    with pytest.raises(MetadataUnavailableError), lock("zk://127.0.0.1:1/x", tmp_path).held():
        pytest.fail("there is nobody who could know of it")


def test_every_spelling_of_a_target_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real dir").mkdir()
    (tmp_path / "link").symlink_to("real dir")
    monkeypatch.chdir(tmp_path)
    spellings = ["real dir/out", "link/out", "./link/../real dir/out/", tmp_path / "link" / "out"]
    spellings += [f"file://{tmp_path}/real%20dir/out", f"file:{tmp_path}/link/out/"]
    assert {normalised(to) for to in spellings} == {(tmp_path / "real dir" / "out").as_uri()}
    assert {normalised(to) for to in ("S3A://b/x//y/", "s3a://b/x/./y")} == {"s3a://b/x/y"}
    assert normalised("hdfs://h:1/x") != normalised("hdfs://h:2/x")
    assert [is_uri(to) for to in ("a/b", "/a", "a:b", Path("x"), "hdfs:/a", "s3a://b")] == [False] * 4 + [True] * 2
