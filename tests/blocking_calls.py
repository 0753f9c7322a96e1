"""Makes src/bkpy/blocking/calls.py from the signatures and docstrings of the asynchronous client: `make settings`."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bkpy
from tests import api_page
from tests.api_page import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

MODULE = Path(bkpy.__file__).parent / "blocking" / "calls.py"
CLASSES = (
    bkpy.Client,
    bkpy.AdminClient,
    bkpy.LogWriter,
    bkpy.LogReader,
    bkpy.LogConsumer,
    bkpy.LedgerWriter,
    bkpy.LedgerReader,
)
_NAMES = {cls.__name__: f"Blocking{cls.__name__}" for cls in CLASSES}
_BASES = {bkpy.Client: "BlockingOwner", bkpy.LogReader: "BlockingPoll"}
_OWN = {"close", "metrics"}  # calls of `Client` that its base has
_POLLING = {"poll", "seek"}  # calls of `LogReader` that its base carries out
_MODULE_HEAD = '''\
"""The blocking client's objects, one for each of the asynchronous client's. Made by `make settings`."""

from __future__ import annotations
'''
_NOT_AWAITED = "The future has the outcome, `WouldBlock` too. Cancelling it withdraws nothing that was sent."


def blocking(cls: type) -> str:
    """The name of the class that stands for it."""
    return _NAMES[cls.__name__]


def text() -> str:
    """The module."""
    classes = [_class(cls) for cls in CLASSES]
    used = {node.id for node in ast.walk(ast.parse("\n".join(classes))) if isinstance(node, ast.Name)}
    lines, typed = _imports(used)
    source = "\n".join((_MODULE_HEAD, *lines, "if TYPE_CHECKING:", *(f"    {line}" for line in typed), *classes))
    command = [sys.executable, "-m", "ruff", "-q"]
    for step in (("check", "--fix", "--select", "I,UP,TC,F401", "-"), ("format", "-")):
        named = ("--stdin-filename", str(MODULE))
        source = subprocess.run(
            [*command, *step, *named], input=source, capture_output=True, text=True, check=True
        ).stdout
    return source


def _imports(used: set[str]) -> tuple[list[str], list[str]]:
    """The imports of these names, as the modules of the classes have them: at run time, and for types."""
    found = {cls.__name__: f"from {cls.__module__} import {cls.__name__}" for cls in CLASSES}
    for cls in CLASSES:
        module = sys.modules[cls.__module__]
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.ImportFrom) and node.module != "__future__":
                for alias in node.names:
                    found.setdefault(alias.asname or alias.name, f"from {node.module} import {alias.name}")
            elif isinstance(node, ast.ClassDef):
                found.setdefault(node.name, f"from {module.__name__} import {node.name}")
    found["Future"] = "from concurrent.futures import Future"
    found["payload_of"] = "from bkpy.client.arguments import payload_of"
    found["BlockingIterator"] = "from bkpy.runtime.threadsafe import BlockingIterator"
    at_run_time = {cls.__name__ for cls in CLASSES} | {"payload_of"}
    bases = "from bkpy.blocking.base import Blocking, BlockingContext, BlockingOwner"
    typed = sorted(found[name] for name in (used & found.keys()) - at_run_time)
    polls = "from bkpy.blocking.poll import BlockingPoll"
    return ["from typing import TYPE_CHECKING", bases, polls, *(found[name] for name in at_run_time)], typed


def _class(cls: type) -> str:
    name = cls.__name__
    base = _BASES.get(cls, f"{_base(cls)}[{name}]")
    about = f"What `{name}` is, with calls that wait, from any thread."
    parts = [f'class {blocking(cls)}({base}):\n    """{about}"""\n\n    __slots__ = ()\n']
    if cls is bkpy.AdminClient:
        parts.append(_ADMIN_INIT)
    parts += [_attribute(name, member) for name, member in vars(cls).items() if _shown(cls, name, member)]
    parts += [_call(cls, name, function) for name, function in api_page.calls(cls) if not _inherited(cls, name)]
    return "\n".join(parts)


_ADMIN_INIT = '''
    def __init__(self, client: BlockingClient, settings: RecoverySettings | None = None) -> None:
        """Administer the cluster of `client`. Callbacks of calls run in the client's thread, and must not call it."""
        super().__init__(client._act(AdminClient, client._of, settings), client._thread)
