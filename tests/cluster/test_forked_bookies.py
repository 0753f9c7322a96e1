"""Bookies that are forked from a process that has loaded them are what most tests rest on: they are as others are."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.command import start
from tests.conftest import alive, run_elsewhere
from tests.hooks import children_started_by
from tests.waiting import eventually_here

from bkpy.errors import BookieUnavailableError
from bkpy.local import LocalCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bkpy.local import LocalBookie

PATIENCE_S = 60


def is_fork(bookie: LocalBookie) -> bool:
    return b"preloaded.py" in Path(f"/proc/{bookie.pid}/cmdline").read_bytes()


def facts(bookie: LocalBookie) -> dict[str, Any]:
    """What a process is given by the one that starts it, and what it has made of it."""
    process = Path(f"/proc/{bookie.pid}")
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    return {
        "signals": {name: status[name].strip() for name in ("SigBlk", "SigIgn", "SigCgt")},
        "umask": status["Umask"].strip(),
        "leads a session": os.getsid(bookie.pid or 0) == bookie.pid,
        "leads a group": os.getpgid(bookie.pid or 0) == bookie.pid,
        "limits": (process / "limits").read_text(),
        "directory": (process / "cwd").readlink(),
        "streams": [str((process / "fd" / fd).readlink()) for fd in "012"],
        "locks": sum(opened(entry) == "lock" for entry in (process / "fd").iterdir()),
        "directories": sorted(path.name for path in bookie.directory.iterdir()),
    }


def opened(entry: Path) -> str:
    """The name of an open file; none if it was closed meanwhile."""
    try:
        return entry.readlink().name
    except FileNotFoundError:
        return ""


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    # The size is given: else a fork's files are smaller.
    cluster = LocalCluster(tmp_path_factory.mktemp("local"), bookies=1, config={"journal_max_size_mb": 4})
    try:
        run_elsewhere(cluster.start())
        yield cluster
    finally:
        run_elsewhere(cluster.stop())


async def test_a_fork_is_given_what_a_bookie_is_given_and_ends_as_it_does(local: LocalCluster) -> None:
    bookie = local.bookies[0]
    assert is_fork(bookie)
    forked = facts(bookie)
    await bookie.kill()
    ends = [bookie.exit_status]
    logs = [bookie.log_path.read_text()]
    with children_started_by(None):
        await bookie.start()
    assert not is_fork(bookie)
    assert facts(bookie) == forked
    await bookie.kill()
    ends.append(bookie.exit_status)
    assert ends == [-signal.SIGKILL, -signal.SIGKILL]
    logs.append(bookie.log_path.read_text())
    assert logs[1].startswith(logs[0])  # a log keeps what all runs have written

    await bookie.start()
    assert is_fork(bookie)
    bookie.suspend()
    await bookie.stop()
    assert bookie.exit_status == 0
    await bookie.start()


@pytest.mark.exhaustive
async def test_a_fork_that_can_not_start_is_told_of_as_others_are(local: LocalCluster) -> None:
    bookie = local.bookies[0]
    await bookie.stop()

    async def refusal() -> str:
        with pytest.raises(BookieUnavailableError) as caught:
            await bookie.start()
        assert "in use" in str(caught.value)
        return re.sub(r"\d{4}-\d{2}-\d{2}T?\s?[\d:.,]+", "", str(caught.value))

    host, port = bookie.address.split(":")
    squatter = await asyncio.start_server(lambda reader, writer: writer.close(), host, int(port))
    try:
        forked = await refusal()
        with children_started_by(None):
            assert await refusal() == forked
    finally:
        squatter.close()
        await squatter.wait_closed()
    await bookie.start()


def test_bookies_of_a_forked_command_are_forks_and_die_with_it(tmp_path: Path) -> None:
    with start("local", "--json", "--bookies", 1, "--dir", tmp_path, uri=None) as local:
        assert local.stdout is not None
        lines = iter(local.stdout.readline, b"}\n")
        (bookie,) = json.loads(b"".join([*lines, b"}"]))["bookies"]
        assert b"preloaded.py" in Path(f"/proc/{bookie['pid']}/cmdline").read_bytes()
        local.kill()
        assert local.stdout.read() == b""  # which nothing that it has started has open
    wait_for_end_of(bookie["pid"])


PARENT = """\
import sys, time
from subprocess import DEVNULL
from tests.preloaded import Preloaded

preloaded = Preloaded()  # which ends, with its forks, when nobody has it any more
print(preloaded.popen([sys.argv[1]], env={}, stdout=DEVNULL, stderr=DEVNULL).pid, flush=True)
time.sleep(1000)
"""


def test_forks_die_with_the_process_that_runs_the_tests(tmp_path: Path) -> None:
    """A bookie ends by itself when it loses its ZooKeeper, so this fork runs a script."""
    script = tmp_path / "fork.py"
    script.write_text("import time\ntime.sleep(1000)\n")
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, script], cwd=root, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.kill()
    wait_for_end_of(pid)


def wait_for_end_of(pid: int) -> None:
    eventually_here(lambda: not alive(pid), f"process {pid} ends", pause_s=0.01)
