"""A whole cluster on this machine, under one directory: a real ZooKeeper, and bookies that are processes of their own.

Invariants: one directory is used by one cluster at a time; a cluster that is started again on its directory finds its
data and, unless somebody took its ports meanwhile, serves at its old addresses; no process outlives the one that
started it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bkpy.bookie.cookie import storage_part
from bkpy.config.bookie import BookieSettings
from bkpy.config.loading import ENVIRONMENT_PREFIX, check_bookie_names, parse_text
from bkpy.config.shared import MetadataSettings
from bkpy.errors import BookieUnavailableError, ConfigError, NoSuchClusterError
from bkpy.local.process import (
    ManagedProcess,
    accepts_connections,
    free_port,
    full_disk_note,
    how_it_ended,
    poll,
    port_is_free,
)
from bkpy.local.zookeeper import ZooKeeperServer
from bkpy.metadata import paths
from bkpy.metadata.bookies.cookies import read_cookie
from bkpy.metadata.bookies.retired import read_retired
from bkpy.metadata.cluster import init_cluster, new_instance_id, open_cluster
from bkpy.metadata.connect import connect_store
from bkpy.metadata.store.store import MetadataStore, NoNode
from bkpy.runtime.os_errors import naming
from bkpy.runtime.process import process_runtime
from bkpy.storage.identity import COOKIE_NAME, Cookie, decode_cookie

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
    from types import TracebackType

LOCK_NAME = "lock"  # a file that the directory of every cluster has
_STATE_NAME = "cluster.json"
_HOST = "127.0.0.1"
_ROOT = "/ledgers"
_START_TIMEOUT_S = 120.0  # a bookie is ready in a second; replaying a large journal on a busy machine takes longer
_STOP_TIMEOUT_S = 60.0  # it finishes what is in flight and writes a checkpoint
_LOCK_TIMEOUT_S = 3.0  # the processes of a killed predecessor are gone much sooner
_SESSION_TIMEOUT_S = 10.0

_DIRECTORIES = {"journal_directories": ["journal"], "ledger_directories": ["ledgers"]}

# Settings that make a bookie part of this cluster; the others are the caller's.
_OWN_SETTINGS = ("bookie_id", "listen", "advertised_address", "metadata_uri")


class LocalBookie:
    """One bookie process of a local cluster."""

    def __init__(self, cluster: LocalCluster, bookie_id: str, port: int) -> None:
        self.id = bookie_id
        self.port = port
        self.directory = cluster.directory / bookie_id
        self._cluster = cluster
        self._process = ManagedProcess(self.directory / "bookie.log")

    @property
    def name(self) -> str:
        """Its name in messages: its id."""
        return self.id

    @property
    def address(self) -> str:
        """`host:port`, the same over all restarts."""
        return f"{_HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The process id, or None when the bookie does not run."""
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """How the last run ended: 0 after a clean stop, minus a signal's number; None if it has not."""
        return self._process.exit_status

    @property
    def log_path(self) -> Path:
        """The file with what all runs of the bookie have logged."""
        return self._process.log_path

    @property
    def config_path(self) -> Path:
        """The settings of the last run: `bkpy bookie run --config` starts the bookie with them."""
        return self.directory / "bookie.toml"

    async def start(self, *, rebuild: bool = False) -> None:
        """Start the bookie; returns when it is registered and serves at its address. No effect if it does already.

        `rebuild`: its directories may be empty, and it copies what it had from the other bookies. So they are if the
        cluster rebuilds bookies and any of them was deleted: what is left is put aside.
        `BookieUnavailableError` with the last lines of its log if it ends or is not ready within two minutes,
        `IdentityError` for one that was decommissioned.
        """
        async with self._cluster.metadata() as (store, root):
            registrations = [paths.available(root, self.id, read_only=flag) for flag in (False, True)]
            if not self._process.running:
                # The last run's registration outlives it by a session timeout and would be taken for this run's.
                for path in registrations:
                    with contextlib.suppress(NoNode):
                        await store.delete(path)
                known = await read_cookie(store, root, self.id)
                if known is None and (retired := await read_retired(store, root, self.id)) is not None:
                    retired.check_usable()
                tell = self._cluster.rebuild
                if tell is not None and known is not None and not self._cluster.of_bookkeeper:
                    rebuild |= self._put_aside(decode_cookie(storage_part(known[0]), self.id), tell)
                self._spawn(*(["--rebuild"] if rebuild else []))

            async def ready_or_dead() -> bool:
                if not self._process.running:
                    return True
                if not await accepts_connections(_HOST, self.port):
                    return False
                return await store.exists(registrations[0]) or await store.exists(registrations[1])

            in_time = await poll(ready_or_dead, _START_TIMEOUT_S)
        if in_time and self._process.running:
            return
        what = how_it_ended(self.exit_status) if in_time else f"was not ready in {_START_TIMEOUT_S:g} s"
        tail = self._process.log_tail()
        await self.kill()
        raise BookieUnavailableError(
            f"bookie {self.id} at {self.address} {what}{full_disk_note(self.log_path.parent)}; "
            f"last lines of its log:\n{tail}"
        )

    def _put_aside(self, cookie: Cookie, tell: Callable[[str], None]) -> bool:
        """Whether any of its directories was deleted; then the remaining ones get other names.

        For nobody can say what is whole there. One that is only in the settings is a new one.
        """
        directories = self._cluster.directories_of(self)
        lost = [path for path in directories if str(path) in cookie.paths and not (path / COOKIE_NAME).exists()]
        if not lost:
            return False
        tell(f"{self.id} has lost {', '.join(map(str, lost))}: it gets back what it had from the other bookies")
        for path in directories:
            if path.is_dir() and any(path.iterdir()):
                names = (path.with_name(f"{path.name}.lost-{number}") for number in itertools.count(1))
                aside = next(name for name in names if not name.exists())
                path.rename(aside)
                tell(f"what was left of it is in {aside}, and may be deleted when that is done")
        return True

    def _spawn(self, *flags: str) -> None:
        config = self._cluster.write_config(self)
        environment = {k: v for k, v in os.environ.items() if not k.startswith(ENVIRONMENT_PREFIX)}
        # -P: a file in the current directory must not take a module's place.
        command = [sys.executable, "-P", "-m", "bkpy", "bookie", "run", "--config", str(config), *flags]
        self._process.spawn(command, env=environment, pass_fds=self._cluster.lock_fds)

    async def stop(self) -> None:
        """SIGTERM, and wait for the end. `BookieUnavailableError` if it had to be killed after a minute."""
        if not await self._process.stop(_STOP_TIMEOUT_S):
            raise BookieUnavailableError(
                f"had to be killed, because it did not stop within {_STOP_TIMEOUT_S:g} s", bookie=self.id
            )

    async def kill(self) -> None:
        """SIGKILL, and wait until the process is gone."""
        await self._process.kill()

    def suspend(self) -> None:
        """SIGSTOP: connections stay open and nothing is answered."""
        self._process.suspend()

    def resume(self) -> None:
        """SIGCONT."""
        self._process.resume()


