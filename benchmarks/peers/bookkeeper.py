"""Apache BookKeeper on this machine: fetched with Maven, a ZooKeeper and three bookies on loopback, and a Java client.

Every process dies with this one. Its settings are the best that were found for these loads; README.md says why.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from typing import TYPE_CHECKING, Any, Final

from peer import ANSWER_TIMEOUT_S, HERE, HOST, START_TIMEOUT_S, Client, PeerError, fetch_java, java, run, until_serving
from plan import PEER_IDLE_S
from rows import GROUP_WAIT_DEFAULT_MS

from bkpy.local.process import ManagedProcess, accepts_connections, free_port, poll
from bkpy.local.zookeeper import opens_session
from bkpy.metadata.connect import connect_store
from bkpy.metadata.store.store import NoNode
from bkpy.runtime.system import real_runtime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from bkpy.metadata.store.store import MetadataStore

BOOKIES: Final = 3

# All of it together stays below 24 GiB: three bookies of at most 3 GiB, a client of at most 3 GiB, ZooKeeper.
JVM: Final = (
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=10",
    "-Dio.netty.leakDetectionLevel=disabled",
    "-Dio.netty.recycler.maxCapacity.default=1000",
    "-Dio.netty.recycler.linkCapacity=1024",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Djava.net.preferIPv4Stack=true",
    # Direct buffers without zeroing them, and the JDK's CRC32C over them.
    "--add-opens=java.base/java.io=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/java.util.zip=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED",
)
BOOKIE_JVM: Final = ("-Xms512m", "-Xmx1g", "-XX:MaxDirectMemorySize=2g", *JVM)
CLIENT_JVM: Final = ("-Xms512m", "-Xmx2g", "-XX:MaxDirectMemorySize=1g", *JVM)
ZOOKEEPER_JVM: Final = ("-Xmx256m", "-Dlog4j2.level=ERROR", "-Dzookeeper.preAllocSize=4096", "-XX:+UseSerialGC")

ZOOKEEPER_CONFIG: Final = """\
tickTime=2000
maxSessionTimeout=120000
dataDir={data}
clientPort={port}
clientPortAddress=127.0.0.1
maxClientCnxns=0
admin.enableServer=false
"""
BOOKIE_CONFIG: Final = """\
bookiePort={port}
advertisedAddress=127.0.0.1
listeningInterface=lo
allowLoopback=true
metadataServiceUri={uri}
zkTimeout=60000
journalDirectories={directory}/journal
ledgerDirectories={directory}/ledgers
indexDirectories={directory}/ledgers
ledgerStorageClass=org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage
dbStorage_writeCacheMaxSizeMb=512
dbStorage_readAheadCacheMaxSizeMb=256
journalSyncData=true
journalMaxGroupWaitMSec={group_wait_ms}
journalMaxSizeMB=1024
journalMaxBackups=1
logSizeLimit=268435456
gcWaitTime=5000
maxPendingAddRequestsPerThread=0
maxPendingReadRequestsPerThread=0
diskUsageThreshold=0.98
diskUsageWarnThreshold=0.97
enableStatistics=false
"""
_SOURCES: Final = ("PeerBench", "PeerFailures", "PeerHealing")


def fetch() -> tuple[str, str]:
    """(class path, version) of Apache BookKeeper with our client; fetched and compiled on the first call."""
    return fetch_java("Apache BookKeeper", HERE / "pom.xml", "bookkeeper-server", _SOURCES)


def client_command(class_path: str, uri: str) -> list[str]:
    """What starts Java's client on a cluster, with bookies of either kind."""
    return [java(), *CLIENT_JVM, "-cp", class_path, "PeerBench", uri]


class JavaBookie:
    """One bookie process of the peer; `port` and `directory` are its own over all restarts.

    `settings` are further lines of its file, `jvm` further options of its JVM.
    """

    def __init__(self, name: str, base: Path, class_path: str, settings: str = "", jvm: Sequence[str] = ()) -> None:
        self.port = free_port()
        self.directory = base / name
        self._class_path = class_path
        self._settings = settings
        self._jvm = jvm
        self._process = ManagedProcess(self.directory / "bookie.log")

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def address(self) -> str:
        """What ledger metadata call it."""
        return f"{HOST}:{self.port}"

    async def start(self, uri: str, group_wait_ms: int) -> None:
        """Start it and return when it accepts connections."""
        config = self.write_config(uri, group_wait_ms)
        main = "org.apache.bookkeeper.server.Main"
        self._process.spawn([java(), *BOOKIE_JVM, *self._jvm, "-cp", self._class_path, main, "--conf", str(config)])
        await until_serving(self._process, lambda: accepts_connections(HOST, self.port))

    def write_config(self, uri: str, group_wait_ms: int) -> Path:
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / "bookie.conf"
        path.write_text(
            BOOKIE_CONFIG.format(port=self.port, uri=uri, directory=self.directory, group_wait_ms=group_wait_ms)
            + self._settings
        )
        return path

    async def stop(self) -> None:
        """A clean end, which flushes what it holds; `PeerError` if it doesn't come within the deadline."""
        if not await self._process.stop(START_TIMEOUT_S):
            raise PeerError(f"a bookie did not stop within {START_TIMEOUT_S:g} s: {self._process.log_tail()}")

    async def kill(self) -> None:
        await self._process.kill()

    def suspend(self) -> None:
        self._process.suspend()

    def resume(self) -> None:
        self._process.resume()


