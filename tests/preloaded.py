"""A process that has loaded the `bkpy` command, and forks one that runs it for each request.

To load the command takes ten times as long as most commands take to run. Apart from that, each run is what a run of
`python -m bkpy` is: a process of its own, with its arguments, environment, standard streams, output and exit status.

Requests come one at a time: the arguments and the environment as JSON, with the descriptors of the standard streams.
The answer to each is its exit status, minus the signal's number if one ended it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading

REQUEST_BYTES_MAX = 1 << 17


class Preloaded:
    """The process, from the first run on. It ends when this one does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket

    def run(
        self, arguments: list[str], *, stdin: bytes, env: dict[str, str], timeout_s: float
    ) -> subprocess.CompletedProcess[bytes]:
        """Run the command to its end. If it takes longer than it may, it is killed and that is a `TimeoutError`."""
        source, sink = os.pipe()
        feeding = threading.Thread(target=_feed, args=(sink, stdin))
        with self._lock, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
            process = self._started()
            feeding.start()
            try:
                request = json.dumps([arguments, env]).encode()
                socket.send_fds(self._requests, [request], [source, stdout.fileno(), stderr.fileno()])
                os.close(source)
                self._requests.settimeout(timeout_s)
                status = int(self._requests.recv(16))
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)  # and what runs for it
                process.wait()
                self._process = None
                raise
            feeding.join()
            stdout.seek(0)
            stderr.seek(0)
            return subprocess.CompletedProcess(arguments, status, stdout.read(), stderr.read())

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", __file__, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
        return self._process


def _feed(sink: int, data: bytes) -> None:
    try:
        with open(sink, "wb", buffering=0) as pipe:
            rest = memoryview(data)
            while rest:
                rest = rest[pipe.write(rest) :]
    except BrokenPipeError:
        pass  # the command has not read all of it


def _serve(requests: socket.socket) -> None:
    import bkpy.cli.bookie
    import bkpy.cli.cluster
    import bkpy.cli.ledger
    import bkpy.cli.local
    import bkpy.cli.outcome
    import bkpy.client.client
    import bkpy.metadata.connect
    import bkpy.metadata.zookeeper.store  # noqa: F401 - for the runs

    while True:
        request, streams, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 3)
        if not request:
            return
        child = os.fork()
        if child == 0:
            requests.close()
            _run(*json.loads(request), streams)
        for fd in streams:
            os.close(fd)
        _, status = os.waitpid(child, 0)
        requests.send(b"%d" % os.waitstatus_to_exitcode(status))


def _run(arguments: list[str], env: dict[str, str], streams: list[int]) -> None:
    """Never returns."""
    from bkpy.cli import main

    for fd, stream in enumerate(streams):
        os.dup2(stream, fd)
        os.close(stream)
    os.environ.clear()
    os.environ.update(env)
    main(arguments)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
