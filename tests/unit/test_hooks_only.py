"""What is private to the code is named by one module of the tests, `tests/hooks.py`: the code may be arranged anew."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

TESTS = Path(__file__).parents[1]
HOOKS = TESTS / "hooks.py"
MUTANTS = TESTS / "mutants"  # defects, given as text of the code

PRIVATE = re.compile(r"_[A-Za-z]\w*(?<!__)")
PATH = re.compile(r"bkpy\.[\w.]*\._[A-Za-z]\w*")  # as `monkeypatch.setattr` takes it
# What may be a private name of another object: an attribute, an import, a text. Cheaper than to parse all modules.
MENTIONED = re.compile(r"(?:\.\s*|[\"'])(_[A-Za-z]\w*)(?<!__)|\bimport\b[^#\n]*?\b_[A-Za-z]|^ {4}_[A-Za-z]\w*,$", re.M)
OWN = re.compile(r"^\s*(?:async )?(?:def|class) (_\w+)|^\s*(?:self|cls)\.(_\w+)(?:: [^=\n]+)? = ", re.M)
BY_NAME = {"__setattr__", "attrgetter", "delattr", "getattr", "hasattr", "object", "patch", "setattr"}
LOOKED_AT = (
    ast.Attribute,
    ast.ImportFrom,
    ast.Call,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.AnnAssign,
)
NAMED_TUPLE = {"_asdict", "_fields", "_make", "_replace"}  # public, by its documentation

# Of the standard library. A loop and a transport can't be made without what asyncio's own share among themselves.
EXCEPTIONS = {
    "preloaded.py": {"_exit", "_run_exitfuncs", "_shutdown"},  # what the interpreter does at its end
    "sim/loop.py": {
        *("_check_closed", "_closed", "_ready", "_stopping", "_thread_id"),  # of `BaseEventLoop`
        "_log_destroy_pending",  # of tasks
    },
    "sim/transport.py": {
        *("_FlowControlMixin", "_loop", "_maybe_pause_protocol", "_maybe_resume_protocol", "_protocol_paused"),
    },
    "unit/client/test_threads.py": {
        "_exit",
        "_set_running_loop",
    },  # a forked process ends, and borrows its parent's loop
    "unit/local/test_free_ports.py": {"_exit"},
    "unit/storage/tools/inspect/test_inspect.py": {"_exit"},
}


def own_names(nodes: Iterable[ast.AST]) -> set[str]:
    """What the module's functions and classes are called, and the attributes that its classes give to themselves."""
    own = set()
    for node in nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                own.add(name)
            case ast.Attribute(value=ast.Name("self" | "cls"), attr=name, ctx=ast.Store()):
                own.add(name)
            case ast.AnnAssign(target=ast.Name(name)):
                own.add(name)
    return own


def names_of(node: ast.AST) -> Iterator[str]:
    """The private names by which a part of a module takes something of another one."""
    match node:
        case ast.Attribute(attr=name):
            yield from [name] if PRIVATE.fullmatch(name) else []
        case ast.ImportFrom(names=aliases):
            yield from (alias.name for alias in aliases if PRIVATE.fullmatch(alias.name))
        case ast.Call(func=ast.Name(called) | ast.Attribute(attr=called), args=args) if called in BY_NAME:
            texts = (arg.value for arg in args if isinstance(arg, ast.Constant) and isinstance(arg.value, str))
            yield from (text.rpartition(".")[2] for text in texts if PRIVATE.fullmatch(text) or PATH.fullmatch(text))


def mentions(source: str) -> bool:
    """Whether the text may have a private name that is not the module's own."""
    own = {name for names in OWN.findall(source) for name in names} | NAMED_TUPLE
    return any(name not in own for name in MENTIONED.findall(source))


def reaches(source: str) -> dict[str, int]:
    """The private names that a module takes of others, each with the first line."""
    if not mentions(source):
        return {}
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, LOOKED_AT)]
    found = [(node.lineno, name) for node in nodes for name in names_of(node)]
    own = own_names(nodes) | NAMED_TUPLE
    return {name: line for line, name in sorted(found, reverse=True) if name not in own}


@pytest.mark.thorough
def test_no_test_reaches_into_an_object_but_through_a_hook() -> None:
    found = {
        str(path.relative_to(TESTS)): names
        for path in sorted(TESTS.rglob("*.py"))
        if path != HOOKS and MUTANTS not in path.parents and (names := reaches(path.read_text()))
    }
    assert {path: set(names) for path, names in found.items()} == EXCEPTIONS, found


@pytest.mark.parametrize(
    "source",
    [
        "writer._field",
        "class Slow(Writer):\n    def add(self): self._field",
        "client.pool._channels[0].up",
        "store._field = 1",
        "from bkpy.storage.open import _check",
        'monkeypatch.setattr(Writer, "_field", None)',
        'monkeypatch.setattr("bkpy.client.client._warn", None)',
    ],
)
def test_a_reach_is_noticed(source: str) -> None:
    assert len(reaches(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "class Own:\n    def __init__(self, other):\n        self._field = other._field",
        "class Own:\n    def _turn(self, other):\n        other._turn()",
        "value._replace(length=1)",
        "type(value).__name__",
        'text.startswith("_")',
    ],
)
def test_what_is_the_modules_own_or_public_is_no_reach(source: str) -> None:
    assert not reaches(source)
