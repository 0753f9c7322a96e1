"""Run the unit tests, and a part of those of a cluster, on every Python that bkpy is for and that can be had here.

    python -m tests.pythons [--list] [--short] [INTERPRETER ...]    (from the source tree; `make test-pythons`)

Without arguments that is each of 3.11 to 3.14 on the PATH and under ~/.pyenv/versions, the newest of each minor
version, but for the one that runs this: on that all tests run anyway. Those that are not there come from Debian, where
it has them, by debootstrap into a directory in which the tests then run (chroot, in a mount namespace of its own): for
that one has to be root. What can't be had is named, and what it needs. Each gets an environment of its own in
build/pythons, which is kept (about 1.5 GB); `rm -rf build/pythons` gets them anew.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[1]
KEPT = SOURCE / "build/pythons"
MINORS = (11, 12, 13, 14)
# Of a cluster: processes, the command line, a session with ZooKeeper, failures.
CLUSTER = ("test_append_and_read", "test_bookie_process", "test_cli_process", "test_failover", "test_metadata_store")
WHOLE = ("tests/unit", *(f"tests/cluster/{name}.py" for name in CLUSTER))
# What depends on the interpreter the most, in some minutes.
SHORT = (
    *(f"tests/unit/{name}" for name in ("protocol", "client", "bookie", "storage/journal")),
    *(f"tests/cluster/{name}.py" for name in CLUSTER[:2]),
)
# Debian's suites by the minor version of their python3. No suite has 3.12.
SUITES = {11: "bookworm", 13: "trixie", 14: "testing"}
MIRROR = "http://deb.debian.org/debian"
_VERSION = "import sys; print(*sys.version_info[:3])"
_CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"
_FROM_HOST = ("etc/resolv.conf", "etc/hosts", "etc/pip.conf", _CERTIFICATES)  # so that pip works in there as here
# Mounts in a namespace of its own end with the command: nothing is left to be unmounted.
_INSIDE = """set -e
mount --bind "$2" "$1/mnt"
mount -t proc proc "$1/proc"
mount --rbind /sys "$1/sys"
mount --rbind /dev "$1/dev"
root="$1"
shift 2
exec chroot "$root" env -i -C /mnt HOME=/root LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"
"""


class Interpreter(NamedTuple):
    """Of this machine, or of the Debian system in `root`."""

    python: Path
    root: Path | None = None

    def words(self, *command: str) -> list[str]:
        """The command, to be run in the source tree, where this interpreter is."""
        if self.root is None:
            return list(command)
        return ["unshare", "--mount", "sh", "-c", _INSIDE, "sh", str(self.root), str(SOURCE), *command]

    def path(self, there: Path) -> str:
        """What a path in the source tree is called there."""
        return str(there if self.root is None else Path("/mnt") / there.relative_to(SOURCE))


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


def found() -> dict[int, Interpreter]:
    """The newest of each minor version on this machine, by that."""
    versions = sorted((version, path) for path in candidates() if (version := version_of(path)) is not None)
    return {version[1]: Interpreter(path) for version, path in versions if version[0] == 3 and version[1] in MINORS}


def missing_tools() -> str:
    """What is missing here to get a Python from Debian; nothing if it is empty."""
    tools = [name for name in ("debootstrap", "unshare", "chroot") if shutil.which(name) is None]
    needs = ["to be root"] if os.geteuid() else []
    return " and ".join([*needs, *tools])


def from_debian(minor: int) -> Interpreter | None:
    """That suite's python3, in a system of its own. None, with the reason said, if it can't be had."""
    suite, missing = SUITES.get(minor), missing_tools()
    if suite is None or missing:
        why = "no suite of Debian has it" if suite is None else f"to get it from Debian's {suite} this needs {missing}"
        print(f"Python 3.{minor} is not here: not tested ({why}; or give the path of one)", flush=True)
        return None
    root = KEPT / f"debian-{suite}"
    made = root / ".made"
    if not made.exists():
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        packages = "--include=python3,python3-venv,ca-certificates"
        print(f"Python 3.{minor}: getting Debian's {suite}", flush=True)
        subprocess.run(
            ["unshare", "--mount", "debootstrap", "--variant=minbase", packages, suite, str(root), MIRROR],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        for name in _FROM_HOST:
            if (Path("/") / name).exists():
                shutil.copy(Path("/") / name, root / name)
        made.touch()
    interpreter = Interpreter(Path("/usr/bin/python3"), root)
    done = subprocess.run(
        interpreter.words(str(interpreter.python), "-c", _VERSION), capture_output=True, text=True, check=True
    )
    if done.stdout.split()[:2] != ["3", str(minor)]:
        print(f"Python 3.{minor} is not here: not tested (Debian's {suite} has another by now)", flush=True)
        return None
    return interpreter


def environment(interpreter: Interpreter, minor: int) -> str:
    """Its Python, with bkpy and what its developers need."""
    to = KEPT / (f"3.{minor}" if interpreter.root is None else f"debian-3.{minor}")
    python = interpreter.path(to / "bin/python")
    made = to / ".made"
    if not made.exists() or made.stat().st_mtime < (SOURCE / "pyproject.toml").stat().st_mtime:
        subprocess.run(interpreter.words(str(interpreter.python), "-m", "venv", interpreter.path(to)), check=True)
        settings = ["--disable-pip-version-check", "--quiet"]
        if interpreter.root is not None:
            settings += ["--cert", f"/{_CERTIFICATES}"]
        source = f"{interpreter.path(SOURCE)}[dev]"
        pip = [python, "-m", "pip", "install", *settings, "--editable", source]
        subprocess.run(interpreter.words(*pip), cwd=SOURCE, check=True)
        made.touch()
    return python


def run(interpreter: Interpreter, minor: int, tests: tuple[str, ...], workers: int) -> bool:
    where = interpreter.python if interpreter.root is None else interpreter.root
    print(f"=== Python 3.{minor}: {where}", flush=True)
    python = environment(interpreter, minor)
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")}
    chosen = ["-m", "not exhaustive and not privileged", *tests]
    # Bytecode and caches are each interpreter's own: several may test this tree at once.
    command = interpreter.words(python, "-m", "pytest", "-q", "-n", str(workers), "-p", "no:cacheprovider", *chosen)
    return subprocess.run(command, cwd=SOURCE, env=clean, check=False).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("interpreters", nargs="*", metavar="INTERPRETER")
    parser.add_argument("--list", action="store_true", help="only say which are on the machine")
    parser.add_argument("--short", action="store_true", help="a smaller part of the tests")
    given = parser.parse_args()
    if given.interpreters:
        chosen: dict[int, Interpreter] = {}
        for interpreter in given.interpreters:
            version = version_of(interpreter)
            if version is None or version[0] != 3 or version[1] not in MINORS:
                parser.error(f"{interpreter} is no Python 3.{MINORS[0]} to 3.{MINORS[-1]} with its venv module")
            chosen[version[1]] = Interpreter(Path(interpreter))
    else:
        chosen = found()
        chosen.pop(sys.version_info.minor, None)
    if given.list:
        for minor, interpreter in sorted(chosen.items()):
            print(f"3.{minor}: {interpreter.python}")
        return 0
    if not given.interpreters:
        for minor in sorted(set(MINORS) - set(chosen) - {sys.version_info.minor}):
            debian = from_debian(minor)
            if debian is not None:
                chosen[minor] = debian
    tests, workers = (SHORT, 2) if given.short else (WHOLE, 4)  # beside other tests, or alone
    failed = [minor for minor, interpreter in sorted(chosen.items()) if not run(interpreter, minor, tests, workers)]
    if failed:
        print("tests fail on Python " + ", ".join(f"3.{minor}" for minor in failed))
    else:
        print(
            "tests pass on Python " + (", ".join(f"3.{minor}" for minor in sorted(chosen)) or "no other than this one")
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
