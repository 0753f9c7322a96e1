"""The cluster of a run of chaos: ZooKeeper's servers and the bookies as processes, and what may be done to them.

`await start()`, then `await apply(fault)`, and `await kill()` whatever happens. Clients and bookies reach all of them
through proxies. Invariant: no two faults work on one bookie at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import bkpy
from bkpy.local.zookeeper import ZooKeeperEnsemble
from bkpy.metadata import paths
from bkpy.metadata.cluster import init_cluster
from bkpy.metadata.connect import connect_store
from bkpy.metadata.replication.underreplication import UnderreplicationQueue
from bkpy.runtime.system import real_runtime
from tests.compat.software import STATES, BookieProcess, Software
from tests.faults.healing import CONFIG
from tests.faults.proxy import Proxy
from tests.waiting import eventually

from .schedule import BOOKIES, EARLIER, SMALL, Fault

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bkpy.metadata.store.store import MetadataStore

SKIPPED = "skipped"
_STARTED_S = 180.0
_SHOWN_MAX = 4  # under-replication records, of those that keep a cluster from being sound
_MIB = 1 << 20
_SMALL_BYTES = 4096 * _MIB
_NO_METADATA = "the metadata store"  # in the last line of a bookie that did not find any at its start
# What every version knows.
_SETTINGS: dict[str, Any] = {"journal_max_size_mb": 4, "session_timeout_s": CONFIG["session_timeout_s"]}
_TODAYS: dict[str, Any] = CONFIG | {
    "gc_interval_s": 5.0,
    "copy_bytes_per_s_max": 20_000_000,
    "copy_bytes_per_s_min": 1_000_000,
    "open_ledger_grace_s": 5.0,
}
_SMALLS: dict[str, Any] = {  # of the bookie whose disk gets full
    "disk_free_bytes_min": 64 * _MIB,
    "compaction_free_bytes_min": 32 * _MIB,
    "disk_free_bytes_resume": 96 * _MIB,
    "disk_check_interval_s": 0.5,
}


class Bookie(BookieProcess):
    """One that clients reach through a proxy, and whose directories a run may empty."""

    def __init__(self, name: str, directory: Path, uri: str, software: Software) -> None:
        super().__init__(
            name,
            directory / name,
            uri,
            **_SETTINGS,
            journal_directories=[str(directory / name / "journal")],
            ledger_directories=[str(directory / name / "ledgers")],
        )
        self.software = software
        self.proxy = Proxy(int(self.address.rpartition(":")[2]))
        self.settings["advertised_address"] = self.proxy.address
        self.flags: tuple[str, ...] = ()  # of its next start
        self.lock = asyncio.Lock()
        if software == Software.today():
            self.upgrade()

    def upgrade(self) -> None:
        """Its next start is with today's version."""
        self.software = Software.today()
        self.settings |= _TODAYS | (_SMALLS if self.id == SMALL else {})


