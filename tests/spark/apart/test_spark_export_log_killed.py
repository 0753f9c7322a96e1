"""The export of a log is killed again and again while the log grows, rolls and is truncated behind it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from tests.spark.apart.test_spark_interrupts import Program
from tests.spark.apart.test_spark_lock import can_be_taken, lock
from tests.spark.logs import PATIENCE_S, TestLog, assert_exactly, entry
from tests.waiting import eventually_here

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.spark.conftest import Ledgers

pytestmark = [pytest.mark.timeout(900), pytest.mark.exhaustive]

MANY_KILLS = pytest.param(8, marks=pytest.mark.long)
BEGINNING_S = 15.0  # about as long as it takes until the first batch is added
ADDING_S = 3.0  # for some more
SESSION_S = 4


def files(to: Path) -> list[Path]:
    """Never looks below `_bkpy`, where files come and go."""
    return list(to.glob("day=*/part-*.parquet"))


def rows(to: Path) -> list[dict[str, Any]]:
    """What a reader finds there at this moment; each file is whole."""
    found: list[dict[str, Any]] = []
    for file in files(to):
        found += pq.read_table(file, columns=["position", "payload"]).to_pylist()
    return found


class Export:
    """The exports of a log into one directory, and all that was ever seen there."""

    def __init__(self, log: TruncatedLog, to: Path, rng: random.Random) -> None:
        self.log, self.to, self.rng = log, to, rng
        self.seen: set[int] = set()
        self._arguments = [
            *("--connect", log.uri, "--log", log.name, "--to", to, "--partition-by", "day", "--batch-bytes", "60000"),
            *("-o", f"sessionTimeoutSeconds={SESSION_S}", "-o", "maxBytesPerPartition=20000"),
        ]

    def start(self, *more: object, stdout: int = subprocess.DEVNULL) -> Program:
        return Program("export", *self._arguments, *more, stdout=stdout)

    def let(self, program: Program) -> None:
        """Let it work for a while: on its beginnings, or else until it has added something, and some more time."""
        if self.rng.random() < 0.4:
            moment = self.rng.uniform(1.0, BEGINNING_S)
        else:
            before = len(files(self.to))
            eventually_here(
                lambda: program.process.poll() is not None or len(files(self.to)) > before, deadline_s=PATIENCE_S
            )
            moment = self.rng.uniform(0.0, ADDING_S)
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.process.wait(moment)

    def kill(self, program: Program) -> bool:
        """The command, or now and then its Java process alone; whether it was the command."""
        java_too = self.rng.random() < 0.3
        victims = [pid for pid, command in program.commands().items() if java_too and "SparkSubmit" in command]
        for pid in victims or [program.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not victims

    def look(self) -> None:
        """Whole, once, and all that was there before. Then, sometimes, truncate the log as far as it was exported."""
        found = rows(self.to)
        positions = [row["position"] for row in found]
        assert len(set(positions)) == len(positions), "a position is there twice"
        assert all(row["payload"] == entry(row["position"]) for row in found)
        assert self.seen <= set(positions), "what was seen once has gone"
        self.seen = set(positions)
        exported = next(position for position in range(len(positions) + 1) if position not in self.seen)
        if exported > self.log.truncated and self.rng.random() < 0.7:
            self.log.truncate(self.rng.randint((exported + self.log.truncated + 1) // 2, exported))

    def unlocked(self) -> None:
        """Return when the lock of the dead is forgotten."""
        eventually_here(lambda: can_be_taken(lock(self.log.uri, self.to)), deadline_s=PATIENCE_S)

    def killed(self, kills: int) -> Iterator[int]:
        """So many times, and more until an export has got as far as to add something."""
        return itertools.takewhile(lambda number: number < kills or not self.seen, itertools.count())

    def finish(self) -> None:
        """One that nobody kills; then everything is there."""
        end = self.log.appended(at_once=True)
        self.unlocked()
        program = self.start("--json", stdout=subprocess.PIPE)
        stdout, stderr = program.process.communicate()
        assert program.process.returncode == 0, stderr.decode()
        told = json.loads(stdout)
        assert (told["total"]["rows"], told["truncated"]) == (end, 0)
        assert told["total"]["bytes"] == sum(len(entry(position)) for position in range(end))
        assert told["total"]["files"] == len(files(self.to))
        assert [path.name for path in (self.to / "_bkpy").iterdir() if not path.name.startswith("manifest-")] == []
        assert_exactly(rows(self.to), 0, end)


class TruncatedLog(TestLog):
    """One that remembers how far it was truncated."""

    __test__ = False
    truncated = 0

    def truncate(self, before: int) -> None:
        super().truncate(before)
        self.truncated = before


@pytest.fixture
def export(ledgers: Ledgers, tmp_path: Path) -> Any:
    with TruncatedLog(ledgers.uri, roll_entries=300) as log:
        log.append_for(600, pause_s=0.05)
        yield Export(log, tmp_path / "out", random.Random(int(time.time())))
        log.appended(at_once=True)


@pytest.mark.parametrize("kills", [1, MANY_KILLS])
def test_killed_at_random_an_export_of_a_growing_log_goes_on(export: Export, kills: int) -> None:
    for _ in export.killed(kills):
        program = export.start()
        export.let(program)
        export.kill(program)
        program.end()
        export.look()
    export.finish()


@pytest.mark.parametrize("kills", [1, MANY_KILLS])
def test_killed_at_random_a_service_goes_on(export: Export, kills: int) -> None:
    """By another one if it was killed, and by itself if its Java process was."""
    program = None
    for _ in export.killed(kills):
        if program is None:
            export.unlocked()  # the first round's errors end the service, and the lock of the dead is one
            program = export.start("--follow", "--interval", "0.2")
        export.let(program)
        export.look()
        if export.kill(program) or program.process.poll() is not None:
            program.end()
            program = None
        export.look()
    if program is not None:
        program.process.kill()
        program.end()
    export.finish()
