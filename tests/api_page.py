"""Makes docs/reference/api.md, behind its introduction, from signatures and docstrings: `make settings`.

The introduction, up to the first class, is written in the page itself.
"""

from __future__ import annotations

import ast
import enum
import inspect
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bkpy
from bkpy.local import LocalCluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "api.md"
FUNCTIONS: tuple[Callable[..., Any], ...] = (bkpy.connect, bkpy.connect_sync, bkpy.threadsafe)
CLASSES: tuple[type, ...] = (
    bkpy.Client,
    bkpy.LogWriter,
    bkpy.LogReader,
    bkpy.LogPosition,
    bkpy.LogConsumer,
    bkpy.ConsumerLag,
    bkpy.ConsumerStatus,
    bkpy.LogEntry,
    bkpy.LogBlock,
    bkpy.LedgerWriter,
    bkpy.LedgerReader,
    bkpy.Entry,
    bkpy.Block,
    bkpy.ThreadsafeCalls,
    bkpy.BlockingIterator,
    bkpy.AdminClient,
    bkpy.LedgerMetadata,
    bkpy.ClientInfo,
    LocalCluster,
)
# What belongs to a client's event loop; all else are values, or made for other threads and loops.
_BOUND = {
    *(bkpy.Client, bkpy.AdminClient, bkpy.LogWriter, bkpy.LogReader, bkpy.LogConsumer),
    *(bkpy.LedgerWriter, bkpy.LedgerReader),
}
# Public for other parts of bkpy alone; and the deprecated ones of `Client`.
HIDDEN = {
    bkpy.LedgerWriter: {"leave", "pending", "take_in"},
    bkpy.Client: {"create_segment", "last_entries", "logs", "open_segment", "upkeep"},
    LocalCluster: {"lock_fds", "rebuild", "write_config"},
}
# Awaited calls that only read, or never wait: cancelling them changes nothing. All others say in their docstrings what
# it does.
READS = {
    "LedgerReader.close", "LogReader.close",
    "audit_trail", "auditor", "consumers",
    "describe_log", "describe_replication", "drain_progress", "health", "is_reachable",
    "lag", "lag_at", "last_entries",
    "ledger_metadata", "list_locks", "log_consumers", "log_names", "log_producers", "log_sinks", "open_ledger",
    "position_at", "read_last_add_confirmed", "read_log", "refresh", "replication_status", "under_replication",
    "unreadable_entries",
}  # fmt: skip
_WIDTH = 110
_ERRORS_HEAD = "All are in `bkpy` and in `bkpy.errors`. An error's fields say more than its class."


class Kind(enum.Enum):
    """How a call is made, and from where."""

    AWAITED = "awaited"
    ITERATED = "iterator"
    PLAIN = "plain"  # acts at once
    ANYWHERE = "any thread"  # from any thread and without an event loop


def kind(function: Callable[..., Any]) -> Kind:
    returned = str(inspect.signature(function).return_annotation)
    if inspect.iscoroutinefunction(function) or returned.startswith("asyncio.Future"):
        return Kind.AWAITED
    if returned.startswith("AsyncGenerator"):
        return Kind.ITERATED
    return Kind.PLAIN if returned == "None" else Kind.ANYWHERE


