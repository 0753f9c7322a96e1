"""Apache BookKeeper from Maven, mostly 4.17.3: its bookies as processes, and a program that uses its client."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bkpy
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import ModuleType

HERE = Path(__file__).parent
PEERS = HERE.parents[1] / "benchmarks" / "peers"
TIMEOUT_S = 300.0
GROUP_WAIT_MS = 2

_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>bkpy</groupId>
  <artifactId>old-client</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.bookkeeper</groupId>
      <artifactId>bookkeeper-server</artifactId>
      <version>{version}</version>
    </dependency>{zookeeper}
  </dependencies>
</project>
"""
# Of the ZooKeepers that were released with a client, 3.4 doesn't connect on Java 14 or newer: the next line's does.
_ZOOKEEPER = """
    <dependency>
      <groupId>org.apache.zookeeper</groupId>
      <artifactId>zookeeper</artifactId>
      <version>3.5.10</version>
      <exclusions>
        <exclusion>
          <groupId>io.netty</groupId>
          <artifactId>*</artifactId>
        </exclusion>
      </exclusions>
    </dependency>"""
_WITH_ZOOKEEPER_3_4 = ("4.8.2",)


def peers(name: str) -> ModuleType:
    """A module of benchmarks/peers, which is no package."""
    sys.path.insert(0, str(PEERS))
    try:
        return __import__(name)
    finally:
        sys.path.remove(str(PEERS))


def fetched(version: str, directory: Path) -> str:
    """The class path of that version of BookKeeper, with the ZooKeeper and all else that it runs with.

    It is fetched on the first call; `directory` gets a file that names it.
    """
    peer = peers("peer")
    pom = directory / f"pom-{version}.xml"
    zookeeper = _ZOOKEEPER if version in _WITH_ZOOKEEPER_3_4 else ""
    pom.write_text(_POM.format(version=version, zookeeper=zookeeper))
    jars = peer.fetch_jars(f"Apache BookKeeper {version}", pom, peer.cache_directory() / f"bookkeeper-client-{version}")
    return f"{jars}/*"


def compiled(directory: Path, class_path: str = "") -> str:
    """The class path of `Ledgers.java`."""
    if not class_path:
        class_path, _ = peers("bookkeeper").fetch()
    classes = directory / "classes"
    peers("peer").run(["javac", "-cp", class_path, "-d", str(classes), str(HERE / "Ledgers.java")])
    return f"{classes}:{class_path}"


def lines_of(settings: Mapping[str, object]) -> str:
    """A file of settings, as Java's client and bookies read it."""
    return "".join(f"{name}={value}\n" for name, value in settings.items())


class JavaClient:
    """A client of Java's: `Ledgers.java`, in a process for each command. `options` are the JVM's."""

    def __init__(self, uri: str, class_path: str, *options: str) -> None:
        self._uri = uri
        self._class_path = class_path
        self._options = options

    def run(self, *arguments: object) -> list[list[str]]:
        """What the client prints, in words, after it has ended."""
        return said(self.output(*arguments))

    def output(self, *arguments: object) -> bytes:
        """The same with what the library logs."""
        command = self.command(*arguments)
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIMEOUT_S, check=False)
        assert done.returncode == 0, done.stdout.decode(errors="replace")[-4000:]
        return done.stdout

    @contextlib.contextmanager
    def running(self, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
        """The client while it runs. It is killed at the end."""
        process = subprocess.Popen(self.command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def command(self, *arguments: object) -> list[str]:
        peer, bookkeeper = peers("peer"), peers("bookkeeper")
        words = ["Ledgers", self._uri, *map(str, arguments)]
        return [peer.java(), "-Xmx512m", *bookkeeper.JVM, *self._options, "-cp", self._class_path, *words]


class JavaBookies:
    """Bookies of Java's, with these settings beside their usual ones, and a client of Java's."""

    def __init__(
        self,
        zookeeper_port: int,
        root: str,
        directory: Path,
        count: int = 3,
        settings: Mapping[str, object] | None = None,
        jvm: Sequence[str] = (),
    ) -> None:
        self.uri = f"zk://127.0.0.1:{zookeeper_port}{root}"
        self._java_uri = f"zk+hierarchical://127.0.0.1:{zookeeper_port}{root}"
        self._directory = directory
        self._count = count
        self._settings = lines_of(settings or {})
        self._jvm = jvm
        self._client: JavaClient | None = None
        self.bookies: list[Any] = []

    async def start(self, *, new_cluster: bool = True) -> None:
        bookkeeper = peers("bookkeeper")
        class_path = await asyncio.to_thread(compiled, self._directory)
        self._client = JavaClient(self._java_uri, class_path)
        self.bookies = [
            bookkeeper.JavaBookie(f"bookie-{n}", self._directory, class_path, self._settings, self._jvm)
            for n in range(self._count)
        ]
        if new_cluster:
            self._init_cluster(class_path)
        await asyncio.gather(*map(self.start_bookie, self.bookies))
        addresses = {bookie.address for bookie in self.bookies}
        async with bkpy.connect(self.uri) as client:  # they accept connections before they register
            await eventually(lambda: client.bookies, "all are registered", until=lambda found: addresses <= set(found))

    def _init_cluster(self, class_path: str) -> None:
        bookkeeper, peer = peers("bookkeeper"), peers("peer")
        conf = self.bookies[0].write_config(self._java_uri, GROUP_WAIT_MS)
        shell = "org.apache.bookkeeper.bookie.BookieShell"
        peer.run([peer.java(), *bookkeeper.JVM, "-cp", class_path, shell, "-conf", str(conf), "initnewcluster"])

    async def start_bookie(self, bookie: Any) -> None:
        """Start one of them, which accepts connections afterwards."""
        await bookie.start(self._java_uri, GROUP_WAIT_MS)

    async def kill(self) -> None:
        await asyncio.gather(*(bookie.kill() for bookie in self.bookies))

    @property
    def client(self) -> JavaClient:
        assert self._client is not None
        return self._client


def said(output: bytes) -> list[list[str]]:
    """The lines that are the program's own, in words: the library logs to standard output, too."""
    lines = output.decode(errors="replace").splitlines()
    return [line.split()[1:] for line in lines if line.startswith("SAID ")]
