"""One export at a time into one place, whatever file system that is: an ephemeral node in the cluster's metadata.

The node is named after the target and names its exporter. It is deleted when the exporter ends, or, if that dies, when
its session ends: nobody has to remove it.

A process that was stopped for longer than its session lives finds out only when it goes on, so the lock alone doesn't
prove that nobody else has written: the export looks at what is there in the end, too.
"""

from __future__ import annotations

import asyncio
import getpass
import hashlib
import json
import os
import posixpath
import re
import socket
import threading
import time
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, assert_never
from urllib.parse import unquote, urlsplit

from bkpy.config.client import ClientSettings
from bkpy.errors import BookKeeperError, ConfigError
from bkpy.metadata.connect import connect_store
from bkpy.metadata.store.outcome import Done, Exists, Missing, NotDone, Superseded, Unknown, to_error
from bkpy.metadata.store.resolve import create_certainly, ensure_path, read_if_there
from bkpy.metadata.store.store import Create, MetadataStore, SessionState
from bkpy.runtime.process import process_runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_DEFAULTS: Final = ClientSettings()
LOCKS: Final = "exports"
LOCK_VERSION: Final = 1

_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


def is_uri(to: str | Path) -> bool:
    """Whether this is a URI and not a path."""
    return _URI.match(str(to)) is not None


def normalised(to: str | Path) -> str:
    """One spelling for all those of a target: an absolute URI, for a local path with its symbolic links resolved."""
    parts = urlsplit(str(to))
    if not is_uri(to) or parts.scheme.lower() == "file":
        return Path(unquote(parts.path) if is_uri(to) else to).resolve().as_uri()
    path = posixpath.normpath("/" + parts.path.strip("/"))
    return f"{parts.scheme.lower()}://{parts.netloc.lower()}{path}"


class TargetLock:
    """The lock on a target, kept by a thread with a metadata session of its own."""

    def __init__(
        self,
        uri: str,
        to: str | Path,
        settings: ClientSettings = _DEFAULTS,
        *,
        session_timeout_s: float,
        connect_timeout_s: float,
    ) -> None:
        self._uri = uri
        self._to = to
        self._target = normalised(to)
        self._settings = settings
        self._session_timeout_s = session_timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._lost = threading.Event()
        self._on_loss: Callable[[], None] | None = None
        self._taken: Future[None] = Future()
        self._released: Future[None] = Future()

    @contextmanager
    def held(self) -> Iterator[TargetLock]:
        """Hold the lock for a while. Raises `ConfigError` at once if somebody else has it."""
        thread = threading.Thread(target=self._run, name="bkpy export lock", daemon=True)
        thread.start()
        try:
            self._taken.result()
            yield self
        finally:
            self._released.set_result(None)
            thread.join()

    @contextmanager
    def telling(self, on_loss: Callable[[], None]) -> Iterator[None]:
        """Meanwhile call `on_loss`, in another thread, when the lock is lost. Raises at the end if it was lost.

        In place of any error, which may come of it, but not of a signal that ends the process.
        """
        self._on_loss = on_loss
        try:
            self.check()
            yield
        except Exception:
            self.check()
            raise
        finally:
            self._on_loss = None
        self.check()

    def check(self) -> None:
        """Raise `BookKeeperError` if the lock was lost."""
        if self._lost.is_set():
            raise BookKeeperError(
                "the metadata session was lost, and with it the lock that keeps other exports out", path=str(self._to)
            )

    def _run(self) -> None:
        try:
            asyncio.run(self._hold())
        except BaseException as e:
            if self._taken.done():  # nobody waits for it any more, and without a session there is no lock
                self._lose()
            else:
                self._taken.set_exception(e)

    async def _hold(self) -> None:
        store, root = await connect_store(
            self._uri,
            process_runtime(),
            session_timeout_s=self._session_timeout_s,
            connect_timeout_s=self._connect_timeout_s,
            settings=self._settings,
            refused_timeout_s=None,  # it was there a moment ago, when the export was planned
        )
        try:
            forget = store.session_events.subscribe(self._on_state)
            await self._take(store, f"{root}/{LOCKS}")
            self._taken.set_result(None)
            await asyncio.wrap_future(self._released)
            forget()
        finally:
            await store.close()

    async def _take(self, store: MetadataStore, parent: str) -> None:
        node = f"{parent}/{hashlib.sha256(self._target.encode()).hexdigest()}"
        owner = {
            "version": LOCK_VERSION,
            "target": self._target,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "user": _user(),
            "since_ms": time.time_ns() // 1_000_000,
            "token": store.runtime.rng.randbytes(16).hex(),
        }
        attempts_max = ClientSettings().metadata_write_attempts_max
        above = await ensure_path(store, parent, attempts_max=attempts_max)
        if isinstance(above, NotDone):
            raise to_error(above)
        while True:
            ours = Create(node, json.dumps(owner).encode(), ephemeral=True)
            outcome = await create_certainly(store, ours, attempts_max=attempts_max)
            match outcome:
                case Done():
                    return
                case Exists() | Superseded() | Missing():
                    found = await read_if_there(store, node)
                    if found is not None:  # else it has just gone
                        raise self._refusal(found[0])
                case NotDone() | Unknown():  # a node that is there after all goes with the session
                    raise to_error(outcome)
                case _:
                    assert_never(outcome)

    def _refusal(self, data: bytes) -> ConfigError:
        who = "somebody"
        with suppress(ValueError, KeyError, TypeError):
            owner: dict[str, Any] = json.loads(data)
            since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(owner["since_ms"] / 1000))
            who = f"process {owner['pid']} of {owner['user']} on {owner['host']}, since {since}"
        return ConfigError(
            f"another export is writing there: {who}. (If it has died, its lock expires within seconds)",
            path=str(self._to),
        )

    def _on_state(self, state: SessionState) -> None:
        if state is SessionState.EXPIRED:
            self._lose()

    def _lose(self) -> None:
        self._lost.set()
        if self._on_loss is not None:
            with suppress(Exception):  # the session's own work has to go on
                self._on_loss()


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an id without a name
        return f"user {os.getuid()}"