def calls(cls: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public methods that the page has, by name."""
    for name, member in vars(cls).items():
        function = member.__func__ if isinstance(member, classmethod) else member
        if not name.startswith("_") and name not in HIDDEN.get(cls, ()) and inspect.isfunction(function):
            yield name, function


def attributes(cls: type) -> dict[str, str]:
    """By name, what the docstrings of properties, and the texts below annotated fields, say of public attributes."""
    found: dict[str, str] = {}
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    for node, following in zip(body.body, [*body.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            text = following.value.value if _is_text(following) else ""  # type: ignore[union-attr]
            found[node.target.id] = str(text)
    found |= {name: inspect.getdoc(member) or "" for name, member in vars(cls).items() if isinstance(member, property)}
    return {name: doc for name, doc in found.items() if not name.startswith("_") and name not in HIDDEN.get(cls, ())}


def _is_text(node: ast.stmt | None) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def page(text: str) -> str:
    """The page with the introduction of `text`."""
    introduction, _, _ = text.partition(f"\n## {FUNCTIONS[0].__name__}\n")
    functions = (
        f"## {function.__name__}\n\n{_described(function.__name__, function, inspect.getdoc(function) or '')}"
        for function in FUNCTIONS
    )
    return "\n".join((introduction, *functions, *(_section(cls) for cls in CLASSES), _errors()))


def _section(cls: type) -> str:
    parts = [f"## {cls.__name__}\n", f"{inspect.getdoc(cls)}\n"]
    if found := attributes(cls):
        rows = (f"| `{name}` | {_line(doc)} |\n" for name, doc in found.items())
        parts.append(f"| attribute | what it is |\n| --- | --- |\n{''.join(rows)}")
    parts += [_call(cls, name, function) for name, function in calls(cls)]
    return "\n".join(parts)


def _line(doc: str | None) -> str:
    """As a cell of a table."""
    return " ".join((doc or "").split()).replace("|", "\\|")


def _call(cls: type, name: str, function: Callable[..., Any]) -> str:
    doc = inspect.getdoc(function) or ""
    if cls not in _BOUND and kind(function) is Kind.ANYWHERE:  # of a value: what it returns is all there is to say
        doc = doc.partition("\n\n")[0]
    marks = {Kind.ITERATED: "*Iterator.* ", Kind.ANYWHERE: "*Any thread.* "}
    return _described(name, function, (marks.get(kind(function), "") if cls in _BOUND else "") + doc)


def _described(name: str, function: Callable[..., Any], text: str) -> str:
    signature = _signature(name, function)
    title = f"```text\n{signature}\n```" if "\n" in signature else f"**`{signature}`**"
    return f"{title}\n\n{text}\n"


def silent() -> list[str]:
    """The awaited calls that may change something, and don't say what becomes of that if they are cancelled."""
    return [
        f"{cls.__name__}.{name}"
        for cls in CLASSES
        for name, function in calls(cls)
        if kind(function) is Kind.AWAITED
        and not {name, f"{cls.__name__}.{name}"} & READS
        and "ancel" not in (inspect.getdoc(function) or "")
    ]


def _signature(name: str, function: Callable[..., Any]) -> str:
    signature = inspect.signature(function)
    arguments, star = [], False
    for argument in signature.parameters.values():
        if argument.name in ("self", "cls"):
            continue
        if argument.kind is argument.KEYWORD_ONLY and not star:
            arguments.append("*")
            star = True
        default = "" if argument.default is argument.empty else f" = {argument.default!r}"
        mark = {argument.VAR_POSITIONAL: "*", argument.VAR_KEYWORD: "**"}.get(argument.kind, "")
        arguments.append(f"{mark}{argument.name}: {argument.annotation}{default}")
        if argument.kind is argument.POSITIONAL_ONLY:
            arguments.append("/")
    prefix = f"{'await ' if inspect.iscoroutinefunction(function) else ''}{name}("
    line = f"{prefix}{', '.join(arguments)}) -> {signature.return_annotation}"
    if len(line) <= _WIDTH:
        return line
    return "\n".join([prefix, *(f"    {argument}," for argument in arguments), f") -> {signature.return_annotation}"])


def _errors() -> str:
    errors = [getattr(bkpy, name) for name in bkpy.__all__]
    rows = [
        f"| `{error.__name__}` | {'yes' if error.retriable else ''} | {_line(inspect.getdoc(error))} |\n"
        for error in errors
        if inspect.isclass(error) and issubclass(error, bkpy.BookKeeperError)
    ]
    return f"## Errors\n\n{_ERRORS_HEAD}\n\n| name | retriable | what it means |\n| --- | --- | --- |\n{''.join(rows)}"


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m tests.api_page --write")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    if unsaid := silent():
        sys.exit(f"what happens if these are cancelled? {', '.join(unsaid)}: name them in READS, or say it")
