"""How fast bkpy and Apache BookKeeper make good a bookie that is gone, and what their clients notice of it.

    python benchmarks/peers/healing.py [--rows N,N] [--share S] [--json FILE] [--dir DIRECTORY]

Three bookies of either hold the same ledgers, three copies of each entry; another one is empty. One of the three is
killed: how long until no ledger names it any more? Then another empty one is started, and one of the bookies that hold
everything is to leave. Meanwhile entries are appended at a steady rate, as before: how long do they take? README.md
says what is counted from when. FILE may be what run.py wrote: the figures are added to it. If BookKeeper fails in a
row, the row says why, and has what was measured by then. Fails, and says why, if our ledgers aren't whole in time, or
an entry of ours isn't on the bookie that it was copied to.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import datetime
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from bookkeeper import JavaCluster, fetch
from peer import HERE, START_TIMEOUT_S, Client, PeerError
from plan import IDLE_S, PEER_IDLE_S
from rest import Rest, resting
from rich import box
from rich.console import Console
from rich.table import Table

from bkpy.bench.machine import machine, versions
from bkpy.config.recovery import RecoverySettings
from bkpy.errors import BookKeeperError
from bkpy.local import LocalCluster
from bkpy.local.java import find_java
from bkpy.local.process import poll
from bkpy.metadata import paths
from bkpy.metadata.bookies.draining import Drains
from bkpy.metadata.cluster import open_cluster
from bkpy.metadata.ledgers.layout import HIERARCHICAL
from bkpy.metadata.replication.election import leader
from bkpy.metadata.store.store import NoNode
from bkpy.runtime.system import real_runtime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from bkpy.local.cluster import LocalBookie
    from bkpy.metadata.ledgers.layout import Layout
    from bkpy.metadata.store.store import MetadataStore

BOOKIES: Final = 3  # that hold the ledgers
RATE, SIZE = 2000, 1024  # appends a second meanwhile
WARM_S: Final = 10.0  # of appends that aren't counted
BEFORE_S: Final = 5.0  # of counted appends, before something happens
ELECTED_S: Final = 60.0
HEALED_MAX_S: Final = 600.0
STORE_MAX_S: Final = 300.0
READS_AT_ONCE: Final = 64
LOOK_S: Final = 0.1
SETTLE_S: Final = 1.0  # ours, which can't be none: time is counted from its end

# Both: no delay for a bookie that is lost. Ours is otherwise as it is installed; what theirs is given is in README.md.
OUR_SETTINGS: Final[dict[str, Any]] = {
    "lost_bookie_settle_s": SETTLE_S,
    "lost_bookie_recovery_delay_s": 0.0,
}
THEIR_SETTINGS: Final = """\
autoRecoveryDaemonEnabled=true
lostBookieRecoveryDelay=0
openLedgerRereplicationGracePeriod=3600000
auditorPeriodicCheckInterval=0
auditorPeriodicBookieCheckInterval=0
auditorPeriodicPlacementPolicyCheckInterval=0
auditorReplicasCheckInterval=0
auditorLedgerVerificationPercentage=0
rereplicationEntryBatchSize=1000
inFlightReadEntryNumInLedgerChecker=1000
useV2WireProtocol=true
throttle=0
zkRequestRateLimit=0
"""


@dataclass(frozen=True)
class Data:
    """What each of the three bookies holds."""

    ledgers: int
    entries: int  # of each
    size: int

    @property
    def name(self) -> str:
        total = self.ledgers * self.entries * self.size / 1e6
        return f"{total:,.0f} MB in {self.ledgers:,} ledgers of {self.entries} entries"


ROWS: Final = (
    Data(1000, 200, 10 * 1024),
    Data(10_000, 10, 1024),
)


class Side(Protocol):
    """One of the two systems, running."""

    client: Client
    layout: Layout
    store: MetadataStore
    root: str
    idle_s: float

    async def add(self) -> str:
        """Start an empty bookie: its id."""

    async def kill_one(self) -> tuple[str, float]:
        """Kill one that holds everything: its id, and when that was noticed, by `time.monotonic`."""

    async def drain_one(self) -> tuple[str, float]:
        """Have one that holds everything leave: its id, and when that began."""

    async def verify(self, bookie_id: str) -> dict[str, Any]:
        """Look whether all that it is named for is on that bookie."""


class Ours:
    """A local cluster, and a process with a client."""

    idle_s = IDLE_S

    def __init__(self, cluster: LocalCluster, client: Client, store: MetadataStore, root: str, layout: Layout) -> None:
        self._cluster = cluster
        self.client, self.store, self.root, self.layout = client, store, root, layout
        self._full = list(cluster.bookies)

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, directory: Path) -> AsyncIterator[Ours]:
        async with LocalCluster(directory, BOOKIES, OUR_SETTINGS) as cluster, cluster.metadata() as (store, root):
            client = Client(directory / "client.log")
            try:
                await client.start([sys.executable, str(HERE / "our_healing.py"), cluster.connect_string])
                layout = (await open_cluster(store, root)).catalog.layout
                yield cls(cluster, client, store, root, layout)
            finally:
                await client.kill()

    async def add(self) -> str:
        return (await self._cluster.add_bookie()).id

    async def kill_one(self) -> tuple[str, float]:
        bookie = await self._one()
        await bookie.kill()
        await _forget(self.store, paths.available(self.root, bookie.id, read_only=False))
        await asyncio.sleep(SETTLE_S)
        return bookie.id, time.monotonic()

    async def drain_one(self) -> tuple[str, float]:
        bookie, began = await self._one(), time.monotonic()
        await Drains(self.store, self.root, real_runtime(), RecoverySettings()).begin(bookie.id)
        return bookie.id, began

    async def _one(self) -> LocalBookie:
        """One that isn't the auditor, as the peer's isn't: another election is not what is measured."""

        async def elected() -> bool:
            return await leader(self.store, self.root) is not None

        if not await poll(elected, ELECTED_S):
            raise PeerError(f"no auditor was elected within {ELECTED_S:g} s")
        found = await leader(self.store, self.root)
        assert found is not None
        bookie = next(bookie for bookie in self._full if bookie.id != found.candidate)
        self._full.remove(bookie)
        return bookie

    async def verify(self, bookie_id: str) -> dict[str, Any]:
        return await self.client.command(f"verify {bookie_id}", HEALED_MAX_S)


