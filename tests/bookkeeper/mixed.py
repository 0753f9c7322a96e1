"""Ensembles of Java's bookies and ours, writers of both clients, kills of all of them, and an account of every entry.

In each round new writers begin, bookies are killed and started again beneath them, and the writers end: one half is
killed, the other fenced while it writes. The other kind of client recovers what they wrote. An entry's bytes follow
from its ledger and its id, so each client's reads are compared with what they must be.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import bkpy
from bkpy.batching import batched
from bkpy.local import LocalCluster
from bkpy.local.process import ended_with_parent
from bkpy.metadata import paths
from bkpy.metadata.store.store import NoNode
from tests.bookkeeper.java_cluster import JavaBookies, said
from tests.bookkeeper.ledgers import DIGESTS, PASSWORD, as_java_reads, closed, entry_of
from tests.command import environment
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path
    from types import TracebackType

    from tests.bookkeeper.java_cluster import JavaClient

PAUSE_MS = 50  # between 20 entries of a ledger
PROGRESS = 50  # entries that each ledger gets while a bookie is down
PATIENCE_S = 200.0  # of which a busy machine's Java takes the most
QUORUMS = (2, 3)
LEDGERS_READ = 8  # by one run of Java's client, which has a few minutes


@dataclass
class Ledger:
    id: int
    digest: str  # as Java names it
    acknowledged: int = -1
    failed: str = ""
    recovered_by_java: bool = False

    def grown(self, entry_id: int) -> bool:
        """Whether this entry is acknowledged, or never will be."""
        return self.acknowledged >= entry_id or bool(self.failed)


def compare(ledger: Ledger, ours: Sequence[bytes], javas: Sequence[str]) -> None:
    """What our client has read of a ledger, and what `Ledgers.java` says of it, with what was acknowledged."""
    assert len(ours) > ledger.acknowledged, f"{ledger} ends at {len(ours) - 1}"
    different = [n for n, entry in enumerate(ours) if entry != entry_of(ledger.id, n)]
    assert not different, f"{ledger} has other bytes at {different[:10]}"
    expected = closed(ours)
    if ledger.recovered_by_java and int(javas[2]) > int(expected[2]):
        # It may close a ledger with the length of the entry that told it the last add confirmed, though it has not
        # recovered that entry: test_our_client.py has the case.
        expected[2] = javas[2]
    assert javas == expected, f"{ledger}: both clients read {len(ours)} entries, and {javas}"


@dataclass
class Writer:
    """A process that writes a ledger of each quorum."""

    kind: str
    process: asyncio.subprocess.Process
    digest: str
    ledgers: dict[int, Ledger] = field(default_factory=dict)

    async def follow(self) -> None:
        """Take down what it says, up to its end: what it has said before a kill is acknowledged."""
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            if not line.endswith(b"\n"):
                break  # it was killed in the middle of a line, and half of a number is another number
            for word, ledger_id, *rest in said(line):
                if word == "writing":
                    self.ledgers[int(ledger_id)] = Ledger(int(ledger_id), self.digest)
                elif word == "acknowledged":
                    ledger = self.ledgers[int(ledger_id)]
                    assert int(rest[0]) > ledger.acknowledged, f"{ledger} has acknowledged {rest[0]} twice, or late"
                    ledger.acknowledged = int(rest[0])
                else:
                    self.ledgers[int(ledger_id)].failed = rest[0]


@dataclass
class Bookie:
    kind: str
    id: str
    start: Callable[[], Awaitable[None]]
    kill: Callable[[], Awaitable[None]]


class MixedCluster:
    """Three bookies of each kind in one cluster, and the processes that write there."""

    def __init__(self, directory: Path) -> None:
        self._ours = LocalCluster(directory / "ours", 3, {"protocol": "bookkeeper"})
        self._directory = directory
        self._java: JavaBookies | None = None
        self._writers: list[Writer] = []
        self._following: list[asyncio.Task[None]] = []
        self.bookies: list[Bookie] = []
        self.ledgers: list[Ledger] = []  # whose writers have ended

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._kill()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._kill()

    async def _start(self) -> None:
        await self._ours.start()
        self._java = JavaBookies(self._ours.zookeeper.port, "/ledgers", self._directory / "java")
        await self._java.start(new_cluster=False)
        self.bookies = [Bookie("ours", one.id, one.start, one.kill) for one in self._ours.bookies]
        for one in self._java.bookies:
            self.bookies.append(Bookie("java", one.address, partial(self._start_java, one), one.kill))

    async def _kill(self) -> None:
        for writer in self._writers:
            if writer.process.returncode is None:
                writer.process.kill()
                await writer.process.wait()
        await asyncio.gather(*self._following, return_exceptions=True)
        if self._java is not None:
            await self._java.kill()
        await self._ours.kill()

    @property
    def uri(self) -> str:
        return self._ours.connect_string

    @property
    def _client(self) -> JavaClient:
        assert self._java is not None
        return self._java.client

    async def _start_java(self, bookie: Any) -> None:
        """Its last run's registration outlives it by a session timeout, for which it would wait."""
        async with self._ours.metadata() as (store, root):
            with contextlib.suppress(NoNode):
                await store.delete(paths.available(root, bookie.address, read_only=False))
        assert self._java is not None
        await self._java.start_bookie(bookie)

    # --- writers ------------------------------------------------------------------------------------------------------

    async def write(self, kind: str, digest: str) -> Writer:
        """A new writer, `ours`, `v2` or `v3`."""
        if kind == "ours":
            words = [sys.executable, "-m", "tests.bookkeeper.ledger_writer", self.uri, DIGESTS[digest]]
            words += map(str, (PAUSE_MS, *QUORUMS))
        else:
            words = self._client.command("write", kind, digest, PAUSE_MS, *QUORUMS)
        with (self._directory / f"writers-{kind}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *ended_with_parent(words), stdout=asyncio.subprocess.PIPE, stderr=log, env=environment(None)
            )
        writer = Writer(kind, process, digest)
        self._writers.append(writer)
        self._following.append(asyncio.create_task(writer.follow()))
        return writer

    async def progress(self, writers: Sequence[Writer]) -> None:
        """Return when each ledger that is being written has got some entries."""
        await eventually(lambda: all(len(writer.ledgers) == len(QUORUMS) for writer in writers), deadline_s=PATIENCE_S)
        begun = {ledger.id: ledger.acknowledged for writer in writers for ledger in writer.ledgers.values()}
        for writer in writers:
            for ledger in writer.ledgers.values():
                await eventually(partial(ledger.grown, begun[ledger.id] + PROGRESS), deadline_s=PATIENCE_S)
                assert not ledger.failed, f"{writer.kind}: {ledger}"

    async def end(self, writers: Sequence[Writer], *, kill: bool) -> None:
        """End these writers by killing them, or by fencing them; the other kind of client recovers what they wrote."""
        if kill:
            for writer in writers:
                writer.process.kill()
        ours = [ledger for writer in writers if writer.kind == "ours" for ledger in writer.ledgers.values()]
        javas = [ledger for writer in writers if writer.kind != "ours" for ledger in writer.ledgers.values()]
        async with bkpy.connect(self.uri) as client:
            for ledger in javas:
                await client.recover_ledger(ledger.id, password=PASSWORD)
        if ours:
            pairs = [(ledger.id, ledger.digest) for ledger in ours]
            await asyncio.to_thread(as_java_reads, self._client, pairs, recover=True)
        for ledger in ours:
            ledger.recovered_by_java = True
        for writer in writers:  # a fenced one ends by itself
            async with asyncio.timeout(PATIENCE_S):
                await self._following[self._writers.index(writer)]
                await writer.process.wait()
            self.ledgers += writer.ledgers.values()
            if not kill:
                assert all(ledger.failed for ledger in writer.ledgers.values()), writer

    # --- the account --------------------------------------------------------------------------------------------------

    async def account(self) -> None:
        """Each ledger is closed, has what was acknowledged, and both clients read the same."""
        pairs = [(ledger.id, ledger.digest) for ledger in self.ledgers]
        read_by_java: dict[int, list[str]] = {}
        for some in batched(pairs, LEDGERS_READ):
            read_by_java |= await asyncio.to_thread(as_java_reads, self._client, some)
        async with bkpy.connect(self.uri) as client:
            for ledger in self.ledgers:
                reader = await client.open_ledger(ledger.id, password=PASSWORD)
                assert reader.closed, ledger
                compare(ledger, [entry.data async for entry in reader.read()], read_by_java[ledger.id])

    async def mixed_ensembles(self) -> int:
        """How many ensembles have bookies of both kinds."""
        kinds = {bookie.id: bookie.kind for bookie in self.bookies}
        async with bkpy.connect(self.uri) as client:
            all_metadata = [await client.ledger_metadata(ledger.id) for ledger in self.ledgers]
        ensembles = [fragment.bookies for metadata in all_metadata for fragment in metadata.fragments]
        assert len(ensembles) > len(self.ledgers), "no bookie was replaced"
        return sum(len({kinds[bookie] for bookie in ensemble}) == 2 for ensemble in ensembles)


