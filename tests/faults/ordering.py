"""A service that appends numbered orders to a log, until it is killed: with time-outs, repeats, and the log taken back.

    python tests/faults/ordering.py URI LOG FILE

Order n is `b"order n"`. FILE gets a line for each acknowledgement: the number and the position.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import bkpy
from bkpy.local.process import ManagedProcess
from tests.command import PRELOADED
from tests.hooks import children_started_by

if TYPE_CHECKING:
    from typing import TextIO

ROOT = Path(__file__).parents[2]
PRODUCER = "orders-service"
AT_ONCE = 20
TIME_OUT_S = 0.02  # some appends take longer, and are repeated
BACK_S = 0.3  # after another process has taken the log


class OrderingProcess:
    """Such a process, seen from another one."""

    def __init__(self, directory: Path, name: str, uri: str, log: str) -> None:
        self.process = ManagedProcess(directory / f"{name}.log")
        self._arguments = [uri, log, str(directory / name)]
        self._path = directory / name

    def start(self) -> None:
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
        with children_started_by(PRELOADED.script):
            self.process.spawn([sys.executable, __file__, *self._arguments], env={**os.environ, "PYTHONPATH": path})

    def acknowledged(self) -> list[tuple[int, int]]:
        """The numbers and positions of all acknowledgements; one of a number may come more than once."""
        if not self._path.exists():
            return []
        lines = self._path.read_text(encoding="ascii").split("\n")[:-1]  # a last line may be cut
        return [(int(number), int(position)) for number, position in map(str.split, lines)]


async def serve(uri: str, name: str, out: TextIO) -> None:
    async with bkpy.connect(uri, client_name="orders") as client:
        while True:
            try:
                log = await client.open_log(name, create=True, producer=PRODUCER, roll_entries=200)
                await write(log, out)
            except bkpy.BookKeeperError as error:
                print(f"{type(error).__name__}: {error}", flush=True)
                await asyncio.sleep(BACK_S)


async def write(log: bkpy.LogWriter, out: TextIO) -> None:
    """Append orders, a few at once, until an append fails."""
    following = log.last_sequence + 1
    while True:
        # The last ones again: their answers may never have got to anybody.
        numbers = range(max(0, following - AT_ONCE // 2), following + AT_ONCE)
        await asyncio.gather(*(order(log, number, out) for number in numbers))
        following = numbers.stop


async def order(log: bkpy.LogWriter, number: int, out: TextIO) -> None:
    """Append one order, and repeat it as long as that takes too long."""
    while True:
        try:
            async with asyncio.timeout(TIME_OUT_S):
                position = await log.append(b"order %d" % number, sequence=number)
        except TimeoutError:
            continue
        out.write(f"{number} {position}\n")
        out.flush()
        return


if __name__ == "__main__":
    with Path(sys.argv[3]).open("a", encoding="ascii") as file:
        asyncio.run(serve(sys.argv[1], sys.argv[2], file))
