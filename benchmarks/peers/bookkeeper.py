"""Apache BookKeeper on this machine: fetched with Maven, a ZooKeeper and three bookies on loopback, and a Java client.

Every process dies with this one. Its settings are the best that were found for these loads; README.md says why.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

from bkpy.java import find_java
from bkpy.local_process import ManagedProcess, accepts_connections, free_port, poll
from bkpy.local_zookeeper import opens_session
from bkpy.metadata.connect import connect_store
from bkpy.metadata.store import NoNode
from bkpy.runtime import real_runtime

HERE: Final = Path(__file__).parent
HOST: Final = "127.0.0.1"
BOOKIES: Final = 3
FETCH_TIMEOUT_S: Final = 600.0
START_TIMEOUT_S: Final = 60.0
ANSWER_TIMEOUT_S: Final = 180.0  # a round, or a thousand ledgers made, on a busy machine

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
GROUP_WAIT_DEFAULT_MS: Final = 2


class PeerError(Exception):
    """Something of the peer can't be had, started or measured; the message says what, in a line or with a log."""


def cache_directory() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bkpy-bench"


def fetch() -> tuple[str, str]:
    """(class path, version) of Apache BookKeeper with our client; fetched and compiled on the first call."""
    version = _version((HERE / "pom.xml").read_text())
    home = cache_directory() / f"bookkeeper-{version}"
    jars, classes, complete = home / "jars", home / "classes", home / "complete"
    javac = shutil.which("javac") or _javac_of_java()
    if javac is None:
        raise PeerError("javac is missing: the client is compiled with a JDK, 17 or newer (Debian: openjdk-17-jdk)")
    if not complete.exists():
        maven = shutil.which("mvn")
        if maven is None:
            raise PeerError("mvn is missing: Apache BookKeeper is fetched with Maven (Debian: apt-get install maven)")
        home.mkdir(parents=True, exist_ok=True)
        options = ["-q", "-B", "-f", str(HERE / "pom.xml"), f"-DoutputDirectory={jars}", "-DincludeScope=runtime"]
        _run([maven, *options, "dependency:copy-dependencies"])
        complete.touch()
    classes.mkdir(parents=True, exist_ok=True)
    _run([javac, "-cp", f"{jars}/*", "-d", str(classes), *map(str, sorted(HERE.glob("*.java")))])
    return f"{classes}{os.pathsep}{jars}/*", version


def _version(pom: str) -> str:
    return pom.partition("<artifactId>bookkeeper-server</artifactId>")[2].split("<version>")[1].split("</version>")[0]


def _javac_of_java() -> str | None:
    javac = find_java().home / "bin" / "javac"
    return str(javac) if os.access(javac, os.X_OK) else None


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise PeerError(f"{command[0]} ended with status {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}")


