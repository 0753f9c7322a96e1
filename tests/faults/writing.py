"""A process that writes one ledger until it is killed or its writer fails, and logs what it is promised meanwhile.

    python -m tests.faults.writing URI FILE [LEDGER OPTIONS AS JSON]

The file is what `Promises.load` reads. If the writer fails, the process prints the error's class and exits with 3.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import bkpy
from bkpy.local.process import ManagedProcess, poll

from .load import Load
from .oracle import Promises

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[2]
WRITER_FAILED = 3
DEADLINE_S = 60.0


class WritingProcess:
    """Such a process, seen from another one. `prefix` is put before its command."""

    def __init__(self, directory: Path, uri: str, *, prefix: Sequence[str] = (), **options: object) -> None:
        self._prefix = prefix
        self.process = ManagedProcess(directory / "writing.log")
        self._uri = uri
        self._options = json.dumps(options)
        self._path = directory / "promises"

    def start(self) -> None:
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
        command = [sys.executable, "-m", "tests.faults.writing", self._uri, str(self._path), self._options]
        self.process.spawn([*self._prefix, *command], env={**os.environ, "PYTHONPATH": path})

    async def acknowledged(self, count: int) -> None:
        """Return when it has been promised that many entries."""

        async def enough() -> bool:
            assert self.process.running, self.process.log_tail()
            return self._path.exists() and self._path.read_bytes().count(b"\n") > count

        assert await poll(enough, DEADLINE_S), self.process.log_tail()

    async def failed(self) -> str:
        """Wait until its writer has failed; returns the error's class."""

        async def ended() -> bool:
            return not self.process.running

        assert await poll(ended, DEADLINE_S), self.process.log_tail()
        assert self.process.exit_status == WRITER_FAILED, self.process.log_tail()
        return self.process.log_tail().splitlines()[-1]

    def promises(self) -> Promises:
        return Promises.load(self._path)


async def write(uri: str, path: Path, options: dict[str, int]) -> int:
    async with bkpy.connect(uri, add_timeout_s=1.0) as client:
        load = Load(await client.create_ledger(**options))
        load.promises.log_to(path)
        load.start()
        error = await load.fails(deadline_s=None)
        print(type(error).__name__, flush=True)
        return WRITER_FAILED


if __name__ == "__main__":
    sys.exit(asyncio.run(write(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]))))
