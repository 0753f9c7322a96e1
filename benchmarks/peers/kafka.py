"""Apache Kafka on this machine: fetched with Maven, three nodes of KRaft on loopback, and a Java client.

Each node is a broker and a controller. Every process dies with this one. README.md says why the settings are these.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from peer import HERE, HOST, Peer, Setting, fetch_java, java, run, until_serving

from bkpy.local.process import ManagedProcess, accepts_connections, free_port

if TYPE_CHECKING:
    from pathlib import Path

    from rows import Row

NODES: Final = 3
SYNCED: Final = Setting("kafka synced", "Kafka, synced", "flush.messages=1: every write is synced")
UNSYNCED: Final = Setting(
    "kafka not synced",
    "Kafka, not synced",
    "no write is synced: what is acknowledged isn't durable",
)
# linger.ms and batch.size: a lonely append waits for nothing, and of the rest the warm-up takes the fastest.
ALONE: Final = ("0 16384",)
MANY: Final = ("0 1048576", "1 1048576", "5 1048576")
MANY_S: Final = 6.0  # of a round on many partitions, at least: to sync all of them once may take seconds

# As its own start script has it, with the same heap as a bookie of the other peer.
JVM: Final = (
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
    "-Djava.net.preferIPv4Stack=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
NODE_JVM: Final = ("-Xms512m", "-Xmx1g", *JVM)
CLIENT_JVM: Final = ("-Xms512m", "-Xmx1g", *JVM)
TOOL_JVM: Final = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", JVM[-1])

NODE_CONFIG: Final = """\
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={directory}/data
auto.create.topics.enable=false
default.replication.factor=3
min.insync.replicas=2
message.max.bytes=16777216
replica.fetch.backoff.ms=100
replica.fetch.max.bytes=16777216
replica.fetch.response.max.bytes=67108864
log.segment.bytes=268435456
log.segment.delete.delay.ms=1000
log.retention.bytes=2147483648
log.retention.check.interval.ms=5000
log.cleaner.enable=false
"""


def fetch() -> tuple[str, str]:
    """(class path, version) of Apache Kafka with our client; fetched and compiled on the first call."""
    return fetch_java("Apache Kafka", HERE / "pom-kafka.xml", "kafka_2.13", ("KafkaBench",))


class Node:
    """One process that is a broker and a controller; its ports and directory are its own."""

    def __init__(self, number: int, base: Path, class_path: str) -> None:
        self.number = number
        self.port = free_port()
        self.controller_port = free_port((self.port,))
        self.directory = base / f"node-{number}"
        self.process = ManagedProcess(self.directory / "kafka.log")
        self._class_path = class_path

    async def start(self, voters: str) -> None:
        """Format its directory and start it; it serves when enough of the others do."""
        self.directory.mkdir(parents=True)
        config = self.directory / "server.properties"
        values = {"node": self.number, "voters": voters, "directory": self.directory}
        config.write_text(NODE_CONFIG.format(port=self.port, controller_port=self.controller_port, **values))
        tool = [java(), *TOOL_JVM, "-cp", self._class_path, "kafka.tools.StorageTool"]
        cluster_id = "AAAAAAAAAAAAAAAAAAAAAQ"  # any 16 bytes: base64 without padding
        await asyncio.to_thread(run, [*tool, "format", "--cluster-id", cluster_id, "--config", str(config)])
        self.process.spawn([java(), *NODE_JVM, "-cp", self._class_path, "kafka.Kafka", str(config)])

    async def until_serving(self) -> None:
        await until_serving(self.process, lambda: accepts_connections(HOST, self.port))


class Kafka(Peer):
    """Three nodes, and one client process that measures them."""

    settings = (SYNCED, UNSYNCED)

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._class_path, version = fetch()
        self.versions = {"kafka": version}
        self._nodes = [Node(i, directory, self._class_path) for i in range(1, NODES + 1)]

    async def start(self) -> None:
        voters = ",".join(f"{node.number}@{HOST}:{node.controller_port}" for node in self._nodes)
        for node in self._nodes:
            await node.start(voters)
        for node in self._nodes:
            await node.until_serving()
        servers = ",".join(f"{HOST}:{node.port}" for node in self._nodes)
        await self.client.start([java(), *CLIENT_JVM, "-cp", self._class_path, "KafkaBench", servers])

    def server_pids(self) -> list[int | None]:
        return [node.process.pid for node in self._nodes]

    def ways(self, row: Row) -> tuple[str, ...]:
        return ALONE if row.outstanding == 1 else MANY

    async def open(self, row: Row, setting: Setting) -> None:
        await self.command("open", row.ledgers, "true" if setting is SYNCED else "false")

    async def append(self, row: Row, way: str, seconds: float) -> dict[str, Any]:
        if row.ledgers > 1:
            seconds = max(seconds, MANY_S)
        return await self.command("append", way, row.size, row.outstanding, seconds)

    async def kill_servers(self) -> None:
        await asyncio.gather(*(node.process.kill() for node in self._nodes))