class LocalCluster:
    """A ZooKeeper and `bookies` bookies in `directory`, which is created if it does not exist.

    A directory that was used before keeps its bookies, except for decommissioned ones, and gets more of them if there
    are fewer than `bookies`. ZooKeeper listens at `port`; without one, at its former port, or at any free one. `config`
    has settings of all bookies by name (directories are relative to the bookie's own, in a list or with commas between
    them; None: the default). An unknown one, one that the cluster decides on, and a directory that several bookies
    would share, is a `ConfigError`. With `rebuild`, a bookie whose directories were deleted
    copies back what it held from the others, and `rebuild` is called with a line about that; without, such a bookie
    doesn't start. Use it as `async with LocalCluster(...) as cluster`, or call `start` and `stop`. No part of it is
    bound to an event loop, and its bookies are the same objects when it is stopped and started again.
    """

    directory: Path
    """Data and logs of the cluster."""
    zookeeper: ZooKeeperServer
    """Its ZooKeeper: `start`, `stop`, `kill`, `port`, `log_path`."""
    bookies: list[LocalBookie]
    """Its bookies: each with `id`, `address`, `pid`, `start`, `stop`, `kill`, `suspend`, `resume` and `log_path`."""
    retired: list[str]
    """Ids of decommissioned bookies, which are no part of the cluster any more."""
    moved: dict[str, int]
    """By name, the former port of a process that had to take another one."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        bookies: int = 3,
        config: Mapping[str, Any] | None = None,
        *,
        port: int | None = None,
        rebuild: Callable[[str], None] | None = None,
    ) -> None:
        self.rebuild = rebuild
        self.directory = Path(directory).absolute()
        self.zookeeper = ZooKeeperServer(self.directory / "zookeeper", port=0)
        self.bookies = []
        self.retired = []
        self.lock_fds: tuple[int, ...] = ()
        self.moved = {}
        self._port = port
        self._bookies_wanted = bookies
        self._config = {name: value for name, value in (config or {}).items() if value is not None}
        for name in _DIRECTORIES:
            given = self._config.get(name, [])
            if isinstance(given, str):
                self._config[name] = parse_text(BookieSettings, name, given, "config")
            elif not isinstance(given, list | tuple) or not all(isinstance(one, str | os.PathLike) for one in given):
                raise ConfigError(f"config: {name} must be a list of directories, not {given!r}")
        if bookies < 0:
            raise ConfigError(f"a cluster can't have {bookies} bookies")
        if port is not None and not 0 < port < 65536:
            raise ConfigError(f"{port} is no port that ZooKeeper could listen at")
        for name in _OWN_SETTINGS:
            if name in self._config:
                raise ConfigError(f"config: {name} is chosen by the cluster")
        check_bookie_names(config or {}, "config")

    @property
    def connect_string(self) -> str:
        """What `bkpy.connect` takes. Set once the cluster has been started."""
        return f"zk://{self.zookeeper.connect_string}{_ROOT}"

    async def start(self) -> None:
        """Start whatever does not run, and return when all of it serves.

        Raises `ConfigError` if the directory is in use or Java is missing, and `BookieUnavailableError` or
        `MetadataUnavailableError` with the last lines of a log if a process does not come up. Then, and when it is
        cancelled, it leaves nothing running.
        """
        try:
            if not self.lock_fds:
                if not (self.directory / LOCK_NAME).exists():
                    self._check_port()  # before anything is left in the directory
                await self._lock()
                self._restore()
            await self.zookeeper.start()
            async with self.metadata() as (store, root):
                try:
                    cluster = await open_cluster(store, root, of_bookkeeper=True)
                except NoSuchClusterError:
                    await self._init(store, root)
                else:
                    self._check_protocol("bookkeeper" if cluster.of_bookkeeper else "bkpy")
                await self._leave_out_retired(store, root)
            await _all(*(bookie.start() for bookie in self.bookies))
        except BaseException:
            await self.kill()
            raise

    @property
    def of_bookkeeper(self) -> bool:
        """Whether its bookies are for Apache BookKeeper's clients. Known once the cluster has been started."""
        return self._config.get("protocol") == "bookkeeper"

    async def _init(self, store: MetadataStore, root: str) -> None:
        if not self.of_bookkeeper:
            await init_cluster(store, root)
            return
        try:
            from bkpy.metadata.bookkeeper.cluster import init_bookkeeper_cluster
        except ModuleNotFoundError as error:
            raise ConfigError(f"protocol = bookkeeper needs {error.name}: install bkpy[bookkeeper]") from error
        attempts_max = MetadataSettings().metadata_write_attempts_max
        await init_bookkeeper_cluster(store, root, new_instance_id(store), attempts_max=attempts_max)

    def _check_protocol(self, protocol: str) -> None:
        """A directory keeps the protocol of its first use."""
        if self._config.setdefault("protocol", protocol) != protocol:
            raise ConfigError(f"the cluster in {self.directory} has protocol = {protocol}: choose another directory")

    async def stop(self) -> None:
        """Stop the bookies, then ZooKeeper; what does not stop in time is killed, all if it is cancelled.

        The data stay.
        """
        try:
            await _all(*(bookie.stop() for bookie in self.bookies))
            await self.zookeeper.stop()
        finally:
            await self.kill()

    async def kill(self) -> None:
        """SIGKILL to everything, also if it is cancelled. The data stay, and `start` finds them."""
        await _all(*(bookie.kill() for bookie in self.bookies), self.zookeeper.kill())
        for fd in self.lock_fds:
            os.close(fd)
        self.lock_fds = ()

    async def add_bookie(self) -> LocalBookie:
        """One more bookie, started; it stays part of the cluster when that is started again.

        Also if the call is cancelled.
        """
        bookie = self._new_bookie()
        self._save()
        await bookie.start()
        return bookie

    async def __aenter__(self) -> LocalCluster:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @contextlib.asynccontextmanager
    async def metadata(self) -> AsyncIterator[tuple[MetadataStore, str]]:
        """A session of its own with the cluster's metadata: (store, root)."""
        store, root = await connect_store(self.connect_string, process_runtime(), session_timeout_s=_SESSION_TIMEOUT_S)
        try:
            yield store, root
        finally:
            await store.close()

    def write_config(self, bookie: LocalBookie) -> Path:
        """Write the bookie's settings to its file, and return the file's path."""
        settings: dict[str, Any] = {
            **_DIRECTORIES,
            **self._config,
            "bookie_id": bookie.id,
            "listen": bookie.address,
            "metadata_uri": self.connect_string,
        }
        for name in _DIRECTORIES:
            for directory in settings[name]:
                if os.path.isabs(directory) and len(self.bookies) > 1:
                    raise ConfigError(
                        f"config: {name} has {directory}, which all bookies would share; name it relative to each "
                        "bookie's directory"
                    )
            settings[name] = [str(bookie.directory / directory) for directory in settings[name]]
        bookie.directory.mkdir(parents=True, exist_ok=True)
        bookie.directory.chmod(0o700)
        path = bookie.config_path
        # A JSON string, number, or list of strings is also a TOML one, but for escaped pairs of surrogates.
        lines = (f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in settings.items())
        text = "".join(lines).replace("\x7f", "\\u007f")  # which JSON may have as it is, and TOML may not
        with naming(path):
            path.write_text(text, encoding="utf-8", errors="surrogateescape")
        return path

    def directories_of(self, bookie: LocalBookie) -> list[Path]:
        """Where the bookie's files are: journals, then ledgers."""
        given = {**_DIRECTORIES, **self._config}
        return [bookie.directory / directory for name in _DIRECTORIES for directory in given[name]]

    async def _lock(self) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            fd = os.open(self.directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as e:
            raise ConfigError(f"a cluster can't be kept in {self.directory}: {e.strerror}") from e

        async def locked() -> bool:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

        if not await poll(locked, _LOCK_TIMEOUT_S):
            os.close(fd)
            raise ConfigError(f"another process runs a cluster in {self.directory}")
        # The children inherit the lock: it is free when all of them are gone, even if this process was killed.
        self.lock_fds = (fd,)
        self.zookeeper.pass_fds = self.lock_fds

    def _restore(self) -> None:
        """Take up the ports and bookies of the directory's last use, and choose other ports for taken ones."""
        path = self.directory / _STATE_NAME
        try:
            state = json.loads(path.read_text())
        except FileNotFoundError:
            state = {"zookeeper_port": None, "bookies": {}}
        except ValueError as e:
            raise ConfigError(
                f"the file of the cluster's ports is damaged: {e}. Remove it, and ask for as many bookies as there are "
                "directories of bookies: they keep their data, and get other ports",
                path=str(path),
            ) from e
        self._check_port()
        known = {bookie.id: bookie for bookie in self.bookies}  # a cluster that is started again keeps its objects
        self.moved, self.bookies, self.zookeeper.port = {}, [], self._port or 0
        if self._port is None:
            self.zookeeper.port = self._usable(self.zookeeper.name, state["zookeeper_port"])
        for bookie_id, port in state["bookies"].items():
            bookie = known.get(bookie_id) or LocalBookie(self, bookie_id, port)
            bookie.port = self._usable(bookie_id, port)
            self.bookies.append(bookie)
        self.retired = state.get("retired", [])
        self._fill_up()

    async def _leave_out_retired(self, store: MetadataStore, root: str) -> None:
        """Take bookies that were decommissioned out of `bookies`. They don't start again; their directories stay."""
        for bookie in self.bookies.copy():
            if await read_cookie(store, root, bookie.id) is None:
                retired = await read_retired(store, root, bookie.id)
                if retired is not None and retired.decommissioned:
                    self.bookies.remove(bookie)
                    self.retired.append(bookie.id)
        self._fill_up()

    def _fill_up(self) -> None:
        """Add bookies until there are as many as the caller wants."""
        while len(self.bookies) < self._bookies_wanted:
            self._new_bookie()
        self._save()

    def _check_port(self) -> None:
        if self._port is not None and not port_is_free(self._port):
            raise ConfigError(f"port {self._port}, given for ZooKeeper, is taken")

    def _usable(self, name: str, port: int | None) -> int:
        """The port, or another one if there is none or it was taken meanwhile."""
        if port is None:
            return self._free_port()
        if port not in self._ports() and port_is_free(port):
            return port
        self.moved[name] = port
        return self._free_port()

    def _free_port(self) -> int:
        return free_port(self._ports())

    def _ports(self) -> list[int]:
        return [self.zookeeper.port, *(bookie.port for bookie in self.bookies)]

    def _new_bookie(self) -> LocalBookie:
        used = {*(bookie.id for bookie in self.bookies), *self.retired}
        names = (f"bookie-{number}" for number in itertools.count(1))
        bookie = LocalBookie(self, next(name for name in names if name not in used), self._free_port())
        self.bookies.append(bookie)
        return bookie

    def _save(self) -> None:
        state = {
            "zookeeper_port": self.zookeeper.port,
            "bookies": {bookie.id: bookie.port for bookie in self.bookies},
            "retired": self.retired,
        }
        path = self.directory / _STATE_NAME
        unfinished = path.with_suffix(".json.new")
        with naming(path), unfinished.open("w") as file:
            file.write(json.dumps(state, indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())  # otherwise a power cut may leave an empty file under the name
        os.replace(unfinished, path)


async def _all(*steps: Coroutine[Any, Any, None]) -> None:
    """Run the steps at once and wait for all of them, whatever happens to some; then raise the first error."""
    results = await asyncio.gather(*steps, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
