"""A real ZooKeeper on this machine, run from the jars inside PySpark: one server, or an ensemble of several.

Invariants: a server that `start()` has returned for has opened a session, and keeps its port and its data over every
restart.
"""

from __future__ import annotations

import asyncio
import glob
import importlib.util
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bkpy.errors import ConfigError, MetadataUnavailableError
from bkpy.local.java import find_java
from bkpy.local.process import ManagedProcess, free_port, full_disk_note, how_it_ended, poll
from bkpy.runtime.os_errors import naming

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

_HOST = "127.0.0.1"
_JARS = (  # without snappy-java the port answers `imok` and every session times out
    "zookeeper-[0-9]",
    "zookeeper-jute-[0-9]",
    "slf4j-api-[0-9]",
    "metrics-core-[0-9]",
    "snappy-java-[0-9]",
    "log4j-api-[0-9]",
    "log4j-core-[0-9]",
    "log4j-slf4j2-impl-[0-9]",
)
_JVM_OPTIONS = (
    "-Xmx128m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dlog4j2.level=ERROR",
    "-Djava.net.preferIPv4Stack=true",
    "-Dzookeeper.preAllocSize=4096",  # KiB; the default of 64 MiB per log file is much for a test directory
)
_START_TIMEOUT_S = 60.0  # ready in half a second; a machine busy with other things takes longer
_STOP_TIMEOUT_S = 15.0
_SESSION_PROBE_TIMEOUT_S = 2.0

# Sessions may be as short as two ticks. A second is short enough for tests that wait for one to expire.
_CONFIG = """\
tickTime=500
initLimit=20
syncLimit=10
minSessionTimeout=1000
maxSessionTimeout=60000
dataDir={data}
clientPort={port}
clientPortAddress={host}
maxClientCnxns=0
admin.enableServer=false
autopurge.snapRetainCount=3
autopurge.purgeInterval=1
"""


class _Membership(NamedTuple):
    """A server's place in an ensemble."""

    number: int
    members: str  # the lines of a configuration that name all servers of the ensemble


class ZooKeeperServer:
    """One ZooKeeper server with its files in `directory`.

    `port` is chosen when it is not given and stays the same for the life of this object. The process inherits the file
    descriptors `pass_fds`. A server of an ensemble is made by `ZooKeeperEnsemble`.
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, port: int | None = None, membership: _Membership | None = None
    ) -> None:
        self.directory = Path(directory)
        self.port = free_port() if port is None else port
        self.pass_fds: Sequence[int] = ()
        self._membership = membership
        self._process = ManagedProcess(self.directory / "zookeeper.log")

    @property
    def connect_string(self) -> str:
        """`host:port`."""
        return f"{_HOST}:{self.port}"

    @property
    def address(self) -> str:
        """`host:port`, the same as `connect_string`."""
        return self.connect_string

    @property
    def pid(self) -> int | None:
        """The process id, or None when the server does not run."""
        return self._process.pid

    @property
    def name(self) -> str:
        """Its name in messages."""
        return "ZooKeeper"

    @property
    def exit_status(self) -> int | None:
        """How the last run ended, minus the signal's number if one ended it; None if it has not."""
        return self._process.exit_status

    @property
    def log_path(self) -> Path:
        return self._process.log_path

    async def start(self) -> None:
        """Start the server and return when a session can be opened. No effect if it already serves.

        `ConfigError` if Java or the jars are missing; `MetadataUnavailableError` with the last lines of its log if it
        does not come up.
        """
        self.launch()
        await self.wait_ready()

    def launch(self) -> None:
        """Start the process without waiting for it: a server of an ensemble serves only when a majority runs."""
        if self._process.running:
            return
        data = self.directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        data.chmod(0o700)  # the ledgers' keys are there
        config = self.directory / "zoo.cfg"
        settings = _CONFIG.format(data=_property(str(data.absolute())), port=self.port, host=_HOST)
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        if self._membership is not None:
            main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
            settings += self._membership.members
            (data / "myid").write_text(f"{self._membership.number}\n")
        with naming(config):
            config.write_text(settings)
        java = find_java()
        self._process.spawn(
            [str(java.executable), *_JVM_OPTIONS, "-cp", _classpath(), main, str(config.absolute())],
            env=os.environ | {"LC_ALL": "C.UTF-8"},  # by which Java takes its arguments and the names of files
            pass_fds=self.pass_fds,
        )

    async def wait_ready(self) -> None:
        """Return when a session can be opened; errors as for `start`."""

        async def ready_or_dead() -> bool:
            return not self._process.running or await opens_session(_HOST, self.port)

        in_time = await poll(ready_or_dead, _START_TIMEOUT_S)
        if in_time and self._process.running:
            return
        what = how_it_ended(self._process.exit_status) if in_time else f"was not ready in {_START_TIMEOUT_S:g} s"
        tail = self._process.log_tail()
        await self.kill()
        raise MetadataUnavailableError(
            f"ZooKeeper at {self.connect_string} {what}{full_disk_note(self.directory)}; last lines of its log:\n{tail}"
        )

    async def stop(self) -> None:
        """SIGTERM, and wait for the end; SIGKILL if that takes longer than 15 s."""
        await self._process.stop(_STOP_TIMEOUT_S)

    async def kill(self) -> None:
        """SIGKILL."""
        await self._process.kill()

    def suspend(self) -> None:
        """SIGSTOP."""
        self._process.suspend()

    def resume(self) -> None:
        """SIGCONT."""
        self._process.resume()

    async def __aenter__(self) -> ZooKeeperServer:
        try:
            await self.start()
        except BaseException:
            await self.kill()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


