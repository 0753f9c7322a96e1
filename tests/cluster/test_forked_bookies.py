"""Bookies that are forked from a process that has loaded them are what most tests rest on: they are as others are."""

from __future__ import annotations

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
from tests.conftest import alive
from tests.hooks import children_started_by
from tests.waiting import eventually_here

from bkpy.errors import BookieUnavailableError
from bkpy.local import LocalCluster

if TYPE_CHECKING:
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


async def test_a_fork_is_given_what_a_bookie_is_given_and_ends_as_it_does(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path, bookies=1) as cluster:
        bookie = cluster.bookies[0]
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


async def test_a_fork_that_can_not_start_is_told_of_as_others_are(tmp_path: Path) -> None:
    async def refusal(directory: Path) -> str:
        with pytest.raises(BookieUnavailableError) as caught:
            await LocalCluster(directory, bookies=1, config={"journal_max_size_mb": -1}).start()
        assert "journal_max_size_mb" in str(caught.value)
        return re.sub(r"127\.0\.0\.1:\d+", "", str(caught.value)).replace(str(directory), "")

    forked = await refusal(tmp_path / "one")
    with children_started_by(None):
        assert await refusal(tmp_path / "two") == forked


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
import asyncio, sys
from bkpy.local import LocalCluster
from tests.hooks import children_started_by
from tests.preloaded import Preloaded

async def main():
    with children_started_by(Preloaded().bookie):
        async with LocalCluster(sys.argv[1], bookies=1) as cluster:
            print(cluster.bookies[0].pid, flush=True)
            await asyncio.sleep(1000)

asyncio.run(main())
"""


def test_forks_die_with_the_process_that_runs_the_tests(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path)]
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.kill()
    wait_for_end_of(pid)


def wait_for_end_of(pid: int) -> None:
    eventually_here(lambda: not alive(pid), f"process {pid} ends", pause_s=0.01)
