"""Starts bookies for a program in Java, which has a connection for each: a line in, a line out.

The first line is the bookie's settings as JSON, answered when the bookie accepts connections. Further lines: `stop`,
`suspend`, `resume`, `read-only`, and `reads`, answered with the number of requests to read so far. A connection whose
first line is `port` is for no bookie, and is answered with a free port.

Invariant: no bookie outlives its connection.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from typing import TYPE_CHECKING, Any, Self

from bkpy.local.process import ManagedProcess, accepts_connections, free_port, how_it_ended
from tests.command import environment
from tests.conftest import all_threads_stopped
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path
    from types import TracebackType

_HOST = "127.0.0.1"
_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 60.0
_COMMAND = (sys.executable, "-P", "-m", "bkpy", "bookie", "run", "--config")
_SETTINGS = {
    "protocol": "bookkeeper",
    "auto_recovery": False,
    "session_timeout_s": 30.0,  # Java's bookies keep their sessions while tests have them sleep
    "disk_free_bytes_min": 0,
    "gc_interval_s": 1.0,  # as in the settings of the tests
}
_NEVER_FREE = 1 << 62  # bytes
_READS = re.compile(rb'^bkpy_bookie_request_seconds_count\{operation="read"\} ([0-9.]+)$', re.MULTILINE)


class _Bookie:
    def __init__(self, directory: Path, settings: dict[str, Any]) -> None:
        self._config = directory / "bookie.toml"
        self._host, _, port = settings["listen"].rpartition(":")
        self._port = int(port)
        self._metrics_port = free_port()
        self._settings = {**_SETTINGS, **settings, "metrics_port": self._metrics_port}
        self._process = ManagedProcess(directory / "bookie.log")
        self._reads_at_suspension: str | None = None

    async def start(self) -> str:
        self._write_settings()
        self._process.spawn([*_COMMAND, str(self._config)], env=environment(None))

        async def serves_or_ended() -> bool:
            return not self._process.running or await accepts_connections(self._host, self._port)

        await eventually(serves_or_ended, deadline_s=_START_TIMEOUT_S)
        if self._process.running:
            return ""
        raise RuntimeError(f"the bookie {how_it_ended(self._process.exit_status)}: {self._process.log_tail()}")

    async def stop(self) -> str:
        if not await self._process.stop(_STOP_TIMEOUT_S):
            raise RuntimeError(f"the bookie did not stop: {self._process.log_tail()}")
        return ""

    async def suspend(self) -> str:
        self._reads_at_suspension = await self.reads()
        self._process.suspend()
        await eventually(lambda: all_threads_stopped(self._process.pid))
        return ""

    async def resume(self) -> str:
        self._process.resume()
        self._reads_at_suspension = None
        return ""

    async def read_only(self) -> str:
        """As at a disk that is nearly full."""
        self._settings |= {"disk_free_bytes_min": _NEVER_FREE, "disk_free_bytes_resume": _NEVER_FREE + 1}
        self._write_settings()
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGHUP)
        return ""

    async def reads(self) -> str:
        if self._reads_at_suspension is not None:
            return self._reads_at_suspension
        reader, writer = await asyncio.open_connection(_HOST, self._metrics_port)
        try:
            writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
            page = await reader.read()
        finally:
            writer.close()
        found = _READS.search(page)
        assert found is not None, page
        return str(int(float(found[1])))

    async def kill(self) -> None:
        await self._process.kill()

    def _write_settings(self) -> None:
        self._config.parent.mkdir(parents=True, exist_ok=True)
        # A JSON string, number, boolean, or list of strings is also a TOML one.
        self._config.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in self._settings.items()))


class Launcher:
    """Listens at `port` while it is entered. Files of bookies that are no data of theirs are in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.port = 0
        self._directory = directory
        self._started = 0
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, _HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            first = await reader.readline()
            if first == b"port\n":
                writer.write(f"ok {free_port()}\n".encode())
                return
            self._started += 1
            bookie = _Bookie(self._directory / f"bookie-{self._started}", json.loads(first))
            try:
                requests: dict[bytes, Callable[[], Awaitable[str]]] = {
                    b"stop": bookie.stop,
                    b"suspend": bookie.suspend,
                    b"resume": bookie.resume,
                    b"read-only": bookie.read_only,
                    b"reads": bookie.reads,
                }
                request = bookie.start
                while True:
                    writer.write(f"{await _answer(request)}\n".encode())
                    line = await reader.readline()
                    if not line:
                        return
                    request = requests[line.strip()]
            finally:
                await bookie.kill()
        finally:
            writer.close()
            self._serving.discard(task)


async def _answer(request: Callable[[], Awaitable[str]]) -> str:
    try:
        return f"ok {await request()}"
    except (AssertionError, OSError, RuntimeError) as error:
        return f"failed: {error}".replace("\n", " | ")
