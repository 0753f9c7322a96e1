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


# --- outcomes -------------------------------------------------------------------------------------------------------

RESOLVING = PACKAGE / "metadata" / "resolve.py"
OUTCOMES = [path for path in LAYERED if part_of(path) in {"metadata", "client", "bookie"} and path != RESOLVING]
# The writer's error, on its way to those who append: it was made there, and not told by a metadata store.
COPIES_ITS_OWN = {("client/appends.py", "_failure")}
STORE_WRITES = {"create", "put", "delete", "multi"}
CATALOG_WRITES = {"create", "write", "delete"}
RESOLVED_WRITES = {"attempt", "create_certainly", "put_certainly", "delete_certainly", "take_number", "ensure_path"}
CATCH_METADATA_ERRORS = {"MetadataUnavailableError", "ClusterError", "BookKeeperError", "Exception"}


def receiver(node: ast.AST) -> tuple[str, str]:
    """(`x`, `f`) for a call `a.x.f(...)`, without the underscores; empty for anything else."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return ast.unparse(node.func.value).rpartition(".")[2].lstrip("_"), node.func.attr
    return "", ""


def is_metadata_write(node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in RESOLVED_WRITES
    of, name = receiver(node)
    return of == "catalog" and name in CATALOG_WRITES


@pytest.mark.parametrize("path", OUTCOMES, ids=name_of)
def test_only_one_module_sends_writes_to_a_metadata_store(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    writes = [n.lineno for n in ast.walk(tree) if receiver(n)[0] == "store" and receiver(n)[1] in STORE_WRITES]
    assert not writes, f"{name_of(path)} must leave the writes in lines {writes} to metadata/resolve.py"


@pytest.mark.parametrize("path", OUTCOMES, ids=name_of)
def test_an_unknown_outcome_is_a_value(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            asked = [
                n.lineno
                for n in ast.walk(function)
                if isinstance(n, ast.Attribute) and n.attr == "outcome_unknown" and isinstance(n.ctx, ast.Load)
            ]
            allowed = (name_of(path), function.name) in COPIES_ITS_OWN
            assert allowed or not asked, f"{name_of(path)} must match an outcome, not ask an error, in lines {asked}"


@pytest.mark.parametrize("path", OUTCOMES, ids=name_of)
def test_nobody_learns_from_an_error_what_became_of_a_metadata_write(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Try):
            continue
        caught = {
            part.rpartition(".")[2]
            for handler in node.handlers
            if handler.type is not None
            for part in ast.unparse(handler.type).strip("()").replace("|", ",").replace(" ", "").split(",")
        }
        writes = [n.lineno for part in node.body for n in ast.walk(part) if is_metadata_write(n)]
        if caught & CATCH_METADATA_ERRORS:
            assert not writes, f"{name_of(path)}: line {node.lineno} catches what becomes of the writes in {writes}"


def test_the_rules_on_outcomes_find_what_they_look_for() -> None:
    writes = [n for n in ast.walk(ast.parse(RESOLVING.read_text(encoding="utf-8"))) if receiver(n)[0] == "store"]
    assert {receiver(n)[1] for n in writes} >= STORE_WRITES
    matched = [n for path in OUTCOMES for n in ast.walk(ast.parse(path.read_text("utf-8"))) if is_metadata_write(n)]
    assert len(matched) >= 10
