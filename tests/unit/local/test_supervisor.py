"""The supervisor of a local cluster, on processes that end at once, again and again."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from typing import TYPE_CHECKING

import pytest
from tests.waiting import eventually

from bkpy.errors import BookieUnavailableError, IdentityError
from bkpy.local.process import ManagedProcess, how_it_ended
from bkpy.local.supervisor import Supervisor

if TYPE_CHECKING:
    from pathlib import Path


class Shell:
    """A shell script as a part; `errors` of its starts fail before it is run."""

    def __init__(self, directory: Path, name: str, script: str, errors: int = 0) -> None:
        self.name = name
        self.script = script
        self.starts = 0
        self.errors = errors
        self.error: Exception = BookieUnavailableError("it does not come up; last lines of its log:\nmuch more")
        self.process = ManagedProcess(directory / f"{name}.log")
        self.log_path = self.process.log_path

    @property
    def pid(self) -> int | None:
        return self.process.pid

    @property
    def exit_status(self) -> int | None:
        return self.process.exit_status

    async def start(self) -> None:
        self.starts += 1
        if self.starts <= self.errors:
            raise self.error
        self.run()

    def run(self) -> None:
        self.process.spawn(["/bin/sh", "-c", self.script])


async def watched(parts: list[Shell], lines: int, **settings: float | bool) -> list[str]:
    """The first so many lines that are said, of parts that were started once."""
    for part in parts:
        part.run()
    said: list[str] = []
    enough = asyncio.Event()

    def say(line: str) -> None:
        said.append(line)
        if len(said) >= lines:
            enough.set()

    watching = asyncio.ensure_future(Supervisor(parts, say, **settings).watch())  # type: ignore[arg-type]
    try:
        await asyncio.wait([watching, asyncio.ensure_future(enough.wait())], return_when=asyncio.FIRST_COMPLETED)
    finally:
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching
        for part in parts:
            await part.process.kill()
    return said[:lines]  # there may be more, said while the watch was ended


@pytest.mark.thorough
async def test_the_pause_grows_up_to_its_bound_while_a_process_ends_at_once(tmp_path: Path) -> None:
    part = Shell(tmp_path, "hasty", "exit 3")
    said = await watched([part], 10, pause_min_s=0.01, pause_max_s=0.05)
    ends = [line for line in said if "has ended with status 3" in line]
    assert [re.findall(r"in ([0-9.]+) s", line)[0] for line in ends] == ["0.01", "0.02", "0.04", "0.05", "0.05"]
    assert all(str(part.log_path) in line for line in ends)
    assert part.starts >= 5


async def test_a_process_that_ran_for_long_is_started_after_the_shortest_pause(tmp_path: Path) -> None:
    said = await watched([Shell(tmp_path, "steady", "exit 0")], 6, pause_min_s=0.01, steady_s=0.0)
    assert [line for line in said if "in 0.01 s" in line] == [line for line in said if "has ended" in line] != []


async def test_a_start_that_fails_is_tried_again_after_a_longer_pause(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    part = Shell(tmp_path, "late", f"test -e {mark} && exec sleep 1000; touch {mark}; exit 1", errors=2)
    said = await watched([part], 4, pause_min_s=0.01)
    assert "0.01 s" in said[0]
    assert [("late did not start: it does not come up" in line, "much more" in line) for line in said[1:3]] == [
        (True, False)
    ] * 2
    assert "0.02 s" in said[1]
    assert "0.04 s" in said[2]
    assert re.fullmatch(r"late serves again, as process \d+", said[3])


async def test_a_start_that_fails_without_a_text_is_tried_again(tmp_path: Path) -> None:
    """As by a time-out: nothing that fails ends the supervision of the others."""
    mark = tmp_path / "ran"
    part = Shell(tmp_path, "late", f"test -e {mark} && exec sleep 1000; touch {mark}; exit 1", errors=1)
    part.error = TimeoutError()
    said = await watched([part], 3, pause_min_s=0.01)
    assert "late did not start: TimeoutError()" in said[1]
    assert re.fullmatch(r"late serves again, as process \d+", said[2])


async def test_one_that_waits_for_its_start_holds_up_no_other(tmp_path: Path) -> None:
    hopeless, other = Shell(tmp_path, "hopeless", "exit 1", errors=10**9), Shell(tmp_path, "other", "exec sleep 1000")
    hopeless.run()
    other.run()
    pid = other.pid
    assert pid is not None
    said: list[str] = []
    watching = asyncio.ensure_future(Supervisor([hopeless, other], said.append, pause_min_s=0.01).watch())
    try:
        await eventually(lambda: hopeless.starts >= 2, "the hopeless one is started again")
        assert other.pid == pid
        os.kill(pid, signal.SIGTERM)
        await eventually(lambda: any("other serves again" in line for line in said))
        assert any("other was ended by SIGTERM" in line for line in said)
    finally:
        watching.cancel()
        await asyncio.wait([watching])
        await other.process.kill()


async def test_without_restart_it_is_said_once_and_left(tmp_path: Path) -> None:
    parts = [Shell(tmp_path, "one", "exit 1"), Shell(tmp_path, "two", "exit 1")]
    said = await watched(parts, 2, restart=False)
    assert sorted(line.split()[0] for line in said) == ["one", "two"]
    assert all("stays down" in line for line in said)
    assert [part.starts for part in parts] == [0, 0]


def test_how_a_process_ended_is_told_in_words() -> None:
    assert how_it_ended(0) == "has ended with status 0"
    assert how_it_ended(-signal.SIGKILL) == "was ended by SIGKILL"
    assert how_it_ended(-(signal.SIGRTMIN + 1)) == f"was ended by signal {signal.SIGRTMIN + 1}"


async def test_a_part_whose_directory_is_deleted_is_started_again(tmp_path: Path) -> None:
    part = Shell(tmp_path / "place", "homeless", 'rm -r "$(dirname "$0")"; exit 1')
    part.script = part.script.replace("$0", str(part.log_path))
    ended, *others = await watched([part], 3, pause_min_s=0.01)
    assert ended.startswith("homeless has ended with status 1")
    assert any("serves again" in line for line in others)
    await part.process.kill()
    part.log_path.unlink(missing_ok=True)
    assert part.process.log_tail() == "(its log was deleted)"


async def test_a_bookie_that_its_cluster_refuses_stays_down(tmp_path: Path) -> None:
    """It was decommissioned: no pause makes that another answer."""
    part = Shell(tmp_path, "retired", "exit 0", errors=10)
    part.error = IdentityError("the bookie was decommissioned")
    said = await watched([part], 2, pause_min_s=0.001)
    assert said[1] == "retired stays down: the bookie was decommissioned"
    assert part.starts == 1
