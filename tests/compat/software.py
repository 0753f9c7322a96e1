"""Bookies and clients of any version, as processes, and a cluster's metadata written down and set up again."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import bkpy
from bkpy.config.loading import ENVIRONMENT_PREFIX
from bkpy.local.process import ManagedProcess, accepts_connections, free_port, poll
from bkpy.metadata import paths
from bkpy.metadata.store.store import MetadataStore, NodeExists, NoNode
from tests.command import PRELOADED
from tests.hooks import children_started_by
from tests.preloaded import Fork, Preloaded

STATES = Path(__file__).parent / "states"
DEADLINE_S = 60.0
_HOST = "127.0.0.1"
_LINE_BYTES_MAX = 64 << 20
_REMOTE_CLIENT = Path(__file__).parent / "remote_client.py"
_LEDGER_PARENT = "idgen-long/HOB-0000000000"  # whose counter gives ledger ids


def unpack(archive: Path, to: Path) -> None:
    with tarfile.open(archive) as files:
        if hasattr(tarfile, "data_filter"):
            files.extractall(to, filter="data")
        else:  # Python 3.11.3 and before, and so that of Debian 12, has no filters
            files.extractall(to)


class Software(NamedTuple):
    """One version of bkpy, to be run in processes of its own."""

    name: str
    directory: Path  # of the packages

    @classmethod
    def today(cls) -> Software:
        return cls("today", Path(bkpy.__file__).parents[1])

    @classmethod
    def unpacked(cls, wheel: Path, to: Path) -> Software:
        """The wheel's, which isn't installed."""
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(to)
        return cls(wheel.parent.name, to)

    @property
    def has_logs(self) -> bool:
        """Whether its clients know named logs; the first version's don't."""
        return (self.directory / "bkpy" / "log" / "reader.py").exists()

    @property
    def preloaded(self) -> Preloaded:
        """What its bookies and clients are forked from."""
        return PRELOADED if self == Software.today() else _earlier(self.directory)

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)}
        return {**kept, "PYTHONPATH": str(self.directory)}


@functools.cache
def _earlier(packages: Path) -> Preloaded:
    return Preloaded(packages)


class RemoteError(Exception):
    """What the other process' client raised; `kind` is its class."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


