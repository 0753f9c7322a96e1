"""Each message about a bookie's identity has its row in docs/how-to/identity.md, and no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import bkpy

PACKAGE = Path(bkpy.__file__).parent
PAGE = PACKAGE.parents[1] / "docs" / "how-to" / "identity.md"
SOURCES = [
    "storage/identity.py",
    "storage/open.py",
    "storage/space/disk_monitor.py",
    "storage/cookies.py",
    "storage/wipe.py",
    "metadata/bookies/retired.py",
    "metadata/bookies/registration.py",
    "storage/journal/reader.py",
    "bookie/identity.py",
    "bookie/membership.py",
    "bookie/bookkeeper/dialect.py",
]
OTHERS = ["the cookie can't be read"]  # of another kind of error


def messages() -> list[str]:
    """The texts of all identity errors, with dots for what is put into them."""
    found = list(OTHERS)
    for name in SOURCES:
        for node in ast.walk(ast.parse((PACKAGE / name).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "IdentityError":
                found.append(_text(node.args[0]))
    return found


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    assert isinstance(node, ast.JoinedStr), ast.unparse(node)
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "..." for part in node.values)


def table() -> list[tuple[str, str]]:
    """(message, remedy) of the rows."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [(row[1], row[2]) for row in rows[2:]]


def says(message: str, row: str) -> bool:
    return re.search(".*".join(map(re.escape, row.split("..."))), message) is not None


def test_every_message_has_its_remedy_and_every_remedy_its_message() -> None:
    told = messages()
    assert len(told) > 25
    rows = table()
    assert all(remedy for _, remedy in rows)
    assert [message for message in told if not any(says(message, row) for row, _ in rows)] == []
    assert [row for row, _ in rows if not any(says(message, row) for message in told)] == []


def test_every_command_that_a_remedy_names_is_there() -> None:
    from bkpy.cli.bookie.group import bookie
    from bkpy.cli.bookie.identity import cookie

    texts = [*messages(), *(remedy for _, remedy in table())]
    named = {found for text in texts for found in re.findall(r"`bkpy bookie ([a-z-]+(?: [a-z]+)?)", text)}
    known = set(bookie.list_commands(None)) | {f"cookie {name}" for name in cookie.commands}  # type: ignore[arg-type]
    assert {"cookie update", "format", "init"} <= named
    assert named <= known | {"rebuild-index"}
