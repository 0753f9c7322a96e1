"""What users get of the exported classes is what the documentation lists: neither more, nor less."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from pathlib import Path

import pytest
from tests import api_page

import bkpy
from bkpy.local import LocalCluster

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "api.md"
CLASSES = [
    bkpy.Client,
    bkpy.AdminClient,
    bkpy.LedgerWriter,
    bkpy.LedgerReader,
    bkpy.LogReader,
    bkpy.LogConsumer,
    bkpy.LogEntry,
    bkpy.LogBlock,
    bkpy.LogWriter,
    bkpy.Block,
    bkpy.Entry,
    bkpy.LedgerMetadata,
    LocalCluster,
]
CALLS = {
    "create_ledger": bkpy.Client.create_ledger,
    "open_log": bkpy.Client.open_log,
    "LocalCluster": LocalCluster.__init__,
}
ARGUMENTS_OF = "Arguments of `{}`"


def documented(text: str) -> dict[str, list[str]]:
    """By section, the names in the first column of its table. Every row has to say something of them."""
    found: dict[str, list[str]] = {}
    for section in re.split(r"^###? ", text, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        rows = re.findall(r"^\| (`[^|]*`) \| (.+) \|$", body, re.MULTILINE)
        found[title] = [name for names, _ in rows for name in re.findall(r"`(\w+)`", names)]
    return found


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
    own = [base for base in cls.__mro__ if base.__module__ != "builtins"]
    names = {name for base in own for name in {*vars(base), *inspect.get_annotations(base), *assigned(base)}}
    return {name for name in names if not name.startswith("_")}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_the_public_names_of_a_class_are_those_in_the_documentation(cls: type) -> None:
    names = documented(PAGE.read_text(encoding="utf-8"))[cls.__name__]
    assert len(names) == len(set(names))
    assert public(cls) == set(names), "make it private, or list it in docs/reference/api.md"


@pytest.mark.parametrize("name", CALLS)
def test_the_arguments_of_a_call_and_their_defaults_are_those_in_the_documentation(name: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    taken = {n: p for n, p in inspect.signature(CALLS[name]).parameters.items() if n != "self"}
    assert documented(text)[ARGUMENTS_OF.format(name)] == list(taken)
    _, _, table = text.partition(f"### {ARGUMENTS_OF.format(name)}\n")
    for argument, parameter in taken.items():
        row = re.search(rf"^\| `{argument}` \| ([^|]*)\| ", table, re.MULTILINE)
        assert row is not None
        default = "" if parameter.default is parameter.empty else f"`{parameter.default!r}`".replace("'", '"')
        assert row[1].strip() == default


@pytest.mark.parametrize(
    "cls",
    [bkpy.Client, bkpy.AdminClient, bkpy.LedgerWriter, bkpy.LedgerReader, bkpy.LogWriter, bkpy.LogReader],
    ids=lambda cls: cls.__name__,
)
def test_every_public_name_is_explained(cls: type) -> None:
    assert [name for name in sorted(public(cls)) if not inspect.getdoc(getattr(cls, name, None))] == []


def test_every_exported_class_has_a_table_or_is_in_that_of_errors() -> None:
    exported = [getattr(bkpy, name) for name in bkpy.__all__]
    classes = {cls.__name__ for cls in exported if inspect.isclass(cls) and not issubclass(cls, BaseException)}
    sections = {title: names for title, names in documented(PAGE.read_text(encoding="utf-8")).items() if names}
    arguments = {ARGUMENTS_OF.format(name) for name in CALLS}
    assert sections.keys() == classes | {LocalCluster.__name__, "Errors"} | arguments
    assert set(sections["Errors"]) == {cls.__name__ for cls in exported if inspect.isclass(cls)} - classes


def test_the_page_has_the_signatures_as_they_are() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert api_page.with_signatures(text) == text, "make settings writes them anew"


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


def test_documented_names_are_found() -> None:
    text = (
        "# Page\n| `not_here` | x |\n## One\n| name | what |\n| --- | --- |\n| `a`, `b` | x |\n| `c` | `d` |\n## Two\n"
    )
    assert documented(text) == {"One": ["a", "b", "c"], "Two": []}