class Theirs:
    """The peer's cluster. Its first bookie, which was there first, is its auditor."""

    idle_s = PEER_IDLE_S
    layout = HIERARCHICAL

    def __init__(self, cluster: JavaCluster, store: MetadataStore, root: str) -> None:
        assert cluster.client is not None
        self._cluster = cluster
        self.client, self.store, self.root = cluster.client, store, root
        self._full = cluster.bookies[1:]

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, directory: Path, class_path: str) -> AsyncIterator[Theirs]:
        cluster = JavaCluster(directory, class_path, BOOKIES, THEIR_SETTINGS)
        try:
            await cluster.start()
            async with cluster.metadata() as (store, root):
                yield cls(cluster, store, root)
        finally:
            await cluster.kill()

    async def add(self) -> str:
        return (await self._cluster.add_bookie()).address

    async def kill_one(self) -> tuple[str, float]:
        bookie = self._full.pop(0)
        await bookie.kill()
        await _forget(self.store, f"{self.root}/available/{bookie.address}")
        return bookie.address, time.monotonic()

    async def drain_one(self) -> tuple[str, float]:
        """Its documentation has a bookie stopped before it is decommissioned."""
        bookie = self._full.pop(0)
        stopped = asyncio.create_task(bookie.stop())
        await poll(lambda: _gone(self.store, f"{self.root}/available/{bookie.address}"), START_TIMEOUT_S)
        began = time.monotonic()
        await stopped
        return bookie.address, began

    async def verify(self, bookie_id: str) -> dict[str, Any]:
        return {}


async def _forget(store: MetadataStore, registration: str) -> None:
    """A dead bookie's registration outlives it by a session timeout, which is not what is measured."""
    with contextlib.suppress(NoNode):
        await store.delete(registration)


async def _gone(store: MetadataStore, path: str) -> bool:
    return not await store.exists(path)


# --- one row ----------------------------------------------------------------------------------------------------------


async def measure_one(side: Side, data: Data, rest: Rest, found: dict[str, Any]) -> None:
    """What happens to that data in one system, added to `found` as soon as it is known."""
    began = time.monotonic()
    await side.client.command(f"store {data.ledgers} {data.entries} {data.size}", STORE_MAX_S)
    found["stored_s"] = round(time.monotonic() - began, 1)
    ledger_ids = [i async for some in side.layout.partitions(side.store, side.root) for i in some]
    if len(ledger_ids) != data.ledgers:
        raise PeerError(f"{data.ledgers} ledgers were made, and {len(ledger_ids)} are there")
    found["killed"] = await _event(side, "kill", ledger_ids, rest)
    found["drained"] = await _event(side, "drain", ledger_ids, rest)


async def _event(side: Side, what: str, ledger_ids: list[int], rest: Rest) -> dict[str, Any]:
    target = await side.add()
    rested = await rest.until_idle(side.idle_s)
    await side.client.command(f"pace {RATE} {SIZE}", STORE_MAX_S)
    await asyncio.sleep(WARM_S)
    await side.client.command("lap", STORE_MAX_S)
    await asyncio.sleep(BEFORE_S)
    before = await side.client.command("lap", STORE_MAX_S)
    bookie_id, began = await (side.kill_one() if what == "kill" else side.drain_one())
    await _healed(side, ledger_ids, bookie_id)
    seconds = round(time.monotonic() - began, 3)
    meanwhile = await side.client.command("lap", STORE_MAX_S)
    await side.client.command("rest", STORE_MAX_S)
    verified = await side.verify(target)
    print(f"  {type(side).__name__}, {what}: {seconds:.1f} s, {before} {meanwhile} {verified}", file=sys.stderr)
    return {"seconds": seconds, "before": before, "meanwhile": meanwhile, "verified": verified, **rested}


