"""Runs the `bkpy` command, or a script, and writes down what it does: `recorded.py FILE BOOKIE-OR-NOTHING ARGUMENTS`.

Each step that `telling.py` tells, and each version of a ledger's metadata that the process has written or read, is
appended to the file as it happens, with the moment by the machine's clock that all processes share. What a process has
written before it was killed stays. `processes.py` reads the files of all processes.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import time
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

import msgpack

from bkpy.metadata.ledgers.layout import LONG_HIERARCHICAL
from bkpy.metadata.store.store import Create, Put
from bkpy.metadata.store.zookeeper.store import ZooKeeperStore
from tests.spec.telling import telling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tests.spec.telling import Listener

ROOT = "/ledgers/"  # of a local cluster
METADATA, STARTED = "metadata", "started"


class _Recorder:
    """A listener that writes all it is told."""

    def __init__(self, path: Path | str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *values: self.write(name, *values)

    def write(self, name: str, *values: object) -> None:
        os.write(self._file, msgpack.packb([time.monotonic_ns(), name, values]))

    def close(self) -> None:
        os.close(self._file)

    def seen(self, path: str, version: int, data: bytes) -> None:
        if path.startswith(ROOT) and (ledger_id := LONG_HIERARCHICAL.id_of(path.removeprefix(ROOT))) is not None:
            self.write(METADATA, ledger_id, version, bytes(data))


@contextlib.contextmanager
def recording(path: Path | str, bookie: str = "") -> Iterator[None]:
    """Meanwhile what this process does is written down."""
    recorder = _Recorder(path)
    create, get = ZooKeeperStore.create, ZooKeeperStore.get
    put, multi = ZooKeeperStore.put, ZooKeeperStore.multi

    async def seen_create(store: ZooKeeperStore, path: str, data: bytes, **options: bool) -> str:
        made = await create(store, path, data, **options)
        recorder.seen(made, 0, data)
        return made

    async def seen_get(store: ZooKeeperStore, path: str) -> tuple[bytes, int]:
        data, version = await get(store, path)
        recorder.seen(path, version, data)
        return data, version

    async def seen_put(store: ZooKeeperStore, path: str, data: bytes, expected_version: int) -> int:
        version = await put(store, path, data, expected_version)
        recorder.seen(path, version, data)
        return version

    async def seen_multi(store: ZooKeeperStore, operations: Sequence[Any]) -> list[str | int | None]:
        results = await multi(store, operations)
        for operation, result in zip(operations, results, strict=True):
            if isinstance(operation, Create):
                recorder.seen(operation.path, 0, operation.data)
            elif isinstance(operation, Put):
                recorder.seen(operation.path, cast("int", result), operation.data)
        return results

    if bookie:
        recorder.write(STARTED, bookie)
    with (
        contextlib.closing(recorder),
        patch.object(ZooKeeperStore, "create", seen_create),
        patch.object(ZooKeeperStore, "get", seen_get),
        patch.object(ZooKeeperStore, "put", seen_put),
        patch.object(ZooKeeperStore, "multi", seen_multi),
        telling(cast("Listener", recorder), lambda: bookie),
    ):
        yield


def main(path: str, bookie: str, *arguments: str) -> None:
    with recording(path, bookie):
        if arguments[0].endswith(".py"):
            sys.argv = [*arguments]
            runpy.run_path(arguments[0], run_name="__main__")
        else:
            sys.argv = ["bkpy", *arguments]
            runpy.run_module("bkpy", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
