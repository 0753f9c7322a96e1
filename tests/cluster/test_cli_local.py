"""`bkpy local`: a cluster in the foreground, until it is told to stop, whatever dies meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.command import PATIENCE_S, bkpy, start, start_real, write
from tests.conftest import alive
from tests.waiting import eventually_here

from bkpy.local.process import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.preloaded import Fork

    from bkpy.local import LocalCluster


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "local"


def test_local_runs_until_it_is_told_to_stop_and_finds_its_data(directory: Path) -> None:
    ledger_id = -1
    for begin, number in ((start_real, signal.SIGINT), (start, signal.SIGTERM)):
        with begin("local", "--dir", directory, "--bookies", 1, uri=None) as local:
            try:
                assert local.stdout is not None
                uri = local.stdout.readline().decode().strip()
                assert uri.startswith("zk://127.0.0.1:"), local.stderr.read() if local.stderr else ""
                if ledger_id < 0:
                    ledger_id = write(uri, b"kept\n", "--ensemble", "1,1,1")
                assert bkpy("ledger", "read", ledger_id, uri=uri).stdout == b"kept\n"
                pids = pids_of(directory).values()
                assert len(pids) == 2
            finally:
                local.send_signal(number)
            assert local.wait(PATIENCE_S) == 0
            assert local.stderr is not None
            assert b"Traceback" not in local.stderr.read()
        assert not any(alive(pid) for pid in pids)


def test_local_interrupted_while_it_starts_leaves_nothing_running(directory: Path) -> None:
    with start_real("local", "--dir", directory, uri=None) as local:
        pids = eventually_here(lambda: running_below(local.pid), "it has children", pause_s=0.01)
        local.send_signal(signal.SIGINT)
        assert local.wait(PATIENCE_S) in (0, 130)  # 0 if it was quicker than we are
    assert not any(alive(pid) for pid in pids)


def test_local_says_what_is_in_the_way(cluster: LocalCluster) -> None:
    done = bkpy("local", "--dir", cluster.directory, status=1)
    assert f"another process runs a cluster in {cluster.directory}" in done.stderr.decode()


def running_below(pid: int) -> list[int]:
    """The children of a process, whichever of its threads started them."""
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
            children += map(int, (task / "children").read_text().split())
    return children


@contextlib.contextmanager
def running(directory: Path, *options: object) -> Iterator[tuple[Fork, str]]:
    """A cluster of the command, and its address; ended by Ctrl-C, cleanly, if it still runs."""
    with start("local", "--dir", directory, *options, uri=None) as local:
        assert local.stdout is not None
        try:
            uri = local.stdout.readline().decode().strip()
            assert uri.startswith("zk://127.0.0.1:"), local.stderr.read() if local.stderr else ""
            yield local, uri
        finally:
            local.send_signal(signal.SIGINT)
            assert local.wait(PATIENCE_S) == 0
            assert local.stderr is not None
            rest = local.stderr.read().decode()
            assert rest.endswith("Stopping; Ctrl-C once more kills.\n")
            assert "Traceback" not in rest


def pids_of(directory: Path) -> dict[str, int]:
    """Processes by the directory of the cluster's that they were started for, where their output goes."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            log = (process / "fd" / "1").readlink()
            if log.parent.parent == directory and alive(int(process.name)):
                found[log.parent.name] = int(process.name)
    return found


def line_with(stream: object, *words: str) -> str:
    """The next line that has all the words."""
    for line in iter(stream.readline, b""):  # type: ignore[attr-defined]
        if all(word in line.decode() for word in words):
            return line.decode()
    raise AssertionError(f"no line with {words}")


@pytest.mark.exhaustive
def test_what_dies_is_started_again_and_the_others_go_on(directory: Path) -> None:
    with running(directory) as (local, uri):
        ledger_id = write(uri, b"kept\n")
        for victim, name, deaths in (("bookie-2", "bookie-2", 2), ("zookeeper", "ZooKeeper", 1)):
            before = pids_of(directory)
            assert len(before) == 4
            for _ in range(deaths):
                os.kill(pids_of(directory)[victim], signal.SIGKILL)
                line_with(
                    local.stderr, f"{name} was ended by SIGKILL", f"{directory / victim}/", "starting it again in"
                )
                line_with(local.stderr, f"{name} serves again")
            after = pids_of(directory)
            assert {part for part in after if after[part] != before[part]} == {victim}
            assert bkpy("ledger", "read", ledger_id, uri=uri).stdout == b"kept\n"
            assert write(uri, b"more\n", "--ensemble", "3,3,3") > ledger_id
    assert not pids_of(directory)


