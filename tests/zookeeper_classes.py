"""How tests start ZooKeeper: with an archive of the classes that it loads, beside the packages.

With it, a server starts in two thirds of the processor time. `make test` makes it. Java ignores one that belongs to
other jars, or to another Java. Tests kill servers and no machines, so what a server wrote needs no disk to outlive it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from bkpy.errors import BookKeeperError
from bkpy.local.zookeeper import ZooKeeperServer

ARCHIVE = Path(sys.prefix) / "zookeeper.jsa"
_LOGGING = "-Dlog4j2.loggerContextFactory=org.apache.logging.log4j.simple.SimpleLoggerContextFactory"  # same errors
OPTIONS = (f"-XX:SharedArchiveFile={ARCHIVE}", "-Dzookeeper.forceSync=no", _LOGGING)


async def make(archive: Path) -> None:
    """Write the archive; no server that starts meanwhile sees a part of it."""
    from tests.hooks import zookeepers_with

    with tempfile.TemporaryDirectory(dir=archive.parent, prefix="zookeeper-") as directory:
        unfinished = Path(directory) / archive.name
        with zookeepers_with(f"-XX:ArchiveClassesAtExit={unfinished}", _LOGGING):
            async with ZooKeeperServer(Path(directory) / "server"):
                pass
        os.replace(unfinished, archive)


if __name__ == "__main__":
    try:
        asyncio.run(make(ARCHIVE))
    except (BookKeeperError, OSError) as e:
        print(f"without an archive of ZooKeeper's classes: {e}", file=sys.stderr)
