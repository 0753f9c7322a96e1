"""The benchmarks name nothing of bkpy that is gone: no test runs all of them."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.mark.parametrize("script", sorted(BENCHMARKS.rglob("*.py")), ids=lambda path: str(path.relative_to(BENCHMARKS)))
def test_what_a_benchmark_imports_of_bkpy_is_there(script: Path) -> None:
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("bkpy"):
            continue
        assert node.module is not None
        module = importlib.import_module(node.module)
        for name in (alias.name for alias in node.names):
            assert hasattr(module, name) or importlib.util.find_spec(f"{node.module}.{name}"), (node.module, name)
