"""One run of chaos: three ZooKeeper servers, six bookies, writers and consumers of logs, faults, and the account.

Faults that a schedule names come one after the other; bookies heal beside them. Invariant: whatever ends a run, its
processes end with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import bkpy
from bkpy.local.zookeeper import ZooKeeperEnsemble
from bkpy.metadata import paths
from bkpy.metadata.cluster import init_cluster
from bkpy.metadata.connect import connect_store
from bkpy.metadata.replication.underreplication import UnderreplicationQueue
from bkpy.runtime.system import real_runtime
from tests.compat.software import BookieProcess, Software
from tests.faults.healing import CONFIG
from tests.faults.oracle import BrokenPromiseError, check_replicas
from tests.faults.proxy import Proxy
from tests.waiting import eventually

from .oracle import Read, Record, account, consumed, make_payload
from .schedule import BOOKIES, Fault, draw

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bkpy.metadata.store.store import MetadataStore

LOGS = ("alpha", "beta", "gamma")
HEALED_S = 300.0
SETTINGS: dict[str, Any] = CONFIG | {
    "gc_interval_s": 5.0,
    "copy_bytes_per_s_max": 20_000_000,
    "copy_bytes_per_s_min": 1_000_000,
    "open_ledger_grace_s": 5.0,
}
_CLIENT: dict[str, Any] = {"add_timeout_s": 5.0, "session_timeout_s": 6.0}
_ROLL_ENTRIES = 2000
_BATCH_MAX, _FILLER_BYTES_MAX = 20, 2000
_PAUSE_S = 0.02


class ChaosError(AssertionError):
    """An entry is not where it was acknowledged, or the cluster has not healed."""


class Bookie(BookieProcess):
    """One that clients reach through a proxy, and whose directories a run may empty."""

    def __init__(self, name: str, directory: Path, uri: str) -> None:
        super().__init__(
            name,
            directory / name,
            uri,
            **SETTINGS,
            journal_directories=[str(directory / name / "journal")],
            ledger_directories=[str(directory / name / "ledgers")],
        )
        self.proxy = Proxy(int(self.address.rpartition(":")[2]))
        self.settings["advertised_address"] = self.proxy.address
        self.flags: tuple[str, ...] = ()  # of its next start


class Chaos:
    """`await run()` raises `ChaosError` if anything is wrong."""

    def __init__(self, directory: Path, seed: int, length_s: float) -> None:
        self.faults: Counter[str] = Counter()
        self.compared = 0
        self._directory = directory
        self._seed, self._length_s = seed, length_s
        self._ensemble = ZooKeeperEnsemble(directory / "metadata")
        self._uri = f"zk://{self._ensemble.connect_string}/ledgers"
        self._bookies = {name: Bookie(name, directory, self._uri) for name in BOOKIES}
        self._acknowledged = {log: Record(directory / f"{log}.acknowledged") for log in LOGS}
        self._consumed = {log: Record(directory / f"{log}.consumed") for log in LOGS}
        self._stopping = False
        self._writer_failures = 0

    def close(self) -> None:
        for record in (*self._acknowledged.values(), *self._consumed.values()):
            record.close()

    async def run(self) -> None:
        schedule = draw(self._seed, self._length_s)
        print("\n".join(map(str, schedule)), flush=True)
        try:
            await self._ensemble.start()
            store, root = await connect_store(self._uri, real_runtime())
            try:
                await init_cluster(store, root)
                await asyncio.gather(*(bookie.proxy.start() for bookie in self._bookies.values()))
                await asyncio.gather(*(self._start(bookie, store, root) for bookie in self._bookies.values()))
                await self._storm(schedule, store, root)
                await self._healed(store, root)
            finally:
                await store.close()
            await self._compare()
        finally:
            await asyncio.gather(*(bookie.kill() for bookie in self._bookies.values()))
            await asyncio.gather(*(bookie.proxy.stop() for bookie in self._bookies.values()))
            await self._ensemble.kill()

    # --- load ---------------------------------------------------------------------------------------------------------

    async def _storm(self, schedule: list[Fault], store: MetadataStore, root: str) -> None:
        async with bkpy.connect(self._uri, **_CLIENT) as client, asyncio.TaskGroup() as group:
            for log in LOGS:
                group.create_task(self._write(client, log))
                group.create_task(self._consume(client, log))
            progress = group.create_task(self._progress())
            loop = asyncio.get_running_loop()
            began = loop.time()
            for fault in schedule:
                await asyncio.sleep(max(0.0, began + fault.at_s - loop.time()))
                self.faults[await self._apply(fault, store, root)] += 1
            await asyncio.sleep(max(0.0, began + self._length_s - loop.time()))
            self._stopping = True
            progress.cancel()

    async def _write(self, client: bkpy.Client, log: str) -> None:
        """Append until the storm ends. An error ends the writer; the next one takes the log over."""
        rng = random.Random(f"{log} {self._seed}")
        number = 0
        while not self._stopping:
            try:
                writer = await client.open_log(log, create=True, roll_entries=_ROLL_ENTRIES)
            except bkpy.BookKeeperError:
                self._writer_failures += 1
                await asyncio.sleep(_PAUSE_S)
                continue
            try:
                while not self._stopping:
                    count = rng.randrange(1, _BATCH_MAX)
                    fillers = [rng.randbytes(rng.randrange(_FILLER_BYTES_MAX)) for _ in range(count)]
                    payloads = [make_payload(log, number + i, filler) for i, filler in enumerate(fillers)]
                    number += count  # never used again, whatever becomes of the call
                    positions = await writer.append_batch(payloads)
                    self._acknowledged[log].add([Read(*pair) for pair in zip(positions, payloads, strict=True)])
                    await asyncio.sleep(_PAUSE_S)
                await writer.close()
            except bkpy.BookKeeperError:
                self._writer_failures += 1
                writer.abandon()

    async def _consume(self, client: bkpy.Client, log: str) -> None:
        """Record each entry once, in order, from where the record ends; commit now and then."""
        record = self._consumed[log]
        while not self._stopping:
            with contextlib.suppress(bkpy.BookKeeperError):
                await self._consume_some(client, log, record, until_the_end=False)
            await asyncio.sleep(5 * _PAUSE_S)

    async def _consume_some(self, client: bkpy.Client, log: str, record: Record, *, until_the_end: bool) -> None:
        async with await client.read_log(log) as reader:
            consumer = await reader.consumer("consumer", position=0)
            if record.count < consumer.position:
                raise ChaosError(f"{log}: its consumer is at {consumer.position} and has received {record.count}")
            while True:
                if record.count < reader.next_position:
                    async for entry in reader.read(record.count, reader.next_position - 1):
                        record.add([Read(entry.position, entry.data)])
                    await consumer.commit(record.count)
                if until_the_end or self._stopping:
                    return
                await asyncio.sleep(5 * _PAUSE_S)
                await reader.refresh()

    async def _progress(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            acknowledged = sum(record.count for record in self._acknowledged.values())
            consumed_ = sum(record.count for record in self._consumed.values())
            print(
                f"\r{loop.time() - began:6.0f} s  {self.faults.total()} faults  {acknowledged} acknowledged  "
                f"{consumed_} consumed  {self._writer_failures} takeovers",
                end="" if _is_terminal() else "\n",
                flush=True,
            )
            await asyncio.sleep(1.0 if _is_terminal() else 15.0)

    # --- faults -------------------------------------------------------------------------------------------------------

    async def _start(self, bookie: Bookie, store: MetadataStore, root: str) -> None:
        async def started() -> bool:
            if not bookie.running:
                await bookie.start(Software.today(), store, root, *bookie.flags)
                bookie.flags = ()
            return True

        await eventually(started, f"bookie {bookie.id} starts", meanwhile=bkpy.BookKeeperError, pause_s=0.5)

    async def _apply(self, fault: Fault, store: MetadataStore, root: str) -> str:
        """Apply the fault, from its beginning to its end. Returns what to count it as."""
        if fault.kind == "leader restarted":
            return await self._restart_leader(fault)
        if fault.kind == "server suspended":
            server = self._ensemble.servers[fault.server]
            await self._while(fault, server.suspend, server.resume)
            return fault.kind
        bookie = self._bookies[fault.target]
        if fault.kind == "suspend":
            await self._while(fault, bookie.suspend, bookie.resume)
        elif fault.kind in ("cut", "delay"):
            for flow in bookie.proxy.flows:
                flow.stop() if fault.kind == "cut" else flow.delay(0.05, jitter_s=0.2)
            await asyncio.sleep(fault.lasts_s)
            await bookie.proxy.heal()
        else:
            await (bookie.stop() if fault.kind == "restart" else bookie.kill())
            lost = fault.kind == "disk lost" and await self._lose_disk(bookie, store, root)
            await asyncio.sleep(fault.lasts_s)
            await self._start(bookie, store, root)
            if fault.kind == "disk lost" and not lost:
                return "disk lost, refused"
        return fault.kind

    @staticmethod
    async def _while(fault: Fault, begin: Callable[[], None], end: Callable[[], None]) -> None:
        begin()
        try:
            await asyncio.sleep(fault.lasts_s)
        finally:
            end()

    async def _lose_disk(self, bookie: Bookie, store: MetadataStore, root: str) -> bool:
        """Only where every other bookie is sound: two copies of three may be gone otherwise, which is no defect.

        A bookie that is still copying what an earlier fault took is read-only.
        """
        if not await self._sound(store, root, without=bookie.id):
            return False
        for name in ("journal", "ledgers"):
            shutil.rmtree(bookie.directory / name)
        bookie.flags = ("--rebuild",)
        return True

    async def _sound(self, store: MetadataStore, root: str, *, without: str) -> bool:
        queue = UnderreplicationQueue(store, root, store.runtime)
        try:
            marked = [ledger_id async for ledger_id in queue.list()]
            others = [name for name in BOOKIES if name != without]
            there = [await store.exists(paths.available(root, name, read_only=False)) for name in others]
        except bkpy.BookKeeperError:
            return False
        return not marked and all(there)

    async def _restart_leader(self, fault: Fault) -> str:
        modes = [await _mode(server.port) for server in self._ensemble.servers]
        leader = next((s for s, mode in zip(self._ensemble.servers, modes, strict=True) if mode == "leader"), None)
        if leader is None:
            return "no leader"
        await leader.kill()
        await asyncio.sleep(fault.lasts_s)
        await leader.start()
        return fault.kind

    # --- the end ------------------------------------------------------------------------------------------------------

    async def _replicated(self, store: MetadataStore, root: str) -> None:
        """Return when every bookie takes entries, so none is still copying, and no under-replication record is left."""
        try:
            await eventually(
                lambda: self._sound(store, root, without=""), "the cluster heals", deadline_s=HEALED_S, pause_s=0.5
            )
        except AssertionError as error:
            raise ChaosError(str(error)) from None

    async def _healed(self, store: MetadataStore, root: str) -> None:
        for bookie in self._bookies.values():
            await bookie.proxy.heal()
            await self._start(bookie, store, root)
        await self._replicated(store, root)

    async def _compare(self) -> None:
        wrong: list[str] = []
        async with bkpy.connect(self._uri) as client:
            for log in LOGS:
                async with await client.open_log(log):
                    pass  # it finds out where the log ends, and closes it there
                async with await client.read_log(log) as reader:
                    found = [Read(e.position, e.data) async for e in reader.read(0, reader.next_position - 1)]
                await self._consume_some(client, log, self._consumed[log], until_the_end=True)
                wrong += [f"{log}: {what}" for what in account(log, Record.load(self._acknowledged[log].path), found)]
                wrong += [f"{log}: {what}" for what in consumed(found, Record.load(self._consumed[log].path))]
                self.compared += len(found)
            async for ledger_id in client.list_ledgers():
                try:
                    await check_replicas(client, ledger_id)
                except BrokenPromiseError as error:
                    wrong.append(str(error))
        if wrong:
            raise ChaosError("\n".join(wrong))
        acknowledged = sum(record.count for record in self._acknowledged.values())
        done = ", ".join(f"{count} {kind}" for kind, count in sorted(self.faults.items()))
        print(f"\n{self.compared} entries compared, {acknowledged} of them acknowledged; nothing is wrong. {done}")


async def _mode(port: int) -> str:
    """What a ZooKeeper server is in its ensemble; empty if it doesn't say."""
    try:
        async with asyncio.timeout(2.0):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"srvr")
            text = (await reader.read()).decode()
            writer.close()
    except (OSError, TimeoutError):
        return ""
    return next((line.partition(": ")[2] for line in text.splitlines() if line.startswith("Mode")), "")


def _is_terminal() -> bool:
    return sys.stdout.isatty()