class ZooKeeperEnsemble:
    """Several ZooKeeper servers that replicate to each other, in subdirectories of `directory`."""

    def __init__(self, directory: str | os.PathLike[str], servers: int = 3) -> None:
        base = Path(directory)
        ports: list[int] = []
        for _ in range(3 * servers):
            ports.append(free_port(ports))
        clients, peers, elections = (ports[i * servers : (i + 1) * servers] for i in range(3))
        members = "".join(
            f"server.{i}={_HOST}:{peer}:{election}\n"
            for i, (peer, election) in enumerate(zip(peers, elections, strict=True), 1)
        )
        self.servers = [
            ZooKeeperServer(base / f"zookeeper-{i}", port=port, membership=_Membership(i, members))
            for i, port in enumerate(clients, 1)
        ]

    @property
    def connect_string(self) -> str:
        """`host:port` of all servers, by comma."""
        return ",".join(server.connect_string for server in self.servers)

    async def start(self) -> None:
        """Start all servers and return when each of them opens sessions."""
        for server in self.servers:
            server.launch()
        for server in self.servers:
            await server.wait_ready()

    async def stop(self) -> None:
        """Stop all servers."""
        await asyncio.gather(*(server.stop() for server in self.servers))

    async def kill(self) -> None:
        """SIGKILL to all servers."""
        await asyncio.gather(*(server.kill() for server in self.servers))

    async def __aenter__(self) -> ZooKeeperEnsemble:
        try:
            await self.start()
        except BaseException:
            await self.kill()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


def _property(text: str) -> str:
    """As a value in a file of Java properties, which is Latin-1 and has escapes."""
    plain = (c if c.isascii() and c.isprintable() and c != "\\" else _escaped(c) for c in text)
    return "".join(plain)


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{high:02x}{low:02x}" for high, low in zip(units[::2], units[1::2], strict=True))


def _classpath() -> str:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ConfigError("ZooKeeper's jars come with PySpark, which is not installed: pip install 'bkpy[local]'")
    directory = Path(spec.origin).parent / "jars"
    found = [_jar(directory, prefix) for prefix in _JARS]
    return os.pathsep.join(found)


def _jar(directory: Path, prefix: str) -> str:
    matches: Sequence[str] = sorted(glob.glob(f"{glob.escape(str(directory))}/{prefix}*.jar"))
    if not matches:
        name = prefix.removesuffix("-[0-9]")
        raise ConfigError(f"no {name} jar in {directory}; get it with pip install --force-reinstall 'pyspark>=4.1'")
    return matches[-1]


async def opens_session(host: str, port: int) -> bool:
    """Whether a ZooKeeper server there opens a session (and closes it again): the only proof that it serves."""
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(_SESSION_PROBE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port)
            # ConnectRequest: protocol version, last zxid seen, timeout (ms), session id, password, read-only
            request = struct.pack(">iqiqi16s?", 0, 0, 2000, 0, 16, bytes(16), False)
            writer.write(struct.pack(">i", len(request)) + request)
            length = struct.unpack(">i", await reader.readexactly(4))[0]
            answer = await reader.readexactly(length)
            _, timeout_ms, session_id = struct.unpack_from(">iiq", answer)
            if timeout_ms <= 0 or session_id == 0:
                return False
            writer.write(struct.pack(">iii", 8, 1, -11))  # closeSession, so that no session is left behind
            await reader.readexactly(4)
            return True
    except (OSError, TimeoutError, asyncio.IncompleteReadError, struct.error):
        return False
    finally:
        if writer is not None:
            writer.close()