async def _healed(side: Side, ledger_ids: list[int], bookie_id: str) -> None:
    """Return when no ledger names that bookie: its id is not in what is stored of any of them."""
    left, name = list(ledger_ids), bookie_id.encode()
    deadline = time.monotonic() + HEALED_MAX_S

    async def named(ledger_id: int) -> bool:
        return name in (await side.store.get(side.layout.path_of(side.root, ledger_id)))[0]

    while left:
        some, left = left[:READS_AT_ONCE], left[READS_AT_ONCE:]
        still = [i for i, yes in zip(some, await asyncio.gather(*map(named, some)), strict=True) if yes]
        left += still
        if still:  # at a pace that is no load of its own
            await asyncio.sleep(LOOK_S)
        if time.monotonic() > deadline:
            raise PeerError(f"{len(left)} ledgers still name {bookie_id} after {HEALED_MAX_S:g} s")


async def measure(rows: list[Data], rest: Rest, class_path: str) -> AsyncIterator[dict[str, Any]]:
    for data in rows:
        print(f"{data.name}:", file=sys.stderr)
        found: dict[str, dict[str, Any]] = {"bkpy": {}, "BookKeeper": {}}
        with tempfile.TemporaryDirectory(dir=rest.directory) as own:
            async with Ours.running(Path(own)) as ours:
                await measure_one(ours, data, rest, found["bkpy"])
        with tempfile.TemporaryDirectory(dir=rest.directory) as own:
            try:
                async with Theirs.running(Path(own) / "bookkeeper", class_path) as theirs:
                    await measure_one(theirs, data, rest, found["BookKeeper"])
            except PeerError as error:
                found["BookKeeper"]["failure"] = str(error)
        yield {"name": data.name, **vars(data), **found}


# --- what is shown ----------------------------------------------------------------------------------------------------


def table(rows: list[dict[str, Any]]) -> Table:
    shown = Table(box=box.SIMPLE_HEAD)
    columns = ("data", "a bookie", "whose", "s", "MB/s", "ledgers/s", "p99 ms before", "meanwhile", "longest ms")
    for column in columns:
        shown.add_column(column, justify="left" if column in columns[:3] else "right", no_wrap=True)
    for row in rows:
        for what in ("killed", "drained"):
            for who in ("bkpy", "BookKeeper"):
                if what not in row[who]:
                    shown.add_row(row["name"], what, who, "failed")
                    continue
                one = row[who][what]
                figures = (
                    f"{one['seconds']:,.1f}",
                    f"{row['ledgers'] * row['entries'] * row['size'] / 1e6 / one['seconds']:,.0f}",
                    f"{row['ledgers'] / one['seconds']:,.0f}",
                    f"{one['before']['p99_ms']:,.1f}",
                    f"{one['meanwhile']['p99_ms']:,.1f}",
                    f"{one['meanwhile']['longest_ms']:,.1f}",
                )
                shown.add_row(row["name"], what, who, *figures)
    return shown


def save(file: Path, header: dict[str, Any], row: dict[str, Any]) -> None:
    """Add the row to the file, instead of an earlier one of the same data: each says how it was measured."""
    whole = json.loads(file.read_text()) if file.exists() else {"rows": []}
    others = [one for one in whole.get("healing", ()) if one["name"] != row["name"]]
    file.write_text(json.dumps({**whole, "healing": [*others, {**header, **row}]}, indent=1) + "\n")


async def _run(rows: list[Data], directory: str, class_path: str, done: Callable[[dict[str, Any]], None]) -> None:
    async with resting(directory) as rest:
        async for row in measure(rows, rest, class_path):
            done(row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", metavar="N,N", default="1,2", help=f"only these, 1 to {len(ROWS)}")
    parser.add_argument("--share", type=float, default=1.0, help="of the ledgers: a smaller one for a trial")
    parser.add_argument("--json", metavar="FILE", type=Path, help="add all figures to FILE")
    parser.add_argument("--dir", metavar="DIRECTORY", help="where the servers keep their files while it runs")
    options = parser.parse_args()
    rows = [ROWS[int(n) - 1] for n in options.rows.split(",")]
    rows = [dataclasses.replace(one, ledgers=max(1, round(one.ledgers * options.share))) for one in rows]
    found: list[dict[str, Any]] = []
    failure = None
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="bkpy-peers-") as directory:
        try:
            class_path, version = fetch()
            header = {
                "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "command": " ".join(["benchmarks/peers/healing.py", *sys.argv[1:]]),
                "machine": machine(directory),
                "versions": {**versions(), "bookkeeper": version, "java": find_java().version},
                "appends_per_s": RATE,
                "append_bytes": SIZE,
            }

            def done(row: dict[str, Any]) -> None:
                found.append(row)
                if options.json is not None:
                    save(options.json, header, row)

            asyncio.run(_run(rows, directory, class_path, done))
        except (PeerError, BookKeeperError, OSError) as e:
            failure = f"bench-peers: {e}"
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 150
    console.print(table(found))
    for row in found:
        if "failure" in row["BookKeeper"]:
            console.print(f"{row['name']}: BookKeeper failed: {row['BookKeeper']['failure']}")
    if failure is not None:
        raise SystemExit(failure)


if __name__ == "__main__":
    main()