class JavaCluster:
    """A ZooKeeper and bookies of the peer, and one client process that measures them.

    `settings` are further lines of the bookies' files.
    """

    rest_s = PEER_IDLE_S

    def __init__(self, directory: Path, class_path: str, bookies: int = BOOKIES, settings: str = "") -> None:
        self._directory = directory
        self._class_path = class_path
        self._port = free_port()
        self._zookeeper = ManagedProcess(directory / "zookeeper" / "zookeeper.log")
        self.group_wait_ms = GROUP_WAIT_DEFAULT_MS
        self._settings = settings
        self.bookies = [self._new_bookie(number) for number in range(1, bookies + 1)]
        self.client: Client | None = None

    def _new_bookie(self, number: int) -> JavaBookie:
        return JavaBookie(f"bookie-{number}", self._directory, self._class_path, self._settings)

    @property
    def uri(self) -> str:
        return f"zk+hierarchical://{HOST}:{self._port}/ledgers"

    @property
    def connect_string(self) -> str:
        """The same for bkpy's clients."""
        return f"zk://{HOST}:{self._port}/ledgers"

    async def start(self) -> None:
        """Start everything, and return when the client is connected."""
        data = self._directory / "zookeeper" / "data"
        data.mkdir(parents=True)
        config = data.with_name("zoo.cfg")
        config.write_text(ZOOKEEPER_CONFIG.format(data=data, port=self._port))
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        self._zookeeper.spawn([java(), *ZOOKEEPER_JVM, "-cp", self._class_path, main, str(config)])
        await until_serving(self._zookeeper, lambda: opens_session(HOST, self._port))
        shell = "org.apache.bookkeeper.bookie.BookieShell"
        conf = self.bookies[0].write_config(self.uri, self.group_wait_ms)
        await asyncio.to_thread(
            run, [java(), *JVM, "-cp", self._class_path, shell, "-conf", str(conf), "initnewcluster"]
        )
        for bookie in self.bookies:
            await bookie.start(self.uri, self.group_wait_ms)
        await self._start_client()

    async def _start_client(self) -> None:
        self.client = Client(self._directory / "client.log")
        await self.client.start(client_command(self._class_path, self.uri))

    def bookie_pids(self) -> list[int | None]:
        return [bookie.pid for bookie in self.bookies]

    async def restart(self, group_wait_ms: int) -> None:
        """Stop the bookies cleanly and start them again with that group wait. Their compiled code is gone after it."""
        self.group_wait_ms = group_wait_ms
        for bookie in self.bookies:
            await bookie.stop()
        for bookie in self.bookies:
            await bookie.start(self.uri, group_wait_ms)

    async def start_anew(self) -> None:
        """Kill everything, which may answer no more, and start it with nothing: its client forgot what it wrote."""
        await self.kill()
        await asyncio.to_thread(shutil.rmtree, self._directory)
        await self.start()

    @contextlib.asynccontextmanager
    async def metadata(self) -> AsyncIterator[tuple[MetadataStore, str]]:
        """A session of the harness's own with its ZooKeeper: (store, root)."""
        store, root = await connect_store(self.connect_string, real_runtime())
        try:
            yield store, root
        finally:
            await store.close()

    async def add_bookie(self) -> JavaBookie:
        """One more bookie, which clients can know of."""
        bookie = self._new_bookie(len(self.bookies) + 1)
        self.bookies.append(bookie)
        await self.start_again(bookie)
        return bookie

    async def start_again(self, bookie: JavaBookie) -> None:
        """Start a bookie that was killed, and return when clients can know of it.

        Its registration outlives it by a session timeout, and it would wait for that.
        """
        async with self.metadata() as (store, root):
            registration = f"{root}/available/{bookie.address}"
            with contextlib.suppress(NoNode):
                await store.delete(registration)
            await bookie.start(self.uri, self.group_wait_ms)
            if not await poll(lambda: store.exists(registration), START_TIMEOUT_S):
                raise PeerError(f"bookie {bookie.address} did not register within {START_TIMEOUT_S:g} s")

    async def command(self, *words: object) -> dict[str, Any]:
        """The client's answer; `PeerError` if it is an error, or doesn't come."""
        assert self.client is not None
        return await self.client.command(" ".join(map(str, words)), ANSWER_TIMEOUT_S)

    async def kill(self) -> None:
        """SIGKILL to everything."""
        if self.client is not None:
            await self.client.kill()
        await asyncio.gather(*(bookie.kill() for bookie in self.bookies), self._zookeeper.kill())
