"""Plays seeds in a process of its own whose bkpy has one mutant in it, and prints a line of JSON for each.

SIGXCPU ends the process if a seed takes more than `HANGS_S` of processor time.

python -m tests.sim.planted.child "the mutant's name" everything 0 200 logs    # or "": without a mutant, of all plans
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import logging
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.mutants.planting import all_mutants, changed, locate

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, ModuleType

HANGS_S = 60
SOURCE = Path(__file__).parents[3] / "src"


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads the changed text of one module."""

    text = ""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.text.encode(), self.path)  # type: ignore[return-value]


class Finder:
    """Finds the one module that the mutant changes; Python finds all others."""

    def __init__(self, name: str) -> None:
        mutant = next(mutant for mutant in all_mutants() if mutant.name == name)
        place = locate(mutant, SOURCE)
        parts = place.path.relative_to(SOURCE).with_suffix("").parts
        self.module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        self.loader = _Loader(self.module, str(place.path))
        self.loader.text = changed(mutant, place)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.module:
            return None
        return importlib.util.spec_from_file_location(fullname, self.loader.path, loader=self.loader)


def main() -> None:
    name, run, first, count, feature = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
    assert not any(module.partition(".")[0] == "bkpy" for module in sys.modules), "bkpy is loaded without the mutant"
    if name:
        sys.meta_path.insert(0, Finder(name))
    from tests.sim.everything.plan import Plan
    from tests.sim.runs import Range, play

    logging.lastResort = None  # what runs do to bookies and clients makes them warn all the time
    for seed in range(first, first + count):
        began = time.process_time()
        resource.setrlimit(resource.RLIMIT_CPU, (int(began) + HANGS_S, resource.RLIM_INFINITY))
        plays = not feature or feature in Plan.draw(seed).features
        error = play(run, seed, Range()) if plays else None
        line = " ".join(f"{type(error).__name__}: {error}".split())[:200] if error is not None else None
        print(
            json.dumps({"seed": seed, "error": line, "seconds": time.process_time() - began, "plays": plays}),
            flush=True,
        )


if __name__ == "__main__":
    main()
