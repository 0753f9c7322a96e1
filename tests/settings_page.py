"""Makes the page of settings, and the typed arguments of `bkpy.connect`: `python -m tests.settings_page --write`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bkpy.config.base import GIB, GROUPS, KIB, MIB
from bkpy.config.bookie import BookieSettings
from bkpy.config.client import ClientSettings
from bkpy.config.reloading import reloadable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo

    from bkpy.config.base import Group

_ROOT = Path(__file__).parents[1]
PAGE = _ROOT / "docs" / "reference" / "settings.md"
ARGUMENTS = _ROOT / "src" / "bkpy" / "config" / "client_arguments.py"

_HEAD = """\
# Settings

`make settings` makes this page from `src/bkpy/config/`. A name that ends in `_s` is in seconds, one with `bytes` in
bytes, one with `_mb` in MiB.

* **A bookie** reads a TOML file (`bkpy bookie run --config FILE`), then variables `BKPY_<NAME>`, then flags
  `--<name> VALUE`. Later values override earlier ones.
* **A client** takes its settings as arguments of `bkpy.connect`.
* **A command** reads a client's settings from variables `BKPY_<NAME>` and from `bkpy --set NAME=VALUE ...`.

A running bookie takes new values of settings with ↻ from its file, at SIGHUP or `bkpy bookie reload`. `bkpy bookie
config` shows each setting with its value, and where that comes from.

Start with the basic ones. The others have defaults that suit most clusters.
"""

_TITLES = {
    "basic": "Basic",
    "storage": "Storage",
    "network": "Network",
    "healing": "Healing",
    "logs": "Named logs",
    "security": "Security",
}

_INTERNAL_HEAD = """\
## Internal tuning

These were settings up to version 0.2. Each has a value that suits every cluster, and now belongs to the code
(`src/bkpy/config/tuning/`). This version still reads them, with a warning; the next minor version refuses them.
"""

_ARGUMENTS_HEAD = '''\
"""The settings of a client as keyword arguments of `bkpy.connect`, for type checkers. Made by `make settings`."""

from __future__ import annotations

from typing import Literal, TypedDict


class ClientArguments(TypedDict, total=False):
    """See `ClientSettings`."""

'''


def page() -> str:
    tables = (line for group in GROUPS for line in _table(group))
    return "\n".join((_HEAD, *tables, _INTERNAL_HEAD, ", ".join(f"`{name}`" for name in internal()) + ".", ""))


def internal() -> list[str]:
    """The names of all tuning values, in alphabetical order."""
    groups = {**BookieSettings.groups(), **ClientSettings.groups()}
    return sorted(name for name, group in groups.items() if group is None)


def arguments() -> str:
    fields = ((name, ClientSettings.model_fields[name]) for name in ClientSettings.public())
    return _ARGUMENTS_HEAD + "".join(f"    {name}: {_plain(str(field.annotation))}\n" for name, field in fields)


def _plain(annotation: str) -> str:
    plain = annotation.removeprefix("<class '").removesuffix("'>").removeprefix("typing.")
    return plain.replace("pydantic.types.SecretStr", "str").replace("'", '"')


def _table(group: Group) -> Iterator[str]:
    yield f"## {_TITLES[group]}\n"
    yield "| setting | of | default | what it is |"
    yield "| --- | --- | ---: | --- |"
    rows: dict[tuple[str, str, str], list[str]] = {}  # by name, default and text; a row that both share is one
    for of, model in (("bookie", BookieSettings), ("client", ClientSettings)):
        for name, own in model.groups().items():
            if own == group:
                field = model.model_fields[name]
                assert field.description, name
                rows.setdefault((name, _default(name, field), field.description), []).append(of)
    for (name, default, text), of in rows.items():
        mark = " ↻" if name in reloadable(BookieSettings) else ""
        yield f"| `{name}`{mark} | {', '.join(of)} | {default} | {text.replace('|', chr(92) + '|')} |"
    yield ""


def _default(name: str, field: FieldInfo) -> str:
    if field.is_required():
        return "*needed*"
    value: Any = field.get_default(call_default_factory=True)
    if value is None or value == "":
        return ""
    if isinstance(value, int) and "bytes" in name:
        for unit, factor in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
            if value and value % factor == 0:
                return f"{value // factor:,} {unit}"
    return f"{value:,}" if isinstance(value, int | float) and not isinstance(value, bool) else f"`{value}`"


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m tests.settings_page --write")
    PAGE.write_text(page(), encoding="utf-8")
    ARGUMENTS.write_text(arguments(), encoding="utf-8")