async def run(cluster: MixedCluster, seed: int, rounds: int) -> None:
    """In each round each bookie is killed once, alone or with one of the other kind, in the order of the seed."""
    rng = random.Random(seed)
    for _ in range(rounds):
        digests = rng.sample(sorted(DIGESTS), 4)
        kinds = ("ours", "ours", *rng.sample(("v2", "v3"), 2))
        writers = await asyncio.gather(*map(cluster.write, kinds, digests))
        await cluster.progress(writers)
        ended = rng.sample((("kill", writers[::2]), ("fence", writers[1::2])), 2)
        victims = [rng.sample([one for one in cluster.bookies if one.kind == kind], 3) for kind in ("ours", "java")]
        together, *alone = zip(*victims, strict=True)
        steps = [list(together), *([one] for pair in alone for one in rng.sample(pair, 2))]
        for step in steps:
            await asyncio.gather(*(bookie.kill() for bookie in step))
            await cluster.progress(writers)
            if step in (steps[2], steps[4]):  # the other half of the writers goes on
                how, some = ended.pop()
                await cluster.end(some, kill=how == "kill")
                writers = [writer for writer in writers if writer not in some]
            await asyncio.gather(*(bookie.start() for bookie in step))
    await cluster.account()
    assert await cluster.mixed_ensembles() > 0
