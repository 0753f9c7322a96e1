"""The signatures in docs/reference/api.md, made from the classes: `python -m tests.api_page --write`."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

import bkpy
from bkpy.local import LocalCluster

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "api.md"
CLASSES = (
    bkpy.Client,
    bkpy.AdminClient,
    bkpy.LedgerWriter,
    bkpy.LogWriter,
    bkpy.LedgerReader,
    bkpy.LogReader,
    bkpy.LogConsumer,
    bkpy.LogBlock,
    bkpy.Block,
    LocalCluster,
)
# Public for other parts of bkpy alone, as their rows say; and the deprecated ones of `Client`.
_OF_BKPY = {"leave", "pending"}
_DEPRECATED = {"create_segment", "last_entries", "logs", "open_segment", "upkeep"}
# Their arguments have a table of their own on the page.
_TABLED = {"create_ledger", "open_log"}
# A property of one of these types is in the table alone.
_PLAIN = {"bool", "int", "str"}
_WIDTH = 120


def signatures(cls: type) -> str:
    """Its public methods and properties as a stub has them, in a fenced block."""
    lines = []
    for name, member in cls.__dict__.items():
        if name.startswith("_") or name in _OF_BKPY or (cls is bkpy.Client and name in _DEPRECATED):
            continue
        if name in _TABLED:
            lines.append(f"await {name}(...) -> {inspect.signature(member).return_annotation}")
        elif isinstance(member, property):
            assert member.fget is not None
            annotation = inspect.signature(member.fget).return_annotation
            if annotation not in _PLAIN:
                lines.append(f"{name}: {annotation}")
        elif inspect.isfunction(member):
            lines.append(_method(name, member))
    return "```text\n" + "\n".join(lines) + "\n```\n"


def _method(name: str, function: object) -> str:
    assert callable(function)
    signature = inspect.signature(function)
    arguments, star = [], False
    for argument in list(signature.parameters.values())[1:]:
        if argument.kind is argument.KEYWORD_ONLY and not star:
            arguments.append("*")
            star = True
        default = "" if argument.default is argument.empty else f" = {argument.default!r}"
        arguments.append(f"{argument.name}: {argument.annotation}{default}")
    prefix = f"{'await ' if inspect.iscoroutinefunction(function) else ''}{name}("
    line = f"{prefix}{', '.join(arguments)}) -> {signature.return_annotation}"
    if len(line) <= _WIDTH:
        return line
    return "\n".join([prefix, *(f"    {argument}," for argument in arguments), f") -> {signature.return_annotation}"])


def with_signatures(text: str) -> str:
    """The page with the block behind the table of each class."""
    for cls in CLASSES:
        section = re.search(
            rf"^## {cls.__name__}\n(?:(?!^##).*\n)*?((?:^\|.*\n)+)(\n```text\n(?:.*\n)*?```\n)?", text, re.M
        )
        assert section is not None, cls
        table_end = section.end(1)
        text = f"{text[:table_end]}\n{signatures(cls)}{text[section.end() :]}"
    return text


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m tests.api_page --write")
    PAGE.write_text(with_signatures(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
