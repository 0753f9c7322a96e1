"""`bkpy bookie format` and `cookie update`, killed at each step that changes a file: what the next commands say."""

from __future__ import annotations

import shutil
import signal
from typing import TYPE_CHECKING

import pytest
from tests.cluster.test_cli_identity import Commands
from tests.command import PATIENCE_S, PRELOADED, environment

if TYPE_CHECKING:
    from pathlib import Path

    from bkpy.local import LocalCluster

KILLED = """\
import os, signal, sys
directory, left = sys.argv[1], int(sys.argv[2])

def look(event, arguments):
    global left
    changes = event in ("os.remove", "os.rename") or (
        event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    )
    if changes and str(arguments[0]).startswith(directory):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(look)
from bkpy.cli import main
main(sys.argv[3:])
"""
STEPS = [pytest.param(range(1, 40, 19), id="some"), pytest.param(range(40), id="all", marks=pytest.mark.exhaustive)]


def killed(one: Commands, step: int, *words: str) -> bool:
    """Run the command, and kill it before it changes a file once more after `step` times; whether it came to that."""
    script = one.root.with_suffix(".py")  # not among the files that are looked at
    script.write_text(KILLED)
    done = PRELOADED.run(
        [str(script), str(one.root), str(step), "bookie", *words, "--config", str(one.path)],
        stdin=b"",
        env=environment(None),
        timeout_s=PATIENCE_S,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()
    return done.returncode != 0


def files(directory: Path) -> set[str]:
    return {path.name for path in directory.rglob("*") if path.is_file()} - {"lock", "bookie.toml"}


@pytest.mark.parametrize("steps", STEPS)
def test_a_format_that_is_killed_is_told_by_all_and_finished_by_the_next(
    cluster: LocalCluster, tmp_path: Path, steps: range
) -> None:
    outcomes = []
    for step in steps:
        one = Commands(cluster, tmp_path, f"killed-{step}-{len(steps)}")
        one.run("init")
        whole = files(tmp_path)
        outcomes.append(killed(one, step, "format", "--yes"))
        if not outcomes[-1]:
            assert files(tmp_path) == set()
            break
        shown = one.json("cookie", "show")
        if "data.mdb" not in files(tmp_path):
            refused = one.run("run", status=1)[1].splitlines()[-1]
            assert "format" in refused or "rebuild-index" in refused or "no cookie" in refused, refused
            said = one.run("check", status=1)[0]
            assert "rebuild-index" in said or "cookie" in said
            update = one.run("cookie", "update", "--yes", status=1)[1]
            assert update.count("\n") == 1
        else:
            assert files(tmp_path) <= whole
            assert shown["missing"] == []
        one.run("format", "--yes")
        assert files(tmp_path) == set()
        assert one.json("init")["new"]
        one.run("format", "--yes")
    assert outcomes[0]
    assert not outcomes[-1] or len(steps) < 40


@pytest.mark.parametrize("steps", STEPS)
def test_a_cookie_update_that_is_killed_is_finished_by_the_next(
    cluster: LocalCluster, tmp_path: Path, steps: range
) -> None:
    outcomes = []
    for step in steps:
        one = Commands(cluster, tmp_path, f"moved-{step}-{len(steps)}")
        one.run("init")
        (tmp_path / "journal").rename(tmp_path / "fast")
        one.write(journal_directories=[str(tmp_path / "fast")])
        outcomes.append(killed(one, step, "cookie", "update", "--yes"))
        one.json("cookie", "show")
        one.run("cookie", "update", "--yes")
        shown = one.json("cookie", "show")
        assert (shown["differ"], shown["missing"]) == ([], []), step
        one.run("format", "--yes")
        shutil.rmtree(tmp_path / "fast")
        if not outcomes[-1]:
            break
    assert outcomes[0]
    assert not outcomes[-1] or len(steps) < 40