class JavaBookie:
    """One bookie process of the peer; `port` and `directory` are its own over all restarts."""

    def __init__(self, name: str, base: Path, class_path: str) -> None:
        self.port = free_port()
        self.directory = base / name
        self._class_path = class_path
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
        self._process.spawn([_java(), *BOOKIE_JVM, "-cp", self._class_path, main, "--conf", str(config)])
        await _until_serving(self._process, lambda: accepts_connections(HOST, self.port))

    def write_config(self, uri: str, group_wait_ms: int) -> Path:
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / "bookie.conf"
        path.write_text(
            BOOKIE_CONFIG.format(port=self.port, uri=uri, directory=self.directory, group_wait_ms=group_wait_ms)
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
    """A ZooKeeper and bookies of the peer, and one client process that measures them."""

    def __init__(self, directory: Path, class_path: str, bookies: int = BOOKIES) -> None:
        self._directory = directory
        self._class_path = class_path
        self._port = free_port()
        self._zookeeper = ManagedProcess(directory / "zookeeper" / "zookeeper.log")
        self.group_wait_ms = GROUP_WAIT_DEFAULT_MS
        self.bookies = [JavaBookie(f"bookie-{i}", directory, class_path) for i in range(1, bookies + 1)]
        self.client: JavaClient | None = None

    @property
    def uri(self) -> str:
        return f"zk+hierarchical://{HOST}:{self._port}/ledgers"

    async def start(self) -> None:
        """Start everything, and return when the client is connected."""
        data = self._directory / "zookeeper" / "data"
        data.mkdir(parents=True)
        config = data.with_name("zoo.cfg")
        config.write_text(ZOOKEEPER_CONFIG.format(data=data, port=self._port))
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        self._zookeeper.spawn([_java(), *ZOOKEEPER_JVM, "-cp", self._class_path, main, str(config)])
        await _until_serving(self._zookeeper, lambda: opens_session(HOST, self._port))
        shell = "org.apache.bookkeeper.bookie.BookieShell"
        conf = self.bookies[0].write_config(self.uri, self.group_wait_ms)
        await asyncio.to_thread(
            _run, [_java(), *JVM, "-cp", self._class_path, shell, "-conf", str(conf), "initnewcluster"]
        )
        for bookie in self.bookies:
            await bookie.start(self.uri, self.group_wait_ms)
        self.client = JavaClient(self._directory / "client.log")
        await self.client.start([_java(), *CLIENT_JVM, "-cp", self._class_path, "PeerBench", self.uri])

    async def restart(self, group_wait_ms: int) -> None:
        """Stop the bookies cleanly and start them again with that group wait. Their compiled code is gone after it."""
        self.group_wait_ms = group_wait_ms
        for bookie in self.bookies:
            await bookie.stop()
        for bookie in self.bookies:
            await bookie.start(self.uri, group_wait_ms)

    async def start_again(self, bookie: JavaBookie) -> None:
        """Start a bookie that was killed, and return when clients can know of it.

        Its registration outlives it by a session timeout, and it would wait for that.
        """
        store, root = await connect_store(f"zk://{HOST}:{self._port}/ledgers", real_runtime())
        try:
            registration = f"{root}/available/{bookie.address}"
            with contextlib.suppress(NoNode):
                await store.delete(registration)
            await bookie.start(self.uri, self.group_wait_ms)
            if not await poll(lambda: store.exists(registration), START_TIMEOUT_S):
                raise PeerError(f"bookie {bookie.address} did not register within {START_TIMEOUT_S:g} s")
        finally:
            await store.close()

    async def command(self, *words: object) -> dict[str, Any]:
        """The client's answer; `PeerError` if it is an error, or doesn't come."""
        assert self.client is not None
        return await self.client.command(" ".join(map(str, words)), ANSWER_TIMEOUT_S)

    async def kill(self) -> None:
        """SIGKILL to everything."""
        if self.client is not None:
            await self.client.kill()
        await asyncio.gather(*(bookie.kill() for bookie in self.bookies), self._zookeeper.kill())


class JavaClient:
    """The process that runs PeerBench: a command line in, a line of JSON out. It ends when its standard input does."""

    def __init__(self, log_path: Path) -> None:
        self._log_path = log_path
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self, command: list[str]) -> None:
        with self._log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        await self._answer(START_TIMEOUT_S)

    async def command(self, line: str, timeout_s: float) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        try:
            return await self._answer(timeout_s)
        except PeerError as e:
            raise PeerError(f"{line}: {e}") from None

    async def _answer(self, timeout_s: float) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(timeout_s):
                while line := await self._process.stdout.readline():
                    if line.startswith(b"{"):  # a library may write there too
                        return parse_answer(line)
        except TimeoutError:
            raise PeerError(f"the client didn't answer within {timeout_s:g} s") from None
        log = self._log_path.read_text(errors="replace")[-4000:]
        raise PeerError(f"the client ended with status {await self._process.wait()}; the end of its log:\n{log}")

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


def parse_answer(line: bytes) -> dict[str, Any]:
    """The client's answer to one command; `PeerError` if it is an error or no object at all."""
    try:
        answer: object = json.loads(line)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise PeerError(f"not an answer: {line[:200]!r}")
    if "error" in answer:
        raise PeerError(f"the client failed: {answer['error']}")
    if "entries_per_s" in answer and not answer["entries_per_s"] > 0:
        raise PeerError(f"a round without any entries: {line[:200]!r}")
    return answer


def _java() -> str:
    return str(find_java().executable)


async def _until_serving(process: ManagedProcess, serves: Any) -> None:
    async def ready_or_dead() -> bool:
        return not process.running or await serves()

    if not await poll(ready_or_dead, START_TIMEOUT_S) or not process.running:
        raise PeerError(f"a server did not come up; the end of {process.log_path}:\n{process.log_tail()}")
