"""A cluster on machines of their own: ZooKeeper, bookies in racks, writers and this process' client, each on a host.

The hosts are those of `network`: what they say to each other goes through its switch, and may be late, lost or cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bkpy.config.loading import ENVIRONMENT_PREFIX
from bkpy.local.java import find_java
from bkpy.local.process import ManagedProcess, accepts_connections, poll
from bkpy.local.zookeeper import opens_session
from bkpy.metadata.cluster import init_cluster
from bkpy.metadata.connect import connect_store
from bkpy.runtime.system import real_runtime

from .network import Network, inside

if TYPE_CHECKING:
    from collections.abc import Mapping

    import bkpy

    from .network import Host

DEADLINE_S = 60.0
CLIENT, WRITER, ZOOKEEPER = "client", "writer", "zookeeper"
RACKS = {"a": "north", "b": "north", "c": "east", "d": "east", "e": "south", "f": "south"}
_BOOKIE_PORT, _ZOOKEEPER_PORT = 3181, 2181
_ZOOKEEPER_CONFIG = """\
tickTime=500
minSessionTimeout=1000
maxSessionTimeout=60000
dataDir={data}
clientPort={port}
maxClientCnxns=0
admin.enableServer=false
"""
_SETTINGS: dict[str, Any] = {"session_timeout_s": 4.0, "journal_max_size_mb": 4}


class Machines:
    """`async with Machines(directory) as cluster`: all of it runs, and this thread is on the host of the client."""

    def __init__(self, directory: Path, racks: Mapping[str, str] = RACKS, *, seed: int = 0) -> None:
        self.racks = dict(racks)
        self.network = Network([CLIENT, WRITER, ZOOKEEPER, *racks], seed=seed)
        self.directory = directory
        self.uri = f"zk://{self.host(ZOOKEEPER).address}:{_ZOOKEEPER_PORT}/ledgers"
        self.processes = {name: ManagedProcess(directory / f"{name}.log") for name in (ZOOKEEPER, *racks)}
        self._stack = contextlib.AsyncExitStack()

    def host(self, name: str) -> Host:
        return self.network.hosts[name]

    def racks_of(self, bookies: tuple[str, ...]) -> set[str]:
        return {self.racks[bookie] for bookie in bookies}

    async def __aenter__(self) -> Machines:
        async with self._stack as stack:
            await stack.enter_async_context(self.network)
            stack.push_async_callback(self._kill)
            # The thread that starts all processes, those of later tests too, begins with the first: not on a host.
            self._launch_zookeeper()
            stack.enter_context(inside(self.host(CLIENT).namespace))
            await self._zookeeper_ready()
            store, root = await connect_store(self.uri, real_runtime())
            try:
                await init_cluster(store, root)
            finally:
                await store.close()
            await asyncio.gather(*(self._start_bookie(name) for name in self.racks))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _kill(self) -> None:
        await asyncio.gather(*(process.kill() for process in self.processes.values()))

    def _launch_zookeeper(self) -> None:
        spec = importlib.util.find_spec("pyspark")
        assert spec is not None
        assert spec.origin is not None
        config = self.directory / "zoo.cfg"
        config.write_text(_ZOOKEEPER_CONFIG.format(data=self.directory / "zookeeper", port=_ZOOKEEPER_PORT))
        java = [str(find_java().executable), "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        java += ["-Dlog4j2.level=ERROR", "-Dzookeeper.preAllocSize=4096", "-cp", f"{Path(spec.origin).parent}/jars/*"]
        process = self.processes[ZOOKEEPER]
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        process.spawn([*self.host(ZOOKEEPER).command, *java, main, str(config)])

    async def _zookeeper_ready(self) -> None:
        process = self.processes[ZOOKEEPER]

        async def ready_or_dead() -> bool:
            return not process.running or await opens_session(self.host(ZOOKEEPER).address, _ZOOKEEPER_PORT)

        assert await poll(ready_or_dead, DEADLINE_S), process.log_tail()
        assert process.running, process.log_tail()

    async def _start_bookie(self, name: str) -> None:
        host, process = self.host(name), self.processes[name]
        settings = {
            **_SETTINGS,
            "bookie_id": name,
            "rack": self.racks[name],
            "metadata_uri": self.uri,
            "listen": f"{host.address}:{_BOOKIE_PORT}",
            "journal_directories": [str(self.directory / name / "journal")],
            "ledger_directories": [str(self.directory / name / "ledgers")],
        }
        config = self.directory / f"{name}.toml"
        config.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()))
        command = [*host.command, sys.executable, "-P", "-m", "bkpy", "bookie", "run", "--config", str(config)]
        process.spawn(command, env={k: v for k, v in os.environ.items() if not k.startswith(ENVIRONMENT_PREFIX)})

        async def ready_or_dead() -> bool:
            return not process.running or await accepts_connections(host.address, _BOOKIE_PORT)

        assert await poll(ready_or_dead, DEADLINE_S), process.log_tail()
        assert process.running, process.log_tail()

    async def registered(self, client: bkpy.Client) -> None:
        """Return when the client knows all bookies."""

        async def all_there() -> bool:
            return set(client.bookies) == set(self.racks)

        assert await poll(all_there, DEADLINE_S), f"registered are only {sorted(client.bookies)}"