@pytest.mark.exhaustive
def test_what_can_not_start_is_tried_less_and_less_often_and_holds_up_nobody(directory: Path) -> None:
    """Ctrl-C ends everything, also what rests before it starts again."""
    with running(directory) as (local, uri):
        config = directory / "bookie-2" / "bookie.toml"
        listen = next(line for line in config.read_text().splitlines() if line.startswith("listen"))
        host, port = listen.split('"')[1].split(":")
        before = pids_of(directory)
        squatter = socket.socket()
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        os.kill(before["bookie-2"], signal.SIGKILL)
        while True:  # until the kernel has taken the port from the dead process
            with contextlib.suppress(OSError):
                squatter.bind((host, int(port)))
                squatter.listen()
                break
        with squatter:
            line_with(local.stderr, "bookie-2 was ended by SIGKILL", "again in 0.5 s")
            for pause in ("1 s", "2 s"):
                line_with(local.stderr, "bookie-2 did not start: bookie bookie-2 at", "status 1", f"again in {pause}")
            assert write(uri, b"with two\n", "--ensemble", "2,2,2") >= 0
        line_with(local.stderr, "bookie-2 serves again")
        assert {part: pid for part, pid in pids_of(directory).items() if part != "bookie-2"} == {
            part: pid for part, pid in before.items() if part != "bookie-2"
        }
        os.kill(before["bookie-1"], signal.SIGKILL)
        os.kill(before["bookie-3"], signal.SIGKILL)
        line_with(local.stderr, "was ended by SIGKILL")
    assert not pids_of(directory)


@pytest.mark.exhaustive
def test_ctrl_c_while_bookies_start_again_ends_everything(directory: Path) -> None:
    with running(directory, "--bookies", 2) as (local, _):
        before = pids_of(directory)
        os.kill(before["bookie-1"], signal.SIGKILL)
        os.kill(before["bookie-2"], signal.SIGKILL)
        line_with(local.stderr, "was ended by SIGKILL")
        eventually_here(lambda: pids_of(directory).get("bookie-1", before["bookie-1"]) != before["bookie-1"])
    assert not pids_of(directory)


def test_what_dies_stays_down_on_request(directory: Path) -> None:
    with running(directory, "--no-restart", "--bookies", 2) as (local, uri):
        before = pids_of(directory)
        os.kill(before["bookie-1"], signal.SIGKILL)
        line_with(local.stderr, "bookie-1 was ended by SIGKILL and stays down")
        write(uri, b"with one\n", "--ensemble", "1,1,1")
        assert set(pids_of(directory)) == set(before) - {"bookie-1"}


def test_its_own_lines_and_those_of_its_bookies_are_json_on_request(directory: Path) -> None:
    with start("local", "--dir", directory, "--bookies", 1, "--log-format", "json", uri=None) as local:
        assert local.stdout is not None
        assert local.stdout.readline().startswith(b"zk://127.0.0.1:")
        os.kill(pids_of(directory)["bookie-1"], signal.SIGKILL)
        lines = []
        for line in iter(local.stderr.readline, b""):  # type: ignore[union-attr]
            lines.append(line)
            if b"bookie-1 was ended by SIGKILL" in line:
                break
        local.send_signal(signal.SIGINT)
        assert local.wait(PATIENCE_S) == 0
        lines += local.stderr.read().splitlines()  # type: ignore[union-attr]
    objects = [json.loads(line) for line in lines]
    assert (objects[-1]["logger"], objects[-1]["message"]) == ("bkpy.cli", "Stopping; Ctrl-C once more kills.")
    (log,) = (directory / "bookie-1").glob("*.log")
    assert all(json.loads(line)["bookie"] == "bookie-1" for line in log.read_bytes().splitlines())


@pytest.mark.exhaustive
def test_zookeepers_port_is_chosen_or_said_to_have_changed(directory: Path) -> None:
    port = free_port()
    for options in (["--port", port], []):  # it is remembered
        with running(directory, "--bookies", 1, "--set", "journal_max_size_mb=3", *options) as (_, uri):
            assert "journal_max_size_mb = 3\n" in (directory / "bookie-1" / "bookie.toml").read_text()
            assert uri == f"zk://127.0.0.1:{port}/ledgers"
    with socket.create_server(("127.0.0.1", port)):
        message = bkpy("local", "--dir", directory, "--port", port, status=1).stderr.decode()
        assert f"port {port}, given for ZooKeeper, is taken" in message
        with running(directory, "--bookies", 1) as (local, uri):
            assert uri != f"zk://127.0.0.1:{port}/ledgers"
            line_with(local.stderr, f"Port {port}, which ZooKeeper had the last time, is taken")
    assert json.loads((directory / "cluster.json").read_text())["zookeeper_port"] != port


def test_a_directory_that_can_not_be_made_is_named() -> None:
    message = bkpy("local", "--dir", "/proc/x", status=1).stderr.decode()
    assert message == "bkpy: a cluster can't be kept in /proc/x: No such file or directory\n"


def test_local_puts_nothing_beside_the_files_of_others(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "thesis.tex").touch()
    done = bkpy("local", "--dir", directory, status=1)
    assert f"{directory} is not empty and holds no cluster" in done.stderr.decode()
    assert [path.name for path in directory.iterdir()] == ["thesis.tex"]
