"""Traces of real processes: each writes down what it does, and what all of them wrote is put in order."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack

from tests.hooks import children_started_by

from . import recorded
from .traces import Watch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def recorded_children(directory: Path) -> Iterator[None]:
    """Meanwhile the bookies and the scripts that this process starts write files to the directory."""
    directory.mkdir()
    numbers = itertools.count()

    def start(command: Sequence[str], *, env: Mapping[str, str] | None = None, **attributes: Any) -> Any:
        arguments = [*itertools.dropwhile(lambda word: word != "bookie" and not word.endswith(".py"), command)]
        if not arguments:
            return None  # a ZooKeeper
        bookie = ""
        if arguments[0] == "bookie":
            config = tomllib.loads(Path(arguments[arguments.index("--config") + 1]).read_text())
            bookie = str(config["bookie_id"])
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH", ""))))
        words = [sys.executable, "-P", recorded.__file__, str(directory / str(next(numbers))), bookie, *arguments]
        return usual(words, env={**(os.environ if env is None else env), "PYTHONPATH": path}, **attributes)

    with children_started_by(start) as usual:
        yield


def merged(directory: Path) -> Watch:
    """What was told to the recorded processes, in the order in which it happened.

    Who acts on a change of the metadata has written it or read it before; so it stands where the first of them had it.
    """
    steps = []
    for path in directory.iterdir():
        with open(path, "rb") as file:  # of a killed process, the last step may be torn
            steps += [(moment, path.name, name, values) for moment, name, values in msgpack.Unpacker(file)]
    watch = Watch()
    versions: dict[int, int] = {}
    for _, _, name, values in sorted(steps, key=lambda step: step[0]):
        if name == recorded.METADATA:
            ledger_id, version, data = values
            if version > (known := versions.get(ledger_id, -1)):
                assert version == known + 1, f"nobody has seen version {known + 1} of ledger {ledger_id}"
                versions[ledger_id] = version
                watch.written(ledger_id, data)
        else:
            getattr(watch, name)(*values)
    return watch
