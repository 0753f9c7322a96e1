"""A process that has loaded the `bkpy` command, and forks one that runs it for each request.

To load the command takes ten times as long as most commands take to run, and as long as a bookie takes for most tests.
Apart from that, each run is what a run of `python -m bkpy` is: a process of its own, in a session of its own, with its
arguments, environment, standard streams, output and exit status, and signals end it as they end any. Only what was
loaded isn't taken apart at its end.

Invariants: no fork outlives the process that loaded the command, which ends with the one that runs the tests; a fork
that has ended keeps its process id until its exit status has been asked for.

Requests come one at a time, as JSON. To start a run: its arguments and environment, with the descriptors of its
standard streams and of what else it is to inherit; the answer is its process id. For the exit status of one that has
ended: its process id; the answer is the status, minus the signal's number if one ended it.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

REQUEST_BYTES_MAX = 1 << 17
DESCRIPTORS_MAX = 16
BOOKIE = (sys.executable, "-P", "-m", "bkpy", "bookie", "run")  # as a local cluster starts one
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


class Fork:
    """A run, with what `subprocess.Popen` has of it."""

    def __init__(self, preloaded: Preloaded, pid: int) -> None:
        self.pid = pid
        self._preloaded = preloaded
        self._lock = threading.Lock()
        self._status: int | None = None
        self._pidfd = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """The exit status; None as long as it runs."""
        with self._lock:
            if self._status is None and self._has_ended(0):
                self._status = self._preloaded.status_of(self.pid)
                os.close(self._pidfd)
            return self._status

    def wait(self, timeout_s: float) -> int:
        """The exit status. `TimeoutError` if it runs longer."""
        if self._status is None and not self._has_ended(timeout_s):
            raise TimeoutError(f"process {self.pid} has not ended within {timeout_s:g} s")
        status = self.poll()
        assert status is not None
        return status

    def send_signal(self, number: int) -> None:
        """No effect if it has ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._pidfd, number)

    def _has_ended(self, timeout_s: float) -> bool:
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))


class Preloaded:
    """The process, from the first run on. It ends when this one does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket

    def start(
        self, arguments: Sequence[str], *, env: Mapping[str, str], streams: Sequence[int], inherited: Sequence[int] = ()
    ) -> Fork:
        """Start the command; `streams` are the descriptors of its standard input, output and error.

        It inherits those, and copies of the descriptors `inherited`, and no others.
        """
        return Fork(self, self._ask([list(arguments), dict(env)], [*streams, *inherited]))

    def bookie(
        self, command: Sequence[str], *, log: IO[bytes], env: Mapping[str, str], pass_fds: Sequence[int]
    ) -> Fork | None:
        """The run, if it is one of a bookie, for which a local cluster gives this command."""
        if tuple(command[: len(BOOKIE)]) != BOOKIE:
            return None
        with open(os.devnull, "rb") as nothing:
            streams = [nothing.fileno(), log.fileno(), log.fileno()]
            return self.start(command[BOOKIE.index("bookie") :], env=env, streams=streams, inherited=pass_fds)

    def run(
        self, arguments: Sequence[str], *, stdin: bytes, env: Mapping[str, str], timeout_s: float
    ) -> subprocess.CompletedProcess[bytes]:
        """Run the command to its end. If it takes longer than it may, it is killed and that is a `TimeoutError`."""
        source, sink = os.pipe()
        feeding = threading.Thread(target=_feed, args=(sink, stdin))
        with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
            try:
                fork = self.start(arguments, env=env, streams=[source, stdout.fileno(), stderr.fileno()])
            finally:
                os.close(source)
                feeding.start()  # which closes the other end
            try:
                status = fork.wait(timeout_s)
            except BaseException:
                fork.send_signal(signal.SIGKILL)
                fork.wait(timeout_s)
                raise
            finally:
                feeding.join()
            stdout.seek(0)
            stderr.seek(0)
            return subprocess.CompletedProcess(arguments, status, stdout.read(), stderr.read())

    def status_of(self, pid: int) -> int:
        """The exit status of a fork that has ended, which is forgotten."""
        return self._ask(pid, [])

    def _ask(self, request: object, fds: list[int]) -> int:
        with self._lock:
            if self._process is None:
                self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                with theirs:
                    self._process = subprocess.Popen(
                        [sys.executable, "-P", __file__, str(theirs.fileno())],
                        stdin=subprocess.DEVNULL,
                        pass_fds=[theirs.fileno()],
                        start_new_session=True,
                    )
            socket.send_fds(self._requests, [json.dumps(request).encode()], fds)
            answer = self._requests.recv(16)
            assert answer, "the process that runs commands has ended"
            return int(answer)


def _feed(sink: int, data: bytes) -> None:
    try:
        with open(sink, "wb", buffering=0) as pipe:
            rest = memoryview(data)
            while rest:
                rest = rest[pipe.write(rest) :]
    except BrokenPipeError:
        pass  # the command has not read all of it


def _serve(requests: socket.socket) -> None:
    import ctypes

    import bkpy.bench.workloads
    import bkpy.bookie.process
    import bkpy.cli.bench
    import bkpy.cli.bookie
    import bkpy.cli.cluster
    import bkpy.cli.ledger
    import bkpy.cli.local
    import bkpy.cli.outcome
    import bkpy.client.client
    import bkpy.metadata.connect
    import bkpy.metadata.zookeeper.store  # noqa: F401 - for the runs

    prctl = ctypes.CDLL(None).prctl
    own_pid = os.getpid()
    gc.collect()
    gc.freeze()  # a fork's collections neither look through what is loaded nor get copies of its pages by that
    while True:
        request, fds, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, DESCRIPTORS_MAX)
        if not request:
            return
        asked = json.loads(request)
        if isinstance(asked, int):
            requests.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(asked, 0)[1]))
            continue
        pid = os.fork()
        if pid == 0:
            prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != own_pid:
                sys.exit(1)
            requests.close()
            _run(*asked, fds)
        for fd in fds:
            os.close(fd)
        requests.send(b"%d" % pid)


def _run(arguments: list[str], env: dict[str, str], fds: list[int]) -> None:
    """Never returns."""
    from bkpy.cli import main

    os.setsid()
    for fd in range(3):
        os.dup2(fds[fd], fd)
        os.close(fds[fd])
    os.environ.clear()
    os.environ.update(env)
    try:
        main(arguments)
    except SystemExit as ending:
        if not isinstance(ending.code, int):
            raise
        _end(ending.code)


def _end(status: int) -> NoReturn:
    """What the interpreter does at its end, but for taking apart all that was loaded: that takes ten times as long."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    gc.collect()  # of which some tell that they were forgotten
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
