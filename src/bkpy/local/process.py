"""A child process of a local cluster: started, signalled, waited for, and dead when its parent is.

Invariants: a child never outlives this process, however this process ends; at most one child runs for each
`ManagedProcess`; a child's output goes to its log file and nowhere else.
"""

from __future__ import annotations

import asyncio
import os
import queue
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

_POLL_INTERVAL_MIN_S = 0.01
_POLL_INTERVAL_MAX_S = 0.25
_POLL_PAUSE_RATIO = 3  # of the pause to the evaluation before it
_LOG_TAIL_LINES = 20
_LOG_TAIL_BYTES_MAX = 64 * 1024
_FREE_BYTES_MIN = 8 << 20  # ZooKeeper reserves half of it for its log
_PORT_BLOCK = 200
_PORT_BLOCKS = range(11_000, 32_000, _PORT_BLOCK)

# Runs in the child before the real program: ask for SIGKILL at the parent's death, see that the parent has not died
# meanwhile, become the program. A separate interpreter because code between fork and exec (preexec_fn) can deadlock in
# a parent with threads.
_EXEC_WRAPPER = """\
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None, use_errno=True).prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL
    if os.getppid() != int(sys.argv[1]):
        os._exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""


def ended_with_parent(command: Sequence[str]) -> list[str]:
    """The command, to be started by this process: the kernel kills it (SIGKILL) when the thread that starts it ends."""
    return [sys.executable, "-I", "-S", "-c", _EXEC_WRAPPER, str(os.getpid()), *command]


class _Spawner:
    """Starts every child from one thread that lives as long as the process.

    The kernel sends the death signal when the *thread* that started the child ends, and an event loop may run in a
    thread that ends long before the process does.
    """

    def __init__(self) -> None:
        self._pid = 0  # of the process whose thread serves the queue; a fork has no thread
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[tuple[Callable[[], subprocess.Popen[bytes]], queue.SimpleQueue[object]]]

    def popen(
        self, command: Sequence[str], *, log: IO[bytes], env: Mapping[str, str] | None, pass_fds: Sequence[int]
    ) -> subprocess.Popen[bytes]:
        wrapped = ended_with_parent(command)

        def start() -> subprocess.Popen[bytes]:
            # A session of its own: Ctrl-C in a terminal reaches the parent alone, which then stops its children in the
            # right order.
            return subprocess.Popen(
                wrapped,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env,
                pass_fds=pass_fds,
                start_new_session=True,
            )

        with self._lock:
            if self._pid != os.getpid():
                self._queue = queue.SimpleQueue()
                threading.Thread(target=self._serve, args=(self._queue,), name="bkpy-spawner", daemon=True).start()
                self._pid = os.getpid()
        answer: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._queue.put((start, answer))
        result = answer.get()
        if isinstance(result, BaseException):
            raise result
        assert isinstance(result, subprocess.Popen)
        return result

    @staticmethod
    def _serve(
        requests: queue.SimpleQueue[tuple[Callable[[], subprocess.Popen[bytes]], queue.SimpleQueue[object]]],
    ) -> None:
        while True:
            start, answer = requests.get()
            try:
                answer.put(start())
            except BaseException as e:  # the caller raises it
                answer.put(e)


_spawner = _Spawner()


class ManagedProcess:
    """One child process that can be started again and again, with a log file that keeps the output of all its runs."""

    def __init__(self, log_path: Path) -> None:
        self.log_path = log_path
        self._popen: subprocess.Popen[bytes] | None = None
        self._log_offset = 0

    @property
    def running(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    @property
    def pid(self) -> int | None:
        """The process id, or None when no process runs."""
        return self._popen.pid if self._popen is not None and self.running else None

    @property
    def exit_status(self) -> int | None:
        """The last run's exit status (minus the signal's number if one ended it); None before that."""
        return None if self._popen is None else self._popen.poll()

    def spawn(
        self, command: Sequence[str], *, env: Mapping[str, str] | None = None, pass_fds: Sequence[int] = ()
    ) -> None:
        """Start `command`; returns when the process exists, which says nothing about what it does.

        The child inherits the file descriptors `pass_fds` and no others.
        """
        if self.running:
            raise AssertionError(f"already running as process {self.pid}")
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log_path, "ab") as log:
            self._log_offset = log.tell()
            self._popen = _spawner.popen(command, log=log, env=env, pass_fds=pass_fds)

    async def stop(self, timeout_s: float) -> bool:
        """SIGTERM and wait; SIGKILL after `timeout_s`. Whether the process ended without being killed."""
        if self.running:
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)  # a suspended process gets no other signal
            if not await poll(self._ended, timeout_s):
                await self.kill()
                return False
        return True

    async def kill(self) -> None:
        """SIGKILL, and wait until the process is gone."""
        if self.running:
            self._signal(signal.SIGKILL)
            await poll(self._ended, None)

    def suspend(self) -> None:
        """SIGSTOP: the process keeps its memory and connections and does nothing."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: go on after `suspend`."""
        self._signal(signal.SIGCONT)

    def log_tail(self) -> str:
        """The last lines that this run has written to its log."""
        if not self.log_path.exists():
            return "(its log was deleted)"
        with open(self.log_path, "rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_offset, end - _LOG_TAIL_BYTES_MAX))
            lines = deque(log.read().decode(errors="replace").splitlines(), maxlen=_LOG_TAIL_LINES)
        return "\n".join(lines) if lines else "(it has written nothing to its log)"

    async def _ended(self) -> bool:
        return not self.running

    def _signal(self, number: signal.Signals) -> None:
        if self._popen is not None and self.running:
            self._popen.send_signal(number)


def how_it_ended(exit_status: int | None) -> str:
    """An exit status (minus the signal's number if one ended the process) as the end of a sentence."""
    if exit_status is None or exit_status >= 0:
        return f"has ended with status {exit_status}"
    try:
        return f"was ended by {signal.Signals(-exit_status).name}"
    except ValueError:  # a real-time signal has no name
        return f"was ended by signal {-exit_status}"


def full_disk_note(directory: Path) -> str:
    """The end of a sentence about a full disk, which its process can't log there. Empty if there is space."""
    there = next(path for path in (directory, *directory.parents) if path.exists())  # it may have been deleted
    free = shutil.disk_usage(there).free
    if free >= _FREE_BYTES_MIN:
        return ""
    return f"; the disk of {directory} is full ({free} bytes are free): give it space, or use another directory"


async def poll(condition: Callable[[], Awaitable[bool]], timeout_s: float | None) -> bool:
    """Wait until `condition()` is true; False if it is not within `timeout_s` seconds (None: wait for ever).

    A condition that takes long is evaluated less often, so that the wait leaves the processor to what it waits for.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    began = time.monotonic()
    while not await condition():
        ended = time.monotonic()
        if deadline is not None and ended > deadline:
            return False
        pause_s = min(max(_POLL_INTERVAL_MIN_S, _POLL_PAUSE_RATIO * (ended - began)), _POLL_INTERVAL_MAX_S)
        await asyncio.sleep(pause_s)
        began = time.monotonic()
    return True


async def accepts_connections(host: str, port: int) -> bool:
    """Whether something accepts TCP connections there."""
    try:
        async with asyncio.timeout(1):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen on that port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
    return True


class _Ports:
    """Hands out TCP ports that no other process of this kind hands out, one after another.

    They lie below the range that the kernel gives to outgoing connections (32768 and up on Linux): a port from there
    could be somebody's source port by the time its server comes back to it. Between choice and use, nothing at a port
    shows that it was chosen. So a process takes them from blocks of its own, each claimed by a socket that is bound to
    the block's first port as long as the process lives.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0  # whose blocks these are; a fork claims its own
        self._claims: list[socket.socket] = []
        self._ports: deque[int] = deque()

    def next(self, taken: Sequence[int]) -> int:
        with self._lock:
            if self._pid != os.getpid():
                self._pid, self._claims = os.getpid(), []
                self._ports.clear()
            while True:
                for _ in range(len(self._ports)):
                    port = self._ports[0]
                    self._ports.rotate(-1)  # to its end: it may be in use by a server that is down just now
                    if port not in taken and port_is_free(port):
                        return port
                self._claim()

    def _claim(self) -> None:
        for first in random.sample(_PORT_BLOCKS, len(_PORT_BLOCKS)):
            claim = socket.socket()
            try:
                claim.bind(("127.0.0.1", first))
            except OSError:
                claim.close()
                continue
            self._claims.append(claim)
            self._ports.extendleft(range(first + _PORT_BLOCK - 1, first, -1))
            return
        raise OSError("no free TCP ports between 11000 and 32000")


_ports = _Ports()


def free_port(taken: Sequence[int] = ()) -> int:
    """A free TCP port that stays free while its server is down, and that is in none of the `taken`."""
    return _ports.next(taken)
