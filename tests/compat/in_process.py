"""The code of an earlier version beside today's, in one process: both can act in one simulated world.

Its modules are those of the wheel that is kept, under the name of a package of their own; their imports of `bkpy` are
renamed as they are loaded. What both versions take from the world stays today's: the errors, and what the metadata
store gives and raises.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.abc
import importlib.util
import sys
import zipfile
from typing import TYPE_CHECKING, Any

from .software import STATES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

SHARED = ("bkpy.errors", "bkpy.metadata.store.store")


class Earlier:
    """The modules of one version: `Earlier.of("0.2.0").module("bookie.node")`."""

    def __init__(self, version: str) -> None:
        self.package = f"bkpy_{version.replace('.', '_')}"
        (wheel,) = (STATES / version).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            sources = {name: archive.read(name) for name in archive.namelist() if name.startswith("bkpy/")}
        sys.meta_path.append(_Finder(self.package, sources))

    @classmethod
    @functools.cache
    def of(cls, version: str) -> Earlier:
        """Loaded once a process: two modules of the same name would not know each other's classes."""
        return cls(version)

    def module(self, name: str) -> Any:
        """The module `bkpy.NAME` of that version."""
        return importlib.import_module(f"{self.package}.{name}")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Finds and loads a version's modules from their sources, which are by path in the wheel."""

    def __init__(self, package: str, sources: dict[str, bytes]) -> None:
        self._package = package
        self._sources = sources

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != self._package:
            return None
        for is_package in (True, False):
            if self._path(fullname, is_package=is_package) in self._sources:
                return importlib.util.spec_from_loader(fullname, self, is_package=is_package)
        return None

    def get_source(self, fullname: str) -> str:
        path = self._path(fullname, is_package=True)
        return self._sources.get(path, self._sources.get(self._path(fullname, is_package=False), b"")).decode()

    def get_code(self, fullname: str) -> Any:
        tree = _Renaming(self._package).visit(ast.parse(self.get_source(fullname)))
        return compile(tree, f"<{fullname}>", "exec", dont_inherit=True)

    def _path(self, fullname: str, *, is_package: bool) -> str:
        below = fullname.removeprefix(self._package).replace(".", "/")
        return f"bkpy{below}/__init__.py" if is_package else f"bkpy{below}.py"


class _Renaming(ast.NodeTransformer):
    """Renames `bkpy` in imports, but for what is shared."""

    def __init__(self, package: str) -> None:
        self._package = package

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        if node.module is not None and node.module.partition(".")[0] == "bkpy" and node.module not in SHARED:
            node.module = self._package + node.module.removeprefix("bkpy")
        return node

    def visit_Import(self, node: ast.Import) -> ast.Import:
        assert not any(one.name.partition(".")[0] == "bkpy" for one in node.names), "such an import can't be renamed"
        return node
