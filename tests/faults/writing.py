"""A process that writes one ledger until it is killed or its writer fails, and logs what it is promised meanwhile.

    PYTHONPATH=. python tests/faults/writing.py URI FILE [LEDGER OPTIONS AS JSON]

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
from tests.command import PRELOADED
from tests.faults.load import Load
from tests.faults.oracle import Promises
from tests.hooks import children_started_by

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[2]
WRITER_FAILED = 3
DEADLINE_S = 60.0
ADD_TIMEOUT_S = 5.0  # ends the wait for a silent bookie; none that only is on a busy machine takes so long


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
        command = [sys.executable, __file__, self._uri, str(self._path), self._options]
        with children_started_by(None if self._prefix else PRELOADED.script):
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
    async with bkpy.connect(uri, add_timeout_s=ADD_TIMEOUT_S) as client:
        load = Load(await client.create_ledger(**options))
        load.promises.log_to(path)
        load.start()
        error = await load.fails(deadline_s=None)
        print(type(error).__name__, flush=True)
        return WRITER_FAILED


if __name__ == "__main__":
    sys.exit(asyncio.run(write(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]))))
