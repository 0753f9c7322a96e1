"""What users get of the exported classes is what the documentation lists: neither more, nor less."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from typing import TYPE_CHECKING

import pytest
from tests import api_page, blocking_calls

import bkpy
from bkpy.local import LocalCluster

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncGenerator


def assigned(cls: type) -> set[str]:
    """The attributes of `self` that the methods of the class assign."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
    }


def public(cls: type) -> set[str]:
    """The names of the class and of its instances that have no leading underscore, those of its own bases included."""
    own = [base for base in cls.__mro__ if base.__module__ not in ("builtins", "collections.abc", "typing")]
    names = {name for base in own for name in {*vars(base), *inspect.get_annotations(base), *assigned(base)}}
    return {name for name in names if not name.startswith("_")}


@pytest.mark.thorough
def test_the_page_is_current() -> None:
    text = api_page.PAGE.read_text(encoding="utf-8")
    assert api_page.page(text) == text, "make settings writes it again"


@pytest.mark.parametrize("cls", api_page.CLASSES, ids=lambda cls: cls.__name__)
def test_the_page_has_every_public_name_and_what_it_is(cls: type) -> None:
    described = api_page.attributes(cls) | {name: inspect.getdoc(function) for name, function in api_page.calls(cls)}
    assert [name for name, doc in described.items() if not doc] == [], "write a docstring, or a text below the field"
    assert public(cls) == described.keys() | api_page.HIDDEN.get(cls, set()), "make it private, or hide it"


def test_the_page_has_everything_that_the_package_offers() -> None:
    offered = {getattr(bkpy, name) for name in bkpy.__all__ if name != "__version__"}
    errors = {it for it in offered if inspect.isclass(it) and issubclass(it, bkpy.BookKeeperError)}
    blocking = {getattr(bkpy, blocking_calls.blocking(cls)) for cls in blocking_calls.CLASSES}
    assert offered - errors - blocking == {*api_page.CLASSES, *api_page.FUNCTIONS} - {LocalCluster}
    text = api_page.PAGE.read_text(encoding="utf-8").partition("\n## Errors\n")[2]
    assert {error.__name__ for error in errors} == set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))


def test_every_call_that_changes_something_says_what_a_cancelled_one_may_have_done() -> None:
    assert api_page.silent() == [], "say it in the docstring, or name a call that only reads in READS"


@pytest.mark.thorough
def test_the_blocking_client_is_current() -> None:
    assert blocking_calls.text() == blocking_calls.MODULE.read_text(encoding="utf-8"), "make settings writes it again"


@pytest.mark.parametrize("cls", blocking_calls.CLASSES, ids=lambda cls: cls.__name__)
def test_the_blocking_client_has_every_public_name_with_its_arguments(cls: type) -> None:
    mirror = getattr(bkpy, blocking_calls.blocking(cls))
    names = public(cls) - api_page.HIDDEN.get(cls, set())
    assert names == {name for name in dir(mirror) if not name.startswith("_")}
    for name, function in api_page.calls(cls):
        assert inspect.signature(function).parameters == inspect.signature(getattr(mirror, name)).parameters, name
        assert inspect.getdoc(getattr(mirror, name)), name
    assert hasattr(mirror, "__exit__") == hasattr(cls, "__aexit__")


def test_what_only_reads_is_there() -> None:
    there = {
        name
        for cls in api_page.CLASSES
        for method, _ in api_page.calls(cls)
        for name in (method, f"{cls.__name__}.{method}")
    }
    assert api_page.READS - there == set()


class Base:
    inherited: int

    def method(self) -> None:
        self.by_a_method = self._hidden = 1


class Derived(Base):
    __slots__ = ("slot",)
    CONSTANT = 1

    @property
    def value(self) -> int:
        return 1


def test_public_names_are_found() -> None:
    assert public(Derived) == {"inherited", "method", "by_a_method", "slot", "CONSTANT", "value"}


class Described:
    field: int
    """What it is."""
    silent: int

    @property
    def value(self) -> int:
        """A property."""
        return 1

    async def awaited(self, first: int, /, *rest: int, named: bool = True, **more: int) -> None: ...

    def iterated(self) -> AsyncGenerator[int, None]: ...

    def acts(self) -> None: ...

    def asks(self) -> int: ...

    def future(self) -> asyncio.Future[int]: ...


def test_what_is_known_of_a_class_is_found() -> None:
    assert api_page.attributes(Described) == {"field": "What it is.", "silent": "", "value": "A property."}
    kinds = {name: api_page.kind(function).name for name, function in api_page.calls(Described)}
    assert kinds == {
        "awaited": "AWAITED",
        "iterated": "ITERATED",
        "acts": "PLAIN",
        "asks": "ANYWHERE",
        "future": "AWAITED",
    }
