"""Apache BookKeeper 4.17.3 from Maven: its bookies as processes, and a program that uses its client."""

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


def peers(name: str) -> ModuleType:
    """A module of benchmarks/peers, which is no package."""
    sys.path.insert(0, str(PEERS))
    try:
        return __import__(name)
    finally:
        sys.path.remove(str(PEERS))


def compiled(directory: Path) -> str:
    """The class path of `Ledgers.java`."""
    bookkeeper, peer = peers("bookkeeper"), peers("peer")
    fetched, _ = bookkeeper.fetch()
    classes = directory / "classes"
    peer.run(["javac", "-cp", fetched, "-d", str(classes), str(HERE / "Ledgers.java")])
    return f"{classes}:{fetched}"


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
        command = self._command(arguments)
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIMEOUT_S, check=False)
        assert done.returncode == 0, done.stdout.decode(errors="replace")[-4000:]
        return done.stdout

    @contextlib.contextmanager
    def running(self, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
        """The client while it runs. It is killed at the end."""
        process = subprocess.Popen(self._command(arguments), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def _command(self, arguments: Sequence[object]) -> list[str]:
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
        self._bookies: list[Any] = []

    async def start(self) -> None:
        bookkeeper, peer = peers("bookkeeper"), peers("peer")
        class_path = compiled(self._directory)
        self._client = JavaClient(self._java_uri, class_path)
        self._bookies = [
            bookkeeper.JavaBookie(f"bookie-{n}", self._directory, class_path, self._settings, self._jvm)
            for n in range(self._count)
        ]
        conf = self._bookies[0].write_config(self._java_uri, 2)
        shell = "org.apache.bookkeeper.bookie.BookieShell"
        peer.run([peer.java(), *bookkeeper.JVM, "-cp", class_path, shell, "-conf", str(conf), "initnewcluster"])
        await asyncio.gather(*(bookie.start(self._java_uri, 2) for bookie in self._bookies))
        async with bkpy.connect(self.uri) as client:  # they accept connections before they register
            await eventually(
                lambda: client.bookies, "all are registered", until=lambda found: len(found) == self._count
            )

    async def kill(self) -> None:
        await asyncio.gather(*(bookie.kill() for bookie in self._bookies))

    @property
    def client(self) -> JavaClient:
        assert self._client is not None
        return self._client


def said(output: bytes) -> list[list[str]]:
    """The lines that are the program's own, in words: the library logs to standard output, too."""
    lines = output.decode(errors="replace").splitlines()
    return [line.split()[1:] for line in lines if line.startswith("SAID ")]
