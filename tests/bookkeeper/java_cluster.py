"""Apache BookKeeper 4.17.3 from Maven: its bookies as processes, and programs that use its client."""

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
    from collections.abc import Iterator, Sequence
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


class JavaBookies:
    """Bookies of Java's, and a client of Java's: `Ledgers.java`."""

    def __init__(self, zookeeper_port: int, root: str, directory: Path) -> None:
        self.uri = f"zk://127.0.0.1:{zookeeper_port}{root}"
        self._java_uri = f"zk+hierarchical://127.0.0.1:{zookeeper_port}{root}"
        self._directory = directory
        self._class_path = ""
        self._bookies: list[Any] = []

    async def start(self) -> None:
        bookkeeper, peer = peers("bookkeeper"), peers("peer")
        fetched, _ = bookkeeper.fetch()
        classes = self._directory / "classes"
        peer.run(["javac", "-cp", fetched, "-d", str(classes), str(HERE / "Ledgers.java")])
        self._class_path = f"{classes}:{fetched}"
        self._bookies = [bookkeeper.JavaBookie(f"bookie-{n}", self._directory, self._class_path) for n in range(3)]
        conf = self._bookies[0].write_config(self._java_uri, 2)
        shell = "org.apache.bookkeeper.bookie.BookieShell"
        peer.run([peer.java(), *bookkeeper.JVM, "-cp", self._class_path, shell, "-conf", str(conf), "initnewcluster"])
        await asyncio.gather(*(bookie.start(self._java_uri, 2) for bookie in self._bookies))
        async with bkpy.connect(self.uri) as client:  # they accept connections before they register
            await eventually(lambda: client.bookies, "all are registered", until=lambda found: len(found) == 3)

    async def kill(self) -> None:
        await asyncio.gather(*(bookie.kill() for bookie in self._bookies))

    def run(self, *arguments: object) -> list[list[str]]:
        """What the client prints, in words, after it has ended."""
        done = subprocess.run(
            self._command(arguments), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=TIMEOUT_S, check=True
        )
        return said(done.stdout)

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
        words = ["Ledgers", self._java_uri, *map(str, arguments)]
        return [peer.java(), "-Xmx512m", *bookkeeper.JVM, "-cp", self._class_path, *words]


def said(output: bytes) -> list[list[str]]:
    """The lines that are the program's own, in words: the library logs to standard output, too."""
    lines = output.decode(errors="replace").splitlines()
    return [line.split()[1:] for line in lines if line.startswith("SAID ")]