class RemoteClient:
    """A client of some version in a process of its own: `await client.do("append", ledger_id=1, entries=["x"])`."""

    def __init__(self, process: Fork, answers: asyncio.StreamReader, pipe: asyncio.ReadTransport) -> None:
        self._process = process
        self._answers = answers
        self._pipe = pipe

    @classmethod
    async def start(cls, software: Software, uri: str, **settings: Any) -> RemoteClient:
        process = await asyncio.to_thread(  # the first one loads the version
            software.preloaded.popen,
            [str(_REMOTE_CLIENT), uri, json.dumps(settings)],
            env=software.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=sys.__stderr__.fileno(),
        )
        answers = asyncio.StreamReader(_LINE_BYTES_MAX)
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(answers), process.stdout
        )
        client = cls(process, answers, pipe)
        where = await client._answer()
        assert Path(where).is_relative_to(software.directory), f"{where} is not {software.name}'s"
        return client

    async def do(self, operation: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": operation, **arguments}).encode() + b"\n")
        await asyncio.to_thread(self._process.stdin.flush)
        return await self._answer()

    async def _answer(self) -> Any:
        async with asyncio.timeout(DEADLINE_S):
            line = await self._answers.readline()
        assert line, "the client's process has ended; see what it wrote to standard error"
        answer = json.loads(line)
        if "error" in answer:
            raise RemoteError(answer["error"], answer["message"])
        return answer["result"]

    async def kill(self) -> None:
        """As a crash would end it."""
        self._process.kill()
        await asyncio.to_thread(self._process.wait, DEADLINE_S)
        self._pipe.close()

    async def stop(self) -> None:
        """Its writers' ledgers stay open."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.to_thread(self._process.wait, DEADLINE_S)
        finally:
            await self.kill()


class BookieProcess:
    """A bookie of some version. It runs in `directory`; its own directories are relative, so that they can be moved."""

    def __init__(self, bookie_id: str, directory: Path, uri: str, **settings: Any) -> None:
        self.id = bookie_id
        self.directory = directory
        self.address = f"{_HOST}:{free_port()}"
        self.settings = {"journal_directories": ["journal"], "ledger_directories": ["ledgers"], **settings}
        self._uri = uri
        self._process = ManagedProcess(directory.with_name(f"{bookie_id}.log"))

    async def start(self, software: Software, store: MetadataStore, root: str, *flags: str) -> None:
        """Return when it is registered and serves. `flags`: of its command."""
        registrations = [paths.available(root, self.id, read_only=flag) for flag in (False, True)]
        for path in registrations:  # the last run's, if that was killed, would be taken for this one's
            with contextlib.suppress(NoNode):
                await store.delete(path)
        settings = {**self.settings, "bookie_id": self.id, "listen": self.address, "metadata_uri": self._uri}
        config = self.directory.with_name(f"{self.id}.toml")
        config.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items()))
        self.directory.mkdir(exist_ok=True)
        command = [sys.executable, "-P", "-m", "bkpy", "bookie", "run", "--config", str(config), *flags]
        with children_started_by(software.preloaded.bookie):
            self._process.spawn(["env", "-C", str(self.directory), *command], env=software.environment)

        async def ready_or_dead() -> bool:
            registered = await store.exists(registrations[0]) or await store.exists(registrations[1])
            return not self._process.running or (
                registered and await accepts_connections(_HOST, int(self.address.rpartition(":")[2]))
            )

        ready = await poll(ready_or_dead, DEADLINE_S) and self._process.running
        assert ready, f"bookie {self.id} of {software.name}:\n{self._process.log_tail()}"

    async def stop(self) -> None:
        assert await self._process.stop(DEADLINE_S), f"bookie {self.id} had to be killed"
        assert self._process.exit_status == 0, self._process.log_tail()

    async def kill(self) -> None:
        await self._process.kill()

    @property
    def running(self) -> bool:
        return self._process.running

    def suspend(self) -> None:
        """SIGSTOP."""
        self._process.suspend()

    def resume(self) -> None:
        """SIGCONT."""
        self._process.resume()


async def dump_tree(store: MetadataStore, root: str) -> dict[str, str]:
    """The nodes below `root`, by their path relative to it; values as text. What is registered now isn't in it."""
    nodes: dict[str, str] = {}

    async def visit(path: str) -> None:
        for name in await store.children(f"{root}/{path}" if path else root):
            below = f"{path}/{name}" if path else name
            if path != paths.AVAILABLE or name == "readonly":
                nodes[below] = (await store.get(f"{root}/{below}"))[0].decode()
                await visit(below)

    await visit("")
    return nodes


async def restore_tree(store: MetadataStore, root: str, nodes: dict[str, str], used: int | None = None) -> None:
    """Make the nodes under `root`, and let new ledgers get ids behind those of the old ones.

    `used`: how many ids were given out, if some of the ledgers were deleted.
    """
    above = root.split("/")
    for path in ["/".join(above[:n]) for n in range(2, len(above) + 1)]:
        with contextlib.suppress(NodeExists):
            await store.create(path, b"")
    for path in sorted(nodes):  # a parent is before its children
        await store.create(f"{root}/{path}", nodes[path].encode())
    there = sum(path.rpartition("/")[2].startswith("L0") for path in nodes)
    for _ in range(used or there):  # ZooKeeper keeps the counter with the node, where nobody else can set it
        await store.delete(await store.create(f"{root}/{_LEDGER_PARENT}/ID-", b"", ephemeral=True, sequential=True))
