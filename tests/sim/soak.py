"""Many seeds of one run on all cores: which fail, how fast they go, and which coverage marks they reach.

    python -m tests.sim.soak quick --seeds 10000
    python -m tests.sim.soak everything --minutes 60 --first 500000

A mark that is expected of the run and that no seed reaches fails it, like a seed that fails. SIGINT ends it with what
was counted so far; a seed that fails is written to a file at once. Each core has one process, which plays a seed at a
time and asks for the next one. Nothing collects its garbage, which costs more than another process: at
`MEMORY_BYTES_MAX` it gives way to a new one.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import logging
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, NamedTuple

from bkpy.config.base import KIB, MIB

from .coverage_marks import EXPECTED
from .runs import RUNS, Range, play
from .world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.process import BaseProcess

SEED_S_MAX = 900.0  # a seed that computes for longer hangs
REPORT_S = 60.0
MEMORY_BYTES_MAX = 400 * MIB  # of a process that plays seeds


class Result(NamedTuple):
    """What came of one seed."""

    seed: int
    error: str | None
    marks: Counter[str]
    virtual_s: float
    processor_s: float


def play_seed(run: str, seed: int) -> Result:
    done = Range()
    error = play(run, seed, done)
    (played,) = done.played
    text = None if error is None else f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return Result(seed, text, done.marks, played.virtual_s, played.seconds)


@dataclass
class Worker:
    """A process that plays seeds, and the seed it plays."""

    process: BaseProcess
    connection: Connection
    seed: int
    since: float = field(default_factory=time.monotonic)
    full: bool = False  # it plays no other


@dataclass
class Soak:
    """What was counted."""

    play: Callable[[int], Result]
    see: str  # the command that shows a seed
    found: str | None = None  # the file to which it appends the commands that show the seeds that fail
    failed: dict[int, str] = field(default_factory=dict)
    marks: Counter[str] = field(default_factory=Counter)
    seeds: int = 0
    virtual_s: float = 0.0
    processor_s: float = 0.0
    seconds: float = 0.0
    stopped: bool = False

    def run(self, first: int, *, seeds: int | None = None, minutes: float | None = None, jobs: int = 1) -> None:
        """Play so many seeds, or for so long, or until it is stopped."""
        began = self._reported_at = time.monotonic()
        ends_at = float("inf") if minutes is None else began + minutes * 60
        self._next, self._last = first, None if seeds is None else first + seeds
        workers = [self._start() for _ in range(jobs if seeds is None else min(jobs, seeds))]
        while workers:
            ready = wait([worker.connection for worker in workers], timeout=1.0)
            self.seconds = time.monotonic() - began
            if time.monotonic() > ends_at:
                self.stopped = True
            for worker in list(workers):
                if worker.connection in ready:
                    if not self._took(worker):
                        workers.remove(worker)
                elif time.monotonic() > worker.since + SEED_S_MAX:
                    worker.process.kill()  # seen below as one that died
            self._report()

    def stop(self) -> None:
        """Play no further seed."""
        self.stopped = True

    def _start(self) -> Worker:
        ours, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        process = context.Process(target=_work, args=(self.play, theirs, ours), daemon=True)
        process.start()
        theirs.close()
        seed, self._next = self._next, self._next + 1
        ours.send(seed)
        return Worker(process, ours, seed)

    def _took(self, worker: Worker) -> bool:
        """Count the worker's result and give it another seed; False if there is none, or the worker is gone."""
        try:
            result, worker.full = worker.connection.recv()
        except (EOFError, ConnectionError):
            worker.process.join()
            result = Result(worker.seed, f"its process died: {worker.process.exitcode}", Counter(), 0.0, 0.0)
            worker.full = True
        self._count(result)
        if self.stopped or self._next == self._last:
            with contextlib.suppress(BrokenPipeError):  # of one that died
                worker.connection.send(None)
            worker.process.join()
            return False
        if worker.full:
            worker.process.join()
            worker.connection.close()
            fresh = self._start()
            worker.process, worker.connection = fresh.process, fresh.connection
            worker.seed, worker.full = fresh.seed, False
        else:
            worker.seed, self._next = self._next, self._next + 1
            worker.connection.send(worker.seed)
        worker.since = time.monotonic()
        return True

    def _count(self, result: Result) -> None:
        self.seeds += 1
        self.marks.update(result.marks)
        self.virtual_s += result.virtual_s
        self.processor_s += result.processor_s
        if result.error is not None:
            self.failed[result.seed] = result.error
            print(f"seed {result.seed}: {result.error}", flush=True)
            if self.found is not None:
                with open(self.found, "a", encoding="utf-8") as file:
                    file.write(self._shown(result.seed) + "\n")

    def _shown(self, seed: int) -> str:
        return f"{self.see}{seed}  # {self.failed[seed][:100]}"

    def _report(self) -> None:
        if time.monotonic() > self._reported_at + REPORT_S:
            self._reported_at = time.monotonic()
            print(f"... {self.rates()}, {len(self.failed)} failed, next {self._next}", flush=True)

    def rates(self) -> str:
        return (
            f"{self.seeds:,} seeds in {self.seconds:.0f} s, {self.seeds / max(self.seconds, 0.001):.2f} seeds/s, "
            f"{self.seeds / max(self.processor_s, 0.001):.2f} seeds/s and core, "
            f"{self.virtual_s / 3600:.2f} virtual hours"
        )

    def conclude(self, expected: Sequence[str]) -> int:
        """Say what was counted; 1 if anything failed, or an expected mark was never reached."""
        for mark, times in sorted(self.marks.items()):
            if times:
                print(f"{times:10,} {mark}")
        print(self.rates())
        missed = [mark for mark in expected if not self.marks[mark]]
        for mark in missed:
            print(f"never reached: {mark}")
        for seed in sorted(self.failed):
            print(self._shown(seed))
        print(f"{len(self.failed)} seeds failed" if self.failed else "no seed failed")
        return 1 if self.failed or missed else 0


def _work(play: Callable[[int], Result], connection: Connection, others_end: Connection) -> None:
    """A worker: plays what it is told, until nobody tells it any more."""
    others_end.close()  # a fork has that too, and would never see the soak's own process gone
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # sent to the whole group; the soak's own process asks for an end
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    logging.lastResort = None  # what runs do to bookies and clients makes them warn all the time
    World.keeps_trace = False
    gc.freeze()  # what was imported stays
    gc.disable()
    full = False
    with contextlib.suppress(EOFError, ConnectionError):
        while not full and (seed := connection.recv()) is not None:
            result = play(seed)
            full = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB > MEMORY_BYTES_MAX
            connection.send((result, full))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.soak", description=__doc__)
    parser.add_argument("run", choices=RUNS)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; as many as cores")
    parser.add_argument("--found", help="the file for seeds that fail; build/soak-RUN.txt")
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--seeds", type=int)
    length.add_argument("--minutes", type=float)
    arguments = parser.parse_args()
    found = f"build/soak-{arguments.run}.txt" if arguments.found is None else arguments.found
    os.makedirs(os.path.dirname(found) or ".", exist_ok=True)
    soak = Soak(functools.partial(play_seed, arguments.run), f"make sim SCENARIO={arguments.run} SEED=", found)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: soak.stop())
    print(f"soaking {arguments.run} from seed {arguments.first} on in {arguments.jobs} processes", flush=True)
    soak.run(arguments.first, seeds=arguments.seeds, minutes=arguments.minutes, jobs=arguments.jobs)
    return soak.conclude(EXPECTED[arguments.run])


if __name__ == "__main__":
    sys.exit(main())
