"""The direction of imports, the purity of `protocol/` and the runtime seam, read from the source itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import bkpy

PACKAGE = Path(bkpy.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

BASE = {"errors", "runtime", "config"}

# What each layer may import, besides itself. A part that is not named here builds the real thing out of the layers, or
# stands outside them, and may import anything.
LAYERS = {
    "errors": set[str](),
    "runtime": {"errors"},
    "config": {"errors"},
    "protocol": {"errors"},
    "metadata": {"protocol", *BASE},
    "storage": {"metadata", "protocol", *BASE},
    "client": {"metadata", "protocol", *BASE},
    "bookie": {"storage", "metadata", "protocol", *BASE},
    "recovery": {"client", "metadata", "protocol", *BASE},
    "log": {"client", "metadata", "protocol", *BASE},
}

# Modules of the standard library that reach outside: clocks, files, randomness, threads, the network.
OUTSIDE = {
    "concurrent", "fcntl", "glob", "io", "multiprocessing", "os", "queue", "random", "secrets", "select", "selectors",
    "shutil", "socket", "subprocess", "tempfile", "threading", "time", "uuid",
}  # fmt: skip
LIBRARIES_OUTSIDE = {"aiofiles", "aiozk", "lmdb", "requests"}

# The seam itself, the adapter that speaks to ZooKeeper, the module that makes a bookie a process, the one that sets the
# kernel's options of a connection. Settings are read from a file before there is a runtime.
SEAM_EXEMPT = ("runtime.py", "config.py", "metadata/zookeeper/", "bookie/main.py", "bookie/sockets.py")

IMPURE = OUTSIDE | LIBRARIES_OUTSIDE | {"aiohttp", "asyncio", "contextvars", "datetime", "logging", "pathlib", "sys"}


def part_of(path: Path) -> str:
    """The layer's name: the first component below the package."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """The full names of what the module imports, anywhere in it, relative ones resolved."""
    here = ("bkpy", *path.relative_to(PACKAGE).parent.parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(here[: len(here) - node.level + 1]) if node.level else ""
            name = ".".join(filter(None, (base, node.module)))
            # `from bkpy import client` imports a module just as `import bkpy.client` does.
            yield from (f"{name}.{alias.name}" for alias in node.names)


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


LAYERED = [path for path in MODULES if part_of(path) in LAYERS]
SEALED = [path for path in LAYERED if not name_of(path).startswith(SEAM_EXEMPT)]
PURE = [path for path in MODULES if part_of(path) == "protocol"]


def test_the_layers_are_there() -> None:
    assert {"errors", "runtime", "config", "protocol", "metadata"} <= {part_of(path) for path in MODULES}
    assert PURE
    assert SEALED


@pytest.mark.parametrize("path", LAYERED, ids=name_of)
def test_imports_point_down(path: Path) -> None:
    allowed = LAYERS[part_of(path)] | {part_of(path)}
    own = [name for name in imports(path) if name.split(".")[0] == "bkpy" and name != "bkpy.__version__"]
    upwards = [name for name in own if name.split(".")[1] not in allowed]
    assert not upwards, f"{part_of(path)} may import {sorted(allowed)}, not {upwards}"


@pytest.mark.parametrize("path", SEALED, ids=name_of)
def test_nothing_reaches_around_the_runtime(path: Path) -> None:
    names = {name for name in imports(path) if name.split(".")[0] in OUTSIDE | LIBRARIES_OUTSIDE}
    assert not names, f"{name_of(path)} must take what it needs from a Runtime, not from {sorted(names)}"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    around = called & {"open", "print", "input", "datetime.now", "datetime.utcnow", "asyncio.to_thread", "asyncio.run"}
    around |= {name for name in called if name.endswith((".run_in_executor", ".create_task"))}
    assert not around, f"{name_of(path)} must not call {sorted(around)}"


@pytest.mark.parametrize("path", PURE, ids=name_of)
def test_the_protocol_is_pure(path: Path) -> None:
    impure = {name for name in imports(path) if name.split(".")[0] in IMPURE}
    assert not impure, f"{name_of(path)} imports {sorted(impure)}"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    asynchronous = [n.lineno for n in ast.walk(tree) if isinstance(n, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor)]
    assert not asynchronous, f"{name_of(path)} is asynchronous in lines {asynchronous}"