'''


def _base(cls: type) -> str:
    return "BlockingContext" if hasattr(cls, "__aexit__") else "Blocking"


def _inherited(cls: type, name: str) -> bool:
    return cls is bkpy.Client and name in _OWN


def _shown(cls: type, name: str, member: Any) -> bool:
    hidden = name.startswith("_") or name in api_page.HIDDEN.get(cls, ()) or _inherited(cls, name)
    return isinstance(member, property) and not hidden


def _text(doc: str) -> str:
    return textwrap.indent(f'"""{doc}"""' if "\n" not in doc else f'"""{doc}\n"""', " " * 8)


def _attribute(name: str, member: property) -> str:
    assert member.fget is not None
    returned = str(inspect.signature(member.fget).return_annotation)
    value = _made(returned, f"self._of.{name}")
    doc = _text(inspect.getdoc(member) or "")
    return f"    @property\n    def {name}(self) -> {_annotation(returned)}:\n{doc}\n        return {value}\n"


def _call(cls: type, name: str, function: Any) -> str:
    signature = inspect.signature(function)
    returned, kind = str(signature.return_annotation), api_page.kind(function)
    doc = inspect.getdoc(function) or ""
    passed = ", ".join((f"self._of.{name}", *_passed(signature)))
    if returned.startswith("asyncio.Future"):
        passed = passed.replace(", data", ", payload_of(data)", 1)  # now: the loop's thread may take it later
        value, doc = f"self._begin({passed})", f"{doc}\n\n{_NOT_AWAITED}"
    elif cls is bkpy.LogReader and name in _POLLING:
        value = f"self._{name}({', '.join(list(signature.parameters)[1:])})"
    elif kind is Kind.AWAITED:
        value = _made(returned, f"self._{'make' if returned in _NAMES else 'call'}({passed})")
    elif kind is Kind.ITERATED:
        value = f"self._iterate({passed})"
    elif kind is Kind.PLAIN:
        value = f"self._act({passed})"
    else:
        value = f"self._of.{name}({', '.join(_passed(signature))})"
    arguments = ", ".join(_declared(signature))
    does = value if returned == "None" else f"return {value}"
    return f"    def {name}({arguments}) -> {_annotation(returned)}:\n{_text(doc)}\n        {does}\n"


def _declared(signature: inspect.Signature) -> Iterator[str]:
    star = False
    for argument in signature.parameters.values():
        if argument.kind is argument.KEYWORD_ONLY and not star:
            star = True
            yield "*"
        default = "" if argument.default is argument.empty else f" = {argument.default!r}"
        typed = "" if argument.name == "self" else f": {argument.annotation}"
        yield f"{argument.name}{typed}{default}"


def _passed(signature: inspect.Signature) -> Iterator[str]:
    for argument in signature.parameters.values():
        if argument.name != "self":
            yield f"{argument.name}={argument.name}" if argument.kind is argument.KEYWORD_ONLY else argument.name


def _annotation(returned: str) -> str:
    returned = re.sub(r"^asyncio\.Future\[", "Future[", returned)
    if returned.startswith("AsyncGenerator["):
        return f"BlockingIterator[{returned.removeprefix('AsyncGenerator[').removesuffix(', None]')}]"
    return re.sub(r"\w+", lambda found: _NAMES.get(found[0], found[0]), returned)


def _made(returned: str, value: str) -> str:
    """The value, wrapped if it is an object of the client."""
    return f"{_NAMES[returned]}({value}, self._thread)" if returned in _NAMES else value


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m tests.blocking_calls --write")
    MODULE.write_text(text(), encoding="utf-8")
