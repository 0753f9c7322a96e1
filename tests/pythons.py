"""Run the unit tests, and a part of those of a cluster, on every Python that bkpy is for and that is on this machine.

    python -m tests.pythons [--list] [INTERPRETER ...]    (from the source tree; `make test-pythons`)

Without arguments that is each of 3.11 to 3.14 on the PATH and under ~/.pyenv/versions, the newest of each minor
version, but for the one that runs this: on that all tests run anyway. Those that are not there are named. Each gets
an environment of its own in build/pythons, which is kept (about 1 GB).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[1]
MINORS = (11, 12, 13, 14)
# Of a cluster: processes, the command line, a session with ZooKeeper, failures.
CLUSTER = ("test_append_and_read", "test_bookie_process", "test_cli_process", "test_failover", "test_metadata_store")
_VERSION = "import sys; print(*sys.version_info[:3])"


def version_of(interpreter: str | Path) -> tuple[int, int, int] | None:
    """None if it is not there, doesn't run, or has no venv module."""
    code = f"import ensurepip, ssl; {_VERSION}"
    try:
        done = subprocess.run([str(interpreter), "-c", code], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    major, minor, patch = map(int, done.stdout.split())
    return major, minor, patch


def candidates() -> list[Path]:
    on_path = [shutil.which(f"python3.{minor}") for minor in MINORS]
    own = sorted((Path.home() / ".pyenv/versions").glob("3.*/bin/python"))
    return [*map(Path, filter(None, on_path)), *own]


def found() -> dict[int, Path]:
    """The newest of each minor version, by that."""
    versions = sorted((version, path) for path in candidates() if (version := version_of(path)) is not None)
    return {version[1]: path for version, path in versions if version[0] == 3 and version[1] in MINORS}


def environment(interpreter: Path, minor: int) -> Path:
    """Its Python, with bkpy and what its developers need."""
    to = SOURCE / f"build/pythons/3.{minor}"
    python = to / "bin/python"
    made = to / ".made"
    if not made.exists() or made.stat().st_mtime < (SOURCE / "pyproject.toml").stat().st_mtime:
        subprocess.run([str(interpreter), "-m", "venv", str(to)], check=True)
        pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--quiet", "--editable"]
        subprocess.run([*pip, f"{SOURCE}[dev]"], check=True)
        made.touch()
    return python


def run(interpreter: Path, minor: int) -> bool:
    print(f"=== Python 3.{minor}: {interpreter}", flush=True)
    python = environment(interpreter, minor)
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")}
    tests = ["tests/unit", *(f"tests/cluster/{name}.py" for name in CLUSTER)]
    command = [str(python), "-m", "pytest", "-q", "-n", "4", "-m", "not exhaustive and not privileged", *tests]
    return subprocess.run(command, cwd=SOURCE, env=clean, check=False).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("interpreters", nargs="*", metavar="INTERPRETER")
    parser.add_argument("--list", action="store_true", help="only say which there are")
    given = parser.parse_args()
    if given.interpreters:
        chosen: dict[int, Path] = {}
        for interpreter in given.interpreters:
            version = version_of(interpreter)
            if version is None or version[0] != 3 or version[1] not in MINORS:
                parser.error(f"{interpreter} is no Python 3.{MINORS[0]} to 3.{MINORS[-1]} with its venv module")
            chosen[version[1]] = Path(interpreter)
    else:
        chosen = found()
        for minor in sorted(set(MINORS) - set(chosen)):
            print(f"Python 3.{minor} is not here: not tested")
        chosen.pop(sys.version_info.minor, None)
    if given.list:
        for minor, path in sorted(chosen.items()):
            print(f"3.{minor}: {path}")
        return 0
    failed = [minor for minor, path in sorted(chosen.items()) if not run(path, minor)]
    if failed:
        print("tests fail on Python " + ", ".join(f"3.{minor}" for minor in failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
