"""`python -m tests.chaos --minutes 5 --seed 7`: a real cluster under faults, then every entry compared.

The run prints its seed and schedule, and a line of progress. It keeps its directory if anything is wrong. A Spark
stream takes part unless `--no-stream` is given.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tests.command import PRELOADED
from tests.hooks import children_started_by

from .run import Chaos, ChaosError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--no-stream", action="store_true")
    given = parser.parse_args()
    seed = random.randrange(1 << 31) if given.seed is None else given.seed
    directory = Path(tempfile.mkdtemp(prefix=f"bkpy-chaos-{seed}-"))
    print(f"seed {seed}, {given.minutes:g} minutes, in {directory}", flush=True)
    try:
        with children_started_by(PRELOADED.bookie):
            asyncio.run(_interruptible(Chaos(directory, seed, given.minutes * 60, streaming=not given.no_stream)))
    except ChaosError as error:
        print(f"\nseed {seed}: {error}\nall logs and directories are in {directory}", flush=True)
        return 1
    except asyncio.CancelledError:
        print(f"\ninterrupted; nothing was compared. Logs are in {directory}", flush=True)
        return 130
    except BaseException:
        print(f"\nseed {seed} ended with an error; all logs and directories are in {directory}", flush=True)
        raise
    shutil.rmtree(directory)
    return 0


async def _interruptible(chaos: Chaos) -> None:
    running = asyncio.ensure_future(chaos.run())
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    await running


if __name__ == "__main__":
    sys.exit(main())