class Stage:
    """Three ZooKeeper servers and the bookies, two of them of an earlier version at first."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ensemble = ZooKeeperEnsemble(directory / "metadata")
        self._servers = {str(i): server for i, server in enumerate(self._ensemble.servers, 1)}
        self._doors = {name: Proxy(server.port) for name, server in self._servers.items()}
        self.uri = f"zk://{','.join(door.address for door in self._doors.values())}/ledgers"
        # For this run's own look, which nothing disturbs.
        self.direct_uri = f"zk://{self._ensemble.connect_string}/ledgers"
        earlier = Software.unpacked(next(STATES.glob("*/*.whl")), directory / "earlier")
        self._bookies = {
            name: Bookie(name, directory, self.uri, earlier if name in EARLIER else Software.today())
            for name in BOOKIES
        }
        self._mounted = False
        self._opened: tuple[MetadataStore, str] | None = None

    @property
    def _store(self) -> MetadataStore:
        assert self._opened is not None
        return self._opened[0]

    @property
    def _root(self) -> str:
        assert self._opened is not None
        return self._opened[1]

    async def start(self) -> None:
        """Start all of it."""
        await self._ensemble.start()
        await asyncio.gather(*(door.start() for door in self._doors.values()))
        self._opened = await connect_store(self.direct_uri, real_runtime())
        await init_cluster(self._store, self._root)
        self._mount()
        await asyncio.gather(*(bookie.proxy.start() for bookie in self._bookies.values()))
        await asyncio.gather(*(self._start(bookie) for bookie in self._bookies.values()))

    async def kill(self) -> None:
        """End every process and proxy."""
        if self._opened is not None:
            await self._store.close()
        await asyncio.gather(*(bookie.kill() for bookie in self._bookies.values()))
        await asyncio.gather(*(bookie.proxy.stop() for bookie in self._bookies.values()))
        await asyncio.gather(*(door.stop() for door in self._doors.values()))
        await self._ensemble.kill()
        await asyncio.to_thread(self._unmount)

    def _unmount(self) -> None:
        if self._mounted:
            subprocess.run(["umount", "--lazy", str(self._bookies[SMALL].directory)], check=True)
            self._mounted = False

    def _mount(self) -> None:
        """Where root is, the small bookie has a file system of its own."""
        directory = self._bookies[SMALL].directory
        directory.mkdir(exist_ok=True)
        if os.geteuid() == 0:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_SMALL_BYTES}", "tmpfs", str(directory)], check=True)
            self._mounted = True

    async def _start(self, bookie: Bookie) -> None:
        async def started() -> bool:
            if not bookie.running:
                await bookie.start(bookie.software, self._store, self._root, *bookie.flags)
                bookie.flags = ()
            return True

        # One that finds no metadata at its start ends, and is started again, as by any supervisor.
        again = (bkpy.BookKeeperError, AssertionError)
        await eventually(started, f"bookie {bookie.id} starts", meanwhile=again, pause_s=0.5, deadline_s=_STARTED_S)

    # --- faults -------------------------------------------------------------------------------------------------------

    async def apply(self, fault: Fault) -> str:
        """Apply the fault, from its beginning to its end. Returns what to count it as."""
        match fault.kind:
            case "leader restarted":
                return await self._restart_leader(fault)
            case "server suspended":
                server = self._servers[fault.target]
                return await self._while(fault, server.suspend, server.resume)
            case "server cut" | "server slow":
                return await self._disturb(fault, self._doors[fault.target])
            case "connections reset":
                for door in self._doors.values():
                    door.reset()
                return fault.kind
        bookie = self._bookies[fault.target]
        if bookie.lock.locked():
            return SKIPPED
        async with bookie.lock:
            match fault.kind:
                case "suspend":
                    return await self._while(fault, bookie.suspend, bookie.resume)
                case "cut" | "delay":
                    return await self._disturb(fault, bookie.proxy)
                case "disk full":
                    return await self._fill(fault, bookie)
                case "upgrade":
                    await self._stop(bookie)
                    bookie.upgrade()
                    await self._start(bookie)
                    return fault.kind
                case _:
                    return await self._end_and_start(fault, bookie)

    async def _end_and_start(self, fault: Fault, bookie: Bookie) -> str:
        await (self._stop(bookie) if fault.kind == "restart" else bookie.kill())
        lost = fault.kind == "disk lost" and await self._lose_disk(bookie)
        await asyncio.sleep(fault.lasts_s)
        await self._start(bookie)
        return "disk lost, refused" if fault.kind == "disk lost" and not lost else fault.kind

    async def _stop(self, bookie: Bookie) -> None:
        """It may have ended by itself: at its start without metadata, or of a disk that was full until now."""
        reasons = [_NO_METADATA, *([os.strerror(errno.ENOSPC)] if bookie.id == SMALL else [])]
        try:
            await bookie.stop()
        except AssertionError as error:
            if not any(reason in str(error).splitlines()[-1] for reason in reasons):
                raise

    @staticmethod
    async def _while(fault: Fault, begin: Callable[[], None], end: Callable[[], None]) -> str:
        begin()
        try:
            await asyncio.sleep(fault.lasts_s)
        finally:
            end()
        return fault.kind

    @staticmethod
    async def _disturb(fault: Fault, proxy: Proxy) -> str:
        for flow in proxy.flows:
            flow.stop() if fault.kind.endswith("cut") else flow.delay(0.05, jitter_s=0.2)
        await asyncio.sleep(fault.lasts_s)
        await proxy.heal()
        return fault.kind

    async def _fill(self, fault: Fault, bookie: Bookie) -> str:
        """Somebody else's file takes all of the space, for a while; a bookie that ends of it is started again."""
        if not self._mounted:
            return "disk full, needs root"
        path = bookie.directory / "somebody's"
        with path.open("wb") as file:
            while (free := _free_bytes(bookie.directory)) > 0:
                with contextlib.suppress(OSError):  # the bookie was faster
                    os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), free)
        await asyncio.sleep(fault.lasts_s)
        path.unlink()
        await self._start(bookie)
        return fault.kind

    async def _lose_disk(self, bookie: Bookie) -> bool:
        """Only where every other bookie is sound: two copies of three may be gone otherwise, which is no defect.

        A bookie that is still copying what an earlier fault took is read-only. An earlier version can't be rebuilt.
        """
        if bookie.software != Software.today() or await self.unsound(without=bookie.id):
            return False
        for name in ("journal", "ledgers"):
            shutil.rmtree(bookie.directory / name)
        bookie.flags = ("--rebuild",)
        return True

    async def recorded(self) -> list[int]:
        """The ledgers that have under-replication records."""
        queue = UnderreplicationQueue(self._store, self._root, self._store.runtime)
        return [ledger_id async for ledger_id in queue.list()]

    async def unsound(self, *, without: str = "") -> list[str]:
        """Bookies that take no entries, as they are still copying, and some under-replication records."""
        queue = UnderreplicationQueue(self._store, self._root, self._store.runtime)
        found = []
        try:
            for name in BOOKIES:
                writable = paths.available(self._root, name, read_only=False)
                if name != without and not await self._store.exists(writable):
                    found.append(f"{name} takes no entries")
            marked = await self.recorded()
            for ledger_id in marked[:_SHOWN_MAX]:
                if (record := await queue.read(ledger_id)) is not None:
                    lost = ", ".join(f"{name} ({loss.reason})" for name, loss in sorted(record.lost.items()))
                    found.append(f"ledger {ledger_id} of {len(marked)} is under-replicated on {lost}")
        except bkpy.BookKeeperError as error:
            return [str(error)]
        return found

    async def _restart_leader(self, fault: Fault) -> str:
        modes = [await _mode(server.port) for server in self._ensemble.servers]
        leader = next((s for s, mode in zip(self._ensemble.servers, modes, strict=True) if mode == "leader"), None)
        if leader is None:
            return "no leader"
        await leader.kill()
        await asyncio.sleep(fault.lasts_s)
        await leader.start()
        return fault.kind

    async def heal(self) -> None:
        """End what faults have left; every bookie runs."""
        for proxy in (*self._doors.values(), *(bookie.proxy for bookie in self._bookies.values())):
            await proxy.heal()
        for bookie in self._bookies.values():
            await self._start(bookie)


def _free_bytes(directory: Path) -> int:
    space = os.statvfs(directory)
    return space.f_bavail * space.f_frsize


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
