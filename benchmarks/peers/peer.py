"""What all peers need: fetched and compiled Java, servers that are awaited, a client process, and how one fails.

Every process dies with this one.
"""

from __future__ import annotations

import abc
import asyncio
import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bkpy.local.java import find_java
from bkpy.local.process import ManagedProcess, poll

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from rows import Row

HERE: Final = Path(__file__).parent
HOST: Final = "127.0.0.1"
FETCH_TIMEOUT_S: Final = 600.0
START_TIMEOUT_S: Final = 240.0  # a process that ends is noticed at once; a busy machine takes minutes for a JVM
ANSWER_TIMEOUT_S: Final = 180.0  # a round, or a thousand ledgers made, on a busy machine
_SHARED_SOURCES: Final = ("Commands", "Round")


class PeerError(Exception):
    """Something of the peer can't be had, started or measured; the message says what, in a line or with a log."""


def cache_directory() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bkpy-bench"


def fetch_java(title: str, pom: Path, artifact: str, sources: Sequence[str]) -> tuple[str, str]:
    """(class path, version) of what the pom names with our client for it; fetched and compiled on the first call.

    The version is that of `artifact`; `sources` are the client's own classes.
    """
    version = version_of(artifact, pom.read_text())
    home = cache_directory() / f"{artifact.removesuffix('-server')}-{version}"
    classes = home / "classes"
    javac = compiler()
    jars = fetch_jars(title, pom, home)
    classes.mkdir(parents=True, exist_ok=True)
    files = [str(HERE / f"{source}.java") for source in (*_SHARED_SOURCES, *sources)]
    run([javac, "-cp", f"{jars}/*", "-d", str(classes), *files])
    return f"{classes}{os.pathsep}{jars}/*", version


def compiler() -> str:
    javac = shutil.which("javac") or javac_of_java()
    if javac is None:
        raise PeerError("javac is missing: the client is compiled with a JDK, 17 or newer (Debian: openjdk-17-jdk)")
    return javac


def fetch_jars(title: str, pom: Path, home: Path) -> Path:
    """The directory of the jars that the pom names, in `home`; fetched on the first call."""
    jars, complete = home / "jars", home / "complete"
    if not complete.exists():
        maven = shutil.which("mvn")
        if maven is None:
            raise PeerError(f"mvn is missing: {title} is fetched with Maven (Debian: apt-get install maven)")
        home.mkdir(parents=True, exist_ok=True)
        options = ["-q", "-B", "-f", str(pom), f"-DoutputDirectory={jars}", "-DincludeScope=runtime"]
        run([maven, *options, "dependency:copy-dependencies"])
        complete.touch()
    return jars


def version_of(artifact: str, pom: str) -> str:
    return pom.partition(f"<artifactId>{artifact}</artifactId>")[2].split("<version>")[1].split("</version>")[0]


def javac_of_java() -> str | None:
    """The compiler beside the `java` that is used, if there is one."""
    javac = find_java().home / "bin" / "javac"
    return str(javac) if os.access(javac, os.X_OK) else None


def java() -> str:
    return str(find_java().executable)


def run(command: list[str], env: Mapping[str, str] | None = None, cwd: Path | None = None) -> None:
    """Run a command to its end; `PeerError` with the end of what it printed if that isn't a good one."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False, env=env, cwd=cwd
    )
    if done.returncode != 0:
        raise PeerError(f"{command[0]} ended with status {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}")


async def until_serving(process: ManagedProcess, serves: Callable[[], Awaitable[bool]]) -> None:
    """Return when `serves()` is true; `PeerError` with the end of its log if the process doesn't get there."""

    async def ready_or_dead() -> bool:
        return not process.running or await serves()

    if not await poll(ready_or_dead, START_TIMEOUT_S) or not process.running:
        raise PeerError(f"a server did not come up; the end of {process.log_path}:\n{process.log_tail()}")


class Client:
    """A process that loads a peer: a command line in, a line of JSON out. It ends when its standard input does."""

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


@dataclass(frozen=True)
class Setting:
    """One way to run a peer that is a column of its own: its key in the file, its title, and what it means."""

    key: str
    title: str
    about: str


class Peer(abc.ABC):
    """A further peer: servers that start once, and a client process that appends to them in rounds."""

    settings: tuple[Setting, ...]

    def __init__(self, directory: Path) -> None:
        self.versions: dict[str, str] = {}
        self.client = Client(directory / "client.log")
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    @abc.abstractmethod
    async def start(self) -> None:
        """Start everything, and return when the client is connected."""

    @abc.abstractmethod
    def server_pids(self) -> list[int | None]: ...

    @abc.abstractmethod
    def ways(self, row: Row) -> tuple[str, ...]:
        """How its client may submit this row; the warm-up takes the fastest."""

    @abc.abstractmethod
    async def open(self, row: Row, setting: Setting) -> None:
        """Make what the row appends to, instead of that of the round before: the disk is finite."""

    @abc.abstractmethod
    async def append(self, row: Row, way: str, seconds: float) -> dict[str, Any]:
        """One round: the client's figures."""

    @abc.abstractmethod
    async def kill_servers(self) -> None: ...

    def stand_in(self, row: Row) -> str | None:
        """What it appends to where it can't have as many logs as the row has ledgers; None where it has them."""
        return None

    async def command(self, *words: object) -> dict[str, Any]:
        """The client's answer; `PeerError` if it is an error, or doesn't come."""
        return await self.client.command(" ".join(map(str, words)), ANSWER_TIMEOUT_S)

    async def start_anew(self) -> None:
        """Kill everything, and start it again with nothing on disk."""
        await self.kill()
        await asyncio.to_thread(shutil.rmtree, self.directory)
        self.directory.mkdir()
        await self.start()

    async def kill(self) -> None:
        """SIGKILL to everything."""
        await self.client.kill()
        await self.kill_servers()
