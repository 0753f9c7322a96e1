"""Plants a mutant in the running process: meanwhile its functions run as the changed text says."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import bkpy

from . import Mutant
from .planting import DoesNotApply, all_mutants, changed, locate, modules_of

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(bkpy.__file__).parents[1]


@contextlib.contextmanager
def planted(find: str, replace: str) -> Iterator[None]:
    """Meanwhile the functions whose text has `find`, which is unique in `src/`, run as if it were `replace`."""
    with contextlib.ExitStack() as undo:
        for function, code in _changes(find, replace):
            undo.callback(setattr, function, "__code__", function.__code__)
            function.__code__ = code
        yield


def mutant(name: str) -> Mutant:
    """The mutant of that name, whose text serves as a switch as well."""
    return _mutants()[name]


@functools.cache
def _mutants() -> dict[str, Mutant]:
    return {one.name: one for one in all_mutants()}


@functools.cache
def _texts() -> dict[Path, str]:
    return modules_of(SOURCE)


@functools.cache
def _changes(find: str, replace: str) -> list[tuple[FunctionType, CodeType]]:
    one = Mutant("a switch", "", find, replace, ())
    place = locate(one, SOURCE, _texts())
    module = importlib.import_module(".".join(place.path.relative_to(SOURCE).with_suffix("").parts))
    before = _functions(compile(place.path.read_text(encoding="utf-8"), str(place.path), "exec", dont_inherit=True))
    after = _functions(compile(changed(one, place), str(place.path), "exec", dont_inherit=True))
    differ = [name for name, code in after.items() if name not in before or _shape(before[name]) != _shape(code)]
    if not differ:
        raise DoesNotApply(f"no function of {place.path.name} has it")
    return [(_function(module, name), after[name]) for name in differ]


def _functions(code: CodeType) -> dict[str, CodeType]:
    """The functions of a module and of its classes, by name; functions inside of them are parts of them."""
    found: dict[str, CodeType] = {}
    for const in code.co_consts:
        if isinstance(const, CodeType):
            found |= {const.co_qualname: const} if const.co_flags & inspect.CO_OPTIMIZED else _functions(const)
    return found


def _shape(code: CodeType) -> tuple[Any, ...]:
    """What the code does, wherever its lines are."""
    consts = tuple(_shape(one) if isinstance(one, CodeType) else (type(one), one) for one in code.co_consts)
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, consts


def _function(module: Any, name: str) -> FunctionType:
    found: Any = module
    for part in name.split("."):
        found = inspect.getattr_static(found, part)
    for wrapper in ("fget", "__func__", "func"):  # of a property, a class or static method, a cached property
        found = getattr(found, wrapper, found)
    found = inspect.unwrap(found)
    if not isinstance(found, FunctionType):
        raise DoesNotApply(f"{name} is no function")
    return found
