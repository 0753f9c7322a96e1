"""What is made from the declarations of settings: `python -m tests.settings_page --write`.

The page of all settings, and the arguments of `bkpy.connect` for type checkers.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bkpy.config.base import GIB, KIB, MIB
from bkpy.config.bookie import BookieSettings
from bkpy.config.client import ClientSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo

    from bkpy.config.shared import MetadataSettings

_ROOT = Path(__file__).parents[1]
PAGE = _ROOT / "docs" / "reference" / "settings.md"
ARGUMENTS = _ROOT / "src" / "bkpy" / "config" / "client_arguments.py"

_HEAD = """\
# Settings

Made by `make settings` from `src/bkpy/config/`; a test sees to it that this page is current. A name that ends in `_s`
is in seconds, one with `bytes` in bytes, one with `_mb` in MiB.

A bookie takes its settings from a TOML file (`bkpy bookie run --config FILE`), from environment variables
`BKPY_<NAME>` and from flags `--<name> VALUE`, the later ones overriding the earlier. A client takes its own as
arguments of `bkpy.connect`. Commands take a client's settings from `BKPY_<NAME>` and from `bkpy --set NAME=VALUE ...`.
"""

_ARGUMENTS_HEAD = '''\
"""The settings of a client as keyword arguments of `bkpy.connect`, for type checkers. Made by `make settings`."""

from __future__ import annotations

from typing import Literal, TypedDict


class ClientArguments(TypedDict, total=False):
    """See `ClientSettings`."""

'''


def page() -> str:
    return "\n".join((_HEAD, *_table("A bookie", BookieSettings), *_table("A client", ClientSettings)))


def arguments() -> str:
    fields = ClientSettings.model_fields.items()
    return _ARGUMENTS_HEAD + "".join(f"    {name}: {_plain(str(field.annotation))}\n" for name, field in fields)


def _plain(annotation: str) -> str:
    plain = annotation.removeprefix("<class '").removesuffix("'>").removeprefix("typing.")
    return plain.replace("pydantic.types.SecretStr", "str").replace("'", '"')


def _table(title: str, model: type[MetadataSettings]) -> Iterator[str]:
    yield f"## {title}\n"
    yield "| setting | default | what it is |"
    yield "| --- | ---: | --- |"
    for name, field in model.model_fields.items():
        assert field.description, name
        yield f"| `{name}` | {_default(name, field)} | {field.description.replace('|', chr(92) + '|')} |"
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
