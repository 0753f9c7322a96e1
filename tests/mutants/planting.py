"""Finds the code that a mutant changes and gives the text of the changed file; says why where it can't."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import textwrap
from collections import Counter
from types import CodeType
from typing import TYPE_CHECKING, NamedTuple

from tests import mutants

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from . import Mutant

NO_AREAS = {"forks", "in_process", "planting", "running", "__main__"}


class DoesNotApply(Exception):  # noqa: N818 - it is about the mutant
    """The mutant has to be written anew; the text says why."""


class Place(NamedTuple):
    """Where a mutant's `find` is: in `lines` lines from `first` on, between `before` and `after` in those."""

    path: Path
    first: int  # from 0
    lines: int
    before: str
    after: str


class Change(NamedTuple):
    """A mutant, as the text of a file."""

    path: Path  # below `src`
    text: str


def all_mutants() -> list[Mutant]:
    """Those of every area, in the order of their modules."""
    found: list[Mutant] = []
    for module in pkgutil.iter_modules(mutants.__path__):
        if module.name not in NO_AREAS:
            found += importlib.import_module(f"{mutants.__name__}.{module.name}").MUTANTS
    twice = [name for name, count in Counter(mutant.name for mutant in found).items() if count > 1]
    if twice:
        raise DoesNotApply(f"two mutants are called {twice[0]!r}")
    return found


def modules_of(source: Path) -> dict[Path, str]:
    """The texts of all modules below `source`, without the blanks at the ends of lines."""
    return {path: _without_blanks(path.read_text(encoding="utf-8")) for path in sorted(source.rglob("*.py"))}


def locate(mutant: Mutant, source: Path, modules: Mapping[Path, str] | None = None) -> Place:
    """The one place in all modules below `source`, whose texts may be given. Blanks at the ends of lines don't count.

    Where there are whole lines that match, parts of other lines are not looked at.
    """
    modules = modules_of(source) if modules is None else modules
    wanted = "\n".join(line.strip() for line in mutant.find.strip().splitlines())
    if not wanted:
        raise DoesNotApply("`find` is empty")
    places = [place for path, text in modules.items() for place in _places(wanted, path, text)]
    places = [place for place in places if not place.before + place.after] or places
    if len(places) != 1:
        where = ", ".join(f"{place.path.relative_to(source)}:{place.first + 1}" for place in places)
        raise DoesNotApply(f"`find` occurs {len(places)} times" + (f": {where}" if where else ""))
    return places[0]


def _without_blanks(text: str) -> str:
    return "\n".join(line.strip() for line in text.splitlines()) + "\n"


def _places(wanted: str, path: Path, text: str) -> Iterator[Place]:
    start = text.find(wanted)
    while start >= 0:
        end = start + len(wanted)
        before = text[text.rfind("\n", 0, start) + 1 : start]
        after = text[end : text.index("\n", end)]
        yield Place(path, text.count("\n", 0, start), wanted.count("\n") + 1, before, after)
        start = text.find(wanted, start + 1)


def changed(mutant: Mutant, place: Place) -> str:
    """The text of the file with the mutant in it: Python that differs."""
    before = place.path.read_text(encoding="utf-8")
    lines = before.splitlines()
    first = lines[place.first]
    indent = first[: len(first) - len(first.lstrip())]
    new = place.before + textwrap.dedent(mutant.replace.strip("\n")) + place.after
    lines[place.first : place.first + place.lines] = textwrap.indent(new, indent).splitlines()
    after = "\n".join(lines) + "\n"
    try:
        same = _meaning(before) == _meaning(after)
    except SyntaxError as e:
        raise DoesNotApply(f"with it, {place.path.name} is no Python: {e.msg} in line {e.lineno}") from None
    if same:
        raise DoesNotApply("it changes nothing")
    return after


@functools.lru_cache(maxsize=512)  # many mutants are of the same file
def _meaning(text: str) -> CodeType:
    return _without_lines(compile(text, "", "exec", dont_inherit=True))


def _without_lines(code: CodeType) -> CodeType:
    """What it does, wherever its lines are."""
    inner = (_without_lines(const) if isinstance(const, CodeType) else const for const in code.co_consts)
    return code.replace(co_firstlineno=1, co_linetable=b"", co_consts=(*inner,))


def change_of(mutant: Mutant, source: Path, modules: Mapping[Path, str] | None = None) -> Change:
    """What to write where below `source`, or a copy of it."""
    place = locate(mutant, source, modules)
    return Change(place.path.relative_to(source), changed(mutant, place))


@functools.lru_cache(maxsize=64)
def _text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def check_test_id(node_id: str, root: Path) -> None:
    """Whether there is a test of that name, without collecting anything."""
    path, *names = node_id.split("::")
    if not (root / path).exists():
        raise DoesNotApply(f"there is no {path}")
    for name in names:
        function = name.partition("[")[0]
        text = _text_of(root / path)
        if f"def {function}(" not in text and f"class {function}" not in text:
            raise DoesNotApply(f"{path} has no {function}")
