"""The processes of a run of chaos that write and read, each until it is killed; and such a process seen from outside.

    python tests/chaos/clients.py KIND URI DIRECTORY LOG SEED

`write` opens the log again after each failure, as a term of its own; `consume` keeps a record of what it received, and
commits after it; `ledgers` writes ledgers, reads former ones back, and deletes some. Their files are in DIRECTORY.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
import time
from pathlib import Path

import bkpy
from bkpy.local.process import ManagedProcess
from tests.chaos.oracle import Read, Record, make_payload
from tests.command import PRELOADED
from tests.faults.load import Load
from tests.faults.oracle import BrokenPromiseError, Promises, check, demand, read_back
from tests.hooks import children_started_by

ROOT = Path(__file__).parents[2]
CONSUMER = "consumer"
_CLIENT = {"add_timeout_s": 5.0, "session_timeout_s": 6.0}
_ROLL_ENTRIES = 2000
_BATCH_MAX, _FILLER_BYTES_MAX = 20, 2000
_PAUSE_S = 0.02
_LEDGER_ENTRIES_MAX = 300
_KEPT = 5  # ledgers that are read back and not deleted, at least


class ClientProcess:
    """One of these processes. It is started again after it was killed."""

    def __init__(self, kind: str, uri: str, directory: Path, log: str, seed: int, *, name: str = "") -> None:
        self.process = ManagedProcess(directory / f"{name or kind}-{log}.log")
        self._words = [kind, uri, str(directory), log, str(seed)]

    def start(self) -> None:
        with children_started_by(PRELOADED.script):
            self.process.spawn(
                [sys.executable, __file__, *self._words], env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
            )

    async def kill(self) -> None:
        await self.process.kill()

    def must_run(self) -> None:
        """`AssertionError` with what it said last if it has ended by itself."""
        assert self.process.running, f"{self._words[0]} {self._words[3]} has ended:\n{self.process.log_tail()}"


def acknowledged_files(directory: Path, log: str) -> list[Path]:
    return sorted(directory.glob(f"{log}.*.acknowledged"))


def consumed_file(directory: Path, log: str) -> Path:
    return directory / f"{log}.consumed"


def promise_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("ledger-*.promises"))


def violations(directory: Path) -> list[str]:
    """What these processes have seen themselves that must not be."""
    return [path.read_text() for path in sorted(directory.glob("*.violation"))]


def _tell(directory: Path, what: str) -> None:
    (directory / f"{time.time_ns()}-{os.getpid()}.violation").write_text(what)


# --- a log's writer ---------------------------------------------------------------------------------------------------


async def write(uri: str, directory: Path, log: str, seed: int) -> None:
    rng = random.Random(f"{log} {seed} {os.getpid()}")
    async with bkpy.connect(uri, **_CLIENT) as client:  # type: ignore[arg-type]
        while True:
            try:
                writer = await client.open_log(log, create=True, roll_entries=_ROLL_ENTRIES)
            except bkpy.BookKeeperError as error:
                print("open", type(error).__name__, error, flush=True)
                await asyncio.sleep(5 * _PAUSE_S)
                continue
            try:
                await _write_term(writer, directory, log, rng)
            except bkpy.BookKeeperError as error:
                print("append", type(error).__name__, error, flush=True)
                writer.abandon()


async def _write_term(writer: bkpy.LogWriter, directory: Path, log: str, rng: random.Random) -> None:
    """Append until an append fails."""
    term = time.time_ns()  # two openings of one log are never at the same time
    record = Record(directory / f"{log}.{term}.acknowledged")
    number = 0
    with contextlib.closing(record):
        while True:
            fillers = [rng.randbytes(rng.randrange(_FILLER_BYTES_MAX)) for _ in range(rng.randrange(1, _BATCH_MAX))]
            payloads = [make_payload(log, term, number + i, filler) for i, filler in enumerate(fillers)]
            number += len(payloads)
            positions = await writer.append_batch(payloads)
            record.add([Read(*pair) for pair in zip(positions, payloads, strict=True)])
            await asyncio.sleep(_PAUSE_S)


# --- a log's consumer -------------------------------------------------------------------------------------------------


async def consume(uri: str, directory: Path, log: str) -> None:
    record = Record(consumed_file(directory, log))
    async with bkpy.connect(uri, **_CLIENT) as client:  # type: ignore[arg-type]
        while True:
            try:
                await consume_some(client, log, record, until_the_end=False)
            except bkpy.BookKeeperError as error:
                print(type(error).__name__, error, flush=True)
            await asyncio.sleep(5 * _PAUSE_S)


async def consume_some(client: bkpy.Client, log: str, record: Record, *, until_the_end: bool) -> None:
    """Record each entry once, in order, from where the record ends, and commit after that."""
    async with await client.read_log(log) as reader:
        consumer = await reader.consumer(CONSUMER, position=0, create=True)
        if record.count < consumer.position:
            _tell(record.path.parent, f"{log}: its consumer is at {consumer.position} and received {record.count}")
        while True:
            if record.count < reader.next_position:
                async for entry in reader.read(record.count, reader.next_position - 1):
                    record.add([Read(entry.position, entry.data)])
                await consumer.commit(record.count)
            if until_the_end:
                return
            await asyncio.sleep(5 * _PAUSE_S)
            await reader.refresh()


# --- ledgers ----------------------------------------------------------------------------------------------------------


async def ledgers(uri: str, directory: Path, seed: int) -> None:
    rng = random.Random(f"ledgers {seed} {os.getpid()}")
    closed: list[Path] = []
    async with bkpy.connect(uri, **_CLIENT) as client:  # type: ignore[arg-type]
        while True:
            try:
                await _write_and_look(client, directory, rng, closed)
            except bkpy.BookKeeperError as error:
                print(type(error).__name__, error, flush=True)
            except BrokenPromiseError as error:
                _tell(directory, str(error))
            await asyncio.sleep(5 * _PAUSE_S)


async def _write_and_look(client: bkpy.Client, directory: Path, rng: random.Random, closed: list[Path]) -> None:
    """One ledger more, until a call fails; then former ones are read back, and perhaps deleted."""
    while True:
        writer = await client.create_ledger(ensemble_size=rng.choice((3, 4)), write_quorum=3, ack_quorum=2)
        path = directory / f"ledger-{writer.ledger_id}.promises"
        load = Load(writer, outstanding=4, filler_bytes_max=500, pause_s=_PAUSE_S, seed=writer.ledger_id)
        load.promises.log_to(path)
        try:
            async with load:
                await load.more(rng.randrange(_LEDGER_ENTRIES_MAX))
            if load.error is not None:
                raise load.error
            await writer.close()
        except bkpy.BookKeeperError:
            writer.abandon()
            if load.promises.violations:
                _tell(directory, "\n".join(load.promises.violations))
            raise
        demand(load.promises, await read_back(client, writer.ledger_id))
        closed.append(path)
        if len(closed) > _KEPT:
            path = closed.pop(rng.randrange(len(closed)))
            await check(client, Promises.load(path))
            if rng.random() < 0.5:
                path.unlink()  # whether the deletion succeeds or not, nothing is promised of the ledger any more
                await client.delete_ledger(int(path.stem.partition("-")[2]))


def main() -> None:
    kind, uri, directory, log, seed = sys.argv[1:]
    work = {
        "write": lambda: write(uri, Path(directory), log, int(seed)),
        "consume": lambda: consume(uri, Path(directory), log),
        "ledgers": lambda: ledgers(uri, Path(directory), int(seed)),
    }
    asyncio.run(work[kind]())


if __name__ == "__main__":
    main()
