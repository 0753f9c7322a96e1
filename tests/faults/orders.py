"""The services of examples/orders on a real cluster, attacked: every order has to be in the log once.

    PYTHONPATH=. python tests/faults/orders.py SECONDS [SEED]

Two services take the same orders, and whichever gets one becomes the log's writer. A shop numbers orders, and repeats
each until it is answered: it waits for less time than a service may take, changes services, sends an order to both at
once, and repeats orders that were answered long ago. Meanwhile services, the consumer, bookies and ZooKeeper are killed
and suspended, each kind in turn.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import aiohttp

import bkpy
from bkpy.local import LocalCluster
from bkpy.local.process import ManagedProcess, free_port
from tests.command import PRELOADED
from tests.hooks import children_started_by
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "orders"
_PATIENCE_S: Final = 1.0  # of the shop with one request: less than a service's
_PAUSE_S: Final = 0.02  # of the shop before it repeats an order that nobody has answered
_ROUND_S: Final = 30.0  # between two moments at which everything is killed
_FAULT_S: Final = (0.2, 2.5)  # how long one lasts, and the pause before the next of its lane
_NO_METADATA: Final = "bkpy.errors.MetadataUnavailableError"  # ends a program that can't connect
_BOTH, _AGAIN, _CHANGE = 0.02, 0.02, 0.01  # shares of orders that are sent in these ways

LANES: Final = {
    "services": ("service killed", "service suspended"),
    "bookies": ("bookie killed", "bookie suspended"),
    "metadata": ("ZooKeeper suspended", "ZooKeeper killed"),
    "consumer": ("consumer killed",),
}


class AttackError(AssertionError):
    """An order is missing, doubled or out of place."""


class Program:
    """A program of the example, which is started again after it was killed, or ended where ZooKeeper was away."""

    def __init__(self, directory: Path, uri: str, name: str, argument: object) -> None:
        self.process = ManagedProcess(directory / f"{name}-{argument if name == 'service' else 'run'}.log")
        self._command = [sys.executable, str(EXAMPLES / f"{name}.py"), str(argument)]
        self._wanted = False
        self._environment = {**os.environ, "BKPY_CONNECT": uri, "PYTHONPATH": str(ROOT / "src")}

    def start(self) -> None:
        self._wanted = True
        with children_started_by(PRELOADED.script):
            self.process.spawn(self._command, env=self._environment)

    async def kill(self) -> None:
        self._wanted = False
        await self.process.kill()

    async def supervise(self, restarted: Callable[[], None]) -> None:
        """Start it whenever it has ended by itself, as the system that runs services does."""
        while True:
            if self._wanted and not self.process.running:
                if _NO_METADATA not in (tail := self.process.log_tail()):
                    raise AttackError(f"a program has ended by itself:\n{tail}")
                self.start()
                restarted()
            await asyncio.sleep(_PAUSE_S)


class Result(NamedTuple):
    orders: int
    attempts: Counter[str]  # by what became of them
    faults: Counter[str]
    segments: int

    def __str__(self) -> str:
        attempts = ", ".join(f"{count} {what}" for what, count in sorted(self.attempts.items()))
        faults = ", ".join(f"{count} {what}" for what, count in sorted(self.faults.items()))
        return f"{self.orders} orders in {self.segments} ledgers; attempts: {attempts}; faults: {faults}"


class Attack:
    """`await run()` raises `AttackError` if anything is wrong."""

    def __init__(self, directory: Path, seed: int, length_s: float) -> None:
        self._rng = random.Random(seed)
        self._length_s = length_s
        self._directory = directory
        self._cluster = LocalCluster(directory / "cluster", bookies=4)
        self._shipped = directory / "shipped"
        self._services: list[Program] = []
        self._urls: list[str] = []
        self._consumer: Program
        self._orders: list[tuple[int, str]] = []  # (position, order) by number
        self._attempts: Counter[str] = Counter()
        self._faults: Counter[str] = Counter()
        self._turns = {lane: itertools.cycle(kinds) for lane, kinds in LANES.items()}
        self._stopping = False

    async def run(self) -> Result:
        async with self._cluster as cluster:
            self._services, self._urls = [], []
            for _ in range(2):
                port = free_port()
                self._services.append(Program(self._directory, cluster.connect_string, "service", port))
                self._urls.append(f"http://127.0.0.1:{port}/orders")
            self._consumer = Program(self._directory, cluster.connect_string, "consumer", self._shipped)
            try:
                await self._storm()
                return await self._account()
            finally:
                for program in (*self._services, self._consumer):
                    await program.kill()

    # --- the shop -----------------------------------------------------------------------------------------------------

    async def _storm(self) -> None:
        for service in self._services:
            service.start()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_PATIENCE_S)) as session:
            await self._order(session)  # there is a log
            self._consumer.start()
            programs = (*self._services, self._consumer)
            async with asyncio.TaskGroup() as group:
                supervising = [group.create_task(program.supervise(self._restarted)) for program in programs]
                shop = group.create_task(self._shop(session))
                rounds = max(2, int(self._length_s / _ROUND_S))
                await self._faults_for(self._length_s / rounds)
                for _ in range(rounds - 1):
                    await self._kill_everything()
                    await self._faults_for(self._length_s / rounds)
                self._stopping = True
                await shop
                await self._calm()
                for task in supervising:
                    task.cancel()

    def _restarted(self) -> None:
        self._faults["program ended without ZooKeeper"] += 1

    async def _shop(self, session: aiohttp.ClientSession) -> None:
        while not self._stopping:
            await self._order(session)
            if self._rng.random() < _AGAIN:
                number = self._rng.randrange(len(self._orders))
                position, order = self._orders[number]
                if (found := await self._answered(session, number, order)) != position:
                    raise AttackError(f"order {number} was at position {position} and is at {found} when repeated")

    async def _order(self, session: aiohttp.ClientSession) -> None:
        number = len(self._orders)
        order = f"order {number}: {self._rng.randbytes(self._rng.randrange(1, 200)).hex()}"
        self._orders.append((await self._answered(session, number, order), order))

    async def _answered(self, session: aiohttp.ClientSession, number: int, order: str) -> int:
        """The order's position, after as many attempts as it takes."""
        while True:
            if self._rng.random() < _CHANGE:
                self._urls.reverse()
            urls = self._urls if self._rng.random() < _BOTH else self._urls[:1]
            found = await asyncio.gather(*(self._attempt(session, f"{url}/{number}", order) for url in urls))
            positions = {position for position in found if position is not None}
            if len(positions) > 1:
                raise AttackError(f"order {number} is at positions {positions}")
            for position in positions:
                return position
            self._urls.reverse()
            await asyncio.sleep(_PAUSE_S)

    async def _attempt(self, session: aiohttp.ClientSession, url: str, order: str) -> int | None:
        try:
            async with session.put(url, data=order) as answer:
                self._attempts[f"answered {answer.status}"] += 1
                if answer.status == 200:
                    return int((await answer.json())["position"])
                if answer.status != 503:
                    raise AttackError(f"{url}: {answer.status} {await answer.text()}")
        except (aiohttp.ClientError, TimeoutError) as error:
            self._attempts["timed out" if isinstance(error, TimeoutError) else "not connected"] += 1
        return None

    # --- faults -------------------------------------------------------------------------------------------------------

    async def _faults_for(self, length_s: float) -> None:
        """Each lane for so long, and for one fault at least; it ends what it has begun, so that all is up again."""
        until = asyncio.get_running_loop().time() + length_s
        async with asyncio.TaskGroup() as group:
            for kinds in self._turns.values():
                group.create_task(self._lane(kinds, until))

    async def _lane(self, kinds: Iterator[str], until: float) -> None:
        for kind in kinds:
            await asyncio.sleep(self._rng.uniform(*_FAULT_S))
            await self._fault(kind, self._rng.uniform(*_FAULT_S))
            self._faults[kind] += 1
            if asyncio.get_running_loop().time() > until:
                return

    async def _kill_everything(self) -> None:
        """At once, but for the shop; then all of it is started again."""
        programs = (*self._services, self._consumer)
        await asyncio.gather(self._cluster.kill(), *(program.kill() for program in programs))
        await self._cluster.start()
        for program in programs:
            program.start()
        self._faults["everything killed"] += 1

    async def _fault(self, kind: str, lasts_s: float) -> None:
        what, _, how = kind.partition(" ")
        start: Callable[[], Awaitable[None] | None]
        match what:
            case "service" | "consumer":
                program = self._consumer if what == "consumer" else self._rng.choice(self._services)
                kill, suspend, resume = program.kill, program.process.suspend, program.process.resume
                start = program.start
            case "bookie":
                one = self._rng.choice(self._cluster.bookies)
                kill, suspend, resume, start = one.kill, one.suspend, one.resume, one.start
            case _:
                server = self._cluster.zookeeper
                kill, suspend, resume, start = server.kill, server.suspend, server.resume, server.start
        if how == "killed":
            await kill()
            await asyncio.sleep(lasts_s)
            # A bookie needs ZooKeeper, which may be away just now.
            await eventually(lambda: _started(start), f"{what} starts again", meanwhile=bkpy.BookKeeperError)
        else:
            suspend()
            await asyncio.sleep(lasts_s)
            resume()

    # --- the account --------------------------------------------------------------------------------------------------

    async def _calm(self) -> None:
        """Return when the consumer has shipped everything."""

        def shipped() -> bool:
            return self._shipped.exists() and self._shipped.read_bytes().count(b"\n") >= len(self._orders)

        await eventually(shipped, "everything is shipped", pause_s=_PAUSE_S)

    async def _account(self) -> Result:
        async with bkpy.connect(self._cluster.connect_string) as client, await client.read_log("orders") as reader:
            found = [(entry.position, entry.data.decode()) async for entry in reader.read()]
            segments = len([segment async for segment in bkpy.AdminClient(client).log_segments("orders")])
        shipped = [tuple(json.loads(line)) for line in self._shipped.read_text().splitlines()]
        for name, entries in (("the log", found), ("the consumer", shipped)):
            if wrong := difference(self._orders, entries):
                raise AttackError(f"{name} {wrong}")
        return Result(len(found), self._attempts, self._faults, segments)


async def _started(start: Callable[[], Awaitable[None] | None]) -> bool:
    starting = start()
    if starting is not None:
        await starting
    return True


def difference(ordered: Sequence[tuple[int, str]], found: Sequence[tuple[int, str]]) -> str:
    """What is wrong first with (position, order) as found; empty if each order is there once, in its place."""
    for number, (want, have) in enumerate(zip(ordered, found, strict=False)):
        if want != have:
            times = [order for _, order in found].count(want[1])
            return f"has {have} in place of {want}, order {number}, which it has {times} times"
    return f"has {len(found)} orders in place of {len(ordered)}" if len(found) != len(ordered) else ""


if __name__ == "__main__":
    given_seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 31)
    print(f"seed {given_seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="bkpy-orders-") as temporary, children_started_by(PRELOADED.bookie):
        print(asyncio.run(Attack(Path(temporary), given_seed, float(sys.argv[1])).run()))
