"""A soak counts every seed once, tells of those that fail, and ends when it is asked to."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.waiting import DEADLINE_S

from . import soak as soaking
from .soak import Result, Soak


def toy(seed: int) -> Result:
    if seed == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return Result(seed, "it is odd" if seed == 3 else None, Counter(seen=1, odd=seed % 2), 1800.0, 0.5)


def sigterm(seed: int) -> Result:
    if seed == 1:
        os.kill(os.getpid(), signal.SIGTERM)
    return Result(seed, None, Counter(), 0.0, 0.0)


def own_process(seed: int) -> Result:
    return Result(seed, None, Counter([str(os.getpid())]), 0.0, 0.0)


@pytest.mark.thorough
def test_every_seed_is_counted_once_and_what_fails_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    soak = Soak(toy, "see ")
    soak.run(0, seeds=10, jobs=3)
    assert soak.seeds == 10
    assert soak.failed == {3: "it is odd", 5: "its process died: -9"}
    assert soak.marks == {"seen": 9, "odd": 4}
    assert soak.conclude(["seen"]) == 1
    told = capfd.readouterr().out
    assert "4.50 virtual hours" in told
    assert "see 3  # it is odd" in told


@pytest.mark.thorough
def test_a_seed_that_fails_is_in_the_file_at_once(tmp_path: Path) -> None:
    found = tmp_path / "found"
    there: list[bool] = []

    class Watched(Soak):
        def rates(self) -> str:
            there.append("see 3  # it is odd\n" in found.read_text())
            return super().rates()

    soak = Watched(toy, "see ", str(found))
    soak.run(3, seeds=1, jobs=1)
    soak.rates()
    assert there == [True]
    soak.run(4, seeds=4, jobs=2)
    assert found.read_text() == "see 3  # it is odd\nsee 5  # its process died: -9\n"


@pytest.mark.thorough
def test_a_process_that_is_full_gives_way_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soaking, "MEMORY_BYTES_MAX", 0)
    soak = Soak(own_process, "see ")
    soak.run(0, seeds=6, jobs=2)
    assert soak.seeds == 6
    assert len(soak.marks) == 6


def test_an_expected_mark_that_no_seed_reaches_fails_the_soak(capfd: pytest.CaptureFixture[str]) -> None:
    soak = Soak(toy, "see ")
    soak.run(0, seeds=2, jobs=2)
    assert soak.conclude(["odd"]) == 0
    assert soak.conclude(["odd", "even"]) == 1
    assert "never reached: even" in capfd.readouterr().out


def test_it_ends_when_its_time_is_over() -> None:
    soak = Soak(toy, "see ")
    soak.run(10, minutes=0.0, jobs=1)
    assert soak.stopped
    assert soak.seeds >= 1


@pytest.mark.thorough
def test_its_processes_end_when_it_is_killed() -> None:
    ours, theirs = os.pipe()
    ready = multiprocessing.get_context("fork").Event()

    def play(seed: int) -> Result:
        if seed == 10:
            ready.set()
        return Result(seed, None, Counter(), 0.0, 0.0)

    # Forked, so that each of them holds the writing end.
    soak = multiprocessing.get_context("fork").Process(target=Soak(play, "see ").run, args=(0,), kwargs={"jobs": 3})
    soak.start()
    os.close(theirs)
    assert ready.wait(DEADLINE_S)
    soak.kill()
    soak.join()
    with open(ours, "rb") as pipe:
        assert pipe.read() == b""  # once none has the other end


@pytest.mark.thorough
def test_a_process_of_it_ends_by_sigterm() -> None:
    soak = Soak(sigterm, "see ")
    before = signal.signal(signal.SIGTERM, lambda *_: soak.stop())
    try:
        soak.run(0, seeds=3, jobs=1)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert soak.failed == {1: f"its process died: -{signal.SIGTERM}"}
    assert soak.seeds == 3


@pytest.mark.exhaustive
def test_an_interrupt_ends_it_with_what_was_counted() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.sim.soak", "storage", "--minutes", "10", "--jobs", "1"],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("soaking storage")
        process.send_signal(signal.SIGINT)
        told = process.stdout.read()
    assert "virtual hours" in told
    assert "no seed failed" in told
