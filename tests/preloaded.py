"""A process that has loaded the `bkpy` command, and forks one that runs it for each request.

To load the command takes ten times as long as most commands take to run, and as long as a bookie takes for most tests.
Apart from that, each run is what a run of `python -m bkpy` is: a process of its own, in a session of its own, with its
arguments, environment, standard streams, output and exit status, and signals end it as they end any. Only what was
loaded isn't taken apart at its end.

A run of a command that starts a cluster forks a process that forks its bookies: they are loaded as well, and end when
the command does.

`Preloaded(packages)` loads an earlier version, and runs that one's bookies and clients. If the first argument is the
path of a script, a fork of either version runs the script instead of the command.

Invariants: no fork outlives the process that loaded the command, which ends with the one that runs the tests; a fork
that has ended keeps its process id until its exit status has been asked for.

Requests come one at a time, as JSON. To start a run: its arguments, environment and directory, with the descriptors of
its standard streams and of what else it is to inherit; the answer is its process id. For the exit status of one that
has ended: its process id; the answer is the status, minus the signal's number if one ended it.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn, Self

REQUEST_BYTES_MAX = 1 << 17
DESCRIPTORS_MAX = 16
IN_DIRECTORY = ("env", "-C")  # before a directory and a command
BOOKIE = (sys.executable, "-P", "-m", "bkpy", "bookie", "run")  # as a local cluster starts one
SMALL_JOURNAL = "--journal_max_size_mb=4"  # each file is allocated in full, and read back at a start
STARTS_CLUSTERS = frozenset({"bench", "local"})  # commands
CLOSED = -1  # in the place of a standard stream's descriptor
LOADED = (  # what runs load, most of it when they need it
    "aiofiles.tempfile",
    "bkpy.admin.bookie_pages",
    "bkpy.admin.client",
    "bkpy.admin.cluster_check",
    "bkpy.admin.ledger_description",
    "bkpy.bench.failures",
    "bkpy.bench.memory",
    "bkpy.bench.restarts",
    "bkpy.bench.workloads",
    "bkpy.bookie.admin.pages",
    "bkpy.bookie.identity",
    "bkpy.bookie.process",
    "bkpy.cli.bench",
    "bkpy.cli.bookie.drain",
    "bkpy.cli.bookie.gc",
    "bkpy.cli.bookie.group",
    "bkpy.cli.bookie.health",
    "bkpy.cli.bookie.identity",
    "bkpy.cli.bookie.integrity",
    "bkpy.cli.bookie.pages",
    "bkpy.cli.bookie.run",
    "bkpy.cli.bookie.scrub",
    "bkpy.cli.cluster.autorecovery",
    "bkpy.cli.cluster.group",
    "bkpy.cli.cluster.rebalance",
    "bkpy.cli.inspect",
    "bkpy.cli.ledger.accept_loss",
    "bkpy.cli.ledger.describe",
    "bkpy.cli.ledger.explain",
    "bkpy.cli.ledger.group",
    "bkpy.cli.ledger.write",
    "bkpy.cli.local",
    "bkpy.cli.log.describe",
    "bkpy.cli.log.group",
    "bkpy.cli.log.write",
    "bkpy.cli.output.errors",
    "bkpy.cli.several",
    "bkpy.client.client",
    "bkpy.client.connecting",
    "bkpy.local.cluster",
    "bkpy.local.supervisor",
    "bkpy.metadata.connect",
    "bkpy.metadata.store.zookeeper.store",
    "bkpy.replication.auto_recovery",
    "bkpy.runtime.metrics_page",
    "bkpy.storage.tools.inspect.entry_log",
    "bkpy.storage.tools.inspect.index",
    "bkpy.storage.tools.inspect.journal",
    "bkpy.storage.tools.inspect.ledger",
    "bkpy.storage.tools.inspect.marks",
    "bkpy.storage.wipe",
    "click._textwrap",
    "encodings.idna",  # names of hosts
    "encodings.utf_8_sig",
    "lmdb._envid",
    "pickle",
    "rich.progress",
    "rich.table",
    "rich.text",
)
SETTINGS = (
    "bkpy.config.bookie:BookieSettings",
    "bkpy.config.client:ClientSettings",
    "bkpy.config.recovery:RecoverySettings",
)
EARLIER = ("bkpy.bookie", "bkpy.client", "bkpy.metadata")  # packages that every version has, and loads most of
SCRIPT = ".py"
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


class Fork:
    """A run, with what `subprocess.Popen` has of it."""

    def __init__(self, preloaded: Preloaded, pid: int) -> None:
        self.pid = pid
        self.stdin: IO[bytes] | None = None  # the other ends of pipes
        self.stdout: IO[bytes] | None = None
        self.stderr: IO[bytes] | None = None
        self._preloaded = preloaded
        self._lock = threading.Lock()
        self._status: int | None = None
        self._pidfd = os.pidfd_open(pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:  # which may leave it running for ever
            self.kill()
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self.wait(None)

    @property
    def returncode(self) -> int | None:
        """The exit status, once it has been asked for."""
        return self._status

    def poll(self) -> int | None:
        """The exit status; None as long as it runs."""
        with self._lock:
            if self._status is None and self._has_ended(0):
                self._status = self._preloaded.status_of(self.pid)
                os.close(self._pidfd)
            return self._status

    def wait(self, timeout_s: float | None) -> int:
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

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def communicate(self, timeout: float | None = None) -> tuple[bytes, bytes]:
        """What it has still printed and complained of when it has ended: no more than pipes hold.

        `TimeoutError` if it runs longer.
        """
        self.wait(timeout)
        return (self.stdout.read() if self.stdout else b""), (self.stderr.read() if self.stderr else b"")

    def _has_ended(self, timeout_s: float | None) -> bool:
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))


class Preloaded:
    """The process, from the first run on. It ends when this one does.

    `packages`: those of an earlier version are in that directory. `requests`: one that runs serves them there.
    """

    def __init__(self, packages: Path | None = None, *, requests: socket.socket | None = None) -> None:
        self._packages = packages
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._requests = requests

    def start(
        self,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str],
        streams: Sequence[int],
        inherited: Sequence[int] = (),
        directory: str | None = None,
    ) -> Fork:
        """Start the command; `streams` are the descriptors of its standard input, output and error, or `CLOSED`.

        It inherits those, and copies of the descriptors `inherited`, and no others.
        """
        opened = [fd for fd in streams if fd != CLOSED]
        names = [name for name, fd in enumerate(streams) if fd != CLOSED]
        return Fork(self, self._ask([list(arguments), dict(env), directory, names], [*opened, *inherited]))

    def popen(
        self,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str],
        stdin: int | IO[bytes] = subprocess.DEVNULL,
        stdout: int | IO[bytes] = subprocess.PIPE,
        stderr: int | IO[bytes] = subprocess.PIPE,
    ) -> Fork:
        """Start the command with the streams that `subprocess.Popen` takes."""
        with contextlib.ExitStack() as theirs:
            streams: list[int] = []
            ours: list[IO[bytes] | None] = []
            for number, stream in enumerate((stdin, stdout, stderr)):
                ours.append(None)
                if stream == subprocess.PIPE:
                    reading, writing = os.pipe()
                    own, other = (writing, reading) if number == 0 else (reading, writing)
                    ours[-1] = os.fdopen(own, "wb" if number == 0 else "rb")
                    theirs.callback(os.close, other)
                    streams.append(other)
                elif stream == subprocess.DEVNULL:
                    streams.append(theirs.enter_context(open(os.devnull, "r+b", buffering=0)).fileno())
                else:
                    streams.append(stream if isinstance(stream, int) else stream.fileno())
            fork = self.start(arguments, env=env, streams=streams)
        fork.stdin, fork.stdout, fork.stderr = ours
        return fork

    def bookie(
        self, command: Sequence[str], *, log: IO[bytes], env: Mapping[str, str], pass_fds: Sequence[int]
    ) -> Fork | None:
        """The run, if it is one of a bookie, for which a local cluster gives this command, or that in some directory.

        Its journal files are small unless the cluster's settings give their size.
        """
        directory = None
        if tuple(command[: len(IN_DIRECTORY)]) == IN_DIRECTORY:
            directory, *command = command[len(IN_DIRECTORY) :]
        if tuple(command[: len(BOOKIE)]) != BOOKIE:
            return None
        arguments = [*command[BOOKIE.index("bookie") :]]
        if "journal_max_size_mb" not in Path(arguments[arguments.index("--config") + 1]).read_text():
            arguments.append(SMALL_JOURNAL)
        with open(os.devnull, "rb") as nothing:
            streams = [nothing.fileno(), log.fileno(), log.fileno()]
            return self.start(arguments, env=env, streams=streams, inherited=pass_fds, directory=directory)

    def script(
        self, command: Sequence[str], *, log: IO[bytes], env: Mapping[str, str], pass_fds: Sequence[int]
    ) -> Fork:
        """The run of a script, for which the command is this interpreter and the script's path and arguments."""
        with open(os.devnull, "rb") as nothing:
            streams = [nothing.fileno(), log.fileno(), log.fileno()]
            return self.start(command[1:], env=env, streams=streams, inherited=pass_fds)

    def run(
        self,
        arguments: Sequence[str],
        *,
        stdin: bytes,
        env: Mapping[str, str],
        timeout_s: float,
        directory: str | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run the command to its end. If it takes longer than it may, it is killed and that is a `TimeoutError`."""
        source, sink = os.pipe()
        feeding = threading.Thread(target=_feed, args=(sink, stdin))
        with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
            try:
                streams = [source, stdout.fileno(), stderr.fileno()]
                fork = self.start(arguments, env=env, streams=streams, directory=directory)
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
            if self._requests is None:
                self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                arguments, env = [str(theirs.fileno())], dict(os.environ)
                if self._packages is not None:
                    arguments.append("earlier")
                    env["PYTHONPATH"] = str(self._packages)
                with theirs:
                    self._process = subprocess.Popen(
                        [sys.executable, "-P", __file__, *arguments],
                        env=env,
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


def _load(*, earlier: bool) -> None:
    if earlier:
        importlib.import_module("bkpy.cli.bookie")
        for package in map(importlib.import_module, EARLIER):
            for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
                importlib.import_module(module.name)
    else:
        for name in LOADED:
            importlib.import_module(name)
        for place in SETTINGS:  # else each run would build the class when it reads its settings
            module, _, name = place.partition(":")
            getattr(importlib.import_module(module), name).model_rebuild()
        sys.path.insert(0, str(Path(__file__).parents[1]))
        importlib.import_module("tests.hooks")
        importlib.import_module("tests.zookeeper_classes")
        del sys.path[0]
    gc.collect()
    gc.freeze()  # a fork's collections neither look through what is loaded nor get copies of its pages by that


def _serve(requests: socket.socket) -> None:
    """Fork for requests until there are no more."""
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    own_pid = os.getpid()
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
            starts_cluster = not STARTS_CLUSTERS.isdisjoint(asked[0][:1])
            _run(*asked, fds, _fork_for_bookies(prctl, fds) if starts_cluster else None)
        for fd in fds:
            os.close(fd)
        requests.send(b"%d" % pid)


def _fork_for_bookies(prctl: Callable[..., int], fds: list[int]) -> Preloaded:
    """A process that forks bookies for this one, and ends when this one does; it has none of the descriptors."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    own_pid = os.getpid()
    if os.fork() == 0:
        prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == own_pid:
            for fd in (ours.detach(), *fds):
                os.close(fd)
            _serve(theirs)
        os._exit(0)
    theirs.close()
    return Preloaded(requests=ours)


def _run(
    arguments: list[str],
    env: dict[str, str],
    directory: str | None,
    names: list[int],
    fds: list[int],
    bookies: Preloaded | None,
) -> None:
    """Never returns."""
    from bkpy.cli import main

    os.setsid()
    if directory is not None:
        os.chdir(directory)
    for fd in range(3):
        os.close(fd)
    for name, fd in zip(names, fds, strict=False):
        os.dup2(fd, name)
        os.close(fd)
    _open_streams()
    if arguments[:2] != ["bookie", "run"]:  # which starts like one that a local cluster starts
        # As a terminal starts it: whoever runs the tests in the background may have them ignore the signal.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(env)
    try:
        with contextlib.ExitStack() as hooks:
            if "tests.hooks" in sys.modules:  # they need this version
                from tests.hooks import children_started_by, zookeepers_with
                from tests.zookeeper_classes import OPTIONS

                hooks.enter_context(children_started_by(bookies and bookies.bookie))
                hooks.enter_context(zookeepers_with(*OPTIONS))
            if arguments[:1] and arguments[0].endswith(SCRIPT):
                sys.argv = arguments
                runpy.run_path(arguments[0], run_name="__main__")
                sys.exit(0)
            main(arguments)
    except SystemExit as ending:
        if not isinstance(ending.code, int):
            raise
        _end(ending.code)


def _open_streams() -> None:
    """What the interpreter does at its start: what is a terminal is known from then on."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        loaded = getattr(sys, f"__{name}__")
        try:
            os.fstat(fd)
        except OSError:
            stream = None
        else:
            stream = os.fdopen(
                fd,
                "r" if name == "stdin" else "w",
                buffering=1 if name == "stderr" else -1,
                encoding=loaded.encoding,
                errors=loaded.errors,
                newline=None if name == "stdin" else "\n",
                closefd=False,
            )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _end(status: int) -> NoReturn:
    """What the interpreter does at its end, but for taking apart all that was loaded: that takes ten times as long."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    gc.collect()  # of which some tell that they were forgotten
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


if __name__ == "__main__":
    _load(earlier="earlier" in sys.argv[2:])
    _serve(socket.socket(fileno=int(sys.argv[1])))
